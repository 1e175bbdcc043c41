"""FileLines: a replayable spout over the lines of text files."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.components import Conf, ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import InvalidConfigError, show
from sparkstorm.connectors.file_folders import (
    WHOLE,
    FileSplit,
    is_packed,
    line_starts,
    refuse_archive,
    shown,
    split_at,
)
from sparkstorm.connectors.time_order import MOST_OPEN, NO_TIME, MergedInputs, RecordTime, TimeOf

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_OFFSET_BITS = 40  # files of up to a terabyte
_BLOCK_BYTES = 1 << 17
_LINES_PER_CALL = 64


def find_files(paths: Iterable[str | Path], pattern: str = "*") -> list[tuple[str, int]]:
    """(path, bytes) of every file named or found below a named folder, sorted, with absolute paths;
    InvalidConfigError if one is missing.
    """
    size_by_path: dict[str, int] = {}
    for path in map(Path, paths):
        if not os.path.exists(path):  # False for every name that cannot be
            raise InvalidConfigError(f"input {shown(str(path))}: there is no such file or folder")
        files = sorted(p for p in path.rglob(pattern) if p.is_file()) if path.is_dir() else [path]
        size_by_path.update((os.path.abspath(p), p.stat().st_size) for p in files)
    if not size_by_path:
        raise InvalidConfigError(f"no file matches '{pattern}' under {', '.join(map(str, paths))}")
    return sorted(size_by_path.items())


def _sized(files: str | Path | Sequence[tuple[str, int] | str | Path]) -> list[tuple[str, int]]:
    """Return (path, bytes) of each file; of a path alone, as `find_files` does. InvalidConfigError
    for anything else.
    """
    if isinstance(files, str | Path):
        return _plain(find_files([files]))
    sized: list[tuple[str, int]] = []
    for file in files:
        match file:
            case str() | Path():
                sized += find_files([file])
            case (str() as path, int() as size):
                sized.append((os.path.abspath(path), size))
            case _:
                raise InvalidConfigError(
                    f"FileLines: {show(file)} is no path and no (path, bytes) of `find_files`"
                )
    return _plain(sized)


def _plain(files: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the files; InvalidConfigError for one whose name says that it is compressed."""
    for path, _ in files:
        refuse_archive("FileLines", path)
        if is_packed(path):
            raise InvalidConfigError(f"FileLines: {shown(path)} is compressed; Files unpacks it")
    return files


def _checked(read: Mapping[str, int], files: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return bytes read by path; InvalidConfigError for a file that has become shorter."""
    read = {os.path.abspath(path): size for path, size in read.items()}
    for path, size in files:
        if read.get(path, 0) > size:
            raise InvalidConfigError(
                f"input {path}: {read[path]} bytes were read of it, but it has {size} now"
            )
    return read


class FileLines(ReplayableSpout):
    """Spout that emits every line of its files; message id file number * 2**40 + byte offset.

    `files` are paths of files or folders, or what `find_files` returned. Tasks get about the same
    bytes each, and read their files in the order of their names, or of `order(path)`. The files
    must have the same paths wherever the spout runs. Compressed files are refused by their names.
    Bolts of columns get blocks of lines (128 kB), each as one message. `read` gives bytes by file
    that are not to be read again.

    With `time`, a function from a record ({"line": text}) to milliseconds, a task reads its files
    in step by event time. A line on which it raises is reported and stays in its place. Bolts of
    columns then get rows.
    """

    outputs = ("line",)
    _until = WHOLE

    def __init__(
        self,
        files: str | Path | Sequence[tuple[str, int] | str | Path],
        read: Mapping[str, int] | None = None,
        order: Callable[[str], Any] | None = None,
        time: TimeOf | None = None,
    ) -> None:
        self._files = _sized(files)
        self._time = None if time is None else RecordTime("FileLines", time, self.outputs, ())
        self._order = order
        self._read = _checked(read or {}, self._files)

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Take this task's share of the files."""
        self._collector = collector
        self._emits_batches = "default" in context.column_streams
        self._mine = share(self._files, len(context.peers), self._order)[context.task_index]
        self._total = sum(size for _, size in self._mine)
        self._at = 0  # without `time`: the file that is read
        # behind the last line emitted of each
        self._offsets = [self._read.get(path, 0) for path, _ in self._mine]
        self._file: BinaryIO | None = None
        self._parts = (
            [_FilePart(number, path) for number, (path, _) in enumerate(self._mine)]
            if self._time is not None
            else []
        )
        self._merged = MergedInputs(self._read_ahead, _FilePart.close, MOST_OPEN)
        for part in self._parts:
            self._merged.add(part, part.number)
        self._pass_by()

    def next_tuple(self) -> None:
        """Emit one line, or a block of lines; with `time`, some lines."""
        if self._time is not None:
            self._emit_by_time()
            return
        while self._at < len(self._mine):
            offset = self._offsets[self._at]
            if self._file is None:
                self._file = _opened(self._mine[self._at][0], offset)
            message_id = self._at << _OFFSET_BITS | offset
            if self._emits_batches:
                if block := self._file.read(min(_BLOCK_BYTES, self._until - offset)):
                    block += b"" if block.endswith(b"\n") else self._file.readline()
                    self._offsets[self._at] += len(block)
                    self._collector.emit_batch(batch_of_lines(block), message_id)
                    return
            elif line := self._file.readline():
                self._offsets[self._at] += len(line)
                self._collector.emit((_text(line),), message_id)
                return
            self._file.close()
            self._file = None
            self._at += 1
            self._pass_by()

    def is_exhausted(self) -> bool:
        """Return whether every line was emitted."""
        return not self._merged if self._time is not None else self._at >= len(self._mine)

    def extent(self) -> tuple[int, int]:
        """Bytes in all, bytes done."""
        return self._total, sum(
            min(offset, size) for offset, (_, size) in zip(self._offsets, self._mine, strict=True)
        )

    def snapshot(self) -> Any:
        """(file number, byte offset) behind the last line; with `time`, the byte offset in each
        file.
        """
        if self._time is not None:
            return list(self._offsets)
        return [self._at, self._offsets[self._at] if self._at < len(self._mine) else 0]

    def restore(self, position: Any) -> None:
        """Go on behind the last committed line."""
        if self._time is not None:
            self._offsets = list(position)
            return
        self._at, offset = position
        for number, (_, size) in enumerate(self._mine[: self._at]):
            self._offsets[number] = size
        if self._at < len(self._mine):
            self._offsets[self._at] = offset

    def hand_over(self) -> Any:
        """Bytes read by path: what holds for any other list of files and number of tasks."""
        mine = {path: offset for (path, _), offset in zip(self._mine, self._offsets, strict=True)}
        return {path: end for path, end in {**self._read, **mine}.items() if end}

    def take_over(self, handed: Sequence[Any]) -> FileLines:
        """The same files behind what was read of each."""
        read = dict(self._read)
        for read_by_path in handed:
            if not isinstance(read_by_path, dict) or not all(
                type(p) is str and type(n) is int and n >= 0 for p, n in read_by_path.items()
            ):
                raise InvalidConfigError(
                    f"FileLines was handed {read_by_path!r:.80}, which is not bytes read by path"
                )
            for path, size in read_by_path.items():
                read[path] = max(size, read.get(path, 0))
        # Not a call of the class: a subclass may have another constructor.
        spout = copy.copy(self)
        spout._read = _checked(read, self._files)
        return spout

    def splits(self, paths: str, most_bytes: int) -> list[FileSplit]:
        """Return a path's files in the order of reading, larger ones in parts; with `time` all as
        one.
        """
        (files,) = share(_plain(find_files([paths])), 1, self._order)
        if self._time is not None:
            return [FileSplit(tuple(path for path, _ in files), 0, WHOLE, sum(n for _, n in files))]
        parts = []
        for path, size in files:
            with open(path, "rb") as stream:
                parts += split_at(path, size, line_starts(stream, size, most_bytes))
        return parts

    def of_split(self, split: FileSplit) -> FileLines:
        """Return a source of a part's files."""
        spout = copy.copy(self)
        spout._files = _sized(split.paths)
        spout._read = {split.paths[0]: split.start}
        spout._until = split.until
        return spout

    def close(self) -> None:
        """Close what is open."""
        if self._file is not None:
            self._file.close()
        for part in self._parts:
            part.close()

    def _pass_by(self) -> None:
        """Pass by files of which nothing is left."""
        while self._at < len(self._mine) and self._offsets[self._at] >= self._mine[self._at][1]:
            self._at += 1

    def _emit_by_time(self) -> None:
        """Emit some lines of all files in the order of their times."""
        for _ in range(_LINES_PER_CALL):
            if (taken := self._merged.take()) is None:
                return
            part, (text, start, end) = taken
            self._offsets[part.number] = end
            self._collector.emit((text,), part.number << _OFFSET_BITS | start)

    def _read_ahead(self, part: _FilePart) -> tuple[int, Any] | None:
        """Return a file's next line with its time; None at the end that the file had when it was
        found.
        """
        assert self._time is not None
        start = self._offsets[part.number]  # behind its last line, which was emitted
        if start >= self._mine[part.number][1]:
            part.close()
            return None
        part.file = part.file or _opened(part.path, start)
        line = part.file.readline()
        text = _text(line)
        try:
            time_ms = self._time.of((text,))
        except ValueError as error:
            time_ms = NO_TIME
            self._collector.report_error(f"{shown(part.path)}, at {start}: {error}")
        return time_ms, (text, start, start + len(line))


@dataclass(slots=True)
class _FilePart:
    """A file that is merged with others."""

    number: int
    path: str
    file: BinaryIO | None = None

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        self.file = None


def _opened(path: str, offset: int) -> BinaryIO:
    file = open(path, "rb")  # noqa: SIM115 - closed at its end, over many calls
    file.seek(offset)
    return file


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", "replace")


def batch_of_lines(block: bytes) -> RecordBatch:
    """Return whole lines as a batch with one column, `line`: the texts that FileLines emits one by
    one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        block.decode()
    except UnicodeDecodeError:
        block = block.decode("utf-8", "replace").encode()
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
    last = () if block.endswith(b"\n") else (len(block),)
    offsets = np.concatenate(((0,), ends, last)).astype(np.int32)
    lines = pa.Array.from_buffers(
        pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(block)]
    )
    return pa.RecordBatch.from_arrays([pc.ascii_rtrim(lines, characters="\r\n")], ["line"])


def share(
    files: Sequence[tuple[str, int]], tasks: int, order: Callable[[str], Any] | None = None
) -> list[list[tuple[str, int]]]:
    """Deal (path, bytes) to tasks, largest first to the least loaded; each share in the order of
    paths, or of `order(path)`.

    The same on every machine.
    """
    shares: list[list[tuple[str, int]]] = [[] for _ in range(tasks)]
    loads = [0] * tasks
    for name, size in sorted(files, key=lambda f: (-f[1], f[0])):
        lightest = loads.index(min(loads))
        shares[lightest].append((name, size))
        loads[lightest] += size
    for portion in shares:
        portion.sort(key=lambda file: file[0] if order is None else (order(file[0]), file[0]))
    return shares
