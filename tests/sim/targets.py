"""Targets outside the store, to which a trial's sink writes numbers exactly once: SQLite,
PostgreSQL, Kafka.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from sparkstorm.api import TransactionalSink
from sparkstorm.connectors import KafkaSink, SqlSink

_TABLE = "CREATE TABLE numbers (number BIGINT NOT NULL)"
_ROWS = "SELECT number, count(*) FROM numbers GROUP BY number"
_PASSWORD = "OF_THE_TARGET"


@dataclass(frozen=True)
class Target:
    """A sink, and what its target has: how often each number."""

    sink: TransactionalSink
    read: Callable[[], Counter[int]]


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[Target]:
    """A table of a SQLite file."""
    file = folder / "numbers.db"

    def ask(statement: str) -> Counter[int]:
        with contextlib.closing(sqlite3.connect(file, timeout=60)) as connection, connection:
            return Counter(dict(connection.execute(statement)))

    ask(_TABLE)
    yield Target(SqlSink(f"sqlite:///{file}", "numbers", ["number"]), lambda: ask(_ROWS))


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[Target]:
    """Its own table PostgreSQL."""
    from sparkstorm.testing.servers import PostgresServer

    with PostgresServer() as server, patch.dict(os.environ, {_PASSWORD: "of-the-tests"}):
        server.run(_TABLE)
        sink = SqlSink(server.url, "numbers", ["number"], password_env=_PASSWORD)
        yield Target(sink, lambda: Counter(dict(server.run(_ROWS))))


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[Target]:
    """Its own topic Kafka, read as a consumer with `read_committed` does."""
    from confluent_kafka import Consumer, TopicPartition

    from sparkstorm.testing.servers import KafkaServer

    with KafkaServer(folder / "kafka") as server:
        server.create_topic("numbers")

        def read() -> Counter[int]:
            own = {
                "bootstrap.servers": server.address,
                "group.id": "check",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
            consumer = Consumer(own)
            consumer.assign([TopicPartition("numbers", 0, 0)])
            count_by_number: Counter[int] = Counter()
            with contextlib.closing(consumer):
                while True:
                    for message in consumer.consume(1000, 1.0):
                        if message.error():  # the end of the partition
                            return count_by_number
                        count_by_number[json.loads(message.value() or b"")["number"]] += 1

        yield Target(KafkaSink(server.address, "numbers"), read)


TARGETS: dict[str, Callable[[Path], AbstractContextManager[Target]]] = {
    "sqlite": sqlite,
    "postgres": postgres,
    "kafka": kafka,
}
