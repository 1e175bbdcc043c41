"""Durability of cells: the data of a store that owners in other cells may see, or free by.

Law of `disk`: each store of the topology syncs its append-only file before it answers
(`appendfsync always`). So whatever an owner has read, its own cursors included, is on disk, and
reads go to the primary as with `process`. The settings are asked for on each connection to another
store before anything is read there, and together with the cursors that others may free by. Left
out: reading up to the last WAITAOF answer, which delays each hop by up to a second where the store
syncs once a second, and is unknown to Redis before 7.2.

Law of `replica`: an owner reads the stores of other cells from replicas, and frees
there what its own cursors have passed in its own replica store. So nothing that another cell
has seen is lost when a replica is promoted, and commits wait for no replica. A replica counts only
while it follows the server that the owner is connected to: both name the same history
(`master_replid`). One of another history may have entries that no server will ever have again.
Sentinels end the connections to a server that they promote, or give another primary. Left out: WAIT
after each commit, which costs every commit the way to the replica, and closes no window either.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from redis.connection import Connection
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import RedisError

from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.base import Cursor
from sparkstorm.data_plane.transport.connection import (
    Link,
    pack,
    pack_all,
    receive,
    send,
    text,
    translated,
)
from sparkstorm.data_plane.transport.keys import Keys, read_cursors_by_cell
from sparkstorm.data_plane.transport.servers.opening import (
    LOST,
    in_order,
    open_connection,
    sentinels_of,
    servers_of,
)

DURABILITY = "topology.cells.durability"
ON_DISK = "disk"
ON_REPLICAS = "replica"
SETTINGS = ("CONFIG", "GET", "*append*")
"""Command whose answer `require_synced` checks: one pattern, since several are new in Redis 7."""
# While a script of another client runs for long, fsync waits with everything else; a rewrite of the
# file is no reason to leave it out.
_SYNCED = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
# A host that is gone answers nothing, and a worker that connects to it stands still for so long.
# Half passes over servers that are busy; double doubles the pause.
CONNECT_S = 1.0
# What is not freed costs memory in other cells' stores and nothing else. A replica that stands still
# stops the worker for the time limit at each try (1 s): half would be two fifths of its time. With
# double it takes so much longer to notice a new one.
_RETRY_S = 5.0
# Of a check before a topology begins: the other requests of Nimbus wait meanwhile. Half refuses
# submissions over stores that are busy, double doubles the wait for a host that is gone.
_CHECK_S = 1.0


def require_durable(durability: str, stores: Sequence[RedisAddress]) -> None:
    """InvalidConfigError names the first of these stores that cannot keep what `durability` says;
    StoreUnavailableError one that would have to be asked and does not answer.
    """
    for store in stores:
        if durability == ON_REPLICAS and not store.master:
            raise InvalidConfigError(
                f"{DURABILITY} is replica, and the store {_name(store)} has no Sentinels, which alone know replicas: "
                "give redis+sentinel:// for each store of the topology, or leave the key at process"
            )
        if durability == ON_DISK:
            for server in servers_of(store):
                with contextlib.closing(_link_without_patience(server, _CHECK_S)) as link:
                    require_synced(link.insist(lambda: pack(*SETTINGS))[0], store)


def require_synced(answer: Any, store: RedisAddress) -> None:
    """InvalidConfigError unless a server's answer to SETTINGS says that it syncs before it
    answers.
    """
    where = f"{DURABILITY} is disk, and the store {_name(store)}"
    or_process = "or leave the key at process"
    if isinstance(answer, Exception):
        raise InvalidConfigError(
            f"{where} does not say whether it syncs before it answers ({answer}): allow the user of sparkstorm.redis.url "
            f"the command (+config|get), {or_process}; where CONFIG is forbidden for good there is no disk"
        )
    pairs = list(map(text, answer or ()))
    there = dict(zip(pairs[::2], pairs[1::2], strict=False))
    for name, wanted in _SYNCED.items():
        if (actual := there.get(name, "hidden")) != wanted:
            raise InvalidConfigError(
                f"{where} has {name} {actual}, so a power cut takes back what others have read: set {name} {wanted} there "
                f"(CONFIG SET {name} {wanted}, then CONFIG REWRITE), {or_process}"
            )


def _name(store: RedisAddress) -> str:
    return store.name or store.place


def _link_without_patience(store: RedisAddress, timeout_s: float, tag: str = "") -> Link:
    # Nothing is written: no rewrite of the file is to be waited for.
    return Link(store, 0.0, may_write=False, timeout_s=timeout_s, tag=tag)


class SyncedCursors:
    """An owner's cursors in other cells' streams, from a server that syncs before it answers."""

    def __init__(self, address: RedisAddress, topology_id: str, timeout_s: float = 1.0) -> None:
        self._address = address
        self._keys = Keys(topology_id)
        self._link = _link_without_patience(address, timeout_s, self._keys.prefix)

    def foreign_cursors(self, tasks: Collection[int]) -> Mapping[tuple[int, int], Cursor]:
        """Return the cursors of these tasks, asked for once; InvalidConfigError when the server does
        not sync.
        """
        names = [self._keys("foreign", task) for task in tasks]
        packed = pack_all([*(("HGETALL", name) for name in names), SETTINGS])
        # On one connection: it is the server of the cursors that says how it syncs.
        *answers, settings = self._link.insist(lambda: packed, len(names) + 1)
        require_synced(settings, self._address)
        return _cursors_of(tasks, names, answers)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()


def _cursors_of(
    tasks: Collection[int], names: Sequence[str], answers: Sequence[Any]
) -> Mapping[tuple[int, int], Cursor]:
    for answer in answers:
        if isinstance(answer, Exception):
            raise translated(answer) from answer
    return {
        (cell, task): cursor
        for task, name, pairs in zip(tasks, names, answers, strict=True)
        for cell, cursor in read_cursors_by_cell(pairs, name).items()
    }


class ReplicaBeside:
    """Opens readings at a replica of the server to which a link is connected."""

    def __init__(self, link: Link, address: RedisAddress) -> None:
        self._link = link
        self._address = address
        self._found: Connection | None = None  # for the next reading
        self._place = ("", 0)  # of the replica that was found last

    @property
    def number(self) -> int:
        """Number of the link's connection."""
        return self._link.number

    def find(self, timeout_s: float) -> None:
        """Connect to a replica, for the next reading; StoreUnavailableError when there is none."""
        self.close()
        number = self._link.number
        said = self._link.ask_once(("INFO", "replication"))[0]
        if self._link.number != number:
            raise StoreUnavailableError(f"Redis at {self._address.place} was connected to anew")
        self._found = open_replica(self._address, _history(said), timeout_s)
        self._place = (self._found.host, self._found.port)

    def open_separate(self, timeout_s: float) -> Connection:
        """Return the connection that was found; StoreUnavailableError when there is none."""
        connection, self._found = self._found, None
        if connection is None:
            raise StoreUnavailableError(f"no replica of {self._address.place} was looked for")
        return connection

    def leave_if_moved(self) -> bool:
        """Close the link's connection where there is another primary; return whether that is so, or
        another replica is to be read: one that has lost its primary answers for ever.
        """
        was = self._place
        if self._link.leave_if_moved():
            return True
        with contextlib.suppress(StoreUnavailableError):
            self.find(CONNECT_S)
        self.close()
        return self._place != was

    def close(self) -> None:
        """Close a connection that no reading has taken."""
        if self._found is not None:
            self._found.disconnect()  # type: ignore[no-untyped-call]
            self._found = None


class ReplicaCursors:
    """An owner's cursors in other cells' streams, as its own replica store has them."""

    def __init__(self, address: RedisAddress, topology_id: str, timeout_s: float = 1.0) -> None:
        self._address = address
        self._keys = Keys(topology_id)
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self._due_s = 0.0

    def foreign_cursors(self, tasks: Collection[int]) -> Mapping[tuple[int, int], Cursor]:
        """Return the cursors of these tasks, asked for once."""
        names = [self._keys("foreign", task) for task in tasks]
        answers = self._ask([("HGETALL", name) for name in names])
        return _cursors_of(tasks, names, answers)

    def _ask(self, commands: list[tuple[str, str]]) -> list[Any]:
        if self._connection is None and time.monotonic() < self._due_s:
            raise StoreUnavailableError(f"there was no replica of {self._address.place}")
        self._due_s = time.monotonic() + _RETRY_S
        try:
            if self._connection is None:
                self._connection = self._open()
            # The role behind the answers: it was a replica when it gave them.
            send(self._connection, pack_all([*commands, ("ROLE",)]))
            *answers, role = [receive(self._connection) for _ in range(len(commands) + 1)]
            for answer in (*answers, role):
                if isinstance(answer, Exception):
                    raise answer
            if role[0] != b"slave":
                raise LostError(f"it is a {text(role[0])}, no replica")
        except (*LOST, RedisError) as error:
            self.close()
            raise StoreUnavailableError(
                f"a replica of {self._address.place} does not answer: {error}"
            ) from error
        return answers

    def _open(self) -> Connection:
        primary = open_connection(self._address, self._timeout_s)
        try:
            send(primary, pack("INFO", "replication"))
            history = _history(receive(primary))
        finally:
            primary.disconnect()  # type: ignore[no-untyped-call]
        return open_replica(self._address, history, self._timeout_s)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.disconnect()  # type: ignore[no-untyped-call]
            self._connection = None


def open_replica(address: RedisAddress, history: str, timeout_s: float) -> Connection:
    """Open a connection to a replica that follows a primary of this history; StoreUnavailableError
    says why each does not do.
    """
    problems = []
    for host, port in _replicas_of(address):
        connection = None
        try:
            connection = open_connection(address, timeout_s, (host, port), "replica")
            send(connection, pack("INFO", "replication"))
            said = _fields(receive(connection))
        except (*LOST, StoreUnavailableError) as error:
            if connection is not None:
                connection.disconnect()  # type: ignore[no-untyped-call]
            problems.append(f"{host}:{port}: {error}")
            continue
        if said.get("master_link_status") == "up" and said.get("master_replid") == history:
            return connection
        connection.disconnect()  # type: ignore[no-untyped-call]
        problems.append(f"{host}:{port} does not follow it")
    raise StoreUnavailableError(
        f"{address.place} has no replica that could be read: {'; '.join(problems) or 'none'}"
    )


def _replicas_of(address: RedisAddress) -> list[tuple[str, int]]:
    """Return host and port of the replicas that the first Sentinel that answers takes for alive."""
    with sentinels_of(address) as watch:
        for number in in_order(address.sentinels):
            with contextlib.suppress(*LOST, RedisError):
                return [
                    (str(replica["ip"]), int(replica["port"]))
                    for replica in watch.sentinels[number].sentinel_slaves(address.master)
                    if not (
                        replica["is_sdown"] or replica["is_odown"] or replica["is_disconnected"]
                    )
                ]
    return []


def _history(said: Any) -> str:
    """Return the history of which a primary's INFO speaks."""
    return _fields(said).get("master_replid", "")


def _fields(said: Any) -> dict[str, str]:
    """Return the fields of an INFO; none of an error."""
    if not isinstance(said, bytes):
        return {}
    parts = (line.partition(":") for line in text(said).splitlines())
    return {name: value for name, colon, value in parts if colon}
