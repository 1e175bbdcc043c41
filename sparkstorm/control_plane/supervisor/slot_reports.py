"""Error records of a slot about its worker: how a process ended, how often lately, and why the
worker makes no progress.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from sparkstorm.common.model.failure import MAX_TRACEBACK, Failure, FailureKind
from sparkstorm.common.model.names import numberless
from sparkstorm.common.model.status import JsonValue
from sparkstorm.common.model.worker_messages import ExitCode, Trying
from sparkstorm.common.model.worker_spec import WorkerSpec
from sparkstorm.control_plane.supervisor.slot_sync import DesiredState

# deaths older than this are no loop of restarts: pauses between restarts end at 30 s; as long as
# the time over which a topology is judged
RECENT_MS = 600_000
_MOST_DEATHS = 1_000
# two heartbeats with the same cause: a store that hesitates for a moment is no record
_LASTING_MS = 1_500
# a cause that comes and goes is one record a minute; ten records are kept per component
_REPEAT_MS = 60_000
_FRAME = re.compile(r'  File "([^"]+)", line (\d+) in ')
CRASHES = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL))
"""Signals after which a worker's log ends with the report of faulthandler."""
_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "<frozen",
    str(Path(__file__).parents[2]),
)
_MAX_CHARS = 8_000
_MAX_END_CHARS = 500


@dataclass(frozen=True, slots=True)
class ReportSubject:
    """Worker that a record is about: its topology, its tasks and its code."""

    topology_id: str
    component_by_task: Mapping[int, str]
    tasks: tuple[int, ...]
    code_key: str

    @classmethod
    def of_spec(cls, spec: WorkerSpec) -> ReportSubject:
        """Return the worker that runs."""
        return cls(spec.topology_id, spec.component_by_task, tuple(spec.tasks()), spec.code_key)

    @classmethod
    def of_wish(cls, wish: DesiredState) -> ReportSubject:
        """Return the worker that is to run."""
        part = wish.assignment
        tasks = tuple(task for placed in part.executors for task in placed.executor.tasks)
        return cls(part.topology_id, wish.component_by_task, tasks, part.code_key)


class RecentDeaths:
    """Times of the deaths of one slot's workers under one assignment."""

    def __init__(self) -> None:
        self._times_ms: deque[int] = deque(maxlen=_MOST_DEATHS)

    def note(self, now_ms: int) -> None:
        """Count a death."""
        self._times_ms.append(now_ms)

    def count(self, now_ms: int) -> int:
        """Return the number of deaths within RECENT_MS."""
        return sum(now_ms - death_ms < RECENT_MS for death_ms in self._times_ms)

    @property
    def last_ms(self) -> int:
        """Return the time of the last death; 0 before the first."""
        return self._times_ms[-1] if self._times_ms else 0


class Complaints:
    """Sentences that were reported lately: the same one, with any numbers, is reported once in
    _REPEAT_MS.
    """

    def __init__(self) -> None:
        self._said_ms: dict[str, int] = {}
        self._since_ms: dict[str, int] = {}

    def is_new(self, sentence: str, now_ms: int) -> bool:
        """Return whether to report it now; it then counts as reported."""
        kind = numberless(sentence)
        self._said_ms = {
            said: at_ms for said, at_ms in self._said_ms.items() if now_ms - at_ms < _REPEAT_MS
        }
        return self._said_ms.setdefault(kind, now_ms) == now_ms

    def lasting(self, causes: Iterable[str], now_ms: int) -> list[str]:
        """Return the causes of this heartbeat that were in those before for _LASTING_MS, each to be
        reported now.
        """
        by_kind = {numberless(cause): cause for cause in causes}
        self._since_ms = {kind: self._since_ms.get(kind, now_ms) for kind in by_kind}
        lasting = [
            cause for kind, cause in by_kind.items() if now_ms - self._since_ms[kind] >= _LASTING_MS
        ]
        return [cause for cause in lasting if self.is_new(cause, now_ms)]


def cause_of_end(exit_code: int, has_run_out_of_memory: bool = False) -> str:
    """Return how a process ended that has reported nothing itself; a negative exit code is the
    number of a signal.
    """
    if exit_code == -signal.SIGKILL:
        by = (
            "the kernel killed it: out of memory"
            if has_run_out_of_memory
            else "sent by an operator, or the kernel short of memory"
        )
        return f"{_signal_text(exit_code)}; {by}"
    if exit_code < 0:
        return _signal_text(exit_code)
    named = {code.value: code.name for code in ExitCode}
    return f"exit status {exit_code}" + (f" ({named[exit_code]})" if exit_code in named else "")


def crash_place(log: Iterable[str]) -> str:
    """Return ` (file, line N)` of the innermost frame of user code in a crash report; empty when
    there is none.
    """
    is_crash = False
    for line in log:
        is_crash |= line.startswith("Fatal Python error")
        frame = _FRAME.match(line) if is_crash else None
        if frame is not None and not any(library in frame[1] for library in _LIBRARIES):
            return f" ({PurePath(frame[1]).name}, line {frame[2]})"
    return ""


def _signal_text(exit_code: int) -> str:
    try:
        return f"killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-exit_code}"


def row_text(trying: Trying | None, component: str) -> str:
    """Return a clause on the row that was tried; empty when none was announced."""
    if trying is None:
        return ""
    return f"; it was at row {trying.row} of entry {trying.entry} for '{component}'#{trying.task}"


def _is_ours(about: ReportSubject, task: int) -> bool:
    return about.component_by_task.get(task, "").startswith("__")


class SlotReports:
    """Writer of a slot's own error records; `report` takes a topology's id and a record."""

    def __init__(self, host: str, worker: str, report: Callable[[str, Failure], None]) -> None:
        self._host = host
        self._worker = worker
        self._report = report
        self._complaints = Complaints()
        self.begin()

    def begin(self) -> None:
        """Count deaths anew, for another assignment."""
        self._deaths, self._recent, self._last_end, self._last_task = 0, RecentDeaths(), "", 0

    def figures(self, now_ms: int) -> dict[str, JsonValue]:
        """Return the counts for the heartbeat: `deaths` under this assignment, and those of the
        last minutes.
        """
        recent = {
            "recent_deaths": self._recent.count(now_ms),
            "last_death_ms": self._recent.last_ms,
            "last_death_task": self._last_task,
        }
        return {"deaths": self._deaths, "last_end": self._last_end, **recent}

    def note_death(self, words: str, now_ms: int, trying: Trying | None = None) -> None:
        """Count a death that was not ordered, with the input that was tried, if one was announced.

        A later death without one keeps the task: between two that an input causes, a worker may die
        before it has announced any.
        """
        self._deaths += 1
        self._recent.note(now_ms)
        self._last_end = words[:_MAX_END_CHARS]
        self._last_task = trying.task if trying is not None else self._last_task

    def end(
        self,
        about: ReportSubject,
        words: str,
        started: bool,
        trying: Trying | None,
        log: list[str],
        now_ms: int,
    ) -> None:
        """Record the end of a worker process, with the row that was tried, if one was announced."""
        task = trying.task if trying is not None else 0
        ended = (
            "the worker process died" if started else "the worker process ended before it was ready"
        )
        text = f"{ended}: {words}{row_text(trying, about.component_by_task.get(task, ''))}"
        self._write(about, text, now_ms, task, "\n".join(log))

    def standstill(self, about: ReportSubject, blocked: JsonValue, now_ms: int) -> None:
        """Record each cause in the worker's heartbeats for which it does nothing, once it has
        lasted.
        """
        causes = [str(cause) for cause in blocked] if isinstance(blocked, list) else []
        for cause in self._complaints.lasting(causes, now_ms):
            self._write(about, f"work stands still: {cause}", now_ms)

    def problem(self, about: ReportSubject, text: str, now_ms: int) -> None:
        """Record a problem of this host, unless it was recorded lately."""
        if self._complaints.is_new(text, now_ms):
            self._write(about, text, now_ms)

    def _write(
        self, about: ReportSubject, text: str, now_ms: int, task: int = 0, log: str = ""
    ) -> None:
        """Record an error under the component of a task, or of the worker's first one that is the
        user's.
        """
        if task not in about.component_by_task:
            # ackers have the lowest numbers, and no user looks for an error there
            task = min(about.tasks, key=lambda task: (_is_ours(about, task), task), default=0)
        if component := about.component_by_task.get(task, ""):
            origin = (
                component,
                task,
                self._host,
                self._worker,
                now_ms,
                log[-MAX_TRACEBACK:],
                about.code_key,
            )
            self._report(about.topology_id, Failure(FailureKind.SYSTEM, text[:_MAX_CHARS], *origin))
