"""Stacks of a worker process: samples of all its threads, counted by stack, while a client looks.

A thread next to the loop takes the samples with `sys._current_frames`, and the loop publishes their
counts once a second. A stack has the thread's name and its calls, the outermost first; besides the
samples it has the CPU time that the thread has used (Linux), by which work and waiting are
distinguished.

Law: nothing runs without an open tap, and no value of a variable leaves the process: names of
functions, files, components and lines only. Left out: py-spy, which sees C frames and needs no help of the
process, but the right to trace it: that is root's, or a setting of the kernel's and the
container's, on every host (docs/dependencies.md). A sample is taken when the sampling thread gets
Python's lock, so a call of C code that holds it is seen at its end, in the Python line that made
it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType

from sparkstorm.common.model.values.tagged import to_json
from sparkstorm.data_plane.executor.user_traceback import busy_in
from sparkstorm.data_plane.transport.keys import stacks_name

# Fifty a second: some 0.1 ms each, half a percent of a core. Half as often a client waits twice as
# long for the same picture; twice as often shows nothing that a second more does not.
PERIOD_S = 0.02
_DEEPEST = 100
_MOST_NAME = 160
_MOST_STACKS = 400  # in one publication; the rarer ones become one of the name OTHER
OTHER = "(other stacks)"
Stack = tuple[str, tuple[str, ...], str]
"""Name of the thread, its calls, outermost first, and the component, task and line of user code."""


class StackTap:
    """The tap of a worker's stacks.

    `run_in_thread` runs a function on its own thread; without it, as in a simulation, each look
    takes one sample.
    """

    def __init__(
        self,
        owner: str,
        now_ms: Callable[[], int],
        run_in_thread: Callable[[Callable[[], None]], None] | None = None,
        frames: Callable[[], Mapping[int, FrameType]] = sys._current_frames,
    ) -> None:
        self._name = stacks_name(owner)
        self.names: Collection[str] = [self._name]
        self._now_ms = now_ms
        self._run_in_thread = run_in_thread
        self._frames = frames
        self._lock = threading.Lock()
        self._is_open = self._is_running = False
        self._count = 0
        self._found: dict[Stack, list[int]] = {}  # samples, microseconds of CPU
        self._cpu_ns: dict[int, int] = {}

    def follow(self, names: Collection[str]) -> None:
        """Sample while the tap is open."""
        self._is_open = bool(names)
        if self._is_open and self._run_in_thread is None:
            self.sample()
        elif self._is_open and not self._is_running and self._run_in_thread is not None:
            self._is_running = True
            self._run_in_thread(self._run)

    def take(self) -> Mapping[str, Sequence[bytes]]:
        """Return the counts since the last call."""
        with self._lock:
            taken = self._found
            count = self._count
            self._found = {}
            self._count = 0
        if not count:
            return {}
        most = sorted(taken.items(), key=lambda item: -item[1][0])
        rest = most[_MOST_STACKS:]
        stacks = [
            [thread, list(calls), *figures, user]
            for (thread, calls, user), figures in most[:_MOST_STACKS]
        ]
        if rest:
            sums = (sum(figures[n] for _, figures in rest) for n in (0, 1))
            stacks.append([OTHER, [], *sums, ""])
        record = {
            "task": 0,
            "time_ms": self._now_ms(),
            "values": {"count": count, "stacks": stacks},
        }
        return {self._name: [to_json(record).encode()]}

    def sample(self) -> None:
        """Count the stack of every thread but this one."""
        threads = {thread.ident: thread for thread in threading.enumerate()}
        own = threading.get_ident() if self._run_in_thread is not None else 0
        with self._lock:
            self._count += 1
            for ident, frame in self._frames().items():
                if ident == own:
                    continue
                thread = threads.get(ident)
                name = shown_name(thread.name if thread else str(ident))
                figures = self._found.setdefault((name, calls_of(frame), user_of(frame)), [0, 0])
                figures[0] += 1
                figures[1] += self._cpu_us(ident, thread.native_id if thread else None)

    def _run(self) -> None:
        while self._is_open:
            time.sleep(PERIOD_S)
            self.sample()
        self._cpu_ns.clear()
        self._is_running = False

    def _cpu_us(self, ident: int, native_id: int | None) -> int:
        """Return the microseconds of CPU that a thread has used since its last sample; 0 where the
        system does not have it.
        """
        try:
            now_ns = int(
                Path(f"/proc/self/task/{native_id}/schedstat")
                .read_text(encoding="ascii")
                .split()[0]
            )
        except (OSError, ValueError, IndexError):
            return 0
        before_ns = self._cpu_ns.get(ident, now_ns)
        self._cpu_ns[ident] = now_ns
        return max(0, now_ns - before_ns) // 1000


def calls_of(frame: FrameType | None) -> tuple[str, ...]:
    """Return the calls of a stack, outermost first: function and file, of the innermost one also
    the line.
    """
    calls: list[str] = []
    while frame is not None and len(calls) < _DEEPEST:
        code = frame.f_code
        file = "/".join(Path(code.co_filename).parts[-2:])
        line = f":{frame.f_lineno}" if not calls else ""
        calls.append(shown_name(f"{getattr(code, 'co_qualname', code.co_name)} ({file}{line})"))
        frame = frame.f_back
    return tuple(reversed(calls))


def user_of(frame: FrameType) -> str:
    """Return the component, task and line of user code that a stack is inside of; empty where it is
    inside of none.
    """
    busy = busy_in(frame)
    return shown_name(f"{busy.component}#{busy.task}{busy.place}") if busy and busy.place else ""


def shown_name(name: str) -> str:
    """Return a name that can be kept: short, and UTF-8."""
    return name[:_MOST_NAME].encode(errors="backslashreplace").decode()
