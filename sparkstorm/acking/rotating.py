"""Owns time-outs without timestamps: a map in buckets whose oldest bucket each rotation drops."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RotatingMap(Generic[Key, Value]):
    """A map whose entries are dropped by the `buckets`-th rotation after they were put.

    Storm calls back for each expired entry; here `rotate` returns them, and the caller decides.
    """

    __slots__ = ("_buckets",)

    def __init__(self, buckets: int = 3) -> None:
        if buckets < 2:
            # One bucket would drop an entry that was put a moment before.
            raise ValueError(f"a rotating map needs 2 buckets or more, not {buckets}")
        self._buckets: deque[dict[Key, Value]] = deque({} for _ in range(buckets))

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets)

    def __contains__(self, key: Key) -> bool:
        return any(key in bucket for bucket in self._buckets)

    def __iter__(self) -> Iterator[Key]:
        """Keys, the most recently put bucket first."""
        for bucket in self._buckets:
            yield from bucket

    def put(self, key: Key, value: Value) -> None:
        """Store in the newest bucket; a key that is known moves there."""
        newest, *older = self._buckets
        newest[key] = value
        for bucket in older:
            if key in bucket:
                del bucket[key]
                return

    def get(self, key: Key) -> Value | None:
        """The value, its age untouched; None when unknown."""
        for bucket in self._buckets:
            if key in bucket:
                return bucket[key]
        return None

    def pop(self, key: Key) -> Value | None:
        """Take the value out; None when unknown."""
        for bucket in self._buckets:
            if key in bucket:
                return bucket.pop(key)
        return None

    def rotate(self) -> dict[Key, Value]:
        """Begin a new bucket and hand over the oldest one."""
        expired = self._buckets.pop()
        self._buckets.appendleft({})
        return expired
