"""Times at which a slot writes its worker's heartbeat: once a period, and half as often while
nothing in it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.status import JsonValue

REST_PERIODS = 2
"""Periods of worker.heartbeat.frequency.secs between two heartbeats of a worker whose figures do
not change.

With one, heartbeats alone would be a write to ZooKeeper a second and slot. With four, clients would
take an idle worker for dead (client/worker_problems.py).
"""
_TIMES = frozenset({"uptime_ms", "loop_us"})  # they grow in an idle worker too


class HeartbeatPace:
    """Pace of one slot's heartbeats; `period_ms` is worker.heartbeat.frequency.secs."""

    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._due_ms = self._rest_due_ms = 0
        self._said: object = None  # what lasts of the last heartbeat

    def hurry(self) -> None:
        """Have the next heartbeat written at once: the slot's phase has changed."""
        self._due_ms = self._rest_due_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Return whether to make a heartbeat now, once a period."""
        if now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + self._period_ms
        return True

    def is_worth_writing(
        self, beat: WorkerBeat, of_worker: Mapping[str, JsonValue], silent_ms: int, now_ms: int
    ) -> bool:
        """Return whether to write this heartbeat: one that differs from the last, or whose rest is
        over.

        Times, uptimes and the slot's own figures are no difference, except that a worker is stuck;
        `of_worker` are the figures of the worker as a whole.
        """
        figures = {
            name: _lasting(figure) for name, figure in of_worker.items() if name not in _TIMES
        }
        executors = {
            executor: _lasting(stats) for executor, stats in beat.stats_by_executor.items()
        }
        before = self._said
        self._said = replace(beat, time_ms=0, stats_by_executor=executors, stats=figures)
        if before == self._said and silent_ms < self._period_ms and now_ms < self._rest_due_ms:
            return False
        self._rest_due_ms = now_ms + REST_PERIODS * self._period_ms
        return True


def _lasting(value: JsonValue) -> JsonValue:
    """Return statistics without what changes by itself."""
    return (
        {name: _lasting(inner) for name, inner in value.items() if name not in _TIMES}
        if isinstance(value, dict)
        else value
    )
