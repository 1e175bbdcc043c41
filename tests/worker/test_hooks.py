"""Hooks of tasks and workers: named by module, told of every tuple, and unable to harm any."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    BatchCollector,
    ColumnBolt,
    Failure,
    Source,
    TaskHook,
    TopologyBuilder,
    Tuple,
    WorkerContext,
    WorkerHook,
)
from sparkstorm.common.errors import WorkerFailedError
from sparkstorm.connectors import FileLines, find_files
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster
from tests.topologies import ran, running
from tests.worker.building import Collecting, chain

SEEN: list[tuple[Any, ...]] = []


class Watching(TaskHook):
    """Hook that records its calls."""

    def prepare(self, conf: Any, context: Any) -> None:
        self.component = context.component_id

    def _note(self, *what: Any) -> None:
        SEEN.append((self.component, *what))

    def emit(self, values: tuple[Any, ...], stream: str) -> None:
        self._note("emit", values)

    def spout_ack(self, message_id: Any) -> None:
        self._note("spout_ack", message_id)

    def spout_fail(self, message_id: Any, failure: Failure) -> None:
        self._note("spout_fail", message_id, failure.text.partition(" (")[0])

    def bolt_execute(self, tup: Tuple) -> None:
        self._note("execute", tup.values)

    def bolt_ack(self, tup: Tuple) -> None:
        self._note("ack", tup.values)

    def bolt_fail(self, tup: Tuple, failure: Failure) -> None:
        self._note("fail", tup.values, failure.text.partition(" (")[0])

    def cleanup(self) -> None:
        self._note("cleanup")


class Broken(TaskHook):
    """Raises wherever it can."""

    def emit(self, values: tuple[Any, ...], stream: str) -> None:
        raise ValueError("no emit")

    prepare = bolt_execute = bolt_ack = bolt_fail = spout_ack = spout_fail = cleanup = emit  # type: ignore[assignment]


class OfWorker(WorkerHook):
    """Makes a resource that tasks share."""

    def start(self, context: WorkerContext) -> None:
        context.resources["client"] = f"client of {context.worker}"
        SEEN.append(("start", sorted(context.tasks.values())))

    def shutdown(self) -> None:
        SEEN.append(("shutdown",))


class CannotEnd(WorkerHook):
    """Cannot shut down."""

    def shutdown(self) -> None:
        raise OSError("no such device")


class Cannot(WorkerHook):
    """Cannot start."""

    def start(self, context: WorkerContext) -> None:
        raise OSError("no such device")


class Odd(BasicBolt):
    """Fails odd numbers."""

    outputs = ("n",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup[0],))
        if tup[0] % 2:
            raise ValueError("odd")


HERE = __name__
CONF = {
    "topology.auto.task.hooks": [f"{HERE}:Watching"],
    "topology.delivery.guarantee": "at-least-once",
}


@pytest.fixture(autouse=True)
def empty() -> None:
    SEEN.clear()


@pytest.mark.parametrize("blocking", [False, True])
def test_hooks_are_told_of_every_emission_execution_ack_and_fail(
    blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FeederSpout, "blocking", blocking)
    spout, capture = FeederSpout(), CaptureBolt()
    with running(chain(spout, Odd(), capture), CONF) as cluster:
        spout.feed([1], message_id="one")
        spout.feed([2], message_id="two")
        cluster.run_until(lambda: len(spout.acked) + len(spout.failed) == 2)
        cluster.run_until_idle()
    assert capture.values == [(2,)]
    assert Counter(SEEN) == Counter(
        [
            ("spout", "emit", (1,)),
            ("spout", "emit", (2,)),
            ("bolt", "execute", (1,)),
            ("bolt", "execute", (2,)),
            ("bolt", "emit", (1,)),
            ("bolt", "emit", (2,)),
            ("bolt", "fail", (1,), "ValueError: odd"),
            ("bolt", "ack", (2,)),
            ("capture", "execute", (2,)),
            ("capture", "ack", (2,)),
            ("spout", "spout_fail", "one", "ValueError: odd"),
            ("spout", "spout_ack", "two"),
            ("spout", "cleanup"),
            ("bolt", "cleanup"),
            ("capture", "cleanup"),
        ]
    )


def test_hooks_are_told_of_each_row_of_a_batch(tmp_path: Path) -> None:
    class Passes(ColumnBolt):
        outputs = ("line",)

        def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
            collector.emit_batch(batch)

    (tmp_path / "lines").write_text("a\nb\nc\n")
    builder, capture = TopologyBuilder(), CaptureBolt()
    builder.set_spout("spout", FileLines(find_files([tmp_path])))
    builder.set_bolt("bolt", Passes()).shuffle_grouping("spout")
    builder.set_bolt("capture", capture).shuffle_grouping("bolt")
    with running(builder.build(), CONF) as cluster:
        cluster.run_until_idle()
        assert sorted(capture.values) == [("a",), ("b",), ("c",)]
    told = Counter(each[:3] for each in SEEN if each[1] in ("emit", "execute"))
    lines = [("a",), ("b",), ("c",)]
    wanted = [("spout", "emit"), ("bolt", "execute"), ("bolt", "emit"), ("capture", "execute")]
    assert told == Counter((*what, line) for what in wanted for line in lines)


def test_acks_of_a_later_epoch_are_told_too_and_a_component_may_have_hooks_of_its_own() -> None:
    class Waits(Collecting):
        outputs = ()

        def execute(self, tup: Tuple) -> None:
            if not tup.is_tick:
                self.kept = tup
            elif hasattr(self, "kept"):
                self.collector.ack(self.kept)
                del self.kept

    spout = FeederSpout()
    with LocalCluster() as cluster:
        own = {"topology.auto.task.hooks": [f"{HERE}:Watching"], "topology.tick.tuple.freq.secs": 1}
        cluster.submit(chain(spout, Waits(), bolt_conf=own))
        spout.feed([7])
        cluster.advance(3)
        assert [each for each in SEEN if each[1] != "execute"] == [("bolt", "ack", (7,))]
        assert spout.acked == [0]


def test_a_hook_that_raises_is_reported_and_harms_nothing() -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    with ran(
        chain(spout, Odd(), capture),
        spout,
        range(4),
        {**CONF, "topology.auto.task.hooks": [f"{HERE}:Broken"]},
    ) as cluster:
        assert (sorted(capture.values), sorted(spout.failed)) == ([(0,), (2,)], [1, 3])
        assert any("ValueError: no emit (test_hooks.py" in error.text for error in cluster.errors)


def test_a_workers_hooks_start_before_its_tasks_and_share_resources_with_them() -> None:
    class Asks(BasicBolt):
        outputs = ("client",)

        def prepare(self, conf: Any, context: Any) -> None:
            self.client = context.shared("client", lambda: "none")

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            collector.emit((self.client,))

    spout, capture = FeederSpout(), CaptureBolt()
    with ran(
        chain(spout, Asks(), capture), spout, [1], {"topology.worker.hooks": [f"{HERE}:OfWorker"]}
    ):
        assert capture.values[0][0].startswith("client of node")
    assert SEEN == [("start", ["__acker", "bolt", "capture", "spout"]), ("shutdown",)]


def test_a_shutdown_that_raises_is_reported_and_those_after_it_are_called() -> None:
    with LocalCluster() as cluster:
        id = cluster.submit(
            chain(FeederSpout(), Odd()),
            {"topology.worker.hooks": [f"{HERE}:CannotEnd", f"{HERE}:OfWorker"]},
        )
        errors = cluster.data_plane.of(id).errors
        cluster.kill(wait_secs=0)
    assert SEEN[-1] == ("shutdown",)
    assert [error.text.partition(" (")[0] for error in errors] == ["OSError: no such device"]


@pytest.mark.parametrize(
    ("key", "names", "sentence"),
    [
        (
            "topology.auto.task.hooks",
            ["no_such_module:Hook"],
            "put its module next to the topology's",
        ),
        ("topology.auto.task.hooks", ["nothing"], "is not of the form module:name"),
        ("topology.auto.task.hooks", [f"{HERE}:Missing"], "cannot be made: AttributeError"),
        (
            "topology.auto.task.hooks",
            [f"{HERE}:OfWorker"],
            "makes a OfWorker, which is no TaskHook",
        ),
        ("topology.auto.task.hooks", [7], "expected a list of"),
        ("topology.worker.hooks", [f"{HERE}:Watching"], "which is no WorkerHook"),
        (
            "topology.worker.hooks",
            [f"{HERE}:Cannot"],
            "topology.worker.hooks: Cannot cannot start: OSError: no such device",
        ),
    ],
)
def test_a_hook_that_cannot_be_had_is_named_at_the_start(
    key: str, names: list[Any], sentence: str
) -> None:
    with LocalCluster() as cluster, pytest.raises(WorkerFailedError, match=sentence):
        cluster.submit(chain(FeederSpout(), Odd()), {key: names})
