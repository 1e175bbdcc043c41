"""Thread of a bolt that declared itself blocking: rows go in, whole outcomes come back to the
worker's loop.

The thread never touches the epoch: per input it posts what was emitted, put, acked and failed as
one call, which the loop makes inside one epoch. Until then the input is held, so a crash gives it
to the next owner again. Left out: locks around the epoch, so that the thread could emit into it.
The commit would have to wait for a call that waits for the outside, which is what the thread is for
(decision 28).
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from sparkstorm.api.components import BasicBolt, Bolt, Conf, GatheringBolt
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import WorkerFailedError
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.manual_runner import verdict
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.user_traceback import (
    describe_error,
    failure_of,
    raise_out_of_memory,
)
from sparkstorm.data_plane.task_kit.held import Values, fresh
from sparkstorm.data_plane.worker.tasks.blocking_spout import OnThread

# Rows with one thread: at 5,000 rows/s it does not run dry between two epochs of 50 ms. With half
# of it, it does; double keeps twice as many held inputs, which commits store.
MAX_QUEUED = 256
Calls = list[tuple[str, tuple[Any, ...]]]
_LOOK = Tuple((), 0, Source("", 0, "", ()))  # no input: the loop has refused an outcome
Changes = tuple[Sequence[Any], Sequence[Any]]


class ThreadedBolt(OnThread, Bolt):
    """A Bolt for the loop around user code that runs on its own thread.

    What a GatheringBolt emits, acks and fails in its `end_turn` counts as calls of any other thread.
    """

    def __init__(self, bolt: Bolt | BasicBolt, state: MemoryState | None, codec: Codec) -> None:
        self._bolt = bolt
        self.state = state
        self._queue: queue.SimpleQueue[Tuple | None] = queue.SimpleQueue()
        self._open: dict[int, Tuple] = {}  # handed to the thread, outcome not taken in yet
        self._speculation = None if state is None else _Speculation(state, codec)
        self.since_ms: int | None = None  # when the call that the thread is in began
        self._calls_ms: deque[int] = deque()  # times of calls that have ended: thread to loop
        self._gathering = bolt if isinstance(bolt, GatheringBolt) else None
        # A daemon: a call that never returns must not keep the process alive after its last commit.
        self._thread = threading.Thread(target=self._run, name="blocking-bolt", daemon=True)

    @property
    def thread_ident(self) -> int | None:
        """Identifier of the thread."""
        return self._thread.ident

    @property
    def is_full(self) -> bool:
        """Return whether rows should stay in the stream for now."""
        return len(self._open) >= MAX_QUEUED

    @property
    def is_busy(self) -> bool:
        """Return whether rows wait for the thread, or their outcomes for the loop; of a bolt that
        gathers inputs, or awaits, also whether any is neither acked nor failed.
        """
        return bool(self._open) or (self._gathering is not None and bool(self._runner.outstanding))

    @property
    def queued(self) -> Collection[int]:
        """Python ids of the rows that wait for the thread or are with it: they are not done, and
        not forgotten either.
        """
        return self._open.keys()

    def prepare(self, conf: Conf, context: TopologyContext, collector: Any) -> None:
        """Prepare the user's bolt, then start its thread."""
        self._context = context
        self._runner = collector
        self._now_ms = context.now_ms
        self._recorder = _Recorder(collector)
        self._basic_recorder = _BasicRecorder(self._recorder)
        if isinstance(self._bolt, BasicBolt):
            self._bolt.prepare(conf, context)
        else:
            self._bolt.prepare(conf, context, self._recorder)
        self._thread.start()

    def execute(self, tup: Tuple) -> None:
        """Hand a row to the thread; it stays un-acked."""
        self._open[id(tup)] = tup
        self._queue.put(tup)

    def cleanup(self) -> None:
        """Let the thread finish the row it is at, then clean up. Rows that wait for it are in no
        commit as done.
        """
        self._end_thread()
        # Less than the slot waits (supervisor.worker.shutdown.sleep.secs, 3 s) before it kills the
        # process.
        self._thread.join(timeout=2.0)
        self._bolt.cleanup()

    def abandon(self) -> None:
        """End the thread after the row it is at, without cleanup, as when a process dies."""
        self._end_thread()
        if self._gathering is not None:
            self._gathering.abandon()

    def _end_thread(self) -> None:
        """Drop the rows that wait for the thread, and end it after the row it is at."""
        if self._speculation is not None:
            self._speculation.end()
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put(None)

    def take_calls_ms(self) -> list[int]:
        """Return the time of each call that has ended since it was asked last."""
        # the thread may append meanwhile: what is there now
        return [self._calls_ms.popleft() for _ in range(len(self._calls_ms))]

    def _run(self) -> None:
        self._recorder.thread = threading.get_ident()
        self._context.metrics.bind(
            lambda value, amount: self._recorder.note("count", value, amount)
        )
        speculation = self._speculation
        while (tup := self._next()) is not None:
            if self.state is not None and self.state.has_changes:  # of init_state, or a migration
                self._runner.post(partial(self._runner.take_changes, self.state.take_changes()))
            self.since_ms = began_ms = self._now_ms()
            if speculation is not None:
                speculation.begin(tup)
            failure = self._execute(tup)
            gathering = self._gathering
            if gathering is not None and (self._queue.empty() or gathering.has_enough):
                self._call_end_turn(gathering)
            self.since_ms = None
            self._calls_ms.append(self._now_ms() - began_ms)
            changes, seen = (
                (None, 0) if speculation is None else speculation.take_changes(tup, failure)
            )
            calls = self._recorder.take(None if failure is None else tup)
            outcome = tup, failure, calls, changes, seen
            self._runner.post(partial(self._take_in, *outcome))

    def _next(self) -> Tuple | None:
        """Return the next input, none when the thread is to end: first those whose calls were
        taken back.
        """
        while True:
            again = None if self._speculation is None else self._speculation.next_again()
            if again is not None:
                return again
            if (tup := self._queue.get()) is not _LOOK:
                return tup

    def _execute(self, tup: Tuple) -> Failure | None:
        self._recorder.current = tup
        try:
            if isinstance(self._bolt, BasicBolt):
                self._bolt.execute(tup, self._basic_recorder)
                self._recorder.ack(tup)
            else:
                self._bolt.execute(tup)
            return self._recorder.failure_of(tup)
        # The loop ends the worker before it takes in this input: no other process may suspect it.
        except MemoryError as error:
            self._runner.post(partial(raise_out_of_memory, error))
            return failure_of(describe_error(error))
        # Any error (a cancelled coroutine's too): without its thread the bolt would hang for ever.
        except BaseException as error:
            return failure_of(error)

    def _call_end_turn(self, bolt: GatheringBolt) -> None:
        """Call `end_turn` before the outcome of the last row is posted: until then the bolt is busy."""
        # The calls are posted one by one: with the outcome of one input, an emission that its
        # grouping refuses would take those for all other inputs back, and their acks.
        self._recorder.thread = 0
        try:
            bolt.end_turn()
        # A sentence of ours ends the worker, as that of a sink does; its inputs stay open.
        except WorkerFailedError as error:
            self._runner.post(partial(_raise, error))
        except BaseException as error:
            self._runner.report_error(describe_error(error))
        self._recorder.thread = threading.get_ident()

    def _take_in(
        self, tup: Tuple, failure: Failure | None, calls: Calls, changes: Changes | None, seen: int
    ) -> None:
        speculation = self._speculation
        # Built on a state that has gone back since: the thread executes it once more.
        if speculation is not None and seen != speculation.refused:
            return
        self._open.pop(id(tup), None)
        # Emissions and state in one step of the loop, so no commit can fall between them.
        if self._runner.take_outcome(tup, calls, changes):
            if speculation is not None:
                speculation.taken += 1
            if failure is not None:
                self._runner.fail(tup, failure)
        elif speculation is not None:
            speculation.refused += 1
            self._queue.put(_LOOK)


class _Speculation:
    """Calls of the thread on a state whose outcomes the loop has not taken in: a refused one takes
    back all that was built on it.
    """

    def __init__(self, state: MemoryState, codec: Codec) -> None:
        self._state = state
        self._codec = codec
        # Of the loop: outcomes taken in, and how often one was refused.
        self.taken = self.refused = 0
        # Of the thread: refusals that it has seen, outcomes whose former values are gone, those
        # values of the others with their inputs as they came, and inputs to execute once more.
        self._seen = self._forgotten = 0
        self._former: deque[tuple[Tuple, list[Any], Values]] = deque()
        self._again: deque[Tuple] = deque()
        self._came: Values = ()

    def begin(self, tup: Tuple) -> None:
        """Note an input as it came, before the call that may change its values."""
        self._came = fresh(self._codec, tup.values)

    def take_changes(self, tup: Tuple, failure: Failure | None) -> tuple[Changes, int]:
        """Return the changes of a call that has ended, none of one that failed, and how many
        refusals they are built on.
        """
        if failure is not None:
            # Of this call alone: changes are taken after each, so all that is there is its own.
            self._state.roll_back(0)
        self._former.append((tup, [*self._state.undo], self._came))
        return self._state.take_changes(), self._seen

    def next_again(self) -> Tuple | None:
        """Return the next input to execute once more; first take back what the loop has refused,
        with all that was built on it.
        """
        refused = self.refused  # before `taken`, which rests from then on
        while self._former and self._forgotten < self.taken:
            self._former.popleft()
            self._forgotten += 1
        if refused != self._seen:
            self._seen = refused
            for tup, former, came in reversed(self._former):
                self._state.undo.extend(former)
                self._state.roll_back(0)
                tup.values = came
            # The first one is that of the refused outcome: the loop has failed it.
            self._again.extendleft([tup for tup, _, _ in self._former][:0:-1])
            self._former.clear()
        return self._again.popleft() if self._again else None

    def end(self) -> None:
        """Execute nothing once more."""
        self._again.clear()


def _raise(error: WorkerFailedError) -> None:
    raise error


class _Recorder:
    """Collector of a Bolt: records the calls of user code on the bolt's thread, and passes on those
    of other threads.
    """

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self.thread = 0
        self.current: Tuple | None = None
        self._calls: list[tuple[str, tuple[Any, ...]]] = []

    def take(self, failed: Tuple | None) -> Calls:
        """The calls since the last time; of an execute that failed, what does not depend on its
        success.
        """
        calls = self._calls
        self._calls = []
        if failed is None:
            return calls
        # Its emissions and acks are undone with it; a report, and the fail of another input, stay.
        return [
            c for c in calls if c[0] == "report_error" or (c[0] == "fail" and c[1][0] is not failed)
        ]

    def failure_of(self, tup: Tuple) -> Failure | None:
        """Return the bolt's verdict of failure on this input, or nothing."""
        return next(
            (
                verdict(args[1])
                for method, args in self._calls
                if method == "fail" and args[0] is tup
            ),
            None,
        )

    def emit(self, values: Any, anchors: Any = None, stream: str = "default") -> None:
        self._call("emit", self._collector.check(values, stream), anchors, stream)

    def emit_direct(
        self, task: int, values: Any, anchors: Any = None, stream: str = "default"
    ) -> None:
        self._call(
            "emit_direct", task, self._collector.check(values, stream, task), anchors, stream
        )

    def ack(self, tup: Tuple) -> None:
        self._call("ack", tup)

    def fail(self, tup: Tuple, reason: str | BaseException = "") -> None:
        self._call("fail", tup, reason)

    def reset_timeout(self, tup: Tuple) -> None:
        # At once: it does not depend on the success of the call.
        self._collector.reset_timeout(tup)

    def report_error(self, error: BaseException | str) -> None:
        self._call("report_error", error)

    def note(self, method: str, *arguments: Any) -> None:
        """Write a call of the bolt's thread down."""
        self._calls.append((method, arguments))

    def _call(self, method: str, *arguments: Any) -> None:
        # A third thread, of the user's own, calls the loop directly, as in a bolt without
        # `blocking`.
        if threading.get_ident() == self.thread:
            self._calls.append((method, arguments))
        else:
            getattr(self._collector, method)(*arguments)


class _BasicRecorder:
    """Collector of a BasicBolt over the same recorder."""

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder
        self.report_error = recorder.report_error

    def emit(self, values: Any, stream: str = "default") -> None:
        self._recorder.emit(values, self._recorder.current, stream)

    def emit_direct(self, task: int, values: Any, stream: str = "default") -> None:
        self._recorder.emit_direct(task, values, self._recorder.current, stream)
