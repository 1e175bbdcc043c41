"""Data plane on Redis streams: one stream per task, one script per commit, every key below {topology-id}.

Why a script and not MULTI/EXEC: fence, generation and seq are compared on the server, so that sending the very same
commit again after a cut connection is always safe, and no state (WATCH) hangs on a connection that may be gone.
A commit's first write is one that Redis refuses when memory is full, so a refused commit changed nothing; a commit
that sends no more rows than it consumes is let through, or a full store could never be drained.
A server that was restarted may have lost its tail: on a new connection a commit also says which frames its owner has
read but not consumed, and is refused when one of them is gone. docs/keys.md lists the keys.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import redis
from redis.connection import Connection

from sparkstorm.errors import (
    FencedError,
    StoreFullError,
    StoreInconsistentError,
    StoreRolledBackError,
    StoreUnavailableError,
)
from sparkstorm.model.redis_address import RedisAddress
from sparkstorm.transport.base import (
    MOST_DEAD_LETTERS,
    MOST_SAMPLES,
    SAMPLES_MS,
    Claim,
    Commit,
    Cursor,
    Entry,
    Pressure,
    TaskRecord,
    ended_error,
)
from sparkstorm.transport.connection import (
    LOST,
    AccessRefusedError,
    Link,
    Packed,
    Script,
    open_connection,
    pack,
    send,
    text,
    translated,
)
from sparkstorm.transport.keys import Keys, read_cursor, read_number
from sparkstorm.transport.reader import read_task
from sparkstorm.transport.state_base import StateReading, write_commands

__all__ = ["Keys", "RedisTransport", "open_connection"]

_FIELD = b"f"
_BLOCK_MS = 5_000
_READ_TIMEOUT_S = 5.0
_FULLNESS_EVERY_S = 0.5
_UNASKED_WAIT_MS = 20
_TASKS_AT_ONCE = 1000  # Lua hands on some thousands of words at most
_PROVEN = -1  # in place of the number of frames in doubt


class RedisTransport:
    """Transport of one owner: a connection for commits, one for reading; `on_wait` is called with the reason of each retry."""

    def __init__(
        self, address: RedisAddress, topology_id: str, patience_s: float = 60.0, on_wait: Callable[[str], None] = lambda _: None
    ) -> None:
        self._keys = Keys(topology_id)
        self._topology_id = topology_id
        self._link = Link(address, patience_s, on_wait)
        self._reading = _Reading(address, self._keys)
        self._commit_script = Script("commit.lua", self._link)
        self._claim_script = Script("claim.lua", self._link)
        self._oldest_script = Script("oldest.lua", self._link)
        self._states = StateReading(self._link, self._keys)
        self._standing = Commit("", {}, 0, 0)  # the last commit known to stand, without its changes
        self._proven = 0  # number of the connection on which the store is known to hold what this owner has read
        self._fullness = 0.0
        self._fullness_due = 0.0

    def claim(self, owner: str, token_by_task: Mapping[int, int]) -> Claim:
        """Write the tokens, then read what is kept of every task; frames read before are forgotten."""
        tasks = sorted(token_by_task)
        self._reading.forget(tasks)
        arguments = [owner, *tasks, *(token_by_task[t] for t in tasks)]
        answer = self._claim_script.run(self._keys.prefix, lambda: arguments)
        self._require_whole(owner, answer)
        if answer[0] == b"ENDED":
            raise ended_error(self._topology_id)
        if answer[0] == b"FORMAT":
            raise StoreInconsistentError(
                f"the data of topology {self._topology_id} in Redis were written by another version of SparkStorm (frames of "
                f"version {text(answer[1])}, here {text(answer[2])}): finish the run with that version, or kill the topology "
                "and submit it again (a run of your own: --fresh)"
            )
        if answer[0] != b"OK":
            raise FencedError(f"task {text(answer[1])} belongs to token {text(answer[2])} now")
        proven = self._link.number
        k = self._keys
        stored, seq, progress = self._link.ask(("GET", k("generation")), ("HGET", k("seq"), owner), ("HGET", k("progress"), owner))
        claim = Claim(
            self._generation(owner, stored), read_number(seq or 0, k("seq")), progress or b"", {t: self.record(t) for t in tasks}
        )
        self._standing, self._proven = Commit(owner, dict(token_by_task), claim.generation, claim.seq), proven
        return claim

    def record(self, task: int) -> TaskRecord:
        """Return the stored record of a task."""
        return read_task(self._link, self._keys, task)

    def commit(self, commit: Commit) -> Pressure:
        """One script call, sent again unchanged until its outcome is known."""
        frees = commit.frees(self._reading.bytes_passed(commit.cursors))
        commands = [word for command in self._commands(commit) for word in (len(command), *command)]
        backlog = self._run(commit, commands, "free" if frees else "grow", self._reading.request())
        self._standing = Commit(commit.owner, commit.token_by_task, commit.generation, commit.seq)
        self._reading.note_consumed(commit.cursors)
        sizes = [read_number(size, self._keys("backlog")) for size in backlog]
        return Pressure(dict(zip(commit.watched, sizes, strict=True)), self._current_fullness())

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        """Ask once, and answer when the answer is there; after a lost connection, first whether the store is behind."""
        if self._reading.was_lost and after:
            self._reading.was_lost = False
            try:
                self._run(self._standing, [], "ask")
            except StoreFullError:  # a restarted server that cannot rewrite its file yet
                self._reading.was_lost = True
                return []
        return self._reading.poll(after, count)

    def ask(self, after: Mapping[int, str], count: int) -> None:
        """Read along with the next commit, in its round trip, or ask the server to say when something comes."""
        self._reading.wanted = (dict(after), count) if after else None

    def wait(self, timeout_ms: float, wake_fds: Sequence[int] = ()) -> None:
        """Until the answer to the open question arrives."""
        self._reading.wait(timeout_ms, wake_fds)

    def release(self) -> None:
        """Trim every owned stream up to its stored cursor; a full Redis allows that."""
        for task in self._standing.token_by_task:
            cursor = read_cursor(self._link.ask(("HGET", self._keys("cursor"), task))[0], self._keys("cursor"))
            self._link.ask(_trim(self._keys, task, cursor))

    def oldest_waiting_ms(self, also: Sequence[int] = (), floor_ms: int = 0) -> int | None:
        """The least of all frames' births and all owners' watermarks, found by the server; a commit trims what it consumes."""
        found = self._oldest_script.run(self._keys.prefix, lambda: [floor_ms, *also])[0]
        return int(found) if found else None

    def read_state(self, task: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of a task's base."""
        return self._states.read(task, keys)

    def scan_state(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """A task's base in parts."""
        return self._states.scan(task)

    def open_taps(self, names: Sequence[str]) -> Collection[str]:
        """Read the marks of clients that look."""
        if not names:
            return ()
        marks = self._link.ask_once(("MGET", *map(self._keys.tap, names)))[0]
        return {name for name, mark in zip(names, marks, strict=True) if mark is not None}

    def show(self, samples: Mapping[str, Sequence[bytes]]) -> None:
        """Append samples, and let their streams expire when no more come."""
        for name, rows in samples.items():
            key = self._keys.samples(name)
            adds = [("XADD", key, "MAXLEN", "~", MOST_SAMPLES, "*", _FIELD, row) for row in rows]
            self._link.ask_once(*adds, ("PEXPIRE", key, SAMPLES_MS))

    def close(self) -> None:
        """Close both connections."""
        self._link.close()
        self._reading.drop()

    def _run(self, commit: Commit, commands: list[Any], mode: str, read: Packed = ()) -> list[Any]:
        """The script's answer without its 'OK'; on a connection not proven yet the script also checks the frames read so far.

        `read` is a request to read, which travels behind the script; its answer is kept for `poll`.
        """
        tasks = list(commit.token_by_task)
        head: list[Any] = [
            commit.owner,
            commit.generation,
            commit.seq,
            mode,
            len(tasks),
            *tasks,
            *(commit.token_by_task[t] for t in tasks),
            len(commit.watched),
            *commit.watched,
        ]

        def arguments() -> list[Any]:
            if self._link.number == self._proven:
                return [*head, _PROVEN, *commands]
            self._reading.drop()  # its buffer may hold answers of a server that is no more
            doubts = self._reading.unconsumed()
            return [*head, len(doubts) // 2, *doubts, *commands]

        answer, *entries = self._commit_script.run_with(self._keys.prefix, arguments, read)
        self._require_whole(commit.owner, answer)
        if answer[0] == b"FENCED":
            raise FencedError(f"task {text(answer[1])} belongs to token {text(answer[2])} now")
        if answer[0] != b"OK":
            generation = self._generation(commit.owner, answer[1])
            raise StoreRolledBackError(
                f"commit {commit.seq} of {commit.owner} in generation {commit.generation} found "
                f"generation {generation}, seq {text(answer[2])}"
            )
        self._proven = self._link.number
        self._reading.note_read(entries)
        return list(answer[1:])

    def _require_whole(self, owner: str, answer: list[Any]) -> None:
        """Refuse a store that was restarted on half a commit."""
        if answer[0] == b"HALF":
            raise self._damage(
                owner,
                "half of an earlier commit was read back from the append-only file ("
                f"{text(answer[1])} began and {text(answer[2])} ended, in {self._keys('steps')})",
            )

    def _generation(self, owner: str, stored: bytes | None) -> int:
        """The generation as a number; a mark instead says which command of which commit failed."""
        said = text(stored or b"0")
        if not said.isdecimal():
            raise self._damage(owner, f"its last commit was {said[:300]}")
        return int(said)

    def _damage(self, owner: str, cause: str) -> StoreInconsistentError:
        return StoreInconsistentError(
            f"the data of topology {self._topology_id} in Redis cannot be trusted any more, and worker {owner} refuses them: "
            f"{cause}; kill the topology, delete the keys {self._keys.prefix}:* or restore a backup, and submit it again"
        )

    def _commands(self, commit: Commit) -> Iterable[tuple[Any, ...]]:
        k = self._keys
        waiting = {task: -size for task, size in commit.drained_bytes.items()}
        for task, data, counted in commit.frames:
            yield ("XADD", k.stream(task), "*", _FIELD, data)
            if counted:
                waiting[task] = waiting.get(task, 0) + counted
        for tasks in _some(list(commit.cursors)):
            cursors = [(task, commit.cursors[task]) for task in tasks]
            yield ("HSET", k("cursor"), *(word for task, cursor in cursors for word in (task, f"{cursor.entry} {cursor.row}")))
        for task, cursor in commit.cursors.items():
            yield _trim(k, task, cursor)
        for tasks in _some(list(waiting)):
            changes = (word for task in tasks for word in (task, waiting[task], int(task in commit.drained_bytes)))
            yield ("COUNT", k("backlog"), k.stream(""), *changes)
        for task, delta in commit.journal:
            yield ("RPUSH", k("journal", task), delta)
        for task, count in commit.dropped.items():
            yield ("LTRIM", k("journal", task), count, -1)
        yield from write_commands(k, commit.state)
        yield from self._outcomes(commit)

    def _outcomes(self, commit: Commit) -> Iterable[tuple[Any, ...]]:
        k = self._keys
        for task, key in commit.released:
            yield ("HDEL", k("held", task), key)
        for task, key, data in commit.held:
            yield ("HSET", k("held", task), key, data)
        for data in commit.parked:
            yield ("XADD", k("dead"), "MAXLEN", "~", MOST_DEAD_LETTERS, "*", _FIELD, data)
        for data in commit.quarantined:
            yield ("XADD", k("quarantine"), "*", _FIELD, data)
        if commit.progress:
            yield ("HSET", k("progress"), commit.owner, commit.progress)
        if commit.low_ms is not None:
            yield ("HSET", k("low"), commit.owner, commit.low_ms)

    def _current_fullness(self) -> float:
        now = time.monotonic()
        if now >= self._fullness_due:
            self._fullness_due = now + _FULLNESS_EVERY_S
            lines = self._link.ask(("INFO", "memory"))[0].split(b"\r\n")
            found = dict(line.split(b":", 1) for line in lines if b":" in line)
            limit = int(found.get(b"maxmemory", 0))
            self._fullness = int(found.get(b"used_memory", 0)) / limit if limit else 0.0
        return self._fullness


class _Reading:
    """The reading connection, with at most one question open, and which frames it has brought that are not consumed."""

    def __init__(self, address: RedisAddress, keys: Keys) -> None:
        self._address = address
        self._keys = keys
        self._connection: Connection | None = None
        self._asked: Mapping[int, str] | None = None
        self._answers: list[tuple[Mapping[int, str], Any]] = []  # to what was asked, not taken by `poll` yet
        self._is_fresh = False  # whether a commit has looked since the last `poll`
        self.wanted: tuple[Mapping[int, str], int] | None = None  # to be asked by the next commit, or before the next wait
        self._answer_due = 0.0
        self._stream_by_task: dict[int, bytes] = {}
        self._task_by_stream: dict[bytes, int] = {}
        self._brought: dict[int, deque[tuple[str, int]]] = {}  # (entry, bytes), oldest first
        self.was_lost = False

    def forget(self, tasks: Sequence[int]) -> None:
        """Discard what was read or asked before for these tasks."""
        self.drop()
        self._stream_by_task = {task: self._keys.stream(task).encode() for task in tasks}
        self._task_by_stream = {name: task for task, name in self._stream_by_task.items()}
        self._brought = {task: deque() for task in tasks}
        self.was_lost = False

    def drop(self) -> None:
        """Let go of the connection and of the open question."""
        if self._connection is not None:
            self._connection.disconnect()  # type: ignore[no-untyped-call]
            self.was_lost = True
        self._connection, self._asked = None, None
        self._answers, self._is_fresh, self.wanted = [], False, None

    def note_consumed(self, cursors: Mapping[int, Cursor]) -> None:
        """Frames up to these cursors are done with."""
        for task, cursor in cursors.items():
            if brought := self._brought.get(task):
                last = _order(cursor.entry)
                while brought and _order(brought[0][0]) <= last:
                    brought.popleft()

    def bytes_passed(self, cursors: Mapping[int, Cursor]) -> int:
        """Bytes of the frames that these cursors pass for the first time."""
        passed = 0
        for task, cursor in cursors.items():
            last = _order(cursor.entry)
            for entry, size in self._brought.get(task, ()):
                if _order(entry) > last:
                    break
                passed += size
        return passed

    def unconsumed(self) -> list[Any]:
        """Stream and id of every frame that was read but not consumed, one after the other."""
        return [
            word for task, brought in self._brought.items() for entry, _ in brought for word in (self._stream_by_task[task], entry)
        ]

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        """The answers that are here; asks when none is, no question is open and no commit has looked just now."""
        if not self._answers and not self._is_fresh:
            self._open_question(after, count)
        self._is_fresh = False
        try:
            self._take_answer()
        except (*LOST, StoreUnavailableError):
            self.drop()
        answers, self._answers = self._answers, []
        found, read_to = list[Entry](), dict(after)
        for asked, reply in answers:
            if isinstance(reply, Exception):
                raise translated(reply) from reply
            for name, entries in reply or ():
                task = self._task_by_stream[name]
                if asked[task] == read_to.get(task):
                    found += [Entry(task, id.decode(), fields[1]) for id, fields in entries]
                    read_to[task] = found[-1].id
        for entry in found:
            self._brought[entry.task].append((entry.id, len(entry.data)))
        return found

    def request(self) -> Packed:
        """Return the request that travels with a commit; none while a question is open, whose answer would be the same."""
        if self.wanted is None or self._asked is not None or self.was_lost:
            return ()
        return self._read_command(*self.wanted)

    def note_read(self, replies: Sequence[Any]) -> None:
        """Keep the answer to the request that travelled with a commit."""
        for reply in replies:
            if self.wanted is not None and reply is not None:
                self._answers.append((self.wanted[0], reply))
            self._is_fresh = True

    def wait(self, timeout_ms: float, wake_fds: Sequence[int]) -> None:
        """Until an answer can be read, a descriptor is readable, or the time is over."""
        if self._answers:
            return
        if self.wanted is not None and len(self.wanted[0]) == len(self._stream_by_task):
            self._open_question(*self.wanted)
        socket: Any = None if self._connection is None or self._asked is None else self._connection._sock
        if socket is None:
            timeout_ms = min(timeout_ms, _UNASKED_WAIT_MS)
        try:
            select.select([*([] if socket is None else [socket]), *wake_fds], [], [], timeout_ms / 1000)
        except (OSError, ValueError):
            self.drop()

    def _open_question(self, after: Mapping[int, str], count: int) -> None:
        """Ask for what lies behind these ids, unless a question is open."""
        try:
            if self._asked is None and after:
                self._ask(after, count)
        except AccessRefusedError:
            raise
        except (*LOST, StoreUnavailableError):
            self.drop()

    def _ask(self, after: Mapping[int, str], count: int) -> None:
        if self._connection is None:
            self._connection = open_connection(self._address, _READ_TIMEOUT_S)
        # a question that leaves tasks out must not stay open: they could not be asked for until it is answered
        blocking = ("BLOCK", _BLOCK_MS) if len(after) == len(self._stream_by_task) else ()
        send(self._connection, self._read_command(after, count, *blocking))
        self._asked = dict(after)
        self._answer_due = time.monotonic() + _BLOCK_MS / 1000 + _READ_TIMEOUT_S

    def _read_command(self, after: Mapping[int, str], count: int, *blocking: Any) -> Packed:
        streams = [self._stream_by_task[task] for task in after]
        return pack("XREAD", "COUNT", count, *blocking, "STREAMS", *streams, *after.values())

    def _take_answer(self) -> None:
        if self._connection is None or self._asked is None:
            return
        if not self._connection.can_read(timeout=0):
            if time.monotonic() > self._answer_due:  # a peer that went away without a word
                self.drop()
            return
        asked, self._asked = self._asked, None
        try:
            if reply := self._connection.read_response():
                self._answers.append((asked, reply))
        except redis.ResponseError as error:
            self.drop()
            raise translated(error) from error


def _some(tasks: list[int]) -> Iterable[list[int]]:
    """Tasks in parts that fit into one command."""
    return (tasks[start : start + _TASKS_AT_ONCE] for start in range(0, len(tasks), _TASKS_AT_ONCE))


def _trim(keys: Keys, task: int, cursor: Cursor) -> tuple[Any, ...]:
    milliseconds, number = _order(cursor.entry)
    # MINID keeps its own id, so the first id that may stay is the one after the last consumed
    return ("XTRIM", keys.stream(task), "MINID", "=", f"{milliseconds}-{number + 1}")


def _order(entry: str) -> tuple[int, int]:
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number)
