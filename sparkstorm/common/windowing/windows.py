"""Tumbling and sliding windows by time: due windows at a watermark, late tuples, deletion of cells.

A window fires when the watermark reaches its end, in the order of ends and then of keys, and again
for each tardy tuple (`is_update`). Its cells are deleted when no window needs them any more. The
store records which windows have fired, so a new owner of the task fires the rest and none twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import repeat
from typing import Any, Protocol

from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.windowing.due_queue import DueQueue
from sparkstorm.common.windowing.store import Key, Store
from sparkstorm.common.windowing.watermarks import NEVER
from sparkstorm.common.windowing.window_contents import Content, Contents
from sparkstorm.common.windowing.window_math import Layout

_FIRED_TO = ("W",)
_NOTHING: Any = object()


@dataclass(slots=True)
class Firing:
    """One window to be passed to user code."""

    key: Key
    start: int
    end: int
    content: Content
    is_update: bool = False


def content_of(
    layout: Layout, contents: Contents, end: int, key: Key, keeps_expired: bool
) -> Content | None:
    """Return the content of the window with this end; None where it holds nothing."""
    start = end - layout.length
    former = range(0)
    if keeps_expired:
        former = range(start - layout.slide, min(end - layout.slide, start), layout.cell)
    return contents.gather(layout.cells_in(end), key, max(start, end - layout.slide), former)


class Windows(Protocol):
    """Windows of one kind over one task's tuples."""

    floor: int
    """No window that ends later has fired or is firing."""

    def add(self, time_ms: int, key: Key, tup: Tuple) -> Sequence[Firing]:
        """Add a tuple; return the windows that this makes due at once."""

    def is_gone(self, time_ms: int, key: Key) -> bool:
        """Return whether every window of this time and key has fired for the last time."""

    def next_end(self) -> int | None:
        """Return the earliest end of a window that has not fired."""

    def next_due(self, watermark: int) -> Firing | None:
        """Return the next window whose end the watermark has reached; the same one until `done`."""

    def done(self, firing: Firing) -> None:
        """Record that a window has fired."""

    def settle(self, watermark: int) -> None:
        """Record that all windows up to this watermark have fired; delete cells that are no longer
        needed.
        """

    def pause(self) -> None:
        """Store which windows of one end have fired, since firing stops before all have."""


class TimeWindows:
    """Tumbling and sliding windows over milliseconds."""

    def __init__(
        self,
        layout: Layout,
        store: Store,
        contents: Contents,
        lateness: int = 0,
        keeps_expired: bool = False,
    ) -> None:
        self._layout = layout
        self._store = store
        self._contents = contents
        self._kept_for = lateness + (layout.slide if keeps_expired else 0)
        self._lateness = lateness
        self._keeps_expired = keeps_expired
        self._drops_at_once = layout.is_tumbling and not self._kept_for
        self._is_plain = layout.is_tumbling and layout.is_shared
        # windows leave no gaps, and share their cells
        self.has_one_cell_per_row = layout.is_shared and layout.slide <= layout.length
        # a cell that is there has not fired
        self._fires_whole_cells = self._is_plain and self._drops_at_once
        self._keys_by_cell: dict[int, dict[Key, None]] = {}
        self._queue = DueQueue()
        self._expiries: list[tuple[int, int]] = []
        # end of the windows that are firing; keys that have fired are in `_fired`
        self._end = NEVER
        self._fired: dict[Key, None] = {}
        self._marked: list[Key] = []  # keys recorded as fired in the store
        self._unmarked: list[Key] = []
        self.fired_to: int = store.get(_FIRED_TO, NEVER)
        self.floor = self.fired_to
        for start, key in contents.load():
            self._schedule(start, key)
        self._load_fired()

    def add(self, time_ms: int, key: Key, tup: Tuple) -> Sequence[Firing]:
        # the usual case, written out
        if self.has_one_cell_per_row and time_ms >= self.floor:
            start = time_ms - time_ms % self._layout.cell
            if self._contents.add(start, key, time_ms, tup):
                self._schedule(start, key)
            return ()
        is_tardy = time_ms < self.floor
        held_ends = (
            [end for end in self._layout.ends(time_ms) if self._holds(end, key)] if is_tardy else []
        )
        for start in self._layout.cells_of(time_ms):
            if self._contents.add(start, key, time_ms, tup):
                self._schedule(start, key)
        if not is_tardy:
            return ()
        return [
            Firing(key, end - self._layout.length, end, content, end in held_ends)
            for end in self._layout.ends(time_ms)
            if self._has_fired(end, key) and not self._is_over(end, key)
            if (content := self._content(end, key)) is not None
        ]

    def begin(self, cells: Iterable[tuple[Any, ...]]) -> None:
        """Expect windows to fire that hold new cells ("a", start, *key) of the store, at `floor` or
        later.
        """
        add = self._queue.add
        keys = dict[Key, None]()
        ends = range(0)
        last = -1
        for _, start, *parts in cells:
            if start != last:
                ends = self._layout.ends_of(start)
                keys = self._keys_at(start, ends[-1])
                last = start
            keys[key := tuple(parts)] = None
            for end in ends:
                add(end, key)

    @property
    def cell(self) -> int:
        """Return the length of a cell."""
        return self._layout.cell

    def is_gone(self, time_ms: int, key: Key) -> bool:
        ends = self._layout.ends(time_ms)
        return self._is_over(ends[-1], key) if ends else time_ms < self.fired_to

    def next_end(self) -> int | None:
        return self._queue.first_at()

    def next_due(self, watermark: int) -> Firing | None:
        while (end := self._queue.first_at()) is not None and end <= watermark:
            if end != self._end:
                self._finish()
                self._end = self.floor = end
            key = self._queue.first_key()
            # One look at the cells for both whether they hold anything and what: a second one was
            # 8 % of the Python of a replayed Nexmark q5 by rows, and 4 % of its CPU.
            if (content := self._content(end, key)) is not None:
                return Firing(key, end - self._layout.length, end, content)
            self._queue.drop_first()
        return None

    def due_folded(self, watermark: int) -> Iterator[tuple[Key, int, int, Any]]:
        """Yield key, start, end and accumulator of due windows in their order; a window is done
        when the next is asked for.
        """
        length = self._layout.length
        store = self._store
        fired = self._fired
        while (end := self._queue.first_at()) is not None and end <= watermark:
            if end != self._end:
                self._finish()
                self._end = self.floor = end
            start = end - length
            keys_in_cell = self._keys_by_cell.get(start, {})
            for key in self._queue.keys_at(end):
                if self._fires_whole_cells:
                    entry_key = ("a", start, *key)
                    value = store.get(entry_key, _NOTHING)
                    if value is not _NOTHING:
                        yield key, start, end, value
                        store.delete(entry_key)
                        keys_in_cell.pop(key, None)
                        fired[key] = None
                elif (content := self._content(end, key)) is not None:
                    yield key, start, end, content.value
                    self._unmarked.append(key)
                    fired[key] = None
                self._queue.drop(end, key)

    def done(self, firing: Firing) -> None:
        if firing.end != self._end or self._has_fired(firing.end, firing.key):
            return  # fired because of a tardy tuple
        self._queue.drop(firing.end, firing.key)
        self._fired[firing.key] = None
        self._unmarked.append(firing.key)
        if self._drops_at_once:
            self._contents.drop(firing.start, firing.key)

    def settle(self, watermark: int) -> None:
        if watermark <= self.fired_to:
            return
        self._finish()
        self._advance(watermark)

    def pause(self) -> None:
        if not self._drops_at_once:
            for key in self._unmarked:
                self._store.put(("f", self._end, *key), 1)
            self._marked += self._unmarked
            self._unmarked.clear()

    def _schedule(self, start: int, key: Key) -> None:
        ends = self._layout.ends_of(start)
        self._keys_at(start, ends[-1])[key] = None
        for end in ends:
            if not self._has_fired(end, key):
                self._queue.add(end, key)

    def _keys_at(self, start: int, last_end: int) -> dict[Key, None]:
        keys = self._keys_by_cell.get(start)
        if keys is None:
            keys = self._keys_by_cell[start] = {}
            heappush(self._expiries, (last_end + self._kept_for, start))
        return keys

    def _has_fired(self, end: int, key: Key) -> bool:
        return end < self.floor or end <= self.fired_to or (end == self._end and key in self._fired)

    def _is_over(self, end: int, key: Key) -> bool:
        """Return whether a window never fires again: what its cells held may be deleted."""
        return end + self._lateness <= self.fired_to or (
            not self._lateness and self._has_fired(end, key)
        )

    def _holds(self, end: int, key: Key) -> bool:
        if self._is_plain:
            return self._contents.has(end - self._layout.length, key)
        # without a generator, which costs as much as two of the look-ups
        return any(map(self._contents.has, self._layout.cells_in(end), repeat(key)))

    def _content(self, end: int, key: Key) -> Content | None:
        return content_of(self._layout, self._contents, end, key, self._keeps_expired)

    def _finish(self) -> None:
        """Record that the windows of one end have fired for every key."""
        for key in self._marked:
            self._store.delete(("f", self._end, *key))
        self._fired.clear()
        self._marked.clear()
        self._unmarked.clear()
        if self._end > self.fired_to:
            self._advance(self._end)

    def _advance(self, watermark: int) -> None:
        self.fired_to = self.floor = watermark
        self._store.put(_FIRED_TO, watermark)
        while self._expiries and self._expiries[0][0] <= watermark:
            _, start = heappop(self._expiries)
            for key in self._keys_by_cell.pop(start, ()):
                self._contents.drop(start, key)

    def _load_fired(self) -> None:
        for entry_key, _ in self._store.items():
            if entry_key[0] == "f":
                self._end = self.floor = entry_key[1]
                self._fired[entry_key[2:]] = None
                self._queue.drop(entry_key[1], entry_key[2:])
        self._marked += self._fired
