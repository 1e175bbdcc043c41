"""Queue of keys by their due time, ordered by time and then by key, in any order of adding."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from sparkstorm.common.windowing.store import Key, in_order, rank

# Half of it looks at small queues twice as often, double keeps as many more keys in memory.
_LEAST_TO_SWEEP = 1000


class DueQueue:
    """A set of (time, key). Adding, reading and dropping cost O(log n), also while keys of the
    first time are handed out.
    """

    def __init__(self) -> None:
        self._queue_by_time: dict[int, _Queue] = {}
        # a heap of their times; an empty one is dropped when it comes first
        self._times: list[int] = []
        self._added = 0  # keys since `sweep` was last worth its cost
        self._kept = 0  # keys that it has left then

    def add(self, due_ms: int, key: Key) -> None:
        """Add a key to a time."""
        queue = self._queue_by_time.get(due_ms)
        if queue is None:
            queue = self._queue_by_time[due_ms] = _Queue()
            heappush(self._times, due_ms)
        if key not in queue.keys:
            queue.keys[key] = None
            self._added += 1
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
        due_ms = self.first_at()
        assert due_ms is not None
        return self._queue_by_time[due_ms].first()

    def keys_at(self, due_ms: int) -> list[Key]:
        """Return the keys of a time in their order."""
        queue = self._queue_by_time.get(due_ms)
        return [] if queue is None else in_order(list(queue.keys))

    def sweep(self, is_kept: Callable[[int, Key], bool]) -> None:
        """Drop the keys that need not be kept, once as many were added as the last sweep has left;
        one key then costs O(1) looks in all.
        """
        if self._added <= self._kept + _LEAST_TO_SWEEP:
            return
        self._added = self._kept = 0
        for due_ms, queue in list(self._queue_by_time.items()):
            for key in [key for key in queue.keys if not is_kept(due_ms, key)]:
                del queue.keys[key]
            self._kept += len(queue.keys)
            if not queue.keys:
                del self._queue_by_time[due_ms]
        self._times = sorted(self._queue_by_time)  # which is a heap

    def drop_first(self) -> None:
        """Remove the least key of the earliest time."""
        self.drop(self._times[0], self.first_key())

    def drop(self, due_ms: int, key: Key) -> None:
        """Remove a key from a time; a missing one is no error."""
        queue = self._queue_by_time.get(due_ms)
        if queue is not None:
            queue.keys.pop(key, None)


class _Queue:
    """Keys of one time: sorted when the first is read; keys added later are in a heap next to
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
