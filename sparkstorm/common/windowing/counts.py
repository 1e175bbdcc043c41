"""Tumbling and sliding windows by count: the n-th tuple of a key has position n, and a window is
due at every slide.

Positions follow the order of arrival; a window that is not full when the input ends does not fire.
"""

from __future__ import annotations

from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.windowing.store import Key, Store
from sparkstorm.common.windowing.watermarks import NEVER
from sparkstorm.common.windowing.window_contents import Contents
from sparkstorm.common.windowing.window_math import Layout
from sparkstorm.common.windowing.windows import Firing, content_of


class CountWindows:
    """Windows over the positions of tuples, per key."""

    def __init__(
        self, layout: Layout, store: Store, contents: Contents, keeps_expired: bool = False
    ) -> None:
        self._layout = layout
        self._store = store
        self._contents = contents
        self._keeps_expired = keeps_expired
        self.floor = NEVER
        for _ in contents.load():  # its index comes back with it
            pass

    def add(self, time_ms: int, key: Key, tup: Tuple) -> list[Firing]:
        entry_key = ("n", *key)
        count = self._store.get(entry_key, 0)
        for start in self._layout.cells_of(count):
            self._contents.add(start, key, count, tup)
        self._store.put(entry_key, count + 1)
        return [self._firing(count + 1, key)] if (count + 1) % self._layout.slide == 0 else []

    def is_gone(self, time_ms: int, key: Key) -> bool:
        return False

    def next_end(self) -> int | None:
        return None

    def next_due(self, watermark: int) -> Firing | None:
        return None

    def done(self, firing: Firing) -> None:
        """Delete the cells that no later window of this key needs."""
        layout = self._layout
        span = layout.slide if self._keeps_expired else 0
        oldest = firing.end - layout.length - 2 * layout.slide
        for start in range(
            oldest,
            firing.end - layout.length + layout.slide,
            layout.cell if layout.is_shared else layout.slide,
        ):
            ends = layout.ends_of(start)
            if not ends or ends[-1] + span <= firing.end:
                self._contents.drop(start, firing.key)

    def settle(self, watermark: int) -> None:
        """Do nothing: these windows do not depend on time."""

    def pause(self) -> None:
        """Do nothing: windows fire only when a tuple is added."""

    def _firing(self, end: int, key: Key) -> Firing:
        content = content_of(self._layout, self._contents, end, key, self._keeps_expired)
        assert content is not None  # it fires at its last tuple
        return Firing(key, max(end - self._layout.length, 0), end, content)
