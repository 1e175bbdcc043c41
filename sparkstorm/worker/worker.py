"""One worker as a stepped machine: read frames, run tasks within a budget, commit once; `step` never sleeps.

Laws: user code runs only between two commits of this owner; a crash before the commit leaves no trace, one after it
loses nothing; whatever a step could not finish waits in the store, never only in memory.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sparkstorm.clock import Clock
from sparkstorm.errors import MalformedFrameError, StoreFullError
from sparkstorm.executor.manual_runner import ManualRunner
from sparkstorm.executor.pieces import unfold
from sparkstorm.model.failure import Failure, FailureKind, killed
from sparkstorm.model.tuples import Tuple
from sparkstorm.model.values.metric_values import MetricValue
from sparkstorm.model.worker_messages import SetStatus
from sparkstorm.settings import EpochSettings
from sparkstorm.transport.base import Commit, Transport
from sparkstorm.transport.progress import BUSY, COMMIT, READ, STORE, Progress
from sparkstorm.worker.backpressure import Backpressure
from sparkstorm.worker.bolt_turns import BoltTurns
from sparkstorm.worker.counting.counters import Counters
from sparkstorm.worker.counting.loop_time import LoopTime
from sparkstorm.worker.counting.meters import Meters, Reporter
from sparkstorm.worker.epoch import Epoch, IdSource, key_source
from sparkstorm.worker.epoch_budget import Budget
from sparkstorm.worker.epoch_commit import CommitBuilder
from sparkstorm.worker.failed_inputs import FailedInputs
from sparkstorm.worker.idle_reasons import Waiting
from sparkstorm.worker.journal import reading
from sparkstorm.worker.read_window import ReadWindow
from sparkstorm.worker.sinks import Sinks, claimed
from sparkstorm.worker.spout_turns import SpoutTurns
from sparkstorm.worker.tasks.acker_task import CatchUp
from sparkstorm.worker.tasks.bolt_task import BoltTask
from sparkstorm.worker.tasks.circuit_breaker import CircuitBreaker
from sparkstorm.worker.tasks.store_witness import StoreWitness
from sparkstorm.worker.tasks.taps import Taps
from sparkstorm.worker.tasks.task_factory import TaskFactory, TaskSet, WorkerServices
from sparkstorm.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.worker.timeouts import Timeouts
from sparkstorm.worker.timers import TimerService

_CAREFUL_UNITS = 5000
_REFUSED_MS, _REFUSED_LONG_MS = 20, 200  # the longer one once patience is over and it was no use: a disk that is full
_PATIENCE = 50  # refusals, after which a commit goes through: this worker may be the only one who can free anything
_NEVER = float("inf")
_GATED_MS = 5  # between two looks at the backlog that holds a task back


class Worker:
    """One worker process's tasks and loop."""

    def __init__(
        self,
        plan: WorkerPlan,
        transport: Transport,
        clock: Clock,
        ids: IdSource,
        reporter: Reporter,
        wake: Callable[[], None] = lambda: None,
        make_budget: Callable[[EpochSettings], Budget] = Budget,
    ) -> None:
        self._plan = plan
        self._transport = transport
        self._clock, self._ids = clock, ids
        self._reporter, self._wake = reporter, wake
        claim = claimed(plan, transport, clock, ids)
        self._generation, self._seq = claim.generation, claim.seq
        with reading(f"{{{plan.topology_id}}}:progress"):
            self.progress = Progress.decode(claim.progress) if claim.progress else Progress(started_ms=clock.now_ms())
        self._meters = Meters(clock.now_ms)
        around = WorkerServices(
            clock.now_ms, ids, self._report, wake, key_source(plan.token_by_task), transport, self._metric_values
        )
        self._task_set = TaskFactory(plan, around).build(claim)
        self._origin, self.is_tracking = ids.root(), bool(plan.ackers)
        self._backpressure = Backpressure(plan)
        self._counters = Counters(plan, self._task_set, self.progress, self._meters)
        self._commit_builder = CommitBuilder(plan, self._task_set, clock.now_ms, self._origin, self._counters.edge)
        self._laps = LoopTime(self.progress.loop_us, clock.now_us())
        self._breaker = CircuitBreaker(plan, self._task_set.bolts, self._counters.of, self._report)
        self._failures = FailedInputs(plan, self._counters.of, self._report, clock.now_ms, self._breaker)
        self._timeouts = Timeouts(plan, self._task_set, transport, clock.now_ms(), self._report)
        self._timers = TimerService(plan, self._task_set, clock, self._backpressure, self._report, self._failures.park)
        self._waiting = Waiting(plan, self._task_set, self._backpressure, self._counters.of)
        self._sinks = Sinks(self._task_set, plan.settings.sink_patience_ms, self._failures, self._report)
        self.taps = Taps(self._task_set.emitters, transport)
        self._unprepared: Epoch | None = None  # an epoch that a sink could not prepare yet
        self._refused: Commit | None = None
        self._refusal = ""  # why the store refuses that commit
        self._refusals = 0
        self._budget = make_budget(EpochSettings.of(plan.conf))
        self._window = ReadWindow()
        self._careful_left = _CAREFUL_UNITS if plan.is_careful else 0
        around_bolts = (self._failures, self._timers, self._counters, self._meters, self.taps)
        self._bolt_turns = BoltTurns(
            self._task_set, clock, self._budget, self._backpressure, *around_bolts, self._origin, plan.is_careful
        )
        self._quarantined: list[bytes] = []
        self._last_gauges: Any = None
        self._low_ms: int | None = None  # as last committed
        self._has_news = False
        self._has_more = False  # whether the last epoch may have left something to read or to do
        self._order = deque(self._task_set.bolts.values())
        self._manual = [(bolt, bolt.runner) for bolt in self._order if isinstance(bolt.runner, ManualRunner)]
        around_spouts = (self._backpressure, self._budget, self._bolt_turns.deliver, self._breaker)
        self._spout_turns = SpoutTurns(plan, self._task_set, clock, *around_spouts)
        self._catch_up = CatchUp(self._task_set.ackers.values(), clock.now_ms())
        self._begun: Epoch | None = None  # an epoch in which spouts alone have run so far
        self._others_due_ms = 0.0  # when to step for anything but a spout; 0: at once
        self._witness = StoreWitness(plan, claim, clock.now_ms(), self._report)
        self._sinks.finish(clock.now_ms())

    def _metric_values(self, task: int) -> dict[str, MetricValue]:
        return self.progress.metrics_by_task.setdefault(task, {})

    def follow(self, order: SetStatus) -> None:
        """Follow the topology's status: spouts rest while it is inactive; an activation ends a pause by failures."""
        self._breaker.follow(order.activations)
        self._spout_turns.set_active(order.status == "ACTIVE")

    def ask_spouts(self) -> float | None:
        """Ask the spouts alone, while no input has come since the last step; return when to ask again, None to step now."""
        began_us = self._clock.now_us()
        if began_us >= 1000 * self._others_due_ms or any(s.has_callbacks for s in self._task_set.spouts.values()):
            return None
        epoch = Epoch(self._ids, self.is_tracking)
        self._laps.lap(self._laps.rest, began_us)
        did = self._spout_turns.ask_all(epoch)
        self._laps.lap(BUSY, self._clock.now_us())
        if did:
            self._begun, self._others_due_ms = epoch, 0.0
            return None
        now_ms = self._clock.now_ms()
        due_ms = self._spout_turns.next_due_ms(now_ms, now_ms + 1)
        return self._others_due_ms if due_ms is None else min(due_ms, self._others_due_ms)

    def step(self, now_ms: int) -> float | None:
        """Run one epoch; returns when to be called next, None when only input can wake us."""
        laps = self._laps
        laps.lap(laps.rest, self._clock.now_us())
        due_ms = self._step(now_ms)
        laps.lap(COMMIT, ended_us := self._clock.now_us())
        if self._refused is not None:
            laps.rest = STORE
        elif self._sinks.problem:
            laps.rest = COMMIT
        else:  # it comes back at once for what it has left: the loop looks for input and commands
            laps.rest = READ if due_ms is not None and 1000 * due_ms <= ended_us else self._waiting.state()
        return due_ms

    def _step(self, now_ms: int) -> float | None:
        self._others_due_ms = 0.0
        if self._refused is not None:
            self._has_more = True  # this step reads nothing
            return self._commit(self._refused, now_ms)
        if (due_ms := self._sinks.finish(now_ms)) is not None:
            return due_ms
        epoch, self._unprepared = self._unprepared or self._run_epoch(now_ms), None
        if (due_ms := self._sinks.prepare(epoch, now_ms)) is not None:
            self._unprepared = epoch
            return due_ms
        commit = Commit(
            self._plan.owner,
            self._plan.token_by_task,
            self._generation,
            self._seq + 1,
            watched=self._backpressure.watched,
            low_ms=0,
        )
        commit.parked, self._failures.parked = self._failures.parked, []
        commit.quarantined, self._quarantined = self._quarantined, []
        self._commit_builder.close(epoch, commit)
        return self._commit(commit, now_ms)

    def _run_epoch(self, now_ms: int) -> Epoch:
        self._read()
        self._laps.lap(READ, self._clock.now_us())
        epoch, self._begun = self._begun or Epoch(self._ids, self.is_tracking), None
        if self._catch_up and not self._catch_up.is_over(now_ms):
            return epoch  # without a message of its own
        for spout in self._task_set.spouts.values():
            began_us = self._clock.now_us()
            if spout.make_callbacks():
                self._bolt_turns.take_emitted(epoch, spout, now_ms)
            spout.spent.busy_us += self._clock.now_us() - began_us
        if self._careful_left:
            self._run_carefully(epoch, now_ms)
        else:
            self._run(epoch, now_ms)
        self._timeouts.check(now_ms)
        self._laps.lap(BUSY, self._clock.now_us())
        return epoch

    def close(self) -> None:
        """Clean up components after the last commit."""
        self._task_set.close()

    def summary(self) -> dict[str, Any]:
        """Counts by executor, the loop's time, and why spouts emit nothing, for the heartbeat."""
        self._laps.lap(self._laps.rest, self._clock.now_us())
        if self._counters.sample(self._clock.now_ms(), self._report):
            self._wake()  # a worker at rest commits them too
        found: dict[str, Any] = {**self._counters.by_executor(), "epochs": self._seq, "keeps": self._counters.keeps()}
        found["store"] = self._witness.figures()
        if self._backpressure.fullness:  # of a store that has a limit
            found["store_percent"] = round(100 * self._backpressure.fullness)
        found["loop_us"] = list(self.progress.loop_us)
        if self._spout_turns.is_active:
            found |= {"blocked": self._waiting.blocked(self._refusal or self._sinks.problem), "gated": self._waiting.gated()}
        if paused := self._breaker.shown():
            found |= {**paused, "blocked": [*paused["paused"], *found.get("blocked", ())]}
        return found

    @property
    def task_set(self) -> TaskSet:
        """The tasks of this moment, for simulations and inspection between two steps."""
        return self._task_set

    @property
    def is_settled(self) -> bool:
        """Return whether the last commit was applied, as far as this worker knows."""
        return self._refused is None

    @property
    def commits(self) -> tuple[int, int]:
        """Generation of the store and number of the last commit, as far as this worker knows."""
        return self._generation, self._seq

    @property
    def is_drained(self) -> bool:
        """Return whether all sources have ended and nothing is open or waiting in this worker."""
        return all(s.is_exhausted and not len(s.pending) for s in self._task_set.spouts.values()) and not any(
            b.is_waiting for b in self._task_set.bolts.values()
        )

    def _read(self) -> None:
        after = self._read_to()
        found = self._transport.poll(after, self._window.frames)
        self._has_more = self._window.note(found) or len(after) < len(self._task_set.inboxes)
        for entry in found:
            try:
                self._task_set.inboxes[entry.task].add(entry)
            except MalformedFrameError as error:
                self._quarantined.append(entry.data)
                self.progress.quarantined += 1
                text = f"undecodable frame {entry.id} put into quarantine: {error}"
                self._report(Failure(FailureKind.SYSTEM, text, self._plan.component_by_task[entry.task], entry.task))

    def _read_to(self) -> dict[int, str]:
        """Return the last entry read of each task that has room for more."""
        has_room = self._window.has_room
        return {t: i.read_to for t, i in self._task_set.inboxes.items() if has_room(len(i.chunks), i.waiting)}

    def _run(self, epoch: Epoch, now_ms: int) -> None:
        self._budget.begin(self._clock.now_ms())  # reading has taken time
        is_over, did = self._run_timed(epoch, now_ms), True
        while did and not is_over:
            did = False
            for _ in range(len(self._order)):
                bolt = self._order[0]
                self._order.rotate(-1)  # the next epoch begins where this one ends: a slow bolt starves nobody
                if bolt.feed or bolt.inbox.chunks:
                    did |= self._bolt_turns.run_bolt(epoch, bolt)
                    is_over = self._budget.is_over(epoch, self._clock.now_ms())
                    if is_over:
                        break
            if not is_over or self._spout_turns.have_waited(now_ms):
                did |= self._spout_turns.ask_all(epoch)
                is_over |= self._budget.is_over(epoch, self._clock.now_ms())
        while is_over and self._drain(epoch):
            pass
        self._budget.end(is_over)
        self._has_more |= is_over

    def _drain(self, epoch: Epoch) -> bool:
        """Run rows of this worker's own tasks beyond the budget: what is left of them goes through the store."""
        did = False
        for bolt in self._task_set.bolts.values():
            left = self._budget.left_to_drain(epoch, self._clock.now_ms())
            if left and bolt.feed and not bolt.is_full and not self._backpressure.is_shut(bolt.task):
                did |= self._bolt_turns.run_local(epoch, bolt, min(bolt.pace, left))
        return did

    def _run_timed(self, epoch: Epoch, now_ms: int) -> bool:
        """Ticks, what other threads have asked for, and second tries, before anything newer; whether the budget is over."""
        self._run_ticks(epoch, now_ms)
        self._take_posts(epoch)
        for bolt in self._task_set.bolts.values():
            while bolt.retries and not bolt.is_full and (due := bolt.due(now_ms, most=1)):
                began_us = self._clock.now_us()
                self._failures.try_again(epoch, bolt, due[0])
                self._bolt_turns.finish(epoch, bolt)
                bolt.spent.busy_us += self._clock.now_us() - began_us
                if self._budget.is_over(epoch, self._clock.now_ms()):
                    return True
        return False

    def _run_ticks(self, epoch: Epoch, now_ms: int) -> None:
        began_us = self._clock.now_us()
        for bolt in self._timers.run_ticks(epoch, now_ms):
            self._bolt_turns.finish(epoch, bolt)
            ended_us = self._clock.now_us()
            bolt.spent.busy_us += ended_us - began_us
            began_us = ended_us

    def _take_posts(self, epoch: Epoch) -> None:
        for bolt, runner in self._manual:
            if runner.has_posts:
                began_us = self._clock.now_us()
                bolt.begin(began_us // 1000)
                runner.take_posts()
                self._bolt_turns.finish(epoch, bolt)
                bolt.spent.busy_us += self._clock.now_us() - began_us

    def _run_carefully(self, epoch: Epoch, now_ms: int) -> None:
        """One input per commit, announced first: an earlier process died in here (finding: poison tuples)."""
        self._take_posts(epoch)
        if any(bolt.is_thread_busy for bolt in self._task_set.bolts.values()):
            return  # the input under suspicion is with a thread: nothing else may be blamed for it
        self._run_ticks(epoch, now_ms)
        if (fired := self._timers.fire_one(epoch, now_ms, self._reporter.trying, self._failures.poison)) is not None:
            self._bolt_turns.deliver(epoch, fired)
        bolts = self._task_set.bolts.values()
        did = (
            fired is not None
            or any(self._try_held(epoch, bolt, now_ms) for bolt in bolts if not bolt.is_paused)
            or any(self._try_bolt(epoch, bolt) for bolt in bolts if not self._backpressure.is_shut(bolt.task))
        )
        if not did:
            for spout in self._task_set.spouts.values():
                self._reporter.trying(spout.task, "spout", 0)
                did |= self._spout_turns.ask_one(epoch, spout, 1)
        self._has_more |= did
        self._careful_left -= did  # an idle worker has not shown that it survives anything
        if self._careful_left == 0:
            self._bolt_turns.is_careful = False
            self._reporter.passed()

    def _try_held(self, epoch: Epoch, bolt: BoltTask, now_ms: int) -> bool:
        for held in bolt.due(now_ms, most=1):
            if poison := self._failures.poison(row := (bolt.task, f"held:{held.key}", 0)):
                bolt.let_go(held.key)
                self._failures.park(epoch, bolt, held.tuple, poison.deaths, killed(poison.deaths, poison.end))
            else:
                self._reporter.trying(*row)
                self._failures.try_again(epoch, bolt, held)
                self._bolt_turns.finish(epoch, bolt)
            return True
        return False

    def _try_bolt(self, epoch: Epoch, bolt: BoltTask) -> bool:
        chunk = bolt.next_chunk()
        if chunk is None or bolt.is_full:
            return False
        if poison := self._failures.poison(row := (bolt.task, chunk.entry, chunk.done)):
            tup = Tuple(*unfold(chunk.part(chunk.done, chunk.done + 1))[0])
            self._failures.park(epoch, bolt, tup, poison.deaths, killed(poison.deaths, poison.end))
            self._bolt_turns.consume(epoch, bolt, chunk, 1)
            return True
        self._reporter.trying(*row)
        self._bolt_turns.run_chunk(epoch, bolt, chunk, 1)
        return True

    def _commit(self, commit: Commit, now_ms: int) -> float | None:
        """Ask for more, write, then say when to come again; a store that is full is asked again after garbage was freed."""
        self._transport.ask(self._read_to(), self._window.frames)
        if self._refused is None:
            self._counters.note(now_ms, self._clock.now_us(), self._commit_builder.take_latencies())
            gauges = self._counters.gauges()
            self._has_news = not commit.is_empty() or gauges != self._last_gauges or commit.low_ms != self._low_ms
            if not self._has_news and not self._backpressure.must_ask:
                return self._next_due(now_ms, did=False)
            self._last_gauges = gauges
            self._counters.note_commit(commit)
            commit.progress = self.progress.encode()
            if commit.low_ms == self._low_ms:
                commit.low_ms = None  # as the store has it
        began_us = self._clock.now_us()
        try:
            pressure = self._transport.commit(commit)
        except StoreFullError as error:
            return self._keep_refused(commit, error, now_ms)
        self._budget.note_commit((self._clock.now_us() - began_us) / 1000)
        self._refused, self._refusals, self._refusal = None, 0, ""
        self._seq, self._low_ms = commit.seq, self._low_ms if commit.low_ms is None else commit.low_ms
        self._backpressure.note(pressure)
        self._witness.note(pressure.step, now_ms)
        self._task_set.settle()
        self._sinks.note_commit()
        self.taps.publish(now_ms, has_committed=True)
        due_ms = self._sinks.finish(self._clock.now_ms())
        return self._next_due(self._clock.now_ms(), did=self._has_news) if due_ms is None else due_ms

    def _keep_refused(self, commit: Commit, error: StoreFullError, now_ms: int) -> int:
        """Keep a refused commit for the next step, and free what may be freed; returns when to try again."""
        self._refused, self._refusal = commit, str(error)
        self._refusals += 1
        commit.is_urgent = self._refusals >= _PATIENCE
        with contextlib.suppress(StoreFullError):  # a full disk refuses this write too
            self._transport.release()
        return now_ms + (_REFUSED_MS if self._refusals < 2 * _PATIENCE else _REFUSED_LONG_MS)

    def _next_due(self, now_ms: int, did: bool) -> float | None:
        """Return when to step again: at once for what this step left undone, else for what comes by time."""
        if did and (self._has_more or self._sinks or self._timers.has_senders):
            return now_ms  # watermarks follow what this commit has settled
        due = [self._timers.next_due_ms(), self._timeouts.next_due_ms()]
        bolts = self._task_set.bolts.values()
        due += [bolt.next_due_ms() for bolt in bolts]
        # a commit may have opened a gate or ended trees
        gated_ms, rested_ms = (
            (now_ms, now_ms) if did else (now_ms + _GATED_MS, now_ms + (_GATED_MS if self._backpressure.must_ask else 1))
        )
        due += [gated_ms for bolt in bolts if bolt.inbox.chunks and not bolt.is_paused and bolt.next_chunk() is not None]
        others_ms = min((d for d in due if d is not None), default=_NEVER)
        self._others_due_ms = (
            0.0 if self._careful_left or self._sinks or self._backpressure.must_ask or self._catch_up else others_ms
        )
        spouts_ms = self._spout_turns.next_due_ms(now_ms, rested_ms)
        first_ms = others_ms if spouts_ms is None else min(others_ms, spouts_ms)
        return None if first_ms == _NEVER else first_ms

    def _report(self, failure: Failure, count: int = 1) -> None:
        """Count failures by their cause, and tell the first."""
        placed = self._plan.placed(replace(failure, time_ms=failure.time_ms or self._clock.now_ms()))
        self.progress.count_failure(placed, count)
        self._meters.note_failure(placed)
        self._reporter.error(placed)
