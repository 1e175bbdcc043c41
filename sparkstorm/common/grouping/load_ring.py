"""Turns of a load-aware shuffle: receivers with a standing backlog get fewer turns. PURE, seeded by
arguments.

Weights follow Storm's LoadAwareShuffleGrouping: a receiver that keeps up gains slowly, one that
falls behind loses fast. The measure is ours: the least number of bytes that waited for a receiver
over several looks (Nichols and Jacobson, CoDel, 2012), since a receiver that keeps up has an empty
stream now and then, even with a backlog at one moment. Left out: Storm's scopes (own worker, host,
rack), which send a task of the sender's worker everything until its queue is nearly full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

# Halving takes five looks from all to nothing, growing by one sixteen looks back: Storm's 100 less
# 10, plus 1. With twice as many steps the ring of 64 receivers has 2,048 places to sort at each
# change.
_MOST = 16
# A receiver is behind when twice as much waits for it as for the least burdened one, and this much
# more. Half of it takes the rows of one commit for a backlog, double lets a slow bolt of small
# tuples wait for twice as many of them.
_SLACK_BYTES = 4096


class LoadRing:
    """Weights of one sender's receivers, and an endless iterator of their row lists."""

    def __init__(self, rows_by_task: Mapping[int, list[Any]], seed: int) -> None:
        """Begin as a shuffle with this seed does: in turn, with equal weights."""
        self._rows = list(rows_by_task.values())
        self._weights = dict.fromkeys(rows_by_task, _MOST)
        self._start = seed % len(self._rows)
        self._ring = list(self._built())
        self.turns: Iterator[list[Any]] = chain.from_iterable(iter(lambda: self._ring, None))

    def refresh(self, standing: Mapping[int, int]) -> None:
        """Take in the bytes that have been waiting for each task; a task that is not named has
        none.
        """
        least = min(standing.get(task, 0) for task in self._weights)
        before = dict(self._weights)
        for task, weight in before.items():
            is_behind = standing.get(task, 0) > 2 * least + _SLACK_BYTES
            self._weights[task] = weight // 2 if is_behind else min(_MOST, weight + 1)
        if self._weights == before:
            return
        # The next ring begins elsewhere, or the first receiver would have a turn more with each
        # change.
        self._start = (self._start + 1) % len(self._rows)
        old = self._ring
        self._ring = list(self._built())
        # An iterator over an emptied list ends at once: the pickers, compiled ones too, go on with
        # the new ring.
        old.clear()

    def _built(self) -> Iterator[list[Any]]:
        """Yield as many turns of each receiver as it has weight, spread evenly; with equal weights
        one turn each.
        """
        # Never empty: the least burdened receiver gains at every look.
        shared = math.gcd(*self._weights.values())
        count = len(self._rows)
        places: list[tuple[float, int, int]] = []
        for index, weight in enumerate(self._weights.values()):
            turns = weight // shared
            places += [
                ((turn + 0.5) / turns, (index - self._start) % count, index)
                for turn in range(turns)
            ]
        return (self._rows[index] for _, _, index in sorted(places))
