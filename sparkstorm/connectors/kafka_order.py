"""Order of the records of several Kafka partitions in event time: a lagging partition does not make others' records late."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

_NEVER = -(1 << 63)


class _Partition:
    """Records that were fetched and not given out, with the partition's clock at each: its newest time so far."""

    __slots__ = ("clock", "heard_ms", "is_at_end", "waiting")

    def __init__(self, heard_ms: int) -> None:
        self.clock, self.heard_ms, self.is_at_end = _NEVER, heard_ms, False
        self.waiting: deque[tuple[int, Any]] = deque()


class PartitionOrder:
    """Gives out records of partitions by their clocks, as Kafka Streams does (KIP-353, KIP-695).

    A record goes out when no partition that still has records can have an older clock. So a record is behind the newest one that
    was given out by as much as it is behind its own partition's newest, and no more: with a lag that covers the disorder within
    a partition, none is late. A partition is not waited for at its end, and after `idle_ms` of polls that brought nothing of it.
    """

    def __init__(self, idle_ms: int) -> None:
        self._idle_ms = idle_ms
        self._polled_ms = 0
        self._partitions: dict[str, _Partition] = {}
        self._ready: deque[Any] = deque()

    def add(self, place: str) -> None:
        """Expect records of a partition."""
        self._partitions[place] = _Partition(self._polled_ms)

    def put(self, place: str, records: Iterable[tuple[int, Any]]) -> int:
        """Take records of a partition, each with its time; return how many of it wait."""
        partition = self._partitions[place]
        clock, wait = partition.clock, partition.waiting.append
        for time_ms, record in records:
            if time_ms > clock:
                clock = time_ms
            wait((clock, record))
        partition.clock, partition.heard_ms, partition.is_at_end = clock, self._polled_ms, False
        return len(partition.waiting)

    def note_end(self, place: str) -> None:
        """Take note that a partition has nothing behind what was put."""
        self._partitions[place].is_at_end = True

    def note_poll(self, taken_ms: int) -> None:
        """Take note of the time that a poll for records took."""
        self._polled_ms += taken_ms

    def take(self, most: int) -> list[Any]:
        """Return the next records, `most` at the most."""
        if not self._ready:
            self._sort()
        return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def waiting(self, place: str) -> int:
        """Return how many records of a partition wait."""
        return len(self._partitions[place].waiting)

    @property
    def is_empty(self) -> bool:
        """Return whether every record was given out."""
        return not self._ready and not any(each.waiting for each in self._partitions.values())

    @property
    def is_at_end(self) -> bool:
        """Return whether every partition was read to its end, and everything given out."""
        return self.is_empty and all(each.is_at_end for each in self._partitions.values())

    def _sort(self) -> None:
        awaited = [
            each.clock
            for each in self._partitions.values()
            if not each.is_at_end and self._polled_ms - each.heard_ms < self._idle_ms
        ]
        bound = min(awaited, default=None)
        if len(self._partitions) == 1:
            [only] = self._partitions.values()
            self._ready.extend(record for _, record in only.waiting)
            only.waiting.clear()
            return
        found: list[tuple[int, Any]] = []
        for each in self._partitions.values():
            waiting = each.waiting
            while waiting and (bound is None or waiting[0][0] <= bound):
                found.append(waiting.popleft())
        found.sort(key=itemgetter(0))  # stable: records of one partition keep their order
        self._ready.extend(record for _, record in found)
