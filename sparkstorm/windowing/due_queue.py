"""Queue of keys by their due time, ordered by time and then by key, in any order of adding."""

from __future__ import annotations

from heapq import heappop, heappush

from sparkstorm.windowing.store import Key, in_order, rank


class DueQueue:
    """A set of (time, key). Adding, reading and dropping cost O(log n), also while keys of the
    first time are handed out.
    """

    def __init__(self) -> None:
        self._queue_by_time: dict[int, _Queue] = {}
        # a heap of their times; an empty one is dropped when it comes first
        self._times: list[int] = []

    def add(self, at: int, key: Key) -> None:
        """Add a key to a time."""
        queue = self._queue_by_time.get(at)
        if queue is None:
            queue = self._queue_by_time[at] = _Queue()
            heappush(self._times, at)
        if key not in queue.keys:
            queue.keys[key] = None
            if queue.sorted is not None:
                heappush(queue.added, (rank(key), key))

    def first_at(self) -> int | None:
        """Return the earliest time."""
        times = self._times
        while times and not self._queue_by_time[times[0]].keys:
            del self._queue_by_time[heappop(times)]
        return times[0] if times else None

    def first_key(self) -> Key:
        """Return the least key of the earliest time; there must be one."""
        at = self.first_at()
        assert at is not None
        return self._queue_by_time[at].first()

    def keys_at(self, at: int) -> list[Key]:
        """Return the keys of a time in their order."""
        queue = self._queue_by_time.get(at)
        return [] if queue is None else in_order(list(queue.keys))

    def drop_first(self) -> None:
        """Remove the least key of the earliest time."""
        self.drop(self._times[0], self.first_key())

    def drop(self, at: int, key: Key) -> None:
        """Remove a key from a time; a missing one is no error."""
        queue = self._queue_by_time.get(at)
        if queue is not None:
            queue.keys.pop(key, None)


class _Queue:
    """Keys of one time: sorted when the first is read; keys added later are in a heap beside
    them.
    """

    __slots__ = ("keys", "sorted", "added")

    def __init__(self) -> None:
        self.keys: dict[Key, None] = {}  # authoritative; the other two may list dropped keys
        self.sorted: list[Key] | None = None  # descending
        self.added: list[tuple[Key, Key]] = []  # with their ranks

    def first(self) -> Key:
        if self.sorted is None:
            self.sorted = in_order(list(self.keys))[::-1]
        while self.sorted and self.sorted[-1] not in self.keys:
            self.sorted.pop()
        while self.added and self.added[0][1] not in self.keys:
            heappop(self.added)
        if self.added and not (self.sorted and rank(self.sorted[-1]) <= self.added[0][0]):
            return self.added[0][1]
        return self.sorted[-1]
