"""Placing topologies: asks the scheduler, publishes assignments, records a new topology in an order
that a crash cannot break.

Law: an assignment is written before the base that makes its topology one, and is the only way in
which slots get their work. A scheduler sees copies; what it raises ends its round alone, and the
last good assignments stand. Left out: calls to supervisors, as Storm 2 sends them next to ZooKeeper:
a record that every slot watches is needed anyway, for slots that are away, and two ways could
contradict each other. Source: JStorm's TopologyAssign, Storm's mkAssignments.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkstorm.common.errors import (
    FailedAssignTopologyError,
    StateConflictError,
    StoreInconsistentError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import Assignment, TaskTable, TopologyBase
from sparkstorm.common.model.heartbeats import TaskBeats, master_task
from sparkstorm.common.model.normalise import loggable_conf
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.requests import HostMark, RebalancePlan
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.common.settings import NimbusSettings, SubmissionSettings
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.cluster_reader import ClusterReader, Reading
from sparkstorm.control_plane.nimbus.heartbeat_monitor import Alive, HeartbeatMonitor, StoreWatch
from sparkstorm.control_plane.nimbus.measurer import Measurer
from sparkstorm.control_plane.scheduling.per_topology import dry_run_copy, wanting
from sparkstorm.control_plane.scheduling.round import plan_round
from sparkstorm.control_plane.scheduling.round_memory import RoundMemory
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology, RoundPlan, Snapshot
from sparkstorm.control_plane.scheduling.view import Scheduler

_LOG = logging.getLogger(__name__)


class Assigner:
    """The scheduler with what one Nimbus has seen."""

    def __init__(
        self,
        state: StormState,
        reader: ClusterReader,
        heartbeat_monitor: HeartbeatMonitor,
        scheduler: Scheduler,
        conf: Mapping[str, Any],
        stores: StoreWatch,
    ) -> None:
        self._stores = stores
        self.measurer = Measurer(reader.read_counts, NimbusSettings.of(conf))
        self._state = state
        self._reader = reader
        self._heartbeat_monitor = heartbeat_monitor
        self._scheduler = scheduler
        self._conf = conf
        self._memory = RoundMemory()
        self._said: dict[str, str] = {}  # status of each topology, logged when it changes

    def plan(
        self,
        snapshot: Snapshot,
        alive: Alive,
        now_ms: int,
        rebalanced: Mapping[str, RebalanceOptions] | None = None,
    ) -> RoundPlan:
        """Ask the scheduler; any error of a plug-in is raised as FailedAssignTopologyError."""
        plan = self._ask(self._scheduler, snapshot, alive, now_ms, rebalanced)
        for topology_id, words in plan.status.items():
            if words != self._said.get(topology_id):
                _LOG.info("%s: %s", topology_id, words)
        self._said = dict(plan.status)
        return plan

    def _ask(
        self,
        scheduler: Scheduler,
        snapshot: Snapshot,
        alive: Alive,
        now_ms: int,
        rebalanced: Mapping[str, RebalanceOptions] | None,
    ) -> RoundPlan:
        # Here, before any scheduler: none, built-in, chosen or plugged in, has to handle hosts
        # without Redis.
        snapshot, alive = self._stores.usable(snapshot, alive)
        try:
            if asking := wanting(scheduler, snapshot.topologies):
                measured = self.measurer.measured(snapshot, asking, now_ms)
                snapshot = replace(snapshot, measured=measured)
            return plan_round(
                snapshot, alive, scheduler, self._conf, now_ms, rebalanced, self._memory
            )
        except FailedAssignTopologyError:
            raise
        except Exception as error:  # user code: a scheduler that was plugged in
            _LOG.exception("the scheduler failed")
            # One error for all that a plug-in may raise: the round is given up, and the last good
            # assignments stand.
            raise FailedAssignTopologyError(
                f"the scheduler failed: {type(error).__name__}: {error}"
            ) from error

    def publish(self, assignment: Assignment, name: str) -> None:
        """Write an assignment, and its copy under the topology's name."""
        _LOG.info(
            "assignment of %s, version %d: %s",
            assignment.topology_id,
            assignment.version,
            _places(assignment),
        )
        # The copy second: a crash between the two leaves an older copy, which is only read when the
        # assignment itself is lost.
        self._state.write_assignment(assignment)
        self._state.backup_assignment(name, assignment)

    def write_records(self, base: TopologyBase, outline: TopologyOutline) -> None:
        """Record all of a new topology but its assignment and its base (S0.42-S0.52); may be
        repeated.
        """
        topology_id = base.topology_id
        infos = outline.task_infos()
        # In the order in which JStorm's submission writes them. What a crash leaves has no base,
        # and the sweep removes it.
        self._state.write_outline(topology_id, outline)
        self._state.write_task_beats(TaskBeats(topology_id, master_task(outline.component_by_task)))
        self._state.write_tasks(topology_id, TaskTable(infos))
        self._state.prepare_errors(topology_id)
        self._state.prepare_gray_upgrade(topology_id)
        self._state.prepare_worker_beats(topology_id)

    def assign_new(self, base: TopologyBase, reading: Reading, now_ms: int) -> None:
        """Assignment first, base last (S0.65): a Nimbus that dies in between leaves an orphan, not
        a half topology.
        """
        # Read back from the blobs and not taken from the request: what runs is what is stored.
        topology = self._reader.complete(base)
        _LOG.info(
            "submission of %s by %s with %s",
            base.topology_id,
            base.owner,
            loggable_conf(topology.conf),
        )
        snapshot = self._with_backup(with_topology(reading.snapshot, topology), base)
        plan = self.plan(snapshot, self._heartbeat_monitor.alive(snapshot, now_ms), now_ms)
        # Before anything is written: a topology that has no place leaves nothing behind.
        _raise_refusal(plan, base.topology_id)
        for assignment in plan.assignments:
            if assignment.topology_id == base.topology_id:
                self.publish(assignment, base.name)
        try:
            # The base makes it a topology: every reading of the cluster begins with the bases.
            self._state.create_base(base)
        except StateConflictError:
            # Our own create whose reply was lost, or an id that exists.
            if self._state.read_base(base.topology_id) != base:
                raise

    def _with_backup(self, snapshot: Snapshot, base: TopologyBase) -> Snapshot:
        """Add the last assignment of the name when the topology wants its old places back
        (S0.84).
        """
        if not SubmissionSettings.of(snapshot.topologies[base.topology_id].conf).keeps_old_places:
            return snapshot
        try:
            last = self._state.read_backup_assignment(base.name)
        # A preference, not a condition: without its old places it gets others.
        except (StoreInconsistentError, TamperedBlobError) as error:
            _LOG.error("%s starts without its old places: %s", base.topology_id, error)
            return snapshot
        return replace(snapshot, backups={base.topology_id: last}) if last else snapshot

    def plan_rebalance(
        self, after: KnownTopology, options: RebalanceOptions, reading: Reading, now_ms: int
    ) -> RoundPlan:
        """Plan the placement of a topology as it will be; FailedAssignTopologyError when it has
        none.
        """
        snapshot = with_topology(reading.snapshot, after)
        topology_id = after.base.topology_id
        plan = self.plan(
            snapshot,
            self._heartbeat_monitor.alive(snapshot, now_ms),
            now_ms,
            {topology_id: options},
        )
        _raise_refusal(plan, topology_id)
        return plan

    def rehearse_rebalance(
        self, after: KnownTopology, options: RebalanceOptions, reading: Reading, now_ms: int
    ) -> RoundPlan:
        """Plan the same on a copy of the scheduler, with all executors taken as alive: the question
        leaves no trace.
        """
        snapshot = with_topology(reading.snapshot, after)
        topology_id = after.base.topology_id
        alive = {
            placed_id: assignment.slot_by_executor.keys()
            for placed_id, assignment in snapshot.assignments.items()
        }
        plan = self._ask(
            dry_run_copy(self._scheduler), snapshot, alive, now_ms, {topology_id: options}
        )
        _raise_refusal(plan, topology_id)
        return plan

    def rehearse_drain(
        self, host: str, mark: HostMark, reading: Reading, now_ms: int
    ) -> tuple[RebalancePlan, ...]:
        """Plan the topologies that would change if a host were drained, on a copy of the scheduler,
        with all executors taken as alive.
        """
        snapshot = replace(reading.snapshot, marks={**reading.snapshot.marks, host: mark})
        alive = {
            topology_id: assignment.slot_by_executor.keys()
            for topology_id, assignment in snapshot.assignments.items()
        }
        placed = self._ask(dry_run_copy(self._scheduler), snapshot, alive, now_ms, None).placed
        before = {
            topology_id: assignment.slot_by_executor
            for topology_id, assignment in snapshot.assignments.items()
        }
        changed = [
            topology_id
            for topology_id in sorted(placed)
            if topology_id in before and placed[topology_id] != before[topology_id]
        ]
        return tuple(
            RebalancePlan(topology_id, before[topology_id], placed[topology_id])
            for topology_id in changed
        )


def _places(assignment: Assignment) -> str:
    """Return the executors of each slot as text."""
    return "; ".join(
        f"{slot}: {', '.join(map(str, executors))}"
        for slot, executors in assignment.executors_by_slot().items()
    )


def _raise_refusal(plan: RoundPlan, topology_id: str) -> None:
    if topology_id in plan.refused:
        raise FailedAssignTopologyError(plan.refused[topology_id])


def with_topology(snapshot: Snapshot, topology: KnownTopology) -> Snapshot:
    """Return the snapshot with that topology in it, in place of what it was."""
    return replace(
        snapshot, topologies={**snapshot.topologies, topology.base.topology_id: topology}
    )
