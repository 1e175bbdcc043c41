"""Owns what a stateful bolt may ask of its key-value state; the concrete one belongs to the runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class KeyValueState(Protocol):
    """Keys (str, int, bytes, or tuples of them) to values of the codec's closed set; survives every crash.

    `state[key]`, `state[key] = value`, `del state[key]` and iteration mean what they do for a dict. Values are handed out as
    copies: a list that was changed is put again.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        """The value last put under a key."""

    def put(self, key: Any, value: Any) -> None:
        """Set a value; undone when the execute() that did it fails."""

    def add(self, key: Any, amount: float = 1) -> Any:
        """Add to the number under a key (none counts as 0) and return the sum: one step where get and put are two."""

    def delete(self, key: Any) -> None:
        """Forget a key; a missing one is no error."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Every key with its value."""

    def __len__(self) -> int: ...

    def __contains__(self, key: Any) -> bool: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, key: Any) -> Any: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __delitem__(self, key: Any) -> None: ...
