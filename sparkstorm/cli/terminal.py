"""Text for the terminal: tables and sentences that fit it, colours of states, and a page that is
shown again in its place.

Only a terminal gets folded lines and colours: output to a file or a pipe is the same for any width
of the window, one row a line, so that `grep` and `awk` find whole cells. `NO_COLOR` (no-color.org)
and `TERM=dumb` leave the colours out.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

_GAP = "  "
# of a folded column: a half would cut most words, the double leaves no room for a second text at 80
_LEAST_WIDTH = 12
_JOINT = re.compile(r"[_./:=,-]+(?=[^_./:=,-])")
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"
_GREEN = "\x1b[32m"
_YELLOW = "\x1b[33m"
_RED = "\x1b[31m"
_PLAIN = "\x1b[0m"
_COLOURS = {
    "ACTIVE": _GREEN,
    "RUNNING": _GREEN,
    "leads": _GREEN,
    "INACTIVE": _YELLOW,
    "REBALANCING": _YELLOW,
    "STARTING": _YELLOW,
    "KILLED": _YELLOW,
    "DEAD": _RED,
    "FAILED": _RED,
    "no heartbeat": _RED,
    "problem": _RED,
}
_COLOURED = re.compile(rf"(?<![\w-])(?:{'|'.join(_COLOURS)})(?![\w-])")


def columns() -> int | None:
    """Return the width of the terminal that stdout is; None when it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def escape_unknown(stream: Any) -> None:
    """Have a stream write characters that its encoding lacks as JSON does, \\uXXXX: names, logs and
    tuples of users may have any.
    """
    # Not backslashreplace: \xe9 would make the output of --json none.
    codecs.register_error("sparkstorm.json", _as_json)
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="sparkstorm.json")


def _as_json(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def show(text: str, stream: TextIO | None = None) -> None:
    """Write a text to stdout, or to another stream; on a terminal its long lines are folded and its
    states coloured.
    """
    stream = stream or sys.stdout
    if stream.isatty():
        text = fitted(text, shutil.get_terminal_size().columns)
        if not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
            text = coloured(text)
    print(text, file=stream, flush=True)


def fitted(text: str, width: int) -> str:
    """Return a text whose lines have `width` columns at most: longer ones are folded, and go on
    below their beginning, two columns further right.
    """
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip(" "))][: width // 2]
        is_long = len(line) > width
        lines += folded(line.strip(), width, indent, f"{indent}  ") if is_long else [line]
    return "\n".join(lines)


def coloured(text: str) -> str:
    """Return a text with its states in colours."""
    return _COLOURED.sub(lambda match: f"{_COLOURS[match[0]]}{match[0]}{_PLAIN}", text)


def table(titles: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None = None) -> str:
    """Return a table as text: numbers right, texts left.

    With a `width` in columns, texts are folded within their cells until a line is no longer than
    that, the widest column first. Where that is not enough, columns go below their row, each in
    lines of its own with its title: texts before numbers, those at the right first.
    """
    columns_left = list(range(len(titles)))
    blocks = _blocks(titles, rows, width)
    while (
        width is not None
        and len(columns_left) > 1
        and max(len(line) for block in blocks for line in block) > width
    ):
        texts = [n for n in columns_left[1:] if not _is_right(rows, n)]
        columns_left.remove((texts or columns_left[1:])[-1])
        blocks = _blocks(
            [titles[n] for n in columns_left],
            [[row[n] for n in columns_left] for row in rows],
            width,
        )
    for block, row in zip(blocks[1:], rows, strict=True):
        for n in sorted({*range(len(titles))} - {*columns_left}):
            if (cell := _cell(row[n])) not in ("-", ""):
                block += folded(f"{titles[n]}: {cell}", width or 0, "  ", "    ")
    return "\n".join(line for block in blocks for line in block)


def folded(text: str, width: int, first: str = "", other: str = "  ") -> list[str]:
    """Return a text in lines of `width` columns at most, the first and the other ones indented."""
    return _Wrapper(width, initial_indent=first, subsequent_indent=other).wrap(text) or [first]


class _Wrapper(textwrap.TextWrapper):
    """Wrapper that breaks between words, and within them only where one is longer than a line:
    behind a joint, such as that of a name's parts, if there is one.
    """

    def _handle_long_word(
        self, reversed_chunks: list[str], cur_line: list[str], cur_len: int, width: int
    ) -> None:
        word = reversed_chunks[-1]
        room = max(1, width - cur_len)
        joints = [match.end() for match in _JOINT.finditer(word) if match.end() <= room]
        if joints:
            cur_line.append(word[: joints[-1]])
            reversed_chunks[-1] = word[joints[-1] :]
        elif cur_line and len(word) > room:
            # The rest of this line is too short for a part: it begins the next one.
            return
        else:
            cur_line.append(word[:room])
            reversed_chunks[-1] = word[room:]


def _blocks(
    titles: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None
) -> list[list[str]]:
    """Return the lines of the titles and of each row."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    is_right = [_is_right(rows, n) for n in range(len(titles))]
    if width is not None:
        widths = _narrowed(widths, is_right, width)
    blocks = []
    for row in [list(titles), *cells]:
        parts = [_folded(cell, size) for cell, size in zip(row, widths, strict=True)]
        count = max(map(len, parts))
        blocks.append(
            [
                _line([part[n] if n < len(part) else "" for part in parts], widths, is_right)
                for n in range(count)
            ]
        )
    return blocks


def _is_right(rows: Sequence[Sequence[Any]], column: int) -> bool:
    return bool(rows) and all(isinstance(row[column], (int, float)) for row in rows)


def _narrowed(widths: Sequence[int], is_right: Sequence[bool], width: int) -> list[int]:
    """Return widths that fit: the widest column of texts loses first."""
    narrowed = list(widths)
    while sum(narrowed) + len(_GAP) * (len(narrowed) - 1) > width:
        texts = [n for n in range(len(narrowed)) if not is_right[n] and narrowed[n] > _LEAST_WIDTH]
        if not texts:
            break
        narrowed[max(texts, key=lambda n: narrowed[n])] -= 1
    return narrowed


def _folded(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    return _Wrapper(width).wrap(cell) or [""]


def _line(parts: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> str:
    placed = (
        part.rjust(size) if right else part.ljust(size)
        for part, size, right in zip(parts, widths, is_right, strict=True)
    )
    return _GAP.join(placed).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@contextmanager
def page() -> Iterator[None]:
    """Gather what is written meanwhile, and show it in place of the page before; without a
    terminal, below it.
    """
    terminal = sys.stdout
    if not terminal.isatty():
        yield
        return
    text = _Page()
    try:
        with redirect_stdout(text):
            yield
    finally:
        terminal.write(_CLEAR + text.getvalue())
        terminal.flush()


class _Page(io.StringIO):
    """Text for a terminal, that is written at once: a page built up line by line would flicker."""

    def isatty(self) -> bool:
        """Return True: what writes here writes for a terminal."""
        return True
