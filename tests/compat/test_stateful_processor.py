"""ProcessorBolt: processors of Spark's transformWithState, compared with Spark's own tester."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as sql_types

from sparkstorm.api import Duration, InvalidTopologyError, Topology, TopologyBuilder
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.compat import ProcessorBolt
from sparkstorm.replay import replay_locally
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster, complete_topology
from tests.tiers import examples

streaming = pytest.importorskip("pyspark.sql.streaming")
pytest.importorskip("pyspark.sql.streaming.stateful_processor")
StatefulProcessor: Any = streaming.StatefulProcessor


class Down(StatefulProcessor):  # type: ignore[misc]
    """Counts a sensor's low temperatures in a row, and lists the last readings by place."""

    def init(self, handle: Any) -> None:
        self.low = handle.getValueState("low", "n int")
        self.readings = handle.getListState("readings", "temperature double")
        self.places = handle.getMapState("places", "place string", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            low = self.low.get()[0] if self.low.exists() else 0
            if row.temperature < 100:
                self.low.update((low + 1,))
            else:
                self.low.clear()
            readings = [*self.readings.get(), (row.temperature,)]
            if len(readings) > 2:
                self.readings.put(readings[-2:])
            else:
                self.readings.appendValue((row.temperature,))
            if row.temperature == 130:
                self.places.removeKey((row.place,))
            else:
                seen = self.places.getValue((row.place,)) or (0,)
                self.places.updateValue((row.place,), (seen[0] + 1,))
            yield Row(
                id=key[0],
                low=low,
                last=[value for (value,) in self.readings.get()],
                places=sorted((place, n) for (place,), (n,) in self.places.iterator()),
            )

    def close(self) -> None:
        pass


def topology(bolt: Any, tasks: int = 1) -> Topology:
    builder = TopologyBuilder()
    fields = {"id": "string", "temperature": "bigint", "place": "string", "ts": "bigint"}
    builder.set_spout("sensors", FeederSpout(fields))
    builder.set_bolt("processor", bolt, tasks, inputs="sensors")
    return builder.build()


ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(70, 130), st.sampled_from("xyz")), max_size=12
)


@given(ROWS)
@settings(max_examples=examples(30), deadline=None)
def test_named_states_give_what_sparks_tester_gives(rows: Any) -> None:
    tester_of = pytest.importorskip("pyspark.sql.streaming.tws_tester").TwsTester
    bolt = ProcessorBolt(Down(), key="id", outputs=["id", "low", "last", "places"])
    tester = tester_of(Down())
    wanted = [
        (id, *tester.test((id,), [Row(id=id, temperature=temperature, place=place)])[0][1:])
        for id, temperature, place in rows
    ]
    given_rows = [[*row, 0] for row in rows]
    live = complete_topology(topology(bolt), {"sensors": given_rows})["processor"]
    assert [(a, b, list(c), [tuple(d) for d in e]) for a, b, c, e in live] == wanted
    replayed = replay_locally(topology(bolt, 2), {"sensors": given_rows})["processor"]
    assert sorted(map(repr, replayed)) == sorted(map(repr, live))


class Silent(StatefulProcessor):  # type: ignore[misc]
    """Tells when a sensor was silent for 10 s; each reading moves the timer."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        (row,) = rows
        for at_ms in list(self.handle.listTimers()):
            self.handle.deleteTimer(at_ms)
        self.handle.registerTimer(row.ts + 10_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, info: Any) -> Iterator[Any]:
        yield Row(id=key[0], at_ms=info.getExpiryTimeInMs())

    def close(self) -> None:
        pass


def test_timers_expire_by_event_time_live_and_replayed() -> None:
    bolt = ProcessorBolt(Silent(), key="id", outputs=["id", "at_ms"], time_mode="EventTime")
    bolt = bolt.with_timestamp_field("ts").with_lag(Duration.seconds(1))
    rows = [["a", 1, "x", 0], ["b", 1, "x", 2_000], ["a", 1, "x", 5_000], ["c", 1, "x", 20_000]]
    wanted = [("a", 15_000), ("b", 12_000), ("c", 30_000)]
    assert sorted(complete_topology(topology(bolt), {"sensors": rows})["processor"]) == wanted
    assert sorted(replay_locally(topology(bolt, 2), {"sensors": rows})["processor"]) == wanted


class Remembers(StatefulProcessor):  # type: ignore[misc]
    """Emits how many readings it knows of a sensor, each of which it forgets after 10 s; a timer 5 s
    after each.
    """

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.known = handle.getListState("known", "n int", 10_000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.known.appendValue((1,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 5_000)
        yield Row(id=key[0], n=len(list(self.known.get())))

    def handleExpiredTimer(self, key: Any, timerValues: Any, info: Any) -> Iterator[Any]:
        yield Row(id=key[0], n=-len(list(self.handle.listTimers())))

    def close(self) -> None:
        pass


def test_values_end_and_timers_expire_by_the_clock_and_survive_a_crash() -> None:
    bolt = ProcessorBolt(Remembers(), key="id", outputs=["id", "n"], time_mode="ProcessingTime")
    builder = TopologyBuilder()
    spout, capture = FeederSpout(["id"]), CaptureBolt()
    builder.set_spout("sensors", spout)
    builder.set_bolt("processor", bolt, inputs="sensors")
    builder.set_bolt("capture", capture, inputs="processor")
    with LocalCluster() as cluster:
        cluster.submit(builder.build())
        spout.feed(["a"])
        cluster.run_until(lambda: len(capture.values) == 1)
        cluster.advance(3)
        cluster.kill_worker("processor")
        spout.feed(["a"])
        cluster.run_until(lambda: len(capture.values) == 2)
        cluster.run_until(lambda: len(capture.values) == 4)
        cluster.advance(10)
        spout.feed(["a"])
        cluster.run_until(lambda: len(capture.values) == 5)
    assert capture.values == [("a", 1), ("a", 2), ("a", -1), ("a", 0), ("a", 1)]


class Begun(StatefulProcessor):  # type: ignore[misc]
    """Adds to a sum that begins with the initial state of its key."""

    def init(self, handle: Any) -> None:
        handle.deleteIfExists("older")
        self.sum = handle.getValueState("sum", "n int")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.sum.update((initialState.n,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = (self.sum.get() or (0,))[0]
        self.sum.update((before + sum(row.temperature for row in rows),))
        yield key[0], self.sum.get()[0]

    def close(self) -> None:
        pass


def test_a_keys_initial_state_is_given_once_before_its_first_row() -> None:
    bolt = ProcessorBolt(
        Begun(), key="id", outputs=["id", "n"], initial_state={"a": {"n": 10}, ("b",): Row(n=20)}
    )
    rows = [["a", 1, "x", 0], ["a", 1, "x", 0], ["b", 1, "x", 0], ["c", 1, "x", 0]]
    wanted = [("a", 11), ("a", 12), ("b", 21), ("c", 1)]
    assert complete_topology(topology(bolt), {"sensors": rows})["processor"] == wanted


class Draws(Down):
    """Emits what chance gives."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield Row(id=key[0], drawn=random.random())


@pytest.mark.parametrize(
    ("processor", "mode", "causes"),
    [(Down, "None", []), (Draws, "None", ["chance"]), (Down, "ProcessingTime", ["wall clock"])],
)
def test_a_replay_warns_of_what_the_processor_does(
    processor: Any, mode: Any, causes: list[str]
) -> None:
    outputs = ["id", "drawn"] if processor is Draws else ["id", "low", "last", "places"]
    bolt = ProcessorBolt(processor(), key="id", outputs=outputs, time_mode=mode)
    done = replay_locally(topology(bolt), {"sensors": [["a", 1, "x", 0]]})
    assert [warning.cause for warning in done.warnings] == causes


class Raises(Down):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        (row,) = rows
        self.low.update((row.temperature,))
        if row.place == "bad":
            raise ValueError("bad place")
        yield key[0], self.low.get()[0]


def test_a_row_that_raises_leaves_nothing_behind() -> None:
    bolt = ProcessorBolt(Raises(), key="id", outputs=["id", "low"])
    rows = [["a", 1, "x", 0], ["a", 2, "bad", 0]]
    completed = complete_topology(topology(bolt), {"sensors": rows})
    assert completed["processor"] == [("a", 1)]
    assert completed.state("processor") == {("a", "low"): [[[1], None]]}
    assert len(completed.dead_letters) == 1


class Times(Silent):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.handle.registerTimer(1)
        return iter(())


def test_what_cannot_run_is_named() -> None:
    with pytest.raises(InvalidTopologyError, match="is no instance with a method init; give an"):
        ProcessorBolt(object(), key="id", outputs=["id"])
    with pytest.raises(InvalidTopologyError, match=r"class .*Down'> is no instance with a method"):
        ProcessorBolt(Down, key="id", outputs=["id"])
    with pytest.raises(InvalidTopologyError, match=r"initial_state is \['a'\]; write a Row, or a"):
        ProcessorBolt(Down(), key="id", outputs=["id"], initial_state=["a"])  # type: ignore[arg-type]
    with pytest.raises(InvalidTopologyError, match="no time_mode 'Event'; it has None, Proc"):
        ProcessorBolt(Down(), key="id", outputs=["id"], time_mode="Event")  # type: ignore[arg-type]
    with pytest.raises(InvalidTopologyError, match="outputs is 'id'; write a list of field names"):
        ProcessorBolt(Down(), key="id", outputs="id")
    for key in (5, ["id", 5], None):
        with pytest.raises(InvalidTopologyError, match="; write a name, or a list of name"):
            ProcessorBolt(Down(), key=key, outputs=["id"])  # type: ignore[arg-type]
    with pytest.raises(InvalidTopologyError, match="key is empty; name the fields of groupBy"):
        ProcessorBolt(Down(), key=[], outputs=["id"])
    for initial, words in (
        ({"a": 5}, "initial_state of 'a' is 5; write a Row, or a mapping by field"),
        ({"a": {1: 2}}, "initial_state of 'a' is {1: 2}; write a Row"),
        ({"a": ("x", 1)}, r"initial_state of 'a' is \('x', 1\); write a Row"),
        ({("a", "b"): {"n": 1}}, r"has the key \('a', 'b'\); write a tuple of id"),
    ):
        with pytest.raises(InvalidTopologyError, match=words):
            ProcessorBolt(Down(), key="id", outputs=["id"], initial_state=initial)
    rows = {"sensors": [["a", 1, "x", 0]]}
    bolt = ProcessorBolt(Times(), key="id", outputs=["id", "at_ms"])
    (letter,) = complete_topology(topology(bolt), rows).dead_letters
    assert 'timers need time_mode="ProcessingTime"' in letter.failure.text


class Twice(Down):
    def init(self, handle: Any) -> None:
        super().init(handle)
        handle.getListState("low", "n int")


def test_two_states_of_one_name_are_refused() -> None:
    bolt = ProcessorBolt(Twice(), key="id", outputs=["id", "low"])
    sentence = "there are two states 'low'; give each another name"
    with pytest.raises(ReplayFailedError, match=sentence):
        replay_locally(topology(bolt), {"sensors": [["a", 1, "x", 0]]})


class Nests(Down):
    """Keeps points, which are structs, in a value, a list, and a map's keys."""

    def init(self, handle: Any) -> None:
        schema = sql_types.StructType().add(
            "at", sql_types.StructType().add("x", "long").add("y", "long")
        )
        self.last = handle.getValueState("last", schema)
        self.path = handle.getListState("path", "points array<struct<x: bigint, y: bigint>>")
        self.seen = handle.getMapState("seen", "at struct<x:bigint,y:bigint>", "n map<string,int>")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            point = Row(x=row.temperature, y=2)
            n = (self.seen.getValue((point,)) or ({"n": 0},))[0]["n"]
            self.seen.updateValue((point,), ({"n": n + 1},))
            self.last.update(({"x": row.temperature, "y": 2},))
            self.path.appendValue(([point, (row.temperature, 3)],))
            (last,) = self.last.get()
            ((points,), *_) = self.path.get()
            ((seen,),) = self.seen.keys()
            yield key[0], [last.x, last.y, seen.x, points[0].x, points[1].y, n, len(last)]


def test_a_struct_within_a_state_is_a_row_as_in_spark() -> None:
    bolt = ProcessorBolt(Nests(), key="id", outputs=["id", "values"])
    rows = {"sensors": [["a", 7, "x", 0], ["a", 7, "x", 0]]}
    wanted = [("a", [7, 2, 7, 7, 3, n, 2]) for n in (0, 1)]
    assert complete_topology(topology(bolt), rows)["processor"] == wanted
    assert replay_locally(topology(bolt), rows)["processor"] == wanted


class Yields(Raises):
    def __init__(self, row: Any) -> None:
        self.row = row

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield self.row


@pytest.mark.parametrize("row", [{"id": "a", "low": 1}, "ab", 5])
def test_what_is_no_row_is_refused(row: Any) -> None:
    bolt = ProcessorBolt(Yields(row), key="id", outputs=["id", "low"])
    completed = complete_topology(topology(bolt), {"sensors": [["a", 1, "x", 0]]})
    assert completed["processor"] == []
    (letter,) = completed.dead_letters
    assert "yield a Row, or a tuple of values" in letter.failure.text


@pytest.mark.parametrize(
    ("row", "made"),
    [
        (Row(more=3, low=1, id="a"), ("a", 1)),
        (Row(id="a", lwo=1), ("a", None)),
        (Row("a", "b"), ("a", "b")),
        (("a", 1), ("a", 1)),
    ],
)
def test_a_row_goes_by_its_names_as_in_spark(row: Any, made: Any) -> None:
    bolt = ProcessorBolt(Yields(row), key="id", outputs=["id", "low"])
    completed = complete_topology(topology(bolt), {"sensors": [["a", 1, "x", 0]]})
    assert completed["processor"] == [made]


class Lives(Down):
    def __init__(self, ttl_ms: Any) -> None:
        self.ttl_ms = ttl_ms

    def init(self, handle: Any) -> None:
        self.low = handle.getValueState("low", "n int", self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield key[0], self.low.get()
        self.low.update((1,))


@pytest.mark.parametrize("ttl_ms", ["5", 0, 5.5])
def test_a_time_to_live_is_a_whole_number(ttl_ms: Any) -> None:
    bolt = ProcessorBolt(Lives(ttl_ms), key="id", outputs=["id", "low"], time_mode="ProcessingTime")
    with pytest.raises(ReplayFailedError, match="it is a whole number above 0"):
        replay_locally(topology(bolt), {"sensors": [["a", 1, "x", 0]]})


def test_a_time_to_live_may_be_added_to_a_state_that_is_there(tmp_path: Path) -> None:
    emitted = []
    for ttl_ms, saved in ((None, None), (5, tmp_path / "saved")):
        bolt = ProcessorBolt(
            Lives(ttl_ms), key="id", outputs=["id", "low"], time_mode="ProcessingTime"
        )
        spout, capture, builder = FeederSpout(["id"]), CaptureBolt(), TopologyBuilder()
        builder.set_spout("sensors", spout)
        builder.set_bolt("processor", bolt, inputs="sensors")
        builder.set_bolt("capture", capture, inputs="processor")
        with LocalCluster() as cluster:
            cluster.submit(builder.build(), from_checkpoint=saved)
            for _ in range(2 if saved else 1):  # the first is behind the savepoint's position
                spout.feed(["a"])
            cluster.run_until_idle()
            if saved is None:
                cluster.savepoint(tmp_path / "saved")
        emitted.append(capture.values)
    assert emitted == [[("a", None)], [("a", [1])]]


class OfFrames(Silent):
    """Silent, of frames, whose times are numpy's."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        (frame,) = rows
        for at_ms in list(self.handle.listTimers()):
            self.handle.deleteTimer(frame["ts"].max() * 0 + at_ms)
        self.handle.registerTimer(frame["ts"].max() + 10_000)
        return iter(())


def test_times_of_timers_may_be_numpys() -> None:
    pytest.importorskip("pandas")
    bolt = ProcessorBolt(
        OfFrames(), key="id", outputs=["id", "at_ms"], time_mode="EventTime", frames=True
    )
    rows = [["a", 1, "x", 0], ["a", 1, "x", 5_000]]
    made = topology(bolt.with_timestamp_field("ts"))
    assert complete_topology(made, {"sensors": rows})["processor"] == [("a", 15_000)]


class Frames(StatefulProcessor):  # type: ignore[misc]
    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            total = (self.sum.get() or (0,))[0] + int(frame["temperature"].sum())
            self.sum.update((total,))
            yield frame.assign(n=total)

    def close(self) -> None:
        pass


def test_a_processor_of_pandas_gets_and_yields_frames() -> None:
    pytest.importorskip("pandas")
    bolt = ProcessorBolt(Frames(), key="id", outputs=["id", "n"], frames=True)
    rows = [["a", 1, "x", 0], ["a", 2, "x", 0]]
    assert complete_topology(topology(bolt), {"sensors": rows})["processor"] == [("a", 1), ("a", 3)]


class BegunOfFrames(Frames):
    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.sum.update((int(initialState.at[0, "n"]),))


def test_a_processor_of_pandas_gets_its_initial_state_as_a_frame() -> None:
    pytest.importorskip("pandas")
    initial_state = {"a": {"n": 10}, "b": Row(n=20)}
    bolt = ProcessorBolt(
        BegunOfFrames(), key="id", outputs=["id", "n"], frames=True, initial_state=initial_state
    )
    rows = [["a", 1, "x", 0], ["b", 1, "x", 0]]
    result = complete_topology(topology(bolt), {"sensors": rows})["processor"]
    assert result == [("a", 11), ("b", 21)]
