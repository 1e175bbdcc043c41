"""Dead letters of a run as a file: each appended as it is parked, counted by cause, read again when
the run is taken up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sparkstorm.client.dead_letters import AT_ONCE, Read, decoded
from sparkstorm.common.errors import CodecError, StoreInconsistentError
from sparkstorm.common.model.dead_letter import Cause, DeadLetter
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.values.tagged import from_json, to_json

_MOST_CAUSES = 1000
_OTHERS = Cause("(other components)", "other causes", "")
_DAMAGED = Cause("(unknown)", "letters that cannot be read", "")


@dataclass(slots=True)
class Group:
    """Letters of one cause: how many, and the first."""

    count: int
    example: DeadLetter | None

    def __str__(self) -> str:
        if self.example is None:
            return counted(self.count, "tuple")
        values = repr(list(self.example.values))
        shown = values if len(values) <= 100 else f"{values[:97]}..."
        if self.count == 1:
            return f"1 tuple, {shown}: {self.example.reason}"
        return f"{counted(self.count, 'tuple')}, the first {shown}: {self.example.reason}"


class Groups:
    """Counts of letters by cause; causes beyond a limit are counted together."""

    def __init__(self) -> None:
        self._by_cause: dict[Cause, Group] = {}

    def add(self, letter: DeadLetter | None) -> Cause:
        """Count a letter, None is one that cannot be read; return the cause under which it
        counts.
        """
        cause = _DAMAGED if letter is None else letter.cause
        if cause not in self._by_cause and len(self._by_cause) >= _MOST_CAUSES:
            cause = _OTHERS
            letter = None
        group = self._by_cause.setdefault(cause, Group(0, letter))
        group.count += 1
        return cause

    def largest(self) -> list[tuple[Cause, Group]]:
        """Return every cause, the most frequent first."""
        return sorted(self._by_cause.items(), key=lambda pair: (-pair[1].count, str(pair[0])))

    def lines(self, most: int) -> list[str]:
        """Return a line per cause, `most` at the most."""
        all_of_them = self.largest()
        rest = [f"and {len(all_of_them) - most} more causes"] if len(all_of_them) > most else []
        return [f"{cause}: {group}" for cause, group in all_of_them[:most]] + rest


class DeadLetterFile:
    """File of JSON lines to which a topology's stored letters are appended, each once.

    Letters that the disk refuses, and those beyond `most_bytes`, stay in the store: `is_whole` is
    False then, `trouble` has the reason.
    """

    def __init__(self, path: Path, read: Read, most_bytes: int) -> None:
        self.path = path
        self._read = read
        self._most_bytes = most_bytes
        self.groups = Groups()
        self.written = 0
        self.trouble = ""
        self._last_id: str | None = None  # None: the file has not been looked at

    @property
    def is_whole(self) -> bool:
        """Return whether the file has every letter that was stored at the last `collect`."""
        return not self.trouble

    def collect(self) -> None:
        """Append what was parked since the last time; StoreUnavailableError leaves the rest for the
        next time.
        """
        try:
            if self._last_id is None:
                self._last_id = self._take_up()
            while letters := self._read(AT_ONCE, self._last_id):
                if not self._append(letters):
                    return
            self.trouble = ""
        except OSError as error:
            self.trouble = f"{self.path} cannot be written: {error.strerror}"

    def _take_up(self) -> str:
        """Count what a former run wrote, cut a line that it left half-written, and return the last
        letter's id.
        """
        last = "0"
        good_bytes = 0
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                good_bytes += len(line)
                id, letter = _parsed(line)
                last = id or last
                self.groups.add(letter)
                self.written += 1
        if self.path.exists() and self.path.stat().st_size > good_bytes:
            os.truncate(self.path, good_bytes)
        return last

    def _append(self, letters: list[tuple[str, bytes]]) -> bool:
        """Write some letters and return whether there was room; a line that was written in part is
        cut again.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab", opener=partial(os.open, mode=0o600)) as file:
            size = file.tell()
            for id, data in letters:
                letter = decoded(data)
                line = line_of(id, letter, data).encode() + b"\n"
                if size + len(line) > self._most_bytes:
                    self.trouble = (
                        f"{self.path} has reached sparkstorm.dead.letters.file.max.bytes ({self._most_bytes:,}): "
                        "later letters are in Redis only"
                    )
                    return False
                try:
                    file.write(line)
                    file.flush()
                except OSError:
                    with contextlib.suppress(OSError):
                        file.truncate(size)
                    raise
                size += len(line)
                self._last_id = id
                self.groups.add(letter)
                self.written += 1
            os.fsync(file.fileno())
        return True


def read_dead_letters(path: Path) -> Iterator[tuple[str, DeadLetter]]:
    """Yield id and letter of each line of a run's file, or of the files of a replay's folder.

    StoreInconsistentError names a line that is no dead letter.
    """
    for file in sorted(path.glob("[!._]*")) if path.is_dir() else [path]:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield DeadLetter.from_line(line.decode())
                except UnicodeDecodeError as error:
                    raise StoreInconsistentError(
                        f"{file}, line {number}: not a line of dead letters: byte {error.start + 1} is no UTF-8 text"
                    ) from error
                except StoreInconsistentError as error:
                    raise StoreInconsistentError(f"{file}, line {number}: {error}") from error


def _parsed(line: bytes) -> tuple[str, DeadLetter | None]:
    try:
        return DeadLetter.from_line(line.decode())
    except (StoreInconsistentError, UnicodeDecodeError):
        return _id_of(line), None


def line_of(id: str, letter: DeadLetter | None, data: bytes = b"") -> str:
    """Return the line of a letter; one that is no record of ours is kept as its bytes."""
    return to_json({"id": id, "unreadable": data}) if letter is None else letter.to_line(id)


def _id_of(line: bytes) -> str:
    try:
        return str(from_json(line.decode())["id"])
    except (CodecError, UnicodeDecodeError, KeyError, TypeError):
        return ""
