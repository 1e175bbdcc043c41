"""Dead letters that a topology keeps in Redis: read, put back to their tasks, dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from sparkstorm.common.clock import SystemClock
from sparkstorm.common.errors import (
    MalformedFrameError,
    NotAliveError,
    StoreInconsistentError,
)
from sparkstorm.common.model.assignment import TaskInfo
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.requests import topology_name
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.connection import links_to_all
from sparkstorm.data_plane.transport.keys import Keys, topology_of
from sparkstorm.data_plane.transport.reader import names_of

Read = Callable[[int, str], list[tuple[str, bytes]]]
"""(limit, id) -> the oldest stored letters behind that id, with their ids."""

AT_ONCE = 100  # a letter may be as large as a commit
# of frames in one step of a replay: the server does nothing else meanwhile
_BYTES_AT_ONCE = 1 << 20
_PATIENCE_S = 5.0


class LetterStore(Protocol):
    """The part of a `transport.base.Reader` that deals with dead letters."""

    def parked(self, limit: int, after: str = "0") -> list[tuple[str, bytes]]: ...
    def letters(self, ids: Sequence[str]) -> dict[str, bytes]: ...
    def put_back(self, letters: Sequence[tuple[str, int, bytes]]) -> list[str]: ...
    def count_dead_letters(self) -> int: ...
    def drop_dead_letter(self, id: str) -> bool: ...
    def drop_dead_letters(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """Outcome of a replay: ids of the letters that were put back, and of those that were not there
    any more.
    """

    done: tuple[str, ...]
    missing: tuple[str, ...]


class StoredLetters:
    """Dead letters of one topology; they stay when the topology is gone, until they are dropped."""

    def __init__(
        self,
        topology_id: str,
        store: LetterStore,
        tasks: Callable[[], Mapping[int, TaskInfo]],
        status: Callable[[], TopologyStatus | None],
        require_writer: Callable[[], None],
    ) -> None:
        self.topology_id = topology_id
        self._store = store
        self._tasks = tasks
        self._status = status
        self._require_writer = require_writer
        self._clock = SystemClock()

    def stored(self, limit: int, after: str = "0") -> list[tuple[str, bytes]]:
        """Return the oldest letters with ids greater than `after`, as they are stored."""
        return self._store.parked(limit, after)

    def __iter__(self) -> Iterator[tuple[str, DeadLetter | None, bytes]]:
        return stored_letters(self._store.parked)

    def read(self, limit: int = 100, after: str = "0") -> dict[str, DeadLetter]:
        """Return the oldest letters with ids greater than `after`, by id; letters that cannot be
        read are left out.
        """
        return {
            id: letter
            for id, data in self._store.parked(limit, after)
            if (letter := decoded(data)) is not None
        }

    def get(self, id: str) -> DeadLetter | None:
        """Return a letter by its id; None when it is not there, or cannot be read."""
        data = self._store.letters([id]).get(id)
        return None if data is None else decoded(data)

    def count(self) -> int:
        """Return how many letters are kept."""
        return self._store.count_dead_letters()

    def count_of(self, code_version: str) -> int:
        """Return how many letters that code parked; every letter is read."""
        return sum(
            letter is not None and letter.failure.code_version == code_version
            for _, letter, _ in self
        )

    def replay(self, ids: Iterable[str]) -> Replayed:
        """Put letters back to their tasks: each is taken off the dead letters and delivered in one
        step, so exactly once.

        NotAliveError when the topology does not run; StoreInconsistentError names a letter that
        does not fit it.
        """
        self._require_writer()
        status = self._status()
        if status is None or status is TopologyStatus.KILLED:
            raise NotAliveError(
                f"{self.topology_id} does not run any more, so its dead letters cannot be replayed; they can be shown and dropped"
            )
        done: list[str] = []
        missing: list[str] = []
        rest = iter(ids)
        while several := list(islice(rest, AT_ONCE)):
            back = set(self._put_back(several))
            for id in several:
                (done if id in back else missing).append(id)
                back.discard(id)  # one that is named twice is there once
        return Replayed(tuple(done), tuple(missing))

    def drop(self, ids: Iterable[str] | None = None) -> int:
        """Delete these letters, or all; return how many were there."""
        self._require_writer()
        if ids is None:
            return self._store.drop_dead_letters()
        return sum(self._store.drop_dead_letter(id) for id in ids)

    def _put_back(self, ids: Sequence[str]) -> list[str]:
        """Put letters back in steps of bounded size; those before one that does not fit are put
        back before its error.
        """
        done: list[str] = []
        waiting: list[tuple[str, int, bytes]] = []
        data_by_id = self._store.letters(ids)
        try:
            for id in ids:
                if (data := data_by_id.get(id)) is not None:
                    waiting.append(self._frame_of(id, data))
                    if sum(len(frame) for _, _, frame in waiting) >= _BYTES_AT_ONCE:
                        several = waiting
                        waiting = []
                        done += self._store.put_back(several)
        finally:
            if waiting:
                done += self._store.put_back(waiting)
        return done

    def _frame_of(self, id: str, data: bytes) -> tuple[str, int, bytes]:
        """Return id, task and frame of a letter; StoreInconsistentError when it does not fit the
        topology.
        """
        from sparkstorm.data_plane.transport.frames import encode_replayed  # needs numpy

        letter = decoded(data)
        if letter is None:
            raise StoreInconsistentError(
                f"dead letter {id} of {self.topology_id} cannot be read; it can only be dropped"
            )
        try:
            sender, values = letter.replayed()
        except StoreInconsistentError as error:
            raise StoreInconsistentError(
                f"dead letter {id} of {self.topology_id}: {error}; it can only be dropped"
            ) from error
        for task, component in ((letter.task, letter.component), (sender, letter.source_component)):
            info = self._tasks().get(task)
            if info is None or info.component_id != component:
                raise StoreInconsistentError(
                    f"dead letter {id} names task {task} of component '{component}', which {self.topology_id} does not have; "
                    "it can only be dropped"
                )
        return (
            id,
            letter.task,
            encode_replayed(Codec(), sender, letter.stream, self._clock.now_ms(), values),
        )


def stored_in(address: RedisAddress, topology: str | None = None) -> dict[str, int]:
    """Return the number of dead letters by topology id, of all topologies or of one by its name or
    id.
    """
    count_by_id = {}
    for link in links_to_all(address, _PATIENCE_S, may_write=False):
        with closing(link):
            for key in names_of(link, "{", ":dead", "stream"):
                topology_id = topology_of(key) or ""
                if (
                    topology in (None, topology_id, topology_name(topology_id))
                    and Keys(topology_id)("dead") == key
                ):
                    count_by_id[topology_id] = int(link.ask(("XLEN", key))[0])
    return {topology_id: count for topology_id, count in sorted(count_by_id.items()) if count}


def stored_letters(read: Read) -> Iterator[tuple[str, DeadLetter | None, bytes]]:
    """Read all of a topology's stored letters in steps: id, letter (None for no record of ours) and
    bytes.
    """
    last = "0"
    while letters := read(AT_ONCE, last):
        for id, data in letters:
            yield id, decoded(data), data
            last = id


def decoded(data: bytes) -> DeadLetter | None:
    """Return a stored letter; None when the bytes are no record of ours."""
    try:
        return DeadLetter.decode(Codec(is_lenient=True), data)
    except (MalformedFrameError, StoreInconsistentError):
        return None
