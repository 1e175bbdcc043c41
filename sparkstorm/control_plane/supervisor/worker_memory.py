"""Memory and CPU of a worker process and of its host as a slot measures them, and the watch over
the memory limit.

The watch is PURE: figures in, sentences out. It warns once from 80 % of the limit on, with the
growth, and asks for a restart at the limit.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT = "worker.memory.limit.mb"
_WARN_SHARE = 0.8
_WINDOW_MS = 120_000
_LEAST_MS = 10_000  # before that a growth per minute would be a guess
_MB = 1024 * 1024
_HAS_AFFINITY = hasattr(os, "sched_getaffinity")  # macOS has none


@dataclass(frozen=True, slots=True)
class Usage:
    """Resident memory, and processor time since the start, of one process."""

    rss_bytes: int
    cpu_ms: int


def usage_of(pid: int) -> Usage | None:
    """Return what a process uses, from /proc; None where there is none, or when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        fields = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
        ticks = int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
    return Usage(pages * os.sysconf("SC_PAGE_SIZE"), ticks * 1000 // os.sysconf("SC_CLK_TCK"))


class HostMeter:
    """Processors that this process may use, and the share of their time that the hypervisor gave to
    others since the last reading.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._before: list[int] = []

    def read(self) -> tuple[float, float]:
        """Return the number of cores and the share; a share that is not known is 0."""
        cores = float(len(os.sched_getaffinity(0)) if _HAS_AFFINITY else os.cpu_count() or 0)
        try:
            words = self._stat.read_text(encoding="ascii").split("\n", 1)[0].split()
            # user nice system idle iowait irq softirq steal
            times = [int(word) for word in words[1:9]]
        except (OSError, ValueError):
            return cores, 0.0
        before, self._before = self._before, times
        passed = [new - old for new, old in zip(times, before, strict=False)]
        total = sum(passed)
        return cores, max(0.0, passed[7] / total) if len(passed) == 8 and total > 0 else 0.0


def oom_kills(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes of this process's memory cgroup the kernel has killed for lack of
    memory; 0 when unknown.

    Version 2 counts in memory.events, version 1 in memory.oom_control. In a container the cgroup's
    path may be that of the host, and its files at the root.
    """
    try:
        rows = [line.split(":", 2) for line in proc.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return 0
    for _, kinds, path in (row for row in rows if len(row) == 3):
        if kinds == "" or "memory" in kinds.split(","):
            folder, file = (
                (root, "memory.events") if kinds == "" else (root / "memory", "memory.oom_control")
            )
            for candidate in (folder / path.lstrip("/") / file, folder / file):
                if (count := _counted(candidate, "oom_kill")) is not None:
                    return count
    return 0


def _counted(file: Path, name: str) -> int | None:
    """Return the number behind a name in a file of lines "name number"; None when it is not
    there.
    """
    try:
        counts = dict(line.split() for line in file.read_text(encoding="ascii").splitlines())
        return int(counts[name])
    except (OSError, ValueError, KeyError):
        return None


class MemoryWatch:
    """Watch over one worker process; `limit_mb` None means that nothing is enforced."""

    def __init__(self, limit_mb: float | None) -> None:
        self._limit_mb = limit_mb
        self._samples: deque[tuple[int, Usage]] = deque()
        self._has_warned = False
        self.is_over = False

    def note(self, now_ms: int, usage: Usage) -> None:
        """Take a sample."""
        self._samples.append((now_ms, usage))
        while now_ms - self._samples[0][0] > _WINDOW_MS:
            self._samples.popleft()

    def figures(self) -> dict[str, int]:
        """Return memory in MiB, its growth in MiB a minute, and CPU in percent of one core, over
        the last two minutes.
        """
        if not self._samples:
            return {}
        (first_ms, first), (last_ms, last) = self._samples[0], self._samples[-1]
        took_ms = max(1, last_ms - first_ms)
        grown_mb = (last.rss_bytes - first.rss_bytes) // _MB
        return {
            "memory_mb": last.rss_bytes // _MB,
            "memory_growth_mb_per_minute": grown_mb * 60_000 // took_ms
            if took_ms >= _LEAST_MS
            else 0,
            "cpu_percent": (last.cpu_ms - first.cpu_ms) * 100 // took_ms,
        }

    def complaint(self, keeps: Sequence[str]) -> str:
        """Return a sentence when the limit is near for the first time, or reached (`is_over`);
        empty otherwise.

        `keeps`: the largest of what the worker's tasks keep, as its heartbeat names it.
        """
        if self._limit_mb is None or not self._samples or self.is_over:
            return ""
        figures = self.figures()
        used = figures["memory_mb"]
        growth = figures["memory_growth_mb_per_minute"]
        keeping = f"; its tasks keep: {', '.join(keeps)}" if keeps else ""
        if used >= self._limit_mb:
            self.is_over = True
            return (
                f"restarted: it uses {used:,} MiB, and {LIMIT} is {self._limit_mb:,.0f}{keeping}. "
                "Raise the limit, spread its executors over more workers, or remedy the leak"
            )
        if used < _WARN_SHARE * self._limit_mb or self._has_warned:
            return ""
        self._has_warned = True
        grows = f", growing by {growth:,} MiB a minute" if growth > 0 else ""
        return f"it uses {used:,} MiB{grows}, and is restarted at {self._limit_mb:,.0f} ({LIMIT}){keeping}"
