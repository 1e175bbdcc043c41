"""Every source into every sink: rows (origin, n), for test_connectors.py."""

from __future__ import annotations

from typing import Any

from sparkstorm.api import TopologyBuilder, bolt
from sparkstorm.connectors import (
    Files,
    FileSink,
    HttpSink,
    KafkaSink,
    KafkaSource,
    RedisSink,
    RedisSource,
    SqlSink,
    SqlSource,
    Webhook,
)
from sparkstorm.model.topology import Topology

ORIGINS = ("kafka", "sql", "redis", "file", "hook")


@bolt({"origin": "string", "n": "bigint"})
def tag(tup: Any) -> Any:
    yield tup.component, int(tup["n"])


def build(postgres: str, redis: str, kafka: str, http: str, log: str, hook: int) -> Topology:
    """Sources named after their origin, and sinks `to_...`."""
    builder = TopologyBuilder()
    pg: dict[str, Any] = {"password_env": "LINKS_POSTGRES"}
    rd: dict[str, Any] = {"password_env": "LINKS_REDIS"}
    builder.set_spout("kafka", KafkaSource(kafka, "in", {"n": "bigint"}), 2)
    builder.set_spout("sql", SqlSource(postgres, "events", ["n"], key="id", poll_secs=0.05, **pg))
    builder.set_spout("redis", RedisSource(redis, "in", ["n"], **rd))
    builder.set_spout("file", Files(log, "json", {"n": "bigint"}, tail=True, poll_secs=0.1))
    builder.set_spout("hook", Webhook(hook, {"n": "bigint"}, patience_secs=10))
    builder.set_bolt("tag", tag, 2, inputs=list(ORIGINS))
    builder.set_bolt("to_kafka", KafkaSink(kafka, "out", key="origin"), 2, inputs="tag")
    builder.set_bolt("to_sql", SqlSink(postgres, "copies", **pg), 2, inputs="tag")
    builder.set_bolt("to_redis", RedisSink(redis, "out", **rd), inputs="tag")
    builder.set_bolt("to_http", HttpSink(http, batch=200), inputs="tag")
    builder.set_bolt("to_s3", FileSink("s3://bucket/out", schema="origin string, n bigint", flush_secs=1), inputs="tag")
    return builder.build()
