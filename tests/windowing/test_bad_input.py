"""Checks that mistakes in windows and their tuples are named, and harm nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sparkstorm.api import Count, Duration, TopologyBuilder, Tuple, WindowedBolt
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.windowing.watermarks import LAST_MS
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster
from tests.topologies import running
from tests.windowing.driving import FIELDS, Adding, Driver, Listing, Ordered, timed

NO_TIME = [None, -1, "1000", 1000.0, True, LAST_MS + 1, 2**63 - 1, [1], b"1"]


def built(bolt: Any, conf: Any = None, spout: FeederSpout | None = None) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout or FeederSpout(FIELDS))
    builder.set_bolt("windows", bolt, conf=conf).global_grouping("spout")
    builder.set_bolt("capture", CaptureBolt()).global_grouping("windows")
    return builder.build()


@pytest.mark.parametrize(
    ("bolt", "complaint"),
    [
        (
            Listing().with_window(Duration(0)),
            r"component 'windows': .*length.duration.ms must be a whole number of at least 1, not 0",
        ),
        (Listing().with_window(Duration(-5)), "at least 1, not -5"),
        (Listing().with_window(Count(0)), "length.count must be a whole number of at least 1"),
        (
            Listing().with_window(Duration(10), Duration(0)),
            "sliding.interval.duration.ms must be a whole number",
        ),
        (Listing().with_window(Duration(10), Count(3)), "do not go together"),
        (Listing().with_window(Duration(10**15)), "at least 1"),
        (Listing().with_session_window(Duration(0)), "session.gap.ms must be"),
        (Adding().with_session_window(Duration(5)), "sessions need merge"),
        (
            timed(Listing().with_window(Duration(5))).with_timestamp_field("when"),
            "component 'windows' needs field 'when' in stream 'default' of 'spout', which declares key, ts, value",
        ),
        (Listing().with_window(Duration(5)).with_key("who"), "needs field 'who'"),
        (
            timed(Listing().with_window(Duration(5))).with_lag(Duration(-1)),
            "max.lag.ms must be a whole number of milliseconds",
        ),
        (
            timed(Listing().with_window(Duration(5))).with_allowed_lateness(Duration(-1)),
            "allowed.lateness.ms must be",
        ),
        (
            timed(Listing().with_window(Duration(5))).with_late_tuple_stream("default"),
            "a stream of its own",
        ),
        (
            Listing().with_window(Duration(5)).with_late_tuple_stream("late"),
            "only rows with a time of their own can be late",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused_when_the_topology_is_built(
    bolt: Any, complaint: str
) -> None:
    with pytest.raises(InvalidTopologyError, match=complaint):
        built(bolt)


def test_a_bolt_without_any_window_is_refused_when_it_is_submitted() -> None:
    with (
        LocalCluster() as cluster,
        pytest.raises(InvalidTopologyError, match="component 'windows' has no window"),
    ):
        cluster.submit(built(Listing()))


def test_blocking_bolts_cannot_have_windows() -> None:
    class Blocking(Listing):
        blocking = True

    with pytest.raises(InvalidTopologyError, match="cannot be blocking"):
        built(Blocking().with_window(Duration(5)))


def test_a_length_from_the_configuration_serves_a_bolt_that_has_none_of_its_own() -> None:
    spout, bolt = FeederSpout(FIELDS), Listing()
    with running(
        built(bolt, {"topology.bolts.tuple.timestamp.field.name": "ts"}, spout),
        {"topology.bolts.window.length.duration.ms": 10},
    ) as cluster:
        for ts in (1, 9, 10):
            spout.feed(["a", ts, ts])
        cluster.run_until_idle()
        assert cluster.counts("windows").emitted == 1
    with running(
        built(Listing().with_window(Count(3)), None, spout),
        {"topology.bolts.window.length.duration.ms": 10},
    ) as cluster:
        cluster.run_until_idle()
        assert cluster.counts("windows").emitted == 1  # its own shape keeps out the other


@pytest.mark.parametrize(
    "bolt",
    [
        timed(Listing().with_window(Duration(10))),
        timed(Adding().with_window(Duration(10))),
        timed(Ordered()),
        timed(Listing().with_window(Count(2))),
    ],
)
@pytest.mark.parametrize("at", NO_TIME)
def test_a_tuple_without_a_time_fails_alone_and_says_why(bolt: WindowedBolt, at: Any) -> None:
    driver = Driver(bolt)
    ((failed, failure),) = driver.rows([("a", 1, 1), ("a", at, 2), ("a", 3, 3)])
    assert failed.values == ("a", at, 2)
    assert failure.text.startswith("ValueError: field 'ts' holds")
    assert "whole number of milliseconds" in failure.text
    driver.end()
    assert len(driver.emitted()) == (4 if isinstance(bolt, Ordered) else 1)


@pytest.mark.parametrize("at", NO_TIME)
def test_such_a_tuple_is_parked_and_moves_no_clock(at: Any) -> None:
    spout = FeederSpout(FIELDS)
    with running(
        built(timed(Listing().with_window(Duration(10))), None, spout), {"topology.max.retries": 1}
    ) as cluster:
        for ts in (5, at, 7):
            spout.feed(["a", ts, 1])
        spout.finish()
        cluster.run_until_idle()
        (letter,) = cluster.dead_letters
        assert letter.fields == FIELDS
        assert "field 'ts' holds" in letter.reason
        assert (sorted(spout.acked), spout.failed) == ([0, 2], [1])
        assert cluster.counts("windows").emitted == 1
        assert cluster.counts("windows").late == 0


@pytest.mark.parametrize("key", [[1], {"a": 1}, [[]], {1}, frozenset(), float("nan")])
@pytest.mark.parametrize(
    "bolt",
    [
        timed(Listing().with_window(Duration(10)).with_key("key")),
        timed(Adding().with_window(Duration(10)).with_key("key")),
        Listing().with_window(Count(2)).with_key("key"),
        timed(Listing().with_window(Count(2)).with_key("key")),
        Listing().with_session_window(Duration(10)).with_key("key"),
    ],
)
def test_a_key_that_cannot_be_one_is_named(bolt: WindowedBolt, key: Any) -> None:
    driver = Driver(bolt)
    failures = [f.text for _, f in driver.rows([("a", 1, 1), (key, 1, 2), ("a", 1, 3)])]
    driver.end()
    (text,) = failures or driver.errors
    held = "NaN, which equals no key" if key != key else f"a {type(key).__name__}"
    assert f"component 'spout', stream 'default', key field 'key': holds {held}; keys are" in text


def test_keys_of_any_kind_have_windows_side_by_side() -> None:
    driver = Driver(timed(Listing().with_window(Duration(10)).with_key("key")))
    keys = [None, "a", "", 1, 2.5, b"a", True, -1]
    assert driver.rows([(key, 1, number) for number, key in enumerate(keys)]) == []
    driver.end()
    held = {repr(row[0][0]): row[4] for row in driver.emitted()}
    # 1 == True, as in a dict
    assert held == {
        "None": [0],
        "'a'": [1],
        "''": [2],
        "1": [3, 6],
        "2.5": [4],
        "b'a'": [5],
        "-1": [7],
    }


class Failing(Adding):
    """Bolt that fails windows that end at 10, a given number of times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def execute(self, window: Any, collector: Any) -> None:
        super().execute(window, collector)
        self.state.add("fired")
        if window.end == 10 and self.times:
            self.times -= 1
            raise RuntimeError("no such window")


def test_a_window_that_fails_is_tried_again_and_holds_up_the_ones_behind_it() -> None:
    driver = Driver(timed(Failing(2).with_window(Duration(10))), retries=2)
    driver.rows([("a", 5, 1), ("a", 15, 1)])
    driver.end()
    assert driver.emitted() == []
    assert dict(driver.state.items()) == {}
    assert driver.runner.next_due_ms() == 100
    driver.now_ms = 99
    driver.end()
    assert len(driver.errors) == 1
    driver.now_ms = 100
    driver.end()
    assert (len(driver.errors), driver.runner.next_due_ms(), driver.runner.low_ms) == (2, 300, -1)
    driver.now_ms = 300
    driver.end()
    assert [row[2] for row in driver.emitted()] == [10, 20]
    assert dict(driver.state.items()) == {"fired": 2}


def test_a_window_that_always_fails_is_parked_with_its_bounds() -> None:
    spout = FeederSpout(FIELDS)
    with LocalCluster() as cluster:
        bolt = timed(Failing(99).with_window(Duration(10)).with_key("key"))
        cluster.submit(built(bolt, None, spout), {"topology.max.retries": 2})
        for key, ts in (("a", 5), ("b", 6), ("a", 15)):
            spout.feed([key, ts, 1])
        spout.finish()
        cluster.run_until_idle()
        assert sorted(
            (letter.stream, letter.values, letter.attempts) for letter in cluster.dead_letters
        ) == [
            ("__window", (["a"], 0, 10), 3),
            ("__window", (["b"], 0, 10), 3),
        ]
        assert cluster.counts("windows").emitted == 1
        assert cluster.state("windows") == {"fired": 1}


class Refusing(Adding):
    """Raises on every window of the key "a"."""

    def execute(self, window: Any, collector: Any) -> None:
        if window.key == ("a",):
            raise RuntimeError("no such window")
        super().execute(window, collector)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_count_window_that_always_fails_is_parked_with_its_bounds(retries: int) -> None:
    spout = FeederSpout(FIELDS)
    with LocalCluster() as cluster:
        bolt = Refusing().with_tumbling_window(Count(2)).with_key("key")
        cluster.submit(built(bolt, None, spout), {"topology.max.retries": retries})
        for n in range(5):
            for key in "ab":
                spout.feed([key, n, 1])
                cluster.run_until_idle()
        letters = [
            (letter.stream, letter.values, letter.attempts) for letter in cluster.dead_letters
        ]
        assert letters == [("__window", (["a"], end - 2, end), retries + 1) for end in (2, 4)]
        result = [letter.window["value"] for letter in cluster.dead_letters if letter.window]
        assert result == [[2, 2], [2, 2]]
        assert cluster.counts("windows").emitted == 2, "another key's windows fire"


@pytest.mark.parametrize(
    ("retries", "parked"), [(0, ["__window", "default"]), (1, ["__window", "__window"])]
)
def test_tuples_read_together_with_one_whose_count_window_fails(
    retries: int, parked: list[str]
) -> None:
    spout = FeederSpout(FIELDS)
    with LocalCluster() as cluster:
        bolt = Refusing().with_tumbling_window(Count(2)).with_key("key")
        cluster.submit(built(bolt, None, spout), {"topology.max.retries": retries})
        for n in range(4):
            spout.feed(["a", n, 1])
        cluster.run_until_idle()
        assert [letter.stream for letter in cluster.dead_letters] == parked


@pytest.mark.parametrize(("bolt", "parked"), [(Listing(), "__window"), (Adding(), "default")])
def test_a_tuple_that_kills_its_worker_is_parked_without_another_call_of_a_fold(
    bolt: Any, parked: str
) -> None:
    driver = Driver(bolt.with_tumbling_window(Count(2)).with_key("key"))
    driver.rows([("a", 1, 1)])
    killer = Tuple(("a", 2, 1), 0, driver.source(1))
    assert driver.runner.parked_as(killer, is_killer=True).stream == parked
    assert len(driver.rows([("a", 3, 1)])) == 0
    assert len(driver.emitted()) == (1 if parked == "default" else 0)


def test_under_at_least_once_a_count_window_that_always_fails_fails_every_later_tuple() -> None:
    spout = FeederSpout(FIELDS)
    with LocalCluster() as cluster:
        bolt = Refusing().with_tumbling_window(Count(2)).with_key("key")
        cluster.submit(built(bolt, None, spout), {"topology.delivery.guarantee": "at-least-once"})
        for n in range(4):
            spout.feed(["a", n, 1])
        cluster.run_until_idle()
        assert (cluster.counts("windows").failed, cluster.dead_letters) == (3, [])


def test_a_tuple_whose_fold_fails_is_parked_and_in_no_window() -> None:
    class Bad(Adding):
        def fold(self, accumulator: Any, tup: Any) -> Any:
            if tup["ts"] == 1:
                raise RuntimeError("no such amount")
            return super().fold(accumulator, tup)

    spout = FeederSpout(FIELDS)
    with running(
        built(Bad().with_tumbling_window(Count(2)).with_key("key"), None, spout),
        {"topology.max.retries": 1},
    ) as cluster:
        for n in range(4):
            spout.feed(["a", n, 1])
        cluster.run_until_idle()
        result = [(letter.stream, letter.values) for letter in cluster.dead_letters]
        assert result == [("default", ("a", 1, 1))]
        assert cluster.counts("windows").emitted == 1


def test_windows_of_another_shape_are_not_put_into_what_is_stored() -> None:
    driver = Driver(timed(Adding().with_window(Duration(10))))
    driver.rows([("a", 5, 1)])
    Driver(timed(Adding().with_window(Duration(10))), driver.stored())
    for bolt in (
        Adding().with_window(Duration(5)),
        Listing().with_window(Duration(10)),
        Adding().with_window(Count(10)),
    ):
        sentence = "the store holds folded windows by time of 10 every 10, the code now has"
        with pytest.raises(InvalidTopologyError, match=sentence):
            Driver(timed(bolt), driver.stored())


@pytest.mark.parametrize("at", [-1, 1.5, None, "1", True, 2**63])
def test_a_timer_needs_a_time(at: Any) -> None:
    class Setting(Ordered):
        def execute(self, tup: Any, collector: Any) -> None:
            self.timers.set_event_timer("x", at)

    driver = Driver(timed(Setting()))
    driver.rows([("a", 1, 1)])
    driver.end()
    assert "timer 'x': the time must be a whole number" in driver.errors[0]


def test_a_timer_of_the_last_time_fires_at_the_end_of_all_input() -> None:
    driver = Driver(timed(Ordered()))
    driver.rows([("a", 1, 2**63 - 2)])
    driver.end()
    assert driver.emitted()[-1] == ["timer", 2**63 - 1, "a"]


@pytest.mark.parametrize("name", [{1}, [[1]], ("a", {}), float("nan"), frozenset()])
def test_a_timer_needs_a_name(name: Any) -> None:
    class Setting(Ordered):
        def execute(self, tup: Any, collector: Any) -> None:
            self.timers.set_event_timer(name, 1)

    class Cancelling(Ordered):
        def execute(self, tup: Any, collector: Any) -> None:
            self.timers.cancel_processing_timer(name)

    for bolt in (Setting(), Cancelling()) if name == [[1]] else (Setting(),):
        driver = Driver(timed(bolt))
        driver.rows([("a", 1, 1)])
        driver.end()
        assert re.search(
            r"CodecError: timer .+: its name holds (a |NaN).*; names are text, numbers",
            driver.errors[0],
        )


def test_a_window_in_no_window_is_no_harm() -> None:
    driver = Driver(timed(Listing().with_window(Duration(2), Duration(10))))
    assert driver.rows([("a", 5, 1), ("a", 8, 2), ("a", 9, 3), ("a", 10, 4)]) == []
    driver.end()
    assert [(row[1], row[2], row[4]) for row in driver.emitted()] == [(8, 10, [2, 3])]
