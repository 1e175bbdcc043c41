"""FileSink with partitions: the folders of Hive and Spark, each row once, read by Spark and Files."""

from __future__ import annotations

import csv
import gc
import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from itertools import combinations
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sparkstorm.api import Source, TransactionalSink, Tuple
from sparkstorm.common.errors import InvalidConfigError, StoreInconsistentError, WorkerFailedError
from sparkstorm.connectors import Files, FileSink
from sparkstorm.testing import Shared, die
from sparkstorm.testing.servers import ObjectStore
from tests.connectors.crashing_sink import CrashingSink, die_everywhere, feed
from tests.connectors.test_refused_rows import CONTEXT, parked
from tests.replay.conftest import spark  # noqa: F401 - a fixture
from tests.replay.test_file_inputs import divided, live
from tests.tiers import examples

SCHEMA = "at_ms bigint, city string, n bigint"
FIELDS = ("at_ms", "city", "n")
NULL = "__HIVE_DEFAULT_PARTITION__"
ODD = ["a b", "a/b", "..", "é", "100%", "x=y", '"', "'", "{[]}^", "?#*:\\", "\t\n\x7f", "_a", ".", "~`!@$&()+,;<>|"]  # fmt: skip
Row = tuple[int | None, str | None, int]


def read(folder: Path) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return the rows of each folder, by their files alone."""
    found: dict[str, Counter[tuple[Any, ...]]] = {}
    for path in folder.rglob("*.*"):
        rows: list[Any] = []
        if path.suffix == ".parquet":
            rows = [tuple(row.values()) for row in pq.ParquetFile(path).read().to_pylist()]
        elif path.suffix == ".jsonl":
            rows = [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]
        elif path.suffix == ".csv":
            rows = [tuple(row) for row in list(csv.reader(path.read_text().splitlines()))[1:]]
        if path.is_file():
            name = str(path.parent.relative_to(folder))
            found[name] = found.get(name, Counter()) + Counter(rows)
    return found


@settings(max_examples=examples(40), deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(0, 3 * 86_400_000)),
            st.one_of(st.none(), st.sampled_from(ODD), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)),
            st.integers(0, 9),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_rows_are_in_the_folders_of_their_values(
    rows: list[Row], tmp_path_factory: pytest.TempPathFactory
) -> None:
    for number, format in enumerate(("parquet", "json")):
        folder = tmp_path_factory.mktemp("folders")
        sink = FileSink(folder, format, SCHEMA, partition_by="city", day_of="at_ms", zone="UTC")
        found = parked(sink, rows if number else list(reversed(rows)), FIELDS)
        wanted: dict[tuple[str, str], Counter[Any]] = {}
        for at_ms, city, n in rows:
            day = NULL if at_ms is None else f"1970-01-{1 + at_ms // 86_400_000:02}"
            key = (day, city or NULL)
            wanted[key] = wanted.get(key, Counter()) + Counter([(at_ms, n)])
        assert found == []
        got = {
            tuple(unquote(part.partition("=")[2]) for part in name.split("/")): held
            for name, held in read(folder).items()
        }
        assert got == wanted


@pytest.mark.system
@pytest.mark.nightly
def test_spark_names_the_folders_alike_and_reads_them(
    spark: SparkSession,  # noqa: F811
    tmp_path: Path,
) -> None:
    rows = [(n * 86_400_000, city, n) for n, city in enumerate([*ODD, None, "", "Nice"])]
    sink = FileSink(tmp_path / "own", schema=SCHEMA, partition_by="city")
    assert parked(sink, rows, FIELDS) == []
    frame = spark.createDataFrame(rows, "at_ms long, city string, n long")
    frame.write.partitionBy("city").parquet(str(tmp_path / "spark"))
    result = read(tmp_path / "own").keys()
    assert result == {path.name for path in (tmp_path / "spark").glob("city=*")}
    found = spark.read.parquet(str(tmp_path / "own")).collect()
    wanted = spark.read.parquet(str(tmp_path / "spark")).collect()
    assert Counter(found) == Counter(wanted) and len(found) == len(rows)
    days = FileSink(tmp_path / "days", schema=SCHEMA, day_of="at_ms", partition_by="city")
    assert parked(days, rows, FIELDS) == []
    read_back = spark.read.parquet(str(tmp_path / "days")).where("day = date'1970-01-03'").collect()
    assert [(row.n, row.city, row.day) for row in read_back] == [(2, "..", date(1970, 1, 3))]


def test_a_day_is_that_of_the_zone(tmp_path: Path) -> None:
    hours = [
        (datetime(2026, 3, 28, 22, 59, tzinfo=UTC), "2026-03-28"),
        (datetime(2026, 3, 28, 23, 0, tzinfo=UTC), "2026-03-29"),  # a day of 23 hours begins
        (datetime(2026, 3, 29, 21, 59, tzinfo=UTC), "2026-03-29"),
        (datetime(2026, 3, 29, 22, 0, tzinfo=UTC), "2026-03-30"),
        (datetime(1969, 12, 31, 22, 30, tzinfo=UTC), "1969-12-31"),
    ]
    for kind, rows in (
        ("bigint", [round(at.timestamp() * 1000) for at, _ in hours]),
        ("timestamp", [at for at, _ in hours]),
    ):
        sink = FileSink(tmp_path / kind, schema=f"at {kind}", day_of="at", zone="Europe/Berlin")
        assert parked(sink, rows, ("at",)) == []
        wanted = Counter(f"day={day}" for _, day in hours)
        assert {name: held.total() for name, held in read(tmp_path / kind).items()} == wanted


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_small_files_are_merged_in_their_folder(tmp_path: Path, format: str) -> None:
    rows = [(n % 3, f"text {n}") for n in range(30)]
    schema = "n bigint, text string" if format == "parquet" else None
    sink = FileSink(tmp_path, format, schema, partition_by="n", flush_secs=0)
    assert feed(sink, ["n", "text"], rows) == []
    assert len(list(tmp_path.rglob("n=*/*.*"))) == 3
    result = read(tmp_path)
    assert result == {f"n={n}": Counter((text,) for m, text in rows if m == n) for n in range(3)}


@pytest.mark.slow
@pytest.mark.parametrize("target_bytes", [0, 1 << 20])
@pytest.mark.sampled(2)
def test_each_row_is_there_once_whatever_dies(tmp_path: Path, target_bytes: int) -> None:
    def make(number: int) -> tuple[TransactionalSink, Callable[[], None]]:
        folder = tmp_path / str(number)

        def check() -> None:
            wanted = {f"n={n}": Counter([(f"text {n}",)]) for n in range(8)}
            found = {name: rows for name, rows in read(folder).items() if rows}
            assert found == wanted
            assert list((folder / "_staging").iterdir()) == []

        sink = FileSink(
            folder, schema="n bigint, text string", partition_by="n", flush_secs=0,
            target_bytes=target_bytes,
        )  # fmt: skip
        return sink, check

    assert die_everywhere(make, rows=8) > 8


@pytest.mark.slow
def test_a_death_between_two_folders_of_an_epoch_costs_nothing(tmp_path: Path) -> None:
    rows = [(n % 2, f"text {n}") for n in range(12)]
    for number in range(1, 7):
        folder = tmp_path / str(number)
        left = Shared([number])
        sink = Halting(folder, left)
        assert feed(CrashingSink(sink, Shared([0])), ["n", "text"], rows) == []
        assert left.value[0] <= 0
        assert read(folder) == {
            f"n={n}": Counter((text,) for m, text in rows if m == n) for n in range(2)
        }


class Halting(FileSink):
    """Dies before the n-th rename."""

    def __init__(self, folder: Path, left: Shared[list[int]]) -> None:
        super().__init__(folder, schema="n bigint, text string", partition_by="n", flush_secs=0)
        self.left = left

    def _commit(self, epoch: int, *prepared: Any) -> None:
        self.left.value[0] -= 1
        if self.left.value[0] == 0:
            die()
        super()._commit(epoch, *prepared)


@pytest.mark.system
@pytest.mark.nightly
def test_folders_of_an_object_store_are_read_back_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(n % 3 * 86_400_000, ODD[n % 4], n) for n in range(12)]
    with ObjectStore(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.create_bucket("bucket")
        sink = FileSink("s3://bucket/out", schema=SCHEMA, day_of="at_ms", partition_by="city")
        for epoch in (1, 2):  # the second owner's files replace those of the first
            sink.open({}, CONTEXT)
            sink.recover(epoch - 1, None)
            assert sink.last_epoch() == epoch - 1
            sink.begin(epoch)
            for row in rows[epoch - 1 :: 2]:
                sink.write(Tuple(row, 0, Source("feed", 2, "default", FIELDS)))
            prepared = sink.prepare(epoch)
            sink.commit(epoch, prepared)
            sink.commit(epoch, prepared)
        sink._system = None
        source = Files("s3://bucket/out", "parquet", {"city": "string", "n": "bigint"})
        found = live(source)
        assert Counter(found["default"]) == Counter(repr((city, n)) for _, city, n in rows)
        gc.collect()  # a file system's connections end with it


BAD: Sequence[Any] = ["a\0b", "x" * 300, 1.5]


@pytest.mark.parametrize("bad", BAD, ids=["nul", "long", "type"])
@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_value_that_names_no_folder_parks_its_row_alone(
    tmp_path: Path, format: str, bad: Any
) -> None:
    for number, places in enumerate(combinations(range(4), 2)):
        rows = [(0, bad if n in places else "ok", n) for n in range(4)]
        folder = tmp_path / str(number)
        sink = FileSink(folder, format, SCHEMA, partition_by="city", day_of="at_ms", flush_secs=0)
        letters = feed(sink, FIELDS, rows)
        assert [letter.values[2] for letter in letters] == list(places)
        [held] = read(folder).values()
        assert held == Counter((0, n) for n in range(4) if n not in places)


@pytest.mark.parametrize("at", [1 << 62, -(1 << 62), "noon", True, datetime(2026, 1, 1)])
def test_a_time_in_no_day_parks_its_row(tmp_path: Path, at: Any) -> None:
    sink = FileSink(tmp_path, "json", day_of="at", flush_secs=0)
    sink.open({}, CONTEXT)
    with pytest.raises(ValueError, match="field 'at' is"):
        sink._layout.folder([at])  # type: ignore[union-attr]


def as_read(value: Any, format: str) -> Any:
    """Return a value as a file of this format gives it: text has no dates."""
    return str(value) if type(value) is date and format != "parquet" else value


TYPED = {"k": "bigint", "day": "date", "is_on": "boolean", "name": "string", "n": "bigint"}


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_files_reads_its_fields_from_the_names_of_folders(tmp_path: Path, format: str) -> None:
    rows = [
        (1, date(2026, 11, 29), True, "a/b", 0),
        (None, None, None, None, 1),
        (-5, date(1, 1, 1), False, "100%=", 2),
    ]
    schema = "k bigint, day date, is_on boolean, name string, n bigint"
    keys = ["k", "day", "is_on", "name"]
    assert parked(FileSink(tmp_path, format, schema, partition_by=keys), rows, tuple(TYPED)) == []
    for fields in (TYPED, {"n": "bigint"}, {"name": "string", "k": "bigint"}):
        source = Files(str(tmp_path), format, fields)
        places = [list(TYPED).index(name) for name in fields]
        wanted = Counter(
            repr(tuple(as_read(row[place], format) for place in places)) for row in rows
        )
        found = live(source)
        assert Counter(found["default"]) == wanted and found["bad"] == []
        assert divided(source, tmp_path, 1) == found, "replayed"
    sentence = r"the folder 'day=.*' names no value of field 'day'"
    with pytest.raises(WorkerFailedError, match=sentence):
        live(Files(str(tmp_path), format, {"n": "bigint", "day": "bigint"}))


def test_a_field_whose_name_begins_with_an_underscore_is_read_back(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "json", "_k string, n bigint", partition_by="_k")
    assert parked(sink, [("a", 1)], ("_k", "n")) == []
    source = Files(str(tmp_path), "json", {"_k": "string", "n": "bigint"})
    assert live(source)["default"] == [repr(("a", 1))]


def test_a_field_that_a_file_has_is_not_taken_from_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "n=5" / "text=x"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text('{"n": 1}\n{"n": null}\n')
    (folder / "a.csv").write_text("n\n1\n\n")
    pq.write_table(pa.table({"n": [1, None]}), folder / "a.parquet")
    fields = {"n": "bigint", "text": "string"}
    for format, second in (("json", 5), ("csv", None), ("parquet", None)):
        found = live(Files(f"{tmp_path}/**/*.{format}", format, fields))
        assert found["default"][0] == repr((1, "x"))
        if format != "csv":  # whose blank line is a bad record
            assert found["default"][1:] == [repr((second, "x"))]


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    for options, sentence in (
        ({"partition_by": "town"}, "by the field 'town', which the schema lacks; it has at_ms"),
        ({"day_of": "when"}, "by the field 'when', which the schema lacks"),
        ({"day_of": "city"}, "day_of names 'city', which is string, no bigint of milliseconds"),
        ({"day_of": "at_ms", "zone": "Berlin"}, "'Berlin' is no time zone"),
        ({"day_of": "at_ms", "zone": 1}, "1 is no time zone"),
        ({"partition_by": "city", "zone": "Europe/Berlin"}, "of the days of day_of, which is not"),
        ({"partition_by": ["city", "city"]}, "names a field twice"),
        ({"partition_by": ["at_ms", "city", "n"]}, "names every field"),
        ({"partition_by": "at_ms", "day_of": "at_ms"}, "has neither 'day' nor 'at_ms'"),
        ({"partition_by": "share", "schema": "share double, n int"}, "field 'share' is double"),
        ({"day_of": "n", "schema": "day int, n int"}, "the schema has a field 'day'; rename it"),
    ):
        with pytest.raises(InvalidConfigError, match=f"^FileSink: .*{sentence}"):
            FileSink(tmp_path, **cast(Any, {"schema": SCHEMA, **options}))
    sink = FileSink(tmp_path, schema=SCHEMA, partition_by="city")
    sink.open({}, CONTEXT)
    for name in ("../x", f"city=a/../{sink._prefix}1", f"{sink._prefix}1", f"n=1/{sink._prefix}1"):
        with pytest.raises(StoreInconsistentError, match="the store names"):
            sink.commit(1, [[f"_staging/{sink._prefix}x", name, 1]])
