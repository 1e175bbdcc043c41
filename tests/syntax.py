"""Syntax trees of modules, read once in a test process: a dozen checks walk all of the package."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return a module's syntax tree; it is only read."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module in the order of `ast.walk`."""
    return tuple(ast.walk(tree_of(path)))
