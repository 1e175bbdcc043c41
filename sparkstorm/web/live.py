"""State of the page, made from the read model, and its change since a second ago. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkstorm.insight.records import ClusterView, TopologyView, to_json
from sparkstorm.web.picture import graph


def cluster_record(view: ClusterView) -> dict[str, Any]:
    """Return the cluster as plain JSON."""
    found: dict[str, Any] = to_json(view)
    return found


def topology_record(view: TopologyView, window: str, component: str = "") -> dict[str, Any]:
    """Return a topology as plain JSON: one window, and the tasks of one component, so that 1,000 tasks cost nothing."""
    record: dict[str, Any] = to_json(view)
    for name in ("latency_buckets", "conf"):
        del record[name]
    record["user_metrics"] = [
        {name: value for name, value in each.items() if name != "buckets"}
        for each in record["user_metrics"]
        if each["component"] == component
    ]
    record["window"] = record.pop("windows").get(window)
    for name, each in record["components"].items():
        each["task_count"] = len(each["tasks"])
        each["window"] = each.pop("windows").get(window)
        if name != component:
            del each["tasks"]
    for edge in record["edges"].values():
        edge["sent_per_s"] = edge["sent_per_s"].get(window)
    record["graph"] = graph(view)
    return record


def delta(old: Any, new: Any) -> dict[str, Any] | None:
    """Return what turns one object into another: `set` new or changed values, `sub` objects that changed within, `del` keys.

    None when they are equal. Lists are values: what they hold has no key that stays.
    """
    changed: dict[str, Any] = {}
    within: dict[str, Any] = {}
    for key, value in new.items():
        if key in old and isinstance(value, Mapping) and isinstance(old[key], Mapping):
            if (inner := delta(old[key], value)) is not None:
                within[key] = inner
        elif key not in old or old[key] != value:
            changed[key] = value
    gone = [key for key in old if key not in new]
    found = {name: part for name, part in (("set", changed), ("sub", within), ("del", gone)) if part}
    return found or None
