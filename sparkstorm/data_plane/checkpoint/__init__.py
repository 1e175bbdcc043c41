"""Checkpoints: the state of a topology's tasks in files, and the start of another run from them."""
