"""Limit on a spout task's open trees that follows their latency (`topology.max.spout.pending: auto`). PURE.

By Little's law the open trees of a busy task are its throughput times their latency. Few of them leave a worker without work
between two commits; many only wait in queues: throughput stays, latency grows with the limit (the curve is in
benchmarks/README.md). So the limit is moved until the median tree takes `TARGET_MS`, which lies behind the knee of the curve.
The law gives the step: limit times target over latency. Like TCP Vegas it reads delay, not loss; nothing is drawn by chance.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

TARGET_MS = 40
"""Median complete latency that is aimed at: some epochs of commits, from where on throughput hardly grows (measured)."""
FIRST, LEAST, MOST = 200, 20, 20_000
WINDOW_MS = 200
_LEAST_TREES = 20
_TOLERANCE = 0.2  # a latency that is off by less changes nothing
_LARGEST_STEP = 2.0
_FULL = 0.9  # share of the limit from which the limit is what holds the task back


class AdaptiveLimit:
    """Limit of one spout task, moved once per window of time by the trees that ended in it."""

    __slots__ = ("_latencies_ms", "_since_ms", "_was_full", "limit")

    def __init__(self) -> None:
        self.limit = FIRST
        self._latencies_ms: list[int] = []
        self._since_ms: int | None = None
        self._was_full = False

    def note(self, latencies_ms: Sequence[int], open_trees: int, now_ms: int) -> None:
        """Take in complete latencies in milliseconds, and the number of trees that were open before they ended."""
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms < self._since_ms:
            return
        self._latencies_ms += latencies_ms
        self._was_full |= open_trees >= _FULL * self.limit
        if now_ms - self._since_ms >= WINDOW_MS and len(self._latencies_ms) >= _LEAST_TREES:
            median_ms = statistics.median_low(self._latencies_ms)
            has_moved = self._move(median_ms)
            self._latencies_ms, self._was_full = [], False
            self._since_ms = now_ms + has_moved * median_ms  # trees that were opened under the former limit say nothing of this one

    def _move(self, median_ms: int) -> bool:
        wanted, former = TARGET_MS / max(median_ms, 1), self.limit
        if wanted > 1 and not self._was_full:
            return False  # the source, or a bolt, is what limits: room that is not used would be a burst later
        if abs(wanted - 1) > _TOLERANCE:
            step = min(_LARGEST_STEP, max(1 / _LARGEST_STEP, wanted))
            self.limit = min(MOST, max(LEAST, round(former * step)))
        return self.limit != former
