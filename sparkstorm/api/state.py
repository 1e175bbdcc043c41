"""KeyValueState: protocol of a task's key-value state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class KeyValueState(Protocol):
    """Mapping of keys (text, numbers, bytes, or tuples of them) to values that a tuple may carry; it survives every crash.

    `state[key]`, `state[key] = value`, `del state[key]` and iteration work as for a dict. Values are copies: after changing
    a list, put it again.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value last put under a key."""

    def put(self, key: Any, value: Any) -> None:
        """Set a value; undone if the `execute` that set it fails."""

    def add(self, key: Any, amount: float = 1) -> Any:
        """Add to the number under a key (0 if there is none) and return the sum."""

    def add_batch(self, keys: Any, amounts: Any = 1) -> None:
        """Add to the numbers under many keys: lists or Arrow arrays of one length, or one amount for all keys."""

    def delete(self, key: Any) -> None:
        """Delete a key if it is there."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over keys and values."""

    def scan(self, start: Any = None, stop: Any = None, prefix: Any = None) -> Iterator[tuple[Any, Any]]:
        """Iterate over keys from `start` to before `stop` with their values, in the order of keys.

        `prefix` takes the texts or bytes that begin so, or the tuples whose first elements are these. Numbers come before texts,
        bytes, datetimes, dates, UUIDs and tuples. The whole state is read and what is found is sorted: for reports, not for
        each tuple.
        """

    def __len__(self) -> int: ...

    def __contains__(self, key: Any) -> bool: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, key: Any) -> Any: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __delitem__(self, key: Any) -> None: ...
