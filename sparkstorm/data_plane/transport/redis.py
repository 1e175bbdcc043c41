"""Data plane on Redis streams: one stream per task, one script per commit, every key below
{topology-id}.

Why a script and not MULTI/EXEC: fence, generation and seq are compared on the server, so that
sending the very same commit again after a cut connection is always safe, and no state (WATCH) hangs
on a connection that may be gone. A commit's first write is one that Redis refuses when memory is
full, so a refused commit changed nothing; a commit that sends no more rows than it consumes is let
through, or a full store could never be drained. A server that was restarted may have lost its tail:
on a new connection a commit also names the frames that its owner has read but not consumed, and is
refused when one of them is gone. docs/maintaining/keys.md lists the keys.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparkstorm.common.errors import (
    FencedError,
    StoreFullError,
    StoreInconsistentError,
    StoreRolledBackError,
)
from sparkstorm.common.model.worker_spec import RedisAddress, StoreMark
from sparkstorm.data_plane.transport.base import (
    MOST_DEAD_LETTERS,
    MOST_SAMPLES,
    SAMPLES_MS,
    Claim,
    Commit,
    Cursor,
    Entry,
    Expected,
    Pressure,
    TaskRecord,
    ended_error,
    entry_order,
    second_error,
)
from sparkstorm.data_plane.transport.connection import (
    MISCONF,
    Link,
    Packed,
    Script,
    pack,
    text,
    translated,
)
from sparkstorm.data_plane.transport.keys import (
    Keys,
    read_cursor,
    read_cursors_by_cell,
    read_number,
)
from sparkstorm.data_plane.transport.reader import read_task
from sparkstorm.data_plane.transport.reading import StreamRead
from sparkstorm.data_plane.transport.state_base import StateReading, write_commands
from sparkstorm.data_plane.transport.store_loss import loss_text, lost_error

_LOG = logging.getLogger(__name__)
_FIELD = b"f"
# INFO makes the server write a page of text, which few commits should pay. A store fills within
# half a second only at rates that the back-pressure of bytes stops before; asked every second,
# spouts would run on a full store for twice as long. Not measured.
_FULLNESS_EVERY_S = 0.5
# After a look at the taps: a commit that ends later asks for the next look, which comes with the
# heartbeat a second after the last (data_plane/worker/run.py). Half of it shows older marks, up to half a
# second; with more than a second the look would be its own round trip again.
_TAPS_AFTER_S = 0.8
# Over 100 ms each way with a loss of 5 % commits took 0.4 to 2.1 s, and with 1 every eleventh look
# still was its own round trip; double asks with each commit from 100 ms on.
_TIMES_AS_LONG = 4
# Lua hands on some thousands of words at most (its C stack).
_TASKS_AT_ONCE = 1000
# Between two requests for a rewrite while another one runs: a small file takes 0.2 s, and a request
# is a round trip between two commits.
_REWRITE_EVERY_S = 1.0
_PROVEN = -1  # in place of the number of frames in doubt
_MEMORY = pack("INFO", "memory")

Question = tuple[Packed, Callable[[Any], None]]
"""A packed request whose answer may be lost, and its taker."""


class RedisTransport:
    """Transport of one owner: a connection for commits, one for reading; `on_wait` is called with
    the reason of each retry.
    """

    def __init__(
        self,
        address: RedisAddress,
        topology_id: str,
        patience_s: float = 60.0,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._keys = Keys(topology_id)
        self._topology_id = topology_id
        # A minute by default: a Redis that restarts with a file of some GB is back by then. A
        # worker that gave up sooner would start again, claim anew, and wait for the same server;
        # one that waits much longer hides a server that is gone.
        # It asks the Sentinels when nothing comes (`Reading`), and not before it reads a state.
        self._link = Link(address, patience_s, on_wait, check_s=math.inf, tag=self._keys.prefix)
        # Its own connection: a blocking XREAD holds up everything behind it.
        self._reading = StreamRead(self._link, self._keys)
        self._commit_script = Script("commit.lua", self._link)
        # the append-only file: the server's disk was full, and no rewrite was asked for since
        self._may_have_gap = False
        self._ask_again_s = 0.0
        self._claim_script = Script("claim.lua", self._link)
        self._oldest_script = Script("oldest.lua", self._link)
        self._states = StateReading(self._link, self._keys)
        self._standing = Commit("", {}, 0, 0)  # last commit known to be applied, without changes
        self._standing_digest: int | str = ""  # of its changes
        # number of the connection on which the store is known to hold what this owner has read
        self._proven = 0
        self._fullness = 0.0
        self._fullness_due = 0.0
        self._tap_names: Sequence[str] = ()  # of the last look
        self._tap_marks: list[Any] | None = None  # that a commit has brought since the last look
        self._taps_due = 0.0
        self._took_s = 0.0  # by the last commit

    def claim(
        self, owner: str, token_by_task: Mapping[int, int], expected: Expected | None = None
    ) -> Claim:
        """Write the tokens, then read what is kept of every task; frames read before are
        forgotten.
        """
        tasks = sorted(token_by_task)
        self._reading.forget(tasks)
        expected = expected or Expected()
        known_mark = expected.mark or StoreMark("", 0, 0, 0)
        mark = [known_mark.incarnation, known_mark.generation, known_mark.step, known_mark.floor]
        accepts = "1" if expected.accepts_loss else ""
        arguments = [
            owner,
            *mark,
            accepts,
            expected.new_incarnation,
            *tasks,
            *(token_by_task[t] for t in tasks),
        ]
        # Sent again after a cut without its own number: claiming twice with the same tokens
        # fences off former owners only.
        answer = self._claim_script.call(self._keys.prefix, lambda: arguments)
        self._require_whole(owner, answer)
        self._require_granted(known_mark, answer)
        # Before the records are read: a connection that is made anew while they are read may be to
        # another server, whose answers must be doubted.
        proven = self._link.number
        k = self._keys
        # Only now, and not in the script: what is read before the tokens are written may still be
        # changed by the former owner. A large journal would also stop the server while it is
        # copied.
        stored, seq, progress = self._link.ask(
            ("GET", k("generation")), ("HGET", k("seq"), owner), ("HGET", k("progress"), owner)
        )
        _, incarnation, origin, step, is_lost, step_left, left_s = answer
        claim = Claim(
            self._generation(owner, stored),
            read_number(seq or 0, k("seq")),
            progress or b"",
            {t: self.record(t) for t in tasks},
            text(incarnation),
            int(step),
            text(origin),
            loss_text(self._topology_id, known_mark, int(step_left), 1000 * int(left_s))
            if is_lost
            else "",
        )
        self._standing = Commit(owner, dict(token_by_task), claim.generation, claim.seq)
        self._standing_digest = ""
        self._proven = proven
        return claim

    def _require_granted(self, known_mark: StoreMark, answer: list[Any]) -> None:
        """Raise the error of a claim that the script has refused."""
        if answer[0] == b"ENDED":
            raise ended_error(self._topology_id)
        if answer[0] == b"LOST":
            raise lost_error(self._topology_id, known_mark, int(answer[1]), 1000 * int(answer[2]))
        if answer[0] == b"FORMAT":
            raise StoreInconsistentError(
                f"the data of topology {self._topology_id} in Redis were written by another version of SparkStorm (frames of "
                f"version {text(answer[1])}, here {text(answer[2])}): finish the run with that version, or kill the topology "
                "and submit it again (a run of your own: --fresh)"
            )
        if answer[0] != b"OK":
            raise FencedError(f"task {text(answer[1])} belongs to token {text(answer[2])} now")

    def record(self, task: int) -> TaskRecord:
        """Return the stored record of a task."""
        return read_task(self._link, self._keys, task)

    def commit(self, commit: Commit) -> Pressure:
        """One script call, sent again unchanged until its outcome is known."""
        # Computed by the owner and not by the script: the server would have to read the frames to
        # know how many bytes they hand on.
        began = time.monotonic()
        frees = commit.frees(self._reading.unconsumed.bytes_passed(commit.cursors))
        digest = commit.digest()
        step, *backlog = self._send(
            commit, digest, self._commands(commit), "free" if frees else "grow", self._questions()
        )
        # After the answer, not before: until then a poll must ask about the commit before.
        self._standing.generation, self._standing.seq = commit.generation, commit.seq
        self._standing_digest = digest
        self._reading.unconsumed.pass_(commit.cursors)
        self._took_s = time.monotonic() - began
        key = self._keys("backlog")
        sizes = {
            task: read_number(size, key) for task, size in zip(commit.watched, backlog, strict=True)
        }
        return Pressure(sizes, self._fullness, int(step))

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        """Ask once, and answer when the answer is there; after a lost connection, first whether the
        store is behind.
        """
        if self._reading.was_lost and after:
            # Also on a connection that was proven: a node of a cluster keeps those of clients when it
            # becomes a replica, and may be promoted again without what it had sent.
            self._proven = 0
            try:
                self.look()
            # The mark of a store that went back cannot be written on a full one. To go on would be
            # to rely on frames that may be gone; to fail, to end a worker that a little room would
            # save.
            except StoreFullError:  # a restarted server that cannot rewrite its file yet
                return []
            self._reading.note_proven()
        return self._reading.poll(after, count)

    def look(self) -> None:
        """Have the script compare the last commit, and write nothing."""
        self._send(self._standing, self._standing_digest, [], "ask")

    def ask(self, after: Mapping[int, str], count: int) -> None:
        """Read along with the next commit, in its round trip, or send the blocking question that
        the server answers when something comes.
        """
        self._reading.wanted = (dict(after), count) if after else None

    def wait(self, timeout_ms: float, wake_fds: Sequence[int] = ()) -> bool:
        """Until the answer to the open question arrives."""
        return self._reading.wait(timeout_ms, wake_fds)

    @property
    def has_read(self) -> bool:
        """Return whether the last commit has brought entries that `poll` has not returned yet."""
        return self._reading.has_answers

    def release(self) -> None:
        """Trim every owned stream up to its stored cursor; a full Redis allows that."""
        for task in self._standing.token_by_task:
            # The stored one, not the one in memory: a commit that was refused has not passed its
            # entries.
            cursor = read_cursor(
                self._link.ask(("HGET", self._keys("cursor"), task))[0], self._keys("cursor")
            )
            self._link.ask(_trim(self._keys, task, cursor))

    def oldest_waiting_ms(self, also: Sequence[int] = (), floor_ms: int = 0) -> int | None:
        """The least of all frames' births and all owners' watermarks, found by the server; a commit
        trims what it consumes.
        """
        oldest = self._oldest_script.call(self._keys.prefix, lambda: [floor_ms, *also])[0]
        return int(oldest) if oldest else None

    def read_state(self, task: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of a task's base."""
        return self._states.read(task, keys)

    def scan_state(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """A task's base in parts."""
        return self._states.scan(task)

    def foreign_cursors(self, tasks: Collection[int]) -> Mapping[tuple[int, int], Cursor]:
        """Cursors in other cells' streams, asked for once."""
        if not tasks:
            return {}
        names = [self._keys("foreign", task) for task in tasks]
        answers = self._link.ask_once(*(("HGETALL", name) for name in names))
        return {
            (cell, task): cursor
            for task, name, pairs in zip(tasks, names, answers, strict=True)
            for cell, cursor in read_cursors_by_cell(pairs, name).items()
        }

    def open_taps(self, names: Sequence[str]) -> Collection[str]:
        """Return the open taps as the last commit has found them; ask for the marks of clients that
        look where no commit has.
        """
        # MGET of nothing is an error to Redis.
        if not names:
            return ()
        marks = self._tap_marks if self._tap_names == names else None
        if marks is None:
            # Once, and not until it is answered: samples are no part of any guarantee, so they wait
            # for nothing.
            marks = self._link.ask_once(self._tap_command(names))[0]
        self._tap_names = names
        self._tap_marks = None
        self._taps_due = time.monotonic() + _TAPS_AFTER_S
        return {name for name, mark in zip(names, marks, strict=True) if mark is not None}

    def _tap_command(self, names: Sequence[str]) -> tuple[Any, ...]:
        return ("MGET", *map(self._keys.tap, names))

    def show(self, samples: Mapping[str, Sequence[bytes]]) -> None:
        """Append samples, and let their streams expire when no more come."""
        for name, rows in samples.items():
            key = self._keys.samples(name)
            # About so many: to cut exactly, Redis would take nodes of the stream apart with each
            # row.
            adds = [("XADD", key, "MAXLEN", "~", MOST_SAMPLES, "*", _FIELD, row) for row in rows]
            self._link.ask_once(*adds, ("PEXPIRE", key, SAMPLES_MS))

    def close(self) -> None:
        """Close both connections."""
        self._link.close()
        self._reading.drop()

    def _questions(self) -> list[Question]:
        """Return what is due to be asked: it travels with a commit."""
        # Its own round trip for each was a third of the time of a worker's loop over 100 ms
        # each way, where every commit is later than both are due.
        questions: list[Question] = []
        if read := self._reading.request():
            questions.append((read, self._reading.note_read))
        now = time.monotonic()
        if now >= self._fullness_due:
            questions.append((_MEMORY, self._note_memory))
        # With loss the next commit may take several times as long as the last.
        ends = now + _TIMES_AS_LONG * self._took_s
        if self._tap_names and self._tap_marks is None and ends >= self._taps_due:
            questions.append((pack(*self._tap_command(self._tap_names)), self._note_taps))
        return questions

    def _note_memory(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            raise translated(reply) from reply
        self._fullness_due = time.monotonic() + _FULLNESS_EVERY_S
        figures = dict(line.split(b":", 1) for line in reply.split(b"\r\n") if b":" in line)
        limit = int(figures.get(b"maxmemory", 0))
        self._fullness = int(figures.get(b"used_memory", 0)) / limit if limit else 0.0

    def _note_taps(self, reply: Any) -> None:
        # An error concerns the taps alone; the next look asks by itself, and says so.
        self._tap_marks = None if isinstance(reply, Exception) else reply

    def _send(
        self,
        commit: Commit,
        digest: int | str,
        commands: list[tuple[Any, ...]],
        mode: str,
        questions: Sequence[Question] = (),
    ) -> list[Any]:
        """The script's answer without its 'OK'; on a connection not proven yet the script also
        checks the frames read so far.

        Questions travel behind the script; each answer goes to its taker.
        """
        tokens = commit.token_by_task
        watched = commit.watched
        head = [commit.owner, commit.generation, commit.seq, digest, mode]
        head += [len(tokens), *tokens, *tokens.values(), len(watched), *watched]

        def arguments() -> list[Any]:
            # A commit on a proven connection names no frames. With all of them, each commit would
            # have the script look up every entry that waits.
            if self._link.number == self._proven:
                return [*head, _PROVEN]
            self._reading.drop()  # its buffer may hold answers of a server that is no more
            doubts = self._reading.unconsumed.words()
            return [*head, len(doubts) // 2, *doubts]

        # Behind the script and not inside it: what a question brings may be lost, and asked for
        # again, which a commit may not.
        try:
            answer, *replies = self._commit_script.call_with(
                self._keys.prefix, arguments, commands, [packed for packed, _ in questions]
            )
        except StoreFullError as error:
            self._may_have_gap |= MISCONF in str(error)
            raise
        self._require_whole(commit.owner, answer)
        if answer[0] == b"FENCED":
            raise FencedError(f"task {text(answer[1])} belongs to token {text(answer[2])} now")
        if answer[0] == b"SECOND":
            raise second_error(commit.owner, commit.seq)
        if answer[0] != b"OK":
            # Also of a broken generation this names the cause, which helps more than the numbers.
            generation = self._generation(commit.owner, answer[1])
            raise StoreRolledBackError(
                f"commit {commit.seq} of {commit.owner} in generation {commit.generation} found "
                f"generation {generation}, seq {text(answer[2])}"
            )
        self._proven = self._link.number
        for (_, take), reply in zip(questions, replies, strict=True):
            take(reply)
        if self._may_have_gap:
            self._ask_for_rewrite()
        return list(answer[1:])

    def _ask_for_rewrite(self) -> None:
        """Have the server replace its append-only file, which may have a gap since its disk was
        full.

        Redis 7 and newer, and Valkey, cannot load a file with a gap (extensions/embedded/append_only_file.py);
        a rewrite leaves it out. A server that is killed before the rewrite has ended still has the
        gap.
        """
        now = time.monotonic()
        if now < self._ask_again_s:
            return
        try:
            self._link.ask(("BGREWRITEAOF",))
        except StoreInconsistentError as refusal:
            # One that began on the full disk may have left the gap in the file that it opened.
            if "in progress" in str(refusal):
                self._ask_again_s = now + _REWRITE_EVERY_S
                return
            _LOG.warning(
                "Redis cannot rewrite its append-only file, which may have a gap since its disk was full: %s",
                refusal,
            )
        self._may_have_gap = False

    def _require_whole(self, owner: str, answer: list[Any]) -> None:
        """Refuse a store that was restarted on half a commit."""
        if answer[0] == b"HALF":
            raise self._damage(
                owner,
                "half of an earlier commit was read back from the append-only file ("
                f"{text(answer[1])} began and {text(answer[2])} ended, in {self._keys('steps')})",
            )

    def _generation(self, owner: str, stored: bytes | None) -> int:
        """The generation as a number; a mark in its place names the command and the commit that
        failed.
        """
        message = text(stored or b"0")
        if not message.isdecimal():
            raise self._damage(owner, f"its last commit was {message[:300]}")
        return int(message)

    def _damage(self, owner: str, cause: str) -> StoreInconsistentError:
        return StoreInconsistentError(
            f"the data of topology {self._topology_id} in Redis cannot be trusted any more, and worker {owner} refuses them: "
            f"{cause}; kill the topology, delete the keys {self._keys.prefix}:* or restore a backup, and submit it again"
        )

    def _commands(self, commit: Commit) -> list[tuple[Any, ...]]:
        k = self._keys
        # A task that sends to itself drains and fills in the same commit, so both are one change.
        waiting = {task: -size for task, size in commit.drained_bytes.items()}
        commands: list[tuple[Any, ...]] = []
        for task, data, counted in commit.frames:
            commands.append(("XADD", k("task", task), "*", _FIELD, data))
            if counted:
                waiting[task] = waiting.get(task, 0) + counted
        # One HSET for many tasks: Redis looks up and checks every command that a script calls.
        for tasks in _some(commit.cursors):
            words: list[Any] = ["HSET", k("cursor")]
            for task in tasks:
                cursor = commit.cursors[task]
                words += task, f"{cursor.entry} {cursor.row}"
            commands.append(tuple(words))
        commands += [_trim(k, task, cursor) for task, cursor in commit.cursors.items()]
        for (cell, task), passed in commit.foreign.items():
            entry, row = passed.cursor
            commands.append(("HSET", k("foreign", task), cell, f"{entry} {row}"))
        for tasks in _some(waiting):
            words = ["COUNT", k("backlog"), k.stream("")]
            for task in tasks:
                words += task, waiting[task], 1 if task in commit.drained_bytes else 0
            commands.append(tuple(words))
        commands += [("RPUSH", k("journal", task), delta) for task, delta in commit.journal]
        # By number from the front, and after the pushes: a sweep's parts come after what they
        # replace.
        commands += [
            ("LTRIM", k("journal", task), count, -1) for task, count in commit.dropped.items()
        ]
        commands += write_commands(k, commit.state)
        commands += self._outcomes(commit)
        if commit.progress:
            commands.append(("HSET", k("progress"), commit.owner, commit.progress))
        if commit.earlier is not None:
            index, record = commit.earlier
            commands.append(("HSET", k("earlier"), f"{commit.owner} {index}", record))
        if commit.low_ms is not None:
            commands.append(("HSET", k("low"), commit.owner, commit.low_ms))
        return commands

    def _outcomes(self, commit: Commit) -> Iterable[tuple[Any, ...]]:
        k = self._keys
        for task, key in commit.released:
            # Before what is held anew: an input that is released and held again in one epoch stays.
            yield ("HDEL", k("held", task), key)
        for task, key, data in commit.held:
            yield ("HSET", k("held", task), key, data)
        for data in commit.parked:
            # Without a limit the store would fill with failures; see MOST_DEAD_LETTERS for the
            # number.
            yield ("XADD", k("dead"), "MAXLEN", "~", MOST_DEAD_LETTERS, "*", _FIELD, data)
        for data in commit.quarantined:
            # Without a limit, since frames are refused rarely, and each is the only proof of what
            # was wrong.
            yield ("XADD", k("quarantine"), "*", _FIELD, data)


def _some(tasks: Collection[int]) -> Iterable[Collection[int]]:
    """Tasks in parts that fit into one command."""
    if len(tasks) <= _TASKS_AT_ONCE:
        return (tasks,) if tasks else ()
    # Nearly never reached: a worker with more than 1,000 tasks.
    listed = list(tasks)
    return [
        listed[start : start + _TASKS_AT_ONCE] for start in range(0, len(listed), _TASKS_AT_ONCE)
    ]


def _trim(keys: Keys, task: int, cursor: Cursor) -> tuple[Any, ...]:
    milliseconds, number = entry_order(cursor.entry)
    # MINID keeps its own id, so the first id that may stay is the one after the last consumed
    return ("XTRIM", keys.stream(task), "MINID", "=", f"{milliseconds}-{number + 1}")
