"""Points in time, the older the further apart."""

from __future__ import annotations

from sparkstorm.control_plane.insight.ring import FINE, Ring


def test_a_day_of_seconds_is_kept_within_its_bound() -> None:
    ring = Ring[int](FINE)
    for second in range(90_000):
        ring.add(second * 1000, second)
    now = 89_999_000
    assert len(ring.times()) <= sum(size for _, size in FINE)
    assert ring.before(now - 60_000) == (89_939_000, 89_939)
    assert ring.before(now - 3_600_000) == (86_390_000, 86_390)
    found = ring.before(now - 80_000_000)
    assert found is not None and 0 <= now - 80_000_000 - found[0] < 60_000
    oldest = ring.oldest()
    assert oldest is not None and now - oldest[0] >= 86_000_000
    assert ring.before(oldest[0] - 1) is None


def test_points_since_a_moment_come_with_the_one_before() -> None:
    ring = Ring[str](FINE)
    for ms, item in ((1_000, "a"), (1_500, "same second"), (2_000, "b"), (3_000, "c")):
        ring.add(ms, item)
    assert ring.since(2_500) == [(2_000, "b"), (3_000, "c")]
    assert ring.since(0) == [(1_000, "a"), (2_000, "b"), (3_000, "c")]


def test_a_clock_that_was_set_back_begins_afresh() -> None:
    ring = Ring[str](FINE)
    ring.add(9_000, "later")
    ring.add(4_000, "now")
    assert ring.times() == [4_000]
