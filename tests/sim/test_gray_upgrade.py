"""Gray upgrades on the simulated cluster: old and new code side by side, exact counts, batches,
completion, rollback.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.api.state import KeyValueState
from sparkstorm.client.dead_letters import StoredLetters
from sparkstorm.common.errors import (
    FailedAssignTopologyError,
    IllegalTransitionError,
    InvalidConfigError,
    InvalidTopologyError,
    NotAliveError,
)
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.topology import MASTER, Topology
from sparkstorm.common.model.upgrade import UpgradeOptions, UpgradeState
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.extensions.upgrade.state import GrayUpgradeState
from sparkstorm.testing import FeederSpout, LocalCluster
from sparkstorm.testing.sim_slot import SimSlot
from tests.nimbus.crash_points import WRITES, CrashPoint

WORKERS = 4
NEVER = 10**9
CONF = {"topology.workers": WORKERS, "topology.acker.executors": 2}
MASTERED: dict[str, Any] = {
    "topology__master__single__worker": True,
    "topology__scheduler": "jstorm",
}


class Tag(BasicBolt):
    """Adds the name of its code to every word; may fail some of them."""

    outputs = ("word", "code")

    def __init__(self, code: str, fails_every: int = 0) -> None:
        self.code, self.fails_every, self.seen = code, fails_every, 0

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.seen += 1
        if self.fails_every and self.seen % self.fails_every == 0:
            raise ValueError("the new code does not like this one")
        collector.emit((tup["word"], self.code))


class Count(StatefulBolt):
    """Counts by word and code."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add((tup["word"], tup["code"]), 1)


class CountAnew(Count):
    """Keeps the words in capitals: a state of another form."""

    state_version = 2

    def migrate_state(self, state: KeyValueState, version: int) -> None:
        for word, code in list(state):
            if version == 1:
                state[word.upper(), code] = state[word, code]
                del state[word, code]

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add((tup["word"].upper(), tup["code"]), 1)


def topology(
    spout: FeederSpout,
    code: str = "old",
    fails_every: int = 0,
    count: StatefulBolt | None = None,
    tags: int = 4,
    tag: Tag | None = None,
    more: Sequence[str] = (),
) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("words", spout)
    builder.set_bolt("tag", tag or Tag(code, fails_every), tags).shuffle_grouping("words")
    builder.set_bolt("count", count or Count(), 3).fields_grouping("tag", "word")
    for name in more:
        builder.set_bolt(name, Count()).fields_grouping("tag", "word")
    return builder.build()


class Bench:
    """A running topology of four workers under load."""

    def __init__(
        self,
        make: type[LocalCluster] = LocalCluster,
        make_topology: Callable[[FeederSpout], Topology] | None = None,
        **conf: Any,
    ) -> None:
        self.spout, self.fed = FeederSpout(["word"]), Counter[str]()
        self.cluster = make(2, 3, is_lively=True, conf={"nimbus.monitor.freq.secs": 1})
        self.conf = {**CONF, **{key.replace("__", "."): value for key, value in conf.items()}}
        self.id = self.cluster.submit((make_topology or topology)(self.spout), self.conf)
        self.feed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    @property
    def state(self) -> Any:
        return self.cluster.storm_state

    @property
    def service(self) -> Any:
        return self.cluster.service

    def feed(self, number: int = 40) -> None:
        for n in range(number):
            word = f"word{n % 7}"
            self.spout.feed([word])
            self.fed[word] += 1

    def upgrade(self, new: Topology | None = None, **conf: Any) -> None:
        own = {f"topology.upgrade.{key.replace('__', '.')}": value for key, value in conf.items()}
        self.cluster.upgrade(new or topology(self.spout, "new"), {**self.conf, **own})

    def run(self, condition: Callable[[], bool], limit_secs: int = 120) -> None:
        """Let the cluster work, under load, until something holds."""
        for _ in range(limit_secs):
            if isinstance(self.cluster, Doomed):
                self.cluster.bury()
            if condition():
                return
            self.feed(5)
            self.cluster.advance(1)
        raise AssertionError(
            f"not within {limit_secs} s: {self.status()} {GrayUpgradeState(self.state).upgrade_state(self.id)}"
        )

    def status(self) -> TopologyStatus:
        base = self.state.read_base(self.id)
        return TopologyStatus(base.status)

    def new_workers(self) -> set[WorkerSlot]:
        """Workers of which the assignment says that they run other code than the topology's, and
        that do run it.
        """
        assignment = self.state.read_assignment(self.id)
        live = [
            (slot, slot.process.spec)
            for slot in self.cluster.topology().workers
            if slot.process and slot.worker
        ]
        running = {slot.slot: spec.code_key for slot, spec in live if spec}
        assert all(
            running.get(slot) in (None, assignment.code_at(slot).code_key) for slot in running
        )
        return set(assignment.code_by_slot)

    def rests(self, batches: int) -> bool:
        """Return whether so many batches are done and none is under way."""
        state = GrayUpgradeState(self.state).upgrade_state(self.id)
        return (
            state.upgrade is not None
            and state.upgrade.batches == batches
            and not state.upgrading
            and set(state.upgrade.batch) <= state.upgraded.keys()
        )

    def counts(self) -> Mapping[str, Counter[str]]:
        """Counts by code and word once everything is done; exact in sum, whatever code has counted
        what.
        """
        self.cluster.run_until_idle()
        counts_by_code: dict[str, Counter[str]] = {}
        for (word, code), number in self.cluster.state("count").items():
            counts_by_code.setdefault(code, Counter())[word.lower()] += number
        assert sum(counts_by_code.values(), Counter()) == self.fed
        # a worker that is stopped may tell its spout what it has no time to note down: its
        # successor tells it again
        assert set(self.spout.acked) == set(range(sum(self.fed.values()))) and not self.spout.failed
        return counts_by_code


def test_three_batches_of_workers_and_every_count_is_exact() -> None:
    """S0.13, S0.20-S0.29: batches by number, each after a request; the record and both folders go
    when all are done.
    """
    with Bench() as bench:
        bench.upgrade(worker__num=1)
        assert bench.status() is TopologyStatus.UPGRADING
        bench.run(lambda: bench.rests(1))
        assert len(bench.new_workers()) == 1
        bench.run(lambda: bench.fed["word0"] >= 60)
        assert bench.rests(1), "no second batch begins by itself (S0.23)"
        bench.service.continue_upgrade("test", UpgradeOptions(worker_num=2))
        bench.run(lambda: bench.rests(2))
        assert len(bench.new_workers()) == 3
        bench.service.continue_upgrade("test", UpgradeOptions(worker_num=5))
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        state = GrayUpgradeState(bench.state).upgrade_state(bench.id)
        assignment = bench.state.read_assignment(bench.id)
        base = bench.state.read_base(bench.id)
        assert state == UpgradeState(None) and assignment.code_by_slot == {}
        assert (assignment.code_key, assignment.conf_key) == (base.code_key, base.conf_key)
        bench.feed()
        counts = bench.counts()
        assert counts.keys() == {"old", "new"} and bench.new_workers() == set()


def test_a_worker_goes_on_with_its_code_while_the_new_code_cannot_be_fetched() -> None:
    """S0.25."""
    with Bench() as bench:
        store, read = bench.cluster.bytes_store, bench.cluster.bytes_store.get
        known_keys, is_damaged, workers = set(store.list_keys()), True, live_workers(bench)

        def get(key: str) -> bytes | None:
            # Nimbus has checked it
            is_torn = (
                is_damaged and key not in known_keys and bench.status() is TopologyStatus.UPGRADING
            )
            return b"torn" if is_torn else read(key)

        store.get = get  # type: ignore[method-assign]
        bench.upgrade(worker__num=1)
        acked = len(bench.spout.acked)
        bench.run(lambda: bench.fed["word0"] >= 40)
        assert len(GrayUpgradeState(bench.state).upgrade_state(bench.id).upgrading) == 1
        assert live_workers(bench) == workers and len(bench.spout.acked) > acked
        is_damaged = False
        bench.run(lambda: bench.rests(1))
        assert len(live_workers(bench) - workers) == 1
        assert bench.counts().keys() == {"old", "new"}


def live_workers(bench: Bench) -> set[tuple[WorkerSlot, int]]:
    """Return the slots with a worker, each with an identity of its process."""
    return {
        (slot.slot, id(slot.process))
        for slot in bench.cluster.topology().workers
        if slot.process and slot.worker
    }


def test_workers_go_by_name_then_by_component_and_complete_leaves_the_others_on_their_code() -> (
    None
):
    """S0.9, S0.10, S0.12, S0.30."""
    with Bench() as bench:
        named = sorted(slot.slot for slot in bench.cluster.topology().workers)[1]
        bench.upgrade(workers=[str(named)], component="count", worker__num=3)
        bench.run(lambda: bench.rests(1))
        assert bench.new_workers() == {named}
        assert bench.state.read_upgrade(bench.id).options.workers == ()
        counting = {
            slot.slot for slot in bench.cluster.topology().workers if _runs(bench, slot, "count")
        }
        bench.service.continue_upgrade("test", UpgradeOptions(component="count"))
        bench.run(lambda: bench.rests(2) or bench.status() is TopologyStatus.ACTIVE)
        assert bench.new_workers() == counting | {named}
        bench.service.complete_upgrade("test")
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        assert bench.new_workers() == counting | {named}
        assert GrayUpgradeState(bench.state).upgrade_state(bench.id).upgraded == {}
        sentence = r"completed with \d workers on other code"
        with pytest.raises(IllegalTransitionError, match=sentence):
            bench.service.rebalance("test", RebalanceOptions(conf={"app.x": 1}), 0)
        bench.cluster.kill_worker(0)
        bench.run(lambda: bench.cluster.topology().is_placed())
        assert bench.new_workers() == counting | {named}
        assert bench.counts().keys() == {"old", "new"}


def _runs(bench: Bench, slot: Any, component: str) -> bool:
    tasks = bench.cluster.topology().tasks_at(slot)
    return any(bench.cluster.topology().component_by_task[task] == component for task in tasks)


def test_a_rollback_by_hand_brings_the_code_back_and_loses_nothing() -> None:
    with Bench() as bench:
        bench.upgrade(worker__num=2)
        bench.run(lambda: bench.rests(1))
        bench.service.roll_back_upgrade("test")
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        assert bench.new_workers() == set()
        assert GrayUpgradeState(bench.state).upgrade_state(bench.id).upgrade is None
        before = bench.counts()["new"]
        bench.feed()
        assert bench.counts()["new"] == before, "no worker runs the new code any more"
        assert (
            "rolled back: asked for by a request"
            in bench.state.read_errors(bench.id, "__topology_master")[0].text
        )


def test_an_upgrade_whose_code_fails_tuples_takes_itself_back_and_loses_nothing() -> None:
    with Bench(topology__max__retries=50, topology__retry__backoff__ms=1) as bench:
        new = topology(bench.spout, "new", fails_every=50)
        bench.upgrade(new, component="tag", worker__num=1, rollback__min__executed=100)
        bench.run(lambda: bench.status() is TopologyStatus.ROLLBACK, 600)
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        (error,) = bench.state.read_errors(bench.id, "__topology_master")
        assert "component 'tag' fails" in error.text and bench.new_workers() == set()
        assert bench.counts().keys() == {"old", "new"} and not bench.cluster.dead_letters


def test_a_rollback_names_the_code_by_which_its_dead_letters_are_found() -> None:
    with Bench(topology__max__retries=0) as bench:
        bench.upgrade(
            topology(bench.spout, "new", fails_every=10),
            component="tag",
            worker__num=1,
            rollback__min__executed=100,
        )
        bench.run(lambda: bench.status() is TopologyStatus.ROLLBACK, 600)
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        (error,) = bench.state.read_errors(bench.id, MASTER)
        letters = bench.cluster.dead_letters
        assert letters
        assert {letter.failure.code_version for letter in letters} == {error.code_version}
        view = bench.cluster.topology()
        stored = StoredLetters(
            view.id, LocalReader(view.store), dict, lambda: TopologyStatus.ACTIVE, lambda: None
        )
        assert stored.count_of(error.code_version) == len(letters) and stored.count_of("other") == 0


def test_a_state_in_another_form_is_refused_unless_forced_and_then_handed_on() -> None:
    with Bench() as bench:
        bench.cluster.advance(2)
        new = topology(bench.spout, "new", count=CountAnew())
        sentence = "component 'count': its state has version 1, that of the new code 2"
        with pytest.raises(InvalidTopologyError, match=sentence):
            bench.upgrade(new, worker__num=4)
        assert bench.status() is TopologyStatus.ACTIVE
        bench.upgrade(new, worker__num=4, force=True)
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        bench.feed()
        assert bench.counts().keys() == {"old", "new"}
        assert all(word.isupper() for word, _ in bench.cluster.state("count"))


def test_code_that_cannot_read_the_state_it_finds_says_so_and_touches_nothing() -> None:
    """A forced upgrade with another form of state that is taken back: the former code refuses, and
    nothing is lost.
    """
    with Bench() as bench:
        bench.cluster.advance(2)
        new = topology(bench.spout, "new", count=CountAnew())
        bench.upgrade(new, component="count", force=True)
        bench.run(lambda: bench.rests(1) or bench.status() is TopologyStatus.ACTIVE)
        if bench.status() is TopologyStatus.UPGRADING:
            bench.service.roll_back_upgrade("test")
        else:
            bench.upgrade(topology(bench.spout), worker__num=4, force=True)
        bench.cluster.advance(40)
        messages = [
            bench.state.read_worker_beat(bench.id, slot.slot).message
            for slot in bench.cluster.topology().workers
        ]
        words = "cannot read its state: its state has version 2, this code reads version 1"
        assert any(words in message for message in messages), messages
        bench.service.kill("test", 0)
        bench.cluster.advance(30)


class CountBadly(CountAnew):
    """Cannot bring the state into its form."""

    def migrate_state(self, state: KeyValueState, version: int) -> None:
        raise KeyError("no such word")


def test_a_migration_that_raises_is_named_with_both_versions_and_the_upgrade_taken_back() -> None:
    with Bench() as bench:
        bench.cluster.advance(2)
        bench.upgrade(
            topology(bench.spout, "new", count=CountBadly()), component="count", force=True
        )
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        (error,) = bench.state.read_errors(bench.id, "__topology_master")
        assert (
            "migrate_state raised on its state of version 1, this code reads version 2: KeyError: 'no such word'"
            in error.text
        )
        bench.feed()
        assert bench.counts().keys() == {"old"}


class TagUnprepared(Tag):
    """Cannot be prepared."""

    def prepare(self, conf: Mapping[str, Any], context: Any) -> None:
        raise LookupError("the model is not there")


@pytest.mark.parametrize(
    "has_master", [False, True], ids=["handled by Nimbus", "handled by a master"]
)
def test_code_that_raises_in_prepare_is_taken_back_with_its_cause_and_kept_as_an_error(
    has_master: bool,
) -> None:
    with Bench(**(MASTERED if has_master else {})) as bench:
        new = topology(bench.spout, tag=TagUnprepared("new"))
        bench.upgrade(new, component="tag", worker__num=1)
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        (back,) = bench.state.read_errors(bench.id, MASTER)
        assert (
            "could not be prepared: LookupError: the model is not there (test_gray_upgrade.py, line"
            in back.text
        )
        error = bench.state.read_errors(bench.id, "tag")[0]
        assert error.text.startswith(
            "could not be prepared: LookupError: the model is not there (test_gray_upgrade.py, line"
        )
        assert "in prepare" in error.traceback
        assert error.worker
        assert error.code_version != bench.state.read_base(bench.id).code_key
        bench.feed()
        assert bench.counts().keys() == {"old"}


class Tagged(Tag):
    outputs = ("word", "code", "more")  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda spout: topology(spout, tags=5),
            "component 'tag' has 5 tasks in the new code, 4 run",
        ),
        (lambda spout: topology(spout, more=["extra"]), "the new code adds component 'extra'"),
        (
            lambda spout: topology(spout, tag=Tagged("new")),
            r"component 'tag', stream 'default': the new code declares \(word, code, more\)",
        ),
    ],
    ids=["parallelism", "components", "fields"],
)
def test_code_that_cannot_run_beside_the_old_one_is_refused(
    change: Callable[[FeederSpout], Topology], words: str
) -> None:
    with Bench() as bench:
        with pytest.raises(InvalidTopologyError, match=words):
            bench.upgrade(change(bench.spout), worker__num=1)
        assert bench.status() is TopologyStatus.ACTIVE
        assert bench.state.read_upgrade(bench.id) is None


def test_requests_that_do_not_fit_are_refused_in_words() -> None:
    """S0.4, S0.6, S0.18, S0.19."""
    with Bench() as bench:
        service = bench.service
        sentence = r"no workers are chosen for this batch; give --num N"
        with pytest.raises(InvalidConfigError, match=sentence):
            bench.upgrade()
        sentence = "there is no worker node-9:1 to upgrade"
        with pytest.raises(FailedAssignTopologyError, match=sentence):
            bench.upgrade(workers=["node-9:1"])
        with pytest.raises(FailedAssignTopologyError, match="no worker runs component 'nothing'"):
            bench.upgrade(component="nothing")
        with pytest.raises(IllegalTransitionError, match="Failed to find a related upgrade conf"):
            service.continue_upgrade("test", UpgradeOptions(worker_num=1))
        with pytest.raises(NotAliveError):
            service.complete_upgrade("nobody")
        service.deactivate("test")
        sentence = "is INACTIVE: upgrade start does not apply"
        with pytest.raises(IllegalTransitionError, match=sentence):
            bench.upgrade(worker__num=1)
        service.activate("test")
        bench.upgrade(worker__num=1)
        with pytest.raises(IllegalTransitionError, match="a gray upgrade of test is in progress"):
            bench.upgrade(worker__num=1)
        sentence = "There're still workers under upgrade, please continue after they're done"
        with pytest.raises(IllegalTransitionError, match=sentence):
            service.continue_upgrade("test", UpgradeOptions(worker_num=1))
        with pytest.raises(IllegalTransitionError, match="is UPGRADING: rebalance does not apply"):
            bench.cluster.rebalance(workers=2)
        bench.run(lambda: bench.rests(1))
        service.roll_back_upgrade("test")
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        bench.upgrade(worker__num=4)
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        bench.counts()


def test_an_upgrade_whose_time_is_over_is_completed_as_it_is() -> None:
    """S0.17."""
    with Bench() as bench:
        bench.upgrade(worker__num=1, ttl=30)
        bench.run(lambda: bench.rests(1))
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        assert len(bench.new_workers()) == 1 and bench.state.read_upgrade(bench.id) is None
        bench.upgrade(worker__num=1)
        bench.run(lambda: bench.rests(1))
        bench.counts()


class Doomed(LocalCluster):
    """A cluster of which one slot's session has a crash, once it is armed."""

    victim: SimSlot | None = None
    crash: CrashPoint | None = None
    is_reborn = False

    def open_session(self, who: str) -> Any:
        store = super().open_session(who)
        if self.victim is None or who != str(self.victim.slot) or self.crash is not None:
            return store
        self.crash = CrashPoint(NEVER)
        return self.crash.around(store)

    def arm(self, index: int) -> None:
        """Have the victim's process end at its n-th write from now on."""
        assert self.crash is not None
        self.crash._left = index

    def bury(self) -> None:
        """Start the victim again when it has burnt."""
        if (
            self.victim is not None
            and self.crash is not None
            and self.crash.has_crashed
            and not self.is_reborn
        ):
            self.restart(self.victim)
            self.is_reborn = True

    def restart(self, slot: Any) -> None:
        store = slot.die()
        if store is not None:
            store.close()
        slot.start()


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("is_written", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("is_back", [False, True], ids=["upgrade", "rollback"])
def test_a_slot_that_dies_at_any_write_while_it_upgrades_its_worker_comes_to_the_same_end(
    is_back: bool, is_written: bool
) -> None:
    """S0.24-S0.27, S0.31."""
    for bench, victim, arm in deaths(is_written, lambda _: 1):
        if is_back:
            bench.upgrade(workers=[str(victim.slot)])
            bench.run(partial(bench.rests, 1))
            arm()
            bench.service.roll_back_upgrade("test")
            bench.run(partial(is_active, bench))
        else:
            arm()
            bench.upgrade(workers=[str(victim.slot)])
            bench.run(partial(bench.rests, 1))
        assert bench.new_workers() == (set() if is_back else {victim.slot})


def is_active(bench: Bench) -> bool:
    return bench.status() is TopologyStatus.ACTIVE


def deaths(
    is_written: bool, which: Callable[[Bench], int], **conf: Any
) -> Iterator[tuple[Bench, SimSlot, Callable[[], None]]]:
    """Benches in which the slot of one worker dies at its first write after it is armed, at its
    second, and so on until it lives; each has exact counts at its end.
    """
    for index in range(1, 40):
        with Bench(make=Doomed, **conf) as bench:
            victim, cluster = doomed(bench, which(bench), is_written)
            yield bench, victim, partial(cluster.arm, index)
            has_crashed = cluster.crash is not None and cluster.crash.has_crashed
            cluster.arm(NEVER)
            bench.run(cluster.topology().is_placed)
            bench.counts()
        if not has_crashed:
            assert index > 2
            return
    raise AssertionError("the slot died every time")


def doomed(bench: Bench, which: int, is_written: bool) -> tuple[SimSlot, Doomed]:
    """Put a crash around the n-th worker's slot."""
    cluster = bench.cluster
    assert isinstance(cluster, Doomed)
    cluster.victim = victim = cluster.topology().workers[which]
    cluster.restart(victim)
    bench.run(cluster.topology().is_placed)
    assert cluster.crash is not None
    cluster.crash._is_written = is_written
    return victim, cluster


# -- topology master -------------------------------------------------------------------------------


def master_slot(bench: Bench) -> int:
    topology = bench.cluster.topology()
    (which,) = [
        n
        for n, slot in enumerate(topology.workers)
        if [topology.component_by_task[task] for task in topology.tasks_at(slot)] == [MASTER]
    ]
    return which


def test_a_topology_master_alone_in_its_worker_gathers_task_heartbeats_and_upgrades_all_others() -> (
    None
):
    """S0.7, S0.21, S0.28, S0.52, S0.53, S0.57, S2.6, S3.38."""
    with Bench(**MASTERED) as bench:
        which = master_slot(bench)
        bench.cluster.advance(25)
        topology = bench.cluster.topology()
        beats = bench.state.read_task_beats(bench.id)
        assert beats.master_task is not None
        assert topology.component_by_task[beats.master_task] == MASTER
        result = {task: task_beat.component for task, task_beat in beats.by_task.items()}
        assert result == topology.component_by_task
        tags = [task_beat for task_beat in beats.by_task.values() if task_beat.component == "tag"]
        assert (
            sum(tag.counts.executed for tag in tags)
            == sum(tag.counts.emitted for tag in tags)
            == sum(bench.fed.values())
        )
        assert all(tag.state == "RUNNING" and tag.uptime_ms > 0 for tag in tags)
        assert all(tag.execute_us.keys() == {"p50", "p95", "p99"} for tag in tags)
        bench.upgrade(worker__num=3)
        bench.run(lambda: bench.rests(1))
        victim = topology.workers[which]
        bench.cluster.kill_worker(which)
        bench.service.continue_upgrade("test", UpgradeOptions(worker_num=1))
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        base = bench.state.read_base(bench.id)
        bench.run(topology.is_placed)
        assert (
            victim.process and victim.process.spec and victim.process.spec.code_key == base.code_key
        ), "it follows at the end"
        assert bench.counts().keys() == {"old", "new"}


def test_a_topology_master_beside_other_tasks_cannot_upgrade() -> None:
    """S0.7, in the seed's words."""
    with Bench(topology__master__single__worker=False) as bench:
        words = "Gray upgrade requires that topology master to be a single worker, cannot perform the upgrade!"
        with pytest.raises(IllegalTransitionError, match=words):
            bench.upgrade(worker__num=1)
        bench.counts()


def test_a_master_of_its_own_worker_needs_the_scheduler_that_gives_it_one() -> None:
    with (
        LocalCluster() as cluster,
        pytest.raises(InvalidConfigError, match=r"set topology\.scheduler to jstorm"),
    ):
        cluster.submit(
            topology(FeederSpout(["word"])), {**CONF, "topology.master.single.worker": True}
        )


@pytest.mark.slow
@pytest.mark.parametrize("is_written", [False, True], ids=["before the write", "after the write"])
def test_a_master_that_dies_at_any_write_harms_no_upgrade(is_written: bool) -> None:
    """S0.21-S0.23, S0.28: the slot of the master dies in the middle of a batch."""
    for bench, _, arm in deaths(is_written, master_slot, **MASTERED):
        arm()
        bench.upgrade(worker__num=2)
        bench.run(partial(bench.rests, 1))
        assert len(bench.new_workers()) == 2


def test_a_worker_of_the_former_code_that_does_not_end_is_fenced_off_by_its_successor() -> None:
    """S0.26: the assignment raises the fences of the workers that it gives other code.

    A launch raises them too, but its number comes from the slot's disk and clock, which may both go
    back.
    """
    with Bench() as bench:
        victim = bench.cluster.topology().workers[0]
        former = victim.process
        assert former is not None and former.spec is not None
        before = {executor.executor: executor.placed_version for executor in former.spec.executors}
        bench.upgrade(workers=[str(victim.slot)])
        zombie = victim.disown()  # goes on with the former code next to the new worker
        assert zombie is former
        bench.run(lambda: bench.rests(1))
        now = victim.process
        assert now is not None and now is not former and now.spec is not None
        assert all(
            executor.placed_version > before[executor.executor] for executor in now.spec.executors
        )
        assert zombie.is_fenced
        bench.counts()


class Tight(LocalCluster):
    """A cluster without a slot to spare."""

    def __init__(self, nodes: int, slots: int, **more: Any) -> None:
        super().__init__(2, 2, **more)


def test_an_upgraded_worker_that_had_no_place_for_a_while_comes_back_with_the_new_code() -> None:
    """Else the upgrade would be completed with a worker on the former code."""
    with Bench(
        make=Tight, topology__workers=3, topology__message__timeout__secs=600, **MASTERED
    ) as bench:
        bench.upgrade(worker__num=2, rollback__enable=False)
        bench.run(lambda: bench.rests(1))
        upgraded = set(GrayUpgradeState(bench.state).upgrade_state(bench.id).upgraded)
        victim = next(slot for slot in bench.cluster.topology().workers if slot.slot in upgraded)
        if (session := victim.die()) is not None:
            session.close()
        bench.run(
            lambda: (
                victim.slot not in bench.state.read_assignment(bench.id).slot_by_executor.values()
            )
        )
        victim.start()
        bench.run(
            lambda: victim.slot in bench.state.read_assignment(bench.id).slot_by_executor.values()
        )
        bench.run(lambda: bench.new_workers() == upgraded)
        bench.run(lambda: bench.rests(1) and bench.cluster.topology().is_placed())
        bench.service.continue_upgrade("test", UpgradeOptions(worker_num=9))
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        assert bench.new_workers() == set() and bench.state.read_upgrade(bench.id) is None
        bench.feed()
        assert bench.counts().keys() == {"old", "new"}


def test_ten_upgrades_in_a_row_with_one_bad_in_the_middle_and_a_master_of_its_own_worker() -> None:
    """The handler lives in the master's slot over all of them: an upgrade is judged by what its own
    workers did.
    """
    more: dict[str, Any] = {
        **MASTERED,
        "topology__max__retries": 50,
        "topology__retry__backoff__ms": 1,
    }
    with Bench(**more) as bench:
        ends = [
            upgrade_all(bench, f"code {n}", fails_every=10 if n == BAD else 0) for n in range(10)
        ]
        assert [n for n, text in enumerate(ends) if text] == [BAD], ends
        assert "component 'tag' fails" in ends[BAD]
        assert "% of its tuples in upgraded workers, 0.00 % in the others" in ends[BAD]
        assert {f"code {n}" for n in range(10)} | {"old"} == bench.counts().keys()
        assert not bench.cluster.dead_letters


BAD = 5
"""Number of the upgrade whose code fails one tuple in ten."""


def upgrade_all(bench: Bench, code: str, fails_every: int) -> str:
    """Upgrade one worker, then the others, and return why it was taken back; an empty text when it
    was not.
    """
    before = bench.state.read_errors(bench.id, MASTER)
    bench.upgrade(
        topology(bench.spout, code, fails_every),
        component="tag",
        worker__num=1,
        rollback__min__executed=100,
    )
    bench.run(lambda: bench.rests(1) or bench.status() is not TopologyStatus.UPGRADING)
    if fails_every:
        bench.run(lambda: bench.status() is TopologyStatus.ROLLBACK, 600)
    elif bench.status() is TopologyStatus.UPGRADING:
        bench.service.continue_upgrade("test", UpgradeOptions(worker_num=9))
    bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
    bench.run(bench.cluster.topology().is_placed)
    bench.feed()
    return "".join(
        error.text for error in bench.state.read_errors(bench.id, MASTER) if error not in before
    )


class Interleaved(LocalCluster):
    """A cluster in which every slot takes a turn before each write of Nimbus."""

    def open_session(self, who: str) -> Any:
        store = super().open_session(who)
        return Yielding(store, self.step_slots) if who == "nimbus" else store

    def step_slots(self) -> None:
        """Step the threads of every slot once."""
        for slot in self.slots:
            for thread in slot.threads:
                self.simulation.step(thread)


class Yielding:
    """A session that lets others do something before each of its writes."""

    def __init__(self, inner: Any, others: Callable[[], None]) -> None:
        self._inner, self._others = inner, others

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in WRITES:
            return attribute

        def write(*arguments: Any, **options: Any) -> Any:
            self._others()
            return attribute(*arguments, **options)

        return write


@pytest.mark.parametrize(
    "has_master", [False, True], ids=["handled by Nimbus", "handled by a master"]
)
@pytest.mark.parametrize("end", ["complete", "all upgraded", "rollback"])
def test_nothing_stays_under_an_upgrade_that_is_over(end: str, has_master: bool) -> None:
    """S0.29: a slot may list its worker among the upgraded between two of Nimbus's writes."""
    with Bench(make=Interleaved, **(MASTERED if has_master else {})) as bench:
        bench.upgrade(worker__num=2)
        bench.run(lambda: bench.rests(1))
        if end == "complete":
            bench.service.complete_upgrade("test")
        elif end == "rollback":
            bench.service.roll_back_upgrade("test")
        else:
            bench.service.continue_upgrade("test", UpgradeOptions(worker_num=9))
        bench.run(lambda: bench.status() is TopologyStatus.ACTIVE)
        bench.cluster.advance(5)
        assert GrayUpgradeState(bench.state).upgrade_state(bench.id) == UpgradeState(None)
        bench.counts()
