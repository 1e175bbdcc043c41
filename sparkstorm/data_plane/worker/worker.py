"""One worker as a stepped machine: read frames, run tasks within a budget, commit once; `step`
never sleeps.

Laws: user code runs only between two commits of this owner; a crash before the commit leaves no
trace, one after it loses nothing; all work that a step could not finish waits in the store, never
only in memory. Left out: a thread for each executor, as Storm has. Python's lock would leave all
but one of them waiting, and one commit for all tasks would need them to stop together (decision
24).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from sparkstorm.common.errors import MalformedFrameError, StoreFullError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.worker_messages import SetStatus
from sparkstorm.common.settings import EpochSettings
from sparkstorm.data_plane.transport.base import Commit
from sparkstorm.data_plane.transport.progress import BUSY, COMMIT, READ, STORE, Progress
from sparkstorm.data_plane.worker.backpressure import LOOK_MS
from sparkstorm.data_plane.worker.bolt_turns import BoltTurns
from sparkstorm.data_plane.worker.careful_turns import CarefulTurns
from sparkstorm.data_plane.worker.commits import Commits
from sparkstorm.data_plane.worker.counting.loop_time import LoopTime
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.epoch_budget import Budget
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.read_window import ReadWindow
from sparkstorm.data_plane.worker.sinks import Sinks
from sparkstorm.data_plane.worker.spout_turns import SpoutTurns, Waiting
from sparkstorm.data_plane.worker.tasks.acker_task import CatchUp
from sparkstorm.data_plane.worker.tasks.store_witness import StoreWitness
from sparkstorm.data_plane.worker.tasks.task_set import TaskSet
from sparkstorm.data_plane.worker.timers import Timeouts, TimerService

_NEVER = float("inf")


class Worker:
    """One worker process's tasks and loop."""

    def __init__(
        self, parts: WorkerParts, make_budget: Callable[[EpochSettings], Budget] = Budget
    ) -> None:
        self.parts = parts
        plan = parts.plan
        clock = parts.clock
        self._laps = LoopTime(self.progress.loop_us, clock.now_us())
        self._budget = make_budget(EpochSettings.of(plan.conf))
        self._window = ReadWindow()
        self._timeouts = Timeouts(parts)
        self._timers = TimerService(parts)
        self._sinks = Sinks(parts)
        self._bolt_turns = BoltTurns(parts, self._budget, self._timers)
        self._spout_turns = SpoutTurns(parts, self._budget, self._bolt_turns.deliver)
        self._careful = CarefulTurns(parts, self._timers, self._bolt_turns, self._spout_turns)
        self._commits = Commits(parts)
        self._waiting = Waiting(parts)
        self._catch_up = CatchUp(self.parts.task_set.ackers.values(), clock.now_ms())
        self._witness = StoreWitness(plan, parts.claim, clock.now_ms(), parts.report)
        # User code has run in it: running it again would write rows to the sink twice.
        self._unprepared: Epoch | None = None  # an epoch that a sink could not prepare yet
        self._begun: Epoch | None = None  # an epoch in which spouts alone have run so far
        self._has_more = False  # whether the last epoch may have left something to read or to do
        # last entries read, as the last commit has asked behind them; empty: to be found anew
        self._after: dict[int, str] = {}
        self._order = deque(self.parts.task_set.bolts.values())
        self._others_due_ms = 0.0  # when to step for anything but a spout; 0: at once
        # The former owner may have died between its commit in the store and that in the target.
        self._sinks.finish(clock.now_ms())

    def follow(self, order: SetStatus) -> None:
        """Follow the topology's status: spouts rest while it is inactive; an activation ends a
        pause by failures.
        """
        self.parts.breaker.follow(order.activations)
        self._spout_turns.set_active(order.status == "ACTIVE")

    def ask_spouts(self) -> float | None:
        """Ask the spouts alone, while no input has come since the last step; return when to ask
        again, None to step now.
        """
        began_us = self.parts.clock.now_us()
        # A spout alone needs no look at bolts, timers and meters. With a step for each question the
        # median latency at 200 tuples/s was 3.05 ms instead of 1.95. Callbacks need a step: they
        # may emit.
        if began_us >= 1000 * self._others_due_ms or any(
            s.has_callbacks for s in self.parts.task_set.spouts.values()
        ):
            return None
        epoch = Epoch(self.parts.ids, self.is_tracking)
        self._laps.lap(self._laps.rest, began_us)
        did = self._spout_turns.ask_all(epoch)
        self._laps.lap(BUSY, self.parts.clock.now_us())
        if did:
            self._begun = epoch
            self._others_due_ms = 0.0
            return None
        # The mark of a source's end goes out with a commit: windows would wait for the next timer.
        if any(s.must_say_end for s in self.parts.task_set.spouts.values()):
            return None
        now_ms = self.parts.clock.now_ms()
        due_ms = self._spout_turns.next_due_ms(now_ms, now_ms + 1)
        return self._others_due_ms if due_ms is None else min(due_ms, self._others_due_ms)

    def step(self, now_ms: int) -> float | None:
        """Run one epoch; returns when to be called next, None when only input can wake us."""
        laps = self._laps
        laps.lap(laps.rest, self.parts.clock.now_us())
        due_ms = self._step(now_ms)
        laps.lap(COMMIT, ended_us := self.parts.clock.now_us())
        if self._commits.refused is not None:
            laps.rest = STORE
        elif self._sinks.problem:
            laps.rest = COMMIT
        else:  # it comes back at once for what it has left: the loop looks for input and commands
            laps.rest = (
                READ if due_ms is not None and 1000 * due_ms <= ended_us else self._waiting.state()
            )
        return due_ms

    def _step(self, now_ms: int) -> float | None:
        self._others_due_ms = 0.0
        # The refused commit goes first: another epoch would build on changes that the store does
        # not have.
        if self._commits.refused is not None:
            # Entries that come meanwhile would otherwise wait for the next occasion to step
            # (tests/worker/test_commits.py).
            self._has_more = True  # this step reads nothing
            return self._commit(self._commits.refused, now_ms)
        # Targets are up to date before rows run: else two epochs of a sink could be open at once,
        # and `recover` gets one only.
        if (due_ms := self._sinks.finish(now_ms)) is not None:
            return due_ms
        epoch = self._unprepared or self._run_epoch(now_ms)
        self._unprepared = None
        if (due_ms := self._sinks.prepare(epoch, now_ms)) is not None:
            self._unprepared = epoch
            return due_ms
        return self._commit(self._commits.build(epoch), now_ms)

    def _run_epoch(self, now_ms: int) -> Epoch:
        self._read()
        self._laps.lap(READ, self.parts.clock.now_us())
        epoch = self._begun or Epoch(self.parts.ids, self.is_tracking)
        self._begun = None
        # Nothing runs yet: the messages of an epoch are applied with its commit and could overtake
        # those that a former owner of a task has sent (decision 49).
        if self._catch_up and not self._catch_up.is_over(now_ms):
            return epoch  # without its own message
        for spout in self.parts.task_set.spouts.values():
            began_us = self.parts.clock.now_us()
            # Here and not where verdicts are read: the verdicts are consumed by the last commit, so
            # a crash now repeats the call, and no `ack` comes for a message that the store still
            # calls open.
            if spout.make_callbacks():
                self._bolt_turns.take_emitted(epoch, spout, now_ms)
            spout.spent.add(self.parts.clock.now_us() - began_us)
        if self._careful:
            self._has_more |= self._careful.run(epoch, now_ms)
        else:
            self._run(epoch, now_ms)
        self._timeouts.check(now_ms)
        self._laps.lap(BUSY, self.parts.clock.now_us())
        return epoch

    def close(self) -> None:
        """Clean up components after the last commit."""
        # Not left to the next owner's `recover`: a topology that is killed has none.
        self._sinks.finish_at_stop(self.parts.clock.now_ms())
        self.parts.task_set.close()

    def summary(self) -> dict[str, Any]:
        """Counts by executor, the loop's time, and why spouts emit nothing, for the heartbeat."""
        self._laps.lap(self._laps.rest, self.parts.clock.now_us())
        now_ms = self.parts.clock.now_ms()
        has_sampled = self.parts.counters.sample(now_ms, self.parts.report)
        if has_sampled or self._witness.must_look(now_ms):
            self.parts.wake()  # a worker at rest commits them too, and looks at its store
        summary: dict[str, Any] = {
            **self.parts.counters.by_executor(),
            "epochs": self._commits.seq,
            "keeps": self.parts.counters.keeps(),
        }
        summary["store"] = self._witness.figures()
        if fullness := self.parts.backpressure.fullness:  # of a store that has a limit
            summary["store_percent"] = round(100 * fullness)
        summary["loop_us"] = list(self.progress.loop_us)
        if self._spout_turns.is_active:
            summary |= {
                "blocked": self._waiting.blocked(self._commits.refusal or self._sinks.problem),
                "held_back": self._waiting.held_back(),
            }
        if paused := self.parts.breaker.shown():
            summary |= {**paused, "blocked": [*paused["paused"], *summary.get("blocked", ())]}
        return summary

    @property
    def task_set(self) -> TaskSet:
        """The tasks of this moment, for simulations and inspection between two steps."""
        return self.parts.task_set

    @property
    def is_tracking(self) -> bool:
        """Return whether tuples are tracked: the topology has ackers."""
        return bool(self.parts.plan.ackers)

    @property
    def progress(self) -> Progress:
        """Return the counts of this worker's tasks, as its commits keep them."""
        return self.parts.progress

    @property
    def is_settled(self) -> bool:
        """Return whether the last commit was applied, as far as this worker knows."""
        return self._commits.refused is None

    @property
    def commits(self) -> tuple[int, int]:
        """Generation of the store and number of the last commit, as far as this worker knows."""
        return self._commits.generation, self._commits.seq

    @property
    def is_drained(self) -> bool:
        """Return whether all sources have ended and nothing is open or waiting in this worker."""
        return all(
            s.is_exhausted and not s.is_waiting for s in self.parts.task_set.spouts.values()
        ) and not any(b.is_waiting for b in self.parts.task_set.bolts.values())

    def _read(self) -> None:
        # Nothing moves a task's inbox between the commit and the next step.
        after = self._after or self._read_to()
        self._after = {}
        entries = self.parts.transport.poll(after, self._window.frames)
        self._has_more = self._window.note(entries) or len(after) < len(self.parts.task_set.inboxes)
        for entry in entries:
            try:
                self.parts.task_set.inboxes[entry.task].add(entry)
            except MalformedFrameError as error:
                # Any process with access to the store may have written it. A crash here would come
                # back at every start, since the cursor would never pass the frame.
                self._commits.quarantined.append(entry.data)
                self.progress.quarantined += 1
                text = f"undecodable frame {entry.id} put into quarantine: {error}"
                component = self.parts.plan.component_by_task[entry.task]
                self.parts.report(Failure(FailureKind.SYSTEM, text, component, entry.task))

    def _read_to(self) -> dict[int, str]:
        """Return the last entry read of each task that has room for more."""
        has_room = self._window.has_room
        return {
            t: i.read_to
            for t, i in self.parts.task_set.inboxes.items()
            if has_room(len(i.chunks), i.waiting)
        }

    def _run(self, epoch: Epoch, now_ms: int) -> None:
        self._budget.begin(self.parts.clock.now_ms())  # reading has taken time
        is_over = self._bolt_turns.run_timed(epoch, now_ms)
        # Until nothing moves: what a bolt emits for a task of this worker runs in the same epoch,
        # without an edge id and without the store (decision 2).
        moves = True
        while moves and not is_over:
            did = did_ask = False
            for _ in range(len(self._order)):
                bolt = self._order[0]
                # The next epoch begins where this one ends: a slow bolt starves no other task.
                self._order.rotate(-1)
                if bolt.feed or bolt.inbox.chunks:
                    did |= self._bolt_turns.run_bolt(epoch, bolt)
                    self.parts.task_set.blocks.pack_early(epoch.sent, epoch.bytes)
                    is_over = self._budget.is_over(epoch, self.parts.clock.now_ms())
                    if is_over:
                        break
            if not is_over or self._spout_turns.have_waited(now_ms):
                did_ask = self._spout_turns.ask_all(epoch)
                self.parts.task_set.blocks.pack_early(epoch.sent, epoch.bytes)
                is_over |= self._budget.is_over(epoch, self.parts.clock.now_ms())
            # Where only bolts have run and nothing waits for one, spouts that had nothing a moment
            # ago would be asked once more: with one row an epoch that was each of them.
            moves = did_ask or (did and any(bolt.feed or bolt.inbox.chunks for bolt in self._order))
        # What is left in blocks would be written, read back and decoded. Twice the budget bounds
        # it, so that a loop of bolts that feed each other ends too.
        while is_over and self._drain(epoch):
            pass
        self._budget.end(is_over)
        self._has_more |= is_over

    def _drain(self, epoch: Epoch) -> bool:
        """Run rows of this worker's own tasks beyond the budget: what is left of them goes through
        the store.
        """
        did = False
        for bolt in self.parts.task_set.bolts.values():
            left_to_drain = self._budget.left_to_drain(epoch, self.parts.clock.now_ms())
            if (
                left_to_drain
                and bolt.feed
                and not bolt.is_full
                and not self.parts.backpressure.holds_back(bolt.task)
            ):
                did |= self._bolt_turns.run_local(epoch, bolt, min(bolt.pace, left_to_drain))
                self.parts.task_set.blocks.pack_early(epoch.sent, epoch.bytes)
        return did

    def _commit(self, commit: Commit, now_ms: int) -> float | None:
        """Ask for more, write, then return when to step again; a store that is full is asked again
        after garbage was freed.
        """
        # Before the commit, in its round trip: a step that only asked for more came after each
        # commit, half of all steps and 15 % of the CPU at 1,000 tuples/s over 3 hops.
        self._after = self._read_to()
        self.parts.transport.ask(self._after, self._window.frames)
        if self._commits.refused is None and not self._commits.complete(commit, now_ms):
            self._look(now_ms)
            return self._next_due(now_ms, did=False)
        pressure = self._commits.send(commit)
        if pressure is None:
            return now_ms + self._commits.pause_ms
        self._budget.note_commit(self._commits.took_ms)
        self.parts.backpressure.note(pressure, now_ms)
        self._witness.note(pressure.step, now_ms)
        self.parts.task_set.settle()
        self._sinks.note_commit()
        due_ms = self._sinks.finish(self.parts.clock.now_ms())
        return (
            self._next_due(self.parts.clock.now_ms(), did=self._commits.has_news)
            if due_ms is None
            else due_ms
        )

    def _look(self, now_ms: int) -> None:
        """Ask the store whether the last commit stands when none was made for a while."""
        if self._witness.must_look(now_ms):
            # A full store that has gone back cannot take note of it: asked again a second later.
            with contextlib.suppress(StoreFullError):
                self.parts.transport.look()
            self._witness.note_look(now_ms)

    def _next_due(self, now_ms: int, did: bool) -> float | None:
        """Return when to step again: at once for what this step left undone, else at the next event
        by the clock.
        """
        if did and (self._has_more or self._sinks or self._timers.has_senders):
            # Watermarks follow what this commit has settled.
            return now_ms
        due = [self._timers.next_due_ms(), self._timeouts.next_due_ms()]
        # a commit may have set tasks free or ended trees
        must_ask = self.parts.backpressure.must_ask
        held_back_ms, rested_ms = (
            (now_ms, now_ms) if did else (now_ms + LOOK_MS, now_ms + (LOOK_MS if must_ask else 1))
        )
        # A task that is held back goes on by the news of a commit. Without its own rows a worker
        # has none to make, so it looks by the clock.
        for bolt in self.parts.task_set.bolts.values():
            due.append(bolt.next_due_ms())
            if bolt.inbox.chunks and not bolt.is_paused and bolt.inbox.next_chunk() is not None:
                due.append(held_back_ms)
        others_ms = min((d for d in due if d is not None), default=_NEVER)
        self._others_due_ms = (
            0.0 if self._careful or self._sinks or must_ask or self._catch_up else others_ms
        )
        spouts_ms = self._spout_turns.next_due_ms(now_ms, rested_ms)
        first_ms = others_ms if spouts_ms is None else min(others_ms, spouts_ms)
        return None if first_ms == _NEVER else first_ms
