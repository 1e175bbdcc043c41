"""Tells what Nimbus says of workers that cannot start: once, with their last words, until they have
run again.
"""

from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from tests.nimbus.nimbus_bench import START_MS, Bench, submitted


def beat(bench: Bench, topology_id: str, slot: WorkerSlot, state: str, message: str = "") -> None:
    version = bench.assignment_of(topology_id)
    now_ms = bench.clock.now_ms()
    bench.state.write_worker_beat(
        WorkerBeat(
            topology_id,
            slot.node,
            slot.port,
            now_ms,
            START_MS,
            1,
            1,
            state,
            version.version,
            {},
            message=message,
        )
    )


def told(bench: Bench, topology_id: str) -> list[str]:
    components = bench.state.error_components(topology_id)
    errors = [
        each for component in components for each in bench.state.read_errors(topology_id, component)
    ]
    return [each.text for each in errors if "cannot start" in each.text]


def test_a_worker_that_cannot_start_is_told_of_once_and_again_only_after_it_has_run() -> None:
    bench, topology_id = submitted(nimbus__monitor__freq__secs=1)
    slot = min(bench.slots(topology_id).values())
    bench.supervisors[slot.node].silent_ports.add(slot.port)
    for second in range(5):
        beat(bench, topology_id, slot, "FAILED", f"ImportError: no module named nowhere ({second})")
        bench.tick()
    assert told(bench, topology_id) == [
        "the worker cannot start and is tried again: ImportError: no module named nowhere (0)"
    ]
    assert f"worker {slot} of {topology_id} cannot start" in bench.nimbus.problems[topology_id]
    beat(bench, topology_id, slot, "RUNNING")
    bench.tick()
    assert topology_id not in bench.nimbus.problems
    beat(bench, topology_id, slot, "FAILED", "disk full")
    bench.advance(3)
    assert told(bench, topology_id)[1:] == ["the worker cannot start and is tried again: disk full"]


def test_what_cannot_start_here_is_tried_elsewhere_after_its_launch_grace() -> None:
    bench = Bench(
        nodes=3,
        nimbus__monitor__freq__secs=1,
        nimbus__task__launch__secs=20,
        nimbus__task__timeout__secs=10,
    )
    topology_id = bench.submit(topology__workers=3)
    slot = min(bench.slots(topology_id).values())
    bench.supervisors[slot.node].silent_ports.add(slot.port)
    for _ in range(25):
        beat(bench, topology_id, slot, "FAILED", "no such file")
        bench.tick()
    assert slot not in bench.slots(topology_id).values()
    assert len(bench.slots(topology_id)) == 12


def test_a_failing_worker_of_a_topology_that_is_gone_is_nobodys_news() -> None:
    bench, topology_id = submitted()
    slot = min(bench.slots(topology_id).values())
    bench.service.kill("wc", 0)
    bench.advance(30)
    bench.state.write_worker_beat(
        WorkerBeat(topology_id, slot.node, slot.port, 1, 1, 1, 1, "FAILED", 1, {}, message="x")
    )
    bench.advance(12)
    assert bench.state.known_ids() == set()
