"""Main loop of a worker process: steps the worker, waits for input, commands or time, reports to
the slot.

Law: the loop alone sleeps, and each event (an answer of Redis, a command, a call of a user's
thread) wakes it through a descriptor. Left out: asking in short intervals, which costs CPU when
idle and half an interval of latency otherwise. Liveness and progress are two signals (decision 29):
a thread reports that the process runs, the loop's heartbeats that it makes progress.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from sparkstorm.common.clock import Clock, SystemClock
from sparkstorm.common.errors import CodecError
from sparkstorm.common.extension_points import extensions_at
from sparkstorm.common.model.worker_messages import Alive
from sparkstorm.common.model.worker_spec import WorkerSpec
from sparkstorm.common.settings import WorkerSettings
from sparkstorm.common.slot_spec import WorkerControl
from sparkstorm.data_plane.transport.base import Transport
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.data_plane.user_code.topology_code import open_topology
from sparkstorm.data_plane.worker.epoch import RandomIds
from sparkstorm.data_plane.worker.extension import ExtensionHost, worker_extensions
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.run import (
    BEAT_EVERY_MS,
    Beats,
    SlotReporter,
    WorkerRun,
    plan_of,
    start_worker,
)
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.data_plane.worker.worker import Worker

# Thirty within the worker time-out. Half as often, a slot that lost one would wait twice as long to
# see a process stop; twice as often, a slot reads more lines for nothing.
ALIVE_EVERY_S = 1.0
MUCH_OUTPUT = 256 * 1024
"""Characters printed between two signs of life that count as progress of the loop. A call that
prints a gigabyte writes some megabytes a second, also on a busy machine; a call that tries without success
and says so for ever prints far less."""
# No longer than a heartbeat's period. A wait without end would do as well where descriptors wake
# it; where there are none (no eventfd), a call of a user's thread waits for so long.
_LONGEST_WAIT_MS = 1000
# Some 10 kB a second, so that a log of 1 MiB still goes back over a minute; a line for each tuple
# would leave nothing but its last second.
_LINES_A_SECOND = 100


def run_worker(spec: WorkerSpec, control: WorkerControl) -> int:
    """Run a worker until it gets a stop command, and return its exit code."""
    clock = SystemClock()
    wake_up = WakeUp()
    beats = Beats(control, clock)
    transport = open_transport(spec, beats.while_waiting)
    levels = LogLevels()
    ended = threading.Event()
    # A daemon: it must not keep a process alive whose loop has ended by an error.
    threading.Thread(target=_say_alive, args=(control, ended), name="alive", daemon=True).start()
    try:
        run = WorkerRun(
            spec,
            control,
            clock,
            beats,
            lambda: _start(spec, control, clock, transport, wake_up.send),
            levels.apply,
            worker_extensions(ExtensionHost(spec, clock.now_ms)),
        )
        return drive(run, control, clock, transport, wake_up)
    finally:
        ended.set()
        levels.close()
        # The thread ends first: a worker that ran inside another process left it behind.
        transport.close()


class LoopTransport(Transport, Protocol):
    """A transport on whose descriptors the loop can wait."""

    @property
    def has_read(self) -> bool:
        """Return whether entries are here that `poll` has not returned yet."""


def open_transport(spec: WorkerSpec, on_wait: Callable[[str], None]) -> LoopTransport:
    """Return the way to a worker's store, and to those of its topology's other cells.

    A worker waits with a reason for its own store alone: without another it goes on.
    """
    own = RedisTransport(spec.redis, spec.topology_id, on_wait=on_wait)
    if not spec.cells:
        return own
    joined: LoopTransport = extensions_at("transport")[0](spec, own)
    return joined


def _say_alive(control: WorkerControl, ended: threading.Event) -> None:
    """Report to the slot that the process runs, apart from the progress of its loop."""
    before = _printed()
    while not ended.wait(ALIVE_EVERY_S):
        printed = _printed()
        control.send(Alive(is_printing=printed - before >= MUCH_OUTPUT))
        before = printed


def _printed() -> int:
    """Return the characters that this process has printed so far."""
    return sum(getattr(stream, "written", 0) for stream in (sys.stdout, sys.stderr))


class WakeUp:
    """Wake-up of the loop out of its wait, sent by threads of user code. It does nothing without
    event descriptors (Linux has them).
    """

    def __init__(self) -> None:
        self.fds = [os.eventfd(0, os.EFD_NONBLOCK)] if hasattr(os, "eventfd") else []
        # Set after the write, so that a wake-up is never taken before it can be read.
        self._is_sent = False

    def send(self) -> None:
        """Make the descriptor readable."""
        for fd in self.fds:
            os.eventfd_write(fd, 1)
        self._is_sent = True

    def take(self) -> bool:
        """Make it unreadable again; return whether it was sent."""
        if not self._is_sent:
            return False
        self._is_sent = False
        for fd in self.fds:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(fd)
        return True


class LogLevels:
    """Levels of this process's loggers: INFO at first, and what an operator sets until it is no
    longer asked for.

    The handler is logging's last resort, which serves only while user code has added none: a
    `basicConfig` of its module goes on to count.
    """

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._rate = _RateBound()
        self._found = logging.lastResort, logging.getLogger().level
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        handler.addFilter(self._rate)
        logging.lastResort = handler
        logging.getLogger().setLevel(logging.INFO)

    def apply(self, level_by_logger: Mapping[str, str]) -> None:
        """Set these levels, and put loggers that are not among them back to what they were ("" is
        the root logger).
        """
        self._rate.is_off = bool(level_by_logger)
        for name in [name for name in self._before if name not in level_by_logger]:
            logging.getLogger(name).setLevel(self._before.pop(name))
        for name, level in level_by_logger.items():
            logger = logging.getLogger(name)
            self._before.setdefault(name, logger.level)
            logger.setLevel(level)

    def close(self) -> None:
        """Leave the process's logging as it was before."""
        self.apply({})
        logging.lastResort, level = self._found
        logging.getLogger().setLevel(level)


class _RateBound(logging.Filter):
    """At most so many lines below WARNING a second: a line for each tuple would fill the disk.
    Lines that an operator asked for are not bounded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_off = False
        self._second = self._lines = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is printed; the first that is left out in a second is replaced
        by a notice.
        """
        if self.is_off or record.levelno >= logging.WARNING:
            return True
        if (second := int(record.created)) != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines == _LINES_A_SECOND + 1:
            record.msg = "more than %d lines in this second; the rest is left out"
            record.args = (_LINES_A_SECOND,)
        return self._lines <= _LINES_A_SECOND + 1


def drive(
    run: WorkerRun, control: WorkerControl, clock: Clock, transport: LoopTransport, wake_up: WakeUp
) -> int:
    """Step a worker until its run is over, and wait between the steps; return its exit code."""
    fds = [control.fileno(), *wake_up.fds]
    due_ms = _step_until_started(run, control)
    # All present objects live as long as the worker: no collection needs to walk them again.
    gc.freeze()
    # Python's own thresholds would have it look for cycles after every few hundred rows, whose
    # tuples are freed by their counts; with these, cycles of user code are still found now and
    # then. Not measured one by one.
    gc.set_threshold(100_000, 20, 50)
    is_late = False
    while run.exit_code is None:
        # Whole milliseconds would make the wait one too long.
        now_ms = clock.now_us() / 1000
        wait_ms = min(
            _LONGEST_WAIT_MS if due_ms is None else due_ms - now_ms, run.beat_due_ms - now_ms
        )
        if wait_ms > 0:
            is_woken = transport.wait(wait_ms, fds)
            is_late = False
        else:  # spouts alone may be due; never twice without a look at what has come
            is_woken = is_late or transport.has_read
            is_late = not is_woken
        # A thread may have posted since the look: taken and not followed, its post would wait until
        # something else is due.
        is_woken |= wake_up.take()
        run.beat()
        try:
            due_ms = run.step(is_woken)
        except CodecError as error:
            # The epoch holds a value that cannot be encoded, or too many bytes. The next process
            # executes row by row and names that row.
            raise CodecError(f"this epoch cannot be committed: {error}") from error
    return run.exit_code


def _step_until_started(run: WorkerRun, control: WorkerControl) -> float | None:
    """Step until there is a worker, or the run is over before; return when to step again."""
    due_ms = run.step()
    while run.worker is None and run.exit_code is None:
        # Only the control pipe: the store has refused the claim, so nothing can come from it.
        select.select([control.fileno()], [], [], BEAT_EVERY_MS / 1000)
        due_ms = run.step()
    return due_ms


def _start(
    spec: WorkerSpec,
    control: WorkerControl,
    clock: Clock,
    transport: Transport,
    wake: Callable[[], None],
) -> Worker:
    settings = WorkerSettings.of(spec.conf)
    reporter = SlotReporter(
        control, clock, settings.error_interval_ms, settings.errors_per_interval
    )
    return start_worker(
        lambda: WorkerParts(
            _plan(spec), transport, clock, RandomIds(), reporter, wake, _run_in_thread
        )
    )


def _run_in_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="stacks", daemon=True).start()


def _plan(spec: WorkerSpec) -> WorkerPlan:
    code_path = Path(spec.code_path)
    opened = open_topology(
        code_path.read_bytes(), spec.code_key, code_path.with_name(f"modules-{spec.port}.zip")
    )
    return plan_of(spec, *opened, log_dir=str(Path(spec.log_path).parent))
