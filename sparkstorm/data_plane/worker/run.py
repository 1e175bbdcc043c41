"""One run of a worker as a stepped machine: its start, the slot's commands, heartbeats and reports.

A worker process steps it from its loop (data_plane/worker/loop.py); a simulation steps it under simulated
time.

Law: nothing here reads a clock, sleeps or talks to a store but through what it is given. What only
a process has (descriptors, signals, `gc`) is in data_plane/worker/loop.py and data_plane/worker/main.py, so that the
simulation runs the rest as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkstorm.common.clock import Clock
from sparkstorm.common.errors import SparkStormError, StoreFullError, WorkerFailedError
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.tasks import number_tasks
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.value_types import register
from sparkstorm.common.model.worker_messages import (
    Beat,
    ComponentError,
    ExitCode,
    Passed,
    Ready,
    SetLogLevels,
    SetStatus,
    Stop,
    Trying,
    WorkerCommand,
)
from sparkstorm.common.model.worker_spec import WorkerSpec
from sparkstorm.common.settings import EpochSettings, WorkerSettings
from sparkstorm.common.slot_spec import WorkerControl
from sparkstorm.data_plane.executor.lazy_state import surfacing
from sparkstorm.data_plane.executor.user_traceback import USER_ERRORS, describe_error
from sparkstorm.data_plane.user_code.local_modules import missing_module
from sparkstorm.data_plane.worker.epoch_budget import Budget
from sparkstorm.data_plane.worker.extension import WorkerExtension
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.data_plane.worker.worker import Worker

# Many beats within the worker time-out (supervisor.worker.timeout.secs, 30 s), so that one lost or
# late beat ends no worker. Twice as often, slots would read twice as many lines; half as often,
# reasons of a standstill would be two seconds old.
BEAT_EVERY_MS = 1000


class SlotReporter:
    """Converter of a worker's events into reports; throttles errors of a component, as Storm."""

    def __init__(
        self, control: WorkerControl, clock: Clock, interval_ms: int, per_interval: int
    ) -> None:
        self._control = control
        self._clock = clock
        self._interval_ms = interval_ms
        self._per_interval = per_interval
        self._since_ms: dict[str, int] = {}
        self._last_gauges: dict[str, int] = {}

    def trying(self, task: int, entry: str, row: int) -> None:
        """Announce the one input of the next commit."""
        self._control.send(Trying(task, entry, row))

    def passed(self) -> None:
        """Careful mode is over."""
        self._control.send(Passed())

    def error(self, failure: Failure) -> None:
        """Print it to the worker's log, and report it to the slot, with the traceback, unless there
        were too many lately.
        """
        is_sent = self._send(failure)
        frames = failure.traceback.splitlines() if is_sent else ()
        lines = (
            f"ERROR {failure.component}#{failure.task}: {failure.text}",
            *(f"  {line}" for line in frames),
        )
        print("\n".join(lines), flush=True)

    def _send(self, failure: Failure) -> bool:
        now_ms = self._clock.now_ms()
        component = failure.component
        if now_ms - self._since_ms.get(component, -self._interval_ms) >= self._interval_ms:
            self._since_ms[component], self._last_gauges[component] = now_ms, 0
        self._last_gauges[component] += 1
        # As Storm's ReportError does (topology.max.error.report.per.interval): a bolt that fails on
        # every row would fill ZooKeeper. The log gets a line for each all the same.
        is_sent = self._last_gauges[component] <= self._per_interval
        if is_sent:
            self._control.send(ComponentError(failure))
        return is_sent


class Beats:
    """The worker's heartbeats: from its loop, and from within a call that waits for the store."""

    def __init__(self, control: WorkerControl, clock: Clock) -> None:
        self._control = control
        self._clock = clock
        self._stats: dict[str, Any] = {}
        self.sent_ms = 0

    def send(self, stats: dict[str, Any]) -> None:
        """Send the worker's present figures now."""
        self._stats, self.sent_ms = stats, self._clock.now_ms()
        self._control.send(Beat(stats))

    def hurry(self) -> None:
        """Have the next one sent at once."""
        self.sent_ms = 0

    def while_waiting(self, problem: str) -> None:
        """Send the last heartbeat again with the reason why the store keeps the worker waiting,
        once a second.

        A worker that waits is alive: without these its slot would kill it as hung.
        """
        if self._clock.now_ms() - self.sent_ms >= BEAT_EVERY_MS:
            self.send({**self._stats, "blocked": [problem]})


class WorkerRun:
    """A worker between two waits: it starts once the store admits it, carries out commands of its
    slot, sends heartbeats and steps.

    `start` makes the worker; StoreFullError has it called again, because a full store refuses the
    claim before any component is opened. `exit_code` is set once the run is over; errors of ours
    give the reason why it ended.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        control: WorkerControl,
        clock: Clock,
        beats: Beats,
        start: Callable[[], Worker],
        set_log_levels: Callable[[Mapping[str, str]], None] = lambda _: None,
        extensions: Sequence[WorkerExtension] = (),
    ) -> None:
        self._order = SetStatus(spec.status, spec.activations)
        self._set_log_levels = set_log_levels
        self.extensions = extensions
        self._control = control
        self._clock = clock
        self._beats = beats
        self._start = start
        self.worker: Worker | None = None
        self.exit_code: int | None = None

    def step(self, is_woken: bool = True) -> float | None:
        """Carry out commands, start, or run one epoch; return when to be called next, None when
        only input or a command makes it due.

        Without input or a command (`is_woken`), the spouts are asked first, and an epoch begins
        only if they emit.
        """
        # Commands wake the loop, so there is none to carry out here.
        if (
            not is_woken
            and self.worker is not None
            and (due_ms := self._ask_spouts(self.worker)) is not None
        ):
            return due_ms
        for command in self._control.poll():
            self._obey(command)
            if self.exit_code is not None:
                return None
        if self.worker is None:
            return self._clock.now_ms() + (0 if self._try_start() else BEAT_EVERY_MS)
        with surfacing():
            return self.worker.step(self._clock.now_ms())

    def _ask_spouts(self, worker: Worker) -> float | None:
        with surfacing():
            return worker.ask_spouts()

    def beat(self) -> bool:
        """Send a heartbeat when one is due; whether it was."""
        if self.worker is None or self._clock.now_ms() - self._beats.sent_ms < BEAT_EVERY_MS:
            return False
        stats = self.worker.summary()
        for extension in self.extensions:
            stats |= extension.figures()
        self._beats.send(stats)
        for extension in self.extensions:
            extension.after_beat(self._clock.now_ms())
        return True

    def close(self) -> None:
        """End what the extensions run outside the worker's loop."""
        for extension in self.extensions:
            extension.end()

    def stop(self) -> None:
        """End the worker in an orderly way, after its last commit."""
        # Before the worker: a live shadow is two processes more, and the slot kills this one when
        # `cleanup` takes longer than supervisor.worker.shutdown.sleep.secs.
        self.close()
        if self.worker is not None:
            self.worker.close()
            for extension in self.extensions:
                extension.close()

    @property
    def beat_due_ms(self) -> int:
        """Return the time of the next heartbeat."""
        return self._beats.sent_ms + BEAT_EVERY_MS

    def _obey(self, command: WorkerCommand) -> None:
        if isinstance(command, Stop):
            self.stop()
            self.exit_code = ExitCode.STOPPED
        elif isinstance(command, SetStatus):
            self._order = command
            if self.worker is not None:
                self.worker.follow(command)
        elif isinstance(command, SetLogLevels):
            self._set_log_levels(command.levels)
        elif self.worker is not None:
            for extension in self.extensions:
                extension.follow(command, self.worker.parts)

    def _try_start(self) -> bool:
        try:
            self.worker = self._start()
        # A full store refuses the claim before any component is opened, so nothing has to be undone
        # and the next try begins from nothing.
        except StoreFullError as error:
            self._beats.while_waiting(str(error))
            return False
        for extension in self.extensions:
            extension.attach(self.worker.parts)
        self._control.send(Ready())
        # The newest order, not that of the spec: one may have come while a full store kept the
        # start waiting.
        self.worker.follow(self._order)
        self._beats.hurry()
        return True


def start_worker(
    make_parts: Callable[[], WorkerParts], make_budget: Callable[[EpochSettings], Budget] = Budget
) -> Worker:
    """Open the code, claim the tasks and make the worker; WorkerFailedError for what user code
    raises meanwhile.
    """
    try:
        with surfacing():
            return Worker(make_parts(), make_budget)
    except SparkStormError:
        raise
    except ModuleNotFoundError as error:
        raise missing_module(error) from error
    # A failed start, not a crash: no input has caused it, so the next process need not be careful
    # (control_plane/supervisor/poison_detector.py).
    except USER_ERRORS as error:  # user code in __init__, open, prepare, init_state
        raise WorkerFailedError(
            f"a component could not be prepared: {describe_error(error)}"
        ) from error


def plan_of(
    spec: WorkerSpec, topology: Topology, make_instance: Callable[[str], Any], log_dir: str = ""
) -> WorkerPlan:
    """Return what a worker with that spec is to run, of a topology that was opened."""
    register(WorkerSettings.of(spec.conf).serializers)
    return WorkerPlan(
        spec.topology_id,
        topology,
        spec.component_by_task or number_tasks(topology, spec.conf),
        tuple(spec.tasks()),
        f"{spec.node}:{spec.port}",
        spec.token_by_task(),
        spec.conf,
        make_instance,
        careful=spec.careful,
        suspect_by_row={
            (suspect.task, suspect.entry_id, suspect.row): suspect for suspect in spec.suspects
        },
        log_dir=log_dir,
        executors=tuple(executor.executor for executor in spec.executors),
        host=spec.host,
        code_key=spec.code_key,
        store_mark=spec.store_mark,
        blobs_folder=spec.blobs_folder,
    )
