"""Readers of one file at a time: lines, JSON lines, CSV and Parquet, from a position on."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol

from sparkstorm.api.columns import rows_of
from sparkstorm.errors import CodecError, InvalidConfigError

FORMATS = ("lines", "json", "csv", "parquet")
_SKIP_BYTES = 1 << 20
_PARQUET_ROWS = 1024
csv.field_size_limit((1 << 31) - 1)  # Python's own is 131,072; `most_bytes` bounds a record


class Record(NamedTuple):
    """A record's values, or why it has none; and the position behind it."""

    values: tuple[Any, ...]
    problem: str
    text: str
    end: int


class RecordReader(Protocol):
    """An open file."""

    def next(self, is_complete: bool) -> Record | None:
        """Return the next record; None at the end. `is_complete`: nothing will follow, so a last
        line needs no line end.
        """

    def close(self) -> None:
        """Close the file."""


class TextReader:
    """Reader of records of text; a position is an offset in (unpacked) bytes."""

    def __init__(
        self,
        stream: BinaryIO,
        at: int,
        parse: Callable[[bytes], tuple[Any, ...]],
        delimiter: str,
        most_bytes: int,
    ) -> None:
        """`delimiter` of CSV, "" for a record a line."""
        self._stream = stream
        self._parse = parse
        self._delimiter = delimiter
        self._most = most_bytes
        self.at = at
        self._part: bytes | bytearray = b""  # of a record whose end has not come yet
        self._is_quoted = False  # whether it is in the middle of a quoted cell

    def next(self, is_complete: bool) -> Record | None:
        """Return the next record."""
        if not self._part and not self._delimiter:
            line = self._stream.readline(self._most + 1)
            if line[-1:] == b"\n" and len(line) <= self._most:
                self._part = line
                return self._record(True)
            self._part = line
        while True:
            line = self._stream.readline(self._most + 1 - len(self._part))
            if not self._part:
                self._part = line
            else:
                self._part = bytearray(self._part) if type(self._part) is bytes else self._part
                self._part += line  # bytes would be copied with each line of a cell
            if self._delimiter and line.count(b'"') % 2:
                # a line within a quoted cell continues like a record that begins with a quote
                begun = b'"' + line if self._is_quoted else self._part
                self._is_quoted = csv_is_open(begun, self._delimiter)
            ends = self._part.endswith(b"\n") and not self._is_quoted
            if ends or len(self._part) > self._most or (not line and is_complete and self._part):
                return self._record(ends)
            if not line:
                return None

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _record(self, ends: bool) -> Record:
        data = bytes(self._part)
        self._part = b""
        self._is_quoted = False
        self.at += len(data)
        if not ends and len(data) > self._most:
            while (rest := self._stream.readline(_SKIP_BYTES)) and not rest.endswith(b"\n"):
                self.at += len(rest)
            self.at += len(rest)
            return Record(
                (),
                f"the record has more than {self._most} bytes",
                data[:200].decode("utf-8", "replace"),
                self.at,
            )
        data = data.rstrip(b"\r\n")
        try:
            return Record(self._parse(data), "", "", self.at)
        except (ValueError, RecursionError) as error:
            return Record((), str(error)[:300], data[:2000].decode("utf-8", "replace"), self.at)


_DAMAGES = ("thrift", "orrupt", "end of stream", "ecompress")  # of a page, in pyarrow's words


class ParquetReader:
    """Reader of a Parquet file by batches; a position is a number of rows."""

    def __init__(self, source: Any, at: int, types: Mapping[str, str], where: str) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(source)
        self._source = source
        fields = tuple(types)
        if missing := [name for name in fields if name not in self._file.schema_arrow.names]:
            raise InvalidConfigError(
                f"{where}: there is no column '{missing[0]}'; it has {', '.join(self._file.schema_arrow.names)}"
            )
        for name, declared in types.items():
            found = self._file.schema_arrow.field(name).type
            if not _is_of(found, declared):
                raise InvalidConfigError(
                    f"{where}: column '{name}' is {found}, but the source declares {declared}"
                )
        self.rows = int(self._file.metadata.num_rows)
        self._batches = self._read(at, fields)
        self.at = at

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

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._source.close()

    def _read(self, at: int, fields: tuple[str, ...]) -> Iterator[Any]:
        groups: list[int] = []
        skip = at
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
                yield batch.select(list(fields)).slice(passed)


def schema_of(source: Any) -> Any:
    """Return the Arrow schema of a Parquet file."""
    import pyarrow.parquet as pq

    return pq.read_schema(source)


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


def row_records(batch: Any, first: int) -> Iterator[Record]:
    """Yield the rows of a batch, whose first has this number; one by one when some value is none
    that tuples carry.
    """
    try:
        yield from (Record(row, "", "", at) for at, row in enumerate(rows_of(batch), first + 1))
        return
    except (CodecError, ValueError, OverflowError):
        pass
    for at in range(batch.num_rows):
        one = batch.slice(at, 1)
        try:
            [row] = rows_of(one)
            yield Record(row, "", "", first + at + 1)
        except (CodecError, ValueError, OverflowError) as error:
            cells = {name: " ".join(str(one.column(name)).split()) for name in one.schema.names}
            yield Record((), str(error)[:300], str(cells)[:2000], first + at + 1)


class ParquetRows:
    """Reader of a Parquet file row by row."""

    def __init__(self, reader: ParquetReader) -> None:
        self._reader = reader
        self._rows = iter(list[Record]())
        self.at = reader.at

    def next(self, is_complete: bool) -> Record | None:
        """Return the next row."""
        while (record := next(self._rows, None)) is None:
            if (batch := self._reader.next_batch()) is None:
                return None
            self._rows = row_records(batch, self.at)
        self.at = record.end
        return record

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def _is_of(found: Any, declared: str) -> bool:
    """Return whether an Arrow type has the Python values of a declared one; nested types are not
    compared.
    """
    import pyarrow as pa

    found = found.value_type if pa.types.is_dictionary(found) else found
    checks = {
        "boolean": pa.types.is_boolean,
        "binary": lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
    }
    checks |= {
        "date": pa.types.is_date,
        "string": lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
    }
    checks |= dict.fromkeys(("tinyint", "smallint", "int", "bigint"), pa.types.is_integer)
    checks |= dict.fromkeys(
        ("float", "double"), lambda t: pa.types.is_floating(t) or pa.types.is_integer(t)
    )
    checks["timestamp"] = lambda t: pa.types.is_timestamp(t) and t.tz is not None
    return bool(pa.types.is_null(found) or checks.get(declared, lambda t: True)(found))


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
            found, end = (
                (load(data), len(text)) if load is not None and b'"$' in data else scan(text)
            )
            if end != len(text):
                found = _load(data)
        except ValueError:
            found = _load(data)
        return values_of(found)

    return parse


def object_reader(fields: Mapping[str, str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return the reader of a parsed JSON object: its values, or ValueError for one that has another
    type than its field declares; a field that an object lacks is None.
    """
    kinds = [
        (place, name, kind)
        for place, (name, of) in enumerate(fields.items())
        if (kind := _CASTS.get(of)) is not None
    ]
    checks = [(place, frozenset((*kind.accepts, type(None)))) for place, _, kind in kinds]
    names = tuple(fields)

    def values_of(found: Any) -> tuple[Any, ...]:
        if type(found) is not dict:
            raise ValueError(f"it is a {type(found).__name__}, not a JSON object")
        values = tuple(map(found.get, names))
        for place, accepted in checks:
            if type(values[place]) not in accepted:
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
    for place, name, kind in kinds:
        if (value := values[place]) is not None and type(value) not in kind.accepts:
            yield f"field '{name}' is {value!r:.60}, not {kind.name}"


def csv_parser(
    fields: Mapping[str, str], header: list[str], delimiter: str
) -> Callable[[bytes], tuple[Any, ...]]:
    """Return the parser of a CSV record, whose columns are named by the header; an empty number is
    None.
    """
    picks = [(header.index(name), name, _CASTS.get(kind)) for name, kind in fields.items()]

    def parse(data: bytes) -> tuple[Any, ...]:
        cells = csv_cells(data, delimiter)
        if len(cells) != len(header):
            raise ValueError(f"it has {len(cells)} columns, not {len(header)}")
        return tuple(
            cells[at] if cast is None else _cast(cells[at], name, cast) for at, name, cast in picks
        )

    return parse


def csv_cells(data: bytes | bytearray, delimiter: str) -> list[str]:
    """Return the cells of one CSV record; ValueError when it is none."""
    try:
        rows = list(
            csv.reader(
                io.StringIO(data.decode("utf-8", "replace"), newline=""),
                delimiter=delimiter,
                strict=True,
            )
        )
    except csv.Error as error:
        raise ValueError(f"it is no CSV: {error}") from error
    if len(rows) > 1:
        raise ValueError("a carriage return outside of quotes; lines end with a newline")
    return rows[0] if rows else []


def csv_is_open(data: bytes | bytearray, delimiter: str) -> bool:
    """Return whether the beginning of a CSV record ends within a quoted cell; a quote inside of a
    cell opens none.
    """
    try:
        csv_cells(data, delimiter)
    except ValueError as error:
        return isinstance(error.__cause__, csv.Error) and "unexpected end" in str(error)
    return False


class _Cast(NamedTuple):
    name: str
    accepts: tuple[type, ...]
    of_text: Callable[[str], Any]


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_WHOLE = _Cast("a whole number", (int,), int)
_NUMBER = _Cast("a number", (int, float), float)
_CASTS = {
    "tinyint": _WHOLE, "smallint": _WHOLE, "int": _WHOLE, "bigint": _WHOLE, "float": _NUMBER, "double": _NUMBER,
    "boolean": _Cast("true or false", (bool,), _boolean), "string": _Cast("text", (str,), str),
}  # fmt: skip


def _cast(cell: str, name: str, cast: _Cast) -> Any:
    if cell == "" and cast.accepts != (str,):
        return None
    try:
        if "_" in cell and cast.accepts != (str,):
            raise ValueError(cell)  # Python's own 1_000
        return cast.of_text(cell)
    except ValueError as error:
        raise ValueError(f"field '{name}' is {cell!r:.60}, not {cast.name}") from error
