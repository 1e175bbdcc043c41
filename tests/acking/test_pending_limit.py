"""Limit on open trees that follows their latency: its resting value, and inputs that do not move
it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from random import Random

import pytest

from sparkstorm.acking import AdaptiveLimit, Pending
from sparkstorm.acking.pending_limit import FIRST, LEAST, MOST, TARGET_MS, WINDOW_MS


def driven(
    per_ms: float, floor_ms: int, windows: int = 40, former: AdaptiveLimit | None = None
) -> AdaptiveLimit:
    """Drive a limit as a task does that keeps it full: so many trees a millisecond, none faster
    than the floor.
    """
    return followed(lambda limit: max(floor_ms, limit / per_ms), windows, former)


def followed(
    latency: Callable[[int], float], windows: int = 60, former: AdaptiveLimit | None = None
) -> AdaptiveLimit:
    """Drive a limit that is always full by the latency under it."""
    limit = AdaptiveLimit() if former is None else former
    now_ms = 10**9 if limit._since_ms is None else limit._since_ms
    for _ in range(windows):
        latency_ms = round(latency(limit.limit))
        now_ms += 2 * max(WINDOW_MS, latency_ms)
        limit.note([latency_ms] * 50, limit.limit, now_ms)
    return limit


@pytest.mark.parametrize("per_ms", [2.0, 10.0, 60.0, 300.0])
def test_it_comes_to_rest_where_trees_take_the_target(per_ms: float) -> None:
    limit = driven(per_ms, 1)
    assert limit.limit / per_ms == pytest.approx(TARGET_MS, rel=0.25)
    assert driven(per_ms, 1, 3, limit).limit == limit.limit  # and stays


def test_a_task_that_gets_slower_is_followed() -> None:
    limit = driven(100.0, 1)
    assert driven(5.0, 1, former=limit).limit == pytest.approx(5.0 * TARGET_MS, rel=0.25)


def test_a_slow_task_ends_at_the_least_and_a_fast_task_at_the_most() -> None:
    assert driven(0.1, 1).limit == LEAST
    assert driven(1e6, 1).limit == MOST


def test_a_task_whose_rows_are_divided_among_workers_keeps_as_many_trees_for_each() -> None:
    limit = followed(lambda open_trees: open_trees / 0.1, former=AdaptiveLimit(5))
    assert limit.limit == 5 * LEAST


def carried(
    latency: Callable[[int], float], windows: int = 60, former: AdaptiveLimit | None = None
) -> float:
    """Return the trees per millisecond of a task with so much latency under a limit, in the mean of
    the last half.
    """
    limit, rates = followed(latency, windows // 2, former), []
    for _ in range(windows // 2):
        limit = followed(latency, 1, limit)
        rates.append(limit.limit / latency(limit.limit))
    return sum(rates) / len(rates)


@pytest.mark.parametrize("base_ms", [60, 300, 600])
def test_a_distance_is_not_taken_for_a_queue(base_ms: int) -> None:
    assert carried(lambda open_trees: max(base_ms, open_trees / 20)) >= 0.9 * 20


@pytest.mark.parametrize("base_ms", [60, 300, 600])
def test_where_work_and_way_take_turns_most_of_the_throughput_is_left(base_ms: int) -> None:
    assert carried(lambda open_trees: base_ms + open_trees / 5) >= 0.85 * 5
    assert followed(lambda open_trees: base_ms + open_trees / 5).limit <= 5 * 12 * base_ms


HOPS = 5
FIXED = (1_000, 5_000, 20_000)


def commits_between(per_ms: float, commit_ms: float) -> Callable[[int], float]:
    """Return the latency of trees over five commits by the open trees, where a worker does so many
    a millisecond between its commits, for 50 ms or as long as a commit takes at the most.
    """
    epoch_ms = max(50, min(commit_ms, 500))
    most = per_ms * epoch_ms / (epoch_ms + commit_ms)
    return lambda open_trees: max(HOPS * commit_ms + open_trees / per_ms, open_trees / most)


@pytest.mark.parametrize("commit_ms", [1.5, 3, 7, 20, 50, 100, 200])
@pytest.mark.parametrize("per_ms", [3, 10, 100])
def test_it_carries_nine_tenths_of_the_best_fixed_limit(per_ms: int, commit_ms: float) -> None:
    latency = commits_between(per_ms, commit_ms)
    best = max(limit / latency(limit) for limit in FIXED)
    assert carried(latency, 100) >= 0.9 * best
    assert latency(followed(latency, 100).limit) <= 1.5 * (TARGET_MS + 10 * HOPS * commit_ms)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("commit_ms", [2, 100])
def test_latencies_that_vary_by_a_third_leave_it_where_it_was(commit_ms: int, seed: int) -> None:
    chance = Random(seed)
    latency = commits_between(10, commit_ms)
    limits = []
    limit = AdaptiveLimit()
    for _ in range(200):
        limit = followed(lambda trees: latency(trees) * chance.lognormvariate(0, 0.3), 1, limit)
        limits.append(limit.limit)
    assert latency(statistics.median_low(limits)) <= 2 * (TARGET_MS + 10 * HOPS * commit_ms)
    rates = [each / latency(each) for each in limits[20:]]
    assert statistics.mean(rates) >= 0.8 * max(each / latency(each) for each in FIXED)


def test_a_way_that_becomes_longer_is_found_out() -> None:
    assert carried(lambda open_trees: max(600, open_trees / 20), former=driven(20.0, 1)) >= 0.9 * 20


def test_a_task_that_does_not_fill_its_limit_keeps_it() -> None:
    limit = AdaptiveLimit()
    for window in range(1, 20):
        limit.note([2] * 50, 10, window * WINDOW_MS)
    assert limit.limit == FIRST


def test_few_trees_and_short_times_decide_nothing() -> None:
    limit = AdaptiveLimit()
    limit.note([5000] * 10_000, FIRST, 0)
    limit.note([5000], FIRST, WINDOW_MS - 1)
    assert limit.limit == FIRST
    few = AdaptiveLimit()
    for at in range(19):
        few.note([5000], FIRST, at * WINDOW_MS)
    assert few.limit == FIRST


def test_pending_asks_its_limit() -> None:
    pending, now_ms = Pending("auto", workers=2), 0
    assert pending.room == FIRST
    for window in range(12):
        room = pending.room
        roots = range(window * MOST + 1, window * MOST + 1 + room)
        now_ms += 20 * room
        for root in roots:
            pending.add(root, root, now_ms - 10 * room)
        assert pending.room == 0
        pending.settle(roots, (), now_ms)
    assert pending.room == 2 * LEAST
    with pytest.raises(ValueError, match="not 'many'"):
        Pending("many")
