"""IcebergSink, by pyiceberg."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping
from typing import Any, Unpack

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors.tables.base import TableSink, TableSizes, refuse_secrets


class IcebergSink(TableSink):
    """Sink that appends rows to an Iceberg table ("db.clicks"), exactly once.

    An epoch is one Parquet file; the commit that names it sets the table's property
    `sparkstorm-epoch.<topology>/<component>/<task>`. A table that is not there is made with the
    columns of `schema`, partitioned by the columns `partition_by`; make one that is partitioned by
    days beforehand. Compaction and `key` are those of `DeltaSink`; expiring snapshots is left to
    you.

    `catalog` and `properties` are pyiceberg's; secrets come from its environment variables
    (`PYICEBERG_CATALOG__<NAME>__...`) or its file.
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

    def _make_table(self) -> tuple[Any, list[str]]:
        catalog = self._load_catalog()
        if not self._has_table():
            catalog.create_namespace_if_not_exists(tuple(self._path.split(".")[:-1]))
            with (
                catalog.create_table_transaction(self._path, self._schema) as making,
                making.update_spec() as spec,
            ):
                for name in self._partition_by:
                    spec.add_identity(name)
        table = self._open_table()
        schema = table.schema()
        partitions = [
            name if str(field.transform) == "identity" else f"{field.transform}({name})"
            for field in table.spec().fields
            for name in [schema.find_column_name(field.source_id)]
        ]
        return schema.as_arrow(), partitions

    def _newest_table(self) -> Any:
        return self._open_table().refresh()

    def _last_epoch(self, table: Any) -> int:
        return int(table.properties.get(f"sparkstorm-epoch.{self._name}", "0"))

    def _append(self, table: Any, epoch: int, name: str, size: int, rows: int) -> None:
        with table.transaction() as change:
            change.set_properties({f"sparkstorm-epoch.{self._name}": str(epoch)})
            change.add_files([self._location(name)], snapshot_properties=self._summary(epoch))

    def _summary(self, epoch: int) -> dict[str, str]:
        return {"sparkstorm-sink": self._name, "sparkstorm-epoch": str(epoch)}

    def _write(self, table: Any, epoch: int, rows: Any) -> None:
        from pyiceberg.table.upsert_util import create_match_filter

        summary = self._summary(epoch)
        with table.transaction() as change:
            change.set_properties({f"sparkstorm-epoch.{self._name}": str(epoch)})
            if not self._key:
                change.append(rows, summary)
                return
            live, gone = self._split(rows)
            if gone.num_rows:
                with warnings.catch_warnings():  # of tombstones whose rows are not there
                    warnings.simplefilter("ignore", UserWarning)
                    change.delete(create_match_filter(gone, self._key), summary)
            if live.num_rows:
                change.upsert(live, self._key, snapshot_properties=summary)

    def _compact(self, table: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyiceberg.exceptions import CommitFailedException, ValidationException
        from pyiceberg.table import TableProperties, _parquet_files_to_data_files

        schema: Any = self._schema
        files = table.scan().plan_files()
        small_by_partition: dict[Any, list[Any]] = {}
        for scan in files:
            if scan.file.file_size_in_bytes < self._target_bytes // 2 and not scan.delete_files:
                place = scan.file.spec_id, tuple(scan.file.partition)
                small_by_partition.setdefault(place, []).append(scan.file)
        small = max(small_by_partition.values(), key=len, default=[])
        # pyiceberg finds the partition of a file by its least and greatest values
        is_found = all(field.transform.preserves_order for field in table.spec().fields)
        if len(small) < self._compact_files or not is_found:
            return
        parts = []
        for file in small:
            with table.io.new_input(file.file_path).open() as source:
                parts.append(pq.read_table(source).select(schema.names).cast(schema))
        location = self._location(f"{self._prefix}merged.{uuid.uuid4().hex}.parquet")
        with table.io.new_output(location).create() as out:
            pq.write_table(pa.concat_tables(parts), out)
        try:
            with table.transaction() as change:
                if table.name_mapping() is None:  # the merged file's columns have no numbers
                    mapping = table.schema().name_mapping.model_dump_json()
                    change.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
                with change.update_snapshot().overwrite() as merge:
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
