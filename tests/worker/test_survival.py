"""Checks the survival of deaths: poison tuples, damaged frames, held inputs, positions, callbacks;
and an orderly life.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, Bolt, StatefulBolt, Tuple
from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.failure import FailureKind
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.transport.frames import encode_rows
from sparkstorm.testing import CaptureBolt, FeederSpout, PoisonBolt, Shared, die
from tests.topologies import Count, feed, ran, running
from tests.worker.building import Collecting, Hoards, Pass, chain

WORKERS = pytest.mark.parametrize("workers", [1, 2, 4])


# -- poison


@WORKERS
def test_a_tuple_that_kills_its_worker_is_parked_after_three_deaths_and_the_rest_goes_on(
    workers: int,
) -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    bolt = PoisonBolt(lambda tup: tup[0] == 13, Pass())
    with ran(
        chain(spout, bolt, capture), spout, range(30), {"topology.workers": workers}
    ) as cluster:
        assert sorted(set(capture.values)) == [(n,) for n in range(30) if n != 13]
        assert spout.failed == [13]
        assert sorted(set(spout.acked)) == [n for n in range(30) if n != 13]
        (letter,) = cluster.dead_letters
        assert letter.values == (13,)
        assert letter.failure.kind is FailureKind.KILLED
        assert letter.reason == "killed its worker 3 times; the last: exit status 1 (CRASHED)"
        assert len(bolt.deaths.value) == 4  # once among others, unexplained, then three times alone


def test_the_number_of_deaths_is_a_key() -> None:
    spout, bolt = FeederSpout(), PoisonBolt(lambda tup: True)
    with ran(chain(spout, bolt), spout, [1], {"topology.max.worker.deaths": 1}) as cluster:
        assert len(bolt.deaths.value) == 2
        assert len(cluster.dead_letters) == 1


def test_several_poison_tuples_are_parked_one_after_the_other() -> None:
    spout = FeederSpout()
    with ran(
        chain(spout, PoisonBolt(lambda tup: tup[0] % 10 == 3)),
        spout,
        range(30),
        {"topology.workers": 2},
    ) as cluster:
        assert sorted(letter.values for letter in cluster.dead_letters) == [(3,), (13,), (23,)]
        assert sorted(set(spout.acked)) == [n for n in range(30) if n % 10 != 3]


def test_a_tuple_that_fails_first_and_kills_on_its_second_try_is_parked_too() -> None:
    class FailThenKill(BasicBolt):
        def __init__(self) -> None:
            self.tries: Shared[list[Any]] = Shared([])

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            if tup[0] != "bad":
                return
            self.tries.value.append(1)
            if len(self.tries.value) == 1:
                raise ValueError("just once")
            die()

    spout, bolt = FeederSpout(), FailThenKill()
    with running(chain(spout, bolt), {"topology.workers": 2}) as cluster:
        for value in ("a", "bad", "b"):
            spout.feed([value], message_id=value)
        cluster.run_until_idle()
        assert [letter.values for letter in cluster.dead_letters] == [("bad",)]
        assert "killed its worker 3 times" in cluster.dead_letters[0].reason
        assert spout.failed == ["bad"]
        assert set(spout.acked) == {"a", "b"}


def test_a_blocking_bolts_held_input_that_kills_is_parked_too() -> None:
    """The thread cannot die in a simulation, so the input kills when the loop hands it over."""

    class KillsWhenHeld(Collecting):
        outputs = ()

        def __init__(self) -> None:
            self.seen: Shared[set[Any]] = Shared(set())

        def execute(self, tup: Tuple) -> None:
            if tup[0] == "later" and "later" in self.seen.value:
                die()
            self.seen.value.add(tup[0])
            if tup[0] != "later":
                self.collector.ack(tup)

    spout, bolt = FeederSpout(), KillsWhenHeld()
    with running(chain(spout, bolt)) as cluster:
        spout.feed(["later"], message_id="later")
        cluster.advance(ms=50)
        cluster.kill_worker("bolt")  # from now on it is redelivered, and kills every time
        for n in range(5):
            spout.feed([n], message_id=n)
        cluster.run_until_idle()
        assert [letter.values for letter in cluster.dead_letters] == [("later",)]
        assert set(spout.acked) == set(range(5))


# -- damaged frames


GARBAGE = [
    b"",
    b"not a frame",
    b"SF\x03\x01",
    b"SF\x03\x01\x90",
    b"SF\x01\x01\x90",
    b"SF\x03\x01" + b"\xff" * 50,
]


@pytest.mark.parametrize(
    "data",
    [
        *GARBAGE,
        encode_rows(Codec(), "default", 0, [((1,), 0, Source("spout", 99, "default", ("value",)))]),
        encode_rows(Codec(), "nonsense", 0, [((1,), 0, Source("spout", 3, "default", ("value",)))]),
    ],
)
def test_a_damaged_frame_is_put_into_quarantine_and_kills_nobody(data: bytes) -> None:
    spout, capture = FeederSpout(), CaptureBolt()
    with running(chain(spout, Pass(), capture), {"topology.workers": 3}) as cluster:
        topology = cluster.topology()
        task = next(t for t, c in topology.component_by_task.items() if c == "bolt")
        spout.feed([1])
        cluster.run_until_idle()
        keys = topology.store.task(task)
        keys.last_number += 1
        keys.stream.append((keys.last_number, data))
        spout.feed([2])
        cluster.run_until_idle()
        assert sorted(capture.values) == [(1,), (2,)]
        assert topology.store.quarantine == [data]
        assert "put into quarantine" in cluster.errors[0].text
        assert topology.progress().quarantined == 1
        assert not any(worker.deaths for worker in topology.workers)
        assert not keys.stream


def test_a_journal_that_no_owner_writes_stops_the_worker_with_a_sentence() -> None:
    spout = FeederSpout()
    with ran(chain(spout, Count()), spout, ["a"]) as cluster:
        task = next(t for t, c in cluster.topology().component_by_task.items() if c == "bolt")
        cluster.topology().store.task(task).journal.append(Codec().pack({"z": 1}))
        cluster.kill_worker("bolt")
        with pytest.raises(StoreInconsistentError, match=f"journal of task {task}"):
            cluster.advance(seconds=1)


# -- held inputs, positions, callbacks


@WORKERS
def test_inputs_that_wait_for_their_ack_survive_any_number_of_deaths(workers: int) -> None:
    spout = FeederSpout()
    with running(
        chain(spout, Hoards(), bolt_conf={"topology.tick.tuple.freq.secs": 10}),
        {"topology.workers": workers},
    ) as cluster:
        feed(spout, range(7))
        cluster.advance(seconds=1)
        for _ in range(3):
            cluster.kill_worker("bolt")
            cluster.advance(seconds=1)
        task = next(t for t, c in cluster.topology().component_by_task.items() if c == "bolt")
        assert len(cluster.topology().store.task(task).held) == 7
        cluster.advance(seconds=12)
        assert sorted(spout.acked) == list(range(7))
        assert cluster.topology().store.task(task).held == {}


def test_an_asynchronous_fail_after_a_restart_counts_the_tries_before_it() -> None:
    class FailsAtTicks(Hoards):
        def let_go(self, tup: Tuple) -> None:
            self.collector.fail(tup, "later")

    spout = FeederSpout()
    with running(
        chain(spout, FailsAtTicks(), bolt_conf={"topology.tick.tuple.freq.secs": 1}),
        {"topology.max.retries": 3, "topology.message.timeout.secs": 600},
    ) as cluster:
        spout.feed([1])
        cluster.advance(seconds=2.5)
        cluster.kill_worker("bolt")
        cluster.run_until_idle()
        result = [(letter.attempts, letter.reason) for letter in cluster.dead_letters]
        assert result == [(4, "later")]
        assert spout.failed == [0]


@WORKERS
def test_a_replayable_spout_goes_on_from_its_committed_position(workers: int) -> None:
    spout = FeederSpout()
    with running(
        chain(spout, Count()),
        {
            "topology.workers": workers,
            "topology.epoch.rows": 3,
            "topology.max.spout.pending": 2,
        },
    ) as cluster:
        feed(spout, range(40))
        for _ in range(10):
            cluster.advance(ms=3)
            cluster.kill_worker("spout")
            cluster.advance(ms=107)
        cluster.run_until_idle()
        assert cluster.state("bolt") == dict.fromkeys(range(40), 1)
        assert sorted(set(spout.acked)) == list(range(40))


def test_callbacks_are_made_after_the_commit_and_again_when_their_making_was_not_committed() -> (
    None
):
    """The worker dies inside ack(): the commit that settled the tree is in the store, so the next
    worker calls again.
    """

    class DiesInAck(FeederSpout):
        def ack(self, message_id: Any) -> None:
            super().ack(message_id)
            if len(self.acked) == 1:
                die()

    spout = DiesInAck()
    with running(chain(spout, Pass()), {"topology.workers": 2}) as cluster:
        spout.feed(["x"], message_id="x")
        cluster.run_until_idle()
        assert spout.acked == ["x", "x"]
        assert cluster.counts("spout").acked == 1
        assert cluster.counts("bolt").executed == 1


def test_a_callback_that_raises_is_reported_and_not_made_again() -> None:
    class Raises(FeederSpout):
        def ack(self, message_id: Any) -> None:
            super().ack(message_id)
            raise ValueError("thanks, but no")

    spout = Raises()
    with ran(chain(spout, Pass()), spout, ["x"], {"topology.workers": 2}) as cluster:
        assert spout.acked == [0]
        result = [error.text.partition(" (")[0] for error in cluster.errors]
        assert result == ["ValueError: thanks, but no"]


# -- an orderly life


class DiarySpout(FeederSpout):
    def __init__(self, said: Shared[list[str]]) -> None:
        super().__init__()
        self.said = said

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        super().open(conf, context, collector)
        self.said.value.append("open")

    def activate(self) -> None:
        self.said.value.append("activate")

    def deactivate(self) -> None:
        self.said.value.append("deactivate")

    def close(self) -> None:
        self.said.value.append("close")


class DiaryBolt(Bolt):
    def __init__(self, said: Shared[list[str]]) -> None:
        self.said = said

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector
        self.said.value.append("prepare")

    def execute(self, tup: Tuple) -> None:
        self.collector.ack(tup)

    def cleanup(self) -> None:
        self.said.value.append("cleanup")


def test_components_are_opened_activated_deactivated_and_closed_in_order() -> None:
    said: Shared[list[str]] = Shared([])
    with running(chain(DiarySpout(said), DiaryBolt(said))) as cluster:
        assert said.value == ["prepare", "open", "activate"]
        cluster.deactivate()
        cluster.activate()
        assert said.value[3:] == ["deactivate", "activate"]
    assert said.value[5:] == ["close", "cleanup"]


def test_nobody_is_cleaned_up_after_a_kill() -> None:
    said: Shared[list[str]] = Shared([])
    with running(chain(DiarySpout(said), DiaryBolt(said))) as cluster:
        cluster.kill_worker(0)
        cluster.advance(seconds=1)
        assert said.value == ["prepare", "open", "activate"] * 2


def test_bolts_go_on_while_spouts_rest() -> None:
    spout = FeederSpout()
    with running(
        chain(spout, Hoards(), bolt_conf={"topology.tick.tuple.freq.secs": 5}),
        {"topology.workers": 2},
    ) as cluster:
        spout.feed([1])
        cluster.advance(ms=100)
        cluster.deactivate()
        cluster.advance(seconds=6)
        assert spout.acked == [0]


def test_tasks_of_one_worker_share_resources_and_those_of_another_do_not() -> None:
    class Shares(StatefulBolt):
        def prepare(self, conf: Any, context: Any) -> None:
            self.mine = context.shared("list", list)
            self.mine.append(context.task_id)
            self.task = context.task_id

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.state.put(self.task, sorted(self.mine))

    spout = FeederSpout()
    with ran(
        chain(spout, Shares(), parallelism=4, group=lambda d: d.all_grouping("spout")),
        spout,
        [1],
        {"topology.workers": 2},
    ) as cluster:
        by_worker = [
            [t for t in w.tasks if cluster.topology().component_by_task[t] == "bolt"]
            for w in cluster.topology().workers
        ]
        assert cluster.state("bolt") == {task: tasks for tasks in by_worker for task in tasks}


def test_components_see_their_own_conf_over_the_topologys() -> None:
    class Looks(StatefulBolt):
        def prepare(self, conf: Any, context: Any) -> None:
            self.seen = [
                conf["app.own"],
                conf["app.shared"],
                context.component_id,
                context.task_index,
                len(context.peers),
            ]

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.state.put("seen", self.seen)

    spout = FeederSpout()
    with ran(
        chain(spout, Looks(), bolt_conf={"app.own": "bolt's"}),
        spout,
        [1],
        {"app.own": "topology's", "app.shared": 1},
    ) as cluster:
        assert cluster.state("bolt") == {"seen": ["bolt's", 1, "bolt", 0, 1]}
