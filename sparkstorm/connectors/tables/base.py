"""TableSink: base of the sinks whose rows are in a table once its log names their file."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

from sparkstorm.api.components import Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import (
    InvalidConfigError,
    SparkStormError,
    StoreInconsistentError,
    show,
)
from sparkstorm.common.model.names import read_names
from sparkstorm.common.model.strict import near_name
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.connectors.file_folders import raise_lasting
from sparkstorm.connectors.file_sinks import FileSink, FileSizes, delete_file, named_columns
from sparkstorm.connectors.patience import SECRETS, check_number, holds_secret

_STAGED = "staged-"  # begins the name of a file that never becomes one of the table's


class TableSizes(FileSizes, total=False):
    """Options of a TableSink: sizes, the number of small files that are merged (32), the columns by
    which a table is partitioned that the sink makes, and the key of its rows.
    """

    compact_files: int
    partition_by: str | Sequence[str]
    key: str | Sequence[str]


class TableSink(FileSink):
    """Sink that writes an epoch as one Parquet file, then names file and epoch in one entry of the
    table's log.

    The log has the number of each task's last epoch, so a commit that is repeated changes nothing.
    With a key, and into a partitioned table, the file is staged, and the table's library writes its
    rows in that entry. A subclass opens the table (`_make_table`, `_newest_table`), finds the place
    of its files (`_find_target`), reads and writes its log (`_last_epoch`, `_append`, `_write`) and
    merges small files (`_compact`).
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        schema: Any,
        *,
        compact_files: int = 32,
        partition_by: str | Sequence[str] = (),
        key: str | Sequence[str] = (),
        **sizes: Unpack[FileSizes],
    ) -> None:
        super().__init__(table, "parquet", schema, **sizes)
        self._compact_files = compact_files
        columns: Any = self._schema
        sink = type(self).__name__
        check_number(sink, "compact_files", compact_files, is_whole=True)
        self._partition_by = [*read_names(sink, "partition_by", partition_by)]
        self._key = [*read_names(sink, "key", key)]
        for option, names in (("partition_by", self._partition_by), ("key", self._key)):
            if absent := [name for name in names if name not in columns.names]:
                raise InvalidConfigError(
                    f"{sink}: {option} names {absent[0]!r:.60}; the columns are "
                    f"{', '.join(columns.names)}{near_name(absent[0], columns.names)}"
                )
            if nested := [name for name in names if columns.field(name).type.num_fields]:
                raise InvalidConfigError(
                    f"{sink}: {option} names '{nested[0]}', which is {columns.field(nested[0]).type}"
                )
        for name in self._key:  # a row without its key is parked
            place = columns.get_field_index(name)
            columns = columns.set(place, columns.field(name).with_nullable(False))
        self._schema = columns

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Name this task in the table's log, and its files."""
        super().open(conf, context)
        self._name = f"{context.topology_id}/{context.component_id}/{context.task_index}"
        self._is_first = context.task_index == 0
        self._commits = 0
        self._table: Any = None
        self._is_rewritten = bool(self._key)

    def write(self, tup: Tuple) -> None:
        """Check a row and keep it; a key of NaN equals none, and pyiceberg fails at two of them."""
        for name in self._key:
            if tup[name] != tup[name]:
                raise ValueError(f"field '{name}' is {tup[name]}, and is a key of {self._path}")
        super().write(tup)

    def write_all(self, tuples: Sequence[Tuple]) -> None:
        """Check rows by column and keep them."""
        if any(tup[name] != tup[name] for name in self._key for tup in tuples):
            raise ValueError("a key is NaN")  # rows are written one by one
        super().write_all(tuples)

    def _prepare(self, epoch: int) -> Any:
        """Write the epoch's file; return [name, bytes, rows]."""
        system, root = self._target()
        staged = _STAGED if self._is_rewritten else ""
        name = f"{staged}{self._prefix}{epoch:020d}.{uuid.uuid4().hex}.parquet"
        rows = self._count_rows()
        system.create_dir(root, recursive=True)
        try:
            size = self._stage(f"{root}/{name}", None, self._parts[""])
        except BaseException:
            delete_file(system, f"{root}/{name}")
            raise
        return [name, size, rows]

    def _commit(self, epoch: int, *prepared: Any) -> None:
        """Name the file and the epoch in one entry of the table's log, or write its rows in that
        entry.
        """
        name, size, rows = prepared
        is_staged = str(name).startswith(_STAGED)
        table = self._newest_table()
        if self._last_epoch(table) >= epoch:
            if is_staged:
                delete_file(self._target()[0], self._require_name(name))
            return
        path = self._require_file(name, epoch)
        if is_staged:
            self._write(table, epoch, self._newest_rows(path))
            delete_file(self._target()[0], path)
        else:
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
            table_schema, partitions = self._make_table()
            schema: Any = self._schema
            if [(f.name, _plain(f.type)) for f in table_schema] != [
                (f.name, _plain(f.type)) for f in schema
            ]:
                raise InvalidConfigError(
                    f"{self._path}: the table has the columns {named_columns(table_schema)}, the sink {named_columns(schema)}; "
                    "declare those of the table, or name another table"
                )
            if self._partition_by and partitions != self._partition_by:
                raise InvalidConfigError(
                    f"{self._path}: the table is partitioned by {', '.join(partitions) or 'nothing'}, the sink by "
                    f"{', '.join(self._partition_by)}; drop partition_by, which is for tables that the sink makes"
                )
            self._is_rewritten = bool(self._key or partitions)
        super().recover(epoch, prepared)

    def last_epoch(self) -> int | None:
        """Read the epoch in the table's log."""
        with self._speaking():
            return self._last_epoch(self._newest_table()) if self._has_table() else 0

    def _recover(self, epoch: int) -> None:
        """Delete what was staged for epochs that no log names: neither the store's, which may have
        lost some, nor the table's. What was staged for rows to be written is of no use any more.
        """
        from pyarrow import fs

        system, root = self._target()
        epoch = max(epoch, self._last_epoch(self._newest_table()))
        for info in system.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            number = info.base_name.removeprefix(self._prefix).partition(".")[0]
            is_ahead = number.isdigit() and int(number) > epoch
            if info.base_name.startswith(_STAGED + self._prefix) or (
                info.base_name.startswith(self._prefix) and is_ahead
            ):
                delete_file(system, info.path)

    def _require_name(self, name: Any) -> str:
        """Return the path of a file that the store names; refuse a name that is none of this
        task's.
        """
        if not str(name).removeprefix(_STAGED).startswith(self._prefix) or "/" in str(name):
            raise StoreInconsistentError(f"the store names {name!r:.80} as a file of {self._path}")
        return f"{self._target()[1]}/{name}"

    def _require_file(self, name: Any, epoch: int) -> str:
        """Return the path of an epoch's file, which must be there."""
        from pyarrow import fs

        path = self._require_name(name)
        if self._target()[0].get_file_info(path).type != fs.FileType.File:
            raise StoreInconsistentError(
                f"{self._path}: epoch {epoch} was staged as {name}, which is not there any more; restore it, or kill the topology "
                "and submit it again"
            )
        return path

    def _newest_rows(self, path: str) -> Any:
        """Return the rows of a staged file, with a key the last one of each."""
        import pyarrow.parquet as pq

        with self._target()[0].open_input_file(path) as file:
            rows = pq.read_table(file)
        if not self._key:
            return rows
        columns = [rows.column(name).to_pylist() for name in self._key]
        last = {key: place for place, key in enumerate(zip(*columns, strict=True))}
        return rows.take(sorted(last.values()))

    def _split(self, rows: Any) -> tuple[Any, Any]:
        """Return the rows to write, and the tombstones: rows with a key and None in every other
        column.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        others = [name for name in rows.column_names if name not in self._key]
        gone = pa.array([bool(others)] * rows.num_rows, pa.bool_())
        for name in others:
            gone = pc.and_(gone, pc.is_null(rows.column(name)))
        return rows.filter(pc.invert(gone)), rows.filter(gone)

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

    def _make_table(self) -> tuple[Any, list[str]]:
        """Make the table, if it is not there; return its columns as an Arrow schema, and what it is
        partitioned by.
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

    def _write(self, table: Any, epoch: int, rows: Any) -> None:
        """Write rows and the log's entry of their epoch; with a key each takes the place of the one
        with the same key, and a tombstone deletes it.
        """
        raise NotImplementedError

    def _compact(self, table: Any) -> None:
        """Merge small files once there are many; leave a conflict with another writer to the next
        time.
        """
        raise NotImplementedError


def refuse_secrets(sink: str, option: str, given: Mapping[str, str], remedy: str) -> dict[str, str]:
    """Return a copy of a library's options; InvalidConfigError for a secret among them, since they
    travel and are logged.

    A password within a URL, as of an Iceberg catalog in PostgreSQL, is one too, also in a URL's
    query or in a DSN of words.
    """
    if not isinstance(given, Mapping):
        raise InvalidConfigError(f"{sink}: {option} is {show(given)}; write options by name")
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
    """Return an Arrow type as text; libraries give text, bytes and lists their large forms, and the
    values of lists another name.
    """
    return str(kind).replace("large_", "").replace("<element: ", "<item: ")
