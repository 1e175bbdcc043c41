"""Base classes of bolts with windows and timers: WindowedBolt, FoldingBolt, TimedBolt, and the
Window they get.

After Storm's BaseWindowedBolt and IWindowedBolt; keys, folding, sessions, allowed lateness and
timers go beyond them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self

from sparkstorm.api.collector import BasicOutputCollector
from sparkstorm.api.components import Conf, Outputs, Stateful
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.inputs import check_keys
from sparkstorm.api.storm_names import refuse_name
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.common.model.topology import Component, Stream, Topology
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.windowing import settings
from sparkstorm.common.windowing.timers import Timer
from sparkstorm.common.windowing.watermarks import LAST_MS
from sparkstorm.common.windowing.window_contents import Content


@dataclass(frozen=True, slots=True)
class Count:
    """Length or slide of a window in tuples."""

    value: int


@dataclass(frozen=True, slots=True)
class Duration:
    """Length of time in whole milliseconds, up to 2**53; InvalidTopologyError for any other."""

    ms: int

    def __post_init__(self) -> None:
        ms = self.ms
        if isinstance(ms, bool) or not isinstance(ms, int) or abs(ms) > LAST_MS:
            raise InvalidTopologyError(
                f"a Duration is {show(ms)}; write a whole number of milliseconds, or Duration.seconds(1.5)"
            )

    @classmethod
    def millis(cls, count: int) -> Duration:
        """Return a duration of milliseconds."""
        return cls(count)

    @classmethod
    def seconds(cls, count: float) -> Duration:
        """Return a duration of seconds."""
        return cls(_rounded(count, 1000))

    @classmethod
    def minutes(cls, count: float) -> Duration:
        """Return a duration of minutes."""
        return cls(_rounded(count, 60_000))

    @classmethod
    def hours(cls, count: float) -> Duration:
        """Return a duration of hours."""
        return cls(_rounded(count, 3_600_000))


def _rounded(count: float, unit_ms: int) -> int:
    try:
        return round(count * unit_ms)
    except (TypeError, ValueError, OverflowError):  # text, not-a-number, infinity
        raise InvalidTopologyError(
            f"a Duration of {show(count)}: write a number, as Duration.seconds(1.5)"
        ) from None


class Window:
    """One window of one key: [start, end) in milliseconds, or in numbers of tuples for windows by
    count.
    """

    __slots__ = ("_content", "_keeps_expired", "end", "is_update", "key", "start")

    def __init__(
        self,
        key: tuple[Any, ...],
        start: int,
        end: int,
        content: Content,
        is_update: bool = False,
        keeps_expired: bool = True,
    ) -> None:
        self.key = key
        self.start = start
        self.end = end
        # it has fired before, and a tuple within the allowed lateness has changed it
        self.is_update = is_update
        self._content = content
        self._keeps_expired = keeps_expired

    def get(self) -> list[Tuple]:
        """Return every tuple, ordered by time, then sender, then arrival."""
        return self._content.tuples

    def get_new(self) -> list[Tuple]:
        """Return the tuples that were not in the window before."""
        return self._content.new

    def get_expired(self) -> list[Tuple]:
        """Return the tuples that have left the window since the one before."""
        if not self._keeps_expired:
            raise InvalidTopologyError(
                "this bolt does not keep expired tuples: set keeps_expired = True on its class"
            )
        return self._content.expired

    @property
    def value(self) -> Any:
        """Accumulator of a FoldingBolt for this window."""
        return self._content.value

    @property
    def last_ms(self) -> int:
        """Last millisecond of the window: the event time of its result for further windows."""
        return self.end - 1

    def __iter__(self) -> Iterator[Tuple]:
        return iter(self._content.tuples)

    def __len__(self) -> int:
        return len(self._content.tuples)

    def __repr__(self) -> str:
        return f"Window({self.key!r}, [{self.start}, {self.end}){', update' if self.is_update else ''})"


class Timers(Protocol):
    """Timers of a task by name, a value or a tuple of values; stored in the epoch's commit."""

    def set_event_timer(self, name: Any, at_ms: int) -> None:
        """Call `on_timer` when the watermark has reached a time; setting a name again moves its
        timer.
        """

    def set_processing_timer(self, name: Any, at_ms: int) -> None:
        """Call `on_timer` when the clock (`context.now_ms`) has reached a time."""

    def cancel_event_timer(self, name: Any) -> None:
        """Delete a timer if it is set."""

    def cancel_processing_timer(self, name: Any) -> None:
        """Delete a timer if it is set."""

    @property
    def watermark_ms(self) -> int:
        """Watermark of the task; -1 before the first tuple."""


class TimeAware(Stateful):
    """Settings that windowed and timed bolts share; every `with_` method returns the bolt, as in
    Storm.
    """

    outputs: Outputs = ()
    blocking: ClassVar[bool] = False
    in_order: ClassVar[bool] = True
    timers: Timers
    _time: Mapping[str, Any] = {settings.TIMESTAMP_FIELD: None}

    if not TYPE_CHECKING:  # else every name would be one

        def __getattr__(self, name: str) -> NoReturn:
            """Name a method of Storm's by its name here."""
            refuse_name(self, name)

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        """Prepare the task: called once in the worker, before the first tuple."""

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        """Handle a timer that is due; an exception undoes what this call did, and it is tried
        again.
        """

    def cleanup(self) -> None:
        """The worker stops in an orderly way; not called when it is killed."""

    def with_timestamp_field(self, field: str) -> Self:
        """Take event time from this field of every input, in whole milliseconds from 0 on. Without
        it, time is the clock's.
        """
        return self._with({settings.TIMESTAMP_FIELD: field})

    def with_lag(self, lag: Duration) -> Self:
        """Accept as on time a tuple that is this much older than the newest one of its sender."""
        return self._with({settings.LAG_MS: _ms("with_lag", lag)})

    def with_late_tuple_stream(self, stream: str) -> Self:
        """Emit late tuples to this stream, which need not be declared, as (component, stream,
        time_ms, values by field).
        """
        return self._with({settings.LATE_STREAM: stream})

    def time_conf(self) -> dict[str, Any]:
        """Return these settings as the component's configuration."""
        return dict(self._time)

    def _check_inputs(self, id: str, inputs: Mapping[tuple[str, str], tuple[str, ...]]) -> None:
        """Refuse inputs that do not fit; `inputs` has the fields by component and stream."""

    def _with(self, changed: Mapping[str, Any]) -> Self:
        self._time = {**self._time, **changed}
        return self


class TimedBolt(TimeAware):
    """Bolt with timers and a key-value state: `execute` per tuple, `on_timer` when a timer is due.

    With a timestamp field a tuple is acked when it is stored and executed when the watermark has
    passed it, so tuples and timers come in event-time order. `in_order = False` executes tuples at
    once. Late tuples go to the late stream, or are dropped and counted.
    """

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Process one tuple; an exception fails it and undoes what it emitted, put and set."""
        raise NotImplementedError


class WindowedBolt(TimeAware):
    """Bolt that is called once per window and key (Storm's IWindowedBolt); tuples are acked when
    stored.

    Inputs must be grouped by `key_fields` (or `with_key`). Windows by count follow event time if
    there is a timestamp field (unless `in_order = False`), else arrival. `keeps_expired = False`
    halves what windows store, for bolts that do not call `get_expired`.
    """

    keeps_expired: ClassVar[bool] = True

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Process one window; an exception undoes what this call did, and it is tried again."""
        raise NotImplementedError

    def with_window(self, length: Count | Duration, slide: Count | Duration | None = None) -> Self:
        """Make windows that end at every multiple of the slide; without one they tumble."""
        shape: dict[str, Any] = dict.fromkeys(settings.SHAPE_KEYS)
        shape[settings.LENGTH_COUNT if isinstance(length, Count) else settings.LENGTH_MS] = _number(
            length
        )
        if slide is not None:
            shape[settings.SLIDE_COUNT if isinstance(slide, Count) else settings.SLIDE_MS] = (
                _number(slide)
            )
        return self._with(shape)

    def with_tumbling_window(self, length: Count | Duration) -> Self:
        """Make windows that follow each other."""
        return self.with_window(length)

    def with_session_window(self, gap: Duration) -> Self:
        """Make windows of tuples of one key with less than the gap between neighbours."""
        gap_ms = _ms("with_session_window", gap)
        return self._with({**dict.fromkeys(settings.SHAPE_KEYS), settings.SESSION_GAP_MS: gap_ms})

    def with_key(self, *fields: str) -> Self:
        """Make windows per value of these fields."""
        if stray := [name for name in fields if not isinstance(name, str)]:
            raise InvalidTopologyError(
                f"with_key takes names of fields, as in with_key('word'), not {show(stray[0])}"
            )
        self.key_fields = fields
        return self

    def with_allowed_lateness(self, lateness: Duration) -> Self:
        """Accept tuples for so long after their window has fired; it then fires again, as an
        update.
        """
        return self._with({settings.LATENESS_MS: _ms("with_allowed_lateness", lateness)})


class FoldingBolt(WindowedBolt):
    """Windowed bolt that keeps one accumulator per window and key: `window.value`.

    Accumulators are values that a tuple may carry; all but numbers and text are copied at every
    tuple. Sessions need `merge`; sliding windows share their work with it.
    """

    keeps_expired: ClassVar[bool] = False

    def initial(self) -> Any:
        """Return the accumulator of an empty window."""
        raise NotImplementedError

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        """Return the accumulator with one more tuple."""
        raise NotImplementedError

    def merge(self, one: Any, other: Any) -> Any:
        """Return two accumulators put together; `one` holds the earlier tuples."""
        raise NotImplementedError


def late_stream_of(conf: Mapping[str, Any]) -> dict[str, Stream]:
    """Return the late stream that a timed component's settings declare, by its name."""
    name = settings.late_stream_of(conf)
    return {} if name is None else {name: Stream(settings.LATE_FIELDS)}


def check_times(topology: Topology) -> None:
    """Refuse settings of windowed and timed bolts that contradict each other, and inputs that do
    not fit a bolt's key.
    """
    for component in topology.bolts:
        if isinstance(component.instance, TimeAware):
            check_bolt(topology, component, component.instance, {})
    check_keys(topology)


def check_bolt(
    topology: Topology, component: Component, bolt: TimeAware, conf: Mapping[str, Any]
) -> settings.TimeSettings:
    """Return the settings of a windowed or timed bolt under a topology's configuration;
    InvalidTopologyError names a mistake.
    """
    read = settings.settings_of(component, conf)
    if read is None:
        raise InvalidTopologyError(
            f"component '{component.id}' was not added by set_bolt: its settings are missing"
        )
    if isinstance(bolt.key_fields, str):
        raise InvalidTopologyError(
            f"component '{component.id}': key_fields is the text '{bolt.key_fields}'; write a tuple of field names"
        )
    inputs = {
        (s.component, s.stream): topology.components[s.component].streams[s.stream].fields
        for s in component.inputs
    }
    settings.check_fields(component.id, read, tuple(bolt.key_fields), inputs)
    bolt._check_inputs(component.id, inputs)
    where = f"component '{component.id}'"
    if bolt.blocking:
        raise InvalidTopologyError(
            f"{where}: bolts with windows or timers cannot be blocking; block in a later bolt"
        )
    # else a topology's configuration may still set it
    if isinstance(bolt, WindowedBolt) and read.shape is None and conf:
        raise InvalidTopologyError(
            f"{where} has no window: use with_window, with_session_window or {settings.LENGTH_MS}"
        )
    if (
        isinstance(bolt, FoldingBolt)
        and type(bolt).merge is FoldingBolt.merge
        and read.shape
        and read.shape.kind == "session"
    ):
        raise InvalidTopologyError(
            f"{where}: sessions need merge as well as fold, since one tuple can join two of them"
        )
    return read


def _number(length: Count | Duration) -> int:
    if not isinstance(length, Count | Duration):
        raise InvalidTopologyError(
            f"the length or slide of a window is {show(length)}; write Duration.seconds(60), or Count(60) for tuples"
        )
    return length.value if isinstance(length, Count) else length.ms


def _ms(verb: str, duration: Duration) -> int:
    if not isinstance(duration, Duration):
        raise InvalidTopologyError(
            f"{verb}({show(duration)}): write a Duration, as Duration.seconds(10)"
        )
    return duration.ms
