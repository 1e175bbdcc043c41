"""Counts of one topology over time, and what was added in each window. PURE.

A point has the exact counts of all tasks as they were committed, so a window is a difference of two
points: it survives restarts, rebalances and a store that was away. Counts that went back, as after a
loss of the store, begin the history afresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sparkstorm.insight.records import COUNTS, WINDOWS_S, Counts, Latency, Window
from sparkstorm.insight.ring import COARSE, FINE, Ring
from sparkstorm.model.outline import TopologyOutline
from sparkstorm.transport.progress import BUCKETS, PAUSES, Edge, Progress, bucket_bound_ms, percentile_ms

Numbers = npt.NDArray[np.int64]
_COLUMNS = (*COUNTS, "busy_us", *(f"{cause}_us" for cause in PAUSES))
_BUSY, _EXECUTED = _COLUMNS.index("busy_us"), _COLUMNS.index("executed")
_TREES = [COUNTS.index("acked"), COUNTS.index("failed")]


@dataclass(frozen=True, slots=True)
class Point:
    """Counts at a moment; `parts` are tasks or, in the fine ring, components."""

    parts: Numbers
    edges: Numbers
    buckets: Numbers  # complete latencies
    pending: int
    backlog_bytes: int
    loops: Mapping[str, tuple[tuple[int, ...], int]]  # time by state, and commits, by slot


class History:
    """Points of one topology. Memory: 120 bytes for each of 490 tasks' and 3,120 components' points."""

    def __init__(self, outline: TopologyOutline, launch_ms: int) -> None:
        self.launch_ms = launch_ms
        self.tasks = sorted(outline.component_by_task)
        self.components = sorted(set(outline.component_by_task.values()))
        self.edges: list[Edge] = sorted(
            {
                (each.component, each.stream, name)
                for name, component in outline.components.items()
                if not name.startswith("__")
                for each in component.inputs
                if not each.component.startswith("__") and each.component in outline.components
            }
        )
        self.row_by_task = {task: row for row, task in enumerate(self.tasks)}
        places = {name: place for place, name in enumerate(self.components)}
        self._place = np.array([places[outline.component_by_task[task]] for task in self.tasks])
        self.rows_by_component = {name: np.flatnonzero(self._place == place) for name, place in places.items()}
        users = [name for name in self.components if not name.startswith("__")]
        self._users = np.array([places[name] for name in users], dtype=np.int64)
        self._spouts = np.array([places[name] for name in users if outline.components[name].kind == "spout"], dtype=np.int64)
        self._by_task, self._by_component = Ring[Point](COARSE), Ring[Point](FINE)
        self.newest: tuple[int, Point] | None = None

    def add(self, time_ms: int, owners: Mapping[str, Progress], merged: Progress, backlog: Mapping[int, int]) -> None:
        """Keep what was read at a moment."""
        parts = np.zeros((len(self.tasks), len(_COLUMNS)), dtype=np.int64)
        for task, counts in merged.counts_by_task.items():
            if (row := self.row_by_task.get(task)) is not None:
                parts[row] = [getattr(counts, name) for name in _COLUMNS]
        edges = np.array([flow.sent if (flow := merged.edges.get(edge)) else 0 for edge in self.edges], dtype=np.int64)
        buckets = np.zeros(BUCKETS + 1, dtype=np.int64)
        for bucket, count in merged.latency_buckets.items():
            buckets[min(max(bucket, 0), BUCKETS)] += count
        pending = sum(counts.pending for counts in merged.counts_by_task.values())
        loops = {slot: (tuple(each.loop_us), each.commits) for slot, each in owners.items()}
        point = Point(parts, edges, buckets, pending, sum(backlog.values()), loops)
        if self.newest is not None and (parts < self.newest[1].parts).any():
            self._by_task.clear()
            self._by_component.clear()
        self._by_task.add(time_ms, point)
        self._by_component.add(time_ms, self._folded(point))
        self.newest = (time_ms, point)

    def _folded(self, point: Point) -> Point:
        parts = np.zeros((len(self.components), point.parts.shape[1]), dtype=np.int64)
        np.add.at(parts, self._place, point.parts)
        return Point(parts, point.edges, point.buckets, point.pending, point.backlog_bytes, {})

    def begin(self, window: str) -> tuple[int, Point | None]:
        """Return where a window begins: a time, and the point then; None for the topology's launch."""
        now_ms = self.newest[0] if self.newest else self.launch_ms
        from_ms = now_ms - 1000 * WINDOWS_S[window] if WINDOWS_S[window] else self.launch_ms
        if from_ms <= self.launch_ms:
            return min(now_ms, self.launch_ms), None
        return self._by_task.before(from_ms) or self._by_task.oldest() or (now_ms, None)

    def grown(self, window: str) -> Grown:
        """Return what a window has added."""
        began_ms, before = self.begin(window)
        if self.newest is None:
            return Grown(self, 0.0, None, None)
        return Grown(self, (self.newest[0] - began_ms) / 1000, before, self.newest[1])

    def series(self, component: str | None, window: str) -> dict[str, list[float | None]]:
        """Return rates and gauges of each span between two points, for charts."""
        span_ms = 1000 * (WINDOWS_S[window] or WINDOWS_S["24h"])
        now_ms = self.newest[0] if self.newest else 0
        points = self._by_component.since(now_ms - span_ms)
        names = ("emitted", "executed", "acked", "failed")
        keys = (*(f"{name}_per_s" for name in names), "busy", "p50_ms", "p99_ms", "pending", "backlog_bytes")
        found: dict[str, list[float | None]] = {key: [] for key in ("time_ms", *keys)}
        for (old_ms, old), (new_ms, new) in pairwise(points):
            seconds = (new_ms - old_ms) / 1000
            row = self._sum(new.parts - old.parts, component)
            count = self._count(component)
            buckets = dict(enumerate((new.buckets - old.buckets).tolist()))
            found["time_ms"].append(new_ms)
            for name in names:
                found[f"{name}_per_s"].append(int(row[COUNTS.index(name)]) / seconds)
            found["busy"].append(min(1.0, int(row[_BUSY]) / 1e6 / seconds / count) if count else None)
            found["p50_ms"].append(percentile_ms(buckets, 0.50) if any(buckets.values()) else None)
            found["p99_ms"].append(percentile_ms(buckets, 0.99) if any(buckets.values()) else None)
            found["pending"].append(new.pending)
            found["backlog_bytes"].append(new.backlog_bytes)
        return found

    def _count(self, component: str | None) -> int:
        if component is not None:
            return len(self.rows_by_component[component])
        return sum(len(self.rows_by_component[self.components[place]]) for place in self._users)

    def _sum(self, by_component: Numbers, component: str | None) -> Numbers:
        """Return one component's row, or the topology's: all user components, trees of its spouts only."""
        if component is not None:
            row: Numbers = by_component[self.components.index(component)]
            return row
        return self.topology_row(by_component)

    def topology_row(self, by_component: Numbers) -> Numbers:
        """Return the sums over user components, with acked and failed of spouts."""
        row: Numbers = by_component[self._users].sum(axis=0)
        row[_TREES] = by_component[self._spouts][:, _TREES].sum(axis=0)
        return row

    def fold(self, by_task: Numbers) -> Numbers:
        """Return the sums by component."""
        found = np.zeros((len(self.components), by_task.shape[1]), dtype=np.int64)
        np.add.at(found, self._place, by_task)
        return found


class Grown:
    """Growth of the counts in a span of time, by task, component and edge."""

    def __init__(self, history: History, seconds: float, before: Point | None, after: Point | None) -> None:
        self._history, self.seconds, self._before, self._after = history, max(0.0, seconds), before, after
        shape = (len(history.tasks), len(_COLUMNS))
        self._tasks: Numbers = (
            np.zeros(shape, dtype=np.int64) if after is None else after.parts - (0 if before is None else before.parts)
        )
        self._components = history.fold(self._tasks)

    def latency(self) -> Latency:
        """Return the latencies of the trees that ended meanwhile."""
        if self._after is None:
            return Latency()
        return latency_of(self._after.buckets - (0 if self._before is None else self._before.buckets))

    def task(self, task: int) -> Window:
        """Return the window of one task."""
        row = self._history.row_by_task[task]
        return self._window(self._tasks[row], self._tasks[[row]])

    def component(self, name: str, is_spout: bool = False) -> Window:
        """Return the window of one component."""
        rows = self._history.rows_by_component[name]
        row = self._components[self._history.components.index(name)]
        return self._window(row, self._tasks[rows], self.latency() if is_spout else Latency())

    def topology(self) -> Window:
        """Return the window of the topology."""
        rows = [rows for name, rows in self._history.rows_by_component.items() if not name.startswith("__")]
        tasks = self._tasks[np.concatenate(rows)] if rows else self._tasks[:0]
        return self._window(self._history.topology_row(self._components), tasks, self.latency())

    def sent_per_s(self) -> dict[Edge, float | None]:
        """Return the rows sent in a second, by edge."""
        if self._after is None or not self.seconds:
            return dict.fromkeys(self._history.edges)
        grown = self._after.edges - (0 if self._before is None else self._before.edges)
        return {edge: int(sent) / self.seconds for edge, sent in zip(self._history.edges, grown, strict=True)}

    def loop(self, slot: str) -> tuple[tuple[int, ...], int] | None:
        """Return the time by state and the commits of a worker's loop; None when it has committed nothing."""
        if self._after is None or slot not in self._after.loops:
            return None
        new_us, commits = self._after.loops[slot]
        old_us, old = self._before.loops.get(slot, ((0,) * len(new_us), 0)) if self._before else ((0,) * len(new_us), 0)
        return tuple(max(0, new - old) for new, old in zip(new_us, old_us, strict=True)), max(0, commits - old)

    def _window(self, row: Numbers, tasks: Numbers, complete: Latency = Latency()) -> Window:  # noqa: B008 - it is frozen
        counts = Counts(*(int(row[n]) for n in range(len(COUNTS))))
        if not self.seconds:
            return Window(0.0, counts, complete=complete)
        shares = np.minimum(tasks[:, _BUSY:] / 1e6 / self.seconds, 1.0)
        most = shares.max(axis=0) if len(shares) else np.zeros(1 + len(PAUSES))
        paused = {cause: round(float(share), 4) for cause, share in zip(PAUSES, most[1:], strict=True) if share > 0}
        return Window(
            self.seconds,
            counts,
            counts.emitted / self.seconds,
            counts.executed / self.seconds,
            counts.acked / self.seconds,
            counts.failed / self.seconds,
            float(most[0]),
            float(shares[:, 0].mean()) if len(shares) else 0.0,
            paused,
            int(row[_BUSY]) / 1000 / counts.executed if counts.executed else None,
            complete,
        )


def latency_of(buckets: Numbers) -> Latency:
    """Return a distribution from counts by bucket."""
    counts = {bucket: count for bucket, count in enumerate(buckets.tolist()) if count > 0}
    total = sum(counts.values())
    if not total:
        return Latency()
    middle = sum(count * (bucket_bound_ms(bucket - 1) + bucket_bound_ms(bucket)) / 2 for bucket, count in counts.items())
    shares = (percentile_ms(counts, share) for share in (0.50, 0.95, 0.99))
    return Latency(total, middle / total, *shares)
