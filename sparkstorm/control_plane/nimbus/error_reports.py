"""Nimbus's reports about workers: deaths and failed starts as errors of their topology, and pauses
by failures.

Law: each event is reported once: a sentence is repeated only for a new event. Errors belong to a
topology and stay with it; problems are what is so now, and go by themselves. Left out: a mail or a
hook per event, which a reader of the records can send. Source: JStorm's "Task-[...] is dead on
host:port" (NimbusUtils), whose words are kept.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sparkstorm.common.model.assignment import (
    FAILED,
    RUNNING,
    Assignment,
    ExecutorId,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.failure import MAX_TRACEBACK, Failure, FailureKind
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.requests import Problems
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.worker_spec import read_mark
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.cluster_reader import Reading
from sparkstorm.control_plane.nimbus.heartbeat_monitor import Alive
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology, Snapshot

_LOG = logging.getLogger(__name__)
_MOST_CHARS = 600  # of the sentence in a topology's base


class ErrorReports:
    """ErrorReports of deaths and failed starts; a worker that keeps failing is reported again only
    after it has run.
    """

    def __init__(self, state: StormState) -> None:
        self._state = state
        self._told: set[tuple[str, WorkerSlot]] = set()

    def report_deaths(self, snapshot: Snapshot, alive: Alive, now_ms: int) -> None:
        """An error per worker whose executors are being replaced."""
        # By what is being replaced and not by what fell silent: silence that is taken for our own
        # fault is no death.
        for topology_id, topology in snapshot.topologies.items():
            assignment = snapshot.assignments.get(topology_id)
            if assignment and topology.base.status != TopologyStatus.KILLED:
                dead_by_slot: dict[WorkerSlot, list[ExecutorId]] = {}
                for executor in sorted(assignment.slot_by_executor.keys() - alive[topology_id]):
                    dead_by_slot.setdefault(assignment.slot_by_executor[executor], []).append(
                        executor
                    )
                for slot, dead in dead_by_slot.items():
                    host = assignment.host_by_node.get(slot.node, slot.node)
                    tasks = ", ".join(str(task) for executor in dead for task in executor.tasks)
                    self._report(
                        topology,
                        assignment,
                        slot,
                        dead[0],
                        f"Task-[{tasks}] is dead on {host}:{slot.port}",
                        now_ms,
                    )

    def report_failed_starts(
        self, snapshot: Snapshot, beats: Iterable[WorkerBeat], now_ms: int
    ) -> dict[str, str]:
        """An error per worker that cannot start; what is so now, by topology."""
        by_worker = {(beat.topology_id, beat.slot): beat for beat in beats}
        # A worker that cannot start is tried again every few seconds. Reported each time, it would
        # push all other errors out of the ten that a component keeps.
        self._told = {
            worker
            for worker in self._told
            if worker in by_worker and by_worker[worker].state != RUNNING
        }
        problems = {}
        for (topology_id, slot), beat in sorted(by_worker.items(), key=lambda pair: pair[0]):
            if beat.state == FAILED and topology_id in snapshot.topologies:
                words = beat.message or "no last words"
                # One sentence names the cause; the end of a log in its place hid it.
                sentence = words.partition("\n")[0]  # the end of its log follows
                problems[topology_id] = f"worker {slot} of {topology_id} cannot start: {sentence}"
                self._tell_failure(topology_id, slot, words, snapshot, now_ms)
        return problems

    def losses(self, snapshot: Snapshot, beats: Iterable[WorkerBeat]) -> dict[str, str]:
        """Return what the stores of topologies have lost with which they go on, by topology."""
        losses = {}
        for beat in beats:
            mark = read_mark(beat.stats.get("store"))
            if mark is not None and mark.losses and beat.topology_id in snapshot.topologies:
                # As long as its workers report it, which is as long as the topology runs: a loss
                # does not become right by waiting.
                losses[beat.topology_id] = (
                    f"{mark.losses[-1]}; it went on with what was left, which may lack rows or repeat them"
                )
        return losses

    def _tell_failure(
        self, topology_id: str, slot: WorkerSlot, words: str, snapshot: Snapshot, now_ms: int
    ) -> None:
        assignment = snapshot.assignments.get(topology_id)
        mine = assignment.executors_at(slot) if assignment else []
        if assignment and mine and (topology_id, slot) not in self._told:
            self._told.add((topology_id, slot))
            sentence, _, log = words.partition("\n")
            text = f"the worker cannot start and is tried again: {sentence}"
            self._report(
                snapshot.topologies[topology_id], assignment, slot, mine[0], text, now_ms, log
            )

    def _report(
        self,
        topology: KnownTopology,
        assignment: Assignment,
        slot: WorkerSlot,
        first: ExecutorId,
        text: str,
        now_ms: int,
        log: str = "",
    ) -> None:
        host = assignment.host_by_node.get(slot.node, slot.node)
        component = topology.outline.component_by_task[first.first_task]
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
            topology.base.code_key,
        )
        self._state.report_error(assignment.topology_id, failure)


class FailurePauses:
    """Topologies that Nimbus deactivated for their failures; `problems` has their sentences.

    A worker pauses a component most of whose inputs fail by itself
    (`data_plane/worker/tasks/circuit_breaker.py`) and reports it in its heartbeats. A heartbeat may be older
    than the activation that ended its pause, so it counts only if it names the present number of
    activations.
    """

    def __init__(self, state: StormState) -> None:
        self._state = state
        self.problems: dict[str, str] = {}

    def advance(self, reading: Reading) -> bool:
        """Deactivate topologies whose workers report that a component is paused; return whether any
        was.
        """
        self.problems = {
            base.topology_id: base.paused for base in reading.bases.values() if base.paused
        }
        for beat in reading.beats:
            base = reading.bases.get(beat.topology_id)
            if (
                base is None
                or base.status is not TopologyStatus.ACTIVE
                or base.topology_id in self.problems
            ):
                continue
            # The worker has paused its component by itself. Its topology is deactivated so that
            # spouts do not emit for a component that takes in nothing.
            if sentence := _pause_in(beat, base.activations):
                self._pause(base, sentence)
        return self.problems.keys() != {
            base.topology_id for base in reading.bases.values() if base.paused
        }

    def _pause(self, base: TopologyBase, sentence: str) -> None:
        def paused(stored: TopologyBase) -> TopologyBase:
            # Compared again inside the write: a client may have activated it since it was read, in
            # spite of the failures.
            if stored.status is not TopologyStatus.ACTIVE or stored.activations != base.activations:
                return stored  # a request was faster
            return replace(stored, status=TopologyStatus.INACTIVE, paused=sentence)

        _LOG.error("%s is deactivated: %s", base.topology_id, sentence)
        self._state.update_base(base.topology_id, paused)
        self.problems[base.topology_id] = sentence


def _pause_in(beat: WorkerBeat, activations: int) -> str:
    """Return the sentence of a heartbeat's first paused component; empty when there is none since
    the last activation.
    """
    paused = beat.stats.get("paused")
    # Heartbeats are not signed, so they are checked like all input from outside.
    if not isinstance(paused, list) or not paused or beat.stats.get("activations") != activations:
        return ""
    return str(paused[0])[:_MOST_CHARS]


# ZooKeeper takes 1 MB in one record. Twice as many would exceed it in letters of two bytes; half
# would be too little for a cluster of 200 topologies of which each has a problem.
_MOST_SHOWN = 200
_MOST_SHOWN_CHARS = 2000
"""Limits of the list of problems in ZooKeeper: 400 kB at most, less than half of what ZooKeeper
takes in one record.
"""

FINDERS = (
    "leader",
    "reading",
    "round",
    "pauses",
    "deploys",
    "requests",
    "cleanup",
    "stores",
    "turn",
)
"""Finders of problems by rank. Of two problems of one subject that of the later finder is shown: it
is nearer to the cause.
"""


class ProblemBoard:
    """Board of the problems of Nimbus: sentences by finder and subject, shown to clients when they
    have changed.

    Law: each finder replaces its own sentences alone, in whole; what it does not find any more is
    gone with that. One record in the store has the sentences of all, and is written only when one
    has changed: clients that follow it are woken by that. A mapping that every duty merges its
    findings into was the former way; whose sentence went when depended on the order of merges.
    """

    def __init__(self, state: StormState) -> None:
        self._state = state
        # In the order of ranks from the beginning: later ones win in `problems`, in any order in
        # which they were put.
        self._by_finder: dict[str, Mapping[str, str]] = {finder: {} for finder in FINDERS}
        self._shown: Mapping[str, str] | None = None

    def put(self, finder: str, problems: Mapping[str, str]) -> None:
        """Replace what a finder has found: sentences by topology, supervisor, slot, or word."""
        self._by_finder[finder] = dict(problems)

    @property
    def problems(self) -> dict[str, str]:
        """Return the sentences of all finders."""
        return {
            about: text for problems in self._by_finder.values() for about, text in problems.items()
        }

    def show(self, now_ms: int) -> None:
        """Write the problems for clients when they have changed."""
        problems = self.problems
        # A write wakes every client that follows the problems, so there is none while they are the
        # same.
        if self._shown != problems:
            shown = dict(sorted(problems.items())[:_MOST_SHOWN])
            self._state.write_problems(
                Problems(now_ms, {about: text[:_MOST_SHOWN_CHARS] for about, text in shown.items()})
            )
            self._shown = problems
