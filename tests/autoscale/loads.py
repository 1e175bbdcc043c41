"""Loads of topologies for tests: a linear one, of which any plan may be applied."""

from __future__ import annotations

from dataclasses import replace

from sparkstorm.extensions.autoscale.model import (
    ComponentLoad,
    Plan,
    Source,
    TaskWork,
    TopologyLoad,
)


def component(
    name: str,
    rate: float,
    cost: float,
    executors: int = 1,
    tasks: int = 8,
    inputs: dict[str, float] | None = None,
    *,
    shares: tuple[float, ...] = (),
    source: Source | None = None,
    cpu: float = 1.0,
    waiting: float = 0.0,
    is_keyed: bool = False,
    workers: int = 1,
) -> ComponentLoad:
    """A component of so many rows per second, each of which takes `cost` seconds of its code, `cpu`
    of it on a core; rows are dealt to tasks by `shares`.
    """
    work = []
    for task in range(tasks):
        executor = task * executors // tasks
        rows = rate * (shares[task] if shares else 1 / tasks)
        worker = f"w{executor % workers}"
        busy = rows * cost
        work.append(TaskWork(task, executor, worker, rows, busy, busy * cpu, busy))
    return ComponentLoad(name, tuple(work), inputs or {}, waiting, is_keyed, source)


def chain(
    arrives: float,
    read: float | None = None,
    *,
    costs: tuple[float, float, float] = (0.0001, 0.001, 0.002),
    ratios: tuple[float, float] = (1.0, 1.0),
    executors: tuple[int, int, int] = (1, 1, 1),
    tasks: int = 8,
    workers: int = 1,
    slots: int = 64,
    backlog: float = 0.0,
    held: float = 0.0,
    settled_ms: int = 10**8,
) -> TopologyLoad:
    """A source `lines`, bolts `split` and `count`, of which `read` rows per second go through."""
    read = arrives if read is None else read
    rates = [read, read * ratios[0], read * ratios[0] * ratios[1]]
    names = ("lines", "split", "count")
    parts = []
    for index, name in enumerate(names):
        inputs = {names[index - 1]: rates[index]} if index else {}
        source = None if index else Source(arrives, backlog, held)
        number = min(executors[index], tasks)
        parts.append(
            component(
                name,
                rates[index],
                costs[index],
                number,
                tasks,
                inputs,
                source=source,
                is_keyed=name == "count",
                workers=workers,
            )
        )
    return TopologyLoad(tuple(parts), workers, slots, 0.0, settled_ms)


def applied(load: TopologyLoad, found: Plan) -> TopologyLoad:
    """The same rows after a plan: each costs what it did, on other executors."""
    by_id = {part.id: part.wanted for part in found.components}
    parts = tuple(
        replace(
            part,
            tasks=tuple(
                task._replace(
                    executor=task.task * by_id[part.id] // len(part.tasks),
                    worker=f"w{task.task * by_id[part.id] // len(part.tasks) % found.wanted_workers}",
                )
                for task in part.tasks
            ),
        )
        for part in load.components
    )
    return replace(load, components=parts, workers=found.wanted_workers)
