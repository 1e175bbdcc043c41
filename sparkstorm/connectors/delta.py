"""DeltaSink: rows into a Delta Lake table, by deltalake (delta-rs)."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping
from typing import Any

from sparkstorm.api.components import Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.connectors.file_sinks import FileSink, delete_file, named_columns
from sparkstorm.errors import InvalidConfigError, StoreInconsistentError


class DeltaSink(FileSink):
    """Appends rows to a Delta table ("tables/clicks", "s3://bucket/clicks"), exactly once.

    An epoch is one Parquet file, which is written first and is part of the table once the table's log names it. The same entry of
    the log has the epoch as transaction (`txn`: application id `sparkstorm/<topology>/<component>/<task>`, version), so a commit
    that is repeated changes nothing. A table that is not there is made with the columns of `schema`; partitioned tables are not
    written. When `compact_files` files below half of `target_bytes` have come together, the first task merges them in an entry of
    its own, as `OPTIMIZE` does; `VACUUM` is left to you. `storage_options` are delta-rs' and hold no secrets: those come from the
    environment.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        schema: Any,
        *,
        flush_secs: float = 10.0,
        flush_rows: int = 100_000,
        target_bytes: int = 64 << 20,
        compact_files: int = 32,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(table, "parquet", schema, flush_secs=flush_secs, flush_rows=flush_rows, target_bytes=target_bytes)
        self._storage, self._compact_files = dict(storage_options or {}), compact_files
        if held := [key for key in self._storage if "secret" in key.lower() or "token" in key.lower()]:
            raise InvalidConfigError(f"DeltaSink: storage_options holds the secret {held[0]}; put it into the environment")

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Name this task's files and transactions."""
        super().open(conf, context)
        self._app = f"sparkstorm/{context.topology_id}/{context.component_id}/{context.task_index}"
        self._is_first = context.task_index == 0
        self._delta: Any = None

    def _prepare(self, epoch: int) -> Any:
        """Write the epoch's file; return [name, bytes, rows]."""
        system, root = self._target()
        name = f"{self._prefix}{epoch:020d}.{uuid.uuid4().hex}.parquet"
        rows = self._count_rows()
        system.create_dir(root, recursive=True)
        try:
            size = self._stage(f"{root}/{name}", None)
        except BaseException:
            delete_file(system, f"{root}/{name}")
            raise
        return [name, size, rows]

    def _commit(self, epoch: int, *prepared: Any) -> None:
        """Name the file and the epoch in one entry of the table's log."""
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction

        name, size, rows = prepared
        table = self._newest_table()
        if (table.transaction_version(self._app) or 0) >= epoch:
            return
        self._require_file(str(name), epoch)
        action = AddAction(name, size, {}, time.time_ns() // 1_000_000, True, json.dumps({"numRecords": rows}))
        properties = CommitProperties(app_transactions=[Transaction(self._app, epoch)])
        table.create_write_transaction([action], "append", table.schema(), commit_properties=properties)
        if self._is_first:
            self._compact(table)

    def recover(self, epoch: int, prepared: Any) -> None:
        """Make the table if it is not there; bring the last epoch into it, and delete files of later ones."""
        with self._speaking():
            self._make()
        super().recover(epoch, prepared)

    def _recover(self, epoch: int) -> None:
        from pyarrow import fs

        system, root = self._target()
        for info in system.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            number = info.base_name.removeprefix(self._prefix).partition(".")[0]
            if info.base_name.startswith(self._prefix) and number.isdigit() and int(number) > epoch:
                delete_file(system, info.path)

    def _make(self) -> None:
        """Make the table, or check that it has the sink's columns."""
        delta = _library()
        system, root = self._target()
        if "://" not in self._path:
            system.create_dir(root, recursive=True)
        try:
            if not delta.DeltaTable.is_deltatable(self._path, self._storage or None):
                delta.DeltaTable.create(self._path, self._schema, mode="ignore", storage_options=self._storage or None)
        except delta.exceptions.SchemaMismatchError as error:
            raise InvalidConfigError(f"{self._path}: {error}") from error
        import pyarrow as pa

        table = self._newest_table()
        schema: Any = self._schema
        found: Any = pa.schema(table.schema().to_arrow())
        if [(f.name, f.type) for f in found] != [(f.name, f.type) for f in schema]:
            raise InvalidConfigError(
                f"{self._path}: the table has the columns {named_columns(found)}, the sink {named_columns(schema)}"
            )
        if table.metadata().partition_columns:
            raise InvalidConfigError(f"{self._path}: DeltaSink writes no partitioned tables")

    def _newest_table(self) -> Any:
        if self._delta is None:
            self._delta = _library().DeltaTable(self._path, storage_options=self._storage or None)
        self._delta.update_incremental()
        return self._delta

    def _require_file(self, name: str, epoch: int) -> None:
        """Refuse a name from the store that is no staged file of this task."""
        from pyarrow import fs

        system, root = self._target()
        if not name.startswith(self._prefix) or "/" in name:
            raise StoreInconsistentError(f"the store names {name!r:.80} as a file of {self._path}")
        if system.get_file_info(f"{root}/{name}").type != fs.FileType.File:
            raise StoreInconsistentError(
                f"{self._path}: epoch {epoch} was staged as {name}, which is not there any more; restore it, or kill the topology "
                "and submit it again"
            )

    def _compact(self, table: Any) -> None:
        """Merge small files once there are many; a conflict with another writer is left to the next time."""
        import pyarrow as pa

        table.update_incremental()
        sizes = pa.table(table.get_add_actions()).column("size_bytes").to_pylist()
        if sum(size < self._target_bytes // 2 for size in sizes) < self._compact_files:
            return
        try:
            table.optimize.compact(target_size=self._target_bytes)
        except _library().exceptions.CommitFailedError:
            return


def _library() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise InvalidConfigError("deltalake is not installed here: pip install 'sparkstorm[delta]'") from error
    return deltalake
