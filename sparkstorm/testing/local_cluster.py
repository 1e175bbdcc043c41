"""A cluster in one thread under simulated time, for tests of topologies; no server, no JVM.

Nimbus, its service, supervisors, slots and workers are those of a real cluster, over stores in
memory. The simulation steps them in an order that it draws from a seed, and moves time by hand.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from sparkstorm.client.readings import StoreSource
from sparkstorm.client.savepoints import SavepointSource
from sparkstorm.client.service import NimbusService
from sparkstorm.client.submission import CellsSeeding, sow
from sparkstorm.common.config import merge
from sparkstorm.common.errors import (
    CheckpointError,
    NotAliveError,
    StoreUnavailableError,
    TopologyPausedError,
)
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure, FailureGroup, group_failures
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.control_plane.blobs.base import BytesStore
from sparkstorm.control_plane.blobs.local import LocalBytesStore
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.base import StateStore
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.hooks import NimbusHooks
from sparkstorm.control_plane.nimbus.nimbus import Nimbus
from sparkstorm.control_plane.scheduling.per_topology import chosen_scheduler
from sparkstorm.control_plane.supervisor.local import MemoryDisk
from sparkstorm.data_plane.checkpoint.restore import FROM_CHECKPOINT, Seeds
from sparkstorm.data_plane.executor.state import merged_states
from sparkstorm.data_plane.transport.local_reader import LocalSeeding
from sparkstorm.data_plane.transport.progress import TaskCounts
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.extensions.cells.cells_reader import CellsReader
from sparkstorm.testing.components import FeederSpout
from sparkstorm.testing.in_process_worker import MakeTransport, SimOptions
from sparkstorm.testing.local_topology import LocalTopology, MomentReader
from sparkstorm.testing.sim_data import DataPlane
from sparkstorm.testing.sim_slot import KEY, Duty, SimNode, SimSlot
from sparkstorm.testing.simulation import Simulation

_FIRST_PORT = 6700
# longer than a spout's longest pause: a component that is silent for so long has nothing to do
_QUIET_MS = 20
_LIMIT_SECS = 3600.0
_LIMIT_STEPS = 100_000
_PLACED_MS = 300_000
_RESTLESS = (TopologyStatus.KILLED, TopologyStatus.UPGRADING, TopologyStatus.ROLLBACK)
_SAVEPOINT_MS = 60_000
_RETRY_MS = 500  # Nimbus's pause after a store that did not answer


class LocalCluster:
    """Simulated cluster of `supervisors` nodes with `slots` slots each.

    >>> from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster
    >>> from sparkstorm.api import TopologyBuilder
    >>> spout, capture, builder = FeederSpout(["word"]), CaptureBolt(), TopologyBuilder()
    >>> _ = builder.set_spout("words", spout)
    >>> _ = builder.set_bolt("capture", capture, inputs="words")
    >>> with LocalCluster() as cluster:
    ...     _ = cluster.submit(builder.build())
    ...     _ = spout.feed(["nathan"])
    ...     cluster.run_until_idle()
    >>> capture.values
    [('nathan',)]

    Ends of epochs, sizes of batches and the state backend (lazy for odd seeds) are drawn from the
    seed, unless `draws_epochs` is false. The control plane sleeps while it has nothing to do,
    unless `is_lively` is true. `stores` names its Redis servers, the home store's first.
    """

    steps_threads = False
    checks_values = True

    def __init__(
        self,
        supervisors: int = 2,
        slots: int = 4,
        *,
        seed: int = 0,
        conf: Mapping[str, Any] | None = None,
        thread_patience_secs: float = 5.0,
        store_max_bytes: int | None = None,
        make_transport: MakeTransport | None = None,
        draws_epochs: bool = True,
        is_lively: bool = False,
        poll_ms: int = 250,
        stores: Sequence[str] = ("",),
    ) -> None:
        self.simulation = Simulation(seed)
        self.slot_conf = merge(conf or {})
        self.data_plane = DataPlane(store_max_bytes, *stores)
        self.bytes_store: BytesStore = LocalBytesStore()
        self.tree = LocalStateTree()
        self.options = SimOptions(
            random.Random(seed).choice((1, 4, 32)) if draws_epochs and seed % 2 else 0,
            draws_epochs,
            thread_patience_secs,
            make_transport,
            is_lively,
            poll_ms,
        )
        self._is_resting = False
        self.nimbus_duties: list[Duty] = []
        self._submitted: list[Topology] = []  # keeps objects of components made for tests in memory
        self._views: dict[str, LocalTopology] = {}
        self.storm_state = StormState(self.open_session("client"), KEY)
        self._data = self.data_plane.finder(self.storm_state)
        self.blobs = blobs = BlobStore(self.storm_state, self.bytes_store, KEY)
        self.service = NimbusService(
            self.storm_state, blobs, self.conf, self.simulation.clock, self._run_until
        )
        self.nodes = [
            SimNode(MemoryDisk(f"node{n}"), f"host-node{n}") for n in range(1, supervisors + 1)
        ]
        ports = range(_FIRST_PORT, _FIRST_PORT + slots)
        self.slots = [self._make_slot(node, port) for node in self.nodes for port in ports]
        for slot in self.slots:
            slot.start()
        self._run_until(lambda: len(self.storm_state.supervisor_ids()) == supervisors, 0)
        self.start_nimbus()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def conf(self) -> Mapping[str, Any]:
        """The cluster's configuration."""
        return self.slot_conf.as_dict()

    @property
    def now_ms(self) -> int:
        """Simulated time in milliseconds."""
        return self.simulation.clock.now_ms()

    # -- the control plane -------------------------------------------------------------------------

    def open_session(self, who: str) -> StateStore:
        """A new session on the cluster's tree."""
        return LocalStateStore(self.tree)

    def _make_slot(self, node: SimNode, port: int) -> SimSlot:
        return SimSlot(self, node, port)

    def start_nimbus(self) -> None:
        """Start a Nimbus and a service that reaches it."""
        store = self.open_session("nimbus")
        self.nimbus_store: StateStore | None = store
        state = StormState(store, KEY)
        data = self.data_plane
        hooks = NimbusHooks(
            wake=self._wake_nimbus,
            retirement=data,
            home=data.name,
            other_stores=data.others,
            require_durable=data.require_durable,
            read_counts=data.read_counts,
        )
        blobs = BlobStore(state, self.bytes_store, KEY)
        self.nimbus = Nimbus(state, blobs, chosen_scheduler(self.conf), self.conf, "nimbus", hooks)
        self._nimbus_is_woken = True
        self.nimbus_duties = [
            Duty(self.simulation, self._step_nimbus, lambda: self._nimbus_is_woken)
        ]
        self.simulation.add(self.nimbus_duties[0], has_threads=False)

    def _wake_nimbus(self) -> None:
        self._nimbus_is_woken = True

    def _step_nimbus(self, now_ms: int) -> int | None:
        self._nimbus_is_woken = False
        try:
            return self.rest_or(self.nimbus.step(now_ms))
        except StoreUnavailableError:
            return now_ms + _RETRY_MS

    def rest_or(self, due_ms: int) -> int | None:
        """Return the time at which a part of the control plane is due; none while all of it may
        sleep.
        """
        was_resting = self._is_resting
        self._is_resting = not self.options.is_lively and self._is_calm()
        if was_resting is not self._is_resting:
            turn = self.simulation.rest if self._is_resting else self.simulation.wake
            for duty in (
                *self.nimbus_duties,
                *(thread for slot in self.slots for thread in slot.threads),
            ):
                turn(duty)
        return None if self._is_resting else due_ms

    def _is_calm(self) -> bool:
        if any(slot.machine is None or not slot.machine.is_settled for slot in self.slots):
            return False
        bases = [
            self.storm_state.read_base(topology_id)
            for topology_id in self.storm_state.topology_ids()
        ]
        if any(base is None or base.pending or base.status in _RESTLESS for base in bases):
            return False
        return not (self.storm_state.deploy_names() or self.storm_state.request_ids())

    # -- topologies --------------------------------------------------------------------------------

    def submit(
        self,
        topology: Topology,
        conf: Mapping[str, Any] | None = None,
        name: str = "test",
        from_checkpoint: Path | None = None,
    ) -> str:
        """Start a topology, perhaps from a checkpoint, and return its id once its workers run.

        An exception of a component's `open` or `prepare` is raised here.
        """
        own_conf = dict(conf or {})
        seeds = None
        if from_checkpoint is not None:
            seeds = Seeds.read(from_checkpoint, topology)
            topology, own_conf[FROM_CHECKPOINT] = seeds.topology, str(from_checkpoint)
        self._submitted.append(topology)
        seed = None if seeds is None else partial(self._sow, seeds, own_conf)
        topology_id = self.service.submit(
            name, topology, own_conf, pack_topology(topology), seed=seed
        )
        self._settle(topology_id)
        if failure := self._failure(topology_id):
            self.kill(name, 0)
            raise failure
        return topology_id

    def _failure(self, topology_id: str) -> Exception | None:
        """Return what ends every start of one of its workers."""
        return next((data.failure for data in self._data(topology_id) if data.failure), None)

    def _sow(
        self,
        seeds: Seeds,
        own_conf: Mapping[str, Any],
        topology_id: str,
        component_by_task: Mapping[int, str],
    ) -> None:
        conf = {**self.conf, **own_conf}
        stores = [plane.of(topology_id).store for plane in self.data_plane.named_by(conf)]
        seeding = CellsSeeding([LocalSeeding(store) for store in stores], component_by_task)
        sow(seeds, seeding, conf, component_by_task)

    def kill(self, name: str | None = None, wait_secs: float | None = None) -> None:
        """End a topology as Storm does: spouts rest, the message timeout passes, workers stop."""
        topology = self.topology(name)
        self.service.kill(topology.name, wait_secs)
        is_gone = self._run_until(
            lambda: topology.id not in self.storm_state.topology_ids() and topology.is_placed(),
            _PLACED_MS * 20,
        )
        assert is_gone, f"topology {topology.name} was killed and is still there"
        self._views.pop(topology.id, None)

    def _is_gone(self, topology: LocalTopology) -> bool:
        return topology.id not in self.storm_state.topology_ids() and topology.is_placed()

    def activate(self, name: str | None = None) -> None:
        """Let the spouts emit again."""
        topology = self.topology(name)
        self.service.activate(topology.name)
        self._settle(topology.id)

    def deactivate(self, name: str | None = None) -> None:
        """Let the spouts rest; bolts go on."""
        topology = self.topology(name)
        self.service.deactivate(topology.name)
        self._settle(topology.id)

    def rebalance(
        self,
        name: str | None = None,
        *,
        workers: int | None = None,
        executors: Mapping[str, int] | None = None,
        reassign: bool = False,
    ) -> None:
        """Change the number of workers or executors."""
        topology = self.topology(name)
        self.service.rebalance(
            topology.name, RebalanceOptions(workers, dict(executors or {}), reassign=reassign), 0
        )
        self._run_until(lambda: not self._is_pending(topology.id), _PLACED_MS)
        self._settle(topology.id)

    def upgrade(self, topology: Topology, conf: Mapping[str, Any], name: str | None = None) -> None:
        """Begin a gray upgrade; `service` continues, completes and takes it back."""
        self._submitted.append(topology)
        self.service.carry_out(
            self.service.upgrade_request(
                self.topology(name).name, topology, conf, pack_topology(topology)
            )
        )

    def _is_pending(self, topology_id: str) -> bool:
        base = self.storm_state.read_base(topology_id)
        return base is not None and base.pending is not None

    def _settle(self, topology_id: str) -> None:
        """Run until the slots match the assignment, or a component cannot be started."""
        view = self._view(topology_id)
        self._run_until(
            lambda: view.is_placed() or self._failure(topology_id) is not None, _PLACED_MS
        )

    def close(self) -> None:
        """Stop every worker."""
        for slot in self.slots:
            slot.close()
        for node in self.nodes:
            node.disk.close()

    def savepoint(self, folder: Path, name: str | None = None, overwrite: bool = False) -> None:
        """Write a savepoint; CheckpointError names what is still under way after a minute."""
        topology = self.topology(name)
        was_active = topology.is_active
        reasons = [""]
        self.deactivate(topology.name)

        def is_written() -> bool:
            source = SavepointSource(topology.info_by_task, topology.reader())
            reasons[0] = source.write(folder, topology.name, overwrite)
            return not reasons[0]

        try:
            if not self._run_until(is_written, _SAVEPOINT_MS):
                raise CheckpointError(f"no savepoint after {_SAVEPOINT_MS // 1000} s: {reasons[0]}")
        finally:
            if was_active:
                self.activate(topology.name)

    # -- time --------------------------------------------------------------------------------------

    def advance(self, seconds: float = 0.0, *, ms: int = 0) -> None:
        """Let simulated time pass, with everything that falls due."""
        self.wake_workers()
        self.simulation.advance(round(seconds * 1000) + ms)
        self._raise_failure()

    def run_until_idle(
        self, limit_secs: float = _LIMIT_SECS, limit_steps: int = _LIMIT_STEPS
    ) -> None:
        """Run until every tree is done, nothing waits, and blocking sources are at their end or
        silent for `thread_patience_secs` of real time; TimeoutError lists what still waits.

        If a worker cannot be started again, its error is raised, and so is that of a row that a
        FeederSpout was given and its stream refuses; TopologyPausedError if most inputs of a bolt
        fail (topology.failure.pause.share).

        Time advances as far as needed (retries, time-outs), at most by `limit_secs` of simulated
        time.
        """
        until_ms = self.now_ms + round(limit_secs * 1000)
        last_step = self.simulation.steps + limit_steps
        self.wake_workers()
        silent_since_s: float | None = None  # in real time; a thread that only counts is silent
        while True:
            did = self._run_a_while(last_step)
            self._raise_failure()
            if did:
                silent_since_s = None
            elif not self.waiting():
                silent_since_s = silent_since_s or time.monotonic()
                if self._have_sources_ended(silent_since_s + self.options.patience_secs):
                    self._raise_paused()  # its spouts are not asked, and may have rows left
                    return
                continue
            if self.now_ms >= until_ms or self.simulation.steps >= last_step:
                limits = f"{limit_secs:g} simulated seconds or {limit_steps} steps"
                raise TimeoutError(f"not idle after {limits}: {self._complaint()}")
            if not did:
                self._raise_paused()
                self.simulation.leap(until_ms)

    def _have_sources_ended(self, until_s: float) -> bool:
        """Return whether all blocking sources are at their end, or wait until one has something;
        TimeoutError when none has by `until_s`.
        """
        processes = [slot.process for slot in self.slots if slot.process is not None]
        waiting = [process for process in processes if process.open_sources()]
        if not waiting or any(process.wait_for_sources(until_s) for process in waiting):
            return not waiting
        if names := [name for process in waiting for name in process.open_sources()]:
            patience_secs = self.options.patience_secs
            raise TimeoutError(
                f"not idle: {', '.join(names)} has been silent for {patience_secs:g} s, and has not said that it is at "
                "its end (is_exhausted); use run_until with a condition for a source without an end"
            )
        return False

    def _raise_paused(self) -> None:
        """Raise TopologyPausedError when most inputs of a component have failed: waiting would
        change nothing.
        """
        for slot in self.slots:
            worker = (
                slot.process.run.worker
                if slot.process is not None and slot.process.run is not None
                else None
            )
            if worker is not None and (sentences := worker.summary().get("paused")):
                raise TopologyPausedError(sentences[0])

    def run_until(self, condition: Callable[[], bool], timeout_secs: float = 60.0) -> None:
        """Run until a condition holds; TimeoutError after `timeout_secs` of real time."""
        deadline = time.monotonic() + timeout_secs
        self.wake_workers()
        while not condition():
            self._raise_failure()
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the condition was not true within {timeout_secs:g} s: {self._complaint()}"
                )
            if not self.simulation.run_round() and not self.simulation.leap(
                self.now_ms + _QUIET_MS
            ):
                self.wake_workers()

    def _run_until(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Run until a condition holds or so much simulated time has passed; whether it holds."""
        until_ms = self.now_ms + timeout_ms
        while not condition():
            if not self.simulation.run_round() and not self.simulation.leap(until_ms):
                return condition()
        return True

    def _raise_failure(self) -> None:
        """Raise the error that a worker has died of, when every other start would end the same, or
        that of a fed row that is refused.
        """
        for data in self.data_plane.all():
            if data.failure is not None and not self.options.is_lively:
                failure = data.failure
                data.failure = None
                raise failure
        for spout in [spout.instance for topology in self._submitted for spout in topology.spouts]:
            if isinstance(spout, FeederSpout):
                spout.raise_refused()

    def wake_workers(self) -> None:
        """Step every worker at the next opportunity."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.rouse()

    # -- faults ------------------------------------------------------------------------------------

    def kill_worker(self, which: int | str = 0, name: str | None = None) -> SimSlot:
        """Kill a worker as kill -9 does: the n-th by slot, or that of a component's first task."""
        topology = self.topology(name)
        slot = topology.workers[which] if isinstance(which, int) else topology.worker_of(which)
        slot.kill()
        return slot

    # -- reading -----------------------------------------------------------------------------------

    def topology(self, name: str | None = None) -> LocalTopology:
        """Return a running topology; the name may be left out when there is one."""
        ids = self.storm_state.topology_ids()
        matching = [
            topology_id
            for topology_id in ids
            if name is None or topology_id.rsplit("-", 2)[0] == name
        ]
        if len(matching) == 1:
            return self._view(matching[0])
        names = ", ".join(topology_id.rsplit("-", 2)[0] for topology_id in ids) or "none"
        raise NotAliveError(f"topology {name or '(no name given)'} is not alive; {names} is")

    def _view(self, topology_id: str) -> LocalTopology:
        view = self._views.get(topology_id)
        if view is None:
            name = topology_id.rsplit("-", 2)[0]
            view = self._views[topology_id] = LocalTopology(
                topology_id, name, self.storm_state, self._data, self.slots
            )
        return view

    def _topologies(self) -> list[LocalTopology]:
        return [self._view(topology_id) for topology_id in self.storm_state.topology_ids()]

    def state(self, component: str, name: str | None = None) -> dict[Any, Any]:
        """Return a stateful bolt's keys and values over all tasks, as last committed.

        ValueError if several tasks have the same key: read `state_by_task` then.
        """
        return merged_states(component, self.state_by_task(component, name))

    def state_by_task(self, component: str, name: str | None = None) -> dict[int, dict[Any, Any]]:
        """Return the same for each of its tasks."""
        return self.topology(name).states(component)

    def counts(self, component: str, name: str | None = None) -> TaskCounts:
        """Return a component's counts (emitted, executed, acked, failed, ...), as committed."""
        return self.topology(name).counts(component)

    def metrics(self, component: str, name: str | None = None) -> dict[str, MetricValue]:
        """Return metrics of a component's code by name, as committed."""
        return self.topology(name).metrics(component)

    @property
    def errors(self) -> list[Failure]:
        """Errors that components have reported or raised so far, in order."""
        return [error for topology in self._topologies() for error in topology.errors]

    def failures(self, name: str | None = None) -> list[FailureGroup]:
        """Return failures by cause, the most frequent first."""
        topology = self.topology(name)
        letters = (letter.failure for letter in topology.dead_letters())
        return group_failures(topology.progress().failures, [*topology.errors, *letters])

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Inputs that were given up, with their causes."""
        return [letter for topology in self._topologies() for letter in topology.dead_letters()]

    def source(self, is_read_only: bool = False) -> StoreSource:
        """Return what a sampler (`insight.Sampler`) reads this cluster from."""
        clock = self.simulation.clock
        return StoreSource(
            self.storm_state, self.service, self._reader, self.slot_conf, clock, is_read_only
        )

    def _reader(self, topology_id: str) -> MomentReader | CellsReader:
        return self._view(topology_id).reader()

    def reaches(self, place: str, store: str) -> bool:
        """Return whether a worker reaches a store: here always."""
        return True

    # -- inside ------------------------------------------------------------------------------------

    def _run_a_while(self, last_step: int) -> bool:
        """Run what is due now and shortly after; return whether any data moved."""
        before = self._activity()
        until_ms = self.now_ms + _QUIET_MS
        while self.simulation.steps < last_step and (
            self.simulation.run_round() or self.simulation.leap(until_ms)
        ):
            pass
        processes = [slot.process for slot in self.slots if slot.worker is not None]
        return before != self._activity() or any(
            process is not None and process.clock.is_busy for process in processes
        )

    def _activity(self) -> list[int]:
        return [topology.activity for topology in self._topologies()]

    def waiting(self) -> list[str]:
        """Return what is not done yet, a phrase each."""
        return [phrase for topology in self._topologies() for phrase in topology.waiting()]

    def _complaint(self) -> str:
        return (
            "; ".join(self.waiting()[:8])
            or "a spout never stops emitting: give it an is_exhausted, or use advance()"
        )
