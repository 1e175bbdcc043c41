"""A worker's knowledge of its store's incarnation: its expectation at the claim, its report of a
loss, and its mark in heartbeats.

Law: nothing is executed on a store that has lost more than its tail, unless the operator has
allowed it; and what is known only grows. Left out: asking the store alone: one that was put back to
an older copy has no record of what it lacks (decision 48).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.common.clock import Clock
from sparkstorm.common.errors import SparkStormError, StoreLostError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.worker_spec import StoreMark
from sparkstorm.common.settings import CONTINUE
from sparkstorm.data_plane.executor.runner import ReportError
from sparkstorm.data_plane.executor.sink_runner import generation_of
from sparkstorm.data_plane.executor.user_traceback import (
    USER_ERRORS,
    describe_error,
    raise_out_of_memory,
)
from sparkstorm.data_plane.task_kit.task_parts import LIVE_STREAMS, TaskParts
from sparkstorm.data_plane.transport.base import Claim, Expected, Transport
from sparkstorm.data_plane.transport.store_loss import stop_text
from sparkstorm.data_plane.worker.epoch import IdSource
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan

# Tasks that are named, and characters of each: the sentence goes through heartbeats. Half of them
# hides tasks of a usual sink; double makes a sentence that is too long to read.
_MOST = 8
_MOST_TEXT = 160
# Without a commit for so long, the store is asked whether the last one stands: with each heartbeat.
# Twice as often costs a resting worker two round trips a heartbeat, half as often lets it rest for
# longer on a store that was emptied.
_LOOK_EVERY_MS = 1000
# For all targets together: a start that is refused should not look like one that hangs. Half of it
# cuts targets off that answer slowly; double keeps the slot waiting for what it cannot use.
_LIMIT_S = 10.0


class StoreWitness:
    """Newest write of the store that this worker knows of, and the newest one that no tail may
    take.

    Once a second, with a heartbeat, the newest write becomes a sample; a commit costs two
    assignments.
    """

    def __init__(self, plan: WorkerPlan, claim: Claim, now_ms: int, report: ReportError) -> None:
        mark = plan.store_mark
        self._step = claim.step
        self._time_ms = now_ms
        self._looked_ms = now_ms
        self._tail_ms = plan.settings.store_tail_ms
        self._mark = StoreMark(
            claim.incarnation,
            claim.generation,
            claim.step,
            now_ms,
            mark.floor if mark else 0,
            mark.losses if mark else (),
        )
        if claim.loss:
            self._mark = self._mark.with_loss(claim.loss)
            task = min(plan.tasks)
            text = f"{claim.loss}; it goes on with what is left (topology.store.loss=continue)"
            report(Failure(FailureKind.SYSTEM, text, plan.component_by_task[task], task))
        # (time, step), oldest first: the first is the floor once it is old enough
        self._samples = deque([(now_ms, claim.step)])

    def note(self, step: int, now_ms: int) -> None:
        """Take in the number of a commit."""
        self._step = step
        self._time_ms = self._looked_ms = now_ms

    def must_look(self, now_ms: int) -> bool:
        """Return whether the store has not answered for so long that it is to be asked: it may have
        been emptied, or another owner may have come, under a worker that has nothing to commit.
        """
        return now_ms - self._looked_ms >= _LOOK_EVERY_MS

    def note_look(self, now_ms: int) -> None:
        """Take note that the store was asked: it has what this worker knows of."""
        self._looked_ms = now_ms

    def mark(self) -> StoreMark:
        """Return what is known now."""
        # Sampled once a second and not per commit: the tail is some seconds, so nothing is gained
        # by more.
        if self._step > self._samples[-1][1]:
            self._samples.append((self._time_ms, self._step))
        bound_ms = self._time_ms - self._tail_ms
        while len(self._samples) > 1 and self._samples[1][0] <= bound_ms:
            self._samples.popleft()
        old_ms, old_step = self._samples[0]
        # Only a write older than the tail binds: a store may lose the newer ones without being
        # stopped for it.
        floor = max(self._mark.floor, old_step) if old_ms <= bound_ms else self._mark.floor
        before = self._mark
        self._mark = StoreMark(
            before.incarnation, before.generation, self._step, self._time_ms, floor, before.losses
        )
        return self._mark

    def figures(self) -> dict[str, Any]:
        """Return the mark for a heartbeat."""
        figures = asdict(self.mark())
        return {**figures, "losses": list(figures["losses"])}


def expected_of(plan: WorkerPlan, ids: IdSource) -> Expected:
    """Return what a worker's claim expects of the store."""
    return Expected(plan.store_mark, plan.settings.store_loss == CONTINUE, f"{ids.root():016x}")


def claimed(plan: WorkerPlan, transport: Transport, clock: Clock, ids: IdSource) -> Claim:
    """Claim a worker's tasks; StoreLostError, with what the targets of sinks have, where the store
    has lost data.
    """
    try:
        return transport.claim(plan.owner, plan.token_by_task, expected_of(plan, ids))
    except StoreLostError as error:
        held = held_by_targets(plan, clock.now_ms)
        raise StoreLostError(stop_text(plan.topology_id, error.loss, held), error.loss) from error


def held_by_targets(plan: WorkerPlan, now_ms: Callable[[], int], limit_s: float = _LIMIT_S) -> str:
    """Return the last epoch that the target of each sink's task has, for a sentence; empty without
    sinks.

    Sinks of other workers are asked too: one worker's sentence then covers the whole topology. A
    target that does not answer in time is named; its thread ends with the worker.
    """
    parts = TaskParts(
        plan.topology_id, plan.topology, plan.conf, plan.component_by_task, plan.codec, LIVE_STREAMS
    )
    bolts = (
        name for name, component in plan.topology.components.items() if component.kind != "spout"
    )
    sinks = [name for name in bolts if isinstance(plan.make_instance(name), TransactionalSink)]
    tasks = [(name, task) for name in sinks for task in parts.tasks.get(name, ())]
    answers: list[str] = []

    def ask() -> None:
        for name, task in tasks[:_MOST]:
            answers.append(_answer(plan.make_instance(name), parts, task, now_ms))

    # On a thread, since a target that is away may keep its client waiting without end.
    asking = threading.Thread(target=ask, name="sink-targets", daemon=True)
    asking.start()
    asking.join(limit_s)
    # The thread may still go on: what it adds from here on is left out.
    told = answers[:]
    said = [
        f"{name} (task {task}): {answer}" for (name, task), answer in zip(tasks, told, strict=False)
    ]
    if len(told) < len(tasks[:_MOST]):
        name, task = tasks[len(told)]
        said.append(f"{name} (task {task}): no answer within {limit_s:g} s")
    elif len(tasks) > _MOST:
        said.append(f"{len(tasks) - _MOST} more tasks were not asked")
    return ", ".join(said)


def _answer(sink: TransactionalSink, parts: TaskParts, task: int, now_ms: Callable[[], int]) -> str:
    try:
        sink.open(parts.conf(parts.component_by_task[task]), parts.context(task, (task,), now_ms))
        last = sink.last_epoch()
    except SparkStormError as error:
        return str(error)[:_MOST_TEXT]
    except USER_ERRORS as error:
        raise_out_of_memory(error)
        return describe_error(error)[:_MOST_TEXT]
    finally:
        with contextlib.suppress(*USER_ERRORS):
            sink.cleanup()
    if last is None:
        return "cannot tell"
    generation, epoch = generation_of(last)
    return (
        f"epoch {epoch:,}{f' of generation {generation}' if generation else ''}"
        if last
        else "nothing"
    )
