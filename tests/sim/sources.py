"""Sources that lose a message once they are told that it is done, and are told late."""

from __future__ import annotations

from typing import Any

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.components import Conf, Outputs
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.model.failure import Failure
from sparkstorm.testing import FeederSpout, Shared
from sparkstorm.testing.simulation import spend

_LONGEST_CALL_MS = 60
_PACE_MS = 150


class DeletingSpout(FeederSpout):
    """A FeederSpout that deletes what is acked, as a queue does, and emits again what fails. Both
    calls take some time, and it emits at a pace that has messages under way for most of a run.

    Of its two fields the second counts how often the message was emitted before. It ends behind so
    many messages.
    """

    def __init__(self, outputs: Outputs, messages: int) -> None:
        super().__init__(outputs)
        self._messages = messages
        self._deleted: Shared[set[Any]] = Shared(set())
        # Deleted under a topology that was killed: the next one begins with no position.
        self._deleted_before: Shared[set[Any]] = Shared(set())
        self._begins = False
        self._emitted = 0
        self._emitted_ms = -_PACE_MS

    @property
    def emitted(self) -> int:
        """Return the number of its emissions."""
        return self._emitted

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(conf, context, collector)
        self._now_ms = context.now_ms
        self._begins = True

    def has_ended(self) -> bool:
        is_complete = self._is_final.value or len(self._feed.value) >= self._messages
        return is_complete and self.is_exhausted()

    def next_tuple(self) -> None:
        if self._now_ms() < self._emitted_ms + _PACE_MS:
            return
        if self._begins:
            self._begins = False
            own = range(self._first, len(self._feed.value), self._stride)
            self._deleted_before.value.update(self._deleted.value.intersection(own))
        feed = self._feed.value
        while self._next < len(feed) and feed[self._next][1] in self._deleted.value:
            self._next += self._stride
        before = self._next
        super().next_tuple()
        if self._next != before:
            self._emitted += 1
            self._emitted_ms = self._now_ms()

    def snapshot(self) -> Any:
        return [self._next, self._emitted]

    def restore(self, position: Any) -> None:
        self._next, self._emitted = position
        self._begins = False
        deleted = self._deleted.value - self._deleted_before.value
        early = [
            message_id
            for number, (_, message_id, _) in enumerate(self._feed.value)
            if number >= self._next
            and number % self._stride == self._first
            and message_id in deleted
        ]
        assert not early, f"messages {early} were acked, and their emission is not committed"

    def ack(self, message_id: Any) -> None:
        spend(message_id * 37 % _LONGEST_CALL_MS)
        self._deleted.value.add(message_id)
        super().ack(message_id)

    def fail(self, message_id: Any, failure: Failure | None = None) -> None:
        spend(message_id * 37 % _LONGEST_CALL_MS)
        values, _, stream = self._feed.value[message_id]
        self._collector.emit((*values[:-1], values[-1] + 1), message_id, stream)
        self._emitted += 1


class BlockingDeletingSpout(DeletingSpout):
    """The same on its own thread."""

    blocking = True
