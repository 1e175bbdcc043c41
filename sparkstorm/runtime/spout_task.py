"""Owns one spout task: asks user code for tuples, remembers the tracked ones, and tells it what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkstorm.acking.pending import Pending
from sparkstorm.api.components import ReplayableSpout, Spout
from sparkstorm.errors import WorkerFailedError
from sparkstorm.runtime.bolt_task import ReportError
from sparkstorm.runtime.epoch import Epoch, shown
from sparkstorm.runtime.inbox import Inbox
from sparkstorm.runtime.output import Emitter

_FAILURES_IN_A_ROW = 10
_LONGEST_BACK_OFF_MS = 1000


class SpoutCollector:
    """SpoutOutputCollector: every tracked emission is a new root."""

    __slots__ = ("_emitter", "_new_root", "_report", "_task", "born", "immediate")

    def __init__(self, emitter: Emitter, task: int, new_root: Callable[[], int] | None, report: ReportError) -> None:
        self._emitter = emitter
        self._task = task
        self._new_root = new_root  # None: nothing is tracked
        self._report = report
        self.born: list[tuple[int, Any]] = []
        self.immediate: list[Any] = []  # message ids of untracked emissions: acked at once, as Storm does without ackers

    def emit(self, values: Any, message_id: Any = None, stream: str = "default") -> None:
        """Send values to every subscriber of a stream."""
        self._emitter.roots = root = self._root(message_id)
        self._emitter.emit(values, stream)
        if root:
            self.born.append((root, message_id))

    def emit_direct(self, task: int, values: Any, message_id: Any = None, stream: str = "default") -> None:
        """Send values to one task of a direct stream's subscriber."""
        self._emitter.roots = root = self._root(message_id)
        self._emitter.emit_direct(task, values, stream)
        if root:
            self.born.append((root, message_id))

    def report_error(self, error: BaseException | str) -> None:
        """Record an error without failing anything."""
        self._report(self._emitter.component, self._task, shown(error))

    def _root(self, message_id: Any) -> int:
        if message_id is None:
            return 0
        if self._new_root is None:
            self.immediate.append(message_id)
            return 0
        return self._new_root()


class SpoutTask:
    """One task of a spout: its pending messages, its position and its pace."""

    def __init__(self, task: int, component: str, spout: Spout, emitter: Emitter, collector: SpoutCollector,
                 pending: Pending, inbox: Inbox) -> None:
        self.task = task
        self.component = component
        self.spout = spout
        self.emitter = emitter
        self.collector = collector
        self.pending = pending
        self.inbox = inbox  # verdicts of the ackers
        self.oldest_ms = 0
        self.is_open = False
        self.is_active = False
        self.wait_until_ms = 0
        self.acked = self.failed = 0
        self._idle_ms = 0
        self._failures = 0
        self._position: Any = None
        self._has_moved = False

    @property
    def is_exhausted(self) -> bool:
        """Whether the source has come to its end."""
        return self.is_open and self.spout.is_exhausted()

    def run(self, epoch: Epoch, calls: int, now_ms: int) -> bool:
        """Call next_tuple up to so many times; False when the source had nothing."""
        log, born = self.emitter.log, self.collector.born
        next_tuple, limit = self.spout.next_tuple, min(calls, self.pending.room)
        start = len(log)
        mark = born_mark = 0
        try:
            for _ in range(limit):
                mark, born_mark = len(log), len(born)
                next_tuple()
                if len(log) == mark and len(born) == born_mark:
                    break
            self._failures = 0
        except (Exception, SystemExit) as error:
            self.emitter.roll_back(mark)
            del born[born_mark:]
            self._note_failure(error, now_ms)
        did = len(log) > start or bool(born)
        for root, message_id in born:
            epoch.births[root] = self.task
            self.pending.add(root, message_id, now_ms)
        born.clear()
        epoch.rows += len(log) - start
        self._has_moved |= did
        return did

    def rest(self, now_ms: int, shortest_ms: int, longest_ms: int) -> None:
        """Nothing came: wait a little, longer each time (Storm's progressive wait)."""
        self._idle_ms = min(max(shortest_ms, self._idle_ms * 2), longest_ms)
        self.wait_until_ms = max(self.wait_until_ms, now_ms + self._idle_ms)

    def wake(self) -> None:
        """Something came: ask again at once."""
        self._idle_ms = 0

    def settle(self, acked: list[int], failed: dict[int, str], now_ms: int) -> list[int]:
        """Verdicts of an acker; returns complete latencies in milliseconds."""
        done = self.pending.settle(acked, (), now_ms)
        self.acked += done.acked
        for root, reason in failed.items():
            self.failed += self.pending.settle((), (root,), now_ms, reason).failed
        return done.latencies_ms

    def make_callbacks(self) -> None:
        """Tell user code what the last commit settled."""
        outcomes = self.pending.take_callbacks()
        for outcome in outcomes:
            self._call(self.spout.ack if outcome.acked else self.spout.fail, outcome.message_id)
        self.pending.confirm(outcomes)
        immediate, self.collector.immediate = self.collector.immediate, []
        for message_id in immediate:
            self._call(self.spout.ack, message_id)

    def take_position(self) -> Any:
        """The source's position if it has moved since the last commit, else None."""
        if not self._has_moved or not isinstance(self.spout, ReplayableSpout):
            return None
        self._has_moved = False
        self._position = self.spout.snapshot()
        return self._position

    @property
    def position(self) -> Any:
        """The position as last taken or restored."""
        return self._position

    def extent(self) -> tuple[int, int]:
        """(total, done) as the source tells them, in units of its own; zeros when it does not."""
        total, done = self.spout.extent()
        return int(total), int(done)

    def restore(self, position: Any) -> None:
        """Go on from a stored position."""
        self._position = position
        if isinstance(self.spout, ReplayableSpout):
            self.spout.restore(position)

    def _call(self, callback: Callable[[Any], None], message_id: Any) -> None:
        try:
            callback(message_id)
        except (Exception, SystemExit) as error:
            self.collector.report_error(error)

    def _note_failure(self, error: BaseException, now_ms: int) -> None:
        self._failures += 1
        self.collector.report_error(error)
        if self._failures >= _FAILURES_IN_A_ROW:
            raise WorkerFailedError(
                f"spout '{self.component}' (task {self.task}) raised {self._failures} times in a row: {shown(error)}")
        self.wait_until_ms = now_ms + min(2**self._failures, _LONGEST_BACK_OFF_MS)
