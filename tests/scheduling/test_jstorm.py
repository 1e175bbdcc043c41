"""JStorm's topology scheduler: texts, the chain that picks a worker, and defects of the original that
are not copied. Its placements are those of the original's answers (tests/conformance).
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.errors import FailedAssignTopologyError, InvalidConfigError
from sparkstorm.control_plane.scheduling.jstorm.adapter import context_of
from sparkstorm.control_plane.scheduling.jstorm.records import (
    AssignContext,
    AssignType,
    JStormComponent,
    PlannedWorker,
    SupervisorPorts,
    give_task_ids,
)
from sparkstorm.control_plane.scheduling.jstorm.scheduler import (
    assign_tasks,
    has_single_master,
    num_workers,
)
from sparkstorm.control_plane.scheduling.jstorm.selectors import PlacedTasks
from sparkstorm.control_plane.scheduling.jstorm.slots import JStormSlot
from sparkstorm.control_plane.scheduling.jstorm.tasks import TaskScheduler
from sparkstorm.control_plane.scheduling.jstorm.workers import Ports, place
from sparkstorm.control_plane.scheduling.records import InputView
from tests.scheduling.clusters import cluster, singles, supervisor, topology


def part(name: str, count: int, kind: str = "bolt", *inputs: str, **conf: Any) -> JStormComponent:
    named = {key.replace("__", "."): value for key, value in conf.items()}
    return JStormComponent(name, kind, count, named, tuple(InputView(each) for each in inputs))


def sup(name: str, *available: int, ports: int | None = None) -> SupervisorPorts:
    everything = tuple(range(1, (ports or max(available, default=1)) + 1))
    return SupervisorPorts(name, f"h-{name}", everything, available)


def context(
    parts: list[JStormComponent], supervisors: list[SupervisorPorts], kind: str = "NEW", **more: Any
) -> AssignContext:
    tasks = more.pop("tasks", None) or give_task_ids(tuple(parts))
    return AssignContext(
        "t-1",
        AssignType(kind),
        tuple(parts),
        tuple(supervisors),
        tasks,
        more.pop("conf", {}),
        **more,
    )


def worker(where: str, *tasks: int) -> PlannedWorker:
    node, _, port = where.partition(":")
    return PlannedWorker(node, f"h-{node}", int(port), frozenset(tasks), 5, 1)


def shown(plans: list[PlannedWorker]) -> dict[str, list[int]]:
    return {f"{plan.node}:{plan.port}": sorted(plan.tasks) for plan in plans}


def test_too_few_free_ports_name_all_three_numbers() -> None:
    """S0.82."""
    asked = context(
        [part("in", 3, "spout")], [sup("a", 1, 2, 3)], conf={"jstorm.reserve.workers": 1}
    )
    with pytest.raises(FailedAssignTopologyError) as error:
        assign_tasks(asked)
    assert (
        str(error.value)
        == "there's no enough worker. allocWorkerNum=3, availableWorkerNum=3,reserveWorkerNum=1"
    )


def defined(counts: dict[str, int], **fields: Any) -> str:
    return json.dumps({"componentToNum": json.dumps(counts), "port": "0", **fields})


@pytest.mark.parametrize(
    ("kind", "uses_old"), [("NEW", True), ("REBALANCE", True), ("REBALANCE", False)]
)
@pytest.mark.parametrize("turns", [0, 1])
def test_two_supervisors_of_a_host_keep_their_workers_though_their_ports_are_equal(
    kind: str, uses_old: bool, turns: int
) -> None:
    """The order of the old workers chose which of the two tasks went where."""
    nodes = ("x", "y")
    old = [replace(worker(f"{node}:1", task), host="h") for task, node in enumerate(nodes, 1)]
    asked = context(
        [part("in", 2, "spout")],
        [replace(sup(node, 1), host="h") for node in nodes],
        kind,
        conf={"topology.workers": 2, "use.old.assignment": uses_old},
        old_workers=tuple(old[turns:] + old[:turns]),
    )
    assert shown(assign_tasks(asked)) == {"x:1": [1], "y:1": [2]}


def test_more_slots_than_workers_are_refused_with_numbers() -> None:
    """S0.87: a defined worker and a reused one, where one worker is to be made."""
    conf = {
        "topology.workers": 1,
        "use.userdefine.assignment": [defined({"in": 1}, hostName="h-a", port="0")],
    }
    asked = context(
        [part("in", 2, "spout")],
        [sup("a", 1, 2)],
        "REBALANCE",
        conf=conf,
        old_workers=(worker("a:2", 1, 2),),
    )
    with pytest.raises(FailedAssignTopologyError) as error:
        assign_tasks(asked)
    assert str(error.value) == (
        "Too many workers are required for user define or old assignments. workersNum=1, assignedWorkersNum=2"
    )


def test_the_context_has_the_supervisors_of_use_only() -> None:
    """S0.77: a blacklisted one is none of them, and neither is a dead port a port."""
    asked = topology("t", singles(2), 2)
    view = cluster(
        [supervisor("a", 1, 2), supervisor("b", 1), supervisor("c", 1)],
        [asked],
        blacklisted_hosts=["host-b"],
    )
    found = context_of(asked, None, view).supervisors
    result = [(each.id, each.ports, each.available) for each in found]
    assert result == [("a", (1, 2), (1, 2)), ("c", (1,), (1,))]


def test_a_plain_rebalance_copies_the_old_slots_up_to_the_number_of_workers() -> None:
    """S0.85."""
    old = (worker("a:1", 1), worker("a:2", 2), worker("b:1", 3))
    asked = context(
        [part("in", 3, "spout")],
        [sup("a", ports=2), sup("b", ports=2)],
        "REBALANCE",
        conf={"topology.workers": 2},
        old_workers=old,
    )
    assert shown(assign_tasks(asked)) == {"a:1": [1, 3], "a:2": [2]}


def test_memory_and_cpu_are_set_last_where_nobody_did() -> None:
    """S0.90."""
    found = assign_tasks(context([part("in", 1, "spout")], [sup("a", 1)]))
    assert (found[0].memory_bytes, found[0].cpu) == (2 * 1024**3, 1)
    conf = {"worker.memory.size": 99, "worker.cpu.slot.num": 3}
    found = assign_tasks(context([part("in", 1, "spout")], [sup("a", 1)], conf=conf))
    assert (found[0].memory_bytes, found[0].cpu) == (99, 3)


def ports(name: str, *free: int, of: int) -> Ports:
    return Ports(name, f"h-{name}", of, list(free))


def chosen(tasks_at: dict[str, list[str]]) -> str:
    """Return which of these workers, by "node_port", gets a task of "out", which reads "in"."""
    names = [name for held in tasks_at.values() for name in held]
    at = iter(range(1, len(names) + 1))
    slots = {}
    for where, held in tasks_at.items():
        node, _, port = where.partition("_")
        slots[where] = JStormSlot(node, f"h-{node}", int(port), {next(at) for _ in held})
    counts = PlacedTasks(slots.values(), {"out": {"in"}}, dict(enumerate(names, 1)))
    return min(slots, key=lambda where: counts.key(slots[where], "out", False))


CHAIN: dict[str, tuple[dict[str, list[str]], str]] = {
    "fewest of the component on the worker": ({"a_1": ["out"], "a_2": ["x", "x"]}, "a_2"),
    "and on the supervisor": ({"a_1": [], "a_2": ["out"], "b_1": ["x", "x"]}, "b_1"),
    "fewest tasks on the worker": ({"a_1": ["in", "in"], "b_1": ["x"], "b_2": ["x"] * 3}, "b_1"),
    "fewest tasks on the supervisor": ({"a_1": ["in"], "a_2": ["x"], "b_1": ["x"]}, "b_1"),
    "most neighbours on the worker": ({"a_1": ["x"], "a_2": ["in"]}, "a_2"),
    "most neighbours on the supervisor": (
        {"a_1": ["x"], "a_2": ["x"], "b_1": ["x"], "b_2": ["in", "in"]},
        "a_1",
    ),
    "host, then port": ({"b_1": ["x"], "a_2": ["x"], "a_3": ["x"]}, "b_1"),
}


@pytest.mark.parametrize("link", CHAIN)
def test_each_link_of_the_chain_decides_where_those_before_it_do_not(link: str) -> None:
    """S0.102."""
    tasks_at, wanted = CHAIN[link]
    assert chosen(tasks_at) == wanted


def test_differ_node_tasks_run_on_different_supervisors_or_fail() -> None:
    """S0.101."""
    parts = [part("far", 2, task__on__differ__node=True), part("other", 4)]
    found = assign_tasks(
        context(parts, [sup("a", 1, 2), sup("b", 1)], conf={"topology.workers": 3})
    )
    holders = {task: plan.node for plan in found for task in plan.tasks}
    assert holders[1] != holders[2]
    sentence = "no enough supervisor for making component: far 's tasks"
    with pytest.raises(FailedAssignTopologyError, match=sentence):
        assign_tasks(context(parts, [sup("a", 1, 2, 3)], conf={"topology.workers": 3}))


def test_the_result_is_a_plan() -> None:
    """S0.106: plain frozen records; nothing of the context changed."""
    asked = context([part("in", 2, "spout")], [sup("a", 1, 2)])
    first, second = assign_tasks(asked), assign_tasks(asked)
    assert first == second
    assert all(isinstance(plan, PlannedWorker) for plan in first)
    assert all(type(plan.tasks) is frozenset for plan in first), (
        "a set could be changed after the plan is made"
    )
    assert len({*first, *second}) == len(first), "a plan is a value: it has a hash"


@pytest.mark.parametrize(("kind", "dead"), [("MONITOR", {1}), ("REBALANCE", set())])
def test_dead_tasks_of_a_lost_worker_get_a_place_and_its_living_ones_stay(
    kind: str, dead: set[int]
) -> None:
    """Defect 16: the original places the whole worker again, so that its living tasks run twice."""
    old = (worker("gone:1", 1, 2, 3), worker("a:1", 4))
    more = {"old_workers": old, "dead_tasks": frozenset(dead), "unstopped_tasks": frozenset({2, 3})}
    asked = context(
        [part("in", 4, "spout")],
        [sup("a", 2, 3, ports=3)],
        kind,
        conf={"topology.workers": 3},
        **more,
    )
    found = shown(assign_tasks(asked))
    assert found["gone:1"] == [2, 3]
    assert sorted(task for tasks in found.values() for task in tasks) == [1, 2, 3, 4]


def test_a_dead_task_beside_living_ones_gets_a_worker_beyond_the_number_asked_for() -> None:
    more = {
        "old_workers": (worker("gone:1", 1, 2),),
        "dead_tasks": frozenset({1}),
        "unstopped_tasks": frozenset({2}),
    }
    asked = context(
        [part("in", 2, "spout")], [sup("a", 1)], "MONITOR", conf={"topology.workers": 1}, **more
    )
    assert shown(assign_tasks(asked)) == {"a:1": [1], "gone:1": [2]}


def test_defect_17_a_task_that_no_component_has_is_dropped_and_takes_no_worker_along() -> None:
    """The worker that still lists task 9 lives and is kept with its other task."""
    old = (worker("a:1", 1, 9), worker("b:1", 2))
    asked = context(
        [part("in", 2, "spout")],
        [sup("a", 2), sup("b", 2)],
        "MONITOR",
        old_workers=old,
        dead_tasks=frozenset({2}),
    )
    found = shown(assign_tasks(asked))
    assert found["a:1"] == [1]
    result = sorted(task for tasks in found.values() for task in tasks)
    assert result == [1, 2]


def test_defect_2a_and_2b_a_dead_worker_goes_where_a_port_is_offered() -> None:
    conf = {"use.old.assignment": True, "topology.workers": 1}
    more = {"old_workers": (worker("a:1", 1),), "dead_tasks": frozenset({1})}
    not_offered = context(
        [part("in", 1, "spout")], [sup("a", ports=1), sup("b", 1)], "MONITOR", conf=conf, **more
    )
    assert shown(assign_tasks(not_offered)) == {"b:1": [1]}
    isolated = {**conf, "isolation.scheduler.machines": ["h-b"]}
    outside = context(
        [part("in", 1, "spout")], [sup("a", 2), sup("b", 1)], "MONITOR", conf=isolated, **more
    )
    assert shown(assign_tasks(outside)) == {"b:1": [1]}


def test_nothing_to_assign_is_said() -> None:
    asked = context(
        [part("in", 1, "spout")], [sup("a", 1)], "MONITOR", old_workers=(worker("a:1", 1),)
    )
    sentence = "Don't need assign worker, all workers are fine"
    with pytest.raises(FailedAssignTopologyError, match=sentence):
        assign_tasks(asked)


def test_a_task_joins_its_worker_and_is_counted() -> None:
    """S0.103 and S0.105."""
    asked = context([part("in", 1, "spout")], [sup("a", 1)])
    slot = JStormSlot("a", "h-a", 1)
    tasks = TaskScheduler(asked, {1}, [slot], False, None)
    tasks.assign()
    assert slot.tasks == {1}
    assert tasks._placed.on_node("a", "in") == 1


def test_the_topology_master_gets_a_worker_alone_with_its_own_memory() -> None:
    parts = [part("in", 2, "spout"), part("__topology_master", 1, "system")]
    conf = {
        "topology.master.single.worker": True,
        "topology.workers": 2,
        "topology.master.worker.memory.size": 77,
    }
    found = assign_tasks(context(parts, [sup("a", 1), sup("b", 1, 2)], conf=conf))
    assert shown(found) == {"a:1": [2], "b:1": [1], "b:2": [3]}
    assert [plan.memory_bytes == 77 for plan in found] == [False, True, False]


# -- defects of the original that are not copied (storm-facts 2.16) --------------------------------


def test_defect_1_no_port_left_after_named_hosts_is_an_error_not_a_division_by_zero() -> None:
    slots = [JStormSlot(host="h-a"), JStormSlot()]
    sentence = "no supervisor has a free port for 1 of 2 workers"
    with pytest.raises(FailedAssignTopologyError, match=sentence):
        place(slots, [ports("a", 1, of=1)])
    named = [JStormSlot(host="h-a")]
    place(named, [ports("a", 1, of=1)])
    assert named[0].node == "a"


def test_defect_2_a_reused_slot_on_a_dead_supervisor_moves() -> None:
    old = (worker("gone:1", 1), worker("a:1", 2))
    asked = context(
        [part("in", 2, "spout")],
        [sup("a", 2, 3, ports=3)],
        "REBALANCE",
        conf={"topology.workers": 2},
        old_workers=old,
    )
    assert {plan.node for plan in assign_tasks(asked)} == {"a"}


def test_defect_3_workers_without_a_port_fail_the_assignment() -> None:
    sentence = "no supervisor has a free port for 1 of 3 workers"
    with pytest.raises(FailedAssignTopologyError, match=sentence):
        place([JStormSlot(), JStormSlot(), JStormSlot()], [ports("a", 1, 2, of=2)])


@pytest.mark.parametrize(("workers", "single"), [(9, False), (10, True), (11, True)])
def test_defect_8_one_rule_says_whether_the_master_is_alone(workers: int, single: bool) -> None:
    parts = [part("in", 20, "spout"), part("__topology_master", 1, "system")]
    asked = context(parts, [], conf={"topology.workers": workers})
    assert has_single_master(asked) is single
    assert num_workers(asked) == workers + single
    assert (
        has_single_master(
            context(
                parts, [], conf={"topology.master.single.worker": "false", "topology.workers": 99}
            )
        )
        is False
    )


def test_defect_12_quotas_of_kept_workers_are_not_counted_twice() -> None:
    """25 tasks: 9 stay on one worker and 4 on another; what remains is 4 each, not 1 each as
    cumulative counts say.
    """
    sizes = (9, 4, 3, 2, 1)
    starts = [sum(sizes[:at]) for at in range(5)]
    old = tuple(
        worker(f"a:{at + 1}", *range(start + 1, start + size + 1))
        for at, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )
    asked = context(
        [part("in", 25, "spout")],
        [sup("a", ports=5)],
        "REBALANCE",
        conf={"topology.workers": 5},
        old_workers=old,
    )
    found = {plan.port: plan.tasks for plan in assign_tasks(asked)}
    assert [len(found[port]) for port in sorted(found)] == [9, 4, 4, 4, 4]
    assert all(before.tasks <= found[before.port] for before in old)


def test_defect_13_equal_workers_are_told_apart_by_host_and_port() -> None:
    slots = [JStormSlot("z", "h-z", 1), JStormSlot("b", "h-b", 2), JStormSlot("b", "h-b", 1)]
    asked = context([part("in", 1, "spout")], [sup("b", 1, 2), sup("z", 1)])
    TaskScheduler(asked, {1}, slots, False, None).assign()
    assert [each.tasks for each in slots] == [None, None, {1}]


@pytest.mark.parametrize(
    "definition",
    ["nonsense", "[1]", 7, defined({"in": 1}, port="many"), defined({"in": 1}, hostName=[])],
)
def test_malformed_definitions_are_named(definition: object) -> None:
    conf = {"use.userdefine.assignment": [definition]}
    with pytest.raises(InvalidConfigError, match=r"use\.userdefine\.assignment"):
        assign_tasks(context([part("in", 1, "spout")], [sup("a", 1)], conf=conf))
