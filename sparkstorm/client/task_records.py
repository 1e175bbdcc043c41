"""Reading, from outside its worker, what a task keeps: state, windows, hand-over; a lazy state as
of one commit too.

A base is read in parts while its owner commits. The journal is read again and again meanwhile: as
long as its entries, which count themselves (field `n`), follow each other without a gap, base and
entries together are the state as of the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.keys import as_key
from sparkstorm.data_plane.executor.lazy_state import unpacked_pair
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.task_kit.journal import Journal, reading
from sparkstorm.data_plane.transport.base import TaskInputs, TaskRecord

# of a base, between two looks at the journal: less than its owner's sweep takes to replace it
_PARTS_PER_LOOK = 20
_TRIES = 5
Entries = list[dict[str, Any]]


class TaskReader(Protocol):
    """Part of a transport's Reader."""

    def record(self, task: int) -> TaskRecord:
        """Return the stored record of a task."""

    def inputs(self, task: int, limit: int) -> TaskInputs:
        """Return what waits for a task, of each stream at most `limit` entries."""

    def progress(self) -> Mapping[str, bytes]:
        """Progress record of every owner."""

    def scan_state(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield a task's base in parts."""


@dataclass(slots=True)
class StoredTask:
    """All data of one task: state, windows and clocks, the version of the state's form, a spout's
    hand-over.

    Of a lazy state `state` and `deleted` are what the journal has, which wins over the base.
    """

    state: MemoryState = field(default_factory=lambda: MemoryState(Codec()))
    time: MemoryState = field(default_factory=lambda: MemoryState(Codec()))
    version: int = 1
    handed: list[Any] | None = None
    deleted: set[Any] = field(default_factory=set)

    @classmethod
    def of(cls, entries: Entries) -> StoredTask:
        """Fold the entries of a journal."""
        stored = cls()
        moved = -1
        for index, fields in enumerate(entries):
            stored.state.load(fields.get("s", ()), fields.get("d", ()))
            stored.deleted.difference_update(as_key(key) for key, _ in fields.get("s", ()))
            stored.deleted.update(map(as_key, fields.get("d", ())))
            stored.time.load(fields.get("w", ()), fields.get("x", ()))
            stored.version = fields.get("v", stored.version)
            moved = index if "o" in fields else moved
            if "h" in fields:
                stored.handed = list(fields["h"])
            elif moved == index:  # it has moved since
                stored.handed = None
        return stored


def entries_of(reader: TaskReader, task: int) -> tuple[TaskRecord, Entries]:
    """Return a task's record, and its journal unpacked."""
    record = reader.record(task)
    with reading(f"journal of task {task}"):
        return record, list(Journal(task, Codec(is_lenient=True)).read(record))


def is_lazy(entries: Entries) -> bool:
    """Return whether the journal is that of a lazy state."""
    return any("n" in fields for fields in entries)


def base_pairs(reader: TaskReader, task: int, stored: StoredTask) -> Iterator[tuple[Any, Any]]:
    """Yield keys and values of a task's base that the journal does not replace."""
    codec = Codec(is_lenient=True)
    for part in reader.scan_state(task):
        with reading(f"state:{task}:*"):
            pairs = [unpacked_pair(codec, key, value) for key, value in part]
        yield from (
            (key, value)
            for key, value in pairs
            if key not in stored.state and key not in stored.deleted
        )


def stored_task(reader: TaskReader, task: int) -> StoredTask:
    """Return what a task keeps, as of one commit; StoreInconsistentError when it changes faster
    than it can be read.
    """
    entries = entries_of(reader, task)[1]
    for _ in range(_TRIES):
        if not is_lazy(entries):
            return StoredTask.of(entries)
        log = _Log(entries)
        base: dict[bytes, bytes] = {}
        for index, part in enumerate(reader.scan_state(task)):
            base.update(part)
            if index % _PARTS_PER_LOOK == _PARTS_PER_LOOK - 1:
                log.follow(entries_of(reader, task)[1])
        entries = entries_of(reader, task)[1]
        if log.follow(entries):
            return _merged(log, entries, base)
    raise StoreInconsistentError(
        f"the state of task {task} changes faster than it can be read; read it while the topology is inactive, or from a savepoint"
    )


class _Log:
    """Entries of a journal that have been seen, the dropped ones too, by their number."""

    def __init__(self, entries: Entries) -> None:
        self._by_serial: dict[int, Entries] = {}
        self._last = 0
        self.is_whole = True
        self._add(entries)

    def follow(self, entries: Entries) -> bool:
        """Take in what the journal has now; return whether none has been missed so far."""
        newest = max((fields["n"][1] for fields in entries if "n" in fields), default=0)
        changes = (
            fields["n"][1]
            for fields in entries
            if "n" in fields and not fields.keys().isdisjoint("sd")
        )
        # a sweep begins with the marks alone
        self.is_whole &= min(changes, default=newest + 1) <= self._last + 1
        self._add(entries)
        return self.is_whole

    def _add(self, entries: Entries) -> None:
        entries_by_serial: dict[int, Entries] = {}
        for fields in entries:
            entries_by_serial.setdefault(fields["n"][1] if "n" in fields else 0, []).append(fields)
        self._by_serial = {**entries_by_serial, **self._by_serial}
        self._last = max(self._by_serial, default=0)

    def changes(self) -> Entries:
        """Return the entries in order, oldest first; those of a memory backend are older than
        all.
        """
        return [fields for serial in sorted(self._by_serial) for fields in self._by_serial[serial]]


def _merged(log: _Log, entries: Entries, base: dict[bytes, bytes]) -> StoredTask:
    stored = StoredTask.of(entries)
    newest = StoredTask.of(log.changes())
    codec = Codec(is_lenient=True)
    with reading("state of a task"):
        pairs = (unpacked_pair(codec, key, value) for key, value in base.items())
        newest.state.load(
            (key, value)
            for key, value in pairs
            if key not in newest.state and key not in newest.deleted
        )
    stored.state = newest.state
    stored.deleted = newest.deleted
    return stored
