"""A worker process inside the simulation: the real worker, stepped under simulated time, with its
slot at the other end.
"""

from __future__ import annotations

import math
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from sparkstorm.common.errors import CodecError, SparkStormError, WorkerFailedError
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.worker_messages import (
    ComponentError,
    ExitCode,
    Exiting,
    Passed,
    Trying,
    WorkerCommand,
    WorkerReport,
)
from sparkstorm.common.model.worker_spec import WorkerSpec
from sparkstorm.common.settings import EpochSettings, WorkerSettings
from sparkstorm.control_plane.supervisor.worker_memory import Usage
from sparkstorm.data_plane.executor.manual_runner import ManualRunner
from sparkstorm.data_plane.transport.base import Transport
from sparkstorm.data_plane.transport.local import LocalReplica
from sparkstorm.data_plane.worker.epoch import RandomIds
from sparkstorm.data_plane.worker.epoch_budget import Budget
from sparkstorm.data_plane.worker.extension import ExtensionHost, worker_extensions
from sparkstorm.data_plane.worker.main import exit_code_of
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.run import Beats, SlotReporter, WorkerRun, plan_of, start_worker
from sparkstorm.data_plane.worker.tasks.blocking_bolt import ThreadedBolt
from sparkstorm.data_plane.worker.tasks.blocking_spout import SourceThread, ThreadedSpout
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.data_plane.worker.worker import Worker
from sparkstorm.extensions.cells.cells import CellsTransport
from sparkstorm.testing.sim_data import DataPlane, TopologyData
from sparkstorm.testing.sim_threads import SimThread
from sparkstorm.testing.sim_transport import SimForeign, SimTransport
from sparkstorm.testing.simulation import SimulatedDeath, Simulation, WorkerClock

# what an epoch with work in it costs: without a price an endless source would stop time
STEP_MS = 1


def die() -> None:
    """Kill the worker of the calling component, in the middle of any work."""
    raise SimulatedDeath


@dataclass(frozen=True, slots=True)
class SimOptions:
    """Options of a simulated cluster."""

    lazy_keys: int  # keys of a state in memory; 0: all
    draws_epochs: bool  # ends of epochs, and sizes of batches
    patience_secs: float  # of real time, with threads of user code
    make_transport: MakeTransport | None
    is_lively: bool  # the control plane never sleeps
    poll_ms: int  # of slots


class SimServices(Protocol):
    """Services that worker processes share with the cluster around them."""

    simulation: Simulation
    data_plane: DataPlane
    options: SimOptions
    steps_threads: bool  # of blocking spouts; else they are real ones
    checks_values: bool  # at each emit; else as a real worker, whose rows the compiled core emits

    def reaches(self, place: str, store: str) -> bool:
        """Return whether a worker reaches a store, its own or that of another cell."""


class DrawnBudget(Budget):
    """A budget that is cut short by chance: any division of the work into epochs and batches must
    give the same results.
    """

    def __init__(self, settings: EpochSettings, chance: random.Random) -> None:
        super().__init__(settings)
        self._most_rows = self.rows
        self._chance = chance

    def begin(self, now_ms: int) -> None:
        """Begin an epoch: one in two takes what the settings allow, the others one to some dozens
        of rows.
        """
        super().begin(now_ms)
        drawn = self._chance.random()
        self.rows = (
            self._most_rows if drawn < 0.5 else min(self._most_rows, int(64 ** (2 * drawn - 1)))
        )

    def pace(self, pace: int, done: int, took_ms: int, most: int, sent_bytes: int) -> int:
        """Return how much to do between two looks."""
        adapted = super().pace(pace, done, took_ms, most, sent_bytes)
        return (
            adapted
            if self._chance.random() < 0.5
            else self._chance.randint(1, max(1, min(adapted, 16)))
        )


class _Reporter(SlotReporter):
    """Reports of a simulated worker: all errors are kept for the test, those that are not throttled
    go to the slot.
    """

    def error(self, failure: Failure) -> None:
        """Take note that user code raised, or an input was parked."""
        self._control.data.errors.append(failure)  # type: ignore[attr-defined]
        self._send(failure)


class _SlotLine:
    """Commands and reports between a worker and its slot that are not taken yet."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.on_news = on_news  # for the slot
        self.commands: list[WorkerCommand] = []
        self.reports: list[WorkerReport] = []

    def take_commands(self) -> list[WorkerCommand]:
        """Return the commands since the last call."""
        taken = self.commands
        self.commands = []
        return taken

    def take_reports(self) -> list[WorkerReport]:
        """Return the reports since the last call."""
        taken = self.reports
        self.reports = []
        return taken


@dataclass(slots=True)
class _Reach:
    """Streams of a worker's tasks, and data in other cells."""

    tasks: tuple[int, ...] = ()
    # of the other cells of its topology, with the names of their stores
    others: dict[int, tuple[str, TopologyData]] = field(default_factory=dict)
    cells: CellsTransport | None = None


class InProcessWorker:
    """A WorkerProcess whose process is this one; also the actor that the simulation steps, and its
    own line to the slot.
    """

    def __init__(
        self,
        around: SimServices,
        place: str,
        on_news: Callable[[], None],
        read_code: Callable[[Path], bytes | None],
        behind_ms: int = 0,
    ) -> None:
        """`behind_ms`: of its machine's clock."""
        self._around = around
        self._read_code = read_code
        self.place = place  # "node:port"
        self.pid = next(around.simulation.pids)
        self.clock = WorkerClock(around.simulation.clock, behind_ms)
        self.data = TopologyData("")
        self.run: WorkerRun | None = None
        self.spec: WorkerSpec | None = None
        self.exit_code: int | None = None
        self.end_reason = ""
        self.is_zombie = False  # its slot takes it for dead
        self.paused_until_ms = 0
        self.used: Usage | None = None
        self._line = _SlotLine(on_news)
        self._seen = -1
        self._is_late = False  # whether spouts alone were asked, and are due again at once
        self._has_begun = False  # whether the last step ran an epoch, and did not start the worker
        self._reach = _Reach()
        self._post = threading.Event()
        self._threads: list[SimThread] = []

    @property
    def host(self) -> TopologyData:
        """The data that its transport reaches."""
        return self.data

    @property
    def worker(self) -> Worker | None:
        """The runtime inside; none before its start and after its end."""
        return self.run.worker if self.run is not None and self.exit_code is None else None

    # -- as its slot sees it -----------------------------------------------------------------------

    def filenos(self) -> list[int]:
        """None: the simulation wakes the slot."""
        return []

    def give(self, spec: WorkerSpec) -> None:
        """Turn a spare into the worker of that spec."""
        self.spec = spec
        plane = self._around.data_plane
        self.data = plane.at(spec.redis.name).of(spec.topology_id)
        others = {
            cell: (address.name, plane.at(address.name).of(spec.topology_id))
            for cell, address in enumerate(spec.cells)
            if cell != spec.cell
        }
        self._reach = _Reach(tuple(spec.tasks()), others)
        host = ExtensionHost(spec, self.clock.now_ms, self._read_code, is_threaded=False)
        self.run = WorkerRun(
            spec,
            self,
            self.clock,
            Beats(self, self.clock),
            lambda: self._start(spec),
            extensions=worker_extensions(host),
        )
        self._around.simulation.add(self)

    def order(self, command: WorkerCommand) -> None:
        """Send a command."""
        self._line.commands.append(command)
        self._around.simulation.wake(self)

    def poll_reports(self) -> list[WorkerReport]:
        """Return the worker's reports; one that is neither busy nor paused sends a heartbeat at
        each call.
        """
        is_responsive = self.exit_code is None and not self.clock.is_busy and not self.is_paused
        if self.run is not None and is_responsive:
            self.run.beat()
        return self._line.take_reports()

    def poll_exit(self) -> int | None:
        """The exit code once it is dead."""
        return -signal.SIGKILL if self.is_zombie else self.exit_code

    def dump_stacks(self) -> None:
        """Do nothing: no call hangs where time is simulated."""

    def kill(self) -> None:
        """End it without a report."""
        if self.exit_code is None and not self.is_zombie:
            self.end(-signal.SIGKILL, "killed")

    def close(self) -> None:
        """End it if it still lives."""
        self.kill()

    def oom_kills(self) -> int:
        """Return none: nothing else is killed here."""
        return 0

    def usage(self) -> Usage | None:
        """Return what a test says that it uses."""
        return self.used

    def rotate_log(self, cap_bytes: int) -> bool:
        """Do nothing: there is no log."""
        return False

    def last_lines(self, has_crashed: bool = False) -> list[str]:
        """Do nothing: there is no log."""
        return []

    # -- as its own runtime sees the slot ----------------------------------------------------------

    def poll(self) -> list[WorkerCommand]:
        """Commands since the last call."""
        return self._line.take_commands()

    def send(self, report: WorkerReport) -> None:
        """Leave a report for the slot."""
        self._line.reports.append(report)
        if not isinstance(report, Trying | Passed | ComponentError):
            self._line.on_news()

    def fileno(self) -> int:
        """None."""
        return -1

    # -- as an actor -------------------------------------------------------------------------------

    @property
    def is_obedient(self) -> bool:
        """Return whether no command waits for it."""
        return not self._line.commands

    @property
    def is_paused(self) -> bool:
        """Return whether the process is stopped, as by SIGSTOP."""
        return self.paused_until_ms > self._around.simulation.clock.now_ms()

    def step(self, now_ms: int) -> int | None:
        """Start, or run one epoch."""
        if self.exit_code is not None or self.run is None:
            return None
        if self.is_paused:
            return self.paused_until_ms
        if self.clock.is_busy:
            return self.clock.busy_until_ms
        try:
            with self.clock.running():
                due_ms = self._run(self.run)
        except (SimulatedDeath, CodecError) as death:
            self.end(ExitCode.CRASHED, f"{type(death).__name__}: {death}")
        except SparkStormError as fault:
            self._fail(fault)
        if self.exit_code is not None:
            return None
        if due_ms is not None and due_ms <= self.clock.now_ms() and self._has_begun:
            self.clock.spend(STEP_MS)
            return self.clock.busy_until_ms
        # simulated time has whole milliseconds
        if due_ms is None or math.isinf(due_ms):
            return None
        return math.ceil(due_ms) + self.clock.behind_ms

    def rouse(self) -> None:
        """Let the next step be a whole one, as after a connection that broke."""
        self._post.set()
        self._around.simulation.wake(self)

    def is_woken(self) -> bool:
        """Return whether frames have come, or a thread has posted something."""
        if self.worker is None or self.clock.is_busy or self.is_paused:
            return False
        return self._post.is_set() or self._newest() != self._seen

    def wait_for_threads(self) -> bool:
        """Wait until a blocking bolt's thread has posted what it did, or the patience is at its
        end.
        """
        deadline = time.monotonic() + self._around.options.patience_secs
        while self._has_busy_thread() and not self._post.is_set():
            if not self._post.wait(max(0.0, deadline - time.monotonic())):
                return False
        return self.is_woken()

    def open_sources(self) -> list[str]:
        """Return the tasks of spouts with a thread whose source has not said that it is at its
        end.
        """
        spouts = self.worker.task_set.spouts.values() if self.worker is not None else ()
        return [
            f"{spout.component}#{spout.task}"
            for spout in spouts
            if isinstance(spout.spout, ThreadedSpout) and spout.spout.may_emit
        ]

    def wait_for_sources(self, until_s: float) -> bool:
        """Wait until a blocking source has something or is at its end; False after `until_s`."""
        while self.open_sources() and (left_s := until_s - time.monotonic()) > 0:
            if self._post.wait(left_s):
                return self.is_woken()
        return not self.open_sources()

    def end(self, code: int, reason: str) -> None:
        """End the process with its memory and its threads."""
        worker = self.worker
        is_crash = code != ExitCode.STOPPED
        has_threads_left = bool(self._threads)
        self.exit_code = int(code)
        self.end_reason = reason
        if self.run is not None:
            self.run.close()
        if worker is not None and (is_crash or has_threads_left):
            worker.task_set.abandon()
        for thread in self._threads:
            thread.kill()
        if worker is not None and is_crash:
            for extension in self.run.extensions if self.run is not None else ():
                extension.abandon()
        self._around.simulation.discard(self)
        self._line.on_news()

    def leave(self) -> None:
        """Let the slot take it for dead while it goes on: it is a zombie until the store refuses
        its commits.
        """
        self.is_zombie = True
        self._line.on_news()

    @property
    def is_fenced(self) -> bool:
        """Return whether the store has a newer owner of any of its tasks."""
        tokens = self.spec.token_by_task() if self.spec is not None else {}
        return any(self.data.store.task(task).fence != token for task, token in tokens.items())

    def _start(self, spec: WorkerSpec) -> Worker:
        settings = WorkerSettings.of(spec.conf)
        simulation = self._around.simulation
        reporter = _Reporter(
            self, self.clock, settings.error_interval_ms, settings.errors_per_interval
        )
        transport = self._transport()
        ids = RandomIds(simulation.random.getrandbits(63))
        budget = self._make_budget if self._around.options.draws_epochs else Budget
        return start_worker(
            lambda: WorkerParts(
                self._plan(spec),
                transport,
                self.clock,
                ids,
                reporter,
                self._post.set,
                make_thread=self._make_thread if self._around.steps_threads else SourceThread,
            ),
            budget,
        )

    def _make_thread(self, run: Callable[[], None]) -> SimThread:
        thread = SimThread(run, self._around.simulation, lambda: self.paused_until_ms)
        self._threads.append(thread)
        return thread

    def _transport(self) -> Transport:
        make = self._around.options.make_transport
        own: Transport = (
            make(self)
            if make is not None
            else SimTransport(self.data.store, self.clock, self.data.arrivals)
        )
        if not self._reach.others:
            return own
        foreign = {cell: self._foreign(cell, *other) for cell, other in self._reach.others.items()}
        stored = LocalReplica(self.data.store) if self._durability == "replica" else None
        self._reach.cells = CellsTransport(self.data.id, own, foreign, self.clock.now_ms, stored)
        return self._reach.cells

    @property
    def _durability(self) -> str:
        return "" if self.spec is None else WorkerSettings.of(self.spec.conf).durability

    def _foreign(self, cell: int, store: str, data: TopologyData) -> SimForeign:
        is_away = lambda: not self._around.reaches(self.place, store)  # noqa: E731 - short, and used once
        return SimForeign(data.store, cell, is_away, self.clock, data.arrivals, self._durability)

    def _plan(self, spec: WorkerSpec) -> WorkerPlan:
        """The plan of a real worker, save that values may be checked at each emit, as on the way to
        another process.
        """
        code = self._read_code(Path(spec.code_path))
        if code is None:
            raise WorkerFailedError(f"the code of {spec.topology_id} is gone from this machine")
        opened = self._around.data_plane.open(code, spec.code_key)
        return replace(
            plan_of(spec, *opened),
            codec=self.data.codec,
            is_strict=self._around.checks_values,
            lazy_keys=self._around.options.lazy_keys,
        )

    def _make_budget(self, settings: EpochSettings) -> Budget:
        return DrawnBudget(settings, random.Random(self._around.simulation.random.getrandbits(32)))

    def _run(self, run: WorkerRun) -> float | None:
        # Cleared only where it was seen: a thread may post between a look and a clear.
        if is_posted := self._post.is_set():
            self._post.clear()
        is_woken = self._is_late or bool(self._line.commands)
        if self.worker is not None:
            is_woken |= is_posted or self._newest() != self._seen
        self._seen = self._newest()
        self._has_begun, before = run.worker is not None, self._moved()
        due_ms = self._tended(run.step(is_woken))
        # As a process's loop: never twice without a look at what has come.
        self._is_late = not is_woken and due_ms is not None and due_ms <= self.clock.now_ms()
        if run.exit_code is not None:
            self.send(Exiting(run.exit_code, "returned"))
            self.end(run.exit_code, "stopped")
        self.data.activity += before != self._moved()
        return due_ms

    def _tended(self, due_ms: float | None) -> float | None:
        """Let what is due between cells be done, as the wait of a process does; return when the
        next step is due.
        """
        if self._reach.cells is None or self.worker is None:
            return due_ms
        self._reach.cells.wait(0)
        in_ms = self._reach.cells.due_in_ms
        # At least a millisecond, or a store that is away would stop time.
        dues = [] if in_ms is None else [self.clock.now_ms() + max(1.0, in_ms)]
        return min([*dues, *([] if due_ms is None else [due_ms])], default=None)

    def _fail(self, fault: SparkStormError) -> None:
        code = exit_code_of(fault)
        # another start finds the same
        lasting = (
            ExitCode.FAILED_START,
            ExitCode.MISTAKEN,
            ExitCode.DAMAGED,
            ExitCode.CRASHED,
        )
        if code in lasting:
            self.data.failure = fault
        self._line.reports.append(Exiting(int(code), str(fault)))
        self.end(code, str(fault))

    def _moved(self) -> tuple[int, int]:
        counts = (
            self.run.worker.progress.counts_by_task.values()
            if self.run is not None and self.run.worker is not None
            else ()
        )
        return sum(count.emitted for count in counts), self.data.arrivals.sent

    def _newest(self) -> int:
        now_ms = self.clock.now_ms()
        arrivals = [self.data.arrivals, *(data.arrivals for _, data in self._reach.others.values())]
        return sum(
            arrival.newest(task, now_ms) for arrival in arrivals for task in self._reach.tasks
        )

    def _has_busy_thread(self) -> bool:
        """Return whether a thread has rows and has posted no outcome: outcomes wait while the store
        refuses the last commit.
        """
        bolts = self.worker.task_set.bolts.values() if self.worker is not None else ()
        runners = (
            b.runner
            for b in bolts
            if isinstance(b.runner.bolt, ThreadedBolt) and b.runner.bolt.is_busy
        )
        return any(isinstance(r, ManualRunner) and not r.has_posts for r in runners)


MakeTransport = Callable[[InProcessWorker], Transport]
