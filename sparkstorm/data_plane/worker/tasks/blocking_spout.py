"""Thread of a spout that declares itself blocking: the thread polls the source, the worker's loop
emits.

The thread never touches the epoch. What one `next_tuple` emitted, and the position behind it, is
one batch, which the loop takes whole; a batch that no commit has taken is asked for again after a
crash, from the committed position. Callbacks run on the thread as well, between two calls of
`next_tuple`. Each is a batch too, so that it counts as made in the epoch that has what it emitted.
Left out: the position as of the commit instead of the batch: the source is further on by then, and
a restart would skip what lies between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparkstorm.api.columns import check_batch
from sparkstorm.api.components import Conf, ReplayableSpout, Spout
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.signatures import accepts
from sparkstorm.common.errors import WorkerFailedError
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.data_plane.acking.pending import MessageOutcome
from sparkstorm.data_plane.executor.user_traceback import describe_error

# Batches that wait for the loop. With half of it a source of 5,000 calls/s rests while an epoch of
# 50 ms runs; double reads twice as much that a crash will read again.
MAX_AHEAD = 256
# As a spout in the loop: the latency of the first tuple after a silence; half costs twice the CPU.
_LONGEST_REST_S = 0.01

Call = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _CallBatch:
    calls: list[Call]
    position: Any
    handed: Any
    error: BaseException | None
    outcome: MessageOutcome | None  # the callback that made it, nothing for `next_tuple`

    @property
    def is_quiet(self) -> bool:
        """Return whether it is a callback that emitted nothing."""
        return self.outcome is not None and not self.calls and self.error is None


class SourceThread:
    """Thread that rests between two calls of a source until its time is over or it is rung."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._ring = threading.Event()
        self._thread = threading.Thread(target=run, name="blocking-spout", daemon=True)

    def start(self) -> None:
        """Start it."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout=seconds)

    def ring(self) -> None:
        """End its rest, or its next one."""
        self._ring.set()

    def rest(self, seconds: float) -> None:
        """Rest, on the thread itself."""
        self._ring.wait(seconds)
        self._ring.clear()


MakeThread = Callable[[Callable[[], None]], SourceThread]


class OnThread:
    """Component whose user code runs on its own thread; a stack of that thread names its task."""

    _context: TopologyContext

    @property
    def component(self) -> str:
        """Id of the component."""
        return self._context.component_id

    @property
    def task(self) -> int:
        """Number of the task."""
        return self._context.task_id


class ThreadedSpout(OnThread, Spout):
    """A Spout for the loop around user code that runs on its own thread, from its first
    activation on.
    """

    def __init__(
        self, spout: Spout, wake: Callable[[], None], make_thread: MakeThread = SourceThread
    ) -> None:
        self.inner = spout
        self._call_back = teller(spout)
        self._wake = wake
        self._batches: deque[_CallBatch] = deque()
        self._orders: deque[Callable[[], object]] = deque()
        # of the loop: callbacks whose batches were taken, and how many were ordered and are not
        # taken by `take_called`
        self._called: list[MessageOutcome] = []
        self._ordered = 0
        self._is_active = self._is_closing = self._is_exhausted = self._has_ended = False
        self._extent = (0, 0)
        self.is_failing = False  # the source raised when it was last asked
        self._position: Any = None
        self._handed: Any = None
        self._fault: WorkerFailedError | None = None
        self._thread = make_thread(self._run)

    # -- what the loop calls -----------------------------------------------------------------------

    def open(self, conf: Conf, context: TopologyContext, collector: Any) -> None:
        self._collector = collector
        self._context = context
        self._recorder = _CallRecorder(collector)
        self.inner.open(conf, context, self._recorder)
        # A spout that is never activated must still have the position at which a successor would
        # begin.
        self._handed = self._hand_over(self._snapshot())

    def next_tuple(self) -> None:
        """Emit the next batch, if there is one; raises what the source raised."""
        self._take_quiet()
        if not self._batches:
            return
        batch = self._take_batch()
        self._thread.ring()
        for method, arguments in batch.calls:
            getattr(self._collector, method)(*arguments)
        self._follow(batch)
        if batch.error is not None:
            raise batch.error

    def is_exhausted(self) -> bool:
        if self._fault is not None and not self._batches:
            raise self._fault
        # the thread raises the flag after it has handed over the last batch
        return self._is_exhausted and not self._batches

    def has_ended(self) -> bool:
        return self._has_ended and not self._batches

    @property
    def may_emit(self) -> bool:
        """Return whether the source is active and has not said that it is at its end."""
        return self._is_active and self._fault is None and not self.is_exhausted()

    def extent(self) -> tuple[int, int]:
        return self._extent

    def activate(self) -> None:
        self._is_active = True
        self._order(partial(self._guarded, self.inner.activate))
        # From the first activation on: `open` has returned by then, and a paused topology has no
        # thread.
        if not self._thread.is_alive:
            self._thread.start()

    def deactivate(self) -> None:
        self._is_active = False
        self._order(partial(self._guarded, self.inner.deactivate))

    def close(self) -> None:
        """Let the thread finish the call it is at, then close the source."""
        self._is_closing = True
        self._thread.ring()
        if self._thread.is_alive:
            self._thread.join(2.0)
        self.inner.close()

    def abandon(self) -> None:
        """Call the source no more, as when a process dies; for simulations."""
        self._orders.clear()
        self._is_closing = True
        self._thread.ring()

    def call_back(self, outcomes: Iterable[MessageOutcome]) -> None:
        """Have the thread call the source's `ack` or `fail` for these."""
        for outcome in outcomes:
            self._ordered += 1
            self._order(partial(self._tell, outcome))

    @property
    def has_calls(self) -> bool:
        """Return whether callbacks were ordered that `take_called` has not returned."""
        return self._ordered > 0

    @property
    def has_called(self) -> bool:
        """Return whether `take_called` would return any."""
        return bool(self._called) or self._is_quiet

    def take_called(self) -> list[MessageOutcome]:
        """Return the outcomes passed to the source since the last call: those of which the loop has
        taken what the source emitted.
        """
        self._take_quiet()
        called = self._called
        self._called = []
        self._ordered -= len(called)
        return called

    @property
    def _is_quiet(self) -> bool:
        return bool(self._batches) and self._batches[0].is_quiet

    def _take_quiet(self) -> None:
        while self._is_quiet:
            self._follow(self._take_batch())

    def _take_batch(self) -> _CallBatch:
        batch = self._batches.popleft()
        if batch.outcome is not None:
            self._called.append(batch.outcome)
        return batch

    def _follow(self, batch: _CallBatch) -> None:
        self._position = batch.position
        self._handed = batch.handed

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        self._context.metrics.bind(self._recorder.count)
        try:
            self._poll()
        except BaseException as error:
            # of is_exhausted, extent, snapshot, hand_over: raised where the loop asks next
            self._fault = WorkerFailedError(
                f"spout '{self.component}': its thread ended: {describe_error(error)}"
            )
            self._wake()

    def _poll(self) -> None:
        rest_s = 0.0
        while not self._is_closing:
            # Callbacks before the next call of `next_tuple`: a source may decide by them what to
            # emit.
            while self._orders:
                self._orders.popleft()()
            self._note_end()
            if not self._is_active or self._is_exhausted or len(self._batches) >= MAX_AHEAD:
                rest_s = _LONGEST_REST_S
            else:
                rest_s = (
                    0.0
                    if self._guarded(self.inner.next_tuple)
                    else min(max(0.001, rest_s * 2), _LONGEST_REST_S)
                )
                self._note_end()
            if rest_s:
                self._thread.rest(rest_s)

    def _guarded(self, call: Callable[[], None], outcome: MessageOutcome | None = None) -> bool:
        """Call user code and hand over its recorded calls, whole or, when it raised, only the
        error; in any case when it is the callback of an outcome.
        """
        error: BaseException | None = None
        try:
            call()
        # A source without its thread would never be polled again.
        except BaseException as raised:
            self._recorder.take()
            error = raised
        self.is_failing = error is not None
        calls = self._recorder.take()
        if outcome is not None:
            # Before the callback counts: the source may have more to emit by it, and not be at its
            # end.
            self._note_end()
        # A callback that raised counts too: unconfirmed, it would be repeated by the next owner.
        if calls or error is not None or outcome is not None:
            # With the batch and on this thread: the loop asks when the source has moved on.
            position = self._snapshot()
            handed = self._hand_over(position)
            self._batches.append(_CallBatch(calls, position, handed, error, outcome))
            self._wake()
        return any(method != "count" for method, _ in calls)

    def _snapshot(self) -> Any:
        return self.inner.snapshot() if isinstance(self.inner, ReplayableSpout) else None

    def _hand_over(self, position: Any) -> Any:
        """Return what the source would hand over behind this batch: by the time the loop emits it,
        the source is further on.
        """
        is_own = (
            isinstance(self.inner, ReplayableSpout)
            and type(self.inner).hand_over is not ReplayableSpout.hand_over
        )
        return self.inner.hand_over() if is_own else position  # type: ignore[attr-defined]

    def _note_end(self) -> None:
        self._extent = self.inner.extent()
        is_exhausted = self.inner.is_exhausted()
        has_ended = self.inner.has_ended()
        # The loop may be asleep: the end of the last source would not be seen before its next step.
        if (is_exhausted, has_ended) != (self._is_exhausted, self._has_ended):
            self._is_exhausted = is_exhausted
            self._has_ended = has_ended
            self._wake()

    def _tell(self, outcome: MessageOutcome) -> None:
        self._guarded(lambda: self._call_back(outcome), outcome)

    def _order(self, call: Callable[[], object]) -> None:
        self._orders.append(call)
        self._thread.ring()


class ThreadedReplayableSpout(ThreadedSpout, ReplayableSpout):
    """The same around a source that knows its position."""

    def snapshot(self) -> Any:
        return self._position

    def hand_over(self) -> Any:
        return self._handed

    def restore(self, position: Any) -> None:
        assert isinstance(self.inner, ReplayableSpout)
        self._position = position
        self.inner.restore(position)
        self._handed = self._hand_over(position)


def threaded(
    spout: Spout, wake: Callable[[], None], make_thread: MakeThread = SourceThread
) -> ThreadedSpout:
    """The right wrapper for a blocking spout."""
    return (ThreadedReplayableSpout if isinstance(spout, ReplayableSpout) else ThreadedSpout)(
        spout, wake, make_thread
    )


def has_callbacks(spout: Spout) -> bool:
    """Return whether a spout takes note of what becomes of its messages."""
    return type(spout).ack is not Spout.ack or type(spout).fail is not Spout.fail


def teller(spout: Spout) -> Callable[[MessageOutcome], None]:
    """Return the call of a spout's `ack` or `fail`; `fail` gets the failure where it takes a second
    argument.
    """
    takes_failure = accepts(spout.fail, "message_id", "failure")

    def tell(outcome: MessageOutcome) -> None:
        if outcome.failure is None:
            spout.ack(outcome.message_id)
        elif takes_failure:
            spout.fail(outcome.message_id, outcome.failure)  # type: ignore[call-arg]
        else:
            spout.fail(outcome.message_id)

    return tell


class _CallRecorder:
    """SpoutOutputCollector that checks and records the calls of user code, on the thread."""

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self._calls: list[Call] = []

    def take(self) -> list[Call]:
        calls = self._calls
        self._calls = []
        return calls

    def emit(self, values: Any, message_id: Any = None, stream: str = "default") -> None:
        values, message_id = self._collector.check(values, message_id, stream)
        self._calls.append(("emit", (values, message_id, stream)))

    def emit_batch(self, batch: Any, message_id: Any = None, stream: str = "default") -> None:
        check_batch(batch)
        self._calls.append(("emit_batch", (batch, message_id, stream)))

    def emit_direct(
        self, task: int, values: Any, message_id: Any = None, stream: str = "default"
    ) -> None:
        values, message_id = self._collector.check(values, message_id, stream, task)
        self._calls.append(("emit_direct", (task, values, message_id, stream)))

    def count(self, value: MetricValue, amount: float) -> None:
        self._calls.append(("count", (value, amount)))

    def keep_position(self, message_id: Any) -> None:
        self._calls.append(("keep_position", (message_id,)))

    def report_error(self, error: BaseException | str) -> None:
        self._calls.append(("report_error", (error,)))
