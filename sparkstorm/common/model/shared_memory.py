"""Memory that executors share: named regions of a component, as declared by Storm's
addSharedMemory. PURE.

A component's own configuration carries its regions under `topology.component.shared.memory`, so
that they are part of the topology: `{"cache": {"on_heap": 64.0, "off_heap_worker": 0.0,
"off_heap_node": 512.0}}`, amounts in MB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkstorm.common.errors import InvalidTopologyError, show

SHARED_MEMORY_KEY = "topology.component.shared.memory"
MOST_MB = 1e15
_AMOUNTS = ("on_heap", "off_heap_worker", "off_heap_node")


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """One region (Storm's SharedMemory), in MB: `on_heap` and `off_heap_worker` count once per
    worker, `off_heap_node` once per node.
    """

    name: str
    on_heap: float = 0.0
    off_heap_worker: float = 0.0
    off_heap_node: float = 0.0

    def amounts(self) -> dict[str, float]:
        """Return the amounts by name."""
        return {name: getattr(self, name) for name in _AMOUNTS}


def shared_on_heap(amount: float, name: str) -> SharedMemory:
    """Return a region on the heap of each worker that uses it, in MB (Storm's SharedOnHeap)."""
    return SharedMemory(name, on_heap=amount)


def shared_off_heap_within_worker(amount: float, name: str) -> SharedMemory:
    """Return a region outside the heap of each worker that uses it, in MB (Storm's
    SharedOffHeapWithinWorker).
    """
    return SharedMemory(name, off_heap_worker=amount)


def shared_off_heap_within_node(amount: float, name: str) -> SharedMemory:
    """Return a region that a topology's workers on a node share, in MB (Storm's
    SharedOffHeapWithinNode).
    """
    return SharedMemory(name, off_heap_node=amount)


def regions_of(conf: Mapping[str, Any], where: str) -> tuple[SharedMemory, ...]:
    """Return the regions in a component's configuration, by name; InvalidTopologyError names region
    and amount.
    """
    declared = conf.get(SHARED_MEMORY_KEY)
    if declared is None:
        return ()
    if not isinstance(declared, Mapping):
        raise InvalidTopologyError(
            f"{where}: {SHARED_MEMORY_KEY}: expected regions by name, got {show(declared)}"
        )
    return tuple(_region(name, declared[name], where) for name in sorted(declared, key=str))


def check_regions(conf_by_component: Iterable[tuple[str, Mapping[str, Any]]], where: str) -> None:
    """Raise InvalidTopologyError if a region is malformed or has two sizes within one topology."""
    first_by_name: dict[str, tuple[str, SharedMemory]] = {}
    for component, conf in conf_by_component:
        for region in regions_of(conf, f"{where}component '{component}'"):
            first, other = first_by_name.setdefault(region.name, (component, region))
            if other != region:
                raise InvalidTopologyError(
                    f"{where}component '{component}': shared memory {show(region.name)} differs from that of component '{first}'; "
                    "regions of one name must have equal amounts"
                )


def _region(name: object, amounts: object, where: str) -> SharedMemory:
    if not isinstance(name, str) or not name:
        raise InvalidTopologyError(
            f"{where}: shared memory needs a name that is a text, got {show(name)}"
        )
    if not isinstance(amounts, Mapping):
        raise InvalidTopologyError(
            f"{where}: shared memory {show(name)}: expected amounts in MB, got {show(amounts)}"
        )
    for kind, amount in amounts.items():
        if kind not in _AMOUNTS:
            raise InvalidTopologyError(
                f"{where}: shared memory {show(name)}: expected {', '.join(_AMOUNTS)}, got {show(kind)}"
            )
        is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
        if not is_number or not 0 <= amount <= MOST_MB or not math.isfinite(amount):
            raise InvalidTopologyError(
                f"{where}: shared memory {show(name)}: {kind} must be from 0 to {MOST_MB:.0e} MB, got {show(amount)}"
            )
    return SharedMemory(name, **{kind: float(amount) for kind, amount in amounts.items()})
