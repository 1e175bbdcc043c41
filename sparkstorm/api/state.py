"""Protocol of a task's key-value state, and a view of it whose keys end after a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from sparkstorm.common.errors import show


class KeyValueState(Protocol):
    """Mapping of keys (text, numbers, bytes, tuples of them) to values that a tuple may carry; it
    survives every crash.

    It works as a dict. Values are copies: put a changed list again.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value last put under a key."""

    def put(self, key: Any, value: Any) -> None:
        """Set a value; undone if the `execute` that set it fails."""

    def add(self, key: Any, amount: float = 1) -> Any:
        """Add to a number (0 without one) and return the sum."""

    def add_batch(self, keys: Any, amounts: Any = 1) -> None:
        """Add to many numbers: lists or Arrow arrays of one length, or one amount for all keys.

        Keys may be an Arrow batch or table too: each row is a tuple of its columns' values.
        """

    def delete(self, key: Any) -> None:
        """Delete a key if it is there."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over keys and values."""

    def scan(
        self, start: Any = None, stop: Any = None, prefix: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        """Iterate over keys and values in the order of keys, from `start` to before `stop`.

        `prefix` takes the texts or bytes that begin so, or the tuples whose first elements are
        these. Numbers come before texts, bytes, datetimes, dates, UUIDs and tuples. The whole state
        is read and what is found is sorted: for reports, not for each tuple.
        """

    def __len__(self) -> int: ...

    def __contains__(self, key: Any) -> bool: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, key: Any) -> Any: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __delitem__(self, key: Any) -> None: ...


class ExpiringState:
    """View of a state whose keys end `ttl_ms` after their last put, on the clock of the calls.

    With the tuple's event time a live run and every replay agree. A key's time never goes back. An
    ended key is deleted when it is used next, or by `purge`; the state holds `[value, time]`.

    >>> state = ExpiringState({}, ttl_ms=1_000)  # a bolt gives self.state
    >>> state.put("a", 1, now_ms=0)
    >>> state.get("a", now_ms=1_000), state.get("a", now_ms=1_001, default=0)
    (1, 0)
    """

    def __init__(self, state: KeyValueState | dict[Any, Any], ttl_ms: int) -> None:
        """Wrap a state; ValueError unless `ttl_ms` (milliseconds) is positive."""
        if not isinstance(ttl_ms, int | float) or not ttl_ms > 0:
            raise ValueError(
                f"ttl_ms is {show(ttl_ms)}; write the milliseconds that a key lives, as 3_600_000"
            )
        self._state = state
        self._ttl_ms = ttl_ms

    def get(self, key: Any, now_ms: int, default: Any = None) -> Any:
        """Return the value under a key that has not ended."""
        _require_time(now_ms)
        entry = self._state.get(key)
        if entry is None:
            return default
        if self._has_ended(entry, now_ms):
            del self._state[key]
            return default
        return entry[0]

    def put(self, key: Any, value: Any, now_ms: int) -> None:
        """Set a value; its life begins anew. ValueError for what is no time."""
        _require_time(now_ms)
        entry = self._state.get(key)
        self._state[key] = [value, now_ms if entry is None else max(now_ms, entry[1])]

    def add(self, key: Any, amount: float, now_ms: int) -> Any:
        """Add to a number (0 without one) and return the sum."""
        total = self.get(key, now_ms, 0) + amount
        self.put(key, total, now_ms)
        return total

    def delete(self, key: Any) -> None:
        """Delete a key if it is there."""
        if key in self._state:
            del self._state[key]

    def purge(self, now_ms: int) -> int:
        """Delete every ended key and return their number; reads the whole state."""
        _require_time(now_ms)
        ended = [key for key, entry in self._state.items() if self._has_ended(entry, now_ms)]
        for key in ended:
            del self._state[key]
        return len(ended)

    def _has_ended(self, entry: Any, now_ms: int) -> bool:
        return bool(now_ms - entry[1] > self._ttl_ms)


def _require_time(now_ms: Any) -> None:
    if not isinstance(now_ms, int | float) or now_ms != now_ms:
        raise ValueError(f"the time is {show(now_ms)}; give it in milliseconds")
