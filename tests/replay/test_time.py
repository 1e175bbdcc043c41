"""Virtual time: a bolt's now is the time of what it executes, rows of several sources come in the
order of their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, Bolt, TopologyBuilder
from sparkstorm.common.errors import InvalidTopologyError, ReplayFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import EventTime, LocalResults, replay_locally
from tests.replay.bolts import Source, Split, Timed, TimedByHand

BY_TS = EventTime("ts")


def two_sources(bolt: BasicBolt | Bolt, tick_secs: float | None = None) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("left", Source("value", "ts"))
    builder.set_spout("right", Source("value", "ts"))
    conf = {"topology.tick.tuple.freq.secs": tick_secs} if tick_secs else {}
    builder.set_bolt("timed", bolt, conf=conf).global_grouping("left").global_grouping("right")
    return builder.build()


def run(
    topology: Topology, left: Sequence[Any], right: Sequence[Any], time: EventTime | None = BY_TS
) -> LocalResults:
    return replay_locally(topology, {"left": left, "right": right}, event_time=time)


@pytest.mark.parametrize("bolt", [Timed(), TimedByHand()])
def test_rows_of_two_sources_are_executed_in_the_order_of_their_times(
    bolt: BasicBolt | Bolt,
) -> None:
    results = run(
        two_sources(bolt), [("a", 10), ("c", 30), ("b", 20)], [("x", 15), ("y", 20), ("z", 99)]
    )
    assert [row[:2] for row in results["timed"]] == [
        ("a", 10),
        ("x", 15),
        ("b", 20),
        ("y", 20),
        ("c", 30),
        ("z", 99),
    ]


def test_without_order_a_late_row_keeps_its_place_and_time_stands_still() -> None:
    results = run(
        two_sources(Timed()),
        [("a", 10), ("c", 30), ("b", 20)],
        [("x", 15)],
        EventTime("ts", in_order=False),
    )
    assert [row[:2] for row in results["timed"]] == [("a", 10), ("x", 15), ("c", 30), ("b", 30)]


def test_without_an_event_time_sources_come_one_after_the_other_and_no_time_passes() -> None:
    results = run(two_sources(Timed(), tick_secs=1), [("a", 10), ("b", 5000)], [("x", 15)], None)
    assert [row[:2] for row in results["timed"]] == [("a", 0), ("b", 0), ("x", 0)]
    assert [w.cause for w in results.warnings] == ["ticks", "wall clock"]
    assert "no event time" in str(results.warnings[0])


@pytest.mark.parametrize("bolt", [Timed(), TimedByHand()])
def test_ticks_fall_on_whole_multiples_of_their_period_between_the_rows(
    bolt: BasicBolt | Bolt,
) -> None:
    results = run(two_sources(bolt, tick_secs=1), [("a", 1500), ("b", 2000)], [("x", 4100)])
    assert [row[:2] for row in results["timed"]] == [
        ("a", 1500),
        ("tick", 2000),
        ("b", 2000),
        ("tick", 3000),
        ("tick", 4000),
        ("x", 4100),
    ]


def test_emitted_rows_inherit_the_time_of_their_input_over_hops() -> None:
    builder = TopologyBuilder()
    builder.set_spout("lines", Source("line", "ts"))
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("timed", Timed(), 2).fields_grouping("split", "word")
    rows = [("a b", 7), ("c a", 3), ("b", 5)]
    results = replay_locally(builder.build(), {"lines": rows}, event_time=BY_TS, partitions=2)
    assert sorted(row[:2] for row in results["timed"]) == [
        ("a", 3),
        ("a", 7),
        ("b", 5),
        ("b", 7),
        ("c", 3),
    ]


def test_many_sources_of_many_rows_are_merged_exactly() -> None:
    builder = TopologyBuilder()
    builder.set_spout("lines", Source("value", "ts"))
    builder.set_bolt("timed", Timed()).global_grouping("lines")
    rows = [(n, (n * 7919) % 20011) for n in range(30_000)]
    results = replay_locally(builder.build(), {"lines": rows}, event_time=BY_TS, partitions=5)
    times = [now for _, now, _ in results["timed"]]
    assert times == sorted(ts for _, ts in rows)


def test_an_input_without_a_time_among_timed_ones_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="names no column for input 'right'"):
        run(two_sources(Timed()), [], [], EventTime({"left": "ts"}))


@pytest.mark.parametrize(
    ("time", "ts", "said"),
    [
        ("when", 1, "input 'left' has no column 'when' .* value, ts"),
        ("ts", "noon", r"input 'left', row 0, column 'ts': .* not 'noon' \(str\)"),
        ("ts", float("nan"), "row 0, column 'ts': an event time is whole milliseconds, not nan"),
        ("ts", 1.5, "row 0, column 'ts': an event time is whole milliseconds, not 1.5"),
        ("ts", True, "row 0, column 'ts': an event time is whole milliseconds, not True"),
    ],
)
def test_a_column_that_is_no_event_time_is_refused_by_name(time: str, ts: Any, said: str) -> None:
    with pytest.raises(ReplayFailedError, match=said):
        run(two_sources(Timed()), [("a", ts), ("b", 2)], [], EventTime(time))
