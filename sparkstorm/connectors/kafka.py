"""KafkaSource and KafkaSink, by confluent-kafka (librdkafka)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.components import Conf, ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.sinks import RefusedRows, TransactionalSink
from sparkstorm.connectors.file_records import json_parser
from sparkstorm.connectors.patience import Patience, Secret
from sparkstorm.errors import InvalidConfigError
from sparkstorm.model.tuples import Tuple
from sparkstorm.model.values.tagged import to_json

_ROWS_PER_CALL = 500
_LOOK_MS = 30_000  # for partitions that were added
_CALL_SECS = 10.0
_SECRETS = frozenset({"sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"})
_META = {"key": "string", "topic": "string", "partition": "bigint", "offset": "bigint", "time_ms": "bigint"}


class KafkaSource(ReplayableSpout):
    """Emits the records of Kafka topics, each exactly once.

    Without `fields` a tuple has `value` as text (`binary=True`: bytes); with them, values are JSON objects and these their fields.
    Then come `key`, `topic`, `partition`, `offset` and the record's `time_ms`, for event time. What is no such JSON goes to the
    stream `bad` (place, text, reason) and is reported.

    The position is the next offset of each partition; no consumer group is joined and nothing committed to Kafka. Partitions, also
    those that are added later, are dealt to tasks by number. `start` is "earliest", "latest", or milliseconds of time.
    `lost="skip"` goes on with the oldest record when those at the position were deleted; else that is an error. Aborted
    transactions are not read.
    `follow=False` ends each partition at its present end. `options` are librdkafka's, without secrets.
    """

    blocking = True

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str],
        fields: Sequence[str] | Mapping[str, str] | None = None,
        *,
        binary: bool = False,
        start: str | int = "earliest",
        lost: str = "fail",
        follow: bool = True,
        options: Mapping[str, Any] | None = None,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        if not (start in ("earliest", "latest") or type(start) is int) or lost not in ("fail", "skip"):
            raise InvalidConfigError('KafkaSource: start is "earliest", "latest" or milliseconds, and lost is "fail" or "skip"')
        self._client = Client("KafkaSource", servers, options, Secret("KafkaSource", password_file, password_env))
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        if fields is not None and not isinstance(fields, Mapping):
            fields = dict.fromkeys(fields, "any")
        self._fields = None if fields is None else dict(fields)
        self._handed: dict[str, int] = {}
        self._binary, self._start, self._lost, self._follow = binary, start, lost, follow
        value = {"value": "binary" if binary else "string"} if self._fields is None else self._fields
        self.outputs = {"default": {**value, **_META}, "bad": ["place", "text", "reason"]}

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Connect to nothing yet."""
        self._collector, self._now_ms = collector, context.now_ms
        self._index, self._tasks = context.task_index, len(context.peers)
        self._where = f"component '{context.component_id}', Kafka at {self._client.servers}"
        self._patience = Patience(self._where, context.now_ms, collector.report_error)
        self._parse = self._parse_value if self._fields is None else _json_value(json_parser(self._fields))
        self._next = {key: at for key, at in self._handed.items() if self._is_mine(*key.rsplit("/", 1))}  # by "topic/partition"
        self._at_end: set[str] = set()
        self._consumer: Any = None
        self._assigned: set[str] = set()
        self._look_ms = 0

    def next_tuple(self) -> None:
        """Emit what has come."""
        from confluent_kafka import KafkaException

        if self._patience.is_resting:
            return
        try:
            if self._consumer is None:
                self._consumer = self._client.consumer(_group(self._where), "error" if self._lost == "fail" else "earliest")
            if self._now_ms() >= self._look_ms:
                self._assign()
            found = self._consumer.consume(_ROWS_PER_CALL, 0.1) if self._assigned else []
        except KafkaException as error:
            self._require_lasting(error.args[0])
            self._patience.bear(error)
            return
        for message in found:
            if message.error() is None:
                self._emit(message)
            else:
                self._note(message)
        if found:
            self._patience.succeed()
        elif self._client.problem is not None:
            problem, self._client.problem = self._client.problem, None
            self._require_lasting(problem)
            self._patience.bear(RuntimeError(problem.str()))

    def is_exhausted(self) -> bool:
        """Return whether every partition was read to the end that it had; never if it is followed."""
        return not self._follow and self._look_ms > 0 and self._at_end >= self._assigned

    def snapshot(self) -> Any:
        """Next offset of each partition."""
        return dict(self._next)

    def restore(self, position: Any) -> None:
        """Go on there."""
        self._next = dict(position)

    def take_over(self, handed: Sequence[Any]) -> KafkaSource:
        """The same source behind all former tasks' positions, with any number of tasks."""
        spout = object.__new__(type(self))
        vars(spout).update(vars(self))
        spout._handed = {key: offset for each in handed for key, offset in each.items()}
        return spout

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()

    def _emit(self, message: Any) -> None:
        place = f"{message.topic()}/{message.partition()}"
        self._at_end.discard(place)
        key = message.key()
        text = None if key is None else key.decode("utf-8", "replace")
        rest = (text, message.topic(), message.partition(), message.offset(), message.timestamp()[1])
        message_id = [place, message.offset()]
        try:
            self._collector.emit((*self._parse(message.value()), *rest), message_id)
        except (ValueError, RecursionError) as error:
            self._collector.report_error(f"{place}/{message.offset()}: {error}")
            text = (message.value() or b"")[:2000].decode("utf-8", "replace")
            self._collector.emit((f"{place}/{message.offset()}", text, str(error)[:300]), message_id, stream="bad")
        self._next[place] = message.offset() + 1

    def _parse_value(self, value: bytes | None) -> tuple[Any, ...]:
        return (value if self._binary or value is None else value.decode("utf-8", "replace"),)

    def _note(self, message: Any) -> None:
        from confluent_kafka import KafkaError

        error, place = message.error(), f"{message.topic()}/{message.partition()}"
        if error.code() == KafkaError._PARTITION_EOF:
            self._at_end.add(place)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise InvalidConfigError(
                f"{self._where}: offset {self._next.get(place, 0)} of {place} is out of range: its records were deleted unread, "
                'or the topic was made anew; set lost="skip" to go on with the oldest that is left'
            )
        else:
            self._require_lasting(error)
            self._patience.bear(RuntimeError(error.str()))

    def _require_lasting(self, error: Any) -> None:
        """Raise InvalidConfigError for what another try will not change."""
        from confluent_kafka import KafkaError

        gone = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
        denied = (KafkaError._AUTHENTICATION, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
        if error.code() in (*gone, *denied, KafkaError._INVALID_ARG):
            raise InvalidConfigError(f"{self._where}, {', '.join(self._topics)}: {error.str()}")

    def _is_mine(self, topic: str, partition: str | int) -> bool:
        return (int(partition) + crc32(topic.encode())) % self._tasks == self._index

    def _assign(self) -> None:
        """Take up this task's partitions, at their positions or where `start` says."""
        from confluent_kafka import TopicPartition

        new = []
        for topic in self._topics:
            found = self._consumer.list_topics(topic, timeout=_CALL_SECS).topics[topic]
            if found.error is not None:
                self._require_lasting(found.error)
                raise _exception(found.error)
            mine = [p for p in found.partitions if self._is_mine(topic, p)]
            new += [TopicPartition(topic, p) for p in sorted(mine) if f"{topic}/{p}" not in self._assigned]
        if new:
            self._consumer.incremental_assign(self._placed(new))
            self._assigned |= {f"{each.topic}/{each.partition}" for each in new}
        self._look_ms = self._now_ms() + _LOOK_MS

    def _placed(self, partitions: list[Any]) -> list[Any]:
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

        begun = [p for p in partitions if f"{p.topic}/{p.partition}" in self._next]
        for each in begun:
            each.offset = self._next[f"{each.topic}/{each.partition}"]
        new = [p for p in partitions if f"{p.topic}/{p.partition}" not in self._next]
        if type(self._start) is int and new and not self._assigned:
            asked = [TopicPartition(p.topic, p.partition, self._start) for p in new]
            new = self._consumer.offsets_for_times(asked, timeout=_CALL_SECS)
        else:
            for each in new:
                each.offset = OFFSET_END if self._start == "latest" and not self._assigned else OFFSET_BEGINNING
        for each in new:
            if each.offset < 0 and each.offset != OFFSET_BEGINNING:  # the end now, as a number that outlasts a restart
                each.offset = self._consumer.get_watermark_offsets(each, timeout=_CALL_SECS)[1]
                self._next[f"{each.topic}/{each.partition}"] = each.offset
        return begun + new


class KafkaSink(TransactionalSink):
    """Produces rows to a Kafka topic in transactions, exactly once for readers with `read_committed`.

    A record's value is a JSON object of the tuple, or the field `value` as it is (text or bytes); `key` and `time` name fields of
    its key and its time in milliseconds. The epoch's number is committed in the same transaction, as an offset of the group
    `sparkstorm-<topology>/<component>/<task>`, and the rows are an outbox in the worker's commit: what a crash left open is
    aborted and produced anew, unless the number says that it is there. One transactional id per task fences workers that are
    taken for dead.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        key: str | None = None,
        value: str | None = None,
        time: str | None = None,
        options: Mapping[str, Any] | None = None,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        self._client = Client("KafkaSink", servers, options, Secret("KafkaSink", password_file, password_env))
        self._topic, self._key, self._value, self._time = topic, key, value, time

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Connect to nothing yet."""
        self._name = f"sparkstorm-{context.topology_id}/{context.component_id}/{context.task_index}"
        self._where = f"topic {self._topic} of Kafka at {self._client.servers}"
        self._producer: Any = None
        self._groups: Any = None
        self._open = 0  # epoch whose records are in the transaction under way
        self._tuples: list[Tuple] = []
        self._rows: list[list[Any]] = []

    def begin(self, epoch: int) -> None:
        """Begin without rows."""
        self._tuples, self._rows = [], []

    def write(self, tup: Tuple) -> None:
        """Keep a row as key, value and time."""
        value = to_json(tup.as_dict()) if self._value is None else tup[self._value]
        if value is not None and type(value) not in (str, bytes):
            raise ValueError(f"field '{self._value}' is a {type(value).__name__}; a record's value is text or bytes")
        key = None if self._key is None else tup[self._key]
        time_ms = 0 if self._time is None else tup[self._time]
        if type(time_ms) is not int:
            raise ValueError(f"field '{self._time}' is {time_ms!r:.60}, no time in milliseconds")
        self._rows.append([key if key is None or type(key) in (str, bytes) else to_json(key), value, time_ms])
        self._tuples.append(tup)

    def prepare(self, epoch: int) -> Any:
        """Produce the rows in a transaction that stays open; return them as outbox."""
        refused = self._speaking(lambda: self._produce(epoch, self._rows))
        if refused:
            bad = [(self._tuples[n], reason) for n, reason in refused.items()]
            keep = [n for n in range(len(self._rows)) if n not in refused]
            self._tuples, self._rows = [self._tuples[n] for n in keep], [self._rows[n] for n in keep]
            self._drop()
            raise RefusedRows(bad)
        return self._rows

    def commit(self, epoch: int, prepared: Any) -> None:
        """Commit the open transaction with the epoch's number, or produce the outbox anew if Kafka has not the epoch."""
        self._speaking(lambda: self._commit(epoch, prepared))

    def recover(self, epoch: int, prepared: Any) -> None:
        """Abort what a former owner left open; then bring the last epoch to its end."""
        self._speaking(self._begin_producing)
        super().recover(epoch, prepared)

    def cleanup(self) -> None:
        """Let go of the connections."""
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
                raise RuntimeError(f"records that Kafka took before are refused now: {next(iter(refused.values()))}")
        metadata = self._groups.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([TopicPartition(self._topic, 0, epoch)], metadata, _CALL_SECS)
        self._producer.commit_transaction(_CALL_SECS)
        self._open = 0

    def _produce(self, epoch: int, rows: Sequence[Any]) -> dict[int, str]:
        """Begin a transaction and produce rows; return those that are refused for good, by place."""
        from confluent_kafka import KafkaException

        self._begin_producing()
        if self._open:
            self._producer.abort_transaction(_CALL_SECS)
        self._open = 0
        self._producer.begin_transaction()
        refused: dict[int, str] = {}
        failed: list[Any] = []

        def reported(number: int) -> Callable[[Any, Any], None]:
            def report(error: Any, message: Any) -> None:
                if error is not None:
                    if error.code() in _refusals():
                        refused[number] = error.str()
                    else:
                        failed.append(error)

            return report

        for number, (key, value, time_ms) in enumerate(rows):
            try:
                self._send(key, value, time_ms, reported(number))
            except KafkaException as error:
                if error.args[0].code() not in _refusals():
                    raise
                refused[number] = error.args[0].str()
        left = self._producer.flush(_CALL_SECS)
        if failed or left:
            raise _exception(failed[0]) if failed else TimeoutError(f"{left} records were not taken within {_CALL_SECS:g} s")
        self._open = epoch
        return refused

    def _send(self, key: Any, value: Any, time_ms: int, report: Any) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, timestamp=time_ms, on_delivery=report)
                self._producer.poll(0)
                return
            except BufferError:  # the queue is full: let it drain
                self._producer.poll(0.1)

    def _begin_producing(self) -> None:
        if self._producer is None:
            self._groups = self._groups or self._client.consumer(self._name, "earliest")
            found = self._groups.list_topics(self._topic, timeout=_CALL_SECS).topics[self._topic]
            if found.error is not None:
                raise _exception(found.error)
            self._producer = self._client.producer(self._name)
            self._producer.init_transactions(_CALL_SECS)

    def _committed(self) -> int:
        from confluent_kafka import TopicPartition

        [found] = self._groups.committed([TopicPartition(self._topic, 0)], timeout=_CALL_SECS)
        return max(0, int(found.offset))

    def _drop(self) -> None:
        """Give the producer up; its transaction is aborted by its successor's beginning."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(0)
        self._producer, self._open = None, 0

    def _speaking(self, call: Callable[[], Any]) -> Any:
        """Call Kafka; after an error nothing is known of the transaction, so the next try begins with a new producer."""
        from confluent_kafka import KafkaError, KafkaException

        try:
            return call()
        except KafkaException as error:
            self._drop()
            lasting = (
                KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._AUTHENTICATION,
                KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError._INVALID_ARG,
            )  # fmt: skip
            if error.args[0].code() in lasting:
                raise InvalidConfigError(f"{self._where}: {error.args[0].str()}") from error
            raise
        except BaseException:
            self._drop()
            raise


class Client:
    """Address and credentials of a Kafka; secrets are read where it is used."""

    def __init__(self, what: str, servers: str, options: Mapping[str, Any] | None, secret: Secret) -> None:
        self._options, self._secret = dict(options or {}), secret
        if held := sorted(_SECRETS & self._options.keys()):
            raise InvalidConfigError(
                f"{what}: options holds the secret {held[0]}; name its place with password_file or password_env"
            )
        self.servers = servers
        self.problem: Any = None  # the last error that belongs to no record

    def consumer(self, group: str, reset: str) -> Any:
        """Return a consumer that commits nothing."""
        from confluent_kafka import Consumer

        own = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": reset, "enable.partition.eof": True}
        return Consumer(self._conf(own))

    def producer(self, name: str) -> Any:
        """Return a producer of transactions under a name."""
        from confluent_kafka import Producer

        return Producer(self._conf({"linger.ms": 2, "transactional.id": name}))

    def _conf(self, own: Mapping[str, Any]) -> dict[str, Any]:
        password = self._secret.read()
        secret = {} if password is None else {"sasl.password": password}
        return {"log_level": 0, **self._options, **own, **secret, "bootstrap.servers": self.servers, "error_cb": self._note}

    def _note(self, error: Any) -> None:
        self.problem = error

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "problem": None}


def _group(where: str) -> str:
    """A consumer needs a group's name, though it joins none."""
    return f"sparkstorm-{crc32(where.encode()):08x}"


def _json_value(parse: Callable[[bytes], tuple[Any, ...]]) -> Callable[[bytes | None], tuple[Any, ...]]:
    return lambda value: parse(value or b"null")


def _refusals() -> tuple[int, ...]:
    from confluent_kafka import KafkaError

    return KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG, KafkaError.INVALID_TIMESTAMP


def _exception(error: Any) -> Exception:
    from confluent_kafka import KafkaException

    found: Exception = KafkaException(error)
    return found
