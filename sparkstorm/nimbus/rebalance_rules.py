"""Owns what may be asked of a rebalance: types, sizes and keys, checked before anything is written.

What is written must be readable again: an option of a wrong type would make the topology's base unreadable for everybody.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkstorm.errors import InvalidConfigError, InvalidTopologyError
from sparkstorm.model.normalise import check_own_conf
from sparkstorm.model.outline import TopologyOutline
from sparkstorm.model.status import RebalanceOptions
from sparkstorm.nimbus.cluster_reader import conf_bytes
from sparkstorm.nimbus.component_rules import check_resources
from sparkstorm.nimbus.guarded_scheduler import check_choice

_WORKERS_KEY = "topology.workers"
# Tasks, and with them ackers, are fixed at submission (S3.12); ids are Nimbus's.
_FIXED_KEYS = ("topology.acker.executors", "topology.delivery.guarantee", "topology.id", "storm.id", "topology.name")


def checked_rebalance(
    name: str, options: RebalanceOptions, outline: TopologyOutline, cluster_conf: Mapping[str, Any]
) -> RebalanceOptions:
    """The options with a checked conf, whose topology.workers counts as the number of workers.

    InvalidTopologyError or InvalidConfigError names what cannot be.
    """
    where = f"rebalance of {name}"
    tasks = Counter(outline.component_by_task.values())
    for part in (options.executors_by_component, options.resources_by_component):
        _check_components(where, part, tasks)
    for component, wanted in options.executors_by_component.items():
        if not _is_count(wanted) or wanted > tasks[component]:
            raise InvalidTopologyError(
                f"{where}: component '{component}' has {tasks[component]} tasks, "
                f"so it can have 1 to {tasks[component]} executors, not {wanted!r:.60}"
            )
    for component, resources in options.resources_by_component.items():
        check_resources(f"{where}: component '{component}'", resources)
    conf = _checked_conf(where, name, options.conf, cluster_conf)
    return replace(options, num_workers=_workers(where, options.num_workers, conf), conf=conf)


def _workers(where: str, asked: int | None, conf: Mapping[str, Any]) -> int | None:
    by_conf = conf.get(_WORKERS_KEY)
    if asked is None:
        return by_conf
    if not _is_count(asked):
        raise InvalidTopologyError(f"{where}: {asked!r:.60} workers; a whole number of at least 1 is needed")
    if by_conf not in (None, asked):
        raise InvalidConfigError(f"{where}: {asked} workers are asked for, but {_WORKERS_KEY} says {by_conf}")
    return asked


def _check_components(where: str, part: object, tasks: Mapping[str, int]) -> None:
    if not isinstance(part, Mapping):
        raise InvalidTopologyError(f"{where}: expected a map by component, got {part!r:.60}")
    for component in part:
        if component not in tasks:
            known = ", ".join(sorted(tasks))
            raise InvalidTopologyError(f"{where}: there is no component {component!r:.60}, only {known}")


def _checked_conf(where: str, name: str, conf: Mapping[str, Any], cluster_conf: Mapping[str, Any]) -> dict[str, Any]:
    checked = check_own_conf(conf, cluster_conf, name)
    fixed = [key for key in _FIXED_KEYS if key in checked]
    if fixed:
        raise InvalidConfigError(f"{where}: {fixed[0]} is fixed for a topology's life")
    conf_bytes(checked)
    check_resources(where, checked.get("topology.component.resources.map") or {})
    check_choice({**cluster_conf, **checked})
    return checked


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
