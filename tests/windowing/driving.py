"""Driver of windowed and timed bolts without a cluster: rows and marks in, emitted rows out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparkstorm.api import (
    BasicOutputCollector,
    FoldingBolt,
    TimedBolt,
    Timer,
    Tuple,
    Window,
    WindowedBolt,
)
from sparkstorm.common.grouping.routes import Target
from sparkstorm.common.model.topology import Grouping
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.windowing.settings import TIMESTAMP_FIELD, read_settings
from sparkstorm.common.windowing.watermarks import END, SourceClock
from sparkstorm.data_plane.executor.emitter import Emitter, Route
from sparkstorm.data_plane.executor.runner import BasicCollector, FailedInput, RetryPolicy
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.windowed_runner import TimedRunner

FIELDS = ("key", "ts", "value")
Event = tuple[Any, Any, Any]


class Listing(WindowedBolt):
    """Emits what each window holds."""

    outputs: Any = ("window",)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit(
            (
                [
                    list(window.key),
                    window.start,
                    window.end,
                    window.is_update,
                    [t["value"] for t in window.get()],
                    [t["value"] for t in window.get_new()],
                    [t["value"] for t in window.get_expired()],
                ],
            )
        )


class Adding(FoldingBolt):
    """Emits how many and how much; every window for itself."""

    outputs: Any = ("window",)

    def initial(self) -> list[int]:
        return [0, 0]

    def fold(self, accumulator: list[int], tup: Tuple) -> list[int]:
        return [accumulator[0] + 1, accumulator[1] + tup["value"]]

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit(
            ([list(window.key), window.start, window.end, window.is_update, window.value],)
        )


class Merging(Adding):
    """The same, put together from shared cells."""

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return [one[0] + other[0], one[1] + other[1]]


class Ordered(TimedBolt):
    """Emits tuples and timers in the order in which they come; a value sets a timer that much
    later.
    """

    outputs: Any = ("what",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((["row", tup["ts"], tup["key"], tup["value"]],))
        self.timers.set_event_timer(tup["key"], tup["ts"] + tup["value"])

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        collector.emit((["timer", timer.at_ms, timer.name],))


class Driver:
    """One task around a bolt; `state` and `times` may be a former driver's, as after a restart."""

    def __init__(
        self, bolt: WindowedBolt | TimedBolt, stored: list[Any] | None = None, retries: int = 0
    ) -> None:
        codec = Codec()
        conf = bolt.time_conf()
        self.settings = read_settings("bolt", conf, conf)
        self.state = MemoryState(codec, is_strict=True)
        self.times = MemoryState(codec, is_strict=True)
        self.times.load(stored or [])
        self.errors: list[str] = []
        self.now_ms = 0
        routes = {
            name: Route(Source("bolt", 9, name, tuple(fields)), codec, is_direct=False)
            for name, fields in (
                ("default", bolt.outputs),
                ("late", ("component", "stream", "time_ms", "values")),
            )
        }
        self._targets = {name: Target(1, [], False) for name in routes}
        for name, route in routes.items():
            route.subscribe(Grouping("global"), [self._targets[name]], 9, 0)
        emitter = Emitter("bolt", routes, is_strict=True)
        collector = BasicCollector(emitter, 9, lambda failure: self.errors.append(failure.text))
        bolt.init_state(self.state)
        self.runner = TimedRunner(
            bolt,
            self.settings,
            emitter,
            self.state,
            self.times,
            collector,
            self.source,
            lambda: self.now_ms,
            RetryPolicy(retries, 100),
        )
        self._sources: dict[int, Source] = {}
        self._emitter = emitter

    def source(self, task: int, stream: str = "default") -> Source:
        return Source("spout", task, stream, FIELDS)

    def rows(self, events: Iterable[Event], task: int = 1) -> list[FailedInput]:
        source = self._sources.setdefault(task, self.source(task))
        return self._rows(events, source)

    def late_rows(self, events: Sequence[Event]) -> list[FailedInput]:
        return self._rows(events, Source("spout", 1, "default", FIELDS, is_late=True))

    def _rows(self, events: Iterable[Event], source: Source) -> list[FailedInput]:
        rows = [(event, 0, source) for event in events]
        failed = self.runner.execute_rows(rows)
        return [(Tuple(*rows[place]), failure) for place, failure in failed]

    def advance(self, watermark_ms: int, most: int = 1 << 30) -> None:
        before = -1
        while before != len(self.runner.given_up):  # a call stops behind one that is given up
            before = len(self.runner.given_up)
            self.runner.advance(watermark_ms, self.now_ms, most)

    def end(self) -> None:
        self.advance(END)

    def emitted(self, stream: str = "default") -> list[Any]:
        return [
            values[0] if stream == "default" else values
            for values, _, _ in self._targets[stream].rows
        ]

    def stored(self) -> list[Any]:
        """Return what a commit would keep now."""
        self.times.take_changes()
        codec = Codec()
        kept: list[Any] = codec.unpack(codec.pack(self.times.snapshot()))
        return kept


def split_late(
    events: Sequence[Event], lag: int, lateness: int = 0
) -> tuple[list[Event], list[Event]]:
    """(on time, late) by the definition, from one sender."""
    clock = SourceClock(lag, lateness)
    on_time: list[Event] = []
    late: list[Event] = []
    for event in events:
        (late if clock.is_late(event[1]) else on_time).append(event)
    return on_time, late


def timed(bolt: Any, **conf: Any) -> Any:
    """A bolt with event time and these settings on top."""
    return bolt._with({TIMESTAMP_FIELD: "ts", **conf})
