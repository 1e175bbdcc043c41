"""In-process twin of the Redis transport: the same laws over plain dicts, for simulation and
LocalCluster.

Law: the twin passes all tests of tests/contracts that Redis passes, refusals and losses included; a
simulation proves no more than that. Left out: a fake Redis below redis.py, which would test our
knowledge of Redis and need its scripts carried out.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparkstorm.common.errors import FencedError, StoreFullError, StoreRolledBackError
from sparkstorm.data_plane.transport.base import (
    MOST_DEAD_LETTERS,
    MOST_SAMPLES,
    START,
    Claim,
    Commit,
    Cursor,
    Entry,
    Expected,
    Pressure,
    TaskRecord,
    ended_error,
    second_error,
)
from sparkstorm.data_plane.transport.frames import birth_of
from sparkstorm.data_plane.transport.store_loss import loss_text, lost_error


@dataclass(slots=True)
class TaskKeys:
    """All that is stored of one task."""

    stream: list[tuple[int, bytes]] = field(default_factory=list)  # (number, frame), oldest first
    last_number: int = 0
    cursor: Cursor = START
    backlog: int = 0
    fence: int = 0
    owner: str = ""
    journal: list[bytes] = field(default_factory=list)
    held: dict[str, bytes] = field(default_factory=dict)
    base: dict[bytes, bytes] = field(default_factory=dict)
    foreign: dict[int, Cursor] = field(default_factory=dict)  # by cell
    # of a receiver in another cell: up to here it is done, and up to here entries went
    passed: str = START.entry
    freed: str = START.entry


@dataclass(slots=True)
class StoreHistory:
    """Which data these are: their incarnation, those before it, and the newest write."""

    generation: int = 0
    incarnation: str = ""
    origin: str = ""
    # What claim.lua keeps as took: and left: next to the incarnation.
    # incarnations that this one follows: their last write left, None once accepted
    former: dict[str, int | None] = field(default_factory=dict)
    step: int = 0  # number of the newest write


class LocalStore:
    """Stored data of one topology, as Redis would hold it; shared by every LocalTransport of that
    topology.
    """

    def __init__(self, max_bytes: int | None = None, topology_id: str = "") -> None:
        self.topology_id = topology_id
        self.task_keys: dict[int, TaskKeys] = {}
        self.history = StoreHistory()
        self.seq_by_owner: dict[str, int] = {}
        self.digest_by_owner: dict[str, int] = {}  # of the owner's last commit
        self.progress_by_owner: dict[str, bytes] = {}
        self.earlier_by_owner: dict[str, dict[int, bytes]] = {}
        self.low_by_owner: dict[str, int] = {}
        self.dead_letters: list[tuple[int, bytes]] = []  # numbered from 1
        self.letters_so_far = 0
        self.quarantine: list[bytes] = []
        self.max_bytes = max_bytes
        # Apart from max_bytes: a full memory still takes what frees, a full disk takes nothing
        # (laws 6 and 8).
        self.is_disk_full = False  # every write is refused, even one that frees memory
        # In place of a connection that is made anew: it makes owners check that what they have read
        # is still there.
        self.restores = 0
        # samples by open tap, numbered from 1; no time closes one
        self.taps: dict[str, list[tuple[int, bytes]]] = {}
        self.has_ended = False  # the tombstone; no time takes it away
        # What its replica has, where that is behind.
        self.replica: LocalStore | None = None
        # It syncs its file before it answers (`appendfsync always`); otherwise once a second.
        self.is_synced = False

    def task(self, task: int) -> TaskKeys:
        """The keys of one task."""
        # No defaultdict: a look at a task that has no keys is a look, and must not make any.
        keys = self.task_keys.get(task)
        if keys is None:
            keys = self.task_keys[task] = TaskKeys()
        return keys

    def used_bytes(self) -> int:
        """Bytes in streams: they would grow without back-pressure."""
        return sum(len(data) for keys in self.task_keys.values() for _, data in keys.stream)

    def refuse_without_disk(self) -> None:
        """StoreFullError while the disk is full."""
        if self.is_disk_full:
            raise StoreFullError("the disk under the store is full")

    def holds_data(self) -> bool:
        """Return whether anything but dead letters and tombstone is stored."""
        return bool(
            self.seq_by_owner
            or self.progress_by_owner
            # an emptied store still gives no entry id twice
            or any(
                keys != TaskKeys(last_number=keys.last_number) for keys in self.task_keys.values()
            )
        )

    def end(self) -> None:
        """Become empty but for the dead letters, for good."""
        letters = self.dead_letters
        so_far = self.letters_so_far
        is_synced = self.is_synced
        self.__init__(self.max_bytes, self.topology_id)  # type: ignore[misc]
        self.is_synced = is_synced
        self.dead_letters = letters
        self.letters_so_far = so_far
        self.has_ended = True

    def follow(self, other: LocalStore) -> None:
        """Go on as the incarnation that another topology's data were."""
        self.history = replace(other.history)

    @property
    def durable(self) -> LocalStore:
        """Return what a fail-over would keep: the replica's data."""
        return self if self.replica is None else self.replica

    def fall_behind(self) -> None:
        """Let the replica get nothing more from now on."""
        self.replica = copy.deepcopy(self.durable)

    def catch_up(self) -> None:
        """Let the replica have everything."""
        self.replica = None

    def fail_over(self) -> None:
        """Become what the replica is."""
        self.restore(self.durable.checkpoint())

    def checkpoint(self) -> dict[str, object]:
        """A copy to go back to, as a store that loses its tail would."""
        # All fields, without naming them: one that were forgotten here would survive a loss that
        # Redis does not survive.
        return copy.deepcopy(self.__dict__)

    def restore(self, checkpoint: dict[str, object]) -> None:
        """Become what the store was at a checkpoint, save that no entry id is given twice (in Redis
        they follow the clock)."""
        restores = self.restores
        last_numbers = {task: keys.last_number for task, keys in self.task_keys.items()}
        self.__dict__.update(copy.deepcopy(checkpoint))
        self.restores = restores + 1
        # Ids in Redis begin with its clock. A number given twice would make a frame that was lost
        # look like the one that came after it.
        for task, number in last_numbers.items():
            self.task(task).last_number = number


class LocalReplica:
    """The cursors of a store's replica."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def foreign_cursors(self, tasks: Collection[int]) -> Mapping[tuple[int, int], Cursor]:
        """Return the cursors in other cells' streams that a fail-over would keep."""
        return foreign_cursors(self._store.durable, tasks)

    def close(self) -> None:
        """Do nothing: there is no connection to close."""


def foreign_cursors(store: LocalStore, tasks: Collection[int]) -> Mapping[tuple[int, int], Cursor]:
    """Return the cursors of these tasks in other cells' streams, by (cell, task)."""
    return {
        (cell, task): cursor for task in tasks for cell, cursor in store.task(task).foreign.items()
    }


InDoubt = tuple[Commit, dict[int, deque[tuple[int, int]]]]


class LocalTransport:
    """One owner's way to a LocalStore."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        # As a Redis transport keeps it, to check with it whether the store is still as this owner
        # left it.
        self._standing = Commit("", {}, 0, 0)  # the last commit known to be applied
        # frames read and not consumed: (number, bytes)
        self._brought: dict[int, deque[tuple[int, int]]] = {}
        self._restores = store.restores

    def claim(
        self, owner: str, token_by_task: Mapping[int, int], expected: Expected | None = None
    ) -> Claim:
        """Fence, then read."""
        store = self._store
        store.refuse_without_disk()
        if store.has_ended:
            raise ended_error("the topology")
        for task, token in token_by_task.items():
            if store.task(task).fence > token:
                raise FencedError(f"task {task} belongs to token {store.task(task).fence} now")
        loss = self._recognise(expected or Expected())
        store.history.step += 1
        # A watermark of an owner without tasks would hold time-outs back for ever: no commit under
        # its name changes it any more.
        former = {store.task(task).owner for task in token_by_task}
        for task, token in token_by_task.items():
            store.task(task).fence, store.task(task).owner = token, owner
        for gone in former - {keys.owner for keys in store.task_keys.values()}:
            store.low_by_owner.pop(gone, None)
        seq = store.seq_by_owner.get(owner, 0)
        self._standing = Commit(owner, dict(token_by_task), store.history.generation, seq)
        self._brought = {task: deque() for task in token_by_task}
        self._restores = store.restores
        records = {t: record_of(store.task(t)) for t in token_by_task}
        progress = store.progress_by_owner.get(owner, b"")
        return Claim(
            store.history.generation,
            seq,
            progress,
            records,
            store.history.incarnation,
            store.history.step,
            store.history.origin,
            loss,
        )

    def commit(self, commit: Commit) -> Pressure:
        """Check, then apply; nothing can fail in between."""
        store = self._store
        self._require_standing(commit, stored=(commit.seq, commit.seq - 1))
        # Else the same commit again, whose answer was lost: it is answered and not applied.
        if store.seq_by_owner.get(commit.owner, 0) == commit.seq - 1:
            # Lost frames before a full store, as in the script: a commit that may not be made must
            # not be waited for.
            self._refuse_lost_frames(commit)
            store.refuse_without_disk()
            self._refuse_when_full(commit)
            self._apply(commit)
        elif store.digest_by_owner.get(commit.owner) not in (None, commit.digest()):
            raise second_error(commit.owner, commit.seq)
        self._standing = Commit(commit.owner, commit.token_by_task, commit.generation, commit.seq)
        self._restores = store.restores
        for task, cursor in commit.cursors.items():
            brought = self._brought.get(task, deque())
            while brought and brought[0][0] <= _number(cursor.entry):
                brought.popleft()
        fullness = 0.0 if store.max_bytes is None else store.used_bytes() / store.max_bytes
        return Pressure(
            {t: store.task(t).backlog for t in commit.watched}, fullness, store.history.step
        )

    def in_doubt(self) -> InDoubt:
        """Return this owner's record of its last commit, and the entries that it has read and not
        consumed.
        """
        # Copied: what the owner reads next must not change its record as of the lost answer.
        return self._standing, {task: deque(brought) for task, brought in self._brought.items()}

    def forget_answer(self, before: InDoubt) -> None:
        """Undo the effects of the answer to a commit on its owner: it never arrived."""
        self._standing, self._brought = before

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        """Entries behind the given ids."""
        # A poll asks too, not only a commit: an owner without work would otherwise wait for frames
        # that are gone.
        if self._restores != self._store.restores:
            self.look()
        entries = []
        for task, entry in after.items():
            behind = [(n, data) for n, data in self._store.task(task).stream if n > _number(entry)][
                :count
            ]
            entries += [Entry(task, f"{n}-0", data) for n, data in behind]
            self._brought[task] += [(n, len(data)) for n, data in behind]
        return entries

    def look(self) -> None:
        """Compare the last commit, and what was read, with the store."""
        self._require_standing(self._standing, stored=(self._standing.seq,))
        self._refuse_lost_frames(self._standing)
        self._restores = self._store.restores

    def ask(self, after: Mapping[int, str], count: int) -> None:
        """Fetch nothing: `poll` reads at once."""

    def wait(self, timeout_ms: float, wake_fds: Sequence[int] = ()) -> bool:
        """Return at once: simulated time moves by hand."""
        return True

    def release(self) -> None:
        """Trim nothing: commits have trimmed the streams already."""
        self._store.refuse_without_disk()

    def oldest_waiting_ms(self, also: Sequence[int] = (), floor_ms: int = 0) -> int | None:
        """The least of all frames' births and all owners' watermarks."""
        return oldest_waiting(self._store, also)

    def read_state(self, task: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of a task's base."""
        return list(map(self._store.task(task).base.get, keys))

    def scan_state(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """The whole of a task's base, at once."""
        yield list(self._store.task(task).base.items())

    def foreign_cursors(self, tasks: Collection[int]) -> Mapping[tuple[int, int], Cursor]:
        """Cursors in other cells' streams."""
        return foreign_cursors(self._store, tasks)

    def open_taps(self, names: Sequence[str]) -> Collection[str]:
        """Return the open ones."""
        return self._store.taps.keys() & set(names)

    def show(self, samples: Mapping[str, Sequence[bytes]]) -> None:
        """Append them."""
        for name, rows in samples.items():
            tap = self._store.taps.setdefault(name, [])
            number = tap[-1][0] if tap else 0
            tap += enumerate(rows, number + 1)
            del tap[:-MOST_SAMPLES]

    def close(self) -> None:
        """Do nothing: there is no connection to close."""

    def _recognise(self, expected: Expected) -> str:
        """Compare the store with its claimer's mark (law 10); return what it has lost beyond its
        tail.
        """
        store = self._store
        mark = expected.mark
        loss = ""
        is_behind = False
        is_lost = False
        step = store.history.step
        if mark is not None and store.history.incarnation == mark.incarnation:
            is_behind = store.history.step < mark.step or store.history.generation < mark.generation
            is_lost = store.history.step < mark.floor
        elif mark is not None and mark.incarnation not in store.history.former:
            # What a first claimer without a mark has begun is taken for empty: a FLUSHALL in the
            # first seconds left no mark with a floor and passed for a lost tail, and sources read
            # again from their beginning.
            step = store.history.step if mark.generation else 0  # 0: emptied, see claim.lua
            is_behind = True
            is_lost = not step or mark.floor > 0
        elif (
            mark is not None and (former_step := store.history.former[mark.incarnation]) is not None
        ):
            # a claimer that knew less has taken the loss for a tail
            is_lost = former_step < mark.floor
            step = former_step
        if mark is not None and is_lost:
            if not expected.accepts_loss:
                raise lost_error(store.topology_id, mark, step, 0)
            loss = loss_text(store.topology_id, mark, step, 0)
            store.history.former = {**store.history.former, mark.incarnation: None}
        if mark is not None and is_behind:
            store.history.former = store.history.former | dict.fromkeys(
                (mark.incarnation, store.history.incarnation),
                None if is_lost else store.history.step,
            )
            # Behind the newest known write, so that no mark of the former incarnation shows a loss
            # in the new one.
            store.history.step = max(store.history.step, mark.step)
            store.history.generation = max(store.history.generation, mark.generation) + 1
        store.history.origin = store.history.origin or store.topology_id
        if is_behind or not store.history.incarnation:
            store.history.incarnation = expected.new_incarnation
        return loss

    def _require_standing(self, commit: Commit, stored: Sequence[int]) -> None:
        """Laws 2 and 3 but for lost frames: the owner's tokens, generation and seq are those of the
        store.
        """
        store = self._store
        for task, token in commit.token_by_task.items():
            fence = store.task(task).fence
            # An older token than its owner's can only mean that the store has lost the claim; a
            # newer one, that there is a successor.
            if 0 < fence < token:
                self._roll_back(commit, is_store_behind=True)
            if fence != token:
                raise FencedError(f"task {task} belongs to token {fence or 'none'} now")
        seq = store.seq_by_owner.get(commit.owner, 0)
        if store.history.generation != commit.generation or seq not in stored:
            self._roll_back(commit, is_store_behind=seq < commit.seq)

    def _roll_back(self, commit: Commit, is_store_behind: bool) -> None:
        store = self._store
        actual = (
            f"generation {store.history.generation}, seq {store.seq_by_owner.get(commit.owner, 0)}"
        )
        # Only the first call that finds it raises the generation: each further rise would refuse
        # owners that have claimed anew.
        if is_store_behind and store.history.generation == commit.generation:
            store.history.generation += 1
        raise StoreRolledBackError(
            f"commit {commit.seq} of {commit.owner} in generation {commit.generation} found {actual}"
        )

    def _refuse_lost_frames(self, commit: Commit) -> None:
        if self._restores == self._store.restores:
            return
        for task, brought in self._brought.items():
            if not {n for n, _ in brought} <= {n for n, _ in self._store.task(task).stream}:
                self._roll_back(commit, is_store_behind=True)

    def _refuse_when_full(self, commit: Commit) -> None:
        store = self._store
        if store.max_bytes is None or store.used_bytes() < store.max_bytes:
            return
        freed = sum(
            size
            for task, cursor in commit.cursors.items()
            for n, size in self._brought.get(task, ())
            if n <= _number(cursor.entry)
        )
        if not commit.frees(freed):
            raise StoreFullError("the store has reached its limit")

    def _apply(self, commit: Commit) -> None:
        store = self._store
        store.seq_by_owner[commit.owner] = commit.seq
        store.digest_by_owner[commit.owner] = commit.digest()
        store.history.step += 1
        for task, data, counted in commit.frames:
            keys = store.task(task)
            keys.last_number += 1
            keys.stream.append((keys.last_number, data))
            keys.backlog += counted
        for task, cursor in commit.cursors.items():
            keys = store.task(task)
            keys.cursor = cursor
            keys.stream = [(n, data) for n, data in keys.stream if n > _number(cursor.entry)]
        for task, size in commit.drained_bytes.items():
            keys = store.task(task)
            # 0 where nothing is left: foreign frames, which were never counted, must not make the
            # sum wrong for ever.
            keys.backlog = keys.backlog - size if keys.stream else 0
        for (cell, task), passed in commit.foreign.items():
            store.task(task).foreign[cell] = passed.cursor
        self._apply_records(commit)

    def _apply_records(self, commit: Commit) -> None:
        store = self._store
        for task, delta in commit.journal:
            store.task(task).journal.append(delta)
        for task, count in commit.dropped.items():
            del store.task(task).journal[:count]
        for task, name, value in commit.state:
            if value is None:
                store.task(task).base.pop(name, None)
            else:
                store.task(task).base[name] = value
        for task, key in commit.released:
            store.task(task).held.pop(key, None)
        for task, key, data in commit.held:
            store.task(task).held[key] = data
        store.dead_letters += enumerate(commit.parked, store.letters_so_far + 1)
        store.letters_so_far += len(commit.parked)
        del store.dead_letters[:-MOST_DEAD_LETTERS]
        store.quarantine += commit.quarantined
        if commit.progress:
            store.progress_by_owner[commit.owner] = commit.progress
        if commit.earlier is not None:
            index, record = commit.earlier
            store.earlier_by_owner.setdefault(commit.owner, {})[index] = record
        if commit.low_ms is not None:
            store.low_by_owner[commit.owner] = commit.low_ms


def oldest_waiting(store: LocalStore, also: Sequence[int]) -> int | None:
    """Return the birth of the oldest root that waits in a store, as oldest.lua does."""
    waiting = [low for low in store.low_by_owner.values() if low]
    for task, keys in store.task_keys.items():
        if keys.backlog > 0 or task in also or keys.passed != keys.freed:
            done = _number(keys.freed)
            births = (birth_of(data) for number, data in keys.stream if number > done)
            waiting += [birth_ms for birth_ms in births if birth_ms is not None]
    return min(waiting, default=None)


def record_of(keys: TaskKeys) -> TaskRecord:
    """Return what a claim or a reader gets of a task."""
    last = f"{keys.stream[-1][0]}-0" if keys.stream else "0-0"
    return TaskRecord(keys.cursor, list(keys.journal), dict(keys.held), last, dict(keys.foreign))


def _number(entry: str) -> int:
    return int(entry.partition("-")[0])
