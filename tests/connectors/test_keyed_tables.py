"""Delta and Iceberg tables with a key, and partitioned ones: what they hold whatever dies, compared with
a dictionary.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType, NestedField, TimestamptzType

from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.connectors import DeltaSink, IcebergSink
from sparkstorm.testing import Shared
from tests.connectors.crashing_sink import CrashingSink, feed
from tests.connectors.test_delta import runtime as runtime
from tests.connectors.test_iceberg import catalog_of
from tests.connectors.test_iceberg import runtime as iceberg_runtime

__all__ = ["iceberg_runtime", "runtime"]
SCHEMA = "k bigint, kind string, text string"
FIELDS = ["k", "kind", "text"]


class Table:
    """A table of one of the two formats in a folder, an Iceberg table with its catalog in another
    one.
    """

    def __init__(self, kind: str, folder: Path, catalog: Path | None = None) -> None:
        self.is_delta = kind == "delta"
        self.folder = folder
        self.path = folder / "rows"
        self.properties = {**catalog_of(catalog or folder), "warehouse": f"file://{folder}"}

    def sink(self, schema: Any = SCHEMA, **options: Any) -> DeltaSink | IcebergSink:
        if self.is_delta:
            return DeltaSink(self.path, schema, flush_secs=0, **options)
        return IcebergSink("db.rows", schema, properties=self.properties, flush_secs=0, **options)

    def iceberg(self) -> Any:
        return load_catalog("default", **self.properties).load_table("db.rows")

    def read(self) -> list[tuple[Any, ...]]:
        """Rows of the table, by its library."""
        found = (
            pa.table(DeltaTable(str(self.path)).to_pyarrow_table())
            if self.is_delta
            else self.iceberg().scan().to_arrow()
        )
        rows = (tuple(row[name] for name in found.column_names) for row in found.to_pylist())
        return sorted(rows, key=repr)

    def files(self) -> tuple[set[str], set[str]]:
        """Files in the folder, and those that the table has."""
        if self.is_delta:
            named = {Path(uri).name for uri in DeltaTable(str(self.path)).file_uris()}
        else:
            named = {Path(scan.file.file_path).name for scan in self.iceberg().scan().plan_files()}
        return {path.name for path in self.folder.rglob("*.parquet")}, named


@pytest.fixture(params=["delta", "iceberg"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Table]:
    """Tables of one format, each in a folder."""
    return lambda name="0": Table(request.param, tmp_path / name)


def drawn(seed: int, count: int) -> list[tuple[Any, ...]]:
    """Rows of five keys: new ones, changed ones, tombstones, also of keys that are not there."""
    chance = random.Random(seed)
    rows: list[tuple[Any, ...]] = []
    for number in range(count):
        key = chance.randrange(5)
        rows.append(
            (key, None, None)
            if chance.random() < 0.3
            else (key, chance.choice(["a", "b", None]), f"text {number}")
        )
    return rows


def held(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows of a table with the key `k` after these were written."""
    row_by_key = {row[0]: row for row in rows}
    return sorted((row for row in row_by_key.values() if row[1:] != (None, None)), key=repr)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("partition_by", ["", "kind"])
def test_a_key_has_its_last_row_and_tombstones_delete_it_whatever_dies(
    make: Callable[..., Table], partition_by: str
) -> None:
    rows = drawn(3, 8)
    options: dict[str, Any] = {"key": "k", **({"partition_by": "kind"} if partition_by else {})}
    clean, table = Shared([0]), make("clean")
    assert feed(CrashingSink(table.sink(**options), clean), FIELDS, rows) == []
    assert table.read() == held(rows)
    for number in range(1, -clean.value[0] + 1):
        table = make(str(number))
        feed(CrashingSink(table.sink(**options), Shared([number])), FIELDS, rows)
        assert table.read() == held(rows), f"death at phase {number}"
        files, _ = table.files()
        assert not [name for name in files if name.startswith("staged-")]


@pytest.mark.slow
@pytest.mark.sampled(2)
def test_rows_go_into_the_tables_partitions_once_whatever_dies(make: Callable[..., Table]) -> None:
    rows = [(n, ["a", "b", None][n % 3], f"text {n}") for n in range(6)]
    clean, table = Shared([0]), make("clean")
    feed(CrashingSink(table.sink(partition_by="kind"), clean), FIELDS, rows)
    assert table.read() == sorted(rows, key=repr)
    for number in range(1, -clean.value[0] + 1):
        table = make(str(number))
        feed(CrashingSink(table.sink(partition_by="kind"), Shared([number])), FIELDS, rows)
        assert table.read() == sorted(rows, key=repr), f"death at phase {number}"
    if table.is_delta:
        assert DeltaTable(str(table.path)).metadata().partition_columns == ["kind"]
    else:
        assert [field.name for field in table.iceberg().spec().fields] == ["kind"]


def test_small_files_of_a_partition_are_merged(make: Callable[..., Table]) -> None:
    table = make()
    rows = [(n, "ab"[n % 2], f"text {n}") for n in range(40)]
    assert feed(table.sink(partition_by=["kind"], compact_files=4), FIELDS, rows) == []
    assert table.read() == sorted(rows, key=repr)
    assert len(table.files()[1]) < 10


def test_keys_of_several_columns_of_any_kind_are_compared_by_value(
    make: Callable[..., Table],
) -> None:
    table = make()
    schema = pa.schema([("a", pa.string()), ('B "x"', pa.int64()), ("text", pa.string())])
    rows = [("x", 1, "1"), ("x", 2, "2"), ("y's", 1, "3"), ("x", 2, "4"), ("x", 1, None)]
    assert feed(table.sink(schema, key=["a", 'B "x"']), ["a", 'B "x"', "text"], rows) == []
    assert set(table.read()) == {("x", 2, "4"), ("y's", 1, "3")}


@pytest.mark.parametrize("key", [None, float("nan")])
def test_a_row_without_its_key_is_parked_and_the_others_are_written(
    make: Callable[..., Table], key: Any
) -> None:
    table = make()
    rows = [(1.0, "a", "x"), (key, "a", "y"), (2.0, "b", "z"), (key, "b", "z")]
    letters = feed(table.sink("k double, kind string, text string", key="k"), FIELDS, rows)
    assert [letter.values[1:] for letter in letters] == [("a", "y"), ("b", "z")]
    assert all("field 'k' is n" in letter.reason for letter in letters)
    assert table.read() == [rows[0], rows[2]]


def test_lists_within_any_column_are_written(make: Callable[..., Table]) -> None:
    table = make()
    rows = [(1, [1, None], {"a": [["x"], []]}), (2, [], {"a": None}), (3, None, None)]
    sink = table.sink({"k": "bigint", "v": "array<bigint>", "s": "struct<a:array<array<string>>>"})
    assert feed(sink, ["k", "v", "s"], rows) == []
    assert table.read() == rows


def test_a_table_of_another_layout_keeps_it(tmp_path: Path) -> None:
    table = Table("iceberg", tmp_path)
    catalog = load_catalog("default", **catalog_of(tmp_path))
    catalog.create_namespace("db")
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "at", TimestamptzType()))
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "at_day"))
    catalog.create_table("db.rows", schema, partition_spec=spec)
    of_rows = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    days = pa.array([0, 1, 86_400_000_000], pa.timestamp("us", "UTC")).to_pylist()
    rows = [(n, day) for n, day in enumerate(days)]
    assert feed(table.sink(of_rows, compact_files=4), ["n", "at"], rows) == []
    assert table.read() == sorted(rows, key=repr)
    assert len({str(scan.file.partition) for scan in table.iceberg().scan().plan_files()}) == 2
    sentence = r"the table is partitioned by day\(at\), the sink by n; drop"
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(table.sink(of_rows, partition_by="n"), ["n", "at"], rows)
    catalog.close()


def test_options_that_name_no_column_are_refused(make: Callable[..., Table]) -> None:
    for option in ("key", "partition_by"):
        with pytest.raises(
            InvalidConfigError, match=rf"{option} names 'kin'; the columns are k, .*mean 'kind'"
        ):
            make().sink(**{option: "kin"})
        with pytest.raises(InvalidConfigError, match=rf"{option} names 'm', which is list<"):
            make().sink("k bigint, m array<bigint>", **{option: ["k", "m"]})
    with pytest.raises(InvalidConfigError, match="partition_by names every column, so that the"):
        DeltaSink("a", "k bigint, kind string", partition_by=["kind", "k"])
