"""A transactional sink gets every row exactly once, wherever its worker dies, and waits for a
target that is away.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from sparkstorm.api import (
    Effects,
    InvalidTopologyError,
    RefusedRows,
    TopologyBuilder,
    TransactionalSink,
    bolt,
)
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import replay_locally
from sparkstorm.testing import FeederSpout, LocalCluster, Shared, die
from sparkstorm.testing.in_process_worker import InProcessWorker
from sparkstorm.testing.sim_transport import CommitFault, FaultyTransport
from tests.topologies import feed, ran, running
from tests.worker.by_hand import Workers

ROWS = 12
CONF = {
    "topology.workers": 2,
    "topology.epoch.rows": 3,
    "topology.max.worker.deaths": 1000,
    "topology.message.timeout.secs": 3600,
    "topology.sink.patience.secs": 5,
}


@dataclass
class Target:
    """An outside system: rows by (task, epoch), visible or staged, and the calls it has seen."""

    staged: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    visible: list[Any] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    die_at: int = -1
    away: dict[str, int] = field(default_factory=dict)  # how often a call is still refused

    def step(self, name: str) -> None:
        self.calls.append(name)
        if len(self.calls) == self.die_at:
            die()
        if self.away.get(name, 0):
            self.away[name] -= 1
            raise ConnectionError(f"no route to the target in {name}")


class Staging(TransactionalSink):
    """Stages rows in the target and shows them by commit; dies where the target says so, before and
    after each effect.
    """

    def __init__(self, target: Shared[Target]) -> None:
        self.shared = target

    def open(self, conf: Any, context: Any) -> None:
        self.target, self.task, self.rows = self.shared.value, context.task_id, list[Any]()

    def begin(self, epoch: int) -> None:
        self.target.step("begin")
        self.rows = []

    def write(self, tup: Any) -> None:
        self.target.step("write")
        if tup[0] == "poison":
            raise ValueError("not this one")
        self.rows.append(tup)

    def prepare(self, epoch: int) -> Any:
        self.target.step("prepare")
        if refused := [tup for tup in self.rows if tup[0] == "refused"]:
            self.rows = [tup for tup in self.rows if tup[0] != "refused"]
            raise RefusedRows([(tup, "violates a constraint") for tup in refused])
        assert (self.task, epoch) not in self.target.staged
        self.target.staged[self.task, epoch] = [tup[0] for tup in self.rows]
        self.target.step("prepared")
        return [self.task, epoch]

    def commit(self, epoch: int, prepared: Any) -> None:
        self.target.step("commit")
        assert prepared == [self.task, epoch]
        if self.target.epochs.get(self.task, 0) < epoch:
            self.target.epochs[self.task] = epoch
            self.target.visible += self.target.staged.pop((self.task, epoch))
            self.target.step("committed")

    def recover(self, epoch: int, prepared: Any) -> None:
        self.target.step("recover")
        super().recover(epoch, prepared)
        for key in [k for k in self.target.staged if k[0] == self.task]:
            del self.target.staged[key]
        self.target.step("recovered")


class Outbox(Staging):
    """Keeps the rows in the store, and writes them with the epoch's number in one step of the
    target.
    """

    def prepare(self, epoch: int) -> Any:
        self.target.step("prepare")
        return [tup[0] for tup in self.rows]

    def commit(self, epoch: int, prepared: Any) -> None:
        self.target.step("commit")
        if self.target.epochs.get(self.task, 0) < epoch:
            self.target.epochs[self.task] = epoch
            self.target.visible += prepared
        self.target.step("committed")


def build(sink: TransactionalSink, parallelism: int = 2) -> tuple[Topology, FeederSpout]:
    spout, builder = FeederSpout(["value"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("sink", sink, parallelism, inputs="spout")
    return builder.build(), spout


def run(kind: type[Staging], target: Target, rows: Any = range(ROWS)) -> LocalCluster:
    topology, spout = build(kind(Shared(target)))
    with ran(topology, spout, rows, CONF, seed=3) as cluster:
        assert not cluster.topology().waiting()
        assert len({*spout.acked, *spout.failed}) == len(list(rows))
        return cluster


class Slow(Staging):
    """Its own epoch lasts longer than several commits of the worker."""

    flush_secs, flush_rows = 0.01, 5


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("kind", [Staging, Outbox, Slow])
def test_a_death_at_every_call_leaves_every_row_once(kind: type[Staging]) -> None:
    clean = Target()
    run(kind, clean)
    assert Counter(clean.visible) == Counter(range(ROWS))
    assert {"recover", "begin", "write", "prepare", "commit", "committed"} <= set(clean.calls)
    for number in range(1, len(clean.calls) + 1):
        target = Target(die_at=number)
        try:
            run(kind, target)
            assert Counter(target.visible) == Counter(range(ROWS))
            assert not target.staged
        except Exception as error:
            raise AssertionError(
                f"death at call {number} ({clean.calls[number - 1]}): {error}"
            ) from error


class Faults:
    """One fault of the store at the n-th commit of the run, or a zombie or a store that goes back
    after it.
    """

    def __init__(self, at: int, fault: CommitFault) -> None:
        self.at, self.fault, self.commits = at, fault, 0

    def make(self, worker: InProcessWorker) -> FaultyTransport:
        return FaultyTransport(worker, self.choose)

    def choose(self) -> CommitFault:
        self.commits += 1
        return self.fault if self.commits == self.at else CommitFault.NONE


def target_after(faults: Faults, what: str) -> Target:
    """Run with a fault at one commit; `what` is "zombie", "back" or nothing besides."""
    target, done, kept = Target(), list[int](), list[Any]()
    topology, spout = build(Outbox(Shared(target)))

    def look() -> None:
        if what == "zombie" and faults.commits >= faults.at and not done:
            done.extend(1 for slot in cluster.topology().workers if slot.disown() is not None)
        elif what == "back" and not done and faults.commits > len(kept):
            store = cluster.topology().store
            if faults.commits >= faults.at:
                done.append(1)
                store.restore(kept[0] if kept else store.checkpoint())
                cluster.simulation.wake_all()
            kept.append(store.checkpoint())

    with running(topology, CONF, seed=5, make_transport=faults.make) as cluster:
        cluster.simulation.watchers.append(look)
        feed(spout, range(ROWS))
        cluster.run_until_idle()
    return target


@pytest.mark.sampled
@pytest.mark.parametrize(
    "what", ["zombie", "back", *(f.name for f in CommitFault if f is not CommitFault.NONE)]
)
def test_a_fault_at_every_commit(what: str) -> None:
    fault = CommitFault[what] if what in CommitFault.__members__ else CommitFault.NONE
    clean = Faults(0, CommitFault.NONE)
    target_after(clean, "")
    for number in range(1, clean.commits + 1):
        target = target_after(Faults(number, fault), what)
        if what == "back":  # the outside may see again what the store has lost, and lacks nothing
            assert set(target.visible) == set(range(ROWS)), number
        else:
            assert Counter(target.visible) == Counter(range(ROWS)), number


@pytest.mark.parametrize("call", ["prepare", "commit", "recover"])
def test_a_target_that_is_away_is_waited_for_and_named(call: str) -> None:
    target = Target(away={call: 3})
    topology, spout = build(Staging(Shared(target)), 1)
    with ran(topology, spout, range(ROWS), CONF, seed=3) as cluster:
        assert f"ConnectionError: no route to the target in {call}" in cluster.errors[0].text
    assert Counter(target.visible) == Counter(range(ROWS))


@pytest.mark.parametrize("call", ["prepare", "commit", "recover"])
def test_a_target_that_stays_away_ends_the_run_with_one_sentence(call: str) -> None:
    target = Target(away={call: 10_000})
    sentence = r"'sink' .* waits for its target: .*given up after 5 s \(topology.sink.patience"
    with pytest.raises(WorkerFailedError, match=sentence):
        run(Staging, target)
    assert target.calls.count(call) < 50  # the pauses grow


@pytest.mark.parametrize("kind", [Staging, Outbox])
def test_a_stop_commits_in_the_target_what_the_store_has(kind: type[Staging]) -> None:
    spout, target, builder = FeederSpout(), Shared(Target(away={"commit": 1})), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("sink", kind(target)).global_grouping("spout")
    spout.feed([7])
    workers = Workers(builder.build(), CONF)
    worker = workers.claim("all", workers.tasks)
    workers.step_until(lambda: not target.value.away["commit"], worker)
    assert target.value.visible == []
    worker.close()
    assert target.value.visible == [7]


def test_an_error_of_ours_ends_the_worker_at_once() -> None:
    class Misconfigured(Outbox):
        def recover(self, epoch: int, prepared: Any) -> None:
            raise InvalidConfigError("the table 'clicks' is missing; create it")

    topology, _ = build(Misconfigured(Shared(Target())))
    with (
        LocalCluster() as cluster,
        pytest.raises(
            WorkerFailedError, match=r"'sink' \(task \d\): the table 'clicks' is missing"
        ),
    ):
        cluster.submit(topology, CONF)


def test_poison_rows_are_parked_with_their_reason_and_the_rest_is_written() -> None:
    target = Target()
    topology, spout = build(Staging(Shared(target)))
    with ran(topology, spout, ("a", "poison", "b", "refused", "c"), CONF, seed=3) as cluster:
        reasons = {letter.values[0]: letter.reason for letter in cluster.dead_letters}
    assert sorted(target.visible) == ["a", "b", "c"]
    assert set(reasons) == {"poison", "refused"}
    assert "not this one" in reasons["poison"] and reasons["refused"] == "violates a constraint"


def test_a_replay_redirects_a_sink_or_mutes_it_and_never_runs_it() -> None:
    sink = Staging(Shared(Target()))
    topology, _ = build(sink)
    assert replay_locally(topology, {"spout": [("a",)]})["sink!input"] == [("a",)]
    replay_locally(topology, {"spout": [("a",)]}, effects={"sink": Effects.MUTE})
    sentence = "'sink' is a TransactionalSink, which cannot run in a replay"
    with pytest.raises(InvalidTopologyError, match=sentence):
        replay_locally(topology, {"spout": [("a",)]}, effects={"sink": Effects.RUN})


def test_a_sink_declares_no_outputs_and_is_refused_without_its_phases() -> None:
    class Half(TransactionalSink):
        def write(self, tup: Any) -> None: ...

    @bolt("word")
    def words(tup: Any) -> Any:
        yield "a"

    sentence = r"Half has no method prepare; define prepare\(self, epoch\)"
    with pytest.raises(InvalidTopologyError, match=sentence):
        TopologyBuilder().set_bolt("sink", Half())
    sentence = "'sink' is a TransactionalSink and emits nothing: drop its outputs"
    with pytest.raises(InvalidTopologyError, match=sentence):
        TopologyBuilder().set_bolt("sink", Staging(Shared(Target())), outputs=["x"])
