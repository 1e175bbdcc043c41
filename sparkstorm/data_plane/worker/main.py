"""Entry point of a worker process (`python -m sparkstorm.data_plane.worker.main`), started and commanded by a
slot.

The slot passes three arguments: the descriptor of the status pipe, its own pid, the entry
("module:function") to run. Everything else, secrets included, comes as a WorkerSpec on the first
line of the control pipe (fd 0); its end means exit. Only what the wait for that line needs is
imported at the top: a child that was exec'ed imports the runtime while it waits.

Law: no secret is in argv or the environment, where `ps` and children of user code would see it, and
the child never outlives its slot: the end of the control pipe, and where the kernel has it the
death of the parent, end it. Left out: a socket, which any process of the machine could connect to.
"""

import contextlib
import ctypes
import errno
import faulthandler
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn, TextIO

from sparkstorm.common.errors import (
    FencedError,
    InvalidConfigError,
    InvalidTopologyError,
    SparkStormError,
    StoreInconsistentError,
    StoreRolledBackError,
    StoreUnavailableError,
    WorkerFailedError,
)
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.worker_messages import (
    MAX_LINE_BYTES,
    Alive,
    Beat,
    ComponentError,
    ExitCode,
    Exiting,
    WorkerCommand,
    WorkerReport,
    decode_command,
    encode_report,
)
from sparkstorm.common.model.worker_spec import MAX_SPEC_BYTES, WorkerSpec
from sparkstorm.common.settings import WorkerSettings
from sparkstorm.common.slot_spec import WorkerControl
from sparkstorm.data_plane.executor.user_traceback import (
    busy_in,
    describe_error,
    stacks_of_threads,
    traceback_of,
)

DEFAULT_ENTRY = "sparkstorm.data_plane.worker.loop:run_worker"
# One report of the largest size. Twice as much would only keep more reports for a slot that does
# not read.
MAX_UNSENT_BYTES = MAX_LINE_BYTES
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15

WorkerEntry = Callable[[WorkerSpec, WorkerControl], int]


class PipeControl:
    """The child's end of both pipes: commands are taken by the worker's loop, reports are sent from
    any thread.
    """

    def __init__(self, control_fd: int, status_fd: int, received: bytes = b"") -> None:
        self._control_fd = control_fd
        self._status_fd = status_fd
        self._received = bytearray(received)
        self._unsent = bytearray()
        self._process = os.getpid()
        self._lock = threading.RLock()  # a signal's handler may send while the loop does
        # Not blocking: a slot that is stopped must not stop the epochs. Not inherited: a child of
        # user code that kept the status pipe open would hide the death of this process from its
        # slot.
        for fd in (control_fd, status_fd):
            os.set_blocking(fd, False)
            os.set_inheritable(fd, False)

    def fileno(self) -> int:
        return self._control_fd

    def poll(self) -> list[WorkerCommand]:
        self._end_fork()
        with self._lock:
            self._flush()
        try:
            while chunk := os.read(self._control_fd, 65536):
                self._received += chunk
            # The end of the pipe: the slot is gone, and only it would kill or restart this worker.
            _exit(ExitCode.ORPHANED)
        except BlockingIOError:
            pass
        *lines, rest = self._received.split(b"\n")
        self._received = rest
        return [decode_command(bytes(line)) for line in lines]

    def send(self, report: WorkerReport) -> None:
        self._end_fork()
        # A slot that does not read now must not stop the epochs: beats are dropped, the rest waits
        # its turn.
        with self._lock:
            if self._unsent and (
                isinstance(report, Alive | Beat) or len(self._unsent) > MAX_UNSENT_BYTES
            ):
                self._flush()
                if self._unsent:
                    return
            self._unsent += encode_report(report)
            self._flush()

    def _end_fork(self) -> None:
        """End a fork of the worker that has come back to its loop (by C code: Python's own forks end
        in data_plane/executor/forks.py): to the slot it would speak as the worker.
        """
        if os.getpid() != self._process:
            text = f"ERROR process {os.getpid()}, a fork of this worker, has gone on as a second one and was ended\n"
            os.write(2, text.encode())
            os._exit(ExitCode.FENCED)

    def _flush(self) -> None:
        try:
            while self._unsent:
                # A pipe takes less than it is given: the rest stays in front, so that lines stay
                # whole.
                del self._unsent[: os.write(self._status_fd, self._unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            _exit(ExitCode.ORPHANED)


def main(arguments: list[str]) -> NoReturn:
    """Wait for the spec, run it, exit with an ExitCode."""
    status_fd = int(arguments[0])
    slot_pid = int(arguments[1])
    entry = arguments[2]
    name_process("storm-worker")
    die_with_parent(slot_pid)
    control_fd = _take_stdin()
    # Before the wait: a child that was exec'ed in advance has imported everything when the spec
    # comes.
    load = _loader(entry)
    line, rest = _read_first_line(control_fd)
    control = PipeControl(control_fd, status_fd, rest)
    try:
        spec = WorkerSpec.from_json(line)
        _open_log(spec.log_path)
        _answer_where_it_hangs(control)
        _apply_environment(spec)
        if spec.cpus:
            os.sched_setaffinity(0, spec.cpus)
    except (SparkStormError, OSError) as fault:
        _end(control, ExitCode.BAD_SPEC, str(fault))
    _end(control, *_run(load, spec, control))


def name_process(name: str) -> None:
    """Set the name that the system shows of this process (15 characters, Linux only): a fork has
    its parent's command line.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent's spawning thread ends; where it cannot,
    watch the parent.

    The check after the request closes the race with a parent that died before it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_exit_without_parent, args=(parent_pid,), daemon=True).start()
    # A parent that died before the request sends no signal any more.
    if os.getppid() != parent_pid:
        _exit(ExitCode.ORPHANED)


def _exit_without_parent(parent_pid: int) -> None:
    never = threading.Event()
    while os.getppid() == parent_pid:
        never.wait(0.5)
    _exit(ExitCode.ORPHANED)


def _take_stdin() -> int:
    """Move the control pipe away from fd 0, so that user code that reads its standard input finds
    nothing there.
    """
    control_fd = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return control_fd


def _loader(entry: str) -> Callable[[], WorkerEntry]:
    """Import the entry before the spec arrives; a failure is raised when the entry is called."""
    module_name, _, function_name = entry.partition(":")
    try:
        function: WorkerEntry = getattr(import_module(module_name), function_name)
    except Exception as fault:  # user code of a test, or an installation that lacks a package
        # Not raised here: without a spec there is no log yet that could hold the error.
        return _raiser(
            WorkerFailedError(
                f"worker entry {entry} cannot be imported: {type(fault).__name__}: {fault}"
            )
        )
    return lambda: function


def _raiser(error: WorkerFailedError) -> Callable[[], WorkerEntry]:
    def load() -> WorkerEntry:
        raise error

    return load


def _read_first_line(fd: int) -> tuple[bytes, bytes]:
    received = bytearray()
    while b"\n" not in received:
        select.select([fd], [], [])
        # Without a limit a broken slot could make the worker keep any amount.
        chunk = os.read(fd, 65536)
        if not chunk or len(received) > MAX_SPEC_BYTES:
            _exit(ExitCode.ORPHANED)
        received += chunk
    line, _, rest = bytes(received).partition(b"\n")
    return line, rest


def _open_log(path: str) -> None:
    """Send everything that this process prints, C code and crash reports included, to the worker's
    log.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # a full disk: the worker runs without a log, and its slot reports why
        fd = os.open(os.devnull, os.O_WRONLY)
    for target in (1, 2):
        # Descriptors, not only sys.stdout: libraries in C and crash reports write there.
        os.dup2(fd, target)
    os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    sys.stdout, sys.stderr = Stamped(sys.stdout), Stamped(sys.stderr)
    # A segmentation fault then leaves its stack in the log, before the slot parks the row behind
    # it.
    faulthandler.enable(2)


class Stamped:
    """A text stream whose lines begin with the time; all methods but `write` and `flush` are the
    stream's own.

    What C code writes, crash reports among it, goes to the descriptor and has no time. A disk that
    is full loses lines and raises nothing: user code that prints must not fail by it.
    """

    def __init__(self, stream: TextIO) -> None:
        # Reentrant: the handler of a signal may print while the same thread prints.
        self._stream = stream
        self._at_start = True
        self._lock = threading.RLock()
        self._second = 0
        self._stamp = ""
        self.written = 0  # characters so far

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, with the time before each line that begins in it; returns the characters of
        the text.
        """
        if not text:
            return 0
        with self._lock:
            self.written += len(text)
            ends = text[-1] == "\n"
            body = text[:-1] if ends else text
            stamp = self._time() if self._at_start or "\n" in body else ""
            # One replacement: a gigabyte of lines, line by line, takes a minute.
            if "\n" in body:
                body = body.replace("\n", f"\n{stamp}")
            with contextlib.suppress(OSError):
                self._stream.write(
                    f"{stamp if self._at_start else ''}{body}{text[-1] if ends else ''}"
                )
            self._at_start = ends
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is buffered."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def _time(self) -> str:
        now = time.time()
        if (second := int(now)) != self._second:
            self._second, self._stamp = (
                second,
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)),
            )
        return f"{self._stamp},{int(now % 1 * 1000):03d} "


def _answer_where_it_hangs(control: PipeControl) -> None:
    """Have SIGUSR1, which a slot sends before it kills a silent child, write all stacks to the log
    and report the place of user code.

    The stacks come from C and always work; the report comes from Python, so not while C code holds
    the interpreter.
    """

    def report(_number: int, frame: FrameType | None) -> None:
        busy = None if frame is None else busy_in(frame)
        if frame is not None and busy is not None:
            stacks = stacks_of_threads(frame)
            control.send(
                ComponentError(
                    Failure(
                        FailureKind.HUNG, busy.place, busy.component, busy.task, traceback=stacks
                    )
                )
            )

    # In this order: faulthandler chains to the handler that is there when it registers.
    signal.signal(signal.SIGUSR1, report)
    faulthandler.register(signal.SIGUSR1, 2, chain=True)


def _apply_environment(spec: WorkerSpec) -> None:
    environment = WorkerSettings.of(spec.conf).environment or {}
    if not isinstance(environment, dict) or not all(
        isinstance(value, str) for value in environment.values()
    ):
        raise WorkerFailedError("topology.environment: expected a map of names to text")
    os.environ.update({name: str(value) for name, value in environment.items()})


def _run(
    load: Callable[[], WorkerEntry], spec: WorkerSpec, control: PipeControl
) -> tuple[int, str]:
    try:
        return load()(spec, control), "returned"
    except SparkStormError as fault:
        # It names module, component or server, and the remedy: a stack would only add calls of ours.
        # The causes too: a connector wraps what it got in its own error.
        causes = (fault, fault.__cause__, fault.__context__)
        is_named = any(
            isinstance(cause, ModuleNotFoundError | InvalidConfigError) for cause in causes
        )
        if isinstance(fault, WorkerFailedError) and not is_named:
            _print_cause(fault)
        else:
            print(fault, flush=True)
        return exit_code_of(fault), str(fault)
    except BaseException as fault:  # the outermost frame: every error of user code ends here
        traceback.print_exc()
        # Of unknown cause: the slot will suspect the row at hand, and the next process go row by
        # row.
        return ExitCode.CRASHED, describe_error(fault)


def _print_cause(fault: WorkerFailedError) -> None:
    """Print a sentence of ours with the frames of user code behind it: those of the engine would
    push the sentence out of the last lines, which are all that a follower of the run reads.
    """
    cause = fault.__cause__
    frames = traceback_of(cause).splitlines() if cause is not None else []
    print("\n".join([str(fault), *(f"  {line}" for line in frames)]), flush=True)


def exit_code_of(fault: SparkStormError) -> ExitCode:
    """The exit code of a worker that ends with an error of ours."""
    if isinstance(fault, InvalidConfigError) or isinstance(fault.__cause__, InvalidConfigError):
        return ExitCode.MISTAKEN
    codes = {
        WorkerFailedError: ExitCode.FAILED_START,
        # a connector's open: another start finds the same
        InvalidTopologyError: ExitCode.FAILED_START,
        FencedError: ExitCode.FENCED,
        StoreUnavailableError: ExitCode.STORE_LOST,
        StoreRolledBackError: ExitCode.RELOAD,
        StoreInconsistentError: ExitCode.DAMAGED,
    }
    return next((code for kind, code in codes.items() if isinstance(fault, kind)), ExitCode.CRASHED)


def _end(control: PipeControl, code: int, reason: str) -> NoReturn:
    control.send(Exiting(int(code), reason[:2000]))
    _exit(code)


def _exit(code: int) -> NoReturn:
    # os._exit: threads that user code left behind must not keep a worker alive.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(int(code))


if __name__ == "__main__":
    main(sys.argv[1:])
