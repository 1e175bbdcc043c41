"""Connections to Redis: opening, requests and replies, repeated sending of requests that are safe
to repeat, errors.

Law: connections here never retry by themselves, and every error is one of ours. The caller decides
whether a request may be sent twice: `insist` and `ask` send until they are answered, `ask_once`
gives up at the first trouble. Left out: redis-py's client with its pool, which repeats a request
whose answer was lost, and would double a commit (decision 1). Its connection and hiredis' parser
are used as they are; a protocol of our own would be code for nothing.
"""

from __future__ import annotations

import re
import struct
import sys
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import chain
from socket import SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET
from socket import socket as Socket
from typing import Any

import hiredis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    InvalidResponse,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import TimeoutError as LateError
from redis.retry import Retry

from sparkstorm.errors import StoreFullError, StoreInconsistentError, StoreUnavailableError
from sparkstorm.model.compiled import core
from sparkstorm.model.worker_spec import RedisAddress
from sparkstorm.transport.log_rewrite import LogRewrite

LOST = (LostError, LateError, InvalidResponse, OSError)
Packed = Sequence[bytes]

# Distinguished from a server that is away: a wrong password stays wrong, and a worker that went on
# trying would look as if it waited for Redis.
_REFUSED = (AuthenticationError, AuthorizationError)
# codes of replies that a little patience may mend; inside a script's error they are anywhere in the
# text codes of a server that is no primary, not yet one again, or cut from its replicas, which may
# have another by now: the next try asks anew where the primary is
_ELSEWHERE = ("READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED", "NOREPLICAS")
_PASSING = ("LOADING", "BUSY ", "TRYAGAIN", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS")
MISCONF = "MISCONF"  # the code of Redis for a server that cannot write its files
_MEND_BY_CODE = {
    "OOM ": " (raise its maxmemory, or delete what fills it)",
    MISCONF: " (make room on its disk)",
}
_FULL = tuple(_MEND_BY_CODE)
# a script's error for a value that is no number
_DAMAGED = re.compile(r"DAMAGED\[(.*?)\]\[(.*?)\]", re.DOTALL)
# A restarted Redis is used at most this long after it answers. Half would ask a server that loads
# its file eight times a second for each worker; a second would add itself to every fail-over.
_LONGEST_PAUSE_S = 0.25
# A word above it is sent from where it lies. In commits of 2 MB in entries of 256 kB that took 1.5
# to 1.6 ms of Python per MB instead of 2.6 to 3.9, on a loaded machine (commit 59824bb7, with the
# reads below). Half and double were not measured.
_LARGE_WORD = 16 << 10
# Parts up to this size are joined, because each system call may wake the server: a commit and the
# read that travels with it would be two wakes. Above it the copy costs more than that.
_SENT_AT_ONCE = 64 << 10
# Between two looks of a link that only asks, whether a store has another primary by now. Half would
# ask the Sentinels twice as often; double would show what a primary that was cut off had for ten
# seconds.
CHECK_S = 5.0
# Of an answer at once: entries are up to twice as large.
_READ_BYTES = 256 << 10


class AccessRefusedError(StoreUnavailableError):
    """Redis answers but refuses access: trying again cannot help."""


def open_connection(
    address: RedisAddress,
    timeout_s: float = 10.0,
    server: tuple[str, int] | None = None,
    role: str = "master",
) -> Connection:
    """A raw connection that never retries, to that server (host, port) if one is given, otherwise to
    the one that the address or its Sentinels name; StoreUnavailableError names what to check.

    `role`: that a server of Sentinels must have, "master" or "replica".
    """
    # Not redis.Redis: its pool sends a request again by itself when a connection breaks, and a
    # commit may then be applied twice unnoticed (decision 1).
    kind = SSLConnection if address.tls else Connection
    make: Any = kind  # redis-py leaves its constructors untyped
    if server is not None:
        host, port = server
    else:
        host, port = _primary_of(address) if address.master else (address.host, address.port)
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
    try:
        connect(connection)
        if address.master:
            _require_role(connection, role)
    except _REFUSED as error:
        connection.disconnect()  # type: ignore[no-untyped-call]
        raise _refusal(address, error) from error
    except (*LOST, RedisError) as error:
        connection.disconnect()  # type: ignore[no-untyped-call]
        raise StoreUnavailableError(
            f"Redis at {address.place} cannot be reached: {error}"
        ) from error
    return connection


def _primary_of(address: RedisAddress) -> tuple[str, int]:
    """Ask the Sentinels, one after the other, where the primary is; StoreUnavailableError when none
    of them names one, AccessRefusedError when every one refuses our password.
    """
    # Here, because it takes all of redis-py with it (`stores/redis_parts.py`).
    from redis.sentinel import Sentinel

    options = {**address.sentinel_options(), "retry": Retry(NoBackoff(), 0)}
    watch: Any = Sentinel(address.sentinel_hosts(), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    refused, problems = list[RedisError](), list[str]()
    try:
        # Not redis-py's own loop, whose error shows every setting of each connection, and tells a
        # refused password from a dead Sentinel in its text alone.
        for place, each in zip(address.sentinels, watch.sentinels, strict=True):
            try:
                state = each.sentinel_masters().get(address.master)
            except _REFUSED as error:
                refused.append(error)
                problems.append(f"{place} refuses our password")
            except (*LOST, RedisError) as error:
                problems.append(f"{place}: {error}")
            else:
                if state and watch.check_master_state(state, address.master):
                    return str(state["ip"]), int(state["port"])
                problems.append(f"{place} {'takes it for dead' if state else 'knows no such name'}")
    finally:
        for each in watch.sentinels:
            each.close()
    # Of some that let us in one may name the primary later; when all refuse, patience mends nothing.
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
    connection.send_command("HELLO", 2)  # type: ignore[no-untyped-call]
    said = connection.read_response()
    role = text(dict(zip(said[::2], said[1::2], strict=False)).get(b"role"))
    if role != wanted:
        other = "primary" if wanted == "master" else wanted
        raise LostError(
            f"the server at {connection.host}:{connection.port} is a {role}, no {other}"
        )


def _refusal(address: RedisAddress, error: Exception) -> AccessRefusedError:
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


def send(connection: Connection, packed: Packed) -> None:
    """Send packed requests; small ones go out together, so that the server is woken once."""
    if len(packed) > 1 and sum(map(len, packed)) <= _SENT_AT_ONCE:
        packed = (b"".join(packed),)
    socket: Any = connection._sock  # redis-py's own way of sending calls it once for each part
    try:
        for part in packed:
            socket.sendall(part)
    except BlockingIOError as error:  # of the kernel's time-out
        raise LateError("it takes in nothing more") from error


def pack(*words: Any) -> Packed:
    """Return a command as the parts to send; large words are parts of their own, which nothing
    copies.
    """
    return pack_words([*words])


def pack_all(commands: Sequence[tuple[Any, ...]]) -> Packed:
    """Return several commands as the parts to send."""
    return [part for command in commands for part in pack(*command)]


def pack_words(head: list[Any], commands: list[tuple[Any, ...]] | None = None) -> Packed:
    """Return the same for one request of these words and of these commands, each behind its
    length.
    """
    # The compiled core packs a request in one call; the loop below is its twin where no compiler
    # was.
    if (
        core is not None
        and (packed := core.pack_words(head, commands or [], _LARGE_WORD)) is not None
    ):
        return [packed]
    words = [*head, *(word for command in commands or () for word in (len(command), *command))]
    if not any(type(word) is bytes and len(word) >= _LARGE_WORD for word in words):
        return [hiredis.pack_command(tuple(words))]
    parts = list[bytes]()
    small = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if type(word) is bytes else str(word).encode()
        small.append(b"$%d\r\n" % len(data))
        if len(data) >= _LARGE_WORD:
            parts += b"".join(small), data
            small = [b"\r\n"]
        else:
            small += data, b"\r\n"
    return [*parts, b"".join(small)]


def text(data: Any) -> str:
    """A reply as text."""
    return data.decode(errors="backslashreplace") if isinstance(data, bytes) else str(data)


class Link:
    """One request-reply connection that is made again when lost; the caller decides what may be
    sent twice.

    `on_wait` is called with the problem before every new try. Only a link that may write has the
    append-only file rewritten. `check_s`: how often a question asks the Sentinels first whether the
    server is still the primary.
    """

    def __init__(
        self,
        address: RedisAddress,
        patience_s: float,
        on_wait: Callable[[str], None] = lambda _: None,
        may_write: bool = True,
        timeout_s: float = 10.0,
        check_s: float = CHECK_S,
    ) -> None:
        self._address = address
        self._check_s = check_s
        self._check_due_s = 0.0
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._on_wait = on_wait
        # A viewer may not rewrite the server's file, and need not wait for it: what it reads comes
        # from memory, which is right.
        self._may_write = may_write
        self._connection: Connection | None = None
        # of the present connection: another number may mean another, restarted, server
        self.number = 0

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        if self._connection is not None:
            self._connection.disconnect()  # type: ignore[no-untyped-call]
            self._connection = None

    def leave_if_moved(self) -> bool:
        """Close the connection where the Sentinels name another primary by now; return whether.

        A primary that is cut from its replicas and the Sentinels answers reads for ever, with what
        it had. Sentinels that do not answer change nothing.
        """
        if self._connection is None or not self._address.master:
            return False
        try:
            place = _primary_of(self._address)
        except StoreUnavailableError:
            return False
        if place == (self._connection.host, self._connection.port):
            return False
        self.close()
        return True

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as the last request has shown."""
        return self._connection is not None

    def open_beside(self, timeout_s: float) -> Connection:
        """Open another connection to the server that this one is connected to;
        StoreUnavailableError when there is none.
        """
        # Not by the address: after a fail-over one Sentinel may still name the former primary, and
        # what that took since then is in no store.
        if self._connection is None:
            raise StoreUnavailableError(f"there is no connection to Redis at {self._address.place}")
        return open_connection(
            self._address, timeout_s, (self._connection.host, self._connection.port)
        )

    def insist(self, make: Callable[[], Packed], replies: int = 1) -> list[Any]:
        """Send until answered, for requests that may be applied twice; `make` packs the request for
        each try.

        Error replies are returned as values. StoreUnavailableError when patience is over, or access
        is refused.
        """
        # The request is made anew for each try, because its content depends on the connection: on a
        # new one a commit names the frames that it has read (law 3).
        deadline = time.monotonic() + self._patience_s
        pause_s = 0.01
        while True:
            try:
                answers = self._exchange(make, replies)
                passing = [a for a in answers if _is_passing(a)]
                if not passing:
                    return answers
                problem: Exception = passing[0]
                if is_elsewhere(problem):
                    self.close()
            # At once: a wrong password stays wrong.
            except AccessRefusedError:
                raise
            except (*LOST, StoreUnavailableError) as error:
                problem = error
            if time.monotonic() > deadline:
                raise StoreUnavailableError(
                    f"Redis at {self._address.place} did not come back in {self._patience_s:g} s: {problem}"
                ) from problem
            # From within the wait: a worker that beat only between commits was killed as hung by
            # its own slot when its Redis was away for longer than the worker time-out.
            self._on_wait(str(problem))
            time.sleep(pause_s)
            # Doubling from 10 ms: a connection that was cut while the server lives on costs one
            # pause, and a server that restarts is not asked a hundred times a second by every
            # worker.
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def ask_once(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Answers of commands that are not worth waiting for: StoreUnavailableError at the first
        trouble.
        """
        self._check()
        packed = pack_all(commands)
        try:
            answers = self._exchange(lambda: packed, len(commands))
        except LOST as error:
            raise StoreUnavailableError(
                f"Redis at {self._address.place} does not answer: {error}"
            ) from error
        for answer in answers:
            if _is_passing(answer):
                self.close()
                raise StoreUnavailableError(
                    f"Redis at {self._address.place} cannot answer now: {answer}"
                ) from answer
            if isinstance(answer, Exception):
                raise translated(answer) from answer
        return answers

    def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Answers of commands that may be applied twice, in one round trip; the first error reply
        is raised.
        """
        self._check()
        packed = pack_all(commands)
        answers = self.insist(lambda: packed, len(commands))
        for answer in answers:
            if isinstance(answer, Exception):
                raise translated(answer) from answer
        return answers

    def _check(self) -> None:
        """Leave a server that is no longer the primary, if it is time to ask."""
        if self._address.master and time.monotonic() > self._check_due_s:
            self._check_due_s = time.monotonic() + self._check_s
            self.leave_if_moved()

    def _exchange(self, make: Callable[[], Packed], replies: int) -> list[Any]:
        try:
            if self._connection is None:
                # A new number also when the server is the same: that cannot be known here, and the
                # check costs one look.
                self._connection = open_connection(self._address, self._timeout_s)
                self.number += 1
                self._make_log_whole(self._connection)
            send(self._connection, make())
            return [receive(self._connection) for _ in range(replies)]
        except _REFUSED as error:
            self.close()
            raise _refusal(self._address, error) from error
        except LOST:
            self.close()
            raise

    def _make_log_whole(self, connection: Connection) -> None:
        """Have the file of a restarted server made whole, which may end in half a transaction:
        another connection may mean such a server.
        """
        if not self._may_write:
            return
        try:
            LogRewrite(connection, self._patience_s, self._on_wait).finish()
        except (StoreFullError, StoreUnavailableError):
            self.close()
            raise


class Script:
    """A script kept on the server under its hash, loaded again whenever the server has forgotten
    it.
    """

    def __init__(self, file: str, link: Link) -> None:
        self._source = files("sparkstorm.transport").joinpath(file).read_bytes()
        self._link = link
        self._sha = b""

    def call(self, prefix: str, make: Callable[[], list[Any]]) -> list[Any]:
        """The script's answer; `make` gives the arguments of each try. Refusals are raised as
        errors of ours.
        """
        return list(self.call_with(prefix, make)[0])

    def call_with(
        self,
        prefix: str,
        make: Callable[[], list[Any]],
        commands: list[tuple[Any, ...]] | None = None,
        then: Sequence[Packed] = (),
    ) -> list[Any]:
        """The script's answer, and those of packed requests that may be applied twice, sent behind
        it in the same round trip.

        `commands` follow the arguments, each behind its length.
        """

        def request() -> Packed:
            packed = pack_words(["EVALSHA", self._sha, 1, prefix, *make()], commands)
            return [*packed, *chain.from_iterable(then)] if then else packed

        while True:
            if not self._sha:
                self._sha = self._link.ask(("SCRIPT", "LOAD", self._source))[0]
            answer, *others = self._link.insist(request, 1 + len(then))
            if isinstance(answer, NoScriptError):
                self._sha = b""
            elif isinstance(answer, Exception):
                raise translated(answer) from answer
            else:
                return [list(answer), *others]


def translated(error: Exception) -> Exception:
    """An error reply as one of ours."""
    message = str(error)
    if match := _DAMAGED.search(message):
        return damaged(match[1], match[2])
    if code := next(
        (code for code in _FULL if code in message),
        "OOM " if isinstance(error, OutOfMemoryError) else None,
    ):
        told = message[max(0, message.find(code)) :]  # without the script's name and line
        return StoreFullError(f"Redis refuses writes: {told}{_MEND_BY_CODE[code]}")
    if isinstance(error, _REFUSED) or "NOAUTH" in message or "WRONGPASS" in message:
        return AccessRefusedError(f"Redis refuses our password: {message}")
    return StoreInconsistentError(f"Redis answered: {message}")


def damaged(key: str, found: Any) -> StoreInconsistentError:
    """The error for a record of ours with a content that we never write."""
    return StoreInconsistentError(
        f"the key {key} in Redis is damaged (it holds {text(found)!r:.80}), and its topology cannot go on without it: restore a "
        "backup of the key, or kill the topology and submit it again"
    )


def _is_passing(answer: Any) -> bool:
    if not isinstance(answer, Exception):
        return False
    if isinstance(answer, ReadOnlyError | TryAgainError | ClusterDownError):
        return True
    return any(code in str(answer) for code in _PASSING)


def is_elsewhere(answer: Exception) -> bool:
    """Return whether a server answers that it is not the primary, has not its data yet, or has lost
    its replicas: another may be the primary, and its connection is of no more use.
    """
    return isinstance(answer, ReadOnlyError) or any(code in str(answer) for code in _ELSEWHERE)


def receive(connection: Connection) -> Any:
    """Return the next reply, an error reply as a value."""
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
    except LostError as error:
        if isinstance(error.__context__, BlockingIOError):  # of the kernel's time-out
            raise LateError("it does not answer") from error
        raise
