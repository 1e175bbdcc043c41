"""Bad input of Delta and Iceberg tables: one clear sentence each, and nothing lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyiceberg.catalog import load_catalog

from sparkstorm.common.errors import WorkerFailedError
from tests.connectors.test_bad_input import ROWS, Relieved, Spoiled, fill, write
from tests.connectors.test_bad_input import small_disk as small_disk
from tests.connectors.test_delta import runtime as runtime
from tests.connectors.test_iceberg import runtime as iceberg_runtime
from tests.connectors.test_keyed_tables import Table

__all__ = ["iceberg_runtime", "runtime", "small_disk"]
SCHEMA = "n bigint, text string"


class Spoilable(Table):
    """A table that may be dropped or changed."""

    def drop(self) -> None:
        if self.is_delta:
            shutil.rmtree(self.path)
        else:
            load_catalog("default", **self.properties).drop_table("db.rows")

    def change(self) -> None:
        """Add a column to a Delta table, rename one of an Iceberg table."""
        if self.is_delta:
            DeltaTable(str(self.path)).alter.add_columns([Field("extra", PrimitiveType("long"))])
        else:
            with self.iceberg().update_schema() as update:
                update.rename_column("text", "words")


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_full_disk_keeps_a_table_waiting_and_loses_nothing(
    kind: str, small_disk: Path, tmp_path: Path
) -> None:
    table = Table(kind, small_disk, tmp_path)
    relieved = Relieved(table.sink(SCHEMA), fill(small_disk))
    write(relieved)
    assert len(relieved.refusals.value) >= 2
    assert "No space left on device" in relieved.refusals.value[0]
    assert "\x1b" not in relieved.refusals.value[0]
    assert table.read() == sorted(ROWS, key=repr)


def test_a_table_that_is_gone_is_named_and_not_made_anew(kind: str, tmp_path: Path) -> None:
    table = Spoilable(kind, tmp_path)
    with pytest.raises(
        WorkerFailedError,
        match=r"rows: the table is gone, and with it what was written up to epoch \d+; restore|NoSuch",
    ):
        write(Spoiled(table.sink(SCHEMA), table.drop))


def test_a_table_whose_columns_have_changed_is_named(kind: str, tmp_path: Path) -> None:
    table = Spoilable(kind, tmp_path)
    if kind == "delta":  # files without a new column are its rows with nulls there
        write(Spoiled(table.sink(SCHEMA), table.change))
        assert [row[:2] for row in table.read()] == sorted(ROWS, key=repr)
    sentence = r"rows: the table has the columns n int64, .*, the sink n int64, text string"
    with pytest.raises(WorkerFailedError, match=sentence):
        write(Spoiled(table.sink(SCHEMA), table.change))
