"""PartitionClocks of senders: which rows are late, and how far out of order rows were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.windowing.watermarks import END, IDLE, NEVER, SourceClock, Watermarks

TIMES = st.lists(st.integers(0, 60), max_size=40)


@given(TIMES, st.integers(0, 20), st.integers(0, 20))
def test_a_clock_measures_every_row_though_it_looks_at_few(
    times: list[int], lag: int, lateness: int
) -> None:
    clock = SourceClock(lag, lateness)
    for n, at_ms in enumerate(times):
        newest = max(times[:n], default=NEVER)
        assert clock.is_late(at_ms) == (newest - at_ms > lag + lateness)
    behind = [max(times[: n + 1]) - at_ms for n, at_ms in enumerate(times)]
    assert clock.behind_ms == max(behind, default=0)
    assert clock.oldest_ms == min(times, default=END)
    assert clock.newest_ms == max(times, default=NEVER)


@given(TIMES, st.integers(0, 40), TIMES)
def test_rows_that_were_taken_back_hide_no_older_row(
    taken_back: list[int], left: int, times: list[int]
) -> None:
    clock = SourceClock(10, 0)
    clock.set_newest(left)
    for at_ms in taken_back:
        clock.is_late(at_ms)
    clock.take_back(left)
    for at_ms in times:
        clock.is_late(at_ms)
    assert clock.newest_ms == max([left, *times])
    assert clock.oldest_ms <= min([left, *times])
    assert clock.behind_ms >= max(
        (max([left, *times[: n + 1]]) - at_ms for n, at_ms in enumerate(times)), default=0
    )


def test_a_row_that_is_no_time_is_never_late() -> None:
    clock = SourceClock(0, 0, newest_ms=50)
    result = [clock.is_late(value) for value in (None, True, -1, 2**60, "49", 49)]
    assert result == [False, False, False, False, False, True]


def test_when_all_senders_are_idle_or_ended_time_goes_to_the_newest_mark() -> None:
    first, second = (1, "default"), (2, "default")
    for last in (END, IDLE):
        marks = Watermarks([first, second])
        marks.hear(first, 100)
        marks.hear(second, 5)
        marks.hear(second, IDLE)
        assert marks.low_ms == 100
        marks.hear(first, last)
        assert (marks.low_ms, marks.is_ended) == (100, False)
    marks = Watermarks([first, second])
    for channel, at_ms in ((first, 100), (first, END), (second, 5), (second, IDLE)):
        marks.hear(channel, at_ms)
    assert marks.low_ms == 100
    again = Watermarks([first, second], {first: END, second: 5}, marks.newest_ms)
    again.rest(second)
    assert again.low_ms == 100
