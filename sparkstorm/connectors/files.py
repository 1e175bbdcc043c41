"""FileLines: a replayable spout over the lines of text files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.components import Conf, ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.connectors.file_folders import shown
from sparkstorm.errors import InvalidConfigError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_OFFSET_BITS = 40  # files of up to a terabyte
_BLOCK_BYTES = 1 << 17


def find_files(paths: Iterable[str | Path], pattern: str = "*") -> list[tuple[str, int]]:
    """(path, bytes) of every file named or found below a named folder, sorted; InvalidConfigError if one is missing."""
    found: dict[str, int] = {}
    for path in map(Path, paths):
        if not os.path.exists(path):  # False for every name that cannot be
            raise InvalidConfigError(f"input {shown(str(path))}: there is no such file or folder")
        files = sorted(p for p in path.rglob(pattern) if p.is_file()) if path.is_dir() else [path]
        found.update((str(p), p.stat().st_size) for p in files)
    if not found:
        raise InvalidConfigError(f"no file matches '{pattern}' under {', '.join(map(str, paths))}")
    return sorted(found.items())


class FileLines(ReplayableSpout):
    """Emits every line of its files, without the line end; message id file number * 2**40 + byte offset.

    Files are dealt to tasks so that each gets about the same bytes, and each task reads its files in the order of their
    names, or of `order(path)`: event times that rise from file to file rise in every task. The files must be readable
    under the same paths wherever the spout runs. Bytes that are not UTF-8 become U+FFFD; compressed files are not
    unpacked. Its position is (file number, byte offset). Bolts of columns get blocks of lines (128 kB) as Arrow batches,
    each as one message with the id of its first line. `read` says of files how many bytes are not to be read again; files
    that have grown or come since are read from there.
    """

    outputs = ("line",)

    def __init__(
        self,
        files: Sequence[tuple[str, int]],
        read: Mapping[str, int] | None = None,
        order: Callable[[str], Any] | None = None,
    ) -> None:
        self._files = list(files)
        self._order = order
        self._read = dict(read or {})
        for path, size in self._files:
            if self._read.get(path, 0) > size:
                raise InvalidConfigError(f"input {path}: {self._read[path]} bytes were read of it, but it has {size} now")

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Take this task's share of the files."""
        self._collector = collector
        self._emits_batches = "default" in context.column_streams
        self._mine = share(self._files, len(context.peers), self._order)[context.task_index]
        self._total = sum(size for _, size in self._mine)
        self._at = 0
        self._before = 0  # bytes of the files already done
        self._ends: dict[str, int] = {}  # where those ended, by what was read: they may have grown
        self._file: BinaryIO | None = None
        self._begin_file()

    def next_tuple(self) -> None:
        """Emit one line, or a block of lines; an empty file is passed by."""
        while self._at < len(self._mine):
            if self._file is None:
                self._file = open(self._mine[self._at][0], "rb")  # noqa: SIM115 - closed at its end, over many calls
                self._file.seek(self._offset)
            message_id = self._at << _OFFSET_BITS | self._offset
            if self._emits_batches:
                if block := self._file.read(_BLOCK_BYTES):
                    block += b"" if block.endswith(b"\n") else self._file.readline()
                    self._offset += len(block)
                    self._collector.emit_batch(batch_of_lines(block), message_id)
                    return
            elif line := self._file.readline():
                self._offset += len(line)
                self._collector.emit((line.rstrip(b"\r\n").decode("utf-8", "replace"),), message_id)
                return
            self._next_file()

    def is_exhausted(self) -> bool:
        """Return whether every line was emitted."""
        return self._at >= len(self._mine)

    def extent(self) -> tuple[int, int]:
        """Bytes in all, bytes done."""
        return self._total, self._before + self._offset

    def snapshot(self) -> Any:
        """(file number, byte offset) behind the last line."""
        return [self._at, self._offset]

    def restore(self, position: Any) -> None:
        """Go on behind the last committed line."""
        self._at, self._offset = position
        self._before = sum(size for _, size in self._mine[: self._at])
        self._ends = dict(self._mine[: self._at])

    def hand_over(self) -> Any:
        """Bytes read by path: what holds for any other list of files and number of tasks."""
        begun = {} if self.is_exhausted() else {self._mine[self._at][0]: self._offset}
        return {path: end for path, end in {**self._read, **self._ends, **begun}.items() if end}

    def take_over(self, handed: Sequence[Any]) -> FileLines:
        """The same files behind what was read of each."""
        read = dict(self._read)
        for each in handed:
            if not isinstance(each, dict) or not all(type(p) is str and type(n) is int and n >= 0 for p, n in each.items()):
                raise InvalidConfigError(f"FileLines was handed {each!r:.80}, which is not bytes read by path")
            for path, size in each.items():
                read[path] = max(size, read.get(path, 0))
        return type(self)(self._files, read, self._order)

    def close(self) -> None:
        """Close the file at hand."""
        if self._file is not None:
            self._file.close()

    def _next_file(self) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        path, size = self._mine[self._at]
        self._before += size
        self._ends[path] = self._offset
        self._at += 1
        self._begin_file()

    def _begin_file(self) -> None:
        """Pass by files of which nothing is left, and go to where the next one is to be read from."""
        while self._at < len(self._mine):
            path, size = self._mine[self._at]
            self._offset = self._read.get(path, 0)
            if self._offset < size:
                return
            self._before += size
            self._at += 1
        self._offset = 0


def batch_of_lines(block: bytes) -> RecordBatch:
    """Return whole lines as a batch with one column, `line`: the texts that FileLines emits one by one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        block.decode()
    except UnicodeDecodeError:
        block = block.decode("utf-8", "replace").encode()
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
    last = () if block.endswith(b"\n") else (len(block),)
    offsets = np.concatenate(((0,), ends, last)).astype(np.int32)
    lines = pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(block)])
    return pa.RecordBatch.from_arrays([pc.ascii_rtrim(lines, characters="\r\n")], ["line"])


def share(files: Sequence[tuple[str, int]], tasks: int, order: Callable[[str], Any] | None = None) -> list[list[tuple[str, int]]]:
    """Deal (path, bytes) to tasks, largest first to the least loaded; each share in the order of paths, or of `order(path)`.

    The same on every machine.
    """
    shares: list[list[tuple[str, int]]] = [[] for _ in range(tasks)]
    loads = [0] * tasks
    for name, size in sorted(files, key=lambda f: (-f[1], f[0])):
        lightest = loads.index(min(loads))
        shares[lightest].append((name, size))
        loads[lightest] += size
    for each in shares:
        each.sort(key=lambda file: file[0] if order is None else (order(file[0]), file[0]))
    return shares
