"""KafkaSource and KafkaSink on a real broker: records once over restarts and deaths, JSON, partitions, mistakes."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from sparkstorm.api import TransactionalSink
from sparkstorm.connectors import KafkaSink, KafkaSource
from sparkstorm.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.testing.system.kafka import KafkaServer
from tests.connectors.mortal import die_everywhere, feed
from tests.connectors.test_sql import Bench as SqlBench
from tests.leaks import keep_children

pytestmark = pytest.mark.system
names = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    server.start()
    keep_children()
    yield server
    server.stop()


def topic(kafka: KafkaServer, partitions: int = 1) -> str:
    name = next(names)
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
    return name


def produce(kafka: KafkaServer, name: str, values: list[Any], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.address})
    for value in values:
        producer.produce(name, value if isinstance(value, bytes) else json.dumps(value), f"key-{value}"[:9], partition, timestamp=5)
    assert producer.flush(20) == 0


def read_all(kafka: KafkaServer, name: str, partitions: int = 1) -> list[Any]:
    """Every committed record of a topic, by a consumer of its own."""
    own = {"group.id": "check", "isolation.level": "read_committed", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
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
        """Step until so many rows have come, or long enough: a busy broker takes seconds to answer."""
        found: list[Any] = []
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found += self.step(100)  # a source that met a busy server rests for a second of this clock
            if len(found) >= rows or self.source.is_exhausted():
                break
        return found


def test_records_come_once_with_key_and_time_over_restarts_and_new_partitions(kafka: KafkaServer) -> None:
    name = topic(kafka, 2)
    produce(kafka, name, [{"n": 1}, {"n": 2}])
    produce(kafka, name, [{"n": 3}, b"{", {"n": "x"}], 1)
    source = KafkaSource(kafka.address, name, {"n": "bigint"}, follow=False)
    bench: Any = Bench(source)  # type: ignore[arg-type]
    bench.emit = lambda values, message_id, stream="default": bench.rows.append((stream, *values))
    rows = bench.until(99)
    assert [row for row in rows if row[0] == "default" and row[4] == 0] == [
        ("default", 1, "key-{'n':", name, 0, 0, 5),
        ("default", 2, "key-{'n':", name, 0, 1, 5),
    ]
    assert sorted(row[3] for row in rows if row[0] == "bad")[1].startswith("it is no JSON")
    assert source.is_exhausted() and len(bench.errors) == 2
    position = source.snapshot()
    assert position == {f"{name}/0": 2, f"{name}/1": 3}
    source.close()
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_partitions([NewPartitions(name, 3)])[name].result(20)
    produce(kafka, name, [{"n": 4}], 0)
    produce(kafka, name, [{"n": 5}], 2)
    again = KafkaSource(kafka.address, name, ["n"])
    bench = Bench(again, position)  # type: ignore[arg-type]
    assert sorted(row[0] for row in bench.until(2)) == [4, 5]
    again.close()


def test_a_start_may_be_a_time_or_the_end(kafka: KafkaServer) -> None:
    name = topic(kafka)
    produce(kafka, name, ["a"])
    for start, wanted in ((6, []), (5, ['"a"']), ("latest", []), ("earliest", ['"a"'])):
        source = KafkaSource(kafka.address, name, start=start, follow=False)
        bench: Any = Bench(source)  # type: ignore[arg-type]
        assert [row[0] for row in bench.until(99)] == wanted, start
        source.close()


def test_rows_are_in_the_topic_once_whatever_dies(kafka: KafkaServer) -> None:
    def make(number: int) -> tuple[TransactionalSink, Callable[[], None]]:
        name = topic(kafka)

        def check() -> None:
            assert read_all(kafka, name) == [{"n": n, "text": f"text {n}"} for n in range(4)]

        return KafkaSink(kafka.address, name, key="text"), check

    assert die_everywhere(make, rows=4) > 4


def test_a_record_that_kafka_refuses_is_parked(kafka: KafkaServer) -> None:
    name = topic(kafka)
    letters = feed(KafkaSink(kafka.address, name), ["text"], [["a"], ["x" * 1_100_000], ["b"]])
    assert read_all(kafka, name) == [{"text": "a"}, {"text": "b"}]
    assert len(letters) == 1 and "too large" in letters[0].reason


def test_mistakes_are_one_sentence(kafka: KafkaServer) -> None:
    with pytest.raises(WorkerFailedError, match=r"'sink' \(task \d\): topic no-such of Kafka at .*: .*[Uu]nknown topic"):
        feed(KafkaSink(kafka.address, "no-such", options={"allow.auto.create.topics": False}), ["n"], [[1]])
    name = topic(kafka)
    produce(kafka, name, ["a"])
    source = KafkaSource(kafka.address, name)
    bench: Any = Bench(source, {f"{name}/0": 77})  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match=rf"offset 77 of {name}/0 is out of range: .*; set lost=\"skip\""):
        bench.until(1)
    source.close()
    skipping = KafkaSource(kafka.address, name, lost="skip")
    assert [row[0] for row in Bench(skipping, {f"{name}/0": 77}).until(1)] == ['"a"']  # type: ignore[arg-type]
    skipping.close()
    with pytest.raises(InvalidConfigError, match=r"options holds the secret sasl.password"):
        KafkaSource(kafka.address, name, options={"sasl.password": "x"})
    away = KafkaSource("127.0.0.1:9", name)
    bench = Bench(away)  # type: ignore[arg-type]
    away._client._options["socket.connection.setup.timeout.ms"] = 1000
    import sparkstorm.connectors.kafka as module

    before, module._CALL_SECS = module._CALL_SECS, 0.2
    try:
        bench.step(1)
    finally:
        module._CALL_SECS = before
    assert "cannot be reached" in bench.errors[0]
    away.close()
