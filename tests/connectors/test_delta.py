"""DeltaSink: every row in the table once, whatever dies; small files merged; tables that do not
fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sparkstorm.api import TransactionalSink
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.connectors import DeltaSink
from tests.connectors.crashing_sink import die_everywhere, feed

SCHEMA = "n bigint, text string"


@pytest.fixture(scope="module", autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The library's threads, which the first call of a process starts and nothing ends."""
    DeltaTable.create(
        str(tmp_path_factory.mktemp("delta")), pa.schema([("n", pa.int64())])
    ).to_pyarrow_table()


def rows_of(folder: Path) -> Counter[tuple[int, str]]:
    """Every row of a table, by the library."""
    table = pa.table(DeltaTable(str(folder)).to_pyarrow_table())
    return Counter((row["n"], row["text"]) for row in table.to_pylist())


@pytest.mark.slow
def test_rows_are_in_the_table_once_whatever_dies(tmp_path: Path) -> None:
    def make(number: int) -> tuple[TransactionalSink, Callable[[], None]]:
        folder = tmp_path / str(number)

        def check() -> None:
            assert rows_of(folder) == Counter((n, f"text {n}") for n in range(5))
            staged = {path.name for path in folder.glob("*.parquet")}
            assert staged == {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()}

        return DeltaSink(folder, SCHEMA, flush_secs=0), check

    assert die_everywhere(make, rows=5) > 4


def test_small_files_are_merged_and_a_repeated_commit_changes_nothing(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", SCHEMA, flush_secs=0, compact_files=4)
    assert feed(sink, ["n", "text"], [(n, f"text {n}") for n in range(40)]) == []
    table = DeltaTable(str(tmp_path / "t"))
    assert len(table.file_uris()) <= 4 < table.version()
    assert rows_of(tmp_path / "t") == Counter((n, f"text {n}") for n in range(40))
    assert any(entry["operation"] == "OPTIMIZE" for entry in table.history())
    entries = [entry for entry in table.history() if entry["operation"] == "WRITE"]
    assert table.transaction_version("sparkstorm/test-1-1767225600/sink/0") == len(entries)


def test_tables_that_do_not_fit_are_named(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "other"), pa.schema([("n", pa.string())]))
    sentence = r"/other: the table has the columns n string, the sink n int64, text string"
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(DeltaSink(tmp_path / "other", SCHEMA), ["n", "text"], [(1, "a")])
    sentence = "storage_options: AWS_SECRET_ACCESS_KEY holds a password or secret"
    with pytest.raises(InvalidConfigError, match=sentence):
        DeltaSink(tmp_path, SCHEMA, storage_options={"AWS_SECRET_ACCESS_KEY": "x"})
