"""A replay that begins at a savepoint or checkpoint continues states, windows, timers and clocks as
one uninterrupted run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.errors import CheckpointError, InvalidTopologyError
from sparkstorm.common.model.topology import Grouping, Topology
from sparkstorm.data_plane.checkpoint.files import read_checkpoint
from sparkstorm.driver.replay.job import main
from sparkstorm.replay import back_fill, checkpoint_states, replay, replay_locally
from sparkstorm.replay.back_fill import back_fill_locally
from sparkstorm.testing import CaptureBolt, LocalCluster
from tests.replay.bolts import FIELDS, Listed, Pass, WindowSums
from tests.replay.test_windows import MS, SHAPES, TIMES, by_ts, chain, rows
from tests.topologies import word_count


def reading(topology: Topology, spout: Listed) -> Topology:
    source = replace(topology.components["source"], instance=spout)
    return Topology({**topology.components, "source": source})


def captured(topology: Topology, capture: CaptureBolt) -> Topology:
    from sparkstorm.testing.complete import _captured

    return _captured(topology, {}, capture)


def direct(shape: str) -> Topology:
    """The same windows without a bolt before them: the spout's clock says which rows are late."""
    whole = chain(*SHAPES[shape]())
    first = whole.components["w0"]
    first = replace(first, inputs=tuple(replace(each, component="source") for each in first.inputs))
    return Topology(
        {id: first if id == "w0" else each for id, each in whole.components.items() if id != "pass"}
    )


def splits(data: Sequence[Any], name: str, count: int) -> list[int]:
    """Return places where the next row is late by what came before: its sender's clock has to go
    on.
    """
    late = [n for n, row in enumerate(data) if n > 60 and row[2] < 10 * n - 400]
    return sorted(Random(name).sample(late, count))


def names_of(topology: Topology) -> list[tuple[str, str]]:
    return [(bolt.id, stream) for bolt in topology.bolts for stream in bolt.streams]


def live_to(
    folder: Path, topology: Topology, data: Sequence[Any], count: int, seed: int
) -> CaptureBolt:
    """Run live over the first rows, a worker killed now and then, and leave a savepoint; return
    what was emitted.
    """
    capture, random = CaptureBolt(), Random(seed)
    with LocalCluster(seed=seed) as cluster:
        cluster.submit(
            captured(reading(topology, Listed(data, most=count)), capture), {"topology.workers": 2}
        )
        for _ in range(3):
            cluster.advance(ms=random.randrange(200))
            cluster.kill_worker(random.choice(["source", "w0"]))
        cluster.advance(20)
        cluster.savepoint(folder)
    return capture


def live_from(
    folder: Path, topology: Topology, data: Sequence[Any], seed: int
) -> tuple[CaptureBolt, dict[str, Any]]:
    capture = CaptureBolt()
    with LocalCluster(seed=seed) as cluster:
        cluster.submit(captured(reading(topology, Listed(data)), capture), from_checkpoint=folder)
        cluster.advance(ms=50)
        cluster.kill_worker("w0")
        cluster.run_until_idle()
        return capture, {bolt.id: cluster.state(bolt.id) for bolt in topology.bolts}


@pytest.mark.sampled
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("seed", range(4))
def test_a_replay_from_a_savepoint_equals_one_uninterrupted_run(
    shape: str, time: str, seed: int, tmp_path: Path
) -> None:
    topology, data = direct(shape) if seed % 2 else chain(*SHAPES[shape]()), rows(seed)
    (count,) = splits(data, shape, 1)
    before = live_to(tmp_path / "saved", topology, data, count, seed)
    whole = replay_locally(topology, {"source": data}, event_time=TIMES[time])
    rest = replay_locally(
        reading(topology, Listed(data)),
        {"source": data[count:]},
        event_time=TIMES[time],
        from_checkpoint=tmp_path / "saved",
        partitions=seed + 1,
    )
    for id, stream in names_of(topology):
        name = id if stream == "default" else f"{id}:{stream}"
        found = [*before.values_of(id, stream), *rest[name]]
        assert Counter(map(repr, found)) == Counter(map(repr, whole[name])), name
    assert dict(rest.states) == dict(whole.states)


@pytest.mark.sampled
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_a_back_fill_from_a_savepoint_goes_on_live_as_one_uninterrupted_run(
    shape: str, seed: int, tmp_path: Path
) -> None:
    """Live with kills, a back-fill of the next rows from there, then live again with kills."""
    topology, data = direct(shape) if seed % 2 else chain(*SHAPES[shape]()), rows(seed)
    first, second = splits(data, shape, 2)
    before = live_to(tmp_path / "one", topology, data, first, seed)
    middle = back_fill_locally(
        reading(topology, Listed(data)),
        tmp_path / "two",
        rows={"source": second - first},
        from_checkpoint=tmp_path / "one",
    )
    after, states = live_from(tmp_path / "two", topology, data, seed)
    whole = replay_locally(topology, {"source": data})
    for id, stream in names_of(topology):
        name = id if stream == "default" else f"{id}:{stream}"
        found = [*before.values_of(id, stream), *middle[name], *after.values_of(id, stream)]
        assert Counter(map(repr, found)) == Counter(map(repr, whole[name])), name
    result = {id: state for id, state in states.items() if state}
    assert result == {id: state for id, state in whole.states.items() if state}


@pytest.mark.parametrize("between", [False, True], ids=["from data", "from a bolt"])
def test_a_row_is_late_by_its_senders_clock_though_another_sender_holds_its_window_open(
    between: bool, tmp_path: Path
) -> None:
    def topology(fast: Listed, slow: Listed) -> Topology:
        builder = TopologyBuilder()
        builder.set_spout("fast", fast)
        builder.set_spout("slow", slow)
        builder.set_bolt("pass", Pass()).shuffle_grouping("fast")
        window = by_ts(WindowSums().with_tumbling_window(MS(100))).with_late_tuple_stream("late")
        builder.set_bolt("sum", window).global_grouping(
            "pass" if between else "fast"
        ).global_grouping("slow")
        return builder.build()

    data = [("a", 1, 10 * n) for n in range(100)] + [("a", 1, 300), ("a", 1, 980)]
    slow = [("b", 1, 5), ("b", 1, 2000)]
    with LocalCluster() as cluster:
        cluster.submit(topology(Listed(data, most=100), Listed(slow, most=1)))
        cluster.advance(5)
        cluster.savepoint(tmp_path / "one")
    rest = {"fast": data[100:], "slow": slow[1:]}
    results = replay_locally(
        topology(Listed(data), Listed(slow)), rest, from_checkpoint=tmp_path / "one"
    )
    assert [row[3]["ts"] for row in results["sum:late"]] == [300]
    filled = back_fill_locally(
        topology(Listed(data), Listed(slow)), tmp_path / "two", from_checkpoint=tmp_path / "one"
    )
    assert [row[3]["ts"] for row in filled["sum:late"]] == [300]
    before, after = (
        Counter(clocks_in(tmp_path / name, "pass" if between else "fast"))
        for name in ("one", "two")
    )
    assert before == after == Counter({("h", "default", "sum"): 990})


def clocks_in(folder: Path, component: str) -> dict[Any, int]:
    """Return the clocks towards `sum` that a checkpoint has of a component of one task."""
    (content,) = read_checkpoint(folder).content(component).values()
    return {place: at_ms for place, at_ms in content.time if place[::2] == ("h", "sum")}


def test_a_task_that_gets_no_rows_keeps_the_clocks_that_it_began_with(tmp_path: Path) -> None:
    whole = chain(*SHAPES["tumbling"]())
    former = whole.components["pass"]
    inputs = tuple(replace(each, grouping=Grouping("shuffle")) for each in former.inputs)
    two = replace(former, parallelism=2, num_tasks=2, inputs=inputs)
    topology, data = Topology({**whole.components, "pass": two}), rows(0)
    live_to(tmp_path / "one", topology, data, 100, 0)
    back_fill_locally(
        reading(topology, Listed(data)),
        tmp_path / "two",
        rows={"source": 0},
        from_checkpoint=tmp_path / "one",
    )
    clocks = []
    for name in ("one", "two"):
        contents = read_checkpoint(tmp_path / name).content("pass")
        clocks.append(
            [
                at
                for each in contents.values()
                for place, at in each.time
                if place[::2] == ("h", "w0")
            ]
        )
    assert clocks[1] == [min(clocks[0])] * 2, (
        "any of them may get the next row, so the slowest counts"
    )


def test_a_checkpoint_that_cannot_be_continued_is_named(tmp_path: Path) -> None:
    topology, data = chain(*SHAPES["tumbling"]()), rows(0)
    live_to(tmp_path / "saved", topology, data, 50, 0)
    sentence = "begins with states or from_checkpoint, not both"
    with pytest.raises(InvalidTopologyError, match=sentence):
        replay_locally(
            topology, {"source": data}, from_checkpoint=tmp_path / "saved", states={"w0": {}}
        )
    other = chain(*SHAPES["tumbling"](), tasks=2)
    with pytest.raises(CheckpointError, match="'w0' had 3 tasks and has 2 now"):
        replay_locally(
            reading(other, Listed(data)), {"source": data}, from_checkpoint=tmp_path / "saved"
        )
    with pytest.raises(CheckpointError, match="has nothing of 'count'"):
        replay_locally(
            word_count(Listed(data)), {"lines": [("a",)]}, from_checkpoint=tmp_path / "saved"
        )


def test_states_of_a_savepoint_with_open_windows_are_not_taken_in_silence(tmp_path: Path) -> None:
    live_to(tmp_path / "saved", chain(*SHAPES["tumbling"]()), rows(0), 50, 0)
    with pytest.warns(
        UserWarning,
        match="entries of open windows and timers of 'w0', which its states do not have",
    ):
        checkpoint_states(tmp_path / "saved")


@pytest.mark.nightly
@pytest.mark.system
def test_on_spark_a_replay_from_a_savepoint_equals_one_uninterrupted_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    topology, data = chain(*SHAPES["windows of windows"]()), rows(1)
    before = live_to(tmp_path / "saved", topology, data, 150, 1)
    whole = replay_locally(topology, {"source": data})
    frame = spark.createDataFrame(
        spark.sparkContext.parallelize(data[150:], 3), "key string, value bigint, ts bigint"
    )
    for time in TIMES.values():
        results = replay(
            reading(topology, Listed(data)),
            {"source": frame},
            event_time=time,
            from_checkpoint=tmp_path / "saved",
        )
        for id in ("w0", "w1"):
            found = [*before.values_of(id), *map(tuple, results[id].collect())]
            assert Counter(found) == Counter(whole[id]), id


def windows_of_windows() -> Topology:
    """The topology of the job file below."""
    return reading(chain(*SHAPES["windows of windows"]()), Listed(rows(1)))


@pytest.mark.system
def test_on_spark_a_back_fill_and_the_command_line_go_on_from_a_savepoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Live, then a back-fill of the next rows, then the command with the rest."""
    topology, data = chain(*SHAPES["windows of windows"]()), rows(1)
    first, second = splits(data, "windows of windows", 2)
    before = live_to(tmp_path / "one", topology, data, first, 1)
    middle = back_fill(
        windows_of_windows(),
        spark,
        tmp_path / "two",
        rows={"source": second - first},
        from_checkpoint=tmp_path / "one",
    )
    (tmp_path / "rest.json").write_text(
        "".join(f"{json.dumps(dict(zip(FIELDS, row, strict=True)))}\n" for row in data[second:])
    )
    (tmp_path / "job.yaml").write_text(
        "topology: tests.replay.test_from_checkpoint:windows_of_windows\n"
    )
    given = [
        "--input",
        str(tmp_path / "rest.json"),
        "--output",
        str(tmp_path / "out"),
        "--result",
        "w0",
        "w1",
    ]
    assert main([str(tmp_path / "job.yaml"), *given, "--from", str(tmp_path / "two")]) == 0
    whole = replay_locally(topology, {"source": data})
    for id in ("w0", "w1"):
        after = spark.read.parquet(str(tmp_path / "out" / id)).collect()
        found = [*before.values_of(id), *map(tuple, middle[id].collect()), *map(tuple, after)]
        assert Counter(found) == Counter(whole[id]) and after, id
    middle.close()
