"""The edges of seed lines about scheduling: each case is one in which the line decides, and nothing
next to it.
"""

import dataclasses
from typing import Any

import pytest

from sparkstorm.control_plane.scheduling.default import DefaultScheduler, bad_slots
from sparkstorm.control_plane.scheduling.even import EvenScheduler, reassignment
from sparkstorm.control_plane.scheduling.jstorm.records import (
    AssignContext,
    AssignType,
    JStormComponent,
    SupervisorPorts,
    give_task_ids,
)
from sparkstorm.control_plane.scheduling.jstorm.scheduler import assign_tasks, num_workers
from sparkstorm.control_plane.scheduling.jstorm.selectors import PlacedTasks
from sparkstorm.control_plane.scheduling.jstorm.slots import JStormSlot
from sparkstorm.control_plane.scheduling.jstorm.tasks import TaskScheduler
from sparkstorm.control_plane.scheduling.jstorm.workers import Ports, place
from sparkstorm.control_plane.scheduling.records import InputView
from tests.scheduling.clusters import (
    cluster,
    executors,
    places,
    singles,
    slot,
    supervisor,
    topology,
)


def placed_on(slots: list[JStormSlot], **free_of: tuple[int, int]) -> list[str]:
    """Nodes after placing on supervisors that have so many free of so many ports."""
    place(
        slots,
        [
            Ports(name, f"h-{name}", of, list(range(of - free + 1, of + 1)))
            for name, (free, of) in free_of.items()
        ],
    )
    return [f"{each.node}:{each.port}" for each in slots]


def context(
    parts: list[JStormComponent], supervisors: tuple[SupervisorPorts, ...] = (), **conf: Any
) -> AssignContext:
    named = {key.replace("__", "."): value for key, value in conf.items()}
    return AssignContext(
        "t-1", AssignType.NEW, tuple(parts), supervisors, give_task_ids(tuple(parts)), named
    )


# -- JStorm's workers ------------------------------------------------------------------------------


def test_the_topology_master_counts_for_nothing_in_the_wish_for_workers() -> None:
    """S0.81: three tasks, so three workers; the master's own comes on top."""
    parts = [JStormComponent("in", "spout", 3), JStormComponent("__topology_master", "system", 1)]
    assert num_workers(context(parts, topology__workers=9)) == 3
    assert (
        num_workers(context(parts, topology__workers=9, topology__master__single__worker=True)) == 4
    )


def test_a_full_supervisor_takes_no_part_however_little_it_uses() -> None:
    """S0.89: b's one port is in use, which is below the average of two."""
    assert placed_on([JStormSlot(), JStormSlot()], a=(2, 2), b=(0, 1)) == ["a:1", "a:2"]


def test_cpu_that_a_user_defined_is_kept() -> None:
    """S0.90."""
    wanted = [{"componentToNum": {"in": 1}, "port": 0, "cpu": 3, "mem": 7, "hostName": "h-a"}]
    asked = context(
        [JStormComponent("in", "spout", 2)],
        (SupervisorPorts("a", "h-a", (1, 2), (1, 2)),),
        topology__workers=2,
        use__userdefine__assignment=wanted,
    )
    assert sorted((plan.cpu, plan.memory_bytes) for plan in assign_tasks(asked)) == [
        (1, 2 * 1024**3),
        (3, 7),
    ]


def test_who_uses_as_much_as_the_average_is_overloaded() -> None:
    """S0.94: (2 + 0 + 1) // 2 + 1 = 2 ports on average, and a uses two."""
    assert placed_on([JStormSlot()], a=(1, 3), b=(1, 1)) == ["b:1"]


def test_of_the_overloaded_the_roomiest_comes_first_although_another_was_overloaded_earlier() -> (
    None
):
    """S0.96: c is full before the rest are overloaded; then a has two ports left and b one."""
    assert placed_on([JStormSlot(), JStormSlot(), JStormSlot()], a=(4, 6), b=(1, 4), c=(1, 1)) == [
        "a:3",
        "c:1",
        "a:4",
    ]


# -- JStorm's tasks --------------------------------------------------------------------------------


def placed(tasks_at: dict[str, list[str]]) -> tuple[dict[str, JStormSlot], PlacedTasks]:
    """Workers by "node_port" with tasks of these components; "out" reads "in"."""
    names = [name for held in tasks_at.values() for name in held]
    at = iter(range(1, len(names) + 1))
    slots = {}
    for where, held in tasks_at.items():
        node, _, port = where.partition("_")
        slots[where] = JStormSlot(node, f"h-{node}", int(port), {next(at) for _ in held})
    return slots, PlacedTasks(slots.values(), {"out": {"in"}}, dict(enumerate(names, 1)))


def chosen(component: str, tasks_at: dict[str, list[str]], is_system: bool = False) -> str:
    slots, counts = placed(tasks_at)
    return min(slots, key=lambda where: counts.key(slots[where], component, is_system))


@pytest.mark.parametrize(
    ("why", "tasks_at", "wanted"),
    [
        ("fewest of the component on the worker", {"a_1": ["out"], "a_2": ["x", "x"]}, "a_2"),
        (
            "fewest of the component on the supervisor",
            {"a_1": [], "a_2": ["out"], "b_1": ["x", "x"]},
            "b_1",
        ),
        (
            "fewest tasks on the worker",
            {"a_1": ["in", "in"], "b_1": ["x"], "b_2": ["x", "x", "x"]},
            "b_1",
        ),
        ("fewest tasks on the supervisor", {"a_1": ["in"], "a_2": ["x"], "b_1": ["x"]}, "b_1"),
        ("most neighbours on the worker", {"a_1": ["x"], "a_2": ["in"]}, "a_2"),
        (
            "most neighbours on the supervisor",
            {"a_1": ["x"], "a_2": ["x"], "b_1": ["x"], "b_2": ["in", "in"]},
            "a_1",
        ),
        ("host, then port", {"b_1": ["x"], "a_2": ["x"], "a_3": ["x"]}, "b_1"),
    ],
)
def test_each_link_of_the_chain_decides_where_those_before_it_do_not(
    why: str, tasks_at: dict[str, list[str]], wanted: str
) -> None:
    """S0.102."""
    assert chosen("out", tasks_at) == wanted, why


def test_neighbours_are_nothing_to_the_platforms_own_components() -> None:
    """S0.102: system components are placed by counts alone."""
    assert chosen("out", {"a_1": ["x"], "b_1": ["in"]}, is_system=True) == "a_1"


def test_a_worker_whose_quota_is_full_gets_nothing_more_however_good_it_would_be() -> None:
    """S0.104: two tasks per worker; b's worker is full beforehand, though it holds what "out" reads
    and nothing of "out".
    """
    parts = [
        JStormComponent("out", "bolt", 2, inputs=(InputView("in"),)),
        JStormComponent("in", "spout", 2),
    ]
    slots = [JStormSlot("a", "h-a", 1), JStormSlot("b", "h-b", 1, {3, 4})]
    done = TaskScheduler(context(parts), {1, 2}, slots, False, None).assign()
    assert {each.node: each.tasks for each in done} == {"a": {1, 2}, "b": {3, 4}}


def test_a_task_left_over_goes_to_one_worker_and_the_others_stay_at_the_average() -> None:
    """S0.104: five tasks on two workers; one becomes full at three, the other leaves the pool at
    two.
    """
    parts = [JStormComponent("x", "bolt", 5)]
    slots = [JStormSlot("a", "h-a", 1), JStormSlot("b", "h-b", 1)]
    tasks = TaskScheduler(context(parts), {1, 2, 3, 4, 5}, slots, False, None)
    assert sorted(len(each.tasks or ()) for each in tasks.assign()) == [2, 3]
    assert tasks._pool == {}


def test_a_plan_cannot_be_changed() -> None:
    """S0.106."""
    (plan,) = assign_tasks(
        context([JStormComponent("in", "spout", 1)], (SupervisorPorts("a", "h-a", (1,), (1,)),))
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.port = 2  # type: ignore[misc]


# -- Storm's default and even ----------------------------------------------------------------------


def test_misfits_of_every_topology_are_freed() -> None:
    """S4.8: both topologies have a worker too large for their wishes."""
    rows = {(1, 1): "{}:1", (2, 2): "{}:1", (3, 3): "{}:1", (4, 4): "{}:2"}
    placed = {
        name: {tasks: where.format(node) for tasks, where in rows.items()}
        for name, node in (("t", "a"), ("u", "b"))
    }
    view = cluster(
        [supervisor("a", 1, 2), supervisor("b", 1, 2), supervisor("c", 1, 2)],
        [topology(name, singles(4), 3) for name in ("t", "u")],
        placed,
    )
    DefaultScheduler().schedule(view.topologies, view)
    assert [len(set(places(view, name).values())) for name in ("t", "u")] == [3, 3]


def test_a_size_that_was_used_up_is_used_up() -> None:
    """S4.17: {3: 2} for six executors on two workers, and three workers have three."""
    rows = {(at, at): f"a:{(at - 1) // 3 + 1}" for at in range(1, 10)}
    view = cluster([supervisor("a", 1, 2, 3)], [topology("t", singles(9), 3)], {"t": rows})
    assert bad_slots(view.placement("t"), 6, 2) == [slot("a:3")]


def test_no_more_slots_are_taken_than_workers_are_lacking() -> None:
    """S4.22, S4.24: two of three workers are there, so one of four free slots is taken."""
    asked = topology("t", singles(6), 3)
    view = cluster(
        [supervisor("a", 1, 2, 3), supervisor("b", 1, 2, 3)],
        [asked],
        {"t": {(1, 1): "a:1", (2, 2): "b:1"}},
    )
    assert {str(where) for _, where in reassignment(asked, view)} == {"a:2"}


def test_an_executor_without_a_slot_is_no_lack_of_slots() -> None:
    """S4.29: all wanted workers are there and a slot is free; nothing moves, and nothing is
    said.
    """
    view = cluster(
        [supervisor("a", 1, 2)],
        [topology("t", executors((1, 1), (2, 2)), 1)],
        {"t": {(1, 1): "a:1"}},
    )
    EvenScheduler().schedule(view.topologies, view)
    assert view.status == {} and places(view, "t") == {(1, 1): "a:1"}
