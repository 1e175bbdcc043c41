"""Debezium: rows of a table from its envelopes, live and replayed, and what is no change of a row.

`debezium.jsonl` has what Debezium 3.0.8.Final wrote into Kafka 4.1.2 from PostgreSQL 15, by its
default settings, with schemas (topics `wrapped...`) and without: a snapshot of two rows of

    CREATE TABLE users (id bigint PRIMARY KEY, name text NOT NULL, total numeric(10,2),
        free numeric, born date, seen timestamptz, made timestamp, made3 timestamp(3), ref uuid,
        photo bytea, active boolean NOT NULL DEFAULT true, notes text)

then inserts (one with 12,000 characters in `notes`, of which the file has 20), updates, deletions,
ALTER TABLE users ADD COLUMN country text, a changed key, the same with REPLICA IDENTITY FULL, a
truncation, and a message. Other records here are made by Debezium's documentation.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors import Debezium, KafkaSource
from sparkstorm.connectors.kafka.schemas import RegistryReader, RegistryWriter, SchemaRegistry
from sparkstorm.connectors.patience import Patience
from sparkstorm.replay import replay_locally
from sparkstorm.streams import AsOfJoinBolt
from sparkstorm.testing import FeederSpout, complete_topology
from tests.connectors.registry import serve

FIELDS = {"id": "bigint", "name": "string"}
SOURCE = {"ts_ms": 1_795_953_600_250, "ts_us": 1_795_953_600_250_999, "table": "users"}
AT = SOURCE["ts_ms"]


RECORDS = [
    json.loads(line)
    for line in Path(__file__).with_name("debezium.jsonl").read_text("utf-8").splitlines()
]
USERS = {
    "id": "bigint",
    "name": "string",
    "total": "decimal(10,2)",
    "free": "decimal(10,1)",
    "born": "date",
    "seen": "timestamp",
    "made": "timestamp",
    "ref": "string",
    "photo": "binary",
    "active": "boolean",
}


def values(topic: str) -> list[bytes]:
    """Return the values that Debezium wrote into a topic, without tombstones."""
    found = [record["value"] for record in RECORDS if record["topic"] == topic]
    return [value.encode() for value in found if value is not None]


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


def test_envelopes_of_postgresql_are_rows() -> None:
    parse = Debezium().json_reader(USERS)
    made = datetime(2026, 11, 29, 12, 0, 0, 123_456, UTC)
    seen = datetime(2026, 11, 29, 11, 0, 0, 250_000, UTC)
    values_of_ann = (date(1990, 2, 3), seen, made, "00000000-0000-0000-0000-000000000005", b"\0\1\xff", True)  # fmt: skip
    nothing = (None,) * 7 + (True,)
    *rows, truncation = values("plain.public.users")
    found = [parse(value) for value in rows]
    # those of the snapshot, and those of a changed key, have one time
    assert len({row[-1] for row in found}) == 9
    assert [row[:-1] for row in sorted(found, key=lambda row: (row[-1], row[0]))] == [
        (1, "ann", Decimal("12.34"), Decimal("1.5"), *values_of_ann, "upsert"),
        (2, "bob", *nothing, "upsert"),
        (3, "cid", Decimal("-0.05"), *nothing[1:], "upsert"),
        (1, "eve", Decimal("20.00"), Decimal("1.5"), *values_of_ann, "upsert"),
        (3, "cyd", Decimal("-0.05"), *nothing[1:], "upsert"),
        (2, "", *nothing, "delete"),
        (4, "dan", *nothing, "upsert"),
        (4, "", *nothing, "delete"),
        (5, "dan", *nothing, "upsert"),
        (1, "ann", Decimal("20.00"), Decimal("1.5"), *values_of_ann, "upsert"),
        (1, "ann", Decimal("20.00"), Decimal("1.5"), *values_of_ann, "delete"),
    ]
    with pytest.raises(ValueError, match="a truncation"):
        parse(truncation)
    [heartbeat, *_] = values("__debezium-heartbeat.plain")
    [marker, *_] = values("plain.transaction")
    [message] = values("plain.message")
    wrapped = values("__debezium-heartbeat.wrapped")[0]
    for value, sentence in (
        (heartbeat, "a heartbeat"),
        (wrapped, "a heartbeat"),
        (marker, "a transaction marker"),
        (message, "a message"),
    ):
        with pytest.raises(ValueError, match=sentence):
            parse(value)


def test_a_records_own_schema_tells_times_apart() -> None:
    parse = Debezium(timestamps="ns", decimals="string").json_reader(
        {**USERS, "made3": "timestamp"}
    )
    found = [parse(value) for value in values("wrapped.public.users")]
    assert sorted((row[0], row[1], row[-2]) for row in found) == [
        (1, "ann", "upsert"),
        (2, "", "delete"),
        (3, "cid", "upsert"),
        (3, "cyd", "upsert"),
        (4, "dan", "upsert"),
    ]
    [ann] = [row for row in found if row[0] == 1]
    assert ann[2] == Decimal("12.34")
    assert ann[10] == datetime(2026, 11, 29, 12, 0, 0, 123_000, UTC)
    assert ann[6] == datetime(2026, 11, 29, 12, 0, 0, 123_456, UTC)


def test_a_value_that_postgresqls_log_lacks_and_a_column_of_later_are_named() -> None:
    reasons: list[str] = []
    for value in values("plain.public.users"):
        try:
            Debezium().json_reader({"id": "bigint", "notes": "string"})(value)
            Debezium().json_reader({"id": "bigint", "country": "string"})(value)
        except ValueError as error:
            reasons.append(str(error)[:30])
    assert sorted(set(reasons)) == [
        "a truncation, which names no r",
        "field 'notes' has not changed ",
        "the row has no column 'country",
    ]
    parse = Debezium(missing="null").json_reader({"id": "bigint", "country": "string"})
    found = [parse(value) for value in values("plain.public.users")[:-1]]
    result = {row[:2] for row in found}
    assert result == {(1, None), (2, None), (3, None), (4, "NL"), (4, None), (5, "NL")}


def test_a_table_of_changes_is_joined_live_as_in_a_replay() -> None:
    changes = Debezium()
    parse = changes.json_reader(FIELDS)
    users = sorted(
        (parse(value) for value in values("plain.public.users")[:-1]), key=lambda r: r[-1]
    )
    times = sorted({row[-1] for row in users})
    orders = [[user, at_ms + more] for user in (1, 2, 3, 5) for at_ms in times for more in (0, 1)]
    orders.sort(key=lambda row: row[1])
    located = (
        AsOfJoinBolt("orders", key="user")
        .left_join("users", key="id", deletes={"op": "delete"})
        .select("user", "orders:at_ms as at", "name")
        .with_timestamp_field("at_ms")
    )
    builder = TopologyBuilder()
    builder.set_spout("orders", FeederSpout({"user": "bigint", "at_ms": "bigint"}))
    builder.set_spout("users", FeederSpout({**FIELDS, **changes.outputs}))
    builder.set_bolt("located", located, parallelism=2, inputs=["orders", "users"])
    topology = builder.build()
    rows = {"orders": orders, "users": [list(row) for row in users]}
    live = sorted(complete_topology(topology, rows)["located"])
    wanted = []
    for user, at_ms in orders:
        versions = [row for row in users if row[0] == user and row[-1] <= at_ms]
        op, name = (versions[-1][2], versions[-1][1]) if versions else ("delete", None)
        wanted.append((user, at_ms, name if op == "upsert" else None))
    assert live == sorted(wanted) and {"eve", "cyd", None} <= {name for *_, name in live}
    assert sorted(replay_locally(topology, rows, event_time="at_ms")["located"]) == live


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
        ("decimal(10,2)", "1.5x", {"decimals": "string"}, r"no number that decimal\(10,2\) holds"),
        ("decimal(10,2)", "1e99", {"decimals": "string"}, r"no number that decimal\(10,2\) holds"),
        ("decimal(10,2)", {"scale": 10**9, "value": "Dw=="}, {}, "a decimal of 1 bytes"),
        ("date", 10**9, {}, "field 'v' is 1000000000"),
        ("timestamp", 1 << 62, {}, "field 'v' is"),
        ("timestamp", 1, {"timestamps": "ns"}, "it has nanoseconds"),
        ("timestamp", "2026-11-29T11:00:00", {}, "it has no zone"),
        ("timestamp", True, {}, "not a time"),
        ("bigint", 2**63, {}, f"field 'v' is {2**63}, which bigint does not hold"),
        ("int", -(2**31) - 1, {}, "which int does not hold"),
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
    name = "org.apache.kafka.connect.data.Decimal"
    parameters = {"scale": str(2 + scale)}
    column = {"field": "v", "name": name, "type": "bytes", "parameters": parameters}
    schema = {"fields": [{"field": "after", "fields": [column]}]}
    payload = envelope("c", None, {"v": base64.b64encode(data).decode()})
    assert parser({"v": "decimal(10,2)"})({"schema": schema, "payload": payload})[0] == value


def avro_record(name: str, columns: dict[str, Any]) -> dict[str, Any]:
    fields = [{"name": column, "type": kind} for column, kind in columns.items()]
    return {"type": "record", "name": name, "namespace": "shop.public.users", "fields": fields}


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
        "free": "string",
        "seen": of("string", **{"connect.name": "io.debezium.time.ZonedTimestamp"}),
    }
    row = avro_record("Value", columns)
    source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
    fields = {
        "before": ["null", row],
        "after": ["null", "Value"],
        "source": source,
        "op": "string",
    }
    schema = avro_record("Envelope", fields)
    after = {
        "id": 1,
        "total": Decimal("12.34"),
        "born": 7338,
        "made": 1_000_001,
        "made3": 1_001,
        "free": "1.5",
        "seen": "2026-11-29T11:00:00.250Z",
    }
    wanted = {
        "id": "bigint",
        "total": "decimal(10,2)",
        "born": "date",
        "made": "timestamp",
        "made3": "timestamp",
        "free": "decimal(10,1)",
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
            Decimal("1.5"),
            datetime(2026, 11, 29, 11, 0, 0, 250_000, UTC),
            "upsert",
            7,
        )


def test_wrong_choices_are_one_sentence() -> None:
    for make, sentence in (
        (lambda: Debezium(missing="skip"), "missing is one of bad, null, not 'skip'"),
        (lambda: Debezium(decimals="x"), "decimals is one of precise, string, double"),
        (lambda: Debezium(op=5), "op is 5; write the name of the field"),  # type: ignore[arg-type]
        (lambda: Debezium(time=["a"]), r"time is \['a'\]; write the"),  # type: ignore[arg-type]
        (lambda: Debezium(op="at_ms"), "op and time are both the field 'at_ms'; rename one"),
        (
            lambda: KafkaSource("h:1", "t", FIELDS, changes=Debezium),  # type: ignore[arg-type]
            r"changes is <class .*; write Debezium\(\)",
        ),
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
    result = list(outputs["default"])
    assert result == [*FIELDS, "change", "at", "key", "topic", "partition", "offset", "time_ms"]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=5,
)


@pytest.mark.slow
@given(st.data())
def test_whatever_an_envelope_has_in_any_place_is_a_row_or_a_sentence(data: st.DataObject) -> None:
    record = json.loads(values("wrapped.public.users")[0])
    place: Any = record
    while True:
        at = data.draw(
            st.sampled_from(list(place) if isinstance(place, dict) else range(len(place)))
        )
        if not (isinstance(place[at], dict | list) and place[at]) or data.draw(st.booleans()):
            break
        place = place[at]
    place[at] = data.draw(ANYTHING)
    try:
        row = Debezium().json_reader(USERS)(json.dumps(record).encode())
        assert len(row) == len(USERS) + 2
    except (ValueError, RecursionError):
        pass
