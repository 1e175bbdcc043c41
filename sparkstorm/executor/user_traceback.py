"""Lines of a user's code that an error came from, or that a worker hangs in: what a log without tracebacks must say."""

from __future__ import annotations

import linecache
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import NamedTuple

_OURS = str(Path(__file__).parents[1])


class Busy(NamedTuple):
    """Task whose user code runs, and ` (file, line N: source)` of that code, empty when unknown."""

    component: str
    task: int
    place: str


def place_of(error: BaseException) -> str:
    """` (parse.py, line 7)`, in the file where user code was entered, as deep as it went there; empty when it never was.

    The deepest frame of all would name a line of some library that was called with something unfit.
    """
    theirs = [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_OURS)
    ]
    if not theirs:
        return ""
    file, line = _entered(theirs)
    return f" ({Path(file).name}, line {line})"


def busy_in(frame: FrameType) -> Busy | None:
    """The task whose user code a stack is inside of; None when it is in none's. The place is chosen as in `place_of`."""
    owner: tuple[str, int] | None = None
    theirs: list[tuple[str, int]] = []
    for each, line in reversed(list(walk_stack(frame))):
        file = each.f_code.co_filename
        if not file.startswith(_OURS):
            theirs += [(file, line)] if owner is not None else []
        elif not theirs:
            holder = each.f_locals.get("self")
            component, task = getattr(holder, "component", None), getattr(holder, "task", None)
            owner = (component, task) if isinstance(component, str) and isinstance(task, int) else owner
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
    """An error and the user's line it came from, or the reason of a fail: a text that can be kept, short and UTF-8."""
    try:
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    except Exception as fault:  # user code: an error that cannot say what it is
        text = f"{type(error).__name__} (its text raises {type(fault).__name__})"
    place = place_of(error) if isinstance(error, BaseException) else ""
    return (text[:500] + place).encode(errors="backslashreplace").decode()
