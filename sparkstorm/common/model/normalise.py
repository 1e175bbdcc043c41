"""Normalisation of a submitted topology and its configuration, before anything is stored
(S0.34-S0.39). PURE.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkstorm.common.config import OWN_PREFIX, check, default_conf, keys, secret_keys
from sparkstorm.common.errors import InvalidConfigError, StoreInconsistentError
from sparkstorm.common.model.status import JsonValue
from sparkstorm.common.model.tasks import acker_count, task_count
from sparkstorm.common.model.topology import Component, Topology

_PARALLELISM_KEY = {"spout": "topology.spout.parallelism", "bolt": "topology.bolt.parallelism"}


def check_own_conf(
    conf: Mapping[str, Any], cluster_conf: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Return a topology's own settings, checked; InvalidConfigError for a setting of the cluster
    with another value.
    """
    if not isinstance(conf, Mapping):
        raise InvalidConfigError(
            f"configuration of {name}: expected settings by key, got {conf!r:.60}"
        )
    checked = check(conf, f"configuration of {name}")
    for key, value in checked.items():
        if not _is_for_topologies(key) and key in cluster_conf and cluster_conf[key] != value:
            raise InvalidConfigError(
                f"configuration of {name}: {key} belongs to the cluster; a topology cannot set it"
            )
    return {key: value for key, value in checked.items() if _is_for_topologies(key)}


def _is_for_topologies(key: str) -> bool:
    return key.startswith(OWN_PREFIX) or (key in keys() and keys()[key].scope == "topology")


def normalise_conf(cluster_conf: Mapping[str, Any], conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a topology: its own over those of the cluster, so that a worker needs
    no others (S0.34).
    """
    out = {key: value for key, value in {**cluster_conf, **conf}.items() if _is_for_topologies(key)}
    out["topology.acker.executors"] = acker_count(out)
    return out


def loggable_conf(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults, without what may be secret: the user's
    own, values of variables.
    """
    usual = default_conf().as_dict()
    own = {
        key: value for key, value in sorted(conf.items()) if key in usual and value != usual[key]
    }
    variables = own.get("topology.environment")
    shown = (
        {**own, "topology.environment": sorted(variables)}
        if isinstance(variables, Mapping)
        else own
    )
    return {key: value for key, value in shown.items() if key not in secret_keys()}


def normalise_topology(topology: Topology, total_conf: Mapping[str, Any]) -> Topology:
    """Return the topology with definite parallelism and tasks: overrides by key applied, never
    above the cap (S0.36).
    """
    return Topology(
        {component.id: _normalise_component(component, total_conf) for component in topology}
    )


def _normalise_component(component: Component, conf: Mapping[str, Any]) -> Component:
    override = (conf.get(_PARALLELISM_KEY.get(component.kind, "")) or {}).get(component.id)
    wanted = (
        component
        if override is None
        else replace(component, parallelism=_positive(override, component.id))
    )
    if override is not None and wanted.num_tasks is not None:
        wanted = replace(wanted, num_tasks=max(wanted.num_tasks, wanted.parallelism))
    tasks = task_count(wanted, conf)
    return replace(wanted, parallelism=min(wanted.parallelism, tasks), num_tasks=tasks)


def _positive(value: object, component_id: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidConfigError(
            f"parallelism of '{component_id}' must be a whole number from 1 on, not {value!r}"
        )
    return value


def validate_sizes(conf: Mapping[str, Any], topology_id: str) -> None:
    """Check the numbers of workers and ackers (S0.39)."""
    workers = conf.get("topology.workers")
    ackers = conf.get("topology.acker.executors")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers <= 0:
        raise InvalidConfigError(
            f"There is no topology.workers in configuration of {topology_id} (it is {workers!r})"
        )
    if ackers is not None and (
        isinstance(ackers, bool) or not isinstance(ackers, int) or ackers < 0
    ):
        raise InvalidConfigError(
            f"Invalid topology.acker.executors in configuration of {topology_id}: {ackers!r}"
        )


def conf_bytes(conf: dict[str, JsonValue]) -> bytes:
    """A topology's configuration as the bytes of its blob; equal confs have equal bytes.

    InvalidConfigError names a key whose value is no JSON: an infinite number, say.
    """
    try:
        return json.dumps(conf, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        culprit = next((key for key, value in conf.items() if not _is_json(value)), "configuration")
        raise InvalidConfigError(f"{culprit}: {error}") from error


def _is_json(value: JsonValue) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def conf_from_bytes(data: bytes, key: str) -> dict[str, JsonValue]:
    """The inverse; StoreInconsistentError names the blob."""
    try:
        conf = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreInconsistentError(f"conf blob {key}: not JSON ({error})") from error
    if not isinstance(conf, dict):
        raise StoreInconsistentError(f"conf blob {key}: expected a JSON object")
    return conf
