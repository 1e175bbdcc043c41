"""Lines of a user's code that an error came from, or that a worker hangs in, for a log without
tracebacks.

Law: each error of user code is named by a line of the user's, in one sentence. Left out: the whole
traceback in each message: most of its lines are ours; it is in the failure's own record
(docs/failures.md).
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import NamedTuple

from sparkstorm.common.errors import (
    InvalidConfigError,
    InvalidTopologyError,
    SparkStormError,
    WorkerFailedError,
)
from sparkstorm.common.model.failure import MAX_TEXT, MAX_TRACEBACK, Failure, FailureKind

USER_ERRORS = (Exception, SystemExit, CancelledError, GeneratorExit)
"""Errors that fail an input when user code raises them; an interrupt of the process is none, nor an
outcome of a test.

A handler passes them to `failure_of` or `raise_out_of_memory`: MemoryError ends the worker.
"""
_OURS = str(Path(__file__).parents[2]) + os.sep


class Busy(NamedTuple):
    """Task whose user code runs, and ` (file, line N: source)` of that code, empty when unknown."""

    component: str
    task: int
    place: str


def package_of(frame: FrameType) -> str:
    """Return the package of ours whose code a frame runs (`data_plane`), empty for code of others."""
    file = frame.f_code.co_filename
    return file.removeprefix(_OURS).split(os.sep)[0] if file.startswith(_OURS) else ""


def place_of(error: BaseException) -> str:
    """` (parse.py, line 7)`, in the file where user code was entered, as deep as it went there;
    empty when it never was.

    The deepest frame of all would name a line of some library that was called with something unfit.
    """
    theirs = [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(_raised(error).__traceback__)
        if not frame.f_code.co_filename.startswith(_OURS)
    ]
    if not theirs:
        return ""
    file, line = _entered(theirs)
    return f" ({Path(file).name}, line {line})"


def _raised(error: BaseException) -> BaseException:
    """Return the StopIteration that Python replaced when it left a generator: the replacement has
    no frame of user code.
    """
    cause = error.__cause__
    return (
        cause
        if isinstance(error, RuntimeError) and isinstance(cause, StopIteration | StopAsyncIteration)
        else error
    )


def busy_in(frame: FrameType) -> Busy | None:
    """The task whose user code a stack is inside of; None when it is in none's. The place is chosen
    as in `place_of`.
    """
    owner: tuple[str, int] | None = None
    theirs: list[tuple[str, int]] = []
    for stack_frame, line in reversed(list(walk_stack(frame))):
        file = stack_frame.f_code.co_filename
        if not file.startswith(_OURS):
            theirs += [(file, line)] if owner is not None else []
        elif not theirs:
            # Timers and windows are run by a service for all tasks, which gets one of them.
            for holder in map(stack_frame.f_locals.get, ("self", "bolt")):
                component = getattr(holder, "component", None)
                task = getattr(holder, "task", None)
                if isinstance(component, str) and isinstance(task, int):
                    owner = component, task
    if owner is None:
        return None
    if not theirs:
        return Busy(*owner, "")
    file, line = _entered(theirs)
    source = linecache.getline(file, line).strip()
    return Busy(*owner, f" ({Path(file).name}, line {line}{': ' if source else ''}{source[:120]})")


def _entered(theirs: list[tuple[str, int]]) -> tuple[str, int]:
    """The file of the outermost frame and the innermost line in it; frames come outermost first."""
    file = theirs[0][0]
    return file, next(line for name, line in reversed(theirs) if name == file)


def describe_error(error: BaseException | str) -> str:
    """An error and the user's line it came from, or the reason of a fail: a text that can be kept,
    short and UTF-8.
    """
    try:
        text = (
            f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
        )
    except Exception as fault:  # user code: the `__str__` of an error may raise
        text = f"{type(error).__name__}: its text raises {type(fault).__name__}"
    if isinstance(error, TypeError) and "unhashable type" in text:
        text += "; a key is text, a number or a tuple of them"
    where = place_of(error) if isinstance(error, BaseException) else ""
    return (text[:MAX_TEXT] + where).encode(errors="backslashreplace").decode()


def failure_of(error: BaseException | str, kind: FailureKind = FailureKind.RAISED) -> Failure:
    """Return the failure that an error of user code is; a text is the reason of a fail or a report.

    MemoryError is raised again, unless user code itself reports it.
    """
    if not isinstance(error, BaseException):
        return Failure(kind, describe_error(error))
    if kind is FailureKind.RAISED:
        raise_out_of_memory(error)
    return Failure(kind, describe_error(error), traceback=traceback_of(error))


@contextmanager
def preparing(component: str, task: int, report: Callable[[Failure], None]) -> Iterator[None]:
    """Report what a task's open, prepare or restore raises; WorkerFailedError for errors that are
    not ours.

    The record stays when the worker's heartbeat goes, as it does once an upgrade is taken back.
    """
    try:
        yield
    except SparkStormError as error:
        # of a migration, or a connector
        if isinstance(error, WorkerFailedError | InvalidTopologyError | InvalidConfigError):
            # A connector's own sentence needs no frames of the libraries below it.
            is_said = isinstance(error, InvalidTopologyError | InvalidConfigError)
            cause = error if is_said else error.__cause__ or error
            report(
                Failure(
                    FailureKind.RAISED,
                    str(error)[:MAX_TEXT],
                    component,
                    task,
                    traceback=traceback_of(cause),
                )
            )
        raise
    except USER_ERRORS as error:
        words = f"could not be prepared: {describe_error(error)}"
        report(Failure(FailureKind.RAISED, words, component, task, traceback=traceback_of(error)))
        raise WorkerFailedError(f"component '{component}' (task {task}) {words}") from error


def raise_out_of_memory(error: BaseException) -> None:
    """Raise a MemoryError again, which ends the worker: the rows that follow would meet the same
    full process.

    The next process goes row by row, so that a row which alone needs too much is found and parked.
    """
    if isinstance(error, MemoryError):
        raise error


def traceback_of(error: BaseException) -> str:
    """Return the frames of an error from the first one of user code on, outermost first; empty when
    there is none.
    """
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in walk_tb(_raised(error).__traceback__)
    ]
    first = next(
        (index for index, (file, _, _) in enumerate(frames) if not file.startswith(_OURS)),
        len(frames),
    )
    text = "".join(_frame_text(*frame) for frame in frames[first:])
    return (
        text
        if len(text) <= MAX_TRACEBACK
        else f"{text[: MAX_TRACEBACK // 2]}...\n{text[-MAX_TRACEBACK // 2 :]}"
    )


@functools.lru_cache(4096)
def _frame_text(file: str, line: int, function: str) -> str:
    source = linecache.getline(file, line).strip()
    text = f'File "{file}", line {line}, in {function}\n' + (
        f"  {source[:200]}\n" if source else ""
    )
    return text.encode(errors="backslashreplace").decode()


def stacks_of_threads(frame: FrameType) -> str:
    """Return the stacks of this thread, from a frame on, and of all others, each with the innermost
    call last.
    """
    own = threading.get_ident()
    half = MAX_TRACEBACK // 2
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, top in sorted(sys._current_frames().items(), key=lambda pair: pair[0] != own):
        stack = walk_stack(frame if ident == own else top)
        calls = reversed(
            [
                (stack_frame.f_code.co_filename, line, stack_frame.f_code.co_name)
                for stack_frame, line in stack
            ]
        )
        text = "".join(_frame_text(*call) for call in calls)
        parts.append(
            f"thread {names.get(ident, ident)}:\n"
            + (text if len(text) <= half else f"...\n{text[-half:]}")
        )
    return "\n".join(parts)[:MAX_TRACEBACK]


def stack_of_thread(ident: int | None) -> tuple[str, str]:
    """Return the place of user code in which a thread is, as in `place_of`, and its frames of user
    code; empty when it is gone.
    """
    top = sys._current_frames().get(ident or 0)
    if top is None:
        return "", ""
    calls = [
        (stack_frame.f_code.co_filename, line, stack_frame.f_code.co_name)
        for stack_frame, line in reversed(list(walk_stack(top)))
    ]
    ours = max((index for index, call in enumerate(calls) if call[0].startswith(_OURS)), default=-1)
    theirs = calls[ours + 1 :]
    if not theirs:
        return "", "".join(_frame_text(*call) for call in calls)[-MAX_TRACEBACK:]
    file, line = _entered([call[:2] for call in theirs])
    return f" ({Path(file).name}, line {line})", "".join(_frame_text(*call) for call in theirs)[
        -MAX_TRACEBACK:
    ]
