"""Limit on a spout task's open trees that follows their latency
(`topology.max.spout.pending: auto`). PURE.

By Little's law the open trees of a busy task are its throughput times their latency. Few of them
leave a worker without work between two commits; many only wait in queues: throughput stays, latency
grows with the limit (the curve is in benchmarks/README.md). So the limit is moved until the median
tree takes a target. Like TCP Vegas it reads delay, not loss; nothing is drawn by chance.

The target has two parts: `TARGET_MS` of work and queues, and `GAIN` times the *base*, the latency
that a tree has where nothing waits: round trips of all workers that it passes, and their commits. A
target without a base took every distance for a queue: the limit was halved, the latency stayed, and
so on down to the least limit, with as many commits for a few trees each. The base is found from the
latencies under two limits, as where the line through them meets a limit of zero. The worker's own
round trip is not the base, because trees pass other workers. BBR's way, the least latency of the
last ten seconds with a drop to almost nothing in between, was left out: the drop costs seconds
where a tree takes one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

TARGET_MS = 40
"""Some epochs of commits, from where on throughput hardly grows (benchmarks/README.md: half of it
costs a tenth of the words).
"""
GAIN = 4.0
"""Where a worker waits for its commits, trees take the base and their work in turn, and a target of
`GAIN` bases leaves three quarters of the throughput at the least (half of it: a half, double: seven
eighths, each at as much more latency)."""
# the least per worker: a commit of each then carries some rows
FIRST = 200
LEAST = 20
MOST = 20_000
WINDOW_MS = 200
_LEAST_TREES = 20
_TOLERANCE = 0.2  # a latency that is off by less changes nothing
_LARGEST_STEP = 2.0
_FULL = 0.9  # share of the limit from which the limit is what holds the task back
# of the base per window: it sinks until latency has not followed the limit, which measures it anew
_FORGET = 0.01


class AdaptiveLimit:
    """Limit of one spout task, moved once per window of time by the trees that ended in it."""

    __slots__ = (
        "_base_ms",
        "_former",
        "_latencies_ms",
        "_least",
        "_since_ms",
        "_was_full",
        "limit",
    )

    def __init__(self, workers: int = 1) -> None:
        self.limit = FIRST
        self._least = min(FIRST, LEAST * workers)
        self._base_ms = math.inf
        self._former: tuple[int, int] | None = None  # limit and median latency before the last move
        self._latencies_ms: list[int] = []
        self._since_ms: int | None = None
        self._was_full = False

    @property
    def target_ms(self) -> float:
        """Median latency that is aimed at; infinite before the first window."""
        return TARGET_MS + GAIN * self._base_ms

    def note(self, latencies_ms: Sequence[int], open_trees: int, now_ms: int) -> None:
        """Take in complete latencies in milliseconds, and the number of trees that were open before
        they ended.
        """
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms < self._since_ms:
            return
        self._latencies_ms += latencies_ms
        self._was_full |= open_trees >= _FULL * self.limit
        if now_ms - self._since_ms >= WINDOW_MS and len(self._latencies_ms) >= _LEAST_TREES:
            median_ms = statistics.median_low(self._latencies_ms)
            has_moved = self._move(median_ms)
            self._latencies_ms = []
            self._was_full = False
            # trees that were opened under the former limit do not measure this one
            self._since_ms = now_ms + has_moved * median_ms

    def _move(self, median_ms: int) -> bool:
        if not self._was_full:
            # the source, or a bolt, is what limits: neither more room nor less would change the
            # latency
            return False
        self._learn(median_ms)
        wanted = self.target_ms / max(median_ms, 1)
        former = self.limit
        if abs(wanted - 1) > _TOLERANCE:
            step = min(_LARGEST_STEP, max(1 / _LARGEST_STEP, wanted))
            self.limit = min(MOST, max(self._least, round(former * step)))
        if self.limit != former:
            self._former = (former, median_ms)
        return self.limit != former

    def _learn(self, median_ms: int) -> None:
        """Move the base towards the estimate from the latencies under two limits: the more, the
        further these are apart.
        """
        self._base_ms *= 1 - _FORGET
        if self._former is not None:
            limit, latency_ms = self._former
            slope = (median_ms - latency_ms) / (self.limit - limit)
            found = min(
                max(0.0, median_ms - slope * self.limit), float(median_ms), float(latency_ms)
            )
            share = min(1.0, abs(math.log2(self.limit / limit)))
            self._base_ms += (found - self._base_ms) * share
            self._former = None
        self._base_ms = min(self._base_ms, float(median_ms))
