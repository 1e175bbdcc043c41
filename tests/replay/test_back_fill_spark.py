"""Back-fill on Spark: the same checkpoint as the local twin's, from the spouts themselves or from
frames with positions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkstorm.common.errors import CheckpointError, ReplayFailedError
from sparkstorm.data_plane.checkpoint.files import read_checkpoint
from sparkstorm.replay import back_fill, back_fill_locally
from sparkstorm.testing import LocalCluster
from tests.replay.test_back_fill import (
    CONF,
    LINES,
    build,
    expected_counts,
    files_of,
    timed,
    whole_run,
)

pytestmark = [pytest.mark.system, pytest.mark.nightly]


def contents(folder: Path) -> dict[str, object]:
    found = read_checkpoint(folder)
    return {
        id: {
            task: (sorted(c.state), sorted(c.time, key=repr), c.position)
            for task, c in found.content(id).items()
        }
        for id in found.parts
    }


def test_spark_leaves_the_checkpoint_that_the_local_twin_leaves(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    topology = build(files_of(tmp_path / "in", {"a.txt": LINES[:40], "b.txt": LINES[40:]}))
    results = back_fill(
        topology, spark, tmp_path / "one", rows={"lines": 13}, conf=CONF, outputs=["windows"]
    )
    back_fill_locally(topology, tmp_path / "other", rows={"lines": 13}, conf=CONF)
    assert contents(tmp_path / "one") == contents(tmp_path / "other")
    assert results.counts["count"]["executed"] == 26
    results.close()
    with LocalCluster() as cluster:
        cluster.submit(topology, CONF, from_checkpoint=tmp_path / "one")
        cluster.run_until_idle()
        assert cluster.state("count") == cluster.state("total") == expected_counts()


def test_history_given_as_a_frame_goes_on_at_the_positions_that_the_caller_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [("ab"[n % 2], 300 * n) for n in range(40)]
    topology = timed(rows)
    frame = spark.createDataFrame(rows[:25], "key string, at_ms bigint")
    sentence = "has its history from a frame and 1 tasks: positions must say where each of them"
    with pytest.raises(CheckpointError, match=sentence):
        back_fill(topology, spark, tmp_path / "half", inputs={"rows": frame}, conf=CONF)
    results = back_fill(
        topology,
        spark,
        tmp_path / "half",
        inputs={"rows": frame},
        positions={"rows": [25]},
        conf=CONF,
        event_time="at_ms",
    )
    assert results["windows"].count() > 0
    results.close()
    with LocalCluster() as cluster:
        cluster.submit(topology, CONF, from_checkpoint=tmp_path / "half")
        cluster.run_until_idle()
        assert (cluster.state("seen"), cluster.state("silence")) == whole_run(topology)


def test_a_field_of_several_types_is_named(spark: SparkSession, tmp_path: Path) -> None:
    topology = timed([("a", 1), (2, 2)])
    sentence = "spout 'rows', stream 'default', field 'key' holds values of several types"
    with pytest.raises(ReplayFailedError, match=sentence):
        back_fill(topology, spark, tmp_path / "half", conf=CONF)
    assert not list(tmp_path.glob("half*"))
