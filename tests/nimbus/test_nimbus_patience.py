"""Tells how long Nimbus waits for whom: the keys of its periods, and the guard against burying a
cluster it saw badly.
"""

from typing import Any

import pytest

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.records import encode_record
from sparkstorm.control_plane.cluster import paths
from tests.nimbus.nimbus_bench import Bench, submitted


def silent_worker(bench: Bench) -> WorkerSlot:
    """One worker that falls silent long after its start."""
    topology_id = bench.submit()
    bench.advance(200)
    victim = min(bench.slots(topology_id).values())
    bench.supervisors[victim.node].silent_ports.add(victim.port)
    return victim


def is_assigned(bench: Bench, slot: WorkerSlot) -> bool:
    (topology_id,) = bench.state.topology_ids()
    return slot in bench.slots(topology_id).values()


@pytest.mark.parametrize(
    ("conf", "lives", "dead"),
    [
        ({}, 29, 42),
        ({"nimbus__task__timeout__secs": 60}, 59, 72),
        ({"topology__worker__timeout__secs": 60}, 59, 72),
        # a topology may ask for more patience, never for less
        ({"topology__worker__timeout__secs": 5}, 29, 42),
        ({"topology__worker__timeout__secs": 500, "worker__max__timeout__secs": 60}, 59, 72),
    ],
)
def test_a_silent_worker_is_given_up_after_its_topologys_patience(
    conf: dict[str, Any], lives: int, dead: int
) -> None:
    bench = Bench(nodes=3, **conf)
    victim = silent_worker(bench)
    bench.advance(lives)
    assert is_assigned(bench, victim)
    bench.advance(dead - lives)
    assert not is_assigned(bench, victim)
    (topology_id,) = bench.state.topology_ids()
    errors = [
        each.text
        for component in bench.state.error_components(topology_id)
        for each in bench.state.read_errors(topology_id, component)
    ]
    assert any("is dead on" in text and f":{victim.port}" in text for text in errors)


@pytest.mark.parametrize(("launch_secs", "told_by"), [(60, 75), (200, 215)])
def test_a_worker_that_never_starts_is_given_up_after_its_launch_grace(
    launch_secs: int, told_by: int
) -> None:
    bench = Bench(nodes=3, nimbus__task__launch__secs=launch_secs)
    for supervisor in bench.supervisors.values():
        supervisor.silent_ports.add(6700)
    topology_id = bench.submit()
    bench.advance(launch_secs - 5)
    assert bench.state.error_components(topology_id) == []
    bench.advance(told_by - launch_secs + 5)
    assert bench.state.error_components(topology_id) != []


@pytest.mark.parametrize("limit_secs", [20, 60])
def test_a_worker_that_beats_on_without_its_supervisor_is_given_up_late(limit_secs: int) -> None:
    bench, topology_id = submitted(nodes=3, nimbus__supervisor__timeout__secs=limit_secs)
    bench.advance(200)
    lost = bench.supervisors[min(bench.slots(topology_id).values()).node]
    lost.registers = False
    lost.store.expire_session()
    bench.advance(limit_secs - 5)
    assert lost.node in {slot.node for slot in bench.slots(topology_id).values()}
    bench.advance(20)
    assert lost.node not in {slot.node for slot in bench.slots(topology_id).values()}


def test_a_beat_speaks_for_its_own_worker_only_whatever_it_claims() -> None:
    bench = Bench(nodes=3)
    victim = silent_worker(bench)
    (topology_id,) = bench.state.topology_ids()
    for second in range(45):
        beat = WorkerBeat(topology_id, victim.node, victim.port, second, 0, 1, 1, "RUNNING", 99)
        bench.store.put(
            paths.workerbeat(topology_id, WorkerSlot("node-9", 6700)), encode_record(beat)
        )
        bench.tick()
    assert not is_assigned(bench, victim)


# -- the guard against reassignment storms ---------------------------------------------------------


def settled(nodes: int = 4) -> tuple[Bench, str]:
    """A cluster long after the launch of its topology, whose every beat Nimbus has just seen."""
    bench, topology_id = submitted(nodes=nodes)
    bench.advance(200)
    bench.nimbus.wake()
    bench.tick()
    return bench, topology_id


def lose_all_sessions(bench: Bench) -> None:
    """As after a slow ZooKeeper: every supervisor's ephemeral node is gone, and nobody could beat
    for some seconds.
    """
    for supervisor in bench.supervisors.values():
        supervisor.store.expire_session()
    bench.clock.advance(6_000)


def lose_own_session(bench: Bench) -> None:
    bench.store.expire_session()


def be_refused_once(bench: Bench) -> None:
    bench.tree.is_down = True
    bench.nimbus.wake()
    with pytest.raises(StoreUnavailableError):
        bench.nimbus.step(bench.clock.now_ms())
    bench.tree.is_down = False


@pytest.mark.parametrize("trouble", [lose_own_session, be_refused_once])
def test_when_most_workers_seem_dead_after_trouble_of_our_own_nobody_is_buried_in_that_round(
    trouble: Any,
) -> None:
    bench, topology_id = settled()
    before = bench.state.read_assignment(topology_id)
    lose_all_sessions(bench)
    trouble(bench)
    bench.nimbus.wake()
    bench.nimbus.step(bench.clock.now_ms())
    assert bench.state.read_assignment(topology_id) == before
    bench.advance(60)
    assert bench.state.read_assignment(topology_id) == before


def test_without_trouble_of_our_own_the_same_sight_is_believed() -> None:
    bench, topology_id = settled()
    lose_all_sessions(bench)
    bench.nimbus.wake()
    bench.nimbus.step(bench.clock.now_ms())
    assert bench.slots(topology_id) == {}


@pytest.mark.parametrize("trouble", [lose_own_session, be_refused_once])
def test_those_who_are_really_dead_are_buried_one_round_later(trouble: Any) -> None:
    bench, topology_id = settled()
    for node in ("node-0", "node-1", "node-2"):
        bench.supervisors[node].die()
    bench.clock.advance(6_000)
    trouble(bench)
    bench.advance(30)
    assert {slot.node for slot in bench.slots(topology_id).values()} == {"node-3"}


def test_a_nimbus_that_was_held_up_counts_that_time_for_nobody() -> None:
    bench, topology_id = settled()
    before = bench.state.read_assignment(topology_id)
    bench.clock.advance(25_000)  # more than two periods, less than a worker's patience
    lose_all_sessions(bench)
    bench.nimbus.step(bench.clock.now_ms())
    bench.advance(60)
    assert bench.state.read_assignment(topology_id) == before
