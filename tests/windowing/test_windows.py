"""Windows by the definition: every event in exactly the right ones, whatever the order, batching
and restarts.
"""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.api import Count, Duration
from sparkstorm.common.windowing.settings import LAG_MS, LATENESS_MS
from sparkstorm.common.windowing.watermarks import END, NEVER, SourceClock, Watermarks
from sparkstorm.common.windowing.window_math import Layout
from tests.windowing.driving import (
    Adding,
    Driver,
    Event,
    Listing,
    Merging,
    Ordered,
    split_late,
    timed,
)

LENGTHS = st.integers(1, 12)
EVENTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(0, 9)), max_size=40
)


def ms(count: int) -> Duration:
    return Duration.millis(count)


def expected(events: list[Event], length: int, slide: int) -> dict[tuple[str, int], list[Event]]:
    """Windows by key and end, straight from the definition."""
    found: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        for end in range(slide, 200, slide):
            if end - length <= event[1] < end:
                found.setdefault((event[0], end), []).append(event)
    return found


def totals(windows: dict[tuple[str, int], list[Event]]) -> dict[tuple[str, int], list[int]]:
    return {
        place: [len(events), sum(event[2] for event in events)] for place, events in windows.items()
    }


def run_through(bolt: Any, events: list[Event], lag: int, cuts: list[int] | None = None) -> Driver:
    """Rows of one sender with a mark behind each piece; `cuts` are where the task is begun anew
    from what it stored.
    """
    driver = Driver(copy.copy(bolt))
    clock = SourceClock(lag, 0)
    emitted: list[Any] = []
    for number, event in enumerate(events):
        assert not clock.is_late(event[1])
        driver.rows([event])
        if number % 3 == 2:
            driver.advance(clock.mark_ms())
        if cuts and number in cuts:
            emitted += driver.emitted()
            driver = Driver(copy.copy(bolt), driver.stored())
            driver.advance(clock.mark_ms())
    driver.end()
    driver._targets["default"].rows[:0] = [((row,), 0, None) for row in emitted]
    return driver


@given(LENGTHS, LENGTHS, st.integers(0, 100))
def test_a_point_is_in_exactly_the_windows_that_hold_it(length: int, slide: int, at: int) -> None:
    held = {end for end in range(0, 200, slide) if end - length <= at < end}
    for is_shared in (True, False):
        layout = Layout(length, slide, is_shared)
        assert set(layout.ends(at)) == held
        cells = layout.cells_of(at)
        for end in range(0, 200, slide):
            assert any(cell in layout.cells_in(end) for cell in cells) == (end in held)
        for cell in cells:
            assert set(layout.ends_of(cell)) <= held


@given(LENGTHS, LENGTHS, EVENTS, st.integers(0, 20))
def test_collected_windows_hold_what_the_definition_says(
    length: int, slide: int, events: list[Event], lag: int
) -> None:
    on_time, _ = split_late(events, lag)
    bolt = timed(Listing().with_window(ms(length), ms(slide)).with_key("key"))
    windows = expected(on_time, length, slide)
    found = run_through(bolt, on_time, lag).emitted()
    result = {(row[0][0], row[2]): sorted(row[4]) for row in found}
    assert result == {p: sorted(e[2] for e in es) for p, es in windows.items()}
    assert len(found) == len(windows)
    assert [row[2] for row in found] == sorted(row[2] for row in found)
    for row in found:
        key, end = row[0][0], row[2]
        former = windows.get((key, end - slide), [])
        assert sorted(row[5]) == sorted(e[2] for e in windows[key, end] if e not in former)
        assert sorted(row[6]) == sorted(e[2] for e in former if not end - length <= e[1] < end)


@pytest.mark.parametrize("kind", [Adding, Merging])
@given(LENGTHS, LENGTHS, EVENTS, st.integers(0, 20), st.lists(st.integers(0, 40), max_size=3))
def test_folded_windows_agree_and_survive_restarts(
    kind: Any, length: int, slide: int, events: list[Event], lag: int, cuts: list[int]
) -> None:
    on_time, _ = split_late(events, lag)
    bolt = timed(kind().with_window(ms(length), ms(slide)).with_key("key"))
    found = run_through(bolt, on_time, lag, cuts).emitted()
    result = {(row[0][0], row[2]): row[4] for row in found}
    assert result == totals(expected(on_time, length, slide))
    assert len(found) == len({(row[0][0], row[2]) for row in found})


@given(EVENTS, st.integers(0, 20), st.randoms(use_true_random=False))
def test_another_order_within_the_lag_changes_nothing(
    events: list[Event], lag: int, random: Any
) -> None:
    in_order = sorted(events, key=lambda event: event[1])
    mixed = sorted(in_order, key=lambda event: event[1] + random.uniform(0, lag))
    assert split_late(mixed, lag)[1] == []
    for bolt in (
        timed(Merging().with_window(ms(10), ms(5)).with_key("key")),
        timed(Merging().with_session_window(ms(4)).with_key("key")),
    ):
        assert run_through(bolt, mixed, lag).emitted() == run_through(bolt, in_order, lag).emitted()


@pytest.mark.slow
@given(LENGTHS, EVENTS, st.integers(0, 20), st.lists(st.integers(0, 40), max_size=3))
def test_sessions_are_runs_without_a_gap(
    gap: int, events: list[Event], lag: int, cuts: list[int]
) -> None:
    on_time, _ = split_late(events, lag)
    wanted = []
    for key in "ab":
        session: list[Event] = []
        for event in [
            *sorted((e for e in on_time if e[0] == key), key=lambda e: e[1]),
            (key, 10_000, 0),
        ]:
            if session and event[1] - session[-1][1] >= gap:
                wanted.append(
                    (
                        key,
                        session[0][1],
                        session[-1][1] + gap,
                        [len(session), sum(e[2] for e in session)],
                    )
                )
                session = []
            session.append(event)
    folded = run_through(
        timed(Merging().with_session_window(ms(gap)).with_key("key")), on_time, lag, cuts
    ).emitted()
    assert sorted((row[0][0], row[1], row[2], row[4]) for row in folded) == sorted(wanted)
    listed = run_through(
        timed(Listing().with_session_window(ms(gap)).with_key("key")), on_time, lag, cuts
    ).emitted()
    result = sorted((row[0][0], row[1], row[2], [len(row[4]), sum(row[4])]) for row in listed)
    assert result == sorted(wanted)


@given(EVENTS, st.integers(0, 15), st.integers(0, 15))
def test_late_is_exactly_what_is_further_behind_the_newest_than_lag_and_lateness(
    events: list[Event], lag: int, lateness: int
) -> None:
    on_time, late = split_late(events, lag, lateness)
    newest, wanted = -1, []
    for event in events:
        if newest - event[1] > lag + lateness:
            wanted.append(event)
        newest = max(newest, event[1])
    assert late == wanted
    assert len(on_time) + len(late) == len(events)


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
@given(EVENTS, st.integers(0, 8), st.integers(1, 10), st.lists(st.integers(0, 40), max_size=2))
def test_with_allowed_lateness_the_last_firing_of_a_window_is_complete(
    kind: str, events: list[Event], lag: int, lateness: int, cuts: list[int]
) -> None:
    bolt = Merging().with_key("key")
    bolt = (
        bolt.with_session_window(ms(5))
        if kind == "session"
        else bolt.with_window(ms(10), ms(5 if kind == "sliding" else 10))
    )
    bolt = timed(bolt, **{LAG_MS: lag, LATENESS_MS: lateness})
    on_time, _ = split_late(events, lag, lateness)
    driver, clock, emitted = Driver(copy.copy(bolt)), SourceClock(lag, lateness), []
    for number, event in enumerate(on_time):
        clock.is_late(event[1])
        assert driver.rows([event]) == []
        driver.advance(clock.mark_ms())
        if number in cuts:
            emitted += driver.emitted()
            driver = Driver(copy.copy(bolt), driver.stored())
    driver.end()
    emitted += driver.emitted()
    assert driver.runner.late == 0
    last = {(row[0][0], row[1], row[2]): row[4] for row in emitted}
    if kind != "session":
        complete = totals(expected(on_time, 10, 5 if kind == "sliding" else 10))
        assert {(key, end): value for (key, _, end), value in last.items()} == complete
    first = {}
    for row in emitted:
        assert row[3] == ((row[0][0], row[2]) in first) or kind == "session"
        first[row[0][0], row[2]] = True
    # nothing is left behind
    assert not [place for place, _ in driver.times.items() if place[0] in ("a", "t", "s", "f")]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=30))
def test_a_watermark_is_the_least_mark_and_never_falls(marks: list[tuple[int, int]]) -> None:
    channels = [(task, "default") for task in range(3)]
    watermarks, heard = Watermarks(channels), dict.fromkeys(range(3), NEVER)
    for task, at_ms in marks:
        before = watermarks.low_ms
        assert watermarks.hear((task, "default"), at_ms) == (task in heard and at_ms > heard[task])
        if task in heard:
            heard[task] = max(heard[task], at_ms)
        assert watermarks.low_ms == min(heard.values()) >= before
    assert not watermarks.is_ended
    for channel in channels:
        watermarks.hear(channel, END)
    assert watermarks.is_ended


def test_a_task_that_hears_from_nobody_never_ends() -> None:
    assert not Watermarks([]).is_ended


@given(EVENTS, st.integers(1, 5), st.integers(1, 5), st.lists(st.integers(0, 40), max_size=3))
def test_windows_by_count_hold_the_last_tuples_at_every_slide(
    events: list[Event], length: int, slide: int, cuts: list[int]
) -> None:
    for kind in (Listing, Adding, Merging):
        bolt = kind().with_window(Count(length), Count(slide)).with_key("key")
        driver, emitted = Driver(copy.copy(bolt)), []
        for number, event in enumerate(events):
            driver.rows([event])
            if number in cuts:
                emitted += driver.emitted()
                driver = Driver(copy.copy(bolt), driver.stored())
        emitted += driver.emitted()
        for key in "ab":
            values = [event[2] for event in events if event[0] == key]
            wanted = [
                values[max(0, end - length) : end] for end in range(slide, len(values) + 1, slide)
            ]
            mine = [row[4] for row in emitted if row[0] == [key]]
            assert mine == (
                wanted if kind is Listing else [[len(each), sum(each)] for each in wanted]
            )


@given(
    EVENTS,
    st.integers(0, 20),
    st.randoms(use_true_random=False),
    st.lists(st.integers(0, 40), max_size=3),
)
def test_timed_bolts_see_rows_and_timers_in_the_order_of_time(
    events: list[Event], lag: int, random: Any, cuts: list[int]
) -> None:
    events = [
        (key, ts, value + 1) for key, ts, value in {event[1]: event for event in events}.values()
    ]
    in_order = sorted(events, key=lambda event: event[1])
    mixed = sorted(in_order, key=lambda event: event[1] + random.uniform(0, lag))
    wanted, timers = [], dict[str, int]()
    for key, ts, value in [*in_order, ("end", 10_000, 0)]:
        for name, at in sorted(timers.items(), key=lambda item: (item[1], item[0])):
            if at <= ts:
                wanted.append(["timer", at, name])
                del timers[name]
        wanted.append(["row", ts, key, value])
        timers[key] = ts + value
    assert run_through(timed(Ordered()), mixed, lag, cuts).emitted() == wanted[:-1]


@pytest.mark.slow
@settings(max_examples=30)
@given(EVENTS)
def test_firing_a_few_at_a_time_fires_the_same_and_survives_a_restart_in_between(
    events: list[Event],
) -> None:
    for bolt in (
        timed(Listing().with_window(ms(10), ms(5)).with_key("key")),
        timed(Merging().with_window(ms(10)).with_key("key")),
        timed(Merging().with_session_window(ms(5)).with_key("key"), **{LATENESS_MS: 5}),
    ):
        whole = Driver(copy.copy(bolt))
        whole.rows(events)
        whole.end()
        driver, emitted = Driver(copy.copy(bolt)), []
        driver.rows(events)
        for _ in range(200):
            driver.advance(END, most=1)
            emitted += driver.emitted()
            driver = Driver(copy.copy(bolt), driver.stored())
        assert emitted == whole.emitted()


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 4)), max_size=30),
    st.lists(st.integers(0, 29), max_size=3),
)
def test_of_the_same_time_the_lower_sender_comes_first_and_then_the_order_of_arrival(
    rows: list[tuple[int, int]], cuts: list[int]
) -> None:
    class Plain(Ordered):
        def execute(self, tup: Any, collector: Any) -> None:
            collector.emit(([tup["ts"], tup.task, tup["value"]],))

    driver = Driver(timed(Plain()))
    for number, (task, ts) in enumerate(rows):
        driver.rows([("a", ts, number)], task)
        if number in cuts:
            driver = Driver(timed(Plain()), driver.stored())
    driver.end()
    assert driver.emitted() == sorted([ts, task, number] for number, (task, ts) in enumerate(rows))


def test_a_row_as_old_as_the_watermark_waits_for_others_of_its_time() -> None:
    driver = Driver(timed(Ordered()))
    driver.rows([("b", 5, 9)], task=2)
    driver.advance(5)
    assert driver.emitted() == []
    driver.rows([("a", 5, 9)], task=1)
    driver.advance(6)
    assert [row[2] for row in driver.emitted()] == ["a", "b"]


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_timer_has_the_first_of_equal_names_also_after_a_restart(
    is_cancelled: bool, is_restarted: bool
) -> None:
    class Again(Ordered):
        def execute(self, tup: Any, collector: Any) -> None:
            if is_cancelled:
                self.timers.cancel_event_timer(tup["key"])
            super().execute(tup, collector)

    driver = Driver(timed(Again()))
    same = Decimal.from_float(0.1)
    driver.rows([(0.1, 1, 9), (same, 2, 8)])
    driver.advance(5)
    if is_restarted:
        driver = Driver(timed(Again()), driver.stored())
    driver.end()
    names = [row[2] for row in driver.emitted() if row[0] == "timer"]
    assert list(map(repr, names)) == [repr(same if is_cancelled else 0.1)]


def test_a_timer_that_sets_itself_again_comes_to_an_end_with_the_input() -> None:
    class Heart(Ordered):
        def on_timer(self, timer: Any, collector: Any) -> None:
            super().on_timer(timer, collector)
            self.timers.set_event_timer(timer.name, timer.at_ms + 10)

    driver = Driver(timed(Heart()))
    driver.rows([("a", 5, 10)])
    driver.advance(40)
    assert [row[1] for row in driver.emitted()] == [5, 15, 25, 35]
    driver.end()
    assert [row[1] for row in driver.emitted()] == [5, 15, 25, 35, 45]
    assert driver.runner.next_due_ms() is None


@pytest.mark.parametrize("shape", [(10, 10), (10, 5), (12, 8), (4, 6)])
@pytest.mark.parametrize("bolt", [Listing(), Adding(), Merging()], ids=lambda b: type(b).__name__)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["", "a", "b", "c"])), max_size=30),
    st.sampled_from([0, 0, 7]),
    st.integers(1, 3),
)
def test_a_row_that_was_left_behind_is_late_or_in_windows_that_fire_as_a_whole(
    shape: tuple[int, int], bolt: Any, steps: list[tuple[int, str]], lateness: int, most: int
) -> None:
    length, slide = shape
    bolt = copy.copy(bolt).with_window(ms(length), ms(slide)).with_key("key")
    driver = Driver(timed(bolt, **{LATENESS_MS: lateness}))
    for number, (at, key) in enumerate(steps):
        if key:
            driver.rows([(key, at, 1 << number)])
        else:  # firing may stop in the middle of the windows of one end
            driver.runner.advance(max(at, driver.runner.low_ms), 0, most)
    driver.end()
    fired = dict[tuple[str, int], int]()
    for key, _, end, is_update, value, *_ in driver.emitted():
        place = key[0], end
        rows = value[1] if type(bolt) is not Listing else sum(value)
        assert is_update == (place in fired) and (lateness or not is_update)
        assert fired.get(place, 0) & rows == fired.get(place, 0) != rows
        fired[place] = rows
    outside = sum(
        not any(e - length <= at for e in Layout(length, slide).ends(at))
        for at, key in steps
        if key
    )
    in_some = sum(
        any(rows >> number & 1 for rows in fired.values()) for number in range(len(steps))
    )
    assert outside + in_some + driver.runner.late >= sum(bool(key) for _, key in steps)
    assert in_some + driver.runner.late <= sum(bool(key) for _, key in steps)


def test_windows_by_the_clock_lose_no_row_when_a_restart_sets_the_clock_back() -> None:
    bolt = Listing().with_tumbling_window(ms(10))
    driver = Driver(bolt)
    driver.now_ms = 105
    driver.rows([("a", 0, 1)])
    driver.now_ms = 110
    driver.advance(NEVER)
    driver = Driver(bolt, driver.stored())
    for driver.now_ms, value in ((104, 2), (109, 3), (112, 4)):
        driver.rows([("a", 0, value)])
        driver.advance(NEVER)
    driver.now_ms = 120
    driver.advance(NEVER)
    assert [row[4] for row in driver.emitted()] == [[2, 3, 4]]
    assert driver.runner.late == 0


def test_a_tuple_of_a_cell_whose_first_tuple_was_undone_is_in_its_windows() -> None:
    class Raising(Listing):
        def execute(self, window: Any, collector: Any) -> None:
            if [tup["value"] for tup in window.get()] == [1] or window.key == ("b",):
                raise RuntimeError("no")
            super().execute(window, collector)

    bolt = Raising().with_window(ms(10), ms(5)).with_key("key")
    driver = Driver(timed(bolt, **{LATENESS_MS: 20}), retries=5)
    driver.advance(16)
    assert len(driver.rows([("a", 12, 1)])) == 1  # its window (5, 15) fires at once, and raises
    driver.rows([("b", 19, 0)])
    driver.advance(20)  # the window (10, 20) of "b" waits for its next try
    driver.rows([("a", 13, 2)])
    driver.now_ms = 10_000
    driver.advance(20)
    assert [(row[2], row[4]) for row in driver.emitted()] == [(15, [2]), (20, [2])]


def test_timers_that_are_set_again_leave_nothing_in_memory() -> None:
    driver = Driver(timed(Ordered()))
    for number in range(5_000):
        driver.rows([(number % 10, number, 10_000)])
        driver.advance(number)
    queue = driver.runner._timers._queue["event"]
    assert sum(len(each.keys) for each in queue._queue_by_time.values()) < 3000
    assert driver.runner._timers.next_due("event", END) is not None
