"""Task ids, cells and executors: the tasks of a topology, their cells where it lies in several
stores, and their division into executors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sparkstorm.common.errors import InvalidConfigError, show
from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.common.model.topology import ACKER, MASTER, Component, Topology
from sparkstorm.common.settings import TaskSettings, TrackingSettings

MAX_TASKS = 100_000


def acker_count(conf: Mapping[str, Any]) -> int:
    """Return the number of ackers: none if nothing is tracked, else the configured number, else one
    per worker (as Storm).
    """
    settings = TrackingSettings.of_partial(conf)
    if settings.guarantee == "at-most-once":
        return 0
    return settings.workers if settings.ackers is None else settings.ackers


def has_master(conf: Mapping[str, Any]) -> bool:
    """Return whether the topology has a master: it has if topology.master.single.worker is set, to
    true or false.
    """
    return TrackingSettings.of_partial(conf).master is not None


def system_topology(topology: Topology, conf: Mapping[str, Any]) -> Topology:
    """Return the user's topology with the system's components (StormCommon.systemTopology)."""
    ackers = acker_count(conf)
    components = dict(topology.components)
    if ackers:
        components[ACKER] = Component(ACKER, "system", None, parallelism=ackers)
    if has_master(conf):
        components[MASTER] = Component(MASTER, "system", None)
    return Topology(components)


def task_count(component: Component, conf: Mapping[str, Any]) -> int:
    """Return the number of tasks: the component's own or its parallelism, never above
    topology.max.task.parallelism.
    """
    settings = TaskSettings.of(conf, component.conf)
    wanted = component.num_tasks or settings.tasks or component.parallelism
    return wanted if settings.cap is None else min(wanted, settings.cap)


def number_tasks(topology: Topology, conf: Mapping[str, Any]) -> dict[int, str]:
    """Return the component of each task id: from 1, contiguous per component, components sorted by
    id (StormCommon).

    InvalidConfigError when there would be more than MAX_TASKS: they would fill the memory of the
    process that numbers them.
    """
    component_by_task: dict[int, str] = {}
    for component in sorted(system_topology(topology, conf), key=lambda c: c.id):
        count = task_count(component, conf)
        if len(component_by_task) + count > MAX_TASKS:
            raise InvalidConfigError(
                f"component '{component.id}' asks for {show(count)} tasks; a topology has at most {MAX_TASKS:,} (parallelism, "
                "num_tasks, topology.tasks, topology.workers and topology.acker.executors say how many)"
            )
        for _ in range(count):
            component_by_task[len(component_by_task) + 1] = component.id
    return component_by_task


def tasks_by_component(component_by_task: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the task ids of each component, sorted."""
    tasks: dict[str, list[int]] = {}
    for task in sorted(component_by_task):
        tasks.setdefault(component_by_task[task], []).append(task)
    return tasks


def partition_fixed(count: int, tasks: Sequence[int]) -> list[list[int]]:
    """Return at most `count` contiguous chunks of near-equal size, the larger first (Storm's
    Utils.partitionFixed).
    """
    chunks = min(count, len(tasks))
    base, extra = divmod(len(tasks), chunks) if chunks else (0, 0)
    bounds = [i * base + min(i, extra) for i in range(chunks + 1)]
    return [list(tasks[a:b]) for a, b in pairwise(bounds)]


def compute_executors(
    component_by_task: Mapping[int, str],
    executors_by_component: Mapping[str, int],
    cells: int = 1,
) -> list[ExecutorId]:
    """Return the executors of a topology, sorted by first task: each component's tasks in its
    number of executors.

    Where the topology lies in several cells, each block of tasks has its share of them: no executor
    has tasks of two cells. `check_cells` is true of such a topology.
    """
    executors = []
    for component, tasks in tasks_by_component(component_by_task).items():
        count = executors_by_component.get(component, len(tasks))
        blocks = partition_fixed(cells, tasks)
        # Larger shares first, as the blocks are: none has more executors than tasks.
        for block, share in zip(blocks, shares(count, len(blocks)), strict=True):
            executors += [
                ExecutorId(group[0], group[-1]) for group in partition_fixed(share, block)
            ]
    return sorted(executors)


def shares(count: int, parts: int) -> list[int]:
    """Return near-equal shares of a number, the larger first."""
    base, extra = divmod(count, parts)
    return [base + (part < extra) for part in range(parts)]


def cell_by_task(component_by_task: Mapping[int, str], cells: int) -> dict[int, int]:
    """Return the cell of each task, for the life of the topology: a block of each component's tasks
    to each cell; components with fewer tasks than cells are dealt in turn.

    It follows from the tasks alone, which never change: each process computes the same, and nothing
    is stored. Left out: blocks by executors, whose number a rebalance changes.
    """
    task_cells: dict[int, int] = {}
    turn = 0
    for tasks in tasks_by_component(component_by_task).values():
        if len(tasks) < cells:
            task_cells.update((task, (turn + index) % cells) for index, task in enumerate(tasks))
            turn += len(tasks)
            continue
        for cell, block in enumerate(partition_fixed(cells, tasks)):
            task_cells.update(dict.fromkeys(block, cell))
    return task_cells


def check_cells(
    name: str,
    cells: int,
    component_by_task: Mapping[int, str],
    executors_by_component: Mapping[str, int],
    workers: int,
) -> None:
    """Refuse a topology that cannot be cut into so many cells; InvalidConfigError names what is
    short, and how much it needs.
    """
    if cells <= 1:
        return
    about = f"topology.cells: {name} is to lie in {cells} cells"
    if len(component_by_task) < cells:
        raise InvalidConfigError(
            f"{about}, and has {len(component_by_task)} tasks in all: set topology.cells to that or less"
        )
    if workers < cells:
        raise InvalidConfigError(
            f"{about}, and each needs a worker of its own: set topology.workers to {cells} or more, not {workers}"
        )
    for component, tasks in tasks_by_component(component_by_task).items():
        executors = executors_by_component.get(component, len(tasks))
        if executors < min(cells, len(tasks)):
            raise InvalidConfigError(
                f"{about}, and the {len(tasks)} tasks of '{component}' with them: give it {min(cells, len(tasks))} executors "
                f"or more, not {executors}, since an executor has tasks of one cell only"
            )


def executors_by_component(topology: Topology, conf: Mapping[str, Any]) -> dict[str, int]:
    """Return the wanted number of executors of each component, including the system's."""
    return {c.id: min(c.parallelism, task_count(c, conf)) for c in system_topology(topology, conf)}
