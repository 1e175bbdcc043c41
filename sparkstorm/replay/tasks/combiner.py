"""Combiner before the shuffle: batches for one task of a CombiningBolt are reduced to one value per
key.

Laws: the bolt's final state is the same as without combining; a batch whose `pairs_of` or `combine`
raises is sent unchanged, so that it fails in the bolt's task, with the bolt's name. Left out: rows,
which are sent as they are. To combine them costs what the receiving task saves (2.08 against 2.10 M
rows/s). Batches cost 1.6 (sums) and 2.7 (words) times the CPU without it (decision 77).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any

import pyarrow as pa

from sparkstorm.api.combining import COMBINED_FIELDS, COMBINED_STREAM, CombiningBolt
from sparkstorm.common.model.topology import Grouping
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import KEYS, Codec, is_plain
from sparkstorm.data_plane.executor.pieces import is_piece
from sparkstorm.replay.code_uses import uses_of

# Beyond it what is combined is sent: memory stays bounded, for any number of keys.
# Half sends earlier what might still be combined, twice as many doubles the memory of each edge.
MOST_KEYS = 1 << 16
_MISSING: Any = object()
# Methods that a combined row does not meet as its tuples would, or that may
# set what `pair` uses: a class with its own gets each tuple.
_INHERITED = "prepare", "init_state", "migrate_state", "execute", "add"
_CALLED = "pair", "combine", "pairs_of"


def may_combine(bolt: Any, grouping: Grouping) -> bool:
    """Return whether a subscriber's batches can be combined: its class is a CombiningBolt with
    `pairs_of` whose code does the same in any task, and all rows of a key go to one task.
    """
    return (
        isinstance(bolt, CombiningBolt)
        and not bolt.outputs
        and grouping.kind in ("fields", "key_range", "global")
        and type(bolt).pairs_of is not CombiningBolt.pairs_of
        and all(getattr(type(bolt), n) is getattr(CombiningBolt, n) for n in _INHERITED)
        and not any(use.is_own for use in uses_of(bolt, *_CALLED))
    )


class Combiner:
    """Values by key that one task has combined for one receiving task."""

    def __init__(self, bolt: CombiningBolt, source: Source) -> None:
        self._bolt = bolt
        self._own = Source(source.component, source.task, COMBINED_STREAM, COMBINED_FIELDS)
        self._codec = Codec()
        self._value_by_key: dict[Any, Any] = {}

    @property
    def is_full(self) -> bool:
        """Return whether there are enough keys to be sent."""
        return len(self._value_by_key) >= MOST_KEYS

    def take_in(self, rows: Iterable[Any]) -> list[Any]:
        """Combine the pieces of batches among rows; return the rows that are sent as they are."""
        return [row for row in rows if not (is_piece(row) and self._combine_batch(row[0]))]

    def take(self) -> list[Any]:
        """Remove every key and value and return them as rows."""
        rows = list(zip(self._value_by_key.items(), repeat(0), repeat(self._own)))
        self._value_by_key.clear()
        return rows

    def _combine_batch(self, batch: pa.RecordBatch) -> bool:
        """Combine a whole batch, or change nothing and return False."""
        try:
            pairs = self._bolt.pairs_of(batch)
            # The bolt combines no batches, or not this one.
            if pairs is None:
                return False
            changed: dict[Any, Any] = {}
            for key, value in pairs.items() if isinstance(pairs, Mapping) else pairs:
                former = changed.get(key, _MISSING)
                former = self._value_by_key.get(key, _MISSING) if former is _MISSING else former
                if former is _MISSING:
                    self._check_key(key)
                else:
                    value = self._bolt.combine(former, value)
                changed[key] = self._checked(value)
        except (Exception, SystemExit):  # user code
            return False
        self._value_by_key.update(changed)
        return True

    def _checked(self, value: Any) -> Any:
        """Return a value as the state would keep it; CodecError for what it would refuse."""
        return value if is_plain(value) else self._codec.normalise(value)

    def _check_key(self, key: Any) -> None:
        """Raise an error for what is no key of a state: the bolt's own task says so by name."""
        for part in key if type(key) is tuple else (key,):
            if type(part) not in KEYS or part != part:
                raise TypeError("no key of a state")
            self._checked(part)
