"""Owns what a user derives from for windows and timers: WindowedBolt, FoldingBolt, TimedBolt, and the Window they get.

After Storm's BaseWindowedBolt and IWindowedBolt; keys, folding, sessions, allowed lateness and timers go beyond them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from sparkstorm.api.collector import BasicOutputCollector
from sparkstorm.api.components import Conf, Outputs, Stateful
from sparkstorm.api.context import TopologyContext
from sparkstorm.errors import InvalidTopologyError
from sparkstorm.model.tasks import task_count
from sparkstorm.model.topology import Component, Stream, Subscription, Topology
from sparkstorm.model.tuples import Tuple
from sparkstorm.windowing import settings
from sparkstorm.windowing.timers import Timer
from sparkstorm.windowing.window_contents import Content


@dataclass(frozen=True, slots=True)
class Count:
    """A length or slide in tuples (Storm's BaseWindowedBolt.Count)."""

    value: int


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time in whole milliseconds (Storm's BaseWindowedBolt.Duration)."""

    ms: int

    @classmethod
    def millis(cls, count: int) -> Duration:
        """So many milliseconds."""
        return cls(count)

    @classmethod
    def seconds(cls, count: float) -> Duration:
        """So many seconds."""
        return cls(round(count * 1000))

    @classmethod
    def minutes(cls, count: float) -> Duration:
        """So many minutes."""
        return cls(round(count * 60_000))

    @classmethod
    def hours(cls, count: float) -> Duration:
        """So many hours."""
        return cls(round(count * 3_600_000))


class Window:
    """One window of one key: [start, end) in milliseconds, or in numbers of tuples for windows by count."""

    __slots__ = ("_content", "_keeps_expired", "end", "is_update", "key", "start")

    def __init__(
        self, key: tuple[Any, ...], start: int, end: int, content: Content, is_update: bool = False, keeps_expired: bool = True
    ) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.is_update = is_update  # it has fired before; a tuple that came tardy has changed it
        self._content = content
        self._keeps_expired = keeps_expired

    def get(self) -> list[Tuple]:
        """Every tuple, ordered by time, then sender, then arrival."""
        return self._content.tuples

    def get_new(self) -> list[Tuple]:
        """Those that were not in the window one slide before."""
        return self._content.new

    def get_expired(self) -> list[Tuple]:
        """Those that were in the window one slide before and are no longer."""
        if not self._keeps_expired:
            raise InvalidTopologyError("this bolt does not keep expired tuples: set keeps_expired = True on its class")
        return self._content.expired

    @property
    def value(self) -> Any:
        """What a FoldingBolt has folded this window's tuples into."""
        return self._content.value

    @property
    def last_ms(self) -> int:
        """The last moment inside: the right time for a result that goes on into further windows."""
        return self.end - 1

    def __iter__(self) -> Iterator[Tuple]:
        return iter(self._content.tuples)

    def __len__(self) -> int:
        return len(self._content.tuples)

    def __repr__(self) -> str:
        return f"Window({self.key!r}, [{self.start}, {self.end}){', update' if self.is_update else ''})"


class Timers(Protocol):
    """A task's timers: one per name and axis, kept in the epoch's commit; a name is a value or a tuple of values."""

    def set_event_timer(self, name: Any, at_ms: int) -> None:
        """Call `on_timer` when the watermark has come that far; setting a name again moves it."""

    def set_processing_timer(self, name: Any, at_ms: int) -> None:
        """Call `on_timer` when the clock (`context.now_ms`) has come that far."""

    def cancel_event_timer(self, name: Any) -> None:
        """Forget a timer; one that is not set is no error."""

    def cancel_processing_timer(self, name: Any) -> None:
        """Forget a timer; one that is not set is no error."""

    @property
    def watermark_ms(self) -> int:
        """How far event time has come: nothing older will come on time. -1 before anything is known."""


class TimeAware(Stateful):
    """Settings of bolts that live by event time; every `with_` method returns the bolt, as in Storm."""

    outputs: Outputs = ()
    blocking: ClassVar[bool] = False
    key_fields: Sequence[str] = ()
    in_order: ClassVar[bool] = True
    timers: Timers
    _time: Mapping[str, Any] = {settings.TIMESTAMP_FIELD: None}

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        """Called once per task before the first tuple, in the worker."""

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        """A timer is due; raising undoes what this call did, and it is tried again."""

    def cleanup(self) -> None:
        """The worker stops in an orderly way; not called when it is killed."""

    def with_timestamp_field(self, field: str) -> Self:
        """Event time, from this field of every input: whole milliseconds from 0 on. Without it: processing time."""
        return self._with({settings.TIMESTAMP_FIELD: field})

    def with_lag(self, lag: Duration) -> Self:
        """How far behind the newest tuple of its sender a tuple may be and still be on time."""
        return self._with({settings.LAG_MS: lag.ms})

    def with_late_tuple_stream(self, stream: str) -> Self:
        """Late tuples go to this stream (declared by itself) as (component, stream, time_ms, values by field)."""
        return self._with({settings.LATE_STREAM: stream})

    def time_conf(self) -> dict[str, Any]:
        """The component's configuration that these settings make."""
        return dict(self._time)

    def _with(self, changed: Mapping[str, Any]) -> Self:
        self._time = {**self._time, **changed}
        return self


class TimedBolt(TimeAware):
    """A bolt with timers and a key-value state: `execute` per tuple, `on_timer` when a timer is due.

    With a timestamp field, tuples are acked when they are stored and wait until the watermark has passed them, so that they
    and the timers come in the order of event time whatever the order of arrival (`in_order = False`: at once, and timers
    when the watermark gets there). Late tuples do not reach `execute`: they go to the late stream, or are dropped and
    counted.
    """

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Process one tuple; raising fails it and undoes what it emitted, put and set."""
        raise NotImplementedError


class WindowedBolt(TimeAware):
    """A bolt that is called once per window and key (Storm's IWindowedBolt); its tuples are acked when they are stored.

    `key_fields` (or `with_key`) makes windows per value of these fields: group by the same fields. Windows by count
    follow the order of event time if there is a timestamp field (unless `in_order = False`), else that of arrival.
    `keeps_expired = False` halves what windows keep where nobody asks for expired tuples.
    """

    keeps_expired: ClassVar[bool] = True

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Process one window; raising undoes what this call did, and it is tried again."""
        raise NotImplementedError

    def with_window(self, length: Count | Duration, slide: Count | Duration | None = None) -> Self:
        """Windows of this length that end at every multiple of the slide; without a slide they tumble."""
        shape: dict[str, Any] = dict.fromkeys(settings.SHAPE_KEYS)
        shape[settings.LENGTH_COUNT if isinstance(length, Count) else settings.LENGTH_MS] = _number(length)
        if slide is not None:
            shape[settings.SLIDE_COUNT if isinstance(slide, Count) else settings.SLIDE_MS] = _number(slide)
        return self._with(shape)

    def with_tumbling_window(self, length: Count | Duration) -> Self:
        """Windows that follow each other."""
        return self.with_window(length)

    def with_session_window(self, gap: Duration) -> Self:
        """Windows of tuples of one key with less than the gap between neighbours."""
        return self._with({**dict.fromkeys(settings.SHAPE_KEYS), settings.SESSION_GAP_MS: gap.ms})

    def with_key(self, *fields: str) -> Self:
        """Windows per value of these fields."""
        self.key_fields = fields
        return self

    def with_allowed_lateness(self, lateness: Duration) -> Self:
        """How long after its window has fired a tuple still changes it; the window then fires again, as an update."""
        return self._with({settings.LATENESS_MS: lateness.ms})


class FoldingBolt(WindowedBolt):
    """A windowed bolt that keeps one accumulator per window and key instead of the tuples: `window.value`.

    Accumulators are values of the codec's closed set; numbers and text are cheapest (others are copied at every tuple).
    `merge` puts two accumulators together: sessions need it, and sliding windows share their work if it is there.
    """

    keeps_expired: ClassVar[bool] = False

    def initial(self) -> Any:
        """The accumulator of an empty window."""
        raise NotImplementedError

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        """The accumulator with one more tuple."""
        raise NotImplementedError

    def merge(self, one: Any, other: Any) -> Any:
        """Two accumulators put together; `one` holds the earlier tuples."""
        raise NotImplementedError


def late_stream_of(conf: Mapping[str, Any]) -> dict[str, Stream]:
    """The late stream that a timed component's settings declare."""
    name = conf.get(settings.LATE_STREAM) if settings.TIMESTAMP_FIELD in conf else None
    return {name: Stream(settings.LATE_FIELDS)} if isinstance(name, str) else {}


def check_times(topology: Topology) -> None:
    """Settings of windowed and timed bolts must make sense, and their inputs have the fields they name."""
    for component in topology.bolts:
        if isinstance(component.instance, TimeAware):
            check_bolt(topology, component, component.instance, {})
            if isinstance(component.instance, WindowedBolt) and component.instance.key_fields:
                _check_keyed_inputs(component, tuple(component.instance.key_fields))


def _check_keyed_inputs(component: Component, key: tuple[str, ...]) -> None:
    """Require all tuples of a key in one task; `all`, `partial_key`, `direct` and custom groupings are the user's choice."""
    tasks = task_count(component, {})
    where = f"component '{component.id}': windows by {', '.join(key)} in {tasks} tasks need all tuples of a key in one task, but"
    first: Subscription | None = None
    for each in component.inputs if tasks > 1 else ():
        kind, stream = each.grouping.kind, f"stream '{each.stream}' of '{each.component}'"
        names = ", ".join(f"'{name}'" for name in (each.component, *key))
        if kind in ("shuffle", "none", "local_or_shuffle"):
            raise InvalidTopologyError(f"{where} {stream} comes by {kind} grouping; use fields_grouping({names}), or one task")
        if kind == "fields" and not set(each.grouping.fields) <= set(key):
            raise InvalidTopologyError(
                f"{where} {stream} is grouped by {', '.join(each.grouping.fields)}; use fields_grouping({names}), or one task"
            )
        if kind not in ("fields", "global"):
            continue
        if first is not None and (first.grouping.kind, first.grouping.fields) != (kind, each.grouping.fields):
            raise InvalidTopologyError(
                f"{where} {stream} and stream '{first.stream}' of '{first.component}' are grouped differently; "
                "group every input by the same fields in the same order, or use one task"
            )
        first = first or each


def check_bolt(topology: Topology, component: Component, bolt: TimeAware, conf: Mapping[str, Any]) -> settings.TimeSettings:
    """The settings of one such bolt under a topology's configuration; InvalidTopologyError names what is wrong."""
    read = settings.settings_of(component, conf)
    if read is None:
        raise InvalidTopologyError(f"component '{component.id}' was not added by set_bolt: its settings are missing")
    if isinstance(bolt.key_fields, str):
        raise InvalidTopologyError(
            f"component '{component.id}': key_fields is the text '{bolt.key_fields}'; write a tuple of field names"
        )
    inputs = {(s.component, s.stream): topology.components[s.component].streams[s.stream].fields for s in component.inputs}
    settings.check_fields(component.id, read, tuple(bolt.key_fields), inputs)
    where = f"component '{component.id}'"
    if bolt.blocking:
        raise InvalidTopologyError(f"{where}: bolts with windows or timers cannot be blocking; block in a bolt behind them")
    if isinstance(bolt, WindowedBolt) and read.shape is None and conf:  # else a topology's configuration may still say
        raise InvalidTopologyError(f"{where} has no window: use with_window, with_session_window or {settings.LENGTH_MS}")
    if isinstance(bolt, FoldingBolt) and type(bolt).merge is FoldingBolt.merge and read.shape and read.shape.kind == "session":
        raise InvalidTopologyError(f"{where}: sessions need a merge beside fold, since one tuple can join two of them")
    return read


def _number(length: Count | Duration) -> int:
    return length.value if isinstance(length, Count) else length.ms
