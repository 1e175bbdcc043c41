"""Checks task ids and executors against Storm's rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.common.model.tasks import (
    MAX_TASKS,
    acker_count,
    cell_by_task,
    check_cells,
    compute_executors,
    executors_by_component,
    number_tasks,
    partition_fixed,
    system_topology,
    task_count,
    tasks_by_component,
)
from sparkstorm.common.model.topology import ACKER, Component, Topology
from tests.tiers import examples


def topology(**parallelism: int | tuple[int, int]) -> Topology:
    """Components by id: executors, or (executors, tasks)."""
    sizes = {
        id: size if isinstance(size, tuple) else (size, None) for id, size in parallelism.items()
    }
    return Topology(
        {
            id: Component(id, "bolt", None, executors, tasks)
            for id, (executors, tasks) in sizes.items()
        }
    )


NO_ACKERS = {"topology.acker.executors": 0}


def test_tasks_are_numbered_from_one_by_component_id() -> None:
    made = number_tasks(topology(split=2, count=(2, 4), lines=1), NO_ACKERS)
    assert made == {
        1: "count",
        2: "count",
        3: "count",
        4: "count",
        5: "lines",
        6: "split",
        7: "split",
    }
    assert tasks_by_component(made) == {"count": [1, 2, 3, 4], "lines": [5], "split": [6, 7]}


@pytest.mark.parametrize(
    "conf",
    [
        {"topology.acker.executors": 10**30},
        {"topology.workers": 10**9},
        {"topology.tasks": MAX_TASKS},
    ],
)
def test_more_tasks_than_memory_could_hold_are_refused(conf: dict[str, int]) -> None:
    sentence = r"component '\w+' asks for \d+ tasks; a topology has at most 100,000 \("
    with pytest.raises(InvalidConfigError, match=sentence):
        number_tasks(topology(a=1, b=1), conf)


def test_ackers_are_components_like_others_and_come_first_by_their_name() -> None:
    made = number_tasks(topology(a=1), {"topology.acker.executors": 2})
    assert made == {1: ACKER, 2: ACKER, 3: "a"}
    result = system_topology(topology(a=1), {"topology.acker.executors": 2}).components[ACKER].kind
    assert result == "system"


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, 1),
        ({"topology.workers": 3}, 3),
        ({"topology.workers": 3, "topology.acker.executors": None}, 3),
        ({"topology.workers": 3, "topology.acker.executors": 0}, 0),
        ({"topology.acker.executors": 5}, 5),
        ({"topology.delivery.guarantee": "at-most-once", "topology.acker.executors": 5}, 0),
        ({"topology.delivery.guarantee": "exactly-once", "topology.workers": 2}, 2),
    ],
)
def test_there_is_one_acker_per_worker_unless_conf_says_otherwise(
    conf: dict[str, Any], expected: int
) -> None:
    assert acker_count(conf) == expected
    assert (ACKER in system_topology(topology(a=1), conf).components) is (expected > 0)


@pytest.mark.parametrize(
    ("component", "conf", "expected"),
    [
        (Component("c", "bolt", None, 3), {}, 3),
        (Component("c", "bolt", None, 3, 7), {}, 7),
        (Component("c", "bolt", None, 3, conf={"topology.tasks": 5}), {}, 5),
        (Component("c", "bolt", None, 3, 7, conf={"topology.tasks": 5}), {}, 7),
        (Component("c", "bolt", None, 3), {"topology.max.task.parallelism": 2}, 2),
        (
            Component("c", "bolt", None, 3, conf={"topology.max.task.parallelism": 9}),
            {"topology.max.task.parallelism": 2},
            3,
        ),
        (Component("c", "bolt", None, 3, 7), {"topology.max.task.parallelism": None}, 7),
    ],
)
def test_a_component_has_its_own_number_of_tasks_up_to_the_cap(
    component: Component, conf: dict[str, Any], expected: int
) -> None:
    assert task_count(component, conf) == expected


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (2, 5, [[0, 1, 2], [3, 4]]),
        (3, 3, [[0], [1], [2]]),
        (5, 2, [[0], [1]]),
        (1, 4, [[0, 1, 2, 3]]),
        (3, 0, []),
        (4, 10, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
    ],
)
def test_tasks_are_cut_into_chunks_with_the_larger_ones_first(
    count: int, size: int, expected: list[list[int]]
) -> None:
    assert partition_fixed(count, range(size)) == expected


@settings(derandomize=True)
@given(st.integers(1, 40), st.integers(0, 200))
def test_chunks_are_contiguous_near_equal_and_lose_nothing(count: int, size: int) -> None:
    chunks = partition_fixed(count, range(size))
    assert [task for chunk in chunks for task in chunk] == list(range(size))
    assert len(chunks) == min(count, size)
    lengths = [len(chunk) for chunk in chunks]
    assert lengths == sorted(lengths, reverse=True)
    assert not chunks or lengths[0] - lengths[-1] <= 1


def test_executors_cover_the_tasks_of_their_component() -> None:
    made = topology(a=(2, 5), b=1)
    tasks = number_tasks(made, NO_ACKERS)
    executors = compute_executors(tasks, executors_by_component(made, NO_ACKERS))
    assert executors == [ExecutorId(1, 3), ExecutorId(4, 5), ExecutorId(6, 6)]


def test_a_cap_on_tasks_also_caps_executors() -> None:
    conf = {**NO_ACKERS, "topology.max.task.parallelism": 2}
    assert executors_by_component(topology(a=5, b=1), conf) == {"a": 2, "b": 1}


def test_a_component_of_unknown_parallelism_gets_an_executor_per_task() -> None:
    result = compute_executors({1: "a", 2: "a", 3: "b"}, {"b": 1})
    assert result == [ExecutorId(1, 1), ExecutorId(2, 2), ExecutorId(3, 3)]


# -- cells


COMPONENTS = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1
)


@settings(max_examples=examples(200))
@given(COMPONENTS, st.integers(2, 4))
def test_no_executor_has_tasks_of_two_cells_and_every_cell_has_some(
    sizes: dict[str, tuple[int, int]], cells: int
) -> None:
    component_by_task: dict[int, str] = {}
    executors: dict[str, int] = {}
    for component, (tasks, wanted) in sorted(sizes.items()):
        for _ in range(tasks):
            component_by_task[len(component_by_task) + 1] = component
        executors[component] = min(tasks, max(wanted, min(cells, tasks)))
    if len(component_by_task) < cells:
        return
    check_cells("t", cells, component_by_task, executors, cells)
    cell = cell_by_task(component_by_task, cells)
    assert cell.keys() == component_by_task.keys()
    assert set(cell.values()) == set(range(cells))
    made = compute_executors(component_by_task, executors, cells)
    assert [task for each in made for task in each.tasks] == sorted(component_by_task)
    for each in made:
        assert len({cell[task] for task in each.tasks}) == 1
        assert len({component_by_task[task] for task in each.tasks}) == 1
    for component, of_it in tasks_by_component(component_by_task).items():
        own = [each for each in made if component_by_task[each.first_task] == component]
        assert len(own) == executors[component]
        by_cell = [sum(cell[task] == at for task in of_it) for at in range(cells)]
        assert max(by_cell) - min(by_cell) <= 1


def test_small_components_are_dealt_to_the_cells_in_turn() -> None:
    components = dict(enumerate(["acker", "count", "count", "count", "count", "spout"], 1))
    assert cell_by_task(components, 2) == {1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1}
    assert cell_by_task(components, 1) == dict.fromkeys(components, 0)


@pytest.mark.parametrize(
    ("cells", "tasks", "executors", "workers", "words"),
    [
        (3, 2, 2, 3, "has 2 tasks in all: set topology.cells to that or less"),
        (2, 4, 2, 1, "set topology.workers to 2 or more, not 1"),
        (2, 4, 1, 2, "the 4 tasks of 'b' with them: give it 2 executors or more, not 1"),
        (4, 3, 2, 4, "the 3 tasks of 'b' with them: give it 3 executors or more, not 2"),
    ],
)
def test_a_topology_that_cannot_be_cut_is_refused_in_a_sentence(
    cells: int, tasks: int, executors: int, workers: int, words: str
) -> None:
    component_by_task = dict.fromkeys(range(1, tasks + 1), "b")
    if cells == 4:
        component_by_task |= {9: "c"}
    sentence = rf"^topology\.cells: words is to lie in .*{words}"
    with pytest.raises(InvalidConfigError, match=sentence):
        check_cells("words", cells, component_by_task, {"b": executors}, workers)
