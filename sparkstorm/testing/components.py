"""Components made for tests: spouts that a test feeds, bolts that capture, fail, are slow or kill
their worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkstorm.api.collector import BasicOutputCollector, SpoutOutputCollector
from sparkstorm.api.components import (
    BasicBolt,
    Conf,
    Outputs,
    ReplayableSpout,
    Stateful,
    StatefulBolt,
)
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.api.state import KeyValueState
from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.testing.in_process_worker import die
from sparkstorm.testing.shared import ByReference, Shared
from sparkstorm.testing.simulation import spend

Values = Sequence[Any]


class AckFailTracker(ByReference):
    """Message ids that were acked and failed, in that order (Storm's AckFailMapTracker)."""

    def __init__(self) -> None:
        super().__init__()
        self.acked: list[Any] = []
        self.failed: list[Any] = []
        self.failures: dict[str, Failure] = {}  # why, by the repr of the message id

    def is_acked(self, message_id: Any) -> bool:
        """Return whether a message's tree was fully processed."""
        return message_id in self.acked

    def is_failed(self, message_id: Any) -> bool:
        """Return whether a message's tree failed or timed out."""
        return message_id in self.failed

    @property
    def settled_once(self) -> bool:
        """Return whether no message was acked or failed twice."""
        return all(count == 1 for count in Counter(map(repr, [*self.acked, *self.failed])).values())


class FeederSpout(ReplayableSpout):
    """Spout that emits what the test feeds it (Storm's FeederSpout), tracked unless `is_tracked` is
    false.

    Each of n tasks emits every n-th tuple, none twice when a worker is killed.
    """

    def __init__(
        self,
        outputs: Outputs = ("value",),
        tracker: AckFailTracker | None = None,
        is_tracked: bool = True,
    ) -> None:
        self.outputs = outputs
        self.tracker = tracker or AckFailTracker()
        self._feed: Shared[list[tuple[Values, Any, str]]] = Shared([])
        self._is_final: Shared[bool] = Shared(False)
        self._refused: Shared[list[SparkStormError]] = Shared([])
        self._is_tracked = is_tracked
        self._next = 0

    def feed(self, values: Values, message_id: Any = None, stream: str = "default") -> Any:
        """Add a tuple and return its message id (its number in the feed, from 0, unless given)."""
        feed = self._feed.value
        message_id = len(feed) if message_id is None else message_id
        feed.append((values, message_id, stream))
        return message_id

    def finish(self) -> None:
        """End the feed: event time runs to its end, and every window fires."""
        self._is_final.value = True

    def raise_refused(self) -> None:
        """Raise the error of the first row since the last call that its stream has refused."""
        refused, self._refused.value = self._refused.value, []
        if refused:
            raise refused[0]

    @property
    def emitted(self) -> int:
        """Number of tuples that this task has emitted; in a running component only."""
        return (self._next - self._first) // self._stride

    @property
    def fed_ids(self) -> set[Any]:
        """Message ids of everything that was fed."""
        return {message_id for _, message_id, _ in self._feed.value}

    @property
    def num_open(self) -> int:
        """Number of messages that were neither acked nor failed."""
        return len(self.fed_ids - {*self.acked, *self.failed})

    @property
    def acked(self) -> list[Any]:
        """Message ids whose trees were fully processed."""
        return self.tracker.acked

    @property
    def failed(self) -> list[Any]:
        """Message ids whose trees failed or timed out."""
        return self.tracker.failed

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        self._collector = collector
        self._first, self._stride = context.task_index, len(context.peers)
        self._next = self._first

    def next_tuple(self) -> None:
        if self._next < len(self._feed.value):
            values, message_id, stream = self._feed.value[self._next]
            self._next += self._stride
            try:
                self._collector.emit(
                    values, message_id=message_id if self._is_tracked else None, stream=stream
                )
            except SparkStormError as error:
                self._refused.value.append(error)
                raise

    def is_exhausted(self) -> bool:
        return self._next >= len(self._feed.value)

    def has_ended(self) -> bool:
        return self._is_final.value and self.is_exhausted()

    def snapshot(self) -> Any:
        return self._next

    def restore(self, position: Any) -> None:
        self._next = position

    def ack(self, message_id: Any) -> None:
        self.tracker.acked.append(message_id)

    def fail(self, message_id: Any, failure: Failure | None = None) -> None:
        self.tracker.failed.append(message_id)
        if failure is not None:
            self.tracker.failures[repr(message_id)] = failure


class CaptureBolt(BasicBolt):
    """Bolt that keeps its inputs in the order of their arrival and emits nothing."""

    def __init__(self) -> None:
        self._captured: Shared[list[Tuple]] = Shared([])

    @property
    def tuples(self) -> list[Tuple]:
        """Executed tuples; one executed again after a crash appears twice."""
        return list(self._captured.value)

    @property
    def values(self) -> list[tuple[Any, ...]]:
        """Values of the executed tuples."""
        return [tup.values for tup in self._captured.value]

    def values_of(self, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
        """Return the values from one component's stream."""
        return [
            tup.values
            for tup in self._captured.value
            if (tup.component, tup.stream) == (component, stream)
        ]

    def values_by_task(self) -> dict[int, list[tuple[Any, ...]]]:
        """Return the values by the task that sent them."""
        values_by_task: dict[int, list[tuple[Any, ...]]] = {}
        for tup in self._captured.value:
            values_by_task.setdefault(tup.task, []).append(tup.values)
        return values_by_task

    def clear(self) -> None:
        """Drop what was captured."""
        self._captured.value.clear()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self._captured.value.append(tup)


class _StatefulWrapper(StatefulBolt):
    """BasicBolt around another one, which may be stateful."""

    def __init__(self, bolt: BasicBolt) -> None:
        self.bolt = bolt
        self.outputs = bolt.outputs

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.bolt.prepare(conf, context)

    def init_state(self, state: KeyValueState) -> None:
        super().init_state(state)
        if isinstance(self.bolt, Stateful):
            self.bolt.init_state(state)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.bolt.execute(tup, collector)

    def cleanup(self) -> None:
        self.bolt.cleanup()


class Nothing(BasicBolt):
    """Bolt that does nothing: every tuple is acked."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        pass


class FlakyBolt(_StatefulWrapper):
    """Bolt that fails the first `failures` tries of every tuple, after the inner bolt has executed
    it.
    """

    def __init__(
        self,
        bolt: BasicBolt | None = None,
        failures: int = 1,
        when: Callable[[Tuple], bool] | None = None,
    ) -> None:
        super().__init__(bolt or Nothing())
        self.tries: Shared[Counter[str]] = Shared(Counter())
        self._failures = failures
        self._when = when

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        super().execute(tup, collector)
        if self._when is not None and not self._when(tup):
            return
        key = repr(tup.values)
        self.tries.value[key] += 1
        if self.tries.value[key] <= self._failures:
            raise RuntimeError(f"flaky: try {self.tries.value[key]}")


class PoisonBolt(_StatefulWrapper):
    """Bolt that kills its worker as a segfault does, for each tuple of which `is_poison` is true."""

    def __init__(self, is_poison: Callable[[Tuple], bool], bolt: BasicBolt | None = None) -> None:
        super().__init__(bolt or Nothing())
        self.deaths: Shared[list[tuple[Any, ...]]] = Shared([])
        self._is_poison = is_poison

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if self._is_poison(tup):
            self.deaths.value.append(tup.values)
            die()
        super().execute(tup, collector)


class SlowBolt(_StatefulWrapper):
    """Bolt that takes `ms` simulated milliseconds for every tuple."""

    def __init__(self, ms: int, bolt: BasicBolt | None = None) -> None:
        super().__init__(bolt or Nothing())
        self._ms = ms

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        spend(self._ms)
        super().execute(tup, collector)


def fed(
    outputs: Mapping[str, Any] | Outputs, rows: Sequence[Values] | Mapping[str, Sequence[Values]]
) -> FeederSpout:
    """Return a FeederSpout that is already fed and finished: rows of the default stream, or rows by
    stream.
    """
    spout = FeederSpout(outputs)
    for stream, values_list in (rows if isinstance(rows, Mapping) else {"default": rows}).items():
        for values in values_list:
            spout.feed(values, stream=stream)
    spout.finish()
    return spout


class TargetSink(TransactionalSink):
    """Sink whose target is `rows`, the tuples' values; `simulate` compares them with a run without
    faults.
    """

    def __init__(self) -> None:
        self._rows: Shared[list[tuple[Any, ...]]] = Shared([])
        self._epochs: Shared[dict[str, int]] = Shared({})

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Rows in the target, in the order of their becoming visible."""
        return self._rows.value

    def open(self, conf: Conf, context: TopologyContext) -> None:
        self._name = f"{context.topology_id}/{context.component_id}/{context.task_index}"
        self._fresh: list[list[Any]] = []

    def begin(self, epoch: int) -> None:
        self._fresh = []

    def write(self, tup: Tuple) -> None:
        self._fresh.append(list(tup.values))

    def prepare(self, epoch: int) -> Any:
        return self._fresh

    def commit(self, epoch: int, prepared: Any) -> None:
        if self._epochs.value.get(self._name, 0) < epoch:
            self._epochs.value[self._name] = epoch
            self._rows.value += map(tuple, prepared)

    def last_epoch(self) -> int | None:
        return self._epochs.value.get(self._name, 0)
