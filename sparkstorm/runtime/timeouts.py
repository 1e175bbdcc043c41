"""Owns when a spout's tree is given up and when an acker's ledger ages (topology.message.timeout.secs).

A tuple that waits is not a failed tuple: nothing is given up that was born after the oldest root still waiting in any
stream (acks on their way included), for its next try or for a thread; user code that simply never acks is not
waiting, its trees time out as in Storm.
"""

from __future__ import annotations

from sparkstorm.errors import MalformedFrameError
from sparkstorm.runtime.assembly import Crew, WorkerPlan
from sparkstorm.transport import frames
from sparkstorm.transport.base import Transport


class Timeouts:
    """Looks about once a second; reads the low watermark only when something is old enough to be given up."""

    def __init__(self, plan: WorkerPlan, crew: Crew, transport: Transport, now_ms: int) -> None:
        seconds = plan.conf.get("topology.message.timeout.secs")
        self._timeout_ms = int(float(30 if seconds is None else seconds) * 1000)
        self._is_on = bool(plan.ackers) and plan.conf.get("topology.enable.message.timeouts", True) is not False
        self._every_ms = max(1, min(1000, self._timeout_ms // 10))
        self._plan = plan
        self._crew = crew
        self._transport = transport
        self._next_ms = now_ms + self._every_ms
        self._rotated_ms = now_ms
        topology = plan.topology.components
        self._told = [task for task, component in plan.component_by_task.items()
                      if component not in topology or topology[component].kind == "spout"]

    def next_due_ms(self) -> int | None:
        """When to look again; None while nothing is open."""
        is_open = any(len(s.pending) for s in self._crew.spouts.values()) or any(len(a.ledger) for a in self._crew.ackers.values())
        return self._next_ms if self._is_on and is_open else None

    def check(self, now_ms: int) -> None:
        """Fail what is too old, and rotate ledgers."""
        if not self._is_on or now_ms < self._next_ms:
            return
        self._next_ms = now_ms + self._every_ms
        late = [s for s in self._crew.spouts.values()
                if s.pending.oldest_emit_ms is not None and s.pending.oldest_emit_ms <= now_ms - self._timeout_ms]
        must_rotate = self._crew.ackers and now_ms - self._rotated_ms >= self._timeout_ms
        if not late and not must_rotate:
            return
        low_ms = self._low_watermark_ms()
        for spout in late:
            spout.failed += len(spout.pending.expire(now_ms, self._timeout_ms, low_ms))
        # what falls out of the last bucket was put two timeouts ago or more
        if must_rotate and (low_ms is None or low_ms > now_ms - 2 * self._timeout_ms):
            self._rotated_ms = now_ms
            for acker in self._crew.ackers.values():
                acker.rotate()

    def _low_watermark_ms(self) -> int | None:
        waiting = [self._transport.low_watermark_ms()]
        for data in self._transport.heads(self._told):
            try:
                waiting.append(frames.decode(self._plan.codec, data).oldest_ms)
            except MalformedFrameError:
                continue  # its owner will quarantine it
        return min((low for low in waiting if low is not None), default=None)
