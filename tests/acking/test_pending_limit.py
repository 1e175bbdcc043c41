"""Limit on open trees that follows their latency: its resting value, and inputs that do not move
it.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest

from sparkstorm.data_plane.acking.pending import Pending
from sparkstorm.data_plane.acking.pending_limit import (
    _LEAST_TREES,
    FIRST,
    GAIN,
    LEAST,
    MOST,
    TARGET_MS,
    WINDOW_MS,
    AdaptiveLimit,
)


def driven(
    per_ms: float, floor_ms: int, seconds: int = 40, former: AdaptiveLimit | None = None
) -> AdaptiveLimit:
    """Drive a limit as a task does that keeps it full: so many trees a millisecond, none faster
    than the floor.
    """
    return followed(lambda limit: max(floor_ms, limit / per_ms), seconds, former)


def followed(
    latency: Callable[[int], float], seconds: int = 60, former: AdaptiveLimit | None = None
) -> AdaptiveLimit:
    """Drive a limit that is always full by the latency under it: trees end five times a second."""
    limit = AdaptiveLimit() if former is None else former
    for _ in steps(latency, seconds, limit):
        pass
    return limit


def steps(
    latency: Callable[[int], float],
    seconds: int,
    limit: AdaptiveLimit,
    is_in_bunches: bool = False,
) -> Iterator[tuple[float, int, float]]:
    """Drive a limit, and yield at each of its windows the seconds so far, the limit and the latency
    under it. In bunches all trees end at once, where others end five times a second.
    """
    begin_ms = now_ms = 10**9 if limit._since_ms is None else limit._since_ms
    while now_ms < begin_ms + 1000 * seconds:
        former, latency_ms = limit.limit, latency(limit.limit)
        now_ms += max(WINDOW_MS, round(latency_ms) * is_in_bunches)
        limit.note({round(latency_ms): _LEAST_TREES}, former, now_ms)
        yield (now_ms - begin_ms) / 1000, former, latency_ms


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
    latency: Callable[[int], float], seconds: int = 60, former: AdaptiveLimit | None = None
) -> float:
    """Return the trees per millisecond of a task with so much latency under a limit, in the mean of
    the last half.
    """
    found = list(steps(latency, seconds, AdaptiveLimit() if former is None else former))
    return statistics.mean(limit / latency_ms for _, limit, latency_ms in found[len(found) // 2 :])


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


@pytest.mark.parametrize("commit_ms", [2, 7, 100])
def test_latencies_that_vary_by_a_third_leave_it_where_it_was(commit_ms: int) -> None:
    latency = commits_between(10, commit_ms)
    best = max(each / latency(each) for each in FIXED)
    latencies: list[float] = []
    rates: list[float] = []
    for seed in range(20):
        chance = Random(seed)
        noisy = partial(lambda trees, c: latency(trees) * c.lognormvariate(0, 0.3), c=chance)
        limits = [each for _, each, _ in steps(noisy, 60, AdaptiveLimit())]
        latencies.append(latency(statistics.median_low(limits)))
        rates.append(statistics.mean(each / latency(each) for each in limits[50:]))
    wanted_ms = TARGET_MS + GAIN * HOPS * commit_ms
    assert statistics.median(latencies) <= wanted_ms
    assert sorted(latencies)[17] <= 2 * wanted_ms
    assert min(rates) >= 0.8 * best


@pytest.mark.parametrize("base_ms", [0, 2, 4])
def test_beside_the_store_trees_take_the_target_alone(base_ms: int) -> None:
    limit = followed(lambda open_trees: base_ms + open_trees / 200)
    assert base_ms + limit.limit / 200 == pytest.approx(TARGET_MS, rel=0.25)


def test_a_way_that_becomes_longer_is_found_out() -> None:
    assert carried(lambda open_trees: max(600, open_trees / 20), former=driven(20.0, 1)) >= 0.9 * 20


@pytest.mark.parametrize("commit_ms", [60, 120, 200])
@pytest.mark.parametrize("per_ms", [3, 10, 20])
def test_a_long_way_that_becomes_short_is_found_out(per_ms: int, commit_ms: float) -> None:
    limit = AdaptiveLimit()
    for _ in steps(commits_between(per_ms, commit_ms), 120, limit, is_in_bunches=True):
        pass
    latency = commits_between(per_ms, 1.5)
    found = list(steps(latency, 150, limit, is_in_bunches=True))
    wanted_ms = TARGET_MS + 10 * HOPS * 1.5
    assert all(latency_ms <= 1.5 * wanted_ms for at, _, latency_ms in found if at > 125)


def test_a_limit_at_rest_is_halved_for_a_window_now_and_then() -> None:
    limit = AdaptiveLimit()
    found = [
        each for _, each, _ in steps(lambda open_trees: max(1000, open_trees / 100), 90, limit)
    ]
    probes = sum(a == MOST and b == MOST // 2 for a, b in itertools.pairwise(found))
    assert 3 <= probes <= 6


def test_a_task_that_does_not_fill_its_limit_keeps_it() -> None:
    limit = AdaptiveLimit()
    for window in range(1, 20):
        limit.note({2: 50}, 10, window * WINDOW_MS)
    assert limit.limit == FIRST


def test_few_trees_and_short_times_decide_nothing() -> None:
    limit = AdaptiveLimit()
    limit.note({5000: 10_000}, FIRST, 0)
    limit.note({5000: 1}, FIRST, WINDOW_MS - 1)
    assert limit.limit == FIRST
    few = AdaptiveLimit()
    for at in range(19):
        few.note({5000: 1}, FIRST, at * WINDOW_MS)
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


def shared(tasks: int, per_ms: int, timeout_ms: float, seconds: int = 150) -> float:
    """Return the median latency of the last half of trees of several tasks whose rows wait for one
    bolt of so many a millisecond.
    """
    limits = [AdaptiveLimit(timeout_ms=timeout_ms) for _ in range(tasks)]
    open_trees = [0] * tasks
    waiting: deque[tuple[int, int]] = deque()
    latencies: list[int] = []
    step_ms = 10
    for now_ms in range(10**9, 10**9 + 1000 * seconds, step_ms):
        for task, limit in enumerate(limits):
            waiting.extend([(task, now_ms)] * (limit.limit - open_trees[task]))
            open_trees[task] = max(open_trees[task], limit.limit)
        before = list(open_trees)
        ended: list[list[int]] = [[] for _ in limits]
        for _ in range(min(len(waiting), step_ms * per_ms)):
            task, since_ms = waiting.popleft()
            ended[task].append(now_ms + step_ms - since_ms)
            open_trees[task] -= 1
        latencies += itertools.chain.from_iterable(ended)
        for limit, found, opened in zip(limits, ended, before, strict=True):
            if found:
                limit.note(Counter(found), opened, now_ms + step_ms)
    return statistics.median(latencies[len(latencies) // 2 :])


def test_tasks_that_share_a_slow_bolt_stay_far_from_the_time_out_of_their_messages() -> None:
    assert shared(1, 5, 30_000) <= 1.5 * TARGET_MS
    for tasks in (2, 4):
        assert shared(tasks, 2, 30_000) <= 30_000 / 3
