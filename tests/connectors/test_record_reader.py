"""RecordReader and TaskPartitions of KafkaSource without a broker: the values of a record, its time,
and the reason why it has none; which partitions are whose.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from sparkstorm.api import TopologyContext
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors import KafkaSource, SchemaRegistry
from sparkstorm.connectors.kafka.client import KafkaClient
from sparkstorm.connectors.kafka.partitions import TaskPartitions
from sparkstorm.connectors.kafka.record_reader import RecordReader, has_value
from sparkstorm.connectors.patience import Secret
from sparkstorm.connectors.time_order import NO_TIME

COLUMNS = frozenset({"default"})


def context_of(
    now_ms: int = 0, columns: frozenset[str] = frozenset(), task: int = 1, tasks: int = 1
) -> TopologyContext:
    peers = dict.fromkeys(range(1, tasks + 1), "kafka")
    return TopologyContext(
        "t", task, "kafka", peers, (task,), {}, lambda: now_ms, column_streams=columns
    )


def opened(*args: Any, context: TopologyContext | None = None, **options: Any) -> RecordReader:
    reader = RecordReader(*args, **options)
    reader.open(context or context_of(), lambda error: None)
    return reader


def message(value: bytes | None, offset: int = 7, **more: Any) -> Message:
    return Message("t", 0, offset, b"\xffk", value, timestamp=(1, 5), **more)


REST = ("\ufffdk", "t", 0, 7, 5)


@pytest.mark.parametrize(
    ("options", "value", "wanted"),
    [
        ({}, b"a\xff", ("a\ufffd", *REST)),
        ({"binary": True, "binary_key": True}, b"a\xff", (b"a\xff", b"\xffk", *REST[1:])),
        ({"fields": ["b", "a"]}, b'{"a": 1}', (None, 1, *REST)),
        ({"fields": {"a": "bigint"}, "headers": "h"}, b'{"a": 1}', (1, *REST, [["x", b"1"]])),
        ({"headers": "h"}, None, (None, *REST, [["x", b"1"]])),
        ({"fields": ["b", "a"], "tombstones": "emit"}, None, (None, None, *REST)),
    ],
)
def test_the_values_of_a_record_are_those_of_its_value_and_what_kafka_has_of_it(
    options: Any, value: bytes | None, wanted: tuple[Any, ...]
) -> None:
    reader = opened(**options)
    values = reader.values(message(value, headers=[("x", b"1")]))
    assert values == wanted
    assert len(values) == len(reader.outputs)


def test_a_record_that_is_read_before_its_turn_has_a_time_or_a_reason() -> None:
    reader = opened(
        {"n": "bigint", "t": "any"}, time="t", ahead_secs=60, context=context_of(now_ms=1_000)
    )
    values = [
        b'{"n": 1, "t": 61000}',
        b'{"n": 2, "t": 61001}',
        b'{"n": 3, "t": "x"}',
        b'{"n": "4", "t": 6}',
        b"{",
        None,
    ]
    read = list(reader.timed(map(message, values)))
    assert [time_ms for time_ms, _ in read] == [61_000, *[NO_TIME] * 5]
    assert [record[1] for _, record in read] == [(1, 61_000, *REST), *[None] * 5]
    reasons = [record[2] for _, record in read]
    assert reasons[:4] == [
        "",
        "its time 61001 is 60.001 s ahead of this host's clock: one of the two clocks is wrong",
        "the time of the record is 'x', not a whole number of milliseconds",
        "field 'n' is '4', not a whole number",
    ]
    assert reasons[4].startswith("it is no JSON") and "a tombstone" in reasons[5]
    assert [has_value(record) for _, record in read] == [True] * 5 + [False]


def test_a_record_has_the_time_of_its_message_unless_its_value_has_one() -> None:
    record = message(b"9 line")
    assert list(opened().timed([record])) == [(5, record)]
    by_function = opened(time=lambda fields: int(fields["value"].split()[0]))
    assert list(by_function.timed([record])) == [(9, (record, ("9 line", *REST), ""))]
    tombstone = message(None)
    assert list(by_function.timed([tombstone])) == [(5, (tombstone, (None, *REST), ""))]


@pytest.mark.parametrize(
    "options",
    [
        {"time": "n"},
        {"ahead_secs": 5},
        {"headers": "h"},
        {"registry": SchemaRegistry("http://127.0.0.1:9")},
        {"fields": ["n"]},
        {"context": context_of()},
    ],
)
def test_records_come_as_batches_only_where_columns_are_read_and_have_all(options: Any) -> None:
    plain: dict[str, Any] = {"fields": {"n": "bigint"}, "context": context_of(columns=COLUMNS)}
    assert opened(**plain).make_batch is not None
    assert opened(**{**plain, **options}).make_batch is None


def test_copies_of_a_source_read_by_their_own_clocks() -> None:
    source = KafkaSource("h:1", "t", ahead_secs=0)
    early, late = copy.copy(source), copy.copy(source)
    collector: Any = SimpleNamespace(report_error=None)
    early.open({}, context_of(now_ms=4), collector)
    late.open({}, context_of(now_ms=5), collector)
    times = [next(iter(copied._reader.timed([message(b"a")])))[0] for copied in (early, late)]
    assert times == [NO_TIME, 5]


def test_each_partition_is_one_tasks() -> None:
    client = KafkaClient("KafkaSource", "h:1", None, Secret("KafkaSource", None, None))
    position = {f"{topic}/{number}": number for topic in ("a", "b/c") for number in range(20)}
    parts = []
    for task in (1, 2, 3):
        context = context_of(task=task, tasks=3)
        partitions = TaskPartitions(client, ["a", "b/c"], "earliest", "fail", context)
        partitions.restore(position)
        parts.append(partitions.next)
    assert all(parts) and sum(map(len, parts)) == len(position)
    assert parts[0] | parts[1] | parts[2] == position


@pytest.mark.parametrize("name", ["consumer", "producer"])
def test_an_option_that_librdkafka_does_not_have_is_one_sentence(name: str) -> None:
    client = KafkaClient("KafkaSource", "h:1", {"fetch.max": 5}, Secret("KafkaSource", None, None))
    sentence = '^KafkaSource at h:1: options: No such configuration property: "fetch.max"'
    with pytest.raises(InvalidConfigError, match=sentence):
        getattr(client, name)("name", "earliest" if name == "consumer" else 0)
