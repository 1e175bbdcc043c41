"""Slots as Spark tasks, with real Spark in every form that a laptop has: whatever is killed,
nothing below it stays.
"""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.extensions.embedded import RedisServer, ZooKeeperServer
from sparkstorm.extensions.embedded.process import free_port
from sparkstorm.testing.servers.processes import (
    command_of,
    descendants,
    is_gone,
    parent_of,
    slot_of,
)
from tests.supervisor.slot_bench import SlotBench
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
SLOTS = [WorkerSlot("node-1", 6700), WorkerSlot("node-2", 6700)]
CONF = {
    "worker.heartbeat.frequency.secs": 0.2,
    "supervisor.heartbeat.frequency.secs": 0.5,
    "supervisor.monitor.frequency.secs": 0.2,
    "supervisor.worker.shutdown.sleep.secs": 1,
}


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def spark_home() -> Path:
    found = find_spec("pyspark")
    assert found is not None and found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0])


PYTHON = (sys.executable, "-m", "tests.system.slot_driver")
SPARK_SUBMIT = (spark_home() / "bin" / "spark-submit", ROOT / "tests" / "system" / "slot_driver.py")


def kill_all_of(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all below it; some may have ended meanwhile."""
    for pid in [*descendants(process.pid), process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


class Driver:
    """A driver process and everything that hangs below it."""

    def __init__(
        self,
        bench: SlotBench,
        master: str,
        count: int,
        launcher: Sequence[str | Path] = PYTHON,
        more: Sequence[str] = (),
    ) -> None:
        self.log, spec_file = bench.folder / "driver.log", bench.folder / "spec.json"
        spec_file.write_bytes(bench.spec.to_json())
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*launcher, master, str(count), spec_file, *more],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                stderr=log,
                cwd=ROOT,
                env=environment(),
                start_new_session=True,
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def line(self, seconds: float = 900) -> str:
        """Its next line of output, which it writes in one piece."""
        assert select.select([self.stdout], [], [], seconds)[0], (
            f"no word from the driver: {self.log.read_text()}"
        )
        return self.stdout.readline().decode().strip()

    def below(self, text: str) -> set[int]:
        """Living processes below the driver whose command line has that text."""
        return {
            pid
            for pid in descendants(self.process.pid)
            if text in command_of(pid) and not is_gone(pid)
        }

    def close(self) -> None:
        kill_all_of(self.process)
        self.stdin.close()
        self.stdout.close()


@pytest.fixture
def bench(
    redis_server: RedisServer, zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> Iterator[SlotBench]:
    made = SlotBench(redis_server, zookeeper_server, tmp_path, CONF)
    made.spec = replace(made.spec, nodes=("node-1", "node-2"), slots_per_node=1)
    yield made
    made.close()


@pytest.fixture
def drive(bench: SlotBench) -> Iterator[Callable[[str], Driver]]:
    drivers: list[Driver] = []

    def start(
        master: str, count: int = 2, launcher: Sequence[str | Path] = PYTHON, *more: str
    ) -> Driver:
        drivers.append(Driver(bench, master, count, launcher, more))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()


@pytest.fixture(scope="module")
def standalone(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, Sequence[str | Path]]]:
    """A standalone master with one worker of three cores, both with authentication; its address and
    a launcher for it.
    """
    folder = tmp_path_factory.mktemp("standalone")
    (folder / "spark-defaults.conf").write_text(
        "spark.authenticate true\nspark.authenticate.secret of-the-tests\n"
    )
    launch = ("/usr/bin/env", f"SPARK_CONF_DIR={folder}")
    port = free_port()
    master = spark_class(
        folder,
        launch,
        "master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--webui-port",
        "0",
    )
    wait_until(lambda: is_listening(port), "Spark master")
    url = f"spark://127.0.0.1:{port}"
    options = (
        "--cores",
        "3",
        "--memory",
        "2g",
        "--host",
        "127.0.0.1",
        "--webui-port",
        "0",
        "--work-dir",
        str(folder),
    )
    worker = spark_class(folder, launch, "worker.Worker", *options, url)
    yield url, (*launch, *PYTHON)
    for process in (worker, master):
        kill_all_of(process)


def spark_class(
    folder: Path, launch: Sequence[str], name: str, *arguments: str
) -> "subprocess.Popen[bytes]":
    with (folder / f"{name}.log").open("wb") as log:
        command = [
            *launch,
            str(spark_home() / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{name}",
            *arguments,
        ]
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=environment(), start_new_session=True
        )


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def executor_of(slot_pid: int) -> int:
    """The executor's JVM of a slot: above the slot and its Python daemon."""
    return parent_of(parent_of(slot_pid))


def wait_all_running(
    bench: SlotBench, slots: Sequence[WorkerSlot] = SLOTS
) -> dict[WorkerSlot, int]:
    return {slot: bench.wait_running("words-1", slot, 0, 180).pid for slot in slots}


def check_a_killed_slot_comes_back(
    bench: SlotBench, workers: dict[WorkerSlot, int]
) -> dict[WorkerSlot, int]:
    slot, worker = next(iter(workers.items()))
    os.kill(slot_of(worker), signal.SIGKILL)
    wait_until(lambda: is_gone(worker), "end of the killed slot's worker")
    return {**workers, slot: bench.wait_running("words-1", slot, worker, 180).pid}


def check_a_killed_executor_comes_back(
    bench: SlotBench, workers: dict[WorkerSlot, int]
) -> dict[WorkerSlot, int]:
    executor = executor_of(slot_of(next(iter(workers.values()))))
    lost = {slot: pid for slot, pid in workers.items() if executor_of(slot_of(pid)) == executor}
    below = descendants(executor)
    os.kill(executor, signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, below)), "end of all below the executor")
    return {
        slot: bench.wait_running("words-1", slot, lost.get(slot, 0), 180).pid for slot in workers
    }


def check_a_killed_driver_leaves_nothing(driver: Driver, workers: dict[WorkerSlot, int]) -> None:
    slots = {slot_of(worker) for worker in workers.values()}
    below = descendants(driver.process.pid) | slots | set(workers.values())
    executors = {executor_of(slot) for slot in slots}
    driver.process.kill()
    wait_until(lambda: all(map(is_gone, below | executors)), "end of all below the driver")


def test_in_a_local_master_killed_slots_and_drivers_leave_nothing(
    bench: SlotBench, drive: Callable[[str], Driver]
) -> None:
    bench.submit("words-1", SLOTS)
    driver = drive("local[3]")
    assert driver.line() == "up"
    workers = wait_all_running(bench)
    for _ in range(3):  # a local master forgives no task failure, we do
        workers = check_a_killed_slot_comes_back(bench, workers)
    check_a_killed_driver_leaves_nothing(driver, workers)


def test_in_a_local_cluster_killed_slots_executors_and_drivers_leave_nothing(
    bench: SlotBench, drive: Callable[[str], Driver]
) -> None:
    bench.submit("words-1", SLOTS)
    driver = drive("local-cluster[2,2,1024]")
    assert driver.line() == "up"
    workers = check_a_killed_slot_comes_back(bench, wait_all_running(bench))
    workers = check_a_killed_executor_comes_back(bench, workers)
    said = driver.log.read_text()
    # a second attempt costs nothing
    assert "(the process of this slot was lost)" in said and "ticket was used" not in said, said
    check_a_killed_driver_leaves_nothing(driver, workers)


def slots_by_executor(driver: Driver) -> dict[int, int]:
    """Number of slots by the executor's process: the forks of its Python daemon."""
    executors = driver.below("CoarseGrainedExecutorBackend")
    children = Counter(map(parent_of, driver.below("pyspark")))
    daemons = {parent_of(daemon): daemon for daemon in children if parent_of(daemon) in executors}
    return {
        executor: children[daemons[executor]] if executor in daemons else 0
        for executor in executors
    }


def test_slots_are_spread_over_executors_and_return_to_one_that_comes_back(
    bench: SlotBench, drive: Callable[..., Driver]
) -> None:
    bench.spec = replace(bench.spec, nodes=("node-1", "node-2", "node-3"))
    driver = drive("local-cluster[3,2,1024]", 3)
    assert driver.line() == "up"
    wait_until(
        lambda: sorted(slots_by_executor(driver).values()) == [1, 1, 1], "a slot on every executor"
    )
    executor = min(slots_by_executor(driver))
    os.kill(executor, signal.SIGKILL)
    wait_until(lambda: executor not in slots_by_executor(driver), "end of the executor")
    wait_until(
        lambda: sorted(slots_by_executor(driver).values()) == [1, 1, 1],
        "a slot on the executor that came back",
    )


def test_on_a_standalone_master_killed_slots_executors_and_drivers_leave_nothing(
    bench: SlotBench, drive: Callable[..., Driver], standalone: tuple[str, Sequence[str | Path]]
) -> None:
    # No declared nodes: every host is one, with a port for each slot that lands there.
    bench.spec = replace(bench.spec, nodes=(), slots_per_node=0)
    slots = [WorkerSlot("test-host", 6700), WorkerSlot("test-host", 6701)]
    bench.submit("words-1", slots)
    url, launcher = standalone
    driver = drive(url, 2, launcher)
    assert driver.line() == "up"
    workers = check_a_killed_slot_comes_back(bench, wait_all_running(bench, slots))
    workers = check_a_killed_executor_comes_back(bench, workers)
    check_a_killed_driver_leaves_nothing(driver, workers)


def test_slots_outlive_the_silence_of_a_local_executor_end_gently_and_leave_nothing(
    bench: SlotBench, drive: Callable[..., Driver]
) -> None:
    bench.submit("words-1", SLOTS)
    # Other masters' executors are lost after 9 s then: the first heartbeat comes after 8 to 16 s
    given = (
        *("spark.network.timeout=9s", "spark.network.timeoutInterval=200ms"),
        *("spark.executor.heartbeatInterval=8s", "spark.rpc.askTimeout=600s"),
    )
    submit = " ".join(f"--conf {each}" for each in given) + " pyspark-shell"
    driver = drive("local[3]", 2, ("/usr/bin/env", f"PYSPARK_SUBMIT_ARGS={submit}", *PYTHON))
    assert driver.line() == "up"
    workers = wait_all_running(bench)
    time.sleep(5)
    assert not any(map(is_gone, workers.values()))
    said = driver.log.read_text()
    assert "Lost executor" not in said and "Inbox" not in said, said
    driver.stdin.write(b"stop\n")
    driver.stdin.flush()
    assert driver.line() == "stopped 0"
    assert all(map(is_gone, workers.values()))
    assert driver.process.wait(900) == 0


def test_an_interrupt_from_the_terminal_reaches_the_driver_and_nobody_else(
    bench: SlotBench, drive: Callable[..., Driver]
) -> None:
    bench.submit("words-1", SLOTS)
    driver = drive("local[3]", 2, SPARK_SUBMIT)
    assert driver.line() == "up"
    workers = wait_all_running(bench)
    os.killpg(driver.process.pid, signal.SIGINT)
    assert [driver.line(), driver.line()] == ["interrupted", "stopped 0"]
    assert driver.process.wait(900) == 0
    assert all(map(is_gone, workers.values())) and bench.logs().count("ended: returned") == 2


def test_fewer_cores_than_slots_are_refused_with_the_number_that_is_needed(
    bench: SlotBench, drive: Callable[..., Driver]
) -> None:
    driver = drive("local[2]", 3)
    assert driver.line() == (
        "refused: 3 worker slots need 3 Spark cores, but local[2] offers 2: start with --master local[3] or more, "
        "or configure fewer (sparkstorm.supervisors x sparkstorm.slots.per.supervisor of them)"
    )


def test_a_local_cluster_that_is_too_small_is_refused_at_once(
    bench: SlotBench, drive: Callable[..., Driver]
) -> None:
    driver = drive("local-cluster[1,2,1024]", 3)
    assert driver.line() == (
        "refused: 3 worker slots need 3 Spark cores, but local-cluster[1,2,1024] offers 2: add executors or cores, "
        "or configure fewer (sparkstorm.supervisors x sparkstorm.slots.per.supervisor of them); if executors were only late, raise "
        "sparkstorm.slots.start.timeout.ms"
    )


def test_a_cluster_that_stays_too_small_is_refused_after_a_bounded_wait(
    bench: SlotBench, drive: Callable[..., Driver], standalone: tuple[str, Sequence[str | Path]]
) -> None:
    url, launcher = standalone
    said = drive(url, 4, launcher, "5000").line()
    # its executors may not be there yet on a busy machine
    assert re.fullmatch(
        rf"refused: 4 worker slots need 4 Spark cores, but {url} offers [0-3]: add executors or cores, or configure fewer .*",
        said,
    ), said
