"""Repair of a Redis append-only file that has gaps: zero bytes between two commands.

Redis 7 and newer, and Valkey, open the file that a rewrite begins without O_APPEND (aof.c,
openNewIncrAofForAppend). After a short write on a full disk they cut the half command off with
ftruncate, but their position in the file stays where it was: the next write leaves a gap, and the
file cannot be loaded at the next start ("Bad file format"). Nothing is missing from such a file,
since the server writes again what it has cut off. Left out: redis-check-aof --fix, which drops all
that was written behind the gap.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import BinaryIO

# A count behind its mark: of a command's words, of a word's bytes. No number of 64 bits is longer.
_COUNT = re.compile(rb"[*$](\d{1,19})\r\n")
_LONGEST_COUNT = 22
_AT_ONCE = 1 << 20  # bytes of a gap or of a copy in memory
Span = tuple[int, int]


def close_gaps(path: Path) -> int:
    """Remove the gaps of an append-only file; return how many bytes they had.

    0 when there is no gap, or when something else is wrong before the end: the file is left as it
    is then. OSError when the disk has no room for a copy without the gaps.
    """
    # Read and not mapped: a page of a gap has no place on the disk yet, and touching it in a map
    # of a full tmpfs ends the process (SIGBUS).
    with path.open("rb") as file:
        size = path.stat().st_size
        spans = _spans_of_commands(file, size)
        removed = size - sum(end - begin for begin, end in spans)
        if removed:
            _replace(path, file, spans)
    return removed


def _spans_of_commands(file: BinaryIO, size: int) -> list[Span]:
    """Return the spans between gaps; one over all bytes when a byte other than zero follows a
    command that is no command.
    """
    spans = list[Span]()
    begin = position = 0
    while position < size:
        file.seek(position)
        head = file.readline(_LONGEST_COUNT)
        if head.startswith(b"\0"):
            spans.append((begin, position))
            begin = position = _end_of_gap(file, position)
            # Zeros at the end are no gap: a power cut leaves them where the file system had not
            # written the data yet, so something is missing.
            if position == size:
                return [(0, size)]
        elif (end := _end_of_command(file, position, head, size)) is not None:
            position = end
        else:
            return [(0, size)]
    return [*spans, (begin, size)]


def _end_of_gap(file: BinaryIO, position: int) -> int:
    file.seek(position)
    while read := file.read(_AT_ONCE):
        if rest := read.lstrip(b"\0"):
            return position + len(read) - len(rest)
        position += len(read)
    return position


def _end_of_command(file: BinaryIO, position: int, head: bytes, size: int) -> int | None:
    """Return where a command or annotation ends; the end of the file for a torn one; None when
    neither begins there.
    """
    if head.startswith(b"#"):  # a time, with aof-timestamp-enabled
        file.seek(position)
        file.readline()
        return file.tell()
    if not head.startswith(b"*"):
        return None
    words = _COUNT.fullmatch(head)
    if words is None:
        return size if _is_torn(position, head, size) else None
    position += len(head)
    for _ in range(int(words[1])):
        if position >= size:
            return size
        file.seek(position)
        head = file.readline(_LONGEST_COUNT)
        length = _COUNT.fullmatch(head) if head.startswith(b"$") else None
        if length is None:
            return size if head.startswith(b"$") and _is_torn(position, head, size) else None
        position += len(head) + int(length[1]) + len(b"\r\n")
    return min(position, size)


def _is_torn(position: int, head: bytes, size: int) -> bool:
    """Return whether the file ends within a count: such an end is the server's to cut off
    (aof-load-truncated).
    """
    return position + len(head) == size and not head.endswith(b"\n")


def _replace(path: Path, file: BinaryIO, spans: list[Span]) -> None:
    """Write the spans to a file next to it and put that in its place: a crash leaves the old file or
    the new one.
    """
    written = path.with_name(f"{path.name}.whole")
    try:
        with written.open("wb") as copy:
            for begin, end in spans:
                file.seek(begin)
                for start in range(begin, end, _AT_ONCE):
                    copy.write(file.read(min(end - start, _AT_ONCE)))
            copy.flush()
            os.fsync(copy.fileno())
        shutil.copymode(path, written)
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)
