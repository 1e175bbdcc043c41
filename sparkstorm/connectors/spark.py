"""SparkSource and SparkSink: Spark's Python data sources as spouts and sinks, without a
SparkSession and without a JVM.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zlib import crc32

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.columns import rows_of
from sparkstorm.api.components import Conf, ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.common.errors import (
    InvalidConfigError,
    InvalidTopologyError,
    StoreInconsistentError,
)
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.model.values.column_types import ANY, ColumnType, parse_columns
from sparkstorm.connectors.file_sinks import column_check, row_batch
from sparkstorm.connectors.polling import Looks, Poll

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.types import StructType

_ROWS_PER_CALL = 256
_BATCH_ROWS = 8192


class SparkSource(ReplayableSpout):
    """Spout that emits the rows of a Spark Python data source
    (`pyspark.sql.datasource.DataSource`), each exactly once.

    The position is the source's offsets with the rows read of the present range, so `read` of a
    partition must repeat itself. The reader's `commit(end)` is called when the position behind it
    is committed and every tuple up to there is done (after a restart: or in the topology's own
    streams).

    `partition_key` names each partition by a value that stays over all ranges (a shard's number);
    only with it several tasks share the partitions. Arrow batches that `read` yields go to bolts of
    columns as they are, each as one message. `follow=False` ends the source at what is there now.
    `poll_secs` is the pause between two looks for news.
    """

    blocking = True

    def __init__(
        self,
        source: type[DataSource],
        options: Mapping[str, str] | None = None,
        schema: str | StructType | None = None,
        *,
        partition_key: Callable[[InputPartition], Any] | None = None,
        follow: bool = True,
        poll_secs: float = 0.5,
    ) -> None:
        self._source = source
        self._options = dict(options or {})
        self._schema, self.outputs = read_schema(make_source(source, self._options), schema)
        self._key = partition_key
        self._poll = Poll.of("SparkSource", follow, poll_secs)

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Make the reader; nothing is read yet."""
        self._collector = collector
        self._context = context
        self._names = list(self._schema.names)
        self._casts = [_cast(field.dataType) for field in self._schema.fields]
        self._emits_batches = "default" in context.column_streams
        self._most = _BATCH_ROWS if self._emits_batches else _ROWS_PER_CALL
        tasks = len(context.peers)
        if tasks > 1 and self._key is None:
            raise InvalidTopologyError(
                f"component '{context.component_id}': {self._source.__name__} is read by {tasks} tasks, which must agree on "
                "who reads what: give SparkSource a partition_key, or parallelism 1"
            )
        self._reader = _reader(make_source(self._source, self._options), self._schema)
        self._range = _Range()
        self._read_ranges = _ReadRanges()
        self._mine: list[InputPartition] = []
        self._rows: Iterator[Any] | None = None
        self._is_restored = False
        self._looks = Looks(self._poll, context.now_ms)

    def next_tuple(self) -> None:
        """Emit some rows of the range at hand, or plan the next one."""
        here = self._range
        if self._is_restored:
            self._is_restored = False
            self._commit(here.start)  # a former process may not have come to it
        if here.end is None and not self._plan():
            return
        while here.at < len(self._mine):
            if self._rows is None:
                self._rows = _behind(here.done, self._reader.read(self._mine[here.at]), self._most)
            try:
                if self._emit(self._rows):
                    return
            except BaseException:
                self._rows = None  # read again behind the last row that was emitted whole
                raise
            here.at += 1
            here.done = 0
            self._rows = None
        self._read_ranges.end(here.number, here.end)
        # before it is committed, the source must not forget
        self._collector.keep_position(here.number)
        self._range = _Range(here.end, number=here.number + 1)

    def _emit(self, rows: Iterator[Any]) -> int:
        """Emit a batch, or some rows; 0 at the partition's end."""
        messages = count = 0
        number = self._range.number
        for item in rows:
            if not hasattr(item, "num_columns"):
                self._collector.emit(self._values(item), number)
                messages = messages + 1
                count = count + 1
                if count >= _ROWS_PER_CALL:
                    break
                continue
            if item.schema.names != self._names:
                item = self._by_name(item)
            if self._emits_batches:
                self._collector.emit_batch(item, number)
                messages = messages + 1
                count = count + item.num_rows
            else:
                for values in rows_of(item):
                    self._collector.emit(values, number)
                messages = messages + item.num_rows
                count = count + item.num_rows
            if count >= _ROWS_PER_CALL:
                break
        self._read_ranges.emitted(number, messages)
        self._range.done += count
        return count

    def _values(self, row: Any) -> Sequence[Any]:
        """Return a row's values in the order of the schema, as values of tuples; a Row goes by its
        names, as in Spark.
        """
        if not isinstance(row, tuple | list):
            raise InvalidConfigError(
                f"component '{self._context.component_id}': {self._source.__name__} read a {type(row).__name__}, "
                "where a tuple, a list, a Row or an Arrow batch was expected; correct its read"
            )
        values: Sequence[Any] = row
        if names := getattr(row, "__fields__", None):
            if sorted(names) != sorted(self._names):
                raise self._misfit("Row", names)
            values = [row[names.index(name)] for name in self._names]
        if not any(self._casts) or len(values) != len(self._casts):
            return values
        return [
            value if cast is None or value is None else cast(value)
            for value, cast in zip(values, self._casts, strict=True)
        ]

    def _misfit(self, what: str, names: Sequence[str]) -> InvalidConfigError:
        return InvalidConfigError(
            f"component '{self._context.component_id}': {self._source.__name__} read a {what} of the columns "
            f"{', '.join(names)}, but its schema has {', '.join(self._names)}; correct its read or its schema"
        )

    def _by_name(self, batch: Any) -> Any:
        """Return a batch's columns in the order of the schema."""
        if sorted(batch.schema.names) != sorted(self._names):
            raise self._misfit("batch", batch.schema.names)
        return batch.select(self._names)

    def is_exhausted(self) -> bool:
        """Return whether the end was reached that the source had when it was last asked; never if
        it is followed.
        """
        return self._looks.are_over

    def snapshot(self) -> Any:
        """Offsets of the range at hand, and what is read of it."""
        return asdict(self._range)

    def restore(self, position: Any) -> None:
        """Plan the same range again."""
        # what a former process emitted is acked under its own numbers
        self._range = _Range(**{**position, "number": position["number"] + 1})
        self._is_restored = self._range.start is not None
        if self._range.end is not None:
            self._deal()

    def ack(self, message_id: Any) -> None:
        """Count a tuple of a range as done."""
        if self._read_ranges.note_done(message_id):
            # the source may forget ranges whose tuples are all done
            for end in self._read_ranges.take_done():
                self._commit(end)

    fail = ack  # it was parked: done as well

    def close(self) -> None:
        """End the reader."""
        self._reader.stop()

    def _plan(self) -> bool:
        if not self._looks.is_due:
            return False
        here = self._range
        if here.start is None:
            here.start = self._reader.initialOffset()
            self._collector.keep_position(-1)  # another call may give another one
        end = _latest(self._reader, here.start)
        is_at_end = end is None or end == here.start
        self._looks.note(is_at_end, None if is_at_end else 0)
        if is_at_end:
            return False
        here.end = end
        here.at = 0
        here.done = 0
        self._deal()
        return True

    def _deal(self) -> None:
        """Take this task's share of the range's partitions."""
        partitions = list(self._reader.partitions(self._range.start, self._range.end))
        tasks, index = len(self._context.peers), self._context.task_index
        self._mine = (
            partitions
            if self._key is None
            else [p for p in partitions if _share(self._key(p), tasks) == index]
        )

    def _commit(self, end: Any) -> None:
        # with several tasks, none has the state of the others
        if len(self._context.peers) == 1:
            self._reader.commit(end)


@dataclass(slots=True)
class _Range:
    """Position of a task: the offsets of the range at hand, and what is read of it."""

    start: Any = None
    end: Any = None  # none: the next range is not planned
    at: int = 0  # partitions that are read
    done: int = 0  # rows that are read of the partition behind them
    number: int = 0


class _ReadRanges:
    """Ranges whose tuples are out there, by number."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # tuples, and one for the position behind the range
        self._ends: dict[int, Any] = {}  # of ranges that were read to their end

    def emitted(self, number: int, count: int) -> None:
        """Note that so many tuples of a range are out there."""
        self._open[number] = self._open.get(number, 0) + count

    def end(self, number: int, end: Any) -> None:
        """Note that a range is read, and that its position is on its way."""
        self._ends[number] = end
        self.emitted(number, 1)

    def note_done(self, number: Any) -> bool:
        """Note that a tuple is done; return whether its range is one of these."""
        if number not in self._open:
            return False
        self._open[number] -= 1
        return True

    def take_done(self) -> Iterator[Any]:
        """Yield the ends of the oldest ranges that are done, and forget them."""
        for number in sorted(self._ends):
            if self._open.get(number):
                return
            self._open.pop(number, None)
            yield self._ends.pop(number)


class SparkSink(TransactionalSink):
    """Sink that writes through a Spark Python data source's `DataSourceStreamWriter`, or its
    `DataSourceWriter` where it has no other.

    `write` runs in the epoch's first phase, `commit` after the worker's commit, with the epoch of
    the task as batch id; it may be repeated with the same messages after a crash. A
    `DataSourceWriter` gets the options `sparkstorm-sink` and `sparkstorm-epoch` instead. A writer
    of Arrow batches gets the schema's types; a row that they do not hold unchanged is tried again
    and parked. Attributes of a commit message must be values that a tuple may carry. What a `write`
    left that was never committed is for the source to clean up. An epoch lasts `flush_secs`.
    """

    def __init__(
        self,
        source: type[DataSource],
        options: Mapping[str, str] | None = None,
        schema: str | StructType | None = None,
        *,
        flush_secs: float = 0.0,
    ) -> None:
        self._source = source
        self._options = dict(options or {})
        self.flush_secs = flush_secs
        self._schema, _ = read_schema(make_source(source, self._options), schema)
        base = _base_source()
        self._is_stream = source.streamWriter is not base.streamWriter
        if not self._is_stream and source.writer is base.writer:
            raise InvalidTopologyError(
                f"SparkSink: {source.__name__} has neither a streamWriter nor a writer"
            )

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Make the writer of streams."""
        self._name = f"{context.topology_id}/{context.component_id}/{context.task_index}"
        made = make_source(self._source, self._options)
        self._stream_writer: Any = (
            made.streamWriter(self._schema, False) if self._is_stream else None
        )
        self._names = list(self._schema.names)
        self._rows: list[Any] = []
        self._arrow_schema: Any = None  # of a writer of Arrow batches
        self._checks: list[Callable[[Any], None]] | None = None

    def begin(self, epoch: int) -> None:
        """Begin without rows; the first epoch's writer decides whether batches are passed."""
        self._rows = []
        if self._checks is None:
            if _takes_arrow(self._writer(epoch)):
                from pyspark.sql.pandas.types import to_arrow_schema as convert

                # else it is UTC
                named: Any = (
                    {"timezone": "UTC"}
                    if "timezone" in inspect.signature(convert).parameters
                    else {}
                )
                self._arrow_schema = convert(self._schema, **named)
            self._checks = [column_check(field) for field in self._arrow_schema or ()]

    def write(self, tup: Tuple) -> None:
        """Keep a row for the writer."""
        if len(tup.values) != len(self._names):
            raise ValueError(
                f"a row of {len(tup.values)} values for the columns {', '.join(self._names)} of {self._source.__name__}"
            )
        # none for a writer of Rows
        for check, value in zip(self._checks or (), tup.values, strict=False):
            check(value)
        self._rows.append(tup.values)

    def prepare(self, epoch: int) -> Any:
        """Have the writer write the rows; its commit message, with its class, goes into the
        worker's commit.
        """
        message = self._writer(epoch).write(self._given())
        return [] if message is None else [type(message).__qualname__, dict(vars(message))]

    def commit(self, epoch: int, prepared: Any) -> None:
        """Commit the epoch's message under the epoch as batch id."""
        messages = [_message(prepared) if prepared else None]
        if self._is_stream:
            self._stream_writer.commit(messages, epoch)
        else:
            self._writer(epoch).commit(messages)

    def _writer(self, epoch: int) -> Any:
        if self._is_stream:
            return self._stream_writer
        own = {"sparkstorm-sink": self._name, "sparkstorm-epoch": str(epoch)}
        return make_source(self._source, {**self._options, **own}).writer(self._schema, False)

    def _given(self) -> Iterator[Any]:
        if self._arrow_schema is not None:
            return iter([row_batch(self._arrow_schema, self._rows)] if self._rows else [])
        from pyspark.sql import Row

        make = Row(*self._names)
        return (make(*values) for values in self._rows)


def _takes_arrow(writer: Any) -> bool:
    """Return whether a writer is given Arrow batches; others are given Rows."""
    return any(
        kind.__module__ == "pyspark.sql.datasource" and "Arrow" in kind.__name__
        for kind in type(writer).__mro__
    )


def _base_source() -> type[DataSource]:
    import pyspark

    try:
        from pyspark.sql.datasource import DataSource
    except ImportError as error:
        raise InvalidTopologyError(
            f"PySpark {pyspark.__version__} has no data sources in Python: use PySpark 4.0 or newer, or another connector"
        ) from error
    return DataSource


def make_source(source: type[DataSource], options: Mapping[str, str]) -> DataSource:
    """Return a data source with its options, whose keys Spark takes in any case."""
    base = _base_source()
    from pyspark.sql.datasource import CaseInsensitiveDict

    if not (isinstance(source, type) and issubclass(source, base)):
        raise InvalidTopologyError(
            f"{source!r:.60} is no class derived from pyspark.sql.datasource.DataSource"
        )
    return source(CaseInsensitiveDict({key: str(value) for key, value in options.items()}))


def read_schema(
    source: DataSource, schema: str | StructType | None
) -> tuple[StructType, dict[str, str]]:
    """Return a schema as Spark's type, and the fields that a stream declares for it."""
    from pyspark.sql.types import StructType

    given = source.schema() if schema is None else schema
    if isinstance(given, StructType):
        return given, {
            field.name: _declared(field.dataType.simpleString()) for field in given.fields
        }
    try:
        columns = parse_columns(given)
    except ValueError as error:
        raise InvalidTopologyError(
            f"the schema of {type(source).__name__}: {error}; other types need a StructType"
        ) from error
    made = StructType()
    for name, kind in columns:
        made = made.add(name, _spark_type(kind))
    return made, {name: str(kind) for name, kind in columns}


def _declared(text: str) -> str:
    try:
        return str(parse_columns(f"it {text}")[0][1])
    except ValueError:
        return ANY  # dates, decimals: taken from the values


def _spark_type(kind: ColumnType) -> Any:
    from pyspark.sql import types

    parts = [(name, _spark_type(part)) for name, part in kind.parts]
    if kind.name == "array":
        return types.ArrayType(parts[0][1])
    if kind.name == "map":
        return types.MapType(parts[0][1], parts[1][1])
    if kind.name == "struct":
        return types.StructType([types.StructField(name, part) for name, part in parts])
    by_name = {cls().simpleString(): cls for cls in (types.BooleanType, types.ByteType, types.ShortType, types.IntegerType,
               types.LongType, types.FloatType, types.DoubleType, types.StringType, types.BinaryType, types.DateType,
               types.TimestampType)}  # fmt: skip
    if kind.name.startswith("decimal"):
        return types.DecimalType(*map(int, kind.name[len("decimal(") : -1].split(",")))
    return by_name[kind.name]()


def _cast(kind: Any) -> Callable[[Any], Any] | None:
    """Return what makes a value of a Spark type one of a tuple's: rows become mappings, local times
    get a zone, as in Spark.
    """
    from pyspark.sql import types

    if isinstance(kind, types.TimestampType):
        return lambda value: (
            value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is None else value
        )
    if isinstance(kind, types.ArrayType) and (element := _cast(kind.elementType)):
        return lambda value: [item if item is None else element(item) for item in value]
    if isinstance(kind, types.MapType) and (part := _cast(kind.valueType)):
        return lambda value: {
            key: item if item is None else part(item) for key, item in value.items()
        }
    return struct_cast(kind) if isinstance(kind, types.StructType) else None


def struct_cast(kind: StructType) -> Callable[[Any], Any]:
    """Return what makes a row of a Spark type a mapping of values that tuples carry."""
    casts = {field.name: _cast(field.dataType) for field in kind.fields}

    def mapping(value: Any) -> Any:
        if isinstance(value, tuple):
            value = dict(zip(getattr(value, "__fields__", casts), value, strict=True))
        if not isinstance(value, Mapping):
            return value
        return {
            n: v if v is None or (cast := casts.get(n)) is None else cast(v)
            for n, v in value.items()
        }

    return mapping


def _reader(source: DataSource, schema: StructType) -> DataSourceStreamReader:
    from pyspark.errors import PySparkNotImplementedError
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

    try:
        return source.streamReader(schema)
    except PySparkNotImplementedError:
        return _SimpleStreamReaderWrapper(source.simpleStreamReader(schema))


def _latest(reader: DataSourceStreamReader, start: Any) -> Any:
    """Return the end of the next range; sources written for Spark before 4.2 take no arguments."""
    if len(inspect.signature(reader.latestOffset).parameters) >= 2:
        return reader.latestOffset(start, reader.getDefaultReadLimit())
    return reader.latestOffset()  # type: ignore[call-arg]


def _share(key: Any, tasks: int) -> int:
    return key % tasks if type(key) is int else crc32(str(key).encode()) % tasks


def _behind(done: int, rows: Any, most: int) -> Iterator[Any]:
    """Yield tuples, Rows and Arrow batches of `most` rows at the most, behind the first `done`
    rows.
    """
    for item in rows:
        if not hasattr(item, "num_columns"):
            if done:
                done -= 1
            else:
                yield item
            continue
        passed = min(done, item.num_rows)
        done -= passed
        yield from (item.slice(start, most) for start in range(passed, item.num_rows, most))


def _message(prepared: Any) -> Any:
    from pyspark.sql.datasource import WriterCommitMessage

    name, attributes = prepared
    waiting_kinds = [WriterCommitMessage]
    kinds = {}
    while waiting_kinds:
        kind = waiting_kinds.pop()
        kinds[kind.__qualname__] = kind
        waiting_kinds += kind.__subclasses__()
    if name not in kinds:
        raise StoreInconsistentError(
            f"a commit message of class {name!r:.60} is in the store, which the data source does not have"
        )
    message = object.__new__(kinds[name])
    vars(message).update(attributes)
    return message
