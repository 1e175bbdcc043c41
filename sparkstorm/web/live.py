"""State of the page, made from the read model, and its change since a second ago. PURE."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sparkstorm.control_plane.insight.records import (
    ClusterReport,
    ComponentReport,
    EdgeView,
    TopologyReport,
    to_json,
)
from sparkstorm.notebook.graph_places import places_of

RECENT = "1m"
_WINDOWS = frozenset(("windows",))
Key = TypeVar("Key")
Made = TypeVar("Made")


def cluster_record(view: ClusterReport) -> dict[str, Any]:
    """Return the cluster as plain JSON, with its last minute alone."""
    record: dict[str, Any] = to_json(view, _WINDOWS)
    record["windows"] = {RECENT: to_json(view.windows.get(RECENT))}
    return record


_APART = frozenset(("components", "edges", "windows", "user_metrics", "latency_buckets", "conf"))
_OF_COMPONENT = frozenset(("tasks", "windows"))
_OF_EDGE = frozenset(("sent_per_s",))
_OF_METRIC = frozenset(("buckets",))


def topology_record(view: TopologyReport, window: str, component: str = "") -> dict[str, Any]:
    """Return a topology as plain JSON: one window, and the tasks and all windows of one component,
    so that 1,000 tasks cost nothing.
    """
    record: dict[str, Any] = to_json(view, _APART)
    record["window"] = to_json(view.windows.get(window))
    record["components"] = {
        name: _component(report, window, name == component)
        for name, report in view.components.items()
    }
    record["edges"] = {
        key: {**to_json(edge, _OF_EDGE), "sent_per_s": to_json(edge.sent_per_s.get(window))}
        for key, edge in view.edges.items()
    }
    record["user_metrics"] = [
        to_json(user_metric, _OF_METRIC)
        for user_metric in view.user_metrics
        if user_metric.component == component
    ]
    record["graph"] = graph(view)
    return record


def _component(view: ComponentReport, window: str, has_details: bool) -> dict[str, Any]:
    record: dict[str, Any] = to_json(view, _OF_COMPONENT)
    record["task_count"] = len(view.tasks)
    record["window"] = to_json(view.windows.get(window))
    if has_details:
        record["tasks"] = to_json(view.tasks)
        record["windows"] = to_json(view.windows)
    return record


def graph(view: TopologyReport) -> dict[str, Any]:
    """Return size, boxes by component and edges of a topology's graph, in flow order, without the
    system's components.

    It is one object as long as the graph is the same, so that an open page costs no drawing, and
    is not to be changed.
    """
    names = tuple(name for name in view.components if not name.startswith("__"))
    known_names = {*names}
    lines = tuple(
        (key, edge.sender, edge.receiver, _edge_words(edge))
        for key, edge in view.edges.items()
        if edge.sender in known_names and edge.receiver in known_names
    )
    return places_of(names, lines)


def _edge_words(edge: EdgeView) -> str:
    words = f"by {', '.join(edge.fields)}" if edge.fields else edge.grouping.replace("_", " ")
    return words if edge.stream == "default" else f"{edge.stream}: {words}"


class SharedView(Generic[Key, Made]):
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


def delta(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | None:
    """Return what turns one object of plain JSON into another: `set` new or changed values, `sub`
    objects that changed within, `del` keys.

    None when they are equal. Lists are values: what they hold has no key that stays.
    """
    changed: dict[str, Any] = {}
    within: dict[str, Any] = {}
    for key, value in new.items():
        former = old.get(key, _MISSING)
        if former is value:
            continue
        if type(value) is dict and type(former) is dict:
            if (inner := delta(former, value)) is not None:
                within[key] = inner
        elif former != value:
            changed[key] = value
    gone = [key for key in old if key not in new]
    change = {
        name: part for name, part in (("set", changed), ("sub", within), ("del", gone)) if part
    }
    return change or None


_MISSING = object()
