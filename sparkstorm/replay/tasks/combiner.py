"""Combiner before the shuffle: rows for one task of a CombiningBolt are reduced to one value per
key.

Laws: the bolt's final state is the same as without combining; a row whose `pair` or `combine`
raises is sent unchanged, so that it fails in the bolt's task, with the bolt's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from sys import getrefcount
from typing import Any

import pyarrow as pa

from sparkstorm.api.combining import COMBINED_FIELDS, COMBINED_STREAM, CombiningBolt
from sparkstorm.common.model.topology import Grouping
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.codec import KEYS, SCALARS, Codec
from sparkstorm.data_plane.executor.pieces import is_piece, unfold
from sparkstorm.replay.code_uses import uses_of

# Beyond it what is combined is sent: memory stays bounded, for any number of keys.
# Half sends earlier what might still be combined, twice as many doubles the memory of each edge.
MOST_KEYS = 1 << 16
_MISSING: Any = object()
# Whole numbers that any codec takes; wider ones are looked at.
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
# Methods that a combined row does not meet as its tuples would, or that may
# set what `pair` uses: a class with its own gets each tuple.
_INHERITED = "prepare", "init_state", "migrate_state", "execute", "add"
_CALLED = "pair", "combine", "pairs_of"


def may_combine(bolt: Any, grouping: Grouping) -> bool:
    """Return whether a subscriber's rows can be combined: its class is a CombiningBolt whose code
    does the same in any task, and all rows of a key go to one task.
    """
    return (
        isinstance(bolt, CombiningBolt)
        and not bolt.outputs
        and grouping.kind in ("fields", "key_range", "global")
        and all(getattr(type(bolt), n) is getattr(CombiningBolt, n) for n in _INHERITED)
        and not any(use.is_own for use in uses_of(bolt, *_CALLED))
    )


class Combiner:
    """Values by key that one task has combined for one receiving task."""

    def __init__(self, bolt: CombiningBolt, source: Source) -> None:
        self._bolt = bolt
        self._source = source
        self._own = Source(source.component, source.task, COMBINED_STREAM, COMBINED_FIELDS)
        self._codec = Codec()
        self._value_by_key: dict[Any, Any] = {}

    @property
    def is_full(self) -> bool:
        """Return whether there are enough keys to be sent."""
        return len(self._value_by_key) >= MOST_KEYS

    def take_in(self, rows: Iterable[Any], may_hold_pieces: bool) -> list[Any]:
        """Combine rows, and pieces among them; return the rows that cannot be combined."""
        if may_hold_pieces:
            rows = unfold(
                row for row in rows if not (is_piece(row) and self._combine_batch(row[0]))
            )
        return self._combine(rows)

    def take(self) -> list[Any]:
        """Remove every key and value and return them as rows."""
        rows = list(zip(self._value_by_key.items(), repeat(0), repeat(self._own)))
        self._value_by_key.clear()
        return rows

    def _combine(self, rows: Iterable[Any]) -> list[Any]:
        left: list[Any] = []
        known = self._value_by_key
        source = self._source
        pair = self._bolt.pair
        combine = self._bolt.combine
        checked = self._checked
        tup = Tuple((), 0, source)
        # One object for all rows, unless user code keeps it: 90 ns a row against 350 for a new one
        # each (decision 52). The compiled core has no loop for `pair`.
        ours_alone = getrefcount(tup)
        # One iterator for all tries: after an error the loop goes on behind the row that raised it.
        row = None
        rest = iter(rows)
        while True:
            try:
                for row in rest:
                    if getrefcount(tup) != ours_alone:
                        tup = Tuple((), 0, source)
                    tup.values = row[0]
                    key, value = pair(tup)
                    former = known.get(key, _MISSING)
                    if former is _MISSING:
                        self._check_key(key)
                    else:
                        value = combine(former, value)
                    # the usual one first: a call costs as much as the rest
                    if type(value) is not int or not _LEAST <= value <= _MOST:
                        value = checked(value)
                    known[key] = value
                return left
            except (Exception, SystemExit):  # user code
                left.append(row)

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
        kind = type(value)
        if kind in SCALARS and not (kind is int or (kind is str and not value.isascii())):
            return value
        return self._codec.normalise(value)

    def _check_key(self, key: Any) -> None:
        """Raise an error for what is no key of a state: the bolt's own task says so by name."""
        for part in key if type(key) is tuple else (key,):
            if type(part) not in KEYS or part != part:
                raise TypeError("no key of a state")
            self._checked(part)
