"""Partitions of a task of KafkaSource: which ones it reads, where it goes on in each, and how many
records are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors.kafka.client import (
    CALL_SECS,
    KafkaClient,
    exception,
    is_gone,
    is_lasting,
)

MOST_GAUGES = 24  # partitions of a task with gauges of their own: every commit has them
_LOOK_MS = 30_000  # for partitions that were added


class TaskPartitions:
    """Consumer of the partitions that are dealt to a task by their number and topic, and the next
    offset of each. A partition's name is "topic/number".
    """

    def __init__(
        self,
        client: KafkaClient,
        topics: Sequence[str],
        start: str | int,
        lost: str,
        context: TopologyContext,
    ) -> None:
        self._client = client
        self._topics = topics
        self._start = start
        self._lost = lost
        self._now_ms = context.now_ms
        self._index, self._tasks = context.task_index, len(context.peers)
        self.where = f"component '{context.component_id}', Kafka at {client.servers}"
        self.next: dict[str, int] = {}  # offset by partition name
        self.names: dict[tuple[str, int], str] = {}  # of the partitions that had records
        self.paused: set[str] = set()
        self._is_begun = False  # its first partitions have positions
        self._consumer: Any = None
        self._assigned: set[str] = set()
        self._look_ms = 0

    def restore(self, position: Mapping[str, int]) -> None:
        """Go on at the next offsets of those of the partitions that are this task's."""
        self.next = {
            name: offset for name, offset in position.items() if self._is_mine(*name.rsplit("/", 1))
        }
        self._is_begun = True

    @property
    def has_looked(self) -> bool:
        """Return whether it has taken up the partitions that there are."""
        return self._look_ms > 0

    @property
    def is_to_start(self) -> bool:
        """Return whether the partitions' present ends or times decide where it begins."""
        return not self._is_begun and self._start != "earliest"

    def connect(self) -> None:
        """Make the consumer, once."""
        if self._consumer is None:
            self._consumer = self._client.consumer(
                _group(self.where), "error" if self._lost == "fail" else "earliest"
            )

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()

    def look(self) -> list[str]:
        """Take up this task's partitions that are new, at their positions or where `start` sets
        them; return their names. Kafka is asked now and then.
        """
        from confluent_kafka import TopicPartition

        if self._now_ms() < self._look_ms:
            return []
        new = []
        for topic in self._topics:
            metadata = self._consumer.list_topics(topic, timeout=CALL_SECS).topics[topic]
            if metadata.error is not None:
                self.require_lasting(metadata.error, topic)
                raise exception(metadata.error)
            mine = [p for p in metadata.partitions if self._is_mine(topic, p)]
            new += [
                TopicPartition(topic, p)
                for p in sorted(mine)
                if f"{topic}/{p}" not in self._assigned
            ]
        names = list(map(_name, new))
        if new:
            self._consumer.incremental_assign(self._placed(new))
            self._assigned.update(names)
        self._is_begun = True
        self._look_ms = self._now_ms() + _LOOK_MS
        return names

    def consume(self, most: int, is_away: bool) -> list[Any]:
        """Return messages, records and errors, `most` and one at the most; do not wait for a Kafka
        that is away.
        """
        waits = self._assigned and not is_away
        messages: list[Any] = self._consumer.consume(1, 0.1 if waits else 0)
        if messages:
            # with a time-out it would wait for as many
            messages += self._consumer.consume(most, 0)
        return messages

    def is_at_head(self, partition_name: str, offset: int) -> bool:
        """Return whether no record is behind this one, by the head that the broker has sent."""
        _, head = self._consumer.get_watermark_offsets(_partition(partition_name), cached=True)
        return bool(0 <= head <= offset + 1)

    def pause(self, partition_name: str) -> None:
        """Fetch no more records of a partition."""
        if partition_name not in self.paused:
            self._consumer.pause([_partition(partition_name)])
            self.paused.add(partition_name)

    def resume(self, partition_names: Iterable[str]) -> None:
        """Fetch records of partitions again."""
        for partition_name in partition_names:
            self._consumer.resume([_partition(partition_name)])
            self.paused.discard(partition_name)

    def name_of(self, message: Any) -> str:
        """Return the name of a message's partition."""
        key = message.topic(), message.partition()
        return self.names.get(key) or self.names.setdefault(key, f"{key[0]}/{key[1]}")

    def require_lasting(self, error: Any, topic: str | None = None) -> None:
        """Raise InvalidConfigError for what another try will not change; `topic`: the one whose
        error it is.
        """
        if is_lasting(error):
            names = topic or ", ".join(self._topics)
            if is_gone(error):
                raise InvalidConfigError(
                    f"{self.where}: there is no topic {names} ({error.str()}); create it, or correct its name or the servers"
                )
            raise InvalidConfigError(f"{self.where}, {names}: {error.str()}")

    def extent(self) -> tuple[int, int]:
        """Return the sums of its partitions' heads and of its positions in them."""
        lags = self._lag_by_partition().values()
        return (
            sum(max(position, head) for position, head in lags),
            sum(position for position, _ in lags),
        )

    def lag(self) -> dict[str, int]:
        """Return position and head of each partition, for gauges `lag.TOPIC/PARTITION.position` and
        `.head`; of many, one sum.
        """
        lag_by_partition = self._lag_by_partition()
        if len(lag_by_partition) > MOST_GAUGES:
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

    def _lag_by_partition(self) -> dict[str, tuple[int, int]]:
        """Return position and head of each partition whose head the broker has sent."""
        from confluent_kafka import KafkaException

        lag_by_partition = {}
        for partition_name in sorted(self._assigned & self.next.keys()):
            with suppress(KafkaException):
                _, head = self._consumer.get_watermark_offsets(
                    _partition(partition_name), cached=True
                )
                if head >= 0:
                    lag_by_partition[partition_name] = (self.next[partition_name], head)
        return lag_by_partition

    def _is_mine(self, topic: str, partition: str | int) -> bool:
        return (int(partition) + crc32(topic.encode())) % self._tasks == self._index

    def _placed(self, partitions: Sequence[Any]) -> list[Any]:
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

        begun = [p for p in partitions if _name(p) in self.next]
        for partition in begun:
            partition.offset = self.next[_name(partition)]
        new = [p for p in partitions if _name(p) not in self.next]
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
                self.next[_name(partition)] = partition.offset
        return begun + new


def check_start(start: str | int, lost: str) -> None:
    """Raise InvalidConfigError for a choice that a source does not have."""
    is_start = start in ("earliest", "latest") or (type(start) is int and start >= 0)
    if not is_start or lost not in ("fail", "skip"):
        raise InvalidConfigError(
            'KafkaSource: start is "earliest", "latest" or milliseconds, and lost is "fail" or "skip"'
        )


def _group(where: str) -> str:
    """Name of a group, which a consumer needs though it joins none."""
    return f"sparkstorm-{crc32(where.encode()):08x}"


def _name(partition: Any) -> str:
    return f"{partition.topic}/{partition.partition}"


def _partition(partition_name: str) -> Any:
    from confluent_kafka import TopicPartition

    topic, number = partition_name.rsplit("/", 1)
    return TopicPartition(topic, int(number))
