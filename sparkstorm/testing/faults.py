"""Faults of a simulated cluster: crashes around commits, lost replies, late frames, zombies, moves, rolled-back stores.

All faults are drawn from one seed, so that a schedule that shows a bug can be run again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from sparkstorm.errors import StoreFullError
from sparkstorm.model.worker_messages import ExitCode
from sparkstorm.testing.in_process_worker import InProcessWorker, SimulatedDeath
from sparkstorm.testing.local_cluster import LocalCluster
from sparkstorm.testing.sim_slot import SimSlot
from sparkstorm.testing.sim_transport import SimTransport
from sparkstorm.transport.base import Commit, Pressure


class CommitFault(Enum):
    """Fault of one commit."""

    NONE = "none"
    CRASH_BEFORE = "the worker dies before anything is sent"
    CRASH_AFTER = "the commit is applied, then the worker dies"
    LOST_ANSWER = "the commit is applied, its reply is lost, later the same bytes are sent again"
    NOT_SENT = "the commit gets lost, later the same bytes are sent again"
    SENT_TWICE = "the same bytes arrive twice"


ChooseFault = Callable[[], CommitFault]


class FaultyTransport(SimTransport):
    """SimTransport with chosen faults, whose frames may arrive late."""

    def __init__(self, worker: InProcessWorker, choose: ChooseFault, delay_ms: Callable[[], int] = lambda: 0) -> None:
        super().__init__(worker.host.store, worker.clock, worker.host.arrivals)
        self._choose = choose
        self._delay_ms = delay_ms
        self._sent_again = -1

    def commit(self, commit: Commit) -> Pressure:
        fault = CommitFault.NONE if commit.seq == self._sent_again else self._choose()
        if fault is CommitFault.CRASH_BEFORE:
            raise SimulatedDeath(fault.value)
        if fault is CommitFault.NOT_SENT:
            self._come_again(commit, fault)
        pressure = super().commit(commit)
        if fault is CommitFault.CRASH_AFTER:
            raise SimulatedDeath(fault.value)
        if fault is CommitFault.LOST_ANSWER:
            self._come_again(commit, fault)
        return super().commit(commit) if fault is CommitFault.SENT_TWICE else pressure

    def arrives_ms(self) -> int:
        delay_ms = self._delay_ms()
        return self.clock.now_ms() + delay_ms if delay_ms else super().arrives_ms()

    def _come_again(self, commit: Commit, fault: CommitFault) -> None:
        self._sent_again = commit.seq
        raise StoreFullError(fault.value)  # the one error after which a worker sends the same commit once more


@dataclass(frozen=True, slots=True)
class Rates:
    """Probabilities of faults per commit, and weights of the events between steps."""

    commit_fault: float = 0.05
    late_frames: float = 0.2
    longest_delay_ms: int = 40
    kill: int = 4
    zombie: int = 3
    move: int = 2
    pause: int = 1
    checkpoint: int = 2
    roll_back: int = 1


class FaultSchedule:
    """Seeded faults for the one topology of a LocalCluster; `log` lists them in order."""

    def __init__(self, seed: int, rates: Rates | None = None) -> None:
        self.rates = rates or Rates()
        self.random = random.Random(seed)
        self.log: list[str] = []
        self.zombies: list[InProcessWorker] = []
        self.is_on = True
        self._checkpoints: list[dict[str, object]] = []
        self._faults = [fault for fault in CommitFault if fault is not CommitFault.NONE]

    def make_transport(self, worker: InProcessWorker) -> FaultyTransport:
        """For LocalCluster(make_transport=...)."""
        return FaultyTransport(worker, self._choose, self._delay_ms)

    def run(self, cluster: LocalCluster, events: int, longest_pause_ms: int = 60) -> None:
        """Cause `events` faults with short pauses between them, then stop and activate the topology."""
        verbs: dict[str, Callable[[LocalCluster], str]] = {
            "kill": self._kill, "zombie": self._zombie, "move": self._move, "pause": self._pause,
            "checkpoint": self._checkpoint, "roll_back": self._roll_back,
        }  # fmt: skip
        weights = [getattr(self.rates, name) for name in verbs]
        for _ in range(events):
            cluster.advance(ms=self.random.randint(0, longest_pause_ms))
            name = self.random.choices(list(verbs), weights)[0]
            self.log.append(f"{cluster.now_ms} {name}: {verbs[name](cluster)}")
        self.is_on = False
        cluster.activate()

    def _choose(self) -> CommitFault:
        if self.is_on and self.random.random() < self.rates.commit_fault:
            return self.random.choice(self._faults)
        return CommitFault.NONE

    def _delay_ms(self) -> int:
        if self.is_on and self.random.random() < self.rates.late_frames:
            return self.random.randint(1, self.rates.longest_delay_ms)
        return 0

    def _kill(self, cluster: LocalCluster) -> str:
        slot = self.random.choice(cluster.topology().workers)
        code = self.random.choice((ExitCode.CRASHED, ExitCode.STORE_LOST))  # only the first makes the next one careful
        slot.bury(code, "killed", restart_ms=self.random.choice((0, 10, 200)))
        return f"{slot.slot} ({code.name})"

    def _zombie(self, cluster: LocalCluster) -> str:
        slot = self.random.choice(cluster.topology().workers)
        self._leave_zombie(slot)
        return str(slot.slot)

    def _leave_zombie(self, slot: SimSlot) -> None:
        left = slot.disown()
        if left is not None:
            self.zombies.append(left)

    def _move(self, cluster: LocalCluster) -> str:
        for slot in cluster.topology().workers:
            if self.random.random() < 0.5:
                self._leave_zombie(slot)
        workers = self.random.randint(1, 5)
        cluster.rebalance(workers=workers, reassign=True)
        return f"{workers} workers"

    def _pause(self, cluster: LocalCluster) -> str:
        is_active = cluster.topology().is_active
        (cluster.deactivate if is_active else cluster.activate)()
        return "inactive" if is_active else "active"

    def _checkpoint(self, cluster: LocalCluster) -> str:
        self._checkpoints.append(cluster.topology().store.checkpoint())
        return f"number {len(self._checkpoints)}"

    def _roll_back(self, cluster: LocalCluster) -> str:
        if not self._checkpoints:
            return "nothing to go back to"
        number = self.random.randrange(len(self._checkpoints))
        cluster.topology().store.restore(self._checkpoints[number])
        cluster.simulation.wake_all()
        return f"to {number + 1} of {len(self._checkpoints)}"
