"""IcebergSink: rows into an Apache Iceberg table, by pyiceberg."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from sparkstorm.api.components import Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.connectors.file_folders import file_system
from sparkstorm.connectors.file_sinks import FileSink, delete_file, named_columns
from sparkstorm.errors import InvalidConfigError, StoreInconsistentError

_SECRETS = ("secret", "token", "credential", "password")


class IcebergSink(FileSink):
    """Appends rows to an Iceberg table ("db.clicks"), exactly once.

    An epoch is one Parquet file, which is written first and is part of the table once a snapshot names it. The same commit sets the
    table's property `sparkstorm.epoch.<topology>/<component>/<task>`, and the snapshot's summary names sink and epoch, so a commit
    that is repeated changes nothing. A table that is not there is made with the columns of `schema`; partitioned tables are not
    written. When `compact_files` files below half of `target_bytes` have come together, the first task merges them in a snapshot of
    its own; expiring snapshots is left to you. `catalog` and `properties` are pyiceberg's; secrets come from its environment
    variables (`PYICEBERG_CATALOG__<NAME>__...`) or its file.
    """

    def __init__(
        self,
        table: str,
        schema: Any,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        flush_secs: float = 10.0,
        flush_rows: int = 100_000,
        target_bytes: int = 64 << 20,
        compact_files: int = 32,
    ) -> None:
        super().__init__(".", "parquet", schema, flush_secs=flush_secs, flush_rows=flush_rows, target_bytes=target_bytes)
        if "." not in table:
            raise InvalidConfigError(f"IcebergSink: {table!r:.80} is no table of the form namespace.table")
        self._path, self._catalog, self._properties = table, catalog, dict(properties or {})
        self._compact_files = compact_files
        if held := [key for key in self._properties if any(sign in key.lower() for sign in _SECRETS)]:
            raise InvalidConfigError(
                f"IcebergSink: properties holds the secret {held[0]}; put it into PYICEBERG_CATALOG__{catalog.upper()}__..."
            )

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Name this task's files and its property of the table."""
        super().open(conf, context)
        self._name = f"{context.topology_id}/{context.component_id}/{context.task_index}"
        self._property = f"sparkstorm.epoch.{self._name}"
        self._is_first = context.task_index == 0
        self._iceberg: Any = None

    def _prepare(self, epoch: int) -> Any:
        """Write the epoch's file; return [location]."""
        import pyarrow as pa

        self._seal()
        name = f"{self._prefix}{epoch:020d}.{uuid.uuid4().hex}.parquet"
        location = f"{self._open_table().location()}/data/{name}"
        self._write_file(location, pa.Table.from_batches(self._batches, self._schema))
        return [location]

    def _commit(self, epoch: int, *prepared: Any) -> None:
        """Name the file and the epoch in one commit of the table."""
        table = self._open_table().refresh()
        if int(table.properties.get(self._property, "0")) >= epoch:
            return
        [location] = prepared
        root = f"{table.location()}/data/{self._prefix}"
        if not str(location).startswith(root) or "/" in str(location)[len(root) :]:
            raise StoreInconsistentError(f"the store names {location!r:.80} as a file of {self._path}")
        if not table.io.new_input(location).exists():
            raise StoreInconsistentError(
                f"{self._path}: epoch {epoch} was staged as {location}, which is not there any more; restore it, or kill the "
                "topology and submit it again"
            )
        summary = {"sparkstorm.sink": self._name, "sparkstorm.epoch": str(epoch)}
        with table.transaction() as change:
            change.set_properties({self._property: str(epoch)})
            change.add_files([location], snapshot_properties=summary)
        if self._is_first:
            self._compact(table)

    def recover(self, epoch: int, prepared: Any) -> None:
        """Make the table if it is not there; bring the last epoch into it, and delete files of later ones."""
        with self._speaking():
            self._make()
        super().recover(epoch, prepared)

    def _recover(self, epoch: int) -> None:
        from pyarrow import fs

        system, root = file_system(f"{self._open_table().location()}/data")
        for info in system.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            number = info.base_name.removeprefix(self._prefix).partition(".")[0]
            if info.base_name.startswith(self._prefix) and number.isdigit() and int(number) > epoch:
                delete_file(system, info.path)

    def _make(self) -> None:
        """Make the table, or check that it has the sink's columns."""
        namespace = tuple(self._path.split(".")[:-1])
        catalog = self._load_catalog()
        if not catalog.table_exists(self._path):
            catalog.create_namespace_if_not_exists(namespace)
            catalog.create_table_if_not_exists(self._path, self._schema)
        table = self._open_table()
        schema: Any = self._schema
        found = [(each.name, _plain(each.type)) for each in table.schema().as_arrow()]
        if found != [(each.name, _plain(each.type)) for each in schema]:
            raise InvalidConfigError(
                f"{self._path}: the table has the columns {named_columns(table.schema().as_arrow())}, the sink "
                f"{named_columns(schema)}"
            )
        if not table.spec().is_unpartitioned():
            raise InvalidConfigError(f"{self._path}: IcebergSink writes no partitioned tables")

    def _load_catalog(self) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise InvalidConfigError("pyiceberg is not installed here: pip install 'sparkstorm[iceberg]'") from error
        return load_catalog(self._catalog, **self._properties)

    def _open_table(self) -> Any:
        if self._iceberg is None:
            self._iceberg = self._load_catalog().load_table(self._path)
        return self._iceberg

    def _write_file(self, location: str, rows: Any) -> None:
        import pyarrow.parquet as pq

        with self._open_table().io.new_output(location).create(overwrite=True) as out:
            pq.write_table(rows, out)

    def _compact(self, table: Any) -> None:
        """Merge small files once there are many; a conflict with another writer is left to the next time."""
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table import _parquet_files_to_data_files

        table, schema = table.refresh(), self._schema
        assert schema is not None
        small = [
            each.file
            for each in table.scan().plan_files()
            if each.file.file_size_in_bytes < self._target_bytes // 2 and not each.delete_files
        ]
        if len(small) < self._compact_files:
            return
        parts = []
        for each in small:
            with table.io.new_input(each.file_path).open() as source:
                parts.append(pq.read_table(source).select(schema.names).cast(schema))
        location = f"{table.location()}/data/{self._prefix}merged.{uuid.uuid4().hex}.parquet"
        self._write_file(location, pa.concat_tables(parts))
        try:
            with table.transaction() as change, change.update_snapshot().overwrite() as merge:
                for each in small:
                    merge.delete_data_file(each)
                for made in _parquet_files_to_data_files(change.table_metadata, [location], table.io):
                    merge.append_data_file(made)
        except CommitFailedException:
            table.io.delete(location)


def _plain(kind: Any) -> str:
    """Return an Arrow type as text; Iceberg gives text and bytes their large forms."""
    return str(kind).replace("large_", "")
