"""Recorded input of one task on disk: a ring of segments, the newest open, the others Parquet.

An open segment is a `.part` file of frames (length, CRC, msgpack), appended after each commit, so
that a kill costs at most the rows in memory; closing makes a Parquet file of it under another name
and renames that. What a former owner left open on this machine is closed by the next. Laws: no file
under its final name is ever incomplete; rows and bytes of a task stay within its limits; what could
not be kept is counted in the next segment.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import numpy as np

from sparkstorm.common.errors import CodecError, MalformedFrameError, RecordingError, reason_of
from sparkstorm.common.model.strict import named_errors, read_as
from sparkstorm.common.model.values.codec import Codec

FORMAT = 1
STATE_STREAM = "__state"
SEGMENTS = 4  # a ring of so many holds a task's limits
_FRAME = struct.Struct("<II")
_MOST_FRAME_BYTES = 1 << 30
_META = b"sparkstorm recording"
_ROWS = b"sparkstorm rows"
_MOST_FILES = 64  # owners that die soon leave small ones
_REST_MS = 5_000
_STATE_ROWS = 256
Row = tuple[int, str, int, str, Any, str | None]
"""When (ms), source component, source task, stream, values, and why it failed."""


_PRIVATE = partial(os.open, mode=0o600)
"""Opener of files that hold the input of users, as capsules do."""


class Call(NamedTuple):
    """Rows of one source that were executed together; `failures` are reasons by the place of the
    row.
    """

    at_ms: int
    component: str
    task: int
    stream: str
    values: Sequence[bytes]  # each row's, packed: they are not unpacked on their way
    failures: Mapping[int, str]

    def rows(self) -> Iterator[Row]:
        """One by one."""
        for index, data in enumerate(self.values):
            yield (
                self.at_ms,
                self.component,
                self.task,
                self.stream,
                Codec(is_lenient=True).unpack(data),
                self.failures.get(index),
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one task: rows and bytes on disk, and the most state keys that are kept with a
    segment.
    """

    rows: int
    bytes: int
    state_keys: int


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a segment: its task; `lost` rows before it were not kept; without `has_state` its
    first state was too large.
    """

    topology_id: str
    component: str
    task: int
    index: int  # of the task among its component's
    token: int
    number: int
    lost: int = 0
    has_state: bool = False
    is_stateful: bool = False
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Beginning:
    """Start of a segment: its number, rows lost before it, the state its rows begin with (none: too
    large, or there is none).

    `cells` are those of windows and timers, for a live shadow.
    """

    number: int
    lost: int
    state: Sequence[Sequence[Any]] | None
    cells: Sequence[Sequence[Any]] | None = None


class SegmentFile:
    """The segments of one task, written by one owner; what the disk refuses only costs rows."""

    def __init__(self, folder: Path, header: Header, limits: Limits) -> None:
        self._folder = folder
        self._header = header
        self._most_rows = max(1, limits.rows // SEGMENTS)
        self._most_bytes = limits.bytes // SEGMENTS
        self.codec = Codec(is_lenient=True)
        self._file: BinaryIO | None = None
        self._path = folder
        self._number = self._rows = self._bytes = self._lost = 0
        self._has_recovered = False
        # read by the loop, written here
        self.over = 0  # up to this number segments take nothing any more
        self.fill = (0, 0)  # number and bytes of the open one
        self.rests_until_ms = 0

    def take(self, beginning: Beginning | None, calls: Iterable[Call], now_ms: int) -> None:
        """Append committed rows, to a new segment if they come with a beginning; those without room
        are counted as lost.
        """
        for call in calls:
            num_kept = 0
            try:
                if beginning is not None:
                    self._close()
                    self._open(beginning)
                    beginning = None
                num_kept = self._write(call) if self._file is not None else 0
            except (OSError, CodecError, RecordingError):
                beginning = None
                self.abandon()
                self.rests_until_ms = now_ms + _REST_MS
            if num_kept < len(call.values):
                self._lost += len(call.values) - num_kept
                self.over = self._number
        self.fill = self._number, self._bytes

    def close(self) -> None:
        """Close the open segment."""
        try:
            self._close()
        except (OSError, RecordingError):
            self.abandon()

    def _open(self, beginning: Beginning) -> None:
        self._number = beginning.number
        self._rows = self._bytes = 0
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._has_recovered:
            recover(self._folder, self._header.token)
            self._has_recovered = True
        state = beginning.state
        parts = (
            []
            if state is None
            else [
                self.codec.pack(["s", [list(pair) for pair in state[start : start + _STATE_ROWS]]])
                for start in range(0, len(state), _STATE_ROWS)
            ]
        )
        if sum(map(len, parts)) > self._most_bytes // 2:
            state = None
            parts = []
        lost = beginning.lost + self._lost
        header = replace(self._header, number=self._number, lost=lost, has_state=state is not None)
        self._path = self._folder / f"{header.token:020d}-{self._number:06d}.part"
        self._file = io.FileIO(self._path, "wb", opener=_PRIVATE)
        for data in (self.codec.pack(asdict(header)), *parts):
            self._append(data)
        self._lost = 0
        prune(self._folder, self._most_rows * (SEGMENTS - 1), self._most_bytes * (SEGMENTS - 1))

    def _write(self, call: Call) -> int:
        """Append as many of its rows as there is room for; their number."""
        values = call.values[: max(0, self._most_rows - self._rows)]
        while values:
            data = self.codec.pack(["r", *call[:4], values, call.failures])
            room = self._most_bytes - self._bytes - _FRAME.size
            if len(data) <= room:
                self._append(data)
                self._rows += len(values)
                return len(values)
            values = values[: min(len(values) - 1, max(0, len(values) * room // len(data)))]
        return 0

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        frame = _FRAME.pack(len(data), crc32(data)) + data
        if self._file.write(frame) != len(frame):
            raise OSError("the disk took a part of it")
        self._bytes += len(frame)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            to_parquet(self._path)

    def abandon(self) -> None:
        """Leave the open segment as it is, as a killed process does; the next writer closes it."""
        file = self._file
        self._file = None
        with contextlib.suppress(OSError):
            if file is not None:
                file.close()


def recover(folder: Path, token: int) -> None:
    """Close what owners with older tokens left open; a file half made, and one that holds nothing
    whole, goes.
    """
    for path in sorted(folder.glob("*.part")):
        if _token(path) < token:
            with contextlib.suppress(RecordingError):  # not ours: it is left alone
                to_parquet(path)
    for path in folder.glob("*.tmp"):
        if _token(path) < token:
            path.unlink(missing_ok=True)


def prune(folder: Path, rows: int, size: int) -> None:
    """Delete the oldest closed segments above the limits of rows, bytes and files."""
    for number, path in enumerate(sorted(folder.glob("*.parquet"), reverse=True)):
        size -= path.stat().st_size
        rows -= _rows_in(path)
        if rows < 0 or size < 0 or number >= _MOST_FILES:
            path.unlink(missing_ok=True)


def _rows_in(path: Path) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return int((parquet.read_metadata(path).metadata or {}).get(_ROWS, b"0"))
    except (OSError, ValueError, pa.ArrowException):
        return 0  # no recording of ours


def to_parquet(path: Path) -> None:
    """Make the Parquet file of a part, which goes then."""
    import pyarrow as pa
    from pyarrow import parquet

    header, state, calls = read_part(path)
    if header is not None and (calls or state):
        rows = sum(len(call.values) for call in calls)
        beginning = Call(
            0,
            header.component,
            header.task,
            STATE_STREAM,
            list(map(Codec(is_lenient=True).pack, state)),
            {},
        )
        schema = _schema().with_metadata(
            {_META: json.dumps(asdict(header)).encode(), _ROWS: b"%d" % rows}
        )
        fresh = path.with_suffix(".tmp")
        with open(fresh, "wb", opener=_PRIVATE) as file:
            parquet.write_table(
                pa.Table.from_arrays(_columns([beginning, *calls]), schema=schema), file
            )
        os.replace(fresh, path.with_suffix(".parquet"))
    path.unlink(missing_ok=True)


def _columns(calls: Sequence[Call]) -> list[Any]:
    """Arrow columns of rows; what a call's rows share is spread by Arrow, not by a loop."""
    import pyarrow as pa

    places = pa.array(np.repeat(np.arange(len(calls)), [len(call.values) for call in calls]))
    shared = [
        pa.array([call[n] for call in calls], _schema().types[n]).take(places) for n in range(4)
    ]
    values = pa.array([data for call in calls for data in call.values], pa.binary())
    failures = pa.nulls(len(values), pa.string())
    if any(call.failures for call in calls):
        failures = pa.array(
            [call.failures.get(n) for call in calls for n in range(len(call.values))], pa.string()
        )
    return [*shared, values, failures]


def read_part(path: Path) -> tuple[Header | None, list[Any], list[Call]]:
    """Header, state pairs and calls of an open segment, as far as they are whole; no header when
    not even that is.
    """
    state: list[Any] = []
    calls: list[Call] = []
    header: Header | None = None
    for fields in _frames(path):
        if header is None:
            header = checked_header(path, fields)
        elif (
            isinstance(fields, list)
            and len(fields) == 2
            and fields[0] == "s"
            and isinstance(fields[1], list)
        ):
            state += fields[1]
        else:
            calls.append(_checked_call(path, fields))
    return header, state, calls


def read_parquet(path: Path) -> tuple[Header, list[Any], list[Row]]:
    """Header, state pairs and rows of a closed segment; RecordingError names the file and what is
    wrong.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
        header = checked_header(path, json.loads((table.schema.metadata or {}).get(_META, b"null")))
        if table.schema.remove_metadata() != _schema():
            raise RecordingError(
                f"{path}: its columns are {', '.join(table.schema.names)[:200]}, not those of a recording"
            )
        codec = Codec(is_lenient=True)
        columns = [column.to_pylist() for column in table.columns]
        columns[4] = [codec.unpack(data or b"") for data in columns[4]]
    except (OSError, ValueError, pa.ArrowException, MalformedFrameError) as error:
        raise RecordingError(
            f"{path} cannot be read as a recording: {reason_of(error)[:200]}"
        ) from error
    rows = list(zip(*columns, strict=True))
    state = [row[4] for row in rows if row[3] == STATE_STREAM]
    return header, state, [checked_row(path, row) for row in rows if row[3] != STATE_STREAM]


def checked_header(path: Path, fields: Any) -> Header:
    """A header as `Header`; RecordingError names the file and the field."""
    with named_errors(RecordingError, prefix=f"{path}: header of a recording: "):
        header = read_as(Header, fields, needs_all=True)
    if header.format != FORMAT:
        raise RecordingError(f"{path}: format {header.format}; this version reads {FORMAT}")
    return header


def _checked_call(path: Path, fields: Any) -> Call:
    kinds = (str, int, str, int, str, list, dict)
    is_frame = (
        isinstance(fields, list)
        and [type(field) for field in fields] == list(kinds)
        and fields[0] == "r"
    )
    if not is_frame or not set(map(type, fields[5])) <= {bytes}:
        raise RecordingError(f"{path}: {fields!r:.120} is no frame of a recording")
    return Call(*fields[1:])


def checked_row(path: Path, row: Sequence[Any]) -> Row:
    """A row whose fields are of their kinds."""
    kinds = (int, str, int, str, list, str | None)
    if len(row) != len(kinds) or not all(
        isinstance(value, kind) for value, kind in zip(row, kinds, strict=True)
    ):
        raise RecordingError(f"{path}: {list(row)!r:.120} is no recorded row")
    at_ms, component, task, stream, values, reason = row
    return at_ms, component, task, stream, values, reason


def _frames(path: Path) -> Iterator[Any]:
    codec = Codec(is_lenient=True)
    with path.open("rb") as file:
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            size, crc = _FRAME.unpack(head)
            data = file.read(size) if size <= _MOST_FRAME_BYTES else b""
            if len(data) != size or crc32(data) != crc:
                return  # the owner died while it wrote this
            try:
                yield codec.unpack(data)
            except MalformedFrameError as error:
                raise RecordingError(f"{path} holds what no recording holds: {error}") from error


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("at_ms", pa.int64()),
            ("component", pa.string()),
            ("task", pa.int32()),
            ("stream", pa.string()),
            ("values", pa.binary()),
            ("failure", pa.string()),
        ]
    )


def _token(path: Path) -> int:
    token = path.stem.partition("-")[0]
    return int(token) if token.isascii() and token.isdigit() else -1
