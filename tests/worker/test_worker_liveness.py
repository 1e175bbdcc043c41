"""Attacks on the loop: steps that never end, trees that are never given up, stores that cannot be
drained.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import Spout, Tuple
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.manual_runner import ManualRunner
from sparkstorm.data_plane.transport.frames import encode_rows
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster, PoisonBolt, Shared
from sparkstorm.testing.simulation import spend
from tests.topologies import Count, feed, ran, running
from tests.worker.building import Collecting, Hoards, Pass, chain


class LongestStep:
    """The longest that any worker was busy with one step, in simulated time."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.ms = 0
        self._cluster = cluster
        cluster.simulation.watchers.append(self._look)

    def _look(self) -> None:
        now_ms = self._cluster.now_ms
        self.ms = max(
            [self.ms, *(w.clock.busy_until_ms - now_ms for w in self._cluster.topology().workers)]
        )


def test_a_slow_source_does_not_keep_its_worker_from_committing() -> None:
    class Slow(Spout):
        outputs = ("value",)

        def open(self, conf: Any, context: Any, collector: Any) -> None:
            self.collector = collector

        def next_tuple(self) -> None:
            spend(100)
            self.collector.emit((1,), message_id=1)

    capture = CaptureBolt()
    with running(chain(Slow(), Pass(), capture), {"topology.workers": 3}) as cluster:
        longest = LongestStep(cluster)
        cluster.advance(seconds=10)
        assert longest.ms <= 1000
        assert len(capture.values) >= 50


def test_a_source_that_emits_much_per_call_does_not_fill_an_epoch_without_bounds() -> None:
    class Floods(Spout):
        outputs = ("value",)

        def open(self, conf: Any, context: Any, collector: Any) -> None:
            self.collector = collector

        def next_tuple(self) -> None:
            spend(1)
            for _ in range(100):
                self.collector.emit((1,))

    with running(
        chain(Floods(), Pass()), {"topology.workers": 2, "topology.epoch.rows": 200}
    ) as cluster:
        longest = LongestStep(cluster)
        cluster.advance(seconds=1)
        assert longest.ms <= 60


def test_many_held_inputs_of_a_slow_bolt_are_redelivered_epoch_by_epoch() -> None:
    """All of them at once would be one step of a hundred seconds: the slot would kill the silent
    worker, again and again.
    """

    class Slow(Collecting):
        outputs: Any = ()

        def __init__(self) -> None:
            self.order: Shared[list[Any]] = Shared([])

        def execute(self, tup: Tuple) -> None:
            self.order.value.append(tup[0])
            spend(1000)

    spout, bolt = FeederSpout(), Slow()
    with running(
        chain(spout, bolt), {"topology.workers": 2, "topology.message.timeout.secs": 3000}
    ) as cluster:
        feed(spout, range(100))
        cluster.advance(seconds=120)
        assert len(bolt.order.value) == 100
        bolt.order.value.clear()
        cluster.kill_worker("bolt")
        spout.feed(["later"])
        longest = LongestStep(cluster)
        cluster.advance(seconds=150)
        assert longest.ms <= 5000
        assert bolt.order.value == [*range(100), "later"]


def test_a_thread_that_posts_without_end_does_not_keep_the_loop() -> None:
    runner = ManualRunner(
        Collecting(), Emitter("bolt", {}, is_strict=True), None, 1, lambda *_: None, lambda: None
    )
    done: list[int] = []

    def again() -> None:
        done.append(1)
        if len(done) < 1000:
            runner.post(again)

    runner.post(again)
    runner.take_posts()
    assert len(done) == 1
    assert runner.has_posts


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_what_a_blocking_bolt_forgets_to_ack_times_out_though_nothing_else_happens(
    guarantee: str,
) -> None:
    class Forgets(Collecting):
        outputs: Any = ()
        blocking = True

        def execute(self, tup: Tuple) -> None:
            pass

    spout = FeederSpout()
    with LocalCluster() as cluster:
        conf = {
            "topology.workers": 3,
            "topology.max.spout.pending": 1,
            "topology.delivery.guarantee": guarantee,
        }
        cluster.submit(chain(spout, Forgets()), conf)
        spout.feed([1])
        spout.feed([2])
        cluster.advance(seconds=100)
        assert spout.failed == [0, 1]


# -- a store that is full


@pytest.mark.parametrize("delay_ms", [0, 3000])
def test_a_worker_that_starts_on_a_full_store_drains_it_though_its_spout_is_first(
    delay_ms: int,
) -> None:
    """Return what its spout emits must queue behind what lies in the stream, and only this worker
    can free that.
    """
    spout = FeederSpout()
    with running(chain(spout, Count()), store_max_bytes=5 * 1024) as cluster:
        topology = cluster.topology()
        tasks = {component: task for task, component in topology.component_by_task.items()}
        cluster.advance(ms=10)
        keys = topology.store.task(tasks["bolt"])
        source = Source("spout", tasks["spout"], "default", ("value",))
        keys.stream.append(
            (1, encode_rows(Codec(), "default", 0, [((n,), 0, source) for n in range(2000)]))
        )
        keys.last_number, keys.backlog = 1, len(keys.stream[0][1])
        assert topology.store.used_bytes() > 5 * 1024
        cluster.kill_worker()
        topology.arrivals.delay(tasks["bolt"], 1, cluster.now_ms + delay_ms)
        spout.feed(["a"])
        cluster.advance(seconds=30)
        assert len(cluster.state("bolt")) == 2001
        assert spout.acked == [0]


def test_a_bolt_that_emits_for_what_it_held_gets_through_a_full_store() -> None:
    class Batches(Hoards):
        """Emits when the clock says so: such a commit moves no cursor."""

        outputs = ("value",)

        def let_go(self, tup: Tuple) -> None:
            self.collector.emit((tup[0],), tup)
            super().let_go(tup)

    spout = FeederSpout()
    with running(
        chain(spout, Batches(), CaptureBolt(), bolt_conf={"topology.tick.tuple.freq.secs": 10}),
        {"topology.workers": 4},
        store_max_bytes=10 * 1024,
    ) as cluster:
        feed(spout, range(5))
        cluster.advance(seconds=1)
        # of somebody who does not come back
        cluster.topology().store.task(99).stream.append((1, bytes(11 * 1024)))
        cluster.advance(seconds=29)
        assert spout.acked == [0, 1, 2, 3, 4]


def test_after_a_poison_tuple_was_parked_rows_go_from_hand_to_hand_again() -> None:
    spout = FeederSpout()
    with ran(
        chain(spout, PoisonBolt(lambda tup: tup[0] == "bad")), spout, ("a", "bad", "b")
    ) as cluster:
        assert spout.failed == [1]
        worker = cluster.topology().workers[0].worker
        assert worker is not None
        assert [bolt.older_entries.remain for bolt in worker.task_set.bolts.values()] == [False]
