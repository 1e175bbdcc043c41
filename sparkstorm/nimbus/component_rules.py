"""Owns what the components of a topology may bring along as their own configuration, checked before anything is stored.

Unchecked, a misspelt key would be obeyed by nobody, a number of tasks below one would leave a component without tasks and
its senders without receivers, and an amount that is no number would fail the scheduler for everybody.
"""

import math
from collections.abc import Mapping
from typing import Any

from sparkstorm.errors import InvalidTopologyError
from sparkstorm.model.normalise import check_own_conf
from sparkstorm.model.shared_memory import check_regions
from sparkstorm.model.topology import Topology
from sparkstorm.nimbus.cluster_reader import conf_bytes

_TASKS_KEY = "topology.tasks"
_RESOURCES_KEY = "topology.component.resources.map"


def check_components(topology: Topology, cluster_conf: Mapping[str, Any], name: str) -> None:
    """Each component's own settings, by the rules for those of the topology; InvalidConfigError or InvalidTopologyError."""
    check_regions(((each.id, each.conf) for each in topology if isinstance(each.conf, Mapping)), f"{name}: ")
    for component in topology:
        where = f"component '{component.id}' of {name}"
        own = check_own_conf(_without_tasks(component.conf), cluster_conf, where)
        conf_bytes(own)
        check_resources(where, own.get(_RESOURCES_KEY) or {})
        tasks = component.conf.get(_TASKS_KEY)
        if tasks is not None and (isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1):
            raise InvalidTopologyError(f"{where}: {_TASKS_KEY} must be a whole number of at least 1, not {tasks!r:.60}")


def _without_tasks(conf: Any) -> Any:
    """Storm's own key for the number of tasks is no setting; whatever is no mapping is refused by the check that follows."""
    return {key: value for key, value in conf.items() if key != _TASKS_KEY} if isinstance(conf, Mapping) else conf


def check_resources(where: str, resources: object) -> None:
    """Amounts by resource, none below zero; InvalidTopologyError otherwise."""
    if not isinstance(resources, Mapping):
        raise InvalidTopologyError(f"{where}: expected amounts by resource, got {resources!r:.60}")
    for resource, amount in resources.items():
        is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
        if not isinstance(resource, str) or not is_number or not math.isfinite(amount) or amount < 0:
            raise InvalidTopologyError(f"{where}: {resource!r:.60}: expected an amount of at least 0, got {amount!r:.60}")
