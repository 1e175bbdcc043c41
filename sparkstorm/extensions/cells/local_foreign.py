"""In-process twin of the reading of another cell's store, over the dicts of its LocalStore.

Law: the twin passes tests/contracts/test_cells.py as the one over Redis does. A store that is away
is a function that says so: simulated time has no connections that break.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from sparkstorm.common.errors import (
    InvalidConfigError,
    MalformedFrameError,
    StoreRolledBackError,
    StoreUnavailableError,
)
from sparkstorm.data_plane.transport.base import START, Cursor, Entry, entry_order
from sparkstorm.data_plane.transport.frames import MESSAGES, SETTLED, kind_of
from sparkstorm.data_plane.transport.local import LocalStore, oldest_waiting
from sparkstorm.extensions.cells.cells import Trim

# Asked again by the next poll, as one of Redis would be soon.
_RETRY_MS = 20.0


class LocalForeign:
    """Reading of another cell's LocalStore."""

    def __init__(
        self,
        store: LocalStore,
        cell: int,
        is_away: Callable[[], bool] = lambda: False,
        durability: str = "process",
    ) -> None:
        self._store = store
        self._cell = cell
        self._is_away = is_away
        self._from_replica = durability == "replica"
        self._needs_sync = durability == "disk"
        self._cursors: dict[int, Cursor] = {}
        self._brought: dict[int, deque[int]] = {}  # numbers read and not consumed
        self._restores: int | None = None  # of the store when it was last proven; None: in doubt

    def begin(self, cursor_by_task: Mapping[int, Cursor]) -> Mapping[int, str]:
        """Look at once."""
        self._cursors = dict(cursor_by_task)
        self._brought = {task: deque() for task in cursor_by_task}
        self._restores = None
        if self._is_unreadable:
            return {}
        self._require_synced()
        # A replica that is behind has lost nothing: `poll` looks again.
        return {
            task: self._store.task(task).freed
            for task, cursor in cursor_by_task.items()
            if self._is_lost(self._store, task, cursor)
        }

    def poll(self, after: Mapping[int, str], count: int) -> Sequence[Entry]:
        """Entries behind the given ids."""
        if self._is_unreadable:
            self._restores = None
            return ()
        if self._restores != self._store.restores:
            self._prove()
        entries = []
        source = self._source
        for task, entry in after.items():
            behind = [pair for pair in source.task(task).stream if pair[0] > _number(entry)]
            entries += [Entry(task, f"{n}-0", data) for n, data in behind[:count]]
            self._brought[task] += [n for n, _ in behind[:count]]
        return entries

    def ask(self, after: Mapping[int, str], count: int) -> None:
        """Fetch nothing: `poll` reads at once."""

    def note_stored(self, cursor_by_task: Mapping[int, Cursor]) -> None:
        """Forget what the cursors have passed."""
        self._cursors |= cursor_by_task
        for task, cursor in cursor_by_task.items():
            brought = self._brought[task]
            while brought and brought[0] <= _number(cursor.entry):
                brought.popleft()

    def trim(self, trims: Sequence[Trim]) -> None:
        """Carry out what pass.lua does."""
        if self._is_away():
            raise StoreUnavailableError(f"the store of cell {self._cell} is away")
        self._store.refuse_without_disk()
        for trim in trims if not self._store.has_ended else ():
            keys = self._store.task(trim.task)
            upto = _number(trim.entry)
            done = _number(keys.passed)
            if done < upto:
                size = (
                    trim.drained_bytes
                    if keys.passed == trim.since
                    else sum(_counted(data) for n, data in keys.stream if done < n <= upto)
                )
                keys.passed = trim.entry
                is_left = any(n > upto for n, _ in keys.stream)
                keys.backlog = max(0, keys.backlog - size) if is_left else 0
            if _number(keys.freed) < (free := _number(trim.free)):
                keys.freed = trim.free
                keys.stream = [(n, data) for n, data in keys.stream if n >= free]

    def oldest_waiting_ms(self, also: Sequence[int], floor_ms: int) -> int | None:
        """The least of all frames' births and all owners' watermarks there."""
        if self._is_away():
            raise StoreUnavailableError(f"the store of cell {self._cell} is away")
        return oldest_waiting(self._store, also)

    def listen(self) -> Sequence[int]:
        """Return none: simulated time moves by hand."""
        return ()

    @property
    def has_read(self) -> bool:
        """Return whether a poll would find anything: never known before."""
        return False

    @property
    def retry_ms(self) -> float | None:
        """Return when a store that is away is to be asked again."""
        return _RETRY_MS if self._is_away() else None

    def close(self) -> None:
        """Do nothing: there is no connection to close."""

    @property
    def _is_unreadable(self) -> bool:
        return self._is_away() or self._store.has_ended

    @property
    def _source(self) -> LocalStore:
        return self._store.durable if self._from_replica else self._store

    def _require_synced(self) -> None:
        if self._needs_sync and not self._store.is_synced:
            raise InvalidConfigError(
                f"topology.cells.durability is disk, and the store of cell {self._cell} does not sync before it answers"
            )

    def _is_lost(self, store: LocalStore, task: int, cursor: Cursor) -> bool:
        keys = store.task(task)
        if cursor.entry == keys.freed:
            return False
        number = _number(cursor.entry)
        return cursor.entry == START.entry or all(n != number for n, _ in keys.stream)

    def _prove(self) -> None:
        """Require what was read to be there still, and what was consumed up to the cursor's own
        entry.
        """
        self._require_synced()
        for task, cursor in self._cursors.items():
            there = {n for n, _ in self._store.task(task).stream}
            if self._is_lost(self._store, task, cursor) or not there.issuperset(
                self._brought[task]
            ):
                raise StoreRolledBackError(
                    f"the store of cell {self._cell} has lost entries that task {task} has read"
                )
        self._restores = self._store.restores


def _counted(data: bytes) -> int:
    """Bytes of a frame that count as backlog: none of messages of and to ackers."""
    try:
        return 0 if kind_of(data) in (MESSAGES, SETTLED) else len(data)
    except MalformedFrameError:
        return len(data)


def _number(entry: str) -> int:
    return entry_order(entry)[0]
