"""The reading side of a worker's transport: questions to Redis, their answers, and which frames are
read but not consumed.

Laws: at most one question is open, and none while an answer waits to be taken, so that no frame is
read twice; after a lost connection nothing is read before the store was asked whether it is behind
(`Phase.LOST`); all that is read comes from the server that commits go to. After a fail-over two
servers may take commits for seconds, the promoted one and the former primary, and a Sentinel may
name either. What happens when is in one table, `NEXT`. Before, ten flags held the same, and which
of their combinations could be was nowhere written. A read travels with a commit where one is made
anyway, since that costs no round trip of its own; a blocking question on its own connection is
for a worker that waits. One connection for both would have to cut off the open question before each
commit, which Redis can only do by closing the connection.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from redis.connection import Connection
from redis.exceptions import ResponseError

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.data_plane.transport.base import Cursor, Entry, entry_order
from sparkstorm.data_plane.transport.connection import (
    Packed,
    is_elsewhere,
    is_transient,
    pack,
    receive,
    require_own,
    send,
    translated,
)
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.transport.servers.opening import LOST, AccessRefusedError

# Entries end a question at once, so this is only how often a worker without input asks again, and
# when a cut without a notice is detected. Half doubles the idle requests; double lets a worker sit
# twice as long on a dead connection.
_BLOCK_MS = 5_000
# On top of the time for which the server holds a question: a server that is busy with a large
# script answers late and is not gone.
_READ_TIMEOUT_S = 5.0
# Without an open question nothing wakes a worker for new entries: it looks this often. That is
# rare, while a task has no room or the connection is lost, so half would be more empty steps and
# double a longer way back.
_UNASKED_WAIT_MS = 20


class ReadPhase(StrEnum):
    """Phase of the reading side, between two calls."""

    FREE = "no question is open, and no commit has looked since the last poll"
    LOOKED = "a commit has looked since the last poll, and found nothing"
    ASKED = "a question is open"
    COME = "a question is open, and its answer or its end can be read"
    ANSWERED = "an answer is here that no poll has taken"
    LOST = "a connection was lost: the store may be behind what was read"


class StreamEvent(StrEnum):
    """Event of the reading side: an input of the table `NEXT`."""

    ASK = "a question was sent"
    ARRIVE = "the connection of the open question became readable"
    ANSWER = "the answer to the open question was read"
    FIND = "a commit has brought entries"
    MISS = "a commit has looked and found none"
    TAKE = "a poll has taken what there was"
    CUT = "the connection was let go of, with whatever was on its way"
    RESET = "the same without a connection"
    PROVE = "the store was found to hold all that was read"


NEXT: Mapping[tuple[ReadPhase, StreamEvent], ReadPhase] = {
    (ReadPhase.FREE, StreamEvent.ASK): ReadPhase.ASKED,
    (ReadPhase.FREE, StreamEvent.FIND): ReadPhase.ANSWERED,
    (ReadPhase.FREE, StreamEvent.MISS): ReadPhase.LOOKED,
    (ReadPhase.FREE, StreamEvent.TAKE): ReadPhase.FREE,
    (ReadPhase.LOOKED, StreamEvent.ASK): ReadPhase.ASKED,
    (ReadPhase.LOOKED, StreamEvent.FIND): ReadPhase.ANSWERED,
    (ReadPhase.LOOKED, StreamEvent.MISS): ReadPhase.LOOKED,
    (ReadPhase.LOOKED, StreamEvent.TAKE): ReadPhase.FREE,
    (ReadPhase.ASKED, StreamEvent.ARRIVE): ReadPhase.COME,
    (ReadPhase.ASKED, StreamEvent.ANSWER): ReadPhase.ANSWERED,
    (ReadPhase.ASKED, StreamEvent.TAKE): ReadPhase.ASKED,
    (ReadPhase.COME, StreamEvent.ARRIVE): ReadPhase.COME,
    (ReadPhase.COME, StreamEvent.ANSWER): ReadPhase.ANSWERED,
    # Nothing is asked ahead here. A question that is open while entries arrive is answered with the
    # first stream that gets one; asked when a step begins, it is answered with all of them. Asking
    # ahead made small epochs: 0.6 to 0.8 of the words per second with 64 tasks (commit a844fbdc).
    (ReadPhase.ANSWERED, StreamEvent.TAKE): ReadPhase.FREE,
    # A commit that was sent while the connection broke may still answer; what it brings is read
    # again once proven.
    (ReadPhase.LOST, StreamEvent.FIND): ReadPhase.LOST,
    (ReadPhase.LOST, StreamEvent.MISS): ReadPhase.LOST,
    (ReadPhase.LOST, StreamEvent.TAKE): ReadPhase.LOST,
    (ReadPhase.LOST, StreamEvent.RESET): ReadPhase.LOST,
    (ReadPhase.LOST, StreamEvent.PROVE): ReadPhase.FREE,
    # Another connection may mean another server, restarted from an older file: also an answer that
    # is here was read before that is known.
    **{(phase, StreamEvent.CUT): ReadPhase.LOST for phase in ReadPhase},
    **{
        (phase, StreamEvent.RESET): ReadPhase.FREE
        for phase in ReadPhase
        if phase is not ReadPhase.LOST
    },
}
"""Phase after an event; a pair that is missing cannot happen."""

_MAY_ASK = (ReadPhase.FREE, ReadPhase.LOOKED)


class Unconsumed:
    """Frames that were read and that no stored cursor has passed, by task, oldest first."""

    def __init__(self, stream_by_task: Mapping[int, bytes]) -> None:
        self._stream_by_task = stream_by_task
        # Sizes and not frames: the entries are with the tasks, and both together would hold all
        # input twice.
        # (entry, bytes)
        self._brought: dict[int, deque[tuple[str, int]]] = {
            task: deque() for task in stream_by_task
        }

    def add(self, entries: Sequence[Entry]) -> None:
        """Note frames that were read."""
        for entry in entries:
            self._brought[entry.task].append((entry.id, len(entry.data)))

    def pass_(self, cursors: Mapping[int, Cursor]) -> None:
        """Forget the frames up to these cursors, which were stored."""
        for task, cursor in cursors.items():
            if brought := self._brought.get(task):
                last = entry_order(cursor.entry)
                while brought and entry_order(brought[0][0]) <= last:
                    brought.popleft()

    def bytes_passed(self, cursors: Mapping[int, Cursor]) -> int:
        """Return the bytes of the frames that these cursors pass for the first time."""
        passed = 0
        for task, cursor in cursors.items():
            last = entry_order(cursor.entry)
            # Oldest first, so that only the passed ones are looked at.
            for entry, size in self._brought.get(task, ()):
                if entry_order(entry) > last:
                    break
                passed += size
        return passed

    def words(self) -> list[Any]:
        """Return stream and id of every frame, one after the other."""
        return [
            word
            for task, brought in self._brought.items()
            for entry, _ in brought
            for word in (self._stream_by_task[task], entry)
        ]

    def pairs(self) -> list[Any]:
        """Return task and id of every frame, one after the other."""
        return [
            word
            for task, brought in self._brought.items()
            for entry, _ in brought
            for word in (task, entry)
        ]


class Beside(Protocol):
    """A link next to whose connection readings are opened."""

    @property
    def number(self) -> int:
        """Number of the link's connection: another one may be to another server."""

    def open_separate(self, timeout_s: float) -> Connection:
        """Open a connection for reading; StoreUnavailableError when there is none."""

    def leave_if_moved(self) -> bool:
        """Close the connection where another server is to be read by now; return whether."""


class StreamRead:
    """The reading connection, with at most one question open, and which frames it has brought that
    are not consumed.
    """

    def __init__(self, link: Beside, keys: Keys, timeout_s: float = _READ_TIMEOUT_S) -> None:
        """`timeout_s`: of connecting, and of a server that answers late."""
        self._link = link
        self._timeout_s = timeout_s
        self._keys = keys
        self.phase = ReadPhase.FREE
        # to be asked by the next commit, or before the next wait
        self.wanted: tuple[Mapping[int, str], int] | None = None
        self._connection: Connection | None = None
        self._process = os.getpid()
        # number of the link's connection next to which this one was opened
        self._link_number = 0
        self._asked: Mapping[int, str] = {}  # of the open question, or of the answer that waits
        self._answer: Any = None
        self._answer_due = 0.0
        self._stream_by_task: dict[int, bytes] = {}
        self._task_by_stream: dict[bytes, int] = {}
        self.unconsumed = Unconsumed({})

    def _go(self, event: StreamEvent) -> None:
        self.phase = NEXT[self.phase, event]

    def forget(self, tasks: Sequence[int]) -> None:
        """Discard what was read or asked before for these tasks; a claim has just looked at the
        store.
        """
        self.drop()
        self._stream_by_task = {task: self._keys.stream(task).encode() for task in tasks}
        self._task_by_stream = {name: task for task, name in self._stream_by_task.items()}
        self.unconsumed = Unconsumed(self._stream_by_task)
        self.phase = ReadPhase.FREE

    def drop(self) -> None:
        """Close the connection, and drop the open question and an answer that waits."""
        is_open = self._connection is not None
        if self._connection is not None:
            # Redis has no command that takes back a blocking question; only the end of its
            # connection does.
            self._connection.disconnect()  # type: ignore[no-untyped-call]
        self._connection = None
        self._asked = {}
        self._answer = None
        self.wanted = None
        self._go(StreamEvent.CUT if is_open else StreamEvent.RESET)

    @property
    def was_lost(self) -> bool:
        """Return whether the store must be asked first whether it is behind."""
        return self.phase is ReadPhase.LOST

    def doubt(self) -> None:
        """Read nothing until the store was asked; a connection that is open is let go of."""
        self.drop()
        self._go(StreamEvent.CUT)

    def note_proven(self) -> None:
        """Go on reading: the store holds all that was read."""
        if self.phase is ReadPhase.LOST:
            self._go(StreamEvent.PROVE)

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        """Return the answer that is here; ask when none is, no question is open and no commit has
        looked just now.
        """
        require_own(self._process)
        if self._connection is not None and self._link_number != self._link.number:
            # Commits go to another server now, maybe.
            self.drop()
        # Not in LOOKED: a commit has asked in its own round trip, a moment ago, and found nothing.
        if self.phase is ReadPhase.FREE:
            self._open_question(after, count)
        try:
            self._read_answer()
        except (*LOST, StoreUnavailableError):
            self.drop()
        asked = self._asked
        answer = self._answer
        if has_answer := self.phase is ReadPhase.ANSWERED:
            self._asked = {}
            self._answer = None
        self._go(StreamEvent.TAKE)
        if isinstance(answer, Exception):
            raise translated(answer) from answer
        polled: list[Entry] = []
        for name, entries in (has_answer and answer) or ():
            task = self._task_by_stream[name]
            # The answer is to a question of some time ago. A task that has read on since would get
            # the same entries a second time.
            # else it has been read otherwise, or there is no room for it
            if asked[task] == after.get(task):
                polled += [_entry(task, id.decode(), fields[1]) for id, fields in entries]
        self.unconsumed.add(polled)
        return polled

    @property
    def has_answers(self) -> bool:
        """Return whether an answer is here that `poll` has not taken."""
        return self.phase is ReadPhase.ANSWERED

    def request(self) -> Packed:
        """Return the request that travels with a commit; none while a question is open, whose
        answer would be the same.
        """
        # With a commit of 1,000 tuples/s over three hops this halves the steps and takes 15 % of
        # the CPU off: its own step after each commit mostly found nothing (commit 5c13ed24).
        return (
            self._read_command(*self.wanted)
            if self.wanted is not None and self.phase in _MAY_ASK
            else ()
        )

    def note_read(self, reply: Any) -> None:
        """Keep the answer to the request that travelled with a commit."""
        if self.phase in _MAY_ASK and self.wanted is not None and reply is not None:
            self._asked = self.wanted[0]
            self._answer = reply
            self._go(StreamEvent.FIND)
        else:
            self._go(StreamEvent.MISS)

    def wait(self, timeout_ms: float, wake_fds: Sequence[int]) -> bool:
        """Until an answer can be read, a descriptor is readable, or the time is over; return False
        if only time has passed.
        """
        require_own(self._process)
        if self.phase is ReadPhase.ANSWERED:
            return True
        socket = self.listen()
        if socket is None:
            timeout_ms = min(timeout_ms, _UNASKED_WAIT_MS)
        try:
            ready = select.select(
                [*([] if socket is None else [socket]), *wake_fds], [], [], timeout_ms / 1000
            )[0]
        # A socket that was closed under our hands has the descriptor -1, which is a ValueError to
        # select.
        except (OSError, ValueError):
            self.drop()
            return True
        if socket is not None and socket in ready:
            self._go(StreamEvent.ARRIVE)
        return bool(ready) or socket is None

    def listen(self) -> Any:
        """Open the wanted question if none is open; return the socket of its answer, None while
        nothing may be asked.
        """
        # Only a question about all tasks may block, so nothing is asked here while one of them has
        # no room.
        if (
            self.phase in _MAY_ASK
            and self.wanted is not None
            and len(self.wanted[0]) == len(self._stream_by_task)
        ):
            self._open_question(*self.wanted)
        is_asked = self.phase in (ReadPhase.ASKED, ReadPhase.COME)
        return self._connection._sock if is_asked and self._connection is not None else None

    def _open_question(self, after: Mapping[int, str], count: int) -> None:
        """Ask for what lies behind these ids."""
        try:
            if after:
                self._ask(after, count)
        # A password that was changed meanwhile is not a lost connection: a new one would be
        # refused.
        except AccessRefusedError:
            raise
        except (*LOST, StoreUnavailableError):
            self.drop()
            # Also without a connection: the next poll asks the store, which finds a lost link.
            self._go(StreamEvent.CUT)

    def _ask(self, after: Mapping[int, str], count: int) -> None:
        if self._connection is None:
            self._connection = self._link.open_separate(self._timeout_s)
            self._link_number = self._link.number
        # a question that leaves tasks out must not stay open: they could not be asked for until it
        # is answered
        blocking = ("BLOCK", _BLOCK_MS) if self._may_block(after) else ()
        send(self._connection, self._read_command(after, count, *blocking))
        self._asked = dict(after)
        self._answer_due = time.monotonic() + _BLOCK_MS / 1000 + self._timeout_s
        self._go(StreamEvent.ASK)

    def _may_block(self, asked: Mapping[int, str]) -> bool:
        return len(asked) == len(self._stream_by_task)

    def _read_command(self, after: Mapping[int, str], count: int, *blocking: Any) -> Packed:
        # One XREAD for all tasks: a question per task would be a round trip, or a connection, for
        # each.
        streams = [self._stream_by_task[task] for task in after]
        return pack("XREAD", "COUNT", count, *blocking, "STREAMS", *streams, *after.values())

    def _read_answer(self) -> None:
        """Read the answer to the open question if it has come."""
        if self._connection is None or self.phase not in (ReadPhase.ASKED, ReadPhase.COME):
            return
        if self.phase is ReadPhase.ASKED and not self._connection.can_read(timeout=0):
            if time.monotonic() > self._answer_due:  # a peer that went away without a reply
                self.drop()
            return
        answer = receive(self._connection)
        if isinstance(answer, ResponseError):
            self.drop()
            # A primary that has become a replica while it held the question, or a node of a cluster
            # whose slot moves: the store is elsewhere.
            if is_elsewhere(answer) or is_transient(answer):
                return
            raise translated(answer) from answer
        # Nothing came in the time of a blocking question: so says a server that was cut off, too.
        # Others are answered at once, many times a second.
        if answer is None and self._may_block(self._asked) and self._link.leave_if_moved():
            self.doubt()
            return
        self._answer = answer
        self._go(StreamEvent.ANSWER)


def _entry(task: int, entry: str, data: bytes) -> Entry:
    """Return an entry with the time of its sending, which Redis puts first in the id."""
    return Entry(task, entry, data, entry_order(entry)[0])
