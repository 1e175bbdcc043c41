"""Files: a replayable spout over lines, JSON lines, CSV and Parquet, of files that are there, come,
or grow.
"""

from __future__ import annotations

import copy
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.components import Conf, ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import CodecError, InvalidConfigError
from sparkstorm.connectors.file_folders import (
    DAMAGES,
    WHOLE,
    FileSplit,
    Folders,
    Found,
    absolute,
    fingerprint,
    is_packed,
    line_starts,
    raise_lasting,
    refuse_archive,
    shown,
    split_at,
)
from sparkstorm.connectors.file_partitions import filled, named_values
from sparkstorm.connectors.file_progress import DONE, Extent, FileProgress, Turns
from sparkstorm.connectors.file_records import (
    FORMATS,
    CsvReader,
    FileRecord,
    ParquetReader,
    ParquetRows,
    RecordReader,
    TextReader,
    check_types,
    csv_values,
    json_parser,
    line_parser,
    row_group_starts,
    schema_of,
)
from sparkstorm.connectors.patience import check_flags, check_number
from sparkstorm.connectors.polling import Looks, Poll
from sparkstorm.connectors.time_order import MOST_OPEN, NO_TIME, MergedInputs, RecordTime, TimeOf

_RECORDS_PER_CALL = 64
_FINGERPRINT_BYTES = 256
_OFFSET_BITS = 40


class Files(ReplayableSpout):
    """Spout that emits each record of the files that match its patterns exactly once.

    `format` is "lines" (field `line`), "json" (an object a line), "csv" (with a header) or
    "parquet"; the latter three need `fields`, as names or types by name. Text may be packed (.gz,
    .bz2, .xz, .zst). `follow` looks for new files every `poll_secs`; a file must be complete when
    it appears. `tail` follows files that grow, as `tail -F` does. A record that cannot be read goes
    to the stream `bad` (path, place, text, reason).

    Files are dealt to tasks by their names (`tail`: by inode) and must have the same paths wherever
    the spout runs. A task reads one after the other, in the order of their paths or of
    `order(path)`; with `time`, a field or a function of a record's fields by name, in step by event
    time in milliseconds.

    Batches of a Parquet file go to bolts of columns as they are, each as one message, unless `time`
    is given. The position has every file that matched: keep them to some tens of thousands.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        format: str = "lines",
        fields: Sequence[str] | Mapping[str, str] | None = None,
        *,
        follow: bool = False,
        tail: bool = False,
        poll_secs: float = 1.0,
        delimiter: str = ",",
        max_record_bytes: int = 1 << 20,
        read: Mapping[str, Sequence[int]] | None = None,
        order: Callable[[str], Any] | None = None,
        time: TimeOf | None = None,
    ) -> None:
        if format not in FORMATS:
            raise InvalidConfigError(f"Files: format is {format!r}; there are {', '.join(FORMATS)}")
        if (fields is None) != (format == "lines"):
            raise InvalidConfigError(
                f"Files: {format} "
                + ("needs fields, as names or types by name" if fields is None else "has no fields")
            )
        check_flags("Files", follow=follow, tail=tail)
        self._poll = Poll.of("Files", follow or tail, poll_secs)
        check_number("Files", "max_record_bytes", max_record_bytes, 1, is_whole=True)
        self._patterns = [
            absolute(path, "Files")
            for path in (
                paths if isinstance(paths, Iterable) and type(paths) is not str else [paths]
            )
        ]
        folders = Folders(self._patterns)
        if tail and (format == "parquet" or folders.is_remote):
            raise InvalidConfigError(
                "Files: only local files of text grow; drop tail, and let follow look for new files"
            )
        if fields is not None and not isinstance(fields, Mapping):
            fields = dict.fromkeys(fields, "any")
        check_types("Files", fields or {})
        self.fields = {"line": "string"} if fields is None else dict(fields)
        self.outputs = {"default": self.fields, "bad": ["path", "place", "text", "reason"]}
        self.blocking = folders.is_remote  # type: ignore[misc]
        self.format = format
        self._tail = tail
        self.delimiter = delimiter
        self.most_bytes = max_record_bytes
        self._read = {key: list(position) for key, position in (read or {}).items()}
        self._order = order
        self._time = (
            None if time is None else RecordTime("Files", time, tuple(self.fields), fields or ())
        )

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Read nothing yet: positions may follow."""
        self._collector = collector
        self._context = context
        self._folders = Folders(self._patterns, by_inode=self._tail)
        self._files = {
            key: FileProgress.of(position)
            for key, position in self._read.items()
            if self._is_mine(key)
        }
        # files to read from; with `time`, to be merged with those that are
        self._turns = Turns()
        # a file that grows stays open: it could not be found again after a rename
        self._merged = MergedInputs(
            self._read_ahead, self._pause, 1 << 30 if self._tail else MOST_OPEN
        )
        self._looks = Looks(self._poll, context.now_ms)
        self._extent = Extent()

    def next_tuple(self) -> None:
        """Emit some records of one file, or of those whose time is next."""
        looks_between = self._tail or self._time is not None
        if (looks_between or not self._turns) and self._looks.is_due:
            self._look()
        if self._time is not None:
            self._emit_by_time()
            return
        while self._turns:
            file = self._turns[0]
            if file.at == DONE:
                self._turns.popleft()
            elif self._emit(file):
                self._turns.silent = 0
                return
            elif self._turns.pass_silent(is_done=file.at == DONE):
                return

    def is_exhausted(self) -> bool:
        """Return whether every file was read; never if new ones are looked for."""
        return self._looks.are_over and not self._turns and not self._merged

    def extent(self) -> tuple[int, int]:
        """Bytes of the files found, and of those that were read; with `time` also of those that are
        read now.
        """
        begun = 0
        if self._time is not None and self.format != "parquet":
            begun = sum(min(file.at, file.size) for file in self._files.values() if file.at > 0)
        return self._extent.found, self._extent.read + begun

    def snapshot(self) -> Any:
        """Position in each file, by its key."""
        return {key: file.position() for key, file in self._files.items()}

    def restore(self, position: Any) -> None:
        """Go on in each file behind its last committed record."""
        self._files = {
            key: FileProgress.of(file_position) for key, file_position in position.items()
        }

    def take_over(self, handed: Sequence[Any]) -> Files:
        """The same files behind what was read of each, with any number of tasks."""
        spout = copy.copy(self)
        spout._read = {
            key: list(position) for positions in handed for key, position in positions.items()
        }
        return spout

    def splits(self, paths: str, most_bytes: int) -> list[FileSplit]:
        """Return a pattern's files in the order of reading, larger ones in parts; with `time` all
        as one.
        """
        folders = Folders([absolute(paths, "Files")])
        files = self._sorted(folders.find())
        if self._time is not None and files:
            return [FileSplit(tuple(f.path for f in files), 0, WHOLE, sum(f.size for f in files))]
        return [
            split
            for path, size in ((file.path, file.size) for file in files)
            for split in split_at(path, size, self._starts(folders, path, size, most_bytes))
        ]

    def of_split(self, split: FileSplit) -> Files:
        """Return a source of a part's files; rows from its end on are the next part's."""
        spout = copy.copy(self)
        spout._patterns = list(split.paths)
        spout._poll = replace(self._poll, follow=False)
        spout._tail = False
        spout._read = {shown(split.paths[0]): [split.start, 0, 0]} if split.start else {}
        return spout

    def parquet_schema(self, path: str) -> Any:
        """Return the Arrow schema of a Parquet file."""
        with Folders([path]).open_raw(path) as raw:
            return _opened(f"file {shown(path)}", raw, partial(schema_of, raw))

    def _starts(self, folders: Folders, path: str, size: int, most_bytes: int) -> list[int]:
        """Return the positions at which a file is divided."""
        is_whole = self.format == "csv" or (self.format != "parquet" and is_packed(path))
        if size <= most_bytes or is_whole:
            return [0]
        if self.format == "parquet":
            with folders.open_raw(path) as raw:
                where = f"file {shown(path)}"
                starts: list[int] = _opened(where, raw, partial(row_group_starts, raw, most_bytes))
                return starts
        with folders.open(path, 0) as stream:
            return line_starts(stream, size, most_bytes)

    def _sorted(self, files: list[Found]) -> list[Found]:
        if (order := self._order) is not None:
            files.sort(key=lambda file: order(file.path))
        return files

    def close(self) -> None:
        """Close what is open."""
        for file in self._files.values():
            if file.reader is not None:
                file.reader.close()

    def _is_mine(self, key: str) -> bool:
        return zlib.crc32(key.encode()) % len(self._context.peers) == self._context.task_index

    def _look(self) -> None:
        """Take up files that have come, and note those that are gone."""
        try:
            files = self._sorted(self._folders.find())
            listed = {file.key: file for file in files if self._is_mine(file.key)}
        except OSError as error:
            raise_lasting(
                error,
                f"component '{self._context.component_id}', {', '.join(map(shown, self._patterns))}",
            )
            raise
        if not (listed or self._poll.follow or self._files) and len(self._context.peers) == 1:
            raise InvalidConfigError(
                f"component '{self._context.component_id}': no file matches {', '.join(map(shown, self._patterns))}"
            )
        if self._tail:
            gone = {
                key
                for key, file in self._files.items()
                if key not in listed and file.reader is None and file.at != DONE
            }
            listed |= {file.key: file for file in self._folders.find_renamed(gone)} if gone else {}
        for key, file in list(self._files.items()):
            file.missed = 0 if key in listed else file.missed + 1
            if key not in listed and file.reader is None and not self._turns and not self._merged:
                file.path, file.number = (
                    file.path or key,
                    file.number or len(listed) + len(self._files),
                )
                self._tell_loss(file, "is gone")
                del self._files[key]
        waiting = set(map(id, self._turns))
        for rank, (key, found_file) in enumerate(listed.items()):
            file = self._files.setdefault(key, FileProgress())
            file.rank = rank  # as later looks find it: new files may be among the others
            self._take(file, found_file, waiting)
        self._looks.note(is_at_end=True)

    def _take(self, file: FileProgress, found_file: Found, waiting: set[int]) -> None:
        if not file.path:
            file.number = len(self._files)
            self._extent.found += found_file.size
            self._extent.read += found_file.size if file.at == DONE else 0
        file.path = found_file.path
        file.size = found_file.size
        if file.at == DONE and self._tail and found_file.size:
            # the inode of a file that was read and deleted is used again
            file.at = file.printed = file.checksum = 0
        if file.at != DONE and id(file) not in waiting and file not in self._merged:
            self._turns.append(file)

    def _emit(self, file: FileProgress) -> int:
        """Emit some records of a file; 0 when there are none now, and its position shows whether
        there will be.
        """
        count = 0
        try:
            reader = file.reader or self._begin(file)
            if isinstance(reader, ParquetReader):
                return self._emit_batch(file, reader)
            if reader is None:
                return 0  # its header is not complete yet
            is_complete = self._is_complete(file)
            emit = self._emit_record
            for count in range(_RECORDS_PER_CALL):
                if (record := reader.next(is_complete)) is None:
                    return count or self._rest(file)
                emit(file, record)
        except DAMAGES as error:
            if count and not self._is_damage(error):
                self._drop(file)
                # what was emitted is behind the position; the next call meets the error again
                return count
            self._bear(file, error)
            return 0 if isinstance(error, FileNotFoundError) else _RECORDS_PER_CALL
        return _RECORDS_PER_CALL

    def _emit_by_time(self) -> None:
        """Emit some records of all files in the order of their times."""
        while self._turns:
            file = self._turns.popleft()
            if file.at != DONE:
                self._merged.add(file, file.rank)
        for count in range(_RECORDS_PER_CALL):
            try:
                taken = self._merged.take()
            except (OSError, InvalidConfigError):
                if count:
                    # what was emitted is behind the position; the next call meets the error again
                    return
                raise
            if taken is None:
                return
            self._emit_record(*taken)

    def _read_ahead(self, file: FileProgress) -> tuple[int, FileRecord] | None:
        """Return the next record of a file with its time; None when there is none now."""
        record = self._next_record(file)
        time = self._time
        if record is None or time is None:
            if file.at != DONE:
                self._turns.append(file)
            return None
        if record.problem:
            return NO_TIME, record
        try:
            return time.of(record.values), record
        except ValueError as error:
            return NO_TIME, record._replace(
                problem=str(error)[:300], text=repr(record.values)[:2000]
            )

    def _next_record(self, file: FileProgress) -> FileRecord | None:
        try:
            reader = file.reader or self._begin(file)
            if isinstance(reader, ParquetReader):
                reader = file.reader = ParquetRows(reader)
            if reader is None:
                return None  # its header is not complete yet
            if (record := reader.next(self._is_complete(file))) is None:
                self._rest(file)
            return record
        except DAMAGES as error:
            self._bear(file, error)
            return None

    def _is_complete(self, file: FileProgress) -> bool:
        """Return whether nothing will be added to a file, so that its last line needs no end."""
        return not self._tail or file.missed > 1

    def _emit_record(self, file: FileProgress, record: FileRecord) -> None:
        offset = file.at
        file.at = record.end
        if record.problem:
            self._tell(file, record.problem, record.text, offset)
            return
        try:
            self._collector.emit(record.values, file.number << _OFFSET_BITS | offset)
        except CodecError as error:
            self._tell(file, str(error), record.text or repr(record.values)[:2000], offset)

    def _bear(self, file: FileProgress, error: Exception) -> None:
        """Report a file that is gone or damaged, and be done with it; raise any other error."""
        if isinstance(error, FileNotFoundError):
            self._tell_loss(file, "is gone")
        elif self._is_damage(error):
            self._tell(file, f"the file is damaged from here on: {error}", "", file.at)
            self._finish(file)
        else:
            self._drop(file)
            raise_lasting(
                error, f"component '{self._context.component_id}', file {shown(file.path)}"
            )
            raise error

    def _emit_batch(self, file: FileProgress, reader: ParquetReader) -> int:
        if (batch := reader.next_batch()) is None:
            return self._rest(file)
        first = file.at
        file.at = reader.at
        if "default" in self._context.column_streams:
            # it holds a value that no tuple carries: which one is found row by row
            with suppress(CodecError):
                reader.check(batch)
                self._collector.emit_batch(batch, file.number << _OFFSET_BITS | first)
                return int(batch.num_rows)
        emit = self._collector.emit
        id_of_file = file.number << _OFFSET_BITS
        try:
            rows = reader.rows_of(batch)
        except (CodecError, ValueError, OverflowError):
            file.at = first
            for record in reader.records(batch, first):
                self._emit_record(file, record)
            return int(batch.num_rows)
        for number, values in enumerate(rows, first):
            try:
                emit(values, id_of_file | number)
            except CodecError as error:
                self._tell(file, str(error), repr(values)[:2000], number)
        return int(batch.num_rows)

    def _tell(self, file: FileProgress, problem: str, text: str, offset: int) -> None:
        message_id = file.number << _OFFSET_BITS | max(offset, 0)
        self._collector.report_error(f"{shown(file.path)}, at {offset}: {problem}")
        self._collector.emit((shown(file.path), offset, text, problem), message_id, stream="bad")

    def _tell_loss(self, file: FileProgress, how: str) -> None:
        """Report a file of which a part was read, and whose rest cannot be; a log that is rotated
        away is expected to go.
        """
        if file.at > 0 and not self._tail:
            self._tell(
                file,
                f"the file {how} since it was read up to here: its rest is not read",
                "",
                file.at,
            )
        self._finish(file)

    def _is_damage(self, error: BaseException) -> bool:
        signs = "ZSTD", "zstd", "Truncated compressed", "Invalid data stream"
        return (
            not isinstance(error, OSError)
            or isinstance(error, gzip.BadGzipFile)
            or (error.errno is None and any(sign in str(error) for sign in signs))
        )

    def _rest(self, file: FileProgress) -> int:
        """Look at a file that has nothing now: whether it is done, was truncated, or may grow."""
        if not self._tail:
            self._finish(file)
            return 0
        info = os.fstat(file.stream.fileno())
        if info.st_size < file.at:
            self._restart(file)
        elif file.missed > 1 or info.st_nlink == 0:
            self._finish(file)
        elif file.printed < min(file.at, _FINGERPRINT_BYTES):
            file.printed = min(file.at, _FINGERPRINT_BYTES)
            file.checksum = fingerprint(file.stream, file.printed)
        return 0

    def _restart(self, file: FileProgress) -> None:
        self._drop(file)
        file.at = file.printed = file.checksum = 0

    def _drop(self, file: FileProgress) -> None:
        """Close a file; the next look into it begins at its position."""
        if file.reader is not None:
            file.reader.close()
        file.reader = None

    def _pause(self, file: FileProgress) -> None:
        """Close a file whose next record is read; it is no shorter than up to there, should it have
        grown since it was found.
        """
        if isinstance(file.reader, TextReader) and not is_packed(file.path):
            file.size = max(file.size, file.reader.at)
        self._drop(file)

    def _finish(self, file: FileProgress) -> None:
        self._drop(file)
        file.at = DONE
        self._extent.read += file.size

    def _begin(self, file: FileProgress) -> RecordReader | ParquetReader | None:
        """Open a file at its position; a header is read first, wherever that is."""
        where = f"component '{self._context.component_id}', file {shown(file.path)}"
        named = named_values(where, file.path, self.fields, self.format != "parquet")
        if self.format == "parquet":
            raw = self._folders.open_raw(file.path)
            file.reader = reader = _opened(
                where, raw, partial(ParquetReader, raw, file.at, self.fields, where, named)
            )
            if file.at > reader.rows:
                self._tell_loss(file, "has become shorter")
            return file.reader
        refuse_archive(f"component '{self._context.component_id}'", file.path)
        header: Sequence[str] = ()
        if self.format == "csv":
            with self._folders.open(file.path, 0) as first:
                reader = CsvReader(first, 0, tuple, self.delimiter, self.most_bytes)
                record = reader.next(self._is_complete(file))
            if record is None:
                if not self._tail:
                    self._finish(file)
                return None
            header = record.values
            if record.problem:
                raise InvalidConfigError(f"{where}: its header cannot be read: {record.problem}")
            named = {name: value for name, value in named.items() if name not in header}
            if missing := [name for name in self.fields if name not in (*header, *named)]:
                raise InvalidConfigError(
                    f"{where}: its header has no column '{missing[0]}', only {', '.join(header)}"
                )
            file.at = max(file.at, record.end)
        file.stream = self._folders.open(file.path, file.at)
        if self._tail and file.printed and fingerprint(file.stream, file.printed) != file.checksum:
            file.stream.close()
            file.at = file.printed = file.checksum = 0  # another file under the same inode
            return self._begin(file)
        if not self._tail and not is_packed(file.path) and file.at > file.size:
            file.stream.close()
            self._tell_loss(file, "has become shorter")
            return None
        if self.format == "csv":
            values_of = filled(csv_values(self.fields, header), self.fields, named)
            file.reader = CsvReader(
                file.stream, file.at, values_of, self.delimiter, self.most_bytes
            )
        else:
            parse = (line_parser if self.format == "lines" else json_parser)(self.fields)
            parse = filled(parse, self.fields, named)
            file.reader = TextReader(file.stream, file.at, parse, self.most_bytes)
        return file.reader


def _opened(where: str, raw: Any, make: Any) -> Any:
    import pyarrow as pa

    try:
        return make()
    except InvalidConfigError:
        raw.close()
        raise
    except pa.ArrowInvalid as error:
        raw.close()
        raise InvalidConfigError(f"{where} is no Parquet file: {error}") from error
