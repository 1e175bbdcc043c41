"""Access of drivers, clients and notebooks to a topology's keys in Redis: reads, and a few changes.

Law: nothing here needs a fence, and nothing here can be taken for a commit: a client may die at any
call. What must be one step (a dead letter goes back, a topology ends) is a script; all else may be
seen half done. Left out: requests to the workers themselves, which would need a port on every host
and would have no answer when a worker hangs.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from sparkstorm.common.errors import NotAliveError, StoreInconsistentError, StoreUnavailableError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.base import START, TAP_MS, TOMBSTONE_MS, TaskInputs, TaskRecord
from sparkstorm.data_plane.transport.connection import Link, Script, text
from sparkstorm.data_plane.transport.keys import (
    Keys,
    read_cursor,
    read_cursors_by_cell,
    read_number,
)
from sparkstorm.data_plane.transport.state_base import StateReading

# Redis does nothing else during one step of SCAN or UNLINK. KEYS would be one step over all keys of
# all topologies.
_NAMES_AT_ONCE = 1000
# For counts of one moment: the first look finds them as a rule.
_LOOKS = 20
_ENTRY = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


def is_kept_in(address: RedisAddress, topology_id: str, patience_s: float = 5.0) -> bool:
    """Return whether a Redis keeps something of a topology that has ended: dead letters, or its
    tombstone.
    """
    keys = Keys(topology_id)
    link = Link(address, patience_s, may_write=False, tag=keys.prefix)
    try:
        # TYPE and not EXISTS, which a viewer may not ask (docs/security.md).
        return any(
            kind != b"none"
            for kind in link.ask(*(("TYPE", keys(name)) for name in ("dead", "ended", "fence")))
        )
    finally:
        link.close()


class RedisReader:
    """One topology's keys, seen from outside its workers."""

    is_one_moment = True
    """Whether the counts are of one moment: those of one store are."""

    def __init__(
        self,
        address: RedisAddress,
        topology_id: str,
        patience_s: float = 10.0,
        may_write: bool = True,
    ) -> None:
        self._keys = Keys(topology_id)
        self._topology_id = topology_id
        # The patience is a sixth of a worker's: an operator waits for the answer.
        self._link = Link(address, patience_s, may_write=may_write, tag=self._keys.prefix)
        self._put_back_script = Script("put_back.lua", self._link)

    def progress(self) -> dict[str, bytes]:
        """Progress record of every owner."""
        return _by_owner(self._link.ask(("HGETALL", self._keys("progress")))[0])

    def earlier(self) -> dict[str, list[bytes]]:
        """Return the earlier progress records that are kept of each owner, in no order."""
        stored = _by_owner(self._link.ask(("HGETALL", self._keys("earlier")))[0])
        records_by_owner: dict[str, list[bytes]] = {}
        for name, record in stored.items():
            records_by_owner.setdefault(name.rpartition(" ")[0], []).append(record)
        return records_by_owner

    def backlog(self) -> dict[int, int]:
        """Bytes that wait in each task's stream."""
        key = self._keys("backlog")
        return _by_task(self._link.ask(("HGETALL", key))[0], key)

    def progress_and_backlog(self) -> tuple[dict[str, bytes], dict[int, int]]:
        """Return both as of one moment: no commit lies between them.

        The number of the last commit is read before and behind them, which a viewer may do; MULTI
        it may not. Redis carries the four requests out together as a rule. StoreUnavailableError
        when commits came between them every time.
        """
        # Two looks at different moments would make what a commit has moved from one task to the
        # next look lost, or counted twice. MULTI is no way: a viewer's rights are reads.
        steps = ("HGET", self._keys("steps"), "ended")
        key = self._keys("backlog")
        for _ in range(_LOOKS):
            began, progress, backlog, ended = self._link.ask(
                steps, ("HGETALL", self._keys("progress")), ("HGETALL", key), steps
            )
            if began == ended:
                return _by_owner(progress), _by_task(backlog, key)
        raise StoreUnavailableError(
            f"{self._topology_id} commits faster than its counts can be read: look again"
        )

    def newest_step(self) -> int:
        """Return the number of the store's newest write."""
        key = self._keys("steps")
        return read_number(self._link.ask(("HGET", key, "ended"))[0] or 0, key)

    def record(self, task: int) -> TaskRecord:
        """Return what the store keeps of a task."""
        return read_task(self._link, self._keys, task)

    def scan_state(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield a task's base in parts."""
        return StateReading(self._link, self._keys).scan(task)

    def inputs(self, task: int, limit: int) -> TaskInputs:
        """Return what waits for a task; its stream is trimmed at its cursor, so the oldest entries
        are what waits.
        """
        k = self._keys
        stream = ("XRANGE", k.stream(task), "-", "+", "COUNT", limit)
        cursor, held, entries = self._link.ask(
            ("HGET", k("cursor"), task), ("HGETALL", k("held", task)), stream
        )
        pairs = zip(held[::2], held[1::2], strict=True)
        return TaskInputs(
            read_cursor(cursor, k("cursor")),
            {text(key): data for key, data in pairs},
            [(text(id), fields[1]) for id, fields in entries],
        )

    def parked(self, limit: int, after: str = "0") -> list[tuple[str, bytes]]:
        """Return the oldest dead letters with ids greater than `after`, with their ids."""
        entries = self._link.ask(("XRANGE", self._keys("dead"), f"({after}", "+", "COUNT", limit))[
            0
        ]
        return [(text(id), fields[1]) for id, fields in entries]

    def letters(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return dead letters by id, in one round trip; those that are not there (any more) are
        left out.
        """
        # Ids come from users. XRANGE has words of its own, "-" and "+" among them, which would
        # answer with all letters.
        asked = [id for id in ids if _ENTRY.fullmatch(id)]
        answers = (
            self._link.ask(*[("XRANGE", self._keys("dead"), id, id) for id in asked])
            if asked
            else []
        )
        return {id: entries[0][1][1] for id, entries in zip(asked, answers, strict=True) if entries}

    def put_back(self, letters: Sequence[tuple[str, int, bytes]]) -> list[str]:
        """Take dead letters off and deliver their frames, (id, task, frame) each, in one step;
        return the ids that were there.
        """
        # A token of the call, the same for each try: a call that is sent again after a cut finds
        # its own token in the store and changes nothing.
        arguments = [uuid.uuid4().hex, *(word for letter in letters for word in letter)]
        answer = self._put_back_script.call(self._keys.prefix, lambda: arguments)
        if answer[0] == b"UNOWNED":
            raise NotAliveError(
                f"no worker of {self._topology_id} has claimed task {text(answer[1])} yet; replay its dead letters later"
            )
        if answer[0] in (b"HALF", b"BROKEN"):
            words = " ".join(map(text, answer[1:]))
            raise StoreInconsistentError(
                f"the data of {self._topology_id} in Redis cannot be trusted any more ({words})"
            )
        return [text(id) for id in answer[1:]]

    def count_dead_letters(self) -> int:
        """Return how many dead letters are kept."""
        return int(self._link.ask(("XLEN", self._keys("dead")))[0])

    def drop_dead_letter(self, id: str) -> bool:
        """Delete one dead letter; False when it is not there."""
        return (
            bool(_ENTRY.fullmatch(id)) and self._link.ask(("XDEL", self._keys("dead"), id))[0] == 1
        )

    def drop_dead_letters(self) -> int:
        """Delete the topology's dead letters; return how many there were."""
        count, _ = self._link.ask(("XLEN", self._keys("dead")), ("UNLINK", self._keys("dead")))
        return int(count)

    def log_slots(self) -> list[str]:
        """Return the slots ("node:port") of the workers whose logs are kept."""
        prefix = self._keys.log("")
        return sorted(name.removeprefix(prefix) for name in names_of(self._link, prefix))

    def log(self, slot: str, after: str = "0") -> list[tuple[str, bytes]]:
        """Return the kept parts of one worker's log with ids greater than `after`, with their
        ids.
        """
        entries = self._link.ask(("XRANGE", self._keys.log(slot), f"({after}", "+"))[0]
        return [(text(id), fields[1]) for id, fields in entries]

    def open_tap(self, name: str) -> str:
        """Write the mark that workers look for; return the id of the newest sample."""
        _, newest = self._link.ask(
            ("SET", self._keys.tap(name), "1", "PX", TAP_MS),
            ("XREVRANGE", self._keys.samples(name), "+", "-", "COUNT", 1),
        )
        return text(newest[0][0]) if newest else START.entry

    def samples(self, name: str, after: str) -> list[tuple[str, bytes]]:
        """Return a tap's samples with ids greater than `after`, with their ids."""
        entries = self._link.ask(("XRANGE", self._keys.samples(name), f"({after}", "+"))[0]
        return [(text(id), fields[1]) for id, fields in entries]

    def delete(self) -> None:
        """Leave a tombstone, then delete everything but the dead letters, in steps that do not
        block the server.
        """
        end(self._link, self._keys, "")
        # Dead letters are asked for when a run is over and its topology gone; they stay until an
        # operator drops them.
        staying = (self._keys("dead"), self._keys("ended"))
        names = [
            name for name in names_of(self._link, f"{self._keys.prefix}:") if name not in staying
        ]
        for start in range(0, len(names), _NAMES_AT_ONCE):
            # UNLINK frees memory on a thread of the server; DEL of a state of millions of keys
            # would stop all topologies that share it.
            self._link.ask(("UNLINK", *names[start : start + _NAMES_AT_ONCE]))

    def close(self) -> None:
        """Close the connection."""
        self._link.close()


def end(link: Link, k: Keys, heir: str) -> str:
    """Fence all processes of a topology off for good; return the content of its tombstone: the
    heir, or "" when no data is to move.
    """
    return text(Script("end.lua", link).call(k.prefix, lambda: [TOMBSTONE_MS, heir])[0])


def names_of(link: Link, prefix: str, suffix: str = "", kind: str = "") -> list[str]:
    """Return the names of all keys that begin and end so, in no order; of a kind as TYPE says it
    ("stream"), or of all kinds.
    """
    # A topology's name may hold brackets, which mean sets of letters to SCAN: without the
    # backslashes another topology's keys would be found, and deleted.
    escapes = {ord(mark): f"\\{mark}" for mark in "\\[]*?^"}
    pattern = f"{prefix.translate(escapes)}*{suffix.translate(escapes)}"
    options = ("MATCH", pattern, "COUNT", _NAMES_AT_ONCE, *(("TYPE", kind) if kind else ()))
    # SCAN may give a name twice while the server's table grows.
    all_names: set[str] = set()
    for _ in range(_LOOKS):
        number = link.settled()
        cursor: Any = b"0"
        while cursor != 0:
            cursor, names = link.ask(("SCAN", cursor, *options))[0]
            all_names.update(map(text, names))
            cursor = int(cursor)
        # A node of a cluster lists the keys that it has, without a word on those that have moved.
        if link.settled() == number:
            return list(all_names)
    raise StoreUnavailableError(
        f"the keys that begin with {prefix} move from server to server faster than they can be listed: look again"
    )


def read_task(link: Link, k: Keys, task: int) -> TaskRecord:
    """Return what the store keeps of a task."""
    # In one round trip but not at one moment: for an owner that has just claimed, no other process
    # writes; from outside it is a look.
    cursor, journal, held, newest, foreign = link.ask(
        ("HGET", k("cursor"), task),
        ("LRANGE", k("journal", task), 0, -1),
        ("HGETALL", k("held", task)),
        ("XREVRANGE", k.stream(task), "+", "-", "COUNT", 1),
        ("HGETALL", k("foreign", task)),
    )
    pairs = zip(held[::2], held[1::2], strict=True)
    return TaskRecord(
        read_cursor(cursor, k("cursor")),
        list(journal),
        {text(key): data for key, data in pairs},
        text(newest[0][0]) if newest else START.entry,
        read_cursors_by_cell(foreign, k("foreign", task)),
    )


def _by_owner(pairs: Sequence[bytes]) -> dict[str, bytes]:
    return {text(owner): data for owner, data in zip(pairs[::2], pairs[1::2], strict=True)}


def _by_task(pairs: Sequence[bytes], key: str) -> dict[int, int]:
    return {
        read_number(task, key): read_number(number, key)
        for task, number in zip(pairs[::2], pairs[1::2], strict=True)
    }
