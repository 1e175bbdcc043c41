"""State of the page, made from the read model, and its change since a second ago. PURE."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from sparkstorm.insight.records import ClusterView, TopologyView, Window, to_json
from sparkstorm.web.picture import graph

Key = TypeVar("Key")
Made = TypeVar("Made")


def cluster_record(view: ClusterView) -> dict[str, Any]:
    """Return the cluster as plain JSON."""
    found: dict[str, Any] = to_json(view)
    return found


def topology_record(view: TopologyView, window: str, component: str = "") -> dict[str, Any]:
    """Return a topology as plain JSON: one window, and the tasks of one component, so that 1,000
    tasks cost nothing.
    """
    components = {
        name: replace(
            each, tasks=each.tasks if name == component else {}, windows=_one(each.windows, window)
        )
        for name, each in view.components.items()
    }
    shown = replace(
        view,
        components=components,
        edges={key: replace(edge, sent_per_s={}) for key, edge in view.edges.items()},
        windows=_one(view.windows, window),
        user_metrics=tuple(
            replace(each, buckets={}) for each in view.user_metrics if each.component == component
        ),
        latency_buckets={},
        conf={},
    )
    record: dict[str, Any] = to_json(shown)
    for name in ("latency_buckets", "conf"):
        del record[name]
    for each in record["user_metrics"]:
        del each["buckets"]
    record["window"] = record.pop("windows").get(window)
    for name, each in record["components"].items():
        each["task_count"] = len(view.components[name].tasks)
        each["window"] = each.pop("windows").get(window)
        if name != component:
            del each["tasks"]
    for key, edge in record["edges"].items():
        edge["sent_per_s"] = to_json(view.edges[key].sent_per_s.get(window))
    record["graph"] = graph(view)
    return record


def _one(windows: Mapping[str, Window], window: str) -> Mapping[str, Window]:
    return {name: each for name, each in windows.items() if name == window}


class Shared(Generic[Key, Made]):
    """The last values that were made, by key, so that pages which look at the same thing cost what
    one does; for any thread.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._made: dict[Key, Made] = {}

    def get(self, key: Key, make: Callable[[], Made]) -> Made:
        """Return the value of a key, made now if there is none yet."""
        with self._lock:
            if key in self._made:
                return self._made[key]
        made = make()  # not under the lock: two callers at once make it twice, and none waits
        with self._lock:
            self._made[key] = made
            while len(self._made) > self._most:
                del self._made[next(iter(self._made))]
        return made


def delta(old: Any, new: Any) -> dict[str, Any] | None:
    """Return what turns one object into another: `set` new or changed values, `sub` objects that
    changed within, `del` keys.

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
    found = {
        name: part for name, part in (("set", changed), ("sub", within), ("del", gone)) if part
    }
    return found or None
