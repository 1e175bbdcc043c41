"""Owns the in-process twin of the Redis transport: the same laws over plain dicts, for simulation and LocalCluster."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparkstorm.errors import FencedError, StoreFullError, StoreRolledBackError
from sparkstorm.transport.base import START, Claim, Commit, Cursor, Entry, Pressure, TaskRecord


@dataclass(slots=True)
class _TaskKeys:
    stream: list[tuple[int, bytes]] = field(default_factory=list)  # (number, frame), oldest first
    last_number: int = 0
    cursor: Cursor = START
    backlog: int = 0
    fence: int = 0
    journal: list[bytes] = field(default_factory=list)
    snapshot: bytes | None = None
    held: dict[str, bytes] = field(default_factory=dict)


class LocalStore:
    """What Redis would hold for one topology; every LocalTransport of that topology shares one."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self.task_keys: dict[int, _TaskKeys] = {}
        self.generation = 0
        self.seq_by_owner: dict[str, int] = {}
        self.progress_by_owner: dict[str, bytes] = {}
        self.low_by_owner: dict[str, int] = {}
        self.dead_letters: list[bytes] = []
        self.quarantine: list[bytes] = []
        self.max_bytes = max_bytes

    def task(self, task: int) -> _TaskKeys:
        """The keys of one task."""
        return self.task_keys.setdefault(task, _TaskKeys())

    def used_bytes(self) -> int:
        """Bytes in streams: what an uncontrolled sender would let grow."""
        return sum(len(data) for keys in self.task_keys.values() for _, data in keys.stream)

    def checkpoint(self) -> dict[str, object]:
        """A copy to go back to, as a store that loses its tail would."""
        return copy.deepcopy(self.__dict__)

    def restore(self, checkpoint: dict[str, object]) -> None:
        """Become what the store was at a checkpoint."""
        self.__dict__.update(copy.deepcopy(checkpoint))


class LocalTransport:
    """One owner's way to a LocalStore."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._last: tuple[str, int] = ("", -1)

    def claim(self, owner: str, token_by_task: Mapping[int, int]) -> Claim:
        """Fence, then read."""
        store = self._store
        for task, token in token_by_task.items():
            if store.task(task).fence > token:
                raise FencedError(f"task {task} belongs to token {store.task(task).fence}, not to {token}")
        for task, token in token_by_task.items():
            store.task(task).fence = token
        records = {t: _record(store.task(t)) for t in token_by_task}
        seq = store.seq_by_owner.get(owner, 0)
        self._last = (owner, seq)
        return Claim(store.generation, seq, store.progress_by_owner.get(owner, b""), records)

    def commit(self, commit: Commit) -> Pressure:
        """Check, then apply; nothing can fail in between."""
        store = self._store
        for task, token in commit.token_by_task.items():
            if store.task(task).fence != token:
                raise FencedError(f"task {task} belongs to token {store.task(task).fence}, not to {token}")
        stored = store.seq_by_owner.get(commit.owner, 0)
        if store.generation != commit.generation or stored not in (commit.seq - 1, commit.seq):
            self._announce_rollback(commit.generation)
        if stored == commit.seq - 1:
            self._refuse_when_full(commit)
            self._apply(commit)
        fullness = 0.0 if store.max_bytes is None else store.used_bytes() / store.max_bytes
        return Pressure({t: store.task(t).backlog for t in commit.watched}, fullness)

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        """Entries behind the given ids."""
        found = []
        for task, entry in after.items():
            number = int(entry.partition("-")[0])
            behind = [Entry(task, f"{n}-0", data) for n, data in self._store.task(task).stream if n > number]
            found += behind[:count]
        return found

    def wait(self, timeout_ms: int, wake_fds: Sequence[int] = ()) -> None:
        """Nothing to wait for: simulated time moves by hand."""

    def release(self) -> None:
        """Streams are trimmed within each commit here."""

    def heads(self) -> list[bytes]:
        """The oldest unconsumed frame of every task that has any."""
        return [keys.stream[0][1] for keys in self._store.task_keys.values() if keys.stream]

    def low_watermark_ms(self) -> int | None:
        """The least of all owners' watermarks."""
        waiting = [low for low in self._store.low_by_owner.values() if low]
        return min(waiting, default=None)

    def close(self) -> None:
        """Nothing to let go of."""

    def _announce_rollback(self, generation: int) -> None:
        if self._store.generation == generation:
            self._store.generation += 1
        raise StoreRolledBackError("the store is not where this owner's last commit left it")

    def _refuse_when_full(self, commit: Commit) -> None:
        if self._store.max_bytes is not None and commit.frames and self._store.used_bytes() >= self._store.max_bytes:
            raise StoreFullError("the store has reached its limit")

    def _apply(self, commit: Commit) -> None:
        store = self._store
        store.seq_by_owner[commit.owner] = commit.seq
        for task, data, counted in commit.frames:
            keys = store.task(task)
            keys.last_number += 1
            keys.stream.append((keys.last_number, data))
            keys.backlog += counted
        for task, cursor in commit.cursors.items():
            keys = store.task(task)
            keys.cursor = cursor
            done = int(cursor.entry.partition("-")[0])
            keys.stream = [(n, data) for n, data in keys.stream if n > done]
        for task, size in commit.drained_bytes.items():
            store.task(task).backlog -= size
        self._apply_records(commit)

    def _apply_records(self, commit: Commit) -> None:
        store = self._store
        for task, snapshot in commit.snapshots.items():
            store.task(task).snapshot = snapshot
            store.task(task).journal = []
        for task, delta in commit.journal:
            store.task(task).journal.append(delta)
        for task, key in commit.released:
            store.task(task).held.pop(key, None)
        for task, key, data in commit.held:
            store.task(task).held[key] = data
        store.dead_letters += commit.parked
        store.quarantine += commit.quarantined
        if commit.progress:
            store.progress_by_owner[commit.owner] = commit.progress
        if commit.low_ms is not None:
            store.low_by_owner[commit.owner] = commit.low_ms


class LocalReader:
    """What outsiders may read of a LocalStore."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def progress(self) -> dict[str, bytes]:
        """Progress record of every owner."""
        return dict(self._store.progress_by_owner)

    def backlog(self) -> dict[int, int]:
        """Bytes that wait in each task's stream."""
        return {task: keys.backlog for task, keys in self._store.task_keys.items()}

    def record(self, task: int) -> TaskRecord:
        """What the store keeps of a task."""
        return _record(self._store.task(task))

    def parked(self, limit: int) -> list[tuple[str, bytes]]:
        """The oldest dead letters."""
        return [(str(i), data) for i, data in enumerate(self._store.dead_letters[:limit])]

    def delete(self) -> None:
        """Forget everything."""
        self._store.__init__(self._store.max_bytes)  # type: ignore[misc]


def _record(keys: _TaskKeys) -> TaskRecord:
    last = f"{keys.stream[-1][0]}-0" if keys.stream else "0-0"
    return TaskRecord(keys.cursor, keys.snapshot, list(keys.journal), dict(keys.held), last)
