"""FileSink: Parquet, JSON lines or CSV in a folder or an object store; each epoch appears at once
or not at all.
"""

from __future__ import annotations

import csv
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, TypedDict

from sparkstorm.api.columns import arrow_type
from sparkstorm.api.components import Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.api.value_columns import declared_array, fitting_types, require_shape
from sparkstorm.common.errors import InvalidConfigError, StoreInconsistentError
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.model.values.column_types import parse_columns
from sparkstorm.common.model.values.tagged import row_writer, to_json
from sparkstorm.connectors.file_folders import absolute, file_system, raise_lasting
from sparkstorm.connectors.file_partitions import Layout
from sparkstorm.connectors.patience import check_number

_STAGING = "_staging"
_NOT_NULL = "not null"
_SUFFIXES = {"parquet": "parquet", "json": "jsonl", "csv": "csv"}


class FileSizes(TypedDict, total=False):
    """Sizes of a FileSink: length of an epoch in seconds (10) and rows (100,000), bytes of a file
    (64 MB).
    """

    flush_secs: float
    flush_rows: int
    target_bytes: int


class FileSink(TransactionalSink):
    """Sink that writes rows to files of a folder ("out", "s3://bucket/out"), exactly once.

    `schema` declares the columns, "user string, clicks bigint", types by name, or a
    `pyarrow.Schema`; Parquet needs one. Without one a line of JSON has the fields of its row, and
    rows of CSV have equal fields. An epoch lasts `flush_secs`, or `flush_rows` rows; it is staged
    under `_staging` and appears by a rename (in an object store: by a copy). While a task's newest
    file has less than `target_bytes`, the next epoch replaces it by one with the rows of both.

    `partition_by` names fields whose values are folders, "country=FR/city=Nice". `day_of` names a
    field of milliseconds, or a time, for a folder of its day in `zone` before them,
    "day=2026-11-29". A row that does not fit the schema is tried again and parked.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        schema: Any = None,
        *,
        flush_secs: float = 10.0,
        flush_rows: int = 100_000,
        target_bytes: int = 64 << 20,
        partition_by: str | Sequence[str] = (),
        day_of: str | None = None,
        zone: str = "UTC",
    ) -> None:
        sink = type(self).__name__
        if format not in tuple(_SUFFIXES):
            raise InvalidConfigError(
                f"{sink}: format is {format!r:.40}; there are {', '.join(_SUFFIXES)}"
            )
        if schema is None and format == "parquet":
            raise InvalidConfigError(
                f'{sink}: parquet needs a schema, as in "user string, clicks bigint"'
            )
        if zone != "UTC" and day_of is None:
            raise InvalidConfigError(
                f"FileSink: zone {zone!r:.40} is that of the days of day_of, which is not given; name its field, or drop zone"
            )
        check_number(sink, "flush_secs", flush_secs)
        check_number(sink, "flush_rows", flush_rows, 1, is_whole=True)
        check_number(sink, "target_bytes", target_bytes, is_whole=True)
        self._path = absolute(path, sink).rstrip("/")
        self._format = format
        self._schema = None if schema is None else read_arrow_schema(schema)
        self._layout = Layout(partition_by, day_of, zone) if partition_by or day_of else None
        if self._layout is not None and self._schema is not None:
            self._layout.check(self._schema)
        needed = () if self._layout is None else self._layout.needs
        self.input_fields = needed if self._schema is None else tuple(self._schema.names)
        self.flush_secs = flush_secs
        self.flush_rows = flush_rows
        self._target_bytes = target_bytes

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Name this task's files after topology, component and task."""
        plain = re.sub(r"[^\w-]", "_", f"{context.topology_id}-{context.component_id}")
        self._prefix = f"{plain}.{context.task_index}."
        self._parts: dict[str, _Part] = {}  # by folder; without partitions it is ""
        self._fields: tuple[str, ...] = ()
        # Lines of JSON need no equal fields: a sink of late rows and bad records takes both.
        self._has_own_fields = (
            self._format == "json" and self._schema is None and self._layout is None
        )
        self._writers: dict[tuple[str, ...], Callable[[Sequence[Any]], str]] = {}
        self._file_schema = self._schema
        if self._schema is not None:
            self._take_fields(tuple(self._schema.names))
        # name and bytes of the file that the next epoch may replace, by folder
        self._newest: dict[str, tuple[str, int]] = {}
        self._checks = (
            [] if self._schema is None else [column_check(column) for column in self._schema]
        )
        self._system: Any = None

    def begin(self, epoch: int) -> None:
        """Begin without rows."""
        self._parts = {}

    def write(self, tup: Tuple) -> None:
        """Check a row and keep it."""
        if self._has_own_fields:
            self._keep((self._line_of(tup),))
            return
        if self._schema is None:
            if not self._fields:
                self._take_fields(tup.fields)
            if tup.fields != self._fields:
                raise ValueError(
                    f"a row of {', '.join(tup.fields)} in files of {', '.join(self._fields)}: declare a schema"
                )
            self._keep(tup.values)
            return
        values = (
            tup.values if tup.fields == self._fields else tuple(tup[name] for name in self._fields)
        )
        for check, value in zip(self._checks, values, strict=True):
            check(value)
        self._keep(values)

    def _line_of(self, tup: Tuple) -> str:
        write = self._writers.get(tup.fields)
        if write is None:
            write = self._writers[tup.fields] = row_writer(tup.fields)
        return write(tup.values)

    def write_all(self, tuples: Sequence[Tuple]) -> None:
        """Check rows by column and keep them, as columns for Parquet."""
        source = tuples[0].source
        if self._schema is None or any(
            tup.source is not source and tup.fields != source.fields for tup in tuples
        ):
            raise ValueError("rows of several streams")  # they are written one by one
        rows = [tup.values for tup in tuples]
        if source.fields != self._fields:
            places = [source.position(name) for name in self._fields]
            rows = [tuple(values[index] for index in places) for values in rows]
        if self._layout is not None:
            for place in self._of_folder:
                for values in rows:
                    self._checks[place](values[place])
        by_folder = self._by_folder(rows)
        batch_by_folder = {
            folder: row_batch(self._file_schema, some) for folder, some in by_folder.items()
        }
        for folder, some in by_folder.items():
            part = self._parts.setdefault(folder, _Part())
            if self._format == "parquet":
                part.seal(self._file_schema)
                part.batches.append(batch_by_folder[folder])
            else:
                part.rows += some

    def _take_fields(self, fields: tuple[str, ...]) -> None:
        """Take note of a row's fields, and of those that make its folder."""
        self._fields = fields
        self._names = list(fields)  # of the files' columns
        if self._layout is None:
            return
        self._layout.require_rest(fields)
        self._of_folder, self._of_file = self._layout.places(fields)
        self._names = [fields[place] for place in self._of_file]
        if self._schema is not None:
            import pyarrow as pa

            self._file_schema = pa.schema([self._schema.field(name) for name in self._names])

    def _keep(self, values: tuple[Any, ...]) -> None:
        for folder, rows in self._by_folder([values]).items():
            self._parts.setdefault(folder, _Part()).rows += rows

    def _by_folder(self, rows: list[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
        """Return what the files have of rows, by folder; ValueError for a value that names none."""
        if self._layout is None:
            return {"": rows}
        by_folder: dict[str, list[tuple[Any, ...]]] = {}
        for values in rows:
            folder = self._layout.folder([values[place] for place in self._of_folder])
            rest = tuple(values[place] for place in self._of_file)
            by_folder.setdefault(folder, []).append(rest)
        return by_folder

    def prepare(self, epoch: int) -> Any:
        """Stage the epoch's rows, together with those of a newest file that is small; return
        [staged, name, bytes], with partitions a list of them, whose names have their folders.

        An epoch whose rows all failed has no file, and its value is [].
        """
        if not self._count_rows():
            return []
        with self._speaking():
            return self._prepare(epoch)

    def _prepare(self, epoch: int) -> Any:
        staged: list[list[Any]] = []
        try:
            for folder, part in self._parts.items():
                staged.append(self._prepare_part(epoch, folder, part))
        except BaseException:
            system, root = self._target()
            for name, _, _ in staged:
                delete_file(system, f"{root}/{name}")
            raise
        return staged if self._layout is not None else staged[0]

    def _prepare_part(self, epoch: int, folder: str, part: _Part) -> list[Any]:
        system, root = self._target()
        name = _in_folder(folder, f"{self._prefix}{epoch:020d}.{_SUFFIXES[self._format]}")
        before = None
        newest = self._newest.get(folder)
        if newest is not None and newest[1] < self._target_bytes:
            name = newest[0]
            before = f"{root}/{name}"
        staged = f"{_STAGING}/{self._prefix}{uuid.uuid4().hex}"
        system.create_dir(f"{root}/{_STAGING}", recursive=True)
        try:
            size = self._stage(f"{root}/{staged}", before, part)
        except BaseException:
            delete_file(system, f"{root}/{staged}")
            raise
        return [staged, name, size]

    def commit(self, epoch: int, prepared: Any) -> None:
        """Give the staged files their names."""
        if not prepared:
            return
        with self._speaking():
            if self._layout is None:
                self._commit(epoch, *prepared)
                return
            for part in prepared:
                self._commit(epoch, *part)

    def _commit(self, epoch: int, *prepared: Any) -> None:
        from pyarrow import fs

        staged, name, size = prepared
        folder = self._check_names(staged, name)
        system, root = self._target()
        if system.get_file_info(f"{root}/{staged}").type == fs.FileType.File:
            if folder:
                system.create_dir(f"{root}/{folder}", recursive=True)
            system.move(f"{root}/{staged}", f"{root}/{name}")
        elif system.get_file_info(f"{root}/{name}").type != fs.FileType.File:
            raise StoreInconsistentError(
                f"{self._path}: epoch {epoch} was staged as {staged}, and neither that file nor {name} is there any more; "
                "restore it, or kill the topology and submit it again"
            )
        self._newest[folder] = (name, size)

    def recover(self, epoch: int, prepared: Any) -> None:
        """Bring the last epoch under its name, delete what else was staged by this task, and find
        its newest file.
        """
        super().recover(epoch, prepared)
        with self._speaking():
            self._recover(epoch)

    def last_epoch(self) -> int | None:
        """Read the epoch in the name of the newest file: a file that took later ones in keeps its
        name.
        """
        with self._speaking():
            newest = self._newest or self._find_newest()
        bases = [name.rpartition("/")[2] for name, _ in newest.values()]
        numbers = [base.removeprefix(self._prefix).partition(".")[0] for base in bases]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def _recover(self, epoch: int) -> None:
        from pyarrow import fs

        system, root = self._target()
        for info in system.get_file_info(
            fs.FileSelector(f"{root}/{_STAGING}", allow_not_found=True)
        ):
            if info.base_name.startswith(self._prefix):
                delete_file(system, info.path)
        self._newest = self._find_newest()

    def _find_newest(self) -> dict[str, tuple[str, int]]:
        """Return name and bytes of this task's newest file in each folder."""
        from pyarrow import fs

        system, root = self._target()
        newest: dict[str, tuple[str, int]] = {}
        selector = fs.FileSelector(root, allow_not_found=True, recursive=self._layout is not None)
        for info in system.get_file_info(selector):
            name = info.path.removeprefix(root).lstrip("/")
            folder = name.rpartition("/")[0]
            is_mine = info.base_name.startswith(self._prefix) and folder != _STAGING
            if is_mine and info.type == fs.FileType.File:
                newest[folder] = max(newest.get(folder, ("", 0)), (name, info.size))
        return newest

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise_lasting(error, self._path)
            raise

    def _target(self) -> tuple[Any, str]:
        if self._system is None:
            self._system = self._find_target()
        return self._system  # type: ignore[no-any-return]

    def _find_target(self) -> tuple[Any, str]:
        """Return the file system that is written, and the folder in it."""
        return file_system(self._path)

    def _check_names(self, staged: Any, name: Any) -> str:
        """Return the folder of a name; refuse to rename files outside the sink's folder,
        even if the store has such a name.
        """
        folder, _, base = str(name).rpartition("/")
        names = [part.partition("=")[0] for part in folder.split("/")] if folder else []
        is_layout = self._layout is not None and names == self._layout.names
        if not (
            str(staged).startswith(f"{_STAGING}/{self._prefix}")
            and base.startswith(self._prefix)
            and (is_layout if folder else self._layout is None)
        ):
            raise StoreInconsistentError(
                f"the store names {staged!r:.80} and {name!r:.80} as files of {self._path}"
            )
        return folder

    def _stage(self, path: str, before: str | None, part: _Part) -> int:
        system, _ = self._target()
        if self._format == "parquet":
            self._stage_parquet(system, path, before, part)
        else:
            with system.open_output_stream(path) as out:
                if before is not None:
                    head = self._text([], is_first=True)
                    with system.open_input_stream(before) as old:
                        while data := old.read(1 << 20):
                            if not data.startswith(head):
                                raise self._other_columns(before, data.partition(b"\n")[0].decode())
                            head = b""
                            out.write(data)
                out.write(self._text(part.rows, is_first=before is None))
        _sync(system, path)
        return int(system.get_file_info(path).size)

    def _stage_parquet(self, system: Any, path: str, before: str | None, part: _Part) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema: Any = self._file_schema
        part.seal(schema)
        table = pa.Table.from_batches(part.batches, schema)
        if before is not None:
            with system.open_input_file(
                before
            ) as file:  # a path would be a partition of a data set
                old = pq.read_table(file)
            if not old.schema.equals(schema):
                raise self._other_columns(before, named_columns(old.schema))
            table = pa.concat_tables([old, table])
        with system.open_output_stream(path) as out:
            pq.write_table(table, out)

    def _other_columns(self, before: str, columns: str) -> InvalidConfigError:
        own = ", ".join(self._names) if self._schema is None else named_columns(self._file_schema)
        return InvalidConfigError(
            f"{self._path}: {PurePosixPath(before).name} has the columns {columns}, the sink {own}; "
            "use another folder for another schema"
        )

    def _count_rows(self) -> int:
        return sum(part.count() for part in self._parts.values())

    def _text(self, rows: list[tuple[Any, ...]], is_first: bool) -> bytes:
        if self._has_own_fields:
            return "".join(f"{line}\n" for (line,) in rows).encode()
        if self._format == "json":
            write = row_writer(self._names)
            return "".join(f"{write(row)}\n" for row in rows).encode()
        heads = [self._names] if is_first else []
        return csv_lines([*heads, *([cell(value) for value in row] for row in rows)]).encode()


class _Part:
    """Rows of an epoch for one file; `batches` (of Parquet) are those before `rows`, as columns."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.batches: list[Any] = []

    def count(self) -> int:
        return len(self.rows) + sum(int(batch.num_rows) for batch in self.batches)

    def seal(self, schema: Any) -> None:
        """Make columns of the rows that were written one by one."""
        if self.rows:
            self.batches.append(row_batch(schema, self.rows))
            self.rows = []


def _in_folder(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def read_arrow_schema(schema: Any) -> Any:
    """Return a `pyarrow.Schema` from one, from "word string, n bigint", or from types by name."""
    import pyarrow as pa

    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, Mapping):
        schema = ", ".join(f"{name} {kind}" for name, kind in schema.items())
    try:
        return pa.schema([(name, arrow_type(kind)) for name, kind in parse_columns(schema)])
    except ValueError as error:
        raise InvalidConfigError(f"schema: {error}") from error


def json_text(value: Any) -> str:
    """A value as JSON; what JSON has not (bytes, infinity) is tagged as in dead letters."""
    return to_json(value)


def cell(value: Any) -> Any:
    """A value as a cell of CSV: text and numbers as they are, others as JSON."""
    return value if value is None or type(value) in (str, int, float) else json_text(value)


def csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as lines of CSV; a carriage return within a cell is quoted, since readers end a
    line there, which Python's writer does only where it ends lines.
    """
    lines: list[str] = []
    csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n").writerows(rows)
    return "".join(f"{line[:-2]}\n" for line in lines)


def row_batch(schema: Any, rows: Sequence[Sequence[Any]]) -> Any:
    """Return rows as a batch; ValueError or TypeError when a column would change a value."""
    import pyarrow as pa

    arrays = []
    for field, column in zip(schema, zip(*rows, strict=True), strict=True):
        types = fitting_types(field.type)
        if types is not None and (other := set(map(type, column)) - types - {type(None)}):
            raise ValueError(
                f"field '{field.name}' has values of type {other.pop().__name__}, but the column is {field.type}"
            )
        if (not field.nullable and None in column) or _NOT_NULL in str(field.type):
            for value in column:
                require_shape(field, value)
        arrays.append(declared_array(column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def column_check(field: Any) -> Callable[[Any], None]:
    """Return the check of a column's values, which raises ValueError."""
    import pyarrow as pa

    name = field.name
    kind = field.type
    types = fitting_types(kind)
    plain_kind = {pa.bool_(): bool, pa.string(): str, pa.binary(): bytes, pa.float64(): float}.get(
        kind
    )
    most = 2 ** (kind.bit_width - 1) if pa.types.is_signed_integer(kind) else 0
    has_inner = _NOT_NULL in str(kind)

    def check(value: Any) -> None:
        if value is None or has_inner:
            require_shape(field, value)
        if value is None or type(value) is plain_kind:
            return
        if types is not None:
            _check_type(name, value, types, kind)
        if not most:
            _convert(name, value, kind)
        elif not -most <= value < most:
            raise ValueError(f"field '{name}' is {value}, too large for {kind}")

    return check


def _check_type(name: str, value: Any, types: frozenset[type], kind: Any) -> None:
    if type(value) not in types:
        raise ValueError(
            f"field '{name}' is {value!r:.60} of type {type(value).__name__}, but the column is {kind}"
        )


def _convert(name: str, value: Any, kind: Any) -> None:
    import pyarrow as pa

    try:
        declared_array([value], kind)
    except pa.ArrowException as error:
        raise ValueError(
            f"field '{name}' is {value!r:.60}, but the column is {kind}: {error}"
        ) from error


def delete_file(system: Any, path: str) -> None:
    """Delete a file, if it is there."""
    from pyarrow import fs

    if system.get_file_info(path).type == fs.FileType.File:
        system.delete_file(path)


def _sync(system: Any, path: str) -> None:
    """Have a local file's bytes on disk before its name is committed."""
    if system.type_name == "local":
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def named_columns(schema: Any) -> str:
    """Return the columns of an Arrow schema as text."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)
