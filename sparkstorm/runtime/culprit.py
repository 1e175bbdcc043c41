"""Owns finding the line of a user's code that an error came from: what a log without tracebacks must say."""

from __future__ import annotations

from pathlib import Path
from traceback import walk_tb

_OURS = str(Path(__file__).parents[1])


def place_of(error: BaseException) -> str:
    """` (parse.py, line 7)`, in the file where user code was entered, as deep as it went there; empty when it never was.

    The deepest frame of all would name a line of some library that was called with something unfit.
    """
    theirs = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)
              if not frame.f_code.co_filename.startswith(_OURS)]
    if not theirs:
        return ""
    file = theirs[0][0]
    line = next(line for name, line in reversed(theirs) if name == file)
    return f" ({Path(file).name}, line {line})"
