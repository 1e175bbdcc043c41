"""Code that runs, records or compares a bolt's input next to the run changes nothing that the run
or the caller sees, and sees the input as it came.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import (
    BasicOutputCollector,
    Duration,
    FoldingBolt,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
    Window,
    WindowedBolt,
)
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.topology import Topology
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.data_plane.user_code.trial import try_code
from sparkstorm.extensions.recording.capsule_files import write_capsule
from sparkstorm.extensions.recording.shadow import compare_versions
from sparkstorm.extensions.recording.stepping.recorded import recorded
from sparkstorm.extensions.recording.stepping.stepper import Stepper
from sparkstorm.replay import open_capsule, replay_locally
from sparkstorm.testing import (
    CaptureBolt,
    FeederSpout,
    complete_topology,
    find_nondeterminism,
)
from tests.replay.bolts import Source
from tests.topologies import running

ROWS: list[list[Any]] = [[n, [n]] for n in range(6)]


class Counting(StatefulBolt):
    """Counts its calls in an attribute, a metric and a list of its state, and changes its input."""

    outputs = ("items", "calls")

    def __init__(self, calls: Any = None) -> None:
        self.calls = [] if calls is None else calls

    def prepare(self, conf: Any, context: Any) -> None:
        self.metric = context.counter("calls")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.calls.append(tup["number"])
        self.metric.inc()
        kept = self.state.get("kept", [])
        kept.append(tup["number"])
        self.state.put("kept", kept)
        tup["items"].append("seen")
        collector.emit((tup["items"], len(self.calls)))


def topology_of(bolt: Any, capture: CaptureBolt | None = None) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("source", FeederSpout(("number", "items")))
    builder.set_bolt("bolt", bolt).global_grouping("source")
    if capture is not None:
        builder.set_bolt("capture", capture).global_grouping("bolt")
    return builder.build()


def live(conf: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a run has emitted, its state and its metric."""
    spout, capture, builder = FeederSpout(("number", "items")), CaptureBolt(), TopologyBuilder()
    builder.set_spout("source", spout)
    builder.set_bolt("bolt", Counting()).global_grouping("source")
    builder.set_bolt("capture", capture).global_grouping("bolt")
    with running(builder.build(), conf, draws_epochs=False) as cluster:
        for row in copy.deepcopy(ROWS):
            spout.feed(row)
        cluster.run_until_idle()
        metrics = cluster.topology().metrics("bolt")
        return capture.values, cluster.state("bolt"), metrics["calls"].value


def recording_of(folder: Path) -> Path:
    live({"topology.record.components": ["bolt"], "topology.record.directory": str(folder)})
    (task,) = folder.glob("recorded/*/bolt/task-*")
    return task


def test_a_recorded_run_is_that_without_and_its_rows_are_recorded_as_they_came(
    tmp_path: Path,
) -> None:
    recorded_conf = {
        "topology.record.components": ["bolt"],
        "topology.record.directory": str(tmp_path),
    }
    assert live(recorded_conf) == live({})
    (task,) = tmp_path.glob("recorded/*/bolt/task-*")
    rows = [each.values for part in recorded(task) for each in part.tuples]
    assert rows == [tuple(row) for row in ROWS]


def test_steps_change_neither_the_bolt_nor_what_they_are_given() -> None:
    bolt = Counting()
    topology, state, values = topology_of(bolt), {"kept": [9]}, [1, ["a"]]
    steps = Stepper(topology, "bolt", state=state)
    first, second = steps.execute(values, "source"), steps.execute(values, "source")
    assert bolt.calls == [] and state == {"kept": [9]} and values == [1, ["a"]]
    assert first.input.values == second.input.values == (1, ["a"])
    assert [first.state, second.state] == [{"kept": [9, 1]}, {"kept": [9, 1, 1]}]
    assert first.emitted == {"default": [(["a", "seen"], 1)]}


class Fires(WindowedBolt):
    """Empties its window, and then fails."""

    outputs = ("n",)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        for tup in window:
            tup["items"].append("seen")
        raise ValueError(repr([tup["items"] for tup in window]))


class Folds(FoldingBolt):
    """Empties its accumulator, and then fails."""

    outputs = ("n",)

    def initial(self) -> Any:
        return []

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        return [*accumulator, tup["number"]]

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        window.value.append("seen")
        raise ValueError(repr(window.value))


class Fails(Counting):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        super().execute(tup, collector)
        raise ValueError(repr([tup["items"], self.state.get("kept")]))


def timed(bolt: Any) -> Any:
    return bolt.with_tumbling_window(Duration.millis(100)).with_timestamp_field("number")


@pytest.mark.parametrize(
    "bolt", [Fails(), timed(Fires()), timed(Folds())], ids=lambda each: type(each).__name__
)
def test_a_capsule_can_be_stepped_again_and_again(bolt: Any, tmp_path: Path) -> None:
    topology = topology_of(bolt)
    conf = {"topology.max.retries": 0}
    run = complete_topology(topology, {"source": copy.deepcopy(ROWS)}, conf=conf)
    letter: DeadLetter = run.dead_letters[-1]
    write_capsule(tmp_path / "x.capsule", letter)
    capsule = open_capsule(tmp_path / "x.capsule")
    before = repr(capsule.letter)
    said = [str(capsule.step(topology).failure) for _ in range(3)]
    assert len(set(said)) == 1 and "seen" in said[0]
    assert repr(capsule.letter) == before


def test_a_comparison_of_versions_changes_neither_the_topology_nor_its_objects(
    tmp_path: Path,
) -> None:
    task = recording_of(tmp_path)
    bolt = Counting()
    code: tuple[bytes, dict[str, Any]] = (pack_topology(topology_of(bolt)), {})
    for _ in range(2):
        report = compare_versions(code, code, task)
        assert (report.compared, report.different) == (len(ROWS), 0)
    assert bolt.calls == []


class Made(Counting):
    """Notes where it is made from its bytes."""

    made: list[Any] = []  # noqa: RUF012

    def __setstate__(self, state: Any) -> None:
        self.made.append(state)


def test_a_trial_of_code_makes_its_instances_elsewhere() -> None:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("number", "items"))
    builder.set_bolt("bolt", Made()).global_grouping("source")
    try_code("wc", pack_topology(builder.build()))
    assert Made.made == []


def test_runs_of_a_test_and_replays_leave_the_topology_as_it_was() -> None:
    bolt = Counting()
    topology, rows = topology_of(bolt), copy.deepcopy(ROWS)
    runs = [complete_topology(topology, {"source": rows}) for _ in range(2)]
    replays = [replay_locally(topology, {"source": rows}) for _ in range(2)]
    find_nondeterminism(topology, {"source": rows}, via="replay")
    assert bolt.calls == [] and rows == ROWS
    assert runs[0].values("bolt") == runs[1].values("bolt")
    assert replays[0].outputs == replays[1].outputs
    assert replays[0].states == replays[1].states == {"bolt": {"kept": list(range(6))}}


class FromShared(FoldingBolt):
    """Begins each window with one list, which it changes in place; each third call fails."""

    outputs = ("numbers",)

    def __init__(self) -> None:
        self.nothing: list[int] = []

    def prepare(self, conf: Any, context: Any) -> None:
        self.calls = 0

    def initial(self) -> Any:
        return self.nothing

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        accumulator.append(tup["number"])
        self.calls += 1
        if self.calls % 3 == 1:
            raise ValueError("each third")
        return accumulator

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((sorted(window.value),))


class MergesShared(FromShared):
    def merge(self, one: Any, other: Any) -> Any:
        one.extend(other)
        return one


@pytest.mark.parametrize("kind", [FromShared, MergesShared])
@pytest.mark.parametrize("shape", ["tumbling", "sliding", "sessions"])
def test_the_value_with_which_windows_begin_belongs_to_none_of_them(
    kind: type[FromShared], shape: str
) -> None:
    if shape == "sessions" and kind is FromShared:
        return
    length, half = Duration.millis(4), Duration.millis(2)
    bolt = kind()
    shaped = {
        "tumbling": lambda: bolt.with_tumbling_window(length),
        "sliding": lambda: bolt.with_window(length, half),
        "sessions": lambda: bolt.with_session_window(half),
    }[shape]()
    topology = topology_of(shaped.with_timestamp_field("number"))
    rows: list[list[Any]] = [[n, []] for n in (0, 1, 2, 3, 9, 10)]
    windows = {
        "tumbling": [[0, 1, 2, 3], [9, 10]],
        "sliding": [[0, 1], [0, 1, 2, 3], [2, 3], [9], [9, 10], [10]],
        "sessions": [[0, 1, 2, 3], [9, 10]],
    }[shape]
    wanted = [[each] for each in windows]
    conf = {"topology.max.retries": 9, "topology.retry.backoff.ms": 1}
    run = complete_topology(topology, {"source": rows}, conf=conf)
    assert sorted(map(list, run.values("bolt"))) == sorted(wanted)
    replayed = replay_locally(topology, {"source": rows}, conf=conf).outputs["bolt"]
    assert sorted(map(list, replayed)) == sorted(wanted)


class TriesAgain(Counting):
    """Fails the first try of each odd number, behind all of its effects."""

    def prepare(self, conf: Any, context: Any) -> None:
        super().prepare(conf, context)
        self.tried: set[int] = set()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        super().execute(tup, collector)
        for key, kept in self.state.items():
            kept.append(-1)
            self.state.put(key, kept)
        if tup["number"] % 2 and tup["number"] not in self.tried:
            self.tried.add(tup["number"])
            raise ValueError("the first time")


class TriesAgainBeside(TriesAgain):
    blocking = True


@pytest.mark.parametrize(
    ("kind", "backend"),
    [(TriesAgain, "memory"), (TriesAgain, "lazy"), (TriesAgainBeside, "memory")],
)
def test_a_failed_try_leaves_nothing_of_its_effects(kind: type[TriesAgain], backend: str) -> None:
    spout, capture, builder = FeederSpout(("number", "items")), CaptureBolt(), TopologyBuilder()
    builder.set_spout("source", spout)
    builder.set_bolt("bolt", kind()).global_grouping("source")
    builder.set_bolt("capture", capture).global_grouping("bolt")
    conf = {"topology.state.backend": backend, "topology.retry.backoff.ms": 1}
    with running(builder.build(), conf) as cluster:
        for row in copy.deepcopy(ROWS):
            spout.feed(row)
        cluster.run_until_idle()
        kept = cluster.state("bolt")["kept"]
        calls = cluster.topology().metrics("bolt")["calls"].value
    assert sorted(kept) == [-1] * 6 + [0, 1, 2, 3, 4, 5] and calls == 6
    assert sorted(items for items, _ in capture.values) == [[n, "seen"] for n in range(6)]
