"""Rounds with a memory give the same plans as rounds without, and share unchanged views."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkstorm.common.model.assignment import (
    Assignment,
    ExecutorId,
    SupervisorInfo,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.outline import ComponentOutline, InputOutline, TopologyOutline
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.even import EvenScheduler
from sparkstorm.control_plane.scheduling.jstorm.adapter import JStormScheduler
from sparkstorm.control_plane.scheduling.placement import Placement
from sparkstorm.control_plane.scheduling.round import plan_round
from sparkstorm.control_plane.scheduling.round_memory import RoundMemory
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology, RoundPlan, Snapshot
from tests.tiers import examples

SPOUT, BOLT = (
    ComponentOutline("spout"),
    ComponentOutline("bolt", {}, (InputOutline("s", "default", "shuffle"),)),
)


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
    assert later.components is first.components and (first.uptime_ms, later.uptime_ms) == (
        1000,
        3000,
    )
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
    assert memory.view(replace(grown, conf={"topology.priority": 1}), 0).conf == {
        "topology.priority": 1
    }


def test_a_plain_placement_is_its_own() -> None:
    assert not Placement(RoundMemory().view(topology(0, 1, 1), 0), {}).is_untouched
