"""One round: what the scheduler sees, and the plan made of its answer."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.common.model.assignment import (
    Assignment,
    ExecutorId,
    SupervisorInfo,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.outline import ComponentOutline, InputOutline, TopologyOutline
from sparkstorm.common.model.requests import HostMark
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.even import EvenScheduler
from sparkstorm.control_plane.scheduling.jstorm.adapter import JStormScheduler
from sparkstorm.control_plane.scheduling.placement import Placement
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.resource.scheduler import ResourceAwareScheduler
from sparkstorm.control_plane.scheduling.round import plan_round
from sparkstorm.control_plane.scheduling.round_memory import RoundMemory, topology_view
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology, RoundPlan, Snapshot
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.tiers import examples

E = [ExecutorId(n, n) for n in range(1, 5)]
SLOTS = [WorkerSlot(node, port) for node in ("n1", "n2") for port in (1, 2)]
BASE = TopologyBase(
    "t-1", "t", 400, TopologyStatus.ACTIVE, 2, {"b": 3, "s": 1}, "code", "conf", owner="ann"
)
OUTLINE = TopologyOutline(
    {
        "b": ComponentOutline("bolt", {"k": 1}, (InputOutline("s", "default", "shuffle"),)),
        "s": ComponentOutline("spout"),
    },
    {"b": 3, "s": 1},
    {1: "b", 2: "b", 3: "b", 4: "s"},
)
KNOWN = KnownTopology(BASE, OUTLINE, {"topology.priority": 3})
SUPERVISORS = {
    node: SupervisorInfo(node, f"host-{node}", 0, 0, (1, 2), resources={"cpu": 100.0})
    for node in ("n1", "n2")
}
PLACED = {E[0]: SLOTS[0], E[1]: SLOTS[2], E[2]: SLOTS[0], E[3]: SLOTS[2]}
OLD = Assignment(
    "t-1",
    5,
    "code",
    "conf",
    {"n1": "host-n1"},
    PLACED,
    dict.fromkeys(PLACED, 7),
    dict.fromkeys(PLACED, 4),
)
SNAPSHOT = Snapshot({"t-1": KNOWN}, {"t-1": OLD}, SUPERVISORS)


class Watching(DefaultScheduler):
    """Notes what it is shown, then decides as usual."""

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        self.topologies = dict(topologies)
        self.free = cluster.available_slots()
        self.hungry = [each.id for each in cluster.topologies_to_schedule()]
        super().schedule(topologies, cluster)


def test_a_topology_is_shown_with_components_inputs_conf_and_age() -> None:
    view = topology_view(KNOWN, 1000)
    assert view.id == "t-1"
    assert view.name == "t"
    assert view.num_workers == 2
    assert view.owner == "ann"
    assert view.uptime_ms == 600
    assert view.conf == {"topology.priority": 3}
    assert view.component("b").executors == tuple(E[:3])
    result = [(each.component, each.grouping) for each in view.component("b").inputs]
    assert result == [("s", "shuffle")]
    assert view.component("s").kind == "spout"


def test_when_all_live_there_is_nothing_to_write() -> None:
    plan = plan_round(SNAPSHOT, {"t-1": set(E)}, DefaultScheduler(), {}, 1000)
    assert plan.assignments == ()
    assert plan.placed["t-1"] == PLACED


def test_a_plan_has_the_code_the_workers_their_hosts_and_the_start_times() -> None:
    """S0.70, S3.40: everything that a supervisor needs is in the assignment."""
    (new,) = plan_round(
        replace(SNAPSHOT, assignments={}), {}, DefaultScheduler(), {}, 1000
    ).assignments
    assert (new.topology_id, new.version, new.code_key, new.conf_key) == ("t-1", 1, "code", "conf")
    assert set(new.slot_by_executor) == set(E)
    assert {slot.node for slot in new.slot_by_executor.values()} == {"n1", "n2"}
    assert new.host_by_node == {"n1": "host-n1", "n2": "host-n2"}
    assert new.start_ms_by_executor == dict.fromkeys(E, 1000)
    moved = replace(
        SNAPSHOT, topologies={"t-1": replace(KNOWN, base=replace(BASE, code_key="newer"))}
    )
    (changed,) = plan_round(moved, {"t-1": {E[1], E[3]}}, DefaultScheduler(), {}, 2000).assignments
    assert changed.code_key == "newer"
    result = changed.start_ms_by_executor
    assert result == {E[0]: 2000, E[1]: 7, E[2]: 2000, E[3]: 7}
    assert changed.host_by_node.keys() == {slot.node for slot in changed.slot_by_executor.values()}


def test_the_dead_move_off_their_slot_which_is_not_offered_in_this_round() -> None:
    watching = Watching()
    plan = plan_round(SNAPSHOT, {"t-1": {E[1], E[3]}}, watching, {}, 1000)
    assert SLOTS[0] not in watching.free
    (made,) = plan.assignments
    assert made.version == 6
    assert made.slot_by_executor[E[1]] == made.slot_by_executor[E[3]] == SLOTS[2]
    assert {made.slot_by_executor[E[0]], made.slot_by_executor[E[2]]} <= {SLOTS[1], SLOTS[3]}
    assert made.placed_version_by_executor == {E[0]: 6, E[2]: 6, E[1]: 4, E[3]: 4}


@pytest.mark.parametrize(
    "rebalanced", [{}, {"t-1": RebalanceOptions()}], ids=["a death", "a rebalance"]
)
def test_living_tasks_of_a_lost_supervisor_stay_under_jstorm(
    rebalanced: dict[str, RebalanceOptions],
) -> None:
    """S0.80: JStorm's unstopped workers; if they were placed anew, their tasks would run twice."""
    lost = replace(SNAPSHOT, supervisors={"n2": SUPERVISORS["n2"]})
    plan = plan_round(lost, {"t-1": {E[1], E[2], E[3]}}, JStormScheduler(), {}, 1000, rebalanced)
    (made,) = plan.assignments
    assert made.slot_by_executor[E[2]] == PLACED[E[2]]
    assert made.placed_version_by_executor[E[2]] == 4
    assert made.slot_by_executor[E[0]].node == "n2" and made.placed_version_by_executor[E[0]] == 6


def test_a_killed_topology_keeps_its_slots_and_is_not_scheduled() -> None:
    killed = KnownTopology(replace(BASE, status=TopologyStatus.KILLED), OUTLINE, {})
    watching = Watching()
    plan = plan_round(
        Snapshot({"t-1": killed}, {"t-1": OLD}, SUPERVISORS), {"t-1": set()}, watching, {}, 1000
    )
    assert plan.assignments == ()
    assert watching.topologies == {} and watching.hungry == []
    assert set(watching.free) == {SLOTS[1], SLOTS[3]}


def test_reserved_slots_are_offered_to_nobody() -> None:
    watching = Watching()
    plan_round(
        replace(SNAPSHOT, reserved=frozenset({SLOTS[1], SLOTS[3]})),
        {"t-1": {E[0]}},
        watching,
        {},
        1000,
    )
    assert watching.free == []


def test_reassigning_places_everything_afresh_and_a_plain_rebalance_what_must_move() -> None:
    wider = Snapshot(
        {"t-1": replace(KNOWN, base=replace(BASE, num_workers=4))}, {"t-1": OLD}, SUPERVISORS
    )
    alive = {"t-1": set(E)}
    plain = plan_round(
        wider, alive, DefaultScheduler(), {}, 1000, {"t-1": RebalanceOptions(4)}
    ).assignments[0]
    assert sum(PLACED[each] == slot for each, slot in plain.slot_by_executor.items()) == 2
    assert len(set(plain.slot_by_executor.values())) == 4
    watching = Watching()
    plan_round(wider, alive, watching, {}, 1000, {"t-1": RebalanceOptions(4, reassign=True)})
    assert set(watching.free) == set(SLOTS)


def test_a_new_topology_without_a_place_is_not_written_but_an_old_one_that_lost_its_place_is() -> (
    None
):
    nobody: dict[str, SupervisorInfo] = {}
    new = plan_round(Snapshot({"t-1": KNOWN}, {}, nobody), {}, DefaultScheduler(), {}, 1000)
    assert new.assignments == ()
    (lost,) = plan_round(
        Snapshot({"t-1": KNOWN}, {"t-1": OLD}, nobody), {}, DefaultScheduler(), {}, 1000
    ).assignments
    assert lost.version == 6 and lost.slot_by_executor == {}


DRAINED = replace(SNAPSHOT, marks={"host-n1": HostMark(True, 0, "ann")})


class Refusing(DefaultScheduler):
    """Finds no room for anything."""

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        cluster.refused = dict.fromkeys(topologies, "no memory")


def test_the_workers_of_a_drained_host_leave_it_whose_ports_are_not_offered() -> None:
    watching = Watching()
    (made,) = plan_round(DRAINED, {"t-1": set(E)}, watching, {}, 1000).assignments
    assert watching.free == [SLOTS[3]]
    assert made.slot_by_executor == {E[0]: SLOTS[3], E[1]: SLOTS[2], E[2]: SLOTS[3], E[3]: SLOTS[2]}


def test_a_topology_that_a_scheduler_finds_no_room_for_stays_on_a_drained_host() -> None:
    plan = plan_round(DRAINED, {"t-1": set(E)}, Refusing(), {}, 1000)
    assert plan.assignments == () and plan.refused == {} and plan.blacklisted_hosts == frozenset()


def test_a_drain_waits_until_the_dead_have_a_place() -> None:
    watching = Watching()
    (made,) = plan_round(DRAINED, {"t-1": {E[0], E[2]}}, watching, {}, 1000).assignments
    assert made.slot_by_executor == {E[0]: SLOTS[0], E[1]: SLOTS[3], E[2]: SLOTS[0], E[3]: SLOTS[3]}


@pytest.mark.parametrize(
    ("racks", "used"), [("abab", {"n1", "n3"}), ("aabb", {"n1", "n2"}), ("    ", {"n1", "n2"})]
)
def test_a_topology_stays_in_a_rack_that_slots_tell_of(racks: str, used: set[str]) -> None:
    resources = {"supervisor.cpu.capacity": 20.0, "supervisor.memory.capacity.mb": 1_000.0}
    supervisors = {
        name: SupervisorInfo(
            name,
            name,
            0,
            0,
            (1, 2),
            resources=resources,
            scheduler_meta={"rack": f"/{rack}"} if rack.strip() else {},
        )
        for name, rack in zip(("n1", "n2", "n3", "n4"), racks, strict=True)
    }
    (placed,) = plan_round(
        Snapshot({"t-1": KNOWN}, {}, supervisors), {}, ResourceAwareScheduler(), {}, 1000
    ).placed.values()
    assert {slot.node for slot in placed.values()} == used


class Reckless(DefaultScheduler):
    """Puts everything of a topology on one slot, offered or not."""

    def __init__(self, slot: WorkerSlot) -> None:
        self.slot = slot

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        for each in topologies:
            cluster.assign(self.slot, each, E)


def test_the_answer_of_a_scheduler_of_the_whole_cluster_is_checked() -> None:
    new = replace(SNAPSHOT, assignments={})
    for node, port in (("n9", 1), ("n1", 9)):
        problem = f"put t-1 on {node}:{port}, which is not offered"
        with pytest.raises(FailedAssignTopologyError, match=problem):
            plan_round(new, {}, Reckless(WorkerSlot(node, port)), {}, 1000)
    (made,) = plan_round(new, {}, Reckless(SLOTS[1]), {}, 1000).assignments
    assert set(made.slot_by_executor.values()) == {SLOTS[1]}


def known(topology_id: str, **changes: Any) -> KnownTopology:
    base = replace(BASE, topology_id=topology_id, name=topology_id, **changes)
    return KnownTopology(base, OUTLINE, {})


def placed(topology_id: str, *slots: WorkerSlot) -> Assignment:
    where = {each: slots[n % len(slots)] for n, each in enumerate(E)}
    return replace(OLD, topology_id=topology_id, slot_by_executor=where)


def test_a_new_topology_without_a_place_keeps_no_later_one_from_its_place() -> None:
    """By the order of their ids."""

    class OnlyTheLast(DefaultScheduler):
        def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
            cluster.assign(SLOTS[0], "t-2", E)

    two = Snapshot({each: known(each) for each in ("t-1", "t-2")}, {}, SUPERVISORS)
    made = plan_round(two, {}, OnlyTheLast(), {}, 1000).assignments
    assert [each.topology_id for each in made] == ["t-2"]


def test_of_two_topologies_on_a_drained_host_each_stays_that_has_no_room_elsewhere() -> None:
    """One has found room, which does not decide for the next."""

    class RoomForOne(DefaultScheduler):
        def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
            cluster.assign(SLOTS[2], "t-1", E)

    snapshot = Snapshot(
        {each: known(each, num_workers=1) for each in ("t-1", "t-2")},
        {"t-1": placed("t-1", SLOTS[0]), "t-2": placed("t-2", SLOTS[1])},
        SUPERVISORS,
        marks={"host-n1": HostMark(True, 0, "ann")},
    )
    alive = {"t-1": set(E), "t-2": set(E)}
    plan = plan_round(snapshot, alive, RoomForOne(), {}, 1000)
    assert [each.topology_id for each in plan.assignments] == ["t-1"]
    assert set(plan.placed["t-2"].values()) == {SLOTS[1]}


def test_a_rebalance_is_served_before_topologies_that_lack_workers_behind_one_that_lacks_none() -> (
    None
):
    snapshot = Snapshot(
        {each: known(each, num_workers=n) for each, n in (("t-1", 1), ("t-2", 1), ("t-3", 2))},
        {
            "t-1": placed("t-1", SLOTS[0]),
            "t-2": replace(placed("t-2", SLOTS[1]), slot_by_executor={E[0]: SLOTS[1]}),
            "t-3": placed("t-3", SLOTS[2]),
        },
        SUPERVISORS,
    )
    watching = Watching()
    alive = {"t-1": set(E), "t-2": {E[0]}, "t-3": set(E)}
    plan_round(snapshot, alive, watching, {}, 1000, {"t-3": RebalanceOptions(2)})
    assert watching.hungry == ["t-3"]


# -- rounds with a memory --------------------------------------------------------------------------


SPOUT = ComponentOutline("spout")
BOLT = ComponentOutline("bolt", {}, (InputOutline("s", "default", "shuffle"),))


def topology(number: int, tasks: int, workers: int) -> KnownTopology:
    outline = TopologyOutline(
        {"s": SPOUT, "b": BOLT},
        {"s": 1, "b": tasks},
        {1: "s", **dict.fromkeys(range(2, tasks + 2), "b")},
    )
    name = f"t{number}"
    base = TopologyBase(
        f"{name}-1-1", name, 0, TopologyStatus.ACTIVE, workers, {"s": 1, "b": tasks}, "code", "conf"
    )
    return KnownTopology(base, outline, {"topology.workers": workers})


def nodes(count: int) -> dict[str, SupervisorInfo]:
    return {f"n{at}": SupervisorInfo(f"n{at}", f"h{at}", 0, 0, (1, 2, 3)) for at in range(count)}


def apply(plan: RoundPlan, assignments: dict[str, Assignment]) -> dict[str, Assignment]:
    return {**assignments, **{each.topology_id: each for each in plan.assignments}}


HAPPENINGS = st.one_of(
    st.tuples(st.just("calm"), st.just(0)),
    st.tuples(st.just("supervisors"), st.integers(1, 5)),
    st.tuples(st.just("die"), st.integers(0, 30)),
    st.tuples(st.just("rebalance"), st.integers(1, 4)),
    st.tuples(st.just("kill"), st.integers(0, 2)),
    st.tuples(st.just("submit"), st.integers(1, 6)),
)


@pytest.mark.slow
@settings(max_examples=examples(120))
@example([("calm", 0), ("supervisors", 1), ("die", 1), ("rebalance", 2)], JStormScheduler)
@given(
    st.lists(HAPPENINGS, max_size=12),
    st.sampled_from([DefaultScheduler, EvenScheduler, JStormScheduler]),
)
def test_a_memory_changes_no_plan(
    happenings: list[tuple[str, int]], make: type[DefaultScheduler]
) -> None:
    memory = RoundMemory()
    known = {each.base.topology_id: each for each in (topology(0, 3, 2), topology(1, 5, 3))}
    assignments: dict[str, Assignment] = {}
    supervisors = nodes(4)
    for at, (what, number) in enumerate(happenings):
        dead: set[ExecutorId] = set()
        rebalanced: dict[str, RebalanceOptions] = {}
        chosen = sorted(known)[number % len(known)]
        if what == "supervisors":
            supervisors = nodes(number)
        elif what == "die":
            dead = {ExecutorId(number % 6 + 1, number % 6 + 1)}
        elif what == "submit":
            known[f"t{at + 2}-1-1"] = topology(at + 2, number, 2)
        elif what == "kill":
            known[chosen] = replace(
                known[chosen], base=replace(known[chosen].base, status=TopologyStatus.KILLED)
            )
        elif what == "rebalance" and known[chosen].base.status == TopologyStatus.ACTIVE:
            known[chosen] = replace(
                known[chosen], base=replace(known[chosen].base, num_workers=number)
            )
            rebalanced = {chosen: RebalanceOptions(number)}
        alive = {each: found.slot_by_executor.keys() - dead for each, found in assignments.items()}
        snapshot = Snapshot(dict(known), assignments, supervisors)
        plans = [
            plan_round(snapshot, alive, make(), {}, 1000 * at, rebalanced, each)
            for each in (memory, None)
        ]
        assert plans[0] == plans[1]
        assignments = apply(plans[0], assignments)


def test_a_calm_round_makes_no_view_and_no_placement_anew() -> None:
    memory, known = RoundMemory(), topology(0, 3, 2)
    first = memory.view(known, 1000)
    later = memory.view(known, 3000)
    assert later.components is first.components
    assert first.uptime_ms == 1000
    assert later.uptime_ms == 3000
    placed = {each: WorkerSlot("n0", 1) for each in known.executors()}
    assignment = Assignment("t0-1-1", 1, "code", "conf", {}, placed, {}, {})
    one, two = (memory.placement("t0-1-1", assignment) for _ in range(2))
    assert one.slot_by_executor is two.slot_by_executor
    one.unassign(WorkerSlot("n0", 1))
    assert not one.is_untouched and not one.slot_by_executor
    assert two.is_untouched and two.slot_by_executor == placed == assignment.slot_by_executor


def test_a_changed_record_is_seen() -> None:
    memory, known = RoundMemory(), topology(0, 3, 2)
    memory.view(known, 0)
    grown = replace(known, base=replace(known.base, executors_by_component={"s": 1, "b": 1}))
    assert len(memory.view(grown, 0).executors) == 2
    result = memory.view(replace(grown, conf={"topology.priority": 1}), 0).conf
    assert result == {"topology.priority": 1}


def test_a_plain_placement_is_its_own() -> None:
    assert not Placement(RoundMemory().view(topology(0, 1, 1), 0), {}).is_untouched
