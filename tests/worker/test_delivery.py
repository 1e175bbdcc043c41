"""The three guarantees: what becomes of inputs that fail, of what they emitted and of what they
put.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    Stateful,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
    fields,
)
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.testing import CaptureBolt, FeederSpout, FlakyBolt, LocalCluster, Shared
from tests.topologies import Count, Split, ran, running
from tests.worker.building import Collecting, Pass, chain

WORKERS = pytest.mark.parametrize("workers", [1, 2, 4])


def conf(guarantee: str, workers: int = 1, **more: Any) -> dict[str, Any]:
    return {"topology.delivery.guarantee": guarantee, "topology.workers": workers, **more}


class EmitThenRaise(StatefulBolt):
    """Emits and puts, then raises on odd values, the first `times` times."""

    outputs = ("value",)

    def __init__(self, times: int) -> None:
        self.times = times
        self.tries: Shared[dict[Any, int]] = Shared({})

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        tries = self.tries.value
        tries[tup[0]] = tries.get(tup[0], 0) + 1
        collector.emit((tup[0],))
        collector.emit((tup[0],))
        self.state.put(tup[0], self.state.get(tup[0], 0) + 1)
        if tup[0] % 2 and tries[tup[0]] <= self.times:
            raise ValueError(f"odd {tup[0]}")


@WORKERS
@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_what_a_failed_execute_emitted_and_put_is_undone(workers: int, guarantee: str) -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    with ran(
        chain(spout, EmitThenRaise(99), capture), spout, range(10), conf(guarantee, workers)
    ) as cluster:
        assert sorted(capture.values) == sorted((n,) for n in range(0, 10, 2) for _ in range(2))
        assert cluster.state("bolt") == dict.fromkeys(range(0, 10, 2), 1)
        assert cluster.counts("bolt").emitted == 10


@pytest.mark.parametrize(
    ("guarantee", "acked", "failed"),
    [("at-most-once", [0, 1, 2, 3], []), ("at-least-once", [0, 2], [1, 3])],
)
@WORKERS
def test_without_exactly_once_an_input_is_tried_once_and_counted(
    workers: int, guarantee: str, acked: list[int], failed: list[int]
) -> None:
    """Dropped at most once; at least once its tree fails, and the spout may emit it again."""
    spout, bolt = FeederSpout(), EmitThenRaise(99)
    with ran(chain(spout, bolt), spout, range(4), conf(guarantee, workers)) as cluster:
        assert bolt.tries.value == {0: 1, 1: 1, 2: 1, 3: 1}
        assert cluster.counts("bolt").failed == 2
        assert (sorted(spout.acked), sorted(spout.failed)) == (acked, failed)
        assert not cluster.dead_letters


@WORKERS
def test_exactly_once_tries_again_until_it_works(workers: int) -> None:
    spout, capture, bolt = FeederSpout(), CaptureBolt(), EmitThenRaise(2)
    with ran(
        chain(spout, bolt, capture), spout, range(4), conf("exactly-once", workers)
    ) as cluster:
        assert bolt.tries.value == {0: 1, 1: 3, 2: 1, 3: 3}
        assert sorted(capture.values) == sorted((n,) for n in range(4) for _ in range(2))
        assert cluster.state("bolt") == {0: 1, 1: 1, 2: 1, 3: 1}
        assert (sorted(spout.acked), spout.failed) == ([0, 1, 2, 3], [])


@WORKERS
def test_exactly_once_parks_after_the_last_try_and_only_then_fails_the_tree(workers: int) -> None:
    spout, bolt = FeederSpout(), EmitThenRaise(99)
    settings = conf(
        "exactly-once", workers, **{"topology.max.retries": 2, "topology.retry.backoff.ms": 1000}
    )
    with running(chain(spout, bolt), settings) as cluster:
        spout.feed([1], message_id="one")
        cluster.advance(ms=900)
        assert (bolt.tries.value, spout.failed) == ({1: 1}, [])
        cluster.advance(ms=1000)
        assert (bolt.tries.value, spout.failed) == ({1: 2}, [])
        cluster.advance(ms=1000)
        assert (bolt.tries.value, spout.failed) == ({1: 2}, [])  # the pause has doubled
        cluster.advance(ms=1200)
        assert (bolt.tries.value, spout.failed) == ({1: 3}, ["one"])
        (letter,) = cluster.dead_letters
        assert letter.component == "bolt"
        assert letter.source_component == "spout"
        assert letter.stream == "default"
        assert (letter.fields, letter.values, letter.attempts) == (("value",), (1,), 3)
        assert re.fullmatch(r"ValueError: odd 1 \(test_delivery\.py, line \d+\)", letter.reason)
        assert cluster.counts("bolt").parked == 1
        assert any(
            "parked after 3 tries: ValueError: odd 1" in error.text for error in cluster.errors
        )


def test_no_retries_means_parked_at_once() -> None:
    spout, bolt = FeederSpout(), EmitThenRaise(99)
    with running(
        chain(spout, bolt), conf("exactly-once", 1, **{"topology.max.retries": 0})
    ) as cluster:
        spout.feed([1])
        cluster.advance(ms=10)
        assert (bolt.tries.value, spout.failed, len(cluster.dead_letters)) == ({1: 1}, [0], 1)
        assert any("parked after 1 try: ValueError" in error.text for error in cluster.errors)


class Always(BasicBolt):
    """Raises on every tuple."""

    outputs = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        raise RuntimeError("always")


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_a_bolt_that_raises_on_every_tuple_stops_nobody_else(guarantee: str) -> None:
    spout, capture, builder = FeederSpout(), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("bad", Always()).shuffle_grouping("spout")
    builder.set_bolt("good", capture).shuffle_grouping("spout")
    with ran(builder.build(), spout, range(20), conf(guarantee, 2)) as cluster:
        assert sorted(capture.values) == [(n,) for n in range(20)]
        assert len(cluster.dead_letters) == (20 if guarantee == "exactly-once" else 0)
        assert not any(worker.deaths for worker in cluster.topology().workers)
        assert {error.component for error in cluster.errors} == {"bad"}


@pytest.mark.parametrize("kind", ["prepare", "open", "init_state"])
def test_a_component_that_cannot_be_prepared_is_named(kind: str) -> None:
    class BadPrepare(Pass):
        def prepare(self, conf: Any, context: Any) -> None:
            raise OSError("no such device")

    class BadOpen(FeederSpout):
        def open(self, conf: Any, context: Any, collector: Any) -> None:
            raise OSError("no such device")

    class BadState(StatefulBolt):
        def init_state(self, state: Any) -> None:
            raise OSError("no such device")

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            pass

    spout: FeederSpout = BadOpen() if kind == "open" else FeederSpout()
    bolt: BasicBolt = {"prepare": BadPrepare(), "open": Pass(), "init_state": BadState()}[kind]
    named = "spout" if kind == "open" else "bolt"
    with (
        LocalCluster() as cluster,
        pytest.raises(WorkerFailedError, match=f"'{named}' .* OSError: no such device"),
    ):
        cluster.submit(chain(spout, bolt))


class FailWithReason(Collecting):
    """Emits, then fails the input with a reason."""

    def execute(self, tup: Tuple) -> None:
        self.collector.emit((tup[0],), anchors=tup)
        self.collector.fail(tup, f"do not like {tup[0]}")


@WORKERS
def test_an_explicit_fail_carries_its_reason_and_undoes_what_was_emitted(workers: int) -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    with ran(
        chain(spout, FailWithReason(), capture), spout, [7], conf("exactly-once", workers)
    ) as cluster:
        assert capture.values == []
        result = [(letter.reason, letter.attempts) for letter in cluster.dead_letters]
        assert result == [("do not like 7", 4)]
        assert spout.failed == [0]


class StatefulManual(Stateful, Bolt):
    """A stateful Bolt that acks by hand and fails its first try of each value after putting."""

    outputs = ("value",)

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector
        self.seen: set[Any] = set()

    def execute(self, tup: Tuple) -> None:
        self.state.put(tup[0], self.state.get(tup[0], 0) + 1)
        self.collector.emit((tup[0],), anchors=tup)
        self.collector.ack(tup)
        if tup[0] not in self.seen:
            self.seen.add(tup[0])
            raise ValueError("once")


@WORKERS
def test_raising_after_the_ack_takes_the_ack_back(workers: int) -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    with ran(
        chain(spout, StatefulManual(), capture), spout, range(5), conf("exactly-once", workers)
    ) as cluster:
        assert cluster.state("bolt") == dict.fromkeys(range(5), 1)
        assert sorted(capture.values) == [(n,) for n in range(5)]
        assert sorted(spout.acked) == list(range(5))


@WORKERS
def test_a_flaky_stateful_chain_counts_exactly(workers: int) -> None:
    class FlakyCount(Count):
        def __init__(self) -> None:
            self.tries: Shared[dict[Any, int]] = Shared({})

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            super().execute(tup, collector)
            self.tries.value[tup[0]] = tries = self.tries.value.get(tup[0], 0) + 1
            if tries % 3:
                raise RuntimeError("flaky")

    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("flaky", FlakyBolt(Pass(), failures=2), 2).shuffle_grouping("spout")
    builder.set_bolt("count", FlakyCount(), 2).fields_grouping("flaky", "value")
    with ran(
        builder.build(), spout, range(50), conf("exactly-once", workers), seed=workers
    ) as cluster:
        assert cluster.state("count") == dict.fromkeys(range(50), 1)
        assert sorted(spout.acked) == list(range(50))
        assert not cluster.dead_letters


def test_a_spout_that_raises_now_and_then_goes_on_and_leaves_no_half_emission() -> None:
    class Stumbling(FeederSpout):
        def next_tuple(self) -> None:
            position = self._next
            super().next_tuple()
            if position % 3 == 1 and position not in self.stumbled.value:
                self.stumbled.value.add(position)
                self._next = position
                raise OSError("source went away")

        def __init__(self) -> None:
            super().__init__()
            self.stumbled: Shared[set[int]] = Shared(set())

    spout, capture = Stumbling(), CaptureBolt()
    with ran(chain(spout, Pass(), capture), spout, range(10), conf("exactly-once", 2)) as cluster:
        assert sorted(capture.values) == [(n,) for n in range(10)]
        assert sorted(spout.acked) == list(range(10))
        assert cluster.errors[0].text.startswith(
            "OSError: source went away (test_delivery.py, line "
        )


def test_a_mistake_of_the_job_ends_a_spouts_worker_behind_the_rows_before_it() -> None:
    class Mistaken(FeederSpout):
        def next_tuple(self) -> None:
            if self._next < len(self._feed.value):
                super().next_tuple()
            else:
                raise InvalidConfigError("component 'spout': no file matches x*.txt")

        def is_exhausted(self) -> bool:
            return False

    spout, capture = Mistaken(), CaptureBolt()
    with running(chain(spout, Pass(), capture)) as cluster:
        spout.feed([1])
        spout.feed([2])
        sentence = r"^spout 'spout' \(task \d+\): InvalidConfigError: .*'spout': no file matches x"
        with pytest.raises(WorkerFailedError, match=sentence):
            cluster.advance(seconds=60)
        assert (1,) in capture.values


def test_a_spout_that_always_raises_ends_its_worker_with_its_name() -> None:
    class Broken(FeederSpout):
        def next_tuple(self) -> None:
            raise OSError("gone for good")

        def is_exhausted(self) -> bool:
            return False

    with (
        running(chain(Broken(), Pass())) as cluster,
        pytest.raises(
            WorkerFailedError, match=r"spout 'spout' \(task \d+\) raised 10 times in a row: OSError"
        ),
    ):
        cluster.advance(seconds=60)


def test_at_most_once_does_not_ack_what_was_never_emitted() -> None:
    class Wrong(FeederSpout):
        def next_tuple(self) -> None:
            self._next += 1
            self._collector.emit((1, 2, 3), message_id=self._next)

    spout = Wrong()
    with running(chain(spout, Pass()), conf("at-most-once")) as cluster:
        spout.feed([1])
        cluster.advance(seconds=1)
        assert spout.acked == []
        assert "emitted 3 values for 1 field" in cluster.errors[0].text


@pytest.mark.parametrize("is_direct", [True, False])
def test_tuples_within_a_worker_take_no_way_through_redis_unless_they_are_told_to(
    is_direct: bool,
) -> None:
    spout, builder = FeederSpout(["line"]), TopologyBuilder()
    builder.set_spout("lines", spout)
    builder.set_bolt("split", Split(), inputs="lines", parallelism=2)
    builder.set_bolt("count", Count(), inputs={"split": fields("word")}, parallelism=2)
    with LocalCluster(seed=3) as cluster:
        conf = {"topology.workers": 1, "topology.local.delivery": is_direct}
        cluster.submit(builder.build(), conf)
        messages = [spout.feed(["to be or not to be"]) for _ in range(20)]
        cluster.run_until_idle()
        assert cluster.state("count") == {"to": 40, "be": 40, "or": 20, "not": 20}
        edges = cluster.topology().progress().edges
        entries = {edge[2]: counts.entries for edge, counts in edges.items()}
    assert sorted(spout.acked) == messages
    assert all(is_direct == (entries[receiver] == 0) for receiver in ("split", "count"))
