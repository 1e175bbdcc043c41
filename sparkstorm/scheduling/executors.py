"""Owns the arithmetic of tasks and executors: how many tasks, which run together (Storm's Nimbus and Utils)."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparkstorm.model.assignment import ExecutorId


def integer_divided(total: int, pieces: int) -> dict[int, int]:
    """Sizes of `pieces` parts of `total` that differ by at most one, as {size: how many} (S4.16)."""
    base, larger = divmod(total, pieces)
    sizes = {base: pieces - larger}
    if larger:
        sizes[base + 1] = larger
    return sizes


def partition_fixed(max_chunks: int, tasks: Sequence[int]) -> list[list[int]]:
    """Cut tasks into at most `max_chunks` runs, larger ones first; empty runs are left out."""
    if max_chunks <= 0:
        return []
    base, larger = divmod(len(tasks), max_chunks)
    chunks, start = [], 0
    for index in range(min(max_chunks, len(tasks))):
        size = base + (1 if index < larger else 0)
        chunks.append(list(tasks[start : start + size]))
        start += size
    return chunks


def executors_of(num_executors: int, tasks: Sequence[int]) -> tuple[ExecutorId, ...]:
    """The executors of one component: its sorted tasks in `num_executors` runs."""
    return tuple(ExecutorId(run[0], run[-1]) for run in partition_fixed(num_executors, sorted(tasks)))


def num_tasks(component_conf: Mapping[str, Any], parallelism: int, max_parallelism: int | None) -> int:
    """Tasks of a component: `topology.tasks` or its parallelism, never above `topology.max.task.parallelism`."""
    wanted = component_conf.get("topology.tasks")
    count = parallelism if wanted is None else int(wanted)
    return count if max_parallelism is None else min(count, max_parallelism)


def task_ids(tasks_by_component: Mapping[str, int]) -> dict[str, range]:
    """Contiguous task ids from 1, components in the order of their names (Storm's StormCommon.stormTaskInfo)."""
    ids, start = {}, 1
    for component in sorted(tasks_by_component):
        ids[component] = range(start, start + tasks_by_component[component])
        start += tasks_by_component[component]
    return ids
