"""Looks at a live topology: rows, messages and stacks that its workers publish meanwhile."""
