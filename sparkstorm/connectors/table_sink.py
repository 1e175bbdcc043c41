"""TableSink: base of the sinks whose rows are in a table once its log names their file."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Unpack

from sparkstorm.api.components import Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.connectors.file_folders import raise_lasting
from sparkstorm.connectors.file_sinks import FileSink, FileSizes, delete_file, named_columns
from sparkstorm.connectors.patience import SECRETS, holds_secret
from sparkstorm.errors import InvalidConfigError, SparkStormError, StoreInconsistentError


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
            size = self._stage(f"{root}/{name}", None)
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
            found, is_partitioned = self._make_table()
            schema: Any = self._schema
            if [(f.name, _plain(f.type)) for f in found] != [
                (f.name, _plain(f.type)) for f in schema
            ]:
                raise InvalidConfigError(
                    f"{self._path}: the table has the columns {named_columns(found)}, the sink {named_columns(schema)}"
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
            known = OSError(f"{type(error).__name__}: {text}")
            raise_lasting(known, self._path)
            raise known from error

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


def refuse_secrets(sink: str, option: str, given: Mapping[str, str], mend: str) -> dict[str, str]:
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
            f"{sink}: {option}: {held[0]} holds a password or secret; put it into {mend}"
        )
    return dict(given)


def _plain(kind: Any) -> str:
    """Return an Arrow type as text; libraries give text and bytes their large forms."""
    return str(kind).replace("large_", "")
