"""Owns CombiningBolt: a bolt that sums up tuples by key, so that a replay may put them together before they travel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sparkstorm.api.collector import BasicOutputCollector
from sparkstorm.api.components import StatefulBolt
from sparkstorm.model.tuples import Tuple

if TYPE_CHECKING:
    from pyarrow import RecordBatch

COMBINED_STREAM = "__combined"
COMBINED_FIELDS = ("key", "value")
_MISSING: Any = object()


class CombiningBolt(StatefulBolt):
    """Keeps one value per key, put together from all tuples of that key (Spark's reduceByKey, Trident's CombinerAggregator).

    Live every tuple is combined with the state. A replay without event time combines where tuples are emitted and sends one
    value per key and task, unless the tuples themselves are a result that was asked for. So `combine` must not mind how
    values are put together ((a + b) + c = a + (b + c), in any order), and neither method may use what `prepare` made.

    >>> class Count(CombiningBolt):
    ...     def pair(self, tup): return tup["word"], 1
    ...     def combine(self, one, other): return one + other
    """

    order_insensitive = True

    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        """A tuple as its key (text, a number, bytes, or a tuple of them) and the value it stands for (lists, not tuples)."""
        raise NotImplementedError

    def combine(self, one: Any, other: Any) -> Any:
        """Two values of one key as one; neither is changed."""
        raise NotImplementedError

    def pairs_of(self, batch: RecordBatch) -> Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None:
        """The same for a whole batch, put together or not; None (the default) where rows are looked at one by one."""
        return None

    def add(self, key: Any, value: Any) -> None:
        """Put a value into the state."""
        former = self.state.get(key, _MISSING)
        self.state.put(key, value if former is _MISSING else self.combine(former, value))

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Combine a tuple, or what a sender has combined, with the state."""
        if tup.source.stream == COMBINED_STREAM:
            key, value = tup.values
            self.add(tuple(key) if type(key) is list else key, value)
        else:
            self.add(*self.pair(tup))
