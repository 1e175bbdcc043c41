"""Checks the values that may travel, and the names in errors about others."""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    StatefulBolt,
    Stream,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.common.errors import WorkerFailedError
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster
from tests.topologies import ran, running
from tests.worker.building import Pass, chain

ONCE = {"topology.max.retries": 0}


class Emits(BasicBolt):
    """Emits one given thing for every tuple."""

    def __init__(self, values: Any, stream: str = "default", outputs: Any = ("value",)) -> None:
        self.values = values
        self.stream = stream
        self.outputs = outputs

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(self.values, stream=self.stream)


def error_of(bolt: BasicBolt, workers: int = 1) -> str:
    spout = FeederSpout()
    with ran(chain(spout, bolt), spout, [1], {**ONCE, "topology.workers": workers}) as cluster:
        assert spout.failed == [0]
        (letter,) = cluster.dead_letters
        assert letter.component == "bolt"
        return letter.reason


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("value", "complaint"), [
    (object(), "a value of type object"),
    (2**9000, "a whole number of 9001 bits"),
    ("\ud800", "not valid UTF-8"),
    ({(1, 2): 3}, "a mapping key of type tuple"),
    ([[{"deep": object()}]], "a value of type object"),
])  # fmt: skip
def test_a_value_that_the_codec_does_not_know_names_component_stream_and_field(
    value: Any, complaint: str, workers: int
) -> None:
    reason = error_of(Emits((1, value), outputs=("first", "second")), workers)
    assert "component 'bolt', stream 'default', field 'second': " in reason
    assert complaint in reason


def test_a_direct_stream_wants_emit_direct() -> None:
    bolt = Emits(
        (1,), stream="d", outputs={"default": ("value",), "d": Stream(("value",), direct=True)}
    )
    assert "stream 'd' is direct: use emit_direct" in error_of(bolt)


class EmitsDirect(Emits):
    """Emits to a given task."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit_direct(self.values, (1,), stream=self.stream)


def test_emit_direct_to_a_task_that_does_not_listen_is_named() -> None:
    bolt = EmitsDirect(
        99, stream="d", outputs={"default": ("value",), "d": Stream(("value",), direct=True)}
    )
    assert "task 99 does not listen to direct stream 'd'" in error_of(bolt)


@pytest.mark.parametrize("workers", [1, 3])
def test_tuples_inside_values_become_lists_wherever_the_next_task_runs(workers: int) -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    with LocalCluster() as cluster:
        cluster.submit(chain(spout, Pass(), capture), {"topology.workers": workers})
        spout.feed([(1, (2, 3))])
        cluster.run_until_idle()
    assert capture.values == [([1, [2, 3]],)]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_bolt_that_changes_its_input_changes_nobody_elses(workers: int) -> None:
    class Spoils(BasicBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            tup[0].append("spoilt")

    spout, capture, builder = FeederSpout(), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("pass", Pass()).shuffle_grouping("spout")
    builder.set_bolt("z-capture", capture).shuffle_grouping("pass")
    builder.set_bolt("a-spoils", Spoils()).shuffle_grouping("pass")
    with LocalCluster() as cluster:
        cluster.submit(builder.build(), {"topology.workers": workers})
        spout.feed([["mine"]])
        cluster.run_until_idle()
    assert capture.values == [(["mine"],)]


class Puts(StatefulBolt):
    """Puts one given thing under one given key."""

    def __init__(self, key: Any, value: Any) -> None:
        self.key, self.value = key, value

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put(self.key, self.value)


@pytest.mark.parametrize(("key", "value", "complaint"), [
    ("k", object(), "a value of type object"), ("k", 2**9000, "a whole number of 9001 bits"), ("k", "\udfff", "not valid UTF-8"),
    (frozenset(), 1, "a state key holds a frozenset"), (("a", [1]), 1, "unhashable"),
    (2**9000, 1, "a whole number of 9001 bits"),
])  # fmt: skip
def test_a_state_value_or_key_without_bytes_fails_the_tuple_that_put_it(
    key: Any, value: Any, complaint: str
) -> None:
    assert complaint in error_of(Puts(key, value))


def test_state_hands_out_copies_so_that_undo_stays_possible() -> None:
    class Grows(StatefulBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            seen = self.state.get("seen", [])
            seen.append(tup[0])
            if tup[0] == 2:
                raise ValueError("never seen")
            self.state.put("seen", seen)

    spout = FeederSpout()
    with ran(chain(spout, Grows()), spout, range(4), ONCE) as cluster:
        assert cluster.state("bolt") == {"seen": [0, 1, 3]}


@pytest.mark.parametrize("key", ["text", 7, b"bytes", ("a", 1)])
def test_state_keys_come_back_as_they_were_after_a_crash(key: Any) -> None:
    spout = FeederSpout()
    with ran(chain(spout, Puts(key, {"x": [1, None]})), spout, [1]) as cluster:
        cluster.kill_worker("bolt")
        cluster.run_until_idle()
        assert cluster.state("bolt") == {key: {"x": [1, None]}}


def test_deleted_keys_stay_deleted_after_a_crash() -> None:
    class Deletes(StatefulBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            if tup[0] >= 0:
                self.state.put(tup[0], 1)
            else:
                self.state.delete(-tup[0])

    spout = FeederSpout()
    with running(chain(spout, Deletes())) as cluster:
        for n in (1, 2, 3, -2):
            spout.feed([n])
            cluster.advance(ms=50)
        cluster.kill_worker("bolt")
        cluster.run_until_idle()
        assert cluster.state("bolt") == {1: 1, 3: 1}


def test_a_long_journal_is_swept_and_reads_back() -> None:
    class Big(StatefulBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.state.put(tup[0] % 3, str(tup[0]) * 20_000)

    spout = FeederSpout()
    with ran(chain(spout, Big()), spout, range(30), {"topology.epoch.rows": 1}) as cluster:
        keys = cluster.topology().store.task_keys[cluster.topology().worker_of("bolt").tasks[1]]
        assert len(keys.journal) < 20
        before = cluster.state("bolt")
        cluster.kill_worker("bolt")
        cluster.run_until_idle()
        assert cluster.state("bolt") == before
        assert before[2] == "29" * 20_000


def test_a_position_without_bytes_names_the_spout() -> None:
    class Odd(FeederSpout):
        def snapshot(self) -> Any:
            return object()

    spout = Odd()
    with running(chain(spout, Pass())) as cluster:
        spout.feed([1])
        sentence = r"spout 'spout': snapshot\(\) returned a value of type object"
        with pytest.raises(WorkerFailedError, match=sentence):
            cluster.run_until_idle()
