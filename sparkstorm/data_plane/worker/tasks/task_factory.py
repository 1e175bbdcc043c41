"""Factory of a worker's tasks: makes routes, runners and states from the plan, and restores them
from the store.

Law: a task is as of its last commit before its user code sees anything: state, windows, pending
messages and held inputs are loaded, then `open` or `prepare` is called. All tasks of a worker come
from one claim. Left out: restoring on first use, which would make the first tuples slow and find a
damaged record in the middle of an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from threading import get_ident
from typing import Any

from sparkstorm.api.async_bolts import AsyncBolt
from sparkstorm.api.columns import ColumnBolt
from sparkstorm.api.components import BasicBolt, Bolt, Spout, Stateful
from sparkstorm.api.context import BLOBS_FOLDER, TopologyContext
from sparkstorm.api.hooks import WorkerContext, WorkerHook
from sparkstorm.api.metrics import TaskMetrics
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.api.windows import TimedBolt, WindowedBolt, check_bolt
from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.grouping.load_ring import LoadRing
from sparkstorm.common.model.roots import brought_home
from sparkstorm.common.model.topology import ACKER, MASTER
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.data_plane.acking.pending import Pending
from sparkstorm.data_plane.acking.tree_batches import TreeBatches
from sparkstorm.data_plane.checkpoint.restore import FROM_CHECKPOINT
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.event_loop import EventLoopBolt
from sparkstorm.data_plane.executor.event_time import (
    InputWatermarks,
    OutputWatermarks,
    TaskEventTime,
)
from sparkstorm.data_plane.executor.lazy_state import LazyState
from sparkstorm.data_plane.executor.manual_runner import ManualRunner
from sparkstorm.data_plane.executor.runner import BasicCollector, ReportError, Runner, report_of
from sparkstorm.data_plane.executor.sink_runner import LastEpoch, SinkRunner, SinkStore
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, preparing
from sparkstorm.data_plane.executor.windowed_runner import TimedRunner
from sparkstorm.data_plane.task_kit.held import decode_held
from sparkstorm.data_plane.task_kit.journal import Journal, reading, whole_and_deltas
from sparkstorm.data_plane.task_kit.task import make_runner
from sparkstorm.data_plane.task_kit.task_parts import LIVE_STREAMS, TaskParts
from sparkstorm.data_plane.transport.base import Claim, TaskRecord, Transport
from sparkstorm.data_plane.transport.frames import MESSAGES, ROWS, SETTLED
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.worker.epoch import IdSource
from sparkstorm.data_plane.worker.open_blocks import OpenBlocks
from sparkstorm.data_plane.worker.tasks.acker_task import AckerTask
from sparkstorm.data_plane.worker.tasks.blocking_bolt import ThreadedBolt
from sparkstorm.data_plane.worker.tasks.blocking_spout import (
    MakeThread,
    SourceThread,
    ThreadedSpout,
    has_callbacks,
    threaded,
)
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.call_watch import CallWatch
from sparkstorm.data_plane.worker.tasks.hooks import (
    TaskHooks,
    hooked_emitter,
    started_hooks,
    task_hooks,
)
from sparkstorm.data_plane.worker.tasks.inbox import Inbox
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutCollector, SpoutTask
from sparkstorm.data_plane.worker.tasks.states import expecting, stored_state
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan


@dataclass(frozen=True, slots=True)
class WorkerServices:
    """Functions of the worker that its tasks may call."""

    now_ms: Callable[[], int]
    ids: IdSource
    report_error: ReportError
    wake: Callable[[], None]
    new_key: Callable[[], str]
    store: Transport
    metric_values: Callable[[int], dict[str, MetricValue]]  # of a task, as last committed
    make_thread: MakeThread = SourceThread


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


class TaskFactory:
    """Factory of a TaskSet; one per worker start."""

    def __init__(self, plan: WorkerPlan, around: WorkerServices) -> None:
        self._plan = plan
        self._around = around
        self._hooks_of: dict[int, TaskHooks] = {}
        self._metrics_of: dict[int, TaskMetrics] = {}
        self._column_bolts: dict[str, bool] = {}
        where = (plan.topology_id, plan.topology, plan.conf, plan.component_by_task)
        self._parts = TaskParts(*where, plan.codec, LIVE_STREAMS)
        self._parts.resources[BLOBS_FOLDER] = plan.blobs_folder
        self.source = self._parts.source
        self._tasks = self._parts.tasks
        self._time_plan = self._parts.time_plan
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

    def build(self, claim: Claim) -> TaskSet:
        """Every task of the plan, restored from what the claim found, with `open`/`prepare`
        called.
        """
        plan = self._plan
        own = {task: plan.component_by_task[task] for task in sorted(plan.tasks)}
        context = WorkerContext(plan.topology_id, plan.owner, own, plan.conf, self._parts.resources)
        task_set = TaskSet(
            self._blocks,
            self._around.report_error,
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
                metrics = TaskMetrics(component, self._around.metric_values(task), get_ident)
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
            with preparing(component, task, self._around.report_error):
                self._add(task_set, task, component, record)
        return task_set

    def _add_hooks(self, task: int, component: str) -> None:
        if names := self._plan.component_settings(component).task_hooks:
            hooks = self._hooks_of[task] = TaskHooks(
                task_hooks(names), component, task, self._around.report_error
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
            self._around.now_ms,
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
        with reading(self._key("journal", task)):
            whole, deltas = whole_and_deltas(list(task_set.journals[task].read(record)), "l")
            ledger.load(whole or b"", deltas)
        return AckerTask(task, ledger, task_set.inboxes[task], record.last_entry)

    def _spout(self, task: int, component: str, task_set: TaskSet, record: TaskRecord) -> SpoutTask:
        spout: Spout = self._plan.make_instance(component)
        emitter = self._emitter(task, component)
        expect_batches = partial(self._blocks.expect_batches, component)
        collector = SpoutCollector(
            emitter,
            task,
            self._root_drawer(),
            self._around.report_error,
            self._plan.codec,
            expect_batches,
        )
        hooks = self._hooks_of.get(task)
        keeps_settled = hooks is not None or has_callbacks(spout)
        limit = self._plan.component_settings(component).max_spout_pending
        settings = self._plan.settings
        timeout_ms = settings.message_timeout_ms if settings.has_message_timeouts else math.inf
        pending = Pending(limit, keeps_settled, settings.workers, timeout_ms)
        # Only for components that wait: a computing bolt of four tasks did 18,100 tuples/s in the
        # loop, 12,400 on threads (decision 28).
        if spout.blocking or self._plan.component_settings(component).executor_threads:
            spout = threaded(spout, self._around.wake, self._around.make_thread)
        births = self._blocks.births(component)
        size = self._plan.settings.batch_size
        made = SpoutTask(
            task,
            component,
            spout,
            emitter,
            collector,
            pending,
            task_set.inboxes[task],
            births,
            size,
        )
        made.observers += [] if hooks is None else [hooks]
        with reading(self._key("journal", task)):
            fields = list(task_set.journals[task].read(record))
            if self._time_plan.is_told(component):
                times = self._stored(fields, "w", "x")
                made.time = TaskEventTime(times, OutputWatermarks(times, emitter.timed_outputs))
            pending.load(*whole_and_deltas(fields, "p"), now_ms=self._around.now_ms())
            made.settle_commit()  # what a former owner has committed
        spout.open(self._parts.conf(component), self._context(task, component), collector)
        # Before this its own methods are not asked: they may need what `open` makes.
        made.is_open = True
        # After `open`, which may reset the source, and the newest only: positions replace each
        # other.
        for position in [f["o"] for f in fields if "o" in f][-1:]:
            made.restore(position)
        return made

    def _bolt(self, task: int, component: str, task_set: TaskSet, record: TaskRecord) -> BoltTask:
        bolt: Bolt | BasicBolt | WindowedBolt | TimedBolt | TransactionalSink = (
            self._plan.make_instance(component)
        )
        with reading(self._key("journal", task)):
            fields = list(task_set.journals[task].read(record))
            made = self._stored_bolt(task, component, bolt, task_set, fields)
        with reading(self._key("held", task)):
            now_ms = self._around.now_ms()
            held = [
                decode_held(self._plan.codec, key, data, self.source, now_ms)
                for key, data in sorted(record.held.items())
            ]
        version = next((entry["v"] for entry in reversed(fields) if "v" in entry), 1)
        # Before `prepare`, which migrates a state of another version.
        made.resume(record.last_entry, held, version)
        context = self._context(task, component)
        if isinstance(bolt, TransactionalSink):
            # A hot deploy goes on with the epochs of its target, which are kept under the first
            # topology's id.
            context = replace(context, topology_id=self._claim.origin)
        made.prepare(context)
        return made

    def _stored_bolt(
        self, task: int, component: str, bolt: Any, task_set: TaskSet, fields: list[dict[str, Any]]
    ) -> BoltTask:
        """Return a bolt's task with the state, the windows and the marks that its journal has."""
        emitter = self._emitter(task, component)
        state = self._state(bolt, task, fields)
        times = self._stored(fields, "w", "x") if self._time_plan.is_told(component) else None
        if isinstance(bolt, TransactionalSink):
            # Rows of an epoch that outlasts commits; a sink has no state of the user's.
            state = self._stored(fields, "s", "d")
            runner: Runner = self._sink_runner(bolt, component, fields, state)
        else:
            runner = self._runner(bolt, emitter, state, times, task)
        births = self._blocks.births(component)
        feed = self._blocks.feeds[task]
        inbox = task_set.inboxes[task]
        new_key = self._around.new_key
        made = BoltTask(task, component, bolt, runner, emitter, state, inbox, new_key, births, feed)
        made.expect = expecting(self._plan.topology, component, bolt, state)
        task_set.journals[task].lazy = state if isinstance(state, LazyState) else None
        if task in self._hooks_of:
            made.observers.append(self._hooks_of[task])
        # a simulation has no time of its own to measure
        if self._plan.log_dir and not isinstance(runner.bolt, ThreadedBolt):
            made.watch = CallWatch(component, task, self._around.report_error)
        self._add_time(made, times)
        return made

    def _key(self, part: str, task: int) -> str:
        """Name of a task's key in Redis (docs/maintaining/keys.md)."""
        return Keys(self._plan.topology_id)(part, task)

    def _add_time(self, made: BoltTask, times: MemoryState | None) -> None:
        """Give a task its event time: inputs that send watermarks, and outputs that receive
        them.
        """
        if times is None:
            return
        plan = self._time_plan
        component = made.component
        hearing = InputWatermarks(
            times, plan.inputs(component, self._tasks), plan.is_in_cycle(component)
        )
        timing = made.runner if isinstance(made.runner, TimedRunner) else None
        made.time = TaskEventTime(
            times, OutputWatermarks(times, made.emitter.timed_outputs), hearing, timing
        )
        if isinstance(made.runner, ManualRunner):
            made.runner.placed = made.placed

    def _runner(
        self,
        bolt: Any,
        emitter: Emitter,
        state: MemoryState | None,
        times: MemoryState | None,
        task: int,
    ) -> Runner:
        around = self._around
        plan = self._plan
        if isinstance(bolt, WindowedBolt | TimedBolt):
            assert state is not None and times is not None
            return TimedRunner(
                bolt,
                check_bolt(
                    plan.topology, plan.topology.components[emitter.component], bolt, plan.conf
                ),
                emitter,
                state,
                times,
                BasicCollector(emitter, task, around.report_error),
                self.source,
                around.now_ms,
                plan.retry_policy,
            )
        if isinstance(bolt, AsyncBolt):
            bolt = EventLoopBolt(bolt, has_thread=True)
        if bolt.blocking or plan.component_settings(emitter.component).executor_threads:
            bolt = ThreadedBolt(bolt, self._copy(state), plan.codec)
        if isinstance(bolt, ColumnBolt):
            self._blocks.expect_batches(emitter.component)
        is_answering = plan.delivery.is_exactly_once
        return make_runner(
            task, bolt, emitter, state, around.report_error, around.wake, is_answering=is_answering
        )

    def _sink_runner(
        self,
        sink: TransactionalSink,
        component: str,
        fields: list[dict[str, Any]],
        state: MemoryState,
    ) -> SinkRunner:
        last = LastEpoch(
            *next((entry["e"] for entry in reversed(fields) if "e" in entry), (0, None))
        )
        if type(last.number) is not int or last.number < 0:
            raise ValueError(f"the last epoch of a sink is {last.number!r:.40}")
        store = SinkStore(self._plan.codec, state, self.source, self._claim.generation)
        return SinkRunner(sink, component, last, store, self._around.now_ms)

    def _state(self, bolt: Any, task: int, fields: list[dict[str, Any]]) -> MemoryState | None:
        if not isinstance(bolt, Stateful):
            return None
        settings = self._plan.component_settings(self._plan.component_by_task[task])
        is_timed = isinstance(bolt, WindowedBolt | TimedBolt)
        has_thread = not is_timed and (
            getattr(bolt, "blocking", False) or settings.executor_threads
        )
        return stored_state(self._plan, self._around.store, task, fields, has_thread)

    def _copy(self, state: MemoryState | None) -> MemoryState | None:
        """A copy for a thread to work on; the loop's own follows when an execute is taken in."""
        if state is None:
            return None
        # A copy, since the loop commits while the thread changes it: the loop's state has only what
        # was taken in. Strict: the loop takes its changes over unseen.
        copy = MemoryState(self._plan.codec, is_strict=True)
        copy.load(state.snapshot())
        return copy

    def _stored(self, deltas: list[dict[str, Any]], changed: str, deleted: str) -> MemoryState:
        """Return the state that the journal's fields of these names describe."""
        state = MemoryState(self._plan.codec, self._plan.is_strict or self._plan.careful > 0)
        for fields in deltas:
            state.load(fields.get(changed, ()), fields.get(deleted, ()))
        return state

    def _root_drawer(self) -> Callable[[], int] | None:
        """Source of numbers for roots whose acker is one of this worker's own, where there is one
        (topology.acker.local).
        """
        ackers = self._plan.ackers
        draw = self._around.ids.root
        local = [i for i, task in enumerate(ackers) if task in self._plan.token_by_task]
        if not ackers:
            return None
        if not local or len(local) == len(ackers) or not self._plan.settings.prefers_local_ackers:
            return draw
        count = len(ackers)

        def draw_local() -> int:
            # The draw stays random, only which acker it names is exchanged, as in every other
            # worker.
            return brought_home(draw(), local, count) or draw_local()

        return draw_local
