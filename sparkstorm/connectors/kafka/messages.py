"""Protobuf messages as mappings and back, by their descriptors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}


class Messages:
    """Reader and writer of messages; what a message type needs is found out once.

    A field that is not there is None where its presence is told, else its default, as Protobuf has
    it. Enums are text (an unknown number its digits), a Timestamp is a datetime in UTC, wrappers
    are their value.
    """

    def __init__(self) -> None:
        self._getters: dict[str, list[tuple[str, Callable[[Any], Any]]]] = {}
        self._maps: dict[str, bool] = {}  # which fields are, by name

    def read(self, message: Any) -> dict[str, Any]:
        """Return a message as a mapping of all its fields; ValueError for a value that no tuple
        can carry.
        """
        descriptor = message.DESCRIPTOR
        getters = self._getters.get(descriptor.full_name)
        if getters is None:
            getters = [(field.name, self._getter(field)) for field in descriptor.fields]
            self._getters[descriptor.full_name] = getters
        return {name: get(message) for name, get in getters}

    def fill(self, message: Any, record: Any) -> None:
        """Set a message's fields; ValueError that names the first field that does not fit."""
        kind = message.DESCRIPTOR
        if type(record) is not dict:
            raise ValueError(f"{kind.full_name} is a {type(record).__name__}, no mapping")
        for name, value in record.items():
            field = kind.fields_by_name.get(name)
            if field is None:
                raise ValueError(f"{kind.full_name} has no field '{name:.60}'")
            self._set(message, field, value)

    def _getter(self, field: Any) -> Callable[[Any], Any]:
        name = field.name
        if self._is_map(field):
            item = self._item(field.message_type.fields_by_name["value"])
            return lambda m: {key: item(value) for key, value in getattr(m, name).items()}
        item = self._item(field)
        if field.is_repeated:
            return lambda m: [item(value) for value in getattr(m, name)]
        if field.has_presence:
            return lambda m: item(getattr(m, name)) if m.HasField(name) else None
        return lambda m: item(getattr(m, name))

    def _item(self, field: Any) -> Callable[[Any], Any]:
        if field.message_type is not None:
            name = field.message_type.full_name
            if name in _WRAPPERS:
                return _value_of
            return _read_timestamp if name == _TIMESTAMP else self.read
        if field.enum_type is not None:
            names = {n: value.name for n, value in field.enum_type.values_by_number.items()}
            return lambda number: names.get(number) or str(number)
        return lambda value: value

    def _is_map(self, field: Any) -> bool:
        name = field.full_name
        if name not in self._maps:
            kind = field.message_type
            self._maps[name] = kind is not None and bool(kind.GetOptions().map_entry)
        return self._maps[name]

    def _set(self, message: Any, field: Any, value: Any) -> None:
        there = getattr(message, field.name)
        if self._is_map(field):
            item = field.message_type.fields_by_name["value"]
            for key, part in _require(field, value, dict).items():
                key = _scalar(field.message_type.fields_by_name["key"], key)
                if item.message_type is None:
                    there[key] = _scalar(item, part)
                else:
                    self._fill_part(there[key], part)
        elif field.is_repeated:
            for part in _require(field, value, list):
                if field.message_type is None:
                    there.append(_scalar(field, part))
                else:
                    self._fill_part(there.add(), part)
        elif value is None and field.has_presence:
            return
        elif field.message_type is not None:
            there.SetInParent()
            self._fill_part(there, value)
        else:
            setattr(message, field.name, _scalar(field, value))

    def _fill_part(self, message: Any, value: Any) -> None:
        name = message.DESCRIPTOR.full_name
        if name in _WRAPPERS:
            message.value = _scalar(message.DESCRIPTOR.fields_by_name["value"], value)
        elif name == _TIMESTAMP:
            _write_timestamp(message, value)
        else:
            self.fill(message, value)


# by FieldDescriptor.TYPE_DOUBLE, FLOAT, BOOL, STRING, BYTES
_KINDS: dict[int, tuple[type, ...]] = {
    1: (float, int),
    2: (float, int),
    8: (bool,),
    9: (str,),
    12: (bytes,),
}


def _scalar(field: Any, value: Any) -> Any:
    """Return a value as a field takes it: Protobuf itself takes numbers for booleans, and bytes for
    text.
    """
    if field.enum_type is not None:
        by_name = field.enum_type.values_by_name
        text = _require(field, value, str)
        if text not in by_name and not text.isdecimal():
            raise ValueError(f"field '{field.name}' is {text!r:.60}, none of {', '.join(by_name)}")
        return by_name[text].number if text in by_name else int(text)
    _require(field, value, *_KINDS.get(field.type, (int,)))
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"field '{field.name}' is {value!r:.60}, beyond 64 bits")
    return value


def _require(field: Any, value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise ValueError(
            f"field '{field.name}' is {value!r:.60}, not {' or '.join(kind.__name__ for kind in kinds)}"
        )
    return value


def _value_of(message: Any) -> Any:
    return message.value


def _read_timestamp(message: Any) -> datetime:
    if message.nanos % 1000:
        raise ValueError(f"a time with {message.nanos} nanoseconds; a datetime has microseconds")
    return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def _write_timestamp(message: Any, value: Any) -> None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"{value!r:.60} is no datetime with a zone, which a Timestamp is made of")
    since = value - _EPOCH
    message.seconds = since // timedelta(seconds=1)
    message.nanos = since % timedelta(seconds=1) // timedelta(microseconds=1) * 1000
