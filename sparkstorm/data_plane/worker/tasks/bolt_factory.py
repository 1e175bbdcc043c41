"""Factory of a worker's bolt tasks: the runner, state and event time that each kind of bolt has, as
of its last commit.
"""

from __future__ import annotations

from typing import Any

from sparkstorm.api.async_bolts import AsyncBolt
from sparkstorm.api.columns import ColumnBolt
from sparkstorm.api.components import BasicBolt, Bolt, Stateful
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.api.windows import TimedBolt, WindowedBolt, check_bolt
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.event_loop import EventLoopBolt
from sparkstorm.data_plane.executor.event_time import (
    InputWatermarks,
    OutputWatermarks,
    TaskEventTime,
)
from sparkstorm.data_plane.executor.lazy_state import LazyState
from sparkstorm.data_plane.executor.manual_runner import ManualRunner
from sparkstorm.data_plane.executor.runner import BasicCollector, Runner
from sparkstorm.data_plane.executor.sink_runner import LastEpoch, SinkRunner, SinkStore
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.windowed_runner import TimedRunner
from sparkstorm.data_plane.task_kit.held import decode_held
from sparkstorm.data_plane.task_kit.journal import Journal, reading
from sparkstorm.data_plane.task_kit.task import make_runner
from sparkstorm.data_plane.task_kit.task_parts import TaskParts
from sparkstorm.data_plane.transport.base import TaskRecord
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.worker.open_blocks import OpenBlocks
from sparkstorm.data_plane.worker.tasks.blocking_bolt import ThreadedBolt
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.call_watch import CallWatch
from sparkstorm.data_plane.worker.tasks.inbox import Inbox
from sparkstorm.data_plane.worker.tasks.states import expecting, load_fields, stored_state
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.data_plane.worker.tasks.worker_services import WorkerServices

AnyBolt = Bolt | BasicBolt | WindowedBolt | TimedBolt | TransactionalSink


class BoltFactory:
    """Factory of bolt tasks; one per worker start."""

    def __init__(
        self, plan: WorkerPlan, services: WorkerServices, parts: TaskParts, blocks: OpenBlocks
    ) -> None:
        self._plan = plan
        self._services = services
        self._parts = parts
        self._blocks = blocks
        self._keys = Keys(plan.topology_id)

    def restore(
        self,
        task: int,
        bolt: AnyBolt,
        emitter: Emitter,
        inbox: Inbox,
        journal: Journal,
        record: TaskRecord,
        generation: int,
    ) -> BoltTask:
        """Return a task as of its last commit, to be prepared; `generation`: of the claim."""
        with reading(self._keys("journal", task)):
            fields = list(journal.read(record))
            made = self._of_journal(task, bolt, emitter, inbox, fields, generation)
            journal.lazy = made.state if isinstance(made.state, LazyState) else None
        with reading(self._keys("held", task)):
            now_ms = self._services.now_ms()
            held = [
                decode_held(self._plan.codec, key, data, self._parts.source, now_ms)
                for key, data in sorted(record.held.items())
            ]
        version = next((entry["v"] for entry in reversed(fields) if "v" in entry), 1)
        # Before `prepare`, which migrates a state of another version.
        made.resume(record.last_entry, held, version)
        return made

    def _of_journal(
        self,
        task: int,
        bolt: AnyBolt,
        emitter: Emitter,
        inbox: Inbox,
        fields: list[dict[str, Any]],
        generation: int,
    ) -> BoltTask:
        """Return a bolt's task with the state, the windows and the marks that its journal has."""
        component = emitter.component
        state = self._state(bolt, task, fields)
        times = (
            load_fields(self._plan, fields, "w", "x")
            if self._parts.time_plan.is_told(component)
            else None
        )
        if isinstance(bolt, TransactionalSink):
            # Rows of an epoch that outlasts commits; a sink has no state of the user's.
            state = load_fields(self._plan, fields, "s", "d")
            runner: Runner = self._sink_runner(bolt, component, fields, state, generation)
        else:
            runner = self._runner(bolt, emitter, state, times, task)
        births = self._blocks.births(component)
        feed = self._blocks.feeds[task]
        new_key = self._services.new_key
        made = BoltTask(task, component, bolt, runner, emitter, state, inbox, new_key, births, feed)
        made.expect = expecting(self._plan.topology, component, bolt, state)
        # a simulation has no time of its own to measure
        if self._plan.log_dir and not isinstance(runner.bolt, ThreadedBolt):
            made.watch = CallWatch(component, task, self._services.report_error)
        self._add_time(made, times)
        return made

    def _add_time(self, made: BoltTask, times: MemoryState | None) -> None:
        """Give a task its event time: inputs that send watermarks, and outputs that receive
        them.
        """
        if times is None:
            return
        plan = self._parts.time_plan
        component = made.component
        hearing = InputWatermarks(
            times, plan.inputs(component, self._parts.tasks), plan.is_in_cycle(component)
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
        services = self._services
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
                BasicCollector(emitter, task, services.report_error),
                self._parts.source,
                services.now_ms,
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
            task,
            bolt,
            emitter,
            state,
            services.report_error,
            services.wake,
            is_answering=is_answering,
        )

    def _sink_runner(
        self,
        sink: TransactionalSink,
        component: str,
        fields: list[dict[str, Any]],
        state: MemoryState,
        generation: int,
    ) -> SinkRunner:
        last = LastEpoch(
            *next((entry["e"] for entry in reversed(fields) if "e" in entry), (0, None))
        )
        if type(last.number) is not int or last.number < 0:
            raise ValueError(f"the last epoch of a sink is {last.number!r:.40}")
        store = SinkStore(self._plan.codec, state, self._parts.source, generation)
        return SinkRunner(sink, component, last, store, self._services.now_ms)

    def _state(self, bolt: AnyBolt, task: int, fields: list[dict[str, Any]]) -> MemoryState | None:
        if not isinstance(bolt, Stateful):
            return None
        settings = self._plan.component_settings(self._plan.component_by_task[task])
        is_timed = isinstance(bolt, WindowedBolt | TimedBolt)
        has_thread = not is_timed and (
            getattr(bolt, "blocking", False) or settings.executor_threads
        )
        return stored_state(self._plan, self._services.store, task, fields, has_thread)

    def _copy(self, state: MemoryState | None) -> MemoryState | None:
        """A copy for a thread to work on; the loop's own follows when an execute is taken in."""
        if state is None:
            return None
        # A copy, since the loop commits while the thread changes it: the loop's state has only what
        # was taken in. Strict: the loop takes its changes over unseen.
        copy = MemoryState(self._plan.codec, is_strict=True)
        copy.load(state.snapshot())
        return copy
