"""TableSink: base of the sinks whose rows are in a table once its log names their file; DeltaSink, by
deltalake (delta-rs), and IcebergSink, by pyiceberg.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Unpack

from sparkstorm.api.components import Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import InvalidConfigError, SparkStormError, StoreInconsistentError
from sparkstorm.connectors.file_folders import raise_lasting
from sparkstorm.connectors.file_sinks import FileSink, FileSizes, delete_file, named_columns
from sparkstorm.connectors.patience import SECRETS, holds_secret


class TableSizes(FileSizes, total=False):
    """Sizes of a TableSink, with the number of small files that are merged (32)."""

    compact_files: int


class TableSink(FileSink):
    """Sink that writes an epoch as one Parquet file, then names file and epoch in one entry of the
    table's log.

    The log has the number of each task's last epoch, so a commit that is repeated changes nothing.
    A subclass opens the table (`_make_table`, `_newest_table`), finds the place of its files
    (`_find_target`), reads and writes its log (`_last_epoch`, `_append`) and merges small files
    (`_compact`).
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        schema: Any,
        *,
        compact_files: int = 32,
        **sizes: Unpack[FileSizes],
    ) -> None:
        super().__init__(table, "parquet", schema, **sizes)
        self._compact_files = compact_files

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Name this task in the table's log, and its files."""
        super().open(conf, context)
        self._name = f"{context.topology_id}/{context.component_id}/{context.task_index}"
        self._is_first = context.task_index == 0
        self._commits = 0
        self._table: Any = None

    def _prepare(self, epoch: int) -> Any:
        """Write the epoch's file; return [name, bytes, rows]."""
        system, root = self._target()
        name = f"{self._prefix}{epoch:020d}.{uuid.uuid4().hex}.parquet"
        rows = self._count_rows()
        system.create_dir(root, recursive=True)
        try:
            size = self._stage(f"{root}/{name}", None, self._parts[""])
        except BaseException:
            delete_file(system, f"{root}/{name}")
            raise
        return [name, size, rows]

    def _commit(self, epoch: int, *prepared: Any) -> None:
        """Name the file and the epoch in one entry of the table's log."""
        name, size, rows = prepared
        table = self._newest_table()
        if self._last_epoch(table) >= epoch:
            return
        self._require_file(str(name), epoch)
        self._append(table, epoch, name, size, rows)
        self._commits += 1
        # a look reads the whole log
        if self._is_first and self._commits % max(1, self._compact_files // 4) == 0:
            self._compact(self._newest_table())

    def recover(self, epoch: int, prepared: Any) -> None:
        """Make the table if it is not there; bring the last epoch into it, and delete files of
        later ones.
        """
        with self._speaking():
            if epoch and not self._has_table():
                raise InvalidConfigError(
                    f"{self._path}: the table is gone, and with it what was written up to epoch {epoch}; restore it, or kill the "
                    "topology and submit it again for a new one"
                )
            table_schema, is_partitioned = self._make_table()
            schema: Any = self._schema
            if [(f.name, _plain(f.type)) for f in table_schema] != [
                (f.name, _plain(f.type)) for f in schema
            ]:
                raise InvalidConfigError(
                    f"{self._path}: the table has the columns {named_columns(table_schema)}, the sink {named_columns(schema)}"
                )
            if is_partitioned:
                raise InvalidConfigError(
                    f"{self._path}: {type(self).__name__} writes no partitioned tables"
                )
        super().recover(epoch, prepared)

    def last_epoch(self) -> int | None:
        """Read the epoch in the table's log."""
        with self._speaking():
            return self._last_epoch(self._newest_table()) if self._has_table() else 0

    def _recover(self, epoch: int) -> None:
        """Delete what was staged for epochs that no log names: neither the store's, which may have
        lost some, nor the table's.
        """
        from pyarrow import fs

        system, root = self._target()
        epoch = max(epoch, self._last_epoch(self._newest_table()))
        for info in system.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            number = info.base_name.removeprefix(self._prefix).partition(".")[0]
            if info.base_name.startswith(self._prefix) and number.isdigit() and int(number) > epoch:
                delete_file(system, info.path)

    def _require_file(self, name: str, epoch: int) -> None:
        """Refuse a name from the store that is no file of this task."""
        from pyarrow import fs

        system, root = self._target()
        if not name.startswith(self._prefix) or "/" in name:
            raise StoreInconsistentError(f"the store names {name!r:.80} as a file of {self._path}")
        if system.get_file_info(f"{root}/{name}").type != fs.FileType.File:
            raise StoreInconsistentError(
                f"{self._path}: epoch {epoch} was staged as {name}, which is not there any more; restore it, or kill the topology "
                "and submit it again"
            )

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except SparkStormError:
            raise
        except Exception as error:
            # delta-rs paints its errors
            text = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())
            known_error = OSError(f"{type(error).__name__}: {text}")
            raise_lasting(known_error, self._path)
            raise known_error from error

    def _has_table(self) -> bool:
        """Return whether the table is there."""
        raise NotImplementedError

    def _make_table(self) -> tuple[Any, bool]:
        """Make the table, if it is not there; return its columns as an Arrow schema, and whether it
        is partitioned.
        """
        raise NotImplementedError

    def _newest_table(self) -> Any:
        """Return the table with the newest entries of its log."""
        raise NotImplementedError

    def _last_epoch(self, table: Any) -> int:
        """Return this task's last epoch in the table; 0 when there is none."""
        raise NotImplementedError

    def _append(self, table: Any, epoch: int, name: str, size: int, rows: int) -> None:
        """Write the log's entry of a file and its epoch."""
        raise NotImplementedError

    def _compact(self, table: Any) -> None:
        """Merge small files once there are many; leave a conflict with another writer to the next
        time.
        """
        raise NotImplementedError


class DeltaSink(TableSink):
    """Sink that appends rows to a Delta table ("tables/clicks", "s3://bucket/clicks"), exactly
    once.

    An epoch is one Parquet file, which is written first and is part of the table once the table's
    log names it. The same entry of the log has the epoch as transaction (`txn`: application id
    `sparkstorm/<topology>/<component>/<task>`, version), so a commit that is repeated changes
    nothing. A table that is not there is made with the columns of `schema`; partitioned tables are
    not written. When `compact_files` files below half of `target_bytes` have come together, the
    first task merges them in its own entry, as `OPTIMIZE` does; `VACUUM` is left to you.
    `storage_options` are delta-rs' and hold no secrets: those come from the environment.
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

    def _make_table(self) -> tuple[Any, bool]:
        import pyarrow as pa

        delta = _deltalake()
        if "://" not in self._path:
            os.makedirs(self._path, exist_ok=True)
        try:
            if not self._has_table():
                delta.DeltaTable.create(
                    self._path, self._schema, mode="ignore", storage_options=self._storage
                )
        except delta.exceptions.SchemaMismatchError as error:
            raise InvalidConfigError(f"{self._path}: {error}") from error
        table = self._newest_table()
        return pa.schema(table.schema().to_arrow()), bool(table.metadata().partition_columns)

    def _newest_table(self) -> Any:
        if self._table is None:
            self._table = _deltalake().DeltaTable(self._path, storage_options=self._storage)
        self._table.update_incremental()
        return self._table

    def _last_epoch(self, table: Any) -> int:
        return table.transaction_version(f"sparkstorm/{self._name}") or 0

    def _append(self, table: Any, epoch: int, name: str, size: int, rows: int) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction

        action = AddAction(
            name, size, {}, time.time_ns() // 1_000_000, True, json.dumps({"numRecords": rows})
        )
        properties = CommitProperties(
            app_transactions=[Transaction(f"sparkstorm/{self._name}", epoch)]
        )
        table.create_write_transaction(
            [action], "append", table.schema(), commit_properties=properties
        )

    def _compact(self, table: Any) -> None:
        import pyarrow as pa

        sizes = pa.table(table.get_add_actions()).column("size_bytes").to_pylist()
        if sum(size < self._target_bytes // 2 for size in sizes) < self._compact_files:
            return
        try:
            table.optimize.compact(target_size=self._target_bytes)
        except _deltalake().exceptions.CommitFailedError:
            return


class IcebergSink(TableSink):
    """Sink that appends rows to an Iceberg table ("db.clicks"), exactly once.

    An epoch is one Parquet file, which is written first and is part of the table once a snapshot
    names it. The same commit sets the table's property
    `sparkstorm-epoch.<topology>/<component>/<task>`, and the snapshot's summary names sink and
    epoch, so a commit that is repeated changes nothing. A table that is not there is made with the
    columns of `schema`; partitioned tables are not written. When `compact_files` files below half
    of `target_bytes` have come together, the first task merges them in its own snapshot;
    expiring snapshots is left to you. `catalog` and `properties` are pyiceberg's; secrets come from
    its environment variables (`PYICEBERG_CATALOG__<NAME>__...`) or its file.
    """

    def __init__(
        self,
        table: str,
        schema: Any,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        **sizes: Unpack[TableSizes],
    ) -> None:
        super().__init__(table, schema, **sizes)
        if "." not in table or not all(part.strip() for part in table.split(".")):
            raise InvalidConfigError(
                f"IcebergSink: {table!r:.80} is no table of the form namespace.table"
            )
        self._path = table
        self._catalog = catalog
        variable = f"PYICEBERG_CATALOG__{catalog.upper()}__..."
        self._properties = refuse_secrets("IcebergSink", "properties", properties or {}, variable)

    def _find_target(self) -> tuple[Any, str]:
        io = self._open_table().io
        folder = self._location("")
        scheme, netloc, path = io.parse_location(folder, io.properties)
        return io.fs_by_scheme(scheme, netloc), path.rstrip("/")

    def _has_table(self) -> bool:
        return bool(self._load_catalog().table_exists(self._path))

    def _make_table(self) -> tuple[Any, bool]:
        catalog = self._load_catalog()
        if not self._has_table():
            catalog.create_namespace_if_not_exists(tuple(self._path.split(".")[:-1]))
            catalog.create_table_if_not_exists(self._path, self._schema)
        table = self._open_table()
        return table.schema().as_arrow(), not table.spec().is_unpartitioned()

    def _newest_table(self) -> Any:
        return self._open_table().refresh()

    def _last_epoch(self, table: Any) -> int:
        return int(table.properties.get(f"sparkstorm-epoch.{self._name}", "0"))

    def _append(self, table: Any, epoch: int, name: str, size: int, rows: int) -> None:
        with table.transaction() as change:
            change.set_properties({f"sparkstorm-epoch.{self._name}": str(epoch)})
            summary = {"sparkstorm-sink": self._name, "sparkstorm-epoch": str(epoch)}
            change.add_files([self._location(name)], snapshot_properties=summary)

    def _compact(self, table: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyiceberg.exceptions import CommitFailedException, ValidationException
        from pyiceberg.table import _parquet_files_to_data_files

        schema: Any = self._schema
        files = table.scan().plan_files()
        small = [
            scan.file
            for scan in files
            if scan.file.file_size_in_bytes < self._target_bytes // 2 and not scan.delete_files
        ]
        if len(small) < self._compact_files:
            return
        parts = []
        for file in small:
            with table.io.new_input(file.file_path).open() as source:
                parts.append(pq.read_table(source).select(schema.names).cast(schema))
        location = self._location(f"{self._prefix}merged.{uuid.uuid4().hex}.parquet")
        with table.io.new_output(location).create() as out:
            pq.write_table(pa.concat_tables(parts), out)
        try:
            with table.transaction() as change, change.update_snapshot().overwrite() as merge:
                for file in small:
                    merge.delete_data_file(file)
                for made in _parquet_files_to_data_files(
                    change.table_metadata, [location], table.io
                ):
                    merge.append_data_file(made)
        except (CommitFailedException, ValidationException):  # another task has appended meanwhile
            table.io.delete(location)

    def _location(self, name: str) -> str:
        return f"{self._open_table().location()}/data/{name}"

    def _load_catalog(self) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise InvalidConfigError(
                "pyiceberg is not installed here: pip install 'sparkstorm[iceberg]'"
            ) from error
        return load_catalog(
            self._catalog,
            **{**self._properties, "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"},
        )

    def _open_table(self) -> Any:
        if self._table is None:
            self._table = self._load_catalog().load_table(self._path)
        return self._table


def refuse_secrets(sink: str, option: str, given: Mapping[str, str], remedy: str) -> dict[str, str]:
    """Return a copy of a library's options; InvalidConfigError for a secret among them, since they
    travel and are logged.

    A password within a URL, as of an Iceberg catalog in PostgreSQL, is one too, also in a URL's
    query or in a DSN of words.
    """
    held = [
        key
        for key, value in given.items()
        if any(sign in key.lower() for sign in SECRETS) or holds_secret(str(value), SECRETS)
    ]
    if held:
        raise InvalidConfigError(
            f"{sink}: {option}: {held[0]} holds a password or secret; put it into {remedy}"
        )
    return dict(given)


def _plain(kind: Any) -> str:
    """Return an Arrow type as text; libraries give text and bytes their large forms."""
    return str(kind).replace("large_", "")


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise InvalidConfigError(
            "deltalake is not installed here: pip install 'sparkstorm[delta]'"
        ) from error
    return deltalake
