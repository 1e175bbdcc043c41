"""Limit on a spout task's open trees that follows their latency
(`topology.max.spout.pending: auto`). PURE.

By Little's law the open trees of a busy task are its throughput times their latency. Few of them
leave a worker without work between two commits; many only wait in queues: throughput stays, latency
grows with the limit. So the limit is moved until the median
tree takes a target. Like TCP Vegas it reads delay, not loss; nothing is drawn by chance.

The target is `TARGET_MS`, or `GAIN` times the *base* where that is longer: the latency that a tree
has where nothing waits, round trips of all workers that it passes, and their commits. A target
without a base took every distance for a queue: the limit was halved, the latency stayed, and so on
down to the least limit, with as many commits for a few trees each. Their sum was left out: next to
the store the base of 4 ms doubled the target, and with trees of 75 ms a word count carried a tenth
less than with 40, as their rows did not fit a core's cache. The base is where the line
through the latencies under the last limits meets a limit of zero. The worker's own round trip is
not the base, because trees pass other workers. As in BBR, what is older than some ten seconds
hardly counts, and a limit that rests is lowered for a moment, so that the base can fall when a long
way becomes short. BBR drops to almost nothing; here half is enough for a line, and costs less where
a tree takes a second. A line through the last two limits alone was left out: with latencies that
vary by 30 % its base was off by as much (tests/acking/test_pending_limit.py).

A task sees its own limit alone. Where several share a bottleneck, the rows of the others look like
distance, and the target grows up to a quarter of the message time-out: throughput stays, latency
does not. What would tell them apart is the commit time of each worker, which the others do not know.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

TARGET_MS = 40
"""Some epochs of commits, from where on throughput hardly grows: half of it
costs a tenth of the words.
"""
GAIN = 9.0
"""Where a worker waits for its commits, trees take the base and their work in turn, and a target of
`GAIN` bases leaves eight ninths of the throughput (4: three quarters, 19: eighteen nineteenths, at
about half and double the latency). Where a commit takes longer than 50 ms, epochs as long as a
commit are full from two bases on: there the line is steeper, its base lower, and trees take no
more than two to three bases under 9 as under 4 (models)."""
# Of a message's time-out: the longest target. Several tasks in front of one slow bolt take each
# other's rows for distance, and came to seconds and to the largest limit without it. Half of it
# is little more than the median tree takes over 100 ms each way with a loss of 5 %; with double the
# slowest trees would be near their time-out.
_OF_TIMEOUT = 0.25
# the least per worker: a commit of each then carries some rows
FIRST = 200
LEAST = 20
MOST = 20_000
WINDOW_MS = 200
_LEAST_TREES = 20
_TOLERANCE = 0.2  # a latency that is off by less changes nothing
_LARGEST_STEP = 2.0
_FULL = 0.9  # share of the limit from which the limit is what holds the task back
# Of the base per window: it sinks until latency has not followed the limit, which measures it anew.
# Half or double of it was not measured.
_FORGET = 0.02
# Of a window's weight in the line with each later one: three windows have half of all. 0.7 and 0.9
# hardly differed in simulations
_KEEP = 0.8
# What is older weighs half and less, however few windows there were: a tree may take many seconds.
# BBR keeps its least round trip as long (Cardwell et al. 2016)
_HALF_MS = 10_000
# A limit that rests so long is halved for one window: the latency then shows what is queue and what
# is distance. Under the largest limit nothing else tells that a long way has become short. 5 s cost
# a tenth of the throughput where a task needs more than the largest limit, 15 s a twentieth (models)
_REST_MS = 15_000
_PROBE = 0.5
# spread of the limits in the line, as a share of their mean, from which it tells anything
_LEAST_SPREAD = 0.05
# A latency that is so many times off what the line allows begins a new one: a task that had become
# twenty times slower kept ten times its trees for minutes otherwise. With 1.6 noise does it too
_SURPRISE = 2.0


class _Line:
    """Straight line through latencies by limit: least squares, in which a window weighs less with
    each later one, and as time passes.
    """

    __slots__ = ("_noted_ms", "_sums")

    def __init__(self) -> None:
        self._sums = [0.0] * 5
        self._noted_ms = 0

    def note(self, limit: int, latency_ms: int, now_ms: int) -> None:
        """Take in the latency under a limit."""
        if not self._may_be(limit, latency_ms):
            self._sums = [0.0] * 5
        keep = min(_KEEP, 0.5 ** ((now_ms - self._noted_ms) / _HALF_MS))
        self._noted_ms = now_ms
        # Latencies vary by a share of themselves: unweighted, the largest would place the line
        terms = (1, limit, latency_ms, limit * limit, limit * latency_ms)
        self._sums = [
            keep * former + term / limit**2 for former, term in zip(self._sums, terms, strict=True)
        ]

    def _may_be(self, limit: int, latency_ms: int) -> bool:
        """Return whether a latency is between none that follows the limit and one that does."""
        weight, limits, latencies, *_ = self._sums
        if not weight:
            return True
        flat_ms = latencies / weight
        steep_ms = latencies * limit / limits
        least_ms, most_ms = sorted((flat_ms, steep_ms))
        return least_ms / _SURPRISE <= latency_ms <= most_ms * _SURPRISE

    def at_zero(self) -> float | None:
        """Return the latency where the limit is zero; None where the limits are too much alike to
        tell.
        """
        weight = self._sums[0]
        limit, latency_ms, squares, products = (total / weight for total in self._sums[1:])
        variance = squares - limit * limit
        if variance <= (_LEAST_SPREAD * limit) ** 2:
            return None
        slope = max(0.0, (products - limit * latency_ms) / variance)
        return max(0.0, latency_ms - slope * limit)


class AdaptiveLimit:
    """Limit of one spout task, moved once per window of time by the trees that ended in it."""

    __slots__ = (
        "_base_ms",
        "_latencies_ms",
        "_least",
        "_line",
        "_most_ms",
        "_probed",
        "_rests_since_ms",
        "_since_ms",
        "_was_full",
        "limit",
    )

    def __init__(self, workers: int = 1, timeout_ms: float = math.inf) -> None:
        self.limit = FIRST
        self._most_ms = max(TARGET_MS, timeout_ms * _OF_TIMEOUT)
        self._least = min(FIRST, LEAST * workers)
        self._base_ms = math.inf
        self._line = _Line()
        self._rests_since_ms: int | None = None
        self._probed: int | None = None  # the limit before a probe
        self._latencies_ms: Counter[int] = Counter()
        self._since_ms: int | None = None
        self._was_full = False

    @property
    def target_ms(self) -> float:
        """Median latency that is aimed at."""
        return min(max(TARGET_MS, GAIN * self._base_ms), self._most_ms)

    def note(self, count_by_latency: Mapping[int, int], open_trees: int, now_ms: int) -> None:
        """Take in the number of trees by their complete latency in milliseconds, and the number of
        those that were open before they ended.
        """
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms < self._since_ms:
            return
        self._latencies_ms.update(count_by_latency)
        self._was_full |= open_trees >= _FULL * self.limit
        if now_ms - self._since_ms >= WINDOW_MS and self._latencies_ms.total() >= _LEAST_TREES:
            median_ms = _median_low(self._latencies_ms)
            has_moved = self._move(median_ms, now_ms)
            self._latencies_ms = Counter()
            self._was_full = False
            # trees that were opened under the former limit do not measure this one
            self._since_ms = now_ms + has_moved * median_ms

    def _move(self, median_ms: int, now_ms: int) -> bool:
        if not self._was_full:
            # the source, or a bolt, is what limits: neither more room nor less would change the
            # latency
            return False
        self._learn(median_ms, now_ms)
        former = self.limit
        if self._probed is not None:
            self.limit = self._probed
            self._probed = None
        elif (wanted := self._wanted(median_ms)) != former:
            self.limit = wanted
        elif self._has_rested(now_ms) and former > self._least:
            self._probed = former
            self.limit = max(self._least, round(former * _PROBE))
        has_moved = self.limit != former
        if has_moved or self._rests_since_ms is None:
            self._rests_since_ms = now_ms
        return has_moved

    def _has_rested(self, now_ms: int) -> bool:
        return self._rests_since_ms is not None and now_ms - self._rests_since_ms >= _REST_MS

    def _wanted(self, median_ms: int) -> int:
        """Return the limit under which trees would take the target, at most a step away."""
        wanted = self.target_ms / max(median_ms, 1)
        if abs(wanted - 1) <= _TOLERANCE:
            return self.limit
        step = min(_LARGEST_STEP, max(1 / _LARGEST_STEP, wanted))
        return min(MOST, max(self._least, round(self.limit * step)))

    def _learn(self, median_ms: int, now_ms: int) -> None:
        self._base_ms *= 1 - _FORGET
        self._line.note(self.limit, median_ms, now_ms)
        if (at_zero := self._line.at_zero()) is not None:
            self._base_ms = at_zero
        self._base_ms = min(self._base_ms, float(median_ms))


def _median_low(counts: Counter[int]) -> int:
    """Return the lower median of numbers by how often each is there."""
    left = (counts.total() + 1) // 2
    for number in sorted(counts):
        left -= counts[number]
        if left <= 0:
            return number
    raise ValueError("no numbers have no median")
