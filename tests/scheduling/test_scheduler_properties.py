"""Properties of every scheduler on every cluster: no slot over-used, no executor twice, limits
kept, no needless moves.
"""

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.conformance.problems import GENERATORS
from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.blacklist import BlacklistScheduler
from sparkstorm.control_plane.scheduling.catalogue import scheduler_by_name
from sparkstorm.control_plane.scheduling.jstorm.records import AssignType
from sparkstorm.control_plane.scheduling.jstorm.scheduler import assign_tasks
from sparkstorm.control_plane.scheduling.resource.constraints import Constraints
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.view import ClusterView
from sparkstorm.extensions.laboratory import generate, moved
from sparkstorm.extensions.laboratory.form.jstorm_problem import context_from
from sparkstorm.extensions.laboratory.form.storm_problem import Problem, problem_from
from tests.tiers import examples

pytestmark = pytest.mark.sampled

RESOURCE_AWARE = pytest.param("resource-aware", marks=pytest.mark.slow)
STORM = ("even", "default", "isolation", "multitenant", RESOURCE_AWARE)
SEEDS = st.integers(0, 10**9)
FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck))


def problem_of(name: str, seed: int) -> Problem:
    return problem_from(GENERATORS[name](Random(seed)))


def scheduled(problem: Problem) -> ClusterView:
    view = problem.first.view(problem.conf)
    scheduler_by_name(problem.scheduler, problem.conf, problem.inner).schedule(
        view.topologies, view
    )
    return view


def slots_of(view: ClusterView) -> list[WorkerSlot]:
    return [slot for name in view.topologies for slot in view.placement(name).executors_by_slot]


@pytest.mark.parametrize("name", STORM)
@FEW
@given(seed=SEEDS)
def test_no_slot_is_used_twice_and_no_executor_placed_twice(name: str, seed: int) -> None:
    problem = problem_of(name, seed)
    view = scheduled(problem)
    used = slots_of(view)
    assert len(used) == len(set(used))
    for topology in view.topologies.values():
        placement = view.placement(topology.id)
        listed = [executor for each in placement.executors_by_slot.values() for executor in each]
        assert sorted(listed) == sorted(placement.slot_by_executor)
        assert len(listed) == len(set(listed))


@pytest.mark.parametrize("name", STORM)
@FEW
@given(seed=SEEDS)
def test_new_workers_go_to_living_trusted_supervisors_that_know_the_port(
    name: str, seed: int
) -> None:
    problem = problem_of(name, seed)
    before = set(slots_of(problem.first.view(problem.conf)))
    known = {each.id: each for each in problem.first.supervisors}
    dead = problem.first.dead_ports or {}
    for slot in set(slots_of(scheduled(problem))) - before:
        assert known[slot.node].host not in problem.first.blacklisted_hosts
        assert slot.port in known[slot.node].ports
        # Multitenant gives a port that a worker has just left to the next one, dead or not, as
        # Storm does.
        assert slot.port not in dead.get(slot.node, ()) or name == "multitenant"


@pytest.mark.parametrize("name", [*STORM, "blacklist"])
@FEW
@given(seed=SEEDS)
def test_equal_input_gives_equal_output(name: str, seed: int) -> None:
    problem = problem_of(name, seed)
    assert scheduled(problem).assignments() == scheduled(problem_of(name, seed)).assignments()


@pytest.mark.parametrize("name", ["even", "default", RESOURCE_AWARE])
@FEW
@given(seed=SEEDS)
def test_a_second_round_changes_nothing_that_is_complete(name: str, seed: int) -> None:
    problem = problem_of(name, seed)
    view = scheduled(problem)
    complete = {
        n: rows for n, rows in view.assignments().items() if not view.placement(n).num_missing
    }
    again = ClusterView(
        view.supervisors.values(),
        view.topologies.values(),
        view.assignments(),
        problem.conf,
        view.blacklisted_hosts,
    )
    scheduler_by_name(name, problem.conf).schedule(again.topologies, again)
    if name == "even" or not any(view.placement(n).num_missing for n in view.topologies):
        after = again.assignments()
        kept = {n for n in complete if not view.needs_scheduling(view.topologies[n])}
        assert all(
            after[n] == complete[n]
            for n in kept
            if name != "resource-aware" or n in again.topologies
        )


@FEW
@given(seed=SEEDS)
def test_workers_never_exceed_what_was_asked_for(seed: int) -> None:
    for name in ("even", "default"):
        problem = problem_of(name, seed)
        before = problem.first.view(problem.conf)
        view = scheduled(problem)
        for topology in view.topologies.values():
            allowed = max(topology.num_workers, before.placement(topology.id).num_workers)
            assert view.placement(topology.id).num_workers <= allowed


@pytest.mark.slow
@FEW
@given(seed=SEEDS)
def test_capacity_heap_and_constraints_hold_under_resources(seed: int) -> None:
    problem = problem_of("resource-aware", seed)
    before = ResourceLedger(problem.first.view(problem.conf))
    view = scheduled(problem)
    ledger = ResourceLedger(view)
    for node in view.supervisors:
        for taken, was, offered in zip(
            ledger.taken(node), before.taken(node), ledger.offer(node), strict=True
        ):
            assert taken <= max(offered, was) + 1e-9
    for topology in view.topologies.values():
        heap_limit = float(topology.conf.get("topology.worker.max.heap.size.mb", 768.0))
        old = (problem.first.assignments or {}).get(topology.id, {}).values()
        for slot, executors in view.placement(topology.id).executors_by_slot.items():
            if slot not in old:
                assert ledger.worker(topology, executors)[1] <= heap_limit


@FEW
@given(seed=SEEDS)
def test_incompatible_components_never_share_a_new_worker(seed: int) -> None:
    problem = problem_of("resource-aware", seed)
    view = scheduled(problem)
    for topology in view.topologies.values():
        if "Constraint" not in str(topology.conf["topology.scheduler.strategy"]):
            continue
        rules = Constraints(topology)
        old = (problem.first.assignments or {}).get(topology.id, {})
        for slot, executors in view.placement(topology.id).executors_by_slot.items():
            names = {topology.component_by_executor[each] for each in executors}
            if slot not in old.values():
                assert not any(rules.incompatible[name] & names - {name} for name in names)
        per_node: dict[tuple[str, str], int] = {}
        for executor, slot in view.placement(topology.id).slot_by_executor.items():
            key = (slot.node, topology.component_by_executor[executor])
            per_node[key] = per_node.get(key, 0) + 1
        if not old:
            assert all(
                count <= rules.max_on_node.get(name, count) for (_, name), count in per_node.items()
            )


@pytest.mark.parametrize("name", ["even", "default", RESOURCE_AWARE])
@settings(max_examples=25)
@given(
    nodes=st.integers(3, 12),
    topologies=st.integers(1, 4),
    executors=st.integers(1, 30),
    data=st.data(),
)
def test_one_lost_node_moves_only_what_ran_there(
    name: str, nodes: int, topologies: int, executors: int, data: Any
) -> None:
    """Room to spare and all workers alike: nothing else may move."""
    workers = data.draw(st.integers(1, max(1, min(executors, nodes * 4 // (2 * topologies)))))
    per_worker = -(-executors // workers)
    # Under resources a topology makes as many workers as its heap needs, whatever it asked for:
    # leave it the room.
    scene = generate(
        nodes, topologies, per_worker * workers, workers, 40 if name == "resource-aware" else 4
    )
    before = scene.scheduled(name)
    lost = data.draw(st.sampled_from([each.id for each in scene.supervisors]))
    after = before.without(lost).scheduled(name)
    changes = {(row["topology"], ExecutorId.parse(row["executor"])) for row in moved(before, after)}
    ran_there = {
        (n, executor)
        for n, rows in before.assignments.items()
        for executor, slot in rows.items()
        if slot.node == lost
    }
    if name == "even":
        assert changes <= ran_there
    else:
        assert changes == ran_there


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=SEEDS)
def test_blacklisted_hosts_get_nothing_new(seed: int) -> None:
    problem = problem_of("blacklist", seed)
    scheduler = scheduler_by_name("blacklist", problem.conf, problem.inner)
    assert isinstance(scheduler, BlacklistScheduler)
    for each in problem.rounds:
        view = each.view(problem.conf)
        old = set(slots_of(view))
        scheduler.schedule(view.topologies, view)
        for slot in set(slots_of(view)) - old:
            assert view.supervisors[slot.node].host not in scheduler.blacklisted_hosts


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(seed=SEEDS)
def test_jstorm_places_every_task_once_on_a_port_of_its_own(seed: int) -> None:
    context = context_from(GENERATORS["jstorm"](Random(seed)))
    try:
        plans = assign_tasks(context)
    except FailedAssignTopologyError:
        return
    tasks = [task for plan in plans for task in plan.tasks]
    assert sorted(tasks) == sorted(set(tasks))
    assert len({(plan.node, plan.port) for plan in plans}) == len(plans)
    old = {(each.node, each.port): each for each in context.old_workers}
    offered = {(each.id, port) for each in context.supervisors for port in each.available}
    if context.assign_type is AssignType.REBALANCE:
        offered |= old.keys()
    for plan in plans:
        # on a lost supervisor the living tasks stay, the dead ones are placed elsewhere
        before = old.get((plan.node, plan.port))
        assert (plan.node, plan.port) in offered or (
            before is not None and plan.tasks <= before.tasks
        )
    assert set(tasks) == set(context.component_by_task) or context.unstopped_tasks


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(seed=SEEDS)
def test_jstorm_spreads_new_tasks_within_one(seed: int) -> None:
    problem = GENERATORS["jstorm"](Random(seed))
    problem |= {"assign_type": "NEW", "old_workers": [], "unstopped_tasks": []}
    problem["conf"] = {
        "topology.workers": problem["conf"]["topology.workers"],
        "topology.master.single.worker": False,
    }
    for component in problem["topology"]["components"]:
        component["conf"] = {}
    try:
        sizes = [len(plan.tasks) for plan in assign_tasks(context_from(problem))]
    except FailedAssignTopologyError:
        return
    assert max(sizes) - min(sizes) <= 1
