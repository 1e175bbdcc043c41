"""Owns when a bolt task in a replay gets its ticks: on whole multiples of the period, in virtual time. PURE.

Live ticks come by the wall clock; a bolt that must agree in both runs takes its time from events. Without an event time
there is no time that could pass, and no tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkstorm.model.settings import ComponentSettings
from sparkstorm.model.topology import SYSTEM, TICK_STREAM
from sparkstorm.model.tuples import Roots, Source, Tuple

TICK = Source(SYSTEM, -1, TICK_STREAM, ("rate_secs",))


class Moments:
    """The ticks of one task."""

    def __init__(self, conf: Mapping[str, Any], is_timed: bool) -> None:
        self._every_ms = (ComponentSettings.of(conf).tick_ms or 0) if is_timed else 0
        self._due_ms: int | None = None

    def due_ms(self, first_ms: Roots) -> int | None:
        """When the next tick is due, given the time of the next input; ticks begin after the task's first input."""
        if self._every_ms and self._due_ms is None:
            assert isinstance(first_ms, int)
            self._due_ms = (first_ms // self._every_ms + 1) * self._every_ms
        return self._due_ms

    def take(self) -> Tuple:
        """The tick that is due."""
        assert self._due_ms is not None
        tick = Tuple((self._every_ms // 1000,), self._due_ms, TICK)
        self._due_ms += self._every_ms
        return tick
