"""Meters of a worker's tasks since its start: execute and process latencies, time spent, waiting
rows, the last error.

Statistics, not counts: they are in heartbeats only and begin afresh with every process. Latencies
are in buckets 9 % wide; the rows of one call of a bolt share its duration evenly. Left out:
committing them with the counts. Two latencies of up to 160 buckets a task would be most of the
progress record, and a percentile need not be exact over restarts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sparkstorm.common.model.failure import Failure
from sparkstorm.common.windowing.watermarks import END, NEVER
from sparkstorm.data_plane.transport.progress import BUCKETS, latency_bucket, percentile_ms
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask

_SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
# The whole text is in the error's own record; heartbeats of 1,500 tasks share one node of
# ZooKeeper.
_ERROR_CHARS = 300


# The buckets of a progress record are of milliseconds: in microseconds its last one is a second,
# which calls of a blocking bolt often exceed. Twice as many reach 12 days.
_LAST_BUCKET = 2 * BUCKETS


class Reporter(Protocol):
    """Reports of a worker to its slot."""

    def trying(self, task: int, entry: str, row: int) -> None:
        """Announce the one input of the next commit: the suspect should the process die now."""

    def passed(self) -> None:
        """Withdraw the announcement: no input is a suspect any more."""

    def error(self, failure: Failure) -> None:
        """Take note that user code raised, or an input was parked."""


class TaskMeter:
    """One task's meter; all durations in microseconds."""

    __slots__ = ("busy_us", "execute", "process", "last_error", "last_error_ms")

    def __init__(self) -> None:
        self.busy_us = 0
        self.execute: dict[int, int] = {}
        self.process: dict[int, int] = {}
        self.last_error = ""
        self.last_error_ms = 0

    def add(self, rows: int, took_us: int, num_kept: int) -> None:
        """Count a call that executed `rows` inputs and left `num_kept` of them for a later ack
        or another try.
        """
        self.busy_us += took_us
        # One look at the clock per call and not per row, which would cost more than most bolts.
        bucket = latency_bucket(took_us // rows, _LAST_BUCKET)
        self.execute[bucket] = self.execute.get(bucket, 0) + rows
        # The other inputs are counted when they are done: their process time is not that of the
        # call.
        if num_kept < rows:
            self.process[bucket] = self.process.get(bucket, 0) + rows - num_kept

    def add_call(self, took_us: int) -> None:
        """Count a call on a blocking bolt's thread, of one input."""
        self.busy_us += took_us
        bucket = latency_bucket(took_us, _LAST_BUCKET)
        self.execute[bucket] = self.execute.get(bucket, 0) + 1

    def add_process(self, took_us: int) -> None:
        """Count an input that is done after more than its first execute."""
        bucket = latency_bucket(took_us, _LAST_BUCKET)
        self.process[bucket] = self.process.get(bucket, 0) + 1


class Meters:
    """Meters by task."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._by_task: dict[int, TaskMeter] = {}

    def of(self, task: int) -> TaskMeter:
        """Return one task's meter."""
        meter = self._by_task.get(task)
        if meter is None:
            meter = self._by_task[task] = TaskMeter()
        return meter

    def note_failure(self, failure: Failure) -> None:
        """Keep it as the last one of its task."""
        meter = self.of(failure.task)
        lines = failure.text.strip().splitlines()
        meter.last_error, meter.last_error_ms = (
            lines[0][:_ERROR_CHARS] if lines else "",
            self._now_ms(),
        )

    def note_done(self, bolt: BoltTask, now_us: int) -> None:
        """Count the inputs of a bolt that were acked after their execute, or done by another
        try.
        """
        meter = self.of(bolt.task)
        for began_us in bolt.held.take_done():
            # Nothing is known of the first execute of an input that was restored.
            if began_us:
                meter.add_process(now_us - began_us)

    def shown(self, tasks: list[int], runners: dict[int, BoltTask | SpoutTask]) -> dict[str, Any]:
        """Return the statistics of some tasks together, for a heartbeat; latencies are absent
        before the first input.
        """
        meters = [self.of(task) for task in tasks]
        now_ms = self._now_ms()
        figures: dict[str, Any] = {
            "uptime_ms": now_ms - self._started_ms,
            "busy_us": sum(meter.busy_us for meter in meters),
        }
        for name in ("execute", "process"):
            merged: dict[int, int] = {}
            for meter in meters:
                for bucket, count in getattr(meter, name).items():
                    merged[bucket] = merged.get(bucket, 0) + count
            if merged:
                figures[f"{name}_us"] = {
                    word: round(percentile_ms(merged, share) or 0, 1)
                    for word, share in _SHARES.items()
                }
        bolts = [runner for task in tasks if isinstance(runner := runners.get(task), BoltTask)]
        if bolts:
            figures["queued"] = sum(_queued(bolt) for bolt in bolts)
            figures["queued_ms"] = max(_waited_ms(bolt, now_ms) for bolt in bolts)
        if marks := [mark for bolt in bolts if (mark := _watermark_ms(bolt)) is not None]:
            figures["watermark_ms"] = min(marks)
        if last := max(
            (meter for meter in meters if meter.last_error),
            key=lambda meter: meter.last_error_ms,
            default=None,
        ):
            figures["last_error"], figures["last_error_ms"] = last.last_error, last.last_error_ms
        return figures


def _watermark_ms(bolt: BoltTask) -> int | None:
    """Event time up to which windows and timers may fire; None without them, before the first
    watermark and after the end of all input.
    """
    if bolt.time is None or bolt.time.timing is None:
        return None
    mark = bolt.watermark_ms
    return None if mark in (NEVER, END) else mark


def _queued(bolt: BoltTask) -> int:
    """Rows that were read or handed over and not executed yet, and inputs that wait for their ack
    or next try.
    """
    read = sum(chunk.total - chunk.done for chunk in bolt.inbox.chunks)
    return read + sum(len(block.rows) for block in bolt.feed.data) + len(bolt.held.by_key)


def _waited_ms(bolt: BoltTask, now_ms: int) -> int:
    """Age of the oldest tree of which a row waits to be executed."""
    births = [chunk.oldest_ms for chunk in bolt.inbox.chunks if chunk.oldest_ms]
    births += [
        block.births.oldest_ms for block in bolt.feed.data if block.rows and block.births.oldest_ms
    ]
    return max(0, now_ms - min(births)) if births else 0
