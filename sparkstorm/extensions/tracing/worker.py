"""Taps, traces and stacks in a worker, published while a client looks."""

from __future__ import annotations

from sparkstorm.data_plane.worker.extension import WorkerExtension
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.extensions.tracing.stacks import StackTap
from sparkstorm.extensions.tracing.taps import Taps
from sparkstorm.extensions.tracing.traces import Traces


class TracingExtension(WorkerExtension):
    """The taps of one worker; it asks the store once a second which of them are open."""

    _taps: Taps | None = None

    def attach(self, parts: WorkerParts) -> None:
        clock, owner = parts.clock, parts.plan.owner
        senders = parts.task_set.senders()
        others = (
            Traces(senders, owner, clock.now_us),
            StackTap(owner, clock.now_ms, parts.run_in_thread),
        )
        self._taps = Taps(senders, parts.transport, clock.now_ms, others)

    def after_beat(self, now_ms: int) -> None:
        if self._taps is not None:
            self._taps.look(now_ms)
