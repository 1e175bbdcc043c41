"""Spark's Python data sources as spouts and sinks: every row once over restarts, shares of tasks,
and mistakes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)

from sparkstorm.api import (
    BatchCollector,
    ColumnBolt,
    InvalidTopologyError,
    TopologyBuilder,
    TransactionalSink,
)
from sparkstorm.common.errors import WorkerFailedError
from sparkstorm.connectors.spark import SparkSink, SparkSource
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster, Shared
from tests.connectors.crashing_sink import die_everywhere
from tests.topologies import running


class Slice(InputPartition):
    def __init__(self, shard: int, first: int, last: int) -> None:
        self.shard, self.first, self.last = shard, first, last


class NumbersReader(DataSourceStreamReader):
    """Numbers up to the option `end` over shards, `step` a range; writes down how far it may
    forget.
    """

    def __init__(self, options: Any) -> None:
        self.end = int(options["end"])
        self.shards = int(options.get("shards", 1))
        self.step = int(options.get("step", 10))
        self.told, self.kind = Path(options["told"]), options.get("kind", "rows")

    def initialOffset(self) -> dict[str, Any]:
        return {"next": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return {"next": min(self.end, start["next"] + self.step)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [Slice(shard, start["next"], end["next"]) for shard in range(self.shards)]

    def read(self, partition: Any) -> Iterator[Any]:
        mine = [
            n for n in range(partition.first, partition.last) if n % self.shards == partition.shard
        ]
        if self.kind == "arrow":
            yield pa.RecordBatch.from_pydict({"n": mine, "text": [str(n) for n in mine]})
        else:
            yield from ((n, str(n)) for n in mine)

    def commit(self, end: dict[str, Any]) -> None:
        with self.told.open("a") as file:
            file.write(f"{end['next']}\n")


class Numbers(DataSource):
    def schema(self) -> str:
        return "n bigint, text string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NumbersReader(self.options)


class FewReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        end = min(7, start["at"] + 3)
        return iter([(n,) for n in range(start["at"], end)]), {"at": end}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        return iter([(n,) for n in range(start["at"], end["at"])])


class Few(DataSource):
    def schema(self) -> str:
        return "n int"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return FewReader()


def has_ended(cluster: LocalCluster) -> bool:
    return all(spout.is_exhausted for spout in spouts_of(cluster)) and not cluster.waiting()


def has_come(capture: CaptureBolt, rows: int) -> bool:
    return len(capture.values) >= rows


def spouts_of(cluster: LocalCluster) -> list[SpoutTask]:
    return [
        spout
        for slot in cluster.topology().workers
        if slot.worker
        for spout in slot.worker.task_set.spouts.values()
    ]


def read(source: SparkSource, parallelism: int = 1, kills: int = 0) -> list[tuple[Any, ...]]:
    """Return everything that a topology of this source captures, with its worker killed so often on
    the way.
    """
    capture, builder = CaptureBolt(), TopologyBuilder()
    builder.set_spout("numbers", source, parallelism)
    builder.set_bolt("capture", capture, inputs="numbers")
    with running(builder.build(), {"topology.workers": 2, "topology.epoch.rows": 5}) as cluster:
        for kill in range(1, kills + 1):
            cluster.run_until(partial(has_come, capture, 10 * kill))
            cluster.kill_worker("numbers")
        cluster.run_until(partial(has_ended, cluster))
    return [tuple(values) for values in capture.values]


@pytest.mark.parametrize("kind", ["rows", "arrow"])
def test_every_row_comes_once_though_the_worker_dies(tmp_path: Path, kind: str) -> None:
    options = {"end": "53", "told": str(tmp_path / "told"), "kind": kind}
    found = read(SparkSource(Numbers, options, follow=False), kills=2)
    assert Counter(found) == Counter((n, str(n)) for n in range(53))


def test_the_source_may_forget_what_is_done_and_no_more(tmp_path: Path) -> None:
    read(SparkSource(Numbers, {"end": "53", "told": str(tmp_path / "told")}, follow=False))
    assert (tmp_path / "told").read_text().split() == ["10", "20", "30", "40", "50", "53"]


def test_tasks_share_partitions_by_a_key_that_stays(tmp_path: Path) -> None:
    options = {"end": "40", "shards": "3", "told": str(tmp_path / "told")}
    found = read(
        SparkSource(Numbers, options, partition_key=attrgetter("shard"), follow=False),
        parallelism=2,
        kills=1,
    )
    assert Counter(found) == Counter((n, str(n)) for n in range(40))
    assert not (tmp_path / "told").exists()
    sentence = r"Numbers is read by 2 tasks, .* give SparkSource a partition_key, or parallelism 1"
    with pytest.raises(InvalidTopologyError, match=sentence):
        read(SparkSource(Numbers, options), parallelism=2)


def test_a_simple_reader_works_too() -> None:
    assert read(SparkSource(Few, follow=False)) == [(n,) for n in range(7)]


class OddReader(NumbersReader):
    """Reads what its schema does not have, or nothing."""

    def read(self, partition: Any) -> Iterator[Any]:
        if self.kind == "refused":
            raise PermissionError("wrong credentials for the shop")
        if self.kind == "poison":
            yield (1, "\ud800")
        if self.kind == "short":
            yield (1,)
        yield pa.RecordBatch.from_pydict({"text": ["a"], "n": [1]})
        if self.kind == "renamed":
            yield pa.RecordBatch.from_pydict({"words": ["a"], "n": [2]})


class Odd(Numbers):
    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return OddReader(self.options)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (
            "refused",
            r"spout 'numbers' \(task \d+\) raised 10 times in a row: PermissionError: wrong credentials for the shop",
        ),
        (
            "poison",
            r"spout 'numbers' .*component 'numbers', stream 'default', field 'text': text that is not valid UTF-8",
        ),
        ("short", r"spout 'numbers' .*1 value"),
        (
            "renamed",
            r"component 'numbers': Odd read a batch of the columns words, n, but its schema has n, text; correct",
        ),
    ],
)
def test_a_reader_that_always_raises_or_breaks_its_schema_ends_the_run(
    tmp_path: Path, kind: str, sentence: str
) -> None:
    options = {"end": "10", "told": str(tmp_path / "told"), "kind": kind}
    with pytest.raises(WorkerFailedError, match=sentence):
        read(SparkSource(Odd, options, follow=False))


def test_a_batch_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    options = {"end": "10", "told": str(tmp_path / "told"), "kind": "swapped"}
    assert read(SparkSource(Odd, options, follow=False)) == [(1, "a")]


def test_a_schema_declares_the_fields_and_a_wrong_one_is_named() -> None:
    assert SparkSource(Few).outputs == {"n": "int"}
    result = SparkSource(Few, schema="n bigint, tags array<string>").outputs
    assert result == {"n": "bigint", "tags": "array<string>"}
    kinds = {"d": "date", "t": "timestamp", "p": "decimal(10,2)"}
    assert (
        SparkSource(Few, schema=", ".join(f"{name} {kind}" for name, kind in kinds.items())).outputs
        == kinds
    )
    with pytest.raises(InvalidTopologyError, match="the schema of Few: 'quux' is no type"):
        SparkSource(Few, schema="n quux")
    with pytest.raises(InvalidTopologyError, match="is no class derived from pyspark"):
        SparkSource(int)  # type: ignore[arg-type]


class ForgetfulReader(NumbersReader):
    """Keeps nothing that it was told to forget; begins at whatever number is next; every second
    range is empty.
    """

    def initialOffset(self) -> dict[str, Any]:
        start = self.told.with_name("start")
        if not start.exists():
            start.write_text("7")
            return {"next": 7}
        return {"next": 1000}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if self.told.exists() and start["next"] < int(self.told.read_text().split()[-1]):
            raise LookupError(f"{start['next']} was forgotten")
        return super().partitions(start, end)

    def read(self, partition: Any) -> Iterator[Any]:
        return super().read(partition) if partition.first // self.step % 2 else iter(())


class Forgetful(Numbers):
    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return ForgetfulReader(self.options)


def test_a_source_is_never_told_to_forget_what_is_asked_for_again_nor_to_begin_twice(
    tmp_path: Path,
) -> None:
    capture, builder = CaptureBolt(), TopologyBuilder()
    source = SparkSource(
        Forgetful,
        {"end": "200", "step": "5", "told": str(tmp_path / "told")},
        follow=False,
        poll_secs=0,
    )
    builder.set_spout("numbers", source)
    builder.set_bolt("capture", capture, inputs="numbers")
    with running(builder.build(), {"topology.epoch.rows": 2}) as cluster:
        for told in range(1, 10, 2):
            # How often it is told depends on how many ranges a commit settles: it may be at its end.
            cluster.run_until(lambda told=told: told_of(tmp_path) >= told or has_ended(cluster))  # type: ignore[misc]
            cluster.kill_worker("numbers")
        cluster.run_until(partial(has_ended, cluster))
    wanted = [
        n for first in range(7, 200, 5) if first // 5 % 2 for n in range(first, min(200, first + 5))
    ]
    assert sorted(n for n, _ in capture.values) == wanted
    assert not cluster.errors


def told_of(folder: Path) -> int:
    return len((folder / "told").read_text().split()) if (folder / "told").exists() else 0


class ShopReader(FewReader):
    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        rows: list[Any] = [
            Row(b={"x": 1}, at=datetime(2024, 5, 1), a=1),
            [2, Row(y=None, x=2), None],
            (3, (3, "three"), datetime(2024, 5, 1, tzinfo=UTC)),
        ]
        if start["at"] == 3:
            rows = [Row(a=1, c=2, at=3)] if self.kind == "Row" else [{"a": 1}]
        return iter(rows[: end["at"] - start["at"]])

    kind = "Row"


class Shop(DataSource):
    def schema(self) -> str:
        return "a int, b struct<x:int,y:string>, at timestamp"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        found = ShopReader()
        found.kind = self.options["kind"]
        return found


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (
            "Row",
            "component 'numbers': Shop read a Row of the columns a, c, at, but its schema has a, b, at; correct its read",
        ),
        (
            "dict",
            "Shop read a dict, where a tuple, a list, a Row or an Arrow batch was expected; correct its read",
        ),
    ],
)
def test_rows_go_by_name_and_hold_what_spark_takes(kind: str, sentence: str) -> None:
    rows = CaptureBolt()
    builder = TopologyBuilder()
    builder.set_spout("numbers", SparkSource(Shop, {"kind": kind}, follow=False))
    builder.set_bolt("rows", rows, inputs="numbers")
    with running(builder.build()) as cluster, pytest.raises(WorkerFailedError, match=sentence):
        cluster.run_until(lambda: False)
    local = datetime(2024, 5, 1).astimezone(UTC)
    assert [tuple(each) for each in rows.values] == [
        (1, {"x": 1}, local),
        (2, {"y": None, "x": 2}, None),
        (3, {"x": 3, "y": "three"}, datetime(2024, 5, 1, tzinfo=UTC)),
    ]


@dataclass
class Written(WriterCommitMessage):
    rows: list[Any]


class JsonWriter(DataSourceStreamWriter):
    """One file per batch id, by an atomic rename."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Written([[row["n"], row["text"]] for row in iterator])

    def commit(self, messages: Any, batchId: int) -> None:
        (self.path / "new").write_text(
            json.dumps([row for message in messages for row in message.rows])
        )
        (self.path / "new").rename(self.path / f"{batchId}.json")


class ArrowWriter(DataSourceStreamArrowWriter, JsonWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Written([list(row.values()) for batch in iterator for row in batch.to_pylist()])


class BatchWriter(DataSourceWriter):
    """One file per epoch, which the options name."""

    def __init__(self, options: Any) -> None:
        self.path = Path(options["path"])
        self.name = options["sparkstorm-sink"].replace("/", "-") + options["sparkstorm-epoch"]

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Written([[row["n"], row["text"]] for row in iterator])

    def commit(self, messages: Any) -> None:
        (self.path / "new").write_text(
            json.dumps([row for message in messages for row in message.rows])
        )
        (self.path / "new").rename(self.path / f"{self.name}.json")


class BatchFiles(DataSource):
    """A data source without streams."""

    def schema(self) -> str:
        return "n bigint, text string"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self.options)


class JsonFiles(DataSource):
    def schema(self) -> str:
        return "n bigint, text string"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return (ArrowWriter if self.options.get("arrow") else JsonWriter)(self.options["path"])


@pytest.mark.parametrize("arrow", ["", "yes"])
def test_a_stream_writer_is_a_sink_whose_batch_is_the_epoch(tmp_path: Path, arrow: str) -> None:
    feed, builder = FeederSpout(["n", "text"]), TopologyBuilder()
    builder.set_spout("feed", feed)
    builder.set_bolt(
        "files", SparkSink(JsonFiles, {"path": str(tmp_path), "arrow": arrow}), inputs="feed"
    )
    with running(builder.build(), {"topology.epoch.rows": 4}, seed=2) as cluster:
        for n in range(30):
            feed.feed([n, str(n)])
        cluster.advance(ms=3)
        cluster.kill_worker("files")
        cluster.run_until_idle()
    assert len(list(tmp_path.glob("*.json"))) > 1
    assert written(tmp_path) == Counter((n, str(n)) for n in range(30))


@pytest.mark.parametrize(
    ("schema", "good", "bad", "reason"),
    [
        ("n array<double>", [1.0], {1.0, 2.0}, r"field 'n' is {1.0, 2.0}"),
        (
            "n array<double>",
            [1, 2.5],
            [1.0, True],
            r"field 'n' is \[1.0, True\], but the column is list<",
        ),
        ("n string", "a", b"a", "field 'n' is b'a' of type bytes, but the column is string"),
        (
            "n map<string,bigint>",
            {"a": 1},
            {"a": 1.5},
            r"field 'n' is {'a': 1.5}, but the column is map<",
        ),
    ],
)
def test_a_writer_of_batches_gets_no_value_changed(
    tmp_path: Path, schema: str, good: Any, bad: Any, reason: str
) -> None:
    feed, builder = FeederSpout(["n"]), TopologyBuilder()
    builder.set_spout("feed", feed)
    builder.set_bolt(
        "files",
        SparkSink(JsonFiles, {"path": str(tmp_path), "arrow": "yes"}, schema),
        inputs="feed",
    )
    with running(builder.build(), {"topology.max.retries": 0}) as cluster:
        for value in (bad, good):
            feed.feed([value])
            cluster.run_until_idle()
        (letter,) = cluster.dead_letters
    assert re.search(reason, letter.reason)
    rows = [row for file in tmp_path.glob("*.json") for row in json.loads(file.read_text())]
    assert rows == [[[list(pair) for pair in good.items()] if isinstance(good, dict) else good]]


def written(folder: Path) -> Counter[tuple[Any, ...]]:
    return Counter(
        tuple(row) for file in folder.glob("*.json") for row in json.loads(file.read_text())
    )


def test_a_batch_writer_is_a_sink_whatever_dies(tmp_path: Path) -> None:
    def make(number: int) -> tuple[TransactionalSink, Callable[[], None]]:
        folder = tmp_path / str(number)
        folder.mkdir()

        def check() -> None:
            assert written(folder) == Counter((n, f"text {n}") for n in range(8))

        return SparkSink(BatchFiles, {"path": str(folder)}), check

    assert die_everywhere(make, rows=8) > 8
    sentence = "SparkSink: Few has neither a streamWriter nor a writer"
    with pytest.raises(InvalidTopologyError, match=sentence):
        SparkSink(Few)


class Sums(ColumnBolt):
    """Counts batches, and passes rows on."""

    outputs = ("n", "text")

    def __init__(self, sizes: Shared[list[int]]) -> None:
        self.sizes = sizes

    def execute_batch(self, batch: pa.RecordBatch, source: Any, collector: BatchCollector) -> None:
        self.sizes.value.append(batch.num_rows)
        collector.emit_batch(batch)


def test_arrow_batches_reach_bolts_of_columns_and_bolts_of_rows_once_though_workers_die(
    tmp_path: Path,
) -> None:
    options = {"end": "3000", "step": "1500", "told": str(tmp_path / "told"), "kind": "arrow"}
    sizes = Shared[list[int]]([])
    columns = CaptureBolt()
    rows = CaptureBolt()
    builder = TopologyBuilder()
    builder.set_spout("numbers", SparkSource(Numbers, options, follow=False))
    builder.set_bolt("sums", Sums(sizes), inputs="numbers")
    builder.set_bolt("columns", columns, inputs="sums")
    builder.set_bolt("rows", rows, inputs="numbers")
    with running(builder.build(), {"topology.workers": 2, "topology.epoch.rows": 5}) as cluster:
        cluster.run_until(partial(has_come, rows, 1000))
        cluster.kill_worker("numbers")
        cluster.run_until(partial(has_ended, cluster))
        cluster.run_until(lambda: told_of(tmp_path) > 0)
    wanted = Counter((n, str(n)) for n in range(3000))
    assert Counter(map(tuple, columns.values)) == wanted == Counter(map(tuple, rows.values))
    assert max(sizes.value) > 500
    assert (tmp_path / "told").read_text().split()[-1] == "3000"
