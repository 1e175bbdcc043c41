"""Formats of values that a Schema Registry describes: Avro by fastavro, Protobuf by descriptors, and
JSON Schema.

Confluent's own (de)serializers are left out: that of Protobuf wants a compiled class, and none of
them tells a registry that is away from bytes that are damaged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from importlib import import_module
from io import BytesIO
from typing import Any, NamedTuple
from uuid import UUID

from sparkstorm.connectors.kafka.messages import Messages
from sparkstorm.connectors.kafka.typed import Hint

HEAD_BYTES = 5
Record = dict[str, Any]
Named = Sequence[tuple[str, str]]
"""Schemas that another refers to: name and text, those that others need first."""


class Format(NamedTuple):
    """A schema at work. `fields` are those of its record, None where it leaves them open; `hints`
    are what it says of columns of Debezium's rows.
    """

    name: str
    fields: Sequence[str] | None
    decode: Callable[[bytes], Any]
    encode: Callable[[Record], bytes]
    hints: Mapping[str, Hint] = {}


def make_format(kind: str, text: str, named: Named, reader_text: str | None = None) -> Format:
    """Return the format of a schema; any exception for one that is none."""
    if reader_text is not None and kind != "AVRO":
        raise ValueError(f"it is {kind}, and reader_schema is Avro's")
    if kind == "AVRO":
        return _avro(text, named, reader_text)
    if kind == "PROTOBUF":
        return _protobuf(text, named)
    if kind == "JSON":
        return _json(text, named)
    raise ValueError(f"it is {kind:.40}; there are AVRO, PROTOBUF and JSON")


def _avro(text: str, named: Named, reader_text: str | None) -> Format:
    import fastavro
    from fastavro.validation import validate

    known: dict[str, Any] = {}
    for _, referred in named:
        fastavro.parse_schema(json.loads(referred), named_schemas=known)
    writer: Any = fastavro.parse_schema(json.loads(text), named_schemas=known)
    reader: Any = None if reader_text is None else fastavro.parse_schema(json.loads(reader_text))
    if _is_recursive(writer, known, (), set()):
        raise ValueError("a type of it contains itself, which fastavro reads without a bound")
    seen = writer if reader is None else reader
    is_record = isinstance(seen, dict) and seen["type"] == "record"

    def decode(value: bytes) -> Any:
        stream = BytesIO(value)
        stream.seek(HEAD_BYTES)
        record = fastavro.schemaless_reader(stream, writer, reader)
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes are left behind the record")
        return record

    checks = _checks(writer)

    def encode(record: Record) -> bytes:
        if checks is None:
            validate(record, writer, raise_errors=True)
        else:
            _check(record, checks)
        stream = BytesIO()
        fastavro.schemaless_writer(stream, writer, record)
        return stream.getvalue()

    fields = [field["name"] for field in seen["fields"]] if is_record else None
    name = str(writer.get("name", "")) if isinstance(writer, dict) else ""
    return Format(name, fields, decode, encode, _avro_hints(seen, known))


_KINDS: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float, int),
    "double": (float, int),
    "string": (str,),
    "bytes": (bytes,),
    "int-date": (date,),
    "long-timestamp-millis": (datetime,),
    "long-timestamp-micros": (datetime,),
    "bytes-decimal": (Decimal,),
    "string-uuid": (UUID,),
}


def _checks(schema: Any) -> list[tuple[str, bool, bool, frozenset[type]]] | None:
    """Return name, default, 32 bits and types of each field of a flat record; None for others, and
    for one with a union of several types, of which a value needs to fit only one.

    fastavro writes a missing boolean as false, and its `validate` takes three times as long as the
    writing of a record of seven fields: 7,100 and 25,000 a second.
    """
    if not isinstance(schema, dict) or schema["type"] != "record":
        return None
    checks = []
    for field in schema["fields"]:
        kinds: set[type] = set()
        if len([kind for kind in _parts(field["type"]) if kind != "null"]) > 1:
            return None
        for kind in _parts(field["type"]):
            name = kind if isinstance(kind, str) else f"{kind['type']}-{kind.get('logicalType')}"
            if name not in _KINDS:
                return None
            kinds.update(_KINDS[name])
        checks.append(
            (field["name"], "default" in field, "int" in _parts(field["type"]), frozenset(kinds))
        )
    return checks


def _check(record: Record, checks: Sequence[tuple[str, bool, bool, frozenset[type]]]) -> None:
    for name, has_default, is_small, kinds in checks:
        value = record.get(name)
        if type(value) not in kinds and not (has_default and name not in record):
            wanted = " or ".join(sorted(kind.__name__ for kind in kinds))
            raise ValueError(f"field '{name}' is {value!r:.60}, not {wanted}")
        if is_small and type(value) is int and not -(1 << 31) <= value < 1 << 31:
            raise ValueError(f"field '{name}' is {value}, beyond 32 bits")


def _is_recursive(
    schema: Any, known: Mapping[str, Any], above: tuple[str, ...], done: set[str]
) -> bool:
    """Return whether a type contains itself: fastavro's reader, in C, recurses as deep as hostile
    bytes say.
    """
    if isinstance(schema, str):
        if schema in above or schema in done or schema not in known:
            return schema in above
        schema = known[schema]
    if isinstance(schema, list):
        return any(_is_recursive(part, known, above, done) for part in schema)
    if schema["type"] != "record":
        parts = [schema[part] for part in ("items", "values") if part in schema]
        return any(_is_recursive(part, known, above, done) for part in parts)
    below = (*above, schema["name"])
    found = any(_is_recursive(f["type"], known, below, done) for f in schema["fields"])
    done.add(schema["name"])
    return found


def _avro_hints(schema: Any, known: Mapping[str, Any]) -> dict[str, Hint]:
    """Return what Kafka Connect's names say of the columns of an envelope's rows."""
    if not isinstance(schema, dict) or schema["type"] != "record":
        return {}
    hints: dict[str, Hint] = {}
    for field in schema["fields"]:
        if field["name"] != "after":
            continue
        for part in _parts(field["type"]):
            row = known.get(part, part) if isinstance(part, str) else part
            for column in row.get("fields", ()) if isinstance(row, dict) else ():
                for kind in _parts(column["type"]):
                    name = kind if isinstance(kind, str) else kind.get("connect.name", "")
                    if name != "null":
                        hints[column["name"]] = Hint(str(name))
    return hints


def _parts(schema: Any) -> Sequence[Any]:
    return schema if isinstance(schema, list) else [schema]


def _json(text: str, named: Named) -> Format:
    from jsonschema.validators import Draft7Validator, validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    schema = json.loads(text)
    kind = validator_for(schema, default=Draft7Validator)
    kind.check_schema(schema)
    others = [
        (name, Resource.from_contents(json.loads(other), default_specification=DRAFT7))
        for name, other in named
    ]
    # by default an unknown $ref would be fetched from the network
    validator = kind(schema, registry=Registry().with_resources(others))
    fields = list(schema["properties"]) if "properties" in schema else None

    def encode(record: Record) -> bytes:
        plain = record if set(map(type, record.values())) <= _SIMPLE else _plain(record)
        if (error := next(validator.iter_errors(plain), None)) is not None:
            raise ValueError(f"{error.json_path}: {error.message:.200}")
        return json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()

    return Format(
        str(schema.get("title", "")), fields, lambda v: json.loads(v[HEAD_BYTES:]), encode
    )


_SIMPLE = {str, int, float, bool, type(None)}


def _plain(value: Any) -> Any:
    """Return a value as JSON of other languages has it: what JSON lacks is text, bytes in base64."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal | UUID) else value


_GOOGLE = (
    "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct",
    "timestamp", "type", "wrappers",
)  # fmt: skip
_BUILT_IN = {f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2" for name in _GOOGLE}
_MOST_INDEX_BYTES = 64


def _protobuf(text: str, named: Named) -> Format:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    added: set[str] = set()
    for name, content in (*named, ("value.proto", text)):
        file = FileDescriptorProto.FromString(base64.b64decode(content, validate=True))
        file.name = name
        for needed in file.dependency:
            _add_built_in(pool, needed, added)
        pool.Add(file)
        added.add(name)
    by_name = pool.FindFileByName("value.proto").message_types_by_name
    top = [by_name[message.name] for message in file.message_type]
    first = _message_at(top, [0])
    kinds = {b"\0": GetMessageClass(first)}
    messages = Messages()

    def decode(value: bytes) -> Any:
        path, end = _indexes(value)
        kind = kinds.get(place := value[HEAD_BYTES:end])
        if kind is None:
            kind = kinds[place] = GetMessageClass(_message_at(top, path))
        return messages.read(kind.FromString(value[end:]))

    def encode(record: Record) -> bytes:
        message = kinds[b"\0"]()
        messages.fill(message, record)
        return b"\0" + bytes(message.SerializeToString())

    return Format(first.full_name, list(first.fields_by_name), decode, encode)


def _add_built_in(pool: Any, name: str, added: set[str]) -> None:
    if name in added or name not in _BUILT_IN:  # the pool names one that is nowhere
        return
    added.add(name)
    file = import_module(_BUILT_IN[name]).DESCRIPTOR
    for needed in file.dependencies:
        _add_built_in(pool, needed.name, added)
    pool.AddSerializedFile(file.serialized_pb)


def _indexes(value: bytes) -> tuple[list[int], int]:
    """Return the indexes of a value's message, from the file's messages inwards, and where they end:
    zigzag varints, their number first, 0 for [0].
    """
    numbers: list[int] = []
    number = shift = 0
    for place, byte in enumerate(value[HEAD_BYTES : HEAD_BYTES + _MOST_INDEX_BYTES], HEAD_BYTES):
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number >> 1 ^ -(number & 1))
            number = shift = 0
            if len(numbers) > numbers[0]:
                return numbers[1:] or [0], place + 1
    raise ValueError("the indexes of its message have no end")


def _message_at(top: Sequence[Any], path: Sequence[int]) -> Any:
    kinds = top
    found: Any = None
    for index in path:
        if not 0 <= index < len(kinds):
            raise ValueError(f"its schema has no message at {list(path)}")
        found = kinds[index]
        kinds = found.nested_types
    return found
