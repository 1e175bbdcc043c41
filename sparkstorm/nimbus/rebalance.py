"""Owns what a rebalance makes of a topology: new base, outline and configuration, before anything is placed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkstorm.model.outline import TopologyOutline
from sparkstorm.model.status import JsonValue, RebalanceOptions
from sparkstorm.scheduling.lifecycle import Decision
from sparkstorm.scheduling.resource.amounts import normalised
from sparkstorm.scheduling.snapshot import KnownTopology

_RESOURCES_MAP = "topology.component.resources.map"
# Storm's resource keys by the short words that rebalance options use.
_RESOURCE_KEYS = {
    "cpu": "topology.component.cpu.pcore.percent",
    "memory": "topology.component.resources.onheap.memory.mb",
    "onheap": "topology.component.resources.onheap.memory.mb",
    "offheap": "topology.component.resources.offheap.memory.mb",
}


def rebalanced_conf(conf: Mapping[str, JsonValue], options: RebalanceOptions) -> dict[str, JsonValue]:
    """The topology's own configuration after a rebalance."""
    workers: dict[str, JsonValue] = {}
    if options.num_workers is not None:
        workers["topology.workers"] = options.num_workers
    return {**conf, **options.conf, **workers}


def rebalanced_outline(outline: TopologyOutline, options: RebalanceOptions) -> TopologyOutline:
    """The outline after a rebalance: components' resources changed, tasks as they are (S3.12)."""
    components = dict(outline.components)
    for component_id, resources in options.resources_by_component.items():
        part = components[component_id]
        asked = {_RESOURCE_KEYS.get(name, name): amount for name, amount in resources.items()}
        # The map goes before single keys and holds resources of any name (Storm's rebalance writes it too).
        before: Any = part.conf.get(_RESOURCES_MAP)
        amounts: dict[str, JsonValue] = {**normalised(before), **normalised(asked)}
        components[component_id] = replace(part, conf={**part.conf, _RESOURCES_MAP: amounts})
    return replace(outline, components=components)


def rebalanced_topology(known: KnownTopology, decision: Decision, conf: Mapping[str, Any], conf_key: str) -> KnownTopology:
    """The topology as it will be; `conf` is the whole configuration, `conf_key` the blob of the topology's own."""
    options = decision.rebalance or RebalanceOptions()
    base = replace(decision.base, conf_key=conf_key)
    return KnownTopology(base, rebalanced_outline(known.outline, options), conf)
