"""Types of values beyond msgpack's own: each with its extension code, its content in plain values,
and the way back.

dates, datetimes with a zone, Decimal, UUID, sets, whole numbers beyond 64 bits, mappings with such
keys, and dataclasses and enums that were registered by name ("module:Class", the key
`topology.serializers`).
"""

from __future__ import annotations

import dataclasses
import datetime
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from importlib import import_module
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from sparkstorm.common.errors import CodecError, InvalidConfigError

DATE, DATETIME, DECIMAL, UNIQUE_ID, SET, FROZEN_SET, WIDE_INT, MAPPING = range(2, 10)
MOST_INT_BITS = 8192
IMMUTABLE = frozenset({datetime.date, datetime.datetime, Decimal, UUID})
"""Further types of keys: they hash and are immutable."""
ONE_FORM = frozenset({str, int, bytes, datetime.date, UUID, type(None)})
"""Types of keys that equal none of another form. True, say, equals 1."""
# Of what a dataclass that derives from one of them is, its fields say nothing.
_WITH_CONTENT: tuple[type, ...] = (
    *(dict, list, tuple, set, frozenset, deque, str, bytes, bytearray, int, float, complex),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta, Decimal, UUID),
)

_classes: dict[str, type] = {}  # registered in this process, by name
_names: dict[type, str] = {}


class SecondZone(ZoneInfo):
    """The zone of a datetime with fold 1.

    Within one zone object Python compares wall times, so that both 1:30 of a repeated hour are
    equal. Of two objects it compares the instants.
    """

    def __repr__(self) -> str:
        return f"zoneinfo.ZoneInfo(key={self.key!r})"


@dataclass(frozen=True, slots=True)
class RegisteredValue:
    """A value of a registered class, in a process that has not registered it: its class's name and
    its content.
    """

    name: str
    content: Any


class WideMapping(dict[Any, Any]):
    """A mapping with keys that msgpack has no form for, which it would turn into text."""


def register(names: Iterable[str]) -> None:
    """Register dataclasses and enums by "module:Class" for this process; InvalidConfigError names
    what is neither, and a dataclass that is more than its fields.
    """
    for name in names:
        module, colon, path = str(name).partition(":")
        target: Any = None
        if colon and module and path:
            try:
                target = import_module(module)
                for part in path.split("."):
                    target = getattr(target, part)
            except (ImportError, AttributeError, ValueError) as error:
                raise InvalidConfigError(f"topology.serializers: {name}: {error}") from error
        is_fit = isinstance(target, type) and (
            dataclasses.is_dataclass(target) or issubclass(target, Enum)
        )
        if not is_fit:
            raise InvalidConfigError(
                f"topology.serializers: {name!r:.80} is no dataclass or enum; write module:Class"
            )
        base = next(
            (candidate for candidate in _WITH_CONTENT if issubclass(target, candidate)), None
        )
        if base is not None and not issubclass(target, Enum):
            raise InvalidConfigError(
                f"topology.serializers: {name}: the class derives from {base.__name__}, whose content would be lost, "
                f"since a dataclass travels as its fields; make the {base.__name__} one of its fields"
            )
        _classes[name], _names[target] = target, name


def top_module(name: str) -> str:
    """Return the top-level module of "module:Class"."""
    return name.partition(":")[0].partition(".")[0]


def check_serializers(names: Iterable[str], by_value: Iterable[str]) -> None:
    """Refuse classes of modules that travel by value: each component would get its own class,
    unequal to the others'.
    """
    travelling = set(by_value)
    for name in names:
        if (top := top_module(name)) in travelling:
            raise InvalidConfigError(
                f"topology.serializers: {name}: module '{top}' defines components and travels by value; "
                "put the class into another module next to it"
            )


def name_of(kind: type) -> str | None:
    """Return the name under which a class is registered."""
    return _names.get(kind)


def content_of(value: Any) -> Any:
    """Return what is packed of a registered value: an enum's name (flags that are combined: their
    bits), a dataclass's fields.
    """
    if isinstance(value, Enum):
        return value.name if value.name in type(value).__members__ else value.value
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def is_registered(name: object) -> bool:
    """Return whether a class is registered under a name."""
    return isinstance(name, str) and name in _classes


def made(name: str, content: Any) -> Any:
    """Return the value of a registered class; KeyError when it is not registered here."""
    kind: Any = _classes[name]
    if issubclass(kind, Enum):
        return kind[content] if isinstance(content, str) else kind(content)
    fields = {field.name: field.init for field in dataclasses.fields(kind)}
    value = kind(**{field: held for field, held in content.items() if fields.get(field, True)})
    for field, held in content.items():
        # __post_init__ has changed it, as it did for the value that was sent
        if getattr(value, field, value) is not held:
            object.__setattr__(value, field, held)
    return value


def encoded(value: Any) -> tuple[int, Any] | None:
    """Return the extension code of a value that cannot hold others, and its content; None for
    another type.
    """
    kind = type(value)
    if kind is datetime.date:
        return DATE, value.isoformat()
    if kind is datetime.datetime:
        return DATETIME, _datetime_content(value)
    if kind is Decimal:
        return DECIMAL, str(value)
    if kind is UUID:
        return UNIQUE_ID, value.bytes
    return (WIDE_INT, str(value)) if kind is int else None


def decoded(code: int, content: Any) -> Any:
    """Return the value behind a code; any error means that the content is damaged."""
    return _DECODERS[code](content)


def checked(value: Any) -> Any:
    """Return a value of one of IMMUTABLE as it is read elsewhere; CodecError when it has no exact
    form.
    """
    if type(value) is datetime.datetime and value.tzinfo is not datetime.UTC:
        return _as_datetime(_datetime_content(value))
    if type(value) is Decimal and value.is_snan():
        raise CodecError("a signalling NaN, which equals nothing and has no hash")
    return value


def checked_int(value: int) -> int:
    """Return a whole number of not too many bits."""
    if value.bit_length() > MOST_INT_BITS:
        raise CodecError(
            f"a whole number of {value.bit_length()} bits; the most are {MOST_INT_BITS}"
        )
    return value


def _datetime_content(value: datetime.datetime) -> list[Any]:
    """Text without zone, the zone (a name, or microseconds from UTC), and which of two equal local
    times it is.
    """
    offset = value.utcoffset()
    if offset is None:
        raise CodecError(
            f"a datetime without a zone ({value.isoformat()}); give it one, as in value.replace(tzinfo=datetime.UTC)"
        )
    zone: Any = getattr(value.tzinfo, "key", None)  # zoneinfo's
    if not isinstance(zone, str) or zone == "UTC":
        zone = offset // datetime.timedelta(microseconds=1)
    return [value.replace(tzinfo=None, fold=0).isoformat(), zone, value.fold]


def _as_datetime(content: Any) -> datetime.datetime:
    text, zone, fold = content
    offset = (
        datetime.timedelta(0) if isinstance(zone, str) else datetime.timedelta(microseconds=zone)
    )
    time_zone: datetime.tzinfo = (
        (SecondZone if fold else ZoneInfo)(zone)
        if isinstance(zone, str)
        else datetime.timezone(offset)
        if offset
        else datetime.UTC
    )
    bare = datetime.datetime.fromisoformat(text)
    if bare.tzinfo is not None:
        raise ValueError(f"{text!r:.60} has a zone already")
    return bare.replace(tzinfo=time_zone, fold=fold)


def _as_wide_int(content: Any) -> int:
    if not isinstance(content, str) or len(content) > MOST_INT_BITS // 3 + 2:
        raise ValueError("no whole number")
    return checked_int(int(content))


def _pairs(content: Any) -> WideMapping:
    mapping = WideMapping(content)
    if len(mapping) != len(content):
        raise ValueError("a mapping with a key twice")
    return mapping


def _as_decimal(content: Any) -> Decimal:
    if not isinstance(content, str):
        raise ValueError("no decimal number")
    number: Decimal = checked(Decimal(content))
    return number


_DECODERS: dict[int, Callable[[Any], Any]] = {
    DATE: datetime.date.fromisoformat,
    DATETIME: _as_datetime,
    DECIMAL: _as_decimal,
    UNIQUE_ID: lambda content: UUID(bytes=content),
    SET: set,
    FROZEN_SET: frozenset,
    WIDE_INT: _as_wide_int,
    MAPPING: _pairs,
}
