"""LocalCluster: a cluster in one thread under simulated time, for tests of topologies without servers or a JVM.

Schedulers, workers, epochs, ackers and commits are those of a real cluster. The store is a dict, time is advanced by the
test, and the simulation restarts workers that die.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from sparkstorm.checkpoint.restore import FROM_CHECKPOINT
from sparkstorm.config import check, merge
from sparkstorm.errors import AlreadyAliveError, FailedAssignTopologyError, NotAliveError
from sparkstorm.executor.state import merged_states
from sparkstorm.model.assignment import Assignment, SupervisorInfo
from sparkstorm.model.dead_letter import DeadLetter
from sparkstorm.model.status import RebalanceOptions
from sparkstorm.model.topology import Topology, validate_name
from sparkstorm.model.worker_messages import ComponentError
from sparkstorm.nimbus.component_rules import check_components
from sparkstorm.scheduling.chosen import chosen_scheduler
from sparkstorm.scheduling.round import plan_round
from sparkstorm.scheduling.snapshot import Plan, Snapshot
from sparkstorm.testing.sim_topology import SimTopology
from sparkstorm.testing.sim_worker import MakeTransport, SimWorker
from sparkstorm.testing.simulation import Simulation
from sparkstorm.worker.progress import TaskCounts

_FIRST_PORT = 6700
_QUIET_MS = 20  # longer than a spout's longest pause: a component that is silent for so long has nothing to do
_LIMIT_SECS = 3600.0
_LIMIT_STEPS = 100_000


class LocalCluster:
    """Simulated cluster of `supervisors` nodes with `slots` slots each.

    >>> from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster
    >>> from sparkstorm.api import TopologyBuilder
    >>> spout, capture, builder = FeederSpout(["word"]), CaptureBolt(), TopologyBuilder()
    >>> _ = builder.set_spout("words", spout)
    >>> _ = builder.set_bolt("capture", capture, inputs="words")
    >>> with LocalCluster() as cluster:
    ...     _ = cluster.submit(builder.build())
    ...     spout.feed(["nathan"])
    ...     cluster.run_until_idle()
    >>> capture.values
    [('nathan',)]
    """

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
    ) -> None:
        self.simulation = Simulation(seed)
        self.conf = merge(conf or {}).as_dict()
        self._scheduler = chosen_scheduler(self.conf)
        ports = tuple(range(_FIRST_PORT, _FIRST_PORT + slots))
        self._supervisors = {
            name: SupervisorInfo(name, f"host-{name}", self.now_ms, 0, ports)
            for name in (f"node{n}" for n in range(1, supervisors + 1))
        }
        self._topologies: dict[str, SimTopology] = {}
        self._submitted = 0
        self._patience_secs = thread_patience_secs
        self._store_max_bytes = store_max_bytes
        self._make_transport = make_transport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def now_ms(self) -> int:
        """Simulated time in milliseconds."""
        return self.simulation.clock.now_ms()

    # -- topologies ------------------------------------------------------------------------------------------------

    def submit(
        self, topology: Topology, conf: Mapping[str, Any] | None = None, name: str = "test", from_checkpoint: Path | None = None
    ) -> str:
        """Start a topology, from a checkpoint if one is given, and return its id.

        An exception of a component's `open` or `prepare` is raised here.
        """
        validate_name(name)
        if name in self._topologies:
            raise AlreadyAliveError(f"topology {name} runs already")
        check_components(topology, self.conf, name)
        self._submitted += 1
        topology_id = f"{name}-{self._submitted}-{self.now_ms // 1000}"
        total = {**self.conf, **check(conf or {}, f"the settings of {name}")}
        if from_checkpoint is not None:
            total[FROM_CHECKPOINT] = str(from_checkpoint)
        added = SimTopology(
            topology_id, name, topology, total, self.simulation, self._store_max_bytes, self._make_transport, from_checkpoint
        )
        added.patience_secs = self._patience_secs
        self._topologies[name] = added
        try:
            self._place(name)
        except BaseException:
            self._forget(name)
            raise
        return topology_id

    def kill(self, name: str | None = None, wait_secs: float | None = None) -> None:
        """End a topology as Storm does: deactivate spouts, wait for the message time-out, stop workers."""
        topology = self.topology(name)
        topology.set_active(False)
        self.advance(float(topology.conf["topology.message.timeout.secs"]) if wait_secs is None else wait_secs)
        self._forget(topology.name)

    def activate(self, name: str | None = None) -> None:
        """Activate the spouts of a topology."""
        self.topology(name).set_active(True)

    def deactivate(self, name: str | None = None) -> None:
        """Deactivate the spouts of a topology; bolts go on."""
        self.topology(name).set_active(False)

    def rebalance(
        self,
        name: str | None = None,
        *,
        workers: int | None = None,
        executors: Mapping[str, int] | None = None,
        reassign: bool = False,
    ) -> None:
        """Change the number of workers or executors; workers whose tasks move are stopped and started again."""
        topology = self.topology(name)
        options = RebalanceOptions(workers, dict(executors or {}), reassign=reassign)
        topology.resize(options)
        self._place(topology.name, options)

    def close(self) -> None:
        """Stop every worker."""
        for name in list(self._topologies):
            self._forget(name)

    # -- time ------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float = 0.0, *, ms: int = 0) -> None:
        """Advance simulated time and do everything that becomes due."""
        self.simulation.wake_all()
        self.simulation.advance(round(seconds * 1000) + ms)

    def run_until_idle(self, limit_secs: float = _LIMIT_SECS, limit_steps: int = _LIMIT_STEPS) -> None:
        """Run until every tree is done and nothing waits; TimeoutError lists what still waits.

        Time advances as far as needed (retries, time-outs), at most by `limit_secs` of simulated time.
        """
        until_ms = self.now_ms + round(limit_secs * 1000)
        last_step = self.simulation.steps + limit_steps
        self.simulation.wake_all()
        while True:
            did = self._run_a_while(last_step)
            if not did and not self._waiting():
                return
            if self.now_ms >= until_ms or self.simulation.steps >= last_step:
                limits = f"{limit_secs:g} simulated seconds or {limit_steps} steps"
                raise TimeoutError(f"not idle after {limits}: {self._complaint()}")
            if not did:
                self.simulation.leap(until_ms)

    def run_until(self, condition: Callable[[], bool], timeout_secs: float = 10.0) -> None:
        """Run until a condition holds; TimeoutError after `timeout_secs` of real time (for components with threads)."""
        deadline = time.monotonic() + timeout_secs
        self.simulation.wake_all()
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the condition was not true within {timeout_secs:g} s: {self._complaint()}")
            if not self.simulation.run_round() and not self.simulation.leap(self.now_ms + _QUIET_MS):
                self.simulation.wake_all()

    # -- faults ----------------------------------------------------------------------------------------------------

    def kill_worker(self, which: int | str = 0, name: str | None = None) -> SimWorker:
        """Kill a worker as kill -9 does, by its number in the order of slots or by a component, and return it."""
        topology = self.topology(name)
        worker = topology.workers[which] if isinstance(which, int) else topology.worker_of(which)
        worker.kill()
        return worker

    # -- reading ---------------------------------------------------------------------------------------------------

    def topology(self, name: str | None = None) -> SimTopology:
        """Return a running topology; the name may be left out if there is only one."""
        if name is None and len(self._topologies) == 1:
            return next(iter(self._topologies.values()))
        if name is None or name not in self._topologies:
            known = ", ".join(self._topologies) or "none"
            raise NotAliveError(f"topology {name or '(no name given)'} is not alive; {known} is")
        return self._topologies[name]

    def state(self, component: str, name: str | None = None) -> dict[Any, Any]:
        """Return a stateful bolt's keys and values over all its tasks, as last committed.

        ValueError if several tasks have the same key: read `state_by_task` then.
        """
        return merged_states(component, self.state_by_task(component, name))

    def state_by_task(self, component: str, name: str | None = None) -> dict[int, dict[Any, Any]]:
        """Return a stateful bolt's keys and values for each of its tasks, as last committed."""
        return self.topology(name).states(component)

    def counts(self, component: str, name: str | None = None) -> TaskCounts:
        """Return a component's counts (emitted, executed, acked, failed, ...) over all its tasks, as committed."""
        return self.topology(name).counts(component)

    @property
    def errors(self) -> list[ComponentError]:
        """Errors that components have reported or raised so far, in order: component, task, text."""
        return [error for topology in self._topologies.values() for error in topology.errors]

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Inputs that were parked, with their causes."""
        return [letter for topology in self._topologies.values() for letter in topology.dead_letters()]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _place(self, name: str, options: RebalanceOptions | None = None) -> None:
        plan = self._plan({self._topologies[name].id: options} if options else {})
        by_id = {topology.id: topology for topology in self._topologies.values()}
        for assignment in plan.assignments:
            by_id[assignment.topology_id].assign(assignment)
        placed: Assignment | None = self._topologies[name].assignment
        missing = set(self._topologies[name].known().executors()) - set(placed.slot_by_executor if placed else ())
        if missing:
            said = plan.status.get(self._topologies[name].id, "")
            raise FailedAssignTopologyError(f"topology {name}: no slot for {len(missing)} executors: {said}")

    def _plan(self, rebalanced: Mapping[str, RebalanceOptions]) -> Plan:
        topologies = self._topologies.values()
        assignments = {t.id: t.assignment for t in topologies if t.assignment is not None}
        alive = {id: frozenset(a.slot_by_executor) for id, a in assignments.items()}
        snapshot = Snapshot({t.id: t.known() for t in topologies}, assignments, self._supervisors)
        return plan_round(snapshot, alive, self._scheduler, self.conf, self.now_ms, rebalanced)

    def _forget(self, name: str) -> None:
        self._topologies.pop(name).stop()

    def _run_a_while(self, last_step: int) -> bool:
        """Run what is due now and shortly after; return whether any data moved."""
        before = self._activity()
        until_ms = self.now_ms + _QUIET_MS
        while self.simulation.steps < last_step and (self.simulation.run_round() or self.simulation.leap(until_ms)):
            pass
        workers = [worker for topology in self._topologies.values() for worker in topology.workers]
        return before != self._activity() or any(worker.clock.is_busy for worker in workers)

    def _activity(self) -> list[int]:
        return [topology.activity for topology in self._topologies.values()]

    def _waiting(self) -> list[str]:
        return [phrase for topology in self._topologies.values() for phrase in topology.waiting()]

    def _complaint(self) -> str:
        return "; ".join(self._waiting()[:8]) or "a spout never stops emitting: give it an is_exhausted, or use advance()"
