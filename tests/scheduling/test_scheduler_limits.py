"""Promises of single schedulers on every cluster: dedicated machines, pools, worker rules,
priority, allowed moves.
"""

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from benchmarks.conformance.problems import GENERATORS
from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.control_plane.scheduling.catalogue import scheduler_by_name
from sparkstorm.control_plane.scheduling.isolation import worker_specs
from sparkstorm.control_plane.scheduling.jstorm.records import AssignType
from sparkstorm.control_plane.scheduling.jstorm.scheduler import assign_tasks
from sparkstorm.control_plane.scheduling.multitenant.scheduler import MultitenantScheduler
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.resource.priorities import priority_order
from sparkstorm.control_plane.scheduling.view import ClusterView
from sparkstorm.extensions.laboratory import Scene, generate, moved
from sparkstorm.extensions.laboratory.form.jstorm_problem import context_from
from sparkstorm.extensions.laboratory.form.storm_problem import Problem, problem_from

SEEDS = st.integers(0, 10**9)
FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck))


def problem_of(name: str, seed: int) -> Problem:
    return problem_from(GENERATORS[name](Random(seed)))


def resources(seed: int) -> dict[str, Any]:
    """A problem whose searches end soon."""
    raw = GENERATORS["resource-aware"](Random(seed))
    for topology in raw["topologies"]:
        topology["conf"]["topology.ras.constraint.max.state.search"] = 200
    return raw


def both(problem: Problem) -> tuple[ClusterView, ClusterView]:
    """The cluster before and after a round."""
    before, after = problem.first.view(problem.conf), problem.first.view(problem.conf)
    scheduler_by_name(problem.scheduler, problem.conf, problem.inner).schedule(
        after.topologies, after
    )
    return before, after


def owners_by_host(view: ClusterView) -> dict[str | None, set[str]]:
    found: dict[str | None, set[str]] = {}
    for slot, owner in view.used_slots().items():
        found.setdefault(view.host_of(slot.node), set()).add(owner)
    return found


@FEW
@given(seed=SEEDS)
def test_an_isolated_topology_shares_its_machines_with_nobody(seed: int) -> None:
    problem = problem_of("isolation", seed)
    before, after = both(problem)
    machines = problem.conf["isolation.scheduler.machines"]
    isolated = {
        each.id: machines[each.name] for each in after.topologies.values() if each.name in machines
    }
    hosts: dict[str, int] = {}
    for host, owners in owners_by_host(after).items():
        # Workers on a lost or blacklisted host are not this round's doing.
        if host is not None and host not in problem.first.blacklisted_hosts:
            assert len(owners) == 1 or not owners & isolated.keys()
            for owner in owners & isolated.keys():
                hosts[owner] = hosts.get(owner, 0) + 1
    assert all(count <= isolated[owner] for owner, count in hosts.items())
    assert after.blacklisted_hosts == before.blacklisted_hosts


@FEW
@given(seed=SEEDS)
def test_an_isolated_topologys_workers_hold_what_was_dealt_to_them(seed: int) -> None:
    problem = problem_of("isolation", seed)
    before, after = both(problem)
    for topology in after.topologies.values():
        if topology.name in problem.conf["isolation.scheduler.machines"]:
            specs = worker_specs(topology)
            old = before.placement(topology.id).executors_by_slot
            for slot, executors in after.placement(topology.id).executors_by_slot.items():
                assert frozenset(executors) in specs or slot in old


@FEW
@given(seed=SEEDS)
def test_a_users_pool_keeps_its_limit_and_its_nodes_to_itself(seed: int) -> None:
    problem = problem_of("multitenant", seed)
    view = problem.first.view(problem.conf)
    scheduler = scheduler_by_name("multitenant", problem.conf)
    assert isinstance(scheduler, MultitenantScheduler)
    used_before = {slot.node for slot in view.used_slots()}
    scheduler.schedule(view.topologies, view)
    sizes = scheduler.pool_sizes
    assert sizes is not None
    limits = problem.conf["multitenant.scheduler.user.pools"]
    for user, count in sizes.isolated.items():
        # Nodes on which a pool's topologies ran before the round count, whatever the limit.
        assert count <= max(limits[user], len(used_before))
        assert count <= limits[user] or problem.first.assignments
    apart = {name for name, words in view.status.items() if words.startswith("Scheduled Isolated")}
    for owners in owners_by_node(view).values():
        isolated = {
            name
            for name in owners & apart
            if "topology.isolate.machines" in view.topologies[name].conf
        }
        assert len(owners) == 1 or not isolated or problem.first.assignments


def owners_by_node(view: ClusterView) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for slot, owner in view.used_slots().items():
        found.setdefault(slot.node, set()).add(owner)
    return found


@FEW
@given(seed=SEEDS)
def test_new_workers_keep_the_rules_of_one(seed: int) -> None:
    """One executor (ackers too) or one component per worker, where the topology says so."""
    raw = resources(seed)
    rules = ("topology.ras.one.executor.per.worker", "topology.ras.one.component.per.worker")
    for at, topology in enumerate(raw["topologies"]):
        topology["conf"][rules[at % 2]] = True
    before, after = both(problem_from(raw))
    for name, view in after.topologies.items():
        for slot, executors in after.placement(name).executors_by_slot.items():
            if slot not in before.placement(name).executors_by_slot:
                assert len(executors) == 1 or not view.conf.get(rules[0])
                assert len(
                    {view.component_by_executor[each] for each in executors}
                ) == 1 or not view.conf.get(rules[1])


@FEW
@given(seed=SEEDS)
def test_generic_resources_are_never_given_twice(seed: int) -> None:
    raw = resources(seed)
    for supervisor in raw["supervisors"]:
        supervisor["resources"]["gpu.count"] = 1.0
    for topology in raw["topologies"]:
        topology["components"][0]["conf"]["topology.component.resources.map"] = {"gpu.count": 0.5}
    before, after = both(problem_from(raw))
    was, now = ResourceLedger(before), ResourceLedger(after)
    at = 2 + now.shape.generic.index("gpu.count")
    for node in after.supervisors:
        assert now.taken(node)[at] <= max(now.offer(node)[at], was.taken(node)[at])


@FEW
@given(seed=SEEDS)
def test_resources_place_a_topology_whole_or_leave_it_as_it_was(seed: int) -> None:
    before, after = both(problem_from(resources(seed)))
    for name in after.topologies:
        old, new = before.placement(name), after.placement(name)
        left_out = after.status.get(name, "").endswith("its last executor has no place")
        if new.num_missing and not left_out and name not in after.evicted:
            assert dict(new.slot_by_executor) == dict(old.slot_by_executor)


@FEW
@given(seed=SEEDS)
def test_only_those_of_lesser_rank_give_way(seed: int) -> None:
    problem = problem_from(resources(seed))
    before, after = both(problem)
    strategy = str(problem.conf.get("resource.aware.scheduler.priority.strategy", "default"))
    pools = problem.conf.get("resource.aware.scheduler.user.pools") or {}
    rank = [each.id for each in priority_order(strategy)(ResourceLedger(before)).order(pools)]
    gained = [
        name
        for name in rank
        if before.placement(name).num_missing and after.status[name].startswith("Running")
    ]
    for name in after.evicted:
        assert any(rank.index(winner) < rank.index(name) for winner in gained)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(seed=SEEDS)
def test_jstorm_keeps_workers_without_a_dead_task_as_they_are(seed: int) -> None:
    context = context_from(GENERATORS["jstorm"](Random(seed)))
    assume(context.assign_type is AssignType.MONITOR)
    try:
        plans = assign_tasks(context)
    except FailedAssignTopologyError:
        return
    for worker in context.old_workers:
        if not worker.tasks & context.dead_tasks:
            assert worker in plans


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(seed=SEEDS)
def test_jstorm_puts_tasks_that_must_differ_on_different_nodes(seed: int) -> None:
    problem = GENERATORS["jstorm"](Random(seed))
    problem |= {"assign_type": "NEW", "old_workers": [], "unstopped_tasks": []}
    problem["topology"]["components"][0]["conf"] = {"task.on.differ.node": True}
    problem["conf"].pop("use.userdefine.assignment", None)
    context = context_from(problem)
    try:
        plans = assign_tasks(context)
    except FailedAssignTopologyError:
        return
    apart = problem["topology"]["components"][0]["id"]
    nodes = [
        plan.node
        for plan in plans
        for task in plan.tasks
        if context.component_by_task[task] == apart
    ]
    assert len(nodes) == len(set(nodes))


def after_a_loss(
    name: str, scene: Scene, conf: dict[str, Any], lost: str
) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the executors that moved after a node's loss, and those that ran on it."""
    before = scene.scheduled(name, conf)
    after = before.without(lost).scheduled(name, conf)
    rows = before.assignments.items()
    ran_there = {
        (topology, str(each))
        for topology, placed in rows
        for each, slot in placed.items()
        if slot.node == lost
    }
    return {(row["topology"], row["executor"]) for row in moved(before, after)}, ran_there


@pytest.mark.parametrize(
    ("name", "conf"),
    [
        ("isolation", {"isolation.scheduler.machines": {"topology-00000": 2}}),
        ("multitenant", {"multitenant.scheduler.user.pools": {}}),
        ("blacklist", {}),
    ],
)
@settings(max_examples=25)
@given(topologies=st.integers(1, 4), executors=st.integers(1, 5), lost=st.integers(0, 11))
def test_one_lost_node_moves_nobody_else_under_the_others(
    name: str, conf: dict[str, Any], topologies: int, executors: int, lost: int
) -> None:
    """Twelve nodes, at most eight workers, as many executors in each: there is always an idle
    node.
    """
    scene = generate(12, topologies, 2 * executors, 2)
    changes, ran_there = after_a_loss(name, scene, conf, f"node-{lost:05}")
    assert changes == ran_there
