"""Attacks through threads: outcomes taken apart, threads that die, orders that arrive where nobody
expects them.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, Stateful, TopologyBuilder, Tuple
from sparkstorm.api.components import GatheringBolt
from sparkstorm.testing import CaptureBolt, FeederSpout, Shared
from tests.topologies import feed, ran, running
from tests.worker.building import Collecting, chain


class Counting(Stateful, Collecting):
    """A blocking bolt with state that emits and puts before it fails or acks."""

    blocking = True

    def __init__(self, failures: int) -> None:
        self.tries: Shared[int] = Shared(0)
        self._failures = failures

    def execute(self, tup: Tuple) -> None:
        self.state.put(tup[0], self.state.get(tup[0], 0) + 1)
        self.collector.emit((tup[0],), tup)
        self.tries.value += 1
        if self.tries.value <= self._failures:
            self.collector.fail(tup, "not yet")
        else:
            self.collector.ack(tup)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_a_blocking_bolt_did_before_it_failed_an_input_is_undone(workers: int) -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    with ran(
        chain(spout, Counting(2), capture), spout, ["a"], {"topology.workers": workers}
    ) as cluster:
        assert capture.values == [("a",)]
        assert cluster.state("bolt") == {"a": 1}
        assert spout.acked == [0]


def test_an_input_whose_thread_is_cancelled_fails_and_the_thread_goes_on() -> None:
    class Cancelled(BasicBolt):
        blocking = True

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            if tup[0] == "bad":
                raise asyncio.CancelledError

    spout = FeederSpout()
    with running(
        chain(spout, Cancelled()), {"topology.max.retries": 1}, thread_patience_secs=1
    ) as cluster:
        for value in ("a", "bad", "b"):
            spout.feed([value], message_id=value)
        cluster.run_until(lambda: len(spout.acked) == 2 and bool(spout.failed))
        assert (sorted(spout.acked), spout.failed) == (["a", "b"], ["bad"])


class Nowhere:
    """A custom grouping that names a task that does not listen."""

    def choose_tasks(self, task: int, values: Any) -> list[int]:
        return [4711]


@pytest.mark.parametrize("from_where", ["blocking", "another thread"])
def test_a_grouping_that_raises_for_a_threads_emission_fails_the_input_and_kills_nobody(
    from_where: str,
) -> None:
    class Blocks(Collecting):
        blocking = from_where == "blocking"

        def execute(self, tup: Tuple) -> None:
            if from_where == "blocking":
                self._emit(tup)
            else:
                threading.Thread(target=self._emit, args=(tup,)).start()

        def _emit(self, tup: Tuple) -> None:
            self.collector.emit((tup[0],), tup)
            self.collector.ack(tup)

    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("bolt", Blocks()).shuffle_grouping("spout")
    builder.set_bolt("capture", CaptureBolt()).custom_grouping("bolt", Nowhere())
    with running(
        builder.build(),
        {"topology.max.retries": 1, "topology.delivery.guarantee": "exactly-once"},
        thread_patience_secs=1,
    ) as cluster:
        spout.feed([1])
        cluster.run_until(lambda: bool(spout.failed))
        assert not any(worker.deaths for worker in cluster.topology().workers)
        assert "task 4711" in cluster.dead_letters[0].reason


def test_a_blocking_bolt_acts_on_what_it_has_gathered_when_no_row_waits() -> None:
    """Also after its method has raised once: the inputs wait for the next turn."""

    class Gathers(Collecting, GatheringBolt):
        has_enough = False

        def __init__(self) -> None:
            self.sizes: Shared[list[int]] = Shared([])

        def prepare(self, conf: Any, context: Any, collector: Any) -> None:
            super().prepare(conf, context, collector)
            self.gathered: list[Tuple] = []

        def execute(self, tup: Tuple) -> None:
            self.gathered.append(tup)
            self.has_enough = len(self.gathered) >= 4

        def end_turn(self) -> None:
            self.sizes.value.append(len(self.gathered))
            if len(self.sizes.value) == 1:
                raise ValueError("not in this turn")
            for tup in self.gathered:
                self.collector.emit((tup[0],), tup)
                self.collector.ack(tup)
            self.gathered = []

    spout, bolt, capture = FeederSpout(), Gathers(), CaptureBolt()
    with running(chain(spout, bolt, capture)) as cluster:
        feed(spout, range(2))
        cluster.run_until(lambda: bool(cluster.errors))
        assert "not in this turn" in cluster.errors[0].text
        feed(spout, range(2, 12))
        cluster.run_until_idle()
        assert capture.values == [(value,) for value in range(12)]
        assert len(spout.acked) == 12
        # never more than it wants, but for those that a failed turn has left
        assert max(bolt.sizes.value) <= 4


def test_a_method_of_a_users_bolt_that_is_named_end_turn_is_not_called() -> None:
    class Game(Collecting):
        blocking = True

        def execute(self, tup: Tuple) -> None:
            self.collector.emit((tup[0],), tup)
            self.collector.ack(tup)

        def end_turn(self) -> None:
            raise AssertionError("called")

    spout, capture = FeederSpout(), CaptureBolt()
    with ran(chain(spout, Game(), capture), spout, [1]) as cluster:
        assert capture.values == [(1,)] and not cluster.errors


def test_what_another_thread_emits_for_an_open_input_leaves_with_its_ack() -> None:
    """Otherwise a crash between the two would have the input executed again, and the emission made
    twice.
    """
    may_ack: Shared[threading.Event] = Shared(threading.Event())
    has_emitted: Shared[threading.Event] = Shared(threading.Event())

    class Asks(Collecting):
        def execute(self, tup: Tuple) -> None:
            threading.Thread(target=self._answer, args=(tup,)).start()

        def _answer(self, tup: Tuple) -> None:
            self.collector.emit((tup[0],), tup)
            has_emitted.value.set()
            may_ack.value.wait(60)
            self.collector.ack(tup)

    spout, capture = FeederSpout(), CaptureBolt()
    with running(
        chain(spout, Asks(), capture), {"topology.workers": 2}, thread_patience_secs=0
    ) as cluster:
        spout.feed(["a"])
        cluster.run_until(has_emitted.value.is_set)
        cluster.advance(seconds=1)
        cluster.kill_worker("bolt")
        has_emitted.value.clear()
        cluster.run_until(has_emitted.value.is_set)
        may_ack.value.set()
        cluster.run_until(lambda: bool(spout.acked))
        cluster.advance(seconds=1)
        assert capture.values == [("a",)]


def test_what_another_thread_emits_for_an_input_that_it_then_fails_is_dropped() -> None:
    class Fails(Collecting):
        def __init__(self) -> None:
            self.tries: Shared[int] = Shared(0)

        def execute(self, tup: Tuple) -> None:
            self.tries.value += 1
            threading.Thread(target=self._answer, args=(tup, self.tries.value)).start()

        def _answer(self, tup: Tuple, tries: int) -> None:
            self.collector.emit((tries,), tup)
            (self.collector.fail if tries < 3 else self.collector.ack)(tup)

    spout, capture = FeederSpout(), CaptureBolt()
    with running(
        chain(spout, Fails(), capture), {"topology.workers": 2}, thread_patience_secs=0
    ) as cluster:
        spout.feed(["a"])
        cluster.run_until(lambda: bool(spout.acked))
        cluster.advance(seconds=1)
        assert capture.values == [(3,)]


def test_an_ack_from_a_third_thread_does_not_wait_for_what_the_bolts_own_thread_does_next() -> None:
    """A blocking bolt whose helpers ack: their orders belong to no execute of its thread."""
    has_returned: Shared[threading.Event] = Shared(threading.Event())

    class Delegates(Collecting):
        outputs: Any = ()
        blocking = True

        def execute(self, tup: Tuple) -> None:
            threading.Thread(target=self._ack, args=(tup,)).start()

        def _ack(self, tup: Tuple) -> None:
            has_returned.value.wait(60)
            self.collector.ack(tup)

    spout = FeederSpout()
    with running(chain(spout, Delegates()), thread_patience_secs=1) as cluster:
        spout.feed(["a"], message_id="a")
        cluster.advance(seconds=1)
        has_returned.value.set()
        cluster.run_until(lambda: bool(spout.acked))
