"""FileSink: every row in the folder once, whatever dies; compaction; rows and folders that do not
fit.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.errors import (
    InvalidConfigError,
    InvalidTopologyError,
    SparkStormError,
    WorkerFailedError,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.connectors import (
    DeltaSink,
    Files,
    FileSink,
    IcebergSink,
    KafkaSink,
    KafkaSource,
    RedisSink,
    RedisSource,
    SqlSink,
)
from sparkstorm.connectors.patience import Secret
from sparkstorm.testing import FeederSpout, Shared, complete_topology, die
from tests.connectors.crashing_sink import feed
from tests.topologies import running

CONF = {
    "topology.epoch.rows": 4,
    "topology.max.worker.deaths": 1000,
    "topology.sink.patience.secs": 1,
}


def build(sink: FileSink | SqlSink, fields: Any = ("n", "text")) -> tuple[Topology, FeederSpout]:
    feed, builder = FeederSpout(list(fields)), TopologyBuilder()
    builder.set_spout("feed", feed)
    builder.set_bolt("files", sink, inputs="feed")
    return builder.build(), feed


def write(sink: FileSink, rows: int = 30, seed: int = 0) -> None:
    topology, feed = build(sink)
    with running(topology, CONF, seed=seed) as cluster:
        for n in range(rows):
            feed.feed([n, str(n)])
        cluster.run_until_idle()


def read(folder: Path) -> Counter[tuple[Any, ...]]:
    """Every row of the folder, by its own reader."""
    rows: list[tuple[Any, ...]] = []
    for path in folder.glob("*.*"):
        if path.suffix == ".parquet":
            rows += [tuple(row.values()) for row in pq.read_table(path).to_pylist()]
        elif path.suffix == ".jsonl":
            rows += [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]
        else:
            rows += [
                (int(n), text) for n, text in list(csv.reader(path.read_text().splitlines()))[1:]
            ]
    return Counter(rows)


WANTED = Counter((n, str(n)) for n in range(30))


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
@pytest.mark.parametrize("target_bytes", [0, 1 << 20])
def test_rows_are_written_once_and_small_files_are_compacted(
    tmp_path: Path, format: str, target_bytes: int
) -> None:
    schema = "n bigint, text string" if format == "parquet" else None
    write(FileSink(tmp_path, format, schema, flush_secs=0, target_bytes=target_bytes))
    assert read(tmp_path) == WANTED
    files = list(tmp_path.glob("*.*"))
    assert len(files) == 1 if target_bytes else len(files) > 3
    assert list((tmp_path / "_staging").iterdir()) == []


def test_lines_of_json_without_a_schema_have_the_fields_of_their_rows(tmp_path: Path) -> None:
    first, second = FeederSpout(["place", "reason"]), FeederSpout(["values"])
    builder = TopologyBuilder()
    builder.set_spout("bad", first)
    builder.set_spout("late", second)
    builder.set_bolt("files", FileSink(tmp_path, "json", flush_secs=0), inputs=["bad", "late"])
    with running(builder.build(), CONF) as cluster:
        first.feed(["line 1", "no JSON"])
        second.feed([[1, "a"]])
        cluster.run_until_idle()
        assert cluster.dead_letters == []
    lines = [line for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    rows = [{"place": "line 1", "reason": "no JSON"}, {"values": [1, "a"]}]
    assert sorted(map(str, map(json.loads, lines))) == sorted(map(str, rows))


def test_an_epoch_of_ten_seconds_is_one_file(tmp_path: Path) -> None:
    write(FileSink(tmp_path, schema="n bigint, text string", target_bytes=0))
    assert read(tmp_path) == WANTED
    assert len(list(tmp_path.glob("*.parquet"))) == 1


class CrashingFileSink(FileSink):
    """Dies at the n-th phase, before or after it."""

    def __init__(self, path: Path, calls: Shared[list[int]], **options: Any) -> None:
        super().__init__(path, schema="n bigint, text string", **options)
        self.calls = calls

    def step(self) -> None:
        self.calls.value[0] -= 1
        if self.calls.value[0] == 0:
            die()

    def prepare(self, epoch: int) -> Any:
        prepared = super().prepare(epoch)
        self.step()
        return prepared

    def commit(self, epoch: int, prepared: Any) -> None:
        self.step()
        super().commit(epoch, prepared)
        self.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"flush_secs": 0.002}, {"flush_secs": 0.01, "flush_rows": 6, "target_bytes": 0}]
)
def test_a_death_in_every_phase(tmp_path: Path, options: Any) -> None:
    clean = Shared([0])
    write(CrashingFileSink(tmp_path / "clean", clean, **options))
    for number in range(1, -clean.value[0] + 1):
        folder = tmp_path / str(number)
        write(CrashingFileSink(folder, Shared([number]), **options))
        assert read(folder) == WANTED, number
        assert list((folder / "_staging").iterdir()) == []


def test_rows_that_do_not_fit_the_schema_are_parked_by_field(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int8()), ("text", pa.string()), ("tags", pa.list_(pa.int64()))])
    topology, feed = build(FileSink(tmp_path, schema=schema, flush_secs=0), ("n", "text", "tags"))
    with running(topology, CONF) as cluster:
        for row in (
            [1, "a", [1]],
            [1.5, "b", [1]],
            [500, "c", None],
            [2, b"d", None],
            [3, "e", ["x"]],
            [None, None, None],
        ):
            feed.feed(row)
        cluster.run_until_idle()
        reasons = [letter.reason for letter in cluster.dead_letters]
    assert len(reasons) == 4
    assert "field 'n' is 1.5 of type float, but the column is int8" in reasons[0]
    assert "field 'n' is 500, too large for int8" in reasons[1]
    assert sum(pq.read_table(path).num_rows for path in tmp_path.glob("*.parquet")) == 2


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_an_epoch_whose_rows_all_failed_leaves_no_file(tmp_path: Path, format: str) -> None:
    topology, feed = build(
        FileSink(tmp_path, format, "n bigint, text string", flush_secs=0, target_bytes=0)
    )
    with running(topology, CONF) as cluster:
        for row in ([1, "a"], [1.5, "b"], [2, "c"]):
            feed.feed(row)
            cluster.run_until_idle()
        assert len(cluster.dead_letters) == 1
    assert read(tmp_path) == Counter([(1, "a"), (2, "c")])
    assert len([path for path in tmp_path.iterdir() if path.is_file()]) == 2


@pytest.mark.parametrize("name", ["a\0b", "a\udcffb", " ", None, 5])
def test_a_name_that_no_system_takes_is_refused_where_it_is_given(name: Any) -> None:
    for make in (FileSink, DeltaSink, IcebergSink):
        with pytest.raises(
            InvalidConfigError,
            match=rf"{make.__name__}: .* is no name: it is no text, empty, holds a NUL, or is not UTF-8",
        ):
            make(name, schema="n bigint")
    with pytest.raises(InvalidConfigError, match=r"Files: .* is no name"):
        Files(name)
    with pytest.raises(InvalidConfigError, match=r"SqlSink: .* is no name"):
        SqlSink("sqlite://", name)
    for make_redis in (
        lambda: RedisSink("redis://h", name),
        lambda: RedisSource("redis://h", name, ["a"]),
    ):
        with pytest.raises(InvalidConfigError, match=r"Redis(Sink|Source): .* is no name"):
            make_redis()


@pytest.mark.parametrize(
    "name", ["..", "a\nb", "a\0b", "a\udcff", "é", "a" * 250, "", "../x", None]
)
def test_a_topic_that_kafka_refuses_is_refused_where_it_is_given(name: Any) -> None:
    for make in (lambda: KafkaSink("h:1", name), lambda: KafkaSource("h:1", ["fine", name])):
        sentence = r"Kafka(Sink|Source): .* is no name of a topic"
        with pytest.raises(InvalidConfigError, match=sentence):
            make()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SqlSink(None, "t"), "SqlSink: the URL is None; write it as a text"),  # type: ignore[arg-type]
        (lambda: SqlSink("sqlite://", "t", key=5), "SqlSink: key is 5; write a name, or a list"),  # type: ignore[arg-type]
        (lambda: FileSink("a", "json", partition_by=5), "FileSink: partition_by is 5; write a"),  # type: ignore[arg-type]
        (lambda: DeltaSink("a", "n int", key=5), "DeltaSink: key is 5; write a name, or a list"),  # type: ignore[arg-type]
        (lambda: DeltaSink("a", "n int", compact_files="5"), "DeltaSink: compact_files is '5'; w"),  # type: ignore[arg-type]
        (lambda: DeltaSink("a", "n int", storage_options=5), "storage_options is 5; write options"),  # type: ignore[arg-type]
        (lambda: IcebergSink("a.b", None), "IcebergSink: parquet needs a schema"),
        (lambda: SqlSink("sqlite://", "t", password_env=5), "SqlSink: 5 is no place of a secret"),  # type: ignore[arg-type]
    ],
)
def test_an_option_of_another_kind_is_refused_in_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(SparkStormError, match=sentence):
        make()


def test_paths_of_files_and_secrets_may_be_paths(tmp_path: Path) -> None:
    assert Files(tmp_path / "a")._patterns == Files([f"{tmp_path}/a"])._patterns
    secret = tmp_path / "secret"
    secret.write_text("of-ann\n")
    secret.chmod(0o600)
    assert Secret("SqlSink", secret, None).read() == "of-ann"


def test_a_source_without_a_topic_or_stream_is_refused_and_one_named_twice_is_read_once() -> None:
    with pytest.raises(InvalidConfigError, match="KafkaSource: name a topic, at least one"):
        KafkaSource("h:1", [])
    with pytest.raises(InvalidConfigError, match="RedisSource: name a stream, at least one"):
        RedisSource("redis://h", [], ["a"])
    assert KafkaSource("h:1", ["a", "b", "a"])._topics == ["a", "b"]
    assert RedisSource("redis://h", ["a", "b", "a"], ["n"])._streams == ["a", "b"]


def test_a_cell_with_the_end_of_a_line_is_read_back_as_it_was(tmp_path: Path) -> None:
    rows = [(1, "a\rb"), (2, "a\nb"), (3, "a\r\nb"), (4, "\r")]
    feed(FileSink(tmp_path, "csv", flush_secs=0, target_bytes=0), ["n", "text"], rows)
    source = Files(f"{tmp_path}/*.csv", "csv", {"n": "bigint", "text": "string"})
    builder = TopologyBuilder()
    builder.set_spout("read", source)
    assert sorted(complete_topology(builder.build())["read"]) == rows


@pytest.mark.parametrize("schema", [None, "b bigint, a bigint"])
def test_rows_of_other_columns_are_not_added_to_a_file_of_csv(tmp_path: Path, schema: Any) -> None:
    feed(FileSink(tmp_path, "csv", flush_secs=0), ["a", "b"], [(1, 2)])
    own = "b, a" if schema is None else "b int64, a int64"
    with pytest.raises(WorkerFailedError, match=rf"has the columns a,b, the sink {own}; use an"):
        feed(FileSink(tmp_path, "csv", schema, flush_secs=0), ["b", "a"], [(3, 4)])
    [file] = tmp_path.glob("*.csv")
    assert file.read_text() == "a,b\n1,2\n"


def test_a_folder_that_cannot_be_ends_the_run_at_once(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, reason in (
        ("a" * 300, "File name too long"),
        ("loop", "Too many levels of symbolic links"),
    ):
        with pytest.raises(WorkerFailedError, match=rf"^(?!.*waits for its target).*{reason}"):
            feed(FileSink(tmp_path / name, schema="n bigint", flush_secs=0), ["n"], [(1,)])


def test_a_full_or_foreign_folder_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    sentence = r"'files' .* waits for its target: .*; given up after 1 s"
    with pytest.raises(WorkerFailedError, match=sentence):
        write(FileSink(tmp_path / "file", schema="n bigint, text string", flush_secs=0))
    with pytest.raises(InvalidConfigError, match="parquet needs a schema"):
        FileSink(tmp_path)
    with pytest.raises(InvalidConfigError, match="schema: 'quux' is no type"):
        FileSink(tmp_path, schema="n quux")
    with pytest.raises(InvalidConfigError, match="format is 'xml'"):
        FileSink(tmp_path, "xml")
    with pytest.raises(InvalidConfigError, match="flush_rows is 0; write a whole number"):
        FileSink(tmp_path, "csv", flush_rows=0)
    with pytest.raises(InvalidConfigError, match="flush_secs is nan; write a number of at least 0"):
        FileSink(tmp_path, "csv", flush_secs=float("nan"))
    with pytest.raises(InvalidConfigError, match="target_bytes is '1 MB'; write a whole number"):
        FileSink(tmp_path, "csv", target_bytes="1 MB")  # type: ignore[arg-type]


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [3]
    stage = FileSink._stage

    def full(self: FileSink, path: str, before: str | None, part: Any) -> int:
        fails[0] -= 1
        if fails[0] >= 0:
            Path(path).write_text("half")
            raise OSError(28, "No space left on device")
        return stage(self, path, before, part)

    monkeypatch.setattr(FileSink, "_stage", full)
    write(FileSink(tmp_path, schema="n bigint, text string", flush_secs=0))
    assert read(tmp_path) == WANTED
    shutil.rmtree(tmp_path / "_staging")


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: FileSink(folder, schema="n bigint, valu bigint"),
        lambda _: SqlSink("sqlite://", "rows", ["n", "valu"]),
    ],
)
def test_a_sink_of_a_field_that_an_input_lacks_is_refused_at_build(
    make: Any, tmp_path: Path
) -> None:
    with pytest.raises(
        InvalidTopologyError,
        match="'files' writes the field 'valu', which stream 'default' of 'feed' does not have: "
        "it declares n, time_ms",
    ):
        build(make(tmp_path), ("n", "time_ms"))
