"""Owns the only thread that sleeps in a worker: steps the worker, waits for input, commands or time, tells the slot."""

from __future__ import annotations

import gc
import os
import select
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from sparkstorm.blobs.local_modules import missing_module
from sparkstorm.blobs.topology_code import open_topology
from sparkstorm.clock import Clock, SystemClock
from sparkstorm.errors import CodecError, SparkStormError, StoreFullError, WorkerFailedError
from sparkstorm.executor.user_traceback import describe_error
from sparkstorm.model.tasks import number_tasks
from sparkstorm.model.worker_messages import (
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
    WorkerReport,
)
from sparkstorm.model.worker_spec import WorkerSpec
from sparkstorm.transport.redis import RedisTransport
from sparkstorm.worker.epoch import RandomIds
from sparkstorm.worker.log_levels import LogLevels
from sparkstorm.worker.tasks.task_factory import WorkerPlan
from sparkstorm.worker.tasks.warm_up import AckerWarmUp
from sparkstorm.worker.worker import Worker

_LAUNCH_BITS = 32  # with versions below 2**21 tokens stay below 2**53: scripts in the store compare them as doubles
_LONGEST_WAIT_MS = 1000
_BEAT_EVERY_MS = 1000


class Control(Protocol):
    """A worker's line to its slot (hosting.base.WorkerControl)."""

    def poll(self) -> list[WorkerCommand]: ...
    def send(self, report: WorkerReport) -> None: ...
    def fileno(self) -> int: ...


class SlotReporter:
    """Turns what the worker has to say into reports; errors of a component are throttled as in Storm."""

    def __init__(self, control: Control, clock: Clock, interval_ms: int, per_interval: int) -> None:
        self._control = control
        self._clock = clock
        self._interval_ms = interval_ms
        self._per_interval = per_interval
        self._since_ms: dict[str, int] = {}
        self._said: dict[str, int] = {}

    def trying(self, task: int, entry: str, row: int) -> None:
        """Announce the one input of the next commit."""
        self._control.send(Trying(task, entry, row))

    def passed(self) -> None:
        """Careful mode is over."""
        self._control.send(Passed())

    def error(self, component: str, task: int, text: str) -> None:
        """Print it to the worker's log, and tell the slot unless there was too much lately."""
        print(f"ERROR {component}#{task}: {text}", flush=True)
        now_ms = self._clock.now_ms()
        if now_ms - self._since_ms.get(component, -self._interval_ms) >= self._interval_ms:
            self._since_ms[component], self._said[component] = now_ms, 0
        self._said[component] += 1
        if self._said[component] <= self._per_interval:
            self._control.send(ComponentError(component, task, text))


class Beats:
    """The worker's heartbeats: from its loop, and from within a call that waits for the store."""

    def __init__(self, control: Control, clock: Clock) -> None:
        self._control, self._clock = control, clock
        self._stats: dict[str, Any] = {}
        self.sent_ms = 0

    def send(self, stats: dict[str, Any]) -> None:
        """Send what the worker has to say now."""
        self._stats, self.sent_ms = stats, self._clock.now_ms()
        self._control.send(Beat(stats))

    def while_waiting(self, problem: str) -> None:
        """Send the last words again with the reason why the store keeps us waiting, once a second.

        A worker that waits is alive: without these its slot would kill it as hung.
        """
        if self._clock.now_ms() - self.sent_ms >= _BEAT_EVERY_MS:
            self.send({**self._stats, "blocked": [problem]})


def run_worker(spec: WorkerSpec, control: Control) -> int:
    """Run a worker until it is told to stop; the result is its exit code. Errors of ours say why it ended."""
    clock = SystemClock()
    wake_fd = os.eventfd(0, os.EFD_NONBLOCK) if hasattr(os, "eventfd") else -1
    beats = Beats(control, clock)
    transport = RedisTransport(spec.redis, spec.topology_id, on_wait=beats.while_waiting)
    try:
        started = _start_patiently(spec, control, clock, transport, wake_fd, beats)
        if started is None:
            return ExitCode.STOPPED
        worker, spec = started
        control.send(Ready())
        gc.freeze()  # what stands now lives as long as the worker: never walk it again
        gc.set_threshold(100_000, 20, 50)
        return _loop(worker, spec, control, clock, transport, [fd for fd in (control.fileno(), wake_fd) if fd >= 0], beats)
    finally:
        transport.close()


def _start_patiently(
    spec: WorkerSpec, control: Control, clock: Clock, transport: RedisTransport, wake_fd: int, beats: Beats
) -> tuple[Worker, WorkerSpec] | None:
    """A new worker and its spec with the newest status; None when the slot stops it before.

    A store that is full refuses the claim before any component is opened, so the start is simply tried again.
    """
    while True:
        try:
            return _start(spec, control, clock, transport, wake_fd), spec
        except StoreFullError as error:
            beats.while_waiting(str(error))
        select.select([control.fileno()], [], [], _BEAT_EVERY_MS / 1000)
        for command in control.poll():
            if isinstance(command, Stop):
                return None
            if isinstance(command, SetStatus):
                spec = replace(spec, status=command.status)


def _start(spec: WorkerSpec, control: Control, clock: Clock, transport: RedisTransport, wake_fd: int) -> Worker:
    seconds = float(str(spec.conf.get("topology.error.throttle.interval.secs") or 10))
    reporter = SlotReporter(
        control, clock, int(seconds * 1000), int(str(spec.conf.get("topology.max.error.report.per.interval") or 5))
    )
    try:
        return Worker(_plan(spec), transport, clock, RandomIds(), reporter, lambda: _wake(wake_fd))
    except SparkStormError:
        raise
    except ModuleNotFoundError as error:
        raise missing_module(error) from error
    except (Exception, SystemExit) as error:  # user code in __init__, open, prepare, init_state
        raise WorkerFailedError(f"a component could not be prepared: {describe_error(error)}") from error


def _plan(spec: WorkerSpec) -> WorkerPlan:
    topology, make_instance = open_topology(
        Path(spec.code_path).read_bytes(), spec.code_key, Path(spec.code_path).with_name(f"modules-{spec.port}.zip")
    )
    component_by_task = spec.component_by_task or number_tasks(topology, spec.conf)
    token_by_task = {
        task: (placed.placed_version << _LAUNCH_BITS) | min(spec.launch, (1 << _LAUNCH_BITS) - 1)
        for placed in spec.executors
        for task in placed.executor.tasks
    }
    return WorkerPlan(
        spec.topology_id,
        topology,
        component_by_task,
        tuple(spec.tasks()),
        f"{spec.node}:{spec.port}",
        token_by_task,
        spec.conf,
        make_instance,
        is_careful=spec.careful,
        deaths_by_row={(s.task, s.entry_id, s.row): s.deaths for s in spec.suspects},
        log_dir=str(Path(spec.log_path).parent),
    )


def _loop(
    worker: Worker, spec: WorkerSpec, control: Control, clock: Clock, transport: RedisTransport, fds: list[int], beats: Beats
) -> int:
    worker.set_active(spec.status == "ACTIVE")
    beats.sent_ms = 0
    warm_up = AckerWarmUp(worker.ackers)
    log_levels = LogLevels()
    while True:
        for command in control.poll():
            if isinstance(command, Stop):
                worker.close()
                return ExitCode.STOPPED
            if isinstance(command, SetStatus):
                worker.set_active(command.status == "ACTIVE")
            elif isinstance(command, SetLogLevels):
                log_levels.apply(command.levels)
        now_ms = clock.now_ms()
        if now_ms - beats.sent_ms >= _BEAT_EVERY_MS:
            beats.send(worker.summary())
            warm_up.step()
        try:
            due_ms = worker.step(now_ms)
        except CodecError as error:
            # The epoch holds something without bytes. The next process goes row by row and will name the culprit.
            print(f"ERROR this epoch cannot be committed: {error}", flush=True)
            return ExitCode.CRASHED
        now_ms = clock.now_ms()
        wait_ms = min(_LONGEST_WAIT_MS if due_ms is None else due_ms - now_ms, beats.sent_ms + _BEAT_EVERY_MS - now_ms)
        if wait_ms > 0:
            transport.wait(wait_ms, fds)
            _drain(fds)


def _wake(fd: int) -> None:
    if fd >= 0:
        os.eventfd_write(fd, 1)


def _drain(fds: list[int]) -> None:
    for fd in fds[1:]:
        try:
            os.eventfd_read(fd)
        except BlockingIOError:
            continue
