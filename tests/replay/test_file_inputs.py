"""Files as the input of a replay: the rows and the records of `bad` that the topology's own source
emits live, whatever the files hold and wherever they are divided.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import BasicOutputCollector, StatefulBolt, Tuple
from sparkstorm.common.errors import InvalidConfigError, ReplayFailedError, WorkerFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.tagged import read_value
from sparkstorm.connectors import FileLines, Files
from sparkstorm.driver.replay.file_inputs import FileInput, FilesInput, _batch, _read, types_of
from sparkstorm.replay import ReplayOptions, replay
from sparkstorm.replay.job import RunSettings, make_job
from sparkstorm.replay.replay import start
from sparkstorm.replay.results.value_cells import as_values
from sparkstorm.testing import complete_topology
from tests.topologies import building

FIELDS = {
    "name": "string",
    "count": "bigint",
    "share": "double",
    "is_new": "boolean",
    "more": "any",
}
Source = Files | FileLines


class Kept(StatefulBolt):
    """Emits and keeps each row as text, which shows the types of its values."""

    outputs = ("text",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        text = f"{tup.source.stream} {tup.values!r}"
        self.state.add(text)
        collector.emit((text,))


def topology(source: Source) -> Topology:
    builder = building(source=source)
    kept = builder.set_bolt("kept", Kept()).global_grouping("source")
    if isinstance(source, Files):
        kept.global_grouping("source", "bad")
    return builder.build()


def given(source: Source, path: Path) -> FileInput:
    plan = ReplayOptions().plan(topology(source))
    return FileInput(make_job(plan, RunSettings(), is_local=True), "source", str(path), source)


def live(source: Source) -> dict[str, list[Any]]:
    """Rows by stream, as text, which shows types, zones and signs."""
    found = complete_topology(topology(source), {})
    streams = ["default", "bad"] if isinstance(source, Files) else ["default"]
    return {stream: [repr(row) for row in found.values("source", stream)] for stream in streams}


def divided(source: Source, path: Path, most_bytes: int) -> dict[str, list[Any]]:
    """The same of parts of the files, by way of the columns that Spark carries."""
    splits = source.splits(str(path), most_bytes)
    types = types_of(source, splits)
    columns = frozenset(name for name, kind in types.items() if kind is None)
    found: dict[str, list[Any]] = {"default": []} | (
        {"bad": []} if isinstance(source, Files) else {}
    )
    for stream, rows in _read(given(source, path), splits):
        if stream == "default":
            batch = as_values(_batch(rows, types), columns)
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        found[stream] += map(repr, rows)
    return found


ODD = [
    b"\xef\xbb\xbf", b'"', b'""', b",", b"\n", b"\r", b"\r\n", b"\n\n", b"\0", b"\xff", b"\xc3\xa9", b"\\", b" ", b"\x85", b"\f",
    b"a", b"1", b"1.5", b"1_0", b"-0", b"9223372036854775807", b"true", b"null", b"NaN", b"2026-01-01", b"'", b";", b"\xe2\x80\xa8",
]  # fmt: skip
VALUES = [
    b"1", b"2.0", b"2", b"-0.0", b"1e3", b"1e400", b'"x"', b'"\\ud800"', b"null", b"true", b"[1, {}]", b'{"a": [1, "b"]}', b'""',
    b'"\\u0000"', b'"2026-01-01T00:00:00Z"', b'{"$value": 1}', b'"{\\"$value\\":1}"', b"{", b"",
]  # fmt: skip


def csv_data(random: Random) -> bytes:
    header = random.choice(
        (b"more,count,name,is_new,share", b'"name",count,share,is_new,more,', b"\xef\xbb\xbfname,count,name,share,is_new,more")
    )  # fmt: skip
    rows = b"".join(
        b",".join(b"".join(random.choices(ODD, k=random.randint(0, 2))) for _ in range(5)) + b"\n"
        for _ in range(random.randint(0, 12))
    )
    good = b"x,1,a,true,0.5\n" if header.startswith(b"more") else b""
    return header + random.choice((b"\n", b"\r\n")) + rows + good


def json_data(random: Random) -> bytes:
    return b"".join(
        b"{"
        + b", ".join(b'"%s": %s' % (name.encode(), random.choice(VALUES)) for name in FIELDS)
        + random.choice((b"}", b"", b"} "))
        + random.choice((b"\n", b"\r\n", b"\n\n", b"\r"))
        for _ in range(random.randint(0, 12))
    )


def line_data(random: Random) -> bytes:
    return b"".join(random.choices(ODD, k=random.randint(0, 60)))


DATA = {"csv": csv_data, "json": json_data, "lines": line_data}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".GZIP": lambda data: gzip.compress(data) + b"\0" * 7,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
}


def damaged(random: Random, data: bytes) -> bytes:
    """Cut, with a byte changed, or with garbage behind it."""
    at = random.randrange(len(data) + 1)
    return random.choice(
        (data[:at], data[:at] + bytes([random.randrange(256)]) + data[at + 1 :], data + b"garbage")
    )


def files(random: Random, folder: Path, format: str) -> Path:
    folder.mkdir()
    for name in ("a", "b.x", "c")[: random.randint(1, 3)]:
        ending, pack = random.choice(list(PACK.items()))
        data = pack(DATA[format](random))
        data = damaged(random, data) if ending and random.random() < 0.5 else data
        (folder / f"{name}{ending}").write_bytes(data)
    (folder / ".hidden").write_bytes(b"x")
    return folder


@pytest.mark.sampled
@pytest.mark.parametrize("format", DATA)
@pytest.mark.parametrize("seed", range(40))
def test_parts_of_files_hold_what_their_source_emits_of_the_whole(
    tmp_path: Path, format: str, seed: int
) -> None:
    random = Random(seed)
    folder = files(random, tmp_path / "in", format)
    most = random.choice((1, 7, 40, 1 << 20))
    fields = None if format == "lines" else FIELDS
    source = Files(str(folder), format, fields, max_record_bytes=random.choice((60, 200, 1 << 20)))
    try:
        expected = live(source)
    except WorkerFailedError:  # a header without a column
        with pytest.raises(ReplayFailedError, match=r"input 'source': .* cannot be read: Invalid"):
            divided(source, folder, most)
    else:
        assert divided(source, folder, most) == expected, f"seed {seed}"


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_lines_are_cut_where_a_line_ends(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    for name in "ab":
        (tmp_path / name).write_bytes(line_data(random))
    source = FileLines(str(tmp_path))
    found = divided(source, tmp_path, random.choice((1, 3, 10)))
    assert found == live(source), f"seed {seed}"


ROWS = [b'{"name": "%d"}' % n for n in range(20)]


@pytest.mark.parametrize("ending", PACK)
def test_records_before_a_damage_are_read_and_the_rest_is_one_bad_record(
    tmp_path: Path, ending: str
) -> None:
    packed = PACK[ending](b"\n".join(ROWS) + b"\n")
    behind = b"" if ending in ("", ".GZIP") else b"garbage behind it"
    (tmp_path / f"a{ending}").write_bytes(packed + behind)
    source = Files(str(tmp_path), "json", {"name": "string"})
    found = live(source)
    assert found["default"] == [f"('{n}',)" for n in range(20)]
    # bz2 and gzip pass by what follows a stream and begins none.
    assert len(found["bad"]) <= 1
    assert divided(source, tmp_path, 1 << 20) == found
    if ending == ".zst":
        (tmp_path / "a.zst").write_bytes(packed + packed[: len(packed) // 2])
        found = live(source)
        assert len(found["default"]) >= 20 and len(found["bad"]) == 1


def test_lines_of_a_compressed_file_are_refused(tmp_path: Path) -> None:
    for name in ("a.GZ", "a.xz"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(InvalidConfigError, match=f"{name} is compressed; Files unpacks"):
            FileLines(str(tmp_path / name))


@pytest.mark.parametrize("name", ["a.tgz", "a.tar.gz", "a.ZIP", "a.zip.bz2"])
def test_an_archive_is_no_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(PACK[".bz2" if name.endswith("bz2") else ".gz"](b"a,b\n1,2\n"))
    problem = f"{name} is an archive or compressed; Files unpacks"
    with pytest.raises(InvalidConfigError, match=problem):
        FileLines(str(path))
    for format in DATA:
        source = Files(str(path), format, None if format == "lines" else FIELDS)
        with pytest.raises(WorkerFailedError, match=f"'source': .*{problem}"):
            live(source)
        with pytest.raises(ReplayFailedError, match=problem):
            divided(source, path, 1 << 20)


MOMENT = datetime(2026, 7, 1, 12, 30, tzinfo=UTC)
COLUMNS = {
    "small": pa.array([1, None, -3], pa.int8()),
    "wide": pa.array([1 << 63, 0, None], pa.uint64()),
    "float": pa.array([0.1, -0.0, None], pa.float32()),
    "text": pa.array(["a", "", None]).dictionary_encode(),
    "bytes": pa.array([b"\0", b"", None], pa.large_binary()),
    "day": pa.array([date(1582, 10, 10), None, date(1, 1, 1)]),
    "utc": pa.array([MOMENT, None, MOMENT], pa.timestamp("ms", "UTC")),
    "berlin": pa.array([MOMENT, None, MOMENT], pa.timestamp("us", "Europe/Berlin")),
    "money": pa.array([Decimal("1.50"), None, Decimal("-0.10")], pa.decimal128(38, 2)),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "struct": pa.array([{"a": 1, "b": [MOMENT]}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "none": pa.nulls(3),
}


@pytest.mark.parametrize("most_bytes", [1, 100, 1 << 20])
def test_columns_of_parquet_files_have_the_values_that_rows_have_live(
    tmp_path: Path, most_bytes: int
) -> None:
    table = pa.table(COLUMNS)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    wider = table.set_column(0, "small", pa.array([1.5, None, 2.0]))  # another type in each file
    pq.write_table(wider, tmp_path / "b.parquet", row_group_size=1)
    source = Files(str(tmp_path), "parquet", list(COLUMNS))
    assert divided(source, tmp_path, most_bytes) == live(source)


OLD = [date(1, 1, 3), date(1001, 1, 1), date(1582, 10, 14), date(1582, 10, 15), date(1970, 1, 1)]
OLD_TIMES = [datetime(d.year, d.month, d.day, 23, 59, 59, 5, tzinfo=UTC) for d in OLD]
# what they were, where they were written in the Julian calendar
WRITTEN = [date(1, 1, 5), date(1000, 12, 26), date(1582, 10, 4), *OLD[3:]]
SPARK_2 = {"org.apache.spark.version": "2.4.8"}
SPARK_4 = {"org.apache.spark.version": "4.0.0"}


def write_old(path: Path, metadata: Mapping[str, str]) -> None:
    """Write a file of dates and times in three physical types."""
    schema = pa.schema({"day": pa.date32(), "at": pa.timestamp("us", "UTC")}, metadata)
    pq.write_table(pa.table([OLD, OLD_TIMES], schema=schema), path / "a.parquet")
    bare = pa.schema({"old": pa.timestamp("us")}, metadata)
    naive = [time.replace(tzinfo=None) for time in OLD_TIMES]
    pq.write_table(
        pa.table([naive], schema=bare), path / "b.parquet", use_deprecated_int96_timestamps=True
    )


@pytest.mark.parametrize("metadata", [SPARK_2, SPARK_4, {}])
def test_old_dates_and_times_of_parquet_are_those_that_were_written(
    tmp_path: Path, metadata: Mapping[str, str]
) -> None:
    days = WRITTEN if metadata is SPARK_2 else OLD
    times = [datetime(day.year, day.month, day.day, 23, 59, 59, 5, tzinfo=UTC) for day in days]
    write_old(tmp_path, metadata)
    for name, fields, wanted in (
        ("a.parquet", {"day": "date", "at": "timestamp"}, list(zip(days, times, strict=True))),
        ("b.parquet", {"old": "timestamp"}, [(time,) for time in times]),
    ):
        source = Files(str(tmp_path / name), "parquet", fields)
        assert live(source) == {"default": list(map(repr, wanted)), "bad": []}
        assert divided(source, tmp_path / name, 1) == live(source)


def test_files_in_step_by_time_are_one_part(tmp_path: Path) -> None:
    for name, times in (("a", (1, 5, 9)), ("b", (2, 3, 12))):
        (tmp_path / name).write_text("".join(f'{{"at": {at}}}\n' for at in times))
    source = Files(str(tmp_path), "json", {"at": "bigint"}, time="at")
    assert divided(source, tmp_path, 1) == live(source)
    assert divided(source, tmp_path, 1)["default"] == [f"({at},)" for at in (1, 2, 3, 5, 9, 12)]


@pytest.mark.system
@pytest.mark.parametrize("is_read_by_tasks", [False, True], ids=["as frames", "by its tasks"])
def test_a_replay_on_spark_has_the_rows_and_bad_records_of_its_source(
    spark: SparkSession, tmp_path: Path, is_read_by_tasks: bool
) -> None:
    random = Random(5)
    for number in range(6):
        (tmp_path / f"{number}.json").write_bytes(json_data(random) + json_data(random))
    source = Files(str(tmp_path), "json", FIELDS)
    builder = building(source=source)
    builder.set_bolt("kept", Kept(), 3).fields_grouping("source", "share").global_grouping(
        "source", "bad"
    )
    built = builder.build()
    job = make_job(ReplayOptions().plan(built), RunSettings(), ["tests.replay.test_file_inputs"])
    read = FilesInput(spark, FileInput(job, "source", str(tmp_path), None), source)
    inputs = {"source": read.input(), "source:bad": read.input("bad")}
    frames = {name: given.frame for name, given in inputs.items()}
    options = ReplayOptions(outputs=["kept", "source"])
    results = start(built, inputs if is_read_by_tasks else frames, options)
    expected = complete_topology(built, {})
    result = Counter(row.text for row in results["kept"].collect())
    assert result == Counter(text for (text,) in expected["kept"])
    assert results["source"].count() == len(expected["source"])
    shares = [read_value(row.share) for row in results["source"].collect()]
    assert Counter(map(repr, shares)) == Counter(repr(row[2]) for row in expected["source"])
    bad = len(expected.values("source", "bad"))
    assert f"input 'source': {bad} of its records were left out" in read.note()


@pytest.mark.system
@pytest.mark.parametrize("metadata", [SPARK_2, SPARK_4])
def test_spark_reads_the_same_old_dates_and_times(
    spark: SparkSession, tmp_path: Path, metadata: Mapping[str, str]
) -> None:
    write_old(tmp_path, metadata)
    wanted = WRITTEN if metadata is SPARK_2 else OLD
    old = spark.read.parquet(str(tmp_path / "a.parquet"))
    texts = [(row.day, row.at) for row in old.selectExpr("day", "CAST(at AS STRING) at").collect()]
    assert texts == [(day, f"{day} 23:59:59.000005") for day in wanted]
    old = spark.read.parquet(str(tmp_path / "b.parquet")).selectExpr("CAST(old AS STRING) old")
    assert [row.old for row in old.collect()] == [text for _, text in texts]


@pytest.mark.system
def test_a_field_of_any_type_may_be_the_event_time(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"at": 3}\n{"at": 1}\n{"at": 2}\n')
    source = Files(str(tmp_path), "json", ["at"])
    builder = building(source=source)
    builder.set_bolt("kept", Kept()).global_grouping("source")
    job = make_job(ReplayOptions().plan(builder.build()), RunSettings(), is_local=True)
    read = FilesInput(spark, FileInput(job, "source", str(tmp_path), source), source)
    results = replay(builder.build(), {"source": read.frame()}, event_time="at", outputs=["kept"])
    result = [row.text for row in results["kept"].collect()]
    assert result == [f"default ({at},)" for at in (1, 2, 3)]


@pytest.mark.system
def test_a_number_that_no_column_holds_is_a_bad_record(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"name": "f", "count": 1180591620717411303424}')
    source = Files(str(tmp_path), "json", FIELDS)
    read = FilesInput(spark, given(source, tmp_path), source)
    assert not read.frame().collect()
    [bad] = read.frame("bad").collect()
    assert "field 'count' is 1180591620717411303424, which bigint does not hold" in str(bad)
