"""Opening of connections: the server of an address, the primary that its Sentinels name, or the
node of a cluster that has a slot.

Law: where to connect is asked anew for each connection (decision 63); nothing here is tried twice.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from socket import SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET
from socket import socket as Socket
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    InvalidResponse,
    RedisError,
)
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import TimeoutError as LateError
from redis.retry import Retry
from redis.sentinel import Sentinel

from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.servers.slots import (
    Range,
    is_working,
    primaries,
    primary_of,
    read_slots,
    slot_of,
)

LOST = (LostError, LateError, InvalidResponse, OSError)
"""Errors of a connection that was lost, or of a server that cannot be reached."""

# Distinguished from a server that is away: a wrong password stays wrong, and a worker that went on
# trying would look as if it waited for Redis.
REFUSED = (AuthenticationError, AuthorizationError)
# A node answers questions about its cluster from memory. Half would pass one over on a busy host;
# double adds itself to a fail-over for each configured node that died.
_NODE_ANSWER_S = 1.0
# For so long a Sentinel or node that did not answer is asked behind the others: an idle worker asks
# every five seconds, and would stand still for a second each time. Half asks twice as often; double
# is longer than most restarts.
_AWAY_S = 10.0
_away: dict[str, float] = {}  # place of a Sentinel or node: when it is asked first again
# Of an answer at once: entries are up to twice as large.
_READ_BYTES = 256 << 10


class AccessRefusedError(StoreUnavailableError):
    """Redis answers but refuses access: trying again cannot help."""


def open_connection(
    address: RedisAddress,
    timeout_s: float = 10.0,
    server: tuple[str, int] | None = None,
    role: str = "master",
    tag: str = "",
) -> Connection:
    """A raw connection that never retries, to that server (host, port) if one is given, otherwise to
    the one that the address, its Sentinels or its cluster name; StoreUnavailableError names what to
    check.

    `role`: that a server of Sentinels, or the node of a tag, must have, "master" or "replica".
    `tag`: words in braces; of a cluster the primary that has its slot is taken, and any node without
    one.
    """
    host, port = server or server_of(address, tag)
    connection = _unopened(address, host, port, timeout_s)
    try:
        connect(connection)
        if address.master or (address.nodes and tag):
            _require_role(connection, role)
    except REFUSED as error:
        connection.disconnect()  # type: ignore[no-untyped-call]
        raise refusal(address, error) from error
    except (*LOST, RedisError) as error:
        connection.disconnect()  # type: ignore[no-untyped-call]
        node = f" (node {host}:{port}, as the cluster names it)" if address.nodes else ""
        raise StoreUnavailableError(
            f"Redis at {address.place}{node} cannot be reached: {error}"
        ) from error
    return connection


def server_of(address: RedisAddress, tag: str) -> tuple[str, int]:
    """Return host and port of the server that the address, its Sentinels or its cluster name; raises
    as `open_connection`.
    """
    if address.nodes:
        return _node_of(address, tag)
    return _primary_of(address) if address.master else (address.host, address.port)


def _unopened(address: RedisAddress, host: str, port: int, timeout_s: float) -> Connection:
    """Return a connection to a server that is not made yet."""
    # Not redis.Redis: its pool sends a request again by itself when a connection breaks, and a
    # commit may then be applied twice unnoticed (decision 1).
    kind = SSLConnection if address.tls else Connection
    make: Any = kind  # redis-py leaves its constructors untyped
    connection: Connection = make(
        host=host,
        port=port,
        password=address.password or None,
        username=address.user or None,
        db=address.db,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        # Also of connecting: a worker that waits must give the reason in a heartbeat, and redis-py
        # would wait in silence.
        retry=Retry(NoBackoff(), 0),
        # Version 3 answers some commands with other types; nothing here needs it, and Redis 6.2 to
        # Valkey 9 speak both.
        protocol=2,
        # A health check would put a PING, and its round trip, before a commit.
        health_check_interval=0,
        socket_read_size=_READ_BYTES,
        **address.tls_options(),
    )
    return connection


def primaries_of(address: RedisAddress) -> Sequence[tuple[str, int] | None]:
    """Return host and port of each primary of a cluster that has slots; None alone for another store.

    Raises as `open_connection`.
    """
    return primaries(_slots(address)) if address.nodes else [None]


def servers_of(address: RedisAddress) -> list[RedisAddress]:
    """Return the addresses of the primaries of a cluster, each as that of a server alone; of another
    store its own. Raises as `open_connection`.
    """
    return [
        address if primary is None else replace(address, host=primary[0], port=primary[1], nodes=())
        for primary in primaries_of(address)
    ]


def _node_of(address: RedisAddress, tag: str) -> tuple[str, int]:
    """Return host and port of the primary that has the slot of a tag; of a node that answers,
    without one.
    """
    ranges = _slots(address)
    primary = primary_of(ranges, slot_of(tag)) if tag else (ranges[0].host, ranges[0].port)
    if primary is None:
        raise StoreUnavailableError(
            f"no node of {address.place} has slot {slot_of(tag)}, which is that of {tag}: assign it to one (CLUSTER ADDSLOTS)"
        )
    return primary


def _slots(address: RedisAddress) -> list[Range]:
    """Return the slots as the first configured node has them that answers and takes the cluster for
    whole; StoreUnavailableError when none does, AccessRefusedError when every one refuses our
    password.
    """
    refused, problems, alone = list[RedisError](), list[str](), list[Exception]()
    hosts = address.node_hosts()
    for number in in_order(address.nodes):
        node, (host, port) = address.nodes[number], hosts[number]
        connection = _unopened(address, host, port, _NODE_ANSWER_S)
        try:
            connection.connect()  # type: ignore[no-untyped-call]
            # Also the state: a node that was cut off from the others names the former primaries,
            # itself among them, until it has found them again.
            state, answer = (_asked(connection, "CLUSTER", word) for word in ("INFO", "SLOTS"))
            note_answer(node, has_answered=True)
            if not is_working(state):
                problems.append(f"{node} takes the cluster for down (CLUSTER INFO)")
            elif ranges := read_slots(answer, host):
                return ranges
            else:
                problems.append(f"{node} knows no node with slots")
        except REFUSED as error:
            refused.append(error)
            problems.append(f"{node} refuses our password")
        except (*LOST, RedisError, ValueError) as error:
            if "cluster support disabled" in str(error):
                alone.append(error)
            note_answer(node, has_answered=not isinstance(error, LOST))
            problems.append(f"{node}: {error}")
        finally:
            connection.disconnect()  # type: ignore[no-untyped-call]
    if len(alone) == len(address.nodes):
        raise InvalidConfigError(
            f"Redis at {address.nodes[0]} is no node of a cluster: write redis:// in place of redis+cluster:// in "
            "sparkstorm.redis.url, or set cluster-enabled there"
        ) from alone[0]
    # Of some that let us in one may answer later; when all refuse, patience changes nothing.
    if len(refused) == len(address.nodes):
        raise refusal(address, refused[0])
    raise StoreUnavailableError(f"no node of {address.place} can be used: {'; '.join(problems)}")


def _asked(connection: Connection, *words: str) -> Any:
    """Return the answer to a command; an error reply is raised."""
    connection.send_command(*words)  # type: ignore[no-untyped-call]
    return connection.read_response()


def in_order(places: Sequence[str]) -> list[int]:
    """Return the numbers of Sentinels or nodes in the order in which to ask them: those that did not
    answer lately come last.
    """
    now = time.monotonic()
    return sorted(range(len(places)), key=lambda number: _away.get(places[number], 0.0) > now)


def note_answer(server: str, has_answered: bool) -> None:
    """Take note whether a Sentinel or node has answered."""
    if has_answered:
        _away.pop(server, None)
    else:
        _away[server] = time.monotonic() + _AWAY_S


@contextmanager
def sentinels_of(address: RedisAddress) -> Iterator[Any]:
    """Return redis-py's client of the Sentinels, which is closed at the end; it tries nothing twice."""
    options = {**address.sentinel_options(), "retry": Retry(NoBackoff(), 0)}
    watch: Any = Sentinel(address.sentinel_hosts(), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    try:
        yield watch
    finally:
        for sentinel in watch.sentinels:
            sentinel.close()


def _primary_of(address: RedisAddress) -> tuple[str, int]:
    """Ask the Sentinels where the primary is, and return what the newest configuration says: a
    Sentinel that was cut off together with a primary still names that one.

    StoreUnavailableError when none of them names one, AccessRefusedError when every one refuses our
    password.
    """
    refused, problems = list[RedisError](), list[str]()
    primary_by_epoch: dict[int, tuple[str, int]] = {}  # by the epoch of a Sentinel's configuration
    newest = -1
    now = time.monotonic()
    with sentinels_of(address) as watch:
        # Not redis-py's own loop, whose error shows every setting of each connection, and tells a
        # refused password from a dead Sentinel in its text alone.
        for number in in_order(address.sentinels):
            where, sentinel = address.sentinels[number], watch.sentinels[number]
            if primary_by_epoch and _away.get(where, 0.0) > now:
                break
            try:
                state = sentinel.sentinel_masters().get(address.master)
            except REFUSED as error:
                refused.append(error)
                problems.append(f"{where} refuses our password")
            except (*LOST, RedisError) as error:
                note_answer(where, has_answered=False)
                problems.append(f"{where}: {error}")
            else:
                note_answer(where, has_answered=True)
                newest = max(newest, int(state["config-epoch"]) if state else -1)
                if state and watch.check_master_state(state, address.master):
                    primary_by_epoch[int(state["config-epoch"])] = (
                        str(state["ip"]),
                        int(state["port"]),
                    )
                else:
                    fault = "takes it for dead" if state else "knows no such name"
                    problems.append(f"{where} {fault}")
    # Not an older one: that of a primary which the newest has replaced.
    if newest in primary_by_epoch:
        return primary_by_epoch[newest]
    # Of some that let us in one may name the primary later; when all refuse, patience changes nothing.
    if len(refused) == len(address.sentinels):
        fault = (
            "refuse our password" if address.sentinel_password else "want a password, none is set"
        )
        raise AccessRefusedError(
            f"the Sentinels at {', '.join(address.sentinels)} {fault} "
            f"(sparkstorm.redis.sentinel.password): {refused[0]}"
        )
    raise StoreUnavailableError(
        f"no Sentinel names a primary {address.master}: {'; '.join(problems)}"
    )


def _require_role(connection: Connection, wanted: str) -> None:
    """Refuse a server of another role, a replica or one that will be one above all: a Sentinel may be
    behind, and a replica would answer reads.
    """
    # HELLO and not ROLE, which a viewer may not ask.
    said = _asked(connection, "HELLO", "2")
    words = said if isinstance(said, list) else []
    raw_role = dict(zip(words[::2], words[1::2], strict=False)).get(b"role")
    role = raw_role.decode(errors="replace") if isinstance(raw_role, bytes) else "server of no role"
    if role != wanted:
        other = "primary" if wanted == "master" else wanted
        raise LostError(
            f"the server at {connection.host}:{connection.port} is a {role}, no {other}"
        )


def refusal(address: RedisAddress, error: Exception) -> AccessRefusedError:
    """Return the error of a server that refuses access, the same for every version.

    Without a password, Redis 6.2, 7.2 and Valkey refuse the client's greeting (CLIENT SETINFO).
    Redis 7.0 does not know that greeting, answers "unknown subcommand", which redis-py ignores, and
    refuses only the first real request.
    """
    fault = (
        "refuses our password"
        if address.password
        else "wants a password and none is set (sparkstorm.redis.password)"
    )
    return AccessRefusedError(f"Redis at {address.place} {fault}: {error}")


def connect(connection: Connection) -> None:
    """Connect and greet; the kernel keeps the time-out then, where Python would ask `poll` before
    every send and receive.
    """
    connection.connect()  # type: ignore[no-untyped-call]
    socket: Any = connection._sock
    if type(socket) is Socket and sys.platform == "linux" and (timeout_s := socket.gettimeout()):
        # Python asks poll() before each send and receive of a socket with a time-out. That is a
        # system call more for each, on the path of every commit.
        limit = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1_000_000))
        socket.setsockopt(SOL_SOCKET, SO_RCVTIMEO, limit)
        socket.setsockopt(SOL_SOCKET, SO_SNDTIMEO, limit)
        socket.settimeout(None)
