"""Reading of another cell's store in Redis: a connection for entries, one for proofs and for what
is freed.

Law: nothing here waits for a store that is away, since the owner's own cell goes on without it; and
nothing is read on a connection before the server behind it has shown that it still has what was
read before. With durability `replica` it is the primary that shows it, and a replica of the
primary's history that is read: it has what was read, or will have it. With `disk` the server shows
also that it syncs before it answers. Only `trim` writes there, and only what may
come twice. The reading itself is that of an owner in its own store (data_plane/transport/reading.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparkstorm.common.errors import StoreFullError, StoreRolledBackError, StoreUnavailableError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.base import Cursor, Entry
from sparkstorm.data_plane.transport.connection import Link, Script, pack, text
from sparkstorm.data_plane.transport.durability import (
    CONNECT_S,
    ON_DISK,
    ON_REPLICAS,
    SETTINGS,
    ReplicaBeside,
    require_synced,
)
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.transport.reading import StreamRead
from sparkstorm.extensions.cells.cells import Trim

# Between two tries of a store that is away, doubled each time. Half of the last stands still twice
# as often for a host that is gone (1 s of 5.0); double takes twice as long to see it come back.
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 5.0


class RedisForeign:
    """Reading of another cell's Redis, or of a replica of it."""

    def __init__(
        self, address: RedisAddress, topology_id: str, cell: int, durability: str = "process"
    ) -> None:
        self._address = address
        self._keys = Keys(topology_id)
        self._cell = cell
        self._link = Link(
            address, 0.0, _wait_for_nothing, timeout_s=CONNECT_S, tag=self._keys.prefix
        )
        self._replica = ReplicaBeside(self._link, address) if durability == ON_REPLICAS else None
        self._is_synced = durability == ON_DISK
        self._reading = StreamRead(self._replica or self._link, self._keys, CONNECT_S)
        self._prove_script = Script("prove.lua", self._link)
        self._pass_script = Script("pass.lua", self._link)
        self._oldest_script = Script("oldest.lua", self._link)
        self._cursors: dict[int, Cursor] = {}
        self._pause_s = 0.0  # before the next try; 0: the store is there
        self._retry_s = 0.0

    def begin(self, cursor_by_task: Mapping[int, Cursor]) -> Mapping[int, str]:
        """Ask the server once, on a new connection; InvalidConfigError when it is not durable."""
        self._cursors = dict(cursor_by_task)
        self._reading.forget(list(cursor_by_task))
        self._reading.doubt()
        self._pause_s = 0.0
        answer = self._ask_proof()
        if answer[0] != b"LOST":
            if answer[0] == b"OK":
                self._reading.note_proven()
            return {}
        return {
            int(task): text(entry) for task, entry in zip(answer[1::2], answer[2::2], strict=True)
        }

    def poll(self, after: Mapping[int, str], count: int) -> Sequence[Entry]:
        """Read, and before that ask a server that was connected to anew what it still has."""
        if self._reading.was_lost and after:
            if time.monotonic() < self._retry_s and self._pause_s:
                return ()
            answer = self._ask_proof()
            if answer[0] in (b"LOST", b"GONE"):
                raise StoreRolledBackError(
                    f"the store of cell {self._cell} has lost entries that task {text(answer[1])} has read"
                )
            if answer[0] != b"OK":
                return ()
            self._reading.note_proven()
        return self._reading.poll(after, count)

    def ask(self, after: Mapping[int, str], count: int) -> None:
        """Keep the question for the next wait."""
        self._reading.wanted = (dict(after), count) if after else None

    def note_stored(self, cursor_by_task: Mapping[int, Cursor]) -> None:
        """Forget what the cursors have passed."""
        self._cursors |= cursor_by_task
        self._reading.unconsumed.pass_(cursor_by_task)

    def trim(self, trims: Sequence[Trim]) -> None:
        """Have pass.lua free entries."""
        self._refuse_while_away()
        words = [word for trim in trims for word in trim]
        try:
            self._pass_script.call(self._keys.prefix, lambda: words)
        except StoreUnavailableError:
            self._note_away()
            raise

    def oldest_waiting_ms(self, also: Sequence[int], floor_ms: int) -> int | None:
        """The least of all frames' births and all owners' watermarks there."""
        self._refuse_while_away()
        try:
            oldest_ms = self._oldest_script.call(self._keys.prefix, lambda: [floor_ms, *also])[0]
        except StoreUnavailableError:
            self._note_away()
            raise
        return int(oldest_ms) if oldest_ms else None

    def listen(self) -> Sequence[int]:
        """Return the socket of the open question."""
        socket = None if self._reading.was_lost else self._reading.listen()
        return () if socket is None else (socket.fileno(),)

    @property
    def has_read(self) -> bool:
        """Return whether an answer is here that `poll` has not taken."""
        return self._reading.has_answers

    @property
    def retry_ms(self) -> float | None:
        """Return when the server is to be asked for its proof."""
        if not self._reading.was_lost:
            return None
        return max(0.0, 1000 * (self._retry_s - time.monotonic())) if self._pause_s else 0.0

    def close(self) -> None:
        """Close both connections."""
        self._link.close()
        self._reading.drop()
        if self._replica is not None:
            self._replica.close()

    def _ask_proof(self) -> Sequence[bytes]:
        """Return the answer of prove.lua, [b"AWAY"] when there is none, or none may be used."""
        # Another connection may mean another server, restarted from an older file: the one at hand
        # may be to the server that was.
        self._link.close()
        words: list[Any] = [len(self._cursors)]
        words += [word for task, cursor in self._cursors.items() for word in (task, cursor.entry)]
        words += self._reading.unconsumed.pairs()
        try:
            answer: Sequence[bytes] = self._prove_script.call(self._keys.prefix, lambda: words)
            if answer[0] == b"OK" and self._replica is not None:
                self._replica.find(CONNECT_S)
            if answer[0] == b"OK" and self._is_synced:
                require_synced(self._link.insist(lambda: pack(*SETTINGS))[0], self._address)
        except (StoreUnavailableError, StoreFullError):
            self._note_away()
            return [b"AWAY"]
        if answer[0] in (b"ENDED", b"BROKEN"):
            self._note_away()
        else:
            self._pause_s = 0.0
        return answer

    def _note_away(self) -> None:
        self._pause_s = min(_LAST_RETRY_S, max(_FIRST_RETRY_S, 2 * self._pause_s))
        self._retry_s = time.monotonic() + self._pause_s

    def _refuse_while_away(self) -> None:
        if self._pause_s and time.monotonic() < self._retry_s:
            raise StoreUnavailableError(f"the store of cell {self._cell} is away")


def _wait_for_nothing(reason: str) -> None:
    raise StoreUnavailableError(reason)
