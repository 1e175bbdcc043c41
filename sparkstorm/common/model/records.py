"""JSON form of the control plane's records: strict, versioned; errors name the path and the field.

Laws: decode(encode(record)) == record; an unknown, missing or mistyped field raises
StoreInconsistentError that names the path and the field; output is deterministic (sorted keys), so
equal records have equal bytes and equal signatures.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from functools import cache
from typing import TypeVar, Union, cast, get_args, get_origin

from sparkstorm.common.errors import StoreInconsistentError, show
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.status import JsonValue
from sparkstorm.common.model.strict import (
    UnfitValueError,
    expected,
    is_free_json,
    named_errors,
    read_as,
)

FORMAT_VERSION = 1
_VERSION_FIELD = "format"
_KIND_FIELD = "kind_of_record"

RecordT = TypeVar("RecordT")
_Writer = Callable[[object], JsonValue]


def encode_record(record: object) -> bytes:
    """Write a record as canonical JSON with its format version and kind."""
    fields = _writer_of(cast(Hashable, type(record)))(record)
    assert isinstance(fields, dict)
    fields[_VERSION_FIELD] = FORMAT_VERSION
    fields[_KIND_FIELD] = type(record).__name__
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def decode_record(kind: type[RecordT], data: bytes, path: str) -> RecordT:
    """Read a record of that kind back; raise StoreInconsistentError naming path and field."""
    try:
        fields = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise StoreInconsistentError(f"{path}: not JSON ({error})") from error
    with named_errors(StoreInconsistentError, prefix=f"{path}: "):
        if not isinstance(fields, dict):
            raise expected("an object", fields)
        _check_envelope(kind, fields)
        return read_as(kind, fields, needs_all=True)


def _check_envelope(kind: type[object], fields: dict[str, object]) -> None:
    for name, wanted in ((_VERSION_FIELD, FORMAT_VERSION), (_KIND_FIELD, kind.__name__)):
        actual = fields.pop(name, None)
        if actual != wanted or type(actual) is not type(wanted):
            raise UnfitValueError(f"expected {wanted}, got {show(actual)}", name)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


# -- writing ---------------------------------------------------------------------------------------


@cache
def _writer_of(hint: Hashable) -> _Writer:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record_writer(hint)
    if hint in (ExecutorId, WorkerSlot) or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return str
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Mapping:
        return _mapping_writer(_writer_of(arguments[1]))
    if origin is tuple:
        return _tuple_writer(_writer_of(arguments[0]))
    if origin in (Union, types.UnionType) and not is_free_json(hint):
        return _optional_writer(_writer_of(arguments[0]))
    return _as_is


def _as_is(value: object) -> JsonValue:
    return value  # type: ignore[return-value]  # a scalar or free JSON; json.dumps refuses anything else


def _record_writer(kind: type) -> _Writer:
    hints = typing.get_type_hints(kind)
    writers = {field.name: _writer_of(hints[field.name]) for field in dataclasses.fields(kind)}
    return lambda record: {name: writer(getattr(record, name)) for name, writer in writers.items()}


def _mapping_writer(writer: _Writer) -> _Writer:
    def write(value: object) -> JsonValue:
        assert isinstance(value, Mapping)
        return {str(key): writer(item) for key, item in value.items()}

    return write


def _tuple_writer(writer: _Writer) -> _Writer:
    def write(value: object) -> JsonValue:
        assert isinstance(value, tuple)
        return [writer(item) for item in value]

    return write


def _optional_writer(writer: _Writer) -> _Writer:
    return lambda value: None if value is None else writer(value)
