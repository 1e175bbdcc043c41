"""Pure decisions of a gray upgrade: which workers come next, and whether it goes back."""
