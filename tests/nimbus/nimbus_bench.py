"""A whole simulated cluster around a Nimbus: a local tree, a simulated clock, supervisors whose
slots obey.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkstorm.client.request_client import PendingRequest
from sparkstorm.client.service import NimbusService
from sparkstorm.common.clock import SimClock
from sparkstorm.common.config import default_conf
from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.model.assignment import (
    Assignment,
    ExecutorId,
    SupervisorInfo,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.common.model.topology import Component, Grouping, Stream, Subscription, Topology
from sparkstorm.control_plane.blobs.local import LocalBytesStore
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.nimbus import Nimbus
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.view import Scheduler
from sparkstorm.extensions.upgrade.state import GrayUpgradeState

KEY = b"k" * 32
START_MS = 1_000_000
CODE = b"pickled components"
_TURNS_AT_ONCE = 4


def wordcount(split: int = 4, count: int = 4, num_tasks: int | None = None) -> Topology:
    """A spout, a shuffled bolt, a bolt grouped by fields."""
    words = Stream(("word",))
    return Topology(
        {
            "lines": Component("lines", "spout", None, 1, streams={"default": Stream(("line",))}),
            "split": Component(
                "split", "bolt", None, split, num_tasks, {}, {"default": words},
                (Subscription("lines", "default", Grouping("shuffle")),),
            ),
            "count": Component(
                "count", "bolt", None, count, inputs=(Subscription("split", "default", Grouping("fields", ("word",))),)
            ),
        }
    )  # fmt: skip


@dataclass
class FakeSupervisor:
    """Slots that run what the assignments say, and say so; they can die, fall silent or lose their
    session.

    `opens` gives the verdict of a trial of the code with that key, published a step after its
    request was seen; None: no trials.
    """

    node: str
    host: str
    ports: tuple[int, ...]
    tree: LocalStateTree
    is_up: bool = True
    registers: bool = True
    silent_ports: set[int] = field(default_factory=set)
    resources: dict[str, float] = field(default_factory=dict)
    opens: Callable[[str], str | None] | None = None
    seen_keys: set[str] = field(default_factory=set)
    store_problem: str = ""
    driver_problem: str = ""
    running: dict[int, tuple[str, tuple[ExecutorId, ...], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = LocalStateStore(self.tree)
        self.state = StormState(self.store, KEY)

    def step(self, now_ms: int) -> None:
        """Register, follow the assignments, beat."""
        if not self.is_up or self.tree.is_down:
            return
        if self.registers:
            offer = SupervisorInfo(
                self.node,
                self.host,
                now_ms,
                now_ms - START_MS,
                self.ports,
                resources=self.resources,
            )
            self.state.register_supervisor(
                replace(
                    offer,
                    trials=self._trials(),
                    store_problem=self.store_problem,
                    driver="head:7300",
                    driver_problem=self.driver_problem,
                )
            )
        assignments = self.state.read_assignments()
        for port in self.ports:
            self._follow(WorkerSlot(self.node, port), assignments, now_ms)

    def _trials(self) -> dict[str, str] | None:
        if self.opens is None:
            return None
        opened, _ = self.state.open_requests()
        keys = {each.base.code_key for each, outcome in opened if each.base and outcome is None}
        ripe, self.seen_keys = keys & self.seen_keys, keys
        return {key: verdict for key in ripe if (verdict := self.opens(key)) is not None}

    def _follow(self, slot: WorkerSlot, assignments: Mapping[str, Assignment], now_ms: int) -> None:
        wanted = [(each, found) for each, found in assignments.items() if found.executors_at(slot)]
        assert len(wanted) <= 1, (
            f"{slot} belongs to several topologies: {[each for each, _ in wanted]}"
        )
        was = self.running.pop(slot.port, None)
        if was and (not wanted or wanted[0][0] != was[0]):
            self.state.remove_worker_beat(was[0], slot)
        if not wanted:
            return
        topology_id, assignment = wanted[0]
        executors = tuple(assignment.executors_at(slot))
        self.running[slot.port] = (topology_id, executors, assignment.version)
        if slot.port not in self.silent_ports:
            self.state.write_worker_beat(
                WorkerBeat(
                    topology_id, slot.node, slot.port, now_ms, START_MS, 1, 1, "RUNNING", assignment.version,
                    dict.fromkeys(executors),
                )
            )  # fmt: skip
            self._tell_upgraded(topology_id, slot, assignment)

    def _tell_upgraded(self, topology_id: str, slot: WorkerSlot, assignment: Assignment) -> None:
        """As a slot does whose worker has beaten under the code that a gray upgrade gave it."""
        upgrade = self.state.read_upgrade(topology_id)
        if (
            upgrade
            and GrayUpgradeState(self.state).is_upgrading(topology_id, slot)
            and upgrade.target(slot) == assignment.code_at(slot)
        ):
            GrayUpgradeState(self.state).write_upgraded(topology_id, slot, upgrade.target(slot))

    def die(self) -> None:
        """As a host that loses power: no more beats, and its session ends."""
        self.is_up = False
        self.store.expire_session()


class Bench:
    """A cluster whose parts all share one simulated clock."""

    def __init__(
        self,
        nodes: int = 2,
        ports: Sequence[int] = (6700, 6701),
        scheduler: Scheduler | None = None,
        **conf: Any,
    ) -> None:
        self.tree = LocalStateTree()
        self.clock = SimClock(START_MS)
        self.bytes_store = LocalBytesStore()
        self.conf = {
            **default_conf().as_dict(),
            **{key.replace("__", "."): value for key, value in conf.items()},
        }
        self.scheduler = scheduler or DefaultScheduler()
        self.supervisors = {
            f"node-{n}": FakeSupervisor(f"node-{n}", f"host-{n}", tuple(ports), self.tree)
            for n in range(nodes)
        }
        self.store = LocalStateStore(self.tree)
        self.state = StormState(self.store, KEY)
        self.turns = 0
        self.start_nimbus()
        for supervisor in self.supervisors.values():
            supervisor.step(START_MS)

    def start_nimbus(self) -> None:
        """A fresh Nimbus on the same store, as after a restart."""
        self.blobs = BlobStore(self.state, self.bytes_store, KEY)
        self.nimbus = Nimbus(self.state, self.blobs, self.scheduler, self.conf)
        self.service = self.client()

    def client(self, store: LocalStateStore | None = None) -> NimbusService:
        """A service over this Nimbus's session, or over another process's."""
        state = self.state if store is None else StormState(store, KEY)
        return NimbusService(
            state, BlobStore(state, self.bytes_store, KEY), self.conf, self.clock, self.wait_until
        )

    def restart_nimbus(self) -> None:
        """Let the old Nimbus go, session and all, and start another."""
        self.store.close()
        self.store = LocalStateStore(self.tree)
        self.state = StormState(self.store, KEY)
        self.start_nimbus()

    def tick(self, delta_ms: int = 1000) -> None:
        """One step of everybody."""
        now_ms = self.clock.advance(delta_ms)
        for supervisor in self.supervisors.values():
            supervisor.step(now_ms)
        self.step_nimbus(now_ms)
        self.check()

    def step_nimbus(self, now_ms: int) -> None:
        """One step of Nimbus, which may find ZooKeeper away."""
        try:
            self.nimbus.step(now_ms)
        except StoreUnavailableError:
            if not self.tree.is_down:
                raise

    def advance(self, seconds: int) -> None:
        """Let time pass, a second at a step."""
        for _ in range(seconds):
            self.tick()

    def wait_until(self, condition: Any, timeout_ms: int) -> bool:
        """Drive the cluster until something holds: what can be done at once takes no simulated
        time.
        """
        for _ in range(_TURNS_AT_ONCE):
            if condition():
                return True
            self.tick(0)
        deadline = self.clock.now_ms() + timeout_ms
        while not condition():
            if self.clock.now_ms() >= deadline:
                return False
            self.tick(100)
        return True

    def submit(
        self, name: str = "wc", topology: Topology | None = None, code: bytes = CODE, **conf: Any
    ) -> str:
        """Submit and drive until it is assigned."""
        own = {
            "topology.workers": 4,
            **{key.replace("__", "."): value for key, value in conf.items()},
        }
        return self.service.submit(name, topology or wordcount(), own, code)

    def begin_rebalance(
        self, name: str, options: RebalanceOptions, wait_secs: float | None
    ) -> PendingRequest:
        """Ask for a rebalance and drive until it is accepted."""
        pending = self.service.begin(self.service.rebalance_request(name, options, wait_secs))
        assert self.wait_until(lambda: pending.poll() is not None, 10_000)
        self.tick(0)
        return pending

    def check(self) -> None:
        """The invariants: an executor in one slot, a slot with one topology, versions that only
        grow.
        """
        if self.tree.is_down:
            return
        owner_by_slot: dict[WorkerSlot, str] = {}
        for topology_id, assignment in self.state.read_assignments().items():
            for slot in assignment.slot_by_executor.values():
                assert owner_by_slot.setdefault(slot, topology_id) == topology_id, (
                    f"{slot} has two topologies"
                )
            result = assignment.placed_version_by_executor.keys()
            assert result == assignment.slot_by_executor.keys()
            assert assignment.start_ms_by_executor.keys() == assignment.slot_by_executor.keys()
            assert all(
                placed <= assignment.version
                for placed in assignment.placed_version_by_executor.values()
            )

    def base_of(self, topology_id: str) -> TopologyBase:
        """The record of a topology, which must be there."""
        base = self.state.read_base(topology_id)
        assert base is not None
        return base

    def assignment_of(self, topology_id: str) -> Assignment:
        """The same of its assignment."""
        assignment = self.state.read_assignment(topology_id)
        assert assignment is not None
        return assignment

    def slots(self, topology_id: str) -> dict[ExecutorId, WorkerSlot]:
        """Where a topology is."""
        assignment = self.state.read_assignment(topology_id)
        return dict(assignment.slot_by_executor) if assignment else {}


def submitted(*cluster: Any, **conf: Any) -> tuple[Bench, str]:
    """A cluster that runs a topology, and its id."""
    bench = Bench(*cluster, **conf)
    return bench, bench.submit()
