"""Buffer that orders a task's tuples by event time, then by sending task, then by arrival.

A tuple leaves it when the watermark has passed its time: no older tuple and none of the same time
can follow on time. So results depend neither on batching nor on races between senders.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.windowing.due_queue import DueQueue
from sparkstorm.common.windowing.store import Store
from sparkstorm.common.windowing.window_contents import FindSource


@dataclass(frozen=True, slots=True)
class Row:
    """A tuple that is due."""

    at_ms: int
    number: int
    tuple: Tuple


class Reorder:
    """Buffered tuples, stored under ("q", time, task, number)."""

    def __init__(self, store: Store, find_source: FindSource) -> None:
        self._store = store
        self._find_source = find_source
        self._queue = DueQueue()
        self._last = 0
        for entry_key, _ in store.items():
            if entry_key[0] == "q":
                self._queue.add(entry_key[1], entry_key[2:])
                self._last = max(self._last, entry_key[3])

    def add(self, at_ms: int, tup: Tuple) -> None:
        """Buffer a tuple."""
        self._last += 1
        self._store.put(("q", at_ms, tup.source.task, self._last), [tup.source.stream, *tup.values])
        self._queue.add(at_ms, (tup.source.task, self._last))

    def next_due(self, watermark_ms: int) -> Row | None:
        """Return the first tuple older than the watermark; the same one until `done`."""
        while (at_ms := self._queue.first_at()) is not None and at_ms < watermark_ms:
            task, number = self._queue.first_key()
            entry = self._store.get(("q", at_ms, task, number))
            if entry is not None:
                return Row(
                    at_ms, number, Tuple(tuple(entry[1:]), 0, self._find_source(task, entry[0]))
                )
            self._queue.drop_first()
        return None

    def done(self, row: Row) -> None:
        """Remove a tuple that was executed."""
        self._store.delete(("q", row.at_ms, row.tuple.source.task, row.number))
