"""Windows by local day, week and month: periods of a zone's calendar, and windowed bolts over them.

A day has 23 or 25 hours when clocks change, so windows of one length cannot stand for days. Left
out: a kind of windows in the core. Cells and firings are keyed state and timers, as a user's bolt
has them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal, NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from sparkstorm.api import BasicOutputCollector, Duration, FoldingBolt, TimedBolt, Timer, Tuple
from sparkstorm.api.functions import WindowShape
from sparkstorm.api.signatures import check_methods
from sparkstorm.api.windows import Window, WindowedBolt
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.windowing.settings import read_settings
from sparkstorm.common.windowing.window_contents import Content, own_initial

_DAY_MS = 86_400_000
_MISSING: Any = object()
# places in the state
_CELL = "window"
# what the builder, workers and replays read of a bolt
_OF_BOLT = (
    "input_key",
    "effects",
    "blocking",
    "order_insensitive",
    "state_version",
    "migrate_state",
    "state_key_type",
    "state_type",
)
_ROW = "window row"


@dataclass(frozen=True, slots=True)
class CalendarShape(WindowShape):
    """Windows of whole days, weeks or months of a zone, made by `local_day`, `local_week` and
    `local_month`.
    """

    unit: Literal["day", "week", "month"] = "day"
    zone: str = "UTC"
    offset_ms: int = 0

    def span(self, at_ms: int) -> tuple[int, int]:
        """Return the start of the period of a time, and that of the next."""
        bounds = _bounds_around(self, at_ms // _DAY_MS)
        place = bisect_right(bounds, at_ms)
        return bounds[place - 1], bounds[place]

    def applied_to(self, bolt: WindowedBolt) -> Any:
        """Return the bolt over these windows."""
        return CalendarBolt(bolt, self)

    def start_of(self, first: date) -> int:
        """Return when the period of a date begins: the first moment at which the zone's clocks show
        midnight and the offset, or would.
        """
        wall = datetime.combine(first, time()) + timedelta(milliseconds=self.offset_ms)
        return round(wall.replace(tzinfo=ZoneInfo(self.zone)).timestamp() * 1000)

    def first_of(self, day: date) -> date:
        """Return the date on which the period of a date begins."""
        if self.unit == "week":
            return day - timedelta(days=day.weekday())
        return day.replace(day=1) if self.unit == "month" else day

    def after(self, first: date) -> date:
        """Return the date on which the next period begins."""
        days = {"day": 1, "week": 7, "month": 32}[self.unit]
        return self.first_of(first + timedelta(days=days))


def local_day(zone: str, offset: Duration | None = None) -> CalendarShape:
    """Return windows of the days of a zone, as "Europe/Berlin"; `offset=Duration.hours(6)` has them
    begin at six in the morning.
    """
    return _shape("day", zone, offset)


def local_week(zone: str, offset: Duration | None = None) -> CalendarShape:
    """Return windows of the weeks of a zone, from Monday on; `offset=Duration.hours(-24)` has them
    begin on Sunday.
    """
    return _shape("week", zone, offset)


def local_month(zone: str, offset: Duration | None = None) -> CalendarShape:
    """Return windows of the months of a zone."""
    return _shape("month", zone, offset)


class CalendarBolt(TimedBolt):
    """A windowed or folding bolt over days, weeks or months of a zone.

    Windows go by event time, and tuples come in its order. The bolt keeps its key, timestamp field,
    lag and late stream; `get_expired` and an allowed lateness are left out.

    >>> from sparkstorm.api import WindowedBolt
    >>> class Counts(WindowedBolt):
    ...     outputs = ("user", "day_ms", "count")
    ...     def execute(self, window, collector):
    ...         collector.emit((*window.key, window.start, len(window)))
    >>> daily = CalendarBolt(Counts().with_key("user"), local_day("Europe/Berlin"))
    >>> daily.with_timestamp_field("at_ms").outputs
    ('user', 'day_ms', 'count')
    """

    wraps = "_bolt"

    def __init__(self, bolt: WindowedBolt, shape: CalendarShape) -> None:
        if not isinstance(bolt, WindowedBolt):
            raise InvalidTopologyError(
                f"CalendarBolt: {show(bolt)} is no WindowedBolt or FoldingBolt"
            )
        if not isinstance(shape, CalendarShape):
            raise InvalidTopologyError(
                f"CalendarBolt: {show(shape)} is no calendar: use local_day, local_week or local_month"
            )
        settings = read_settings("CalendarBolt", bolt.time_conf(), {})
        if settings.shape is not None:
            raise InvalidTopologyError(
                f"CalendarBolt: {type(bolt).__name__} has windows already; drop with_window, or with_session_window"
            )
        if settings.lateness_ms:
            raise InvalidTopologyError(
                "CalendarBolt: these windows fire once, so they have no allowed lateness: give a lag instead"
            )
        self._bolt = bolt
        self._shape = shape
        self._time_field: str | None = None
        self.outputs = bolt.outputs
        self.key_fields = bolt.key_fields
        for name in _OF_BOLT:
            if hasattr(bolt, name):
                setattr(self, name, getattr(bolt, name))
        if settings.timestamp_field is not None:
            self.with_timestamp_field(settings.timestamp_field)
        if settings.lag_ms:
            self.with_lag(Duration(settings.lag_ms))
        if settings.late_stream is not None:
            self.with_late_tuple_stream(settings.late_stream)

    def with_timestamp_field(self, field: str) -> CalendarBolt:
        """Take event time from this field, in whole milliseconds from 0 on."""
        self._time_field = field
        return super().with_timestamp_field(field)

    def prepare(self, conf: Any, context: Any) -> None:
        """Prepare the bolt."""
        fold = self._bolt if isinstance(self._bolt, FoldingBolt) else None
        self._fold = fold
        self._initial = None if fold is None else own_initial(fold.initial)
        self._bolt.timers = self.timers
        self._bolt.prepare(conf, context)

    def init_state(self, state: Any) -> None:
        """Take the state, which the bolt shares."""
        super().init_state(state)
        self._bolt.init_state(state)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Put a tuple into its window."""
        if tup.is_tick:
            return
        at_ms = tup[self._time_field or ""]
        try:
            start, end = self._shape.span(at_ms)
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"field '{self._time_field}' holds {at_ms}, in no {self._shape.unit} of the years 1 to 9999: "
                "a time is in milliseconds"
            ) from error
        key = tuple([tup[name] for name in self.key_fields])
        place = (_CELL, start, *key)
        former = self.state.get(place, _MISSING)
        if former is _MISSING:
            self.timers.set_event_timer(place, end)
        if self._fold is not None and self._initial is not None:
            begun = self._initial() if former is _MISSING else former
            self.state.put(place, self._fold.fold(begun, tup))
        else:
            number = 0 if former is _MISSING else former
            row = [tup.component, tup.task, tup.stream, *tup.values]
            self.state.put((_ROW, start, number, *key), row)
            self.state.put(place, number + 1)

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        """Pass a window that is over, or a timer of the bolt's, to the bolt."""
        name = timer.name
        # the bolt's own timers may have any name
        if not isinstance(name, tuple) or name[:1] != (_CELL,) or name not in self.state:
            self._bolt.on_timer(timer, collector)
            return
        _, start, *parts = name
        key = tuple(parts)
        value = self.state[name]
        self.state.delete(name)
        content = Content(value=value)
        if self._fold is None:
            places = [(_ROW, start, number, *key) for number in range(value)]
            tuples = [self._tuple(self.state[place]) for place in places]
            content = Content(tuples, tuples)
            for place in places:
                self.state.delete(place)
        self._bolt.execute(CalendarWindow(key, start, timer.at_ms, content), collector)

    def cleanup(self) -> None:
        """Clean the bolt up."""
        self._bolt.cleanup()

    def _check_inputs(self, id: str, inputs: Any) -> None:
        check_methods(id, self._bolt)
        self._bolt._check_inputs(id, inputs)
        if self._time_field is None:
            raise InvalidTopologyError(
                f"component '{id}': days, weeks and months go by event time: name its field, with_timestamp_field(...) or time="
            )
        self._inputs = dict(inputs)

    def _tuple(self, row: list[Any]) -> Tuple:
        component, task, stream, *values = row
        return Tuple(
            tuple(values), 0, Source(component, task, stream, self._inputs[component, stream])
        )


class CalendarWindow(Window):
    """Window of a CalendarBolt."""

    __slots__ = ()

    def get_expired(self) -> NoReturn:
        """Refuse: tuples of the period before are not kept."""
        raise InvalidTopologyError(
            "windows of days, weeks and months keep no tuples of the one before: take get, or get_new"
        )


def _shape(unit: Any, zone: Any, offset: Any) -> CalendarShape:
    if offset is not None and not isinstance(offset, Duration):
        raise InvalidTopologyError(
            f"local_{unit}: offset is {show(offset)}; write a Duration, as Duration.hours(6)"
        )
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        near = get_close_matches(str(zone), available_timezones(), 1)
        hint = f"did you mean '{near[0]}'?" if near else "zones are named as 'Europe/Berlin'"
        raise InvalidTopologyError(
            f"local_{unit}: {show(zone)} is no zone that this host knows; {hint}"
        ) from None
    return CalendarShape(Duration(_DAY_MS), None, False, unit, zone, offset.ms if offset else 0)


@lru_cache(maxsize=4096)
def _bounds_around(shape: CalendarShape, day_number: int) -> list[int]:
    """Return the starts of the periods that touch a day of UTC, and of the one after them."""
    begin_ms = day_number * _DAY_MS
    moment = datetime.fromtimestamp(begin_ms / 1000, UTC)
    first = shape.first_of(moment.astimezone(ZoneInfo(shape.zone)).date())
    while shape.start_of(first) > begin_ms:
        first = shape.first_of(first - timedelta(days=1))
    bounds = [shape.start_of(first)]
    while bounds[-1] < begin_ms + _DAY_MS:
        first = shape.after(first)
        bounds.append(shape.start_of(first))
    return bounds
