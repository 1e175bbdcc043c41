"""Rows per second of connectors next to the bare client library, in one process and over the same
servers.

    python -m benchmarks.connectors [--rows ROWS] [GROUP ...]

A connector's task is driven by hand, without a worker: what is measured is the connector's own
cost, not that of the topology. Library and connector take turns; the figures are medians, and the
ratio that of each turn.
"""

from __future__ import annotations

import argparse
import gc
import http.client
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import psycopg
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

from benchmarks import connectors_http
from sparkstorm import connectors
from sparkstorm.api import Source, TransactionalSink, Tuple
from sparkstorm.extensions.embedded import start_redis
from sparkstorm.testing.servers import KafkaServer, PostgresServer
from sparkstorm.testing.servers.postgres import PASSWORD

_RUNS = 5
_EPOCH_ROWS = 4096
_FILE_ROWS = 50_000
_REQUEST_ROWS = 100
_FIELDS = {"n": "bigint", "text": "string"}
_SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Task:
    """Context and collector of one task."""

    topology_id = "bench-1-1"
    component_id = "bench"
    task_index = 0
    peers = (0,)
    incarnation = "bench"

    def __init__(self, column_streams: frozenset[str] = frozenset()) -> None:
        self.rows = 0
        self.column_streams = column_streams

    def now_ms(self) -> int:
        """Return the time."""
        return time.time_ns() // 1_000_000

    def register_gauge(self, name: str, function: Callable[[], float]) -> None:
        """Take a metric that is not asked for."""

    def keep_position(self, message_id: Any) -> None:
        """Commit no position."""

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


def show(name: str, rows: int, bare: Callable[[], None], own: Callable[[], None]) -> None:
    """Print a line: rows per second of the bare library and of the connector, and their ratio with
    its range.
    """
    taken = [(_seconds(bare), _seconds(own)) for _ in range(_RUNS)]
    theirs, ours = (rows / median(seconds) for seconds in zip(*taken, strict=True))
    ratios = sorted(bare_s / own_s for bare_s, own_s in taken)
    print(
        f"{name:<24}{theirs:>12,.0f}/s{ours:>12,.0f}/s{median(ratios):>8.2f}  ({ratios[0]:.2f}-{ratios[-1]:.2f})",
        flush=True,
    )


def _seconds(run: Callable[[], None]) -> float:
    gc.collect()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def write_log(folder: Path, rows: int) -> Path:
    """Return a file of JSON lines."""
    log = folder / "a.jsonl"
    log.write_text("".join(f'{{"n": {n}, "text": "text {n}"}}\n' for n in range(rows)))
    return log


def table_of(tuples: Sequence[Tuple]) -> pa.Table:
    """Return tuples as a table, made of parts that fit into the processor's caches."""
    batches = []
    for first in range(0, len(tuples), _EPOCH_ROWS):
        columns = zip(*[tup.values for tup in tuples[first : first + _EPOCH_ROWS]], strict=True)
        batches.append(
            pa.record_batch(
                [pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
            )
        )
    return pa.Table.from_batches(batches)


def bench_files(folder: Path, tuples: Sequence[Tuple]) -> None:
    """JSON lines and Parquet in; Parquet out, in files of as many rows as a FileSink writes under
    load.
    """
    rows = len(tuples)
    log = write_log(folder, rows)
    schema = _SCHEMA

    def bare_read() -> None:
        with log.open("rb") as lines:
            for line in lines:
                record = json.loads(line)
                (record["n"], record["text"])

    def bare_write() -> None:
        for first in range(0, rows, _FILE_ROWS):
            pq.write_table(
                table_of(tuples[first : first + _FILE_ROWS]), folder / f"bare-{first}.parquet"
            )

    def bare_parquet() -> None:
        for first in range(0, rows, _FILE_ROWS):
            for batch in pq.ParquetFile(folder / f"bare-{first}.parquet").iter_batches(1024):
                list(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def bare_batches() -> None:
        for first in range(0, rows, _FILE_ROWS):
            for batch in pq.ParquetFile(folder / f"bare-{first}.parquet").iter_batches(1024):
                assert batch.num_rows

    fields = _FIELDS
    show(
        "JSON lines in",
        rows,
        bare_read,
        lambda: read(connectors.Files(str(log), "json", fields), rows),
    )
    sink = partial(connectors.FileSink, folder / "out", schema=schema, target_bytes=0)
    show("Parquet out", rows, bare_write, lambda: write(sink(), tuples, _FILE_ROWS))
    parquet = partial(connectors.Files, str(folder / "bare-*.parquet"), "parquet", fields)
    show("Parquet in, rows", rows, bare_parquet, lambda: read(parquet(), rows))
    show("Parquet in, batches", rows, bare_batches, lambda: read(parquet(), rows, "default"))


def bench_kafka(folder: Path, tuples: Sequence[Tuple]) -> None:
    """Records in, four times as many, since a consumer needs 0.2 s to begin; transactions out."""
    with KafkaServer(folder / "kafka") as server:
        _bench_kafka(server, tuples)


def _bench_kafka(server: KafkaServer, tuples: Sequence[Tuple]) -> None:
    rows = len(tuples)
    number = iter(range(1000))
    _make_topics(server, tuples)

    def bare_write() -> None:
        producer = Producer(
            {
                "bootstrap.servers": server.address,
                "transactional.id": f"bare-{next(number)}",
                "linger.ms": 2,
            }
        )
        producer.init_transactions()
        for first in range(0, rows, _EPOCH_ROWS):
            producer.begin_transaction()
            for tup in tuples[first : first + _EPOCH_ROWS]:
                producer.produce("bare", json.dumps({"n": tup.values[0], "text": tup.values[1]}))
                producer.poll(0)
            producer.commit_transaction()

    def bare_read() -> None:
        consumer = Consumer(
            {"bootstrap.servers": server.address, "group.id": "bare", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition("in", p, 0) for p in range(3)])
        seen = 0
        while seen < 4 * rows:
            for message in consumer.consume(500, 1.0):
                record = json.loads(message.value() or b"")
                origin = (
                    message.key(),
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                )
                (record["n"], record["text"], *origin)  # as the source's tuples
                seen += 1
        consumer.close()

    show(
        "Kafka out",
        rows,
        bare_write,
        lambda: write(connectors.KafkaSink(server.address, "own"), tuples),
    )
    source = partial(connectors.KafkaSource, server.address, "in", _FIELDS)
    show("Kafka in, rows", 4 * rows, bare_read, lambda: read(source(), 4 * rows))
    show("Kafka in, batches", 4 * rows, bare_read, lambda: read(source(), 4 * rows, "default"))


def _make_topics(server: KafkaServer, tuples: Sequence[Tuple]) -> None:
    """Create topics, empty ones to write into and one that has all tuples four times."""
    admin = AdminClient({"bootstrap.servers": server.address})
    for topic in admin.create_topics(
        [NewTopic("bare", 3, 1), NewTopic("own", 3, 1), NewTopic("in", 3, 1)]
    ).values():
        topic.result(20)
    filler = Producer({"bootstrap.servers": server.address})
    for _ in range(4):
        for tup in tuples:
            filler.produce("in", json.dumps({"n": tup.values[0], "text": tup.values[1]}))
            filler.poll(0)
        filler.flush(60)


def bench_sql(folder: Path, tuples: Sequence[Tuple]) -> None:
    """Inserts into PostgreSQL."""
    with PostgresServer() as server:
        _bench_sql(server, tuples)


def _bench_sql(server: PostgresServer, tuples: Sequence[Tuple]) -> None:
    rows = len(tuples)
    server.run(
        "CREATE TABLE bare (n BIGINT, text TEXT)",
        "CREATE TABLE own (id BIGSERIAL PRIMARY KEY, n BIGINT, text TEXT)",
    )
    address = f"postgresql://postgres:{PASSWORD}@127.0.0.1:{server.port}/postgres"
    secret: Any = {"password_env": "BENCH_PASSWORD"}

    def bare_write() -> None:
        with psycopg.connect(address) as connection:
            for first in range(0, rows, _EPOCH_ROWS):
                part = [tup.values for tup in tuples[first : first + _EPOCH_ROWS]]
                connection.cursor().executemany("INSERT INTO bare VALUES (%s, %s)", part)
                connection.commit()

    def bare_read() -> None:
        last = 0
        with psycopg.connect(address) as connection:
            while part := connection.execute(
                "SELECT id, n, text FROM own WHERE id > %s ORDER BY id LIMIT 1000", (last,)
            ).fetchall():
                last = part[-1][0]

    def own_write() -> None:
        server.run("TRUNCATE own RESTART IDENTITY")
        write(connectors.SqlSink(server.url, "own", ["n", "text"], **secret), tuples)

    show("PostgreSQL out", rows, bare_write, own_write)
    source = partial(connectors.SqlSource, server.url, "own", _FIELDS, key="id", **secret)
    show("PostgreSQL in, rows", rows, bare_read, lambda: read(source(), rows))
    show("PostgreSQL in, batches", rows, bare_read, lambda: read(source(), rows, "default"))


def bench_redis(folder: Path, tuples: Sequence[Tuple]) -> None:
    """Streams in and out."""
    server = start_redis(folder / "redis", password=PASSWORD)
    rows = len(tuples)
    secret: Any = {"password_env": "BENCH_PASSWORD"}
    url = f"redis://127.0.0.1:{server.port}"
    client = server.client()

    def bare_write() -> None:
        client.delete("bare")
        for first in range(0, rows, _EPOCH_ROWS):
            pipe = client.pipeline(transaction=True)
            for tup in tuples[first : first + _EPOCH_ROWS]:
                pipe.xadd("bare", {"n": tup.values[0], "text": tup.values[1]})
            pipe.execute()

    def own_write() -> None:
        client.delete("own")
        write(connectors.RedisSink(url, "own", **secret), tuples)

    def bare_read() -> None:
        last: Any = b"0"
        seen = 0
        while seen < rows:
            for _, entries in cast(Any, client.xread({"own": last}, count=2000)):
                for id, entry in entries:
                    entry_id = id.decode()
                    # as the source's tuples
                    (
                        entry[b"n"].decode(),
                        entry[b"text"].decode(),
                        entry_id,
                        int(entry_id.partition("-")[0]),
                    )
                last = entries[-1][0]
                seen = seen + len(entries)

    try:
        show("Redis streams out", rows, bare_write, own_write)
        show(
            "Redis streams in",
            rows,
            bare_read,
            lambda: read(connectors.RedisSource(url, "own", ["n", "text"], **secret), rows),
        )
    finally:
        client.close()
        server.stop()


def bench_http(folder: Path, tuples: Sequence[Tuple]) -> None:
    """Requests of 100 rows, to and from another process, on connections that are kept."""
    tuples = tuples[:20_000]
    rows = len(tuples)
    parts = [
        tuples[n : n + _REQUEST_ROWS] for n in range(0, min(len(tuples), 20_000), _REQUEST_ROWS)
    ]
    command = [sys.executable, "-m", "benchmarks.connectors_http"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        port = int(other.stdout.readline())

        def send(to: int) -> None:
            assert other.stdin is not None
            print(to, rows, file=other.stdin, flush=True)

        def bare_read() -> None:
            server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), connectors_http.Taker)
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            send(server.server_address[1])
            assert other.stdout is not None and other.stdout.readline() == "done\n"
            server.shutdown()
            thread.join()
            server.server_close()

        def own_read() -> None:
            hook = connectors.Webhook(0, ["n", "text"])
            task = AckingTask()
            hook.open({}, task, task)  # type: ignore[arg-type]
            send(hook.port)
            while task.rows < rows:
                hook.next_tuple()
                if not task.take_acks(hook):
                    time.sleep(0.0005)  # as a worker that finds nothing to do
            assert other.stdout is not None and other.stdout.readline() == "done\n"
            hook.close()

        try:
            show(
                "HTTP out",
                rows,
                lambda: _post(port, parts),
                lambda: write(
                    connectors.HttpSink(f"http://127.0.0.1:{port}/", batch=_REQUEST_ROWS), tuples
                ),
            )
            show("HTTP in", rows, bare_read, own_read)
        finally:
            other.stdin.close()


def _post(port: int, parts: Sequence[Sequence[Tuple]]) -> None:
    """Send a request for each part with the bare library."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for part in parts:
        body = json.dumps([dict(zip(("n", "text"), tup.values, strict=True)) for tup in part])
        connection.request("POST", "/", body, {"Content-Type": "application/json"})
        assert connection.getresponse().read() == b""
    connection.close()


class AckingTask(Task):
    """A task whose tuples are done at once."""

    def __init__(self) -> None:
        super().__init__()
        self._fresh: list[Any] = []

    def emit(self, values: Any, message_id: Any, stream: str = "default") -> None:
        """Count a row."""
        self.rows += 1
        self._fresh.append(message_id)

    def take_acks(self, spout: Any) -> int:
        """Acknowledge what was emitted; return how much it was."""
        for message_id in self._fresh:
            spout.ack(message_id)
        count = len(self._fresh)
        self._fresh.clear()
        return count


def bench_tables(folder: Path, tuples: Sequence[Tuple]) -> None:
    """Delta and Iceberg tables in a local folder, a file for each epoch."""
    from deltalake import write_deltalake
    from pyiceberg.catalog import load_catalog

    rows = len(tuples)
    numbers = iter(range(1000))
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("db")
    parts = [tuples[n : n + _FILE_ROWS] for n in range(0, rows, _FILE_ROWS)]

    def bare_delta() -> None:
        path = folder / f"delta-bare-{next(numbers)}"
        for part in parts:
            write_deltalake(path, table_of(part), mode="append")

    def bare_iceberg() -> None:
        table = catalog.create_table(f"db.bare{next(numbers)}", _SCHEMA)
        for part in parts:
            table.append(table_of(part))

    def own_iceberg() -> None:
        write(
            connectors.IcebergSink(f"db.own{next(numbers)}", _SCHEMA, properties=properties),
            tuples,
            _FILE_ROWS,
        )

    show(
        "Delta out",
        rows,
        bare_delta,
        lambda: write(
            connectors.DeltaSink(folder / f"d{next(numbers)}", _SCHEMA), tuples, _FILE_ROWS
        ),
    )
    show("Iceberg out", rows, bare_iceberg, own_iceberg)


class Log(DataSource):
    """Spark's data source of JSON lines, in and out; with `arrow` it reads batches."""

    def schema(self) -> str:
        return "n bigint, text string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return LogReader(self.options["path"], "arrow" in self.options)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return LogWriter(self.options["path"])


class LogReader(DataSourceStreamReader):
    """Reads a file whole."""

    def __init__(self, path: str, is_arrow: bool) -> None:
        self._path = path
        self._is_arrow = is_arrow

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        return {"at": 1}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if self._is_arrow:
            yield from pyarrow.json.read_json(self._path).to_batches(4096)
            return
        with open(self._path, "rb") as lines:
            for line in lines:
                record = json.loads(line)
                yield record["n"], record["text"]


class LogWriter(DataSourceStreamWriter):
    """Appends rows to a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        with open(self._path, "a") as file:
            file.writelines(json.dumps([row.n, row.text]) + "\n" for row in iterator)
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None: ...


def bench_spark(folder: Path, tuples: Sequence[Tuple]) -> None:
    """Python data sources of Spark, in and out, next to their own reader and writer."""
    rows = len(tuples)
    log = str(write_log(folder, len(tuples)))
    out = str(folder / "out.jsonl")

    def bare_read(is_arrow: bool) -> None:
        for batch in LogReader(log, is_arrow).read(InputPartition(0)):
            if is_arrow:
                assert batch.num_rows

    def bare_write() -> None:
        writer = LogWriter(out)
        row = Row("n", "text")
        for first in range(0, rows, _EPOCH_ROWS):
            writer.commit(
                [writer.write(row(*tup.values) for tup in tuples[first : first + _EPOCH_ROWS])],
                first,
            )

    show(
        "SparkSource, rows",
        rows,
        lambda: bare_read(False),
        lambda: read(connectors.SparkSource(Log, {"path": log}), rows),
    )
    arrow = {"path": log, "arrow": "yes"}
    show(
        "SparkSource, batches",
        rows,
        lambda: bare_read(True),
        lambda: read(connectors.SparkSource(Log, arrow), rows, "default"),
    )
    show(
        "SparkSink",
        rows,
        bare_write,
        lambda: write(connectors.SparkSink(Log, {"path": out}), tuples),
    )


_GROUPS = {
    "files": bench_files, "tables": bench_tables, "spark": bench_spark, "sql": bench_sql, "redis": bench_redis,
    "http": bench_http, "kafka": bench_kafka,
}  # fmt: skip


def main(rows: int, groups: Sequence[str]) -> None:
    """Print the table."""
    os.environ["BENCH_PASSWORD"] = PASSWORD
    print(
        f"{rows:,} rows, median of {_RUNS}\n{'':<24}{'bare library':>14}{'connector':>14}   ratio"
    )
    tuples = make_tuples(rows)
    gc.freeze()
    # as in a worker (data_plane/worker/loop.py), for connector and library alike
    gc.set_threshold(100_000, 20, 50)
    for group in groups or _GROUPS:
        with tempfile.TemporaryDirectory() as folder:
            _GROUPS[group](Path(folder), tuples)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.connectors", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("groups", nargs="*", choices=[[], *_GROUPS], help="default: all")
    parser.add_argument(
        "--rows", type=int, default=100_000, help="of each measurement; default: %(default)s"
    )
    given = parser.parse_args()
    main(given.rows, given.groups)
