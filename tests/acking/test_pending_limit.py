"""Limit on open trees that follows their latency: its resting value, and inputs that do not move it."""

from __future__ import annotations

import pytest

from sparkstorm.acking import AdaptiveLimit, Pending
from sparkstorm.acking.pending_limit import FIRST, LEAST, MOST, TARGET_MS, WINDOW_MS


def driven(per_ms: float, floor_ms: int, windows: int = 40, former: AdaptiveLimit | None = None) -> AdaptiveLimit:
    """Drive a limit as a task does that keeps it full: so many trees a millisecond, none faster than the floor."""
    limit, now_ms = (AdaptiveLimit(), 0) if former is None else (former, 10**9)
    for _ in range(windows):
        latency_ms = max(floor_ms, round(limit.limit / per_ms))
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


def test_latency_that_no_limit_mends_ends_at_the_least_and_a_fast_task_at_the_most() -> None:
    assert driven(1.0, 10_000).limit == LEAST
    assert driven(1e6, 1).limit == MOST


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
    pending = Pending("auto")
    assert pending.room == FIRST
    for window in range(12):
        now_ms = window * WINDOW_MS
        roots = range(window * MOST + 1, window * MOST + 1 + pending.room)
        for root in roots:
            pending.add(root, root, now_ms - 400)
        assert pending.room == 0
        pending.settle(roots, (), now_ms)
    assert pending.room == LEAST
    with pytest.raises(ValueError, match="not 'many'"):
        Pending("many")
