"""Reader of a topology over several stores: a composition of the readers of its cells.

Law: what belongs to a task is read in the store of its cell, and what waits for it in all. Two
stores have no moment in common: counts of all cells are of one moment when no store was written
meanwhile, and `is_one_moment` says whether the last ones were. Left out: counting by vectors of
positions, as a snapshot of a distributed system does: every commit would have to keep counts by
cell, for a look that a quiet second answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from sparkstorm.common.model.tasks import cell_by_task
from sparkstorm.data_plane.transport.base import START, Reader, TaskInputs, TaskRecord, entry_order
from sparkstorm.data_plane.transport.progress import Progress

_MARK = "@"
# A look at idle stores is the first; a busy topology is not quiet at the tenth either.
_LOOKS = 3


class CellReader(Reader, Protocol):
    """Reader of one cell's store."""

    def progress_and_backlog(self) -> tuple[dict[str, bytes], dict[int, int]]:
        """Return both as of one moment."""

    def newest_step(self) -> int:
        """Return the number of the store's newest write."""


class CellsReader:
    """Reader over the stores of all cells, in their order; `names` are the stores'.

    Ids of dead letters end with `@` and the name of their store.
    """

    def __init__(
        self,
        readers: Sequence[CellReader],
        names: Sequence[str],
        components: Callable[[], Mapping[int, str]],
    ) -> None:
        """`components`: the component of each task."""
        self._readers = readers
        self._by_name = dict(zip(names, readers, strict=True))
        self._components = components
        self.is_one_moment = True

    @cached_property
    def _cells(self) -> Mapping[int, int]:
        return cell_by_task(self._components(), len(self._readers))

    def _of(self, task: int) -> CellReader:
        return self._readers[self._cells.get(task, 0)]

    def progress(self) -> dict[str, bytes]:
        """Progress record of every owner; of an owner that has had several cells the newest is
        under its name.
        """
        return _united([reader.progress() for reader in self._readers])

    def earlier(self) -> dict[str, list[bytes]]:
        """Return the earlier progress records of each owner, of all cells."""
        records_by_owner: dict[str, list[bytes]] = {}
        for reader in self._readers:
            for owner, records in reader.earlier().items():
                records_by_owner.setdefault(owner, []).extend(records)
        return records_by_owner

    def backlog(self) -> dict[int, int]:
        """Bytes that wait for each task, in the stores of all its senders."""
        return _added([reader.backlog() for reader in self._readers])

    def progress_and_backlog(self) -> tuple[dict[str, bytes], dict[int, int]]:
        """Return both, of one moment if the stores are quiet for so long."""
        for _ in range(_LOOKS):
            before = [reader.newest_step() for reader in self._readers]
            answers = [reader.progress_and_backlog() for reader in self._readers]
            self.is_one_moment = before == [reader.newest_step() for reader in self._readers]
            if self.is_one_moment:
                break
        return _united([progress for progress, _ in answers]), _added(
            [backlog for _, backlog in answers]
        )

    def record(self, task: int) -> TaskRecord:
        """Return what the store of a task's cell keeps of it."""
        return self._of(task).record(task)

    def scan_state(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield a task's base in parts."""
        return self._of(task).scan_state(task)

    def inputs(self, task: int, limit: int) -> TaskInputs:
        """Return what waits for a task, of each store at most `limit` entries, the oldest."""
        own = self._of(task).inputs(task, limit)
        cursors = self._of(task).record(task).foreign
        foreign = []
        for cell, reader in enumerate(self._readers):
            if cell != self._cells.get(task, 0):
                cursor = cursors.get(cell, START)
                # What was consumed stays a while, at least the newest of it.
                entries = [
                    entry
                    for entry in reader.inputs(task, limit).entries
                    if entry_order(entry[0]) > entry_order(cursor.entry)
                ]
                foreign.append(TaskInputs(cursor, {}, entries))
        return replace(own, foreign=foreign)

    # -- dead letters ------------------------------------------------------------------------------

    def parked(self, limit: int, after: str = "0") -> list[tuple[str, bytes]]:
        """Return the oldest dead letters of each store in turn, behind that id."""
        id, name = _parts(after)
        begun = name not in self._by_name
        parked: list[tuple[str, bytes]] = []
        for store_name, reader in self._by_name.items():
            behind = id if store_name == name else "0"
            begun = begun or store_name == name
            if begun and len(parked) < limit:
                letters = reader.parked(limit - len(parked), behind)
                parked += [(f"{letter_id}{_MARK}{store_name}", data) for letter_id, data in letters]
        return parked

    def letters(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return dead letters by id; those that are not there (any more) are left out."""
        data_by_id = {}
        for name, own in self._by_store(ids).items():
            letters = self._by_name[name].letters(list(own))
            data_by_id.update({own[id]: data for id, data in letters.items()})
        return data_by_id

    def put_back(self, letters: Sequence[tuple[str, int, bytes]]) -> list[str]:
        """Take letters off and deliver their frames, those of each store in one step."""
        letter_by_id = {letter[0]: letter for letter in letters}
        done: list[str] = []
        for name, own in self._by_store(list(letter_by_id)).items():
            here = [(id, *letter_by_id[whole_id][1:]) for id, whole_id in own.items()]
            done += [own[id] for id in self._by_name[name].put_back(here)]
        return done

    def count_dead_letters(self) -> int:
        """Return how many dead letters are kept."""
        return sum(reader.count_dead_letters() for reader in self._readers)

    def drop_dead_letter(self, id: str) -> bool:
        """Delete one dead letter; False when it is not there."""
        own, name = _parts(id)
        return name in self._by_name and self._by_name[name].drop_dead_letter(own)

    def drop_dead_letters(self) -> int:
        """Delete the topology's dead letters; return how many there were."""
        return sum(reader.drop_dead_letters() for reader in self._readers)

    def _by_store(self, ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return ids as their stores have them, with the whole ones, by the name of the store."""
        ids_by_store: dict[str, dict[str, str]] = {}
        for whole_id in ids:
            id, name = _parts(whole_id)
            if name in self._by_name:
                ids_by_store.setdefault(name, {})[id] = whole_id
        return ids_by_store

    # -- taps --------------------------------------------------------------------------------------

    def open_tap(self, name: str) -> str:
        """Open a tap in every store; return the ids of their newest samples."""
        return ",".join(reader.open_tap(name) for reader in self._readers)

    def samples(self, name: str, after: str) -> list[tuple[str, bytes]]:
        """Return a tap's samples behind these ids, store by store; each id says how far all are
        read.
        """
        last = after.split(",")
        samples = []
        for cell, reader in enumerate(self._readers):
            for id, data in reader.samples(name, last[cell]):
                last[cell] = id
                samples.append((",".join(last), data))
        return samples

    def delete(self) -> None:
        """End the topology in all its stores."""
        for reader in self._readers:
            reader.delete()


class RedisCellsReader(CellsReader):
    """The same over Redis, with what lies in the first store alone."""

    _readers: Sequence[Any]

    def log_slots(self) -> list[str]:
        """Return the slots ("node:port") of the workers whose logs are kept."""
        slots: list[str] = self._readers[0].log_slots()
        return slots

    def log(self, slot: str, after: str = "0") -> list[tuple[str, bytes]]:
        """Return the kept parts of one worker's log with ids greater than `after`."""
        chunks: list[tuple[str, bytes]] = self._readers[0].log(slot, after)
        return chunks

    def close(self) -> None:
        """Close the connections."""
        for reader in self._readers:
            reader.close()


def _parts(id: str) -> tuple[str, str]:
    own, _, name = id.partition(_MARK)
    return own, name


def _united(records: Sequence[Mapping[str, bytes]]) -> dict[str, bytes]:
    data_by_owner: dict[str, bytes] = {}
    for cell, by_owner in enumerate(records):
        for owner, data in by_owner.items():
            other_data = data_by_owner.get(owner)
            if (
                other_data is not None
                and Progress.decode(other_data).now_ms > Progress.decode(data).now_ms
            ):
                data_by_owner[f"{owner}{_MARK}{cell}"] = data
                continue
            if other_data is not None:
                data_by_owner[f"{owner}{_MARK}-{cell}"] = other_data
            data_by_owner[owner] = data
    return data_by_owner


def _added(backlogs: Sequence[Mapping[int, int]]) -> dict[int, int]:
    size_by_task = Counter[int]()
    for backlog in backlogs:
        size_by_task.update(backlog)
    return size_by_task
