"""Live shadow of a worker: other code next to one of its tasks, begun and ended by the slot's order.

Law: the task is independent of it (it is an observer of committed rows), and nothing that the new
code does is committed. Left out: running the new code in the worker: a crash or a leak of it would
be the topology's (decision 19).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkstorm.common.model.tasks import tasks_by_component
from sparkstorm.common.model.worker_messages import SetShadow
from sparkstorm.common.model.worker_spec import WorkerSpec
from sparkstorm.common.settings import ComponentSettings, MemorySettings
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.task_set import TaskSet
from sparkstorm.extensions.recording.live_shadow import (
    LiveShadow,
    ShadowedTask,
    VersionSource,
    new_desk,
)
from sparkstorm.extensions.recording.recorder import Desk, Recorder
from sparkstorm.extensions.recording.segments import Limits
from sparkstorm.extensions.upgrade.live_shadow import STATS, ShadowFigures

# A shadow keeps no file: nothing is cut by rows or bytes.
_UNLIMITED = 1 << 60
ReadCode = Callable[[Path], bytes | None]


class LiveShadows:
    """The shadow of one worker process, if it has one; steps between two epochs."""

    def __init__(
        self,
        spec: WorkerSpec,
        now_ms: Callable[[], int],
        read_code: ReadCode,
        is_threaded: bool,
    ) -> None:
        self._spec = spec
        self._now_ms = now_ms
        self._read_code = read_code
        self._is_threaded = is_threaded
        self._order: SetShadow | None = None
        self._shadow: LiveShadow | None = None
        self._desk: Desk | None = None
        self._recorder: Recorder | None = None
        self._bolt: BoltTask | None = None
        self._problem = ""

    def follow(self, order: SetShadow, task_set: TaskSet) -> None:
        """Begin what the slot asks for, in place of what was under way."""
        # One at a time: two would share the CPU that is left next to the worker.
        self.end()
        if order.task:
            self._order = order
            self._problem = self._begin(order, task_set)

    def end(self) -> None:
        """End the shadow."""
        if self._recorder is not None and self._bolt is not None:
            # Before the processes end: rows that come now would be written to a shadow that is
            # gone.
            self._bolt.observers.remove(self._recorder)
        if self._shadow is not None and self._desk is not None:
            self._shadow.stop()
            self._desk.close([self._shadow])
        self._order = self._shadow = self._desk = self._recorder = self._bolt = None
        self._problem = ""

    def figures(self) -> dict[str, Any]:
        """Return the shadow's figures for the heartbeat; nothing when there is none."""
        if self._order is None:
            return {}
        if self._shadow is None:
            component = self._spec.component_by_task.get(self._order.task, "")
            figures = ShadowFigures(
                component, self._order.task, self._order.code_key, problem=self._problem
            )
        else:
            figures = self._shadow.figures(
                self._order.code_key, self._recorder.lost if self._recorder is not None else 0
            )
        return {STATS: asdict(figures)}

    def _begin(self, order: SetShadow, task_set: TaskSet) -> str:
        """Begin it; an error text when that is not possible."""
        spec = self._spec
        bolt = task_set.bolts.get(order.task)
        # Both now: an upgrade that ends meanwhile deletes the older blob.
        codes = [self._read_code(Path(path)) for path in (spec.code_path, order.code_path)]
        if bolt is None:
            return f"task {order.task} is no bolt of this worker"
        if codes[0] is None or codes[1] is None:
            return "its code is gone from this machine"
        index = tasks_by_component(spec.component_by_task)[bolt.component].index(bolt.task)
        times = bolt.time.times if bolt.time is not None and bolt.time.timing is not None else None
        task = ShadowedTask(
            bolt.component, bolt.task, index, bolt.state is not None, times is not None
        )
        old = VersionSource(codes[0], spec.conf)
        new = VersionSource(codes[1], order.conf)
        self._shadow = LiveShadow(task, old, new, MemorySettings.of(spec.conf).limit_mb)
        self._desk = new_desk(self._is_threaded)
        limits = Limits(_UNLIMITED, _UNLIMITED, ComponentSettings.of(spec.conf).record_state_keys)
        self._recorder = Recorder(self._desk, self._shadow, bolt.state, limits, self._now_ms, times)
        self._bolt = bolt
        bolt.observers.append(self._recorder)
        return ""
