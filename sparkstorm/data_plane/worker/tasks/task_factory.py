"""Factory of a worker's tasks: makes routes, runners and states from the plan, and restores them
from the store.

Law: a task is as of its last commit before its user code sees anything: state, windows, pending
messages and held inputs are loaded, then `open` or `prepare` is called. All tasks of a worker come
from one claim. Left out: restoring on first use, which would make the first tuples slow and find a
damaged record in the middle of an epoch.
"""

from __future__ import annotations

from dataclasses import replace
from threading import get_ident

from sparkstorm.api.columns import ColumnBolt
from sparkstorm.api.components import Spout
from sparkstorm.api.context import BLOBS_FOLDER, TopologyContext
from sparkstorm.api.hooks import WorkerContext
from sparkstorm.api.metrics import TaskMetrics
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.topology import ACKER, MASTER
from sparkstorm.data_plane.acking.tree_batches import TreeBatches
from sparkstorm.data_plane.checkpoint.restore import FROM_CHECKPOINT
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.user_traceback import preparing
from sparkstorm.data_plane.task_kit.journal import Journal, reading, whole_and_deltas
from sparkstorm.data_plane.task_kit.task_parts import LIVE_STREAMS, TaskParts
from sparkstorm.data_plane.transport.base import Claim, TaskRecord
from sparkstorm.data_plane.transport.frames import MESSAGES, ROWS, SETTLED
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.worker.open_blocks import OpenBlocks
from sparkstorm.data_plane.worker.tasks.acker_task import AckerTask
from sparkstorm.data_plane.worker.tasks.bolt_factory import AnyBolt, BoltFactory
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.hooks import (
    TaskHooks,
    hooked_emitter,
    started_hooks,
    task_hooks,
)
from sparkstorm.data_plane.worker.tasks.inbox import Inbox
from sparkstorm.data_plane.worker.tasks.spout_factory import SpoutFactory
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask
from sparkstorm.data_plane.worker.tasks.task_set import TaskSet
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.data_plane.worker.tasks.worker_services import WorkerServices


class TaskFactory:
    """Factory of a TaskSet; one per worker start."""

    def __init__(self, plan: WorkerPlan, services: WorkerServices) -> None:
        self._plan = plan
        self._services = services
        self._keys = Keys(plan.topology_id)
        self._hooks_of: dict[int, TaskHooks] = {}
        self._metrics_of: dict[int, TaskMetrics] = {}
        self._column_bolts: dict[str, bool] = {}
        where = (plan.topology_id, plan.topology, plan.conf, plan.component_by_task)
        self._parts = TaskParts(*where, plan.codec, LIVE_STREAMS)
        self._parts.resources[BLOBS_FOLDER] = plan.blobs_folder
        self.source = self._parts.source
        self._tasks = self._parts.tasks
        self._spout_tasks = frozenset(
            task
            for name, component in plan.topology.components.items()
            if component.kind == "spout"
            for task in self._tasks.get(name, ())
        )
        self._blocks = OpenBlocks(
            frozenset(plan.tasks),
            self.source,
            plan.codec if plan.is_strict else None,
            plan.run_tasks(),
            plan.settings.is_direct,
        )
        self._spouts = SpoutFactory(plan, services, self._parts, self._blocks)
        self._bolts = BoltFactory(plan, services, self._parts, self._blocks)

    def build(self, claim: Claim) -> TaskSet:
        """Every task of the plan, restored from what the claim found, with `open`/`prepare`
        called.
        """
        plan = self._plan
        own = {task: plan.component_by_task[task] for task in sorted(plan.tasks)}
        context = WorkerContext(plan.topology_id, plan.owner, own, plan.conf, self._parts.resources)
        task_set = TaskSet(
            self._blocks,
            self._services.report_error,
            worker_hooks=started_hooks(plan.settings.worker_hooks, context),
        )
        self._claim = claim
        # In the order of the ids: `prepare` of one task may meet what another has shared, the same
        # in every run.
        for task in sorted(self._plan.tasks):
            record = claim.record_by_task[task]
            task_set.journals[task] = Journal(task, self._plan.codec)
            component = self._plan.component_by_task[task]
            if component not in (ACKER, MASTER):
                metrics = TaskMetrics(component, self._services.metric_values(task), get_ident)
                self._metrics_of[task] = task_set.metrics[task] = metrics
                self._add_hooks(task, component)
            task_set.inboxes[task] = Inbox(
                task,
                self._plan.codec,
                self.source,
                record.cursor,
                self._kind_of_frames(component),
                self._spout_tasks,
                record.foreign,
            )
            # The beginning was written into the journal: an empty one means that the store has lost
            # it, and a task that began with nothing would look healthy.
            if (
                component not in (ACKER, MASTER)
                and self._plan.settings.from_checkpoint
                and not record.journal
            ):
                raise StoreInconsistentError(
                    f"component '{component}' (task {task}) was given a part of {FROM_CHECKPOINT}, but "
                    "the store has it no more: kill the topology and submit it again"
                )
            with preparing(component, task, self._services.report_error):
                self._add(task_set, task, component, record)
        return task_set

    def _add_hooks(self, task: int, component: str) -> None:
        if names := self._plan.component_settings(component).task_hooks:
            hooks = self._hooks_of[task] = TaskHooks(
                task_hooks(names), component, task, self._services.report_error
            )
            hooks.call("prepare", self._parts.conf(component), self._context(task, component))

    def _add(self, task_set: TaskSet, task: int, component: str, record: TaskRecord) -> None:
        if component == ACKER:
            task_set.ackers[task] = self._acker(task, task_set, record)
        elif component == MASTER:
            return  # its slot does its duties; the task has its place, its fence and its heartbeat
        elif self._plan.topology.components[component].kind == "spout":
            task_set.spouts[task] = self._spout(task, component, task_set, record)
        else:
            task_set.bolts[task] = self._bolt(task, component, task_set, record)

    def _kind_of_frames(self, component: str) -> int:
        """Return the kind of frame that a task of this component receives: acker messages, settled
        roots, or rows.
        """
        if component == ACKER:
            return MESSAGES
        if component == MASTER:
            return ROWS
        return SETTLED if self._plan.topology.components[component].kind == "spout" else ROWS

    def _emitter(self, task: int, component: str) -> Emitter:
        _, _, routes, timed_outputs = self._parts.outputs(
            task, frozenset(self._plan.tasks), self._blocks.targets_of(component)
        )
        is_strict = self._plan.is_strict or self._plan.careful > 0
        hooks = self._hooks_of.get(task)
        # A hook sees each emission: such an emitter is strict, so that no faster way goes around
        # it.
        emitter = (
            Emitter(component, routes, is_strict)
            if hooks is None
            else hooked_emitter(component, routes, hooks)
        )
        emitter.timed_outputs = timed_outputs
        self._metrics_of[task].bind(emitter.note)
        return emitter

    def _context(self, task: int, component: str) -> TopologyContext:
        streams = self._column_streams(component)
        metrics = self._metrics_of[task]
        return self._parts.context(
            task,
            self._plan.tasks,
            self._services.now_ms,
            streams,
            self._claim.incarnation,
            metrics=metrics,
        )

    def _column_streams(self, component: str) -> frozenset[str]:
        topology = self._plan.topology
        if topology.components[component].kind != "spout":
            return frozenset()
        by_stream = {
            stream: topology.subscribers(component, stream)
            for stream in topology.components[component].streams
        }
        return frozenset(
            stream
            for stream, subscribers in by_stream.items()
            if any(self._takes_batches(id) for id, _ in subscribers)
        )

    def _takes_batches(self, component: str) -> bool:
        # The plan's topology is bare: what a component is, only an instance shows.
        if component not in self._column_bolts:
            # One instance per component and start: it is made for this look and dropped.
            self._column_bolts[component] = isinstance(
                self._plan.make_instance(component), ColumnBolt
            )
        return self._column_bolts[component]

    def _acker(self, task: int, task_set: TaskSet, record: TaskRecord) -> AckerTask:
        ledger = TreeBatches()
        with reading(self._keys("journal", task)):
            whole, deltas = whole_and_deltas(list(task_set.journals[task].read(record)), "l")
            ledger.load(whole or b"", deltas)
        return AckerTask(task, ledger, task_set.inboxes[task], record.last_entry)

    def _spout(self, task: int, component: str, task_set: TaskSet, record: TaskRecord) -> SpoutTask:
        spout: Spout = self._plan.make_instance(component)
        return self._spouts.open(
            task,
            spout,
            self._emitter(task, component),
            task_set.inboxes[task],
            task_set.journals[task],
            record,
            self._hooks_of.get(task),
            self._context(task, component),
        )

    def _bolt(self, task: int, component: str, task_set: TaskSet, record: TaskRecord) -> BoltTask:
        bolt: AnyBolt = self._plan.make_instance(component)
        made = self._bolts.restore(
            task,
            bolt,
            self._emitter(task, component),
            task_set.inboxes[task],
            task_set.journals[task],
            record,
            self._claim.generation,
        )
        if task in self._hooks_of:
            made.observers.append(self._hooks_of[task])
        context = self._context(task, component)
        if isinstance(bolt, TransactionalSink):
            # A hot deploy goes on with the epochs of its target, which are kept under the first
            # topology's id.
            context = replace(context, topology_id=self._claim.origin)
        made.prepare(context)
        return made
