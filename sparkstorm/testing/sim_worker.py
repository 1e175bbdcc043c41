"""SimWorker: one simulated slot, which starts its worker, steps it and restarts it when it dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sparkstorm.errors import CodecError, FencedError, StoreFullError, StoreRolledBackError
from sparkstorm.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.model.worker_messages import ComponentError, ExitCode, Passed, Trying
from sparkstorm.supervisor.poison_detector import PoisonDetector
from sparkstorm.testing.sim_transport import Arrivals, SimTransport
from sparkstorm.testing.simulated_time import WorkerClock
from sparkstorm.testing.simulation import Simulation
from sparkstorm.transport.base import Transport
from sparkstorm.transport.local import LocalStore
from sparkstorm.worker.epoch import RandomIds
from sparkstorm.worker.tasks.blocking_bolt import ThreadedBolt
from sparkstorm.worker.tasks.task_factory import WorkerPlan
from sparkstorm.worker.worker import Worker

RESTART_MS = 100
STEP_MS = 1  # what an epoch with work in it costs: without a price an endless source would stop time
_LAUNCH_BITS = 32  # as worker/loop.py makes tokens: the placing's version, then the slot's launches

MakeTransport = Callable[["SimWorker"], Transport]


class SimulatedDeath(BaseException):
    """Raised by `die()` in a component: its worker ends at once, as after a segfault or kill -9."""


def die() -> None:
    """Kill the worker that runs the calling component, at once."""
    raise SimulatedDeath


class Host(Protocol):
    """What a worker needs of the topology it belongs to."""

    store: LocalStore
    arrivals: Arrivals
    errors: list[ComponentError]
    activity: int
    launches_by_slot: dict[WorkerSlot, int]
    is_active: bool
    patience_secs: float

    def plan(self, slot: WorkerSlot, tokens: Mapping[int, int], suspicion: PoisonDetector) -> WorkerPlan:
        """What the worker on that slot is to run."""


class SimWorker:
    """A slot with a worker in it, as the simulation steps it."""

    def __init__(
        self,
        host: Host,
        slot: WorkerSlot,
        version_by_executor: Mapping[ExecutorId, int],
        simulation: Simulation,
        make_transport: MakeTransport | None = None,
    ) -> None:
        self.host = host
        self.slot = slot
        self.version_by_executor = dict(version_by_executor)
        self.worker: Worker | None = None
        self.clock = WorkerClock(simulation.clock)
        self.deaths: list[str] = []
        self.suspicion = PoisonDetector()
        self._simulation = simulation
        self._make_transport = make_transport or (lambda of: SimTransport(of.host.store, of.clock, of.host.arrivals))
        self._start_ms = 0
        self._tokens: dict[int, int] = {}
        self._seen = 0
        self._post = threading.Event()

    @property
    def tasks(self) -> list[int]:
        """The tasks of this slot's executors."""
        return [task for executor in sorted(self.version_by_executor) for task in executor.tasks]

    # -- being an actor --------------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> int | None:
        """Start the worker when it is time, else run one epoch of it."""
        if self.clock.is_busy:
            return self.clock.busy_until_ms
        if self.worker is None and now_ms < self._start_ms:
            return self._start_ms
        try:
            with self.clock.running():
                due_ms = self._run()
        except (SimulatedDeath, CodecError) as death:
            return self.bury(ExitCode.CRASHED, f"{type(death).__name__}: {death}")
        except StoreFullError:  # the claim of a new worker was refused: as worker/loop.py, it tries again
            return now_ms + RESTART_MS
        except FencedError as fenced:
            return self.bury(ExitCode.FENCED, str(fenced))
        except StoreRolledBackError as behind:
            return self.bury(ExitCode.RELOAD, str(behind), restart_ms=0)
        if due_ms is not None and due_ms <= self.clock.now_ms():
            self.clock.spend(STEP_MS)
            return self.clock.busy_until_ms
        return due_ms

    def is_woken(self) -> bool:
        """Whether frames have come, or a thread has posted something."""
        return self.worker is not None and not self.clock.is_busy and (self._post.is_set() or self._newest() != self._seen)

    def wait_for_threads(self) -> bool:
        """Wait until a blocking bolt's thread has posted what it did, or the patience is at its end."""
        deadline = time.monotonic() + self.host.patience_secs
        while self._has_busy_thread() and not self._post.is_set():
            if not self._post.wait(max(0.0, deadline - time.monotonic())):
                return False
        return self.is_woken()

    # -- life and death --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make a worker with a token higher than any before; user code that fails is raised."""
        launches = self.host.launches_by_slot
        launches[self.slot] = launch = launches.get(self.slot, 0) + 1
        self._tokens = tokens = {
            task: (version << _LAUNCH_BITS) | launch
            for executor, version in self.version_by_executor.items()
            for task in executor.tasks
        }
        plan = self.host.plan(self.slot, tokens, self.suspicion)
        ids = RandomIds(self._simulation.random.getrandbits(63))
        self.worker = Worker(plan, self._make_transport(self), self.clock, ids, self, self._post.set)
        self.worker.set_active(self.host.is_active)
        self._seen = -1

    def kill(self) -> None:
        """End the process without a word, as kill -9 does; the slot starts the next one soon."""
        self.bury(-9, "killed")
        self._simulation.wake(self)

    def disown(self) -> tuple[Worker, WorkerClock] | None:
        """Give the worker up without ending it: the slot starts another one, this one is the caller's from now on."""
        if self.worker is None:
            return None
        left = self.worker, self.clock
        self.worker, self.clock = None, WorkerClock(self._simulation.clock)
        self.bury(-9, "given up")
        return left

    @property
    def is_fenced(self) -> bool:
        """Whether the store knows a newer owner of any of its tasks."""
        return any(self.host.store.task(task).fence != token for task, token in self._tokens.items())

    def stop(self) -> None:
        """End the worker in an orderly way, for good."""
        self._simulation.discard(self)
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def bury(self, code: int, reason: str, restart_ms: int = RESTART_MS) -> int:
        """Forget the worker's memory and end its threads; return when the next one starts."""
        if self.worker is not None:
            self.worker.crew.abandon()
        self.worker = None
        self.deaths.append(reason)
        self.suspicion = self.suspicion.died(code)
        self._start_ms = self._simulation.clock.now_ms() + restart_ms
        return self._start_ms

    # -- being a reporter ------------------------------------------------------------------------------------------

    def trying(self, task: int, entry: str, row: int) -> None:
        """The next commit holds this one input."""
        self.suspicion = self.suspicion.heard(Trying(task, entry, row))

    def passed(self) -> None:
        """No input is under suspicion."""
        self.suspicion = self.suspicion.heard(Passed())

    def error(self, component: str, task: int, text: str) -> None:
        """User code raised, or an input was parked."""
        self.host.errors.append(ComponentError(component, task, text))

    # -- looking ---------------------------------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """What is open in this worker, a phrase each."""
        if self.worker is None:
            return [f"worker {self.slot} is down"]
        crew = self.worker.crew
        found = [] if self.worker.is_settled else [f"a commit of {self.slot}"]
        found += [f"{len(s.pending)} trees of {s.component}#{t}" for t, s in crew.spouts.items() if not s.pending.idle]
        found += [f"inputs of {b.component}#{t}" for t, b in crew.bolts.items() if b.is_waiting]
        return found + [f"frames for task {t}" for t, inbox in crew.inboxes.items() if inbox.chunks]

    def states(self, component: str) -> dict[int, dict[Any, Any]]:
        """Return the key-value state of each of a component's tasks in this worker."""
        bolts = self.worker.crew.bolts if self.worker is not None else {}
        return {task: dict(b.state.items()) for task, b in bolts.items() if b.component == component and b.state is not None}

    def _run(self) -> int | None:
        if self.worker is None:
            self.start()
        assert self.worker is not None
        self._post.clear()
        self._seen = self._newest()
        before = self._moved(self.worker)
        due_ms = self.worker.step(self.clock.now_ms())
        self.host.activity += before != self._moved(self.worker)
        return due_ms

    def _moved(self, worker: Worker) -> tuple[int, int]:
        return sum(counts.emitted for counts in worker.progress.counts_by_task.values()), self.host.arrivals.sent

    def _newest(self) -> int:
        now_ms = self.clock.now_ms()
        return sum(self.host.arrivals.newest(task, now_ms) for task in self.tasks)

    def _has_busy_thread(self) -> bool:
        bolts = self.worker.crew.bolts.values() if self.worker is not None else ()
        return any(isinstance(b.runner.bolt, ThreadedBolt) and b.runner.bolt.is_busy for b in bolts)
