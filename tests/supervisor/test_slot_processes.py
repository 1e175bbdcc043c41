"""A slot as a real process, with toy workers, a real ZooKeeper and a real Redis: it follows,
restarts, stops.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sparkstorm.common.errors import SlotsUnavailableError
from sparkstorm.common.model.assignment import SupervisorInfo, WorkerSlot
from sparkstorm.common.model.failure import FailureKind
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.supervisor.node_dir import NodeDir
from sparkstorm.control_plane.supervisor.supervisor import read_local_assignments
from sparkstorm.extensions.embedded import RedisServer, ZooKeeperServer
from sparkstorm.testing.servers.processes import is_gone
from tests.supervisor.local_slots import LocalSlots
from tests.supervisor.slot_bench import TOYS, SlotBench
from tests.waiting import assert_once_within, limit_here, wait_until

pytestmark = [pytest.mark.system, pytest.mark.sampled]

FIRST, SECOND = WorkerSlot("node-1", 6700), WorkerSlot("node-1", 6701)
QUICK = {
    "worker.heartbeat.frequency.secs": 0.2,
    "supervisor.heartbeat.frequency.secs": 0.5,
    "supervisor.monitor.frequency.secs": 0.2,
    "supervisor.worker.shutdown.sleep.secs": 0.5,
    "supervisor.worker.timeout.secs": 5,
    "supervisor.worker.start.timeout.secs": 10,
}
Start = Callable[..., LocalSlots]


@pytest.fixture
def bench(
    redis_server: RedisServer, zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> Iterator[SlotBench]:
    made = SlotBench(redis_server, zookeeper_server, tmp_path, QUICK)
    yield made
    made.close()


@pytest.fixture
def start(bench: SlotBench) -> Iterator[Start]:
    started: list[LocalSlots] = []

    def launch(toy: str = "loop", count: int = 1, **changes: object) -> LocalSlots:
        slots = LocalSlots(replace(bench.spec, entry=f"{TOYS}:{toy}", **changes), count)  # type: ignore[arg-type]
        started.append(slots)
        slots.start()
        return slots

    yield launch
    for slots in started:
        slots.stop()


def test_a_slot_runs_what_it_is_assigned(bench: SlotBench, start: Start) -> None:
    bench.submit("words-1", [FIRST], version=3)
    start()
    beat = bench.wait_running("words-1", FIRST)
    assert (beat.node, beat.port, beat.assignment_version) == ("node-1", 6700, 3)
    log = Path(bench.spec.log_dir) / "words-1-node-1-6700.log"
    wait_until(log.exists, "worker's log")
    assert f"launch {beat.launch} of words-1 runs tasks [1]" in log.read_text()


def test_with_cpu_affinity_the_workers_of_a_host_are_kept_on_cpus_of_their_own(
    bench: SlotBench, start: Start
) -> None:
    bench.submit("words-1", [FIRST])
    bench.submit("words-2", [SECOND])
    start(count=2, conf={**bench.spec.conf, "worker.cpu.affinity": True})
    cpus = sorted(os.sched_getaffinity(0))
    for number, (topology, slot) in enumerate([("words-1", FIRST), ("words-2", SECOND)]):
        result = os.sched_getaffinity(bench.wait_running(topology, slot).pid)
        assert result == {cpus[number % len(cpus)]}


def test_a_supervisor_registers_all_ports_of_its_node(bench: SlotBench, start: Start) -> None:
    start(count=2)
    wait_until(
        lambda: (s := bench.state.read_supervisor("node-1")) and s.ports == (6700, 6701),
        "both ports",
    )


def test_a_supervisor_says_which_ports_are_used_and_keeps_them_in_local_state(
    bench: SlotBench, start: Start
) -> None:
    bench.submit("words-1", [SECOND])
    start(count=2)
    wait_until(
        lambda: (s := bench.state.read_supervisor("node-1")) and s.used_ports == (6701,),
        "used port",
    )
    parts = read_local_assignments(NodeDir(Path(bench.spec.local_dir), "node-1"))
    assert {port: part.topology_id for port, part in parts.items()} == {6701: "words-1"}


def test_a_worker_that_hangs_is_replaced_and_its_component_and_line_are_told(
    bench: SlotBench, start: Start
) -> None:
    bench.submit("words-1", [FIRST])
    start("hangs_in_a_bolt", conf={**bench.spec.conf, "supervisor.worker.timeout.secs": 2})
    first = bench.wait_running("words-1", FIRST)
    second = bench.wait_running("words-1", FIRST, first.pid)
    place = r"\(toy_workers\.py, line \d+: time\.sleep\(600\)  # no time limit\)"
    assert re.fullmatch(
        rf"hung: no progress for \d s in 'sleeps'#\d {place}", str(second.stats["last_end"])
    )
    wait_until(lambda: bench.state.read_errors("words-1", "sleeps"), "error")
    (error,) = bench.state.read_errors("words-1", "sleeps")
    assert re.fullmatch(rf"hung: no progress for \d s {place}", error.text)
    assert error.kind is FailureKind.HUNG and error.worker == "node-1:6700" and error.code_version
    assert "thread MainThread:" in error.traceback
    assert "in _ask\n  time.sleep(600)" in error.traceback


def test_a_living_process_that_does_not_get_on_has_a_time_out_of_its_own(
    bench: SlotBench, start: Start
) -> None:
    bench.submit("words-1", [FIRST], conf=b'{"topology.worker.progress.timeout.secs": 2}')
    start("hangs_while_alive", conf={**bench.spec.conf, "supervisor.worker.timeout.secs": 60})
    first = bench.wait_running("words-1", FIRST)
    second = bench.wait_running("words-1", FIRST, first.pid)
    assert re.match(
        r"hung: no progress for \d s in 'sleeps'#\d \(toy_workers", str(second.stats["last_end"])
    )
    os.kill(second.pid, signal.SIGSTOP)  # no loop, no thread: it is not even alive
    third = bench.wait_running("words-1", FIRST, second.pid)
    assert "hung: no progress" in str(third.stats["last_end"]) or "no sign of life" in str(
        third.stats["last_end"]
    )


def test_a_stopped_process_is_found_by_its_silence_long_before_a_slow_call_is(
    bench: SlotBench, start: Start
) -> None:
    bench.submit("words-1", [FIRST], conf=b'{"topology.worker.progress.timeout.secs": 600}')
    start("hangs_while_alive", conf={**bench.spec.conf, "supervisor.worker.timeout.secs": 2})
    first = bench.wait_running("words-1", FIRST)
    bench.wait_beat(
        "words-1",
        FIRST,
        lambda beat: beat.pid == first.pid and int(str(beat.stats["silent_ms"])) > 3_000,
    )
    os.kill(first.pid, signal.SIGSTOP)
    second = bench.wait_running("words-1", FIRST, first.pid)
    assert re.match(
        r"no sign of life for \d s: it is stopped, or C code keeps", str(second.stats["last_end"])
    )


def test_a_leak_is_shown_before_the_worker_is_restarted_at_its_limit(
    bench: SlotBench, start: Start
) -> None:
    bench.submit("words-1", [FIRST])
    start("leaks", conf={**bench.spec.conf, "worker.memory.limit.mb": 300})
    first = bench.wait_running("words-1", FIRST)
    second = bench.wait_running("words-1", FIRST, first.pid)
    kept = r"its tasks keep: [\d,]+ items in 'cache' of count#1"
    assert re.match(
        rf"restarted: it uses \d+ MiB, and worker.memory.limit.mb is 300; {kept}",
        str(second.stats["last_end"]),
    )
    # they follow the heartbeat
    wait_until(lambda: len(bench.state.read_errors("words-1", "count")) >= 2, "warning and restart")
    near, reached = bench.state.read_errors("words-1", "count")[:2]
    assert re.match(
        rf"it uses 2\d\d MiB.*, and is restarted at 300 \(worker.memory.limit.mb\); {kept}",
        near.text,
    )
    assert reached.text.startswith("restarted: it uses 3") and reached.kind is FailureKind.SYSTEM
    assert isinstance(second.stats.get("memory_mb", 0), int)


def test_a_killed_worker_is_replaced_in_well_under_a_second(bench: SlotBench, start: Start) -> None:
    bench.submit("words-1", [FIRST])
    start()

    def replaced() -> float:
        first = bench.wait_running("words-1", FIRST)
        os.kill(first.pid, signal.SIGKILL)
        began = time.monotonic()
        second = bench.wait_running("words-1", FIRST, first.pid)
        assert second.launch > first.launch
        return time.monotonic() - began

    assert_once_within(limit_here(1.0), replaced)


def test_a_worker_dies_with_its_slot_and_the_next_slot_takes_the_same_port(
    bench: SlotBench, start: Start
) -> None:
    bench.submit("words-1", [FIRST])
    slots = start()

    def ended() -> float:
        first = bench.wait_running("words-1", FIRST)
        (slot_pid,) = slots.pids()
        os.kill(slot_pid, signal.SIGKILL)
        taken = wait_until(lambda: is_gone(first.pid), "end of the worker")
        second = bench.wait_running("words-1", FIRST, first.pid)
        assert second.launch > first.launch
        return taken

    assert_once_within(limit_here(1.0), ended)


def test_a_worker_that_hangs_dies_with_its_slot_too(bench: SlotBench, start: Start) -> None:
    bench.submit("words-1", [FIRST])
    slots = start("ignores_stop")  # it never looks at its pipe: only the kernel can end it
    first = bench.wait_running("words-1", FIRST)
    os.kill(slots.pids()[0], signal.SIGKILL)
    wait_until(lambda: is_gone(first.pid), "end of the worker")


def test_duties_pass_on_when_their_holder_is_killed(bench: SlotBench, start: Start) -> None:
    slots = start(count=2)
    wait_until(
        lambda: (s := bench.state.read_supervisor("node-1")) and len(s.ports) == 2, "both ports"
    )
    for pid in slots.pids():
        before = bench.state.read_supervisor("node-1")
        os.kill(pid, signal.SIGKILL)
        wait_until(partial(has_registered_anew, bench, before), "another holder's registration")


def has_registered_anew(bench: SlotBench, before: SupervisorInfo | None) -> bool:
    present = bench.state.read_supervisor("node-1")
    return present is not None and present != before and len(present.ports) == 2


def test_slots_that_land_together_take_different_places(bench: SlotBench, start: Start) -> None:
    start(count=4, nodes=("node-1", "node-2"))
    for node in ("node-1", "node-2"):
        wait_until(partial(has_both_ports, bench, node), f"both ports of {node}")


def test_slots_of_the_second_driver_have_nodes_of_their_own(bench: SlotBench, start: Start) -> None:
    start(count=2, nodes=("node-1",), driver_number=2)
    wait_until(partial(has_both_ports, bench, "node-1@2"), "both ports of the second driver's node")
    assert bench.state.supervisor_ids() == ["node-1@2"]


def has_both_ports(bench: SlotBench, node: str) -> bool:
    present = bench.state.read_supervisor(node)
    return present is not None and present.ports == (6700, 6701)


def test_whatever_is_killed_launches_only_grow(bench: SlotBench, start: Start) -> None:
    bench.submit("words-1", [FIRST])
    slots = start()
    pid, launches = 0, []
    for kill_slot in (True, False, True, False, False):
        beat = bench.wait_running("words-1", FIRST, pid)
        pid = beat.pid
        launches.append(beat.launch)
        os.kill(slots.pids()[0] if kill_slot else pid, signal.SIGKILL)
    assert launches == sorted(set(launches))
    lines = (Path(bench.spec.log_dir) / "words-1-node-1-6700.log").read_text().splitlines()
    printed = [int(line.split()[3]) for line in lines if line.split()[2:3] == ["launch"]]
    assert printed == sorted(set(printed)) and set(launches) <= set(printed)


def test_a_status_reaches_the_worker(bench: SlotBench, start: Start) -> None:
    bench.submit("words-1", [FIRST])
    start()
    first = bench.wait_running("words-1", FIRST)
    bench.state.update_base("words-1", lambda base: replace(base, status=TopologyStatus.INACTIVE))
    after = bench.wait_beat(
        "words-1", FIRST, lambda beat: beat.stats.get("statuses") == ["ACTIVE", "INACTIVE"]
    )
    assert after.pid == first.pid


def test_new_code_replaces_the_worker(bench: SlotBench, start: Start) -> None:
    bench.submit("words-1", [FIRST])
    start()
    first = bench.wait_running("words-1", FIRST)
    bench.submit("words-1", [FIRST], version=2, code=b"newer code")
    assert bench.wait_running("words-1", FIRST, first.pid).assignment_version == 2
    assert is_gone(first.pid)


def test_a_removed_assignment_ends_the_worker_and_its_beat(bench: SlotBench, start: Start) -> None:
    bench.submit("words-1", [FIRST])
    start()
    first = bench.wait_running("words-1", FIRST)
    bench.state.remove_assignment("words-1")
    wait_until(
        lambda: is_gone(first.pid) and bench.beat("words-1", FIRST) is None,
        "end of worker and beat",
    )


def test_a_worker_that_ignores_stop_is_killed(bench: SlotBench, start: Start) -> None:
    bench.submit("words-1", [FIRST])
    start("ignores_stop")
    first = bench.wait_running("words-1", FIRST)
    bench.state.remove_assignment("words-1")
    assert wait_until(lambda: is_gone(first.pid), "kill") < 3.0


def test_a_silent_worker_is_killed_and_its_log_shows_where_it_hung(
    bench: SlotBench, start: Start
) -> None:
    bench.submit("words-1", [FIRST], conf=b'{"topology.worker.timeout.secs": 5}')
    start("ignores_stop", conf={**QUICK, "supervisor.worker.timeout.secs": 1})
    first = bench.wait_running("words-1", FIRST)
    bench.wait_running("words-1", FIRST, first.pid)
    assert "in ignores_stop" in (Path(bench.spec.log_dir) / "words-1-node-1-6700.log").read_text()


def test_a_worker_that_cannot_start_is_reported_with_its_last_words(
    bench: SlotBench, start: Start
) -> None:
    bench.submit("words-1", [FIRST])
    start("fails_to_start")
    beat = bench.wait_beat("words-1", FIRST, lambda beat: beat.state == "FAILED")
    assert beat.message.startswith("bolt 'count': prepare raised ZeroDivisionError")
    assert "in prepare_of_user_code" in beat.message


def test_a_row_that_kills_is_parked_after_three_deaths(bench: SlotBench, start: Start) -> None:
    bench.submit("words-1", [FIRST])
    start("dies_of_a_row")

    def texts() -> list[str]:
        return [error.text for error in bench.state.read_errors("words-1", "count")]

    wait_until(lambda: "row 5 parked" in texts(), "parked row")
    died = "the worker process died: exit status 9"
    where = f"{died}; it was at row 5 of entry 1-0 for 'count'#1"
    assert texts() == [died, where, where, where, "row 5 parked"]


def test_the_stop_node_ends_slots_and_workers_gently(bench: SlotBench, start: Start) -> None:
    bench.submit("words-1", [FIRST])
    slots = start(count=2)
    first = bench.wait_running("words-1", FIRST)
    pids = slots.pids()
    slots._stopping.set()  # nobody starts them again
    bench.state.store.put(bench.spec.stop_path, b"")
    wait_until(lambda: all(map(is_gone, [first.pid, *pids])), "end of all")
    assert bench.state.supervisor_ids() == [] and "words-1: worker" not in bench.logs()


def test_more_slots_than_ports_are_refused_at_once(bench: SlotBench) -> None:
    sentence = "3 slots are wanted, but the nodes have only 2 ports"
    with pytest.raises(SlotsUnavailableError, match=sentence):
        LocalSlots(bench.spec, 3).start()


def test_no_secret_is_visible_in_any_command_line_or_file(bench: SlotBench, start: Start) -> None:
    bench.submit("words-1", [FIRST])
    slots = start()
    worker = bench.wait_running("words-1", FIRST).pid
    secrets = [bench.spec.redis.password, bench.spec.zookeeper.password, bench.spec.hmac_key]
    for pid in (worker, *slots.pids()):
        command = Path(f"/proc/{pid}/cmdline").read_text()
        assert not any(secret in command for secret in secrets)
    for path in bench.folder.rglob("*"):
        if path.is_file():
            assert not any(secret in path.read_text(errors="replace") for secret in secrets), path
