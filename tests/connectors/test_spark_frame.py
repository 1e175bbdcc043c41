"""SparkFrame: rows of a streaming and a batch frame reach the spout once, also when Spark repeats a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkstorm.connectors import SparkFrame, send_frame
from sparkstorm.embedded import RedisServer
from sparkstorm.errors import InvalidConfigError
from tests.connectors.test_sql import Bench
from tests.replay.conftest import spark as spark

pytestmark = pytest.mark.system


def test_rows_come_once_though_spark_repeats_a_batch(spark: SparkSession, redis_server: RedisServer, tmp_path: Path) -> None:
    url, secret = f"redis://{redis_server.host}:{redis_server.port}", {"password_file": str(tmp_path / "password")}
    (tmp_path / "password").write_text(redis_server.password)
    (tmp_path / "password").chmod(0o600)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("".join(f'{{"n": {n}, "t": "{n}"}}\n' for n in range(1200)))
    frame = spark.readStream.schema("n bigint, t string").json(str(tmp_path / "in"))
    for checkpoint in ("one", "two"):  # a checkpoint that was lost, after all was sent: the batch comes again
        query = send_frame(frame, url, "frames", name="q", checkpoint=str(tmp_path / checkpoint), **secret)  # type: ignore[arg-type]
        assert query is not None
        query.processAllAvailable()
        query.stop()
    history = spark.createDataFrame([(n, str(n)) for n in range(-50, 0)], "n bigint, t string")
    for _ in range(2):
        send_frame(history, url, "frames", name="history", **secret)  # type: ignore[arg-type]
    source = SparkFrame(url, "frames", {"n": "bigint", "t": "string"}, follow=False, **secret)
    bench: Any = Bench(source)  # type: ignore[arg-type]
    found: list[Any] = []
    while not source.is_exhausted():
        found += bench.step(1)
    assert sorted(found) == [(n, str(n)) for n in range(-50, 1200)]
    with redis_server.client() as client:
        for id, _ in client.xrange("frames"):
            source.ack(id.decode())
        source.next_tuple()
        assert client.xlen("frames") == 0
    source.close()
    with pytest.raises(InvalidConfigError, match="a streaming frame needs a checkpoint"):
        send_frame(frame, url, "frames", name="q", **secret)  # type: ignore[arg-type]
