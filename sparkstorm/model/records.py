"""JSON form of the control plane's records: strict and versioned; an error names path and field.

Laws: decode(encode(record)) == record; an unknown, missing or mistyped field raises StoreInconsistentError that names
the path and the field; output is deterministic (sorted keys), so equal records have equal bytes and equal signatures.
"""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from functools import cache
from typing import TypeVar, Union, cast, get_args, get_origin

from sparkstorm.errors import StoreInconsistentError
from sparkstorm.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.model.status import JsonValue

FORMAT_VERSION = 1
_VERSION_FIELD = "format"
_KIND_FIELD = "kind_of_record"
_DEPTH_LIMIT = 64

RecordT = TypeVar("RecordT")
_Reader = Callable[[object, str], object]
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
    if not isinstance(fields, dict):
        raise StoreInconsistentError(f"{path}: expected a JSON object, got {_describe(fields)}")
    _check_envelope(kind, fields, path)
    record = _reader_of(cast(Hashable, kind))(fields, f"{path}: ")
    assert isinstance(record, kind)
    return record


def _check_envelope(kind: type[object], fields: dict[str, object], path: str) -> None:
    version = fields.pop(_VERSION_FIELD, None)
    if version != FORMAT_VERSION:
        raise StoreInconsistentError(
            f"{path}: field '{_VERSION_FIELD}' is {_describe(version)}; this release reads {FORMAT_VERSION}"
        )
    name = fields.pop(_KIND_FIELD, None)
    if name != kind.__name__:
        raise StoreInconsistentError(f"{path}: expected a {kind.__name__}, got {_describe(name)}")


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _describe(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:60]!r}"


def _mistyped(where: str, wanted: str, value: object) -> StoreInconsistentError:
    return StoreInconsistentError(f"{where} should be {wanted}, got {_describe(value)}")


def _is_free_json(hint: object) -> bool:
    # By shape: resolving a record's hints unrolls JsonValue's inner references, so it is not identical any more.
    return get_origin(hint) in (Union, types.UnionType) and len(get_args(hint)) == len(get_args(JsonValue))


# ---- reading -------------------------------------------------------------------------------------------------------


@cache
def _reader_of(hint: Hashable) -> _Reader:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record_reader(hint)
    if hint in (ExecutorId, WorkerSlot):
        return _text_reader(hint)
    if _is_free_json(hint):
        return _read_json
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum_reader(hint)
    if isinstance(hint, type) and hint in (str, int, float, bool):
        return _scalar_reader(hint)
    return _generic_reader(hint)


def _generic_reader(hint: object) -> _Reader:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType) and len(arguments) == 2 and arguments[1] is type(None):
        return _optional_reader(_reader_of(arguments[0]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _tuple_reader(_reader_of(arguments[0]))
    if origin is Mapping:
        return _mapping_reader(_key_reader(arguments[0]), _reader_of(arguments[1]))
    raise TypeError(f"records cannot carry {hint}")


def _record_reader(kind: type) -> _Reader:
    hints = typing.get_type_hints(kind)
    readers = {field.name: _reader_of(hints[field.name]) for field in dataclasses.fields(kind)}

    def read(value: object, where: str) -> object:
        if not isinstance(value, dict):
            raise _mistyped(where.rstrip(": "), "an object", value)
        unknown, missing = sorted(value.keys() - readers.keys()), sorted(readers.keys() - value.keys())
        if unknown or missing:
            problem = f"unknown field '{unknown[0]}'" if unknown else f"field '{missing[0]}' is missing"
            raise StoreInconsistentError(f"{where}{problem}")
        return kind(**{name: reader(value[name], f"{where}field '{name}'") for name, reader in readers.items()})

    return read


def _text_reader(kind: type[ExecutorId] | type[WorkerSlot]) -> _Reader:
    def read(value: object, where: str) -> object:
        if not isinstance(value, str):
            raise _mistyped(where, "text", value)
        try:
            return kind.parse(value)
        except ValueError as error:
            raise StoreInconsistentError(f"{where}: {error}") from error

    return read


def _read_json(value: object, where: str) -> object:
    _check_json(value, where, 0)
    return value


def _check_json(value: object, where: str, depth: int) -> None:
    if depth > _DEPTH_LIMIT:
        raise StoreInconsistentError(f"{where} is nested deeper than {_DEPTH_LIMIT} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise _mistyped(where, "an object with text keys", key)
            _check_json(item, where, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_json(item, where, depth + 1)
    elif not (value is None or isinstance(value, (int, str)) or (isinstance(value, float) and math.isfinite(value))):
        raise _mistyped(where, "a JSON value", value)


def _enum_reader(kind: type[StrEnum]) -> _Reader:
    def read(value: object, where: str) -> object:
        try:
            return kind(value)  # type: ignore[arg-type]  # any value may be looked up; strangers raise ValueError
        except ValueError as error:
            raise _mistyped(where, "one of " + ", ".join(kind), value) from error

    return read


def _scalar_reader(kind: type) -> _Reader:
    accepted: tuple[type, ...] = (int, float) if kind is float else (kind,)

    def read(value: object, where: str) -> object:
        # bool is an int to Python, but True is no port.
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise _mistyped(where, f"a {kind.__name__}", value)
        return kind(value)

    return read


def _optional_reader(reader: _Reader) -> _Reader:
    return lambda value, where: None if value is None else reader(value, where)


def _tuple_reader(reader: _Reader) -> _Reader:
    def read(value: object, where: str) -> object:
        if not isinstance(value, list):
            raise _mistyped(where, "a list", value)
        return tuple(reader(item, where) for item in value)

    return read


def _key_reader(hint: object) -> _Reader:
    if hint is int:
        return _read_int_key
    return _reader_of(hint)


def _read_int_key(value: object, where: str) -> object:
    if not isinstance(value, str) or not (value.isdecimal() and value.isascii()):
        raise _mistyped(where, "keyed by whole numbers", value)
    return int(value)


def _mapping_reader(read_key: _Reader, read_value: _Reader) -> _Reader:
    def read(value: object, where: str) -> object:
        if not isinstance(value, dict):
            raise _mistyped(where, "an object", value)
        return {read_key(key, where): read_value(item, where) for key, item in value.items()}

    return read


# ---- writing -------------------------------------------------------------------------------------------------------


@cache
def _writer_of(hint: Hashable) -> _Writer:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record_writer(hint)
    if hint in (ExecutorId, WorkerSlot) or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return str
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Mapping:
        return _mapping_writer(_writer_of(arguments[1]))
    if origin is tuple:
        return _tuple_writer(_writer_of(arguments[0]))
    if origin in (Union, types.UnionType) and not _is_free_json(hint):
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
