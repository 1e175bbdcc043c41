"""Rows of a join of two streams: which fields it keeps, and what it emits of a pair or of one side.

PURE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.names import unknown_field
from sparkstorm.common.model.topology import DEFAULT_STREAM

Sources = str | Sequence[str]
Fields = Sequence[str] | Mapping[str, str]
Channel = tuple[str, str]
_Values = tuple[Any, ...]
_Reader = Callable[[Any], _Values]


@dataclass(frozen=True, slots=True)
class Side:
    """One of two joined streams: where it comes from, its key fields, and its fields if they are
    given.
    """

    sources: tuple[str, ...]
    key: tuple[str, ...]
    fields: Fields | None

    @property
    def name(self) -> str:
        """Name in `select` and in errors."""
        return self.sources[0]

    @property
    def channels(self) -> list[Channel]:
        """Component and stream of each source."""
        parts = [source.partition(":") for source in self.sources]
        return [
            (component, stream if colon else DEFAULT_STREAM) for component, colon, stream in parts
        ]


@dataclass(frozen=True, slots=True)
class Column:
    """One value of the output: its name, and the field of the left (0) or the right side (1); None:
    of the left one, and of the right one where that is missing.
    """

    name: str
    side: int | None
    field: str


def all_columns(left: Side, right: Side, owner: str) -> tuple[Column, ...]:
    """Return a column for each field of both sides: a key of the same name is one column, another
    field that both have gets the right side's name before it.
    """
    own = list(left.fields or ())
    shared = {one for one, other in zip(left.key, right.key, strict=True) if one == other}
    columns = [Column(name, None if name in shared else 0, name) for name in own]
    prefix = right.name.replace(":", "_")
    for name in right.fields or ():
        if name not in shared:
            columns.append(Column(f"{prefix}_{name}" if name in own else name, 1, name))
    names = [column.name for column in columns]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidTopologyError(
            f"{owner}: the output has the field '{twice}' twice; name the fields that you want: "
            f"select(..., '{right.name}:field as name')"
        )
    return tuple(columns)


def read_column(text: str, sides: Sequence[Side], owner: str) -> Column:
    """Read one entry of `select` ("field" or "source:field", each with or without " as name") as a
    column of the joined row.
    """
    wanted, _, name = text.partition(" as ")
    source, colon, field = wanted.strip().rpartition(":")
    side_index = None
    if colon:
        side_index = next(
            (index for index, side in enumerate(sides) if source in side.sources), None
        )
        if side_index is None:
            names = ", ".join(name for side in sides for name in side.sources)
            raise InvalidTopologyError(
                f"{owner}: select has '{wanted.strip()}', but '{source}' is none of the joined streams: {names}"
            )
    return Column(name.strip() or field, side_index, field)


def types_of(columns: Iterable[Column], sides: Sequence[Side]) -> Fields:
    """Return the output's fields: with their types where both sides have given theirs."""
    given = [side.fields for side in sides]
    if not all(isinstance(fields, Mapping) for fields in given):
        return tuple(column.name for column in columns)
    types = {}
    for column in columns:
        places = (0, 1) if column.side is None else (column.side,)
        kinds = [
            given[number][column.field]  # type: ignore[index,call-overload]
            for number in places
            if column.field in (given[number] or ())
        ]
        types[column.name] = kinds[0] if kinds else "string"
    return types


def check_sides(owner: str, sides: Sequence[Side], inputs: Mapping[Channel, Sequence[str]]) -> None:
    """Refuse sides that are no inputs, or whose keys or given fields their streams do not have, and
    inputs that are on no side.
    """
    for side in sides:
        for source, channel in zip(side.sources, side.channels, strict=True):
            if channel not in inputs:
                raise InvalidTopologyError(
                    f"{owner} joins '{source}', which is no input of it: add it to inputs"
                )
            for name in side.key:
                if name not in inputs[channel]:
                    raise InvalidTopologyError(
                        f"{owner} has the key {unknown_field(name, source, inputs[channel])}"
                    )
            for name in side.fields or ():
                if name not in inputs[channel]:
                    raise InvalidTopologyError(
                        f"{owner} is given the field {unknown_field(name, source, inputs[channel])}"
                    )
    own = {channel for side in sides for channel in side.channels}
    if others := [":".join(channel) for channel in inputs if channel not in own]:
        raise InvalidTopologyError(f"{owner} has the input '{others[0]}', which it does not join")


def check_columns(
    owner: str,
    columns: Iterable[Column],
    sides: Sequence[Side],
    inputs: Mapping[Channel, Sequence[str]],
) -> None:
    """Refuse a column whose side does not have its field."""
    for column in columns:
        chosen = sides if column.side is None else [sides[column.side]]
        fields = {name: None for side in chosen for name in _fields_of(side, inputs)}
        if column.field not in fields:
            names = "' or '".join(side.name for side in chosen)
            raise InvalidTopologyError(
                f"{owner}: select has {unknown_field(column.field, names, fields)}"
            )


def _fields_of(side: Side, inputs: Mapping[Channel, Sequence[str]]) -> list[str]:
    """Return the fields that every stream of a side has."""
    first, *others = (inputs[channel] for channel in side.channels)
    return [name for name in first if all(name in fields for fields in others)]


class RowMaker:
    """Values of the output of a left and a right row; each row has the kept fields of its side."""

    def __init__(
        self,
        columns: Sequence[Column],
        sides: Sequence[Side],
        inputs: Mapping[Channel, Sequence[str]],
    ) -> None:
        has = [_fields_of(side, inputs) for side in sides]
        self.kept: list[list[str]] = [[], []]
        places: list[list[tuple[int, int]]] = []
        for column in columns:
            some = [
                number
                for number in (0, 1)
                if column.side in (None, number) and column.field in has[number]
            ]
            places.append([(number, self._place(number, column.field)) for number in some])
        sizes = [len(kept_fields) for kept_fields in self.kept]
        self._blank = tuple([None] * size for size in sizes)
        # places in the left row, then those in the right one
        flat = [[position + number * sizes[0] for number, position in some] for some in places]
        self._of_left = several([some[0] for some in flat])
        self._of_right = several([some[-1] for some in flat])

    def pair(self, left: list[Any], right: list[Any]) -> _Values:
        """Return the row of a pair."""
        return self._of_left(left + right)

    def alone(self, side: int, row: list[Any]) -> _Values:
        """Return the row of one side without a partner: the other side's fields are None."""
        if side == 0:
            return self._of_left(row + self._blank[1])
        return self._of_right(self._blank[0] + row)

    def _place(self, side: int, field: str) -> int:
        kept_fields = self.kept[side]
        if field not in kept_fields:
            kept_fields.append(field)
        return kept_fields.index(field)


def several(places: Sequence[int]) -> _Reader:
    """Return the function from a row to its values at these places, as a tuple."""
    if len(places) == 1:
        only = places[0]
        return lambda row: (row[only],)
    return itemgetter(*places) if places else lambda row: ()


class RowView:
    """Places of what a join reads in the tuples of one input."""

    __slots__ = ("at", "key", "kept", "side")

    def __init__(
        self,
        fields: Sequence[str],
        side: int,
        key: Sequence[str],
        kept: Sequence[str],
        time: str | None,
    ) -> None:
        self.side = side
        self.key = several([fields.index(name) for name in key])
        self.kept = several([fields.index(name) for name in kept])
        self.at = -1 if time is None else fields.index(time)
