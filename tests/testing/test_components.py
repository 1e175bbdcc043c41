"""The components made for tests, and complete_topology."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

import sparkstorm.testing
from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    StatefulBolt,
    Stream,
    TopologyBuilder,
    Tuple,
    Window,
    WindowedBolt,
)
from sparkstorm.common.errors import CodecError, InvalidTopologyError, WorkerFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.testing import (
    AckFailTracker,
    CaptureBolt,
    FeederSpout,
    FlakyBolt,
    LocalCluster,
    Nothing,
    Shared,
    SlowBolt,
    complete_topology,
    spend,
)


class Split(BasicBolt):
    outputs = {  # noqa: RUF012
        "default": ("word",),
        "long": ("word", "length"),
        "direct": Stream(("word",), direct=True),
    }

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for word in tup[0].split():
            collector.emit((word,))
            if len(word) > 4:
                collector.emit((word, len(word)), stream="long")


class Count(StatefulBolt):
    outputs = ("word", "count")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        count = self.state.get(tup[0], 0) + 1
        self.state.put(tup[0], count)
        collector.emit((tup[0], count))


def word_count(spout: Any = None) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("lines", spout or FeederSpout(["line"]), 3)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), 3).fields_grouping("split", "word")
    return builder.build()


def one_bolt(spout: FeederSpout, bolt: BasicBolt) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    return builder.build()


# -- complete_topology


def test_complete_topology_hands_back_what_everybody_emitted_and_kept() -> None:
    result = complete_topology(word_count(), {"lines": [["the quick fox"], ["the end"]]})
    assert sorted(result["lines"]) == [("the end",), ("the quick fox",)]
    assert sorted(result["split"]) == [("end",), ("fox",), ("quick",), ("the",), ("the",)]
    assert result.values("split", "long") == [("quick", 5)]
    assert sorted(result["count"]) == [("end", 1), ("fox", 1), ("quick", 1), ("the", 1), ("the", 2)]
    assert result.state("count") == {"the": 2, "quick": 1, "fox": 1, "end": 1}
    assert sorted(result.acked["lines"]) == [0, 1]
    assert (result.failed["lines"], result.dead_letters) == ([], [])


@pytest.mark.parametrize("late_stream", ["late", ""])
def test_rows_that_came_late_are_counted_by_bolt(late_stream: str) -> None:
    class Sizes(WindowedBolt):
        outputs = ("size",)

        def execute(self, window: Window, collector: BasicOutputCollector) -> None:
            collector.emit((len(window),))

    sizes = Sizes().with_tumbling_window(Duration.seconds(1)).with_timestamp_field("at_ms")
    if late_stream:
        sizes.with_late_tuple_stream(late_stream)
    builder = TopologyBuilder()
    builder.set_spout("events", FeederSpout(["at_ms"]))
    builder.set_bolt("sizes", sizes, inputs="events")
    topology = builder.build()
    result = complete_topology(topology, {"events": [[5000], [100], [5001], [200], [6000]]})
    assert result.late == {"sizes": 2}
    assert complete_topology(topology, {"events": [[1], [2]]}).late == {}


def test_a_source_may_feed_several_streams() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout({"a": ["x"], "b": ["y"]}))
    builder.set_bolt("end", Nothing()).shuffle_grouping("s", stream="a").shuffle_grouping(
        "s", stream="b"
    )
    result = complete_topology(builder.build(), {"s": {"a": [[1]], "b": [[2], [3]]}})
    assert (result.values("s", "a"), result.values("s", "b")) == ([(1,)], [(2,), (3,)])


def test_spouts_that_are_not_replaced_run_as_they_are() -> None:
    spout = FeederSpout(["line"])
    spout.feed(["as it is"])
    assert complete_topology(word_count(spout)).state("count") == {"as": 1, "it": 1, "is": 1}


def test_failed_sources_are_told_with_their_dead_letters() -> None:
    class Picky(Nothing):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            if tup[0] == 2:
                raise ValueError("not two")

    result = complete_topology(one_bolt(FeederSpout(), Picky()), {"spout": [[1], [2], [3]]})
    assert (sorted(result.acked["spout"]), result.failed["spout"]) == ([0, 2], [1])
    assert [letter.reason.partition(" (")[0] for letter in result.dead_letters] == [
        "ValueError: not two"
    ]


def test_a_source_that_is_no_spout_is_named() -> None:
    with pytest.raises(InvalidTopologyError, match="'split' is no spout; there are lines"):
        complete_topology(word_count(), {"split": [["x"]]})


def test_a_result_that_nobody_emitted_is_named() -> None:
    with pytest.raises(KeyError, match="no component 'cuont', only count, lines, split"):
        complete_topology(word_count(), {"lines": []})["cuont"]


BAD_ROWS = [
    (
        [["a", "b"]],
        InvalidTopologyError,
        r"component 'lines', stream 'default': emitted 2 values for 1 field \(line\)",
    ),
    ([["good"], []], InvalidTopologyError, "emitted 0 values for 1 field"),
    (["text"], InvalidTopologyError, "emit needs a list of values, not 'text'"),
    (
        {"other": [["a"]]},
        InvalidTopologyError,
        "component 'lines' emitted to undeclared stream 'other'",
    ),
    ([[object()]], CodecError, "field 'line': a value of type object"),
]


@pytest.mark.parametrize(("rows", "kind", "sentence"), BAD_ROWS)
def test_a_given_row_that_its_stream_refuses_is_raised(
    rows: Any, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        complete_topology(word_count(), {"lines": rows})


@pytest.mark.parametrize(("rows", "kind", "sentence"), BAD_ROWS)
def test_a_fed_row_that_its_stream_refuses_is_raised_once(
    rows: Any, kind: type[Exception], sentence: str
) -> None:
    spout = FeederSpout(["line"])
    with LocalCluster() as cluster:
        cluster.submit(word_count(spout))
        for stream, values_list in (rows if isinstance(rows, dict) else {"default": rows}).items():
            for values in values_list:
                spout.feed(values, stream=stream)
        with pytest.raises(kind, match=sentence):
            cluster.run_until_idle()
        spout.feed(["end"])
        cluster.run_until_idle()
        assert cluster.state("count")["end"] == 1


def test_an_error_of_a_spout_of_ones_own_is_raised_by_complete_topology() -> None:
    class Wide(FeederSpout):
        def next_tuple(self) -> None:
            if self._next < 1:
                self._next = 1
                self._collector.emit(("too", "wide"))

    spout = Wide()
    spout.feed(["to have something to do"])
    sentence = r"spout 'spout' \(task \d+\): .*emitted 2 values for 1 field"
    with pytest.raises(WorkerFailedError, match=sentence):
        complete_topology(one_bolt(spout, Nothing()))


def test_a_state_of_no_component_is_named() -> None:
    result = complete_topology(word_count(), {"lines": [["a"]]})
    for read in (result.state, result.state_by_task):
        sentence = "there is no component 'cuont', only count, lines, split"
        with pytest.raises(KeyError, match=sentence):
            read("cuont")


def test_workers_do_not_change_what_comes_out() -> None:
    rows = [[f"w{n % 7} w{n % 3}"] for n in range(40)]
    one, four = (
        complete_topology(word_count(), {"lines": rows}, conf={"topology.workers": n})
        for n in (1, 4)
    )
    assert one.state("count") == four.state("count")
    assert sorted(one["count"]) == sorted(four["count"])


# -- feeder, tracker, capture


def test_a_feeder_numbers_messages_unless_told_their_ids() -> None:
    spout = FeederSpout()
    assert [spout.feed([1]), spout.feed([2], message_id="two"), spout.feed([3])] == [0, "two", 2]


def test_several_feeder_tasks_share_one_feed() -> None:
    spout, capture, builder = FeederSpout(), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout, 3)
    builder.set_bolt("capture", capture).global_grouping("spout")
    with LocalCluster() as cluster:
        cluster.submit(builder.build(), {"topology.workers": 2})
        for n in range(10):
            spout.feed([n])
        cluster.run_until_idle()
        assert sorted(map(len, capture.values_by_task().values())) == [3, 3, 4]
        assert sorted(capture.values) == [(n,) for n in range(10)]


def test_a_tracker_may_serve_several_feeders() -> None:
    tracker, builder = AckFailTracker(), TopologyBuilder()
    feeders = [FeederSpout(tracker=tracker) for _ in range(2)]
    for n, feeder in enumerate(feeders):
        builder.set_spout(f"s{n}", feeder)
    builder.set_bolt("end", Nothing()).shuffle_grouping("s0").shuffle_grouping("s1")
    with LocalCluster() as cluster:
        cluster.submit(builder.build())
        feeders[0].feed([1], message_id="a")
        feeders[1].feed([1], message_id="b")
        cluster.run_until_idle()
    assert tracker.is_acked("a") and tracker.is_acked("b")
    assert not tracker.is_failed("a")
    assert tracker.settled_once


def test_a_tracker_sees_what_is_told_twice() -> None:
    tracker = AckFailTracker()
    tracker.acked += [1, 2]
    assert tracker.settled_once
    tracker.failed += [2]
    assert not tracker.settled_once


def test_a_capture_knows_where_tuples_came_from_and_forgets_on_demand() -> None:
    spout, capture = FeederSpout(["a", "b"]), CaptureBolt()
    with LocalCluster() as cluster:
        cluster.submit(one_bolt(spout, capture))
        spout.feed([1, 2])
        cluster.run_until_idle()
        assert capture.tuples[0].as_dict() == {"a": 1, "b": 2}
        assert capture.values_of("spout") == [(1, 2)]
        assert capture.values_of("spout", "other") == []
        capture.clear()
        assert capture.values == []


# -- flaky, slow


def test_a_flaky_bolt_fails_as_often_as_it_was_told() -> None:
    spout, flaky = FeederSpout(), FlakyBolt(failures=2, when=lambda tup: tup[0] != "never")
    with LocalCluster() as cluster:
        cluster.submit(one_bolt(spout, flaky))
        spout.feed(["x"])
        spout.feed(["never"])
        cluster.run_until_idle()
        assert flaky.tries.value == {"('x',)": 3}
        assert sorted(spout.acked) == [0, 1]


def test_a_flaky_bolt_undoes_what_a_stateful_one_has_put() -> None:
    spout = FeederSpout(["word"])
    with LocalCluster() as cluster:
        cluster.submit(one_bolt(spout, FlakyBolt(Count(), failures=2)))
        for word in ("a", "b", "a"):
            spout.feed([word])
        cluster.run_until_idle()
        assert cluster.state("bolt") == {"a": 2, "b": 1}


def test_a_slow_bolt_takes_simulated_time_of_its_own_worker_only() -> None:
    spout, builder, capture = FeederSpout(), TopologyBuilder(), CaptureBolt()
    builder.set_spout("spout", spout)
    builder.set_bolt("slow", SlowBolt(10_000)).shuffle_grouping("spout")
    builder.set_bolt("zz-fast", capture).shuffle_grouping("spout")
    with LocalCluster(supervisors=4, slots=1) as cluster:
        cluster.submit(builder.build(), {"topology.workers": 4, "topology.acker.executors": 1})
        for n in range(5):
            spout.feed([n])
        cluster.advance(seconds=1)
        assert len(capture.values) == 5
        assert not spout.acked
        cluster.advance(seconds=50)
        assert sorted(spout.acked) == [0, 1, 2, 3, 4]


def test_spend_belongs_into_a_simulation() -> None:
    with pytest.raises(RuntimeError, match="can only be called by a component"):
        spend(1)


# -- memory shared with the test


def test_what_is_shared_stays_one_object_through_packing() -> None:
    box: Shared[list[int]] = Shared([])
    assert pickle.loads(pickle.dumps(box)) is box


def test_what_is_shared_is_not_found_after_the_test_let_go_of_it_or_elsewhere() -> None:
    data = pickle.dumps(Shared([]))
    code = f"import pickle; pickle.loads({data!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False
    )
    assert "lives in the test's process alone" in done.stderr
    with pytest.raises(Exception, match="lives in the test's process alone"):
        pickle.loads(data)


# -- names of `sparkstorm.testing` -----------------------------------------------------------------


def test_every_name_is_there() -> None:
    assert all(
        getattr(sparkstorm.testing, name).__name__ == name for name in sparkstorm.testing.__all__
    )
    assert {*sparkstorm.testing.__all__} <= {*dir(sparkstorm.testing)}
    with pytest.raises(AttributeError, match="no attribute 'cluster'"):
        _ = sparkstorm.testing.cluster


def test_a_topology_of_the_package_brings_no_cluster_into_its_worker() -> None:
    said = "import sys, tests.chaos.topologies; print('sparkstorm.control_plane.nimbus.nimbus' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", said], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )
