"""CombiningBolt: a bolt that combines tuples by key, in a replay before they are sent (Spark's
reduceByKey).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sparkstorm.api.collector import BasicOutputCollector
from sparkstorm.api.components import StatefulBolt
from sparkstorm.common.model.tuples import Tuple

if TYPE_CHECKING:
    from pyarrow import RecordBatch

COMBINED_STREAM = "__combined"
COMBINED_FIELDS = ("key", "value")
_MISSING: Any = object()


class CombiningBolt(StatefulBolt):
    """Bolt that keeps one value per key, combined from all tuples of that key (Trident's
    CombinerAggregator).

    `combine` must be associative and commutative: a replay without event time combines before the
    shuffle. It does not for a bolt with its own `prepare`, `init_state`, `execute` or `add`, nor
    where `pair`, `pairs_of` or `combine` uses attributes that may change.

    >>> class Count(CombiningBolt):
    ...     def pair(self, tup): return tup["word"], 1
    ...     def combine(self, one, other): return one + other
    """

    order_insensitive = True

    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        """Return a tuple's key (text, a number, bytes, or a tuple of them) and its value (lists,
        not tuples).
        """
        raise NotImplementedError

    def combine(self, one: Any, other: Any) -> Any:
        """Return two values of one key as one, changing neither."""
        raise NotImplementedError

    def pairs_of(self, batch: RecordBatch) -> Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None:
        """Return keys and values of a whole batch, combined or not; None: its rows go through
        `pair`.
        """
        return None

    def add(self, key: Any, value: Any) -> None:
        """Combine a value with the state."""
        former = self.state.get(key, _MISSING)
        self.state.put(key, value if former is _MISSING else self.combine(former, value))

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Combine a tuple, or a value that a sender has combined, with the state."""
        if tup.source.stream == COMBINED_STREAM:
            key, value = tup.values
            self.add(tuple(key) if type(key) is list else key, value)
        else:
            self.add(*self.pair(tup))
