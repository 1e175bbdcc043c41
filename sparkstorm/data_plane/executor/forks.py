"""Forks that user code makes: the child ends where user code would return into the engine.

Law: what runs a task is one process. A child that returned, raised or called `sys.exit` would
execute the next rows too, and commit them with the worker's number. Left out: a flag that the loops
look at: each place that calls user code (groupings, hooks, timers) would need a look, and that of
rows would be paid by every row. Children of `multiprocessing` never return, and are left alone.
"""

from __future__ import annotations

import os
import sys
from itertools import takewhile
from traceback import walk_stack
from types import FrameType
from typing import Any

from sparkstorm.data_plane.executor.user_traceback import Busy, busy_in, package_of

_REMEDY = "end it with os._exit, or use multiprocessing or subprocess"
_ENGINE = frozenset({"data_plane", "replay"})
"""Packages that run tasks; a script that the command line runs may fork and go on as its child."""


def _watch_child() -> None:
    """Have a child end once it leaves the user code that has forked it."""
    forking = sys._getframe(1)
    if forking.f_globals.get("__name__", "").startswith("multiprocessing."):
        return
    frames = [frame for frame, _ in walk_stack(forking)]
    theirs = list(takewhile(lambda frame: not package_of(frame), frames))
    if theirs and not _ENGINE.isdisjoint(map(package_of, frames)):
        theirs[-1].f_trace = _End(busy_in(forking))
        # Frames that run already tell their end only while calls are traced.
        sys.settrace(_trace_no_call)


def _trace_no_call(*_: Any) -> None:
    """Trace nothing of a new call."""


class _End:
    """Trace of the frame behind which the engine begins."""

    def __init__(self, busy: Busy | None) -> None:
        self._busy = busy
        self._error: BaseException | None = None

    def __call__(self, _frame: FrameType, event: str, value: Any) -> _End:
        if event == "return":
            self._end()
        # A line that is reached behind an error has caught it.
        self._error = value[1] if event == "exception" else None
        return self

    def _end(self) -> None:
        error = self._error
        did = "has returned from" if error is None else f"has raised {type(error).__name__} in"
        task = f"{self._busy.component}#{self._busy.task}" if self._busy else "a component"
        text = (
            f"ERROR {task}: process {os.getpid()}, a fork that its code has made, {did} it"
            f"{self._busy.place if self._busy else ''} and was ended, or it would go on as a second worker: {_REMEDY}\n"
        )
        # By the descriptor: another thread may have held the stream's lock when this process began.
        os.write(2, text.encode(errors="backslashreplace"))
        code = error.code if isinstance(error, SystemExit) else error
        os._exit(code if isinstance(code, int) else int(code is not None))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch_child)
