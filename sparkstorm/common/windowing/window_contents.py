"""Contents of windows: all tuples (Collected), or one accumulator per cell and key (Folded).

Both are kept in the store, by cell and key. The index in memory may list entries whose put was
undone, but misses none.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.windowing.store import Key, Store

FindSource = Callable[[int, str], Source]
Cell = tuple[int, Key]
_NOTHING: Any = object()
_CHANGEABLE = (list, dict, set, bytearray, deque)


@dataclass(slots=True)
class Content:
    """Content of one firing: tuples in the order of time, sender and arrival, or the
    accumulator.
    """

    tuples: list[Tuple] = field(default_factory=list)
    new: list[Tuple] = field(default_factory=list)
    expired: list[Tuple] = field(default_factory=list)
    value: Any = None


class Contents(Protocol):
    """Cells of tuples."""

    @property
    def needs_cell_per_window(self) -> bool:
        """Return whether cells cannot be merged."""

    def add(self, start: int, key: Key, time_ms: int, tup: Tuple) -> bool:
        """Add a tuple to a cell; return whether the cell may be new."""

    def has(self, start: int, key: Key) -> bool:
        """Return whether a cell holds anything."""

    def gather(
        self, starts: Iterable[int], key: Key, since: int, former: Iterable[int]
    ) -> Content | None:
        """Return the content of these cells, None where they hold nothing; `since`: time of the
        first new tuple, `former`: cells of expired tuples.
        """

    def drop(self, start: int, key: Key) -> None:
        """Delete a cell."""

    def load(self) -> Iterator[Cell]:
        """Return every cell in the store."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A user's aggregation; without `merge`, accumulators cannot be put together."""

    initial: Callable[[], Any]
    fold: Callable[[Any, Tuple], Any]
    merge: Callable[[Any, Any], Any] | None = None


def own_initial(initial: Callable[[], Any]) -> Callable[[], Any]:
    """Return a user's `initial` whose lists and mappings are copies: a fold may change them in
    place, and they may be an attribute that all windows and tries would share.
    """

    def begun() -> Any:
        value = initial()
        return copy.deepcopy(value) if isinstance(value, _CHANGEABLE) else value

    return begun


class Folded:
    """One accumulator per cell and key, under ("a", start, *key)."""

    def __init__(self, store: Store, how: Fold) -> None:
        self._store = store
        self._how = how

    @property
    def needs_cell_per_window(self) -> bool:
        return self._how.merge is None

    def add(self, start: int, key: Key, time_ms: int, tup: Tuple) -> bool:
        entry_key = ("a", start, *key)
        former = self._store.get(entry_key, _NOTHING)
        is_new = former is _NOTHING
        self._store.put(entry_key, self._how.fold(self._how.initial() if is_new else former, tup))
        return is_new

    def has(self, start: int, key: Key) -> bool:
        return ("a", start, *key) in self._store

    def gather(
        self, starts: Iterable[int], key: Key, since: int, former: Iterable[int]
    ) -> Content | None:
        result = _NOTHING
        for start in starts:
            value = self._store.get(("a", start, *key), _NOTHING)
            if value is not _NOTHING:
                result = value if result is _NOTHING else self._how.merge(result, value)  # type: ignore[misc]
        return None if result is _NOTHING else Content(value=result)

    def drop(self, start: int, key: Key) -> None:
        self._store.delete(("a", start, *key))

    def load(self) -> Iterator[Cell]:
        return (
            (entry_key[1], entry_key[2:])
            for entry_key, _ in self._store.items()
            if entry_key[0] == "a"
        )


class Collected:
    """Every tuple, under ("t", number, start, *key): written once, for any number of later tuples
    in its window.
    """

    def __init__(self, store: Store, find_source: FindSource) -> None:
        self._store = store
        self._find_source = find_source
        self._numbers: dict[Cell, list[int]] = {}
        self._last = 0

    @property
    def needs_cell_per_window(self) -> bool:
        return False

    def add(self, start: int, key: Key, time_ms: int, tup: Tuple) -> bool:
        self._last += 1
        self._store.put(
            ("t", self._last, start, *key),
            [time_ms, tup.source.task, tup.source.stream, *tup.values],
        )
        numbers = self._numbers.get((start, key))
        if numbers is None:
            self._numbers[start, key] = [self._last]
            return True
        # the put of the first may have been undone, and its window dropped as an empty one
        is_new = ("t", numbers[0], start, *key) not in self._store
        numbers.append(self._last)
        return is_new

    def has(self, start: int, key: Key) -> bool:
        return any(
            ("t", number, start, *key) in self._store
            for number in self._numbers.get((start, key), ())
        )

    def gather(
        self, starts: Iterable[int], key: Key, since: int, former: Iterable[int]
    ) -> Content | None:
        rows = self._rows(starts, key)
        if not rows:
            return None
        return Content(
            [tup for _, tup in rows],
            [tup for time_ms, tup in rows if time_ms >= since],
            [tup for _, tup in self._rows(former, key)],
        )

    def drop(self, start: int, key: Key) -> None:
        for number in self._numbers.pop((start, key), ()):
            self._store.delete(("t", number, start, *key))

    def load(self) -> Iterator[Cell]:
        places = sorted(
            entry_key[1:] for entry_key, _ in self._store.items() if entry_key[0] == "t"
        )
        for number, start, *key in places:
            self._numbers.setdefault((start, tuple(key)), []).append(number)
            self._last = number
        return iter(list(self._numbers))

    def _rows(self, starts: Iterable[int], key: Key) -> list[tuple[int, Tuple]]:
        entries = []
        for start in starts:
            for number in self._numbers.get((start, key), ()):
                row = self._store.get(("t", number, start, *key))
                if row is not None:
                    entries.append((row[0], row[1], number, row))
        entries.sort(key=lambda entry: entry[:3])
        return [
            (time_ms, Tuple(tuple(row[3:]), 0, self._find_source(task, row[2])))
            for time_ms, task, _, row in entries
        ]
