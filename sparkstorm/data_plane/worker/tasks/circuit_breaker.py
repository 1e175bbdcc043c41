"""Circuit breaker of a worker: pauses the bolts of a component most of whose inputs fail, and the
worker's spouts.

Law: a paused bolt executes nothing. Its inputs stay where they are, in its stream or held with
their tries so far, so nothing is lost or given up by a pause. Nimbus reads the pause from the
heartbeat and deactivates the topology, so that spouts of other workers rest too; activation ends
it. The alternative, a breaker that closes by itself after a while (Hystrix's half-open state),
would give up another `count` inputs each time, unattended.

Two figures count. The share is that of first executions which fail: further tries belong to inputs
that failed before, come in swarms, and would make a fifth of bad inputs look like all of them. The
count is of inputs that were given up (parked, or failed without further tries), so a store that
comes back before the last try opens nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.requests import topology_name
from sparkstorm.common.settings import BreakerSettings
from sparkstorm.data_plane.executor.runner import ReportError
from sparkstorm.data_plane.transport.progress import TaskCounts
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan

# First executions between two verdicts on the failing share, as a multiple of the count. With 1 a
# run of bad inputs among good ones would open the breaker; with 4 a bolt that fails from now on
# would give up twice as many inputs before.
_WINDOW = 2
NEVER = "never"
# Of the last failure's text: the sentence goes through heartbeats; the whole is in its own record.
_MOST_CHARS = 240


@dataclass(slots=True)
class _BreakerState:
    """First executions and failures of one component's tasks in this worker since the last
    verdict.
    """

    bolts: list[tuple[BoltTask, TaskCounts]]
    tries: int = 0  # after the first
    since: int = 0
    failed: int = 0
    given_up: int = 0
    is_failing: bool = False
    sentence: str = ""

    @property
    def executed(self) -> int:
        """Return the first executions since the topology began, but for a constant."""
        return (
            sum(counts.executed + bolt.counts.executed for bolt, counts in self.bolts) - self.tries
        )


class CircuitBreaker:
    """Breakers by component of a worker's bolts; `count` returns the counts of a task."""

    def __init__(
        self,
        plan: WorkerPlan,
        bolts: Mapping[int, BoltTask],
        count: Callable[[int], TaskCounts],
        report: ReportError,
    ) -> None:
        settings = BreakerSettings.of(plan.conf)
        self._share = settings.share
        self._count = settings.count
        self._report = report
        self._name = topology_name(plan.topology_id)
        self._activations = 0
        self._by_component: dict[str, _BreakerState] = {}
        for task, bolt in bolts.items():
            self._by_component.setdefault(bolt.component, _BreakerState([])).bolts.append(
                (bolt, count(task))
            )
        self._reset()

    @property
    def is_open(self) -> bool:
        """Return whether a component of this worker is paused."""
        return self._is_open

    def shown(self) -> dict[str, Any]:
        """Return a sentence for each paused component and the activations seen, for the heartbeat;
        empty without any.
        """
        sentences = [state.sentence for state in self._by_component.values() if state.sentence]
        return {"paused": sentences, "activations": self._activations} if sentences else {}

    def follow(self, activations: int) -> None:
        """End all pauses when the topology was activated since the last call."""
        if activations != self._activations:
            self._activations = activations
            self._reset()

    def _reset(self) -> None:
        """Let all bolts go on, and count from now on.

        The verdict stays until new inputs bring another: what a paused bolt has left are mostly
        further tries.
        """
        self._is_open = False
        for state in self._by_component.values():
            state.since = state.executed
            state.failed = state.given_up = 0
            state.sentence = ""
            for bolt, _ in state.bolts:
                bolt.is_paused = False

    def note_try(self, component: str) -> None:
        """Count a try after the first one."""
        self._by_component[component].tries += 1

    def note_failed(self, component: str) -> None:
        """Count an input whose first execution failed."""
        state = self._by_component[component]
        state.failed += 1
        executed = state.executed - state.since
        if self._share != NEVER and executed >= _WINDOW * self._count:
            state.is_failing = state.failed >= float(self._share) * executed
            # Inputs that were given up while most went well are no part of a new outage.
            state.given_up = state.given_up if state.is_failing else 0
            state.since = state.since + executed
            state.failed = 0

    def note_given_up(self, failure: Failure) -> None:
        """Count an input that was given up; pause its component when it was one too many."""
        state = self._by_component[failure.component]
        state.given_up += 1
        # Once: inputs of the same call are still given up behind it, and the sentence names the
        # first cause.
        if state.is_failing and state.given_up >= self._count and not state.sentence:
            self._open(state, failure)

    def _open(self, state: _BreakerState, failure: Failure) -> None:
        for bolt, _ in state.bolts:
            bolt.is_paused = True
        self._is_open = True
        state.sentence = (
            f"bolt '{failure.component}' is paused: most of its inputs fail, and {state.given_up:,} were given up, the last by "
            f"{failure.text[:_MOST_CHARS]}; when the cause is fixed, `sparkstorm activate {self._name}` or new code goes on "
            "(topology.failure.pause.share)"
        )
        self._report(Failure(FailureKind.SYSTEM, state.sentence, failure.component, failure.task))
