"""Records of Kafka as Arrow batches: JSON objects are parsed by pyarrow where that gives what the parser of rows gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkstorm.api.columns import arrow_type
from sparkstorm.model.values.column_types import parse_columns

_SIMPLE = frozenset({"tinyint", "smallint", "int", "bigint", "double", "boolean", "string"})
_META = ("key", "topic", "partition", "offset", "time_ms")


Made = tuple[Any, dict[tuple[str, int], int]]


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
