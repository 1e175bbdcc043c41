"""Transactional sinks of a worker: their phases around its commits, tried again while a target is
away.

Law: prepare in the target, commit in the store, commit in the target, in this order, and each may
be repeated. A death after the first leaves an epoch that is never committed; after the second the
next owner's `recover` commits it. As Flink's TwoPhaseCommitSinkFunction, with the worker's commit
in place of its checkpoint. Left out: a target that is asked first: it could have rows of an epoch
that the store refuses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from sparkstorm.api.sinks import RefusedRows
from sparkstorm.common.errors import SparkStormError, WorkerFailedError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.data_plane.executor.sink_runner import SinkRunner
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, describe_error, failure_of
from sparkstorm.data_plane.worker.epoch import Epoch, RandomIds
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask

# Doubled at each try: a target that restarts is reached soon, one that is away for minutes does not
# get twenty requests a second. Half of the first saves 25 ms after a short outage; with double of
# the longest, a target that comes back after minutes waits for up to ten seconds. Not measured.
_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 5_000


class Sinks:
    """The sinks among a worker's tasks; does nothing where there are none.

    Every method that calls a target returns None when it is done, else the time at which to call it
    again.
    """

    def __init__(self, parts: WorkerParts) -> None:
        self._sinks = [
            (bolt, bolt.runner)
            for bolt in parts.task_set.bolts.values()
            if isinstance(bolt.runner, SinkRunner)
        ]
        self._patience_ms = parts.plan.settings.sink_patience_ms
        self._failures = parts.failures
        self._report = parts.report
        self._aside = Epoch(RandomIds(0), is_tracking=False)  # for rows whose trees have ended
        self._since_ms: int | None = None  # when a target began to refuse
        self._due_ms = self._tries = 0
        self._phase = ""  # the one that is refused
        self.problem = ""  # why a target keeps the worker waiting

    def __bool__(self) -> bool:
        return bool(self._sinks)

    def finish(self, now_ms: int) -> int | None:
        """Recover, or commit in the targets what the store has committed."""
        return self._try("finish", self._finish, now_ms) if self._sinks else None

    def finish_at_stop(self, now_ms: int) -> None:
        """Commit in the targets once more what they have refused since the last commit."""
        if self._phase == "finish":
            self._due_ms = 0
            # It ends anyway, and has said before why the target refuses.
            with contextlib.suppress(WorkerFailedError):
                self.finish(now_ms)

    def prepare(self, epoch: Epoch, now_ms: int) -> int | None:
        """Prepare the epoch at hand in every sink that has tuples of it; rows that a sink refuses
        are parked.
        """
        return self._try("prepare", partial(self._prepare, epoch), now_ms) if self._sinks else None

    def note_commit(self) -> None:
        """Take note that the store has what was prepared."""
        for _, runner in self._sinks:
            runner.note_commit()

    def _finish(self, bolt: BoltTask, runner: SinkRunner) -> None:
        refused = runner.finish()
        if (forgotten := runner.take_forgotten()) is not None:
            self._say_forgotten(bolt, forgotten)
        # Parked outside of the epoch: its own commit has long been made, and their trees ended with
        # it.
        for tup, reason in refused:
            self._failures.park(self._aside, bolt, tup, 1, Failure(FailureKind.FAILED, reason))

    def _say_forgotten(self, bolt: BoltTask, epochs: tuple[int, int]) -> None:
        text = (
            f"the target has epochs up to {epochs[1]}, of which Redis has lost those after {epochs[0]}: rows that are read again "
            "are written again; none is left out"
        )
        self._report(Failure(FailureKind.SYSTEM, text, bolt.component, bolt.task))

    def _prepare(self, epoch: Epoch, bolt: BoltTask, runner: SinkRunner) -> None:
        try:
            runner.prepare()
        except RefusedRows as refusal:
            for tup, reason in refusal.rows:
                # The write had counted it as done; a parked input is none.
                bolt.counts.acked -= 1
                self._failures.park(epoch, bolt, tup, 1, Failure(FailureKind.FAILED, reason))
            runner.prepare()

    def _try(
        self, phase: str, call: Callable[[BoltTask, SinkRunner], None], now_ms: int
    ) -> int | None:
        if self._phase == phase and now_ms < self._due_ms:
            return self._due_ms
        for bolt, runner in self._sinks:
            try:
                call(bolt, runner)
            # Already a sentence with the component's name.
            except WorkerFailedError:
                raise
            except SparkStormError as error:
                raise WorkerFailedError(
                    f"component '{bolt.component}' (task {bolt.task}): {error}"
                ) from error
            except TypeError as error:
                # A mistake in code, also while a request is made: no target answers so.
                words = f"component '{bolt.component}' (task {bolt.task}): {describe_error(error)}"
                raise WorkerFailedError(words) from error
            except USER_ERRORS as error:
                self._phase = phase
                return self._put_off(bolt, failure_of(error), now_ms)
        # A commit without work, before each try to prepare, ends no outage.
        if self._phase == phase:
            self._since_ms = None
            self._tries = 0
            self.problem = ""
            self._phase = ""
        return None

    def _put_off(self, bolt: BoltTask, failure: Failure, now_ms: int) -> int:
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        self.problem = (
            f"component '{bolt.component}' (task {bolt.task}) waits for its target: {failure.text}"
        )
        text = f"the target refuses: {failure.text}"
        self._report(replace(failure, text=text, component=bolt.component, task=bolt.task))
        # The worker ends: another start may reach the target by another way, and the slot's records
        # report that it cannot.
        if now_ms - self._since_ms >= self._patience_ms:
            raise WorkerFailedError(
                f"{self.problem}; given up after {self._patience_ms / 1000:g} s (topology.sink.patience.secs)"
            )
        self._tries += 1
        self._due_ms = now_ms + min(_FIRST_PAUSE_MS * 2**self._tries, _LONGEST_PAUSE_MS)
        return self._due_ms
