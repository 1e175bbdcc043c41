"""Reader of Kafka's records: the values and the time of each, or the reason why it has none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import InvalidConfigError, show
from sparkstorm.connectors.file_records import json_parser
from sparkstorm.connectors.kafka.debezium import Debezium
from sparkstorm.connectors.kafka.records import (
    batch_maker,
    header_pairs,
    meta_fields,
    value_fields,
)
from sparkstorm.connectors.kafka.schemas import RegistryReader, SchemaRegistry
from sparkstorm.connectors.patience import Patience, check_number
from sparkstorm.connectors.time_order import NO_TIME, RecordTime, TimeOf

_TOMBSTONES = ("emit", "skip", "bad")


@dataclass(eq=False)
class RecordReader:
    """Reader of the records of topics, by those options of KafkaSource that tell of a record.

    A record is a message. One that was read before its turn, for its time, is (message, values,
    reason), with either values or a reason.
    """

    fields: Sequence[str] | Mapping[str, str] | None = None
    binary: bool = False
    binary_key: bool = False
    headers: str | None = None
    tombstones: str | None = None
    registry: SchemaRegistry | None = None
    reader_schema: str | None = None
    changes: Debezium | None = None
    time: TimeOf | None = None
    ahead_secs: float | None = None

    def __post_init__(self) -> None:
        self._check()
        fields = self.fields
        if fields is not None and not isinstance(fields, Mapping):
            fields = dict.fromkeys(fields, "any")
        self._types = None if fields is None else dict(fields)
        default = "emit" if fields is None else "bad" if self.changes is None else "skip"
        self.tombstones = self.tombstones or default
        value = value_fields(self._types, self.binary, self.changes)
        self._meta = meta_fields(value, self.binary_key, self.headers)
        self.outputs = {**value, **self._meta}
        time = self.time or (None if self.changes is None else self.changes.time)
        secs = self.ahead_secs
        self._ahead_ms = None if secs is None else round(secs * 1000)
        self._time: RecordTime | None = None
        if time is not None:
            timed = () if fields is None else value
            self._time = RecordTime("KafkaSource", time, tuple(self.outputs), timed)

    def _check(self) -> None:
        """Raise InvalidConfigError for options that are wrong or do not go together."""
        if self.ahead_secs is not None:
            check_number("KafkaSource", "ahead_secs", self.ahead_secs)
        if self.tombstones not in (None, *_TOMBSTONES):
            raise InvalidConfigError(
                f"KafkaSource: tombstones is one of {', '.join(_TOMBSTONES)}, not {self.tombstones!r:.40}"
            )
        if isinstance(self.fields, str) or not isinstance(self.fields, Sequence | Mapping | None):
            raise InvalidConfigError(
                f"KafkaSource: fields is {show(self.fields)}; write a list of names, or types by name"
            )
        if not isinstance(self.headers, str | None):
            raise InvalidConfigError(
                f"KafkaSource: headers is {show(self.headers)}; write the name of the field that gets them"
            )
        if not isinstance(self.registry, SchemaRegistry | None):
            raise InvalidConfigError(
                f"KafkaSource: registry is {show(self.registry)}; write SchemaRegistry(url)"
            )
        if self.changes is not None and not isinstance(self.changes, Debezium):
            raise InvalidConfigError(
                f"KafkaSource: changes is {show(self.changes)}; write Debezium()"
            )
        if self.fields is not None and self.binary:
            raise InvalidConfigError(
                "KafkaSource: binary has the value as bytes, which fields take apart; drop one of them"
            )
        if self.fields is None and (self.registry is not None or self.changes is not None):
            raise InvalidConfigError(
                "KafkaSource: registry and changes need fields, which are what a tuple gets of a record"
            )
        if self.reader_schema is not None and self.registry is None:
            raise InvalidConfigError("KafkaSource: reader_schema needs a registry")
        if self.reader_schema is not None:
            self._check_reader_schema(self.reader_schema)
        if self.changes is not None and self.tombstones == "emit":
            raise InvalidConfigError(
                'KafkaSource: with changes tombstones is "skip" or "bad": the deletion before each is emitted'
            )

    def _check_reader_schema(self, text: Any) -> None:
        """Raise InvalidConfigError for a text by which each record would be bad."""
        try:
            schema = json.loads(text)
        except (ValueError, TypeError) as error:
            raise InvalidConfigError(
                f"KafkaSource: reader_schema is {show(text)}, no Avro schema as JSON: {error}"
            ) from error
        listed = schema.get("fields") if isinstance(schema, dict) else None
        if not isinstance(listed, list):
            raise InvalidConfigError(
                f"KafkaSource: reader_schema is {show(text)}, no Avro record with fields"
            )
        has = [field.get("name") for field in listed if isinstance(field, dict)]
        declared = () if self.changes is not None else self.fields or ()
        lacking = next((name for name in declared if name not in has), None)
        if lacking is not None:
            raise InvalidConfigError(
                f"KafkaSource: reader_schema has no field '{lacking}', which the source declares; "
                f"it has {', '.join(map(str, has))}"
            )

    def open(self, context: TopologyContext, report: Callable[[str], None]) -> None:
        """Take up a task's clock, and connect to nothing yet; `report` gets the registry's outages."""
        self._now_ms = context.now_ms
        self._decoder: RegistryReader | None = None
        if self.registry is not None:
            where = f"component '{context.component_id}', {self.registry.where}"
            self._decoder = RegistryReader(
                self.registry,
                self._types or {},
                Patience(where, context.now_ms, report),
                self.reader_schema,
                self.changes,
            )
        self.parse: Callable[[Any], tuple[Any, ...]] = self._parser()
        emits_rows = (
            self.is_timed
            or self.headers is not None
            or self.registry is not None
            or "default" not in context.column_streams
        )
        self.make_batch = None if emits_rows else batch_maker(self._types, self.binary, self._meta)

    @property
    def is_timed(self) -> bool:
        """Return whether records are read before their turns, for their times."""
        return self._time is not None or self._ahead_ms is not None

    @property
    def is_resting(self) -> bool:
        """Return whether the registry is away, and not to be asked yet."""
        return self._decoder is not None and self._decoder.is_resting

    def load(self, messages: Iterable[Any]) -> bool:
        """Fetch the schemas that messages name; False when the registry does not answer."""
        return self._decoder is None or self._decoder.load(
            message.value() for message in messages if not message.error()
        )

    def timed(self, messages: Iterable[Any]) -> Iterable[tuple[int, Any]]:
        """Return each record behind its time in milliseconds, which may be in its value."""
        if self.is_timed:
            return map(self._read, messages)
        return [(message.timestamp()[1], message) for message in messages]

    def values(self, message: Any) -> tuple[Any, ...]:
        """Return the values of a tuple; ValueError or RecursionError for a message without any."""
        key = message.key()
        if key is not None and not self.binary_key:
            key = key.decode("utf-8", "replace")
        value = message.value()
        return (
            *(self.of_tombstone() if value is None else self.parse(value)),
            key,
            message.topic(),
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            *((header_pairs(message),) if self.headers is not None else ()),
        )

    def of_tombstone(self) -> tuple[Any, ...]:
        """Return the values of a record without one; ValueError when it is bad."""
        if self.tombstones == "bad":
            raise ValueError('a record without a value, a tombstone; tombstones="emit" emits it')
        return (None,) * (len(self.outputs) - len(self._meta))

    def _read(self, message: Any) -> tuple[int, Any]:
        try:
            values = self.values(message)
            time = None if message.value() is None else self._time
            time_ms = message.timestamp()[1] if time is None else time.of(values)
            self._check_time(time_ms)
            return time_ms, (message, values, "")
        except (ValueError, RecursionError) as error:
            return NO_TIME, (message, None, str(error)[:300])

    def _check_time(self, time_ms: int) -> None:
        if self._ahead_ms is not None and time_ms > self._now_ms() + self._ahead_ms:
            ahead = (time_ms - self._now_ms()) / 1000
            raise ValueError(
                f"its time {time_ms} is {ahead:g} s ahead of this host's clock: one of the two clocks is wrong"
            )

    def _parser(self) -> Callable[[Any], tuple[Any, ...]]:
        if self._types is None:
            return self._parse_value
        if self._decoder is not None:
            return self._decoder.parse
        if self.changes is not None:
            return self.changes.json_reader(self._types)
        return json_parser(self._types)

    def _parse_value(self, value: bytes) -> tuple[Any, ...]:
        return (value if self.binary else value.decode("utf-8", "replace"),)


def has_value(record: Any) -> bool:
    """Return whether a record is no tombstone."""
    message = record[0] if type(record) is tuple else record
    return message.value() is not None
