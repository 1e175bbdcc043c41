"""The reading side of a worker's transport: questions to Redis, their answers, and which frames are read but not consumed."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis.connection import Connection

from sparkstorm.errors import StoreUnavailableError
from sparkstorm.model.redis_address import RedisAddress
from sparkstorm.transport.base import Cursor, Entry, entry_order
from sparkstorm.transport.connection import LOST, AccessRefusedError, Packed, open_connection, pack, send, translated
from sparkstorm.transport.keys import Keys

_BLOCK_MS = 5_000
_READ_TIMEOUT_S = 5.0
_UNASKED_WAIT_MS = 20


class Reading:
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
        self._is_readable = False  # whether `wait` has seen the answer come, or the end of the connection
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
        self._connection, self._asked, self._is_readable = None, None, False
        self._answers, self._is_fresh, self.wanted = [], False, None

    def note_consumed(self, cursors: Mapping[int, Cursor]) -> None:
        """Frames up to these cursors are done with."""
        for task, cursor in cursors.items():
            if brought := self._brought.get(task):
                last = entry_order(cursor.entry)
                while brought and entry_order(brought[0][0]) <= last:
                    brought.popleft()

    def bytes_passed(self, cursors: Mapping[int, Cursor]) -> int:
        """Bytes of the frames that these cursors pass for the first time."""
        passed = 0
        for task, cursor in cursors.items():
            last = entry_order(cursor.entry)
            for entry, size in self._brought.get(task, ()):
                if entry_order(entry) > last:
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
                    found += [_entry(task, id.decode(), fields[1]) for id, fields in entries]
                    read_to[task] = found[-1].id
        for entry in found:
            self._brought[entry.task].append((entry.id, len(entry.data)))
        return found

    @property
    def has_answers(self) -> bool:
        """Return whether answers are here that `poll` has not taken."""
        return bool(self._answers)

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

    def wait(self, timeout_ms: float, wake_fds: Sequence[int]) -> bool:
        """Until an answer can be read, a descriptor is readable, or the time is over; return False if only time has passed."""
        if self._answers:
            return True
        if self.wanted is not None and len(self.wanted[0]) == len(self._stream_by_task):
            self._open_question(*self.wanted)
        socket: Any = None if self._connection is None or self._asked is None else self._connection._sock
        if socket is None:
            timeout_ms = min(timeout_ms, _UNASKED_WAIT_MS)
        try:
            ready = select.select([*([] if socket is None else [socket]), *wake_fds], [], [], timeout_ms / 1000)[0]
        except (OSError, ValueError):
            self.drop()
            return True
        self._is_readable = socket is not None and socket in ready
        return bool(ready) or socket is None

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
        is_readable, self._is_readable = self._is_readable, False
        if not is_readable and not self._connection.can_read(timeout=0):
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


def _entry(task: int, entry: str, data: bytes) -> Entry:
    """Return an entry with the time of its sending, which Redis puts first in the id."""
    return Entry(task, entry, data, entry_order(entry)[0])
