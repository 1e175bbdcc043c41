"""Rows per second of connectors beside the bare client library, in one process and over the same servers.

    python -m benchmarks.connectors [ROWS]

A connector's task is driven by hand, without a worker: what is measured is the connector's own cost, not that of the topology.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from sparkstorm.api import Source, TransactionalSink, Tuple
from sparkstorm.connectors import Files, FileSink, KafkaSink, KafkaSource, SqlSink
from sparkstorm.testing.system.kafka import KafkaServer
from sparkstorm.testing.system.postgres import PASSWORD, PostgresServer

_RUNS = 3
_EPOCH_ROWS = 4096
_FILE_ROWS = 50_000


class Task:
    """Context and collector of one task."""

    topology_id, component_id, task_index, peers = "bench-1-1", "bench", 0, (0,)

    def __init__(self, column_streams: frozenset[str] = frozenset()) -> None:
        self.rows, self.column_streams = 0, column_streams

    def now_ms(self) -> int:
        """Return the time."""
        return time.time_ns() // 1_000_000

    def report_error(self, error: BaseException | str) -> None:
        """Raise what a source only reports."""
        raise RuntimeError(error)

    def emit(self, values: Any, message_id: Any, stream: str = "default") -> None:
        """Count a row."""
        self.rows += 1

    def emit_batch(self, batch: Any, message_id: Any, stream: str = "default") -> None:
        """Count its rows."""
        self.rows += batch.num_rows


def read(spout: Any, rows: int, *column_streams: str) -> None:
    """Drive a source until so many rows have come."""
    task = Task(frozenset(column_streams))
    spout.open({}, task, task)
    while task.rows < rows:
        spout.next_tuple()
    spout.close()


def write(sink: TransactionalSink, tuples: Sequence[Tuple], epoch_rows: int = _EPOCH_ROWS) -> None:
    """Drive a sink through epochs; it gets its tuples in blocks, as from a loaded worker."""
    task: Any = Task()
    sink.open({}, task)
    sink.recover(0, None)
    takes_many = type(sink).write_all is not TransactionalSink.write_all
    for epoch, first in enumerate(range(0, len(tuples), epoch_rows), time.time_ns()):
        sink.begin(epoch)
        last = min(len(tuples), first + epoch_rows)
        for start in range(first, last, _EPOCH_ROWS):
            block = tuples[start : min(last, start + _EPOCH_ROWS)]
            if takes_many:
                sink.write_all(block)
            else:
                for tup in block:
                    sink.write(tup)
        sink.commit(epoch, sink.prepare(epoch))
    sink.cleanup()


def make_tuples(rows: int) -> list[Tuple]:
    """Return tuples as a worker has them when it calls a sink."""
    source = Source("feed", 1, "default", ("n", "text"))
    return [Tuple((n, f"text {n}"), 0, source) for n in range(rows)]


def fastest(run: Callable[[], None]) -> float:
    """Return the seconds of the fastest of some runs."""
    taken = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return min(taken)


def show(name: str, rows: int, bare: Callable[[], None], own: Callable[[], None]) -> None:
    """Print a line: rows per second of the bare library and of the connector, and their ratio."""
    theirs, ours = fastest(bare), fastest(own)
    print(f"{name:<24}{rows / theirs:>12,.0f}/s{rows / ours:>12,.0f}/s{theirs / ours:>8.2f}", flush=True)


def bench_files(folder: Path, tuples: Sequence[Tuple]) -> None:
    """JSON lines and Parquet in; Parquet out, in files of as many rows as a FileSink writes under load."""
    rows = len(tuples)
    log = folder / "a.jsonl"
    log.write_text("".join(f'{{"n": {n}, "text": "text {n}"}}\n' for n in range(rows)))
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])

    def bare_read() -> None:
        with log.open("rb") as lines:
            for line in lines:
                found = json.loads(line)
                (found["n"], found["text"])

    def bare_write() -> None:
        for first in range(0, rows, _FILE_ROWS):
            part = [tup.values for tup in tuples[first : first + _FILE_ROWS]]
            table = pa.Table.from_arrays(
                [pa.array(c, f.type) for c, f in zip(zip(*part, strict=True), schema, strict=True)], schema=schema
            )
            pq.write_table(table, folder / f"bare-{first}.parquet")

    def bare_parquet() -> None:
        for first in range(0, rows, _FILE_ROWS):
            for batch in pq.ParquetFile(folder / f"bare-{first}.parquet").iter_batches(1024):
                list(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def bare_batches() -> None:
        for first in range(0, rows, _FILE_ROWS):
            for batch in pq.ParquetFile(folder / f"bare-{first}.parquet").iter_batches(1024):
                assert batch.num_rows

    fields = {"n": "bigint", "text": "string"}
    show("JSON lines in", rows, bare_read, lambda: read(Files(str(log), "json", fields), rows))
    sink = partial(FileSink, folder / "out", schema=schema, target_bytes=0)
    show("Parquet out", rows, bare_write, lambda: write(sink(), tuples, _FILE_ROWS))
    parquet = partial(Files, str(folder / "bare-*.parquet"), "parquet", fields)
    show("Parquet in, rows", rows, bare_parquet, lambda: read(parquet(), rows))
    show("Parquet in, batches", rows, bare_batches, lambda: read(parquet(), rows, "default"))


def bench_kafka(server: KafkaServer, tuples: Sequence[Tuple]) -> None:
    """Records in; transactions out."""
    rows = len(tuples)
    admin, number = AdminClient({"bootstrap.servers": server.address}), iter(range(1000))
    for topic in admin.create_topics([NewTopic("bare", 3, 1), NewTopic("own", 3, 1), NewTopic("in", 3, 1)]).values():
        topic.result(20)

    filler = Producer({"bootstrap.servers": server.address})
    for tup in tuples:
        filler.produce("in", json.dumps({"n": tup.values[0], "text": tup.values[1]}))
        filler.poll(0)
    filler.flush(60)

    def bare_write() -> None:
        producer = Producer({"bootstrap.servers": server.address, "transactional.id": f"bare-{next(number)}", "linger.ms": 2})
        producer.init_transactions()
        for first in range(0, rows, _EPOCH_ROWS):
            producer.begin_transaction()
            for tup in tuples[first : first + _EPOCH_ROWS]:
                producer.produce("bare", json.dumps({"n": tup.values[0], "text": tup.values[1]}))
                producer.poll(0)
            producer.commit_transaction()

    def bare_read() -> None:
        consumer = Consumer({"bootstrap.servers": server.address, "group.id": "bare", "enable.auto.commit": False})
        consumer.assign([TopicPartition("in", p, 0) for p in range(3)])
        seen = 0
        while seen < rows:
            for message in consumer.consume(500, 1.0):
                found = json.loads(message.value() or b"")
                place = message.key(), message.topic(), message.partition(), message.offset(), message.timestamp()[1]
                (found["n"], found["text"], *place)  # as the source's tuples
                seen += 1
        consumer.close()

    show("Kafka out", rows, bare_write, lambda: write(KafkaSink(server.address, "own"), tuples))
    show("Kafka in", rows, bare_read, lambda: read(KafkaSource(server.address, "in", {"n": "bigint", "text": "string"}), rows))


def bench_sql(server: PostgresServer, tuples: Sequence[Tuple]) -> None:
    """Inserts into PostgreSQL."""
    rows = len(tuples)
    server.run("CREATE TABLE bare (n BIGINT, text TEXT)", "CREATE TABLE own (n BIGINT, text TEXT)")

    def bare() -> None:
        with psycopg.connect(f"postgresql://postgres:{PASSWORD}@127.0.0.1:{server.port}/postgres") as connection:
            for first in range(0, rows, _EPOCH_ROWS):
                part = [tup.values for tup in tuples[first : first + _EPOCH_ROWS]]
                connection.cursor().executemany("INSERT INTO bare VALUES (%s, %s)", part)
                connection.commit()

    show("PostgreSQL out", rows, bare, lambda: write(SqlSink(server.url, "own", password_env="BENCH_PASSWORD"), tuples))


def main(rows: int) -> None:
    """Print the table."""
    os.environ["BENCH_PASSWORD"] = PASSWORD
    print(f"{rows:,} rows, best of {_RUNS}\n{'':<24}{'bare library':>14}{'connector':>14}   ratio")
    tuples = make_tuples(rows)
    with tempfile.TemporaryDirectory() as folder:
        bench_files(Path(folder), tuples)
        postgres = PostgresServer()
        postgres.start()
        try:
            bench_sql(postgres, tuples)
        finally:
            postgres.stop()
        kafka = KafkaServer(Path(folder, "kafka"))
        kafka.start()
        try:
            bench_kafka(kafka, tuples)
        finally:
            kafka.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connectors", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="?", type=int, default=100_000, help="of each measurement; default: %(default)s")
    main(parser.parse_args().rows)
