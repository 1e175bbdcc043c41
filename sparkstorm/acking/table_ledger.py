"""Owns the fast ledger: the laws of the plain one over a table, by the cheapest of three ways for each batch.

A few messages run as plain loops over memoryviews, many as numpy columns; with compiled kernels, loops over arrays do
all but the smallest batches (figures: benchmarks/README.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

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
    longs_of,
    rows_of,
)
from sparkstorm.acking.columns import find_roots
from sparkstorm.acking.journal import Entries, pack_delta, pack_snapshot, replay
from sparkstorm.acking.kernels import (
    ACKED,
    BUCKET_BITS,
    CANDIDATES,
    CHANGED,
    CHANGED_BIT,
    FAILED,
    FAILED_BIT,
    LIVE,
    NEWEST,
    STORED_BIT,
    UNKNOWN_TASK,
)
from sparkstorm.acking.ledger import BUCKETS
from sparkstorm.acking.table import Table

if TYPE_CHECKING:
    from sparkstorm.acking.compiled import Kernels

_COLUMNS_FROM = 128
"""Messages in a batch from which numpy beats plain loops (measured)."""
_COMPILED_FROM = 6
"""Messages in a batch from which a compiled call, with its fixed cost, beats plain loops (measured)."""


class TableLedger:
    """The ledger as an open-addressing table: about 30 bytes for an open root, same API as `DictLedger`."""

    __slots__ = ("_kernels", "_table")

    def __init__(self, kernels: Kernels | None = None) -> None:
        self._kernels = kernels
        self._table = Table()

    def __len__(self) -> int:
        return int(self._table.counters[LIVE])

    def __contains__(self, root: int) -> bool:
        return 0 < root < ID_LIMIT and plain.place_of(self._table.views[0], root) >= 0

    def adopt(self, kernels: Kernels) -> None:
        """Go on with compiled kernels, which may be ready only some time after the worker is."""
        self._kernels = kernels

    def apply(self, inits: Inits = NO_INITS, acks: Acks = NO_ACKS, fails: Column = ()) -> Settled:
        """Apply an epoch's inits (roots, values, spout tasks), acks (roots, values) and fails (roots); say what ended.

        MalformedFrameError (and nothing applied) when a column is not what it should be.
        """
        rows = count_rows(inits, acks, fails)
        if self._kernels is not None and rows >= _COMPILED_FROM:
            return self._apply_compiled(self._kernels, columns_of(inits, acks, fails), rows)
        if rows >= _COLUMNS_FROM:
            return self._apply_columns(columns_of(inits, acks, fails))
        if not rows:
            return NOTHING_SETTLED
        scratch = [0] * rows, [0] * rows, [0] * rows
        return self._run(plain.apply_batch, False, rows_of(inits, acks, fails), scratch)

    def _apply_compiled(self, kernels: Kernels, batch: Columns, rows: int) -> Settled:
        scratch = np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.int32)
        return self._run(kernels.apply_batch, True, batch, scratch)

    def _run(self, apply_batch: Callable[..., int], compiled: bool, batch: Rows | Columns, scratch: Any) -> Settled:
        table, rows, done = self._table, len(scratch[0]), 0
        table.reserve_removed(rows)
        self._clear_results()
        while True:
            cells = table.arrays if compiled else table.views
            done = apply_batch(*cells, *batch, *scratch, done, table.limit)
            if done == rows:
                return self._results(scratch[1], scratch[2])
            table.grow(max(0, len(batch.init_roots) - done))

    def _clear_results(self) -> None:
        counters = self._table.views[4]
        counters[CANDIDATES] = counters[ACKED] = counters[FAILED] = 0

    def _results(self, roots: Any, tasks: Any) -> Settled:
        counters = self._table.views[4]
        acked, first_failed = counters[ACKED], len(roots) - counters[FAILED]
        if not acked and first_failed == len(roots):
            return NOTHING_SETTLED
        # Copies: a view would keep the whole scratch alive.
        return Settled(
            np.array(roots[:acked], np.uint64) if acked else NO_ROOTS,
            np.array(tasks[:acked], np.int32) if acked else NO_TASKS,
            np.array(roots[first_failed:], np.uint64),
            np.array(tasks[first_failed:], np.int32),
        )

    def _apply_columns(self, batch: Columns) -> Settled:
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

    def reset_timeouts(self, roots: Column) -> None:
        """Move open roots to the newest bucket (Storm's `__ack_reset_timeout`); unknown ones are ignored."""
        table = self._table
        at = find_roots(table.ids, longs_of(roots, "__ack_reset_timeout", 1))
        at = at[at >= 0]
        table.flags[at] = (table.flags.take(at) & ~np.uint8(BUCKET_BITS)) | self._newest()

    def take_delta(self) -> bytes:
        """What changed since the last call, for the epoch's journal; empty bytes when nothing did.

        Trees that began and ended in between leave no trace.
        """
        table = self._table
        changes = int(table.counters[CHANGED])
        if changes <= len(table.changed) and (self._kernels is not None or changes < _COLUMNS_FROM):
            put = self._collect(changes)
        else:
            at = table.changed_places()
            table.flags[at] = (table.flags.take(at) & ~np.uint8(CHANGED_BIT)) | STORED_BIT
            put = table.entries_at(at)
        table.counters[CHANGED] = 0
        return pack_delta(put, table.take_removed().view(np.uint64))

    def _collect(self, changes: int) -> Entries:
        table = self._table
        roots, values = np.empty(changes, np.int64), np.empty(changes, np.int64)
        tasks, flags = np.empty(changes, np.int32), np.empty(changes, np.uint8)
        out: tuple[Any, ...] = roots, values, tasks, flags
        collect: Callable[..., int] = plain.collect_changes
        if self._kernels is not None and changes >= _COMPILED_FROM:
            found = self._kernels.collect_changes(*table.arrays[:4], table.changed, changes, *out)
        else:
            found = collect(*table.views[:4], table.changed.data, changes, *(column.data for column in out))
        return Entries(roots[:found].view(np.uint64), values[:found].view(np.uint64), tasks[:found], flags[:found])

    def snapshot(self) -> bytes:
        """Everything open, as bytes that replace all deltas taken so far; take the delta first."""
        return pack_snapshot(self._table.entries_at(self._table.live_places()))

    def load(self, snapshot: bytes, deltas: Iterable[bytes] = ()) -> None:
        """Become the ledger that wrote them, every entry in the newest bucket; MalformedFrameError changes nothing."""
        self._table.load(replay(snapshot, deltas))

    def bytes_per_root(self) -> float:
        """Allocated bytes, logs included, for one open root."""
        return self._table.nbytes / len(self) if len(self) else 0.0
