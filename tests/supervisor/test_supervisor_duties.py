"""The supervisor's duties on a local twin: who holds them, what is registered, what is wanted, who
is judged how.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.assignment import Assignment, ExecutorId, SupervisorInfo, WorkerSlot
from sparkstorm.common.model.worker_spec import PlacedExecutor
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.supervisor.node_dir import NodeDir
from sparkstorm.control_plane.supervisor.supervisor import (
    LocalBeat,
    Supervisor,
    SupervisorDuties,
    WorkerClass,
    classify,
    local_assignments,
    part_of,
    read_local_assignments,
    write_local_beat,
)

SETTINGS = SupervisorDuties("host-a", 6700, heartbeat_ms=5_000, monitor_ms=3_000)


def assignment(topology_id: str, *places: str, version: int = 1) -> Assignment:
    """One executor per place, "node:port"."""
    slots = {
        ExecutorId(task, task): WorkerSlot.parse(place) for task, place in enumerate(places, 1)
    }
    return Assignment(
        topology_id, version, "code", "conf", {}, slots, {}, dict.fromkeys(slots, version)
    )


@pytest.fixture
def node_dir(tmp_path: Path) -> NodeDir:
    """The folder of n1, with this process's claim on 6700."""
    made = NodeDir(tmp_path, "n1")
    assert made.try_claim(6700) is not None
    return made


@pytest.fixture
def store() -> LocalStateStore:
    return LocalStateStore(LocalStateTree())


@pytest.fixture
def supervisor(node_dir: NodeDir, store: LocalStateStore) -> Supervisor:
    return Supervisor(SETTINGS, node_dir, StormState(store))


def registered(store: LocalStateStore) -> SupervisorInfo:
    info = StormState(store).read_supervisor("n1")
    assert info is not None
    return info


def test_a_part_holds_the_executors_of_one_slot_with_the_versions_that_placed_them() -> None:
    whole = assignment("t", "n1:6700", "n1:6701", "n1:6700", version=4)
    part = part_of(whole, WorkerSlot("n1", 6700))
    assert part is not None
    result = part.executors
    assert result == (PlacedExecutor(ExecutorId(1, 1), 4), PlacedExecutor(ExecutorId(3, 3), 4))
    assert part_of(whole, WorkerSlot("n2", 6700)) is None


def test_a_port_serves_one_topology_and_the_one_that_was_there_keeps_it() -> None:
    both = {"a": assignment("a", "n1:6700"), "b": assignment("b", "n1:6700", "n1:6701")}
    fresh, conflicts = local_assignments("n1", both, {})
    assert {port: part.topology_id for port, part in fresh.items()} == {6700: "a", 6701: "b"}
    assert conflicts == ["n1:6700 is assigned to both a and b"]
    kept, _ = local_assignments("n1", both, {6700: "b"})
    assert kept[6700].topology_id == "b"


PLACES = st.lists(st.sampled_from(["n1:6700", "n1:6701", "n2:6700"]), min_size=1, max_size=5)


@given(st.dictionaries(st.sampled_from("abc"), PLACES, max_size=3))
def test_what_is_wanted_of_a_node_is_what_the_assignments_say(places: dict[str, list[str]]) -> None:
    whole = {name: assignment(name, *at) for name, at in places.items()}
    wanted, _ = local_assignments("n1", whole, {})
    assert set(wanted) == {
        WorkerSlot.parse(p).port for at in places.values() for p in at if p.startswith("n1:")
    }
    for port, part in wanted.items():
        assert part == part_of(whole[part.topology_id], WorkerSlot("n1", port))


@pytest.mark.parametrize(
    ("beat", "is_wanted", "judged"),
    [
        (None, True, WorkerClass.NOT_STARTED),
        (LocalBeat("t", 6700, (1,), 70_000), False, WorkerClass.DISALLOWED),
        (LocalBeat("other", 6700, (1,), 0), True, WorkerClass.DISALLOWED),
        (LocalBeat("t", 6700, (1,), 69_999), True, WorkerClass.TIMED_OUT),
        (LocalBeat("t", 6700, (1,), 70_000), True, WorkerClass.VALID),
        (LocalBeat("t", 6700, (9,), 70_000), True, WorkerClass.VALID),
    ],
)
def test_a_worker_is_judged_by_its_local_heartbeat(
    beat: LocalBeat | None, is_wanted: bool, judged: WorkerClass
) -> None:
    wanted = part_of(assignment("t", "n1:6700"), WorkerSlot("n1", 6700)) if is_wanted else None
    assert classify(beat, wanted, now_ms=100_000, timeout_ms=30_000) is judged


def test_one_slot_of_a_node_has_the_duties_and_another_takes_over_at_once(
    node_dir: NodeDir, store: LocalStateStore, supervisor: Supervisor
) -> None:
    other = Supervisor(replace(SETTINGS, own_port=6701), node_dir, StormState(store))
    supervisor.step(0, {})
    other.step(0, {})
    assert (supervisor.is_in_office, other.is_in_office) == (True, False)
    supervisor.resign()
    other.step(1, {})
    assert other.is_in_office


def test_a_supervisor_registers_at_once_with_the_ports_of_living_slots(
    node_dir: NodeDir, store: LocalStateStore, supervisor: Supervisor
) -> None:
    supervisor.step(50, {})
    assert registered(store) == SupervisorInfo("n1", "host-a", 50, 0, (6700,))
    claim = node_dir.try_claim(6701)
    assert claim is not None
    supervisor.step(51, {})
    assert registered(store).ports == (6700, 6701)
    claim.release()
    supervisor.step(52, {})
    assert registered(store).ports == (6700,)


def test_a_heartbeat_is_written_when_it_is_due_and_not_before(
    store: LocalStateStore, supervisor: Supervisor
) -> None:
    for now_ms, written_ms in (
        (0, 0),
        (4_999, 0),
        (5_000, 5_000),
        (9_999, 5_000),
        (10_000, 10_000),
    ):
        supervisor.step(now_ms, {})
        assert registered(store).time_ms == written_ms


def test_a_lost_session_is_mended_at_the_next_step(
    store: LocalStateStore, supervisor: Supervisor
) -> None:
    supervisor.step(0, {})
    store.expire_session()
    assert StormState(store).read_supervisor("n1") is None
    supervisor.step(1, {})
    assert registered(store).time_ms == 1


def test_used_ports_are_those_with_a_valid_worker(
    node_dir: NodeDir, store: LocalStateStore, supervisor: Supervisor
) -> None:
    wanted = {"t": assignment("t", "n1:6700")}
    supervisor.step(0, wanted)
    assert registered(store).used_ports == ()
    write_local_beat(node_dir, LocalBeat("t", 6700, (1,), 2_900))
    supervisor.step(3_000, wanted)
    assert registered(store).used_ports == (6700,)


def test_the_wanted_state_outlives_the_supervisor(
    node_dir: NodeDir, supervisor: Supervisor
) -> None:
    supervisor.step(0, {"t": assignment("t", "n1:6701", version=3)})
    found = read_local_assignments(node_dir)
    assert found == {6701: part_of(assignment("t", "n1:6701", version=3), WorkerSlot("n1", 6701))}
    assert found[6701].version == 3


def test_the_wanted_state_is_compared_once_in_a_monitor_period(
    node_dir: NodeDir, supervisor: Supervisor
) -> None:
    supervisor.step(0, {})
    for now_ms, ports in ((2_999, []), (3_000, [6700]), (5_999, [6700])):
        supervisor.step(now_ms, {"t": assignment("t", "n1:6700")})
        assert list(read_local_assignments(node_dir)) == ports
    supervisor.step(5_999, {})
    assert list(read_local_assignments(node_dir)) == [6700]
    supervisor.step(6_000, {})
    assert list(read_local_assignments(node_dir)) == []


def test_a_new_holder_keeps_who_was_on_a_port(
    node_dir: NodeDir, store: LocalStateStore, supervisor: Supervisor
) -> None:
    supervisor.step(0, {"b": assignment("b", "n1:6700")})
    supervisor.resign()
    successor = Supervisor(SETTINGS, node_dir, StormState(store))
    successor.step(1, {"a": assignment("a", "n1:6700"), "b": assignment("b", "n1:6700")})
    assert read_local_assignments(node_dir)[6700].topology_id == "b"


def test_a_damaged_local_state_is_named_and_written_afresh(
    node_dir: NodeDir, supervisor: Supervisor
) -> None:
    node_dir.local_state.path.write_text('{"local-assignments": {"by_port": 7}}')
    with pytest.raises(StoreInconsistentError, match="localstate"):
        read_local_assignments(node_dir)
    node_dir.worker_state(6700).path.write_text("half a rec")
    supervisor.step(0, {"t": assignment("t", "n1:6700")})
    assert set(read_local_assignments(node_dir)) == {6700}


def test_code_nobody_wants_any_more_is_removed_after_a_while(
    node_dir: NodeDir, supervisor: Supervisor
) -> None:
    for name, age_s in (("t", 500), ("old", 500), ("young", 10)):
        folder = node_dir.code_dir(name)
        folder.mkdir()
        os.utime(folder, (1_000 - age_s, 1_000 - age_s))
    supervisor.step(1_000_000, {"t": assignment("t", "n1:6700")})
    assert sorted(folder.name for folder in node_dir.stormdist.iterdir()) == ["t", "young"]


def test_half_done_downloads_of_the_past_are_cleaned_up(
    node_dir: NodeDir, supervisor: Supervisor
) -> None:
    (node_dir.tmp / "half").write_text("x")
    supervisor.step(0, {})
    assert list(node_dir.tmp.iterdir()) == []
