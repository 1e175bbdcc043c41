"""Two versions of a bolt's code, each in its own process, given the same rows from the same
state, and compared.

Compared are what each row emits, whether it fails, and which keys of the state it changes or
deletes. Used for recordings (`extensions/recording/shadow.py`) and next to a live task
(`extensions/recording/live_shadow.py`); the other end of the pipes is `extensions/recording/stepping/step_server.py`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sparkstorm.common.errors import WorkerFailedError
from sparkstorm.common.model.topology import WATERMARK_STREAM
from sparkstorm.common.model.values.codec import Codec

_LENGTH = struct.Struct(">I")
_IDS = ("topology.id", "topology.name", "storm.id")
_PARTS = ("emitted", "failure", "changed state", "deleted keys")
_LATER = 10
"""Niceness of a version's process: the live workers go first."""
_START_S = 120.0
_LIBRARIES_MB = 1024  # writable addresses that libraries map and never use
OLD = "running"
NEW = "new"
Input = tuple[str, str, Sequence[Any], int]
"""Component, stream, values and time (ms) of a row."""


@dataclass(frozen=True, slots=True)
class CallDifference:
    """One row that the versions treat differently: the first part that differs, as each version has
    it.
    """

    component: str
    task: int
    number: int  # of the row among those that were compared, from 1
    input: tuple[Any, ...]
    part: str  # emitted, failure, changed state, deleted keys
    old: Any
    new: Any

    def __str__(self) -> str:
        where = f"{self.component}#{self.task}, row {self.number} {show(self.input)}"
        return f"{where}: {self.part}: {show(self.old)} by the code that runs, {show(self.new)} by the new code"


def show(value: Any) -> str:
    """Return a value, shortened."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def write_frame(file: IO[bytes], codec: Codec, value: Any) -> None:
    """Write one frame: its length in four bytes, then MessagePack."""
    data = codec.pack(value)
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


def read_frame(file: IO[bytes], codec: Codec) -> Any:
    """Read one frame; EOFError at the end."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    return codec.unpack(file.read(_LENGTH.unpack(head)[0]))


class Version:
    """One version of the code in its process; once it runs, a call without an answer for
    `patience_s` raises WorkerFailedError.
    """

    def __init__(
        self,
        name: str,
        code: bytes,
        component: str,
        conf: Mapping[str, Any],
        folder: Path,
        patience_s: float | None = None,
        limit_mb: float | None = None,
    ) -> None:
        self._name = name
        self._codec = Codec()
        self._patience_s = patience_s
        self._has_answered = False
        own = folder / name
        own.mkdir()
        (own / "code").write_bytes(code)
        self._errors = own / "errors"
        command = [
            sys.executable,
            "-m",
            "sparkstorm.extensions.recording.stepping.step_server",
            str(own / "code"),
            component,
        ]
        with self._errors.open("wb") as err:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, cwd=own
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to = self._process.stdin.fileno()
        self._from = self._process.stdout.fileno()
        for fd in (self._to, self._from):
            os.set_blocking(fd, False)
        _restrain(self._process.pid, limit_mb)
        self.send(
            {
                key: value
                for key, value in conf.items()
                if key.startswith(("topology.", "app.")) and key not in _IDS
            }
        )

    def send(self, frame: Any) -> None:
        """Send one frame; for a process that has ended, `answer` raises the reason."""
        data = self._codec.pack(frame)
        unsent = memoryview(_LENGTH.pack(len(data)) + data)
        until = self._until()
        with contextlib.suppress(BrokenPipeError):
            while unsent:
                self._wait([], [self._to], until)
                unsent = unsent[os.write(self._to, unsent) :]

    def answer(self) -> list[Any]:
        """Return the answer to a frame; WorkerFailedError when the process has ended, or does not
        answer in time.
        """
        until = self._until()
        size = _LENGTH.unpack(self._read(_LENGTH.size, until))[0]
        reply: list[Any] = self._codec.unpack(self._read(size, until))
        self._has_answered = True
        return reply

    def kill(self) -> None:
        """End its process; a call that waits for it raises. Any thread may call it."""
        self._process.kill()

    def close(self) -> None:
        """End its process and close the pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _until(self) -> float | None:
        patience_s = (
            self._patience_s if self._has_answered or self._patience_s is None else _START_S
        )
        return None if patience_s is None else time.monotonic() + patience_s

    def _read(self, size: int, until: float | None) -> bytes:
        received = bytearray()
        while len(received) < size:
            self._wait([self._from], [], until)
            chunk = os.read(self._from, min(size - len(received), 1 << 20))
            if not chunk:
                self._process.wait()
                lines = self._errors.read_text(errors="replace").strip().splitlines()
                why = (
                    lines[-1]
                    if lines
                    else f"its process ended with status {self._process.returncode}"
                )
                raise WorkerFailedError(f"the {self._name} code cannot be stepped through: {why}")
            received += chunk
        return bytes(received)

    def _wait(self, readers: list[int], writers: list[int], until: float | None) -> None:
        left_s = None if until is None else max(0.0, until - time.monotonic())
        if not any(select.select(readers, writers, [], left_s)):
            raise WorkerFailedError(
                f"the {self._name} code does not return: no answer for {self._patience_s:g} s"
            )


def _restrain(pid: int, limit_mb: float | None) -> None:
    """Let the live workers go first, and bound the memory of the process like a worker's, where the
    system can.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, pid, _LATER)
        if limit_mb is not None:
            size = int((limit_mb + _LIBRARIES_MB) * 1024 * 1024)
            resource.prlimit(pid, resource.RLIMIT_DATA, (size, size))


class Comparison:
    """Comparison of two versions, row by row; `kept` has the first differences."""

    def __init__(
        self, versions: Sequence[Version], component: str, task: int, kept: int = 20
    ) -> None:
        self._versions = versions
        self._component = component
        self._task = task
        self._most = kept
        self.compared = self.different = 0
        self.kept: list[CallDifference] = []

    def begin(
        self, index: int, state: Mapping[Any, Any], cells: Sequence[Sequence[Any]] | None = None
    ) -> None:
        """Begin with that state and those cells of windows and timers, as the task with that index
        of its component.
        """
        for version in self._versions:
            version.send(["begin", index, [[key, value] for key, value in state.items()], cells])
        for version in self._versions:
            version.answer()

    def rows(self, rows: Sequence[Input]) -> None:
        """Give both versions the same rows, and compare their outcomes."""
        for version in self._versions:
            version.send(
                [
                    "rows",
                    [
                        [component, stream, list(values), at_ms]
                        for component, stream, values, at_ms in rows
                    ],
                ]
            )
        answers = [version.answer() for version in self._versions]
        for row, old, new in zip(rows, *answers, strict=True):
            if row[1] == WATERMARK_STREAM and old == new:
                self.compared += len(old[0])  # what has fired on a stream
                continue
            self.compared += 1
            if difference := self._difference(row, old, new):
                self.different += 1
                self.kept += [difference] if len(self.kept) < self._most else []

    def _difference(self, row: Input, old: list[Any], new: list[Any]) -> CallDifference | None:
        for part, one, other in zip(_PARTS, old, new, strict=True):
            is_same = (
                (one is None) == (other is None)
                if part == "failure"
                else _sorted(part, one) == _sorted(part, other)
            )
            if not is_same:
                return CallDifference(
                    self._component, self._task, self.compared, tuple(row[2]), part, one, other
                )
        return None


def _sorted(part: str, value: Any) -> Any:
    """Return state changes in one order: they have none of their own."""
    return sorted(value, key=repr) if part in _PARTS[2:] else value


def in_batches(rows: Sequence[Input], size: int) -> Iterator[Sequence[Input]]:
    """Return rows in order, `size` at a time: what waits in a pipe stays small."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
