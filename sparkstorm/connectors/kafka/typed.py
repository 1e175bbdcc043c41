"""Values of declared types of what formats have in their own forms: dates as days or text, decimals
as bytes or text, times as numbers.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from sparkstorm.connectors.file_records import object_reader

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS = {"ms": 1_000, "us": 1}


class Hint(NamedTuple):
    """Type of a column by its schema: Kafka Connect's name of its type, or the type, and a decimal's
    scale.
    """

    name: str = ""
    scale: int | None = None


class Forms(NamedTuple):
    """Forms of numbers where no schema tells: whole numbers as times ("ms", "us", "ns"; "" for none)
    and decimals ("precise": base64 of bytes; "string").
    """

    timestamps: str = ""
    decimals: str = "string"


_PLAIN = Forms()
_NONE = Hint()


class TypedFields:
    """Reader of the values of declared fields from a mapping; ValueError names a field that does not
    fit.
    """

    def __init__(self, fields: Mapping[str, str], forms: Forms = _PLAIN) -> None:
        self._check = object_reader(fields)
        kinds = {"date": _date, "timestamp": _timestamp, "binary": _binary, "bigint": _whole}
        convert: dict[str, Callable[..., Any]] = {}
        for name, kind in fields.items():
            if kind.startswith("decimal"):
                precision, scale = map(int, kind[len("decimal(") : -1].split(","))
                convert[name] = partial(_decimal, precision, scale)
            elif kind in kinds:
                convert[name] = kinds[kind]
            elif kind == "string":
                convert[name] = _text
        self._convert = convert
        self._forms = forms

    def __call__(self, record: Any, hints: Mapping[str, Hint] = {}) -> tuple[Any, ...]:
        """Return the values; a field that the mapping lacks is None."""
        if type(record) is dict:
            record = dict(record)
            for name, convert in self._convert.items():
                value = record.get(name)
                if value is not None:
                    try:
                        record[name] = convert(value, hints.get(name, _NONE), self._forms)
                    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
                        raise ValueError(f"field '{name}' is {value!r:.60}: {error}") from error
        return self._check(record)


def _text(value: Any, hint: Hint, forms: Forms) -> Any:
    return str(value) if type(value) is UUID else value


def _whole(value: Any, hint: Hint, forms: Forms) -> Any:
    """Return a time as milliseconds, which windows and joins take."""
    if type(value) is not datetime or value.tzinfo is None:
        return value
    return (value - _EPOCH) // timedelta(milliseconds=1)


def _binary(value: Any, hint: Hint, forms: Forms) -> bytes:
    if type(value) is bytes:
        return value
    return base64.b64decode(_require(value, str, "bytes or base64"), validate=True)


def _date(value: Any, hint: Hint, forms: Forms) -> date:
    if type(value) is date:
        return value
    if type(value) is int and forms.timestamps:
        return date(1970, 1, 1) + timedelta(days=value)
    return date.fromisoformat(_require(value, str, "a date").removesuffix("Z"))


def _timestamp(value: Any, hint: Hint, forms: Forms) -> datetime:
    if type(value) is int and forms.timestamps:
        name = hint.name.rpartition(".")[2]
        unit = {"Timestamp": "ms", "MicroTimestamp": "us", "NanoTimestamp": "ns"}.get(name)
        unit = unit or forms.timestamps
        if unit == "ns" and value % 1000:
            raise ValueError("it has nanoseconds; a datetime has microseconds")
        micros = value // 1000 if unit == "ns" else value * _MICROSECONDS[unit]
        return _EPOCH + timedelta(microseconds=micros)
    made = (
        value if type(value) is datetime else datetime.fromisoformat(_require(value, str, "a time"))
    )
    if made.tzinfo is None:
        raise ValueError("it has no zone")
    return made


def _decimal(precision: int, scale: int, value: Any, hint: Hint, forms: Forms) -> Decimal:
    if type(value) is dict:  # io.debezium.data.VariableScaleDecimal
        hint = Hint("VariableScaleDecimal", value["scale"])
        value = value["value"]
    if type(value) is bytes:
        value = _of_digits(value, scale if hint.scale is None else hint.scale)
    elif type(value) is str and (
        hint.name.endswith("Decimal") or (not hint.name and forms.decimals == "precise")
    ):
        unscaled = base64.b64decode(value, validate=True)
        value = _of_digits(unscaled, scale if hint.scale is None else hint.scale)
    try:
        if type(value) is not Decimal:
            value = Decimal(_require(value, (str, int), "a decimal"))
        with localcontext(prec=80):
            made: Decimal = value.quantize(Decimal((0, (1,), -scale)))
    except InvalidOperation as error:
        raise ValueError(f"no number that decimal({precision},{scale}) holds") from error
    if made != value or len(made.as_tuple().digits) > precision:
        raise ValueError(f"it has more digits than decimal({precision},{scale})")
    return made


def _of_digits(unscaled: bytes, scale: int) -> Decimal:
    """Return a decimal of its digits as a signed number of bytes (big-endian) and its scale."""
    if len(unscaled) > 128 or not -128 <= scale <= 128:
        raise ValueError(f"a decimal of {len(unscaled)} bytes with the scale {scale}")
    number = int.from_bytes(unscaled, "big", signed=True)
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))


def _require(value: Any, kinds: Any, what: str) -> Any:
    if not isinstance(value, kinds) or type(value) is bool:
        raise ValueError(f"not {what}")
    return value
