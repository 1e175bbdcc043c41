"""Syntax trees of modules, read once in a test process: a dozen checks walk all of the package."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return a module's syntax tree; it is only read."""
    with _no_collection():
        return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module in the order of `ast.walk`."""
    with _no_collection():
        return tuple(ast.walk(tree_of(path)))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Make objects that stay without the collector's passes over all of them: a third of the time
    of 600 modules.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
