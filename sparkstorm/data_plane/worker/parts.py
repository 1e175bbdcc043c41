"""Parts that all of one worker's loop shares: its plan and clock, its tasks, their counts, and
where failures go.

Law: the parts are made in one order, and each uses only the parts before it. Left out: the
collaborators of each part as parameters, as it was: the loop listed the same names again for each
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparkstorm.common.clock import Clock
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.data_plane.task_kit.journal import reading
from sparkstorm.data_plane.transport.base import Transport
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.transport.progress import Progress
from sparkstorm.data_plane.worker.backpressure import Backpressure
from sparkstorm.data_plane.worker.counting.counters import Counters
from sparkstorm.data_plane.worker.counting.meters import Meters, Reporter
from sparkstorm.data_plane.worker.epoch import IdSource, key_source
from sparkstorm.data_plane.worker.failed_inputs import FailedInputs
from sparkstorm.data_plane.worker.tasks.blocking_spout import MakeThread, SourceThread
from sparkstorm.data_plane.worker.tasks.circuit_breaker import CircuitBreaker
from sparkstorm.data_plane.worker.tasks.letters import Letters
from sparkstorm.data_plane.worker.tasks.store_witness import claimed
from sparkstorm.data_plane.worker.tasks.task_factory import TaskFactory
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.data_plane.worker.tasks.worker_services import WorkerServices


class WorkerParts:
    """Collaborators of a worker after its tasks are claimed and prepared; each needs only those
    before it.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        transport: Transport,
        clock: Clock,
        ids: IdSource,
        reporter: Reporter,
        wake: Callable[[], None] = lambda: None,
        run_in_thread: Callable[[Callable[[], None]], None] | None = None,
        make_thread: MakeThread = SourceThread,
    ) -> None:
        """Claim the tasks, then open and prepare their components; errors of user code are raised
        as they are.

        `run_in_thread` runs a function on its own thread; a simulation has none. `make_thread`
        makes those of blocking spouts.
        """
        self.plan = plan
        self.transport = transport
        self.clock = clock
        self.ids = ids
        self.reporter = reporter
        self.wake = wake
        self.run_in_thread = run_in_thread
        self._make_thread = make_thread
        # Before anything of the user's is opened: the claim raises the fence, and only then is what
        # it has read final.
        self.claim = claimed(plan, transport, clock, ids)
        self.progress = self._stored_progress()
        self.meters = Meters(clock.now_ms)
        # User code runs from here on (`open`, `prepare`), and may already report errors and change
        # metrics: both need the counts above.
        self.task_set = TaskFactory(plan, self._services()).build(self.claim)
        self.origin = ids.root()  # names this process in the entries that it writes
        self.backpressure = Backpressure(plan, self.task_set.load_rings())
        self.counters = Counters(plan, self.task_set, self.progress, self.meters)
        self.breaker = CircuitBreaker(plan, self.task_set.bolts, self.counters.of, self.report)
        self.letters = Letters(plan)
        self.failures = FailedInputs(
            self.letters, self.counters.of, self.report, clock.now_ms, self.breaker
        )

    def report(self, failure: Failure, count: int = 1) -> None:
        """Count failures by their cause, and report the first."""
        placed = self.plan.placed(replace(failure, time_ms=failure.time_ms or self.clock.now_ms()))
        # Counted before the reporter throttles: health is judged by all failures, the operator
        # reads a few of them.
        self.progress.count_failure(placed, count)
        self.meters.note_failure(placed)
        self.reporter.error(placed)

    def _services(self) -> WorkerServices:
        now_ms = self.clock.now_ms
        held = (key for record in self.claim.record_by_task.values() for key in record.held)
        new_key = key_source(self.plan.token_by_task, held)
        return WorkerServices(
            now_ms,
            self.ids,
            self.report,
            self.wake,
            new_key,
            self.transport,
            self._metric_values,
            self._make_thread,
        )

    def _stored_progress(self) -> Progress:
        with reading(Keys(self.plan.topology_id)("progress")):
            stored = self.claim.progress
            return Progress.decode(stored) if stored else Progress(started_ms=self.clock.now_ms())

    def _metric_values(self, task: int) -> dict[str, MetricValue]:
        return self.progress.metrics_by_task.setdefault(task, {})
