"""Small clusters for the tests of the schedulers."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.records import (
    ComponentView,
    InputView,
    SupervisorView,
    TopologyView,
)
from sparkstorm.control_plane.scheduling.view import ClusterView

Rows = Mapping[tuple[int, int], str]


def slot(text: str) -> WorkerSlot:
    """A slot from "node:port"."""
    return WorkerSlot.parse(text)


def executors(*ranges: tuple[int, int]) -> tuple[ExecutorId, ...]:
    """Executors from (first task, last task)."""
    return tuple(ExecutorId(*each) for each in ranges)


def singles(count: int, first: int = 1) -> tuple[ExecutorId, ...]:
    """Return a number of executors of one task each."""
    return tuple(ExecutorId(at, at) for at in range(first, first + count))


def supervisor(
    name: str, *ports: int, host: str | None = None, rack: str | None = None, **resources: float
) -> Any:
    """A supervisor; memory and cpu may be given by these words, other resources by their own."""
    words = {
        "memory": "supervisor.memory.capacity.mb",
        "cpu": "supervisor.cpu.capacity",
        "gpu": "gpu.count",
    }
    offered = {words.get(key, key): value for key, value in resources.items()}
    return SupervisorView(name, host or f"host-{name}", ports, rack, 3_600_000, offered)


def component(
    name: str, parts: Sequence[ExecutorId], kind: str = "bolt", *inputs: str, **conf: Any
) -> ComponentView:
    """A component that reads others by shuffle; underscores in conf names are dots."""
    named = {key.replace("__", "."): value for key, value in conf.items()}
    return ComponentView(name, kind, tuple(parts), named, tuple(InputView(each) for each in inputs))


def topology(
    name: str, parts: Sequence[ExecutorId] | Sequence[ComponentView], workers: int, **more: Any
) -> TopologyView:
    """A topology of one spout with these executors, or of these components."""
    if parts and isinstance(parts[0], ExecutorId):
        parts = [component("in", parts, "spout")]  # type: ignore[arg-type]
    conf = {"topology.workers": workers, **more.pop("conf", {})}
    return TopologyView(name, more.pop("title", name), tuple(parts), workers, conf=conf, **more)  # type: ignore[arg-type]


def cluster(
    supervisors: Sequence[SupervisorView],
    topologies: Sequence[TopologyView],
    placed: Mapping[str, Rows] | None = None,
    **more: Any,
) -> ClusterView:
    """A cluster view; placements are {topology: {(first, last): "node:port"}}."""
    assignments = {
        name: {ExecutorId(*tasks): slot(where) for tasks, where in rows.items()}
        for name, rows in (placed or {}).items()
    }
    return ClusterView(supervisors, topologies, assignments, **more)


def places(view: ClusterView, name: str) -> dict[tuple[int, int], str]:
    """Where a topology's executors are, as {(first, last): "node:port"}."""
    found = view.placement(name).slot_by_executor
    return {tuple(executor): str(found[executor]) for executor in sorted(found)}  # type: ignore[misc]


def workers_by_node(view: ClusterView, name: str) -> dict[str, int]:
    """Return how many workers of a topology each node has."""
    counts: dict[str, int] = {}
    for where in sorted(view.placement(name).executors_by_slot):
        counts[where.node] = counts.get(where.node, 0) + 1
    return counts
