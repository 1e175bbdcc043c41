"""Debezium: rows of a table from its envelopes, live and replayed, and what is no change of a row."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors import Debezium, KafkaSource
from sparkstorm.connectors.kafka.schemas import RegistryReader, RegistryWriter, SchemaRegistry
from sparkstorm.connectors.patience import Patience
from tests.connectors.registry import serve

FIELDS = {"id": "bigint", "name": "string"}
SOURCE = {"ts_ms": 1_795_953_600_250, "ts_us": 1_795_953_600_250_999, "table": "users"}
AT = SOURCE["ts_ms"]


def parser(fields: dict[str, str] = FIELDS, **options: Any) -> Callable[[Any], tuple[Any, ...]]:
    read = Debezium(**options).json_reader(fields)
    return lambda record: read(json.dumps(record).encode())


def envelope(op: str, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 9, **more}


ANN = {"id": 1, "name": "ann", "other": [1]}


@pytest.mark.parametrize(
    ("record", "row"),
    [
        (envelope("c", None, ANN), (1, "ann", "upsert", AT)),
        (envelope("r", None, ANN), (1, "ann", "upsert", AT)),
        (envelope("u", {"id": 1}, ANN), (1, "ann", "upsert", AT)),
        (envelope("d", ANN), (1, "ann", "delete", AT)),
        (envelope("d", {"id": 1}), (1, None, "delete", AT)),
        (
            {**envelope("d", {"id": 1}), "source": {"ts_us": 1_000_999}},
            (1, None, "delete", 1_000),
        ),
        ({"schema": None, "payload": envelope("c", None, ANN)}, (1, "ann", "upsert", AT)),
    ],
)
def test_an_envelope_is_a_row_of_a_table(record: Any, row: tuple[Any, ...]) -> None:
    assert parser()(record) == row


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (envelope("t"), "a truncation, which names no rows"),
        (envelope("m", message={"prefix": "app"}), "a message that a transaction wrote"),
        (envelope("x", None, ANN), "the operation 'x' is none of Debezium's"),
        ({"ts_ms": 5}, "a heartbeat of Debezium"),
        ({"status": "BEGIN", "id": "7", "ts_ms": 5}, "a transaction marker of Debezium"),
        ({"source": SOURCE, "ddl": "CREATE", "tableChanges": []}, "a schema change of Debezium"),
        (ANN, "not an envelope of Debezium: it has no op"),
        ([1], "it is a list, not an envelope"),
        ({"schema": None, "payload": None}, "it is a NoneType, not an envelope"),
        (envelope("c"), "'c' without a row in `after`"),
        (envelope("d"), "'d' without a row in `before`: give the table"),
        (envelope("d", {"other": 1}), "a deletion whose `before` has none of the fields"),
        (envelope("c", None, {"id": 1}), "the row has no column 'name'"),
        (envelope("c", None, {"id": "1", "name": "a"}), "field 'id' is '1', not a whole number"),
        ({**envelope("c", None, ANN), "source": {}}, "its source has no ts_ms or ts_us"),
        ({**envelope("c", None, ANN), "source": None}, "the operation 'c' is none of"),
        (
            envelope("u", None, {"id": 1, "name": "__debezium_unavailable_value"}),
            "field 'name' has not changed and is too large",
        ),
    ],
)
def test_what_is_no_change_of_a_row_is_named(record: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parser()(record)


def test_a_column_that_a_row_lacks_is_null_if_that_is_declared() -> None:
    assert parser(missing="null")(envelope("c", None, {"id": 1})) == (1, None, "upsert", AT)


@pytest.mark.parametrize(
    ("kind", "value", "options", "made"),
    [
        ("decimal(10,2)", "BNI=", {}, Decimal("12.34")),
        ("decimal(10,2)", "+w==", {}, Decimal("-0.05")),
        ("decimal(10,2)", {"scale": 1, "value": "Dw=="}, {}, Decimal("1.50")),
        ("decimal(10,2)", "12.34", {"decimals": "string"}, Decimal("12.34")),
        ("double", 12.34, {"decimals": "double"}, 12.34),
        ("date", 7338, {}, date(1990, 2, 3)),
        ("date", "1990-02-03Z", {}, date(1990, 2, 3)),
        ("timestamp", 1_000_001, {}, datetime(1970, 1, 1, 0, 0, 1, 1, UTC)),
        ("timestamp", 1_001, {"timestamps": "ms"}, datetime(1970, 1, 1, 0, 0, 1, 1000, UTC)),
        ("timestamp", 1_001_000, {"timestamps": "ns"}, datetime(1970, 1, 1, 0, 0, 0, 1001, UTC)),
        (
            "timestamp",
            "2026-11-29T11:00:00.250Z",
            {},
            datetime(2026, 11, 29, 11, 0, 0, 250_000, UTC),
        ),
        ("bigint", 1_000_001, {}, 1_000_001),
        ("binary", "AAH/", {}, b"\x00\x01\xff"),
    ],
)
def test_debeziums_numbers_are_of_the_declared_types(
    kind: str, value: Any, options: Any, made: Any
) -> None:
    found = parser({"v": kind}, **options)(envelope("c", None, {"v": value}))[0]
    assert found == made and type(found) is type(made)


@pytest.mark.parametrize(
    ("kind", "value", "options", "sentence"),
    [
        ("decimal(10,2)", "BNI=", {"decimals": "string"}, "field 'v' is 'BNI='"),
        ("decimal(2,2)", "BNI=", {}, r"more digits than decimal\(2,2\)"),
        ("decimal(10,2)", 1.5, {}, "not a decimal"),
        ("decimal(10,2)", {"scale": 10**9, "value": "Dw=="}, {}, "a decimal of 1 bytes"),
        ("date", 10**9, {}, "field 'v' is 1000000000"),
        ("timestamp", 1 << 62, {}, "field 'v' is"),
        ("timestamp", 1, {"timestamps": "ns"}, "it has nanoseconds"),
        ("timestamp", "2026-11-29T11:00:00", {}, "it has no zone"),
        ("timestamp", True, {}, "not a time"),
    ],
)
def test_numbers_that_do_not_fit_are_named(
    kind: str, value: Any, options: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        parser({"v": kind}, **options)(envelope("c", None, {"v": value}))


@given(st.decimals(-(10**8) + 1, 10**8 - 1, places=2), st.integers(0, 4))
def test_decimals_are_read_by_the_scale_that_the_records_own_schema_has(
    value: Decimal, scale: int
) -> None:
    unscaled = int(value.scaleb(2)) * 10**scale
    data = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    column = {"field": "v", "name": "org.apache.kafka.connect.data.Decimal", "type": "bytes"}
    column["parameters"] = {"scale": str(2 + scale)}  # type: ignore[assignment]
    schema = {"fields": [{"field": "after", "fields": [column]}]}
    payload = envelope("c", None, {"v": base64.b64encode(data).decode()})
    assert parser({"v": "decimal(10,2)"})({"schema": schema, "payload": payload})[0] == value


def test_envelopes_as_avro_are_rows_too() -> None:
    """By the schema that Kafka Connect's AvroData makes of Debezium's, from their documentation."""

    def of(kind: str, **more: Any) -> list[Any]:
        return ["null", {"type": kind, "connect.version": 1, **more}]

    decimal = {"logicalType": "decimal", "precision": 10, "scale": 2}
    columns = {
        "id": "long",
        "total": of(
            "bytes", **{"connect.name": "org.apache.kafka.connect.data.Decimal"}, **decimal
        ),
        "born": of("int", **{"connect.name": "io.debezium.time.Date"}),
        "made": of("long", **{"connect.name": "io.debezium.time.MicroTimestamp"}),
        "made3": of("long", **{"connect.name": "io.debezium.time.Timestamp"}),
        "seen": of("string", **{"connect.name": "io.debezium.time.ZonedTimestamp"}),
    }
    row = {"type": "record", "name": "Value", "namespace": "shop.public.users"}
    row["fields"] = [{"name": name, "type": kind} for name, kind in columns.items()]  # type: ignore[assignment]
    source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
    fields = [
        ("before", ["null", row]),
        ("after", ["null", "Value"]),
        ("source", source),
        ("op", "string"),
    ]
    schema = {"type": "record", "name": "Envelope", "namespace": "shop.public.users"}
    schema["fields"] = [{"name": name, "type": kind} for name, kind in fields]  # type: ignore[assignment]
    after = {
        "id": 1,
        "total": Decimal("12.34"),
        "born": 7338,
        "made": 1_000_001,
        "made3": 1_001,
        "seen": "2026-11-29T11:00:00.250Z",
    }
    wanted = {
        "id": "bigint",
        "total": "decimal(10,2)",
        "born": "date",
        "made": "timestamp",
        "made3": "timestamp",
        "seen": "timestamp",
    }
    with serve() as registry:
        place = SchemaRegistry(registry.url)
        writer = RegistryWriter(place, "users", json.dumps(schema), "avro", "topic")
        writer.load()
        patience = Patience("X", lambda: 0, print)
        reader = RegistryReader(place, wanted, patience, changes=Debezium())
        value = writer.encode({"before": None, "after": after, "source": {"ts_ms": 7}, "op": "c"})
        assert reader.load([value])
        assert reader.parse(value) == (
            1,
            Decimal("12.34"),
            date(1990, 2, 3),
            datetime(1970, 1, 1, 0, 0, 1, 1, UTC),
            datetime(1970, 1, 1, 0, 0, 1, 1000, UTC),
            datetime(2026, 11, 29, 11, 0, 0, 250_000, UTC),
            "upsert",
            7,
        )


def test_wrong_choices_are_one_sentence() -> None:
    for make, sentence in (
        (lambda: Debezium(missing="skip"), "missing is one of bad, null, not 'skip'"),
        (lambda: Debezium(decimals="x"), "decimals is one of precise, string, double"),
        (lambda: KafkaSource("h:1", "t", changes=Debezium()), "registry and changes need fields"),
        (
            lambda: KafkaSource("h:1", "t", {"op": "string"}, changes=Debezium()),
            "changes adds a field 'op', and fields has one",
        ),
        (
            lambda: KafkaSource("h:1", "t", FIELDS, changes=Debezium(), tombstones="emit"),
            'tombstones is "skip" or "bad"',
        ),
    ):
        with pytest.raises(InvalidConfigError, match=sentence):
            make()
    source = KafkaSource("h:1", "t", FIELDS, changes=Debezium(op="change", time="at"))
    outputs: Any = source.outputs
    assert list(outputs["default"]) == [
        *FIELDS,
        "change",
        "at",
        "key",
        "topic",
        "partition",
        "offset",
        "time_ms",
    ]
