"""Nimbus's error reports about workers, as errors of their topology: deaths, and workers that cannot start."""

import logging
from collections.abc import Iterable

from sparkstorm.cluster.storm_state import StormState
from sparkstorm.model.assignment import Assignment, ExecutorId, WorkerBeat, WorkerSlot
from sparkstorm.model.failure import MAX_TRACEBACK, Failure, FailureKind
from sparkstorm.model.status import TopologyStatus
from sparkstorm.nimbus.heartbeat_monitor import Alive
from sparkstorm.scheduling.liveness import RUNNING
from sparkstorm.scheduling.snapshot import KnownTopology, Snapshot

_LOG = logging.getLogger(__name__)
FAILED = "FAILED"  # the state of a beat whose worker failed topology.worker.max.start.failures times in a row


class ErrorReports:
    """ErrorReports of deaths and failed starts; a worker that keeps failing is reported again only after it has run."""

    def __init__(self, state: StormState) -> None:
        self._state = state
        self._told: set[tuple[str, WorkerSlot]] = set()

    def report_deaths(self, snapshot: Snapshot, alive: Alive, now_ms: int) -> None:
        """An error per worker whose executors are being replaced."""
        for topology_id, known in snapshot.topologies.items():
            assignment = snapshot.assignments.get(topology_id)
            if assignment and known.base.status != TopologyStatus.KILLED:
                dead_by_slot: dict[WorkerSlot, list[ExecutorId]] = {}
                for executor in sorted(assignment.slot_by_executor.keys() - alive[topology_id]):
                    dead_by_slot.setdefault(assignment.slot_by_executor[executor], []).append(executor)
                for slot, dead in dead_by_slot.items():
                    host = assignment.host_by_node.get(slot.node, slot.node)
                    tasks = ", ".join(str(task) for executor in dead for task in executor.tasks)
                    self._report(known, assignment, slot, dead[0], f"Task-[{tasks}] is dead on {host}:{slot.port}", now_ms)

    def report_failed_starts(self, snapshot: Snapshot, beats: Iterable[WorkerBeat], now_ms: int) -> dict[str, str]:
        """An error per worker that cannot start; what is so now, by topology."""
        by_worker = {(each.topology_id, WorkerSlot(each.node, each.port)): each for each in beats}
        self._told = {each for each in self._told if each in by_worker and by_worker[each].state != RUNNING}
        problems = {}
        for (topology_id, slot), beat in sorted(by_worker.items(), key=lambda pair: pair[0]):
            if beat.state == FAILED and topology_id in snapshot.topologies:
                words = beat.message or "no last words"
                sentence = words.partition("\n")[0]  # the end of its log follows
                problems[topology_id] = f"worker {slot} of {topology_id} cannot start: {sentence}"
                self._tell_failure(topology_id, slot, words, snapshot, now_ms)
        return problems

    def _tell_failure(self, topology_id: str, slot: WorkerSlot, words: str, snapshot: Snapshot, now_ms: int) -> None:
        assignment = snapshot.assignments.get(topology_id)
        mine = assignment.executors_at(slot) if assignment else []
        if assignment and mine and (topology_id, slot) not in self._told:
            self._told.add((topology_id, slot))
            sentence, _, log = words.partition("\n")
            text = f"the worker cannot start and is tried again: {sentence}"
            self._report(snapshot.topologies[topology_id], assignment, slot, mine[0], text, now_ms, log)

    def _report(
        self,
        known: KnownTopology,
        assignment: Assignment,
        slot: WorkerSlot,
        first: ExecutorId,
        text: str,
        now_ms: int,
        log: str = "",
    ) -> None:
        host = assignment.host_by_node.get(slot.node, slot.node)
        component = known.outline.component_by_task[first.first_task]
        _LOG.warning("%s at %s: %s", assignment.topology_id, slot, text)
        failure = Failure(
            FailureKind.SYSTEM,
            text,
            component,
            first.first_task,
            host,
            str(slot),
            now_ms,
            log[-MAX_TRACEBACK:],
            known.base.code_key,
        )
        self._state.report_error(assignment.topology_id, failure)
