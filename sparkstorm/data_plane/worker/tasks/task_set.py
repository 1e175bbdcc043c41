"""Set of a worker's tasks, by kind: settled after each commit, closed or abandoned together."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkstorm.api.hooks import WorkerHook
from sparkstorm.api.metrics import TaskMetrics
from sparkstorm.common.grouping.load_ring import LoadRing
from sparkstorm.common.model.topology import ACKER
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.manual_runner import ManualRunner
from sparkstorm.data_plane.executor.runner import ReportError, report_of
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS
from sparkstorm.data_plane.task_kit.journal import Journal
from sparkstorm.data_plane.worker.open_blocks import OpenBlocks
from sparkstorm.data_plane.worker.tasks.acker_task import AckerTask
from sparkstorm.data_plane.worker.tasks.blocking_bolt import ThreadedBolt
from sparkstorm.data_plane.worker.tasks.blocking_spout import ThreadedSpout
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.inbox import Inbox
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask


@dataclass(slots=True)
class TaskSet:
    """A worker's tasks by kind, and where each component's sources are found."""

    blocks: OpenBlocks
    report_error: ReportError
    spouts: dict[int, SpoutTask] = field(default_factory=dict)
    bolts: dict[int, BoltTask] = field(default_factory=dict)
    ackers: dict[int, AckerTask] = field(default_factory=dict)
    journals: dict[int, Journal] = field(default_factory=dict)
    inboxes: dict[int, Inbox] = field(default_factory=dict)
    metrics: dict[int, TaskMetrics] = field(default_factory=dict)
    worker_hooks: list[WorkerHook] = field(default_factory=list)

    @property
    def emitters(self) -> list[Emitter]:
        """The emitters of its spouts and bolts."""
        return [
            *(spout.emitter for spout in self.spouts.values()),
            *(bolt.emitter for bolt in self.bolts.values()),
        ]

    def load_rings(self) -> list[LoadRing]:
        """The turns of the load-aware shuffles of its tasks."""
        routes = [route for emitter in self.emitters for route in emitter.routes.values()]
        return [
            subscription.ring
            for route in routes
            for subscription in route.subscriptions
            if subscription.ring is not None
        ]

    def settle(self) -> None:
        """Take note of a successful commit."""
        for bolt in self.bolts.values():
            bolt.settle()
        for spout in self.spouts.values():
            spout.settle_commit()
        self.blocks.settle()
        for sender in self.senders():
            for observer in sender.observers:
                observer.committed()

    def close(self) -> None:
        """Clean up components after the last commit."""
        for spout in self.spouts.values():
            spout.close()
        for bolt in self.bolts.values():
            # The others still end: one cleanup that raises must not leave connections of the next
            # open.
            if (failure := bolt.clean_up()) is not None:
                self.report_error(report_of(failure, bolt.component, bolt.task))
            if isinstance(bolt.runner, ManualRunner):
                bolt.runner.close()
        for sender in self.senders():
            for observer in sender.observers:
                observer.close()
        for hook in self.worker_hooks:
            try:
                hook.shutdown()
            except USER_ERRORS as error:
                component_by_task = {
                    sender.task: sender.component for sender in self.senders()
                } or dict.fromkeys(self.ackers, ACKER)
                task = min(component_by_task, default=0)
                self.report_error(report_of(error, component_by_task.get(task, ACKER), task))

    def abandon(self) -> None:
        """End threads and files without cleanup, as the death of a worker process does; for
        simulations.
        """
        for component in (
            *(s.spout for s in self.spouts.values()),
            *(b.runner.bolt for b in self.bolts.values()),
        ):
            if isinstance(component, ThreadedBolt | ThreadedSpout):
                # A simulated death must end real threads, which would outlive it and wake a worker
                # that is gone.
                component.abandon()

    def senders(self) -> list[SpoutTask | BoltTask]:
        """Every task that runs user code."""
        return [*self.spouts.values(), *self.bolts.values()]
