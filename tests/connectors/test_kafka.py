"""KafkaSource and KafkaSink on a real broker: records once over restarts and deaths, JSON,
partitions, mistakes.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from sparkstorm.api import (
    ColumnBolt,
    Duration,
    Source,
    TopologyBuilder,
    TopologyContext,
    TransactionalSink,
    Tuple,
)
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.connectors import Debezium, KafkaSink, KafkaSource, SchemaRegistry, SqlSink
from sparkstorm.connectors.file_records import json_parser
from sparkstorm.connectors.kafka import sink as kafka_sink
from sparkstorm.connectors.kafka.records import batch_maker, meta_fields
from sparkstorm.replay import replay_locally
from sparkstorm.streams import AsOfJoinBolt
from sparkstorm.testing import CaptureBolt, FeederSpout, Shared, complete_topology
from sparkstorm.testing.servers import KafkaServer
from tests.connectors.crashing_sink import CrashingSink, die_everywhere, feed
from tests.connectors.registry import serve
from tests.connectors.test_bad_input import ROWS, Relieved, disk_of, fill, write
from tests.connectors.test_debezium import RECORDS
from tests.connectors.test_forgotten_epochs import write_beyond_a_lost_store
from tests.connectors.test_sql import Bench as SqlBench
from tests.leaks import keep_children
from tests.topologies import running
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.nightly]
names = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    server.start()
    keep_children()
    yield server
    server.stop()


def topic(kafka: KafkaServer, partitions: int = 1, config: dict[str, str] | None = None) -> str:
    name = next(names)
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(20)
    return name


def produce(kafka: KafkaServer, name: str, values: list[Any], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.address})
    for value in values:
        producer.produce(
            name,
            value if value is None or isinstance(value, bytes) else json.dumps(value),
            f"key-{value}"[:9],
            partition,
            timestamp=5,
        )
    assert producer.flush(20) == 0


def read_all(kafka: KafkaServer, name: str, partitions: int = 1) -> list[Any]:
    """Every committed record of a topic, by its own consumer."""
    own = {
        "group.id": "check",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    consumer, found, ends = Consumer({"bootstrap.servers": kafka.address, **own}), list[Any](), 0
    consumer.assign([TopicPartition(name, p, 0) for p in range(partitions)])
    while ends < partitions:
        for message in consumer.consume(100, 1.0):
            if message.error():
                ends += 1
            else:
                found.append(json.loads(message.value() or b""))
    consumer.close()
    return found


class Bench(SqlBench):
    def until(self, rows: int) -> list[Any]:
        """Step until so many rows have come, or long enough: a busy broker takes seconds to
        answer.
        """
        found: list[Any] = []
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            # a source that met a busy server rests for a second of this clock
            found += self.step(100)
            if len(found) >= rows or self.source.is_exhausted():
                break
        return found


def test_records_come_once_with_key_and_time_over_restarts_and_new_partitions(
    kafka: KafkaServer,
) -> None:
    name = topic(kafka, 2)
    produce(kafka, name, [{"n": 1}, {"n": 2}])
    produce(kafka, name, [{"n": 3}, b"{", {"n": "x"}], 1)
    source = KafkaSource(kafka.address, name, {"n": "bigint"}, follow=False)
    bench: Any = Bench(source)
    bench.emit = lambda values, message_id, stream="default": bench.rows.append((stream, *values))
    assert source.extent() == (0, 0)  # not connected yet
    rows = bench.until(99)
    assert [row for row in rows if row[0] == "default" and row[4] == 0] == [
        ("default", 1, "key-{'n':", name, 0, 0, 5),
        ("default", 2, "key-{'n':", name, 0, 1, 5),
    ]
    assert sorted(row[3] for row in rows if row[0] == "bad")[1].startswith("it is no JSON")
    assert source.is_exhausted() and len(bench.errors) == 2
    position = source.snapshot()
    assert position == {f"{name}/0": 2, f"{name}/1": 3}
    heads = {
        f"{name}/0.position": 2,
        f"{name}/0.head": 2,
        f"{name}/1.position": 3,
        f"{name}/1.head": 3,
    }
    assert bench.gauges["lag"]() == heads
    assert source.extent() == (5, 5)
    source.close()
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_partitions([NewPartitions(name, 3)])[name].result(20)
    produce(kafka, name, [{"n": 4}], 0)
    produce(kafka, name, [{"n": 5}], 2)
    again = KafkaSource(kafka.address, name, ["n"])
    bench = Bench(again, position)
    assert sorted(row[0] for row in bench.until(2)) == [4, 5]
    again.close()


def test_a_source_tells_how_much_it_has_not_read(kafka: KafkaServer) -> None:
    name = topic(kafka)
    produce(kafka, name, [*range(1200)])
    source = KafkaSource(kafka.address, name)
    bench: Any = Bench(source)
    read = len(bench.until(1))
    assert 0 < read < 1200
    assert source.extent() == (1200, read)
    source.close()


def test_a_start_may_be_a_time_or_the_end(kafka: KafkaServer) -> None:
    name = topic(kafka)
    produce(kafka, name, ["a"])
    for start, wanted in ((6, []), (5, ['"a"']), ("latest", []), ("earliest", ['"a"'])):
        source = KafkaSource(kafka.address, name, start=start, follow=False)
        bench: Any = Bench(source)
        assert [row[0] for row in bench.until(99)] == wanted, start
        source.close()


@pytest.mark.parametrize("start", ["latest", 6])
def test_a_start_is_found_once_and_partitions_that_are_added_later_are_read_from_their_beginning(
    kafka: KafkaServer, start: str | int
) -> None:
    name = topic(kafka)
    produce(kafka, name, ["old"])
    admin = AdminClient({"bootstrap.servers": kafka.address})
    source = KafkaSource(kafka.address, name, start=start)
    tasks = [Bench(copy.copy(source), tasks=2, index=index) for index in range(2)]
    bench: Any
    for bench in tasks:
        bench.step()
    assert sorted(str(bench.kept) for bench in tasks) == [f"[{{'{name}/0': 1}}]", "[{}]"]
    produce(kafka, name, ["new"])
    admin.create_partitions([NewPartitions(name, 2)])[name].result(20)
    produce(kafka, name, ["added"], 1)
    for index, bench in enumerate(tasks):
        if index:  # one task goes on, the other one starts anew
            bench.source.close()
            bench = tasks[index] = Bench(bench.source, bench.kept[0], tasks=2, index=index)
        bench.at_ms += 30_000
    found = [row[0] for bench in tasks for row in bench.until(1)]
    assert sorted(found) == ['"added"', '"new"']
    for bench in tasks:
        bench.source.close()


def test_rows_are_in_the_topic_once_whatever_dies(kafka: KafkaServer) -> None:
    def make(number: int) -> tuple[TransactionalSink, Callable[[], None]]:
        name = topic(kafka)

        def check() -> None:
            assert read_all(kafka, name) == [{"n": n, "text": f"text {n}"} for n in range(4)]

        return KafkaSink(kafka.address, name, key="text"), check

    assert die_everywhere(make, rows=4) > 4


def test_rows_are_written_although_the_topic_is_newer_than_the_store(kafka: KafkaServer) -> None:
    name = topic(kafka)
    sink = KafkaSink(kafka.address, name)
    errors = write_beyond_a_lost_store(
        sink, lambda: [row["n"] for row in read_all(kafka, name)], True
    )
    assert any("the target has epochs up to" in error for error in errors)


def test_more_records_than_a_producer_holds_are_sent_once_the_broker_takes_them(
    kafka: KafkaServer,
) -> None:
    held = 100_000  # librdkafka's queue.buffering.max.messages
    full = threading.Event()

    def go_on() -> None:
        full.wait()
        os.kill(kafka.pid, signal.SIGCONT)

    def records() -> Iterator[dict[str, int]]:
        os.kill(kafka.pid, signal.SIGSTOP)
        for n in range(held + 10):
            if n == held:
                full.set()
            yield {"n": n}

    name = topic(kafka)
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        kafka.send(name, records())
    finally:
        full.set()
        thread.join()
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": name})
    assert consumer.get_watermark_offsets(TopicPartition(name, 0), 20) == (0, held + 10)
    consumer.close()


def test_the_last_epoch_of_a_topic_is_the_last_that_was_committed(kafka: KafkaServer) -> None:
    name = topic(kafka)
    context = TopologyContext("last-epoch", 1, "sink", {1: "sink"}, (1,), {}, lambda: 0)

    def sink() -> KafkaSink:
        made = KafkaSink(kafka.address, name)
        made.open({}, context)
        made.recover(0, None)
        return made

    def prepare(epoch: int) -> None:
        first.begin(epoch)
        first.write(Tuple((epoch,), 0, Source("spout", 2, "default", ("n",))))
        prepared[epoch] = first.prepare(epoch)

    prepared: dict[int, Any] = {}
    first = sink()
    assert first.last_epoch() == 0
    for epoch in (1, 3):
        prepare(epoch)
        first.commit(epoch, prepared[epoch])
        assert first.last_epoch() == epoch
    prepare(4)  # and its transaction stays open
    second = sink()
    assert second.last_epoch() == 3
    second.commit(3, prepared[3])
    second.commit(4, prepared[4])
    second.commit(4, prepared[4])
    third = sink()
    assert third.last_epoch() == 4
    assert [row["n"] for row in read_all(kafka, name)] == [1, 3, 4]
    for each in (first, second, third):
        each.cleanup()


@pytest.mark.parametrize(
    ("config", "bad", "reason"),
    [
        ({}, (None, "x" * 1_100_000, 5), "too large"),
        ({"max.message.bytes": "2000"}, (None, "x" * 5_000, 5), "too large"),
        ({"cleanup.policy": "compact"}, (None, "b", 5), "failed to validate"),
        ({}, (None, "b", 9 * 10**15), "imestamp"),
    ],
)
def test_exactly_the_records_that_kafka_refuses_alone_are_parked_wherever_they_are(
    kafka: KafkaServer, config: dict[str, str], bad: tuple[Any, str, int], reason: str
) -> None:
    for places in ({0}, {2}, {1, 3}):
        name = topic(kafka, config=config)
        rows = [bad if n in places else (f"k{n}", f'"{n}"', 5) for n in range(4)]
        sink = KafkaSink(kafka.address, name, key="key", value="value", time="time")
        letters = feed(sink, ["key", "value", "time"], rows)
        assert read_all(kafka, name) == [str(n) for n in range(4) if n not in places]
        assert [letter.values for letter in letters] == [bad] * len(places)
        assert all(reason in letter.reason for letter in letters)


def test_records_whose_batch_is_larger_than_the_topic_takes_are_written_in_smaller_ones(
    kafka: KafkaServer,
) -> None:
    name = topic(kafka, config={"max.message.bytes": "2000"})
    sink = KafkaSink(kafka.address, name)
    conf: dict[str, Any] = {"topology.epoch.rows": 300}
    rows = [[n, "x" * 50] for n in range(300)]
    rows[100:100] = [[-1, "x" * 5_000]]
    assert [letter.values[0] for letter in feed(sink, ["n", "text"], rows, conf)] == [-1]
    assert [row["n"] for row in read_all(kafka, name)] == list(range(300))


def test_mistakes_are_one_sentence(kafka: KafkaServer) -> None:
    sentence = r"'sink' \(task \d\): topic no-such of Kafka at .*: .*[Uu]nknown topic"
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(
            KafkaSink(kafka.address, "no-such", options={"allow.auto.create.topics": False}),
            ["n"],
            [[1]],
        )
    name = topic(kafka)
    produce(kafka, name, ["a"])
    source = KafkaSource(kafka.address, name)
    bench: Any = Bench(source, {f"{name}/0": 77})
    sentence = rf"offset 77 of {name}/0 is out of range: .*; set lost=\"skip\""
    with pytest.raises(InvalidConfigError, match=sentence):
        bench.until(1)
    source.close()
    skipping = KafkaSource(kafka.address, name, lost="skip")
    assert [row[0] for row in Bench(skipping, {f"{name}/0": 77}).until(1)] == ['"a"']
    skipping.close()
    with pytest.raises(InvalidConfigError, match=r"options holds the secret sasl.password"):
        KafkaSource(kafka.address, name, options={"sasl.password": "x"})
    away = KafkaSource("127.0.0.1:9", name)
    bench = Bench(away)
    away._client._options["socket.connection.setup.timeout.ms"] = 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparkstorm.connectors.kafka.partitions.CALL_SECS", 0.2)
        bench.step(1)
    assert "cannot be reached: " in bench.errors[0] and "KafkaError" not in bench.errors[0]
    away.close()


SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "test"}


def test_a_wrong_password_is_one_sentence(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(kafka)
    produce(kafka, name, ["a"])
    monkeypatch.setenv("KAFKA_PASSWORD", "of-the-tests")
    source = KafkaSource(kafka.guarded, name, options=SASL, password_env="KAFKA_PASSWORD")
    assert [row[0] for row in Bench(source).until(1)] == ['"a"']
    source.close()
    sink = KafkaSink(kafka.guarded, name, options=SASL, password_env="KAFKA_PASSWORD")
    assert feed(sink, ["n"], [[1]]) == []
    assert read_all(kafka, name) == ["a", {"n": 1}]
    monkeypatch.setenv("KAFKA_PASSWORD", "wrong")
    monkeypatch.setattr("sparkstorm.connectors.kafka.partitions.CALL_SECS", 2.0)
    monkeypatch.setattr("sparkstorm.connectors.kafka.sink.CALL_SECS", 2.0)
    source = KafkaSource(kafka.guarded, name, options=SASL, password_env="KAFKA_PASSWORD")
    sentence = rf"Kafka at {kafka.guarded}, {name}: .*Authentication failed"
    with pytest.raises(InvalidConfigError, match=sentence):
        Bench(source).until(1)
    with pytest.raises(InvalidConfigError, match="Authentication failed"):
        source.next_tuple()  # and it stays so
    source.close()
    sentence = rf"topic {name} of Kafka at {kafka.guarded}: .*Authentication failed"
    sink = KafkaSink(kafka.guarded, name, options=SASL, password_env="KAFKA_PASSWORD")
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(sink, ["n"], [[1]])
    assert read_all(kafka, name) == ["a", {"n": 1}]


def test_a_topic_that_is_not_there_or_is_deleted_is_named(kafka: KafkaServer) -> None:
    off = {
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 200,
        "topic.metadata.propagation.max.ms": 200,
    }
    source = KafkaSource(kafka.address, "no-such", options=off)
    with pytest.raises(
        InvalidConfigError,
        match=r"^component 'sql', Kafka at .*: there is no topic no-such \(Broker: .*\); create it, or correct its",
    ):
        Bench(source).until(1)
    source.close()
    name = topic(kafka)
    produce(kafka, name, ["a", "b"])
    source = KafkaSource(kafka.address, name, options=off)
    bench: Any = Bench(source)
    assert [row[0] for row in bench.until(2)] == ['"a"', '"b"']
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.delete_topics([name])[name].result(20)
    with pytest.raises(
        InvalidConfigError,
        match=rf"^component 'sql', Kafka at .*: there is no topic {name} \(.*\); create it, or correct its",
    ):
        bench.until(1)
    source.close()
    del admin


def test_a_partition_that_is_added_is_read_from_its_beginning(kafka: KafkaServer) -> None:
    name = topic(kafka)
    produce(kafka, name, ["a"])
    source = KafkaSource(
        kafka.address, name, start="latest", options={"topic.metadata.refresh.interval.ms": 200}
    )
    bench: Any = Bench(source)
    bench.step()
    produce(kafka, name, ["b"])
    assert [row[0] for row in bench.until(1)] == ['"b"']
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(20)
    produce(kafka, name, ["c"], 1)
    bench.at_ms += 30_000
    assert [row[0] for row in bench.until(1)] == ['"c"']
    source.close()


def test_records_of_wrong_clocks_and_wrong_types_go_to_the_stream_bad(kafka: KafkaServer) -> None:
    name = topic(kafka)
    produce(
        kafka,
        name,
        [
            {"n": 1, "t": 5},
            {"n": 2, "t": 99_999_999},
            {"n": 3, "t": "x"},
            b'{"n": "4", "t": 6}',
            {"n": 5, "t": 7},
        ],
    )
    source = KafkaSource(
        kafka.address, name, {"n": "bigint", "t": "any"}, time="t", ahead_secs=60, follow=False
    )
    bench: Any = Bench(source)
    bench.emit = lambda values, message_id, stream="default": bench.rows.append((stream, *values))
    rows = bench.until(99)
    assert [row[1] for row in rows if row[0] == "default"] == [1, 5]
    reasons = [row[3] for row in rows if row[0] == "bad"]
    assert "ahead of this host's clock: one of the two clocks is wrong" in reasons[0]
    assert reasons[1] == "the time of the record is 'x', not a whole number of milliseconds"
    assert reasons[2] == "field 'n' is '4', not a whole number"
    source.close()


def test_a_poison_record_costs_itself_only(kafka: KafkaServer) -> None:
    name = topic(kafka)
    produce(
        kafka,
        name,
        [
            *({"t": str(n)} for n in range(20)),
            b'{"t": "\\ud800"}',
            *({"t": str(n)} for n in range(20, 40)),
            None,
        ],
    )
    rows, bad, builder = CaptureBolt(), CaptureBolt(), TopologyBuilder()
    builder.set_spout("kafka", KafkaSource(kafka.address, name, {"t": "string"}, follow=False))
    builder.set_bolt("rows", rows, inputs="kafka")
    builder.set_bolt("bad", bad, inputs="kafka:bad")
    with running(builder.build()) as cluster:
        cluster.run_until(lambda: len(rows.values) >= 40 and len(bad.values) >= 2)
    assert sorted(int(row[0]) for row in rows.values) == list(range(40))
    # a tombstone
    assert bad.values[1][0] == f"{name}/0/41" and "a tombstone" in bad.values[1][2]
    assert bad.values[0][0] == f"{name}/0/20" and "not valid UTF-8" in bad.values[0][2]


def test_partitions_are_read_in_step_by_event_time(kafka: KafkaServer) -> None:
    name = topic(kafka, 2)
    produce(kafka, name, [{"t": t} for t in range(0, 4000, 2)], 0)
    produce(kafka, name, [{"t": t} for t in range(1, 4000, 2)], 1)
    source = KafkaSource(kafka.address, name, {"t": "bigint"}, time="t", idle_secs=60, follow=False)
    rows = [row[0] for row in Bench(source).until(4000)]
    assert rows == list(range(4000))
    source.close()


def test_partitions_of_text_are_read_in_step_by_what_a_function_makes_of_a_record(
    kafka: KafkaServer,
) -> None:
    name = topic(kafka, 3)
    for partition in range(3):
        produce(kafka, name, [f"{t} line".encode() for t in range(partition, 3000, 3)], partition)
    produce(kafka, name, [b"no time"], 1)
    source = KafkaSource(
        kafka.address,
        name,
        time=lambda record: int(record["value"].split()[0]),
        idle_secs=60,
        follow=False,
    )
    bench: Any = Bench(source)
    bench.emit = lambda values, message_id, stream="default": bench.rows.append((stream, *values))
    rows = bench.until(3001)
    assert [row[1] for row in rows if row[0] == "default"] == [f"{t} line" for t in range(3000)]
    (bad,) = [row for row in rows if row[0] == "bad"]
    assert bad[3].startswith("time= raised ValueError: invalid literal for int()")
    source.close()


class Columns(ColumnBolt):
    """Emits the rows of its batches."""

    outputs = ("row",)

    def execute_batch(self, batch: Any, source: Source, collector: Any) -> None:
        for row in batch.to_pylist():
            collector.emit((tuple(row.values()),))


_ODD = [
    b"", b"{", b"[1]", b'{"n": 1.0}', b'{"n": 1e3}', b'{"n": true}', b'{"n": "1"}', b'{"n": 1} {"n": 2}', b'{"t": 1}', b"\xff",
    b'{"n": 1, "t": "\xff"}', b'{"t": "\\ud800"}', b'{"n": 2}{', b'}{"n": 3}', b'{"t": "a\n"}', b'{"n":', b'{"t":"}', b'","n":1}',
    b'{"n":{"n":1}', b'{"n":1}}', b'{"n": 18446744073709551616}', b' {"n": 5}\n', b'{"n": 6,\n"t": "x"}', b'{"n": 7, "n": 8}',
    b"{}", b'{"x": {"n": [1]}}', b'{"n": null, "d": 1}', b'{"n": 01}', b'{"b": "true"}', b'{"n": -0}', b"{}{}",
    b'{"d": 9007199254740993}', b'{"d": -9007199254740993}', b'{"d": 1e300}',
]  # fmt: skip
_META = meta_fields([], False, None)
_FIELDS = {"n": "bigint", "t": "string", "d": "double", "b": "boolean"}


def test_a_batch_is_what_its_rows_would_be_or_none() -> None:
    make, parse = batch_maker(_FIELDS, False, _META), json_parser(_FIELDS)
    assert make is not None and batch_maker({"n": "any"}, False, _META) is None
    made = 0
    for values in [*([value] for value in _ODD), *itertools.product(_ODD, repeat=2)]:
        batch = make(
            [Message("t", 0, n, b"k", value, timestamp=(1, 5)) for n, value in enumerate(values)]
        )
        if batch is None:
            continue
        rows = [tuple(row.values()) for row in batch[0].to_pylist()]
        assert rows == [(*parse(value), "k", "t", 0, n, 5) for n, value in enumerate(values)]
        made += 1
    assert made > 20


def test_a_column_bolt_gets_what_rows_would_be(kafka: KafkaServer) -> None:
    name = topic(kafka, 2)
    plain = [
        {"n": n, "t": f"\u00e9\U0001f600 {n}", "d": n / 2, "b": n % 2 == 0} for n in range(200)
    ]
    # no column holds it: it is parked
    odd = [value for value in _ODD if b"18446744073709551616" not in value]
    for number, value in enumerate(odd):
        produce(kafka, name, [value], number % 2)
    produce(kafka, name, plain)
    found = []
    for columns in (False, True):
        rows, bad, builder = CaptureBolt(), CaptureBolt(), TopologyBuilder()
        builder.set_spout("kafka", KafkaSource(kafka.address, name, _FIELDS))
        if columns:
            builder.set_bolt("columns", Columns(), inputs="kafka")
        builder.set_bolt("rows", rows, inputs="columns" if columns else "kafka")
        builder.set_bolt("bad", bad, inputs="kafka:bad")
        with running(builder.build()) as cluster:
            cluster.run_until(partial(_are_all, rows, bad, len(odd) + len(plain)))
        found.append(
            (
                sorted(
                    (tuple(row[0]) if columns else row for row in rows.values), key=itemgetter(6, 7)
                ),
                sorted(bad.values),
            )
        )
    assert found[0] == found[1] and len(found[0][0]) > len(plain)


def _are_all(rows: CaptureBolt, bad: CaptureBolt, most: int) -> bool:
    return len(rows.values) + len(bad.values) >= most


Record = tuple[Any, Any, Any, int]


def records_of(kafka: KafkaServer, name: str) -> list[Record]:
    """Return key, value, headers and time of every committed record."""
    own = {"group.id": "check", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer(
        {"bootstrap.servers": kafka.address, "auto.offset.reset": "earliest", **own}
    )
    consumer.assign([TopicPartition(name, 0, 0)])
    found: list[Record] = []
    while True:
        for message in consumer.consume(100, 1.0):
            if message.error():
                consumer.close()
                return found
            headers = message.headers() or []
            found.append((message.key(), message.value(), headers, message.timestamp()[1]))


ODD_RECORDS: list[Record] = [
    (b"\xff\x00", b"\xfe", [("trace", b"\xff"), ("trace", b"2"), ("empty", b""), ("none", None)], 5),
    (None, b"{}", [], 6),
    (b"gone", None, [("\u00e9", b"x")], 7),
    (b"", b"", [], 8),
]  # fmt: skip


def put(kafka: KafkaServer, name: str, records: list[Record]) -> None:
    producer = Producer({"bootstrap.servers": kafka.address})
    for key, value, headers, time_ms in records:
        producer.produce(name, value, key, timestamp=time_ms, headers=headers)
    assert producer.flush(20) == 0


def test_a_topic_is_copied_with_its_headers_bytes_and_tombstones_whatever_dies(
    kafka: KafkaServer,
) -> None:
    name = topic(kafka)
    put(kafka, name, ODD_RECORDS)
    source = KafkaSource(
        kafka.address, name, binary=True, binary_key=True, headers="headers", follow=False
    )
    rows = Bench(source).until(4)
    source.close()
    result = [list(row[6]) for row in rows]
    assert result == [[list(pair) for pair in headers] for _, _, headers, _ in ODD_RECORDS]
    fields = ["value", "key", "topic", "partition", "offset", "time_ms", "headers"]
    number, left = 0, Shared([0])
    while left.value[0] <= 0:
        target, left = topic(kafka), Shared([number])
        sink = KafkaSink(
            kafka.address, target, key="key", value="value", time="time_ms", headers="headers"
        )
        assert feed(CrashingSink(sink, left), fields, rows) == []
        assert records_of(kafka, target) == ODD_RECORDS, f"death at phase {number}"
        number += 1
    assert number > 4


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("tombstones", ["emit", "skip", "bad", None])
def test_tombstones_are_emitted_left_out_or_bad(
    kafka: KafkaServer, tombstones: str | None, columns: bool
) -> None:
    name = topic(kafka)
    put(kafka, name, [(b"a", b'{"n": 1}', [], 5), (b"a", None, [], 6)])
    put(kafka, name, [(b"b", b'{"n": 2}', [], 7), (b"b", None, [], 8)])
    rows, bad, builder = CaptureBolt(), CaptureBolt(), TopologyBuilder()
    source = KafkaSource(
        kafka.address, name, {"n": "bigint"}, tombstones=tombstones, binary_key=True, follow=False
    )
    builder.set_spout("kafka", source)
    if columns:
        builder.set_bolt("columns", Columns(), inputs="kafka")
    builder.set_bolt("rows", rows, inputs="columns" if columns else "kafka")
    builder.set_bolt("bad", bad, inputs="kafka:bad")
    emitted = {"emit": 4}.get(str(tombstones), 2)
    with running(builder.build()) as cluster:
        wanted = emitted if tombstones in ("emit", "skip") else 4
        cluster.run_until(lambda: len(rows.values) + len(bad.values) >= wanted)
        cluster.run_until_idle()
    found = [tuple(row[0]) if columns else row for row in rows.values]
    assert sorted((row[1], row[0]) for row in found if row[0] is not None) == [(b"a", 1), (b"b", 2)]
    assert sorted(row[1] for row in found if row[0] is None) == [b"a", b"b"][: emitted - 2]
    assert all("a tombstone" in row[2] for row in bad.values)
    assert len(bad.values) == (2 if tombstones in ("bad", None) else 0)


@pytest.mark.parametrize("time", [None, "n", lambda record: record["n"]])
def test_the_position_is_behind_tombstones_that_are_left_out(kafka: KafkaServer, time: Any) -> None:
    name = topic(kafka)
    tail: list[Record] = [(b"a", None, [], 6), (b"b", None, [], 7)]
    put(kafka, name, [(b"a", b'{"n": 5}', [], 5), *tail])
    source = KafkaSource(kafka.address, name, {"n": "bigint"}, tombstones="skip", time=time)
    bench: Any = Bench(source)
    assert [row[:2] for row in bench.until(1)] == [(5, "a")]
    wait_until(lambda: bench.step(100) == [] and source.snapshot() == {f"{name}/0": 3}, "it is")
    assert bench.kept[-1] == {f"{name}/0": 3} and bench.errors == []
    source.close()
    emitting = KafkaSource(
        kafka.address, name, {"n": "bigint"}, tombstones="emit", time=time, follow=False
    )
    found = Bench(emitting).until(3)
    result = [(row[0], row[1], row[5]) for row in found]
    assert result == [(5, "a", 5), (None, "a", 6), (None, "b", 7)]
    emitting.close()


def test_partitions_that_are_written_while_they_are_followed_are_in_step_if_ends_are_waited_for(
    kafka: KafkaServer,
) -> None:
    name = topic(kafka, 2)
    produce(kafka, name, [{"t": 10}], 0)
    source = KafkaSource(kafka.address, name, {"t": "bigint"}, time="t", end_wait_secs=60)
    bench: Any = Bench(source)
    for _ in range(5):
        assert bench.step(100) == []
    for time_ms, partition, wanted in ((5, 1, [5]), (20, 0, []), (12, 1, [10, 12]), (30, 1, [20])):
        produce(kafka, name, [{"t": time_ms}], partition)
        assert [row[0] for row in bench.until(len(wanted))] == wanted if wanted else True
    assert set(bench.gauges["behind_ms"]().values()) == {0}
    produce(kafka, name, [{"t": 35}, {"t": 32}], 0)
    produce(kafka, name, [{"t": 40}], 1)
    assert [row[0] for row in bench.until(3)] == [30, 35, 32]
    assert bench.gauges["behind_ms"]() == {f"{name}/0": 3, f"{name}/1": 0}
    source.close()


def test_a_row_without_values_is_a_tombstone_and_headers_are_none_of_the_values(
    kafka: KafkaServer,
) -> None:
    name = topic(kafka, config={"cleanup.policy": "compact"})
    sink = KafkaSink(kafka.address, name, key="k", time="at", headers="more", tombstones=True)
    rows: list[Any] = [
        ["a", 1, 5, {"by": "x", "raw": b"\xff", "none": None}],
        ["a", None, 6, [["by", "y"]]],
        ["b", 0, 7, None],
        ["b", 1, 8, "text"],
        ["b", 1, 9, [["by", 5]]],
        ["b", 1, 10, [["by", "x" * 1_100_000]]],
    ]
    letters = feed(sink, ["k", "n", "at", "more"], rows)
    assert records_of(kafka, name) == [
        (b"a", b'{"k":"a","n":1,"at":5}', [("by", b"x"), ("raw", b"\xff"), ("none", None)], 5),
        (b"a", None, [("by", b"y")], 6),
        (b"b", b'{"k":"b","n":0,"at":7}', [], 7),
    ]
    reasons = {letter.values[2]: letter.reason for letter in letters}
    assert reasons.keys() == {8, 9, 10} and "too large" in reasons[10]
    assert "field 'more' has 'text', no header: [name, bytes or text]" in reasons[8]
    assert "field 'more' has a int as header 'by'; a header is bytes or text" in reasons[9]


def test_a_table_follows_a_compacted_topic(kafka: KafkaServer, tmp_path: Path) -> None:
    name = topic(kafka, config={"cleanup.policy": "compact"})
    changes: list[Record] = [
        (b"%d" % (n % 5), None if n % 7 == 3 else b'{"n": %d}' % n, [], 5 + n) for n in range(40)
    ]
    put(kafka, name, changes)
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE latest (key TEXT PRIMARY KEY, n INTEGER)")
        builder = TopologyBuilder()
        source = KafkaSource(kafka.address, name, {"n": "bigint"}, tombstones="emit", follow=False)
        builder.set_spout("changes", source)
        table = SqlSink(f"sqlite:///{path}", "latest", ["key", "n"], key="key")
        builder.set_bolt("latest", table).fields_grouping("changes", "key")
        wanted = {key.decode(): json.loads(value)["n"] for key, value, _, _ in changes if value}
        for key in {key.decode() for key, value, _, _ in changes[-5:] if value is None}:
            del wanted[key]

        def is_there() -> bool:
            rows = database.execute("SELECT key, n FROM latest").fetchall()
            return dict(rows) == wanted

        with running(builder.build(), {"topology.epoch.rows": 3}) as cluster:
            cluster.run_until(is_there)
            assert cluster.dead_letters == []


def test_a_row_of_a_key_alone_is_no_tombstone() -> None:
    sink = KafkaSink("h:1", "t", key="k", time="at", tombstones=True)
    sink.open({}, cast(Any, SimpleNamespace(topology_id="t", component_id="c", task_index=0)))
    source = Source("rows", 1, "default", ("k", "at"))
    sink.write(Tuple(("a", 5), 0, source))
    assert sink._rows == [["a", '{"k":"a","at":5}', 5]]


def test_wrong_names_of_headers_and_tombstones_are_one_sentence() -> None:
    for options, sentence in (
        ({"headers": "topic"}, "'topic' is the name of two fields of a tuple"),
        ({"headers": "n"}, "'n' is the name of two fields of a tuple"),
        ({"tombstones": "drop"}, "tombstones is one of emit, skip, bad, not 'drop'"),
        ({"end_wait_secs": "5"}, "end_wait_secs is '5'; write a number of at least 0"),
        ({"idle_secs": -1}, "idle_secs is -1; write a number of at least 0"),
        ({"ahead_secs": "5"}, "ahead_secs is '5'; write a number"),
        ({"binary": True}, "binary has the value as bytes, which fields take apart; drop one"),
        ({"follow": "no"}, "follow is 'no'; write follow=True or follow=False"),
        ({"headers": 5}, "headers is 5; write the name of the field that gets them"),
        ({"registry": "http://r"}, r"registry is 'http://r'; write SchemaRegistry\(url\)"),
        ({"options": 5}, "options is 5; write librdkafka's options by name"),
        ({"options": {"auto.offset.reset": "latest"}}, "options holds auto.offset.reset, which wo"),
        (
            {"options": {"group.id": "g"}},
            "options holds group.id, which would have no effect: no gr",
        ),
    ):
        with pytest.raises(InvalidConfigError, match=f"^KafkaSource: {sentence}"):
            KafkaSource("h:1", "t", {"n": "bigint"}, **cast(Any, options))
    for arguments, sentence in (
        ((5, "t"), "servers is 5; write 'host:port'"),
        (("h:1", 5), "topics is 5; write a name, or a list"),
        (("h:1", "t", 5), "fields is 5; write a list of names, or types by name"),
        (("h:1", "t", "value"), "fields is 'value'; write a list of names, or types by name"),
    ):
        with pytest.raises(InvalidConfigError, match=f"^KafkaSource: {sentence}"):
            KafkaSource(*cast(Any, arguments))
    for options in ({}, {"key": "k", "value": "v"}):
        with pytest.raises(InvalidConfigError, match=r"^KafkaSink: tombstones needs a key, and no"):
            KafkaSink("h:1", "t", tombstones=True, **cast(Any, options))


def test_a_full_disk_of_the_broker_is_waited_for_and_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_sink, "CALL_SECS", 4.0)
    with disk_of("24m") as folder:
        server = KafkaServer(folder)
        server.start()
        keep_children()
        try:
            name = topic(server)

            def relieve() -> None:  # a broker whose disk was full has ended itself
                make_room()
                server.kill()
                server.start()

            relieved = Relieved(KafkaSink(server.address, name), relieve)
            make_room = fill(folder)
            write(relieved, ROWS)
            refusals = relieved.refusals.value
            assert len(refusals) >= 2 and all(
                "Broker transport failure" in each or "Timed out" in each for each in refusals
            )
            assert [(row["n"], row["text"]) for row in read_all(server, name)] == ROWS
        finally:
            server.stop()


def test_a_table_follows_debezium_in_a_join_live_as_in_a_replay(kafka: KafkaServer) -> None:
    name = topic(kafka)
    records = [record for record in RECORDS if record["topic"] == "plain.public.users"]
    put(kafka, name, [(r["key"] and r["key"].encode(), r["value"] and r["value"].encode(), [], 5) for r in records])  # fmt: skip
    changes = KafkaSource(
        kafka.address,
        name,
        {"id": "bigint", "name": "string"},
        changes=Debezium(),
        follow=False,
    )
    located = (
        AsOfJoinBolt("orders", key="user")
        .left_join("users", key="id", deletes={"op": "delete"})
        .select("user", "orders:at_ms as at", "name")
        .with_timestamp_field("at_ms")
        .with_lag(Duration.hours(1))  # the records' partitions were others here
        .with_late_tuple_stream("late")
    )
    builder = TopologyBuilder()
    builder.set_spout("orders", FeederSpout({"user": "bigint", "at_ms": "bigint"}))
    builder.set_spout("users", changes)
    builder.set_bolt("located", located, parallelism=2, inputs=["orders", "users"])
    builder.set_bolt("bad", CaptureBolt(), inputs="users:bad")
    topology = builder.build()
    end_ms = 1_795_987_040_000
    orders = [[user, at_ms] for at_ms in (1_795_987_024_000, end_ms) for user in (1, 2, 3, 4, 5)]
    live = complete_topology(topology, {"orders": orders})
    assert sorted(live["located"], key=str) == sorted(
        [
            *((1, orders[0][1], "ann"), (2, orders[0][1], "bob")),
            *((user, orders[0][1], None) for user in (3, 4, 5)),
            *((1, end_ms, None), (2, end_ms, None), (3, end_ms, "cyd")),
            *((4, end_ms, None), (5, end_ms, "dan")),
        ],
        key=str,
    )
    [(_, _, reason)] = live.values("users", "bad")
    assert "a truncation" in reason
    rows = {"orders": orders, "users": [list(row) for row in live["users"]]}
    replayed = replay_locally(topology, rows, event_time="at_ms")
    assert sorted(replayed["located"]) == sorted(live["located"])


def test_rows_in_avro_are_there_once_whatever_dies_and_columns_come_as_rows(
    kafka: KafkaServer,
) -> None:
    fields = [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]
    schema = json.dumps({"type": "record", "name": "Row", "fields": fields})
    wanted = [(n, f"text {n}") for n in range(4)]
    with serve() as registry:
        place = SchemaRegistry(registry.url)

        def make(number: int) -> tuple[TransactionalSink, Callable[[], None]]:
            name = topic(kafka)

            def check() -> None:
                found = [value and value[:5] for _, value, _, _ in records_of(kafka, name)]
                assert found == [b"\0\0\0\0\1"] * 4
                kinds = {"n": "bigint", "text": "string"}
                source = KafkaSource(kafka.address, name, kinds, registry=place, follow=False)
                builder = TopologyBuilder()
                builder.set_spout("rows", source)
                builder.set_bolt("columns", Columns(), inputs="rows")
                done = complete_topology(builder.build())
                assert sorted(row[:2] for row in done["rows"]) == wanted
                assert sorted(tuple(row[0][:2]) for row in done["columns"]) == wanted

            return KafkaSink(kafka.address, name, registry=place, schema=schema), check

        assert die_everywhere(make, rows=4) > 4


def test_values_by_a_registry_go_there_and_back_and_wait_while_it_is_away(
    kafka: KafkaServer,
) -> None:
    name = topic(kafka)
    fields = [("user", "string"), ("n", ["null", "long"]), ("at_ms", "long")]
    schema = {"type": "record", "name": "Click"}
    schema["fields"] = [{"name": name, "type": kind} for name, kind in fields]  # type: ignore[assignment]
    with serve() as registry:
        place = SchemaRegistry(registry.url)
        sink = KafkaSink(
            kafka.address,
            name,
            key="user",
            time="at_ms",
            registry=place,
            schema=json.dumps(schema),
            tombstones=True,
        )
        rows: list[list[Any]] = [
            ["ann", 1 << 60, 5],
            ["bob", "x", 6],
            ["ann", None, 7],
            ["cid", 3, 8],
        ]
        letters = feed(sink, ["user", "n", "at_ms"], rows)
        assert [letter.values for letter in letters] == [("bob", "x", 6)]
        assert "does not fit the schema Click" in letters[0].reason
        assert registry.subjects == {f"{name}-value": [1]}
        produce(kafka, name, [b"\0\0\0\0\x63x", b"{}", b"\0\0\0\0\x01\x80"])
        registry.status = 503
        source = KafkaSource(
            kafka.address,
            name,
            {"user": "string", "n": "bigint", "at_ms": "bigint"},
            registry=place,
            time="at_ms",
            tombstones="skip",
            follow=False,
        )
        bench: Any = Bench(source)
        bench.emit = lambda values, message_id, stream="default": bench.rows.append(
            (stream, *values)
        )
        wait_until(lambda: not bench.step() and bench.errors, "the registry is away")
        assert f"Schema Registry at {registry.url} cannot be reached: not now" in bench.errors[0]
        assert source.snapshot() == {} and not source.is_exhausted()
        registry.status = 0
        found = bench.until(99)
        assert source.snapshot() == {f"{name}/0": source.extent()[0]}
        source.close()
    result = [row[1:4] for row in found if row[0] == "default"]
    assert result == [("ann", 1 << 60, 5), ("cid", 3, 8)]
    reasons = [row[3] for row in found if row[0] == "bad"]
    assert "its schema 99 is not in the Schema Registry" in reasons[0]
    assert "no registry's format" in reasons[1] and "none of AVRO schema 1" in reasons[2]
