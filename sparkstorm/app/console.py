"""Console of a run: lines of text, and one progress line that is rewritten on a terminal and repeated elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import TextIO

from sparkstorm.client.handle import TopologyProgress
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
            f"{progress.executed:,} tuples executed in {took:.1f} s ({speed:,.0f}/s), {progress.acked:,} trees acked, "
            f"{progress.failed:,} failed, {progress.parked:,} parked{latency_text(progress)}"
        )
        for line in bad_lines(progress.bad):
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
        f"failed {progress.failed:,}{parked}{bad}{latency_text(progress)}"
    )


def bad_lines(bad: Mapping[str, int]) -> list[str]:
    """Return a sentence for each component that sent records to its stream `bad`."""
    return [f"{count:,} records went to the stream {BAD_STREAM} of {component}" for component, count in sorted(bad.items())]


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
