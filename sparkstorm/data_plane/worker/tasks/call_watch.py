"""Watch over calls of user code: bolts that wait inside the worker's loop, and threads that are
stuck in one call.

Law: it names, and ends nothing: a call may be slow for good reasons, and only the slot knows
whether the process gets on. Waiting for a CPU is not waiting (Linux counts both). Left out:
limiting a call's time, since Python cannot end a call of another thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.data_plane.executor.runner import ReportError
from sparkstorm.data_plane.executor.user_traceback import stack_of_thread
from sparkstorm.data_plane.worker.tasks.blocking_bolt import ThreadedBolt

RowT = TypeVar("RowT")
FailedT = TypeVar("FailedT")
# A call that takes less is not measured further: reading a thread's times costs some 20 us. Half of
# it measures calls that lose little; with double a bolt whose calls wait 15 ms is not named.
_SLOW_S = 0.01
# Long enough that one slow answer names no bolt. Half of it names a bolt after a burst, double five
# seconds later.
_WINDOW_S = 10.0
# Of the loop's time, waited for nothing: every other task of the worker waits too. With half of it
# bolts are named whose move to a thread would gain a tenth; with double, one that costs every other
# row of the worker's is not.
_SHARE = 0.2
# The advice does not change: once in ten minutes is enough for a reader of the log.
_SILENT_S = 600.0
# A limit is some thirty seconds: half as often it would be noticed a second later, twice as often
# it costs an idle worker steps.
_LOOK_MS = 1000


def busy_s() -> float:
    """Return the seconds that this thread has used or wanted a CPU: on a crowded machine, waiting
    for one is not idling.
    """
    try:
        used_ns, queued_ns, _ = (
            Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
        )
    except (OSError, ValueError):  # no Linux, or a kernel without these figures
        return time.thread_time()
    return (int(used_ns) + int(queued_ns)) / 1e9


class CallWatch:
    """Time of one bolt's calls in the loop: what they wait without wanting the CPU is found and
    reported, with the remedy.
    """

    def __init__(
        self,
        component: str,
        task: int,
        report: ReportError,
        wall: Callable[[], float] = time.monotonic,
        busy: Callable[[], float] = busy_s,
    ) -> None:
        self._component = component
        self._task = task
        self._report = report
        self._wall = wall
        self._busy = busy
        self._is_slow = False
        self._began = self._next_word = wall()
        self._waited = 0.0

    def call(
        self, run: Callable[[Sequence[RowT]], list[FailedT]], tuples: Sequence[RowT]
    ) -> list[FailedT]:
        """Execute tuples and measure it."""
        wall = self._wall()
        # Of the call before: a slow bolt is measured from its second slow call on, a fast one
        # never.
        busy = self._busy() if self._is_slow else 0.0
        failed = run(tuples)
        now = self._wall()
        if self._is_slow:
            self._waited += max(0.0, now - wall - (self._busy() - busy))
        if now - self._began >= _WINDOW_S:
            self._end_window(now)
        self._is_slow = now - wall >= _SLOW_S
        return failed

    def _end_window(self, now: float) -> None:
        span = now - self._began
        waited = self._waited
        self._began = now
        self._waited = 0.0
        if waited < _SHARE * span or now < self._next_word:
            return
        self._next_word = now + _SILENT_S
        text = (
            f"waits inside the worker's loop: {waited:.1f} of the last {span:.0f} s passed in its execute without using the CPU, "
            "and every task of this worker waits with it: declare blocking = True on it, or set topology.executor.threads for it"
        )
        self._report(Failure(FailureKind.SYSTEM, text, self._component, self._task))


class ThreadWatch:
    """Calls of blocking bolts that last longer than a limit: reported once each, with the stack;
    nothing is ended.
    """

    def __init__(
        self, threads: Iterable[tuple[str, int, ThreadedBolt]], limit_ms: int, report: ReportError
    ) -> None:
        self._threads = list(threads)
        self._limit_ms = limit_ms
        self._report = report
        self._told: dict[int, int] = {}  # by task, the call that was reported
        self._next_ms = 0

    def look(self, now_ms: int) -> None:
        """Look, about once a second."""
        if not self._threads or now_ms < self._next_ms:
            return
        self._next_ms = now_ms + _LOOK_MS
        for component, task, bolt in self._threads:
            since_ms = bolt.since_ms
            if (
                since_ms is None
                or now_ms - since_ms < self._limit_ms
                or self._told.get(task) == since_ms
            ):
                continue
            self._told[task] = since_ms
            where, stack = stack_of_thread(bolt.thread_ident)
            text = f"hung: its thread has been inside one call for {(now_ms - since_ms) // 1000} s{where}"
            self._report(Failure(FailureKind.HUNG, text, component, task, traceback=stack))
