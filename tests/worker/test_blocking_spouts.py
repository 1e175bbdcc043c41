"""Spouts that may block run on their own thread; the loop, positions and callbacks keep their
promises.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import Any

import pytest

from sparkstorm.api import ReplayableSpout, Spout, TopologyBuilder
from sparkstorm.common.errors import WorkerFailedError
from sparkstorm.testing import (
    AckFailTracker,
    CaptureBolt,
    FeederSpout,
    FlakyBolt,
    Shared,
    complete_topology,
)
from tests.topologies import Count, running
from tests.worker.building import Pass, chain


class FromQueue(Spout):
    """Blocks until the test puts something."""

    outputs = ("value",)
    blocking = True

    def __init__(self) -> None:
        self.queue: Shared[queue.SimpleQueue[Any]] = Shared(queue.SimpleQueue())
        self.told = AckFailTracker()
        self.threads: Shared[set[str]] = Shared(set())

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector

    def next_tuple(self) -> None:
        value = self.queue.value.get(timeout=60)
        if value == "end":  # for every later call as well: one may begin before the cluster ends
            self.queue.value.put("end")
            return
        self.threads.value.add(threading.current_thread().name)
        if isinstance(value, Exception):
            self.collector.emit(("half",), message_id="half")
            raise value
        self.collector.emit((value,), message_id=value)

    def ack(self, message_id: Any) -> None:
        self.threads.value.add(threading.current_thread().name)
        self.told.acked.append(message_id)

    def fail(self, message_id: Any) -> None:
        self.told.failed.append(message_id)


class FromNow(ReplayableSpout):
    """Emits the numbers that come after its start."""

    outputs = ("value",)

    def __init__(self, last: Shared[list[int]], is_blocking: bool) -> None:
        self.last, self.told, self.blocking = last, AckFailTracker(), is_blocking  # type: ignore[misc]

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector, self.at = collector, -1

    def next_tuple(self) -> None:
        if self.at < 0:
            self.at = self.last.value[0]
            self.collector.keep_position("begun")
        elif self.at < self.last.value[0]:
            self.at += 1
            self.collector.emit((self.at,), self.at)

    def ack(self, message_id: Any) -> None:
        self.told.acked.append(message_id)

    def snapshot(self) -> Any:
        return self.at

    def restore(self, position: Any) -> None:
        self.at = position


@pytest.mark.parametrize("is_blocking", [False, True])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-most-once"])
def test_a_position_is_kept_before_anything_is_emitted(is_blocking: bool, guarantee: str) -> None:
    last = Shared([5])
    spout, capture, builder = FromNow(last, is_blocking), CaptureBolt(), TopologyBuilder()
    builder.set_spout("now", spout)
    builder.set_bolt("capture", capture, inputs="now")
    with running(builder.build(), {"topology.delivery.guarantee": guarantee}) as cluster:
        cluster.run_until(lambda: "begun" in spout.told.acked)
        cluster.advance(ms=50)  # untracked, an id comes back before the commit
        cluster.kill_worker("now")
        last.value[0] = 8
        cluster.run_until(lambda: len(capture.values) == 3)
    assert capture.values == [(6,), (7,), (8,)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_that_blocks_stops_nobody_else_in_its_worker(workers: int) -> None:
    blocked, free, capture, builder = FromQueue(), FeederSpout(), CaptureBolt(), TopologyBuilder()
    builder.set_spout("blocked", blocked)
    builder.set_spout("free", free)
    builder.set_bolt("capture", capture).global_grouping("blocked").global_grouping("free")
    with running(builder.build(), {"topology.workers": workers}) as cluster:
        for n in range(20):
            free.feed([n])
        cluster.run_until(lambda: len(free.acked) == 20)
        for value in "abc":
            blocked.queue.value.put(value)
        cluster.run_until(lambda: cluster.counts("blocked").acked == 3)

        def has_been_told() -> bool:
            if blocked.queue.value.empty():
                blocked.queue.value.put("d")  # callbacks wait for next_tuple to return
            return len(blocked.told.acked) >= 3

        cluster.run_until(has_been_told)
        assert capture.values_of("blocked")[:3] == [("a",), ("b",), ("c",)]
        assert blocked.threads.value == {"blocking-spout"}
        blocked.queue.value.put("end")


def test_what_a_blocking_source_raises_is_reported_and_its_half_emission_dropped() -> None:
    spout, capture = FromQueue(), CaptureBolt()
    with running(chain(spout, Pass(), capture)) as cluster:
        for value in ("a", OSError("went away"), "b"):
            spout.queue.value.put(value)
        cluster.run_until(lambda: len(capture.values) == 2)
        assert capture.values == [("a",), ("b",)]
        assert [error.text.partition(" (")[0] for error in cluster.errors] == ["OSError: went away"]
        spout.queue.value.put("end")


class Refused(Spout):
    """Raises whenever it is asked."""

    outputs = ("value",)
    blocking = True

    def next_tuple(self) -> None:
        raise PermissionError("no such user")


def test_a_blocking_source_that_always_raises_ends_the_run() -> None:
    with (
        running(chain(Refused(), Pass(), CaptureBolt())) as cluster,
        pytest.raises(
            WorkerFailedError, match="raised 10 times in a row: PermissionError: no such user"
        ),
    ):
        cluster.run_until(lambda: False, timeout_secs=20)


class Numbers(ReplayableSpout):
    """A finite source with a position, on a thread."""

    outputs = ("value",)
    blocking = True

    def __init__(self, most: int) -> None:
        self.most = most
        self.told = AckFailTracker()

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector, self.next = collector, 0

    def next_tuple(self) -> None:
        if self.next < self.most:
            self.next += 1
            self.collector.emit((self.next - 1,), message_id=("n", self.next - 1))

    def is_exhausted(self) -> bool:
        return self.next >= self.most

    def snapshot(self) -> Any:
        return self.next

    def restore(self, position: Any) -> None:
        self.next = position

    def extent(self) -> tuple[int, int]:
        return self.most, self.next

    def ack(self, message_id: Any) -> None:
        self.told.acked.append(message_id)


def has_acked(spout: Numbers, count: int) -> bool:
    return len(set(spout.told.acked)) >= count


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_a_replayable_blocking_source_counts_exactly_over_deaths(workers: int) -> None:
    spout, most = Numbers(2000), 2000
    with running(
        chain(spout, FlakyBolt(Count(), 0)),
        {"topology.workers": workers, "topology.max.spout.pending": 20},
    ) as cluster:
        for done in (100, 700, 1500):
            cluster.run_until(partial(has_acked, spout, done))
            cluster.kill_worker("spout")
        cluster.run_until(lambda: len(set(spout.told.acked)) == most)
        assert set(spout.told.acked) == {("n", n) for n in range(most)}
        assert cluster.counts("spout").acked == most
        assert cluster.counts("bolt").executed == most
        assert (
            cluster.topology()
            .progress()
            .counts_by_task[
                next(t for t, c in cluster.topology().component_by_task.items() if c == "spout")
            ]
            .total
        ) == most


def test_what_a_thread_may_not_emit_is_raised_in_the_thread() -> None:
    class Wrong(Numbers):
        def next_tuple(self) -> None:
            self.next += 1
            self.collector.emit((1, 2), message_id=1) if self.next == 1 else self.collector.emit(
                (1,), message_id=object()
            )

    with running(chain(Wrong(2), Pass())) as cluster:
        cluster.run_until(lambda: len(cluster.errors) == 2)
        assert "emitted 2 values for 1 field" in cluster.errors[0].text
        assert "message id: a value of type object" in cluster.errors[1].text


def test_an_inactive_blocking_source_is_not_asked() -> None:
    spout, capture = Numbers(10), CaptureBolt()
    with running(chain(spout, Pass(), capture), {"topology.max.spout.pending": 1}) as cluster:
        cluster.deactivate()
        cluster.advance(seconds=5)
        held_back = len(capture.values)
        assert held_back <= 1
        cluster.activate()
        cluster.run_until(lambda: len(capture.values) == 10)


class Slow(Spout):
    """Speaks when it may, and then ends, or never does."""

    outputs = ("value",)
    blocking = True

    def __init__(self, rows: int, has_end: bool = True) -> None:
        self.rows, self.has_end = rows, has_end
        self.is_asked: Shared[threading.Event] = Shared(threading.Event())
        self.may_speak: Shared[threading.Event] = Shared(threading.Event())

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector
        self.at = 0

    def next_tuple(self) -> None:
        self.is_asked.value.set()
        assert self.may_speak.value.wait(60)
        if self.at < self.rows:
            self.at += 1
            self.collector.emit((self.at,), self.at)

    def is_exhausted(self) -> bool:
        return self.has_end and self.at == self.rows


def test_a_blocking_source_that_has_not_spoken_is_waited_for() -> None:
    spout = Slow(1000)
    builder = TopologyBuilder()
    builder.set_spout("slow", spout)

    def speak() -> None:
        assert spout.is_asked.value.wait(60)
        # not a moment that the test depends on: time for a run to end that does not wait
        assert not spout.may_speak.value.wait(0.2)
        spout.may_speak.value.set()

    speaking = threading.Thread(target=speak)
    speaking.start()
    try:
        assert complete_topology(builder.build())["slow"] == [(n,) for n in range(1, 1001)]
    finally:
        speaking.join(60)


def test_a_blocking_source_without_an_end_is_named_and_its_rows_are_there() -> None:
    spout, capture = Slow(20, has_end=False), CaptureBolt()
    spout.may_speak.value.set()
    with running(chain(spout, Pass(), capture), thread_patience_secs=0.5) as cluster:
        with pytest.raises(TimeoutError, match=r"spout#\d has been silent for 0\.5 s"):
            cluster.run_until_idle()
        assert len(capture.values) == 20
