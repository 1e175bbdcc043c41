"""Tuples of Kafka's records: fields beyond the value, headers, and batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sparkstorm.api.columns import arrow_type
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.values.column_types import parse_columns
from sparkstorm.connectors.file_records import check_types
from sparkstorm.connectors.kafka.debezium import Debezium

# pyarrow reads their JSON as the parser does
_SIMPLE = frozenset({"tinyint", "smallint", "int", "bigint", "double", "boolean", "string"})
Made = tuple[Any, dict[tuple[str, int], int]]


def meta_fields(value: Collection[str], binary_key: bool, headers: str | None) -> dict[str, str]:
    """Return the fields that a tuple has behind those of the value, with their types;
    InvalidConfigError for a name that two fields have.
    """
    fields = {
        "key": "binary" if binary_key else "string",
        "topic": "string",
        "partition": "bigint",
        "offset": "bigint",
        "time_ms": "bigint",
    }
    own = [*fields, *([] if headers is None else [headers])]
    if taken := [name for name in own if name in value or own.count(name) > 1]:
        raise InvalidConfigError(
            f"KafkaSource: '{taken[0]}' is the name of two fields of a tuple, which has {', '.join(own)} of each record"
        )
    return {**fields, **({} if headers is None else {headers: "any"})}


def value_fields(
    fields: Mapping[str, str] | None, binary: bool, changes: Debezium | None
) -> dict[str, str]:
    """Return the fields that a tuple has of a record's value, with their types;
    InvalidConfigError for a name that two have, or a type that there is not.
    """
    if fields is None:
        return {"value": "binary" if binary else "string"}
    check_types("KafkaSource", fields)
    added = {} if changes is None else changes.outputs
    if taken := fields.keys() & added.keys():
        raise InvalidConfigError(
            f"KafkaSource: changes adds a field '{min(taken)}', and fields has one; Debezium(op=, time=) renames it"
        )
    return {**fields, **added}


def header_pairs(message: Any) -> list[list[Any]]:
    """Return a record's headers as [name, bytes or None], in their order; a name may recur."""
    return [[name, value] for name, value in message.headers() or ()]


def pairs_of(field: str, headers: Any) -> list[list[Any]]:
    """Return headers that a tuple has, as pairs of a list or by name, in that form; ValueError for
    what is none.
    """
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers or []
    made: list[list[Any]] = []
    for pair in pairs if isinstance(pairs, list | tuple) else [pairs]:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or type(pair[0]) is not str:
            raise ValueError(f"field '{field}' has {pair!r:.60}, no header: [name, bytes or text]")
        name, value = pair
        if value is not None and type(value) not in (str, bytes):
            raise ValueError(
                f"field '{field}' has a {type(value).__name__} as header '{name:.40}'; a header is bytes or text"
            )
        made.append([name, value.encode() if type(value) is str else value])
    return made


def batch_maker(
    fields: Mapping[str, str] | None, binary: bool, meta: Mapping[str, str]
) -> Callable[[Sequence[Any]], Made | None] | None:
    """Return the function that makes a batch of messages; None for fields whose JSON pyarrow reads
    otherwise.

    It returns the batch and the last offset of each (topic, partition). It returns None when some
    record is not what the fields declare: which one is found row by row.
    """
    import pyarrow as pa

    if fields is not None and not set(fields.values()) <= _SIMPLE:
        return None
    columns = (
        parse_columns(", ".join(f"{name} {kind}" for name, kind in fields.items()))
        if fields
        else []
    )
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in columns])
    names = [*(["value"] if fields is None else schema.names), *meta]
    has_bytes = meta["key"] == "binary"

    def values(messages: Sequence[Any]) -> list[Any]:
        bodies = [message.value() for message in messages]
        if fields is None:
            return [pa.array(bodies, pa.binary()) if binary else _text(bodies)]
        return _objects(bodies, schema)

    def make(messages: Sequence[Any]) -> Made | None:
        try:
            given = [message.key() for message in messages]
            keys = pa.array(given, pa.binary()) if has_bytes else _text(given)
            topics = [message.topic() for message in messages]
            partitions = [message.partition() for message in messages]
            offsets = [message.offset() for message in messages]
            times = [message.timestamp()[1] for message in messages]
            rest = [
                keys,
                pa.array(topics),
                pa.array(partitions),
                pa.array(offsets),
                pa.array(times),
            ]
            batch = pa.RecordBatch.from_arrays([*values(messages), *rest], names)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        return batch, dict(zip(zip(topics, partitions, strict=True), offsets, strict=True))

    return make


def _text(values: Sequence[bytes | None]) -> Any:
    import pyarrow as pa

    return pa.array([value if value is None else value.decode() for value in values], pa.string())


def _objects(values: Sequence[bytes | None], schema: Any) -> list[Any]:
    """Return the columns of JSON objects, one in each value.

    Each value must begin and end as an object does. So none can end in the middle of one that the
    next goes on with, and as many objects as values are one in each.
    """
    import pyarrow as pa
    import pyarrow.json as reader

    if not all(value is not None and value[:1] == b"{" and value[-1:] == b"}" for value in values):
        raise pa.ArrowInvalid("a value is no JSON object")
    data = b"\n".join(values)  # type: ignore[arg-type]
    data.decode()  # pyarrow would take text that is none
    options = reader.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    how = reader.ReadOptions(use_threads=False, block_size=len(data) + 1)
    table = reader.read_json(pa.BufferReader(data), how, options)
    if table.num_rows != len(values):
        raise pa.ArrowInvalid("a value is more than one JSON object")
    columns = [table.column(name).combine_chunks() for name in schema.names]
    if any(pa.types.is_floating(column.type) and _has_large(column) for column in columns):
        raise pa.ArrowInvalid("a whole number may have been rounded")
    return columns


def _has_large(column: Any) -> bool:
    """Return whether a number of a column is beyond those that a double has exactly."""
    import pyarrow.compute as pc

    return bool(pc.any(pc.greater_equal(pc.abs(column), float(1 << 53))).as_py())
