"""Owns the data plane on Redis streams: one stream per task, one script per commit, and every key below {topology-id}.

Why a script and not MULTI/EXEC: fence, generation and seq are compared on the server, so that sending the very same
bytes again after a cut connection is always safe, and no state (WATCH) hangs on a connection that may be gone.
A commit's first write is one that Redis refuses when memory is full, so a refused commit changed nothing.
docs/keys.md lists the keys. Connections here never retry by themselves (redis-py would double commits).
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.retry import Retry

from sparkstorm.errors import (
    FencedError,
    StoreFullError,
    StoreInconsistentError,
    StoreRolledBackError,
    StoreUnavailableError,
)
from sparkstorm.transport.base import START, Claim, Commit, Cursor, Entry, Pressure, TaskRecord

_LOST = (redis.ConnectionError, redis.TimeoutError, OSError)
_FIELD = b"f"
_BLOCK_MS = 5_000
_FULLNESS_EVERY_S = 0.5


class RedisAddress(NamedTuple):
    """Where Redis is and how to enter."""

    host: str
    port: int
    password: str | None = None
    db: int = 0
    username: str | None = None
    tls: bool = False


class Keys:
    """Names of a topology's keys; the braces keep them on one shard of a Redis Cluster."""

    def __init__(self, topology_id: str) -> None:
        self.prefix = "{%s}" % topology_id

    def __call__(self, *parts: object) -> str:
        return ":".join([self.prefix, *map(str, parts)])

    def stream(self, task: int) -> str:
        """The stream of one task's frames."""
        return f"{self.prefix}:task:{task}"


def open_connection(address: RedisAddress, timeout_s: float = 10.0) -> Connection:
    """A raw connection that never retries; StoreUnavailableError says what to check."""
    kind = redis.SSLConnection if address.tls else Connection
    connection = kind(host=address.host, port=address.port, password=address.password, username=address.username,
                      db=address.db, socket_timeout=timeout_s, socket_connect_timeout=timeout_s,
                      retry=Retry(NoBackoff(), 0), protocol=2, health_check_interval=0)
    try:
        connection.connect()
    except redis.AuthenticationError as error:
        raise StoreUnavailableError(f"Redis at {address.host}:{address.port} refuses our password: {error}") from error
    except _LOST as error:
        raise StoreUnavailableError(f"Redis at {address.host}:{address.port} cannot be reached: {error}") from error
    return connection


class _Link:
    """One request-reply connection that is made again when lost; what to do about a lost reply is the caller's."""

    def __init__(self, address: RedisAddress, patience_s: float) -> None:
        self._address = address
        self._patience_s = patience_s
        self._connection: Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None

    def exchange(self, packed: Sequence[bytes], replies: int = 1) -> list[Any]:
        """Send and read so many replies; error replies are returned as values, lost connections raised."""
        if self._connection is None:
            self._connection = open_connection(self._address)
        try:
            self._connection.send_packed_command(packed, check_health=False)
            return [self._reply(self._connection) for _ in range(replies)]
        except _LOST:
            self.close()
            raise

    def insist(self, packed: Sequence[bytes], replies: int = 1) -> list[Any]:
        """Send the same bytes until they are answered: only for requests that may be applied twice."""
        deadline = time.monotonic() + self._patience_s
        pause_s = 0.01
        while True:
            try:
                answers = self.exchange(packed, replies)
                if not any(_is_passing(a) for a in answers):
                    return answers
                problem: Exception = answers[-1] if isinstance(answers[-1], Exception) else StoreUnavailableError("busy")
            except (*_LOST, StoreUnavailableError) as error:
                problem = error
            if time.monotonic() > deadline:
                raise StoreUnavailableError(
                    f"Redis at {self._address.host}:{self._address.port} did not come back in {self._patience_s:.0f} s: "
                    f"{problem}") from problem
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.25)

    @staticmethod
    def _reply(connection: Connection) -> Any:
        try:
            return connection.read_response()
        except redis.ResponseError as error:
            return error


class RedisTransport:
    """One owner's way to Redis: a connection for commits, one for reading."""

    def __init__(self, address: RedisAddress, topology_id: str, patience_s: float = 60.0) -> None:
        self._address = address
        self._keys = Keys(topology_id)
        self._link = _Link(address, patience_s)
        self._reader: Connection | None = None
        self._is_asked = False
        self._pack = Connection().pack_command
        self._commit_script = _Script("commit.lua", self._link, self._pack)
        self._claim_script = _Script("claim.lua", self._link, self._pack)
        self._stream_by_task: dict[int, bytes] = {}
        self._task_by_stream: dict[bytes, int] = {}
        self._fullness = 0.0
        self._fullness_due = 0.0

    def claim(self, owner: str, token_by_task: Mapping[int, int]) -> Claim:
        """Write the tokens, then read cursor, journal and held inputs of every task."""
        tasks = sorted(token_by_task)
        if tasks:
            answer = self._claim_script.run(self._keys.prefix, [*tasks, *(token_by_task[t] for t in tasks)])
            if answer[0] != b"OK":
                raise FencedError(f"task {_text(answer[1])} belongs to token {_text(answer[2])} now")
        for task in tasks:
            name = self._keys.stream(task).encode()
            self._stream_by_task[task], self._task_by_stream[name] = name, task
        generation, seq, progress = self._many([
            ("GET", self._keys("generation")), ("HGET", self._keys("seq"), owner), ("HGET", self._keys("progress"), owner)])
        return Claim(int(generation or 0), int(seq or 0), progress or b"", {t: self.record(t) for t in tasks})

    def record(self, task: int) -> TaskRecord:
        """What the store keeps of a task."""
        k = self._keys
        cursor, snapshot, journal, held, newest = self._many([
            ("HGET", k("cursor"), task), ("GET", k("snapshot", task)), ("LRANGE", k("journal", task), 0, -1),
            ("HGETALL", k("held", task)), ("XREVRANGE", k.stream(task), "+", "-", "COUNT", 1)])
        pairs = zip(held[::2], held[1::2], strict=True)
        return TaskRecord(_cursor(cursor), snapshot, list(journal), {_text(key): data for key, data in pairs},
                          _text(newest[0][0]) if newest else "0-0")

    def commit(self, commit: Commit) -> Pressure:
        """One script call, sent again unchanged until its outcome is known."""
        tasks = list(commit.token_by_task)
        arguments: list[Any] = [commit.owner, commit.generation, commit.seq, len(tasks), *tasks,
                                *(commit.token_by_task[t] for t in tasks), len(commit.watched), *commit.watched]
        for command in self._commands(commit):
            arguments.append(len(command))
            arguments += command
        answer = self._commit_script.run(self._keys.prefix, arguments)
        if answer[0] == b"FENCED":
            raise FencedError(f"task {_text(answer[1])} belongs to token {_text(answer[2])} now")
        if answer[0] != b"OK":
            raise StoreRolledBackError(
                f"commit {commit.seq} of {commit.owner} found generation {_text(answer[1])}, seq {_text(answer[2])}")
        return Pressure(dict(zip(commit.watched, map(int, answer[1:]), strict=True)), self._current_fullness())

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        """Ask once, and answer when the answer is there."""
        try:
            if not self._is_asked and after:
                self._ask(after, count)
            if self._reader is None or not self._is_asked or not self._reader.can_read(timeout=0):
                return []
            self._is_asked = False
            reply = self._reader.read_response()
        except (*_LOST, StoreUnavailableError, redis.ResponseError):
            self._drop_reader()
            return []
        return [Entry(self._task_by_stream[name], _text(id), fields[1])
                for name, entries in reply or () for id, fields in entries]

    def wait(self, timeout_ms: int, wake_fds: Sequence[int] = ()) -> None:
        """Until the answer to the question asked by `poll` arrives."""
        reader = [self._reader._sock] if self._reader is not None and self._is_asked else []
        if not reader:
            timeout_ms = min(timeout_ms, 20)
        try:
            select.select([*reader, *wake_fds], [], [], timeout_ms / 1000)
        except (OSError, ValueError):
            self._drop_reader()

    def release(self) -> None:
        """Trim every owned stream up to its stored cursor; a full Redis allows that."""
        for task in self._stream_by_task:
            cursor = _cursor(self._many([("HGET", self._keys("cursor"), task)])[0])
            self._many([_trim(self._keys, task, cursor)])

    def heads(self) -> list[bytes]:
        """The oldest frame of every stream with a backlog: streams are trimmed in the commit that consumes."""
        pairs = self._many([("HGETALL", self._keys("backlog"))])[0]
        waiting = [task for task, size in zip(pairs[::2], pairs[1::2], strict=True) if int(size) > 0]
        if not waiting:
            return []
        streams = self._many([("XRANGE", self._keys.stream(int(t)), "-", "+", "COUNT", 1) for t in waiting])
        return [entries[0][1][1] for entries in streams if entries]

    def low_watermark_ms(self) -> int | None:
        """The least of all owners' watermarks; 0 means that the owner has nothing waiting."""
        waiting = [int(low) for low in self._many([("HVALS", self._keys("low"))])[0] if int(low)]
        return min(waiting, default=None)

    def close(self) -> None:
        """Close both connections."""
        self._link.close()
        self._drop_reader()

    def _commands(self, commit: Commit) -> Iterable[tuple[Any, ...]]:
        k = self._keys
        for task, data, counted in commit.frames:
            yield ("XADD", k.stream(task), "*", _FIELD, data)
            if counted:
                yield ("HINCRBY", k("backlog"), task, counted)
        for task, cursor in commit.cursors.items():
            yield ("HSET", k("cursor"), task, f"{cursor.entry} {cursor.row}")
            yield _trim(k, task, cursor)
        for task, size in commit.drained_bytes.items():
            yield ("HINCRBY", k("backlog"), task, -size)
        for task, snapshot in commit.snapshots.items():
            yield ("SET", k("snapshot", task), snapshot)
            yield ("DEL", k("journal", task))
        for task, delta in commit.journal:
            yield ("RPUSH", k("journal", task), delta)
        yield from self._outcomes(commit)

    def _outcomes(self, commit: Commit) -> Iterable[tuple[Any, ...]]:
        k = self._keys
        for task, key in commit.released:
            yield ("HDEL", k("held", task), key)
        for task, key, data in commit.held:
            yield ("HSET", k("held", task), key, data)
        for data in commit.parked:
            yield ("XADD", k("dead"), "*", _FIELD, data)
        for data in commit.quarantined:
            yield ("XADD", k("quarantine"), "*", _FIELD, data)
        if commit.progress:
            yield ("HSET", k("progress"), commit.owner, commit.progress)
        if commit.low_ms is not None:
            yield ("HSET", k("low"), commit.owner, commit.low_ms)

    def _many(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        packed = [part for c in commands for part in self._pack(*c)]
        answers = self._link.insist(packed, len(commands))
        for answer in answers:
            if isinstance(answer, Exception):
                raise _translated(answer) from answer
        return answers

    def _ask(self, after: Mapping[int, str], count: int) -> None:
        if self._reader is None:
            self._reader = open_connection(self._address, timeout_s=5.0)
        streams = [self._stream_by_task[task] for task in after]
        self._reader.send_packed_command(
            self._pack("XREAD", "COUNT", count, "BLOCK", _BLOCK_MS, "STREAMS", *streams, *after.values()), check_health=False)
        self._is_asked = True

    def _drop_reader(self) -> None:
        if self._reader is not None:
            self._reader.disconnect()
        self._reader, self._is_asked = None, False

    def _current_fullness(self) -> float:
        now = time.monotonic()
        if now >= self._fullness_due:
            self._fullness_due = now + _FULLNESS_EVERY_S
            lines = dict(line.split(b":", 1) for line in self._many([("INFO", "memory")])[0].split(b"\r\n") if b":" in line)
            limit = int(lines.get(b"maxmemory", 0))
            self._fullness = int(lines.get(b"used_memory", 0)) / limit if limit else 0.0
        return self._fullness


class _Script:
    """A script kept on the server under its hash, loaded again whenever the server has forgotten it."""

    def __init__(self, file: str, link: _Link, pack: Any) -> None:
        self._source = files("sparkstorm.transport").joinpath(file).read_bytes()
        self._link = link
        self._pack = pack
        self._sha = b""

    def run(self, prefix: str, arguments: Sequence[Any]) -> Any:
        """The script's answer; refusals and broken stores are raised as errors of ours."""
        while True:
            if not self._sha:
                self._sha = self._link.insist(self._pack("SCRIPT", "LOAD", self._source))[0]
            answer = self._link.insist(self._pack("EVALSHA", self._sha, 1, prefix, *arguments))[0]
            if not isinstance(answer, Exception):
                return answer
            if "NOSCRIPT" not in str(answer):
                raise _translated(answer) from answer
            self._sha = b""


class RedisReader:
    """What outsiders may read of a topology's keys, and how to delete them."""

    def __init__(self, address: RedisAddress, topology_id: str, patience_s: float = 10.0) -> None:
        self._keys = Keys(topology_id)
        self._transport = RedisTransport(address, topology_id, patience_s)

    def progress(self) -> dict[str, bytes]:
        """Progress record of every owner."""
        pairs = self._transport._many([("HGETALL", self._keys("progress"))])[0]
        return {_text(owner): data for owner, data in zip(pairs[::2], pairs[1::2], strict=True)}

    def backlog(self) -> dict[int, int]:
        """Bytes that wait in each task's stream."""
        pairs = self._transport._many([("HGETALL", self._keys("backlog"))])[0]
        return {int(task): int(size) for task, size in zip(pairs[::2], pairs[1::2], strict=True)}

    def record(self, task: int) -> TaskRecord:
        """What the store keeps of a task."""
        return self._transport.record(task)

    def parked(self, limit: int) -> list[tuple[str, bytes]]:
        """The oldest dead letters with their ids."""
        entries = self._transport._many([("XRANGE", self._keys("dead"), "-", "+", "COUNT", limit)])[0]
        return [(_text(id), fields[1]) for id, fields in entries]

    def delete(self) -> None:
        """Forget everything of the topology, in steps that do not block the server."""
        pattern = self._keys.prefix.replace("[", "\\[").replace("*", "\\*").replace("?", "\\?") + ":*"
        cursor: Any = b"0"
        while True:
            cursor, names = self._transport._many([("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)])[0]
            if names:
                self._transport._many([("UNLINK", *names)])
            if int(cursor) == 0:
                return

    def close(self) -> None:
        """Let go of the connection."""
        self._transport.close()


def _trim(keys: Keys, task: int, cursor: Cursor) -> tuple[Any, ...]:
    milliseconds, _, number = cursor.entry.partition("-")
    # MINID keeps its own id, so the first id that may stay is the one after the last consumed
    return ("XTRIM", keys.stream(task), "MINID", "=", f"{milliseconds}-{int(number) + 1}")


def _cursor(stored: bytes | None) -> Cursor:
    if stored is None:
        return START
    entry, _, row = _text(stored).partition(" ")
    return Cursor(entry, int(row))


def _text(data: Any) -> str:
    return data.decode() if isinstance(data, bytes) else str(data)


def _is_passing(answer: Any) -> bool:
    return isinstance(answer, Exception) and str(answer).startswith(("LOADING", "BUSY ", "TRYAGAIN", "READONLY", "MASTERDOWN"))


def _translated(error: Exception) -> Exception:
    text = str(error)
    if "OOM " in text or "MISCONF" in text:
        return StoreFullError(f"Redis refuses writes: {text}")
    if isinstance(error, redis.AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        return StoreUnavailableError(f"Redis refuses our password: {text}")
    return StoreInconsistentError(f"Redis answered {text}")
