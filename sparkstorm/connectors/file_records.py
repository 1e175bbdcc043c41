"""Readers of one file at a time: lines, JSON lines, CSV and Parquet, from a position on."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol

from sparkstorm.api.columns import WHOLE, arrow_type, holds_all, is_of_type, rows_of
from sparkstorm.common.errors import CodecError, InvalidConfigError, show
from sparkstorm.common.model.values.column_types import ANY, ColumnType, parse_type
from sparkstorm.common.model.values.declared_values import (
    Declared,
    declared_fields,
    holds_of,
    row_check,
)

FORMATS = ("lines", "json", "csv", "parquet")
_SKIP_BYTES = 1 << 20
_PARQUET_ROWS = 1024
csv.field_size_limit((1 << 31) - 1)  # Python's own is 131,072; `most_bytes` bounds a record


class FileRecord(NamedTuple):
    """A record's values, or why it has none; and the position behind it."""

    values: tuple[Any, ...]
    problem: str
    text: str
    end: int


class RecordReader(Protocol):
    """An open file."""

    def next(self, is_complete: bool) -> FileRecord | None:
        """Return the next record; None at the end. `is_complete`: nothing will follow, so a last
        line needs no line end.
        """

    def close(self) -> None:
        """Close the file."""


class TextReader:
    """Reader of a record a line; a position is an offset in (unpacked) bytes."""

    def __init__(
        self,
        stream: BinaryIO,
        start: int,
        parse: Callable[[bytes], tuple[Any, ...]],
        most_bytes: int,
    ) -> None:
        self._stream = stream
        self._parse = parse
        self._most = most_bytes
        self.at = start
        self._part = b""  # of a line whose end has not come yet

    def next(self, is_complete: bool) -> FileRecord | None:
        """Return the next record."""
        data = self._stream.readline(self._most + 1 - len(self._part))
        if self._part:
            data = self._part + data
            self._part = b""
        if data[-1:] != b"\n":
            if len(data) > self._most:
                return self._too_long(data)
            if not data or not is_complete:
                self._part = data
                return None
        self.at += len(data)
        data = data.rstrip(b"\r\n")
        try:
            return FileRecord(self._parse(data), "", "", self.at)
        except (ValueError, RecursionError) as error:
            return self._bad(str(error)[:300], data)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _bad(self, problem: str, data: bytes) -> FileRecord:
        return FileRecord((), problem, data[:2000].decode("utf-8", "replace"), self.at)

    def _too_long(self, data: bytes) -> FileRecord:
        """Pass by the rest of a line."""
        self.at += len(data)
        end = data[-1:]
        while end != b"\n" and (rest := self._stream.readline(_SKIP_BYTES)):
            self.at += len(rest)
            end = rest[-1:]
        return self._bad(f"the record has more than {self._most} bytes", data[:200])


class CsvReader(TextReader):
    """Reader of CSV records. Python's parser asks for the lines of each, since it alone knows whether
    a line ends within a quoted cell: a quote inside of a cell opens none.
    """

    def __init__(
        self,
        stream: BinaryIO,
        start: int,
        values_of: Callable[[list[str]], tuple[Any, ...]],
        delimiter: str,
        most_bytes: int,
    ) -> None:
        super().__init__(stream, start, lambda data: (), most_bytes)
        self._values_of = values_of
        self._lines: list[bytes] = []  # of the record at hand
        self._size = 0
        self._given = 0  # how many of them the parser has
        self._is_complete = self._is_early = False
        self._rows = csv.reader(self, delimiter=delimiter, strict=True)

    def next(self, is_complete: bool) -> FileRecord | None:
        """Return the next record."""
        self._is_complete = is_complete
        self._is_early = False
        self._given = 0
        problem = ""
        cells: list[str] = []
        try:
            cells = next(self._rows)
        except StopIteration:
            return None
        except _TooLongError:
            return self._too_long(self._taken())
        except csv.Error as error:
            if self._is_early:
                return None
            problem = f"it is no CSV: {error}"
            if "new-line" in problem:
                problem = "a carriage return outside of quotes; lines end with a newline"
        self.at += self._size
        if not problem:
            try:
                values = self._values_of(cells)
            except ValueError as error:
                problem = str(error)[:300]
        data = self._taken()
        return (
            self._bad(problem, data.rstrip(b"\r\n"))
            if problem
            else FileRecord(values, "", "", self.at)
        )

    def __iter__(self) -> CsvReader:
        return self

    def __next__(self) -> str:
        """Return the next line of the record; StopIteration where none is complete."""
        if self._given == len(self._lines):
            if self._size > self._most:
                raise _TooLongError
            line = self._stream.readline(self._most + 1 - self._size - len(self._part))
            line = self._part + line
            self._part = b""
            if line[-1:] != b"\n":
                if self._size + len(line) > self._most:
                    self._part = line
                    raise _TooLongError
                if not line or not self._is_complete:
                    self._part = line
                    self._is_early = not self._is_complete
                    raise StopIteration
            self._lines.append(line)
            self._size += len(line)
        line = self._lines[self._given]
        self._given += 1
        if self._given == 1 and self.at == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        return line.decode("utf-8", "replace")

    def _taken(self) -> bytes:
        """Return the bytes of the record at hand, and begin the next one."""
        data = b"".join((*self._lines, self._part))
        self._lines.clear()
        self._part = b""
        self._size = 0
        return data


class _TooLongError(Exception):
    """A record has more bytes than it may."""


_DAMAGES = ("thrift", "orrupt", "end of stream", "ecompress")  # of a page, in pyarrow's words


class ParquetReader:
    """Reader of a Parquet file by batches; a position is a number of rows."""

    def __init__(
        self,
        source: Any,
        start: int,
        types: Mapping[str, str],
        where: str,
        named: Mapping[str, Any],
    ) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
        self._source = source
        schema = _schema(self._file)
        self._fields = types
        self._named = {name: value for name, value in named.items() if name not in schema.names}
        fields = tuple(name for name in types if name not in self._named)
        if missing := [name for name in fields if name not in schema.names]:
            raise InvalidConfigError(
                f"{where}: there is no column '{missing[0]}'; it has {', '.join(schema.names)}"
            )
        for name, declared in ((name, types[name]) for name in fields):
            kind = schema.field(name).type
            if not is_of_type(kind, declared):
                raise InvalidConfigError(
                    f"{where}: column '{name}' is {kind}, but the source declares {declared}"
                )
        self._columns = [schema.field(name) for name in fields]
        typed = declared_fields(tuple(types), types)
        self._whole = [field for field in typed if field.kind.name in WHOLE]
        self._is_julian = _is_julian(self._file.metadata.metadata or {})
        self.rows = int(self._file.metadata.num_rows)
        self._batches = self._read(start, fields)
        self.at = start

    def next_batch(self) -> Any:
        """Return the next rows as a `pyarrow.RecordBatch`; None at the end, EOFError for a page
        that is damaged.
        """
        try:
            batch = next(self._batches, None)
        except (OSError, ValueError) as error:
            text = " ".join(str(error).split())
            if isinstance(error, ValueError) or any(sign in text for sign in _DAMAGES):
                raise EOFError(text) from error
            raise
        self.at += 0 if batch is None else batch.num_rows
        return batch

    def records(self, batch: Any, first: int) -> Iterator[FileRecord]:
        """Yield the rows of a batch, whose first has this number; one by one when some value is none
        that tuples carry, or beyond its declared type.
        """
        try:
            rows = enumerate(self.rows_of(batch), first + 1)
            yield from (FileRecord(row, "", "", end) for end, row in rows)
            return
        except (CodecError, ValueError, OverflowError):
            pass
        for index in range(batch.num_rows):
            single = batch.slice(index, 1)
            try:
                [row] = self.rows_of(single)
                yield FileRecord(row, "", "", first + index + 1)
            except (CodecError, ValueError, OverflowError) as error:
                cells = {
                    name: " ".join(str(single.column(name)).split()) for name in single.schema.names
                }
                yield FileRecord((), str(error)[:300], str(cells)[:2000], first + index + 1)

    def rows_of(self, batch: Any) -> list[tuple[Any, ...]]:
        """Return a batch as rows of plain values."""
        self.check(batch)
        return rows_of(batch)

    def check(self, batch: Any) -> None:
        """Raise CodecError where a batch has a whole number beyond its declared type."""
        for place, kind, _ in self._whole:
            if not holds_all(kind, batch.column(place)):
                name = batch.schema.names[place]
                raise CodecError(f"field '{name}' is a number which {kind} does not hold")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._source.close()

    def _read(self, start: int, fields: tuple[str, ...]) -> Iterator[Any]:
        groups: list[int] = []
        skip = start
        for number in range(self._file.num_row_groups):
            rows = self._file.metadata.row_group(number).num_rows
            if not groups and skip >= rows:
                skip -= rows
            else:
                groups.append(number)
        for batch in (
            self._file.iter_batches(_PARQUET_ROWS, row_groups=groups, columns=list(fields))
            if groups
            else ()
        ):
            passed = min(skip, batch.num_rows)
            skip -= passed
            if passed < batch.num_rows:
                yield self._typed(batch.select(list(fields)).slice(passed))

    def _typed(self, batch: Any) -> Any:
        import pyarrow as pa

        if [column.type for column in self._columns] != batch.schema.types:
            batch = batch.cast(pa.schema(self._columns))
        if self._is_julian:
            columns = list(map(_gregorian, batch.columns))
            batch = pa.RecordBatch.from_arrays(columns, batch.schema.names)
        if not self._named:
            return batch
        kinds = {n: arrow_type(parse_type(k)) for n, k in self._fields.items() if k != "any"}
        columns = [
            pa.repeat(pa.scalar(self._named[n], kinds.get(n, pa.string())), batch.num_rows)
            if n in self._named
            else batch.column(n)
            for n in self._fields
        ]
        return pa.RecordBatch.from_arrays(columns, list(self._fields))


def schema_of(source: Any) -> Any:
    """Return the Arrow schema of a Parquet file."""
    import pyarrow.parquet as pq

    return _schema(pq.ParquetFile(source, coerce_int96_timestamp_unit="us"))


def _schema(file: Any) -> Any:
    """Return the schema with columns of INT96 as instants, which they are to Spark and Impala."""
    import pyarrow as pa

    columns = map(file.schema.column, range(len(file.schema)))
    instants = {column.path for column in columns if column.physical_type == "INT96"}
    utc = pa.timestamp("us", "UTC")
    fields = (f.with_type(utc) if f.name in instants else f for f in file.schema_arrow)
    return pa.schema(fields)


# Days since 1970 from which a date of the Julian calendar is so many days off the Gregorian one of
# the same name, from 0001-01-01 to the change of 1582 (Spark's RebaseDateTime).
_JULIAN_DAYS = (
    -719164, -682945, -646420, -609895, -536845, -500320, -463795, -390745, -354220, -317695,
    -244645, -208120, -171595, -141427,
)  # fmt: skip
_JULIAN_OFFSETS = (2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, 0)
_DAY_US = 86_400_000_000


def _is_julian(metadata: Mapping[bytes, bytes]) -> bool:
    """Return whether a file says that Spark has written old dates of it in the Julian calendar."""
    legacy = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
    version = metadata.get(b"org.apache.spark.version", b"3")
    return version < b"3" or any(key in metadata for key in legacy)


def _gregorian(column: Any) -> Any:
    """Return a column of dates or microseconds of UTC with the days of the Gregorian calendar that
    have the same names.
    """
    import numpy as np
    import pyarrow as pa

    kind = column.type
    is_date = kind == pa.date32()
    if not is_date and not (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return column
    numbers = column.cast(pa.int32() if is_date else pa.int64())
    values = numbers.fill_null(0).to_numpy()
    days = values if is_date else values // _DAY_US
    places = np.searchsorted(_JULIAN_DAYS, days, "right") - 1
    offsets = np.where(places < 0, _JULIAN_OFFSETS[0], np.take(_JULIAN_OFFSETS, places))
    moved = values + offsets * (1 if is_date else _DAY_US)
    mask = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(moved.astype(values.dtype), mask=mask).cast(kind)


def row_group_starts(source: Any, most_bytes: int) -> list[int]:
    """Return the first row of a Parquet file, and that of a row group about every so many bytes."""
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(source).metadata
    starts = [0]
    rows = size = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        if size >= most_bytes:
            starts.append(rows)
            size = 0
        rows += group.num_rows
        size += group.total_byte_size
    return starts


class ParquetRows:
    """Reader of a Parquet file row by row."""

    def __init__(self, reader: ParquetReader) -> None:
        self._reader = reader
        self._rows = iter(list[FileRecord]())
        self.at = reader.at

    def next(self, is_complete: bool) -> FileRecord | None:
        """Return the next row."""
        while (record := next(self._rows, None)) is None:
            if (batch := self._reader.next_batch()) is None:
                return None
            self._rows = self._reader.records(batch, self.at)
        self.at = record.end
        return record

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def column_types(format: str, fields: Mapping[str, str]) -> dict[str, str]:
    """Return the declared type of each field of text whose values all have that one type; "" for
    other fields.
    """
    if format != "json":
        return {
            name: kind if format == "csv" and kind in _CASTS else "string"
            for name, kind in fields.items()
        }
    # A number of JSON is a whole one or a float; what is no scalar may be anything.
    return {
        name: kind if kind in _CASTS and _CASTS[kind] is not _NUMBER else ""
        for name, kind in fields.items()
    }


def skip_bytes(stream: BinaryIO, count: int) -> None:
    """Pass by bytes of a stream that cannot seek."""
    while count > 0 and (read := len(stream.read(min(count, _SKIP_BYTES)))):
        count -= read


def line_parser(fields: Mapping[str, str]) -> Callable[[bytes], tuple[Any, ...]]:
    """Return the parser of a line of text; bytes that are not UTF-8 become U+FFFD."""
    return lambda data: (data.decode("utf-8", "replace"),)


def check_types(source: str, fields: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for a field of a type that there is not."""
    for name, kind in fields.items():
        try:
            if kind != ANY:
                parse_type(kind)
        except ValueError as error:
            raise InvalidConfigError(f"{source}: field '{name}': {error}") from error


def json_parser(
    fields: Mapping[str, str], load: Callable[[bytes], Any] | None = None
) -> Callable[[bytes], tuple[Any, ...]]:
    """Return the parser of a JSON object a line; a field that an object lacks is None. `load`: of
    JSON with tags.
    """
    values_of = object_reader(fields)
    scan = json.JSONDecoder().raw_decode

    def parse(data: bytes) -> tuple[Any, ...]:
        try:
            text = data.decode()
            decoded, end = (
                (load(data), len(text)) if load is not None and b'"$' in data else scan(text)
            )
            if end != len(text):
                decoded = _load(data)
        except ValueError:
            decoded = _load(data)
        return values_of(decoded)

    return parse


def object_reader(fields: Mapping[str, str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return the reader of a parsed JSON object: its values, or ValueError for one that has another
    type than its field declares; a field that an object lacks is None.
    """
    kinds = [
        (index, name, kind)
        for index, (name, of) in enumerate(fields.items())
        if (kind := _CASTS.get(of)) is not None
    ]
    is_typed = row_check([Declared(index, kind.type, kind.holds) for index, _, kind in kinds])
    names = tuple(fields)

    def values_of(record: Any) -> tuple[Any, ...]:
        if type(record) is not dict:
            raise ValueError(f"it is a {type(record).__name__}, not a JSON object")
        values = tuple(map(record.get, names))
        if not is_typed(values):
            raise ValueError(next(_misfits(values, kinds)))
        return values

    return values_of


def _load(data: bytes) -> Any:
    """Return a JSON value with spaces around it; an error names why there is none."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from error


def _misfits(values: Sequence[Any], kinds: Sequence[tuple[int, str, _Cast]]) -> Iterator[str]:
    for index, name, kind in kinds:
        value = values[index]
        if value is not None and type(value) not in kind.accepts:
            yield f"field '{name}' is {value!r:.60}, not {kind.name}"
        elif not kind.holds(value):
            yield f"field '{name}' is {show(value)}, which {kind.type} does not hold"


def csv_values(fields: Mapping[str, str], header: Sequence[str]) -> Callable[[list[str]], Any]:
    """Return what makes the values of a CSV record's cells, whose columns are named by the header,
    without the fields that this lacks; an empty number is None.
    """
    fields = {name: kind for name, kind in fields.items() if name in header}
    columns = [header.index(name) for name in fields]
    casts = [
        (index, name, cast)
        for index, (name, kind) in enumerate(fields.items())
        if (cast := _CASTS.get(kind)) is not None and cast.accepts != (str,)
    ]

    whole = [Declared(n, cast.type, cast.holds) for n, _, cast in casts if cast.accepts == (int,)]
    is_typed = row_check(whole)

    def values_of(cells: list[str]) -> tuple[Any, ...]:
        if len(cells) != len(header):
            raise ValueError(f"it has {len(cells)} columns, not {len(header)}")
        values: list[Any] = [cells[column] for column in columns]
        try:
            for index, name, cast in casts:  # noqa: B007 - for the sentence
                cell = values[index]
                if "_" in cell:
                    raise ValueError(cell)  # Python's own 1_000
                values[index] = cast.of_text(cell) if cell else None
        except ValueError as error:
            raise ValueError(f"field '{name}' is {cell!r:.60}, not {cast.name}") from error
        if not is_typed(values):
            raise ValueError(next(_misfits(values, casts)))
        return tuple(values)

    return values_of


class _Cast(NamedTuple):
    name: str
    accepts: tuple[type, ...]
    of_text: Callable[[str], Any]
    type: ColumnType
    holds: Callable[[Any], bool]


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _is_number(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def _of(kind: str, name: str, accepts: type, of_text: Callable[[str], Any]) -> _Cast:
    declared = parse_type(kind)
    return _Cast(name, (accepts,), of_text, declared, holds_of(declared))


_NUMBER = _Cast("a number", (int, float), float, parse_type("double"), _is_number)
_CASTS = {
    **{kind: _of(kind, "a whole number", int, int) for kind in WHOLE},
    "float": _NUMBER, "double": _NUMBER,
    "boolean": _of("boolean", "true or false", bool, _boolean), "string": _of("string", "text", str, str),
}  # fmt: skip
