"""Hooks of a worker and of its tasks: found by name, called next to user code, their errors
reported.

Law: a hook sees what happens and changes nothing of it: it gets no collector, and what it raises is
reported. Only a hook that cannot be made, and a worker's that cannot start, fail the worker: user
code relies on what such a hook shares. After Storm's ITaskHook and IWorkerHook. Left out: hooks as
serialised objects, as Storm's builder sends them: names travel in the configuration, and nothing is
unpickled.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sparkstorm.api.hooks import TaskHook, WorkerContext, WorkerHook
from sparkstorm.common.errors import WorkerFailedError, show
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.data_plane.acking.pending import MessageOutcome
from sparkstorm.data_plane.executor.emitter import Emitter, Route
from sparkstorm.data_plane.executor.runner import FailedInput, ReportError, report_of
from sparkstorm.data_plane.executor.task_observer import TaskObserver, Values
from sparkstorm.data_plane.executor.user_traceback import (
    USER_ERRORS,
    describe_error,
    raise_out_of_memory,
)

TASK_HOOKS = "topology.auto.task.hooks"
WORKER_HOOKS = "topology.worker.hooks"
HookT = TypeVar("HookT")


def named_hooks(key: str, names: Any, kind: type[HookT]) -> list[HookT]:
    """Return new hooks by their names "module:name"; WorkerFailedError names the key, the name and
    the remedy.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WorkerFailedError(f'{key}: expected a list of "module:name", got {show(names)}')
    return [_hook(key, name, kind) for name in names]


def _hook(key: str, name: str, kind: type[HookT]) -> HookT:
    module_name, colon, attribute = name.partition(":")
    # Names are an operator's input: each mistake has its sentence, with the remedy.
    if not colon or not module_name or not attribute:
        raise WorkerFailedError(f"{key}: {show(name)} is not of the form module:name")
    try:
        made = getattr(importlib.import_module(module_name), attribute)()
    except ModuleNotFoundError as error:
        raise WorkerFailedError(
            f"{key}: '{name}' cannot be imported here ({error}): put its module next to the topology's, so that it travels "
            "with it, or install it on the hosts"
        ) from None
    except USER_ERRORS as error:  # user code
        raise WorkerFailedError(
            f"{key}: '{name}' cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, kind):
        raise WorkerFailedError(
            f"{key}: '{name}' makes a {type(made).__name__}, which is no {kind.__name__}"
        )
    return made


def task_hooks(names: Any) -> list[TaskHook]:
    """Return new hooks for one task."""
    return named_hooks(TASK_HOOKS, names, TaskHook)


def started_hooks(names: Any, context: WorkerContext) -> list[WorkerHook]:
    """Return a worker's hooks, started; WorkerFailedError names the one that cannot start."""
    hooks = named_hooks(WORKER_HOOKS, names, WorkerHook)
    for hook in hooks:
        try:
            hook.start(context)
        except USER_ERRORS as error:
            words = f"{WORKER_HOOKS}: {type(hook).__name__} cannot start: {describe_error(error)}"
            raise WorkerFailedError(words) from error
    return hooks


class TaskHooks(TaskObserver):
    """The hooks of one task."""

    sees_inputs = True

    def __init__(
        self, hooks: Sequence[TaskHook], component: str, task: int, report: ReportError
    ) -> None:
        self._hooks = hooks
        self._component = component
        self._task = task
        self._report = report

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of every hook; what one raises is reported."""
        for hook in self._hooks:
            try:
                getattr(hook, method)(*arguments)
            except USER_ERRORS as error:
                # A hook without memory is the worker's end, as any user code without it.
                raise_out_of_memory(error)
                self._report(report_of(error, self._component, self._task))

    def executed(
        self,
        tuples: Sequence[Tuple],
        failures: Sequence[FailedInput],
        waiting: Sequence[Tuple],
        came: Sequence[Values],
    ) -> None:
        failed = {id(tup): failure for tup, failure in failures}
        open_ids = {id(tup) for tup in waiting}
        for tup in tuples:
            # A tick is the clock's own: no tree waits for its ack.
            if tup.is_tick:
                continue
            self.call("bolt_execute", tup)
            if id(tup) in failed:
                self.call("bolt_fail", tup, failed[id(tup)])
            elif id(tup) not in open_ids:
                self.call("bolt_ack", tup)

    def settled_late(self, acked: Sequence[Tuple], failures: Sequence[FailedInput]) -> None:
        for tup in acked:
            self.call("bolt_ack", tup)
        for tup, failure in failures:
            self.call("bolt_fail", tup, failure)

    def settled(self, outcomes: Sequence[MessageOutcome]) -> None:
        for outcome in outcomes:
            if outcome.failure is None:
                self.call("spout_ack", outcome.message_id)
            else:
                self.call("spout_fail", outcome.message_id, outcome.failure)

    def close(self) -> None:
        self.call("cleanup")


class HookedEmitter(Emitter):
    """Emitter that calls hooks with every emission; strict, so that no faster way skips them."""

    __slots__ = ("hooks",)
    hooks: TaskHooks
    takes_pieces = False

    def emit(self, values: Any, stream: str = "default") -> None:
        super().emit(values, stream)
        self.hooks.call("emit", tuple(values), stream)

    def emit_direct(self, task: int, values: Any, stream: str = "default") -> None:
        super().emit_direct(task, values, stream)
        self.hooks.call("emit", tuple(values), stream)


def hooked_emitter(component: str, routes: Mapping[str, Route], hooks: TaskHooks) -> HookedEmitter:
    """Return a task's emitter that calls its hooks."""
    # Strict: the compiled core's way emits without a call that a hook could see.
    emitter = HookedEmitter(component, routes, is_strict=True)
    emitter.hooks = hooks
    return emitter
