"""Console of a run: lines of text, and one progress line that is rewritten on a terminal and
repeated elsewhere.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from sparkstorm.common.model.names import counted
from sparkstorm.common.model.topology import BAD_STREAM

if TYPE_CHECKING:
    from sparkstorm.client.handle import TopologyProgress

# a terminal that reports fewer columns has a wrong width; half would hide all figures
_NARROWEST = 20
_BAR = 10  # cells of the bar; the double leaves no room for the latencies at 100 columns


class RunConsole:
    """Console of a run, on standard output unless another stream is given; any thread may use
    it.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._lock = threading.RLock()
        self._stream = stream
        self._is_terminal = (stream or sys.stdout).isatty()
        self._is_line_open = False
        self._began = self._last = time.monotonic()
        self._first_executed: int | None = None
        self._first_done = self._last_executed = 0
        self._line_length = 0

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
            self._began = now
            self._first_executed = progress.executed
            self._last_executed = progress.executed
            self._first_done = progress.done
        # fewer than before: the store has lost its tail, and what was lost is executed again
        rate = max(0, progress.executed - self._last_executed) / max(now - self._last, 1e-9)
        self._last = now
        self._last_executed = progress.executed
        with self._lock:
            self._is_line_open = self._is_terminal
            if not self._is_terminal:
                print(progress_text(progress, rate), file=self._stream, flush=True)
                return
            # The last column stays free: after a character in it some terminals begin a new line.
            width = max(_NARROWEST, shutil.get_terminal_size().columns - 1)
            text = progress_text(progress, rate, width, self._left_s(progress, now))
            print(
                f"\r{text:<{min(self._line_length, width)}}", end="", file=self._stream, flush=True
            )
            self._line_length = len(text)

    def _left_s(self, progress: TopologyProgress, now: float) -> float | None:
        """Return how long the rest of a source of known extent takes at the speed since this
        start.
        """
        done = progress.done - self._first_done
        took = now - self._began
        return (
            (progress.total - progress.done) * took / done if progress.total and done > 0 else None
        )

    def total(self, progress: TopologyProgress) -> None:
        """The totals of the run; speed is of this start alone."""
        took = time.monotonic() - self._began
        speed = max(0, progress.executed - (self._first_executed or 0)) / max(took, 1e-9)
        self.say(
            f"{counted(progress.executed, 'tuple')} executed in {took:.1f} s ({speed:,.0f}/s), "
            f"{counted(progress.acked, 'tree')} acked, {progress.failed:,} failed, "
            f"{progress.parked:,} parked{_late(progress, ', {} late')}{latency_text(progress)}"
        )
        for line in [
            *bad_lines(progress.bad),
            *late_lines(progress.late, progress.behind),
            *held_lines(progress.held),
        ]:
            self.say(line)


def progress_text(
    progress: TopologyProgress, rate: float, width: int | None = None, left_s: float | None = None
) -> str:
    """done/total, tuples/s, pending, acked, failed, complete latency; within `width`, of a terminal,
    with a bar, and the least important are left out.
    """
    bar = share = time_left = ""
    if progress.total:
        percent = 100 * progress.done / progress.total
        share = f"{percent:5.1f} % of {_amount(progress.total)}"
        done = min(_BAR, int(_BAR * percent / 100))
        bar = "" if width is None else f"[{'#' * done}{'.' * (_BAR - done)}]"
        time_left = "" if left_s is None else f"{_clock(left_s)} left"
    bad = sum(progress.bad.values())
    latency = latency_text(progress).strip()
    speed = f"{rate:>9,.0f} tuples/s" if width is None else f"{rate:,.0f} tuples/s"
    parts = {  # by order of place; the number decides which go first where there is no room
        bar: 3.5,
        share: 9,
        time_left: 4,
        speed: 8,
        f"pending {progress.pending:,}": 3,
        f"acked {progress.acked:,}": 1,
        f"failed {progress.failed:,}": 6 if progress.failed else 2,
        f"parked {progress.parked:,}" if progress.parked else "": 6,
        f"bad {bad:,}" if bad else "": 5,
        _late(progress, "late {}"): 5,
        latency: 7,
    }
    parts.pop("", None)
    while width is not None and len(parts) > 1 and len("  ".join(parts)) > width:
        del parts[min(parts, key=lambda part: parts[part])]
    return "  ".join(parts)[:width]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
    )


def bad_lines(bad: Mapping[str, int]) -> list[str]:
    """Return a sentence for each component that sent records to its stream `bad`."""
    return [
        f"{counted(count, 'record')} went to the stream {BAD_STREAM} of {component}"
        for component, count in sorted(bad.items())
    ]


_TOO_LATE = (
    "too late for its windows, behind newer ones of their sender by more than lag and allowed lateness; read the source in "
    "the order of times (time= of Kafka, files and Redis streams), give the bolts before the window one task each, or raise the lag"
)


def late_lines(late: Mapping[str, Sequence[int]], behind: Mapping[str, str]) -> list[str]:
    """Return a sentence for each component with tuples that came too late for its windows: how many
    of all, a remedy, and which task sends them.
    """
    return [
        f"component '{component}': {count:,} of {counted(executed, 'tuple')} ({100 * count / max(executed, 1):.1f} %) "
        f"came {_TOO_LATE}{f'; {sender}' if (sender := behind.get(component)) else ''}"
        for component, (count, executed) in sorted(late.items())
    ]


def first_late_line(component: str) -> str:
    """Return a sentence for the first late tuples of a component, whose number still grows."""
    return f"component '{component}': tuples come {_TOO_LATE}; the totals have their number"


def held_lines(held: Mapping[str, int]) -> list[str]:
    """Return a sentence for each component that holds inputs."""
    return [
        f"component '{component}' holds {counted(count, 'input')} that it has neither acked nor failed"
        for component, count in sorted(held.items())
    ]


def _late(progress: TopologyProgress, form: str) -> str:
    return (
        form.format(f"{sum(late for late, _ in progress.late.values()):,}") if progress.late else ""
    )


def latency_text(progress: TopologyProgress) -> str:
    """Complete latencies, when there are any."""
    if progress.p50_ms is None or progress.p99_ms is None:
        return ""
    return f"  p50 {progress.p50_ms:,.0f} ms  p99 {progress.p99_ms:,.0f} ms"


def _amount(total: int) -> str:
    """A source's extent; it is in bytes for files, in the spout's own unit otherwise."""
    for limit, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if total >= limit:
            return f"{total / limit:.1f} {unit}"
    return str(total)


def is_wanted(question: str = "carry it out?") -> bool:
    """Ask on the terminal; False without a terminal."""
    if not sys.stdin.isatty():
        return False
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
