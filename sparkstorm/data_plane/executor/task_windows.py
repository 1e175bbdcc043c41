"""Windows of a task as its settings ask for them, timers as its bolt sees them, times and keys of
its inputs.

Law: the shape of windows is stored with them, and code of another shape is refused: cells of one
read as those of another would be wrong sums without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from sparkstorm.api.windows import FoldingBolt, TimedBolt, WindowedBolt
from sparkstorm.common.errors import CodecError, InvalidTopologyError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.codec import KEY_TYPES, no_key
from sparkstorm.common.windowing.counts import CountWindows
from sparkstorm.common.windowing.sessions import Sessions
from sparkstorm.common.windowing.settings import TimeSettings
from sparkstorm.common.windowing.timers import TimerTable
from sparkstorm.common.windowing.watermarks import LAST_MS
from sparkstorm.common.windowing.window_contents import (
    Collected,
    FindSource,
    Fold,
    Folded,
    own_initial,
)
from sparkstorm.common.windowing.window_math import Layout
from sparkstorm.common.windowing.windows import TimeWindows, Windows
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.user_traceback import failure_of


class TimedInputs:
    """Reader of times and keys; fields are looked up once per source."""

    def __init__(
        self, timestamp_field: str | None, key_fields: Sequence[str], now_ms: Callable[[], int]
    ) -> None:
        self._timestamp_field = timestamp_field
        self._key_fields = key_fields
        self._now_ms = now_ms

    def time_of(self, source: Source) -> Callable[[Tuple], int]:
        """Return the function from a tuple of this source to its time in ms; ValueError for what is
        no time.
        """
        field = self._timestamp_field
        if field is None:
            now_ms = self._now_ms
            return lambda tup: now_ms()
        position = source.position(field)

        def time_of(tup: Tuple) -> int:
            time_ms = tup.values[position]
            if type(time_ms) is not int or not 0 <= time_ms <= LAST_MS:
                raise ValueError(
                    f"field '{field}' holds {time_ms!r:.60}: a time is a whole number of milliseconds from 0 to 2**53"
                )
            return time_ms

        return time_of

    def key_of(self, source: Source) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        """Return the function from the values of this source to their key."""
        positions = [source.position(field) for field in self._key_fields]
        if not positions:
            return lambda values: ()
        if len(positions) == 1:
            position = positions[0]
            return lambda values: (values[position],)
        several: Callable[[tuple[Any, ...]], tuple[Any, ...]] = itemgetter(*positions)
        return several

    def failure(self, tup: Tuple, error: BaseException) -> Failure:
        """Return the failure of a tuple; it names a key field whose value cannot be a key."""
        if isinstance(error, TypeError | CodecError):
            for field in self._key_fields:
                if field in tup.fields and (what := no_key(tup[field])):
                    text = (
                        f"component '{tup.component}', stream '{tup.stream}', key field '{field}': holds {what}; "
                        f"keys are {KEY_TYPES}: convert it, or name other key fields"
                    )
                    return Failure(FailureKind.RAISED, text)
        return failure_of(error)


# One entry per session (decision 39); form 1, without this mark, was one per key.
_SESSION_FORM = 2


class TaskTimers:
    """Timers as a bolt sees them."""

    def __init__(
        self,
        table: TimerTable,
        watermark_ms: Callable[[], int],
        may_set_event_timer: Callable[[], bool],
    ) -> None:
        self._table = table
        self._watermark_ms = watermark_ms
        self._may_set_event_timer = may_set_event_timer

    def set_event_timer(self, name: Any, at_ms: int) -> None:
        """Call `on_timer` when the watermark has come that far; timers that fire at the end of all
        input set no more.
        """
        if self._may_set_event_timer():
            self._table.set("event", name, at_ms)

    def set_processing_timer(self, name: Any, at_ms: int) -> None:
        """Call `on_timer` when the clock has come that far."""
        self._table.set("processing", name, at_ms)

    def cancel_event_timer(self, name: Any) -> None:
        """Forget a timer."""
        self._table.cancel("event", name)

    def cancel_processing_timer(self, name: Any) -> None:
        """Forget a timer."""
        self._table.cancel("processing", name)

    @property
    def watermark_ms(self) -> int:
        """Current watermark."""
        return self._watermark_ms()


def make_windows(
    bolt: WindowedBolt, settings: TimeSettings, times: MemoryState, find_source: FindSource
) -> Windows:
    """The windows that a bolt's settings ask for, with what the store has of them."""
    shape = settings.shape
    assert shape is not None
    form = [_SESSION_FORM] if shape.kind == "session" else []
    _check_shape(
        times, [shape.kind, shape.length, shape.slide, isinstance(bolt, FoldingBolt), *form]
    )
    fold = None
    if isinstance(bolt, FoldingBolt):
        has_merge = type(bolt).merge is not FoldingBolt.merge
        fold = Fold(own_initial(bolt.initial), bolt.fold, bolt.merge if has_merge else None)
    if shape.kind == "session":
        return Sessions(
            shape.length, times, fold or Collected(times, find_source), settings.lateness_ms
        )
    contents = Collected(times, find_source) if fold is None else Folded(times, fold)
    is_tumbling = shape.length == shape.slide
    layout = Layout(shape.length, shape.slide, is_tumbling or not contents.needs_cell_per_window)
    keeps_expired = bolt.keeps_expired and fold is None
    if shape.kind == "count":
        return CountWindows(layout, times, contents, keeps_expired)
    return TimeWindows(layout, times, contents, settings.lateness_ms, keeps_expired)


def _check_shape(times: MemoryState, shape: list[Any]) -> None:
    """Raise InvalidTopologyError when windows of another shape are stored: after a hot deploy, or
    by an older version.
    """
    stored = times.get(("shape",))
    if stored is None:
        times.put(("shape",), shape)
    elif stored == shape[:4] and len(shape) > 4:
        raise InvalidTopologyError(
            "the store holds session windows in the form of an older version of SparkStorm (one entry per "
            "key): kill the topology and submit it anew"
        )
    elif stored != shape:
        kinds = [
            f"{'folded' if s[3] else 'collected'} windows by {s[0]} of {s[1]} every {s[2]}"
            for s in (stored, shape)
        ]
        raise InvalidTopologyError(
            f"the store holds {kinds[0]}, the code now has {kinds[1]}: give the component another id, or kill the topology"
        )


def must_reorder(bolt: WindowedBolt | TimedBolt, settings: TimeSettings) -> bool:
    """Return whether the result of such a bolt depends on the order of its tuples, and they have
    one.
    """
    is_ordered_by = settings.shape is None or settings.shape.kind == "count"
    return bolt.in_order and settings.is_event_time and is_ordered_by
