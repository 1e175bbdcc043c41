"""Records of what a failed window, timer or tuple of a windowed bolt met, for its dead letter, and
read back from one.

A record is a mapping of values of the codec: `watermark_ms`; for a window its content (`tuples`,
`new`, `expired`, `value`, `is_update`), for a tuple the stored `cells` of its key. One that is too
large has `is_left_out` instead.

Law: a letter is enough to make the window fail again by itself. Left out: the inputs of the window
instead of its content, of which the store has none any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sparkstorm.common.errors import CodecError, RecordingError
from sparkstorm.common.model.topology import TIMER_STREAM, WINDOW_STREAM
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.windowing.reorder import Row
from sparkstorm.common.windowing.timers import Timer
from sparkstorm.common.windowing.window_contents import Content
from sparkstorm.common.windowing.windows import Firing
from sparkstorm.data_plane.executor.state import MemoryState

# As for states (extensions/recording/capsules.py): so many cells are kept whole.
_SMALL = 100
# Beyond it looking for the cells of one key holds up the worker that parks. Half of it leaves more
# letters without cells. Not measured.
_MOST_CELLS = 20_000
_MOST_BYTES = 256 << 10
Due = Firing | Timer | Row
Record = dict[str, Any]
MakeSource = Callable[[str, int, str], Source]
"""Source of a component, task and stream; RecordingError when the topology has none."""


class WindowTuple(Tuple):
    """A failed window in the form of an input, with its content."""

    __slots__ = ("firing",)

    def __init__(self, component: str, firing: Firing) -> None:
        values = (list(firing.key), firing.start, firing.end)
        super().__init__(values, 0, Source(component, -1, WINDOW_STREAM, ("key", "start", "end")))
        self.firing = firing


def as_tuple(component: str, due: Due) -> Tuple:
    """Return a failed window, timer or tuple in the form of a dead letter."""
    if isinstance(due, Row):
        return due.tuple
    if isinstance(due, Timer):
        return Tuple(
            (due.axis, due.name, due.at_ms),
            0,
            Source(component, -1, TIMER_STREAM, ("axis", "name", "at_ms")),
        )
    return WindowTuple(component, due)


def replayed_due(tup: Tuple, make_source: MakeSource) -> Firing | Timer:
    """Return the window or timer in a row of REPLAYED_FIELDS; RecordingError when it holds none."""
    what, record = (
        (tup, {})
        if tup.stream == TIMER_STREAM
        else (Tuple(tup.values[:3], 0, tup.source), tup.values[3])
    )
    due = due_of(tup.stream, what, 0, record, make_source)
    assert not isinstance(due, Row)
    return due


def content_of(firing: Firing) -> Record:
    """Return the content of a window."""
    content = firing.content
    number_of = {id(tup): number for number, tup in enumerate(content.tuples)}
    return {
        "is_update": firing.is_update,
        "value": content.value,
        "tuples": [_row(tup) for tup in content.tuples],
        "new": [number_of[id(tup)] for tup in content.new if id(tup) in number_of],
        "expired": [_row(tup) for tup in content.expired],
    }


def cells_of(times: MemoryState, key: Sequence[Any]) -> list[list[Any]] | None:
    """Return the stored cells and marks that a tuple of that key met, or all while they are few;
    None of too many.
    """
    if len(times) > _MOST_CELLS:
        return None
    places = times.keys()
    key = tuple(key)
    if len(places) > _SMALL and key:
        places = [
            cell_key for cell_key in places if cell_key[-len(key) :] == key or len(cell_key) == 1
        ]
    return [[list(cell_key), value] for cell_key, value in times.pairs(places)]


def bounded(record: Record, codec: Codec) -> Record:
    """Return a record, or one that marks that it was too large."""
    try:
        size = len(codec.pack(record))
    except CodecError:  # an accumulator that the failed call has filled with what cannot be stored
        return {"is_left_out": True}
    return record if size <= _MOST_BYTES else {"is_left_out": True}


def due_of(
    stream: str, tup: Tuple, at_ms: int, record: Mapping[str, Any], make_source: MakeSource
) -> Due:
    """Return what failed, out of its dead letter; RecordingError names what is wrong with the
    letter.
    """
    try:
        if stream == TIMER_STREAM:
            axis, name, timer_ms = tup.values
            if axis not in ("event", "processing") or type(timer_ms) is not int:
                raise ValueError(f"{tup.values!r:.80} is no timer")
            return Timer(_hashable(name), timer_ms, axis)
        if stream != WINDOW_STREAM:
            return Row(at_ms, 0, tup)
        key, start, end = tup.values
        if not isinstance(key, list) or type(start) is not int or type(end) is not int:
            raise ValueError(f"{tup.values!r:.80} is no window")
        tuples = [_tuple(row, make_source) for row in record["tuples"]]
        content = Content(
            tuples,
            [tuples[number] for number in record["new"]],
            [_tuple(row, make_source) for row in record["expired"]],
            record["value"],
        )
        return Firing(tuple(map(_hashable, key)), start, end, content, bool(record["is_update"]))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RecordingError(
            f"the window of this dead letter cannot be read: {type(error).__name__}: {error}"
        ) from error


def stored_cells(record: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return the cells of a record as pairs of a state; RecordingError when they are none."""
    cells = record.get("cells", [])
    if not isinstance(cells, list | tuple) or not all(_is_cell(cell) for cell in cells):
        raise RecordingError("the cells of this dead letter are no pairs of a place and a value")
    return [(tuple(map(_hashable, cell_key)), value) for cell_key, value in cells]


def _is_cell(cell: Any) -> bool:
    return (
        isinstance(cell, list | tuple)
        and len(cell) == 2
        and isinstance(cell[0], list | tuple)
        and bool(cell[0])
    )


def _row(tup: Tuple) -> list[Any]:
    return [tup.source.component, tup.source.task, tup.source.stream, list(tup.values)]


def _tuple(row: Iterable[Any], make_source: MakeSource) -> Tuple:
    component, task, stream, values = row
    source = make_source(component, task, stream)
    if len(values) != len(source.fields):
        raise ValueError(
            f"{component}:{stream} has {len(source.fields)} fields, the row {len(values)} values"
        )
    return Tuple(tuple(values), 0, source)


def _hashable(part: Any) -> Any:
    return tuple(part) if isinstance(part, list) else part
