"""Session windows: tuples of a key whose neighbours lie less than the gap apart form one window.

A session of tuples from first to last is the window [first, last + gap); one more tuple can join
two of them. The store has two entries per session: ("s", first, *key) holds [last, end when it last
fired (0: never)], and ("a", first, *key) its accumulator, if there is one. Collected tuples lie in
cells of the gap's length. Sessions of a key are at least the gap apart, so a cell holds tuples of
one session only.

The first times of each key's sessions are kept in memory, sorted. A tuple therefore costs a binary
search and the entries of the sessions that it joins, however many its key has. The index may list
sessions that are gone, since deleting them may be undone; a later search that meets them drops
them.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.windowing.due_queue import DueQueue
from sparkstorm.common.windowing.store import Key, Store
from sparkstorm.common.windowing.watermarks import NEVER
from sparkstorm.common.windowing.window_contents import Collected, Content, Fold
from sparkstorm.common.windowing.windows import Firing

_FIRED_TO = ("W",)
Session = tuple[int, int, int]
"""First time, last time, and the end when it last fired (0: never)."""


class Firsts:
    """First times of one key's sessions, ascending, in `times` from `head` on: dropping the oldest
    moves no others.
    """

    __slots__ = ("times", "head")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.head = 0

    def __len__(self) -> int:
        return len(self.times) - self.head

    def place(self, time_ms: int) -> int:
        """Return the index behind the last session that begins by this time."""
        return bisect_right(self.times, time_ms, self.head)

    def add(self, first: int) -> None:
        """Insert a first time."""
        self.times.insert(self.place(first), first)

    def drop(self, begin: int, end: int) -> int:
        """Drop the times between two indexes; return the index of what followed."""
        if begin > self.head:
            del self.times[begin:end]
            return begin
        self.head = end
        if 2 * self.head < len(self.times):
            return end
        del self.times[: self.head]
        self.head = 0
        return 0


class Sessions:
    """Session windows over milliseconds."""

    def __init__(
        self, gap: int, store: Store, contents: Collected | Fold, lateness: int = 0
    ) -> None:
        self._gap = gap
        self._store = store
        self._lateness = lateness
        self._fold = contents if isinstance(contents, Fold) else None
        self._collected = contents if isinstance(contents, Collected) else None
        self._firsts: dict[Key, Firsts] = {}
        # for each session that is to fire a time of its span, from some tuple's end to its own
        self._ends = DueQueue()
        self._expiries = DueQueue()  # the same of sessions that are to be forgotten
        self.fired_to: int = store.get(_FIRED_TO, NEVER)
        self.floor = self.fired_to
        if self._collected is not None:
            self._collected.load()
        self._load()

    def add(self, time_ms: int, key: Key, tup: Tuple) -> list[Firing]:
        firsts = self._firsts.get(key) or Firsts()
        joined = self._neighbours(firsts, time_ms, key)
        session = time_ms, time_ms, 0
        if joined:
            session = (
                min(time_ms, joined[0][0]),
                max(time_ms, joined[-1][1]),
                max(neighbour[2] for neighbour in joined),
            )
        if self._fold is not None:
            self._store.put(
                ("a", session[0], *key), self._merged(joined, time_ms, key, self._fold, tup)
            )
        if self._collected is not None:
            self._collected.add(time_ms - time_ms % self._gap, key, time_ms, tup)
        self._replace(joined, session, key)
        if not joined or session[0] < joined[0][0]:
            self._firsts[key] = firsts
            firsts.add(session[0])
        if not joined or session[2]:  # else the session it extends is scheduled
            self._plan(session, key)
        end = session[1] + self._gap
        return [self._firing(session, key)] if end <= self.fired_to or end == session[2] else []

    def is_gone(self, time_ms: int, key: Key) -> bool:
        return time_ms + self._gap + self._lateness <= self.fired_to

    def next_end(self) -> int | None:
        return self._ends.first_at()

    def next_due(self, watermark: int) -> Firing | None:
        while (planned := self._ends.first_at()) is not None and planned <= watermark:
            key = self._ends.first_key()
            session = self._session_at(planned - self._gap, key)
            end = session[1] + self._gap if session is not None else NEVER
            if session is not None and planned == end != session[2]:
                return self._firing(session, key)
            self._ends.drop_first()
            if session is not None and end > planned:
                self._ends.add(end, key)
        return None

    def done(self, firing: Firing) -> None:
        last = firing.end - self._gap
        if self._lateness:
            self._store.put(("s", firing.start, *firing.key), [last, firing.end])
        else:
            self._forget((firing.start, last, firing.end), firing.key)

    def settle(self, watermark: int) -> None:
        if watermark <= self.fired_to:
            return
        self.fired_to = self.floor = watermark
        self._store.put(_FIRED_TO, watermark)
        while (expiry := self._expiries.first_at()) is not None and expiry <= watermark:
            key = self._expiries.first_key()
            self._expiries.drop_first()
            session = self._session_at(expiry - self._lateness - self._gap, key)
            if session is None:
                continue
            if (end := session[1] + self._gap + self._lateness) > expiry:
                self._expiries.add(end, key)
            else:
                self._forget(session, key)
                self._session_at(session[0], key)  # removes it from the index as well

    def pause(self) -> None:
        """Do nothing: each session's entry has whether it has fired."""

    # -- sessions of a key -------------------------------------------------------------------------

    def _neighbours(self, firsts: Firsts, time_ms: int, key: Key) -> list[Session]:
        """Return the sessions that a tuple joins, in the order of time: two at most."""
        index = self._drop_gone_before(firsts.place(time_ms), firsts, key)
        while (
            index < len(firsts.times)
            and firsts.times[index] < time_ms + self._gap
            and self._read(firsts.times[index], key) is None
        ):
            index = firsts.drop(index, index + 1)
        near = [
            self._read(first, key)
            for first in firsts.times[max(firsts.head, index - 1) : index + 1]
        ]
        return [
            neighbour
            for neighbour in near
            if neighbour is not None
            and neighbour[0] - self._gap < time_ms < neighbour[1] + self._gap
        ]

    def _session_at(self, time_ms: int, key: Key) -> Session | None:
        """Return the session that spans a time."""
        firsts = self._firsts.get(key)
        if firsts is None:
            return None
        index = self._drop_gone_before(firsts.place(time_ms), firsts, key)
        if not len(firsts):
            del self._firsts[key]
        session = self._read(firsts.times[index - 1], key) if index > firsts.head else None
        return session if session is not None and time_ms <= session[1] else None

    def _drop_gone_before(self, index: int, firsts: Firsts, key: Key) -> int:
        """Drop the sessions right before a place that are gone; return the place after that.

        Only to be called when nothing can be undone any more that has deleted a session.
        """
        begin = index
        while begin > firsts.head and self._read(firsts.times[begin - 1], key) is None:
            begin -= 1
        return index if begin == index else firsts.drop(begin, index)

    def _read(self, first: int, key: Key) -> Session | None:
        entry = self._store.get(("s", first, *key))
        return None if entry is None else (first, entry[0], entry[1])

    def _replace(self, former: list[Session], session: Session, key: Key) -> None:
        """Write a session's entry in place of those that it was made of."""
        for old_session in former:
            if old_session[0] != session[0]:
                self._store.delete(("s", old_session[0], *key))
                self._store.delete(("a", old_session[0], *key))
        if former != [session]:
            self._store.put(("s", session[0], *key), session[1:])

    def _plan(self, session: Session, key: Key) -> None:
        end = session[1] + self._gap
        if end > self.fired_to:
            self._ends.add(end, key)
        if self._lateness:
            self._expiries.add(end + self._lateness, key)

    def _forget(self, session: Session, key: Key) -> None:
        self._store.delete(("s", session[0], *key))
        self._store.delete(("a", session[0], *key))
        if self._collected is not None:
            for cell in self._cells(session):
                self._collected.drop(cell, key)

    # -- contents ----------------------------------------------------------------------------------

    def _merged(self, joined: list[Session], time_ms: int, key: Key, fold: Fold, tup: Tuple) -> Any:
        """Return the accumulator of a tuple and the sessions it joins, merged in the order of
        time.
        """
        assert fold.merge is not None
        value = fold.fold(fold.initial(), tup)
        first = time_ms
        for session in joined:
            other = self._store.get(("a", session[0], *key))
            value = fold.merge(other, value) if session[0] <= first else fold.merge(value, other)
            first = min(first, session[0])
        return value

    def _firing(self, session: Session, key: Key) -> Firing:
        content = Content(value=self._store.get(("a", session[0], *key)))
        if self._collected is not None:
            cells = self._cells(session)
            content = self._collected.gather(cells, key, session[0], ()) or Content()
        return Firing(key, session[0], session[1] + self._gap, content, is_update=bool(session[2]))

    def _cells(self, session: Session) -> range:
        return range(session[0] - session[0] % self._gap, session[1] + 1, self._gap)

    def _load(self) -> None:
        for entry_key, entry in self._store.items():
            if entry_key[0] == "s":
                self._firsts.setdefault(entry_key[2:], Firsts()).times.append(
                    _checked(entry_key, entry)
                )
                self._plan((entry_key[1], *entry), entry_key[2:])
        for firsts in self._firsts.values():
            firsts.times.sort()


def _checked(entry_key: tuple[Any, ...], entry: Any) -> int:
    """Return a stored session's first time; StoreInconsistentError when its entry has another
    form.
    """
    numbers = [
        entry_key[1] if len(entry_key) > 1 else None,
        *(entry if isinstance(entry, list) else [entry]),
    ]
    if len(numbers) != 3 or any(type(number) is not int for number in numbers):
        raise StoreInconsistentError(
            f"the store holds {entry_key!r:.80}: {entry!r:.80}, which is no session of this version: kill the "
            "topology and submit it anew"
        )
    return entry_key[1]  # type: ignore[no-any-return]
