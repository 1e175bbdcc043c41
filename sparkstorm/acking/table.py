"""Arrays of an open-addressing table, 21 bytes a place: growth, shrinking, removal of dead places.

The alternative, a dict of records (`DictLedger`), takes several times the memory: `benchmarks/acker.py` measures both.
Search and insertion are the compiled core's (`model/_ledger.c`): a root goes to the first free place from its home on.
A place is empty (id 0), buried (id -1, left by removals in bulk) or holds a root.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkstorm.acking.batch import Longs, Tasks
from sparkstorm.acking.journal import FAILED, Entries
from sparkstorm.model.compiled import core

BURIED = -1
LIVE, USED, NEWEST, CHANGED, REMOVED, CANDIDATES, ACKED, FAILED_COUNT = range(8)
"""Places of the counters: used = live + buried, newest = current bucket, the others are lengths of logs and results."""
_COUNTERS = 8

BUCKET_BITS, FAILED_BIT, CHANGED_BIT, STORED_BIT = 3, 4, 8, 16
"""Flags of a root: its bucket (0-2), a fail was seen, changed since the last delta, known to the journal."""

_LEAST_PLACES = 64
_FULL, _REFILL = 0.85, 0.5
"""A table is laid out again when 85 % of its places are used, to 50 %: up to 43 bytes per root.

Removals bury places, so that layouts would follow too soon on each other in a fuller one.
"""
_SPARSE = 0.25
_LOG_SHARE = 16
"""The log of changed roots holds one for 16 places; when more changed, looking at all flags is cheaper anyway."""


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
    """The same as memoryviews, in the order in which the core takes them: cheaper to pass, and to read one number of."""

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
        """Lay the table out again with room for `expected` more roots; buried places are gone after."""
        at = self.live_places()
        self._lay_out(self.ids.take(at), self.values.take(at), self.tasks.take(at), self.flags.take(at), expected)

    def shrink(self) -> None:
        """Give memory back when few of many places are in use."""
        if len(self.ids) > _LEAST_PLACES and self.counters[LIVE] < _SPARSE * len(self.ids):
            self.removed = self.removed[: max(_LEAST_PLACES, int(self.counters[REMOVED]))].copy()
            self.grow(0)

    def _lay_out(self, roots: Longs, values: Longs, tasks: Tasks, flags: NDArray[np.uint8], expected: int) -> None:
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
        self.arrays = (self.ids, self.values, self.tasks, self.flags, self.counters, self.changed, self.removed)
        self.views = tuple(array.data for array in self.arrays)

    def load(self, entries: Entries) -> None:
        """Hold exactly these, all young, none changed."""
        flags = np.full(len(entries.roots), self.counters[NEWEST] | STORED_BIT, np.uint8)
        flags[entries.flags == FAILED] |= FAILED_BIT
        self.counters[CHANGED] = self.counters[REMOVED] = 0
        self._lay_out(entries.roots.view(np.int64), entries.values.view(np.int64), entries.tasks, flags, 0)

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
