"""Owns what a replay is given: the names of its inputs and states, and the virtual time of every row. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from sparkstorm.errors import InvalidTopologyError
from sparkstorm.model.topology import DEFAULT_STREAM, Topology
from sparkstorm.replay.plan import Feed

FrameT = TypeVar("FrameT")
LONG_AGO = -(2**63)


@dataclass(frozen=True, slots=True)
class EventTime:
    """Where a row's time stands (milliseconds, or a timestamp column), by input name or one column for all.

    `in_order`: rows are brought into the order of their times, so that nothing is late. Without it they keep their
    places, and the virtual time is the greatest so far of their source: what is late live is late here.
    """

    columns: Mapping[str, str] | str
    in_order: bool = True

    def column(self, name: str, feed: Feed) -> str:
        """The column of one input; InvalidTopologyError when it has none: time must be known everywhere or nowhere."""
        if isinstance(self.columns, str):
            return self.columns
        for key in (name, f"{feed.spout}:{feed.stream}", feed.spout):
            if key in self.columns:
                return self.columns[key]
        raise InvalidTopologyError(
            f"event_time names no column for input '{name}'; rows without a time cannot be merged with rows that have one"
        )


def parse_inputs(topology: Topology, inputs: Mapping[str, FrameT]) -> dict[Feed, FrameT]:
    """Inputs by spout and stream; InvalidTopologyError names an unknown spout or stream, or a spout without data."""
    found: dict[Feed, FrameT] = {}
    for name, frame in inputs.items():
        feed = parse_name(topology, name)
        if feed in found:
            raise InvalidTopologyError(f"input '{name}' is given twice: a spout's name alone means its default stream")
        found[feed] = frame
    bare = [s.id for s in topology.spouts if not any(f.spout == s.id for f in found)]
    if bare:
        raise InvalidTopologyError(f"spout '{bare[0]}' has no input: give it data, if only an empty frame")
    return found


def parse_name(topology: Topology, name: str) -> Feed:
    """The stream that "spout" or "spout:stream" means; InvalidTopologyError lists what there is."""
    spout, _, stream = str(name).partition(":")
    spouts = {s.id: s for s in topology.spouts}
    if spout not in spouts:
        raise InvalidTopologyError(f"input '{name}': there is no spout '{spout}', only {', '.join(sorted(spouts))}")
    streams = spouts[spout].streams
    if (stream or DEFAULT_STREAM) not in streams:
        known = ", ".join(f"{spout}:{s}" for s in sorted(streams)) or "none"
        raise InvalidTopologyError(
            f"input '{name}': spout '{spout}' has no stream '{stream or DEFAULT_STREAM}'; its streams are {known}"
        )
    return Feed(spout, stream or DEFAULT_STREAM)


def parse_states(topology: Topology, states: Mapping[str, FrameT]) -> dict[str, FrameT]:
    """Initial states by component; InvalidTopologyError for one that is no stateful bolt of the topology."""
    from_name = {name.removesuffix("!state"): frame for name, frame in states.items()}
    bolts = {c.id for c in topology.bolts}
    for component in from_name:
        if component not in bolts:
            raise InvalidTopologyError(f"initial state of '{component}': there is no such bolt, only {', '.join(sorted(bolts))}")
    return from_name


def running_times(times: Iterable[int | None], start_ms: int) -> list[int | None]:
    """The greatest time so far, row by row, from a start; a row without a time has none."""
    latest, found = start_ms, list[int | None]()
    for at_ms in times:
        latest = latest if at_ms is None else max(latest, at_ms)
        found.append(None if at_ms is None else latest)
    return found


def starts_of(newest_ms: Iterable[int | None], begin_ms: int) -> list[int]:
    """Return the virtual time with which each partition begins, from the newest event time of each."""
    newest = [begin_ms if at_ms is None else at_ms for at_ms in newest_ms]
    return list(accumulate([begin_ms, *newest], max))[:-1]
