"""Types of Arrow columns for the codec's values: of inputs, of results as declared, and of results
by their values.

Inference changes no value: a column has a type only where every value has that type. Lists of one
type are ARRAY, mappings with keys of one type (text, whole numbers, bytes, true/false) and values
of one type are MAP, other mappings with the same text keys STRUCT, keys of a state that are tuples
of one make STRUCT (_1, _2, ...). A column with values of several types is tagged text
(common/model/values/tagged.py), which reads back exactly.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import accumulate, chain
from types import NoneType
from typing import Any

import pyarrow as pa

from sparkstorm.api.columns import arrow_type as arrow_type
from sparkstorm.api.value_columns import fitting_types, is_value_type, plain_values, zone_of
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.model.values.codec import INT_MAX, INT_MIN
from sparkstorm.common.model.values.tagged import is_tagged, read_value, tag_text

# In place of tagged text while types are found. A class of our own would be one more case in
# every function here. No other column has this type: _WIDER makes text of large text.
TAGGED = pa.large_string()
# The key type of mappings without a key, until one is
# seen: {} next to {"a": 1} is one type, not two.
_NO_KEY = pa.large_binary()
# Spark compiles code for every level: what nests deeper is tagged text.
_MOST_DEPTH = 8
_SCALARS = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
}
# Spark's decimals have no more.
_MOST_DIGITS = 38
# No floats: Spark takes 0.0 and -0.0 for one key, and a mapping would lose one of them.
_MAP_KEYS = (pa.string(), pa.int64(), pa.binary(), pa.bool_(), pa.large_binary())
# Spark has none of the types on the left.
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}  # Spark has no such types
_PLAIN = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date32,
    pa.types.is_decimal,
)


def problem_with(kind: pa.DataType) -> str:
    """Return why a column's type is outside the codec's closed set; empty if it is inside."""
    if any(is_kind(kind) for is_kind in _PLAIN) or (
        pa.types.is_timestamp(kind) and kind.tz and kind.unit != "ns"
    ):
        return ""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return problem_with(kind.value_type)
    if pa.types.is_struct(kind):
        return next((p for field in kind if (p := problem_with(field.type))), "")
    if pa.types.is_map(kind):
        if pa.types.is_nested(kind.key_type):
            return f"{kind} has keys of a nested type, which are no keys of mappings; make it a list of structs (map_entries)"
        return problem_with(kind.key_type) or problem_with(kind.item_type)
    return f"{kind} is none of true/false, numbers, text, bytes, dates, timestamps with a zone, lists, mappings; cast it"


# -- types that the values show --------------------------------------------------------------------


def seen_type(values: Sequence[Any], has_records: bool = False) -> pa.DataType:
    """Return the type of a column of values: null without any value, TAGGED for several types.

    `has_records`: mappings that all have the same keys, all of them text, are STRUCT.
    """
    return _seen(values, 0, has_records)


def result_type(values: Any, is_key: bool = False) -> pa.DataType:
    """Return the type of a result's column, a list of values or an array; of a state's keys, lists
    are tuples.
    """
    if isinstance(values, pa.Array) and _is_exact(values.type):
        # Arrow has checked every value of such a type. Only text is
        # looked at again: some of it may begin like tagged text.
        kind = _without_widths(values.type)
        values = values.to_pylist() if pa.types.is_string(kind) else ()
    elif isinstance(values, pa.Array):
        kind = _seen(plain_values(values), 0)
        values = ()
    elif is_key and set(map(type, values)) == {list}:
        kind = _tuple_type(values)
    else:
        kind = _seen(values, 0)
    return TAGGED if kind == pa.string() and any(map(is_tagged, values)) else kind


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether Spark has a type that gives back every value of an Arrow type: it has one zone
    and decimals of 38 digits.
    """
    if pa.types.is_nested(kind):
        return all(_is_exact(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return _is_exact(kind.value_type)
    if pa.types.is_timestamp(kind):
        return bool(kind.tz) and zone_of(kind.tz) is datetime.UTC
    return not (kind == pa.uint64() or pa.types.is_decimal256(kind) or is_value_type(kind))


def merged_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type that holds the values of both columns unchanged; TAGGED where there is none."""
    if one == other or pa.types.is_null(other):
        return one
    # A part without values decides nothing: else a partition
    # without values would make text of another one's numbers.
    if pa.types.is_null(one):
        return other
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _nested(pa.list_, merged_type(one.value_type, other.value_type))
    if pa.types.is_map(one) and pa.types.is_map(other):
        keys = {one.key_type, other.key_type} - {_NO_KEY}
        # Partitions may have seen keys of different types, which no MAP of Spark holds.
        key = TAGGED if len(keys) > 1 else keys.pop() if keys else _NO_KEY
        return _nested(pa.map_, key, merged_type(one.item_type, other.item_type))
    if (
        pa.types.is_struct(one)
        and pa.types.is_struct(other)
        and [f.name for f in one] == [f.name for f in other]
    ):
        kinds = [merged_type(a.type, b.type) for a, b in zip(one, other, strict=True)]
        return (
            TAGGED
            if TAGGED in kinds
            else pa.struct([(f.name, kind) for f, kind in zip(one, kinds, strict=True)])
        )
    if (pa.types.is_signed_integer(one) and pa.types.is_signed_integer(other)) or (
        pa.types.is_floating(one) and pa.types.is_floating(other)
    ):
        return max(one, other, key=lambda kind: kind.bit_width)
    return TAGGED


def definite_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with text where nothing was seen: a frame's column must have some type."""
    if pa.types.is_null(kind) or kind == _NO_KEY:
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(definite_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(definite_type(kind.key_type), definite_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, definite_type(field.type)) for field in kind])
    return kind


def _seen(values: Sequence[Any], depth: int, has_records: bool = False) -> pa.DataType:
    # By `type`, not isinstance: true is no whole number
    # here, and a column of both has no common type.
    kinds = set(map(type, values))
    kinds.discard(type(None))
    # A tuple inside a value is a list as soon as it has been on the wire, so both are one type.
    if tuple in kinds:
        kinds = kinds - {tuple} | {list}
    if len(kinds) != 1:
        return TAGGED if kinds else pa.null()
    only = kinds.pop()
    if only not in (list, dict):
        return _scalar_type(only, values)
    if depth == _MOST_DEPTH:
        return TAGGED
    there = [value for value in values if value is not None]
    if only is list:
        return _nested(pa.list_, _seen(list(chain.from_iterable(there)), depth + 1, has_records))
    keys = set(chain.from_iterable(there))
    if (
        has_records
        and keys
        and set(map(type, keys)) == {str}
        and set(map(len, there)) == {len(keys)}
    ):
        return pa.struct(
            [
                (key, _seen([mapping[key] for mapping in there], depth + 1, True))
                for key in sorted(keys)
            ]
        )
    key_type = TAGGED if None in keys else _seen(list(keys), depth + 1) if keys else _NO_KEY
    items = list(chain.from_iterable(mapping.values() for mapping in there))
    nested = _nested(pa.map_, key_type, _seen(items, depth + 1, has_records))
    return _record_type(there, depth) if nested == TAGGED else nested


def _record_type(mappings: Sequence[dict[Any, Any]], depth: int) -> pa.DataType:
    """Return a STRUCT for mappings with the same keys in the same order, all of them text; else
    TAGGED.
    """
    names = list(mappings[0])
    is_named = (
        set(map(type, names)) == {str}
        and all(names)
        and len({name.casefold() for name in names}) == len(names)
    )
    if not is_named or any(list(mapping) != names for mapping in mappings):
        return TAGGED
    kinds = [_seen([mapping[name] for mapping in mappings], depth + 1) for name in names]
    struct_type = pa.struct(list(zip(names, kinds, strict=True)))
    return TAGGED if TAGGED in kinds or _is_by_place(struct_type) else struct_type


def _scalar_type(kind: type, values: Sequence[Any]) -> pa.DataType:
    """Return the type of values of one type, TAGGED when Spark has none that gives back each of
    them exactly.
    """
    there = [value for value in values if value is not None]
    if kind is int:
        return pa.int64() if all(INT_MIN <= value <= INT_MAX for value in there) else TAGGED
    if kind is datetime.datetime:
        # Spark keeps instants and shows them in the session's zone. Another zone
        # would be lost, and which of two equal times in a night of autumn it was.
        is_utc = {(value.tzinfo, value.fold) for value in there} == {(datetime.UTC, 0)}
        return pa.timestamp("us", "UTC") if is_utc else TAGGED
    if kind is Decimal:
        return _decimal_type(there)
    return _SCALARS.get(kind, TAGGED)


def _decimal_type(values: Sequence[Decimal]) -> pa.DataType:
    """Return the type of decimals with the same number of digits after the point, TAGGED when Spark
    has none that gives back each of them exactly.
    """
    if not all(value.is_finite() for value in values):
        return TAGGED
    # Arrow has no -0: it would come back as 0.
    if any(value.is_zero() and value.is_signed() for value in values):
        return TAGGED
    parts = [value.as_tuple() for value in values]
    scales = {-int(part.exponent) for part in parts}  # of a finite one it is a number
    if len(scales) != 1:
        return TAGGED
    [scale] = scales
    most = max(len(part.digits) for part in parts)
    if not 0 <= scale <= _MOST_DIGITS or most > _MOST_DIGITS:
        return TAGGED
    return pa.decimal128(_MOST_DIGITS, scale)


def _nested(make: Any, *parts: pa.DataType) -> pa.DataType:
    if TAGGED in parts or (make is pa.map_ and parts[0] not in _MAP_KEYS):
        return TAGGED
    return make(*parts)


def _tuple_type(keys: Sequence[Sequence[Any]]) -> pa.DataType:
    width = len(keys[0])
    if not width or set(map(len, keys)) != {width}:
        return TAGGED
    kinds = [_seen(column, 0) for column in zip(*keys, strict=True)]
    return (
        TAGGED
        if TAGGED in kinds
        else pa.struct([(f"_{n}", kind) for n, kind in enumerate(kinds, 1)])
    )


def _without_widths(kind: pa.DataType) -> pa.DataType:
    """Return the type without 32-bit and 64-bit variants, which Spark does not distinguish."""
    if pa.types.is_dictionary(kind):
        return _without_widths(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_without_widths(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_without_widths(kind.key_type), _without_widths(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_widths(field.type)) for field in kind])
    return _WIDER.get(kind, kind)


# -- columns of a type -----------------------------------------------------------------------------


class _Misfit(Exception):
    """A value that a type cannot hold unchanged."""


def typed_array(values: Any, kind: pa.DataType, name: str, by_place: bool = True) -> pa.Array:
    """Return a result's column of a type; ReplayFailedError names the column and the first value
    that does not fit.

    No value changes, but for whole numbers in a column of floats that hold them exactly.
    `by_place`: a list is taken for a STRUCT of any names; else only for one of the names _1, _2,
    ..., which is read back as a list.
    """
    if isinstance(values, pa.Array):
        if kind in (values.type, _without_widths(values.type)) and _is_exact(values.type):
            return values.cast(kind)
        values = plain_values(values)
    if kind == TAGGED:
        return pa.array(
            [None if value is None else tag_text(value) for value in values], pa.string()
        )
    try:
        return _array(values, kind, by_place)
    except (
        _Misfit,
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        OverflowError,
        TypeError,
        UnicodeEncodeError,
    ) as error:
        raise ReplayFailedError(
            f"column '{name}' does not hold {kind} throughout ({str(error)[:200]}); declare another type for it"
        ) from error


def _array(values: Sequence[Any], kind: pa.DataType, by_place: bool) -> pa.Array:
    if not pa.types.is_nested(kind):
        return _by_column(values, kind, by_place)
    try:
        return _by_column(values, kind, by_place)
    # Anything unusual, which the twin knows or names by its row
    except (_Misfit, ValueError, TypeError, OverflowError, pa.ArrowException):
        return _row_by_row(values, kind, by_place)


def _row_by_row(values: Sequence[Any], kind: pa.DataType, by_place: bool) -> pa.Array:
    """Return the column of a nested type, each value by itself; twin: `_by_column`."""
    return pa.array([_fitted(value, kind, by_place) for value in values], kind)


def _by_column(values: Sequence[Any], kind: pa.DataType, by_place: bool) -> pa.Array:
    """Return the same with the children as columns: a mapping and several calls for each value are
    ten times slower. _Misfit names the first value of a child, not of a row.
    """
    if not pa.types.is_nested(kind):
        _check_scalars(values, kind)
        return pa.array(values, kind)
    types = set(map(type, values))
    present = [value for value in values if value is not None] if NoneType in types else values
    types.discard(NoneType)
    if pa.types.is_struct(kind):
        fields = _fields_of(present, types, kind, by_place)
        mask = None
        if len(present) < len(values):
            is_missing = [value is None for value in values]
            fields = [_spread(column, is_missing) for column in fields]
            mask = pa.array(is_missing)
        columns = [
            _by_column(column, field.type, by_place)
            for column, field in zip(fields, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)
    if pa.types.is_map(kind) and types <= {dict}:
        keys = list(chain.from_iterable(present))
        items = [item for value in present for item in value.values()]
        if NoneType in set(map(type, keys)):
            raise _Misfit("a key that is none")
        return pa.MapArray.from_arrays(
            _offsets(values),
            _by_column(keys, kind.key_type, by_place),
            _by_column(items, kind.item_type, by_place),
            type=kind,
        )
    if pa.types.is_list(kind) and types <= {list, tuple}:
        items = list(chain.from_iterable(present))
        return pa.ListArray.from_arrays(
            _offsets(values), _by_column(items, kind.value_type, by_place), type=kind
        )
    raise _Misfit(f"a value of another type than {kind}")


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return the offsets of lists or mappings; that of a missing one is missing."""
    ends = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    starts = [None if value is None else end for value, end in zip(values, ends[:-1], strict=True)]
    return pa.array([*starts, ends[-1]], pa.int32())


def _spread(column: Iterable[Any], is_missing: Iterable[bool]) -> list[Any]:
    """Return the values with None in the places that are missing."""
    values = iter(column)
    return [None if missing else next(values) for missing in is_missing]


def _fields_of(
    values: Sequence[Any], types: set[type], kind: pa.StructType, by_place: bool
) -> list[Sequence[Any]]:
    """Return a column of values for each field of a struct; _Misfit unless all are rows or all are
    mappings of exactly its fields.
    """
    names = [field.name for field in kind]
    if not names or len(set(names)) < len(names) or not set(map(len, values)) <= {len(names)}:
        raise _Misfit("another number of fields")
    is_by_place = _is_by_place(kind)
    if types <= {list, tuple} and (by_place or is_by_place):
        return list(zip(*values, strict=True)) or [()] * len(names)
    if types <= {dict} and not is_by_place:
        if not all(name in value for value in values for name in names):
            raise _Misfit("other fields")
        return [[value[name] for value in values] for name in names]
    raise _Misfit("neither rows nor mappings")


def _check_scalars(values: Sequence[Any], kind: pa.DataType) -> None:
    """Raise _Misfit for a value that Arrow would convert in silence."""
    fitting = fitting_types(kind) or frozenset()
    if not set(map(type, values)) <= fitting | {type(None)}:
        # Found again only for the sentence: the sets above look at types, not at values.
        wrong = next(value for value in values if value is not None and type(value) not in fitting)
        raise _Misfit(f"{wrong!r:.80} is of type {type(wrong).__name__}")
    if kind == pa.float32():
        wrong = next(
            (value for value in values if value is not None and not _is_single(value)), None
        )
        if wrong is not None:
            raise _Misfit(f"{wrong!r} is no float of 32 bits")
    elif pa.types.is_decimal(kind):
        if any(value is not None and value.is_signed() and not value for value in values):
            raise _Misfit("-0 would lose its sign")
    elif pa.types.is_timestamp(kind):
        wrong = next(
            (value for value in values if value is not None and not _is_in_utc(value)), None
        )
        if wrong is not None:
            raise _Misfit(f"{wrong} is in no year from 1 to 9999 in UTC")


def _is_in_utc(value: datetime.datetime) -> bool:
    if 1 < value.year < 9999:
        return True
    try:
        value.astimezone(datetime.UTC)
    except OverflowError:
        return False
    return True


def _is_single(value: float) -> bool:
    try:
        # NaN, which equals nothing, is a float of 32 bits too.
        return value != value or struct.unpack("f", struct.pack("f", value))[0] == value
    except OverflowError:
        return False


def _fitted(value: Any, kind: pa.DataType, by_place: bool) -> Any:
    """Return the value in Arrow's form for a nested type; _Misfit if it does not fit unchanged."""
    if value is None:
        return None
    if pa.types.is_list(kind) and type(value) in (list, tuple):
        return _items(value, kind.value_type, by_place)
    if pa.types.is_map(kind) and isinstance(value, dict):
        if None in value:
            raise _Misfit(f"{value!r:.80} has a key that is none")
        keys = _items(list(value), kind.key_type, by_place)
        items = _items(list(value.values()), kind.item_type, by_place)
        return list(zip(keys, items, strict=True))
    if pa.types.is_struct(kind):
        return _fitted_struct(value, kind, by_place)
    if pa.types.is_nested(kind):
        raise _Misfit(f"{value!r:.80} is of type {type(value).__name__}")
    _check_scalars([value], kind)
    return value


def _items(values: Sequence[Any], kind: pa.DataType, by_place: bool) -> list[Any]:
    if pa.types.is_nested(kind):
        return [_fitted(value, kind, by_place) for value in values]
    _check_scalars(values, kind)
    return list(values)


def _fitted_struct(value: Any, kind: pa.StructType, by_place: bool) -> dict[str, Any]:
    names = [field.name for field in kind]
    if (
        type(value) in (list, tuple)
        and len(value) == len(names)
        and (by_place or _is_by_place(kind))
    ):
        items = dict(zip(names, value, strict=True))
    elif type(value) is dict and value.keys() == set(names) and not _is_by_place(kind):
        items = value
    else:
        raise _Misfit(f"{value!r:.80} has not exactly the fields {', '.join(names)}")
    return {field.name: _fitted(items[field.name], field.type, by_place) for field in kind}


# -- states read back ------------------------------------------------------------------------------


def state_values(array: pa.Array, is_key: bool) -> list[Any]:
    """Return the keys or values of a state from a column of a frame, exactly as they were when it
    was written.

    Tagged text is read; a STRUCT is a tuple among keys, and a list among values if its names are
    _1, _2, ...; CodecError for tagged text that cannot be read.
    """
    values = [_placed(read_value(cell), array.type) for cell in plain_values(in_utc(array))]
    if not is_key:
        return values
    # Only of a STRUCT: another mapping is no key, and its values alone would be another one.
    is_struct = pa.types.is_struct(array.type)
    return [
        tuple(v.values())
        if is_struct and isinstance(v, dict)
        else tuple(v)
        if isinstance(v, list)
        else v
        for v in values
    ]


def in_utc(array: pa.Array) -> pa.Array:
    """Return a column of results with its times in UTC, at every depth.

    Times of other zones are tagged text. But Spark hands all in `spark.sql.session.timeZone`, and a
    bolt that buckets by day would see other days than live.
    """
    kind = _kind_in_utc(array.type)
    return array if kind == array.type else array.cast(kind)


def _kind_in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_map(kind):
        return pa.map_(_kind_in_utc(kind.key_type), _kind_in_utc(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_kind_in_utc(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_kind_in_utc(kind.value_type)))
    return kind


def _placed(value: Any, kind: pa.DataType) -> Any:
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        return {key: _placed(item, kind.item_type) for key, item in value.items()}
    if pa.types.is_struct(kind):
        items = {field.name: _placed(value[field.name], field.type) for field in kind}
        return list(items.values()) if _is_by_place(kind) else items
    return [_placed(item, kind.value_type) for item in value]


def _is_by_place(kind: pa.StructType) -> bool:
    return bool(kind.num_fields) and all(field.name == f"_{n}" for n, field in enumerate(kind, 1))
