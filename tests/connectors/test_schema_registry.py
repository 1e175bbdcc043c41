"""Values by a Schema Registry: Avro, Protobuf and JSON Schema there and back, Confluent's own
(de)serializers at the other end, evolution, damaged bytes, and a registry that is away.

The registry is a server on this host that speaks its REST; Kafka's part is in test_kafka.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import cloudpickle
import fastavro
import fastavro.validation
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.connectors import KafkaSink, KafkaSource, SchemaRegistry
from sparkstorm.connectors.kafka.formats import make_format
from sparkstorm.connectors.kafka.schemas import RegistryReader, RegistryWriter
from sparkstorm.connectors.patience import Patience
from tests.connectors.registry import Registry, serve

CONTEXT = SerializationContext("orders", MessageField.VALUE)
NOON = datetime(2026, 11, 29, 12, 0, 0, 250_000, UTC)


@pytest.fixture(scope="module")
def server() -> Iterator[Registry]:
    with serve() as registry:
        yield registry


@pytest.fixture
def registry(server: Registry) -> Registry:
    server.__dict__.update(Registry().__dict__ | {"url": server.url})
    return server


class Clock:
    """Patience of a source whose time a test sets."""

    def __init__(self) -> None:
        self.ms = 0
        self.said: list[str] = []
        self.patience = Patience("Schema Registry at X", lambda: self.ms, self.said.append)


def reader(
    registry: Registry, fields: dict[str, str], values: Sequence[bytes | None] = (), **options: Any
) -> RegistryReader:
    made = RegistryReader(SchemaRegistry(registry.url), fields, Clock().patience, **options)
    assert made.load(values)
    return made


def writer(
    registry: Registry, schema: str | None, kind: str = "avro", subject: str = "topic"
) -> RegistryWriter:
    made = RegistryWriter(SchemaRegistry(registry.url), "orders", schema, kind, subject)
    made.load()
    return made


class OneClient(SchemaRegistry):
    """A registry with one client for many readers: making one reads the host's certificates."""

    client: Any = None

    def connect(self) -> Any:
        self.client = self.client or super().connect()
        return self.client


@pytest.fixture(scope="module")
def place(server: Registry) -> SchemaRegistry:
    return OneClient(server.url)


def there_and_back(
    place: SchemaRegistry, text: str, kind: str, fields: dict[str, str], row: dict[str, Any]
) -> dict[str, Any]:
    there = RegistryWriter(place, "orders", text, kind, "topic")
    there.load()
    value = there.encode(row)
    back = RegistryReader(place, fields, Clock().patience)
    assert back.load([value])
    made = back.parse(value)
    Codec().normalise(list(made))  # a tuple carries it
    return dict(zip(fields, made, strict=True))


def record(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}


TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 30), timezones=st.just(UTC))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
DECIMALS = st.decimals(-(10**8) + 1, 10**8 - 1, places=2)
NESTED = {"type": "record", "name": "Part", "fields": [{"name": "n", "type": "long"}]}
# Avro's type, the declared one, and values
AVRO: list[tuple[Any, str, st.SearchStrategy[Any]]] = [
    ("boolean", "boolean", st.booleans()),
    ("int", "int", st.integers(-(1 << 31), (1 << 31) - 1)),
    ("long", "bigint", LONGS),
    ("float", "float", st.floats(width=32, allow_nan=False)),
    ("double", "double", st.floats(allow_nan=False)),
    ("string", "string", TEXT),
    ("bytes", "binary", st.binary(max_size=20)),
    ({"type": "fixed", "name": "F", "size": 4}, "binary", st.binary(min_size=4, max_size=4)),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string", st.sampled_from("AB")),
    ({"type": "array", "items": "long"}, "array<bigint>", st.lists(LONGS, max_size=4)),
    (
        {"type": "map", "values": ["null", "string"]},
        "map<string,string>",
        st.dictionaries(TEXT, st.none() | TEXT, max_size=3),
    ),
    (NESTED, "struct<n:bigint>", st.fixed_dictionaries({"n": LONGS})),
    (["null", "long"], "bigint", st.none() | LONGS),
    (["null", "string", "long"], "any", st.none() | TEXT | LONGS),
    ({"type": "int", "logicalType": "date"}, "date", st.dates()),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        "timestamp",
        TIMES.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    ),
    ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", TIMES),
    ({"type": "string", "logicalType": "uuid"}, "any", st.uuids()),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        "decimal(10,2)",
        DECIMALS,
    ),
]


@pytest.mark.slow
@given(st.data())
def test_avro_values_of_any_schema_come_back_unchanged(
    server: Registry, place: SchemaRegistry, data: st.DataObject
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(AVRO), min_size=1, max_size=5, unique_by=repr))
    names = [f"f{n}" for n in range(len(kinds))]
    schema = record(**{name: kind for name, (kind, _, _) in zip(names, kinds, strict=True)})
    row = {name: data.draw(values) for name, (_, _, values) in zip(names, kinds, strict=True)}
    fields = {name: kind for name, (_, kind, _) in zip(names, kinds, strict=True)}
    found = there_and_back(place, json.dumps(schema), "avro", fields, row)
    assert found == row and list(map(type, found.values())) == list(map(type, row.values()))


def file_of(message: str, fields: list[tuple[str, Any]], package: str = "shop") -> tuple[str, str]:
    """Return the text of a .proto file and its descriptor, as a registry compiles it."""
    proto = descriptor_pb2.FileDescriptorProto(name="x", package=package, syntax="proto3")
    proto.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    enum = proto.enum_type.add(name="Color")
    enum.value.add(name="RED", number=0)
    enum.value.add(name="BLUE", number=2)
    made = proto.message_type.add(name=message)
    part = made.nested_type.add(name="Part")
    part.field.add(name="n", number=1, type=3, label=1)
    entry = made.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=11, label=1, type_name=f".shop.{message}.Part")
    lines = []
    for number, (name, kind) in enumerate(fields, 1):
        field = made.field.add(name=name, number=number, **kind)
        if field.proto3_optional:
            field.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{name}")
        lines.append(f"{kind} {name} = {number};")
    text = f'syntax = "proto3"; package {package};\nmessage {message} {{ {" ".join(lines)} }}'
    return text, base64.b64encode(proto.SerializeToString()).decode()


def scalar(kind: int, label: int = 1, **more: Any) -> dict[str, Any]:
    return {"type": kind, "label": label, **more}


PROTOBUF: list[tuple[dict[str, Any], str, st.SearchStrategy[Any]]] = [
    (scalar(8), "boolean", st.booleans()),
    (scalar(3), "bigint", LONGS),
    (scalar(4), "any", st.integers(0, (1 << 64) - 1)),
    (scalar(18), "bigint", LONGS),
    (scalar(1), "double", st.floats(allow_nan=False)),
    (scalar(2), "float", st.floats(width=32, allow_nan=False)),
    (scalar(9), "string", TEXT),
    (scalar(12), "binary", st.binary(max_size=20)),
    (scalar(3, proto3_optional=True), "bigint", st.none() | LONGS),
    (scalar(3, 3), "array<bigint>", st.lists(LONGS, max_size=4)),
    (scalar(14, type_name=".shop.Color"), "string", st.sampled_from(["RED", "BLUE", "7"])),
    (
        scalar(14, 3, type_name=".shop.Color"),
        "array<string>",
        st.lists(st.just("BLUE"), max_size=2),
    ),
    (
        scalar(11, type_name=".shop.Order.Part"),
        "struct<n:bigint>",
        st.none() | st.fixed_dictionaries({"n": LONGS}),
    ),
    (
        scalar(11, 3, type_name=".shop.Order.LabelsEntry"),
        "map<string,struct<n:bigint>>",
        st.dictionaries(TEXT, st.fixed_dictionaries({"n": LONGS}), max_size=3),
    ),
    (scalar(11, type_name=".google.protobuf.Timestamp"), "timestamp", st.none() | TIMES),
    (scalar(11, type_name=".google.protobuf.Int64Value"), "bigint", st.none() | LONGS),
    (scalar(11, type_name=".google.protobuf.StringValue"), "string", st.none() | TEXT),
]


@pytest.mark.slow
@given(st.data())
def test_protobuf_values_of_any_schema_come_back_unchanged(
    server: Registry, place: SchemaRegistry, data: st.DataObject
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(PROTOBUF), min_size=1, max_size=5))
    # the map's entry type belongs to one field
    kinds = [k for n, k in enumerate(kinds) if "Entry" not in str(k[0]) or n == 0]
    names = ["labels" if "Entry" in str(kind[0]) else f"f{n}" for n, kind in enumerate(kinds)]
    text, compiled = file_of("Order", [(n, k[0]) for n, k in zip(names, kinds, strict=True)])
    server.compiled[text] = compiled
    row = {name: data.draw(kind[2]) for name, kind in zip(names, kinds, strict=True)}
    fields = {name: kind[1] for name, kind in zip(names, kinds, strict=True)}
    found = there_and_back(place, text, "protobuf", fields, row)
    assert found == row and list(map(type, found.values())) == list(map(type, row.values()))


JSON: list[tuple[dict[str, Any], str, st.SearchStrategy[Any]]] = [
    ({"type": "boolean"}, "boolean", st.booleans()),
    ({"type": "integer"}, "bigint", LONGS),
    ({"type": "number"}, "double", st.floats(allow_nan=False, allow_infinity=False)),
    ({"type": ["string", "null"]}, "string", st.none() | TEXT),
    ({"type": "string"}, "binary", st.binary(max_size=20)),
    ({"type": "string"}, "date", st.dates()),
    ({"type": "string"}, "timestamp", TIMES),
    ({"type": "string"}, "decimal(10,2)", DECIMALS),
    ({"type": "array", "items": {"type": "integer"}}, "array<bigint>", st.lists(LONGS, max_size=4)),
    (
        {"type": "object"},
        "any",
        st.dictionaries(TEXT.filter(lambda t: t[:1] != "$"), LONGS, max_size=3),
    ),
]


@pytest.mark.slow
@given(st.data())
def test_json_values_of_any_schema_come_back_unchanged(
    server: Registry, place: SchemaRegistry, data: st.DataObject
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(JSON), min_size=1, max_size=5))
    names = [f"f{n}" for n in range(len(kinds))]
    row = {name: data.draw(kind[2]) for name, kind in zip(names, kinds, strict=True)}
    fields = {name: kind[1] for name, kind in zip(names, kinds, strict=True)}
    properties = {name: kind[0] for name, kind in zip(names, kinds, strict=True)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    assert there_and_back(place, json.dumps(schema), "json", fields, row) == row


ORDER = record(
    id="long",
    user=["null", "string"],
    total={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    at={"type": "long", "logicalType": "timestamp-millis"},
    parts={"type": "array", "items": NESTED},
)
FIELDS = {
    "id": "bigint",
    "user": "string",
    "total": "decimal(10,2)",
    "at": "bigint",
    "parts": "array<struct<n:bigint>>",
}
ROW = {
    "id": (1 << 62) + 1,
    "user": None,
    "total": Decimal("1.10"),
    "at": NOON,
    "parts": [{"n": 1}, {"n": -1}],
}
VALUES = (ROW["id"], None, Decimal("1.10"), 1_795_953_600_250, ROW["parts"])


def test_confluents_own_avro_is_read_and_reads_ours(registry: Registry) -> None:
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

    client = SchemaRegistryClient({"url": registry.url})
    value = AvroSerializer(client, json.dumps(ORDER))(ROW, CONTEXT)
    assert reader(registry, FIELDS, [value]).parse(value) == VALUES
    assert registry.subjects == {"orders-value": [1]}
    # the latest of the topic's subject; fields that the schema has not are left out
    ours = writer(registry, None).encode({**ROW, "key": "k", "offset": 1})
    assert ours == value
    assert AvroDeserializer(client)(ours, CONTEXT) == ROW


def test_confluents_own_protobuf_is_read_and_reads_ours(registry: Registry) -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from google.protobuf.struct_pb2 import Value

    client = SchemaRegistryClient({"url": registry.url})
    conf = {"use.deprecated.format": False}
    stamp = timestamp_pb2.Timestamp(seconds=5, nanos=6000)
    value = ProtobufSerializer(timestamp_pb2.Timestamp, client, conf)(stamp, CONTEXT)
    fields = {"seconds": "bigint", "nanos": "int"}
    assert value is not None and reader(registry, fields, [value]).parse(value) == (5, 6000)
    # the third message of a file, and one inside of another
    wrapped = wrappers_pb2.Int64Value(value=1 << 60)
    value = ProtobufSerializer(wrappers_pb2.Int64Value, client, conf)(wrapped, CONTEXT)
    assert value is not None and value[5:7] == b"\x02\x04"
    assert reader(registry, {"value": "bigint"}, [value]).parse(value) == (1 << 60,)
    text, registry.compiled[text] = file_of("Order", [("user", scalar(9)), ("n", scalar(3))])
    ours = writer(registry, text, "protobuf", "record").encode({"user": "ann", "n": 7})
    assert "shop.Order" in registry.subjects
    inner = ours[:5] + b"\x04\x00\x00" + b"\x08\x09"  # [0, 0]: Order.Part
    nested = reader(registry, {"n": "bigint"}, [inner])
    assert nested.parse(inner) == (9,)
    message = ProtobufDeserializer(Value, conf, client)(ours[:5] + b"\0", CONTEXT)
    assert message == Value()


def test_confluents_own_json_schema_is_read_and_reads_ours(registry: Registry) -> None:
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

    schema = {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "day": {"type": "string", "maxLength": 10}},
        "required": ["id"],
    }
    client = SchemaRegistryClient({"url": registry.url})
    value = JSONSerializer(json.dumps(schema), client)({"id": 1, "day": "2026-11-29"}, CONTEXT)
    fields = {"id": "bigint", "day": "date"}
    assert reader(registry, fields, [value]).parse(value) == (1, date(2026, 11, 29))
    made = writer(registry, json.dumps(schema), "json", "topic-record")
    assert "orders-Order" in registry.subjects
    ours = made.encode({"id": 2, "day": date(2026, 11, 30)})
    assert JSONDeserializer(json.dumps(schema))(ours, CONTEXT) == {"id": 2, "day": "2026-11-30"}
    with pytest.raises(ValueError, match=r"does not fit the schema Order: \$\.day: .* too long"):
        made.encode({"id": 2, "day": NOON})
    with pytest.raises(ValueError, match="'id' is a required property"):
        made.encode({"day": "x"})


def test_a_schema_that_others_are_part_of_is_read(registry: Registry) -> None:
    registry.add(json.dumps({**NESTED, "namespace": "shop"}), subject="part")
    refs = [{"name": "shop.Part", "subject": "part", "version": 1}]
    number = registry.add(
        json.dumps(record(part="Part", more={"type": "array", "items": "Part"})), references=refs
    )
    value = b"\0" + number.to_bytes(4, "big") + b"\x0e\x02\x10\x00"
    found = reader(registry, {"part": "any", "more": "any"}, [value])
    assert found.parse(value) == ({"n": 7}, [{"n": 8}])


def test_a_new_field_is_ignored_and_a_readers_schema_fills_old_records(registry: Registry) -> None:
    old, new = record(id="int"), record(id="int", user="string", extra="long")
    values = [
        writer(registry, json.dumps(schema)).encode({"id": 7, "user": "ann", "extra": 1})
        for schema in (old, new)
    ]
    result = [reader(registry, {"id": "bigint"}, values).parse(value) for value in values]
    assert result == [(7,), (7,)]
    both = {"id": "bigint", "user": "string"}
    found = reader(registry, both, values)
    assert found.parse(values[1]) == (7, "ann")
    with pytest.raises(
        ValueError,
        match=r"AVRO schema 1 \(shop.Order\) has no field 'user', which the source declares; it has id",
    ):
        found.parse(values[0])
    wanted = record(id="long")
    wanted["fields"].append({"name": "user", "type": "string", "default": "nobody"})
    found = reader(registry, both, values, reader_schema=json.dumps(wanted))
    assert [found.parse(value) for value in values] == [(7, "nobody"), (7, "ann")]


def damaged(value: bytes) -> Iterator[bytes]:
    for place in range(len(value)):
        yield value[:place]
        for byte in (0, 1, 0x7F, 0x80, 0xFF, value[place] ^ 1, value[place] ^ 0x80):
            yield value[:place] + bytes([byte]) + value[place + 1 :]
            yield value[:place] + bytes([byte]) + value[place:]
    yield value + b"\0"


def test_bytes_that_are_damaged_anywhere_are_a_row_or_a_sentence(registry: Registry) -> None:
    text, registry.compiled[text] = file_of(
        "Order",
        [
            ("user", scalar(9)),
            ("n", scalar(3)),
            ("at", scalar(11, type_name=".google.protobuf.Timestamp")),
        ],
    )
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "user": {}}}
    examples = [
        (writer(registry, json.dumps(ORDER)).encode(ROW), FIELDS),
        (
            writer(registry, text, "protobuf").encode({"user": "ann", "n": 7, "at": NOON}),
            {"user": "string", "n": "bigint", "at": "timestamp"},
        ),
        (
            writer(registry, json.dumps(schema), "json").encode({"id": 1, "user": "é"}),
            {"id": "bigint", "user": "string"},
        ),
    ]
    for value, fields in examples:
        found = reader(registry, fields, [value])
        refused = 0
        for bad in damaged(value):
            try:
                row = found.parse(bad)
                assert len(row) == len(fields)
            except (ValueError, RecursionError):
                refused += 1
        assert refused > len(value)


def test_what_is_no_registrys_value_says_so(registry: Registry) -> None:
    unknown = b"\0\0\0\0\x09\x02"
    found = reader(registry, {"id": "bigint"}, [unknown, b'{"id": 1}', b"", None])
    words = "its schema 9 is not in the Schema Registry at http://127"
    with pytest.raises(ValueError, match=words):
        found.parse(unknown)
    with pytest.raises(ValueError, match=r"it begins with .* no registry's format"):
        found.parse(b'{"id": 1}')
    for text, kind, sentence in (
        ("{", "AVRO", "cannot be used: Expecting property name"),
        ('"string"', "AVRO", "it is a str, not a JSON object"),
        ("{}", "XML", "it is XML; there are AVRO, PROTOBUF and JSON"),
        ("message X {}", "PROTOBUF", "schema 4 cannot be used"),
        ('{"type": 5}', "JSON", "schema 5 cannot be used: 5 is not valid"),
        (
            json.dumps(record(next=["null", "shop.Order"], id="long")),
            "AVRO",
            "a type of it contains itself",
        ),
        (
            json.dumps(
                record(id={"type": "map", "values": {"type": "array", "items": "shop.Order"}})
            ),
            "AVRO",
            "a type of it contains itself",
        ),
    ):
        value = b"\0" + registry.add(text, kind).to_bytes(4, "big") + b"\0"
        found = reader(registry, {"id": "bigint"}, [value])
        with pytest.raises(ValueError, match=sentence):
            found.parse(value)
    # an id that became known later
    number = registry.add(json.dumps(record(id="long")))
    late = b"\0" + number.to_bytes(4, "big") + b"\x0e"
    registry.schemas.pop()
    found = reader(registry, {"id": "bigint"}, [late])
    registry.add(json.dumps(record(id="long")))
    assert found.load([late]) and found.parse(late) == (7,)


def test_a_schema_is_asked_for_once(registry: Registry) -> None:
    value = writer(registry, json.dumps(record(id="long"))).encode({"id": 1})
    registry.requests.clear()
    found = reader(registry, {"id": "bigint"}, [value, value])
    assert found.load([value] * 3) and found.parse(value) == (1,)
    assert registry.requests == ["GET /schemas/ids/1"]


def test_a_registry_that_is_away_is_waited_for_and_named(registry: Registry) -> None:
    value = writer(registry, json.dumps(record(id="long"))).encode({"id": 1})
    clock = Clock()
    found = RegistryReader(SchemaRegistry(registry.url), {"id": "bigint"}, clock.patience)
    for registry.status in (500, 503, 429):
        assert not found.load([value]) and found.is_resting
        clock.ms += 5_000
        assert not found.is_resting
    assert clock.said == [
        "Schema Registry at X cannot be reached: not now (HTTP status code 500, SR code 500)"
    ]
    clock.ms += 60_000
    sentence = "Schema Registry at X cannot be reached for 60 s: not now"
    with pytest.raises(WorkerFailedError, match=sentence):
        found.load([value])
    registry.status = 0
    assert found.load([value]) and found.parse(value) == (1,)
    gone = RegistryReader(SchemaRegistry("http://127.0.0.1:9"), {"id": "bigint"}, Clock().patience)
    assert not gone.load([value])
    away = RegistryWriter(SchemaRegistry("http://127.0.0.1:9"), "orders", None, "avro", "topic")
    with pytest.raises(Exception, match="onnect"):  # which the worker waits for
        away.load()


def test_a_password_is_read_where_it_is_used_and_travels_nowhere(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = registry.add(json.dumps(record(id="long")))
    registry.password = "hunter2:x"
    value = b"\0" + number.to_bytes(4, "big") + b"\x0e"
    place = SchemaRegistry(registry.url, user="app", password_env="REGISTRY_PASSWORD")
    found = RegistryReader(place, {"id": "bigint"}, Clock().patience)
    with pytest.raises(InvalidConfigError, match="REGISTRY_PASSWORD is not set"):
        found.load([value])
    monkeypatch.setenv("REGISTRY_PASSWORD", registry.password)
    assert found.load([value]) and found.parse(value) == (7,)
    assert b"hunter2" not in cloudpickle.dumps(place)
    monkeypatch.setenv("REGISTRY_PASSWORD", "wrong")
    with pytest.raises(InvalidConfigError, match="Unauthorized") as refused:
        RegistryReader(place, {"id": "bigint"}, Clock().patience).load([value])
    assert "wrong" not in str(refused.value)


def test_wrong_choices_are_one_sentence(registry: Registry) -> None:
    place = SchemaRegistry(registry.url)
    fields = {"id": "bigint"}
    for make, sentence in (
        (lambda: SchemaRegistry("h:1"), "begins with no http"),
        (lambda: SchemaRegistry("http://a:b@h:1"), "take the password out of the URL"),
        (lambda: SchemaRegistry("http://h:1", user="a"), "go together"),
        (
            lambda: SchemaRegistry("http://h:1", options={"basic.auth.user.info": "a:b"}),
            "options holds the secret basic.auth.user.info",
        ),
        (lambda: KafkaSource("h:1", "t", registry=place), "registry and changes need fields"),
        (
            lambda: KafkaSink("h:1", "t", registry="http://h:1"),  # type: ignore[arg-type]
            r"KafkaSink: registry is 'http://h:1'; write SchemaRegistry\(url\)",
        ),
        (
            lambda: KafkaSource("h:1", "t", fields, reader_schema="{}"),
            "reader_schema needs a registry",
        ),
        (
            lambda: KafkaSource("h:1", "t", fields, registry=place, reader_schema="{"),
            "reader_schema is '{', no Avro schema as JSON: Expecting property name",
        ),
        (
            lambda: KafkaSource("h:1", "t", fields, registry=place, reader_schema="5"),
            "reader_schema is '5', no Avro record with fields",
        ),
        (
            lambda: KafkaSource(
                "h:1", "t", fields, registry=place, reader_schema='{"fields": [{"name": "n"}]}'
            ),
            "reader_schema has no field 'id', which the source declares; it has n",
        ),
        (lambda: SchemaRegistry(5), "the URL is 5; write it as a text"),  # type: ignore[arg-type]
        (
            lambda: SchemaRegistry("http://h:1", options=5),  # type: ignore[arg-type]
            "options is 5; write the client's options by name",
        ),
        (lambda: KafkaSink("h:1", "t", schema="{}"), "schema needs a registry"),
        (lambda: KafkaSink("h:1", "t", schema_type="json"), "schema_type needs a registry"),
        (lambda: KafkaSink("h:1", "t", subject="record"), "subject needs a registry"),
        (
            lambda: KafkaSink("h:1", "t", registry=place, schema_type="xml"),
            "schema_type is one of avro",
        ),
        (
            lambda: KafkaSink("h:1", "t", registry=place, schema="{}", subject="x"),
            "subject is one of",
        ),
        (lambda: KafkaSink("h:1", "t", registry=place, subject="record"), "give its schema"),
        (lambda: writer(registry, None), "no subject orders-value; give the schema"),
        (lambda: writer(registry, "{"), "the schema cannot be used"),
        (lambda: writer(registry, '"string"', subject="record"), "needs a record with a name"),
    ):
        with pytest.raises(InvalidConfigError, match=sentence):
            make()
    registry.refused = "orders-value"
    words = "orders-value: Schema being registered is incompat"
    with pytest.raises(InvalidConfigError, match=words):
        writer(registry, json.dumps(ORDER))


NUMBERS = (0, True, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, 2**70, 1.5, 1e300)
UNIONS: tuple[Any, ...] = (["null", "int"], ["int", "long"], ["int", "double"], ["long", "string"])


@pytest.mark.parametrize(
    "kind", ["int", "long", "float", "double", "string", "boolean", "bytes", *UNIONS], ids=str
)
def test_a_flat_row_fits_where_fastavro_says_so(kind: Any) -> None:
    """Our check is the faster twin of fastavro's `validate`."""
    schema = {"type": "record", "name": "Row", "fields": [{"name": "value", "type": kind}]}
    encode = make_format("AVRO", json.dumps(schema), ()).encode
    for value in (None, *NUMBERS, float("inf"), "", "text", b"bytes"):
        fits = fastavro.validation.validate(
            {"value": value}, fastavro.parse_schema(schema), raise_errors=False
        )
        try:
            encode({"value": value})
        except Exception:
            assert not fits, value
        else:
            assert fits, value


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"id": "x"}, "field 'id' is 'x', not int"),
        ({"id": True}, "field 'id' is True, not int"),
        ({"id": 1 << 63}, "does not fit the schema shop.Order"),
        ({"id": 1, "small": 1 << 31}, "field 'small' is 2147483648, beyond 32 bits"),
        ({"id": 1, "parts": ["x"]}, r"shop.Order.parts"),
        ({"id": 1, "at": NOON}, "field 'at' is datetime"),
        ({}, "does not fit the schema shop.Order"),
        ({"id": 1, "at": 1.5}, "field 'at' is 1.5, not date"),
        ("text", "a str is no mapping of fields"),
    ],
)
def test_a_row_that_does_not_fit_avro_is_refused(
    registry: Registry, row: Any, sentence: str
) -> None:
    schema = record(id="long")
    more: dict[str, Any] = {
        "at": {"type": "int", "logicalType": "date"},
        "small": ["null", "int"],
        "parts": {"type": "array", "items": "long"},
    }
    for name in more.keys() & row.keys() if isinstance(row, dict) else ():
        schema = record(id="long", **{name: more[name]})
    with pytest.raises(ValueError, match=sentence):
        writer(registry, json.dumps(schema)).encode(row)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("n", 1.5, "field 'n' is 1.5, not int"),
        ("n", True, "field 'n' is True, not int"),
        ("n", None, "field 'n' is None, not int"),
        ("n", 1 << 64, "beyond 64 bits"),
        ("user", b"x", "field 'user' is b'x', not str"),
        ("color", "GREEN", "none of RED, BLUE"),
        ("at", datetime(2026, 1, 1), "no datetime with a zone"),
        ("part", {"m": 1}, "shop.Order.Part has no field 'm'"),
    ],
)
def test_a_row_that_does_not_fit_protobuf_is_refused(
    registry: Registry, name: str, value: Any, sentence: str
) -> None:
    text, registry.compiled[text] = file_of(
        "Order",
        [
            ("n", scalar(3)),
            ("user", scalar(9)),
            ("color", scalar(14, type_name=".shop.Color")),
            ("at", scalar(11, type_name=".google.protobuf.Timestamp")),
            ("part", scalar(11, type_name=".shop.Order.Part")),
        ],
    )
    with pytest.raises(ValueError, match=sentence):
        writer(registry, text, "protobuf").encode({name: value})


def test_declared_types_are_held_against_values(registry: Registry) -> None:
    value = writer(registry, json.dumps(record(id="string"))).encode({"id": "2026-11-29"})
    assert reader(registry, {"id": "date"}, [value]).parse(value) == (date(2026, 11, 29),)
    for kind, sentence in (
        ("bigint", "field 'id' is '2026-11-29', not a whole number"),
        ("timestamp", "it has no zone"),
        ("decimal(10,2)", "field 'id' is '2026-11-29'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            reader(registry, {"id": kind}, [value]).parse(value)
    schema = record(
        id={"type": "string", "logicalType": "uuid"},
        n={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 3},
    )
    row = {"id": UUID(int=5), "n": Decimal("1.105")}
    value = writer(registry, json.dumps(schema)).encode(row)
    assert reader(registry, {"id": "string"}, [value]).parse(value) == (str(UUID(int=5)),)
    with pytest.raises(ValueError, match=r"more digits than decimal\(10,2\)"):
        reader(registry, {"n": "decimal(10,2)"}, [value]).parse(value)
