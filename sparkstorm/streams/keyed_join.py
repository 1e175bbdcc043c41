"""Base of joins of two streams by key, over keyed state and timers: sides, output fields, checks.

They emit in the order of event time, so a live run and a replay agree, also behind them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, get_args

from sparkstorm.api import BasicOutputCollector, TimedBolt
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.common.model.names import read_names, unknown_field
from sparkstorm.common.model.topology import DEFAULT_STREAM
from sparkstorm.common.model.values.codec import KEY_TYPES, KEYS, no_key
from sparkstorm.streams.joined_rows import (
    Channel,
    Fields,
    RowMaker,
    RowView,
    Side,
    Sources,
    all_columns,
    check_columns,
    check_sides,
    read_column,
    types_of,
)

Key = str | Sequence[str]
Kind = Literal["inner", "left", "right", "full"]


class KeyedJoin(TimedBolt):
    """Base of the joins of two streams by key."""

    kinds: ClassVar[Collection[str]] = get_args(Kind)

    def __init__(self, source: Sources, key: Key, fields: Fields | None = None) -> None:
        self._sides: tuple[Side, ...] = (_side(type(self).__name__, source, key, fields),)
        self._kind = ""
        self._selected: tuple[str, ...] = ()
        self._unmatched = DEFAULT_STREAM
        self._time_output = ""
        self._time_field: str | None = None

    def select(self, *columns: str) -> Self:
        """Name the output, as `JoinBolt.select` does."""
        for column in columns:
            if not isinstance(column, str):
                raise InvalidTopologyError(
                    f'{type(self).__name__}: select has {show(column)}; write each column as a text: select("user", "amount")'
                )
        self._selected = columns
        return self._declare()

    def with_timestamp_field(self, field: str) -> Self:
        """Take event time from this field of both streams, in whole milliseconds from 0 on."""
        self._time_field = field
        return super().with_timestamp_field(field)

    def with_unmatched_stream(self, stream: str) -> Self:
        """Emit rows without a partner to this stream instead of the default one."""
        if not isinstance(stream, str) or not stream or stream == DEFAULT_STREAM:
            raise InvalidTopologyError(
                f"{type(self).__name__}: the unmatched stream needs a name of its own, not {show(stream)}"
            )
        self._unmatched = stream
        return self._declare()

    def with_time_output(self, field: str) -> Self:
        """Append the time of each result: the later one of a pair, or the last time at which a
        partner could come; it never goes back.
        """
        self._time_output = field
        return self._declare()

    def input_key(self, component: str, stream: str) -> tuple[str, ...]:
        """Return the fields by which an input is grouped."""
        return next((side.key for side in self._sides if (component, stream) in side.channels), ())

    def prepare(self, conf: Any, context: Any) -> None:
        """Look places of fields up, once per task."""
        self._make = RowMaker(self._columns, self._sides, self._inputs)
        self._views = {
            channel: RowView(
                self._inputs[channel], index, side.key, self._make.kept[index], self._time_field
            )
            for index, side in enumerate(self._sides)
            for channel in side.channels
        }

    def _key(self, view: RowView, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the key of a tuple; ValueError names a field whose value cannot be one."""
        key = view.key(values)
        for name, value in zip(self._sides[view.side].key, key, strict=True):
            if (type(value) not in KEYS or value != value) and (what := no_key(value)):
                raise ValueError(
                    f"key field '{name}' holds {what}; keys are {KEY_TYPES}: convert it, or name other key fields"
                )
        return key

    @property
    def _keeps(self) -> tuple[bool, bool]:
        """Return whether rows without a partner are emitted, of the left and of the right side."""
        return self._kind in ("left", "full"), self._kind in ("right", "full")

    def _joined(self, kind: str, source: Sources, key: Key | None, fields: Fields | None) -> Self:
        owner = type(self).__name__
        left = self._sides[0]
        side = _side(owner, source, left.key if key is None else key, fields)
        if len(self._sides) > 1:
            raise InvalidTopologyError(
                f"{owner} joins two streams, and '{side.name}' is the third: join it in another bolt behind this one"
            )
        if kind not in self.kinds:
            raise InvalidTopologyError(
                f"{owner} has no join of the kind {show(kind)}; it has {', '.join(self.kinds)}"
            )
        if len(side.key) != len(left.key):
            raise InvalidTopologyError(
                f"{owner}: '{side.name}' has a key of {len(side.key)} fields, '{left.name}' one of {len(left.key)}"
            )
        if both := [name for name in side.sources if name in left.sources]:
            raise InvalidTopologyError(
                f"{owner}: '{both[0]}' is joined to itself; send one side through another bolt"
            )
        self._sides = (left, side)
        self._kind = kind
        return self._declare()

    def _declare(self) -> Self:
        """Set the output fields, as far as they are known."""
        if len(self._sides) < 2:
            return self
        owner = type(self).__name__
        if self._selected:
            self._columns = tuple(read_column(text, self._sides, owner) for text in self._selected)
        elif all(side.fields is not None for side in self._sides):
            self._columns = all_columns(self._sides[0], self._sides[1], owner)
        else:
            self._columns = ()
            return self
        fields = types_of(self._columns, self._sides)
        if self._time_output:
            more = self._time_output
            fields = {**fields, more: "bigint"} if isinstance(fields, Mapping) else (*fields, more)
        names = [*(column.name for column in self._columns), *filter(None, [self._time_output])]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidTopologyError(
                f"{owner}: the output has the field '{twice}' twice; give one another name: 'source:field as name'"
            )
        self.outputs = fields
        if self._unmatched != DEFAULT_STREAM:
            self.outputs = {DEFAULT_STREAM: fields, self._unmatched: fields}
        return self

    def _check_inputs(self, id: str, inputs: Mapping[Channel, tuple[str, ...]]) -> None:
        """Refuse a join whose streams, keys or fields are not there; InvalidTopologyError names
        them.
        """
        owner = f"component '{id}': {type(self).__name__}"
        if len(self._sides) < 2:
            raise InvalidTopologyError(f"{owner} needs a second stream: join(...)")
        check_sides(owner, self._sides, inputs)
        if not self._columns:
            raise InvalidTopologyError(
                f"{owner} needs its output: select(...), or the fields of both streams (fields=...)"
            )
        check_columns(owner, self._columns, self._sides, inputs)
        if self._unmatched != DEFAULT_STREAM and not any(self._keeps):
            raise InvalidTopologyError(
                f"{owner} emits no row without a partner to '{self._unmatched}': use left_join, or drop with_unmatched_stream"
            )
        if self._time_output and self._time_field is None:
            raise InvalidTopologyError(
                f"{owner}: '{self._time_output}' would hold event times: name their field, with_timestamp_field(...)"
            )
        self._inputs = dict(inputs)

    def _emit(self, values: tuple[Any, ...], at_ms: int, collector: BasicOutputCollector) -> None:
        collector.emit((*values, at_ms) if self._time_output else values)

    def _emit_alone(
        self, side: int, row: list[Any], at_ms: int, collector: BasicOutputCollector
    ) -> None:
        """Emit a row that has no partner, if its side keeps such."""
        if self._keeps[side]:
            values = self._make.alone(side, row)
            collector.emit((*values, at_ms) if self._time_output else values, self._unmatched)


def _side(owner: str, source: Sources, key: Key, fields: Fields | None) -> Side:
    sources = read_names(owner, "source", source)
    if not sources:
        raise InvalidTopologyError(f"{owner}: source names no stream; name a component")
    names = read_names(owner, f"the key of '{sources[0]}'", key)
    if not names:
        raise InvalidTopologyError(f"{owner}: '{sources[0]}' needs at least one key field")
    if isinstance(fields, str) or not isinstance(fields, Mapping | Sequence | None):
        raise InvalidTopologyError(
            f"{owner}: fields of '{sources[0]}' is {show(fields)}; write a list of names, or types by name"
        )
    for name in names:
        if fields is not None and name not in fields:
            raise InvalidTopologyError(
                f"{owner} has the key {unknown_field(name, sources[0], fields)}"
            )
    return Side(sources, names, fields)


def names_of(source: Sources) -> tuple[str, ...]:
    return (source,) if isinstance(source, str) else tuple(source)


def state_place(key: tuple[Any, ...]) -> Any:
    """Return a key in the state: that of one field is bare, as a lazy state asks for it."""
    return key if len(key) > 1 else key[0]
