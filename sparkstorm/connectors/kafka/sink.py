"""KafkaSink, by confluent-kafka (librdkafka)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

from sparkstorm.api.components import Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.sinks import RefusedRows, TransactionalSink, find_refused
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.model.values.tagged import row_writer, to_json
from sparkstorm.connectors.kafka.client import (
    CALL_SECS,
    KafkaClient,
    exception,
    is_lasting,
    topic_name,
)
from sparkstorm.connectors.kafka.records import pairs_of
from sparkstorm.connectors.kafka.schemas import RegistryWriter, SchemaRegistry
from sparkstorm.connectors.patience import Secret, check_flags

_LOOK_SECS = 0.01
_PARTS = -1


class KafkaSink(TransactionalSink):
    """Sink that produces rows to a Kafka topic in transactions, exactly once for readers with
    `read_committed`.

    A value is a JSON object of the tuple, or the field `value` as it is (text, bytes, or None: a
    tombstone). `key`, `time` (milliseconds) and `headers` (pairs or a mapping) name fields of the
    record's. With `tombstones=True` a tuple with None in all other fields is a tombstone.

    With `registry` a value is Avro, Protobuf or JSON Schema, of the tuple's fields that the schema
    has, or of the mapping in the field `value`: the latest schema of the topic's subject, or
    `schema` of `schema_type` ("avro", "protobuf", "json"), registered under the `subject` named by
    "topic", "record" or "topic-record". A row that does not fit is parked.

    The epoch's number is an offset of the group `sparkstorm-<topology>/<component>/<task>` in the
    same transaction. One transactional id per task fences workers that are taken for dead.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        key: str | None = None,
        value: str | None = None,
        time: str | None = None,
        headers: str | None = None,
        tombstones: bool = False,
        registry: SchemaRegistry | None = None,
        schema: str | None = None,
        schema_type: str = "avro",
        subject: str = "topic",
        options: Mapping[str, Any] | None = None,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        self._client = KafkaClient(
            "KafkaSink", servers, options, Secret("KafkaSink", password_file, password_env)
        )
        check_flags("KafkaSink", tombstones=tombstones)
        self._topic = topic_name(topic, "KafkaSink")
        self._key = key
        self._value = value
        self._time = time
        self._headers = headers
        if tombstones and (key is None or value is not None):
            raise InvalidConfigError(
                "KafkaSink: tombstones needs a key, and no value: where that names a field, its None is a tombstone"
            )
        self._tombstones = tombstones
        given = {
            "schema": schema,
            "schema_type": schema_type != "avro",
            "subject": subject != "topic",
        }
        if registry is None and (stray := [name for name, is_given in given.items() if is_given]):
            raise InvalidConfigError(f"KafkaSink: {stray[0]} needs a registry")
        self._encoder = (
            None
            if registry is None
            else RegistryWriter(registry, self._topic, schema, schema_type, subject)
        )
        self.input_fields = [name for name in (key, value, time, headers) if name is not None]

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Connect to nothing yet."""
        self._name = f"sparkstorm-{context.topology_id}/{context.component_id}/{context.task_index}"
        self._where = f"topic {self._topic} of Kafka at {self._client.servers}"
        self._producer: Any = None
        self._groups: Any = None
        self._fields: tuple[str, ...] | None = None  # of the row before
        self._open = 0  # epoch whose records are in the transaction under way, or _PARTS
        self._batch = 0  # most records in a batch, once the topic took no full ones
        self._tuples: list[Tuple] = []
        self._rows: list[list[Any]] = []

    def begin(self, epoch: int) -> None:
        """Begin without rows."""
        self._tuples = []
        self._rows = []

    def write(self, tup: Tuple) -> None:
        """Keep a row as key, value and time."""
        if self._value is None:
            if tup.source.fields != self._fields:
                self._fields = tup.source.fields
                self._to_value = self._writer(self._fields)
            value: Any = self._to_value(tup.values)
        else:
            value = tup[self._value]
            if self._encoder is not None and value is not None:
                value = self._encoder.encode(value)
        if value is not None and type(value) not in (str, bytes):
            raise ValueError(
                f"field '{self._value}' is a {type(value).__name__}; a record's value is text or bytes"
            )
        key = None if self._key is None else tup[self._key]
        time_ms = 0 if self._time is None else tup[self._time]
        # librdkafka writes the present for 0
        if self._time is not None and (type(time_ms) is not int or not 0 < time_ms < 1 << 63):
            raise ValueError(
                f"field '{self._time}' is {time_ms!r:.60}, no time in milliseconds after 1970-01-01T00:00:00Z"
            )
        row = [key if key is None or type(key) in (str, bytes) else to_json(key), value, time_ms]
        if self._headers is not None:
            row.append(pairs_of(self._headers, tup[self._headers]))
        self._rows.append(row)
        self._tuples.append(tup)

    def _writer(self, fields: tuple[str, ...]) -> Callable[[tuple[Any, ...]], str | bytes | None]:
        """Return the function that makes a record's value of a row of a stream; None: a tombstone."""
        is_written = [name != self._headers for name in fields]
        named = list(compress(fields, is_written))
        encoder = self._encoder
        write: Callable[[Sequence[Any]], str | bytes] = (
            row_writer(named)
            if encoder is None
            else lambda values: encoder.encode(dict(zip(named, values, strict=True)))
        )
        others = (self._key, self._time, self._headers)
        rest = [index for index, name in enumerate(fields) if name not in others]
        has_tombstones = self._tombstones and bool(rest)

        def to_value(values: tuple[Any, ...]) -> str | bytes | None:
            if has_tombstones and all(values[index] is None for index in rest):
                return None
            return write(tuple(compress(values, is_written)))

        return to_value

    def prepare(self, epoch: int) -> Any:
        """Produce the rows in a transaction that stays open; return them as outbox."""
        refused = self._speaking(lambda: self._produce(epoch, self._rows))
        if refused:
            bad = [(self._tuples[n], reason) for n, reason in refused.items()]
            self._tuples = [tup for n, tup in enumerate(self._tuples) if n not in refused]
            self._rows = [row for n, row in enumerate(self._rows) if n not in refused]
            raise RefusedRows(bad)
        return self._rows

    def commit(self, epoch: int, prepared: Any) -> None:
        """Commit the open transaction with the epoch's number, or produce the outbox anew if Kafka
        has not the epoch.
        """
        self._speaking(lambda: self._commit(epoch, prepared))

    def recover(self, epoch: int, prepared: Any) -> None:
        """Abort what a former owner left open; then bring the last epoch to its end."""
        if self._encoder is not None:
            self._encoder.load()
        self._speaking(self._begin_producing)
        super().recover(epoch, prepared)

    def last_epoch(self) -> int | None:
        """Read the offset that this task's transactions commit."""
        return int(self._speaking(self._committed))

    def cleanup(self) -> None:
        """Close the connections."""
        self._drop()
        if self._groups is not None:
            self._groups.close()

    def _commit(self, epoch: int, rows: Sequence[Any]) -> None:
        from confluent_kafka import TopicPartition

        if self._open != epoch:
            self._drop()
            self._begin_producing()
            if self._committed() >= epoch:
                return
            if refused := self._produce(epoch, rows):
                raise RuntimeError(
                    f"records that Kafka took before are refused now: {next(iter(refused.values()))}"
                )
        metadata = self._groups.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(
            [TopicPartition(self._topic, 0, epoch)], metadata, CALL_SECS
        )
        self._producer.commit_transaction(CALL_SECS)
        self._open = 0

    def _produce(self, epoch: int, rows: Sequence[Any]) -> dict[int, str]:
        """Produce rows in a transaction that stays open; return those that are refused for good, by
        place: then none is in it.
        """
        while self._try(epoch, rows):
            taken: list[int] = []

            def take(some: Sequence[Any], taken: list[int] = taken) -> str:
                if not (reason := self._try(epoch, some)):
                    taken.append(len(some))
                return reason

            if refused := find_refused(rows, take):
                return refused
            # a broker refuses batches that are larger than the topic's limit for a record
            self._batch = max(1, min(*taken, (self._batch or 10_000) // 2))
            self._drop()
        return {}

    def _try(self, epoch: int, rows: Sequence[Any]) -> str:
        """Produce rows in a fresh transaction; return why Kafka refuses them.

        The first refusal stops a transaction: nothing is known of the rows behind it.
        """
        from confluent_kafka import KafkaError, KafkaException

        self._begin_producing()
        if self._open:
            self._producer.abort_transaction(CALL_SECS)
        self._open = 0
        self._producer.begin_transaction()
        self._open = _PARTS
        failed: list[Any] = []

        def report(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        stop: Any = None
        try:
            for row in rows:
                self._send(row, report)
        except KafkaException as error:
            stop = error.args[0]
            if stop.code() != KafkaError._STATE:  # else a report has the reason
                failed.append(stop)
        tries = round((1 if stop else CALL_SECS) / _LOOK_SECS)
        while tries and not failed and self._producer.flush(_LOOK_SECS):
            tries -= 1
        if refusals := [error for error in failed if error.code() in _refusals()]:
            self._producer.abort_transaction(CALL_SECS)
            self._drop()  # after an abort librdkafka purges records of the next transaction too
            return str(refusals[0].str())
        if failed or stop:
            raise exception(failed[0] if failed else stop)
        if num_left := len(self._producer):
            raise TimeoutError(f"{num_left} records were not taken within {CALL_SECS:g} s")
        self._open = epoch
        return ""

    def _send(self, row: Sequence[Any], report: Any) -> None:
        key, value, time_ms, *headers = row
        given = {"headers": [(name, header) for name, header in headers[0]]} if headers else {}
        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, timestamp=time_ms, on_delivery=report, **given
                )
                self._producer.poll(0)
                return
            except BufferError:  # the queue is full: let it drain
                self._producer.poll(0.1)

    def _begin_producing(self) -> None:
        if self._producer is None:
            self._groups = self._groups or self._client.consumer(self._name, "earliest")
            metadata = self._groups.list_topics(self._topic, timeout=CALL_SECS).topics[self._topic]
            if metadata.error is not None:
                raise exception(metadata.error)
            self._producer = self._client.producer(self._name, self._batch)
            self._producer.init_transactions(CALL_SECS)

    def _committed(self) -> int:
        from confluent_kafka import TopicPartition

        self._groups = self._groups or self._client.consumer(self._name, "earliest")
        [committed] = self._groups.committed([TopicPartition(self._topic, 0)], timeout=CALL_SECS)
        return max(0, int(committed.offset))

    def _drop(self) -> None:
        """Give the producer up; its transaction is aborted by its successor's beginning."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(0)
        self._producer = None
        self._open = 0

    def _speaking(self, call: Callable[[], Any]) -> Any:
        """Call Kafka; after an error nothing is known of the transaction, so the next try begins
        with a new producer.
        """
        from confluent_kafka import KafkaException

        try:
            return call()
        except KafkaException as error:
            for handle in (self._groups, self._producer):
                if handle is not None:
                    handle.poll(0)  # the reason of a time-out comes by its callback
            self._drop()
            problem = self._client.problem or error.args[0]
            self._client.problem = None
            for fault in (error.args[0], problem):
                if is_lasting(fault):
                    raise InvalidConfigError(f"{self._where}: {fault.str()}") from error
            raise
        except BaseException:
            self._drop()
            raise


def _refusals() -> tuple[int, ...]:
    from confluent_kafka import KafkaError

    return (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError._INVALID_DIFFERENT_RECORD,
    )
