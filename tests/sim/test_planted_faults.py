"""The simulation is worth something: a fault planted in any part is found within few seeds, and shrunk to what shows it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from sparkstorm.errors import StoreFullError
from sparkstorm.nimbus.requests import RequestDuty
from sparkstorm.supervisor.slot import Slot
from sparkstorm.supervisor.supervisor import Supervisor
from sparkstorm.testing import SimulationError, harmed_cluster, simulate
from sparkstorm.testing.sim_transport import FaultyTransport
from sparkstorm.transport.base import Commit, Pressure
from sparkstorm.worker.worker import Worker
from tests.sim.topologies import subject

pytestmark = pytest.mark.slow

SEEDS = 1000
Plant = Callable[[pytest.MonkeyPatch], None]


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


def transport(kind: type[FaultyTransport]) -> Plant:
    return lambda patch: patch.setattr(harmed_cluster, "FaultyTransport", kind)


def worker_that_numbers_a_refused_commit_anew(patch: pytest.MonkeyPatch) -> None:
    """A commit whose answer was lost is then applied twice."""
    keep = Worker._keep_refused

    def renumbered(self: Worker, commit: Commit, error: StoreFullError, now_ms: int) -> int:
        due_ms = keep(self, commit, error, now_ms)
        commit.seq += 1
        return due_ms

    patch.setattr(Worker, "_keep_refused", renumbered)


def slot_that_never_wakes_a_worker(patch: pytest.MonkeyPatch) -> None:
    """Spouts that have rested are never active again."""
    pass_status, rested = Slot._pass_status, set[int]()

    def not_again(self: Slot) -> None:
        child, wish = self._child, self._sync.wish
        if child is None or wish is None or (child.process.pid in rested and wish.status == "ACTIVE"):
            return
        was_active = child.status == "ACTIVE"
        pass_status(self)
        if was_active and child.status == "INACTIVE":
            rested.add(child.process.pid)

    patch.setattr(Slot, "_pass_status", not_again)


def supervisor_that_registers_once(patch: pytest.MonkeyPatch) -> None:
    """A node whose session was lost is never offered again."""
    register = Supervisor._register

    def once(self: Supervisor, now_ms: int) -> None:
        if not self._registered:
            register(self, now_ms)

    patch.setattr(Supervisor, "_register", once)


def nimbus_that_forgets_what_another_accepted(patch: pytest.MonkeyPatch) -> None:
    """A request whose Nimbus dies after it accepted it never ends."""
    serve = RequestDuty._serve

    def own_only(self: Any, request: Any, outcome: Any, reading: Any, now_ms: int) -> bool:
        accepted = self.__dict__.setdefault("accepted", set())
        if outcome is not None and request.id not in accepted:
            return False
        accepted.add(request.id)
        return serve(self, request, outcome, reading, now_ms)

    patch.setattr(RequestDuty, "_serve", own_only)


@pytest.mark.parametrize(("plant", "name", "size", "most_faults"), [
    (transport(NoFence), "word_count", 10, 3),
    (transport(AppliesTwice), "word_count", 10, 3),
    (transport(ForgetsState), "word_count", 10, 3),
    (transport(ForgetsHeldInputs), "flaky", 6, 4),
    (transport(ForgetsCursors), "word_count", 10, 3),
    (worker_that_numbers_a_refused_commit_anew, "word_count", 10, 3),
    (slot_that_never_wakes_a_worker, "word_count", 10, 3),
    (supervisor_that_registers_once, "word_count", 10, 3),
    (nimbus_that_forgets_what_another_accepted, "word_count", 10, 3),
], ids=lambda value: getattr(value, "__name__", str(value)))  # fmt: skip
def test_a_planted_fault_is_found_and_shrunk(
    plant: Plant, name: str, size: int, most_faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(SimulationError) as caught:
        simulate(subject(name, size), range(SEEDS))
    found = re.match(r"seed (\d+), (\d+) of \d+ faults: ", str(caught.value))
    assert found is not None and 1 <= int(found[2]) <= most_faults, str(caught.value)
