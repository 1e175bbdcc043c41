"""SparkFrame: rows of a streaming and a batch frame reach the spout once, also when Spark repeats a
batch.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors import SparkFrame, send_frame
from sparkstorm.extensions.embedded import RedisServer
from tests.connectors.test_sql import Bench
from tests.replay.conftest import spark as spark

pytestmark = [pytest.mark.system, pytest.mark.nightly]


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return f"redis://{redis_server.host}:{redis_server.port}"


@pytest.fixture
def secret(redis_server: RedisServer, tmp_path: Path) -> dict[str, Any]:
    """The argument that names a file with the password of Redis."""
    file = tmp_path / "password"
    file.write_text(redis_server.password)
    file.chmod(0o600)
    return {"password_file": str(file)}


def test_rows_come_once_though_spark_repeats_a_batch(
    spark: SparkSession, redis_server: RedisServer, url: str, secret: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(
        "".join(f'{{"n": {n}, "t": "{n}"}}\n' for n in range(1200))
    )
    frame = spark.readStream.schema("n bigint, t string").json(str(tmp_path / "in"))
    # a checkpoint that was lost, after all was sent: the batch comes again
    for checkpoint in ("one", "two"):
        query = send_frame(
            frame, url, "frames", name="q", checkpoint=str(tmp_path / checkpoint), **secret
        )
        assert query is not None
        query.processAllAvailable()
        query.stop()
    history = spark.createDataFrame([(n, str(n)) for n in range(-50, 0)], "n bigint, t string")
    for _ in range(2):
        send_frame(history, url, "frames", name="history", **secret)
    source = SparkFrame(url, "frames", {"n": "bigint", "t": "string"}, follow=False, **secret)
    bench: Any = Bench(source)
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
        send_frame(frame, url, "frames", name="q", **secret)


def test_columns_of_every_type_come_as_spark_has_them(
    spark: SparkSession, url: str, secret: dict[str, Any]
) -> None:
    kinds = spark.sql(
        "SELECT timestamp'2024-05-01 12:00:00+02:00' AS t, date'2024-05-01' AS d, 1.50BD AS p, x'ff' AS b, map(1, date'2024-05-01')"
        " AS m, named_struct('a', array(timestamp'2024-05-01 10:00:00Z'), 'b', null) AS s, double('-Infinity') AS f,"
        " '{\"$a' AS text"
    )
    send_frame(kinds, url, "kinds", name="kinds", **secret)
    source = SparkFrame(
        url, "kinds", {**dict.fromkeys(kinds.columns, "any"), "f": "double"}, follow=False, **secret
    )
    noon, day = datetime(2024, 5, 1, 10, tzinfo=UTC), date(2024, 5, 1)
    wanted = {
        "t": noon,
        "d": day,
        "p": Decimal("1.50"),
        "b": b"\xff",
        "m": {1: day},
        "s": {"a": [noon], "b": None},
    }
    assert Bench(source).step(1) == [(*wanted.values(), -math.inf, '{"$a')]
    source.close()
    sentence = "column 'n' is timestamp_ntz, which no tuple carries; cast it"
    with pytest.raises(InvalidConfigError, match=sentence):
        send_frame(
            spark.sql("SELECT timestamp_ntz'2024-05-01 12:00:00' AS n"),
            url,
            "kinds",
            name="ntz",
            **secret,
        )
