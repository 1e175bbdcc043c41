"""Reference ledger of an acker task, as a dict of records.

Laws, kept by every ledger (seed 001, S1.5-S1.19; Storm's `Acker`):
- a batch is applied whole before anything is decided, so the order of messages inside it never
  matters;
- a root with a known spout task settles when its value is 0 (acked), else when a fail was seen
  (failed): ack first;
- an ack or fail may come before its init; it then waits, and ages out by rotation if the init never
  comes;
- an entry is dropped by the third rotation after it was put, without a verdict (the spout's own
  time-out fails the tree).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sparkstorm.data_plane.acking.batch import (
    NO_ACKS,
    NO_INITS,
    NOTHING_SETTLED,
    Acks,
    Column,
    Inits,
    Roots,
    Settled,
    Tasks,
    columns_of,
    count_rows,
    require_legal,
    roots_of,
)
from sparkstorm.data_plane.acking.journal import (
    FAILED,
    UNKNOWN_TASK,
    Entries,
    entries_of,
    pack_delta,
    pack_snapshot,
    replay,
)

BUCKETS = 3
"""As Storm's Acker: an entry lives more than two and at most three rotations."""
_SLOTTED_ENTRY_BYTES = 56 + 3 * 32 + 8
"""An object of four slots and the integers in it that CPython does not share (value, generation,
root).
"""


@dataclass(slots=True)
class _Entry:
    value: int
    task: int
    failed: bool
    generation: int


class DictLedger:
    """The ledger as a dict of records: what runs without the compiled core, and the twin of its
    table (`TableLedger`).
    """

    __slots__ = ("_changed", "_entries", "_generation", "_removed", "_stored")

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._generation = 0
        self._stored: set[int] = set()
        self._changed: dict[int, None] = {}
        self._removed: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, root: int) -> bool:
        return root in self._entries

    def apply(self, inits: Inits = NO_INITS, acks: Acks = NO_ACKS, fails: Column = ()) -> Settled:
        """Apply an epoch's inits (roots, values, spout tasks), acks (roots, values) and fails
        (roots); return what ended.

        MalformedFrameError (and nothing applied) when a column is not what it should be.
        """
        count_rows(inits, acks, fails)
        require_legal(columns_of(inits, acks, fails))
        for root, value, task in zip(*inits, strict=True):
            entry = self._touch(root)
            entry.value ^= value
            entry.task = task
        for root, value in zip(*acks, strict=True):
            self._touch(root).value ^= value
        for root in fails:
            entry = self._touch(root)
            entry.failed = True
            entry.generation = self._generation
        return self._settle((inits[0], acks[0], fails))

    def _touch(self, root: int) -> _Entry:
        self._changed[root] = None
        entry = self._entries.get(root)
        if entry is None:
            entry = self._entries[root] = _Entry(0, UNKNOWN_TASK, False, self._generation)
        return entry

    def _settle(self, touched: Iterable[Column]) -> Settled:
        acked: list[tuple[int, int]] = []
        failed: list[tuple[int, int]] = []
        for roots in touched:
            for root in roots:
                entry = self._entries.get(root)
                if (
                    entry is None
                    or entry.task == UNKNOWN_TASK
                    or (entry.value and not entry.failed)
                ):
                    continue
                (failed if entry.value else acked).append((root, entry.task))
                self._remove(root)
        return Settled(*_columns(acked), *_columns(failed)) if acked or failed else NOTHING_SETTLED

    def _remove(self, root: int) -> None:
        del self._entries[root]
        self._changed.pop(root, None)
        if root in self._stored:
            self._stored.discard(root)
            self._removed[root] = None

    def rotate(self) -> int:
        """Begin a new bucket and drop the oldest one; returns how many entries that were never
        settled it held.
        """
        self._generation += 1
        oldest = self._generation - BUCKETS
        late = [root for root, entry in self._entries.items() if entry.generation <= oldest]
        for root in late:
            self._remove(root)
        return len(late)

    def renew_begun(self) -> None:
        """Move every root whose spout task is known to the newest bucket, so that only roots
        without an init age.
        """
        for entry in self._entries.values():
            if entry.task != UNKNOWN_TASK:
                entry.generation = self._generation

    def reset_timeouts(self, roots: Column) -> dict[int, list[int]]:
        """Move open roots to the newest bucket (Storm's `__ack_reset_timeout`); return those whose
        spout task is known, by task.
        """
        by_task: dict[int, list[int]] = {}
        for root in roots_of(roots, "__ack_reset_timeout").tolist():
            entry = self._entries.get(root)
            if entry is not None:
                entry.generation = self._generation
                if entry.task != UNKNOWN_TASK:
                    by_task.setdefault(entry.task, []).append(root)
        return by_task

    def tasks_of(self, roots: Column) -> list[int]:
        """Return the spout task of each root; UNKNOWN_TASK for one that is not open, or whose init
        has not come.
        """
        found = map(self._entries.get, roots_of(roots, "__ack_ack").tolist())
        return [UNKNOWN_TASK if entry is None else entry.task for entry in found]

    def take_delta(self) -> bytes:
        """Return the changes since the last call, for the epoch's journal; empty bytes when there
        are none.

        Trees that began and ended in between leave no trace.
        """
        rows = [self._row(root) for root in self._changed]
        packed = pack_delta(entries_of(rows), np.array(list(self._removed), np.uint64))
        self._stored.update(self._changed)
        self._changed.clear()
        self._removed.clear()
        return packed

    def _row(self, root: int) -> tuple[int, int, int, int]:
        entry = self._entries[root]
        return root, entry.value, entry.task, FAILED if entry.failed else 0

    def snapshot(self) -> bytes:
        """Return everything open as bytes that replace all deltas taken so far; take the delta
        first.
        """
        return pack_snapshot(self.entries())

    def entries(self) -> Entries:
        """Return everything open as columns."""
        return entries_of([self._row(root) for root in self._entries])

    def load(self, snapshot: bytes, deltas: Iterable[bytes] = ()) -> None:
        """Become the ledger that wrote them, every entry in the newest bucket; MalformedFrameError
        changes nothing.
        """
        columns = replay(snapshot, deltas)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self._entries = {
            root: _Entry(value, task, bool(flags & FAILED), self._generation)
            for root, value, task, flags in rows
        }
        self._stored = set(self._entries)
        self._changed.clear()
        self._removed.clear()

    def bytes_per_root(self) -> float:
        """Allocated bytes for one open root, integers included."""
        if not self._entries:
            return 0.0
        return self._entries.__sizeof__() / len(self._entries) + _SLOTTED_ENTRY_BYTES


def _columns(rows: list[tuple[int, int]]) -> tuple[Roots, Tasks]:
    return np.array([root for root, _ in rows], np.uint64), np.array(
        [task for _, task in rows], np.int32
    )
