"""IcebergSink: rows into an Apache Iceberg table, by pyiceberg."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Unpack

from sparkstorm.connectors.table_sink import TableSink, TableSizes, refuse_secrets
from sparkstorm.errors import InvalidConfigError


class IcebergSink(TableSink):
    """Sink that appends rows to an Iceberg table ("db.clicks"), exactly once.

    An epoch is one Parquet file, which is written first and is part of the table once a snapshot
    names it. The same commit sets the table's property
    `sparkstorm-epoch.<topology>/<component>/<task>`, and the snapshot's summary names sink and
    epoch, so a commit that is repeated changes nothing. A table that is not there is made with the
    columns of `schema`; partitioned tables are not written. When `compact_files` files below half
    of `target_bytes` have come together, the first task merges them in a snapshot of its own;
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
        place = f"PYICEBERG_CATALOG__{catalog.upper()}__..."
        self._properties = refuse_secrets("IcebergSink", "properties", properties or {}, place)

    def _find_target(self) -> tuple[Any, str]:
        io = self._open_table().io
        folder = self._location("")
        scheme, place, path = io.parse_location(folder, io.properties)
        return io.fs_by_scheme(scheme, place), path.rstrip("/")

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
            each.file
            for each in files
            if each.file.file_size_in_bytes < self._target_bytes // 2 and not each.delete_files
        ]
        if len(small) < self._compact_files:
            return
        parts = []
        for each in small:
            with table.io.new_input(each.file_path).open() as source:
                parts.append(pq.read_table(source).select(schema.names).cast(schema))
        location = self._location(f"{self._prefix}merged.{uuid.uuid4().hex}.parquet")
        with table.io.new_output(location).create() as out:
            pq.write_table(pa.concat_tables(parts), out)
        try:
            with table.transaction() as change, change.update_snapshot().overwrite() as merge:
                for each in small:
                    merge.delete_data_file(each)
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
