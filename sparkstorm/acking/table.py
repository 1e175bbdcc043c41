"""Arrays of an open-addressing table, 21 bytes a place: growth, shrinking, removal of dead places."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkstorm.acking.batch import Longs, Tasks
from sparkstorm.acking.columns import find_roots, insert_roots, lay_out
from sparkstorm.acking.journal import FAILED, Entries
from sparkstorm.acking.kernels import (
    BURIED,
    CHANGED,
    CHANGED_BIT,
    COUNTERS,
    FAILED_BIT,
    LIVE,
    NEWEST,
    REMOVED,
    STORED_BIT,
    UNKNOWN_TASK,
    USED,
)

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
    """The same as memoryviews, in the order in which the kernels take them: what plain loops read fastest."""

    def __init__(self) -> None:
        self.counters = np.zeros(COUNTERS, np.int64)
        self.removed = np.empty(_LEAST_PLACES, np.int64)
        none = np.empty(0, np.int64)
        self._lay_out(none, none, np.empty(0, np.int32), np.empty(0, np.uint8), 0)

    @property
    def nbytes(self) -> int:
        """All that is allocated, logs included."""
        return sum(int(array.nbytes) for array in self.arrays)

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
        self.ids, at = lay_out(roots, places)
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

    def touch(self, roots: Longs) -> Longs:
        """The place of each root, made where there was none, all noted as changed."""
        at = find_roots(self.ids, roots)
        missing = np.flatnonzero(at < 0)
        if len(missing):
            if self.counters[USED] + len(missing) > self.limit:
                self.grow(len(missing))
                at = find_roots(self.ids, roots)
            at[missing] = self._insert(roots.take(missing))
        self._note_changes(roots, at)
        return at

    def _insert(self, roots: Longs) -> Longs:
        at = insert_roots(self.ids, roots)
        # Of several rows with one root the last writer's number stays: one match per new place.
        rank = np.arange(len(at))
        self.values[at] = rank
        distinct = int(np.count_nonzero(self.values.take(at) == rank))
        self.values[at], self.tasks[at], self.flags[at] = 0, UNKNOWN_TASK, self.counters[NEWEST]
        self.counters[LIVE] += distinct
        self.counters[USED] += distinct
        return at

    def _note_changes(self, roots: Longs, at: Longs) -> None:
        first = np.flatnonzero((self.flags.take(at) & CHANGED_BIT) == 0)
        if not len(first):
            return
        self.flags[at.take(first)] |= CHANGED_BIT
        begin = int(self.counters[CHANGED])
        end = begin + len(first)
        if end <= len(self.changed):
            self.changed[begin:end] = roots.take(first)
        self.counters[CHANGED] = end

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

    def take_removed(self) -> Longs:
        """Removed roots that the journal knows, once; a log that had grown long is given back."""
        removed = self.removed[: int(self.counters[REMOVED])].copy()
        self.counters[REMOVED] = 0
        if len(self.removed) > len(self.changed):
            self.removed = np.empty(_LEAST_PLACES, np.int64)
            self._expose()
        return removed

    def entries_at(self, at: Longs) -> Entries:
        """The rows in these places, as the journal writes them."""
        failed = (self.flags.take(at) & FAILED_BIT) != 0
        return Entries(
            self.ids.take(at).view(np.uint64), self.values.take(at).view(np.uint64), self.tasks.take(at),
            np.where(failed, FAILED, 0).astype(np.uint8),
        )  # fmt: skip

    def changed_places(self) -> Longs:
        """Distinct places of roots that changed since the last delta and still exist."""
        logged = int(self.counters[CHANGED])
        if logged > len(self.changed):
            return np.flatnonzero(((self.flags & CHANGED_BIT) != 0) & (self.ids > 0))
        at = find_roots(self.ids, self.changed[:logged])
        at = np.unique(at[at >= 0])
        return at.compress((self.flags.take(at) & CHANGED_BIT) != 0)
