"""Owns session windows: a key's tuples belong together while less than the gap lies between neighbours.

A session of tuples from first to last is the window [first, last + gap); one more tuple can join two of them.
Its sessions are one entry of the store per key, ("s", *key): rows [first, last, end when it last fired (0: never), accumulator].
"""

from __future__ import annotations

from typing import Any

from sparkstorm.model.tuples import Tuple
from sparkstorm.windowing.agenda import Agenda
from sparkstorm.windowing.contents import Collected, Content, Fold
from sparkstorm.windowing.marks import NEVER
from sparkstorm.windowing.store import Key, Store
from sparkstorm.windowing.windows import Firing

_FIRED_TO = ("W",)
_FIRST, _LAST, _FIRED, _VALUE = range(4)


class Sessions:
    """Session windows over milliseconds."""

    def __init__(self, gap: int, store: Store, contents: Collected | Fold, lateness: int = 0) -> None:
        self._gap = gap
        self._store = store
        self._lateness = lateness
        self._fold = contents if isinstance(contents, Fold) else None
        self._collected = contents if isinstance(contents, Collected) else None
        self._ends = Agenda()  # no later than the ends as they are now: sessions grow
        self._expiries = Agenda()
        self.fired_to: int = store.get(_FIRED_TO, NEVER)
        if self._collected is not None:
            self._collected.load()
        for place, sessions in store.items():
            if place[0] == "s":
                for session in sessions:
                    self._plan(session, place[1:])

    def add(self, at: int, key: Key, tup: Tuple) -> list[Firing]:
        sessions: list[list[Any]] = self._store.get(("s", *key), [])
        joined = [at, at, 0, self._first_value(tup)]
        rest = []
        for session in sessions:
            if session[_FIRST] - self._gap < at < session[_LAST] + self._gap:
                joined = self._merged(session, joined)
            else:
                rest.append(session)
        rest.append(joined)
        if self._collected is not None:
            self._collected.add(0, key, at, tup)
        self._store.put(("s", *key), sorted(rest, key=lambda session: session[_FIRST]))
        if len(rest) > len(sessions) or joined[_FIRED]:
            self._plan(joined, key)
        end = joined[_LAST] + self._gap
        if end <= self.fired_to or end == joined[_FIRED]:
            return [self._firing(joined, key, is_update=bool(joined[_FIRED]))]
        return []

    def is_gone(self, at: int) -> bool:
        return at + self._gap + self._lateness <= self.fired_to

    def next_end(self) -> int | None:
        return self._ends.first_at()

    def next_due(self, watermark: int) -> Firing | None:
        while (end := self._ends.first_at()) is not None and end <= watermark:
            key = self._ends.first_key()
            for session in self._store.get(("s", *key), ()):
                if session[_LAST] + self._gap == end != session[_FIRED]:
                    return self._firing(session, key, is_update=bool(session[_FIRED]))
            self._ends.drop_first()
            for session in self._store.get(("s", *key), ()):
                if session[_LAST] + self._gap > end:
                    self._ends.add(session[_LAST] + self._gap, key)
        return None

    def done(self, firing: Firing) -> None:
        sessions = self._store.get(("s", *firing.key), [])
        for session in sessions:
            if session[_FIRST] == firing.start:
                session[_FIRED] = firing.end
        self._store.put(("s", *firing.key), sessions)
        if not self._lateness:
            self._forget(firing.key, firing.end)
        if firing.end > self.fired_to:
            self._ends.drop(firing.end, firing.key)
            for session in sessions:
                if session[_LAST] + self._gap > firing.end:
                    self._ends.add(session[_LAST] + self._gap, firing.key)

    def settle(self, watermark: int) -> None:
        if watermark <= self.fired_to:
            return
        self.fired_to = watermark
        self._store.put(_FIRED_TO, watermark)
        while (expiry := self._expiries.first_at()) is not None and expiry <= watermark:
            key = self._expiries.first_key()
            self._expiries.drop_first()
            self._forget(key, expiry - self._lateness)
            for session in self._store.get(("s", *key), ()):
                self._expiries.add(session[_LAST] + self._gap + self._lateness, key)

    def pause(self) -> None:
        """What has fired says so itself."""

    def _first_value(self, tup: Tuple) -> Any:
        return None if self._fold is None else self._fold.fold(self._fold.initial(), tup)

    def _merged(self, session: list[Any], other: list[Any]) -> list[Any]:
        earlier, later = (session, other) if session[_FIRST] <= other[_FIRST] else (other, session)
        value = None
        if self._fold is not None:
            assert self._fold.merge is not None
            value = self._fold.merge(earlier[_VALUE], later[_VALUE])
        return [earlier[_FIRST], max(session[_LAST], other[_LAST]), max(session[_FIRED], other[_FIRED]), value]

    def _plan(self, session: list[Any], key: Key) -> None:
        end = session[_LAST] + self._gap
        if end > self.fired_to:
            self._ends.add(end, key)
        if self._lateness:
            self._expiries.add(end + self._lateness, key)

    def _firing(self, session: list[Any], key: Key, is_update: bool) -> Firing:
        first, last = session[_FIRST], session[_LAST]
        content = Content(value=session[_VALUE])
        if self._collected is not None:
            tuples = self._collected.between(0, key, first, last)
            content = Content(tuples, tuples)
        return Firing(key, first, last + self._gap, content, is_update)

    def _forget(self, key: Key, until: int) -> None:
        """Drop sessions that ended by then."""
        sessions: list[list[Any]] = self._store.get(("s", *key), [])
        kept = [s for s in sessions if s[_LAST] + self._gap > until]
        if len(kept) == len(sessions):
            return
        if self._collected is not None:
            for session in sessions:
                if session not in kept:
                    self._collected.drop_between(0, key, session[_FIRST], session[_LAST])
        if kept:
            self._store.put(("s", *key), kept)
        else:
            self._store.delete(("s", *key))
