"""KafkaSource, by confluent-kafka (librdkafka)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.components import Conf, ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import CodecError, InvalidConfigError, SparkStormError
from sparkstorm.common.model.values.metric_values import BEHIND
from sparkstorm.connectors.file_records import json_parser
from sparkstorm.connectors.kafka.client import (
    CALL_SECS,
    KafkaClient,
    exception,
    is_lasting,
    topic_names,
)
from sparkstorm.connectors.kafka.debezium import Debezium
from sparkstorm.connectors.kafka.records import (
    batch_maker,
    check_choices,
    check_formats,
    check_waits,
    header_pairs,
    meta_fields,
    value_fields,
)
from sparkstorm.connectors.kafka.schemas import RegistryReader, SchemaRegistry
from sparkstorm.connectors.patience import Patience, Secret
from sparkstorm.connectors.time_order import NO_TIME, PartitionOrder, RecordTime, TimeOf

_ROWS_PER_CALL = 500
_BATCH_ROWS = 4_096
_MOST_WAITING = 50_000  # of a partition whose records are ahead of others'
_MOST_LAGS = 24  # partitions of a task with gauges of their own: every commit has them
_LOOK_MS = 30_000  # for partitions that were added


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
    for `idle_secs`, one at its end for `end_wait_secs` (Kafka Streams' max.task.idle.ms). A record
    on which the function raises goes to `bad`; so does, with `ahead_secs`, one further ahead of
    this host's clock.

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
        check_choices(start, lost, tombstones)
        check_waits(idle_secs, end_wait_secs, ahead_secs)
        check_formats(fields, binary, registry, reader_schema, changes, tombstones)
        self._client = KafkaClient(
            "KafkaSource", servers, options, Secret("KafkaSource", password_file, password_env)
        )
        self._topics = topic_names(topics)
        if fields is not None and not isinstance(fields, Mapping):
            fields = dict.fromkeys(fields, "any")
        self._fields = None if fields is None else dict(fields)
        self._handed: dict[str, int] = {}
        self._binary = binary
        self._has_headers = headers is not None
        self._registry = registry
        self._reader_schema = reader_schema
        self._changes = changes
        default = "emit" if fields is None else "bad" if changes is None else "skip"
        self._tombstones = tombstones or default
        self._start = start
        self._lost = lost
        self._follow = follow
        value = value_fields(self._fields, binary, changes)
        if changes is not None:
            time = time or changes.time
        self._meta = meta_fields(value, binary_key, headers)
        timed = () if fields is None else value
        names = (*value, *self._meta)
        self._time = None if time is None else RecordTime("KafkaSource", time, names, timed)
        self._idle_ms = round(idle_secs * 1000)
        # the end of a source that is not followed is the last one
        self._end_wait_ms = round(end_wait_secs * 1000) if follow else 0
        self._ahead_ms = None if ahead_secs is None else round(ahead_secs * 1000)
        self._width = len(value)
        self.outputs = {"default": {**value, **self._meta}, "bad": ["place", "text", "reason"]}

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Connect to nothing yet."""
        self._collector = collector
        self._now_ms = context.now_ms
        self._index, self._tasks = context.task_index, len(context.peers)
        self._where = f"component '{context.component_id}', Kafka at {self._client.servers}"
        self._patience = Patience(self._where, context.now_ms, collector.report_error)
        self._decoder: RegistryReader | None = None
        if self._registry is not None:
            self._decoder = RegistryReader(
                self._registry,
                self._fields or {},
                Patience(
                    f"component '{context.component_id}', {self._registry.where}",
                    context.now_ms,
                    collector.report_error,
                ),
                self._reader_schema,
                self._changes,
            )
        self._held: list[Any] = []  # records that wait for the registry
        self._parse: Callable[[Any], tuple[Any, ...]] = self._parser()
        # before its turn, for its time
        self._is_read = self._time is not None or self._ahead_ms is not None
        emits_rows = (
            self._is_read
            or self._has_headers
            or self._registry is not None
            or "default" not in context.column_streams
        )
        self._make_batch = (
            None if emits_rows else batch_maker(self._fields, self._binary, self._meta)
        )
        self._most = _ROWS_PER_CALL if self._make_batch is None else _BATCH_ROWS
        self._is_begun = bool(self._handed)  # its first partitions have positions
        # by "topic/partition"
        self._next = {
            key: offset
            for key, offset in self._handed.items()
            if self._is_mine(*key.rsplit("/", 1))
        }
        self._order = PartitionOrder(self._idle_ms, self._end_wait_ms)
        self._consumer: Any = None
        self._broken: SparkStormError | None = None  # an error that no further call resolves
        self._assigned: set[str] = set()
        self._paused: set[str] = set()
        self._places: dict[tuple[str, int], str] = {}
        self._look_ms = 0
        context.register_gauge("lag", self._lag)
        context.register_gauge(BEHIND, self._behind_ms)

    def extent(self) -> tuple[int, int]:
        """Return the sums of its partitions' heads and of its positions in them."""
        lags = self._lag_by_partition().values()
        return (
            sum(max(position, head) for position, head in lags),
            sum(position for position, _ in lags),
        )

    def _lag(self) -> dict[str, int]:
        """Return position and head of each partition, for gauges `lag.TOPIC/PARTITION.position` and
        `.head`; of many, one sum.
        """
        lag_by_partition = self._lag_by_partition()
        if len(lag_by_partition) > _MOST_LAGS:
            return {
                "records": sum(
                    max(0, head - position) for position, head in lag_by_partition.values()
                )
            }
        return {
            f"{partition_name}.{what}": offset
            for partition_name, pair in lag_by_partition.items()
            for what, offset in zip(("position", "head"), pair, strict=True)
        }

    def _behind_ms(self) -> dict[str, int]:
        """Return for gauges `behind_ms.TOPIC/PARTITION` how far records were behind the newest one
        of their own partition; of many, the most of all.
        """
        behind_ms = self._order.behind_ms()
        if len(behind_ms) > _MOST_LAGS:
            return {"any": max(behind_ms.values())}
        return behind_ms

    def _lag_by_partition(self) -> dict[str, tuple[int, int]]:
        """Return position and head of each partition whose head the broker has sent."""
        from confluent_kafka import KafkaException

        lag_by_partition = {}
        for partition_name in sorted(self._assigned & self._next.keys()):
            with suppress(KafkaException):
                _, head = self._consumer.get_watermark_offsets(
                    _partition(partition_name), cached=True
                )
                if head >= 0:
                    lag_by_partition[partition_name] = (self._next[partition_name], head)
        return lag_by_partition

    def next_tuple(self) -> None:
        """Emit what has come, in the order of event time."""
        if self._broken is not None:
            raise self._broken
        if self._patience.is_resting or (self._decoder and self._decoder.is_resting):
            return
        try:
            if self._order.is_empty or not self._emit_some():
                self._poll()
                self._emit_some()
        except SparkStormError as error:  # before anything was emitted in this call
            self._broken = error
            raise

    def _emit_some(self) -> int:
        taken = self._order.take(self._most)
        ready = taken if self._tombstones != "skip" else list(filter(_has_value, taken))
        if not ready or not self._emit_batch(ready):
            self._emit_rows(ready)
        if len(ready) < len(taken):
            self._pass_by(record for record in taken if not _has_value(record))
        for partition_name in [
            partition_name
            for partition_name in self._paused
            if self._order.waiting(partition_name) < _MOST_WAITING // 2
        ]:
            self._consumer.resume([_partition(partition_name)])
            self._paused.discard(partition_name)
        return len(taken)

    def _pass_by(self, records: Iterable[Any]) -> None:
        """Move on behind tombstones that are left out, once what was before them is emitted."""
        for record in records:
            message = record[0] if type(record) is tuple else record
            place = self._place(message)
            self._next[place] = max(self._next.get(place, 0), message.offset() + 1)
        self._collector.keep_position(0)

    def _emit_rows(self, ready: Sequence[Any]) -> None:
        emit = self._collector.emit
        parse = self._parse
        keeps_bytes = self._meta["key"] == "binary"
        has_headers = self._has_headers
        places = self._places
        following = self._next
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
            partition_name = places[topic, partition]
            try:  # `_emit` with its calls written out: they cost as much as reading the record
                row = (
                    *(self._of_tombstone() if value is None else parse(value)),
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
        if self._make_batch is None or (made := self._make_batch(ready)) is None:
            return False
        batch, ends = made
        with suppress(CodecError):
            self._collector.emit_batch(batch, [self._place(ready[-1]), ready[-1].offset()])
            self._next |= {self._places[key]: last + 1 for key, last in ends.items()}
            return True
        return False

    def _poll(self) -> None:
        """Ask Kafka for records."""
        from confluent_kafka import KafkaException

        outage: KafkaException | None = None
        if self._consumer is None:
            self._consumer = self._client.consumer(
                _group(self._where), "error" if self._lost == "fail" else "earliest"
            )
        began_ms = self._now_ms()
        try:
            if began_ms >= self._look_ms:
                self._assign()
        except KafkaException as error:
            outage = error
        messages = self._held
        if not messages:
            messages = self._consumer.consume(1, 0.1 if self._assigned and outage is None else 0)
            if messages:
                # with a time-out it would wait for as many
                messages += self._consumer.consume(self._most, 0)
        self._order.note_poll(self._now_ms() - began_ms)
        if self._decoder and not self._decoder.load(m.value() for m in messages if not m.error()):
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
            self._require_lasting(problem)
        if outage is not None:
            self._require_lasting(outage.args[0])
            self._patience.bear(outage)
        elif problem is not None and not records:
            self._patience.bear(RuntimeError(problem.str()))

    def is_exhausted(self) -> bool:
        """Return whether every partition was read to the end that it had; never if it is
        followed.
        """
        return not self._follow and self._look_ms > 0 and self._order.is_at_end

    def snapshot(self) -> Any:
        """Next offset of each partition."""
        return dict(self._next)

    def restore(self, position: Any) -> None:
        """Go on there."""
        self._next = dict(position)
        self._is_begun = True

    def take_over(self, handed: Sequence[Any]) -> KafkaSource:
        """The same source behind all former tasks' positions, with any number of tasks."""
        spout = copy.copy(self)
        spout._handed = {key: offset for offsets in handed for key, offset in offsets.items()}
        return spout

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()

    def _put_all(self, messages: Sequence[Any]) -> int:
        """Let records wait for their turns; return their number."""
        parts: dict[tuple[str, int], list[Any]] = {}
        for message in messages:
            key = message.topic(), message.partition()
            if key in parts:
                parts[key].append(message)
            else:
                parts[key] = [message]
        for part in parts.values():
            partition_name = self._place(part[0])
            waiting = self._order.put(
                partition_name,
                map(self._read, part)
                if self._is_read
                else [(message.timestamp()[1], message) for message in part],
            )
            _, end = self._consumer.get_watermark_offsets(_partition(partition_name), cached=True)
            if 0 <= end <= part[-1].offset() + 1:
                # Kafka reports it only with its next answer, after fetch.wait.max.ms
                self._order.note_end(partition_name)
            if waiting >= _MOST_WAITING and partition_name not in self._paused:
                self._consumer.pause([_partition(partition_name)])
                self._paused.add(partition_name)
        return len(messages)

    def _read(self, message: Any) -> tuple[int, Any]:
        """Return a record's time, which may be in its value, and the record with its values or the
        reason why it has none.
        """
        try:
            values = self._values(message)
            time = None if message.value() is None else self._time
            time_ms = message.timestamp()[1] if time is None else time.of(values)
            self._check_time(time_ms)
            return time_ms, (message, values, "")
        except (ValueError, RecursionError) as error:
            return NO_TIME, (message, None, str(error)[:300])

    def _place(self, message: Any) -> str:
        key = message.topic(), message.partition()
        return self._places.get(key) or self._places.setdefault(key, f"{key[0]}/{key[1]}")

    def _values(self, message: Any) -> tuple[Any, ...]:
        key = message.key()
        if key is not None and self._meta["key"] != "binary":
            key = key.decode("utf-8", "replace")
        value = message.value()
        return (
            *(self._of_tombstone() if value is None else self._parse(value)),
            key,
            message.topic(),
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            *((header_pairs(message),) if self._has_headers else ()),
        )

    def _of_tombstone(self) -> tuple[Any, ...]:
        """Return the values of a record without one; ValueError when it is bad."""
        if self._tombstones == "bad":
            raise ValueError('a record without a value, a tombstone; tombstones="emit" emits it')
        return (None,) * self._width

    def _check_time(self, time_ms: int) -> None:
        if self._ahead_ms is not None and time_ms > self._now_ms() + self._ahead_ms:
            ahead = (time_ms - self._now_ms()) / 1000
            raise ValueError(
                f"its time {time_ms} is {ahead:g} s ahead of this host's clock: one of the two clocks is wrong"
            )

    def _emit(self, record: Any) -> None:
        """Emit a record: a message, or one that was read before with its values or the reason why
        it has none.
        """
        message, values, reason = record if type(record) is tuple else (record, None, "")
        partition_name = self._place(message)
        offset = message.offset()
        if not reason:
            try:
                self._collector.emit(values or self._values(message), [partition_name, offset])
            except (ValueError, RecursionError, CodecError) as error:
                reason = str(error)[:300]
        if reason:
            self._collector.report_error(f"{partition_name}/{offset}: {reason}")
            text = (message.value() or b"")[:2000].decode("utf-8", "replace")
            self._collector.emit(
                (f"{partition_name}/{offset}", text, reason), [partition_name, offset], stream="bad"
            )
        self._next[partition_name] = offset + 1

    def _parser(self) -> Callable[[Any], tuple[Any, ...]]:
        if self._fields is None:
            return self._parse_value
        if self._decoder is not None:
            return self._decoder.parse
        if self._changes is not None:
            return self._changes.json_reader(self._fields)
        return json_parser(self._fields)

    def _parse_value(self, value: bytes) -> tuple[Any, ...]:
        return (value if self._binary else value.decode("utf-8", "replace"),)

    def _note(self, message: Any) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        source = f"{message.topic()}/{message.partition()}"
        if error.code() == KafkaError._PARTITION_EOF:
            self._order.note_end(source)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise InvalidConfigError(
                f"{self._where}: offset {self._next.get(source, 0)} of {source} is out of range: its records were deleted unread, "
                'or the topic was made anew; set lost="skip" to go on with the oldest that is left'
            )
        else:
            self._require_lasting(error)
            self._patience.bear(RuntimeError(error.str()))

    def _require_lasting(self, error: Any) -> None:
        """Raise InvalidConfigError for what another try will not change."""
        if is_lasting(error):
            raise InvalidConfigError(f"{self._where}, {', '.join(self._topics)}: {error.str()}")

    def _is_mine(self, topic: str, partition: str | int) -> bool:
        return (int(partition) + crc32(topic.encode())) % self._tasks == self._index

    def _assign(self) -> None:
        """Take up this task's partitions, at their positions or where `start` sets them."""
        from confluent_kafka import TopicPartition

        new = []
        for topic in self._topics:
            metadata = self._consumer.list_topics(topic, timeout=CALL_SECS).topics[topic]
            if metadata.error is not None:
                self._require_lasting(metadata.error)
                raise exception(metadata.error)
            mine = [p for p in metadata.partitions if self._is_mine(topic, p)]
            new += [
                TopicPartition(topic, p)
                for p in sorted(mine)
                if f"{topic}/{p}" not in self._assigned
            ]
        if new:
            self._consumer.incremental_assign(self._placed(list(new)))
            for partition in new:
                self._assigned.add(f"{partition.topic}/{partition.partition}")
                self._order.add(f"{partition.topic}/{partition.partition}")
        if not self._is_begun and self._start != "earliest":
            self._collector.keep_position(0)
        self._is_begun = True
        self._look_ms = self._now_ms() + _LOOK_MS

    def _placed(self, partitions: list[Any]) -> list[Any]:
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

        begun = [p for p in partitions if f"{p.topic}/{p.partition}" in self._next]
        for partition in begun:
            partition.offset = self._next[f"{partition.topic}/{partition.partition}"]
        new = [p for p in partitions if f"{p.topic}/{p.partition}" not in self._next]
        if type(self._start) is int and new and not self._is_begun:
            asked = [TopicPartition(p.topic, p.partition, self._start) for p in new]
            new = self._consumer.offsets_for_times(asked, timeout=CALL_SECS)
        else:
            for partition in new:
                partition.offset = (
                    OFFSET_END
                    if self._start == "latest" and not self._is_begun
                    else OFFSET_BEGINNING
                )
        for partition in new:
            if partition.offset < 0 and partition.offset != OFFSET_BEGINNING:  # the end now
                partition.offset = self._consumer.get_watermark_offsets(
                    partition, timeout=CALL_SECS
                )[1]
            if partition.offset >= 0:  # as a number that outlasts a restart
                self._next[f"{partition.topic}/{partition.partition}"] = partition.offset
        return begun + new


def _has_value(record: Any) -> bool:
    message = record[0] if type(record) is tuple else record
    return message.value() is not None


def _group(where: str) -> str:
    """Name of a group, which a consumer needs though it joins none."""
    return f"sparkstorm-{crc32(where.encode()):08x}"


def _partition(partition_name: str) -> Any:
    from confluent_kafka import TopicPartition

    topic, number = partition_name.rsplit("/", 1)
    return TopicPartition(topic, int(number))
