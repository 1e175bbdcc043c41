"""IcebergSink: every row in the table once, whatever dies; small files merged; tables that do not
fit.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from sparkstorm.api import TransactionalSink
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.connectors import IcebergSink
from sparkstorm.testing import Shared
from tests.connectors.crashing_sink import die_everywhere, feed

SCHEMA = "n bigint, text string"


def catalog_of(folder: Path) -> dict[str, str]:
    """Properties of a catalog in a file, and its tables' folder."""
    folder.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


@pytest.fixture(scope="module", autouse=True)
def runtime() -> None:
    """The library's threads, which the first call of a process starts and nothing ends."""
    from pyiceberg.utils.concurrent import ExecutorFactory

    list(
        ExecutorFactory.get_or_create().map(
            lambda n: time.sleep(0.05), range(100 if (os.cpu_count() or 1) > 8 else 20)
        )
    )


def table_of(folder: Path) -> Any:
    return load_catalog("default", **catalog_of(folder)).load_table("db.rows")


def rows_of(folder: Path) -> Counter[tuple[int, str]]:
    """Every row of a table, by the library."""
    return Counter(
        (row["n"], row["text"]) for row in table_of(folder).scan().to_arrow().to_pylist()
    )


def sink_of(folder: Path, **options: Any) -> IcebergSink:
    return IcebergSink("db.rows", SCHEMA, properties=catalog_of(folder), flush_secs=0, **options)


@pytest.mark.slow
def test_rows_are_in_the_table_once_whatever_dies(tmp_path: Path) -> None:
    def make(number: int) -> tuple[TransactionalSink, Callable[[], None]]:
        folder = tmp_path / str(number)

        def check() -> None:
            assert rows_of(folder) == Counter((n, f"text {n}") for n in range(5))
            files = {task.file.file_path for task in table_of(folder).scan().plan_files()}
            result = {Path(path).name for path in files}
            assert result == {path.name for path in folder.rglob("*.parquet")}

        return sink_of(folder), check

    assert die_everywhere(make, rows=5) > 4


@pytest.mark.slow
def test_small_files_are_merged_and_snapshots_name_their_epochs(tmp_path: Path) -> None:
    assert (
        feed(
            sink_of(tmp_path, compact_files=4), ["n", "text"], [(n, f"text {n}") for n in range(40)]
        )
        == []
    )
    table = table_of(tmp_path)
    assert rows_of(tmp_path) == Counter((n, f"text {n}") for n in range(40))
    assert len(list(table.scan().plan_files())) <= 4
    epochs = [
        each.summary.additional_properties.get("sparkstorm-epoch") for each in table.snapshots()
    ]
    written = [int(epoch) for epoch in epochs if epoch]
    assert written == list(range(1, len(written) + 1)) and len(written) > 4 and None in epochs
    assert table.properties["sparkstorm-epoch.test-1-1767225600/sink/0"] == str(len(written))


class Hurried(IcebergSink):
    """Sink that merges while another task appends."""

    other: Shared[Callable[[], None]] | None = None

    def _location(self, name: str) -> str:
        if ".merged." in name and self.other is not None:
            other, self.other = self.other, None
            other.value()
        return super()._location(name)


@pytest.mark.slow
def test_a_merge_that_meets_another_tasks_rows_is_left_to_the_next_time(tmp_path: Path) -> None:
    sink = Hurried(
        "db.rows", SCHEMA, properties=catalog_of(tmp_path), flush_secs=0, compact_files=4
    )
    other = pa.table({"n": [-1], "text": ["other"]})
    sink.other = Shared(lambda: table_of(tmp_path).append(other))
    assert feed(sink, ["n", "text"], [(n, f"text {n}") for n in range(20)]) == []
    assert rows_of(tmp_path) == Counter([(-1, "other"), *((n, f"text {n}") for n in range(20))])
    merged = {path.name for path in tmp_path.rglob("*.merged.*.parquet")}
    kept = [
        each
        for each in table_of(tmp_path).inspect.all_data_files()["file_path"].to_pylist()
        if ".merged." in each
    ]
    assert merged == {Path(path).name for path in kept}  # the file of the failed merge is deleted


def test_tables_that_do_not_fit_are_named(tmp_path: Path) -> None:
    catalog = load_catalog("default", **catalog_of(tmp_path))
    catalog.create_namespace("db")
    catalog.create_table("db.rows", pa.schema([("n", pa.string())]))
    sentence = r"db.rows: the table has the columns n (large_)?string, the sink n int64"
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(sink_of(tmp_path), ["n", "text"], [(1, "a")])
    catalog.close()
    for name in ("rows", "db..rows", "db."):
        with pytest.raises(InvalidConfigError, match=r"is no table of the form namespace\.table"):
            IcebergSink(name, SCHEMA)
    words = r"properties: s3.secret-access-key holds a password or secret; put it into PYICEBERG_"
    with pytest.raises(InvalidConfigError, match=words):
        IcebergSink("db.rows", SCHEMA, properties={"s3.secret-access-key": "x"})
    for uri in (
        "postgresql+psycopg://me:secret@host/db",
        "postgresql://host/db?user=me&password=secret",
        "host=h user=me password=secret",
        "Server=h;Pwd = secret",
    ):
        sentence = r"^(?!.*secret@).*properties: uri holds a password"
        with pytest.raises(InvalidConfigError, match=sentence):
            IcebergSink("db.rows", SCHEMA, properties={"type": "sql", "uri": uri})
