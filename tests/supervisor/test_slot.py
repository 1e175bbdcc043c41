"""A slot over local twins and worker processes that the test ends: what it records of deaths and of
work that stands still.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from sparkstorm.common.model.assignment import (
    Assignment,
    ExecutorId,
    TaskInfo,
    TaskTable,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.worker_messages import (
    Alive,
    Beat,
    ExitCode,
    Exiting,
    Ready,
    Trying,
    WorkerCommand,
    WorkerReport,
)
from sparkstorm.common.model.worker_spec import RedisAddress, WorkerSpec
from sparkstorm.common.slot_spec import SlotSpec, StateAddress
from sparkstorm.control_plane.blobs.local import LocalBytesStore
from sparkstorm.control_plane.blobs.store import BlobKind, BlobStore
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.supervisor.local import MemoryDisk, MemoryNodeDir
from sparkstorm.control_plane.supervisor.poison_detector import FEWEST_INPUTS
from sparkstorm.control_plane.supervisor.slot import ClaimedSlot, Slot
from sparkstorm.control_plane.supervisor.slot_reports import ReportSubject, SlotReports
from sparkstorm.control_plane.supervisor.slot_sync import SlotStores, SlotSync
from sparkstorm.control_plane.supervisor.supervisor import Supervisor, SupervisorDuties
from sparkstorm.control_plane.supervisor.worker_memory import Usage
from sparkstorm.data_plane.executor import runner

SLOT = WorkerSlot("n1", 6700)
KEY = b"k" * 32
STILL = "Redis is at 61% of its maxmemory"


class Process:
    """A worker process that does what the test says."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.spec: WorkerSpec | None = None
        self.reports: list[WorkerReport] = [Ready()]
        self.exit_code: int | None = None
        self.oom = self.dumps = 0
        self.log = ["the last line of its log"]

    def filenos(self) -> list[int]:
        return []

    def give(self, spec: WorkerSpec) -> None:
        self.spec = spec

    def order(self, command: WorkerCommand) -> None: ...

    def poll_reports(self) -> list[WorkerReport]:
        found, self.reports = self.reports, []
        return found

    def poll_exit(self) -> int | None:
        return self.exit_code

    def dump_stacks(self) -> None:
        self.dumps += 1

    def kill(self) -> None: ...

    def close(self) -> None: ...

    def usage(self) -> Usage | None:
        return None

    def oom_kills(self) -> int:
        return self.oom

    def rotate_log(self, cap_bytes: int) -> bool:
        return False

    def last_lines(self, has_crashed: bool = False) -> list[str]:
        return self.log


class Bench:
    """A slot, its sync and its processes, stepped together."""

    def __init__(self) -> None:
        self.state = StormState(LocalStateStore(LocalStateTree()), KEY)
        self.blobs = BlobStore(self.state, LocalBytesStore(), KEY)
        self.storage = MemoryNodeDir(MemoryDisk("n1"))
        claim = self.storage.try_claim(SLOT.port)
        assert claim is not None
        self.sync = SlotSync(SLOT, self.storage, self._connect)
        self.processes: list[Process] = []
        self.refuse: Callable[[], None] = lambda: None
        spec = SlotSpec(StateAddress("memory"), RedisAddress("memory", 0), "", "")
        self.slot = Slot(
            spec, ClaimedSlot(SLOT, "host", self.storage, claim), self.sync, self._spawn
        )
        self.now_ms = 1_000_000
        self._submit()

    def _connect(self) -> SlotStores:
        return SlotStores(
            self.state,
            self.blobs,
            Supervisor(SupervisorDuties("host", SLOT.port), self.storage, self.state),
        )

    def _spawn(self) -> Any:
        self.refuse()
        self.processes.append(Process(100 + len(self.processes)))
        return self.processes[-1]

    def _submit(self) -> None:
        code, conf = self.blobs.put(b"code", 0), self.blobs.put(b"{}", 0, BlobKind.CONF)
        self.state.write_tasks(
            "t", TaskTable({1: TaskInfo("count", "bolt"), 2: TaskInfo("shout", "bolt")})
        )
        self.state.create_base(TopologyBase("t", "t", 0, TopologyStatus.ACTIVE, 1, {}, code, conf))
        executor = ExecutorId(1, 2)
        self.state.write_assignment(
            Assignment("t", 1, code, conf, {}, {executor: SLOT}, {}, {executor: 1})
        )

    def run(self, ms: int = 3_000) -> None:
        """Let slot and sync step for so long."""
        for _ in range(0, ms, 100):
            self.now_ms += 100
            self.sync.step(self.now_ms)
            self.slot.step(self.now_ms)
        self.sync.step(self.now_ms)

    def end(self, code: int, *last: WorkerReport) -> None:
        """End the newest process, after its last reports."""
        self.processes[-1].reports += last
        self.processes[-1].exit_code = code
        self.run()

    def errors(self, component: str = "count") -> list[Failure]:
        return self.state.read_errors("t", component)

    def beat(self) -> WorkerBeat:
        found = self.state.read_worker_beat("t", SLOT)
        assert found is not None
        return found


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.run()
    assert len(made.processes) == 1 and made.beat().state == "RUNNING"
    return made


@pytest.mark.parametrize(
    ("code", "last", "words"),
    [
        (-signal.SIGSEGV, (), "killed by signal 11 (SIGSEGV)"),
        (-signal.SIGABRT, (), "killed by signal 6 (SIGABRT)"),
        (7, (), "exit status 7"),
        (ExitCode.CRASHED, (Exiting(1, "KeyboardInterrupt: "),), "KeyboardInterrupt: "),
        (
            ExitCode.FAILED_START,
            (Exiting(20, "spout 'numbers' (task 1): snapshot() raised OSError"),),
            "snapshot() raised OSError",
        ),
    ],
)
def test_every_death_is_an_error_record(
    bench: Bench, code: int, last: tuple[WorkerReport, ...], words: str
) -> None:
    bench.end(code, *last)
    (error,) = bench.errors()
    assert (error.kind, error.worker, error.host) == (FailureKind.SYSTEM, "n1:6700", "host")
    assert error.text.startswith("the worker process died: ") and words in error.text
    assert error.traceback == "the last line of its log"


def test_a_death_under_care_names_the_row(bench: Bench) -> None:
    bench.end(-signal.SIGSEGV)
    bench.end(-signal.SIGSEGV, Trying(2, "17-0", 4))
    assert "it was at row 4 of entry 17-0 for 'shout'#2" in bench.errors("shout")[0].text
    assert bench.beat().stats["last_death_task"] == 2


def test_a_death_without_a_row_is_no_error_of_an_acker() -> None:
    about = ReportSubject("t", {1: "__acker", 2: "shout"}, (1, 2), "code")
    reported: list[Failure] = []
    reports = SlotReports("host", "n1:6700", lambda _, failure: reported.append(failure))
    reports.end(about, "exit status 7", True, None, [], 0)
    assert [(failure.component, failure.task) for failure in reported] == [("shout", 2)]


def test_a_worker_in_careful_mode_has_it_in_its_heartbeat(bench: Bench) -> None:
    assert bench.beat().stats["careful"] == 0
    bench.end(-signal.SIGSEGV)
    assert bench.beat().stats["careful"] == FEWEST_INPUTS


def test_a_kill_for_want_of_memory_is_told_from_an_operators(bench: Bench) -> None:
    bench.end(-signal.SIGKILL)
    assert "an operator, or the kernel" in bench.errors()[-1].text
    bench.processes[-1].oom = 3
    bench.end(-signal.SIGKILL)
    assert "the kernel killed it: out of memory" in bench.errors()[-1].text


def test_a_worker_whose_successor_has_claimed_its_tasks_leaves_no_error(bench: Bench) -> None:
    bench.end(ExitCode.FENCED, Exiting(ExitCode.FENCED, "task 1 has a newer owner"))
    assert not bench.errors() and bench.beat().stats["recent_deaths"] == 1


def test_a_worker_that_we_end_leaves_no_error(bench: Bench) -> None:
    bench.state.remove_assignment("t")
    bench.run()
    bench.end(0)
    assert not bench.errors()


def test_a_loop_of_deaths_is_counted_in_the_heartbeat(bench: Bench) -> None:
    for _ in range(3):
        bench.end(-signal.SIGKILL)
    stats = bench.beat().stats
    last_ms = stats["last_death_ms"]
    assert stats["recent_deaths"] == 3
    assert isinstance(last_ms, int)
    assert bench.now_ms - 4_000 <= last_ms <= bench.now_ms
    bench.run(610_000)
    assert bench.beat().stats["recent_deaths"] == 0


def test_a_reason_for_which_work_stands_still_is_an_error_record_once(bench: Bench) -> None:
    for share in (61, 62, 61, 63):
        bench.processes[-1].reports.append(
            Beat({"blocked": [f"Redis is at {share}% of its maxmemory"]})
        )
        bench.run(1_000)
    result = [error.text for error in bench.errors()]
    assert result == ["work stands still: Redis is at 61% of its maxmemory"]


def test_a_short_wait_is_no_error(bench: Bench) -> None:
    bench.processes[-1].reports.append(Beat({"blocked": [STILL]}))
    bench.run(1_000)
    bench.processes[-1].reports.append(Beat({}))
    bench.run(5_000)
    assert not bench.errors()


def refuse(*_: object) -> Any:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("what", ["a process", "code"])
def test_what_a_worker_cannot_be_given_is_said_in_its_heartbeat_at_once(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    if what == "code":
        monkeypatch.setattr(bench.storage, "keep_code", refuse)
    else:
        bench.refuse = refuse
    bench.run(2_500 if what == "code" else 1_000)
    assert "No space left on device" in bench.beat().message
    assert "No space left on device" in bench.errors()[0].text


def test_a_full_disk_does_not_keep_a_worker_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.run()
    before = bench.processes[-1].spec
    monkeypatch.setattr(bench.storage.worker_state(SLOT.port), "put", refuse)
    for _ in range(2):
        bench.end(-signal.SIGKILL)
    after = bench.processes[-1].spec
    assert before and after and len(bench.processes) == 3 and after.launch >= before.launch + 2
    assert "No space left on device" in bench.beat().message


CRASH = f"""Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 517 in string_at
  File "{runner.__file__}", line 3 in hook
  File "/home/me/sparkstorm/words.py", line 30 in execute
  File "{runner.__file__}", line 159 in _execute_compiled"""


def test_a_crash_names_the_line_of_user_code(bench: Bench) -> None:
    bench.processes[-1].log = CRASH.splitlines()
    bench.end(-signal.SIGSEGV)
    (error,) = bench.errors()
    result = error.text
    assert result == "the worker process died: killed by signal 11 (SIGSEGV) (words.py, line 30)"
    assert bench.beat().stats["last_end"] == "killed by signal 11 (SIGSEGV) (words.py, line 30)"
    bench.processes[-1].log = CRASH.splitlines()
    bench.end(7)
    assert bench.errors()[-1].text == "the worker process died: exit status 7", (
        "the report in its log is of the one before"
    )


@pytest.mark.parametrize(("is_printing", "is_hung"), [(True, False), (False, True)])
def test_a_worker_that_prints_much_is_not_hung(
    bench: Bench, is_printing: bool, is_hung: bool
) -> None:
    for _ in range(40):
        bench.processes[-1].reports.append(Alive(is_printing))
        bench.run(1_000)
    assert bool(bench.processes[-1].dumps) is is_hung


def test_a_worker_whose_figures_do_not_change_beats_half_as_often_and_a_change_is_told_within_a_period(
    bench: Bench,
) -> None:
    written: list[WorkerBeat] = []
    bench.sync.beat = written.append  # type: ignore[method-assign, assignment]

    def beats(ms: int, executed: int, uptime_ms: int) -> int:
        written.clear()
        stats: dict[str, Any] = {
            "1-2": {"executed": executed, "uptime_ms": uptime_ms},
            "blocked": [],
        }
        for _ in range(0, ms, 1_000):
            bench.processes[-1].reports.append(Beat(stats))
            bench.run(1_000)
        return len(written)

    assert beats(10_000, 1, 5) in (5, 6)
    assert beats(1_000, 2, 6) == 1
    assert sum(beats(1_000, number, 7) for number in range(3, 13)) == 10
