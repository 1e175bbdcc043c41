"""Fast ledger: the laws of the reference ledger over a table.

Batches run through the compiled core. Without it a few messages run as plain loops over memoryviews, many as numpy
columns (figures: benchmarks/README.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sparkstorm.acking import kernels as plain
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
    Longs,
    Rows,
    Settled,
    columns_of,
    count_rows,
    require_legal,
    roots_of,
    rows_of,
)
from sparkstorm.acking.columns import find_roots
from sparkstorm.acking.journal import Entries, pack_delta, pack_rows, pack_snapshot, replay
from sparkstorm.acking.kernels import (
    ACKED,
    BUCKET_BITS,
    CHANGED,
    CHANGED_BIT,
    FAILED,
    FAILED_BIT,
    LIVE,
    NEWEST,
    REMOVED,
    STORED_BIT,
    UNKNOWN_TASK,
)
from sparkstorm.acking.ledger import BUCKETS
from sparkstorm.acking.table import Table
from sparkstorm.model.compiled import core

_COLUMNS_FROM = 128
"""Messages in a batch from which numpy beats plain loops (measured)."""
_ROWS_BELOW = 24
"""Changes up to which a delta is packed from lists (measured)."""


class TableLedger:
    """The ledger as an open-addressing table: up to 45 bytes for an open root, same API as `DictLedger`."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table = Table()

    def __len__(self) -> int:
        return int(self._table.counters[LIVE])

    def __contains__(self, root: int) -> bool:
        return 0 < root < ID_LIMIT and plain.place_of(self._table.views[0], root) >= 0

    def apply(self, inits: Inits = NO_INITS, acks: Acks = NO_ACKS, fails: Column = ()) -> Settled:
        """Apply an epoch's inits (roots, values, spout tasks), acks (roots, values) and fails (roots); say what ended.

        MalformedFrameError (and nothing applied) when a column is not what it should be.
        """
        if core is not None:
            found = core.apply_few(*self._table.views, *inits, *acks, fails, self._table.limit)
            if found is not None:  # lists of few messages, in a table with room for them
                return _settled(*found) if found else NOTHING_SETTLED
        rows = count_rows(inits, acks, fails)
        if core is not None and rows:
            return self._apply_compiled(columns_of(inits, acks, fails), rows)
        if rows >= _COLUMNS_FROM:
            return self._apply_columns(columns_of(inits, acks, fails))
        if not rows:
            return NOTHING_SETTLED
        return self._apply_rows(rows_of(inits, acks, fails), rows)

    def _apply_rows(self, batch: Rows, rows: int) -> Settled:
        table, done = self._table, 0
        apply_batch: Callable[..., int] = plain.apply_batch
        scratch = [0] * rows, [0] * rows, [0] * rows
        table.reserve_removed(min(rows, len(self)))  # only what was there before can leave the journal
        while True:
            done = apply_batch(*table.views, *batch, *scratch, done, table.limit)
            if done == rows:
                return self._results(scratch[1], scratch[2])
            table.grow(max(0, len(batch.init_roots) - done))

    def _apply_compiled(self, batch: Columns, rows: int) -> Settled:
        table, done = self._table, 0
        candidates, roots, tasks = np.empty((3, rows), np.int64)
        table.reserve_removed(min(rows, len(self)))
        while True:
            done = core.apply_batch(*table.views, *batch, candidates, roots, tasks, done, table.limit)
            if done == rows:
                return self._results(roots, tasks)
            if done < 0:
                require_legal(batch)
            table.grow(max(0, len(batch.init_roots) - done))

    def _results(self, roots: Any, tasks: Any) -> Settled:
        counts = self._table.views[4]
        acked, failed = counts[ACKED], counts[FAILED]
        if not acked and not failed:
            return NOTHING_SETTLED
        end = len(roots) - failed
        return _settled(roots[:acked], tasks[:acked], roots[end:], tasks[end:])

    def _apply_columns(self, batch: Columns) -> Settled:
        require_legal(batch)
        table = self._table
        at = table.touch(np.concatenate((batch.init_roots, batch.ack_roots, batch.fail_roots)))
        inits, acks, fails = np.split(at, np.cumsum((len(batch.init_roots), len(batch.ack_roots))))
        np.bitwise_xor.at(table.values, inits, batch.init_values)
        np.bitwise_xor.at(table.values, acks, batch.ack_values)
        table.tasks[inits] = batch.init_tasks
        table.flags[fails] = (table.flags.take(fails) & ~np.uint8(BUCKET_BITS)) | FAILED_BIT | self._newest()
        return self._settle_columns(at)

    def _newest(self) -> np.uint8:
        return np.uint8(self._table.counters[NEWEST])

    def _settle_columns(self, at: Longs) -> Settled:
        table = self._table
        ended = at[(table.values.take(at) == 0) | ((table.flags.take(at) & FAILED_BIT) != 0)]
        ended = np.unique(ended[table.tasks.take(ended) != UNKNOWN_TASK])
        if not len(ended):
            return NOTHING_SETTLED
        zero = table.values.take(ended) == 0
        acked, failed = ended[zero], ended[~zero]
        roots, tasks = table.ids.view(np.uint64), table.tasks
        settled = Settled(roots.take(acked), tasks.take(acked), roots.take(failed), tasks.take(failed))
        table.bury(ended)
        return settled

    def rotate(self) -> int:
        """Begin a new bucket and drop the oldest one; returns how many entries that were never settled it held."""
        table = self._table
        # Three numbers go round: the newest bucket takes the number of the one that is dropped.
        table.counters[NEWEST] = (table.counters[NEWEST] + 1) % BUCKETS
        late = np.flatnonzero((table.ids > 0) & ((table.flags & BUCKET_BITS) == self._newest()))
        table.bury(late)
        table.shrink()
        return len(late)

    def renew_begun(self) -> None:
        """Move every root whose spout task is known to the newest bucket, so that only roots without an init age."""
        table = self._table
        at = np.flatnonzero((table.ids > 0) & (table.tasks != UNKNOWN_TASK))
        table.flags[at] = (table.flags.take(at) & ~np.uint8(BUCKET_BITS)) | self._newest()

    def reset_timeouts(self, roots: Column) -> dict[int, list[int]]:
        """Move open roots to the newest bucket (Storm's `__ack_reset_timeout`); return those whose spout task is known, by task."""
        table = self._table
        at = find_roots(table.ids, roots_of(roots, "__ack_reset_timeout"))
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
        table, changes = self._table, self._table.views[4][CHANGED]
        if not changes and not table.views[4][REMOVED]:
            return b""
        if changes < _ROWS_BELOW:
            return self._small_delta(changes)
        if core is not None and changes <= len(table.changed):
            roots, values = np.empty((2, changes), np.uint64)
            put = Entries(roots, values, np.empty(changes, np.int32), np.empty(changes, np.uint8))
            found = core.collect_changes(*table.views[:4], table.views[5], changes, *put)
            table.counters[CHANGED] = 0
            put = Entries(roots[:found], values[:found], put.tasks[:found], put.flags[:found])
            return pack_delta(put, table.take_removed().view(np.uint64))
        at = table.changed_places()
        table.flags[at] = (table.flags.take(at) & ~np.uint8(CHANGED_BIT)) | STORED_BIT
        put = table.entries_at(at)
        table.counters[CHANGED] = 0
        return pack_delta(put, table.take_removed().view(np.uint64))

    def _small_delta(self, changes: int) -> bytes:
        table, views = self._table, self._table.views
        put: tuple[list[int], list[int], list[int], list[int]]
        if core is not None:
            put = core.collect_few(*views[:4], views[5], changes)
        else:
            collect: Callable[..., int] = plain.collect_changes
            out: list[list[int]] = [[0] * changes for _ in range(4)]
            found = collect(*views[:4], views[5], changes, *out)
            put = out[0][:found], out[1][:found], out[2][:found], out[3][:found]
        views[4][CHANGED] = 0
        return pack_rows(*put, table.take_removed().tolist() if views[4][REMOVED] else [])

    def snapshot(self) -> bytes:
        """Return everything open as bytes that replace all deltas taken so far; take the delta first."""
        return pack_snapshot(self._table.entries_at(self._table.live_places()))

    def load(self, snapshot: bytes, deltas: Iterable[bytes] = ()) -> None:
        """Become the ledger that wrote them, every entry in the newest bucket; MalformedFrameError changes nothing."""
        self._table.load(replay(snapshot, deltas))

    def bytes_per_root(self) -> float:
        """Allocated bytes, logs included, for one open root."""
        return self._table.nbytes / len(self) if len(self) else 0.0


def _settled(acked_roots: Any, acked_tasks: Any, failed_roots: Any, failed_tasks: Any) -> Settled:
    """Return copies of the results: a view would keep the whole scratch alive."""
    return Settled(
        np.array(acked_roots, np.uint64) if len(acked_roots) else NO_ROOTS,
        np.array(acked_tasks, np.int32) if len(acked_tasks) else NO_TASKS,
        np.array(failed_roots, np.uint64) if len(failed_roots) else NO_ROOTS,
        np.array(failed_tasks, np.int32) if len(failed_tasks) else NO_TASKS,
    )
