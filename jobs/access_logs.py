"""Access logs to sessions: JSON lines in, a look-up that blocks, sessions by event time with late
data, Parquet and SQL out.

python jobs/access_logs.py logs                                   # writes an example log of 3,000 requests into logs/
spark-submit jobs/run_topology.py conf/access_logs.yaml           # pip install 'sparkstorm[sql]' first
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkstorm.api import Duration, Spout, Topology, TopologyBuilder, bolt, fields, fold, session
from sparkstorm.connectors import Console, Files, FileSink, KafkaSource, SqlSink

FIELDS = {"user": "string", "page": "string", "bytes": "bigint", "at_ms": "bigint"}
COLUMNS = "user string, country string, requests bigint, bytes bigint, last_ms bigint"
COUNTRIES = ("AT", "BR", "CA", "DE")


@bolt({"user": "string", "country": "string", "bytes": "bigint", "at_ms": "bigint"}, blocking=True)
def enrich(tup: Any) -> Iterator[Any]:
    """Look the user's country up, as a service on the network would: 5 ms on a thread of the bolt's
    own.
    """
    time.sleep(0.005)
    yield (
        tup["user"],
        COUNTRIES[sum(tup["user"].encode()) % len(COUNTRIES)],
        tup["bytes"],
        tup["at_ms"],
    )


def together(one: list[Any], other: list[Any]) -> list[Any]:
    """Return one session of two."""
    return [one[0] or other[0], one[1] + other[1], one[2] + other[2]]


@fold(
    window=session(minutes=30), key="user", time="at_ms", initial=lambda: ["", 0, 0], merge=together,
    lag=Duration.minutes(5), late_stream="late",
)  # fmt: skip
def sessions(accumulator: list[Any], tup: Any) -> list[Any]:
    """Keep a session's country, number of requests and bytes."""
    return [tup["country"], accumulator[1] + 1, accumulator[2] + tup["bytes"]]


@bolt(
    {
        "user": "string",
        "country": "string",
        "requests": "bigint",
        "bytes": "bigint",
        "last_ms": "bigint",
    }
)
def flat(tup: Any) -> Iterator[Any]:
    """Emit a session as a row of a table."""
    user, (country, requests, size), last_ms = tup.values
    yield user, country, requests, size, last_ms


def build(
    logs: str = "logs/*.jsonl",
    out: str = "results",
    database: str = "sqlite:///sessions.db",
    kafka: str = "",
) -> Topology:
    """Return the topology over log files, or over the topic `access` of a Kafka."""
    database = (
        database.replace("sqlite:///", f"sqlite:///{Path.cwd()}/")
        if ":////" not in database
        else database
    )
    source: Spout = (
        KafkaSource(kafka, "access", FIELDS, follow=False) if kafka else Files(logs, "json", FIELDS)
    )
    builder = TopologyBuilder()
    builder.set_spout("logs", source)
    builder.set_bolt("enrich", enrich, parallelism=4, inputs={"logs": fields("user")})
    builder.set_bolt("sessions", sessions, parallelism=2, inputs="enrich")
    builder.set_bolt("flat", flat, inputs="sessions")
    builder.set_bolt("late", Console(), inputs="sessions:late")
    builder.set_bolt("parquet", FileSink(out, schema=COLUMNS), inputs="flat")
    builder.set_bolt("table", SqlSink(database, "sessions"), inputs="flat")
    return builder.build()


def requests(count: int, seed: int = 1) -> Iterator[Mapping[str, Any]]:
    """Yield requests of some users in about the order of their times; one in fifty comes an hour
    late.
    """
    chance = random.Random(seed)
    at_ms = 1_750_000_000_000
    for n in range(count):
        at_ms += chance.randrange(20_000)
        seen_ms = at_ms - (3_600_000 if n % 50 == 49 else chance.randrange(60_000))
        yield {
            "user": f"user {chance.randrange(40)}",
            "page": f"/{n % 7}",
            "bytes": chance.randrange(9_000),
            "at_ms": seen_ms,
        }


def main(folder: str, count: int = 3_000) -> None:
    """Write an example log, and the table that the sessions go to."""

    Path(folder).mkdir(parents=True, exist_ok=True)
    with Path(folder, "access.jsonl").open("w", encoding="utf-8") as log:
        log.writelines(f"{json.dumps(request)}\n" for request in requests(count))
    with sqlite3.connect("sessions.db") as database:
        columns = COLUMNS.replace("bigint", "INTEGER").replace("string", "TEXT")
        database.execute(f"CREATE TABLE IF NOT EXISTS sessions ({columns})")
    database.close()


if __name__ == "__main__":
    main(sys.argv[1])
