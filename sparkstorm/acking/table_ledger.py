"""Ledger of the compiled core: the laws of `DictLedger` over a table (figures: benchmarks/README.md).

Without the core there is no table: plain loops and numpy columns over it were one to five times slower than the dict, and longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from sparkstorm.acking.batch import (
    ID_LIMIT,
    NO_ACKS,
    NO_INITS,
    NO_ROOTS,
    NO_TASKS,
    NOTHING_SETTLED,
    Acks,
    Column,
    Columns,
    Inits,
    Settled,
    columns_of,
    count_rows,
    require_legal,
    roots_of,
)
from sparkstorm.acking.journal import DELTA_HEAD, NO_DELTA, UNKNOWN_TASK, pack_snapshot, replay
from sparkstorm.acking.ledger import BUCKETS, DictLedger
from sparkstorm.acking.table import ACKED, BUCKET_BITS, CHANGED, FAILED_COUNT, LIVE, NEWEST, REMOVED, Table
from sparkstorm.model.compiled import core


class TableLedger:
    """The ledger as an open-addressing table: up to 45 bytes for an open root, same API as `DictLedger`."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table = Table()

    def __len__(self) -> int:
        return int(self._table.counters[LIVE])

    def __contains__(self, root: int) -> bool:
        return 0 < root < ID_LIMIT and bool(self._table.find(np.array([root], np.int64))[0] >= 0)

    def apply(self, inits: Inits = NO_INITS, acks: Acks = NO_ACKS, fails: Column = ()) -> Settled:
        """Apply an epoch's inits (roots, values, spout tasks), acks (roots, values) and fails (roots); say what ended.

        MalformedFrameError (and nothing applied) when a column is not what it should be.
        """
        found = core.apply_few(*self._table.views, *inits, *acks, fails, self._table.limit)
        if found is not None:  # lists of few messages, in a table with room for them
            return _settled(*found) if found else NOTHING_SETTLED
        rows = count_rows(inits, acks, fails)
        return self._apply_batch(columns_of(inits, acks, fails), rows) if rows else NOTHING_SETTLED

    def _apply_batch(self, batch: Columns, rows: int) -> Settled:
        table, done = self._table, 0
        candidates, roots, tasks = np.empty((3, rows), np.int64)
        table.reserve_removed(min(rows, len(self)))  # only what was there before can leave the journal
        while (done := core.apply_batch(*table.views, *batch, candidates, roots, tasks, done, table.limit)) < rows:
            if done < 0:
                require_legal(batch)
            table.grow(max(0, len(batch.init_roots) - done))
        counts = table.views[4]
        acked, failed = counts[ACKED], counts[FAILED_COUNT]
        if not acked and not failed:
            return NOTHING_SETTLED
        return _settled(roots[:acked], tasks[:acked], roots[rows - failed :], tasks[rows - failed :])

    def rotate(self) -> int:
        """Begin a new bucket and drop the oldest one; returns how many entries that were never settled it held."""
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
        """Move every root whose spout task is known to the newest bucket, so that only roots without an init age."""
        table = self._table
        at = np.flatnonzero((table.ids > 0) & (table.tasks != UNKNOWN_TASK))
        table.flags[at] = (table.flags.take(at) & ~np.uint8(BUCKET_BITS)) | self._newest()

    def reset_timeouts(self, roots: Column) -> dict[int, list[int]]:
        """Move open roots to the newest bucket (Storm's `__ack_reset_timeout`); return those whose spout task is known, by task."""
        table = self._table
        at = table.find(roots_of(roots, "__ack_reset_timeout"))
        at = at[at >= 0]
        table.flags[at] = (table.flags.take(at) & ~np.uint8(BUCKET_BITS)) | self._newest()
        by_task: dict[int, list[int]] = {}
        for root, task in zip(table.ids.take(at).tolist(), table.tasks.take(at).tolist(), strict=True):
            if task != UNKNOWN_TASK:
                by_task.setdefault(task, []).append(root)
        return by_task

    def take_delta(self) -> bytes:
        """Return the changes since the last call, for the epoch's journal; empty bytes when there are none.

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
        """Return everything open as bytes that replace all deltas taken so far; take the delta first."""
        return pack_snapshot(self._table.entries_at(self._table.live_places()))

    def load(self, snapshot: bytes, deltas: Iterable[bytes] = ()) -> None:
        """Become the ledger that wrote them, every entry in the newest bucket; MalformedFrameError changes nothing."""
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
