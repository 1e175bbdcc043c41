"""Every source into every sink on real servers, under load, with every part killed: exactly what
went in.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from sparkstorm.extensions.embedded import RedisServer, start_redis
from sparkstorm.extensions.embedded.process import free_port
from sparkstorm.testing.servers import KafkaServer, ObjectStore, PostgresServer
from sparkstorm.testing.servers.postgres import PASSWORD
from sparkstorm.testing.servers.processes import slot_of
from tests.system.links_servers import FrameSender, HttpServer
from tests.system.links_topology import ORIGINS
from tests.system.main_job import MainJob

pytestmark = [pytest.mark.system, pytest.mark.nightly]
ROWS = 900  # of each origin
HOOKS = 20


_READ_TABLE = """
import json
import os
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

table = ...
print(json.dumps([[row["origin"], row["n"]] for row in pa.table(table).to_pylist()]), flush=True)
os._exit(0)  # the libraries' threads may crash an interpreter that ends
"""


class Servers:
    """PostgreSQL, Redis, Kafka, an S3 and an HTTP server, all of this test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.postgres, self.kafka = PostgresServer(), KafkaServer(folder / "kafka")
        self.redis: RedisServer = start_redis(folder / "redis", password=PASSWORD)
        self.s3, self.http = ObjectStore(folder / "s3"), HttpServer(folder / "http")
        self.frame = FrameSender(
            folder / "frame", f"redis://127.0.0.1:{self.redis.port}", "LINKS_REDIS"
        )
        self.s3.start()
        self.http.start()
        self.objects = boto3.client(
            "s3",
            endpoint_url=self.s3.url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self.objects.create_bucket(Bucket="bucket")
        (folder / "spark" / "out").mkdir(parents=True)
        self.postgres.start()
        self.kafka.start()
        self.postgres.run(
            "CREATE TABLE events (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n BIGINT)",
            "CREATE TABLE copies (origin TEXT NOT NULL, n BIGINT NOT NULL)",
            "CREATE TABLE upserted (origin TEXT, n BIGINT, PRIMARY KEY (origin, n))",
        )
        admin = AdminClient({"bootstrap.servers": self.kafka.address})
        for topic in admin.create_topics([NewTopic("in", 3, 1), NewTopic("out", 2, 1)]).values():
            topic.result(120)
        self.hook = free_port()

    def stop(self) -> None:
        self.frame.kill()
        self.kafka.stop()
        self.postgres.stop()
        self.redis.stop()
        self.objects.close()
        self.s3.kill()
        self.http.kill()

    # -- what went in ------------------------------------------------------------------------------

    def feed_kafka(self, first: int, last: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.address, "enable.idempotence": True})
        for n in range(first, last):
            producer.produce("in", json.dumps({"n": n}), str(n))
        assert producer.flush(240) == 0

    def feed_sql(self, first: int, last: int) -> None:
        self.postgres.run(f"INSERT INTO events (n) SELECT generate_series({first}, {last - 1})")

    def feed_redis(self, first: int, last: int) -> None:
        with self.redis.client() as client:
            for n in range(first, last):
                client.xadd("in", {"n": n})

    def feed_file(self, first: int, last: int) -> None:
        log = self.folder / "app.log"
        with log.open("a") as file:
            file.writelines(f'{{"n": {n}}}\n' for n in range(first, last))
        if first % 300 == 0 and first:
            log.rename(self.folder / f"app.log.{first}")

    def feed_s3(self, first: int, last: int) -> None:
        body = "".join(f'{{"n": {n}}}\n' for n in range(first, last))
        self.objects.put_object(Bucket="bucket", Key=f"in/{first:06d}.jsonl", Body=body.encode())

    def feed_spark(self, first: int, last: int) -> None:
        with (self.folder / "spark" / "numbers").open("a") as file:
            file.writelines(f"{n}\n" for n in range(first, last))

    def feed_frame(self, first: int, last: int) -> None:
        new = self.folder / "frame" / f"{first}.json"
        new.write_text("".join(f'{{"n": {n}}}\n' for n in range(first, last)))
        new.rename(self.folder / "frame" / "in" / new.name)

    def has_read_log(self, least: int) -> bool:
        """Return whether a row of the log from this number on has come out."""
        return any(origin == "file" and n >= least for origin, n in self.out_of_redis())

    def post(self) -> None:
        """A sender that repeats what it got no 200 for."""
        for n in range(HOOKS):
            while not self._is_posted(n):
                time.sleep(0.2)

    def _is_posted(self, n: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.hook, timeout=15)
        try:
            connection.request("POST", "/", json.dumps({"n": n}))
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    # -- what came out, by readers that know nothing of epochs -------------------------------------

    def out_of_kafka(self) -> Counter[tuple[str, int]]:
        own = {
            "group.id": "count",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer({"bootstrap.servers": self.kafka.address, **own})
        found = Counter[tuple[str, int]]()
        ended = set[int | None]()
        consumer.assign([TopicPartition("out", p, 0) for p in range(2)])
        while len(ended) < 2:
            for message in consumer.consume(500, 5.0):
                error = message.error()
                if error and error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif not error:  # others are those of a broker that starts
                    row = json.loads(message.value() or b"")
                    found[row["origin"], row["n"]] += 1
        consumer.close()
        return found

    def out_of_sql(self) -> Counter[tuple[str, int]]:
        return Counter(
            (origin, n) for origin, n in self.postgres.run("SELECT origin, n FROM copies")
        )

    def out_of_upsert(self) -> Counter[tuple[str, int]]:
        return Counter(
            (origin, n) for origin, n in self.postgres.run("SELECT origin, n FROM upserted")
        )

    def out_of_redis(self) -> Counter[tuple[str, int]]:
        with self.redis.client() as client:
            return Counter(
                (entry[b"origin"].decode(), int(entry[b"n"])) for _, entry in client.xrange("out")
            )

    def out_of_http(self) -> Counter[tuple[str, int]]:
        # a line may be half written
        whole, _, _ = (self.http.folder / "bodies.jsonl").read_text().rpartition("\n")
        kept = map(json.loads, whole.splitlines())
        return Counter((row["origin"], row["n"]) for _, body in kept for row in body)

    def out_of_s3(self) -> Counter[tuple[str, int]]:
        return Counter(
            (row["origin"], row["n"])
            for _, body in self._parquet("out/")
            for row in pq.read_table(io.BytesIO(body)).to_pylist()
        )

    def out_of_folders(self) -> Counter[tuple[str, int]]:
        return Counter(
            (key.split("/")[1].removeprefix("origin="), n)
            for key, body in self._parquet("folders/origin=")
            for n in pq.read_table(io.BytesIO(body))["n"].to_pylist()
        )

    def _parquet(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Key and content of each Parquet file below a prefix."""
        pages = self.objects.get_paginator("list_objects_v2").paginate(
            Bucket="bucket", Prefix=prefix
        )
        for page in pages:
            for key in (each["Key"] for each in page.get("Contents", [])):
                if key.endswith(".parquet"):
                    yield key, self.objects.get_object(Bucket="bucket", Key=key)["Body"].read()

    def out_of_delta(self) -> Counter[tuple[str, int]]:
        return self._out_of_table("table = DeltaTable('s3://bucket/delta').to_pyarrow_table()")

    def out_of_merge(self) -> Counter[tuple[str, int]]:
        return self._out_of_table("table = DeltaTable('s3://bucket/merged').to_pyarrow_table()")

    def out_of_iceberg(self) -> Counter[tuple[str, int]]:
        return self._out_of_table(
            "table = load_catalog('links').load_table('links.rows').scan().to_arrow()"
        )

    def _out_of_table(self, read: str) -> Counter[tuple[str, int]]:
        """Rows of a table, read by its library in its own process."""
        program = _READ_TABLE.replace("table = ...", read)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=900)
        assert done.returncode == 0, (
            f"{read}: exit status {done.returncode}: {done.stderr.decode()[-2000:]}"
        )
        return Counter((origin, n) for origin, n in json.loads(done.stdout))

    def out_of_spark(self) -> Counter[tuple[str, int]]:
        files = (self.folder / "spark" / "out").glob("[0-9]*.json")
        return Counter((origin, n) for file in files for origin, n in json.loads(file.read_text()))


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    made = Servers(tmp_path)
    for name, value in {
        "LINKS_POSTGRES": PASSWORD,
        "LINKS_REDIS": PASSWORD,
        **made.s3.environment,
        "PYICEBERG_CATALOG__LINKS__URI": made.postgres.url.replace("@", f":{PASSWORD}@"),
        "PYICEBERG_CATALOG__LINKS__WAREHOUSE": "s3://bucket/iceberg",
        "PYICEBERG_CATALOG__LINKS__S3__ENDPOINT": made.s3.url,
        "PYICEBERG_CATALOG__LINKS__S3__REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        yield made
    finally:
        made.stop()


class Run:
    """The job, and the parts of it that are killed."""

    def __init__(self, job: MainJob) -> None:
        self.job = job
        job.start()
        self.sight = job.sight()

    def kill_worker(self, number: int) -> None:
        os.kill(self._worker(number), signal.SIGKILL)

    def kill_slot(self, number: int) -> None:
        os.kill(slot_of(self._worker(number)), signal.SIGKILL)

    def kill_driver(self) -> None:
        """Kill the driver, with all of its slots, and run the same command again."""
        self.job.kill(self.job.driver())
        self.sight.close()
        assert self.job.wait() != 0
        self.job.start()
        self.sight = self.job.sight()

    def _worker(self, number: int) -> int:
        return self.job.workers(self.sight, 2)[number % 2].pid


def restart(
    server: KafkaServer | PostgresServer | ObjectStore | HttpServer | FrameSender | RedisServer,
) -> None:
    server.kill()
    if isinstance(server, RedisServer):
        server.restart()
    else:
        server.start()


def test_whatever_is_killed_every_sink_has_exactly_what_every_source_had(
    servers: Servers, tmp_path: Path
) -> None:
    arguments = {
        "postgres": servers.postgres.url,
        "redis": f"redis://127.0.0.1:{servers.redis.port}",
        "kafka": servers.kafka.address,
        "http": f"{servers.http.url}/",
        "log": str(tmp_path / "app.log"),
        "spark": str(tmp_path / "spark"),
        "hook": servers.hook,
    }
    (tmp_path / "job.yaml").write_text(
        json.dumps(
            {
                "name": "links",
                "topology": "tests.system.links_topology:build",
                "arguments": arguments,
                "topology.workers": 2,
            }
        )
    )
    job = MainJob(
        tmp_path / "run",
        tmp_path / "job.yaml",
        settings={"topology.max.worker.deaths": 100, "topology.epoch.rows": 200},
    )
    poster = threading.Thread(target=servers.post, daemon=True)
    try:
        servers.frame.start()
        run = Run(job)
        poster.start()
        strikes: list[Callable[[], None]] = [
            lambda: run.kill_worker(0),
            lambda: restart(servers.postgres),
            lambda: restart(servers.s3),
            lambda: run.kill_worker(1),
            lambda: restart(servers.kafka),
            lambda: restart(servers.frame),
            run.kill_driver,
            lambda: restart(servers.redis),
            lambda: restart(servers.http),
            lambda: run.kill_slot(0),
        ]
        feeds = (
            servers.feed_kafka, servers.feed_sql, servers.feed_redis, servers.feed_file, servers.feed_s3, servers.feed_spark,
            servers.feed_frame,
        )  # fmt: skip
        step = ROWS // 30
        for number, first in enumerate(range(0, ROWS, step)):
            # a log that is rotated away before the source has a position in it is not read
            if first in (300, 600):
                job.wait_for(partial(servers.has_read_log, first - 240), "rows of the log")
            for feed in feeds:
                feed(first, first + step)
            if number % 3 == 2 and strikes:
                strikes.pop(0)()
        poster.join(900)
        assert not poster.is_alive(), job.output()[-3000:]
        wanted = Counter(
            (origin, n) for origin in ORIGINS for n in range(HOOKS if origin == "hook" else ROWS)
        )
        outs = (
            servers.out_of_kafka, servers.out_of_sql, servers.out_of_redis, servers.out_of_http, servers.out_of_s3,
            servers.out_of_spark, servers.out_of_delta, servers.out_of_iceberg, servers.out_of_upsert,
            servers.out_of_folders, servers.out_of_merge,
        )  # fmt: skip
        wait_for_all(job, outs, wanted)
        run.sight.close()
        job.tree()
        os.killpg(job.pid, signal.SIGINT)
        job.wait()
    finally:
        job.close()
    for out in outs:
        found = out()
        # a webhook is at least once
        exact = Counter({row: count for row, count in found.items() if row[0] != "hook"})
        assert exact == Counter({row: 1 for row in wanted if row[0] != "hook"}), (
            f"{out.__name__}: {differences(exact, wanted)}"
        )
        assert {row for row in found if row[0] == "hook"} == {
            row for row in wanted if row[0] == "hook"
        }, out.__name__


def wait_for_all(
    job: MainJob,
    outs: Sequence[Callable[[], Counter[tuple[str, int]]]],
    wanted: Counter[tuple[str, int]],
) -> None:
    """Wait until every sink has every row; one that has them is not read again, since no row
    leaves a sink.
    """
    waiting = list(outs)

    def are_complete() -> bool:
        while waiting and waiting[0]().keys() >= wanted.keys():
            waiting.pop(0)
        if waiting:
            time.sleep(0.5)  # a look reads a whole sink
        return not waiting

    job.wait_for(are_complete, "every row in every sink", 900)


def differences(found: Counter[tuple[str, int]], wanted: Counter[tuple[str, int]]) -> Any:
    missing = [row for row in wanted if row not in found and row[0] != "hook"]
    return {"missing": missing[:5], "twice": [row for row, count in found.items() if count > 1][:5]}
