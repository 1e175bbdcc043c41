"""Hooks: user code called for every tuple of a task (`TaskHook`), or of a worker's start and end
(`WorkerHook`).

After Storm's ITaskHook and IWorkerHook. `topology.auto.task.hooks` and `topology.worker.hooks` name
them as "module:name": a class, or a function that returns a hook. An error of a hook is reported
and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkstorm.api.components import Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.tuples import Tuple


class TaskHook:
    """Hook with an instance per task; every method is optional and runs in the worker's loop: be
    quick.
    """

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        """Prepare, before the component's `open` or `prepare`."""

    def emit(self, values: tuple[Any, ...], stream: str) -> None:
        """Take note of an emission; it is undone if its `execute` raises."""

    def spout_ack(self, message_id: Any) -> None:
        """Take note that a message is about to be acked."""

    def spout_fail(self, message_id: Any, failure: Failure) -> None:
        """Take note that a message is about to be failed."""

    def bolt_execute(self, tup: Tuple) -> None:
        """Take note of an input that was executed."""

    def bolt_ack(self, tup: Tuple) -> None:
        """Take note of an input that is done."""

    def bolt_fail(self, tup: Tuple, failure: Failure) -> None:
        """Take note of an input that failed; it may be tried again."""

    def cleanup(self) -> None:
        """Release resources when the worker stops in an orderly way."""


@dataclass(frozen=True)
class WorkerContext:
    """A worker as its hooks see it; `resources` are those of `TopologyContext.shared`."""

    topology_id: str
    worker: str  # "node:port"
    tasks: Mapping[int, str]  # its own, with their components
    conf: Mapping[str, Any]
    resources: dict[str, Any] = field(default_factory=dict, compare=False)


class WorkerHook:
    """A worker's hook."""

    def start(self, context: WorkerContext) -> None:
        """Prepare, before any task; an exception is a failed start of the worker."""

    def shutdown(self) -> None:
        """Release resources: called when the worker stops in an orderly way, after its tasks."""
