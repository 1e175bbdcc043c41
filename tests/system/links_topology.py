"""Every source into every sink: rows (origin, n), for test_connectors.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

from sparkstorm import connectors
from sparkstorm.api import TopologyBuilder, bolt
from sparkstorm.common.model.topology import Topology

ORIGINS = ("kafka", "sql", "redis", "file", "s3", "spark", "frame", "hook")


class _Lines(DataSourceStreamReader):
    """The numbers of a file's complete lines; the offset is their count."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def initialOffset(self) -> dict[str, Any]:
        return {"line": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return {"line": self._path.read_text().count("\n") if self._path.exists() else 0}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition((start["line"], end["line"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first, last = partition.value
        yield pa.RecordBatch.from_pydict(
            {"n": [int(line) for line in self._path.read_text().splitlines()[first:last]]}
        )


@dataclass
class _Rows(WriterCommitMessage):
    rows: list[Any]


class _Writer(DataSourceStreamWriter):
    """A file per batch id, by a rename."""

    def __init__(self, path: str) -> None:
        self._folder = Path(path)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _Rows([[row["origin"], row["n"]] for row in iterator])

    def commit(self, messages: Any, batchId: int) -> None:
        (self._folder / "_new").write_text(
            json.dumps([row for message in messages for row in message.rows])
        )
        (self._folder / "_new").rename(self._folder / f"{batchId}.json")


class Lines(DataSource):
    """Spark's data source of the option `path`: a file of numbers in, a folder of JSON out."""

    def schema(self) -> str:
        return "n bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Lines(self.options["path"])

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return _Writer(self.options["path"])


@bolt({"origin": "string", "n": "bigint"})
def tag(tup: Any) -> Any:
    yield tup.component, int(tup["n"])


def build(
    postgres: str, redis: str, kafka: str, http: str, log: str, spark: str, hook: int
) -> Topology:
    """Sources named after their origin, and sinks `to_...`."""
    builder = TopologyBuilder()
    pg: dict[str, Any] = {"password_env": "LINKS_POSTGRES"}
    rd: dict[str, Any] = {"password_env": "LINKS_REDIS"}
    builder.set_spout("kafka", connectors.KafkaSource(kafka, "in", {"n": "bigint"}), 2)
    builder.set_spout(
        "sql", connectors.SqlSource(postgres, "events", ["n"], key="id", poll_secs=0.05, **pg)
    )
    builder.set_spout("redis", connectors.RedisSource(redis, "in", ["n"], **rd))
    builder.set_spout(
        "file", connectors.Files(log, "json", {"n": "bigint"}, tail=True, poll_secs=0.1)
    )
    builder.set_spout(
        "s3",
        connectors.Files("s3://bucket/in", "json", {"n": "bigint"}, follow=True, poll_secs=0.2),
    )
    builder.set_spout(
        "spark", connectors.SparkSource(Lines, {"path": f"{spark}/numbers"}, poll_secs=0.1)
    )
    builder.set_spout("frame", connectors.SparkFrame(redis, "frame", {"n": "bigint"}, **rd))
    builder.set_spout("hook", connectors.Webhook(hook, {"n": "bigint"}, patience_secs=10))
    builder.set_bolt("tag", tag, 2, inputs=list(ORIGINS))
    builder.set_bolt("to_kafka", connectors.KafkaSink(kafka, "out", key="origin"), 2, inputs="tag")
    builder.set_bolt("to_sql", connectors.SqlSink(postgres, "copies", **pg), 2, inputs="tag")
    builder.set_bolt("to_redis", connectors.RedisSink(redis, "out", **rd), inputs="tag")
    builder.set_bolt("to_http", connectors.HttpSink(http, batch=200), inputs="tag")
    keyed: dict[str, Any] = {"key": ["origin", "n"]}
    builder.set_bolt(
        "to_upsert", connectors.SqlSink(postgres, "upserted", **keyed, **pg), inputs="tag"
    )
    columns: dict[str, Any] = {"schema": "origin string, n bigint", "flush_secs": 1}
    builder.set_bolt("to_s3", connectors.FileSink("s3://bucket/out", **columns), inputs="tag")
    folders = connectors.FileSink("s3://bucket/folders", partition_by="origin", **columns)
    builder.set_bolt("to_folders", folders, inputs="tag")
    builder.set_bolt(
        "to_delta",
        connectors.DeltaSink("s3://bucket/delta", compact_files=8, **columns),
        2,
        inputs="tag",
    )
    merged = connectors.DeltaSink("s3://bucket/merged", partition_by="origin", **keyed, **columns)
    builder.set_bolt("to_merge", merged, inputs="tag")
    to_iceberg = connectors.IcebergSink("links.rows", catalog="links", compact_files=8, **columns)
    builder.set_bolt("to_iceberg", to_iceberg, 2, inputs="tag")
    to_spark = connectors.SparkSink(Lines, {"path": f"{spark}/out"}, "origin string, n bigint")
    builder.set_bolt("to_spark", to_spark, inputs="tag")
    return builder.build()
