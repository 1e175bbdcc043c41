"""Settings of a windowed or timed bolt: Storm's `topology.bolts.*` keys, checked, as one frozen
record.

The builder writes them into the component's configuration. The workers of its senders read them as
well: senders decide which of their rows are late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.topology import Component

LENGTH_COUNT = "topology.bolts.window.length.count"
LENGTH_MS = "topology.bolts.window.length.duration.ms"
SLIDE_COUNT = "topology.bolts.window.sliding.interval.count"
SLIDE_MS = "topology.bolts.window.sliding.interval.duration.ms"
SESSION_GAP_MS = "topology.bolts.window.session.gap.ms"
TIMESTAMP_FIELD = "topology.bolts.tuple.timestamp.field.name"
LAG_MS = "topology.bolts.tuple.timestamp.max.lag.ms"
LATENESS_MS = "topology.bolts.window.allowed.lateness.ms"
IDLE_MS = "topology.bolts.watermark.idle.timeout.ms"
LATE_STREAM = "topology.bolts.late.tuple.stream"
SHAPE_KEYS = (LENGTH_COUNT, LENGTH_MS, SLIDE_COUNT, SLIDE_MS, SESSION_GAP_MS)
LATE_FIELDS = ("component", "stream", "time_ms", "values")
"""Fields of a late tuple on the late stream: its sender, its time, and its values by field."""

_LARGEST_MS = 100 * 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of windows: tumbling or sliding by time or count, or sessions (`length` is their
    gap).
    """

    kind: Literal["time", "count", "session"]
    length: int
    slide: int


@dataclass(frozen=True, slots=True)
class TimeSettings:
    """Shape (None: timers only), timestamp field (None: processing time), lag, allowed lateness,
    late stream, idle timeout.
    """

    shape: Shape | None
    timestamp_field: str | None
    lag_ms: int
    lateness_ms: int
    late_stream: str | None
    idle_ms: int = 0  # silence after which a sender counts as idle; 0: never

    @property
    def is_event_time(self) -> bool:
        """Return whether rows carry their own time."""
        return self.timestamp_field is not None


def is_timed(component: Component) -> bool:
    """Return whether a component has windows or timers: the builder sets the timestamp field's key
    for those.
    """
    return TIMESTAMP_FIELD in component.conf


def settings_of(component: Component, conf: Mapping[str, Any]) -> TimeSettings | None:
    """Return the settings of a timed component, over those of its topology; None for any other
    component.
    """
    if not is_timed(component):
        return None
    return read_settings(
        component.id,
        {**conf, **{k: v for k, v in component.conf.items() if v is not None}},
        component.conf,
    )


def read_settings(id: str, conf: Mapping[str, Any], own: Mapping[str, Any]) -> TimeSettings:
    """Return settings from configuration keys; a component's own shape replaces the topology's."""
    shapes = own if any(own.get(key) is not None for key in SHAPE_KEYS) else conf
    field = conf.get(TIMESTAMP_FIELD)
    if field is not None and (not isinstance(field, str) or not field):
        raise InvalidTopologyError(
            f"component '{id}': {TIMESTAMP_FIELD} must be the name of a field, not {field!r}"
        )
    stream = conf.get(LATE_STREAM)
    if stream is not None and (not isinstance(stream, str) or not stream or stream == "default"):
        raise InvalidTopologyError(
            f"component '{id}': {LATE_STREAM} must name a stream of its own, not {stream!r}"
        )
    settings = TimeSettings(
        _shape(id, shapes),
        field,
        _millis(id, LAG_MS, conf),
        _millis(id, LATENESS_MS, conf),
        stream,
        _millis(id, IDLE_MS, conf),
    )
    if field is None and (settings.late_stream or settings.lateness_ms):
        raise InvalidTopologyError(
            f"component '{id}': only rows with a time of their own can be late: set the timestamp field, or neither "
            "a late stream nor an allowed lateness"
        )
    return settings


def late_stream_of(conf: Mapping[str, Any]) -> str | None:
    """Return the late stream that a timed component declares in its configuration."""
    name = conf.get(LATE_STREAM) if TIMESTAMP_FIELD in conf else None
    return name if isinstance(name, str) else None


def check_fields(
    id: str,
    settings: TimeSettings,
    keys: tuple[str, ...],
    streams: Mapping[tuple[str, str], tuple[str, ...]],
) -> None:
    """Raise InvalidTopologyError unless every input has the timestamp field and the key fields."""
    wanted = (*((settings.timestamp_field,) if settings.timestamp_field else ()), *keys)
    for (component, stream), fields in streams.items():
        missing = [name for name in wanted if name not in fields]
        if missing:
            raise InvalidTopologyError(
                f"component '{id}' needs field '{missing[0]}' in stream '{stream}' of '{component}', which declares "
                f"{', '.join(fields) or 'none'}"
            )


def _shape(id: str, conf: Mapping[str, Any]) -> Shape | None:
    values = {key: conf.get(key) for key in SHAPE_KEYS}
    for key, value in values.items():
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST_MS
        ):
            raise InvalidTopologyError(
                f"component '{id}': {key} must be a whole number of at least 1, not {value!r}"
            )
    given = [key for key in (LENGTH_COUNT, LENGTH_MS, SESSION_GAP_MS) if values[key] is not None]
    if len(given) > 1:
        raise InvalidTopologyError(
            f"component '{id}': {given[0]} and {given[1]} exclude each other"
        )
    if not given:
        stray = next((key for key in (SLIDE_COUNT, SLIDE_MS) if values[key] is not None), None)
        if stray is not None:
            raise InvalidTopologyError(f"component '{id}': {stray} is set, but no length")
        return None
    length: int = values[given[0]]  # type: ignore[assignment]
    if given[0] == SESSION_GAP_MS:
        return Shape("session", length, length)
    slide_key, other = (
        (SLIDE_COUNT, SLIDE_MS) if given[0] == LENGTH_COUNT else (SLIDE_MS, SLIDE_COUNT)
    )
    if values[other] is not None:
        raise InvalidTopologyError(
            f"component '{id}': {given[0]} and {other} do not go together; both by count or both by time"
        )
    slide = values[slide_key] or length
    return Shape("count" if given[0] == LENGTH_COUNT else "time", length, slide)


def _millis(id: str, key: str, conf: Mapping[str, Any]) -> int:
    value = conf.get(key)
    value = 0 if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST_MS:
        raise InvalidTopologyError(
            f"component '{id}': {key} must be a whole number of milliseconds, not {value!r}"
        )
    return value
