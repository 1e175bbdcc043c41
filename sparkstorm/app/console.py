"""Console of a run: lines of text, and one progress line that is rewritten on a terminal and repeated elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from sparkstorm.client.handle import TopologyProgress
from sparkstorm.model.names import counted
from sparkstorm.model.topology import BAD_STREAM

_WIDTH = 118


class Console:
    """Console of a run, on standard output unless another stream is given; any thread may use it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._lock = threading.RLock()
        self._stream = stream
        self._is_terminal = (stream or sys.stdout).isatty()
        self._is_line_open = False
        self._began = self._last = time.monotonic()
        self._first_executed: int | None = None
        self._last_executed = 0

    def say(self, text: str) -> None:
        """One line or several, never torn by the progress line."""
        with self._lock:
            if self._is_line_open:
                print(file=self._stream)
                self._is_line_open = False
            print(text, file=self._stream, flush=True)

    def show(self, progress: TopologyProgress) -> None:
        """The progress line."""
        now = time.monotonic()
        if self._first_executed is None:
            self._began, self._first_executed = now, progress.executed
            self._last_executed = progress.executed
        # fewer than before: the store has lost its tail, and what was lost is executed again
        rate = max(0, progress.executed - self._last_executed) / max(now - self._last, 1e-9)
        self._last, self._last_executed = now, progress.executed
        text = progress_text(progress, rate)
        with self._lock:
            self._is_line_open = self._is_terminal
            shown, end = (f"\r{text:<{_WIDTH}}", "") if self._is_terminal else (text, "\n")
            print(shown, end=end, file=self._stream, flush=True)

    def total(self, progress: TopologyProgress) -> None:
        """The totals of the run; speed is of this start alone."""
        took = time.monotonic() - self._began
        speed = max(0, progress.executed - (self._first_executed or 0)) / max(took, 1e-9)
        self.say(
            f"{counted(progress.executed, 'tuple')} executed in {took:.1f} s ({speed:,.0f}/s), "
            f"{counted(progress.acked, 'tree')} acked, {progress.failed:,} failed, "
            f"{progress.parked:,} parked{_late(progress, ', {} late')}{latency_text(progress)}"
        )
        for line in [*bad_lines(progress.bad), *late_lines(progress.late), *held_lines(progress.held)]:
            self.say(line)


def progress_text(progress: TopologyProgress, rate: float) -> str:
    """done/total, tuples/s, pending, acked, failed, complete latency."""
    share = ""
    if progress.total:
        percent = 100 * progress.done / progress.total
        share = f"{percent:5.1f} % of {_amount(progress.total)}  "
    parked = f"  parked {progress.parked:,}" if progress.parked else ""
    bad = f"  bad {sum(progress.bad.values()):,}" if progress.bad else ""
    return (
        f"{share}{rate:>9,.0f} tuples/s  pending {progress.pending:,}  acked {progress.acked:,}  "
        f"failed {progress.failed:,}{parked}{bad}{_late(progress, '  late {}')}{latency_text(progress)}"
    )


def bad_lines(bad: Mapping[str, int]) -> list[str]:
    """Return a sentence for each component that sent records to its stream `bad`."""
    return [
        f"{counted(count, 'record')} went to the stream {BAD_STREAM} of {component}" for component, count in sorted(bad.items())
    ]


def late_lines(late: Mapping[str, Sequence[int]]) -> list[str]:
    """Return a sentence for each component with tuples that came too late for its windows: how many of all, and a remedy."""
    return [
        f"component '{component}': {count:,} of {counted(executed, 'tuple')} ({100 * count / max(executed, 1):.1f} %) "
        "came too late for its "
        "windows, behind newer ones of their sender by more than lag and allowed lateness; read the source in the order of "
        "times (time= of Kafka, files and Redis streams), or raise the lag"
        for component, (count, executed) in sorted(late.items())
    ]


def held_lines(held: Mapping[str, int]) -> list[str]:
    """Return a sentence for each component that holds inputs."""
    return [
        f"component '{component}' holds {counted(count, 'input')} that it has neither acked nor failed"
        for component, count in sorted(held.items())
    ]


def _late(progress: TopologyProgress, form: str) -> str:
    return form.format(f"{sum(late for late, _ in progress.late.values()):,}") if progress.late else ""


def latency_text(progress: TopologyProgress) -> str:
    """Complete latencies, when there are any."""
    if progress.p50_ms is None or progress.p99_ms is None:
        return ""
    return f"  p50 {progress.p50_ms:,.0f} ms  p99 {progress.p99_ms:,.0f} ms"


def _amount(total: int) -> str:
    """A source's extent; it is in bytes for files, in whatever unit the spout chose otherwise."""
    for limit, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if total >= limit:
            return f"{total / limit:.1f} {unit}"
    return str(total)
