"""Records of a Kafka source: their order over several partitions, and batches of them.

Order is by event time: a lagging partition does not make others' records late. Batches are Arrow's: JSON objects are parsed by
pyarrow where that gives what the parser of rows gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from sparkstorm.api.columns import arrow_type
from sparkstorm.model.values.column_types import parse_columns

_NEVER = -(1 << 63)
_SIMPLE = frozenset({"tinyint", "smallint", "int", "bigint", "double", "boolean", "string"})
_META = ("key", "topic", "partition", "offset", "time_ms")
Made = tuple[Any, dict[tuple[str, int], int]]


class _Partition:
    """Records that were fetched and not given out, with the partition's clock at each: its newest time so far."""

    __slots__ = ("clock", "heard_ms", "is_at_end", "waiting")

    def __init__(self, heard_ms: int) -> None:
        self.clock, self.heard_ms, self.is_at_end = _NEVER, heard_ms, False
        self.waiting: deque[tuple[int, Any]] = deque()


class PartitionOrder:
    """Gives out records of partitions by their clocks, as Kafka Streams does (KIP-353, KIP-695).

    A record goes out when no partition that still has records can have an older clock. So a record is behind the newest one that
    was given out by as much as it is behind its own partition's newest, and no more: with a lag that covers the disorder within
    a partition, none is late. A partition is not waited for at its end, and after `idle_ms` of polls that brought nothing of it.
    """

    def __init__(self, idle_ms: int) -> None:
        self._idle_ms = idle_ms
        self._polled_ms = 0
        self._partitions: dict[str, _Partition] = {}
        self._ready: deque[Any] = deque()

    def add(self, place: str) -> None:
        """Expect records of a partition."""
        self._partitions[place] = _Partition(self._polled_ms)

    def put(self, place: str, records: Iterable[tuple[int, Any]]) -> int:
        """Take records of a partition, each with its time; return how many of it wait."""
        partition = self._partitions[place]
        clock, wait = partition.clock, partition.waiting.append
        for time_ms, record in records:
            if time_ms > clock:
                clock = time_ms
            wait((clock, record))
        partition.clock, partition.heard_ms, partition.is_at_end = clock, self._polled_ms, False
        return len(partition.waiting)

    def note_end(self, place: str) -> None:
        """Take note that a partition has nothing behind what was put."""
        self._partitions[place].is_at_end = True

    def note_poll(self, taken_ms: int) -> None:
        """Take note of the time that a poll for records took."""
        self._polled_ms += taken_ms

    def take(self, most: int) -> list[Any]:
        """Return the next records, `most` at the most."""
        if not self._ready:
            self._sort()
        return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def waiting(self, place: str) -> int:
        """Return how many records of a partition wait."""
        return len(self._partitions[place].waiting)

    @property
    def is_empty(self) -> bool:
        """Return whether every record was given out."""
        return not self._ready and not any(each.waiting for each in self._partitions.values())

    @property
    def is_at_end(self) -> bool:
        """Return whether every partition was read to its end, and everything given out."""
        return self.is_empty and all(each.is_at_end for each in self._partitions.values())

    def _sort(self) -> None:
        awaited = [
            each.clock
            for each in self._partitions.values()
            if not each.is_at_end and self._polled_ms - each.heard_ms < self._idle_ms
        ]
        bound = min(awaited, default=None)
        if len(self._partitions) == 1:
            [only] = self._partitions.values()
            self._ready.extend(record for _, record in only.waiting)
            only.waiting.clear()
            return
        found: list[tuple[int, Any]] = []
        for each in self._partitions.values():
            waiting = each.waiting
            while waiting and (bound is None or waiting[0][0] <= bound):
                found.append(waiting.popleft())
        found.sort(key=itemgetter(0))  # stable: records of one partition keep their order
        self._ready.extend(record for _, record in found)


def batch_maker(fields: Mapping[str, str] | None, binary: bool) -> Callable[[Sequence[Any]], Made | None] | None:
    """Return the function that makes a batch of messages; None for fields whose JSON pyarrow reads otherwise.

    It returns the batch and the last offset of each (topic, partition). It returns None when some record is not what the fields
    declare: which one is found row by row.
    """
    import pyarrow as pa

    if fields is not None and not set(fields.values()) <= _SIMPLE:
        return None
    columns = parse_columns(", ".join(f"{name} {kind}" for name, kind in fields.items())) if fields else []
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in columns])
    names = [*(["value"] if fields is None else schema.names), *_META]

    def values(messages: Sequence[Any]) -> list[Any]:
        found = [each.value() for each in messages]
        if fields is None:
            return [pa.array(found, pa.binary()) if binary else _text(found)]
        return _objects(found, schema)

    def make(messages: Sequence[Any]) -> Made | None:
        try:
            keys = _text([each.key() for each in messages])
            topics, partitions = [each.topic() for each in messages], [each.partition() for each in messages]
            offsets, times = [each.offset() for each in messages], [each.timestamp()[1] for each in messages]
            meta = [keys, pa.array(topics), pa.array(partitions), pa.array(offsets), pa.array(times)]
            batch = pa.RecordBatch.from_arrays([*values(messages), *meta], names)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        return batch, dict(zip(zip(topics, partitions, strict=True), offsets, strict=True))

    return make


def _text(found: Sequence[bytes | None]) -> Any:
    import pyarrow as pa

    return pa.array([each if each is None else each.decode() for each in found], pa.string())


def _objects(found: Sequence[bytes | None], schema: Any) -> list[Any]:
    """Return the columns of JSON objects, one in each value.

    Each value must begin and end as an object does. So none can end in the middle of one that the next goes on with, and as many
    objects as values are one in each.
    """
    import pyarrow as pa
    import pyarrow.json as reader

    if not all(each is not None and each[:1] == b"{" and each[-1:] == b"}" for each in found):
        raise pa.ArrowInvalid("a value is no JSON object")
    data = b"\n".join(found)  # type: ignore[arg-type]
    data.decode()  # pyarrow would take text that is none
    options = reader.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    how = reader.ReadOptions(use_threads=False, block_size=len(data) + 1)
    table = reader.read_json(pa.BufferReader(data), how, options)
    if table.num_rows != len(found):
        raise pa.ArrowInvalid("a value is more than one JSON object")
    return [table.column(name).combine_chunks() for name in schema.names]
