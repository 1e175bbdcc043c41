"""A topology of a hundred numbers, of which one is parked: for the verbs of dead letters."""

from typing import Any

from sparkstorm.api import (
    ReplayableSpout,
    SpoutOutputCollector,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    bolt,
)
from sparkstorm.common.model.topology import Topology

_MOST = 100
_REFUSED = 13


class Few(ReplayableSpout):
    """Spout that emits the numbers below a hundred."""

    outputs = ("n",)

    def open(self, conf: Any, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Begin with 0."""
        self._collector = collector
        self._next = 0

    def next_tuple(self) -> None:
        """Emit a number."""
        if self._next < _MOST:
            self._collector.emit((self._next,), self._next)
            self._next += 1

    def is_exhausted(self) -> bool:
        """Return whether all were emitted."""
        return self._next >= _MOST

    def snapshot(self) -> int:
        """Return the next number."""
        return self._next

    def restore(self, position: int) -> None:
        """Go on with a number."""
        self._next = position


@bolt("n")
def refuse(tup: Tuple) -> Any:
    """Pass all numbers on but one."""
    if tup["n"] == _REFUSED:
        raise ValueError(f"{_REFUSED} is refused")
    yield tup["n"]


def build() -> Topology:
    """Build it."""
    builder = TopologyBuilder()
    builder.set_spout("few", Few())
    builder.set_bolt("refuse", refuse, inputs="few")
    return builder.build()
