"""One run of a topology on a simulated cluster under faults: rows over time, recovery, and the
checks at the end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sparkstorm.common.errors import (
    SparkStormError,
    StoreInconsistentError,
)
from sparkstorm.common.model.assignment import WorkerCode
from sparkstorm.common.model.requests import RequestKind, is_id_of
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.upgrade import UpgradeState
from sparkstorm.common.settings import DeliverySettings, WorkerSettings
from sparkstorm.common.windowing.settings import is_timed
from sparkstorm.control_plane.blobs.store import BlobKind
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.extensions.upgrade.state import GrayUpgradeState
from sparkstorm.testing.components import FeederSpout, TargetSink
from sparkstorm.testing.faults import Fault, Scale
from sparkstorm.testing.faulty_cluster import FaultyCluster
from sparkstorm.testing.invariants import Invariants
from sparkstorm.testing.trial_requests import (
    LOOK_MS,
    MAIN,
    Client,
    FaultRequests,
    has_zookeeper_gone_back,
)

Rows = Sequence[Sequence[Any]]
DURATION_MS = 8_000  # within which faults begin
_FEED_MS = 5_000  # rows come spread over so long
_SETTLE_MS = 240_000  # within which everything must settle once the last fault is over
_MEND_MS = 30_000  # within which a slot puts code back that Redis has lost
_LOST_CODE = "hot deploy not finished: blob "
_END_OF_TIME_MS = 2_000
_MOST_STEPS = 60_000
_SUBMITS = 20
_MOST_BURSTS = 6


@dataclass(frozen=True)
class Subject:
    """Subject of a simulation: `make` returns a fresh topology, whose spouts in `sources` are fed
    those rows.

    `check` is called after each run with the cluster and the name of the topology.
    """

    make: Callable[[], Topology]
    sources: Mapping[str, Rows] = field(default_factory=dict)
    conf: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[FaultyCluster, str], None] | None = None
    # names of the cluster's stores; with several, faults meet single ones too
    stores: tuple[str, ...] = ("",)
    # names of the kinds of faults that are drawn; all but EDGE_KINDS when left out
    kinds: tuple[str, ...] = ()
    # what makes the spouts that are fed, of the streams that they declare
    feeder: Callable[[Any], FeederSpout] = FeederSpout


@dataclass(frozen=True)
class Reference:
    """Results of runs without faults: states of the bolts that depend on no order, dead letters,
    and how far the triggers counted.
    """

    states: Mapping[str, Mapping[str, list[str]]]
    num_dead_letters: int
    scale: Scale
    # how often each row is in the target of each TargetSink
    targets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    uncompared: tuple[str, ...] = ()  # bolts whose states differ between two runs without faults
    # messages by spout: those that bolts refuse
    failed: Mapping[str, frozenset[Any]] = field(default_factory=dict)


class Trial:
    """One run of a subject under the faults of one seed."""

    def __init__(
        self,
        subject: Subject,
        seed: int,
        faults: Sequence[Fault],
        reference: Reference | None = None,
    ) -> None:
        self._subject = subject
        self._reference = reference
        self._chance = random.Random(seed)
        self._conf = {**_drawn_conf(self._chance), **subject.conf}
        self.cluster = FaultyCluster(seed, faults, {}, stores=subject.stores)
        durability = WorkerSettings.of({**self.cluster.conf, **self._conf}).durability
        for plane in self.cluster.data_plane.planes():
            plane.is_synced = durability == "disk"  # which needs it
        topology = subject.make()
        self.feeders = {
            spout: subject.feeder(topology.components[spout].streams) for spout in subject.sources
        }
        self._main = _fed(topology, self.feeders)
        self._client = Client(self.cluster, self._chance)
        # ZooKeeper lost the topology, which was among Nimbus's problems, or Redis lost its data too
        self._anew = False
        self.final_states: dict[str, dict[str, list[str]]] = {}
        self.num_dead_letters = 0
        self.failed: dict[str, frozenset[Any]] = {}
        self._requests = FaultRequests(self.cluster, self._client, self._main, self._conf)
        for fault in faults:
            self._requests.follow(fault)

    def run(self) -> None:
        """Submit, feed, suffer, recover, check."""
        cluster = self.cluster
        cluster.simulation.watchers.append(Invariants(cluster))
        cluster.simulation.most_steps = _MOST_STEPS
        ends_ms = cluster.now_ms + DURATION_MS
        self._feed()
        self._submit_main()
        cluster.simulation.advance(max(0, ends_ms - cluster.now_ms))
        self._recover()
        self._check()
        self.final_states, self.num_dead_letters = (
            self._states(),
            len(cluster.topology(MAIN).dead_letters()),
        )
        self.failed = {spout: frozenset(feeder.failed) for spout, feeder in self.feeders.items()}
        cluster.close()

    def _states(self) -> dict[str, dict[str, list[str]]]:
        """State of each bolt, values by key."""
        topology = self.cluster.topology(MAIN)
        return {bolt.id: _state(topology.states(bolt.id)) for bolt in self._main.bolts}

    def _submit_main(self) -> None:
        for _ in range(_SUBMITS):
            try:
                self.cluster.service.submit(MAIN, self._main, self._conf, pack_topology(self._main))
            except SparkStormError as refusal:
                self.cluster.say(f"submit: {type(refusal).__name__}: {refusal}")
                self.cluster.simulation.advance(LOOK_MS)
            if not self.cluster.tree.is_down and MAIN in self._names():
                return

    def _feed(self) -> None:
        for spout, rows in self._subject.sources.items():
            cuts = sorted(self._chance.randint(0, len(rows)) for _ in range(_MOST_BURSTS - 1))
            moments = sorted(self._chance.randint(0, _FEED_MS) for _ in range(_MOST_BURSTS))
            for moment, first, last in zip(moments, [0, *cuts], [*cuts, len(rows)], strict=True):
                if first < last:
                    self.cluster.after(moment, self._feeding(self.feeders[spout], rows[first:last]))

    def _feeding(self, feeder: FeederSpout, rows: Rows) -> Callable[[], None]:
        def feed() -> None:
            for row in rows:
                feeder.feed(row)
            self.cluster.wake_workers()

        return feed

    def _names(self) -> list[str]:
        return [
            topology_id.rsplit("-", 2)[0] for topology_id in self.cluster.storm_state.topology_ids()
        ]

    # -- the end -----------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Let all faults end, activate what rests, and wait until nothing waits."""
        cluster = self.cluster
        while cluster.has_more:
            cluster.simulation.advance(LOOK_MS)
        cluster.is_over = True
        self._over_ms = cluster.now_ms
        cluster.say("no more faults")
        until_ms = cluster.now_ms + _SETTLE_MS
        for feeder in self.feeders.values():
            feeder.finish()
        cluster.wake_workers()
        # Time runs on behind the last row: its last windows belong to no message. Those by the
        # clock of a machine fire when that clock says so.
        if any(map(is_timed, self._main)):
            cluster.simulation.advance(_END_OF_TIME_MS)
            self._settle(until_ms)
            behind_ms = max(node.behind_ms for node in cluster.nodes)
            cluster.simulation.advance(_END_OF_TIME_MS + behind_ms)
        self._settle(until_ms)

    def _settle(self, until_ms: int) -> None:
        cluster = self.cluster
        while waiting := self._waiting():
            assert cluster.now_ms < until_ms, (
                f"not settled {_SETTLE_MS // 1000} s after the last fault: {'; '.join(waiting[:6])}"
            )
            cluster.simulation.advance(LOOK_MS)

    @property
    def _is_anew(self) -> bool:
        """Return whether it may have been submitted more than once."""
        return self._anew or self._requests.has_killed

    def _waiting(self) -> list[str]:
        """Return what is not settled, a phrase each; the cheap looks first."""
        waiting_for = self._operate() or self._client.unfinished() or self._unsettled_control()
        waiting_for = waiting_for or self._unfinished_spouts()
        return waiting_for or self.cluster.waiting()

    def _unfinished_spouts(self) -> list[str]:
        if DeliverySettings.of(self._conf).is_tracked:
            return [
                f"messages of spout {spout} are open"
                for spout, feeder in self.feeders.items()
                if feeder.num_open
            ]
        workers = [
            slot.worker for slot in self.cluster.topology(MAIN).workers if slot.worker is not None
        ]
        spouts = [
            (spout.component, spout.spout)
            for worker in workers
            for spout in worker.task_set.spouts.values()
        ]
        return [
            f"rows of spout {name} are not emitted"
            for name, spout in spouts
            if not spout.is_exhausted()
        ]

    def _operate(self) -> list[str]:
        """Do the steps of an operator after ZooKeeper went back, or Redis was emptied, the code of
        submissions and hot deploys with it: end what Nimbus's problems name, and submit anew.
        """
        service = self.cluster.service
        nimbus = self.cluster.nimbus
        has_emptied = self.cluster.has_met("REDIS_EMPTIED")
        has_lost = has_emptied or has_zookeeper_gone_back(self.cluster)
        if self._requests.has_killed and nimbus.is_leading and MAIN not in self._names():
            self._requests.submit_anew()
        if not has_lost or not nimbus.is_leading:
            return []
        ids = {*nimbus.duties.cleanup.forgotten, *nimbus.duties.cleanup.revived}
        named = {topology_id: topology_id.rsplit("-", 2)[0] for topology_id in ids}
        for name in self.cluster.storm_state.deploy_names():
            if _LOST_CODE in nimbus.problems.get(name, ""):
                named[name] = name
        if self.cluster.now_ms >= self._over_ms + _MEND_MS:
            # nothing of its copies is left on any node, or a slot would have put it back by now
            named |= {name: name for name in self._without_code()}
        for topology_id, name in sorted(named.items()):
            self._anew |= name == MAIN
            of = "" if topology_id == name else topology_id
            kill = partial(service.new_request, RequestKind.KILL, name, topology_id=of, wait_ms=0)
            self._client.ask(kill, f"kill {topology_id}")
        if not named and MAIN not in self._names():
            self._anew |= self._has_lost_data()
            self._requests.submit_anew()
        return [f"{topology_id} is named among Nimbus's problems" for topology_id in sorted(named)]

    def _without_code(self) -> list[str]:
        """Return the topologies of which Redis has lost code or configuration, also that of some
        workers.
        """
        state = self.cluster.storm_state
        bases = [
            base for topology_id in state.topology_ids() if (base := state.read_base(topology_id))
        ]
        lost = []
        for base in bases:
            assignment = state.read_assignment(base.topology_id)
            of_workers = assignment.code_by_slot.values() if assignment else ()
            try:
                for code in {WorkerCode(base.code_key, base.conf_key), *of_workers}:
                    self.cluster.blobs.get(code.code_key)
                    self.cluster.blobs.get(code.conf_key, BlobKind.CONF)
            except StoreInconsistentError:
                lost.append(base.name)
        return lost

    def _has_lost_data(self) -> bool:
        """Return whether the topology's data are gone because Redis was emptied: nothing is left
        then that Nimbus could name. What Nimbus itself has deleted is no such loss.
        """
        planes = self.cluster.data_plane.planes()
        emptied = any(
            is_id_of(topology_id, MAIN) for plane in planes for topology_id in plane.emptied
        )
        deleted = any(
            is_id_of(topology_id, MAIN) for plane in planes for topology_id in plane.deleted
        )
        return emptied and not deleted

    def _unsettled_control(self) -> list[str]:
        cluster = self.cluster
        state = self.cluster.storm_state
        ids = state.topology_ids()
        if MAIN not in self._names():
            return [f"topology {MAIN} is gone"]
        complaints = [
            f"{topology_id} has left traces" for topology_id in sorted(state.known_ids() - set(ids))
        ]
        complaints += [
            f"data of {data.id} are left"
            for data in cluster.data_plane.all()
            if data.id not in ids and data.store.holds_data()
        ]
        complaints += [f"a hot deploy of {name} is not finished" for name in state.deploy_names()]
        offers = {
            supervisor_id: state.read_supervisor(supervisor_id)
            for supervisor_id in state.supervisor_ids()
        }
        for slot in cluster.slots:
            offer = offers.get(slot.node.name)
            if offer is None or slot.slot.port not in offer.ports:
                complaints.append(f"slot {slot.slot} is not offered")
        for topology_id in ids:
            base = state.read_base(topology_id)
            if base is not None and base.status is TopologyStatus.ACTIVE:
                upgrade = GrayUpgradeState(state).upgrade_state(topology_id)
                complaints += (
                    [f"{topology_id} has left traces of an upgrade"]
                    if upgrade != UpgradeState(None)
                    else []
                )
            if base is None or base.pending or base.status is not TopologyStatus.ACTIVE:
                complaints.append(f"{topology_id} is {base.status if base else 'gone'}")
                # the request that was to activate it was refused
                if base is not None and base.status is TopologyStatus.INACTIVE:
                    self._client.ask(
                        lambda: cluster.service.new_request(RequestKind.ACTIVATE, MAIN),
                        "activate at the end",
                    )
                # it waits for its next batch
                if base is not None and base.status is TopologyStatus.UPGRADING:
                    self._client.ask(
                        lambda: cluster.service.new_request(RequestKind.COMPLETE_UPGRADE, MAIN),
                        "complete at the end",
                    )
        return complaints

    def _check(self) -> None:
        """Compare with the results of runs without faults."""
        reference = self._reference
        topology = self.cluster.topology(MAIN)
        if self._subject.check is not None:
            self._subject.check(self.cluster, MAIN)
        if reference is None or not DeliverySettings.of(self._conf).is_exactly_once:
            return
        for spout, feeder in self.feeders.items():
            refused = reference.failed.get(spout, frozenset())
            missing = sorted(feeder.fed_ids - set(feeder.acked) - refused, key=repr)
            assert not missing, f"spout {spout}: messages {missing[:10]} were not acked"
            strange = sorted(refused ^ set(feeder.failed), key=repr)
            assert not strange, (
                f"spout {spout}: messages {strange[:10]} failed in this run or in an unharmed one, not in both"
            )
            both = sorted(refused & set(feeder.acked), key=repr)
            assert not both, (
                f"spout {spout}: messages {both[:10]} were acked, though a bolt refuses them"
            )
        for component, state in self._states().items():
            wanted = reference.states.get(component, state)
            assert state == wanted, f"state of '{component}': {_difference(state, wanted)}"
        self._check_targets(reference)
        letters = len(topology.dead_letters())
        assert letters == reference.num_dead_letters or self._is_anew, (
            f"{letters} dead letters, {reference.num_dead_letters} in an unharmed run"
        )
        for store in topology.stores:
            assert not store.quarantine, "frames were put into quarantine"
            assert not any(keys.held for keys in store.task_keys.values()), (
                "inputs are held that nobody waits for"
            )

    def _check_targets(self, reference: Reference) -> None:
        """Check that no row is missing in a target, and none is there twice, unless Redis has lost
        data and that was reported.
        """
        for component, target in self.targets().items():
            wanted = Counter(reference.targets.get(component, target))
            lost = wanted - target
            doubled = target - wanted
            assert not lost, (
                f"{lost.total()} rows are missing in the target of '{component}': {sorted(lost)[:4]}"
            )
            if doubled:
                if self._is_anew:  # an operator has submitted it anew
                    continue
                where = f"{doubled.total()} rows too many in the target of '{component}': {sorted(doubled)[:4]}"
                assert any(fault.kind.name.startswith("REDIS_") for fault in self.cluster.struck), (
                    where
                )
                said = [
                    error.text for data in self.cluster.data_plane.all() for error in data.errors
                ]
                assert any("Redis has lost" in text for text in said), (
                    f"{where}, and nothing was said"
                )

    def targets(self) -> dict[str, Counter[str]]:
        """Return how often each row is in the target of each TargetSink."""
        sinks = {
            component.id: component.instance
            for component in self._main
            if isinstance(component.instance, TargetSink)
        }
        return {name: Counter(map(repr, sink.rows)) for name, sink in sinks.items()}


def _drawn_conf(chance: random.Random) -> dict[str, Any]:
    """Settings that must change nothing about the results; those of the subject come before
    them.
    """
    return {
        "topology.message.timeout.secs": 3600,
        "topology.workers": chance.randint(1, 4),
        "topology.acker.executors": chance.randint(1, 3),
        "topology.acker.local": chance.random() < 0.5,
        "topology.max.spout.pending": chance.choice((None, 3, 10)),
        "topology.store.loss": "continue",
        "topology.store.tail.secs": 1,
        "topology.acker.batch.size": chance.choice((1, 2, 512)),
        "topology.acker.batch.split.ms": chance.choice((0, 30, 5000)),
    }


def _fed(topology: Topology, feeders: Mapping[str, FeederSpout]) -> Topology:
    return Topology(
        {
            component.id: replace(component, instance=feeders[component.id])
            if component.id in feeders
            else component
            for component in topology.components.values()
        }
    )


def _state(by_task: Mapping[int, Mapping[Any, Any]]) -> dict[str, list[str]]:
    """A component's state without its tasks: values by key."""
    texts_by_key: dict[str, list[str]] = {}
    for state in by_task.values():
        for key, value in state.items():
            texts_by_key.setdefault(repr(key), []).append(repr(value))
    return {key: sorted(values) for key, values in texts_by_key.items()}


def _difference(actual: Mapping[str, list[str]], wanted: Mapping[str, list[str]]) -> str:
    keys = [key for key in {**wanted, **actual} if actual.get(key) != wanted.get(key)]
    shown = "; ".join(f"{key} is {actual.get(key)}, not {wanted.get(key)}" for key in keys[:4])
    return f"{len(keys)} keys differ: {shown}"
