"""Factory of a worker's spout tasks: the collector, the pending messages and the event time of a
spout, as of its last commit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from sparkstorm.api.components import Spout
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.model.roots import brought_home
from sparkstorm.data_plane.acking.pending import Pending
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.event_time import OutputWatermarks, TaskEventTime
from sparkstorm.data_plane.task_kit.journal import Journal, reading, whole_and_deltas
from sparkstorm.data_plane.task_kit.task_parts import TaskParts
from sparkstorm.data_plane.transport.base import TaskRecord
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.worker.open_blocks import OpenBlocks
from sparkstorm.data_plane.worker.tasks.blocking_spout import has_callbacks, threaded
from sparkstorm.data_plane.worker.tasks.hooks import TaskHooks
from sparkstorm.data_plane.worker.tasks.inbox import Inbox
from sparkstorm.data_plane.worker.tasks.spout_collector import SpoutCollector
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask
from sparkstorm.data_plane.worker.tasks.states import load_fields
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.data_plane.worker.tasks.worker_services import WorkerServices


class SpoutFactory:
    """Factory of spout tasks; one per worker start."""

    def __init__(
        self, plan: WorkerPlan, services: WorkerServices, parts: TaskParts, blocks: OpenBlocks
    ) -> None:
        self._plan = plan
        self._services = services
        self._parts = parts
        self._blocks = blocks
        self._keys = Keys(plan.topology_id)

    def open(
        self,
        task: int,
        spout: Spout,
        emitter: Emitter,
        inbox: Inbox,
        journal: Journal,
        record: TaskRecord,
        hooks: TaskHooks | None,
        context: TopologyContext,
    ) -> SpoutTask:
        """Return a task as of its last commit, with `open` called."""
        component = emitter.component
        settings = self._plan.component_settings(component)
        collector = SpoutCollector(
            emitter,
            task,
            self._root_drawer(),
            self._services.report_error,
            self._plan.codec,
            partial(self._blocks.expect_batches, component),
        )
        pending = self._pending(component, keeps_settled=hooks is not None or has_callbacks(spout))
        # Only for components that wait: a computing bolt of four tasks did 18,100 tuples/s in the
        # loop, 12,400 on threads (decision 28).
        if spout.blocking or settings.executor_threads:
            spout = threaded(spout, self._services.wake, self._services.make_thread)
        births = self._blocks.births(component)
        size = self._plan.settings.batch_size
        made = SpoutTask(task, component, spout, emitter, collector, pending, inbox, births, size)
        if hooks is not None:
            made.observers.append(hooks)
        with reading(self._keys("journal", task)):
            fields = list(journal.read(record))
            if self._parts.time_plan.is_told(component):
                times = load_fields(self._plan, fields, "w", "x")
                made.time = TaskEventTime(times, OutputWatermarks(times, emitter.timed_outputs))
            pending.load(*whole_and_deltas(fields, "p"), now_ms=self._services.now_ms())
            made.settle_commit()  # what a former owner has committed
        spout.open(self._parts.conf(component), context, collector)
        # Before this its own methods are not asked: they may need what `open` makes.
        made.is_open = True
        # After `open`, which may reset the source, and the newest only: positions replace each
        # other.
        for position in [f["o"] for f in fields if "o" in f][-1:]:
            made.restore(position)
        return made

    def _pending(self, component: str, keeps_settled: bool) -> Pending:
        settings = self._plan.settings
        timeout_ms = settings.message_timeout_ms if settings.has_message_timeouts else math.inf
        limit = self._plan.component_settings(component).max_spout_pending
        return Pending(limit, keeps_settled, settings.workers, timeout_ms)

    def _root_drawer(self) -> Callable[[], int] | None:
        """Source of numbers for roots whose acker is one of this worker's own, where there is one
        (topology.acker.local).
        """
        ackers = self._plan.ackers
        draw = self._services.ids.root
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
