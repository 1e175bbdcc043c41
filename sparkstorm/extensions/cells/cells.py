"""A topology over several stores: the transport of an owner in one of its cells.

Law: an entry lies in the store of its *sender's* cell, the cursor in its *receiver's*; so a commit
touches one store, by the script of one store, and no two stores ever have to agree. A receiver
reads a stream of each cell and keeps a cursor for each. What it has passed is freed later, by a
message that may come twice, late, or from an owner that has been fenced off: it names stored
cursors only, which never go back on purpose. Kinds of loss of a store that goes back alone:

* the sender's store loses entries that were consumed: its owners send again, in other entries;
* the receiver's store loses cursors up to which entries were freed.

Both show at the same place: the newest freed entry stays in its stream, so the entry of every
cursor is there as long as neither store has lost anything. Left out: pushing entries into the
receiver's store (a second copy, and acknowledgements), two-phase commits, a proxy. Ids that begin
with the store's generation were left out too: the generation is raised by the first owner that
misses its own commit, and owners that miss none go on before that, under ids that were given
before; a reader ahead of them would pass over such entries. Ids by the clock do not come back.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from sparkstorm.common.errors import StoreFullError, StoreLostError, StoreUnavailableError
from sparkstorm.data_plane.transport.base import (
    START,
    Claim,
    Commit,
    Cursor,
    Entry,
    Expected,
    ForeignProgress,
    Pressure,
    Transport,
    entry_order,
)
from sparkstorm.data_plane.transport.store_loss import loss_between_cells, stop_text

# A look at all stores for the oldest that waits must end within it: what was consumed meanwhile is
# still in the store that it came from, so nothing moves past the look. Half of it makes more looks
# fail on busy stores; double keeps twice as much that is done with (0.4 s of what cells send to
# each other).
STAY_MS = 200
"""Time for which a consumed entry stays in the store of another cell at least."""
# A message for each other store. Half sends twice as many, at some 50 us of the store's core each;
# with double senders see what waits 100 ms later.
TELL_EVERY_MS = 100
# An eighth of what may wait for a task (topology.inbox.high.bytes), after which senders pause: they
# must hear sooner. Half sends twice as many messages where much is sent; with double senders may
# pause though nothing waits.
_TELL_AT_BYTES = 1 << 20


class Trim(NamedTuple):
    """Progress of a task that another cell's store may act on: entries after `since` up to `entry`
    have so many bytes that counted as backlog, and those before `free` may go.
    """

    task: int
    since: str
    entry: str
    drained_bytes: int
    free: str


class StoredCursors(Protocol):
    """The place where an owner's cursors in other cells' streams are read."""

    def foreign_cursors(self, tasks: Collection[int]) -> Mapping[tuple[int, int], Cursor]:
        """Return the cursors of these tasks by (cell, task); StoreUnavailableError."""

    def close(self) -> None:
        """Close the connection."""


class ForeignStore(Protocol):
    """The store of another cell, as an owner reads it. No call waits for a store that is away."""

    def begin(self, cursor_by_task: Mapping[int, Cursor]) -> Mapping[int, str]:
        """Forget what was read before a claim; return the tasks of which consumed entries are gone,
        or were freed before their cursors, with the entry behind which all that is there begins.

        Empty when the store is away: `poll` finds out later.
        """

    def poll(self, after: Mapping[int, str], count: int) -> Sequence[Entry]:
        """Return entries behind the given ids, at most `count` a task; none while it is away.

        StoreRolledBackError when what was read from it is gone.
        """

    def ask(self, after: Mapping[int, str], count: int) -> None:
        """Let a wait end when there are entries behind these ids."""

    def note_stored(self, cursor_by_task: Mapping[int, Cursor]) -> None:
        """Take note of cursors that were stored: what they have passed is not asked for again."""

    def trim(self, trims: Sequence[Trim]) -> None:
        """Free what was passed; StoreUnavailableError or StoreFullError: try again later."""

    def oldest_waiting_ms(self, also: Sequence[int], floor_ms: int) -> int | None:
        """Return the birth of the oldest root that waits there; StoreUnavailableError."""

    def listen(self) -> Sequence[int]:
        """Return the descriptors that become readable when entries have come."""

    @property
    def has_read(self) -> bool:
        """Return whether entries are here that `poll` has not returned yet."""

    @property
    def retry_ms(self) -> float | None:
        """Return in how many ms a store that is away is to be asked again; None: it is there."""

    def close(self) -> None:
        """Close the connections."""


class CellsTransport:
    """Transport of one owner: its own cell's, and readings of the other cells' stores."""

    def __init__(
        self,
        topology_id: str,
        own: Transport,
        foreign: Mapping[int, ForeignStore],
        now_ms: Callable[[], float],
        stored: StoredCursors | None = None,
    ) -> None:
        """`now_ms`: a clock that never goes back. `stored`: where cursors are looked up that others
        may free entries by; in the own store unless given.
        """
        self._topology_id = topology_id
        self._own = own
        self._foreign = foreign
        self._now_ms = now_ms
        self._stored = own if stored is None else stored
        self._read_to: dict[int, dict[int, str]] = {cell: {} for cell in foreign}
        # (time of the commit, its cursors), oldest first: what may be freed some time later
        self._young: deque[tuple[float, Mapping[tuple[int, int], ForeignProgress]]] = deque()
        self._free: dict[int, dict[int, str]] = {cell: {} for cell in foreign}
        # consumed, and not told yet: the newest entry and the bytes
        self._passed: dict[int, dict[int, tuple[str, int]]] = {cell: {} for cell in foreign}
        self._told: dict[tuple[int, int], str] = {}  # up to here, as this owner knows
        self._untold_bytes = 0
        self._tell_due_ms = 0.0

    def claim(
        self, owner: str, token_by_task: Mapping[int, int], expected: Expected | None = None
    ) -> Claim:
        """Claim in the own store, then look what the others still have."""
        claim = self._own.claim(owner, token_by_task, expected)
        self._young.clear()
        self._tell_due_ms = self._now_ms() + TELL_EVERY_MS
        self._free = {cell: {} for cell in self._foreign}
        self._passed = {cell: {} for cell in self._foreign}
        records = dict(claim.record_by_task)
        losses = [claim.loss] if claim.loss else []
        for cell, store in self._foreign.items():
            cursors = {task: record.foreign.get(cell, START) for task, record in records.items()}
            if lost := store.begin(cursors):
                loss = loss_between_cells(self._topology_id, cell, sorted(lost))
                if expected is None or not expected.accepts_loss:
                    raise StoreLostError(stop_text(self._topology_id, loss), loss)
                losses.append(loss)
                # All that is there once more: what was consumed of it is doubled, nothing is lost.
                for task, entry in lost.items():
                    cursors[task] = Cursor(entry, 0)
                    foreign = {**records[task].foreign, cell: cursors[task]}
                    records[task] = replace(records[task], foreign=foreign)
                store.begin(cursors)
            self._begin(cell, cursors)
        return replace(claim, record_by_task=records, loss="; ".join(losses))

    def _begin(self, cell: int, cursor_by_task: Mapping[int, Cursor]) -> None:
        self._read_to[cell] = {task: cursor.entry for task, cursor in cursor_by_task.items()}
        self._told |= {(cell, task): cursor.entry for task, cursor in cursor_by_task.items()}
        # A former owner may have died before it could tell what it had passed, maybe just now.
        begun = {
            (cell, task): ForeignProgress(cursor)
            for task, cursor in cursor_by_task.items()
            if cursor.entry != START.entry
        }
        if begun:
            self._young.append((self._now_ms(), begun))

    def commit(self, commit: Commit) -> Pressure:
        """Commit in the own store."""
        pressure = self._own.commit(commit)
        if commit.foreign:
            self._note_passed(commit.foreign)
        self._tell(has_committed=True)
        return pressure

    def _note_passed(self, foreign: Mapping[tuple[int, int], ForeignProgress]) -> None:
        self._young.append((self._now_ms(), foreign))
        by_cell: dict[int, dict[int, Cursor]] = {}
        for (cell, task), passed in foreign.items():
            by_cell.setdefault(cell, {})[task] = passed.cursor
            _, before = self._passed[cell].get(task, ("", 0))
            self._passed[cell][task] = (passed.cursor.entry, before + passed.drained_bytes)
            self._untold_bytes += passed.drained_bytes
        for cell, cursors in by_cell.items():
            self._foreign[cell].note_stored(cursors)

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        """Read the own store, then the others; where entries of these end is known here."""
        entries = self._own.poll(after, count)
        for cell, store in self._foreign.items() if after else ():
            read_to = self._read_to[cell]
            for entry in store.poll({task: read_to[task] for task in after}, count):
                read_to[entry.task] = entry.id
                entries.append(entry._replace(cell=cell))
        return entries

    def look(self) -> None:
        """Ask the own store alone: the others have none of this owner's commits."""
        self._own.look()

    def ask(self, after: Mapping[int, str], count: int) -> None:
        """Ask the own store with the next commit, and each other one on its own connection."""
        self._own.ask(after, count)
        for cell, store in self._foreign.items():
            read_to = self._read_to[cell]
            store.ask({task: read_to[task] for task in after}, count)

    def wait(self, timeout_ms: float, wake_fds: Sequence[int] = ()) -> bool:
        """Wait for entries of any store; what is due to be freed is freed meanwhile."""
        self._tell()
        stores = self._foreign.values()
        if any(store.has_read for store in stores):
            return True
        fds = [fd for store in stores for fd in store.listen()]
        retries = self._retries_ms
        due_ms = self.due_in_ms
        limit_ms = max(0.0, timeout_ms if due_ms is None else min(timeout_ms, due_ms))
        is_woken = self._own.wait(limit_ms, [*wake_fds, *fds])
        self._tell()
        # A store that is away is asked again by the next poll.
        return is_woken or any(ms <= limit_ms for ms in retries)

    @property
    def due_in_ms(self) -> float | None:
        """Return in how many ms `wait` has something to do, whatever comes; None: nothing."""
        news = [self._tell_due_ms - self._now_ms()] if self._has_news else []
        due_ms = min([*self._retries_ms, *news], default=None)
        return None if due_ms is None else max(0.0, due_ms)

    @property
    def _retries_ms(self) -> list[float]:
        return [ms for store in self._foreign.values() if (ms := store.retry_ms) is not None]

    @property
    def has_read(self) -> bool:
        """Return whether entries are here that `poll` has not returned yet."""
        return getattr(self._own, "has_read", False) or any(
            store.has_read for store in self._foreign.values()
        )

    def release(self) -> None:
        """Free what stored cursors have passed in the own store."""
        self._own.release()

    def oldest_waiting_ms(self, also: Sequence[int] = (), floor_ms: int = 0) -> int | None:
        """The least of all stores; the floor when one is away, or the look took too long for it to
        be of one moment.
        """
        began_ms = self._now_ms()
        oldest_ms = [self._own.oldest_waiting_ms(also, floor_ms)]
        try:
            oldest_ms += [
                store.oldest_waiting_ms(also, floor_ms) for store in self._foreign.values()
            ]
        except StoreUnavailableError:
            return floor_ms  # anything may wait there: nothing is given up
        if self._now_ms() - began_ms >= STAY_MS:
            return floor_ms
        return min((ms for ms in oldest_ms if ms is not None), default=None)

    def read_state(self, task: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of a task's base, which is in the own store."""
        return self._own.read_state(task, keys)

    def scan_state(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """A task's base in parts."""
        return self._own.scan_state(task)

    def foreign_cursors(self, tasks: Collection[int]) -> Mapping[tuple[int, int], Cursor]:
        """Cursors in other cells' streams, as stored."""
        return self._own.foreign_cursors(tasks)

    def open_taps(self, names: Sequence[str]) -> Collection[str]:
        """Return which of these taps are open in the own store."""
        return self._own.open_taps(names)

    def show(self, samples: Mapping[str, Sequence[bytes]]) -> None:
        """Append samples in the own store."""
        self._own.show(samples)

    def close(self) -> None:
        """Close all connections."""
        self._own.close()
        self._stored.close()
        for store in self._foreign.values():
            store.close()

    @property
    def _has_news(self) -> bool:
        return bool(self._young) or any(self._free.values()) or any(self._passed.values())

    def _tell(self, has_committed: bool = False) -> None:
        """Tell other stores what was passed, and what may go since it was passed some time ago;
        `has_committed`: just now.
        """
        if not self._has_news:
            return
        now_ms = self._now_ms()
        if now_ms < self._tell_due_ms and self._untold_bytes < _TELL_AT_BYTES:
            return
        self._tell_due_ms = now_ms + TELL_EVERY_MS
        self._untold_bytes = 0
        while self._young and now_ms - self._young[0][0] >= STAY_MS:
            for (cell, task), passed in self._young.popleft()[1].items():
                self._free[cell][task] = passed.cursor.entry
        for cell in self._foreign:
            if self._free[cell] or self._passed[cell]:
                self._tell_cell(cell, has_committed)

    def _tell_cell(self, cell: int, has_committed: bool) -> None:
        passed = self._passed[cell]
        free = self._free[cell]
        # A commit that was taken shows that the own store has all commits before it: their numbers
        # have no gap. To ask again would be a round trip more for each other store, ten times a second.
        is_stored = has_committed and self._stored is self._own
        gone = dict(free) if is_stored else self._stored_up_to(cell, free)
        trims = []
        for task in passed.keys() | gone.keys():
            told = self._told[cell, task]
            entry, size = passed.get(task, (told, 0))
            trims.append(Trim(task, told, entry, size, gone.get(task, START.entry)))
        # What is not told waits: it costs memory there, and nothing else.
        with contextlib.suppress(StoreUnavailableError, StoreFullError):
            if trims:
                self._foreign[cell].trim(trims)
            for trim in trims:
                self._told[cell, trim.task] = trim.entry
            passed.clear()
            for task, entry in gone.items():
                if entry == free[task]:
                    del free[task]

    def _stored_up_to(self, cell: int, wanted: Mapping[int, str]) -> dict[int, str]:
        """Return up to which of these entries cursors are stored, by task."""
        # As stored and not as remembered: an owner whose own store has just come back without its
        # last commits may not know it yet.
        try:
            stored = self._stored.foreign_cursors(list(wanted)) if wanted else {}
        except StoreUnavailableError:
            return {}
        cursors = {task: stored.get((cell, task), START).entry for task in wanted}
        entry_by_task = {
            task: min(entry, wanted[task], key=entry_order) for task, entry in cursors.items()
        }
        return {task: entry for task, entry in entry_by_task.items() if entry != START.entry}
