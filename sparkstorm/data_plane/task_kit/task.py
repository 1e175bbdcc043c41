"""One task of a bolt around its user code, the same in every host: its runner, how it is prepared,
its ticks by the host's clock.

A host adds when the task runs, where its rows come from and go, and what becomes of its failures.

Law: all decisions on how a bolt begins, ticks and is tried again are here or in `executor`, so that
live equals replay by construction and the suites of equality are its proof. Left out: one class for
all hosts. A worker's task holds inputs over epochs and is read by the commit, a replay's counts
evidence and drives time (decision 52).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkstorm.api.async_bolts import AsyncBolt
from sparkstorm.api.columns import ColumnBolt
from sparkstorm.api.components import BasicBolt, Stateful
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.common.errors import SparkStormError, WorkerFailedError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.topology import SYSTEM, TICK_STREAM
from sparkstorm.common.model.tuples import Roots, Source, Tuple
from sparkstorm.data_plane.executor.column_runner import ColumnRunner
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.event_loop import EventLoopBolt
from sparkstorm.data_plane.executor.manual_runner import ManualRunner
from sparkstorm.data_plane.executor.runner import (
    BasicCollector,
    BasicRunner,
    FailedInput,
    ReportError,
    Runner,
)
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, describe_error, failure_of

TICK = Source(SYSTEM, -1, TICK_STREAM, ("rate_secs",))


class TickSchedule:
    """The clock's own tuples: untracked, never held, gone with the task. `due_ms` is when the next
    one is due.
    """

    __slots__ = ("_every_ms", "due_ms")

    def __init__(self, every_ms: int | None, due_ms: int | None = None) -> None:
        """Without a period there are no ticks; without a `due_ms` they begin with the first
        input.
        """
        self._every_ms = every_ms or 0
        self.due_ms = due_ms

    @staticmethod
    def from_now(every_ms: int, now_ms: int) -> TickSchedule:
        """Return a schedule whose first tick is a period from now."""
        return TickSchedule(every_ms, now_ms + every_ms)

    def begin(self, first_ms: int) -> None:
        """Begin with the first input at this time, unless it has begun: ticks then come at whole
        multiples of the period.
        """
        if self._every_ms and self.due_ms is None:
            # Whole multiples and not the first input plus a period: two replays of parts of a
            # history then tick at the same times.
            self.due_ms = (first_ms // self._every_ms + 1) * self._every_ms

    def take(self, at_ms: int, roots: Roots = 0) -> Tuple:
        """Return the due tick; the next one is due a period after `at_ms`."""
        # From when it was taken: after a pause a worker has one tick and not one for each period
        # that has passed.
        self.due_ms = at_ms + self._every_ms
        # Seconds, as Storm's tick tuple has them.
        return Tuple((self._every_ms // 1000,), roots, TICK)


LOST_IN_CLEANUP = "cleanup() emits tuples or changes the state, which nothing takes any more: do it in execute, or at ticks"


class Task:
    """One task of a bolt. A host sets `runner` before it calls `prepare`."""

    runner: Runner

    def __init__(
        self, task: int, component: str, bolt: Any, emitter: Emitter, state: MemoryState | None
    ) -> None:
        self.task = task
        self.component = component
        self.bolt = bolt
        self.emitter = emitter
        self.state = state
        # form of the state that this code writes
        self.state_version = bolt.state_version if isinstance(bolt, Stateful) else 1
        # A new state is in the form of this code; a host that loads an older one sets this before
        # `prepare`.
        self.stored_version = self.state_version  # and form of the state that was loaded

    @property
    def users_state(self) -> MemoryState | None:
        """Return the state that user code works on."""
        return self.state

    def prepare(self, context: TopologyContext) -> None:
        """Call the bolt's prepare, bring its state into the form of this code, and hand it over."""
        # Through the runner's bolt: with a thread that is the wrapper, which prepares the user's
        # bolt and then starts.
        if isinstance(self.runner, ManualRunner):
            self.runner.bolt.prepare(context.conf, context, self.runner)
        elif isinstance(self.bolt, TransactionalSink):
            # A sink has no collector: what it writes leaves by its phases.
            self.bolt.open(context.conf, context)
        else:
            self.bolt.prepare(context.conf, context)
        state = self.users_state
        if isinstance(self.bolt, Stateful) and state is not None:
            # An empty state has no form: code of a new version must not fail on a task that never
            # had a key.
            if self.stored_version != self.state_version and len(state):
                self._migrate(self.bolt, state)
            # Last: user code may read its state here, and sees it in its own form.
            self.bolt.init_state(state)

    def _migrate(self, bolt: Stateful, state: MemoryState) -> None:
        """Have a state of another version brought into the form of this code; live, the change is
        part of the first commit.
        """
        where = f"component '{self.component}' (task {self.task})"
        try:
            bolt.migrate_state(state, self.stored_version)
        # An error of ours already names key and fix; one of the user's gets its line.
        except SparkStormError as error:
            raise WorkerFailedError(f"{where} cannot read its state: {error}") from error
        except USER_ERRORS as error:
            raise WorkerFailedError(
                f"{where}: migrate_state raised on its state of version {self.stored_version}, "
                f"this code reads version {self.state_version}: {describe_error(error)}"
            ) from error

    def clean_up(self) -> Failure | None:
        """Call the bolt's cleanup; return why it failed, or that what it emitted or put is lost: no
        commit follows.
        """
        log = self.emitter.log
        undo = [] if self.state is None else self.state.undo
        mark, undo_mark = len(log), len(undo)
        failure = None
        try:
            self.runner.bolt.cleanup()
        except USER_ERRORS as error:
            failure = failure_of(error)
        if failure is None and (len(log) > mark or len(undo) > undo_mark):
            failure = Failure(FailureKind.REPORTED, LOST_IN_CLEANUP)
        self.emitter.roll_back(mark)
        if self.state is not None:
            self.state.roll_back(undo_mark)
        return failure

    def execute_tick(self, tick: Tuple) -> list[FailedInput]:
        """Execute a tick; return it if it failed. A tick needs no ack and does not outlive the
        call.
        """
        failed = self.runner.execute_tuples([tick])
        # A bolt that acks would hold it for ever: no tree waits for the ack of a tick.
        self.runner.forget(tick)
        return failed


def make_runner(
    task: int,
    bolt: Any,
    emitter: Emitter,
    state: MemoryState | None,
    report: ReportError,
    wake: Callable[[], None],
    columns: type[ColumnRunner] | None = ColumnRunner,
    is_answering: bool = False,
) -> Runner:
    """Return the runner of a bolt without windows and timers; `columns` is that of a ColumnBolt
    which takes batches.
    """
    if isinstance(bolt, BasicBolt):
        # A replay without columns passes none: the same bolt then gets rows.
        kind = columns if columns is not None and isinstance(bolt, ColumnBolt) else BasicRunner
        return kind(bolt, emitter, state, BasicCollector(emitter, task, report))
    if isinstance(bolt, AsyncBolt):
        bolt = EventLoopBolt(bolt, has_thread=False)
    return ManualRunner(bolt, emitter, state, task, report, wake, is_answering)
