"""Values of a declared type: those that a column of this type in Spark holds unchanged, or as a
value that compares equal. None is a value of each type.

The twin for whole columns is `typed_array` of replay/results/types.py.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from sparkstorm.common.model.values.column_types import ANY, ColumnType, parse_type

Holds = Callable[[Any], bool]
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_MOST_DIGITS = 38  # that Arrow reads, zeros at the end too
_CLASSES: dict[str, type] = {
    "boolean": bool,
    "string": str,
    "binary": bytes,
    "date": datetime.date,
    "double": float,
}


class Declared(NamedTuple):
    """The declared type of the field in a place of a stream, and whether it holds a value."""

    place: int
    kind: ColumnType
    holds: Holds


def declared_fields(fields: Sequence[str], types: Mapping[str, str]) -> list[Declared]:
    """Return the fields of a stream that have a declared type."""
    kinds = [(n, parse_type(types[f])) for n, f in enumerate(fields) if types.get(f, ANY) != ANY]
    return [Declared(place, kind, holds_of(kind)) for place, kind in kinds]


def row_check(fields: Sequence[Declared]) -> Callable[[Sequence[Any]], bool]:
    """Return the function that says whether a row's values are of the declared types.

    It is one expression, as dataclasses makes methods: with a loop over `holds` a whole word count
    whose pairs of text and number are typed took 1.2 times the CPU.
    """
    terms = []
    for place, kind, _ in fields:
        simple = _CLASSES.get(kind.name)
        if kind.name in _BITS:
            end = 1 << _BITS[kind.name] - 1
            terms.append(f"(type(v := row[{place}]) is int and {-end} <= v < {end} or v is None)")
        elif simple in (str, float, bool, bytes):
            by_class = f"type(v := row[{place}]) is {simple.__name__} or v is None"
            terms.append(f"({by_class} or holds_{place}(v))")
        else:
            terms.append(f"holds_{place}(row[{place}])")
    names = {f"holds_{place}": holds for place, _, holds in fields}
    check: Callable[[Sequence[Any]], bool] = eval(
        f"lambda row: {' and '.join(terms) or True}", names
    )
    return check


def holds_of(kind: ColumnType) -> Holds:
    """Return the function that says whether a type holds a value."""
    parts = [holds_of(part) for _, part in kind.parts]
    match kind.name:
        case "tinyint" | "smallint" | "int" | "bigint":
            return partial(_is_whole, 1 << _BITS[kind.name] - 1)
        case "double":
            return partial(_is_number, 1 << 53, lambda value: True)
        case "float":
            return partial(_is_number, 1 << 24, _is_single)
        case "timestamp":
            return _is_moment
        case "array":
            return partial(_is_list, *parts)
        case "map":
            return partial(_is_mapping, *parts)
        case "struct":
            return partial(_is_struct, {name: holds_of(part) for name, part in kind.parts})
    if kind.name.startswith("decimal"):
        digits, scale = map(int, kind.name[len("decimal(") : -1].split(","))
        return partial(_is_decimal, digits, scale)
    return partial(_is_of, _CLASSES[kind.name])


def _is_of(kind: type, value: Any) -> bool:
    return value is None or type(value) is kind


def _is_whole(end: int, value: Any) -> bool:
    return value is None or (type(value) is int and -end <= value < end)


def _is_number(most: int, holds_float: Holds, value: Any) -> bool:
    """Return whether a value is a float, or a whole number up to which floats hold all."""
    if type(value) is int:
        return -most <= value <= most
    return value is None or (type(value) is float and holds_float(value))


def _is_single(value: float) -> bool:
    try:
        # NaN, which equals nothing, is a float of 32 bits too
        return value != value or struct.unpack("f", struct.pack("f", value))[0] == value
    except OverflowError:
        return False


def _is_decimal(digits: int, scale: int, value: Any) -> bool:
    if value is None:
        return True
    if type(value) is not Decimal or not value.is_finite() or (value.is_signed() and not value):
        return False
    _, written, last = value.as_tuple()
    text = "".join(map(str, written)).rstrip("0")
    exponent = int(last) + len(written) - len(text)  # of a finite one it is a number
    if not text:
        return exponent <= 1  # Arrow takes 0E+3 for a number of four digits
    fits = exponent >= -scale and len(text) + exponent + scale <= digits
    return fits and len(written) <= _MOST_DIGITS


def _is_moment(value: Any) -> bool:
    if value is None or type(value) is not datetime.datetime or 1 < value.year < 9999:
        return value is None or type(value) is datetime.datetime
    try:
        value.astimezone(datetime.UTC)
    except OverflowError:
        return False
    return True


def _is_list(holds: Holds, value: Any) -> bool:
    return value is None or (type(value) in (list, tuple) and all(map(holds, value)))


def _is_mapping(holds_key: Holds, holds: Holds, value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and None not in value
        and all(map(holds_key, value))
        and all(map(holds, value.values()))
    )


def _is_struct(fields: dict[str, Holds], value: Any) -> bool:
    """Return whether a value is a mapping with exactly these fields, or a list of their values."""
    if type(value) is dict:
        if value.keys() != fields.keys() or all(
            name == f"_{n}" for n, name in enumerate(fields, 1)
        ):
            return False
        return all(holds(value[name]) for name, holds in fields.items())
    return value is None or (
        type(value) in (list, tuple)
        and len(value) == len(fields)
        and all(holds(item) for holds, item in zip(fields.values(), value, strict=True))
    )
