"""Attacks with what user code hands over: causes that have no bytes, errors that cannot be shown,
rows that are large.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    BatchCollector,
    ColumnBolt,
    Source,
    Spout,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.api.windows import Count, Window, WindowedBolt
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster
from tests.topologies import feed, ran, running
from tests.worker.building import Collecting, chain


class Unshowable(Exception):
    """An error whose text is its own bug."""

    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize(
    "error",
    [OSError("named \udcff"), Unshowable(), ValueError("x" * 10_000)],
    ids=lambda e: type(e).__name__,
)
def test_whatever_text_an_error_has_it_fails_one_tuple_and_kills_nobody(
    error: Exception, guarantee: str
) -> None:
    class Raises(BasicBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            if tup[0] == "bad":
                raise error

    spout = FeederSpout()
    with running(
        chain(spout, Raises()), {"topology.workers": 2, "topology.delivery.guarantee": guarantee}
    ) as cluster:
        for value in ("a", "bad", "b"):
            spout.feed([value], message_id=value)
        cluster.run_until_idle()
        assert (spout.failed, sorted(spout.acked)) == (["bad"], ["a", "b"])
        assert not any(worker.deaths for worker in cluster.topology().workers)
        assert all(len(letter.reason) < 1000 for letter in cluster.dead_letters)


@pytest.mark.parametrize("reason", ["bytes \udc80", "x" * 10_000])
def test_whatever_reason_a_bolt_fails_with_it_fails_one_tuple_and_kills_nobody(reason: str) -> None:
    class Fails(Collecting):
        outputs: Any = ()

        def execute(self, tup: Tuple) -> None:
            self.collector.fail(tup, reason)

    spout = FeederSpout()
    with ran(
        chain(spout, Fails()), spout, [1], {"topology.workers": 2, "topology.max.retries": 1}
    ) as cluster:
        assert spout.failed == [0]
        assert not any(worker.deaths for worker in cluster.topology().workers)
        assert [len(letter.reason) < 1000 for letter in cluster.dead_letters] == [True]


def test_rows_that_are_too_large_for_one_frame_together_leave_in_several() -> None:
    class Explodes(BasicBolt):
        outputs = ("value",)

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            for n in range(70):
                collector.emit((bytes([n]) + bytes(1 << 20),))

    class First(BasicBolt):
        outputs = ("value",)

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            collector.emit((tup[0][0],))

    spout, capture = FeederSpout(), CaptureBolt()
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("explodes", Explodes()).shuffle_grouping("spout")
    builder.set_bolt("first", First()).shuffle_grouping("explodes")
    builder.set_bolt("capture", capture).global_grouping("first")
    with running(builder.build(), {"topology.workers": 5}) as cluster:
        spout.feed([1])
        cluster.run_until_idle(limit_secs=20)
        assert capture.values == [(n,) for n in range(70)]
        assert cluster.topology().store.quarantine == []
        assert spout.acked == [0]


@pytest.mark.slow
def test_a_row_that_is_too_large_for_any_frame_is_given_up_with_the_input_that_made_it() -> None:
    class Explodes(BasicBolt):
        outputs = ("value",)

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            collector.emit((bytes(65 << 20) if tup[0] == "bad" else tup[0],))

    spout, capture = FeederSpout(), CaptureBolt()
    with running(chain(spout, Explodes(), capture), {"topology.workers": 4}) as cluster:
        for value in ("a", "bad", "b"):
            spout.feed([value], message_id=value)
        cluster.run_until_idle()
        assert sorted(capture.values) == [("a",), ("b",)]
        assert (spout.failed, sorted(spout.acked)) == (["bad"], ["a", "b"])
        deaths = [death for worker in cluster.topology().workers for death in worker.deaths]
        assert all(
            "component 'bolt', stream 'default': a tuple of 68157" in death for death in deaths
        )


# -- MemoryError of user code ----------------------------------------------------------------------


class Basic(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        raise MemoryError


class Keyed(StatefulBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup[0], 1)
        raise MemoryError


class Manual(Collecting):
    outputs = ()

    def execute(self, tup: Tuple) -> None:
        raise MemoryError


class Blocking(Basic):
    blocking = True


class Columns(ColumnBolt):
    def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
        raise MemoryError


class Windowed(WindowedBolt):
    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        raise MemoryError


class Sink(TransactionalSink):
    def begin(self, epoch: int) -> None: ...

    def write(self, tup: Tuple) -> None:
        raise MemoryError

    def prepare(self, epoch: int) -> Any: ...

    def commit(self, epoch: int, prepared: Any) -> None: ...

    def recover(self, epoch: int, prepared: Any) -> None: ...


class Reporting(Collecting):
    """Survives a MemoryError by itself."""

    outputs = ()

    def execute(self, tup: Tuple) -> None:
        self.collector.report_error(MemoryError("borne"))
        self.collector.ack(tup)


def windowed() -> WindowedBolt:
    return Windowed().with_window(Count(1))


@pytest.mark.parametrize("make", [Basic, Keyed, Manual, Blocking, Columns, windowed, Sink])
def test_a_bolt_without_memory_ends_its_worker(make: Any) -> None:
    spout = FeederSpout(["value"])
    with running(chain(spout, make()), {"topology.max.retries": 5}) as cluster:
        feed(spout, range(20))
        with pytest.raises(MemoryError):
            cluster.run_until_idle()
        assert cluster.topology().dead_letters() == []


def test_a_spout_without_memory_ends_its_worker() -> None:
    class Full(Spout):
        outputs = ("value",)

        def next_tuple(self) -> None:
            raise MemoryError

    with LocalCluster() as cluster, pytest.raises(MemoryError):
        cluster.submit(chain(Full(), Basic()))


def test_a_bolt_may_report_one_that_it_has_borne() -> None:
    spout = FeederSpout(["value"])
    with ran(chain(spout, Reporting()), spout, [1]) as cluster:
        assert spout.acked == [0]
        assert [
            failure.text.startswith("MemoryError: borne") for failure in cluster.topology().errors
        ] == [True]
