"""Counts of one topology over time, and what was added in each window. PURE.

A point has the exact counts of all tasks as they were committed, so a window is a difference of two
points: it survives restarts, rebalances and a store that was away. Counts that went back, as after
a loss of the store, begin the history afresh.

Counts lie in flat arrays of 64-bit integers, column by column, and the tasks of a component side by
side: a sum or a maximum over a component is one call over a slice. numpy would need longer for a
window of one task than plain Python, and its import alone longer than a verb of the command line
may take to start.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from operator import attrgetter, lt, sub
from typing import Any, NamedTuple, TypeAlias, TypeVar

from sparkstorm.common.model.heartbeats import COUNTS, Counts
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.control_plane.insight.records import WINDOWS_S, CountWindow, Latency
from sparkstorm.control_plane.insight.ring import COARSE, FINE, Ring
from sparkstorm.data_plane.transport.progress import (
    BUCKETS,
    PAUSES,
    Edge,
    Progress,
    bucket_bound_ms,
    percentile_ms,
)

Numbers: TypeAlias = "array[int]"
_COLUMNS = (*COUNTS, "busy_us", *(f"{cause}_us" for cause in PAUSES))
_BUSY = _COLUMNS.index("busy_us")
_TREES = (COUNTS.index("acked"), COUNTS.index("failed"))
_RATE_COLUMNS = (COUNTS.index("emitted"), COUNTS.index("executed"), *range(_BUSY, len(_COLUMNS)))
_COUNTS_OF = attrgetter(*_COLUMNS)
_NO_COUNTS = (0,) * len(_COLUMNS)


@dataclass(frozen=True, slots=True)
class Point:
    """Counts at a moment; `parts` are tasks or, in the fine ring, components, all of a column
    before the next column.
    """

    parts: Numbers
    edges: Numbers
    buckets: Numbers  # complete latencies
    pending: int
    backlog_bytes: int
    loops: Mapping[str, tuple[tuple[int, ...], int]]  # time by state, and commits, by slot


class History:
    """Points of one topology. Memory: 120 bytes for each of 490 tasks' and 3,120 components'
    points.
    """

    def __init__(self, outline: TopologyOutline, launch_ms: int) -> None:
        self.launch_ms = launch_ms
        self.tasks = sorted(outline.component_by_task)
        tasks: dict[str, list[int]] = {}
        for task in self.tasks:
            tasks.setdefault(outline.component_by_task[task], []).append(task)
        self.components = sorted(tasks)
        self.tasks_by_component = {name: dict.fromkeys(several) for name, several in tasks.items()}
        self.edges: list[Edge] = sorted(
            {
                (source.component, source.stream, name)
                for name, component in outline.components.items()
                if not name.startswith("__")
                for source in component.inputs
                if not source.component.startswith("__") and source.component in outline.components
            }
        )
        # The system's components come first, so that those of users are one slice.
        order = sorted(tasks, key=lambda name: (not name.startswith("__"), name))
        self.row_by_task = {
            task: row for row, task in enumerate(task for name in order for task in tasks[name])
        }
        self.rows_by_component = {
            name: range(rows[0], rows[-1] + 1) for name, rows in self._rows(tasks).items()
        }
        users = [name for name in order if not name.startswith("__")]
        self.user_rows = range(
            sum(len(tasks[name]) for name in order if name not in users), len(self.tasks)
        )
        self.spouts = [name for name in users if outline.components[name].kind == "spout"]
        self._users = [self.components.index(name) for name in users]
        self._spouts = [self.components.index(name) for name in self.spouts]
        self._by_task = Ring[Point](COARSE)
        self._by_component = Ring[Point](FINE)
        self.newest: tuple[int, Point] | None = None

    def _rows(self, tasks: Mapping[str, list[int]]) -> dict[str, list[int]]:
        return {
            name: [self.row_by_task[task] for task in several] for name, several in tasks.items()
        }

    def add(
        self,
        time_ms: int,
        owners: Mapping[str, Progress],
        merged: Progress,
        backlog: Mapping[int, int],
    ) -> None:
        """Keep what was read at a moment."""
        rows: list[Iterable[int]] = [_NO_COUNTS] * len(self.tasks)
        for task, counts in merged.counts_by_task.items():
            if (row := self.row_by_task.get(task)) is not None:
                rows[row] = _COUNTS_OF(counts)
        parts = array("q", chain.from_iterable(zip(*rows, strict=True)))
        edges = array(
            "q", (flow.sent if (flow := merged.edges.get(edge)) else 0 for edge in self.edges)
        )
        buckets = array("q", bytes(8 * (BUCKETS + 1)))
        for bucket, count in merged.latency_buckets.items():
            buckets[min(max(bucket, 0), BUCKETS)] += count
        pending = sum(counts.pending for counts in merged.counts_by_task.values())
        loops = {
            slot: (tuple(progress.loop_us), progress.commits) for slot, progress in owners.items()
        }
        point = Point(parts, edges, buckets, pending, sum(backlog.values()), loops)
        if self.newest is not None and any(map(lt, parts, self.newest[1].parts)):
            self._by_task.clear()
            self._by_component.clear()
        self._by_task.add(time_ms, point)
        self._by_component.add(time_ms, self._folded(point))
        self.newest = (time_ms, point)

    def _folded(self, point: Point) -> Point:
        rows = [self.rows_by_component[name] for name in self.components]
        parts = array(
            "q", (sum(self.column(point.parts, n, of)) for n in range(len(_COLUMNS)) for of in rows)
        )
        return Point(parts, point.edges, point.buckets, point.pending, point.backlog_bytes, {})

    def column(self, by_task: Numbers, column: int, rows: range) -> Numbers:
        """Return a column of the tasks in some rows."""
        begin = column * len(self.tasks)
        return by_task[begin + rows.start : begin + rows.stop]

    def begin(self, window: str) -> tuple[int, Point | None]:
        """Return where a window begins: a time, and the point then; None for the topology's
        launch.
        """
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

    def series(
        self, component: str | None, window: str, since_ms: int = 0
    ) -> dict[str, list[float | None]]:
        """Return rates and gauges of each span between two points that ends after `since_ms`, for
        charts.
        """
        span_ms = 1000 * (WINDOWS_S[window] or WINDOWS_S["24h"])
        now_ms = self.newest[0] if self.newest else 0
        within = self._by_component.since(now_ms - span_ms)
        # the last one before is where the first span begins
        first = max(0, bisect_right(within, since_ms, key=lambda point: point[0]) - 1)
        points = [
            (at_ms, point, self._sums(point.parts, component)) for at_ms, point in within[first:]
        ]
        names = ("emitted", "executed", "acked", "failed")
        keys = (
            *(f"{name}_per_s" for name in names),
            "busy",
            "p50_ms",
            "p99_ms",
            "pending",
            "backlog_bytes",
        )
        columns: dict[str, list[float | None]] = {key: [] for key in ("time_ms", *keys)}
        count = len(self.user_rows if component is None else self.rows_by_component[component])
        for (old_ms, old, before), (new_ms, new, after) in pairwise(points):
            seconds = (new_ms - old_ms) / 1000
            row = [*map(sub, after, before)]
            buckets = dict(enumerate(map(sub, new.buckets, old.buckets)))
            columns["time_ms"].append(new_ms)
            for name in names:
                columns[f"{name}_per_s"].append(row[COUNTS.index(name)] / seconds)
            columns["busy"].append(min(1.0, row[_BUSY] / 1e6 / seconds / count) if count else None)
            columns["p50_ms"].append(
                percentile_ms(buckets, 0.50) if any(buckets.values()) else None
            )
            columns["p99_ms"].append(
                percentile_ms(buckets, 0.99) if any(buckets.values()) else None
            )
            columns["pending"].append(new.pending)
            columns["backlog_bytes"].append(new.backlog_bytes)
        return columns

    def _sums(self, by_component: Numbers, component: str | None) -> list[int]:
        """Return one component's counts, or the topology's: all user components, trees of its
        spouts only.
        """
        size = len(self.components)
        columns = [by_component[n * size : (n + 1) * size] for n in range(len(_COLUMNS))]
        if component is not None:
            index = self.components.index(component)
            return [column[index] for column in columns]
        return [
            sum(column[position] for position in (self._spouts if n in _TREES else self._users))
            for n, column in enumerate(columns)
        ]


Key = TypeVar("Key")
Value = TypeVar("Value")


class Later(Mapping[Key, Value]):
    """Records by key, each made when it is asked for, and kept: a page shows few of them, and what
    they are made of does not change.
    """

    __slots__ = ("_keys", "_made", "_make")

    def __init__(self, keys: Collection[Key], make: Callable[[Key], Value]) -> None:
        self._keys = keys
        self._make = make
        self._made: dict[Key, Value] = {}

    def __getitem__(self, key: Key) -> Value:
        if key not in self._made:
            if key not in self._keys:
                raise KeyError(key)
            self._made[key] = self._make(key)
        return self._made[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class TaskRates(NamedTuple):
    """Rates and shares of one task in a window; None where it covers no time."""

    emitted_per_s: float | None
    executed_per_s: float | None
    busy: float | None
    paused: Mapping[str, float]


_NO_RATES = TaskRates(None, None, None, {})


class Grown:
    """Growth of the counts in a span of time, by task, component and edge."""

    def __init__(
        self, history: History, seconds: float, before: Point | None, after: Point | None
    ) -> None:
        self._history = history
        self.seconds = max(0.0, seconds)
        self._before = before
        self._after = after

    @cached_property
    def _tasks(self) -> Numbers:
        if self._after is None:
            return array("q", bytes(8 * len(_COLUMNS) * len(self._history.tasks)))
        return _added(self._after.parts, self._before.parts if self._before else None)

    @cached_property
    def _sums(self) -> list[list[int]]:
        """Return for each count its sums over the rows before each row, by which a component's sum
        is one subtraction.
        """
        size = len(self._history.tasks)
        return [
            [*accumulate(self._tasks[n * size : (n + 1) * size], initial=0)]
            for n in range(len(COUNTS))
        ]

    @cached_property
    def _latency(self) -> Latency:
        if self._after is None:
            return Latency()
        return latency_of(
            _added(self._after.buckets, self._before.buckets if self._before else None)
        )

    @cached_property
    def task_rates(self) -> dict[int, TaskRates]:
        """Return the rates of all tasks; of many tasks this costs a fraction of their windows."""
        history = self._history
        if not self.seconds:
            return dict.fromkeys(history.tasks, _NO_RATES)
        size = len(history.tasks)
        columns = [self._tasks[n * size : (n + 1) * size] for n in _RATE_COLUMNS]
        rows = [*zip(*columns, strict=True)]
        return {task: self._rates(*rows[row]) for task, row in history.row_by_task.items()}

    def _rates(self, emitted: int, executed: int, busy_us: int, *paused_us: int) -> TaskRates:
        return TaskRates(
            emitted / self.seconds,
            executed / self.seconds,
            self._share(busy_us),
            self._paused(paused_us),
        )

    def _paused(self, spent_us: Iterable[int]) -> Mapping[str, float]:
        shares = zip(PAUSES, spent_us, strict=True)
        return {cause: round(self._share(spent), 4) for cause, spent in shares if spent > 0}

    def task(self, task: int) -> CountWindow:
        """Return the window of one task."""
        row = self._history.row_by_task[task]
        return self._window(range(row, row + 1))

    def component(self, name: str, is_spout: bool = False) -> CountWindow:
        """Return the window of one component."""
        return self._window(
            self._history.rows_by_component[name], self._latency if is_spout else Latency()
        )

    def topology(self) -> CountWindow:
        """Return the window of the topology: all user components, trees of its spouts only."""
        history = self._history
        spouts = [history.rows_by_component[name] for name in history.spouts]
        trees = {
            n: sum(sum(history.column(self._tasks, n, rows)) for rows in spouts) for n in _TREES
        }
        return self._window(history.user_rows, self._latency, trees)

    def sent_per_s(self) -> dict[Edge, float | None]:
        """Return the rows sent in a second, by edge."""
        if self._after is None or not self.seconds:
            return dict.fromkeys(self._history.edges)
        grown = _added(self._after.edges, self._before.edges if self._before else None)
        return {
            edge: sent / self.seconds for edge, sent in zip(self._history.edges, grown, strict=True)
        }

    def loop(self, slot: str) -> tuple[tuple[int, ...], int] | None:
        """Return the time by state and the commits of a worker's loop; None when it has committed
        nothing.
        """
        if self._after is None or slot not in self._after.loops:
            return None
        new_us, commits = self._after.loops[slot]
        old_us, old = (
            self._before.loops.get(slot, ((0,) * len(new_us), 0))
            if self._before
            else ((0,) * len(new_us), 0)
        )
        times = tuple(max(0, new - old) for new, old in zip(new_us, old_us, strict=True))
        return times, max(0, commits - old)

    def _window(
        self,
        rows: range,
        complete: Latency = Latency(),  # noqa: B008 - it is frozen
        trees: Mapping[int, int] | None = None,
    ) -> CountWindow:
        size = len(self._history.tasks)
        sums = [up_to[rows.stop] - up_to[rows.start] for up_to in self._sums]
        columns = [
            self._tasks[begin + rows.start : begin + rows.stop]
            for begin in range(size * _BUSY, size * len(_COLUMNS), size)
        ]
        for n, count in (trees or {}).items():
            sums[n] = count
        counts = Counts(*sums)
        if not self.seconds:
            return CountWindow(0.0, counts, complete=complete)
        busy = columns[0]
        return CountWindow(
            self.seconds,
            counts,
            counts.emitted / self.seconds,
            counts.executed / self.seconds,
            counts.acked / self.seconds,
            counts.failed / self.seconds,
            self._share(max(busy, default=0)),
            sum(map(self._share, busy)) / len(busy) if busy else 0.0,
            self._paused(max(column, default=0) for column in columns[1:]),
            sum(busy) / 1000 / counts.executed if counts.executed else None,
            complete,
        )

    def _share(self, spent_us: int) -> float:
        return min(spent_us / 1e6 / self.seconds, 1.0)


def _added(after: Numbers, before: Numbers | None) -> Numbers:
    return after if before is None else array("q", map(sub, after, before))


def latency_of(buckets: Numbers) -> Latency:
    """Return a distribution from counts by bucket."""
    counts = {bucket: count for bucket, count in enumerate(buckets) if count > 0}
    total = sum(counts.values())
    if not total:
        return Latency()
    middle = sum(
        count * (bucket_bound_ms(bucket - 1) + bucket_bound_ms(bucket)) / 2
        for bucket, count in counts.items()
    )
    shares = (percentile_ms(counts, share) for share in (0.50, 0.95, 0.99))
    return Latency(total, middle / total, *shares)
