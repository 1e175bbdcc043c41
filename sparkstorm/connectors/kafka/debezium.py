"""Debezium: changes of a table's rows from its envelopes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sparkstorm.common.errors import InvalidConfigError, show
from sparkstorm.connectors.kafka.typed import Forms, Hint, TypedFields

_CHOICES = {
    "missing": ("bad", "null"),
    "decimals": ("precise", "string", "double"),
    "timestamps": ("ms", "us", "ns"),
}
# what Debezium's connectors write for a large value that the log lacks since it has not changed
_UNAVAILABLE = "__debezium_unavailable_value"
Row = Callable[[Any, Mapping[str, Hint]], tuple[Any, ...]]


class Debezium:
    """Envelopes of Debezium as rows of a table: `KafkaSource(..., changes=Debezium())`.

    A tuple has the fields of `after` and "upsert" in the field `op`, or of `before` and "delete";
    the field `time` has the time of the change in the database, in milliseconds (`source.ts_ms`,
    else `ts_us`).

    A row without a declared field goes to the stream `bad`, or has None with `missing="null"`.
    Without a schema in the record, `decimals` and `timestamps` say how Debezium writes numbers
    (decimal.handling.mode) and times of columns without a zone.
    """

    def __init__(
        self,
        op: str = "op",
        time: str = "at_ms",
        *,
        missing: str = "bad",
        decimals: str = "precise",
        timestamps: str = "us",
    ) -> None:
        chosen = {"missing": missing, "decimals": decimals, "timestamps": timestamps}
        for name, value in chosen.items():
            if value not in _CHOICES[name]:
                raise InvalidConfigError(
                    f"Debezium: {name} is one of {', '.join(_CHOICES[name])}, not {value!r:.40}"
                )
        for name, field in (("op", op), ("time", time)):
            if not (isinstance(field, str) and field):
                raise InvalidConfigError(
                    f"Debezium: {name} is {show(field)}; write the name of the field that gets it"
                )
        if op == time:
            raise InvalidConfigError(
                f"Debezium: op and time are both the field {op!r:.40}; rename one"
            )
        self.outputs = {op: "string", time: "bigint"}
        self.time = time
        self._is_strict = missing == "bad"
        self._forms = Forms(timestamps, decimals)

    def reader(self, fields: Mapping[str, str]) -> Row:
        """Return what makes a row's values from an envelope; ValueError says what it is instead."""
        typed = TypedFields(fields, self._forms)
        names = tuple(fields)

        def row(record: Any, hints: Mapping[str, Hint]) -> tuple[Any, ...]:
            if type(record) is dict and record.keys() == {"schema", "payload"}:
                hints = _hints(record["schema"])
                record = record["payload"]
            op, image = _image_of(record)
            is_deleted = op == "d"
            if self._is_strict and not is_deleted:
                for name in names:
                    if name not in image:
                        raise ValueError(f"the row has no column '{name}'")
            if is_deleted:  # columns beyond the key may be left out, or filled by defaults
                image = {n: v for n, v in image.items() if not _is_unavailable(v)}
                if all(image.get(name) is None for name in names):
                    raise ValueError(
                        "a deletion whose `before` has none of the fields: give the table a REPLICA IDENTITY"
                    )
            else:
                for name in names:
                    if _is_unavailable(image.get(name)):
                        raise ValueError(
                            f"field '{name}' has not changed and is too large for the log: give the table REPLICA IDENTITY FULL"
                        )
            return (*typed(image, hints), "delete" if is_deleted else "upsert", _time_of(record))

        return row

    def json_reader(self, fields: Mapping[str, str]) -> Callable[[bytes], tuple[Any, ...]]:
        """Return the parser of an envelope as JSON, with or without a schema."""
        row = self.reader(fields)

        def parse(value: bytes) -> tuple[Any, ...]:
            try:
                record = json.loads(value)
            except ValueError as error:
                raise ValueError(f"it is no JSON: {error}") from error
            return row(record, {})

        return parse


def _image_of(record: Any) -> tuple[str, dict[str, Any]]:
    """Return the operation of an envelope and the row that it tells of."""
    if type(record) is not dict:
        raise ValueError(f"it is a {type(record).__name__}, not an envelope of Debezium")
    op = record.get("op")
    if op not in ("c", "r", "u", "d") or type(record.get("source")) is not dict:
        raise ValueError(_instead(record))
    side = "before" if op == "d" else "after"
    image = record.get(side)
    if type(image) is not dict:
        raise ValueError(
            f"'{op}' without a row in `{side}`: give the table a primary key or a REPLICA IDENTITY"
        )
    return op, image


def _instead(record: Mapping[str, Any]) -> str:
    """Return what a record is that tells of no row."""
    op = record.get("op")
    if op == "t":
        return "a truncation, which names no rows: a table join keeps those that it has"
    if op == "m":
        return "a message that a transaction wrote into the log, not a change of a row"
    if op is not None:
        return f"the operation {op!r:.40} is none of Debezium's"
    if record.keys() == {"ts_ms"}:
        return "a heartbeat of Debezium, not a change of a row"
    if {"status", "id"} <= record.keys():
        return "a transaction marker of Debezium, not a change of a row"
    if {"ddl", "tableChanges"} & record.keys():
        return "a schema change of Debezium, not a change of a row"
    return "not an envelope of Debezium: it has no op (rows that a transform has unwrapped are read without changes)"


def _time_of(record: Mapping[str, Any]) -> int:
    source = record["source"]
    for name, parts in (("ts_ms", 1), ("ts_us", 1_000), ("ts_ns", 1_000_000)):
        if type(time := source.get(name)) is int:
            return time // parts
    raise ValueError("its source has no ts_ms or ts_us")


def _is_unavailable(value: Any) -> bool:
    # bytes are base64 in JSON
    return value in (
        _UNAVAILABLE,
        _UNAVAILABLE.encode(),
        "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    )


def _hints(schema: Any) -> dict[str, Hint]:
    """Return what a record's own schema, Kafka Connect's, says of the columns of its rows."""
    hints: dict[str, Hint] = {}
    try:
        for part in (schema or {}).get("fields", ()):
            for column in part.get("fields", ()) if part["field"] == "after" else ():
                scale = (column.get("parameters") or {}).get("scale")
                name = str(column.get("name") or column["type"])
                hints[column["field"]] = Hint(name, None if scale is None else int(scale))
    except (AttributeError, TypeError, LookupError) as error:
        raise ValueError(f"its schema is not one of Kafka Connect's: {error}") from error
    return hints
