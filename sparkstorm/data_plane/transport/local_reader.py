"""In-process twins of the Redis reader and of the writer of initial journals, over the dicts of a
LocalStore.

Law: no call here takes part in a claim or commit; what Redis does in one script is one call. A tap
that was opened stays open and a tombstone stays for good, since a simulation, which has only
simulated time, has no use for their expiry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sparkstorm.common.errors import FencedError, NotAliveError
from sparkstorm.data_plane.transport.base import START, TaskInputs, TaskRecord
from sparkstorm.data_plane.transport.local import LocalStore, TaskKeys, record_of


class LocalReader:
    """Reader over a LocalStore."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def progress(self) -> dict[str, bytes]:
        """Progress record of every owner."""
        return dict(self._store.progress_by_owner)

    def earlier(self) -> dict[str, list[bytes]]:
        """Return the earlier progress records of each owner."""
        earlier_by_owner = self._store.earlier_by_owner
        return {owner: list(records.values()) for owner, records in earlier_by_owner.items()}

    def backlog(self) -> dict[int, int]:
        """Bytes that wait in each task's stream."""
        return {task: keys.backlog for task, keys in self._store.task_keys.items()}

    def record(self, task: int) -> TaskRecord:
        """Return the stored record of a task."""
        return record_of(self._store.task(task))

    def scan_state(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield a task's base, at once."""
        yield list(self._store.task(task).base.items())

    def inputs(self, task: int, limit: int) -> TaskInputs:
        """Return what waits for a task."""
        keys = self._store.task(task)
        record = self.record(task)
        entries = [(f"{number}-0", data) for number, data in keys.stream[:limit]]
        return TaskInputs(record.cursor, record.held, entries)

    def parked(self, limit: int, after: str = "0") -> list[tuple[str, bytes]]:
        """Return the oldest dead letters with ids greater than `after`, with their ids."""
        behind = int(after.partition("-")[0])
        return [
            (f"{number}-0", data) for number, data in self._store.dead_letters if number > behind
        ][:limit]

    def letters(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return dead letters by id."""
        letter_by_id = {f"{number}-0": data for number, data in self._store.dead_letters}
        return {id: letter_by_id[id] for id in ids if id in letter_by_id}

    def put_back(self, letters: Sequence[tuple[str, int, bytes]]) -> list[str]:
        """Move dead letters, as frames, into the streams of their tasks; return the ids that were
        there.
        """
        # All first: a letter that cannot go back must not keep others from being where they were.
        for _, task, _ in letters:
            if not self._store.task(task).fence:
                raise NotAliveError(
                    f"no worker has claimed task {task} yet; replay its dead letters later"
                )
        self._store.refuse_without_disk()
        return [id for id, task, frame in letters if self._moved(id, self._store.task(task), frame)]

    def _moved(self, id: str, keys: TaskKeys, frame: bytes) -> bool:
        # Taken off before it is appended, in one call: two clients that replay it at once deliver
        # it once.
        if not self.drop_dead_letter(id):
            return False
        keys.last_number += 1
        keys.stream.append((keys.last_number, frame))
        keys.backlog += len(frame)
        self._store.history.step += 1
        return True

    def count_dead_letters(self) -> int:
        """Return how many dead letters are kept."""
        return len(self._store.dead_letters)

    def drop_dead_letter(self, id: str) -> bool:
        """Delete one dead letter."""
        letters = [letter for letter in self._store.dead_letters if f"{letter[0]}-0" != id]
        is_there = len(letters) < len(self._store.dead_letters)
        self._store.dead_letters[:] = letters
        return is_there

    def drop_dead_letters(self) -> int:
        """Delete the dead letters."""
        count = len(self._store.dead_letters)
        self._store.dead_letters.clear()
        return count

    def open_tap(self, name: str) -> str:
        """Open a tap for good."""
        samples = self._store.taps.setdefault(name, [])
        return f"{samples[-1][0]}-0" if samples else START.entry

    def samples(self, name: str, after: str) -> list[tuple[str, bytes]]:
        """Return a tap's samples with ids greater than `after`, with their ids."""
        behind = int(after.partition("-")[0])
        return [
            (f"{number}-0", data)
            for number, data in self._store.taps.get(name, ())
            if number > behind
        ]

    def delete(self) -> None:
        """Forget everything but the dead letters, and leave a tombstone."""
        self._store.end()


class LocalSeeding:
    """The twin of RedisSeeding, under the same laws."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def sow(self, task: int, entries: Iterable[bytes]) -> None:
        """Give a task its journal."""
        self._unclaimed(task).journal = list(entries)

    def clear_base(self, task: int) -> None:
        """Empty the base of a task that has no journal yet."""
        if not (keys := self._unclaimed(task)).journal:
            keys.base.clear()

    def add_base(self, task: int, pairs: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write packed keys and values of a task that has no journal yet."""
        if not (keys := self._unclaimed(task)).journal:
            keys.base.update((key, value) for key, value in pairs if value is not None)

    def base_size(self, task: int) -> int:
        """Return the number of keys."""
        return len(self._unclaimed(task).base)

    def _unclaimed(self, task: int) -> TaskKeys:
        if self._store.has_ended or any(keys.fence for keys in self._store.task_keys.values()):
            raise FencedError(
                "the topology has run or ended already: what its tasks have is newer than any checkpoint"
            )
        return self._store.task(task)
