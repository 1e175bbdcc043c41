"""KafkaSource, by confluent-kafka (librdkafka)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.components import Conf, ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import CodecError, InvalidConfigError, SparkStormError
from sparkstorm.common.model.values.metric_values import BEHIND
from sparkstorm.connectors.kafka.client import KafkaClient, topic_names
from sparkstorm.connectors.kafka.debezium import Debezium
from sparkstorm.connectors.kafka.partitions import MOST_GAUGES, TaskPartitions, check_start
from sparkstorm.connectors.kafka.record_reader import RecordReader, has_value
from sparkstorm.connectors.kafka.records import header_pairs
from sparkstorm.connectors.kafka.schemas import SchemaRegistry
from sparkstorm.connectors.patience import Patience, Secret, check_flags, check_number
from sparkstorm.connectors.time_order import PartitionOrder, TimeOf

_ROWS_PER_CALL = 500
_BATCH_ROWS = 4_096
_MOST_WAITING = 50_000  # of a partition whose records are ahead of others'


class KafkaSource(ReplayableSpout):
    """Spout that emits the records of Kafka topics, each exactly once.

    A tuple has `value` as text (`binary=True`: bytes), or `fields` of a JSON object; then `key`
    as text (`binary_key=True`: bytes), `topic`, `partition`, `offset`, `time_ms`, and with
    `headers` a field of that name, a list of [name, bytes]. What is no such JSON goes to the
    stream `bad` (place, text, reason). `tombstones`: a record without a value is emitted with
    None ("emit"; the default without `fields`), left out ("skip"), or sent to `bad` ("bad"; the
    default with `fields`).

    With `registry` values are decoded by the schema that each names; `reader_schema` applies Avro's
    rules of evolution. With `changes` values are Debezium's envelopes.

    A task's partitions are read in step by event time in milliseconds: the field `time`, what the
    function `time` makes of the record's fields, or the record's own. A silent partition is waited
    for `idle_secs`; for one at its end each record waits up to `end_wait_secs`. A record on which
    the function raises goes to `bad`; so does, with `ahead_secs`, one further ahead of this host's
    clock.

    A column bolt gets batches, each one message, if the fields are numbers, texts and booleans and
    neither `time`, `ahead_secs`, `headers`, `registry` nor `changes` is given.

    The position is the next offset of each partition; no consumer group is joined. Partitions, also
    added ones, are dealt to tasks by number. `start` is "earliest", "latest", or milliseconds.
    `lost="skip"` goes on with the oldest record when those at the position were deleted; else that
    is an error. `follow=False` ends each partition at its present end. `options` are librdkafka's,
    without secrets.
    """

    blocking = True

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str],
        fields: Sequence[str] | Mapping[str, str] | None = None,
        *,
        binary: bool = False,
        binary_key: bool = False,
        headers: str | None = None,
        tombstones: str | None = None,
        registry: SchemaRegistry | None = None,
        reader_schema: str | None = None,
        changes: Debezium | None = None,
        start: str | int = "earliest",
        lost: str = "fail",
        follow: bool = True,
        time: TimeOf | None = None,
        idle_secs: float = 5.0,
        end_wait_secs: float = 0.0,
        ahead_secs: float | None = None,
        options: Mapping[str, Any] | None = None,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        check_start(start, lost)
        check_flags("KafkaSource", follow=follow, binary=binary, binary_key=binary_key)
        check_number("KafkaSource", "idle_secs", idle_secs)
        check_number("KafkaSource", "end_wait_secs", end_wait_secs)
        self._reader = RecordReader(
            fields,
            binary,
            binary_key,
            headers,
            tombstones,
            registry,
            reader_schema,
            changes,
            time,
            ahead_secs,
        )
        self._client = KafkaClient(
            "KafkaSource", servers, options, Secret("KafkaSource", password_file, password_env)
        )
        self._topics = topic_names(topics)
        self._start = start
        self._lost = lost
        self._follow = follow
        self._idle_ms = round(idle_secs * 1000)
        # the end of a source that is not followed is the last one
        self._end_wait_ms = round(end_wait_secs * 1000) if follow else 0
        self._handed: dict[str, int] = {}
        self.outputs = {"default": self._reader.outputs, "bad": ["place", "text", "reason"]}

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Connect to nothing yet."""
        self._collector = collector
        self._now_ms = context.now_ms
        self._reader = copy.copy(self._reader)  # copies of an unopened source share it
        self._reader.open(context, collector.report_error)
        self._most = _ROWS_PER_CALL if self._reader.make_batch is None else _BATCH_ROWS
        self._partitions = TaskPartitions(
            self._client, self._topics, self._start, self._lost, context
        )
        if self._handed:
            self._partitions.restore(self._handed)
        self._order = PartitionOrder(self._idle_ms, self._end_wait_ms)
        self._held: list[Any] = []  # records that wait for the registry
        self._patience = Patience(self._partitions.where, context.now_ms, collector.report_error)
        self._broken: SparkStormError | None = None  # an error that no further call resolves
        context.register_gauge("lag", self._partitions.lag)
        context.register_gauge(BEHIND, self._behind_ms)

    def extent(self) -> tuple[int, int]:
        """Return the sums of its partitions' heads and of its positions in them."""
        return self._partitions.extent()

    def _behind_ms(self) -> dict[str, int]:
        """Return for gauges `behind_ms.TOPIC/PARTITION` how far records were behind the newest one
        of their own partition; of many, the most of all.
        """
        behind_ms = self._order.behind_ms()
        if len(behind_ms) > MOST_GAUGES:
            return {"any": max(behind_ms.values())}
        return behind_ms

    def next_tuple(self) -> None:
        """Emit what has come, in the order of event time."""
        if self._broken is not None:
            raise self._broken
        if self._patience.is_resting or self._reader.is_resting:
            return
        try:
            if self._order.is_empty or not self._emit_some():
                self._poll()
                self._emit_some()
        except SparkStormError as error:  # before anything was emitted in this call
            self._broken = error
            raise

    def _emit_some(self) -> int:
        order = self._order
        partitions = self._partitions
        taken = order.take(self._most)
        ready = taken if self._reader.tombstones != "skip" else list(filter(has_value, taken))
        if not ready or not self._emit_batch(ready):
            self._emit_rows(ready)
        if len(ready) < len(taken):
            self._pass_by(record for record in taken if not has_value(record))
        if partitions.paused:
            partitions.resume(
                [name for name in partitions.paused if order.waiting(name) < _MOST_WAITING // 2]
            )
        return len(taken)

    def _pass_by(self, records: Iterable[Any]) -> None:
        """Move on behind tombstones that are left out, once what was before them is emitted."""
        following = self._partitions.next
        for record in records:
            message = record[0] if type(record) is tuple else record
            partition_name = self._partitions.name_of(message)
            following[partition_name] = max(following.get(partition_name, 0), message.offset() + 1)
        self._collector.keep_position(0)

    def _emit_rows(self, ready: Sequence[Any]) -> None:
        emit = self._collector.emit
        reader = self._reader
        parse = reader.parse
        keeps_bytes = reader.binary_key
        has_headers = reader.headers is not None
        names = self._partitions.names
        following = self._partitions.next
        for message in ready:
            if type(message) is tuple:
                self._emit(message)
                continue
            key = message.key()
            topic = message.topic()
            partition = message.partition()
            offset = message.offset()
            value = message.value()
            if key is not None and not keeps_bytes:
                key = key.decode("utf-8", "replace")
            partition_name = names[topic, partition]
            try:  # `_emit` with its calls written out: they cost as much as reading the record
                row = (
                    *(reader.of_tombstone() if value is None else parse(value)),
                    key,
                    topic,
                    partition,
                    offset,
                    message.timestamp()[1],
                    *((header_pairs(message),) if has_headers else ()),
                )
                emit(row, [partition_name, offset])
                following[partition_name] = offset + 1
            except (ValueError, RecursionError, CodecError):
                self._emit(message)

    def _emit_batch(self, ready: Sequence[Any]) -> bool:
        """Emit records as a batch; False when some of them is none of its rows, which is found row
        by row.
        """
        make_batch = self._reader.make_batch
        if make_batch is None or (made := make_batch(ready)) is None:
            return False
        batch, ends = made
        partitions = self._partitions
        with suppress(CodecError):
            self._collector.emit_batch(batch, [partitions.name_of(ready[-1]), ready[-1].offset()])
            partitions.next |= {partitions.names[key]: last + 1 for key, last in ends.items()}
            return True
        return False

    def _poll(self) -> None:
        """Ask Kafka for records."""
        from confluent_kafka import KafkaException

        outage: KafkaException | None = None
        partitions = self._partitions
        partitions.connect()
        began_ms = self._now_ms()
        try:
            self._take_up()
        except KafkaException as error:
            outage = error
        messages = self._held or partitions.consume(self._most, outage is not None)
        self._order.note_poll(self._now_ms() - began_ms)
        if not self._reader.load(messages):
            self._held = messages
            return
        self._held = []
        records = self._put_all([message for message in messages if message.error() is None])
        for message in messages:
            if message.error() is not None:
                self._note(message)
        if records:
            self._patience.succeed()
        problem, self._client.problem = self._client.problem, None
        if problem is not None:
            self._partitions.require_lasting(problem)
        if outage is not None:
            self._partitions.require_lasting(outage.args[0])
            self._patience.bear(RuntimeError(outage.args[0].str()))
        elif problem is not None and not records:
            self._patience.bear(RuntimeError(problem.str()))

    def _take_up(self) -> None:
        """Take up partitions that are new."""
        is_to_start = self._partitions.is_to_start
        for partition_name in self._partitions.look():
            self._order.add(partition_name)
        if is_to_start:
            self._collector.keep_position(0)

    def is_exhausted(self) -> bool:
        """Return whether every partition was read to the end that it had; never if it is
        followed.
        """
        return not self._follow and self._partitions.has_looked and self._order.is_at_end

    def snapshot(self) -> Any:
        """Next offset of each partition."""
        return dict(self._partitions.next)

    def restore(self, position: Any) -> None:
        """Go on there."""
        self._partitions.restore(position)

    def take_over(self, handed: Sequence[Any]) -> KafkaSource:
        """The same source behind all former tasks' positions, with any number of tasks."""
        spout = copy.copy(self)
        spout._handed = {key: offset for offsets in handed for key, offset in offsets.items()}
        return spout

    def close(self) -> None:
        """Close the consumer."""
        self._partitions.close()

    def _put_all(self, messages: Sequence[Any]) -> int:
        """Let records wait for their turns; return their number."""
        partitions = self._partitions
        parts: dict[tuple[str, int], list[Any]] = {}
        for message in messages:
            key = message.topic(), message.partition()
            if key in parts:
                parts[key].append(message)
            else:
                parts[key] = [message]
        for part in parts.values():
            partition_name = partitions.name_of(part[0])
            waiting = self._order.put(partition_name, self._reader.timed(part))
            if waiting >= _MOST_WAITING:  # of a paused one nothing comes, which is no end
                partitions.pause(partition_name)
            elif partitions.is_at_head(partition_name, part[-1].offset()):
                # Kafka reports it only with its next answer, after fetch.wait.max.ms
                self._order.note_end(partition_name)
        return len(messages)

    def _emit(self, record: Any) -> None:
        """Emit a record: a message, or one that was read before with its values or the reason why
        it has none.
        """
        message, values, reason = record if type(record) is tuple else (record, None, "")
        partition_name = self._partitions.name_of(message)
        offset = message.offset()
        if not reason:
            try:
                self._collector.emit(
                    values or self._reader.values(message), [partition_name, offset]
                )
            except (ValueError, RecursionError, CodecError) as error:
                reason = str(error)[:300]
        if reason:
            self._collector.report_error(f"{partition_name}/{offset}: {reason}")
            text = (message.value() or b"")[:2000].decode("utf-8", "replace")
            self._collector.emit(
                (f"{partition_name}/{offset}", text, reason), [partition_name, offset], stream="bad"
            )
        self._partitions.next[partition_name] = offset + 1

    def _note(self, message: Any) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        source = f"{message.topic()}/{message.partition()}"
        if error.code() == KafkaError._PARTITION_EOF:
            self._order.note_end(source)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise InvalidConfigError(
                f"{self._partitions.where}: offset {self._partitions.next.get(source, 0)} of {source} is out of range: "
                'its records were deleted unread, or the topic was made anew; set lost="skip" to go on with the oldest that is left'
            )
        else:
            self._partitions.require_lasting(error, message.topic())
            self._patience.bear(RuntimeError(error.str()))
