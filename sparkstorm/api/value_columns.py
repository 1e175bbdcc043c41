"""Values of tuples as Arrow columns and back, each value unchanged.

A column has a natural type of Arrow's where that type gives every value back: true/false, whole
numbers of 64 bits, floats, text, bytes, dates, datetimes of one zone, decimals of one scale, lists,
mappings with keys of text. Any other column is one of `ValueType`, whose cells are values:
`to_pylist()` gives them, and filters, slices and `take` keep them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from itertools import pairwise, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sparkstorm.common.errors import CodecError
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.tagged import from_json, to_json
from sparkstorm.common.model.values.value_types import checked

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch

_NAME = "sparkstorm-value"
_NATURAL = frozenset({datetime.date, datetime.datetime, Decimal, list, dict})
_PLAIN_KINDS = frozenset({bool, float, str, bytes})
_zone_and_fold = attrgetter("tzinfo", "fold")
_OF_EXTENSIONS = {"arrow.json": frozenset({str}), "arrow.uuid": frozenset({UUID})}


@cache
def value_type() -> DataType:
    """Return the Arrow type of cells that are values of any type, stored as JSON with tags
    (`common/model/values/tagged.py`).
    """
    import pyarrow as pa

    class ValueScalar(pa.ExtensionScalar):  # type: ignore[misc]
        """Cell that holds a value."""

        def as_py(self, **_: Any) -> Any:
            return None if self.value is None else from_json(self.value.as_py())

    class ValueType(pa.ExtensionType):  # type: ignore[misc]
        """Type of cells that are values."""

        def __init__(self) -> None:
            super().__init__(pa.string(), _NAME)

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type: DataType, serialized: bytes) -> ValueType:
            return cls()

        def __arrow_ext_scalar_class__(self) -> type:
            return ValueScalar

    return ValueType()


def is_value_type(kind: DataType) -> bool:
    """Return whether a type is that of cells with values of any type."""
    return getattr(kind, "extension_name", "") == _NAME


def with_values(batch: RecordBatch) -> RecordBatch:
    """Return a batch that was read from Arrow's stream with its cells of values: the type is not
    registered with Arrow, which would read files of others by it, so they arrive as text.
    """
    import pyarrow as pa

    if not any(_is_marked(field) for field in batch.schema):
        return batch
    columns = [
        pa.ExtensionArray.from_storage(value_type(), column) if _is_marked(field) else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _is_marked(field: Any) -> bool:
    return (field.metadata or {}).get(b"ARROW:extension:name") == _NAME.encode()


def exact_array(column: Sequence[Any]) -> Any:
    """Return values of tuples as an Arrow array; ArrowInvalid for several rows that need more than
    one type.

    Rows of lists and mappings are taken one by one: a type for all of them would change some.
    """
    import pyarrow as pa

    kinds = set(map(type, column))
    kinds.discard(type(None))
    if (len(kinds) == 1 and kinds <= _PLAIN_KINDS) or not kinds:
        return pa.array(column)
    if len(column) > 1 and (len(kinds) > 1 or kinds & {list, dict}):
        names = ", ".join(sorted(k.__name__ for k in kinds))
        raise pa.ArrowInvalid(f"values of {names} in one column need a declared type")
    if kinds == {int}:
        try:
            return pa.array(column, pa.int64())
        except OverflowError:
            return _as_values(column)
    array = natural_array(column)
    if array is not None:
        return array
    if len(column) > 1 and kinds <= _NATURAL:  # one by one most have a natural type
        raise pa.ArrowInvalid("values in one column that no one type of Arrow's holds unchanged")
    return _as_values(column)


def natural_array(column: Sequence[Any]) -> Any:
    """Return an array of a type of Arrow's own; None when there is none that gives every value
    back.
    """
    import pyarrow as pa

    kinds = set(map(type, column)) - {type(None)}
    if len(kinds) > 1 or not kinds <= _PLAIN_KINDS | _NATURAL | {int}:
        return None
    kind = next(iter(kinds), None)
    try:
        if kind is None or kind in _PLAIN_KINDS:
            return pa.array(column)
        wanted = (
            _timestamp_of(column)
            if kind is datetime.datetime
            else pa.int64()
            if kind is int
            else None
        )
        array = pa.array(column, wanted)
        if kind is int:
            return array
        if pa.types.is_decimal256(array.type):
            return None  # Spark's and most files' decimals have 38 digits
        there = [value for value in column if value is not None]
        back = [value for value in plain_values(array) if value is not None]
        # The usual zone, without packing both lists; a fold would be lost.
        if kind is datetime.datetime and set(map(_zone_and_fold, there)) == {(datetime.UTC, 0)}:
            return array if back == there else None
        return array if Codec().pack(back) == Codec().pack(there) else None
    except (pa.ArrowException, TypeError, ValueError, OverflowError, CodecError):
        return None


def _timestamp_of(column: Sequence[Any]) -> DataType:
    """Return the Arrow type of datetimes in the first one's zone."""
    import pyarrow as pa

    first: datetime.datetime = next(value for value in column if value is not None)
    name = getattr(first.tzinfo, "key", None)
    if isinstance(name, str):
        return pa.timestamp("us", name)
    minutes, rest = divmod(
        first.utcoffset() or datetime.timedelta(0), datetime.timedelta(minutes=1)
    )
    if rest:
        raise ValueError("a zone of Arrow's has whole minutes")
    sign = "-" if minutes < 0 else "+"
    return pa.timestamp(
        "us", f"{sign}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}" if minutes else "UTC"
    )


def _as_values(column: Sequence[Any]) -> Any:
    import pyarrow as pa

    cells = pa.array([None if value is None else to_json(value) for value in column], pa.string())
    return pa.ExtensionArray.from_storage(value_type(), cells)


def declared_array(column: Sequence[Any], kind: DataType) -> Any:
    """Return values as an array of a declared type; ArrowInvalid for a value that it does not hold.

    A declaration converts what compares equal: whole numbers to floats, decimals to its scale,
    times to its zone. A float of 32 bits rounds.
    """
    import pyarrow as pa

    fitting = fitting_types(kind)
    if fitting is not None and (other := set(map(type, column)) - fitting - {type(None)}):
        raise pa.ArrowInvalid(f"a value of type {other.pop().__name__} in a column of {kind}")
    try:
        if "map<" in str(kind):  # pyarrow ends the process for a list at a map's place
            for value in column:
                require_shape(pa.field("value", kind), value)
        made = pa.array(column, kind)
        coded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
        inner = kind.value_type if coded else kind
        if fitting and not (pa.types.is_decimal(inner) or pa.types.is_timestamp(inner)):
            return made
        plain = plain_values(made)
    except (TypeError, ValueError, OverflowError, CodecError) as error:
        raise pa.ArrowInvalid(str(error)) from error
    # Times of equal value are held: one comparison of the lists
    if fitting and pa.types.is_timestamp(inner) and plain == list(column):
        return made
    for value, held in zip(column, plain, strict=True):
        if not _is_held(value, held):
            raise pa.ArrowInvalid(f"{value!r:.60} would become {held!r:.60} in a column of {kind}")
    return made


def require_shape(field: Any, value: Any) -> None:
    """Raise ValueError for null where a field, or one within it, does not take it, and for what is
    no mapping where it takes one.

    Arrow finds the first when a file is written, or not at all.
    """
    import pyarrow as pa

    kind = field.type
    if value is None:
        if not field.nullable:
            raise ValueError(f"field '{field.name}' is null, but the column is {kind} not null")
    elif pa.types.is_map(kind):
        if not isinstance(value, Mapping):
            raise ValueError(f"field '{field.name}' is {value!r:.60}, but the column is {kind}")
        for item in value.values():
            require_shape(kind.item_field, item)
    elif pa.types.is_struct(kind) and isinstance(value, Mapping):
        for number in range(kind.num_fields):
            require_shape(kind.field(number), value.get(kind.field(number).name))
    elif hasattr(kind, "value_field") and isinstance(value, list | tuple):
        for item in value:
            require_shape(kind.value_field, item)


def _is_held(value: Any, held: Any) -> bool:
    """Return whether a declared column holds a value: it compares equal, and is of the same
    family.
    """
    kind = type(value)
    other = type(held)
    if kind is list and other is list:
        return len(value) == len(held) and all(map(_is_held, value, held))
    if isinstance(value, dict) and other is dict:
        return (
            list(value) == list(held)
            and all(map(_is_held, value, held))
            and all(map(_is_held, value.values(), held.values()))
        )
    if kind is Decimal and other is Decimal and (value.is_signed() != held.is_signed()):
        return False
    if (kind is bool) != (other is bool):
        return False
    return bool(value == held or (value != value and held != held))


def fitting_types(kind: DataType) -> frozenset[type] | None:
    """Return the Python types whose values an Arrow type of scalars holds; None for other types.

    Arrow itself would take 1.5 for the whole number 1, true for 1.0 and bytes for text.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return fitting_types(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _OF_EXTENSIONS.get(kind.extension_name)
    families: list[tuple[Any, frozenset[type]]] = [
        (pa.types.is_boolean, frozenset({bool})),
        (pa.types.is_integer, frozenset({int})),
        (pa.types.is_floating, frozenset({float, int})),
        (pa.types.is_string, frozenset({str})),
        (pa.types.is_large_string, frozenset({str})),
        (pa.types.is_string_view, frozenset({str})),
        (pa.types.is_binary, frozenset({bytes})),
        (pa.types.is_large_binary, frozenset({bytes})),
        (pa.types.is_fixed_size_binary, frozenset({bytes})),
        (pa.types.is_binary_view, frozenset({bytes})),
        (pa.types.is_date, frozenset({datetime.date})),
        (pa.types.is_timestamp, frozenset({datetime.datetime})),
        (pa.types.is_decimal, frozenset({Decimal})),
    ]
    return next((types for is_kind, types in families if is_kind(kind)), None)


def plain_values(array: Any) -> list[Any]:
    """Return an Arrow array's values as tuples carry them; CodecError for a map whose keys are no
    keys, or one of them twice, and for values that Python has none for: text that is no UTF-8,
    times beyond the years 1 to 9999, nanoseconds.
    """
    try:
        return _by_column(array)
    # Anything unusual, which the twin knows or names
    except (ValueError, OverflowError, TypeError, NotImplementedError, CodecError):
        return _one_by_one(array)


def _by_column(array: Any) -> list[Any]:
    """Return the same by whole columns: pyarrow makes an object of each cell but those of numbers,
    text and bytes, a time in 5 us. Errors of unusual columns name nothing; twin: `_one_by_one`.
    """
    import pyarrow as pa
    from pyarrow import types

    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in _by_column(chunk)]
    kind = array.type
    if types.is_dictionary(kind) and not types.is_nested(kind.value_type):
        words = _by_column(array.dictionary)
        return [None if index is None else words[index] for index in array.indices.to_pylist()]
    if types.is_struct(kind):
        return _with_nulls(array, _dicts)
    if types.is_map(kind):
        return _with_nulls(array, _mappings)
    if types.is_list(kind) or types.is_large_list(kind):
        return _with_nulls(array, _lists)
    if types.is_nested(kind) or types.is_dictionary(kind):
        raise TypeError(f"a column of {kind}")
    if types.is_timestamp(kind):
        return _with_nulls(array, _moments)
    if types.is_date32(kind):
        return _with_nulls(array, _dates)
    if is_value_type(kind):  # a scalar of each cell takes longer than its text
        return [None if text is None else from_json(text) for text in array.storage.to_pylist()]
    if types.is_decimal(kind):
        return _with_nulls(array, _decimals)
    values: list[Any] = array.to_pylist()
    return values


def _with_nulls(array: Any, values_of: Callable[[Any], list[Any]]) -> list[Any]:
    """Return the values of an array, found by a function for arrays without nulls."""
    if not array.null_count:
        return values_of(array)
    values = iter(values_of(array.drop_null()))
    return [next(values) if is_valid else None for is_valid in array.is_valid().to_pylist()]


def _dicts(array: Any) -> list[Any]:
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        raise ValueError("fields of one name")
    columns = [_by_column(column) for column in array.flatten()]
    rows = zip(*columns, strict=True) if columns else repeat((), len(array))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _lists(array: Any) -> list[Any]:
    bounds = array.offsets.to_pylist()
    items = _by_column(array.flatten())
    first = bounds[0]
    return [items[start - first : stop - first] for start, stop in pairwise(bounds)]


def _mappings(array: Any) -> list[Any]:
    from pyarrow import types

    if types.is_nested(array.type.key_type):
        raise TypeError("keys that are no keys")
    bounds = array.offsets.to_pylist()
    first = bounds[0]
    size = bounds[-1] - first
    keys = _by_column(array.keys.slice(first, size))
    items = _by_column(array.items.slice(first, size))
    mappings = []
    for start, stop in pairwise(bounds):
        part = slice(start - first, stop - first)
        mapping = dict(zip(keys[part], items[part], strict=True))
        if len(mapping) < stop - start:
            raise ValueError("one key twice")
        mappings.append(mapping)
    return mappings


# Of datetime: microseconds and days since 1970. numpy gives numbers beyond them.
_MICROSECONDS = -62_135_596_800_000_000, 253_402_300_799_999_999
_DAYS = -719_162, 2_932_896


def _moments(array: Any) -> list[Any]:
    import pyarrow as pa

    kind = array.type
    numbers = array.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
    naive = _of_numpy(numbers, "M8[us]", _MICROSECONDS)
    if not kind.tz:
        return naive
    zone = zone_of(kind.tz)
    in_utc = [moment.replace(tzinfo=datetime.UTC) for moment in naive]
    return in_utc if zone is datetime.UTC else [_in_zone(moment, zone) for moment in in_utc]


def _dates(array: Any) -> list[Any]:
    import pyarrow as pa

    return _of_numpy(array.view(pa.int32()).cast(pa.int64()), "M8[D]", _DAYS)


def _of_numpy(numbers: Any, kind: str, bounds: tuple[int, int]) -> list[Any]:
    numpy_values = numbers.to_numpy()
    if len(numpy_values) and not bounds[0] <= numpy_values.min() <= numpy_values.max() <= bounds[1]:
        raise OverflowError("beyond the calendar")
    values: list[Any] = numpy_values.view(kind).tolist()
    return values


def _decimals(array: Any) -> list[Any]:
    import pyarrow as pa

    return list(map(Decimal, array.cast(pa.string()).to_pylist()))


def _one_by_one(array: Any) -> list[Any]:
    """Return the values of any array, or name what a tuple cannot carry; twin: `_by_column`."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type) and pa.types.is_timestamp(array.type.value_type):
        array = array.cast(array.type.value_type)
    kind = array.type
    zone = zone_of(kind.tz) if pa.types.is_timestamp(kind) and kind.tz else None
    try:
        if zone is None:
            if not pa.types.is_nested(kind):
                return list(_in_utc(array).to_pylist())
            return [_plain(value, kind) for value in _in_utc(array).to_pylist()]
        try:
            return [
                None if value is None else _in_zone(value, zone)
                for value in _in_utc(array).to_pylist()
            ]
        except OverflowError:  # in UTC, or in the zone
            numbers = array.cast(pa.timestamp("us", kind.tz)).view(pa.int64()).to_pylist()
            return [None if number is None else _local(number, zone) for number in numbers]
    except (ValueError, OverflowError, TypeError) as error:
        raise CodecError(f"a column of {kind} holds what tuples cannot carry: {error}") from error


def _in_zone(moment: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime:
    local = moment.astimezone(zone)
    return checked(local) if local.fold else local


def _local(since_us: int, zone: datetime.tzinfo) -> datetime.datetime:
    """Return a time in a zone, which UTC may have no year for; OverflowError where the zone has none
    either.
    """
    since = datetime.timedelta(microseconds=since_us)
    try:
        return _in_zone(datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + since, zone)
    except OverflowError:
        end = datetime.datetime.max if since_us > 0 else datetime.datetime.min
        offset = end.replace(tzinfo=zone).utcoffset() or datetime.timedelta(0)
        return (datetime.datetime(1970, 1, 1) + (since + offset)).replace(tzinfo=zone)


def _in_utc(array: Any) -> Any:
    """Return the same times in UTC and in microseconds; ArrowInvalid where nanoseconds are lost.

    Arrow knows no other zone without tables that it may lack, and makes a `pandas.Timestamp` of
    nanoseconds where pandas is installed. Its cast of a list checks elements that the array does
    not show, outside of its slice and behind nulls: `take` leaves those out.
    """
    import pyarrow as pa

    kind = _type_in_utc(array.type)
    if kind == array.type:
        return array
    if pa.types.is_nested(array.type):
        array = array.take(pa.array(range(len(array)), pa.int64()))
    return array.cast(kind)


def _type_in_utc(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us" if kind.unit == "ns" else kind.unit, "UTC" if kind.tz else None)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_type_in_utc(kind.key_type), _type_in_utc(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_utc(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_type_in_utc(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        item = kind.value_field.with_type(_type_in_utc(kind.value_type))
        return pa.list_(item, kind.list_size)
    if pa.types.is_dictionary(kind) and pa.types.is_timestamp(kind.value_type):
        return _type_in_utc(kind.value_type)
    return kind


_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-5][0-9]))?(?::?([0-5][0-9]))?")


@cache
def zone_of(name: str) -> datetime.tzinfo:
    """Return the zone that Arrow names: UTC, a zone of the tz database, or hours and minutes from
    UTC, also as Spark's sessions have them (`GMT+2`).
    """
    if name.upper() in ("UTC", "ETC/UTC", "Z"):
        return datetime.UTC
    try:
        if match := _OFFSET.fullmatch(name):
            hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
            offset = datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
            return (
                datetime.timezone(-offset if match[1] == "-" else offset)
                if offset
                else datetime.UTC
            )
        return ZoneInfo(name)
    # OSError: of a folder of zones, as "America"
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise CodecError(
            f"a column of times in the unknown zone {name!r:.60}; cast it to timestamp('us', 'UTC')"
        ) from error


def _plain(value: Any, kind: Any) -> Any:
    """Return a value with Arrow's maps, which are lists of pairs, as mappings, and with times in
    zones of Python's own.
    """
    import pyarrow as pa

    if value is None:
        return value
    if pa.types.is_timestamp(kind) and kind.tz:
        return _in_zone(value, zone_of(kind.tz))
    if pa.types.is_dictionary(kind):
        return _plain(value, kind.value_type)
    if not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        if pa.types.is_nested(kind.key_type):
            raise CodecError(
                f"a map with keys of type {kind.key_type}; keys are text, bytes, numbers, true/false and dates"
            )
        mapping = {_plain(key, kind.key_type): _plain(item, kind.item_type) for key, item in value}
        if len(mapping) != len(value):
            raise CodecError("a map with one key twice")
        return mapping
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_run_end_encoded(kind):
        return _plain(value, kind.value_type)
    if pa.types.is_union(kind):
        raise CodecError(f"a column of {kind}: its values are of one of several types; cast it")
    return [_plain(item, kind.value_type) for item in value]
