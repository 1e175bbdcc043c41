"""Windows by local day, week and month: their bounds against a walk hour by hour, folds and windows
live and replayed, and what they refuse.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.api import (
    BasicOutputCollector,
    Duration,
    Effects,
    FoldingBolt,
    InvalidTopologyError,
    Topology,
    TopologyBuilder,
    Tuple,
    Window,
    WindowedBolt,
    fold,
    tumbling,
    windowed,
)
from sparkstorm.replay import replay_locally
from sparkstorm.streams import (
    CalendarBolt,
    CalendarShape,
    local_day,
    local_month,
    local_week,
    stream,
)
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster, complete_topology
from tests.tiers import examples

HOUR_MS = 3_600_000
FIELDS = {"user": "string", "n": "bigint", "at_ms": "bigint"}
# summer time, half hours, a day that was left out, midnights that are left out or come twice
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "America/Havana",
    "Asia/Beirut",
]
SHAPES = {"day": local_day, "week": local_week, "month": local_month}


def ms(text: str, zone: str = "UTC") -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
    return round(moment.timestamp() * 1000)


def period(at_ms: int, unit: str, zone: str, offset_ms: int) -> date:
    """Return the first date of a period by what the clocks show."""
    local = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone)).replace(tzinfo=None)
    day = (local - timedelta(milliseconds=offset_ms)).date()
    if unit == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if unit == "month" else day


@pytest.mark.sampled
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", SHAPES)
def test_periods_are_those_that_the_clocks_show(unit: str, zone: str) -> None:
    """Hour by hour over two years with changes of clocks, and around midnight by minutes."""
    shape = SHAPES[unit](zone)
    by_period: dict[date, set[tuple[int, int]]] = defaultdict(set)
    for year in (2011, 2017):
        for at_ms in range(ms(f"{year}-09-01"), ms(f"{year + 1}-04-10"), HOUR_MS // 2):
            start, end = shape.span(at_ms)
            assert start <= at_ms < end
            by_period[period(start, unit, zone, 0)].add((start, end))
    spans = [span for found in by_period.values() for span in found]
    # one span a period, and they follow each other
    assert len(spans) == len(by_period)
    ordered = sorted(spans)
    gaps = [b for (_, a), (b, _) in pairwise(ordered) if a != b]
    assert len(gaps) <= 1  # between the two years


@pytest.mark.parametrize("zone", ZONES)
def test_days_with_an_offset_follow_each_other(zone: str) -> None:
    """Half hour by half hour around changes of clocks, with days that begin at any hour."""
    for hours in range(-48, 49, 3):
        shape = local_day(zone, Duration.hours(hours))
        for first in ("2011-10-27", "2011-12-28", "2017-02-17", "2017-03-10", "2017-10-28"):
            ended = None
            for at_ms in range(ms(first), ms(first) + 5 * 24 * HOUR_MS, HOUR_MS // 2):
                start, end = shape.span(at_ms)
                assert start <= at_ms < end
                assert ended in (None, start, end)
                # a whole day was left out in Apia
                assert 23 <= (end - start) / HOUR_MS <= 25 or start == end
                ended = end


def test_days_of_a_change_have_23_and_25_hours() -> None:
    hours = [
        (end - start) // HOUR_MS
        for start, end in (
            local_day("Europe/Berlin").span(ms(day, "Europe/Berlin"))
            for day in ("2026-03-29T12:00", "2026-10-25T12:00", "2026-10-26T00:00")
        )
    ]
    assert hours == [23, 25, 24]


@pytest.mark.parametrize(
    ("shape", "at", "start", "end"),
    [
        (local_day("Europe/Berlin", Duration.hours(6)), "2026-03-29T05:59", "2026-03-28T06:00", "2026-03-29T06:00"),
        (local_day("Europe/Berlin", Duration.hours(6)), "2026-03-29T06:00", "2026-03-29T06:00", "2026-03-30T06:00"),
        (local_week("Europe/Berlin"), "2026-03-29T23:59", "2026-03-23T00:00", "2026-03-30T00:00"),
        (local_week("Europe/Berlin", Duration.hours(-24)), "2026-03-29T00:00", "2026-03-29T00:00", "2026-04-05T00:00"),
        (local_month("Europe/Berlin"), "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        (local_month("Europe/Berlin", Duration.hours(12)), "2026-03-01T11:59", "2026-02-01T12:00", "2026-03-01T12:00"),
    ],
)  # fmt: skip
def test_offsets_move_the_beginning_by_the_wall_clock(
    shape: CalendarShape, at: str, start: str, end: str
) -> None:
    zone = "Europe/Berlin"
    assert shape.span(ms(at, zone)) == (ms(start, zone), ms(end, zone))


class Sums(FoldingBolt):
    outputs = ("user", "start", "end", "sum")

    def initial(self) -> list[int]:
        return [0]

    def fold(self, accumulator: list[int], tup: Tuple) -> list[int]:
        accumulator[0] = accumulator[0] * 3 + tup["n"]  # as the order is
        return accumulator

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((*window.key, window.start, window.end, window.value[0]))


class Members(WindowedBolt):
    outputs = ("user", "start", "end", "members")

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        members = [[tup["n"], tup["at_ms"], tup.component] for tup in window]
        assert members == [[t["n"], t["at_ms"], t.component] for t in window.get_new()]
        collector.emit((*window.key, window.start, window.end, members))


def topology(bolt: WindowedBolt, shape: CalendarShape, tasks: int = 2) -> Topology:
    daily = CalendarBolt(bolt.with_key("user").with_lag(Duration.hours(100_000)), shape)
    builder = TopologyBuilder()
    builder.set_spout("rows", FeederSpout(FIELDS))
    builder.set_bolt("daily", daily.with_timestamp_field("at_ms"), tasks, inputs="rows")
    return builder.build()


def by_hand(rows: Sequence[Sequence[Any]], shape: CalendarShape, folds: bool) -> Counter[Any]:
    windows: dict[tuple[str, int, int], list[list[Any]]] = defaultdict(list)
    for user, n, at_ms in sorted(rows, key=lambda row: row[2]):
        windows[(user, *shape.span(at_ms))].append([n, at_ms, "rows"])
    found: Counter[Any] = Counter()
    for place, members in windows.items():
        total = 0
        for n, _, _ in members:
            total = total * 3 + n
        found[(*place, total if folds else repr(members))] += 1
    return found


AROUND = ms("2026-03-20")
ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.integers(0, 9), st.integers(AROUND, AROUND + 20 * 24 * HOUR_MS)
    ),
    max_size=16,
)


@given(ROWS, st.sampled_from(sorted(SHAPES)), st.sampled_from(ZONES), st.booleans())
@settings(max_examples=examples(40), derandomize=True, deadline=None)
def test_windows_equal_those_by_hand_live_and_replayed(
    rows: Any, unit: str, zone: str, folds: bool
) -> None:
    shape = SHAPES[unit](zone)
    feed = {"rows": [list(row) for row in rows]}
    expected = by_hand(rows, shape, folds)
    made = topology(Sums() if folds else Members(), shape)
    replayed = replay_locally(made, feed, event_time="at_ms", partitions=3)
    assert replayed.warnings == ()
    for done in (complete_topology(made, feed), replayed):
        emitted = [(*row[:3], row[3] if folds else repr(row[3])) for row in done["daily"]]
        assert Counter(emitted) == expected
    assert complete_topology(made, feed).state("daily") == {}


class Mails(WindowedBolt):
    """Windows whose execution has an effect outside, and uses chance."""

    outputs = ("user", "drawn")
    effects: Effects | None = None

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((window.key[0], random.random()))


class RedirectedMails(Mails):
    effects = Effects.REDIRECT


def test_a_replay_warns_of_chance_in_the_bolt_within() -> None:
    made = topology(Mails(), local_day("UTC"))
    replayed = replay_locally(made, {"rows": [["a", 1, AROUND]]}, event_time="at_ms")
    assert [warning.cause for warning in replayed.warnings] == ["chance"]


def test_a_replay_heeds_the_effects_of_the_bolt_within() -> None:
    made = topology(RedirectedMails(), local_day("UTC"))
    replayed = replay_locally(made, {"rows": [["a", 1, AROUND]]}, event_time="at_ms")
    assert sorted(replayed.outputs) == ["daily!input", "rows"]


@fold(window=local_day("Europe/Berlin"), key="user", time="at_ms", initial=0)
def total(accumulator: int, tup: Tuple) -> Any:
    return accumulator + tup["n"]


@windowed("user", "count", window=local_month("Europe/Berlin"), key="user", time="at_ms")
def counted(window: Window) -> Iterator[Any]:
    yield window.key[0], len(window)


def add(accumulator: int, tup: Tuple) -> Any:
    return accumulator + tup["n"]


def test_functions_and_chains_take_them_as_windows() -> None:
    rows = stream(FeederSpout(FIELDS), name="rows")
    weekly = rows.key_by("user").window(
        local_week("Europe/Berlin"), time="at_ms", late_stream="late"
    )
    ends = [rows.through(total, name="day"), rows.through(counted, name="month")]
    feed = [
        ["a", 1, ms("2026-03-29T00:30", "Europe/Berlin")],
        ["a", 2, ms("2026-03-29T23:30", "Europe/Berlin")],
        ["a", 4, ms("2026-03-30T00:00", "Europe/Berlin")],
    ]
    made = weekly.fold(add, "user", "sum", initial=0, name="week").build(*ends)
    done = complete_topology(made, {"rows": feed})
    last = ms("2026-03-30", "Europe/Berlin") - 1
    assert sorted(done["day"]) == [("a", 3, last), ("a", 4, last + 24 * HOUR_MS)]
    assert sorted(done["week"]) == [("a", 3), ("a", 4)]
    assert done["month"] == [("a", 3)]


def test_late_rows_and_timers_of_the_bolt_go_their_way() -> None:
    class Alarm(Members):
        outputs = ("user", "start", "end", "members")

        def execute(self, window: Window, collector: BasicOutputCollector) -> None:
            for name in ("alarm", (), ("window", "a")):  # as the bolt's own are named
                self.timers.set_event_timer(name, window.end + HOUR_MS)
            super().execute(window, collector)

        def on_timer(self, timer: Any, collector: BasicOutputCollector) -> None:
            collector.emit((repr(timer.name), timer.at_ms, 0, []))

    daily = CalendarBolt(Alarm().with_key("user"), local_day("UTC")).with_timestamp_field("at_ms")
    builder = TopologyBuilder()
    builder.set_spout("rows", FeederSpout(FIELDS))
    builder.set_bolt("daily", daily.with_late_tuple_stream("late"), inputs="rows")
    day_ms = 24 * HOUR_MS
    rows = [["a", 1, 5], ["a", 2, 3 * day_ms], ["a", 3, day_ms]]
    done = complete_topology(builder.build(), {"rows": rows})
    alarms = [row[0] for row in done["daily"] if row[1] == day_ms + HOUR_MS]
    assert sorted(alarms) == ["'alarm'", "('window', 'a')", "()"] and done.dead_letters == []
    assert [row[2] for row in done.values("daily", "late")] == [day_ms]


class Remembers(Members):
    """Keeps the number of windows beyond them."""

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        self.state.add("windows", 1)
        super().execute(window, collector)


class RemembersTwice(Members):
    state_version = 2

    def migrate_state(self, state: Any, version: int) -> None:
        state["windows"] = [state["windows"], version]


def test_the_state_of_the_bolt_goes_on_in_another_form(tmp_path: Path) -> None:
    for bolt, saved in ((Remembers(), None), (RemembersTwice(), tmp_path / "saved")):
        spout, builder = FeederSpout(FIELDS), TopologyBuilder()
        builder.set_spout("rows", spout)
        daily = CalendarBolt(bolt.with_key("user"), local_day("UTC")).with_timestamp_field("at_ms")
        builder.set_bolt("daily", daily, inputs="rows")
        with LocalCluster() as cluster:
            cluster.submit(builder.build(), from_checkpoint=saved)
            for at_ms in (5, 30 * HOUR_MS, 31 * HOUR_MS):
                spout.feed(["a", 1, at_ms])
            cluster.run_until_idle()
            if saved is None:
                cluster.savepoint(tmp_path / "saved")
            state = cluster.state("daily")
    assert state["windows"] == [1, 1] and ("window", 24 * HOUR_MS, "a") in state


@pytest.mark.parametrize("at_ms", range(0, 60, 12))
def test_no_window_is_lost_or_doubled_when_workers_die(at_ms: int) -> None:
    shape = local_day("Europe/Berlin")
    rows = [["ab"[n % 2], n % 10, AROUND + n * 5 * HOUR_MS] for n in range(60)]
    capture, spout, builder = CaptureBolt(), FeederSpout(FIELDS), TopologyBuilder()
    builder.set_spout("rows", spout)
    daily = CalendarBolt(Sums().with_key("user"), shape).with_timestamp_field("at_ms")
    builder.set_bolt("daily", daily, 2, inputs="rows")
    builder.set_bolt("capture", capture, inputs="daily")
    with LocalCluster(seed=at_ms) as cluster:
        cluster.submit(builder.build(), {"topology.workers": 3})
        for row in rows:
            spout.feed(row)
        cluster.advance(ms=at_ms)
        cluster.kill_worker("daily")
        spout.finish()
        cluster.run_until_idle()
    assert Counter(capture.values) == by_hand(rows, shape, folds=True)


@pytest.mark.parametrize("at_ms", [2**53, 253_402_300_799_999])
def test_a_time_beyond_the_calendar_is_parked(at_ms: int) -> None:
    rows = [["a", 1, 5], ["a", 1, at_ms]]
    made = topology(Sums(), local_month("UTC"))
    done = complete_topology(made, {"rows": rows}, conf={"topology.max.retries": 0})
    assert len(done["daily"]) == 1
    (letter,) = done.dead_letters
    assert f"field 'at_ms' holds {at_ms}, in no month of the years 1 to 9999" in letter.failure.text


def with_expired() -> Any:
    class Expired(Members):
        def execute(self, window: Window, collector: BasicOutputCollector) -> None:
            window.get_expired()

    rows = {"rows": [["a", 1, 5]]}
    done = complete_topology(
        topology(Expired(), local_day("UTC")), rows, conf={"topology.max.retries": 0}
    )
    raise InvalidTopologyError(done.dead_letters[0].failure.text)


def rows_by(key: str) -> Any:
    return stream(FeederSpout(FIELDS), name="rows").key_by(key)


WRONG: dict[str, tuple[Any, str]] = {
    "an unknown zone": (
        lambda: local_day("Europe/Berln"),
        "local_day: 'Europe/Berln' is no zone that this host knows; did you mean 'Europe/Berlin'?",
    ),
    "a number for a zone": (lambda: local_week(2), "local_week: 2 is no zone"),  # type: ignore[arg-type]
    "a number for an offset": (
        lambda: local_month("UTC", 6),  # type: ignore[arg-type]
        "local_month: offset is 6; write a Duration, as Duration.hours(6)",
    ),
    "a bolt that blocks": (
        lambda: topology(type("Blocks", (Sums,), {"blocking": True})(), local_day("UTC")),
        "component 'daily': bolts with windows or timers cannot be blocking",
    ),
    "no windowed bolt": (
        lambda: CalendarBolt(CaptureBolt(), local_day("UTC")),  # type: ignore[arg-type]
        "is no WindowedBolt or FoldingBolt",
    ),
    "other windows": (
        lambda: CalendarBolt(Sums(), tumbling(seconds=1)),  # type: ignore[arg-type]
        "is no calendar: use local_day, local_week or local_month",
    ),
    "windows twice": (
        lambda: CalendarBolt(Sums().with_tumbling_window(Duration(1)), local_day("UTC")),
        "CalendarBolt: Sums has windows already; drop with_window",
    ),
    "an allowed lateness": (
        lambda: topology(Sums().with_timestamp_field("at_ms").with_allowed_lateness(Duration(1)), local_day("UTC")),
        "these windows fire once, so they have no allowed lateness: give a lag instead",
    ),
    "no time": (
        lambda: stream(FeederSpout(FIELDS), name="rows").window(local_day("UTC")).fold(add, initial=0).build(),
        "component 'add': days, weeks and months go by event time: name its field",
    ),
    "an unknown key": (
        lambda: rows_by("usr").window(local_day("UTC"), time="at_ms").fold(add, initial=0).build(),
        "'usr'",
    ),
    "expired tuples": (with_expired, "windows of days, weeks and months keep no tuples of the one before"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_calendar_is_refused_in_a_sentence(case: str) -> None:
    make, sentence = WRONG[case]
    with pytest.raises(InvalidTopologyError) as error:
        make()
    assert sentence in str(error.value)
