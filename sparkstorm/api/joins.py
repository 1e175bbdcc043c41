"""JoinBolt: join of the tuples of two or more streams by key, within windows (after Storm's
JoinBolt).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sparkstorm.api.collector import BasicOutputCollector
from sparkstorm.api.windows import Window, WindowedBolt
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.grouping.hashing import canonical_bytes
from sparkstorm.common.model.topology import DEFAULT_STREAM
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.model.values.codec import KEYS

Fields = str | Sequence[str]
_MOST_ROWS = 1_000_000
_NO_HASH = object()
_Inputs = Mapping[tuple[str, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Side:
    """One joined stream: its source, its key fields, whether rows without a partner stay, and the
    side it is joined to.
    """

    source: str
    key: tuple[str, ...]
    is_left: bool
    prior: int

    @property
    def channel(self) -> tuple[str, str]:
        component, colon, stream = self.source.partition(":")
        return component, stream if colon else DEFAULT_STREAM


@dataclass(frozen=True, slots=True)
class _Column:
    """One selected value: its output field, and the field of a side (None: of the first side that
    has such a field).
    """

    name: str
    source: str | None
    field: str


class JoinBolt(WindowedBolt):
    """Bolt that joins streams by equal keys within each window: one row per combination.

    Sources are "component" or "component:stream". Each further stream is joined to the first one,
    unless `to` names another before it. Inputs without a grouping are grouped by their key.

    >>> from sparkstorm.api import Count, JoinBolt
    >>> paid = (
    ...     JoinBolt("orders", key="order_id")
    ...     .left_join("payments", key="order")
    ...     .select("order_id", "payments:amount as paid")
    ...     .with_tumbling_window(Count(100))
    ... )
    >>> paid.outputs
    ('order_id', 'paid')
    """

    keeps_expired = False

    def __init__(self, source: str, key: Fields) -> None:
        self._sides: tuple[_Side, ...] = (_Side(source, _names(source, key), False, 0),)
        self._columns: tuple[_Column, ...] = ()

    def join(self, source: str, key: Fields, to: str | None = None) -> Self:
        """Keep only rows that have a partner in this stream."""
        return self._joined(source, key, to, is_left=False)

    def left_join(self, source: str, key: Fields, to: str | None = None) -> Self:
        """Keep rows without a partner in this stream as well; its fields are then None."""
        return self._joined(source, key, to, is_left=True)

    def select(self, *columns: str) -> Self:
        """Name the output: "field" (of the first stream that has it) or "source:field", each with "
        as name" if wanted.
        """
        self._columns = tuple(map(self._column, columns))
        self.outputs = names = tuple(column.name for column in self._columns)
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidTopologyError(
                f"JoinBolt: select has the field '{twice}' twice; give one another name: 'source:field as name'"
            )
        return self

    def input_key(self, component: str, stream: str) -> tuple[str, ...]:
        """Return the fields by which an input is grouped."""
        return next((side.key for side in self._sides if side.channel == (component, stream)), ())

    def prepare(self, conf: Any, context: Any) -> None:
        self._place_by_channel = {side.channel: index for index, side in enumerate(self._sides)}

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Join the tuples of one window, in the order of the first stream's."""
        sides: list[dict[tuple[Any, ...], list[Tuple]]] = [{} for _ in self._sides]
        first: list[Tuple] = []
        for tup in window:
            index = self._place_by_channel[tup.component, tup.stream]
            if index == 0:
                first.append(tup)
            else:
                sides[index].setdefault(self._key(tup, index), []).append(tup)
        rows: list[tuple[Tuple | None, ...]] = [(tup,) for tup in first]
        for index in range(1, len(sides)):
            rows = self._extended(rows, index, sides[index])
        for row in rows:
            collector.emit(tuple(_value(row, column, self._sides) for column in self._columns))

    def _extended(
        self,
        rows: list[tuple[Tuple | None, ...]],
        index: int,
        tuples_by_key: Mapping[tuple[Any, ...], list[Tuple]],
    ) -> list[tuple[Tuple | None, ...]]:
        side = self._sides[index]
        longer = list[tuple[Tuple | None, ...]]()
        for row in rows:
            prior = row[side.prior]
            partners: Sequence[Tuple | None] = (
                [] if prior is None else tuples_by_key.get(self._key(prior, side.prior), [])
            )
            longer += [(*row, partner) for partner in partners or ([None] if side.is_left else [])]
            if len(longer) > _MOST_ROWS:
                raise ValueError(
                    f"a window of '{side.source}' joins to more than {_MOST_ROWS:,} rows: make windows shorter"
                )
        return longer

    def _key(self, tup: Tuple, index: int) -> tuple[Any, ...]:
        return tuple(_hashable(tup[field]) for field in self._sides[index].key)

    def _joined(self, source: str, key: Fields, to: str | None, is_left: bool) -> Self:
        prior = (
            0
            if to is None
            else next((index for index, side in enumerate(self._sides) if side.source == to), -1)
        )
        earlier = ", ".join(side.source for side in self._sides)
        if prior < 0:
            raise InvalidTopologyError(
                f"JoinBolt: '{source}' is joined to '{to}', which is none of the streams before it: {earlier}"
            )
        names = _names(source, key)
        if len(names) != len(self._sides[0].key):
            raise InvalidTopologyError(
                f"JoinBolt: '{source}' has a key of {len(names)} fields, '{self._sides[0].source}' one of {len(self._sides[0].key)}"
            )
        side = _Side(source, names, is_left, prior)
        if any(other.channel == side.channel for other in self._sides):
            raise InvalidTopologyError(
                f"JoinBolt: '{source}' is joined twice; a stream has one place"
            )
        self._sides = (*self._sides, side)
        return self

    def _column(self, text: str) -> _Column:
        wanted, _, name = text.partition(" as ")
        source, colon, field = wanted.strip().rpartition(":")
        return _Column(name.strip() or field, source if colon else None, field)

    def _check_inputs(self, id: str, inputs: _Inputs) -> None:
        """Refuse a join whose streams, keys or columns are not there; InvalidTopologyError names
        them.
        """
        where = f"component '{id}': JoinBolt"
        if len(self._sides) < 2 or not self._columns:
            raise InvalidTopologyError(
                f"{where} needs at least one join(...) or left_join(...), and a select(...)"
            )
        for side in self._sides:
            if side.channel not in inputs:
                raise InvalidTopologyError(
                    f"{where} joins '{side.source}', which is no input of it: add it to inputs"
                )
            if missing := [name for name in side.key if name not in inputs[side.channel]]:
                raise InvalidTopologyError(
                    f"{where}: key '{missing[0]}' is no field of '{side.source}', which has {', '.join(inputs[side.channel])}"
                )
        own = {side.channel for side in self._sides}
        if others := [
            f"{component}:{stream}"
            for component, stream in inputs
            if (component, stream) not in own
        ]:
            raise InvalidTopologyError(
                f"{where} has the input '{others[0]}', which it does not join"
            )
        for column in self._columns:
            sources = [side for side in self._sides if column.source in (None, side.source)]
            if not any(column.field in inputs[side.channel] for side in sources):
                shown = f"{column.source}:{column.field}" if column.source else column.field
                raise InvalidTopologyError(
                    f"{where}: select has '{shown}', which no joined stream declares"
                )


def _names(source: str, key: Fields) -> tuple[str, ...]:
    names = (key,) if isinstance(key, str) else tuple(key)
    if not names:
        raise InvalidTopologyError(f"JoinBolt: '{source}' needs at least one key field")
    return names


def _hashable(value: Any) -> Any:
    """Return a value, or the bytes that fields grouping makes of it where its own `==` may differ
    from them: of lists, sets, mappings, registered classes, and NaN.

    Else tuples would be joined, or not, by the number of tasks.
    """
    if type(value) in KEYS and value == value:
        return value
    return _NO_HASH, canonical_bytes(value)


def _value(row: Sequence[Tuple | None], column: _Column, sides: Sequence[_Side]) -> Any:
    """Return the value of a column; None where its stream has no partner in this row."""
    for tup, side in zip(row, sides, strict=True):
        if column.source is not None and side.source == column.source:
            return None if tup is None else tup[column.field]
        if column.source is None and tup is not None and column.field in tup.fields:
            return tup[column.field]
    return None
