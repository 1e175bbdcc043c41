"""Protocol of the store in which windows and timers keep their data (executor.state.MemoryState is
one).
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Protocol

Key = tuple[Any, ...]
"""Values of a windowed bolt's key fields; empty when it has none."""

_NUMBER = "0"  # true/false, whole numbers and floats are compared with each other


class Store(Protocol):
    """Mapping of tuples of scalars to values of the codec's closed set; its owner can undo recent
    changes.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value under a key."""

    def put(self, key: Any, value: Any) -> None:
        """Set a value."""

    def delete(self, key: Any) -> None:
        """Delete a key; a missing one is no error."""

    def form_of(self, key: Any) -> Any:
        """Return a key that was just read or put as it is stored: of two that are equal, the first
        one.
        """

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return every key with its value."""

    def __contains__(self, key: Any) -> bool: ...


def rank(key: Key) -> Key:
    """Return a sort key for keys of mixed types, which depends on the key alone and orders keys
    that can be compared as their comparison does.
    """
    return tuple(
        [
            (_NUMBER, part)
            if isinstance(part, int | float | Decimal)
            else (type(part).__name__, "" if part is None else part)
            for part in key
        ]
    )


def in_order(keys: list[Key]) -> list[Key]:
    """Return keys in the order of their ranks."""
    try:
        return sorted(keys)  # the same, where it is possible, and faster
    except TypeError:  # of several types
        return sorted(keys, key=rank)
