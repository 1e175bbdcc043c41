"""Connections to Redis: requests and replies, repeated sending of requests that are safe to repeat,
errors.

Law: connections here never retry by themselves, and every error is one of ours. The caller decides
whether a request may be sent twice: `insist` and `ask` send until they are answered, `ask_once`
gives up at the first trouble. Left out: redis-py's client with its pool, which repeats a request
whose answer was lost, and would double a commit (decision 1). Its connection and hiredis' parser
are used as they are; a protocol of our own would be code for nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import chain
from typing import Any

import hiredis
from redis.connection import Connection
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import TimeoutError as LateError

from sparkstorm.common.errors import (
    FencedError,
    InvalidConfigError,
    StoreFullError,
    StoreInconsistentError,
    StoreUnavailableError,
)
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.log_rewrite import LogRewrite
from sparkstorm.data_plane.transport.servers.opening import (
    LOST,
    REFUSED,
    AccessRefusedError,
    open_connection,
    primaries_of,
    refusal,
    server_of,
)

Packed = Sequence[bytes]

# Codes of a server that is no primary, not yet one again, or cut from its replicas, of which another
# may be the primary by now: the next try asks anew where the primary is.
_ELSEWHERE = ("READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED", "NOREPLICAS")
# Codes of replies that a little patience may fix; inside a script's error they are anywhere in the
# text.
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


def require_own(process: int) -> None:
    """FencedError in a fork of the process that connected: it would send, and take answers, in the
    name of the other.
    """
    if os.getpid() != process:
        raise FencedError(
            f"a connection to Redis of process {process} cannot be used in its fork {os.getpid()}: "
            "end the fork with os._exit, or connect there anew"
        )


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
        tag: str = "",
        server: tuple[str, int] | None = None,
    ) -> None:
        """`tag`: beginning of all keys of the link's requests, with a word in braces, which is never a
        key itself; a cluster needs it. `server`: host and port of one node of a cluster.
        """
        self._server = server
        self._address = address
        self._check_s = check_s
        self._check_due_s = 0.0
        self._tag = tag
        # whether others say which server is the primary
        self._is_watched = bool(address.master or (address.nodes and tag))
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._on_wait = on_wait
        # A viewer may not rewrite the server's file, and need not wait for it: what it reads comes
        # from memory, which is right.
        self._may_write = may_write
        self._connection: Connection | None = None
        self._process = os.getpid()
        # of the present connection: another number may mean another, restarted, server
        self.number = 0

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        if self._connection is not None:
            self._connection.disconnect()  # type: ignore[no-untyped-call]
            self._connection = None

    def leave_if_moved(self) -> bool:
        """Close the connection where the Sentinels, or the cluster, name another primary by now;
        return whether.

        A primary that is cut from its replicas and the Sentinels answers reads for ever, with what
        it had. Sentinels that do not answer, or cannot be asked now, change nothing.
        """
        if self._connection is None or not self._is_watched:
            return False
        try:
            server = server_of(self._address, self._tag)
        except (StoreUnavailableError, InvalidConfigError):
            return False
        if server == (self._connection.host, self._connection.port):
            return False
        self.close()
        return True

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as the last request has shown."""
        return self._connection is not None

    def open_separate(self, timeout_s: float) -> Connection:
        """Open another connection to the server that this one is connected to;
        StoreUnavailableError when there is none.
        """
        # Not by the address: after a fail-over one Sentinel may still name the former primary, and
        # what that took since then is in no store.
        if self._connection is None:
            raise StoreUnavailableError(f"there is no connection to Redis at {self._address.place}")
        return open_connection(
            self._address,
            timeout_s,
            (self._connection.host, self._connection.port),
            tag=self._tag,
        )

    def settled(self) -> int:
        """Return the number of a connection to a server that has all keys of the tag: of a cluster a
        node to or from which they are not being moved.
        """
        if self._address.nodes and self._tag:
            # A key that never exists: while its slot is moved it is asked for elsewhere at once.
            # TYPE, since a viewer may ask for it.
            self.ask(("TYPE", f"{self._tag}:nothing"))
        elif self._connection is None:
            self.ask(("PING",))
        return self.number

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
                transient = [a for a in answers if is_transient(a)]
                if not transient:
                    return answers
                problem: Exception = self._told(transient[0])
                if any(map(is_elsewhere, transient)):
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
            if is_transient(answer):
                problem = self._told(answer)
                self.close()
                raise StoreUnavailableError(
                    f"Redis at {self._address.place} cannot answer now: {problem}"
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
        if self._is_watched and time.monotonic() > self._check_due_s:
            self._check_due_s = time.monotonic() + self._check_s
            self.leave_if_moved()

    def _told(self, answer: Exception) -> Exception:
        """Return a passing answer in words; InvalidConfigError for a redirection by a server that
        was not configured as a node of a cluster.
        """
        if not isinstance(answer, AskError):
            return answer
        slot, to = f"slot {answer.slot_id}", f"{answer.host}:{answer.port}"
        if not self._address.nodes:
            raise InvalidConfigError(
                f"Redis at {self._address.place} is a node of a cluster (it names {to} for {slot}): write redis+cluster:// in "
                "place of redis:// in sparkstorm.redis.url"
            ) from answer
        if isinstance(answer, MovedError):
            return LostError(f"{slot} ({self._tag}) has moved to {to}")
        return TryAgainError(
            f"{slot} ({self._tag}) is on its way to {to}; work goes on when it is there"
        )

    def _exchange(self, make: Callable[[], Packed], replies: int) -> list[Any]:
        require_own(self._process)
        try:
            if self._connection is None:
                # A new number also when the server is the same: that cannot be known here, and the
                # check costs one look.
                self._connection = open_connection(
                    self._address, self._timeout_s, self._server, tag=self._tag
                )
                self.number += 1
                self._make_log_whole(self._connection)
            send(self._connection, make())
            return [receive(self._connection) for _ in range(replies)]
        except REFUSED as error:
            self.close()
            raise refusal(self._address, error) from error
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


def links_to_all(address: RedisAddress, patience_s: float, may_write: bool = True) -> list[Link]:
    """Return a link to each primary of a cluster, for what goes over all keys; one to any other
    store.
    """
    return [
        Link(address, patience_s, may_write=may_write, server=server)
        for server in primaries_of(address)
    ]


class Script:
    """A script kept on the server under its hash, loaded again whenever the server has forgotten
    it.
    """

    def __init__(self, file: str, link: Link) -> None:
        self._source = files("sparkstorm.data_plane.transport").joinpath(file).read_bytes()
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
    if isinstance(error, REFUSED) or "NOAUTH" in message or "WRONGPASS" in message:
        return AccessRefusedError(f"Redis refuses our password: {message}")
    return StoreInconsistentError(f"Redis answered: {message}")


def damaged(key: str, value: Any) -> StoreInconsistentError:
    """The error for a record of ours with a content that we never write."""
    return StoreInconsistentError(
        f"the key {key} in Redis is damaged (it holds {text(value)!r:.80}), and its topology cannot go on without it: restore a "
        "backup of the key, or kill the topology and submit it again"
    )


def is_transient(answer: Any) -> bool:
    """Return whether an answer is an error that patience may fix, a redirection among them."""
    if not isinstance(answer, Exception):
        return False
    if isinstance(answer, ReadOnlyError | TryAgainError | ClusterDownError | AskError):
        return True
    return any(code in str(answer) for code in _PASSING)


def is_elsewhere(answer: Exception) -> bool:
    """Return whether a server answers that it is not the primary, has not its data yet, or has lost
    its replicas: another may be the primary, and its connection is of no more use.

    Not of ASK and TRYAGAIN: the slot is being moved, and until that has ended no node has all of its
    keys. A script that were sent on would find, or write, a part of them (decision 70).
    """
    if isinstance(answer, ReadOnlyError | MovedError | ClusterDownError):
        return True
    return any(code in str(answer) for code in _ELSEWHERE)


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
