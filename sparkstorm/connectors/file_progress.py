"""Progress of a task of `Files` in its files."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparkstorm.connectors.file_records import ParquetReader, RecordReader

DONE = -1


@dataclass(slots=True)
class FileProgress:
    """A file of this task: position (-1: done), and a checksum of its first bytes, to distinguish
    it from a new file of its name.
    """

    at: int = 0  # -1: done
    printed: int = 0
    checksum: int = 0
    number: int = 0  # for message ids
    rank: int = 0  # in the order of paths, or of `order`
    path: str = ""
    size: int = 0
    reader: RecordReader | ParquetReader | None = None
    stream: Any = None
    # looks in a row that did not find it: its writer may go on for a moment after a rename
    missed: int = 0

    @classmethod
    def of(cls, position: Sequence[int]) -> FileProgress:
        """Return the progress that a position stands for."""
        offset, printed, checksum = position
        return cls(offset, printed, checksum)

    def position(self) -> list[int]:
        """Return what a snapshot keeps."""
        return [self.at, self.printed, self.checksum]


class Turns(deque[FileProgress]):
    """Files to read from, in turn."""

    silent = 0  # files in a row that had nothing

    def pass_silent(self, is_done: bool) -> bool:
        """Put the first file, which had nothing, to the end unless it is done; return whether no
        file had anything.
        """
        file = self.popleft()
        if is_done:
            return False
        self.append(file)
        self.silent += 1
        if self.silent < len(self):
            return False
        self.silent = 0
        return True


@dataclass(slots=True)
class Extent:
    """Bytes of the files that were found, and of those that were read."""

    found: int = 0
    read: int = 0
