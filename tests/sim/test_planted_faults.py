"""The schedules are worth something: each planted fault of the store or the worker is found within a few seeds."""

from __future__ import annotations

import pytest

from sparkstorm.testing.faults import FaultSchedule, FaultyTransport
from sparkstorm.testing.in_process_worker import InProcessWorker
from sparkstorm.transport.base import Commit, Pressure
from tests.sim.test_fault_schedules import run_schedule

SEEDS = 60


class NoFence(FaultyTransport):
    """Lets zombies write."""

    def commit(self, commit: Commit) -> Pressure:
        self._store.seq_by_owner[commit.owner] = commit.seq - 1
        for task, token in commit.token_by_task.items():
            self._store.task(task).fence = token
        return super().commit(commit)


class AppliesTwice(FaultyTransport):
    """Forgets which commit came last."""

    def commit(self, commit: Commit) -> Pressure:
        self._store.seq_by_owner[commit.owner] = commit.seq - 1
        return super().commit(commit)


class ForgetsState(FaultyTransport):
    """Writes no journal."""

    def commit(self, commit: Commit) -> Pressure:
        commit.journal, commit.dropped = [], {}
        return super().commit(commit)


class ForgetsHeldInputs(FaultyTransport):
    """Lets held inputs live in memory only."""

    def commit(self, commit: Commit) -> Pressure:
        commit.held, commit.released = [], []
        return super().commit(commit)


class ForgetsCursors(FaultyTransport):
    """Reads from the last cursor but one after a restart."""

    def commit(self, commit: Commit) -> Pressure:
        before = {task: self._store.task(task).cursor for task in commit.cursors}
        pressure = super().commit(commit)
        for task, cursor in before.items():
            if cursor.row:
                self._store.task(task).cursor = cursor
        return pressure


class Planted(FaultSchedule):
    """A schedule whose transports have a fault of their own."""

    kind: type[FaultyTransport]

    def make_transport(self, worker: InProcessWorker) -> FaultyTransport:
        return self.kind(worker, self._choose, self._delay_ms)


@pytest.mark.parametrize(("kind", "name"), [
    (NoFence, "word_count"), (AppliesTwice, "word_count"), (ForgetsState, "word_count"), (ForgetsState, "loop"),
    (ForgetsHeldInputs, "fan_out_fan_in"), (ForgetsHeldInputs, "batching"), (ForgetsCursors, "word_count"),
])  # fmt: skip
def test_a_planted_fault_is_found(kind: type[FaultyTransport], name: str) -> None:
    planted = type("Planted", (Planted,), {"kind": kind})
    for seed in range(SEEDS):
        try:
            run_schedule(name, seed, make=planted, limit_secs=5)
        except AssertionError:
            return
    raise AssertionError(f"{kind.__name__} was not found in {SEEDS} schedules")
