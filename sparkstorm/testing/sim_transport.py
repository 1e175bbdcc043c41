"""Transports with simulated delays (a frame of a busy sender or a slow network can be read later)
and with faults of commits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from sparkstorm.common.errors import StoreFullError, StoreUnavailableError
from sparkstorm.data_plane.transport.base import Claim, Commit, Entry, Expected, Pressure
from sparkstorm.data_plane.transport.local import LocalStore, LocalTransport
from sparkstorm.extensions.cells.local_foreign import LocalForeign
from sparkstorm.testing.simulation import SimulatedDeath, WorkerClock


class Arrivals:
    """Frames on their way, by task; what is behind one that has not arrived is not readable
    either.
    """

    def __init__(self, store: LocalStore) -> None:
        self.sent = 0  # commits with frames in them, so far
        self.commits = 0
        self._store = store
        self._token_by_task: dict[int, int] = {}  # the highest that has claimed
        self._restores = store.restores
        self._on_the_way: dict[int, deque[tuple[int, int]]] = {}  # (number, arrival), by number

    def delay(self, task: int, number: int, until_ms: int) -> None:
        """Let an entry arrive no sooner."""
        self._on_the_way.setdefault(task, deque()).append((number, until_ms))

    def newest(self, task: int, now_ms: int) -> int:
        """Number of the last entry of a task's stream that has arrived."""
        waiting = self._on_the_way.get(task)
        while waiting and waiting[0][1] <= now_ms:
            waiting.popleft()
        return waiting[0][0] - 1 if waiting else self._store.task(task).last_number

    def arrived(self, task: int, after: str, now_ms: int) -> int:
        """Count the entries behind an id that have arrived."""
        newest = self.newest(task, now_ms)
        read = int(after.partition("-")[0])
        return sum(read < number <= newest for number, _ in self._store.task(task).stream)

    def note_claim(self, token_by_task: Mapping[int, int]) -> None:
        """Take in the owners of tasks from now on."""
        for task, token in token_by_task.items():
            self._token_by_task[task] = max(token, self._token_by_task.get(task, 0))

    def check_owner(self, commit: Commit) -> None:
        """AssertionError when a commit was applied whose owner is not the last that claimed each of
        its tasks.
        """
        if self._restores != self._store.restores:
            # the store has forgotten the newest claims
            self._restores = self._store.restores
            self._token_by_task = {}
        for task, token in commit.token_by_task.items():
            last = self._token_by_task.get(task, token)
            assert token >= last, (
                f"{commit.owner} has committed with token {token} after token {last} had claimed task {task}"
            )

    def follow(self, other: Arrivals) -> None:
        """Take over the frames that are on their way to the tasks of another topology."""
        self._on_the_way = other._on_the_way
        other._on_the_way = {}

    def next_ms(self) -> int | None:
        """Return the arrival time of the next frame."""
        return min(
            (waiting[0][1] for waiting in self._on_the_way.values() if waiting), default=None
        )


class SimTransport(LocalTransport):
    """A LocalTransport whose commits can be read at the moment to which their owner's clock has
    come.
    """

    def __init__(self, store: LocalStore, clock: WorkerClock, arrivals: Arrivals) -> None:
        super().__init__(store)
        self.arrivals = arrivals
        self.clock = clock

    def claim(
        self, owner: str, token_by_task: Mapping[int, int], expected: Expected | None = None
    ) -> Claim:
        claim = super().claim(owner, token_by_task, expected)
        self.arrivals.note_claim(token_by_task)
        return claim

    def commit(self, commit: Commit) -> Pressure:
        before = {task: self._store.task(task).last_number for task, _, _ in commit.frames}
        pressure = super().commit(commit)
        self.arrivals.check_owner(commit)
        self.arrivals.commits += 1
        self.arrivals.sent += bool(before)
        until_ms = self.arrives_ms()
        if until_ms > 0:
            for task, number in before.items():
                for entry in range(number + 1, self._store.task(task).last_number + 1):
                    self.arrivals.delay(task, entry, until_ms)
        return pressure

    def arrives_ms(self) -> int:
        """Return the time at which the frames of a commit made now can be read; 0 means at once."""
        return self.clock.sim_ms() if self.clock.is_busy else 0

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        entries = super().poll({}, count)  # asks whether the store is behind its owner
        now_ms = self.clock.sim_ms()
        for task, entry in after.items():
            if arrived := self.arrivals.arrived(task, entry, now_ms):
                entries += super().poll({task: entry}, min(count, arrived))
        return entries


class SimForeign(LocalForeign):
    """A LocalForeign whose entries can be read at the moment at which they arrive, as those of a
    SimTransport.
    """

    def __init__(
        self,
        store: LocalStore,
        cell: int,
        is_away: Callable[[], bool],
        clock: WorkerClock,
        arrivals: Arrivals,
        durability: str,
    ) -> None:
        super().__init__(store, cell, is_away, durability)
        self._clock = clock
        self._arrivals = arrivals

    def poll(self, after: Mapping[int, str], count: int) -> Sequence[Entry]:
        entries = list(super().poll({}, count))  # asks whether what was read is still there
        now_ms = self._clock.sim_ms()
        for task, entry in after.items():
            if arrived := self._arrivals.arrived(task, entry, now_ms):
                entries += super().poll({task: entry}, min(count, arrived))
        return entries


class CommitFault(Enum):
    """Fault of one commit."""

    NONE = "none"
    CRASH_BEFORE = "the worker dies before anything is sent"
    CRASH_AFTER = "the commit is applied, then the worker dies"
    LOST_ANSWER = "the commit is applied, its answer is lost, later the same bytes are sent again"
    NOT_SENT = "the commit gets lost, later the same bytes are sent again"
    SENT_TWICE = "the same bytes arrive twice"


ChooseFault = Callable[[], CommitFault]


class TransportUser(Protocol):
    """A worker whose transport is made: its topology's data, and its clock."""

    clock: WorkerClock

    @property
    def host(self) -> Any: ...


class FaultyTransport(SimTransport):
    """SimTransport with chosen faults, whose frames may arrive late."""

    def __init__(
        self,
        worker: TransportUser,
        choose: ChooseFault,
        delay_ms: Callable[[], int] = lambda: 0,
        is_cut: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(worker.host.store, worker.clock, worker.host.arrivals)
        self._choose = choose
        self._delay_ms = delay_ms
        self._is_cut = is_cut
        self._sent_again = -1

    def claim(
        self, owner: str, token_by_task: Mapping[int, int], expected: Expected | None = None
    ) -> Claim:
        self._reach()
        return super().claim(owner, token_by_task, expected)

    def look(self) -> None:
        self._reach()
        super().look()

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        self._reach()
        return super().poll(after, count)

    def _reach(self) -> None:
        """Raise the error of a worker whose patience with Redis is over: here it has none."""
        if self._is_cut():
            raise StoreUnavailableError("Redis cannot be reached: the network is cut")

    def commit(self, commit: Commit) -> Pressure:
        self._reach()
        fault = CommitFault.NONE if commit.seq == self._sent_again else self._choose()
        if fault is CommitFault.CRASH_BEFORE:
            raise SimulatedDeath(fault.value)
        if fault is CommitFault.NOT_SENT:
            self._come_again(commit, fault)
        in_doubt = self.in_doubt()
        pressure = super().commit(commit)
        if fault is CommitFault.CRASH_AFTER:
            raise SimulatedDeath(fault.value)
        if fault is CommitFault.LOST_ANSWER:
            self.forget_answer(in_doubt)
            self._come_again(commit, fault)
        return super().commit(commit) if fault is CommitFault.SENT_TWICE else pressure

    def arrives_ms(self) -> int:
        delay_ms = self._delay_ms()
        return self.clock.sim_ms() + delay_ms if delay_ms else super().arrives_ms()

    def _come_again(self, commit: Commit, fault: CommitFault) -> None:
        self._sent_again = commit.seq
        # the one error after which a worker sends the same commit once more
        raise StoreFullError(fault.value)
