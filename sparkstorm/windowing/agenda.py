"""Owns an agenda: keys by the time they are due, handed out by time and then by key, whatever order they came in."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

from sparkstorm.windowing.store import Key, in_order


class Agenda:
    """Each (time, key) is on it once."""

    def __init__(self) -> None:
        self._keys_by_time: dict[int, dict[Key, None]] = {}
        self._times: list[int] = []
        self._queue: deque[Key] = deque()  # keys of the earliest time, sorted; empty when not sorted yet

    def add(self, at: int, key: Key) -> None:
        """Put a key down for a time."""
        keys = self._keys_by_time.get(at)
        if keys is None:
            keys = self._keys_by_time[at] = {}
            heappush(self._times, at)
        if key not in keys:
            keys[key] = None
            if at <= self._times[0]:
                self._queue.clear()

    def first_at(self) -> int | None:
        """The earliest time."""
        return self._times[0] if self._times else None

    def first_key(self) -> Key:
        """The least key of the earliest time; there must be one."""
        if not self._queue:
            self._queue.extend(in_order(list(self._keys_by_time[self._times[0]])))
        return self._queue[0]

    def drop_first(self) -> None:
        """Cross that one out."""
        key = self.first_key()
        self._queue.popleft()
        keys = self._keys_by_time[self._times[0]]
        del keys[key]
        if not keys:
            del self._keys_by_time[heappop(self._times)]

    def drop(self, at: int, key: Key) -> None:
        """Cross out any."""
        keys = self._keys_by_time.get(at, {})
        if key not in keys:
            return
        if at == self._times[0] and self._queue and self._queue[0] == key:
            self.drop_first()
            return
        del keys[key]
        self._queue.clear()
        if not keys:
            del self._keys_by_time[at]
            if self._times[0] == at:
                heappop(self._times)
            else:
                self._times.remove(at)
                heapify(self._times)
