"""DeltaSink, by deltalake (delta-rs)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any, Unpack

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors.tables.base import TableSink, TableSizes, refuse_secrets

_GONE = "__gone"  # column of a merge: the row is a tombstone


class DeltaSink(TableSink):
    """Sink that appends rows to a Delta table ("tables/clicks", "s3://bucket/clicks"), exactly
    once.

    An epoch is one Parquet file; the log entry that names it has the epoch as transaction (`txn`:
    application id `sparkstorm/<topology>/<component>/<task>`). A table that is not there is made
    with the columns of `schema`, partitioned by `partition_by`. The first task merges
    `compact_files` files below half of `target_bytes`, as `OPTIMIZE` does; `VACUUM` is left to you.
    `storage_options` are delta-rs' and hold no secrets: those come from the environment.

    With `key`, a column or several, a row takes the place of the one with the same key (`MERGE`),
    and a tombstone, a row with a key and None in every other column, deletes it.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        schema: Any,
        *,
        storage_options: Mapping[str, str] | None = None,
        **sizes: Unpack[TableSizes],
    ) -> None:
        super().__init__(table, schema, **sizes)
        columns: Any = self._schema
        if not set(columns.names) - set(self._partition_by):
            raise InvalidConfigError(
                "DeltaSink: partition_by names every column, so that the files have none; leave one out"
            )
        self._storage = (
            refuse_secrets("DeltaSink", "storage_options", storage_options or {}, "the environment")
            or None
        )

    def _find_target(self) -> tuple[Any, str]:
        if self._storage is None:
            return super()._find_target()  # fewer requests for a small file
        from deltalake.fs import DeltaStorageHandler
        from pyarrow import fs

        # with delta-rs' own options and credentials
        return fs.PyFileSystem(DeltaStorageHandler(self._path, self._storage)), ""

    def _has_table(self) -> bool:
        return bool(_deltalake().DeltaTable.is_deltatable(self._path, self._storage))

    def _make_table(self) -> tuple[Any, list[str]]:
        import pyarrow as pa

        delta = _deltalake()
        if "://" not in self._path:
            os.makedirs(self._path, exist_ok=True)
        try:
            if not self._has_table():
                delta.DeltaTable.create(
                    self._path,
                    self._schema,
                    mode="ignore",
                    partition_by=self._partition_by or None,
                    storage_options=self._storage,
                )
        except delta.exceptions.SchemaMismatchError as error:
            raise InvalidConfigError(f"{self._path}: {error}") from error
        table = self._newest_table()
        return pa.schema(table.schema().to_arrow()), list(table.metadata().partition_columns)

    def _newest_table(self) -> Any:
        if self._table is None:
            self._table = _deltalake().DeltaTable(self._path, storage_options=self._storage)
        self._table.update_incremental()
        return self._table

    def _last_epoch(self, table: Any) -> int:
        return table.transaction_version(f"sparkstorm/{self._name}") or 0

    def _append(self, table: Any, epoch: int, name: str, size: int, rows: int) -> None:
        from deltalake.transaction import AddAction

        action = AddAction(
            name, size, {}, time.time_ns() // 1_000_000, True, json.dumps({"numRecords": rows})
        )
        table.create_write_transaction(
            [action], "append", table.schema(), commit_properties=self._entry(epoch)
        )

    def _entry(self, epoch: int) -> Any:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(app_transactions=[Transaction(f"sparkstorm/{self._name}", epoch)])

    def _write(self, table: Any, epoch: int, rows: Any) -> None:
        if not self._key:
            _deltalake().write_deltalake(
                table, rows, mode="append", commit_properties=self._entry(epoch)
            )
            return
        import pyarrow as pa

        live, gone = self._split(rows)
        source = pa.concat_tables(
            part.append_column(_GONE, pa.array([is_gone] * part.num_rows, pa.bool_()))
            for part, is_gone in ((live, False), (gone, True))
        )
        quoted = {name: f'"{name.replace(chr(34), chr(34) * 2)}"' for name in rows.column_names}
        taken = {quoted[name]: f"s.{quoted[name]}" for name in rows.column_names}
        merge = table.merge(
            source,
            " AND ".join(f"t.{quoted[name]} = s.{quoted[name]}" for name in self._key),
            source_alias="s",
            target_alias="t",
            commit_properties=self._entry(epoch),
        )
        merge.when_matched_delete(f"s.{_GONE}").when_matched_update(taken).when_not_matched_insert(
            taken, f"NOT s.{_GONE}"
        ).execute()

    def _compact(self, table: Any) -> None:
        import pyarrow as pa

        sizes = pa.table(table.get_add_actions()).column("size_bytes").to_pylist()
        if sum(size < self._target_bytes // 2 for size in sizes) < self._compact_files:
            return
        try:
            table.optimize.compact(target_size=self._target_bytes)
        except _deltalake().exceptions.CommitFailedError:
            return


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise InvalidConfigError(
            "deltalake is not installed here: pip install 'sparkstorm[delta]'"
        ) from error
    return deltalake
