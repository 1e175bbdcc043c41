"""Ledger of the compiled core: the laws of `DictLedger` over a table (figures:
benchmarks/README.md).

Without the core there is no table: plain loops and numpy columns over it were one to five times
slower than the dict, and longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.roots import ID_LIMIT
from sparkstorm.data_plane.acking.batch import (
    NO_ACKS,
    NO_INITS,
    NO_ROOTS,
    NO_TASKS,
    NOTHING_SETTLED,
    Acks,
    Column,
    Columns,
    Inits,
    Longs,
    Settled,
    Tasks,
    columns_of,
    count_rows,
    require_legal,
    roots_of,
)
from sparkstorm.data_plane.acking.journal import (
    DELTA_HEAD,
    FAILED,
    NO_DELTA,
    UNKNOWN_TASK,
    Entries,
    pack_snapshot,
    replay,
)
from sparkstorm.data_plane.acking.ledger import BUCKETS, DictLedger

BURIED = -1
LIVE, USED, NEWEST, CHANGED, REMOVED, CANDIDATES, ACKED, FAILED_COUNT = range(8)
"""Places of the counters: used = live + buried, newest = current bucket, the others are lengths of
logs and results.
"""
_COUNTERS = 8

BUCKET_BITS = 3
FAILED_BIT = 4
CHANGED_BIT = 8
STORED_BIT = 16
"""Flags of a root: its bucket (0-2), a fail was seen, changed since the last delta, known to the
journal.
"""

_LEAST_PLACES = 64
_FULL = 0.85
_REFILL = 0.5
"""A table is laid out again when 85 % of its places are used, to 50 %: up to 43 bytes per root.

Removals bury places, so that layouts would follow too soon on each other in a fuller one.
"""
_SPARSE = 0.25
_LOG_SHARE = 16
"""The log of changed roots holds one for 16 places; when more changed, looking at all flags is
cheaper anyway.
"""


class Table:
    """Roots with their value, spout task and flags, in parallel columns."""

    __slots__ = (
        "arrays", "changed", "counters", "flags", "ids", "limit", "removed", "tasks", "values", "views"
    )  # fmt: skip

    ids: Longs
    values: Longs
    tasks: Tasks
    flags: NDArray[np.uint8]
    changed: Longs
    limit: int
    arrays: Any
    """Ids, values, tasks, flags, counters, changed, removed."""
    views: Any
    """The same as memoryviews, in the order in which the core takes them: cheaper to pass, and to
    read one number of.
    """

    def __init__(self) -> None:
        self.counters = np.zeros(_COUNTERS, np.int64)
        self.removed = np.empty(_LEAST_PLACES, np.int64)
        none = np.empty(0, np.int64)
        self._lay_out(none, none, np.empty(0, np.int32), np.empty(0, np.uint8), 0)

    @property
    def nbytes(self) -> int:
        """All that is allocated, logs included."""
        return sum(int(array.nbytes) for array in self.arrays)

    def find(self, roots: Longs) -> Longs:
        """Return the place of each root (1 or more), -1 where there is none."""
        at = np.empty(len(roots), np.int64)
        core.find_roots(self.ids, roots, at)
        return at

    def live_places(self) -> Longs:
        """Places that hold a root."""
        return np.flatnonzero(self.ids > 0)

    def grow(self, expected: int) -> None:
        """Lay the table out again with room for `expected` more roots; buried places are gone
        after.
        """
        at = self.live_places()
        self._lay_out(
            self.ids.take(at),
            self.values.take(at),
            self.tasks.take(at),
            self.flags.take(at),
            expected,
        )

    def shrink(self) -> None:
        """Give memory back when few of many places are in use."""
        if len(self.ids) > _LEAST_PLACES and self.counters[LIVE] < _SPARSE * len(self.ids):
            self.removed = self.removed[: max(_LEAST_PLACES, int(self.counters[REMOVED]))].copy()
            self.grow(0)

    def _lay_out(
        self, roots: Longs, values: Longs, tasks: Tasks, flags: NDArray[np.uint8], expected: int
    ) -> None:
        places = max(_LEAST_PLACES, int((len(roots) + expected) / _REFILL) + 1)
        self.ids, at = np.zeros(places, np.int64), np.empty(len(roots), np.int64)
        core.insert_roots(self.ids, roots, at)
        self.values, self.tasks = np.empty(places, np.int64), np.empty(places, np.int32)
        self.flags = np.zeros(places, np.uint8)
        self.values[at], self.tasks[at], self.flags[at] = values, tasks, flags
        self.limit = int(places * _FULL)
        self.counters[LIVE] = self.counters[USED] = len(roots)
        self._new_log()

    def _new_log(self) -> None:
        # A log that is lost to a new layout is made up for by looking at all flags once.
        pending = int(self.counters[CHANGED])
        self.changed = np.empty(len(self.ids) // _LOG_SHARE + _LEAST_PLACES, np.int64)
        self.counters[CHANGED] = len(self.changed) + 1 if pending else 0
        self._expose()

    def _expose(self) -> None:
        self.arrays = (
            self.ids,
            self.values,
            self.tasks,
            self.flags,
            self.counters,
            self.changed,
            self.removed,
        )
        self.views = tuple(array.data for array in self.arrays)

    def load(self, entries: Entries) -> None:
        """Hold exactly these, all young, none changed."""
        flags = np.full(len(entries.roots), self.counters[NEWEST] | STORED_BIT, np.uint8)
        flags[entries.flags == FAILED] |= FAILED_BIT
        self.counters[CHANGED] = self.counters[REMOVED] = 0
        self._lay_out(
            entries.roots.view(np.int64), entries.values.view(np.int64), entries.tasks, flags, 0
        )

    def bury(self, at: Longs) -> None:
        """Remove what is in these distinct places; the places stay used until the next layout."""
        stored = at[(self.flags.take(at) & STORED_BIT) != 0]
        self.reserve_removed(len(stored))
        begin = int(self.counters[REMOVED])
        self.removed[begin : begin + len(stored)] = self.ids.take(stored)
        self.counters[REMOVED] += len(stored)
        self.counters[LIVE] -= len(at)
        self.ids[at] = BURIED

    def reserve_removed(self, rows: int) -> None:
        """Make room in the log of removed roots."""
        logged: int = self.views[4][REMOVED]
        if logged + rows <= len(self.removed):
            return
        longer = np.empty(2 * (logged + rows), np.int64)
        longer[:logged] = self.removed[:logged]
        self.removed = longer
        self._expose()

    def give_back(self) -> None:
        """Free the log of removed roots, which is empty, when it had grown long."""
        if len(self.removed) > len(self.changed):
            self.removed = np.empty(_LEAST_PLACES, np.int64)
            self._expose()

    def entries_at(self, at: Longs) -> Entries:
        """The rows in these places, as the journal writes them."""
        failed = (self.flags.take(at) & FAILED_BIT) != 0
        return Entries(
            self.ids.take(at).view(np.uint64), self.values.take(at).view(np.uint64), self.tasks.take(at),
            np.where(failed, FAILED, 0).astype(np.uint8),
        )  # fmt: skip


class TableLedger:
    """The ledger as an open-addressing table: up to 45 bytes for an open root, same API as
    `DictLedger`.
    """

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table = Table()

    def __len__(self) -> int:
        return int(self._table.counters[LIVE])

    def __contains__(self, root: int) -> bool:
        return 0 < root < ID_LIMIT and bool(self._table.find(np.array([root], np.int64))[0] >= 0)

    def apply(self, inits: Inits = NO_INITS, acks: Acks = NO_ACKS, fails: Column = ()) -> Settled:
        """Apply an epoch's inits (roots, values, spout tasks), acks (roots, values) and fails
        (roots); return what ended.

        MalformedFrameError (and nothing applied) when a column is not what it should be.
        """
        found = core.apply_few(*self._table.views, *inits, *acks, fails, self._table.limit)
        if found is not None:  # lists of few messages, in a table with room for them
            return _settled(*found) if found else NOTHING_SETTLED
        rows = count_rows(inits, acks, fails)
        return self._apply_batch(columns_of(inits, acks, fails), rows) if rows else NOTHING_SETTLED

    def _apply_batch(self, batch: Columns, rows: int) -> Settled:
        table = self._table
        done = 0
        candidates, roots, tasks = np.empty((3, rows), np.int64)
        # only what was there before can leave the journal
        table.reserve_removed(min(rows, len(self)))
        while (
            done := core.apply_batch(
                *table.views, *batch, candidates, roots, tasks, done, table.limit
            )
        ) < rows:
            if done < 0:
                require_legal(batch)
            table.grow(max(0, len(batch.init_roots) - done))
        counts = table.views[4]
        acked = counts[ACKED]
        failed = counts[FAILED_COUNT]
        if not acked and not failed:
            return NOTHING_SETTLED
        return _settled(
            roots[:acked], tasks[:acked], roots[rows - failed :], tasks[rows - failed :]
        )

    def rotate(self) -> int:
        """Begin a new bucket and drop the oldest one; returns how many entries that were never
        settled it held.
        """
        table = self._table
        # Three numbers go round: the newest bucket takes the number of the one that is dropped.
        table.counters[NEWEST] = (table.counters[NEWEST] + 1) % BUCKETS
        late = np.flatnonzero((table.ids > 0) & ((table.flags & BUCKET_BITS) == self._newest()))
        table.bury(late)
        table.shrink()
        return len(late)

    def _newest(self) -> np.uint8:
        return np.uint8(self._table.counters[NEWEST])

    def renew_begun(self) -> None:
        """Move every root whose spout task is known to the newest bucket, so that only roots
        without an init age.
        """
        table = self._table
        at = np.flatnonzero((table.ids > 0) & (table.tasks != UNKNOWN_TASK))
        table.flags[at] = (table.flags.take(at) & ~np.uint8(BUCKET_BITS)) | self._newest()

    def reset_timeouts(self, roots: Column) -> dict[int, list[int]]:
        """Move open roots to the newest bucket (Storm's `__ack_reset_timeout`); return those whose
        spout task is known, by task.
        """
        table = self._table
        at = table.find(roots_of(roots, "__ack_reset_timeout"))
        at = at[at >= 0]
        table.flags[at] = (table.flags.take(at) & ~np.uint8(BUCKET_BITS)) | self._newest()
        by_task: dict[int, list[int]] = {}
        for root, task in zip(
            table.ids.take(at).tolist(), table.tasks.take(at).tolist(), strict=True
        ):
            if task != UNKNOWN_TASK:
                by_task.setdefault(task, []).append(root)
        return by_task

    def tasks_of(self, roots: Column) -> list[int]:
        """Return the spout task of each root; UNKNOWN_TASK for one that is not open, or whose init
        has not come.
        """
        table = self._table
        at = table.find(roots_of(roots, "__ack_ack"))
        found: list[int] = np.where(
            at >= 0, table.tasks.take(np.maximum(at, 0)), UNKNOWN_TASK
        ).tolist()
        return found

    def take_delta(self) -> bytes:
        """Return the changes since the last call, for the epoch's journal; empty bytes when there
        are none.

        Trees that began and ended in between leave no trace.
        """
        table = self._table
        counts = table.views[4]
        if not counts[CHANGED] and not counts[REMOVED]:
            return b""
        delta: bytes = core.take_delta(*table.views, DELTA_HEAD)
        table.give_back()
        return delta if len(delta) > NO_DELTA else b""

    def snapshot(self) -> bytes:
        """Return everything open as bytes that replace all deltas taken so far; take the delta
        first.
        """
        return pack_snapshot(self.entries())

    def entries(self) -> Entries:
        """Return everything open as columns."""
        return self._table.entries_at(self._table.live_places())

    def load(self, snapshot: bytes, deltas: Iterable[bytes] = ()) -> None:
        """Become the ledger that wrote them, every entry in the newest bucket; MalformedFrameError
        changes nothing.
        """
        self._table.load(replay(snapshot, deltas))

    def bytes_per_root(self) -> float:
        """Allocated bytes, logs included, for one open root."""
        return self._table.nbytes / len(self) if len(self) else 0.0


Ledger: TypeAlias = DictLedger | TableLedger


def new_ledger() -> Ledger:
    """Return an empty ledger of the tier that runs: the table of the compiled core, or the dict."""
    return DictLedger() if core is None else TableLedger()


def _settled(acked_roots: Any, acked_tasks: Any, failed_roots: Any, failed_tasks: Any) -> Settled:
    """Return copies of the results: a view would keep the whole scratch alive."""
    return Settled(
        np.array(acked_roots, np.uint64) if len(acked_roots) else NO_ROOTS,
        np.array(acked_tasks, np.int32) if len(acked_tasks) else NO_TASKS,
        np.array(failed_roots, np.uint64) if len(failed_roots) else NO_ROOTS,
        np.array(failed_tasks, np.int32) if len(failed_tasks) else NO_TASKS,
    )
