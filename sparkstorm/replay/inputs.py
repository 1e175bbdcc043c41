"""Inputs of a replay: names of inputs and states, and the virtual time of every row. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, TypeVar

from sparkstorm.common.errors import CodecError, InvalidTopologyError, ReplayFailedError
from sparkstorm.common.model.topology import DEFAULT_STREAM, Topology
from sparkstorm.common.model.values.codec import KEY_TYPES, Codec, no_key
from sparkstorm.replay.plan import Feed

FrameT = TypeVar("FrameT")
LONG_AGO = -(2**63)


@dataclass(frozen=True, slots=True)
class EventTime:
    """Column of the event time (milliseconds or a timestamp), by input name or one for all inputs.

    `in_order`: rows are sorted by event time, so none is late. Otherwise rows keep their positions,
    virtual time is the greatest event time so far of their source, and the rows that are late live
    are late here.
    """

    columns: Mapping[str, str] | str
    in_order: bool = True

    def column(self, name: str, feed: Feed) -> str:
        """Return the column of an input; InvalidTopologyError if none is named: all inputs need one
        or none.
        """
        if isinstance(self.columns, str):
            return self.columns
        for key in (name, f"{feed.spout}:{feed.stream}", feed.spout):
            if key in self.columns:
                return self.columns[key]
        raise InvalidTopologyError(
            f"event_time names no column for input '{name}'; rows without a time cannot be merged with rows that have one"
        )


def parse_inputs(topology: Topology, inputs: Mapping[str, FrameT]) -> dict[Feed, FrameT]:
    """Return inputs by spout and stream; InvalidTopologyError names an unknown spout or stream, or
    a spout without data.
    """
    frame_by_feed: dict[Feed, FrameT] = {}
    for name, frame in inputs.items():
        feed = parse_name(topology, name)
        if feed in frame_by_feed:
            raise InvalidTopologyError(
                f"input '{name}' is given twice: a spout's name alone means its default stream"
            )
        frame_by_feed[feed] = frame
    # An empty frame must be asked for by name: a forgotten input would be
    # a replay of half the history that looks like all of it.
    bare = [s.id for s in topology.spouts if not any(f.spout == s.id for f in frame_by_feed)]
    if bare:
        raise InvalidTopologyError(
            f"spout '{bare[0]}' has no input: give it data, if only an empty frame"
        )
    return frame_by_feed


def parse_name(topology: Topology, name: str) -> Feed:
    """Return the stream named by "spout" or "spout:stream"; InvalidTopologyError lists the known
    names.
    """
    spout, _, stream = str(name).partition(":")
    spouts = {s.id: s for s in topology.spouts}
    if spout not in spouts:
        raise InvalidTopologyError(
            f"input '{name}': there is no spout '{spout}', only {', '.join(sorted(spouts))}"
        )
    streams = spouts[spout].streams
    if (stream or DEFAULT_STREAM) not in streams:
        names = ", ".join(f"{spout}:{s}" for s in sorted(streams)) or "none"
        raise InvalidTopologyError(
            f"input '{name}': spout '{spout}' has no stream '{stream or DEFAULT_STREAM}'; its streams are {names}"
        )
    return Feed(spout, stream or DEFAULT_STREAM)


def parse_states(topology: Topology, states: Mapping[str, FrameT]) -> dict[str, FrameT]:
    """Return initial states by component; InvalidTopologyError names one that is not a bolt of the
    topology.
    """
    from_name = {name.removesuffix("!state"): frame for name, frame in states.items()}
    bolts = {c.id for c in topology.bolts}
    for component in from_name:
        if component not in bolts:
            raise InvalidTopologyError(
                f"initial state of '{component}': there is no such bolt, only {', '.join(sorted(bolts))}"
            )
    return from_name


def plain_rows(name: str, fields: Sequence[str], rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of an input given as lists, with values as receivers read them;
    ReplayFailedError names input, row (from 0) and column of what no spout could emit.
    """
    # The usual rows by C alone: large inputs are looked at once, for their values.
    if not set(map(type, rows)) <= {list, tuple} or not set(map(len, rows)) <= {len(fields)}:
        _check_shapes(name, fields, rows)
    normalise = Codec().normalise
    try:
        return [tuple(map(normalise, row)) for row in rows]
    except CodecError:
        _refuse_value(name, fields, rows)
        raise


def _check_shapes(name: str, fields: Sequence[str], rows: Sequence[Any]) -> None:
    listed = ", ".join(fields) or "none"
    for number, row in enumerate(rows):
        where = f"input '{name}', row {number}"
        if isinstance(row, str | bytes) or not isinstance(row, Sequence):
            raise ReplayFailedError(
                f"{where}: needs a list of values, not {row!r:.80}; give those of {listed} in this order"
            )
        if len(row) != len(fields):
            raise ReplayFailedError(
                f"{where}: {len(row)} values for {len(fields)} fields ({listed}); give one for each field, "
                "None where there is none"
            )


def _refuse_value(name: str, fields: Sequence[str], rows: Sequence[Any]) -> None:
    normalise = Codec().normalise
    for number, row in enumerate(rows):
        for field, value in zip(fields, row, strict=True):
            try:
                normalise(value)
            except CodecError as error:
                raise ReplayFailedError(
                    f"input '{name}', row {number}, column '{field}': {error}"
                ) from error


def check_times(
    name: str, column: str, position: int, parts: Sequence[Sequence[Sequence[Any]]]
) -> None:
    """Raise ReplayFailedError for the first row whose event time is none: a number with a fraction,
    true, a text.
    """
    if {type(row[position]) for row in chain(*parts)} <= {int, type(None)}:
        return
    for number, row in enumerate(chain(*parts)):
        if type(row[position]) not in (int, type(None)):
            raise ReplayFailedError(
                f"input '{name}', row {number}, column '{column}': an event time is whole milliseconds, not "
                f"{row[position]!r:.60} ({type(row[position]).__name__}); convert it, as with int(...)"
            )


def plain_state(component: str, state: Any) -> dict[Any, Any]:
    """Return an initial state given as a mapping, as `state.put` would keep it; ReplayFailedError
    names the component and the key of what it would refuse.
    """
    if not isinstance(state, Mapping):
        raise ReplayFailedError(
            f"initial state of '{component}' is of type {type(state).__name__}, not a mapping from keys to values; "
            "replay(...) takes DataFrames"
        )
    normalise = Codec().normalise
    normalised = {}
    key = None
    try:
        for key, value in state.items():
            if type(key) is tuple:
                check_key(key)
                plain: Any = tuple(map(normalise, key))
            else:
                if type(key) is not str and type(key) is not int:
                    check_key(key)
                plain = normalise(key)
            normalised[plain] = normalise(value)
    except CodecError as error:
        raise ReplayFailedError(
            f"initial state of '{component}', key {key!r:.60}: {error}"
        ) from error
    return normalised


def check_key(key: Any) -> None:
    """Refuse what no state could hold a value under; CodecError names its part."""
    for what in filter(None, map(no_key, key if type(key) is tuple else (key,))):
        raise CodecError(f"it holds {what}; keys are {KEY_TYPES}, and tuples of them")


def running_times(times: Iterable[int | None], start_ms: int) -> list[int | None]:
    """Return for each row the greatest time so far, from a start; None for a row without a time."""
    # A row without a time keeps none: it is put aside or
    # ends the replay, which its neighbour must not hide.
    latest = start_ms
    latest_times = list[int | None]()
    for at_ms in times:
        latest = latest if at_ms is None else max(latest, at_ms)
        latest_times.append(None if at_ms is None else latest)
    return latest_times


def starts_of(newest_ms: Iterable[int | None], begin_ms: int) -> list[int]:
    """Return the virtual time with which each partition begins, from the newest event time of
    each.
    """
    newest = [begin_ms if at_ms is None else at_ms for at_ms in newest_ms]
    return list(accumulate([begin_ms, *newest], max))[:-1]
