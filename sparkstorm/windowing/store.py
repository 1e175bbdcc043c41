"""Owns what windows and timers ask of the store they keep themselves in (runtime.state.MemoryState is one)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

Key = tuple[Any, ...]
"""Values of a windowed bolt's key fields; empty when it has none."""


class Store(Protocol):
    """Tuples of scalars to values of the codec's closed set; its owner can undo what was put since some moment."""

    def get(self, key: Any, default: Any = None) -> Any:
        """The value under a key."""

    def put(self, key: Any, value: Any) -> None:
        """Set a value."""

    def delete(self, key: Any) -> None:
        """Forget a key; a missing one is no error."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Every key with its value."""

    def __contains__(self, key: Any) -> bool: ...


def in_order(keys: list[Key]) -> list[Key]:
    """Keys in an order that depends on nothing but the keys, so that two runs fire windows alike."""
    try:
        return sorted(keys)
    except TypeError:  # of several types
        return sorted(keys, key=lambda key: [(type(part).__name__, str(part)) for part in key])
