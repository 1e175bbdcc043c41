"""Owns the reading of history by the topology's own spouts: what each task emits up to an offset, and where that offset is.

A spout whose position is in its commits knows by itself how a position follows from what it has emitted. So each of its
tasks is run by hand: first to find out how far its history goes (`measure`), then, as often as Spark wants, to give exactly
those rows (`rows_until`); a source that gives other rows then ends the replay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from sparkstorm.api.components import ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.errors import CodecError, ReplayFailedError
from sparkstorm.executor.user_traceback import describe_error
from sparkstorm.executor.watermark_routes import TimePlan
from sparkstorm.model.codec import Codec
from sparkstorm.model.tasks import tasks_by_component
from sparkstorm.replay.plan import Plan
from sparkstorm.windowing.marks import END, LAST_MS, NEVER

_IDLE_CALLS, _IDLE_PAUSE_S = 50, 0.01  # a source that gives nothing for so long has no more history
Row = tuple[str, tuple[Any, ...]]
"""Stream and values."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far one spout task has read: rows in all, what it hands over, the newest time by stream and field."""

    rows: int
    handed: Any
    newest_ms: Mapping[tuple[str, str], int]
    has_ended: bool


@dataclass(slots=True)
class _Kept:
    """SpoutOutputCollector: keeps what is emitted; nothing is tracked, as acks mean nothing in a replay."""

    component: str
    fields_by_stream: Mapping[str, tuple[str, ...]]
    codec: Codec = field(default_factory=Codec)
    rows: list[Row] = field(default_factory=list)

    def emit(self, values: Any, message_id: Any = None, stream: str = "default") -> None:
        fields = self.fields_by_stream.get(stream)
        if fields is None or len(values) != len(fields):
            known = "; ".join(f"{name} ({', '.join(fields)})" for name, fields in self.fields_by_stream.items())
            raise ReplayFailedError(f"spout '{self.component}' emitted {len(values)} values to stream '{stream}'; it has {known}")
        try:
            self.rows.append((stream, tuple(map(self.codec.normalise, values))))
        except CodecError as error:
            raise ReplayFailedError(f"spout '{self.component}', stream '{stream}': {error}") from error

    def emit_direct(self, task: int, values: Any, message_id: Any = None, stream: str = "default") -> None:
        raise ReplayFailedError(f"spout '{self.component}' names the tasks it emits to; as data, rows do not")

    def report_error(self, error: BaseException | str) -> None:
        raise ReplayFailedError(f"spout '{self.component}' reported: {describe_error(error)}")


class SpoutReader:
    """One task of a spout, from its beginning."""

    def __init__(self, plan: Plan, spout: ReplayableSpout, component: str, index: int) -> None:
        self.component, self.index = component, index
        self._spout = spout
        tasks = tasks_by_component(plan.component_by_task)[component]
        declared = plan.topology.components[component]
        self._kept = _Kept(component, {name: stream.fields for name, stream in declared.streams.items()})
        conf = {**plan.conf, **declared.conf}
        context = TopologyContext(
            f"{plan.name}-0-0", tasks[index], component, plan.component_by_task, (tasks[index],), conf, lambda: 0
        )
        self._call(lambda: spout.open(conf, context, self._kept))

    def rows(self, most: int | None) -> Iterator[Row]:
        """What it emits, until there are that many rows (or a few more: a call is not cut), or no more come."""
        count = idle = 0
        while (most is None or count < most) and idle < _IDLE_CALLS and not self._spout.is_exhausted():
            self._call(self._spout.next_tuple)
            idle = 0 if self._kept.rows else idle + 1
            if idle:
                time.sleep(_IDLE_PAUSE_S)
            count += len(self._kept.rows)
            yield from self._kept.rows
            self._kept.rows.clear()

    def measure(self, most: int | None, clocks: Mapping[str, Mapping[str, int]], see: Callable[[Row], None]) -> Extent:
        """How far that goes; `clocks` are the places of times by stream and field, `see` is shown every row."""
        newest = {(stream, name): NEVER for stream, places in clocks.items() for name in places}
        count = 0
        for row in self.rows(most):
            count += 1
            see(row)
            stream, values = row
            for name, place in clocks[stream].items():
                at_ms = values[place]
                if type(at_ms) is int and newest[stream, name] < at_ms <= LAST_MS:
                    newest[stream, name] = at_ms
        return Extent(count, self.handed(), newest, self._spout.is_exhausted())

    def rows_until(self, extent: Extent) -> Iterator[Row]:
        """The rows of an extent once more; ReplayFailedError if the source gave others."""
        count = 0
        for row in self.rows(extent.rows):
            count += 1
            yield row
        for _ in range(_IDLE_CALLS):  # to find out that nothing follows takes calls, too
            if count == extent.rows and self.handed() != extent.handed:
                self._call(self._spout.next_tuple)
                count += len(self._kept.rows)
        if count != extent.rows or self.handed() != extent.handed:
            raise ReplayFailedError(
                f"spout '{self.component}' (task {self.index + 1} of its own) gave {count} rows up to "
                f"{self.handed()!r:.100}, before it were {extent.rows} up to {extent.handed!r:.100}: its "
                "source must not change while it is read"
            )

    def handed(self) -> Any:
        """What it hands over now."""
        return self._kept.codec.normalise(self._call(self._spout.hand_over))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._spout.close)

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ReplayFailedError:
            raise
        except (Exception, SystemExit) as error:  # user code
            raise ReplayFailedError(
                f"spout '{self.component}' (task {self.index + 1} of its own) failed over its history: {describe_error(error)}"
            ) from error


def clocks_of(plan: Plan, component: str) -> dict[str, dict[str, int]]:
    """By stream: the fields that hold times for those who listen, with their places."""
    times = TimePlan(plan.topology, plan.conf)
    found: dict[str, dict[str, int]] = {}
    for name, stream in plan.topology.components[component].streams.items():
        wanted = {times.settings[id].timestamp_field for id in times.listeners(component, name) if id in times.settings}
        found[name] = {f: stream.fields.index(f) for f in wanted if f is not None}
    return found


def clock_places(plan: Plan, component: str, extent: Extent) -> list[tuple[Any, int]]:
    """What a live task of the spout would keep of time: a clock for each stream and subscriber."""
    times = TimePlan(plan.topology, plan.conf)
    places = [
        (("h", name, id), extent.newest_ms.get((name, times.settings[id].timestamp_field or ""), NEVER))
        for name in plan.topology.components[component].streams
        for id in times.listeners(component, name)
        if id in times.settings
    ]
    return [(place, at_ms) for place, at_ms in places if at_ms != NEVER]


def newest_by_channel(plan: Plan, extents: Mapping[str, Sequence[Extent]]) -> dict[tuple[int, str, str], int]:
    """How far event time has come in each spout task's rows; one that had none and ended holds nobody back."""
    return {
        (task, stream, name): END if at_ms == NEVER and extent.has_ended else at_ms
        for spout, tasks in extents.items()
        for task, extent in zip(plan.tasks(spout), tasks, strict=True)
        for (stream, name), at_ms in extent.newest_ms.items()
    }
