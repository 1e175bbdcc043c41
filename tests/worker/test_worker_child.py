"""Checks a slot's worker child, with real processes and toy workers."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.worker_messages import (
    Beat,
    ComponentError,
    ExitCode,
    Exiting,
    Ready,
    SetLogLevels,
    SetStatus,
    Stop,
    WorkerReport,
)
from sparkstorm.common.model.worker_spec import PlacedExecutor, RedisAddress, WorkerSpec
from sparkstorm.control_plane.supervisor import fork_server
from sparkstorm.control_plane.supervisor.fork_server import ForkServer
from sparkstorm.control_plane.supervisor.worker_process import (
    WorkerChild,
    child_environment,
    last_lines,
    rotate_log,
)

pytestmark = pytest.mark.sampled

Spawn = Callable[[str], "Watched"]


class Watched:
    """A child with everything it has said so far, and waits that end."""

    def __init__(self, child: WorkerChild, log: Path) -> None:
        self.child, self.log = child, log
        self.reports: list[WorkerReport] = []

    def start(self, **changes: object) -> "Watched":
        self.child.give(spec_of(self.log, **changes))
        return self

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.reports += self.child.poll_reports()
            if condition():
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"no {what} within {seconds} s: {self.reports} {last_lines(self.log)}"
                )
            time.sleep(0.005)

    def wait_ready(self) -> "Watched":
        self.wait_for(lambda: Ready() in self.reports, "Ready")
        return self

    def wait_exit(self, seconds: float = 180) -> int:
        self.wait_for(lambda: self.child.poll_exit() is not None, "exit", seconds)
        self.reports += self.child.poll_reports()
        assert self.child.exit_code is not None
        return self.child.exit_code

    def beats(self, name: str) -> list[object]:
        return [
            report.stats[name]
            for report in self.reports
            if isinstance(report, Beat) and name in report.stats
        ]


def spec_of(log: Path, **changes: object) -> WorkerSpec:
    fields: dict[str, object] = {
        "topology_id": "words-1",
        "node": "node-1",
        "port": 6700,
        "host": "localhost",
        "launch": 1,
        "assignment_version": 1,
        "executors": (PlacedExecutor(ExecutorId(2, 3), 1),),
        "component_by_task": {2: "split", 3: "count"},
        "conf": {},
        "code_key": "k",
        "conf_key": "k",
        "redis": RedisAddress("localhost", 1),
        "log_path": str(log),
    }
    return WorkerSpec(**{**fields, **changes})  # type: ignore[arg-type]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def server() -> Iterator[ForkServer]:
    """Fork a server next to the thread with which pytest-xdist waits for messages; it holds no lock
    that a worker takes.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "active_count", lambda: 1)
        made = ForkServer.start()
    assert made is not None
    yield made
    made.close()


@pytest.fixture(params=["exec", "fork"])
def spawn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Spawn]:
    children: list[WorkerChild] = []
    server: ForkServer | None = (
        request.getfixturevalue("server") if request.param == "fork" else None
    )

    def start(toy: str) -> Watched:
        entry = f"tests.supervisor.toy_workers:{toy}"
        child = (
            WorkerChild.spawn(entry, tmp_path / "early.log")
            if server is None
            else server.fork(entry)
        )
        children.append(child)
        return Watched(child, tmp_path / "worker.log")

    yield start
    for child in children:
        child.close()


def test_a_child_runs_its_spec_and_stops_when_asked(spawn: Spawn) -> None:
    watched = spawn("loop").start().wait_ready()
    watched.child.order(Stop())
    assert watched.wait_exit() == ExitCode.STOPPED
    assert watched.reports[-1] == Exiting(0, "returned")
    (line,) = last_lines(watched.log)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} launch 1 of words-1 runs tasks \[2, 3\]", line
    )


def test_a_status_reaches_the_loop(spawn: Spawn) -> None:
    watched = spawn("loop").start(status="INACTIVE").wait_ready()
    watched.child.order(SetStatus("ACTIVE"))
    watched.wait_for(
        lambda: ["INACTIVE", "ACTIVE"] in watched.beats("statuses"), "status in a beat"
    )


def test_log_levels_reach_the_loop(spawn: Spawn) -> None:
    watched = spawn("loop").start().wait_ready()
    watched.child.order(SetLogLevels({"app": "DEBUG"}))
    watched.wait_for(
        lambda: ["ACTIVE", "{'app': 'DEBUG'}"] in watched.beats("statuses"), "levels in a beat"
    )


def test_a_child_waits_idle_for_its_spec_and_becomes_a_worker(spawn: Spawn) -> None:
    watched = spawn("loop")
    watched.wait_for(
        lambda: Path(f"/proc/{watched.child.pid}/stat").read_text().split()[2] == "S", "idle child"
    )
    watched.start().wait_ready()


def test_a_fork_server_beside_threads_is_refused() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert ForkServer.start() is None
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def sparks_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "secret")


def test_a_fork_has_no_variables_of_sparks_and_draws_its_own_numbers(
    sparks_secret: None, server: ForkServer, tmp_path: Path
) -> None:
    found: list[object] = []
    for number in range(2):
        child = server.fork("tests.supervisor.toy_workers:tells_what_it_inherited")
        try:
            watched = Watched(child, tmp_path / f"{number}.log").start().wait_ready()
            watched.wait_for(lambda watched=watched: watched.beats("inherited"), "beat")  # type: ignore[misc]
            found += watched.beats("inherited")
        finally:
            child.close()
    (one, other), (secret, other_secret) = zip(*found, strict=True)
    assert one != other and secret is other_secret is None


_FORKS = """
import time
from pathlib import Path
from sparkstorm.control_plane.supervisor.fork_server import ForkServer
server = ForkServer.start()
child = server.fork("tests.supervisor.toy_workers:loop")
until = time.monotonic() + 60
while b"secret" in (shown := Path(f"/proc/{child.pid}/environ").read_bytes()) and time.monotonic() < until:
    time.sleep(0.01)
print(b"secret" in shown, b"secret" in Path("/proc/self/environ").read_bytes())
child.close()
server.close()
"""


def test_a_fork_shows_no_password_of_the_process_that_it_comes_from() -> None:
    variables = {**os.environ, "SPARKSTORM_REDIS_PASSWORD": "secret"}
    said = subprocess.run(
        [sys.executable, "-c", _FORKS], env=variables, capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == ["False", "True"]


def test_the_death_of_a_fork_server_ends_its_workers_and_refuses_more(
    server: ForkServer, tmp_path: Path
) -> None:
    child = server.fork("tests.supervisor.toy_workers:loop")
    try:
        watched = Watched(child, tmp_path / "worker.log").start().wait_ready()
        os.kill(server.pid, signal.SIGKILL)
        assert watched.wait_exit() == -signal.SIGKILL
        for _ in range(2):
            with pytest.raises(OSError, match=r"gone|Broken pipe|reset"):
                server.fork("tests.supervisor.toy_workers:loop")
    finally:
        child.close()


def test_a_fork_server_that_does_not_answer_is_given_up(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_ANSWER_S", 0.1)
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        server.fork("tests.supervisor.toy_workers:loop")
    assert is_gone(server.pid)


def test_an_exit_without_a_word_shows_as_its_code(spawn: Spawn) -> None:
    assert spawn("exits_at_once").start().wait_exit() == 7


def test_a_kill_shows_as_its_signal(spawn: Spawn) -> None:
    watched = spawn("loop").start().wait_ready()
    os.kill(watched.child.pid, signal.SIGKILL)
    assert watched.wait_exit() == -signal.SIGKILL


def test_a_failed_prepare_says_so_and_leaves_the_users_frames_in_the_log(spawn: Spawn) -> None:
    watched = spawn("fails_to_start").start()
    assert watched.wait_exit() == ExitCode.FAILED_START
    assert isinstance(watched.reports[-1], Exiting)
    assert "division by zero" in watched.reports[-1].reason
    sentence, *frames = [line for line in last_lines(watched.log) if "xxx" not in line]
    assert sentence.endswith("bolt 'count': prepare raised ZeroDivisionError: division by zero")
    assert any("in prepare_of_user_code" in line for line in frames)
    assert not any("Traceback" in line or "/sparkstorm/" in line for line in frames)


@pytest.mark.parametrize(
    ("toy", "code", "sentence"),
    [
        (
            "is_configured_wrongly",
            ExitCode.MISTAKEN,
            "component 'totals' (task 4): table totals at sqlite",
        ),
        ("is_refused", ExitCode.STORE_LOST, "Redis at localhost:1 refuses access: WRONGPASS"),
        (
            "cannot_commit",
            ExitCode.CRASHED,
            "this epoch cannot be committed: a tuple of 200 MB is more than an entry holds",
        ),
    ],
)
def test_an_error_of_ours_is_one_sentence_in_the_log_and_the_reason_of_the_exit(
    spawn: Spawn, toy: str, code: ExitCode, sentence: str
) -> None:
    watched = spawn(toy).start()
    assert watched.wait_exit() == code
    last = watched.reports[-1]
    assert isinstance(last, Exiting) and sentence in last.reason
    lines = last_lines(watched.log)
    assert sum(sentence in line for line in lines) == 1
    assert not any("Traceback" in line for line in lines)


def test_a_fenced_child_says_so(spawn: Spawn) -> None:
    assert spawn("is_fenced").start().wait_exit() == ExitCode.FENCED


def test_an_entry_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    child = WorkerChild.spawn("tests.supervisor.no_such_module:main", tmp_path / "early.log")
    try:
        watched = Watched(child, tmp_path / "worker.log").start()
        assert watched.wait_exit() == ExitCode.FAILED_START
        assert isinstance(watched.reports[-1], Exiting)
        assert "no_such_module" in watched.reports[-1].reason
    finally:
        child.close()


def test_a_spec_that_is_none_is_refused(spawn: Spawn) -> None:
    watched = spawn("loop").start(port="6700")
    assert watched.wait_exit() == ExitCode.BAD_SPEC
    assert isinstance(watched.reports[-1], Exiting) and "port" in watched.reports[-1].reason


def test_a_flood_of_prints_blocks_nobody_and_lands_in_the_log(spawn: Spawn) -> None:
    watched = spawn("floods_stderr").start().wait_ready()
    assert last_lines(watched.log, count=1) == ["written by C code"]
    assert watched.log.stat().st_size > 2_000_000


def test_the_end_of_the_control_pipe_ends_a_child(spawn: Spawn) -> None:
    watched = spawn("loop").start().wait_ready()
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), watched.child._control_fd)
    assert watched.wait_exit() == ExitCode.ORPHANED


def test_processes_that_user_code_started_die_with_the_worker(spawn: Spawn) -> None:
    watched = spawn("leaves_children").start().wait_ready()
    watched.wait_for(lambda: watched.beats("helper"), "helper's pid")
    (helper,) = watched.beats("helper")
    assert isinstance(helper, int) and not is_gone(helper)
    os.kill(watched.child.pid, signal.SIGKILL)
    watched.wait_exit()
    watched.wait_for(lambda: is_gone(helper), "end of the helper")


def test_a_fork_that_goes_on_as_the_worker_says_nothing_to_the_slot_and_ends(
    spawn: Spawn,
) -> None:
    watched = spawn("goes_on_as_a_fork").start().wait_ready()
    watched.wait_for(lambda: watched.beats("fork"), "the end of the fork")
    assert watched.beats("fork") == [ExitCode.FENCED] and not watched.beats("from")
    assert not any(isinstance(report, Exiting) for report in watched.reports)
    assert any("a fork of this worker" in line for line in last_lines(watched.log))


def test_a_child_inherits_nothing_that_its_slot_holds_open(spawn: Spawn) -> None:
    """A descriptor of Spark's socket in a child would hide the slot's death from Spark for as long
    as the child lives.
    """
    held, other = os.pipe()
    for fd in (held, other):
        os.set_inheritable(fd, True)
    try:
        child = spawn("loop").start().wait_ready().child
        pipe = os.readlink(f"/proc/self/fd/{held}")
        assert pipe not in [os.readlink(fd) for fd in Path(f"/proc/{child.pid}/fd").iterdir()]
    finally:
        os.close(held)
        os.close(other)


def test_user_code_finds_its_standard_input_empty(spawn: Spawn) -> None:
    watched = spawn("reads_stdin").start().wait_ready()
    assert watched.beats("stdin") == [""]
    watched.child.order(Stop())
    assert watched.wait_exit() == ExitCode.STOPPED


def test_nonsense_on_the_status_pipe_is_dropped(spawn: Spawn) -> None:
    watched = spawn("says_nonsense").start().wait_ready()
    assert watched.reports[0] == Ready()


def test_errors_come_through(spawn: Spawn) -> None:
    watched = spawn("reports_an_error").start().wait_ready()
    watched.wait_for(
        lambda: (
            ComponentError(Failure(FailureKind.RAISED, "ValueError: not a word", "count", 3))
            in watched.reports
        ),
        "error",
    )


def test_a_hung_child_shows_where_it_hangs(spawn: Spawn) -> None:
    watched = spawn("ignores_stop").start().wait_ready()
    watched.child.dump_stacks()
    watched.wait_for(
        lambda: any("in ignores_stop" in line for line in last_lines(watched.log, count=100)),
        "stack in the log",
    )
    watched.child.kill()
    assert watched.wait_exit() == -signal.SIGKILL


def test_a_large_spec_does_not_block_the_slot(spawn: Spawn) -> None:
    watched = spawn("loop")
    os.kill(watched.child.pid, signal.SIGSTOP)  # it reads nothing until it goes on
    starting = threading.Thread(target=lambda: watched.start(conf={"pad": "x" * 3_000_000}))
    starting.start()
    starting.join(60)
    is_blocked = starting.is_alive()
    os.kill(watched.child.pid, signal.SIGCONT)
    starting.join(60)
    assert not is_blocked
    watched.wait_ready()


def test_the_environment_of_a_topology_is_its_workers(spawn: Spawn) -> None:
    watched = spawn("loop").start(conf={"topology.environment": {"GREETING": 5}})
    assert watched.wait_exit() == ExitCode.BAD_SPEC


def test_no_secret_of_spark_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "s")
    monkeypatch.setenv("KEPT", "yes")
    environment = child_environment()
    assert environment["KEPT"] == "yes" and "PYTHON_WORKER_FACTORY_SECRET" not in environment


def test_a_log_over_its_cap_keeps_its_end_beside_it(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_bytes(b"old" * 10 + b"new" * 10)
    assert rotate_log(log, 30) and not rotate_log(log, 30)
    assert (log.read_bytes(), (tmp_path / "worker.log.1").read_bytes()) == (b"", b"new" * 10)
    assert not rotate_log(tmp_path / "none.log", 30)


def test_a_log_on_a_full_disk_goes_on_empty_and_leaves_no_half_of_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "worker.log"
    log.write_bytes(b"x" * 60)

    def fail(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:7])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    assert rotate_log(log, 30)
    assert log.read_bytes() == b"" and not (tmp_path / "worker.log.1").exists()
