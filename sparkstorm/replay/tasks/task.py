"""One bolt task in a replay: the live runner and state around user code, under virtual time.

A row has its virtual time where a live row has its roots. So emitted rows inherit the time of their
input, and `context.now_ms` reads the same field.

Ticks come at whole multiples of their period, in virtual time (live ticks come by the wall clock).
Without an event time no time passes, and there are no ticks.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from itertools import groupby, islice, repeat
from operator import itemgetter
from typing import Any

from sparkstorm.api.columns import ColumnBolt
from sparkstorm.api.combining import COMBINED_STREAM
from sparkstorm.api.components import BasicBolt, Bolt, Stateful
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.windows import TimedBolt, WindowedBolt
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.tuples import Source, Tuple, tuples_of
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.windowing.watermarks import NEVER
from sparkstorm.data_plane.executor.emitter import Emitter, Route
from sparkstorm.data_plane.executor.manual_runner import ManualRunner
from sparkstorm.data_plane.executor.output_clock import OutputClock
from sparkstorm.data_plane.executor.pieces import count_rows
from sparkstorm.data_plane.executor.runner import BasicRunner, FailedInput, RetryPolicy, Runner
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, describe_error
from sparkstorm.data_plane.executor.windowed_runner import TimedRunner
from sparkstorm.data_plane.task_kit.held import Originals, copied, fresh
from sparkstorm.data_plane.task_kit.task import LOST_IN_CLEANUP, Task, TickSchedule, make_runner
from sparkstorm.data_plane.task_kit.task_parts import Outputs, TaskParts
from sparkstorm.replay.savepoints import Begun
from sparkstorm.replay.tasks.attributes import Attributes
from sparkstorm.replay.tasks.column_state import ColumnState, ReplayColumns

AnyBolt = Bolt | BasicBolt | WindowedBolt | TimedBolt
_AT = itemgetter(1)
_SOURCE = itemgetter(2)
# Characters of a record in an error: Spark repeats the sentence in the logs of every attempt, and a
# record may have megabytes. Half shows less of a wide record, double makes a page of a sentence.
_SHOWN_RECORD = 500
# With skip_bad the emitter counts what was emitted since the last call of take_emitted, and fails
# the input that brings it to a million rows: 64 inputs may emit 15,625 each before one without a
# fault is put aside. Twice as many halve that, half as many double the calls.
_STRICT_ROWS = 64
# What undoes 512 rows stays in the processor's caches (decision 41). Values in
# lists of 512 took 276 to 396 ns a row, bare ones 220 to 334 (decision 52).
AT_ONCE = 512
"""Rows that are executed before what undoes them is forgotten."""
# Between two posts of a bolt's own threads; a longer silence counts its
# inputs as waiting. Half of it would give up on slow services, twice as
# much delays the end of a replay whose bolt forgets inputs.
_THREADS_PATIENCE_SECS = 10.0


@dataclass(slots=True)
class ReplayCounts:
    """Counters of one task."""

    prepared: int = 0
    executed: int = 0
    emitted: int = 0
    parked: int = 0
    waiting: int = 0  # inputs neither acked nor failed at the end
    reports: int = 0
    late: int = 0
    floats: int = 0  # numbers in the final state whose sums are rounded: floats and decimals
    held: int = 0  # inputs that were neither acked nor failed when execute returned
    changed: int = 0  # 1 for a task whose bolt's attributes changed while it ran
    mixed: int = 0  # 1 for a task that got rows of several senders or streams
    failures: int = 0  # tries that failed
    # 1 for a task with rows of the same event time in one window, or next to each other
    ties: int = 0
    chains: int = 0  # 1 for a task whose timers have set timers when they fired
    asked: int = 0  # 1 for a task whose bolt has asked for the watermark
    order_matters: int = 0  # 1 for a task whose fold gave another result for two tuples exchanged
    untried: int = 0  # 1 for a task whose fold was not tried so, as it uses more than its arguments
    shared: int = 0  # 1 for a task whose fold and `execute` use the same state or attributes
    scanned: int = 0  # keys of the state that `scan` has read
    walked: int = 0  # 1 for a task whose bolt has gone through the keys of its state
    lost: int = 0  # 1 for a task whose bolt has emitted, or put, in `cleanup`
    recovered: int = 0  # inputs that succeeded after a failed try

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


class ClockedEmitter(Emitter):
    """Emitter that stamps rows with the time of the task instead of their anchors' roots."""

    __slots__ = ("at_ms",)
    roots_slot = "at_ms"

    def __init__(self, component: str, routes: Mapping[str, Route], is_strict: bool) -> None:
        self.at_ms = 0
        super().__init__(component, routes, is_strict)

    @property
    def roots(self) -> int:
        """The time of the task."""
        return self.at_ms

    @roots.setter
    def roots(self, _: Any) -> None:
        """Ignore the roots of anchors."""


@dataclass(frozen=True, slots=True)
class TaskMode:
    """Settings of a task for failing inputs and time."""

    is_timed: bool
    policy: RetryPolicy
    is_keyed: bool = False  # inputs are executed and counted one by one: effects have keys
    columns: bool = False  # a ColumnBolt gets batches
    tick_ms: int | None = None  # period of ticks, in a replay with times

    @property
    def skip_bad(self) -> bool:
        """Return whether bad records are put aside: to find them, every value is checked."""
        return self.policy.is_parking


class ReplayTask(Task):
    """One task of any bolt, from prepare to cleanup."""

    def __init__(self, bolt: AnyBolt, outputs: Outputs, codec: Codec, mode: TaskMode) -> None:
        is_basic = isinstance(bolt, BasicBolt)
        # Runners of other bolts set `roots` from the anchors, which would be no time here. A
        # BasicBolt's emission descends from the one input, whose time is in its row already.
        kind = Emitter if is_basic else ClockedEmitter
        emitter = kind(outputs.component, outputs.routes, mode.skip_bad)
        emitter.timed_outputs = outputs.timed_outputs
        state = _state(codec, mode) if isinstance(bolt, Stateful) else None
        super().__init__(outputs.task, outputs.component, bolt, emitter, state)
        self.counts = ReplayCounts()
        self._dead: list[bytes] = []
        self._codec = codec
        self._mode = mode
        self._ticks = TickSchedule(mode.tick_ms if mode.is_timed else None)
        self._one_by_one = (mode.is_timed and not is_basic) or mode.is_keyed
        self._woken = threading.Event()
        self._threads_before = threading.active_count()
        self._attributes = Attributes(bolt)
        # time of the newest input: a failed one that is tried again sets `now_ms` back
        self._reached_ms = 0
        self._senders: set[tuple[int, str]] = set()
        self._originals: Originals | None = None  # of the rows that run

    def begin(self, begun: Begun, parts: TaskParts, tasks: Collection[int]) -> None:
        """Continue from a state and clocks, and call the bolt's prepare and init_state, as one of
        these tasks of the host.
        """
        if self.state is not None:
            pairs = [*begun.state]
            self.state.load(pairs)
            if more := len(pairs) - len(self.state):
                raise ReplayFailedError(
                    f"initial state of '{self.component}' (task {self.task}): {counted(more, 'row')} with the key of another "
                    "one: keep the column task of a state that was taken, or put the values of each key together"
                )
        self.stored_version = begun.version
        for output in self.emitter.timed_outputs:
            output.restore(begun.clocks.get((output.stream, output.subscriber), NEVER))
        self.prepare(parts.context(self.task, tasks, self.now_ms, effect_key=self.effect_key))

    def prepare(self, context: TopologyContext) -> None:
        """Make the runner and call the bolt's prepare and init_state; ReplayFailedError when they
        raise.
        """
        self.counts.prepared += 1
        self.metrics = context.metrics
        self.metrics.bind(self.emitter.note)
        self.runner = self._make_runner()
        self.runner.take_failed = self._try_again
        try:
            super().prepare(context)
        except USER_ERRORS as error:
            raise ReplayFailedError(
                f"component '{self.component}' (task {self.task}) could not be prepared: {describe_error(error)}"
            ) from error
        self._attributes.begin()
        if self.state is not None:
            self.state.walked = False  # by `migrate_state` or `init_state`

    def _make_runner(self) -> Runner:
        columns = ReplayColumns if self._mode.columns else None
        return make_runner(
            self.task, self.bolt, self.emitter, self.state, self._report, self._woken.set, columns
        )

    def now_ms(self) -> int:
        """Return the virtual time: that of the input or tick being executed."""
        return int(self.emitter.roots) if not isinstance(self.emitter.roots, tuple) else 0

    def effect_key(self) -> str:
        """Return a name of the input being executed, the same in every run and retry;
        ReplayFailedError unless they are counted.
        """
        # Not known from the bolt alone: only inputs that are executed one by one have a
        # place that is the same in every run, and that costs, so a bolt must ask for it.
        if not self._mode.is_keyed:
            raise ReplayFailedError(
                f"component '{self.component}' calls effect_key(), but is not idempotent: declare effects = Effects.IDEMPOTENT"
            )
        return f"{self.component}/{self.task}/{self.counts.executed}"

    @property
    def takes_pieces(self) -> bool:
        """Return whether Arrow batches stay whole on their way to the bolt."""
        return isinstance(self.runner, ReplayColumns)

    @property
    def types(self) -> Mapping[str, Any]:
        """Return the Arrow types by field that a bolt of columns declares."""
        return self.bolt.types if isinstance(self.bolt, ColumnBolt) else {}

    def execute(self, rows: Sequence[Any]) -> None:
        """Execute rows, and pieces if it takes them, in this order, and the ticks that are due
        between them.
        """
        start = 0
        count = len(rows)
        while start < count:
            self._ticks.begin(rows[start][1])
            due_ms = self._ticks.due_ms
            end = count if due_ms is None else bisect_left(rows, due_ms, lo=start, key=_AT)
            if due_ms is not None and end == start:
                self._tick(self._ticks.take(due_ms, due_ms))
            else:
                # Usually no tick falls into a list, and then it is not copied.
                self._execute(rows[start:end] if end - start < count else rows)
                start = end
        self._reached_ms = max(self._reached_ms, _AT(rows[-1]))

    def note_sender(self, source: Source, senders: int = 1) -> None:
        """Note a sender of this task's rows; data counts as sent by `senders` tasks."""
        self._senders.add((source.task, source.stream))
        if senders > 1 or len(self._senders) > 1:
            self.counts.mixed = 1

    def end(self, is_open: bool = False) -> None:
        """End the task: wait for the bolt's own threads, then call cleanup."""
        if isinstance(self.runner, ManualRunner):
            self._wait_for_threads(self.runner)
            self.counts.held = self.runner.held
        # Before cleanup, which may change attributes when nothing depends on them any more.
        self._attributes.look(0, is_last=True)
        self.counts.changed = int(bool(self._attributes.changed))
        if self.state is not None:
            self.counts.floats = self.state.count_of(float, Decimal)
            self.counts.scanned = self.state.scanned
            self.counts.walked = int(self.state.walked)
        if (failure := self.clean_up()) is not None:
            self.counts.lost = int(failure.text == LOST_IN_CLEANUP)
            self._report(failure)

    def release(self) -> None:
        """Free the state after `end`. The task is in reference cycles: a collection that found it
        would visit every key.
        """
        # The task is in reference cycles. The collection at the end of a partition,
        # which would find it, visited every key: 40 to 90 ms of a task of 1 M rows.
        if self.state is not None:
            self.state.release()

    def take_emitted(self) -> None:
        """Count emitted rows; they can no longer be undone."""
        self.counts.emitted += self.emitter.take_counts()[0]
        if self.state is not None:
            self.state.undo.clear()

    def take_dead(self) -> list[bytes]:
        """Return the records put aside since the last call."""
        taken = self._dead
        self._dead = []
        return taken

    @property
    def low_ms(self) -> int:
        """Return the time up to which windows and timers have fired; NEVER for a bolt without
        any.
        """
        return NEVER

    def behind_mark_ms(self, output: OutputClock) -> int:
        """Return how far a row was behind a watermark that this task can have announced: a bolt
        without windows announces none.
        """
        return 0

    def kept_time(self) -> list[list[Any]]:
        """Return the entries of event time that a live task would keep in its store."""
        return [
            [("h", output.stream, output.subscriber), output.clock.newest_ms]
            for output in self.emitter.timed_outputs
            if output.clock is not None and output.clock.newest_ms != NEVER
        ]

    def put_marks(self, has_ended: bool = False) -> None:
        """Send watermarks to receivers by event time, behind the rows sent so far."""
        for output in self.emitter.timed_outputs:
            if output.clock is not None and output.put_marks(
                self.low_ms, has_ended, lambda target: True
            ):
                for target in output.marks.values():
                    # A failed input that was tried again has set the time back. A
                    # mark with that time would come before rows that it follows,
                    # and they would be late for windows that it fires.
                    now_ms = max(self._reached_ms, self.now_ms())
                    target.rows[:] = [
                        (values, at_ms or now_ms, source) for values, at_ms, source in target.rows
                    ]

    def run_values(
        self,
        values: Iterator[tuple[Any, ...]],
        count: int,
        source: Source,
        originals: Originals,
    ) -> None:
        """Execute values of one source, `count` in all, in a replay without times."""
        mode = self._mode
        if (
            mode.is_timed
            or mode.skip_bad
            or mode.is_keyed
            or not isinstance(self.runner, BasicRunner)
        ):
            while part := list(
                zip(islice(values, AT_ONCE), repeat(0), repeat(source), strict=False)
            ):
                self.execute(part)
            return
        # Values stay bare up to here: a row around each, and what undoes 512 of them, cost a fifth
        # of the call and more (220 to 330 ns against 280 to 400, decision 52).
        self._originals = originals
        self.runner.execute_values(values, source)
        self.counts.executed += count
        self._attributes.look(count)

    def _execute(self, rows: Sequence[Any]) -> None:
        columns = self.runner
        if not isinstance(columns, ReplayColumns):
            self._execute_rows(rows)
            return
        for source, group in groupby(rows, key=_SOURCE):
            part = list(group)
            size = count_rows(part)
            failed = 0
            # Pairs of a combiner are no batch: their fields are
            # a key and a value, not those of the stream.
            for singles in [part] if source.stream == COMBINED_STREAM else columns.left_over(part):
                failed += len(singles)
                self._execute_rows(singles)
            self.counts.executed += size - failed
            self._attributes.look(size - failed)

    def _execute_rows(self, rows: Sequence[Any]) -> None:
        """Execute rows in parts: short ones, so that what undoes them stays in the processor's
        caches.
        """
        most = 1 if self._one_by_one else _STRICT_ROWS if self._mode.skip_bad else AT_ONCE
        for start in range(0, len(rows), most):
            part = rows[start : start + most]
            if isinstance(self.emitter, ClockedEmitter):
                self.emitter.at_ms = part[0][1]
            self._originals = copied(self._codec, part)
            for failed in self._run_part(part):
                self._try_again(failed)
            self.counts.executed += len(part)
            self._attributes.look(len(part))
            if isinstance(self.runner, ManualRunner):
                self._take_late(self.runner)
            # With skip_bad always, since the emitter counts what one input emits by what was not
            # taken. Else not after single rows: it costs a call, and `_run_local` does it for all.
            if self._mode.skip_bad or most > 1:
                self.take_emitted()

    def _run_part(self, part: Sequence[Any]) -> Iterable[FailedInput]:
        if isinstance(self.runner, BasicRunner | TimedRunner):
            return [
                (Tuple(*part[index]), failure) for index, failure in self.runner.execute_rows(part)
            ]
        failed: Iterable[FailedInput] = self.runner.execute_tuples(tuples_of(part))
        return failed

    def _tick(self, tick: Tuple) -> None:
        if isinstance(self.emitter, ClockedEmitter):
            self.emitter.at_ms = int(tick.roots)  # type: ignore[arg-type]
        self.runner.take_failed = None  # a tick has one try
        for _, failure in self.execute_tick(tick):
            self._report(failure)
        self.runner.take_failed = self._try_again

    def _try_again(self, failed_input: FailedInput) -> None:
        """Try a failed input again, as live but at once: virtual time does not pass between two
        tries.
        """
        self.runner.take_failed = None
        try:
            self._try_while_allowed(*failed_input)
        finally:
            self.runner.take_failed = self._try_again

    def _try_while_allowed(self, tup: Tuple, failure: Failure) -> None:
        self.counts.failures += 1
        tries = 1
        original = tup.values if self._originals is None else self._originals.of(tup.values)
        tup = Tuple(fresh(self._codec, original), tup.roots, tup.source)
        while self._mode.policy.wait_ms(tries) is not None:
            failed = self.runner.execute_tuples([tup])
            if not failed:
                self.counts.recovered += 1
                return
            failure = failed[0][1]
            tries += 1
            tup = Tuple(fresh(self._codec, original), tup.roots, tup.source)
        self._require_parking("records", f"record {tup!r:.{_SHOWN_RECORD}}", tries, failure)
        self.runner.forget(tup)
        self._park(tup, tries, failure)

    def _require_parking(self, kind: str, what: str, tries: int, failure: Failure) -> None:
        """End the replay, unless its policy parks what keeps failing."""
        if not self._mode.policy.is_parking:
            raise ReplayFailedError(
                f"component '{self.component}' (task {self.task}) failed {tries} times on {what}: {failure.text}; "
                f"skip_bad puts such {kind} aside"
            )

    def _park(self, tup: Tuple, tries: int, failure: Failure) -> None:
        self.counts.parked += 1
        failure = replace(failure, component=self.component, task=self.task, time_ms=self.now_ms())
        self._dead.append(
            DeadLetter.of(self.runner.parked_as(tup), failure, tries).encode(self._codec)
        )

    def _take_late(self, runner: ManualRunner) -> None:
        runner.take_posts()
        _, failures = runner.take_late()
        for failed in failures:
            self._try_again(failed)

    def _wait_for_threads(self, runner: ManualRunner) -> None:
        self._take_late(runner)
        # A bolt without its own threads will never post anything.
        if threading.active_count() > self._threads_before:
            while runner.outstanding and self._woken.wait(_THREADS_PATIENCE_SECS):
                self._woken.clear()
                self._take_late(runner)
        self.counts.waiting = runner.outstanding

    def _report(self, failure: Failure) -> None:
        self.counts.reports += 1


def _state(codec: Codec, mode: TaskMode) -> MemoryState:
    return (
        ColumnState(codec)
        if mode.columns and not mode.skip_bad
        else MemoryState(codec, mode.skip_bad)
    )
