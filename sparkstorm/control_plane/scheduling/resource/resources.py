"""Resource requests of components and offers of supervisors, as vectors of one shape (Storm's
NormalizedResourceRequest and NormalizedResourceOffer).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, TypeAlias

from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.common.model.shared_memory import SharedMemory, regions_of
from sparkstorm.common.settings import RequestSettings
from sparkstorm.control_plane.scheduling.records import (
    ComponentView,
    Conf,
    SupervisorView,
    TopologyView,
)

MEMORY = 0
CPU = 1
FIRST_GENERIC = 2
# memory in MB, CPU in percent of a core, then the generic resources by name
Vector: TypeAlias = tuple[float, ...]

ACKER = "__acker"
METRICS_PREFIX = "__metrics_"

_WORDS = {
    "topology.component.cpu.pcore.percent": "cpu.pcore.percent",
    "supervisor.cpu.capacity": "cpu.pcore.percent",
    "topology.component.resources.onheap.memory.mb": "onheap.memory.mb",
    "topology.component.resources.offheap.memory.mb": "offheap.memory.mb",
    "supervisor.memory.capacity.mb": "memory.mb",
}
_PLAIN = frozenset(_WORDS.values())
_COMPONENT_KEYS = (
    "topology.component.resources.onheap.memory.mb",
    "topology.component.resources.offheap.memory.mb",
    "topology.component.cpu.pcore.percent",
)
_SYSTEM_KEYS = {
    "onheap.memory.mb": "topology.{}.resources.onheap.memory.mb",
    "offheap.memory.mb": "topology.{}.resources.offheap.memory.mb",
    "cpu.pcore.percent": "topology.{}.cpu.pcore.percent",
}


def normalised(resources: Mapping[str, Any] | None) -> dict[str, float]:
    """Return resources under their normalized names (Storm's ResourceNameNormalizer)."""
    return {_WORDS.get(name, name): float(amount) for name, amount in (resources or {}).items()}


def named_twice(resources: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names under which a resource occurs that has several; one amount would be lost."""
    for name in resources:
        same = tuple(
            other for other in resources if _WORDS.get(other, other) == _WORDS.get(name, name)
        )
        if len(same) > 1:
            return same
    return ()


def _own_requests(conf: Conf) -> dict[str, float]:
    own = {_WORDS[key]: float(conf[key]) for key in _COMPONENT_KEYS if conf.get(key) is not None}
    return own | normalised(RequestSettings.of_partial(conf).others)


def _default_requests(topology_conf: Conf, component_id: str) -> dict[str, float]:
    settings = RequestSettings.of_partial(topology_conf)
    wanted = normalised(settings.others)
    if component_id == ACKER:
        wanted |= _system_requests(topology_conf, "acker")
    elif component_id.startswith(METRICS_PREFIX):
        wanted |= _system_requests(topology_conf, "metrics.consumer")
    for key, value in zip(
        _COMPONENT_KEYS, (settings.on_heap_mb, settings.off_heap_mb, settings.cpu), strict=True
    ):
        wanted.setdefault(_WORDS[key], float(value))
    return wanted


def _system_requests(conf: Conf, kind: str) -> dict[str, float]:
    """Return the topology's settings for its ackers or metrics consumers; without them the settings
    of all components apply.
    """
    values = {name: conf.get(key.format(kind)) for name, key in _SYSTEM_KEYS.items()}
    return {name: float(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """Request of one executor; `vector` counts both kinds of memory together."""

    on_heap: float
    off_heap: float
    vector: Vector


@dataclass(frozen=True, slots=True)
class Load:
    """Sum of the requests of one worker's executors, and their heap in MB.

    Added up one by one, as in Storm: sum() rounds differently between versions of Python.
    """

    vector: Vector
    heap: float = 0.0

    def plus(self, request: ResourceRequest) -> "Load":
        """Return the load with one more executor."""
        return Load(tuple(map(add, self.vector, request.vector)), self.heap + request.on_heap)

    def at_least(self, min_cpu: float) -> Vector:
        """Return the worker's resources, with at least `min_cpu`."""
        if self.vector[CPU] >= min_cpu:
            return self.vector
        return (*self.vector[:CPU], min_cpu, *self.vector[CPU + 1 :])


class ResourceShape:
    """Names of the generic resources of a round, which give every vector its length."""

    def __init__(
        self, supervisors: Iterable[SupervisorView], topologies: Iterable[TopologyView]
    ) -> None:
        names: set[str] = set()
        for supervisor in supervisors:
            names |= normalised(supervisor.resources).keys()
        for topology in topologies:
            names |= normalised(RequestSettings.of_partial(topology.conf).others).keys()
            for component in topology.components:
                names |= normalised(RequestSettings.of_partial(component.conf).others).keys()
        self.generic = tuple(sorted(names - _PLAIN))
        self.zero: Vector = (0.0, 0.0, *(0.0 for _ in self.generic))
        self.no_load = Load(self.zero)

    def offer(self, supervisor: SupervisorView) -> Vector:
        """Return the resources of a supervisor."""
        offered = normalised(supervisor.resources)
        plain = (offered.get("memory.mb", 0.0), offered.get("cpu.pcore.percent", 0.0))
        return (*plain, *(offered.get(name, 0.0) for name in self.generic))

    def request(self, topology: TopologyView, component: ComponentView) -> ResourceRequest:
        """Return the request of one executor of a component; system components use the topology's
        defaults.
        """
        wanted = _default_requests(topology.conf, component.id)
        if not component.is_system:
            wanted |= _own_requests(component.conf)
        on_heap = wanted.get("onheap.memory.mb", 0.0)
        off_heap = wanted.get("offheap.memory.mb", 0.0)
        generic = (wanted.get(name, 0.0) for name in self.generic)
        return ResourceRequest(
            on_heap, off_heap, (on_heap + off_heap, wanted.get("cpu.pcore.percent", 0.0), *generic)
        )


class SharedRegions:
    """Shared memory of one topology (Storm's TopologyDetails.getSharedMemoryRequests), amounts in
    MB.

    A region counts once per worker or node, whichever of its components' executors are there.
    """

    def __init__(self, topology: TopologyView) -> None:
        self._regions_by_component = {
            part.id: regions
            for part in topology.components
            if (regions := regions_of(part.conf, f"component '{part.id}'"))
        }
        self._component_of = topology.component_by_executor
        named = {
            region.name: region
            for regions in self._regions_by_component.values()
            for region in regions
        }
        every = [named[name] for name in sorted(named)]
        self.is_on_nodes = any(region.off_heap_node > 0.0 for region in every)
        off_heap = _total(region.off_heap_worker + region.off_heap_node for region in every)
        self.least = off_heap + _total(region.on_heap for region in every)  # each region once

    def __bool__(self) -> bool:
        return bool(self._regions_by_component)

    def _used_by(self, executors: Iterable[ExecutorId]) -> list[SharedMemory]:
        components = {self._component_of.get(executor, "") for executor in executors}
        region_by_name = {
            region.name: region
            for name in components
            for region in self._regions_by_component.get(name, ())
        }
        return [region_by_name[name] for name in sorted(region_by_name)]

    def on_worker(self, executors: Iterable[ExecutorId]) -> tuple[float, float]:
        """Return the shared memory of a worker with these executors in MB: (on heap, off heap)."""
        used = self._used_by(executors)
        return _total(region.on_heap for region in used), _total(
            region.off_heap_worker for region in used
        )

    def on_node(self, executors: Iterable[ExecutorId]) -> float:
        """Return the off-heap memory in MB that a node shares among the workers of a topology with
        these executors.
        """
        return (
            _total(region.off_heap_node for region in self._used_by(executors))
            if self.is_on_nodes
            else 0.0
        )


def _total(amounts: Iterable[float]) -> float:
    total = 0.0
    for amount in amounts:  # one by one: sum() rounds differently between versions of Python
        total += amount
    return total


class Requests:
    """Requests of one topology, by executor."""

    def __init__(self, topology: TopologyView, shape: ResourceShape) -> None:
        self._shape = shape
        self.shared = SharedRegions(topology)
        self._by_executor: dict[ExecutorId, ResourceRequest] = {}
        for component in topology.components:
            request = shape.request(topology, component)
            self._by_executor.update(dict.fromkeys(component.executors, request))
        self.total = self.sum(topology.executors)

    def of(self, executor: ExecutorId) -> ResourceRequest:
        """Return the request of one of the topology's executors."""
        return self._by_executor[executor]

    def sum(self, executors: Iterable[ExecutorId]) -> Vector:
        """Return the sum of these executors' requests."""
        return self.load(executors).vector

    def worker(self, executors: Sequence[ExecutorId], load: Load | None = None) -> Load:
        """Return the resources of a worker with these executors, shared memory included; `load`:
        their sum without it, if known.
        """
        load = self.load(executors) if load is None else load
        if not self.shared:
            return load
        on_heap, off_heap = self.shared.on_worker(executors)
        return Load(
            (load.vector[MEMORY] + on_heap + off_heap, *load.vector[CPU:]), load.heap + on_heap
        )

    def load(self, executors: Iterable[ExecutorId]) -> Load:
        """Return the sum of the executors' own requests; executors of other topologies request
        nothing.
        """
        load = self._shape.no_load
        for executor in executors:
            request = self._by_executor.get(executor)
            if request is not None:
                load = load.plus(request)
        return load


def plus(left: Vector, right: Vector) -> Vector:
    """Return the sum, resource by resource."""
    return tuple(map(add, left, right))


def minus(left: Vector, right: Vector) -> tuple[Vector, bool]:
    """Return the difference, at least zero, and whether it was negative."""
    raw = [a - b for a, b in zip(left, right, strict=True)]
    return tuple(max(amount, 0.0) for amount in raw), any(amount < 0.0 for amount in raw)
