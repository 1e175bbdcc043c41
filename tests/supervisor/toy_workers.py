"""Toy worker entries: behaviours of a worker child towards its slot, good and bad, without a
runtime.
"""

import ctypes
import os
import resource
import select
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.errors import CodecError, FencedError, InvalidConfigError, WorkerFailedError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.worker_messages import (
    Alive,
    Beat,
    ComponentError,
    Ready,
    SetLogLevels,
    SetStatus,
    Stop,
    Trying,
)
from sparkstorm.common.model.worker_spec import WorkerSpec
from sparkstorm.common.slot_spec import WorkerControl
from sparkstorm.data_plane.transport.servers.opening import AccessRefusedError
from sparkstorm.data_plane.worker.loop import WakeUp, drive

BEAT_S = 0.1


def _serve(control: WorkerControl, commands_seen: list[str]) -> int:
    """Beat until told to stop; a status becomes visible in the beats."""
    while True:
        select.select([control.fileno()], [], [], BEAT_S)
        for command in control.poll():
            if isinstance(command, Stop):
                return 0
            assert isinstance(command, (SetStatus, SetLogLevels))
            commands_seen.append(
                command.status if isinstance(command, SetStatus) else str(dict(command.levels))
            )
        control.send(Beat({"statuses": list(commands_seen), "pid": os.getpid()}))


def loop(spec: WorkerSpec, control: WorkerControl) -> int:
    """A worker that works."""
    print(f"launch {spec.launch} of {spec.topology_id} runs tasks {spec.tasks()}")
    control.send(Ready())
    return _serve(control, [spec.status])


def tells_what_it_inherited(spec: WorkerSpec, control: WorkerControl) -> int:
    """A number of numpy's, and Spark's secret if it is there."""
    control.send(Ready())
    control.send(
        Beat(
            {
                "inherited": [
                    float(np.random.random()),
                    os.environ.get("PYTHON_WORKER_FACTORY_SECRET"),
                ]
            }
        )
    )
    return _serve(control, [])


def exits_at_once(spec: WorkerSpec, control: WorkerControl) -> int:
    """As `os._exit` in a bolt: no word, no clean-up."""
    control.send(Ready())
    os._exit(7)


def fails_to_start(spec: WorkerSpec, control: WorkerControl) -> int:
    """A component's prepare raises, at the end of a long log."""
    for _ in range(20):
        print("x" * 1000, flush=True)
    try:
        return prepare_of_user_code()
    except ZeroDivisionError as error:
        raise WorkerFailedError(
            "bolt 'count': prepare raised ZeroDivisionError: division by zero"
        ) from error


def prepare_of_user_code() -> int:
    return 1 // 0


def is_configured_wrongly(spec: WorkerSpec, control: WorkerControl) -> int:
    """A sink finds that its table is not there."""
    try:
        raise InvalidConfigError("table totals at sqlite:///shop.db: there is no such table")
    except InvalidConfigError as error:
        raise WorkerFailedError(f"component 'totals' (task 4): {error}") from error


def is_refused(spec: WorkerSpec, control: WorkerControl) -> int:
    """Redis takes another password by now."""
    raise AccessRefusedError("Redis at localhost:1 refuses access: WRONGPASS")


def cannot_commit(spec: WorkerSpec, control: WorkerControl) -> int:
    """An epoch has a tuple that cannot be stored; the real drive names it so."""

    class Run:
        exit_code = None
        beat_due_ms = float("inf")
        worker = object()
        steps = 0

        def step(self, is_woken: bool = False) -> float:
            self.steps += 1
            if self.steps > 1:
                raise CodecError("a tuple of 200 MB is more than an entry holds")
            return 0.0

        def beat(self) -> None:
            return

    waits = SimpleNamespace(wait=lambda *_: True, has_read=False)
    return drive(Run(), control, SystemClock(), waits, WakeUp())  # type: ignore[arg-type]


def is_fenced(spec: WorkerSpec, control: WorkerControl) -> int:
    control.send(Ready())
    raise FencedError("task 3 belongs to another owner")


def floods_stderr(spec: WorkerSpec, control: WorkerControl) -> int:
    """Write two megabytes: into a pipe without a reader that would block for ever, into a file it
    does not.
    """
    for _ in range(2000):
        sys.stderr.write("x" * 1023 + "\n")
    os.write(1, b"written by C code\n")
    control.send(Ready())
    return _serve(control, [])


def ignores_stop(spec: WorkerSpec, control: WorkerControl) -> int:
    """A bolt that never returns."""
    control.send(Ready())
    while True:
        time.sleep(60)


class Sleeps(BasicBolt):
    """Waits for something that never comes, below its own helper."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self._ask()

    def _ask(self) -> None:
        time.sleep(600)  # no time limit


def hangs_in_a_bolt(spec: WorkerSpec, control: WorkerControl) -> int:
    """A bolt that never returns, inside the frames of the real runtime."""
    # only here: it would slow all other toys down
    from sparkstorm.testing import FeederSpout, LocalCluster

    control.send(Ready())
    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("sleeps", Sleeps()).shuffle_grouping("spout")
    with LocalCluster() as cluster:
        cluster.submit(builder.build())
        spout.feed([1])
        cluster.run_until_idle()
    return 0


def hangs_while_alive(spec: WorkerSpec, control: WorkerControl) -> int:
    """Block the loop in a call while a thread of the process goes on with its heartbeats."""

    def say_alive() -> None:
        while True:
            time.sleep(BEAT_S)
            control.send(Alive())

    threading.Thread(target=say_alive, daemon=True).start()
    return hangs_in_a_bolt(spec, control)


def leaks(spec: WorkerSpec, control: WorkerControl) -> int:
    """A worker that keeps 8 MiB more every tenth of a second, 1 MiB from 250 MiB on, and ends when
    it is asked to.
    """
    control.send(Ready())
    kept = []
    while True:
        select.select([control.fileno()], [], [], BEAT_S)
        if any(isinstance(command, Stop) for command in control.poll()):
            return 0
        used_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        kept.append(b"x" * ((8 if used_mb < 250 else 1) << 20))
        control.send(Beat({"keeps": [f"{len(kept) * 10_000:,} items in 'cache' of count#1"]}))


def leaves_children(spec: WorkerSpec, control: WorkerControl) -> int:
    """User code that started its own process."""
    helper = subprocess.Popen(["sleep", "600"])
    control.send(Ready())
    control.send(Beat({"helper": helper.pid}))
    return _serve(control, [])


def reads_stdin(spec: WorkerSpec, control: WorkerControl) -> int:
    """User code that reads standard input finds it empty, and takes no command away."""
    control.send(Beat({"stdin": sys.stdin.read()}))
    control.send(Ready())
    return _serve(control, [])


def reports_an_error(spec: WorkerSpec, control: WorkerControl) -> int:
    control.send(Ready())
    control.send(ComponentError(Failure(FailureKind.RAISED, "ValueError: not a word", "count", 3)))
    return _serve(control, [])


def dies_of_a_row(spec: WorkerSpec, control: WorkerControl) -> int:
    """Row 5 of frame 1-0 kills, until it has killed three times and is parked."""
    control.send(Ready())
    parked = any(suspect.row == 5 and suspect.deaths >= 3 for suspect in spec.suspects)
    if parked:
        control.send(ComponentError(Failure(FailureKind.PARKED, "row 5 parked", "count", 3)))
        return _serve(control, [])
    if spec.careful:
        control.send(Trying(1, "1-0", 4))
        control.send(Trying(1, "1-0", 5))
    os._exit(9)


def says_nonsense(spec: WorkerSpec, control: WorkerControl) -> int:
    """A stray write to the status pipe by native code."""
    status_fd = int(sys.argv[1])
    os.write(status_fd, b'{"type":"steer"}\n\xff\xfe\n[1,2]\n')
    control.send(Ready())
    return _serve(control, [])


def goes_on_as_a_fork(spec: WorkerSpec, control: WorkerControl) -> int:
    """C code forks, and the child comes back to the loop, speaks to the slot and ends as a worker
    does.
    """
    control.send(Ready())
    # By the library of C: Python does not hear of it, as of a fork in an extension.
    if (pid := ctypes.PyDLL(None).fork()) == 0:
        control.poll()
        control.send(Beat({"from": "the fork"}))
        return 0
    _, status = os.waitpid(pid, 0)
    control.send(Beat({"fork": os.waitstatus_to_exitcode(status)}))
    return _serve(control, [])
