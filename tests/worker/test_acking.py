"""Tracking end to end (S1.*): trees, anchors, timeouts, forgotten acks, the limit of pending
messages.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.common.model.failure import Failure
from sparkstorm.data_plane.acking.pending import Pending
from sparkstorm.data_plane.acking.pending_limit import FIRST
from sparkstorm.testing import CaptureBolt, FeederSpout, Nothing, SlowBolt
from tests.topologies import feed, ran, running
from tests.worker.building import Collecting, Hoards, Pass, chain

WORKERS = pytest.mark.parametrize("workers", [1, 2, 4])


@pytest.fixture(params=[1, 512], autouse=True, ids=lambda size: f"batches of {size}")
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Everything here holds for trees in batches as for each by itself."""
    monkeypatch.setattr(Pending, "batch_size", lambda self, most: min(most, request.param))
    return int(request.param)


def conf(workers: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "topology.workers": workers,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


class Fan(BasicBolt):
    """Three tuples for one."""

    outputs = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for _ in range(3):
            collector.emit((tup[0],))


@WORKERS
def test_a_tree_is_acked_once_when_all_of_it_is_done(workers: int) -> None:
    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("fan", Fan(), 2).shuffle_grouping("spout")
    builder.set_bolt("fan2", Fan(), 2).shuffle_grouping("fan")
    builder.set_bolt("end", Nothing(), 3).all_grouping("fan2")
    with ran(builder.build(), spout, range(40), conf(workers), seed=workers) as cluster:
        assert sorted(spout.acked) == list(range(40))
        assert spout.tracker.settled_once
        assert not spout.failed
        assert cluster.counts("end").executed == 40 * 9 * 3


class Join(Collecting):
    """Holds an input until the next one comes, then emits one tuple anchored to both and acks
    both.
    """

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        super().prepare(conf, context, collector)
        self.first: Tuple | None = None

    def execute(self, tup: Tuple) -> None:
        if self.first is None:
            self.first = tup
            return
        first, self.first = self.first, None
        self.collector.emit((f"{first[0]}+{tup[0]}",), anchors=[first, tup])
        self.collector.ack(first)
        self.collector.ack(tup)


class FailOn(BasicBolt):
    """Fails one value for ever."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup[0] == self.value:
            raise ValueError(f"no {self.value}")


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@WORKERS
def test_when_a_tuple_with_two_anchors_fails_both_trees_fail(workers: int, guarantee: str) -> None:
    spout = FeederSpout()
    with running(
        chain(spout, Join(), FailOn("a+b")),
        {**conf(workers), "topology.delivery.guarantee": guarantee},
    ) as cluster:
        for name in "abcd":
            spout.feed([name], message_id=name)
            cluster.advance(ms=500)
        cluster.run_until_idle()
        assert (sorted(spout.acked), sorted(spout.failed)) == (["c", "d"], ["a", "b"])


class Forgetful(Collecting):
    """Never acks one value, acks the rest."""

    def __init__(self, value: Any) -> None:
        self.value = value

    outputs = ()

    def execute(self, tup: Tuple) -> None:
        if tup[0] != self.value:
            self.collector.ack(tup)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@WORKERS
def test_a_forgotten_ack_times_out_after_thirty_seconds_and_not_before(
    workers: int, guarantee: str
) -> None:
    spout = FeederSpout()
    with running(
        chain(spout, Forgetful("lost")), {**conf(workers), "topology.delivery.guarantee": guarantee}
    ) as cluster:
        spout.feed(["lost"], message_id="lost")
        spout.feed(["kept"], message_id="kept")
        cluster.advance(seconds=29.9)
        assert (spout.acked, spout.failed) == (["kept"], [])
        cluster.advance(seconds=1.2)
        assert (spout.acked, spout.failed) == (["kept"], ["lost"])
        assert cluster.counts("spout").failed == 1
        cluster.advance(seconds=300)
        assert spout.failed == ["lost"]


@WORKERS
def test_a_failure_is_told_without_a_timeout(workers: int) -> None:
    spout = FeederSpout()
    settings = {
        "topology.delivery.guarantee": "at-least-once",
        "topology.enable.message.timeouts": False,
        "topology.max.retries": 0,
    }
    with running(chain(spout, FailOn("lost")), {**conf(workers), **settings}) as cluster:
        for name in ("lost", "kept"):
            spout.feed([name], message_id=name)
            cluster.advance(ms=500)
        cluster.run_until_idle()
        assert (spout.acked, spout.failed) == (["kept"], ["lost"])


def test_the_timeout_is_a_key_and_can_be_turned_off() -> None:
    for settings, failed in (
        ({"topology.message.timeout.secs": 2}, ["x"]),
        ({"topology.enable.message.timeouts": False}, []),
    ):
        spout = FeederSpout()
        with running(chain(spout, Forgetful("x")), settings) as cluster:
            spout.feed(["x"], message_id="x")
            cluster.advance(seconds=120)
            assert spout.failed == failed


@WORKERS
def test_a_late_ack_of_a_timed_out_tree_changes_nothing(workers: int) -> None:
    spout = FeederSpout()
    with running(
        chain(spout, Hoards(), bolt_conf={"topology.tick.tuple.freq.secs": 60}), conf(workers)
    ) as cluster:
        spout.feed([1])
        cluster.advance(seconds=59)
        assert spout.failed == [0]
        cluster.advance(seconds=120)
        assert (spout.acked, spout.failed) == ([], [0])
        cluster.run_until_idle()


@pytest.mark.sampled
@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@WORKERS
def test_a_tuple_that_waits_is_not_a_failed_tuple(workers: int, guarantee: str) -> None:
    spout = FeederSpout()
    with running(
        chain(spout, SlowBolt(1000, Pass())),
        {**conf(workers), "topology.delivery.guarantee": guarantee},
    ) as cluster:
        feed(spout, range(120))
        cluster.advance(seconds=60)  # the last ones wait for two minutes, four times the timeout
        assert 0 < len(spout.acked) < 120
        cluster.advance(seconds=90)
        assert sorted(spout.acked) == list(range(120))
        assert not spout.failed


def test_a_tuple_that_waits_behind_a_slow_bolt_two_hops_on_is_not_failed_either() -> None:
    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("fan", Fan()).shuffle_grouping("spout")
    builder.set_bolt("slow", SlowBolt(500)).shuffle_grouping("fan")
    with ran(builder.build(), spout, range(60), conf(3)):
        assert sorted(spout.acked) == list(range(60))
        assert not spout.failed


def test_untracked_tuples_are_neither_acked_nor_failed() -> None:
    spout, capture = FeederSpout(is_tracked=False), CaptureBolt()
    with running(chain(spout, Pass(), capture), conf(2)) as cluster:
        spout.feed([1])
        cluster.advance(seconds=60)
        assert capture.values == [(1,)]
        assert (spout.acked, spout.failed) == ([], [])


@pytest.mark.parametrize(
    "settings", [{"topology.acker.executors": 0}, {"topology.delivery.guarantee": "at-most-once"}]
)
def test_without_ackers_a_tracked_tuple_is_acked_at_once(settings: dict[str, Any]) -> None:
    spout = FeederSpout()
    with running(chain(spout, Forgetful(1)), settings) as cluster:
        spout.feed([1])
        cluster.advance(seconds=60)
        assert (spout.acked, spout.failed) == ([0], [])


def test_what_an_ack_emitted_before_it_raised_is_not_acked_without_its_row() -> None:
    class EmitsAndRaises(FeederSpout):
        def open(self, conf: Any, context: Any, collector: Any) -> None:
            super().open(conf, context, collector)
            self.collector = collector

        def ack(self, message_id: Any) -> None:
            super().ack(message_id)
            if message_id == 0:
                self.collector.emit((99,), "again")
                raise ValueError("not now")

    spout, capture = EmitsAndRaises(), CaptureBolt()
    with running(chain(spout, Pass(), capture), {"topology.acker.executors": 0}) as cluster:
        spout.feed([1])
        cluster.advance(seconds=5)
        assert (capture.values, spout.acked) == ([(1,)], [0])


@pytest.mark.parametrize(("limit", "most"), [(5, 5), ("auto", FIRST)])
@WORKERS
def test_no_more_than_max_spout_pending_trees_are_open(
    workers: int, limit: int | str, most: int
) -> None:
    spout = FeederSpout()
    with running(
        chain(spout, Hoards(), bolt_conf={"topology.tick.tuple.freq.secs": 10}),
        {**conf(workers), "topology.max.spout.pending": limit},
    ) as cluster:
        feed(spout, range(most + 7))
        cluster.advance(seconds=9)
        assert cluster.counts("bolt").executed == most
        cluster.advance(seconds=10)
        assert len(spout.acked) == most
        cluster.run_until_idle()
        assert sorted(spout.acked) == list(range(most + 7))


class Replays(FeederSpout):
    """Emits a failed message again from within fail()."""

    def next_tuple(self) -> None:
        super().next_tuple()

    def fail(self, message_id: Any, failure: Failure | None = None) -> None:
        super().fail(message_id, failure)
        self._collector.emit(self._feed.value[message_id][0], message_id=message_id)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_spout_emits_in_fail_is_tracked_like_anything_else(workers: int) -> None:
    class FailTwice(Collecting):
        outputs = ()

        def prepare(self, conf: Any, context: TopologyContext, collector: Any) -> None:
            super().prepare(conf, context, collector)
            self.tries = 0

        def execute(self, tup: Tuple) -> None:
            self.tries += 1
            if self.tries <= 2:
                self.collector.fail(tup, "not yet")
            else:
                self.collector.ack(tup)

    spout = Replays()
    with ran(
        chain(spout, FailTwice()),
        spout,
        ["x"],
        {**conf(workers), "topology.delivery.guarantee": "at-least-once"},
    ) as cluster:
        assert (spout.failed, spout.acked) == ([0, 0], [0])
        assert cluster.counts("spout").failed == 2


class Loop(BasicBolt):
    """Sends a number less one round again until it is 0."""

    outputs = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup[0]:
            collector.emit((tup[0] - 1,))


class Together(FeederSpout):
    """Emits two tuples a call: they are one batch."""

    def next_tuple(self) -> None:
        super().next_tuple()
        super().next_tuple()


@pytest.mark.parametrize(("split_ms", "is_split"), [(500, True), (60_000, False)])
def test_a_tuple_in_a_loop_keeps_its_batch_waiting_until_it_is_late(
    split_ms: int, is_split: bool, batches: int
) -> None:
    spout, builder = Together(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("loop", SlowBolt(100, Loop())).shuffle_grouping("spout").shuffle_grouping(
        "loop"
    )
    with running(
        builder.build(), {**conf(2), "topology.acker.batch.split.ms": split_ms}
    ) as cluster:
        spout.feed([60])
        spout.feed([0])
        cluster.advance(seconds=4)
        assert spout.acked == ([1] if is_split or batches == 1 else [])
        cluster.run_until_idle()
        assert sorted(spout.acked) == [0, 1]


class Ids(Spout):
    """Emits with message ids of many kinds."""

    outputs = ("value",)

    def __init__(self, ids: list[Any]) -> None:
        self.ids = ids
        self.told = FeederSpout().tracker

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector, self.next = collector, 0

    def next_tuple(self) -> None:
        if not self.is_exhausted():
            self.next += 1
            self.collector.emit((self.next,), message_id=self.ids[self.next - 1])

    def is_exhausted(self) -> bool:
        return self.next == len(self.ids)

    def ack(self, message_id: Any) -> None:
        self.told.acked.append(message_id)


@pytest.mark.parametrize("workers", [1, 3])
def test_message_ids_come_back_as_they_were_given_even_to_a_later_owner(workers: int) -> None:
    ids = [0, "text", ("topic", 3, ("deep", 1)), 1.5, b"bytes", False]
    spout = Ids(ids)
    with running(chain(spout, SlowBolt(1000)), conf(workers)) as cluster:
        cluster.advance(ms=20)
        cluster.kill_worker("spout")
        cluster.run_until_idle()
        assert set(spout.told.acked) == set(ids)


def test_a_message_id_without_bytes_is_named() -> None:
    spout = Ids([object()])
    with running(chain(spout, Nothing())) as cluster:
        cluster.advance(seconds=1)
        assert "component 'spout', message id: a value of type object" in cluster.errors[0].text


def test_complete_latency_is_measured_in_simulated_time() -> None:
    spout = FeederSpout()
    with ran(chain(spout, SlowBolt(1000)), spout, [1], conf(2)) as cluster:
        buckets = cluster.topology().progress().latency_buckets
        assert sum(buckets.values()) == 1
        assert next(iter(buckets)) >= 79  # 8 buckets per doubling: a second is in the 80th


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_trees_whose_acks_wait_for_a_dead_acker_do_not_time_out(guarantee: str) -> None:
    spout = FeederSpout()
    with running(
        chain(spout, Nothing()),
        {
            "topology.workers": 3,
            "topology.acker.executors": 1,
            "topology.delivery.guarantee": guarantee,
        },
        supervisors=3,
        slots=1,
    ) as cluster:
        acker = cluster.topology().worker_of("__acker")
        assert acker is not cluster.topology().worker_of("spout")
        acker.bury(-9, "its machine is lost", restart_ms=120_000)
        feed(spout, range(10))
        cluster.advance(seconds=100)
        assert cluster.counts("bolt").executed == 10
        assert (spout.acked, spout.failed) == ([], [])
        cluster.run_until_idle()
        assert sorted(spout.acked) == list(range(10))
        assert not spout.failed


@pytest.mark.parametrize("dead", ["bolt", "capture"])
def test_trees_that_wait_for_a_dead_bolt_do_not_time_out(dead: str) -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    with running(
        chain(spout, Pass(), capture),
        {"topology.workers": 4, "topology.acker.executors": 1},
        supervisors=4,
        slots=1,
    ) as cluster:
        worker = cluster.topology().worker_of(dead)
        assert worker is not cluster.topology().worker_of("spout")
        worker.bury(-9, "its machine is lost", restart_ms=200_000)
        feed(spout, range(10))
        cluster.run_until_idle()
        assert sorted(capture.values) == [(n,) for n in range(10)]
        assert not spout.failed


def test_a_tree_that_waits_for_its_next_try_does_not_time_out() -> None:
    spout = FeederSpout()
    with running(
        chain(spout, FailOn("x")),
        {"topology.workers": 2, "topology.max.retries": 5, "topology.retry.backoff.ms": 20_000},
    ) as cluster:
        spout.feed(["x"])
        cluster.advance(seconds=45)
        assert not spout.failed
        cluster.run_until_idle()
        assert [letter.attempts for letter in cluster.dead_letters] == [6]


def test_the_watermark_of_a_worker_that_lost_its_tasks_holds_nobody_back() -> None:
    failing, forgotten, builder = FeederSpout(), FeederSpout(), TopologyBuilder()
    builder.set_spout("failing", failing)
    builder.set_spout("forgotten", forgotten)
    builder.set_bolt("fails", FailOn("x")).shuffle_grouping("failing")
    builder.set_bolt("forgets", Forgetful("y")).shuffle_grouping("forgotten")
    with running(
        builder.build(),
        {"topology.workers": 4, "topology.max.retries": 2, "topology.retry.backoff.ms": 5_000},
        supervisors=4,
        slots=1,
    ) as cluster:
        failing.feed(["x"], message_id="x")
        cluster.advance(seconds=1)  # its next try holds the watermark of the worker that has it
        cluster.rebalance(workers=1, reassign=True)
        cluster.advance(seconds=60)
        assert failing.failed == ["x"]
        forgotten.feed(["y"])
        cluster.advance(seconds=32)
        assert forgotten.failed == [0]
