"""Lateness of history's rows across the partitions that Spark has cut it into. PURE.

A live spout task keeps one clock for each subscriber over all rows that it emits to it, in their order. In a replay the rows
of one input lie in partitions, each with a clock that begins anew. So every partition tells the receivers how far its clocks
have come (a CLOCK chunk, which a task reads before any row), and a receiver holds each row also against the newest time of all
partitions before the row's own. This decides as one clock over the whole history would, wherever the history is cut.

The order of the history is that of its partitions, and of the rows within each. By an event time with `in_order` it is that of
the event time, then of the place; the rows are brought into it wherever somebody could be late by it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from typing import Any

from sparkstorm.executor.watermark_routes import TimePlan
from sparkstorm.model.codec import Codec
from sparkstorm.model.topology import Topology
from sparkstorm.model.tuples import Source
from sparkstorm.replay.chunks import CLOCK, Chunk
from sparkstorm.replay.plan import Stage
from sparkstorm.windowing.marks import NEVER
from sparkstorm.windowing.settings import TimeSettings


def needs_order(topology: Topology, conf: Mapping[str, Any], stage: Stage, time_field: str) -> bool:
    """Tell whether a row of a stage of data could be late though the data is sorted by this field within its partitions.

    No row is where all that look at the time of rows look at this very field of the data itself.
    """
    spout = stage.feed.spout if stage.feed else ""
    return any(watched != (spout, time_field) for watched in _watched(topology, conf, stage))


def is_watched(topology: Topology, conf: Mapping[str, Any], stage: Stage) -> bool:
    """Tell whether anybody looks at the time of rows that a stage emits."""
    return any(True for _ in _watched(topology, conf, stage))


def _watched(topology: Topology, conf: Mapping[str, Any], stage: Stage) -> Iterator[tuple[str, str | None]]:
    """Emitters with the field that a receiver takes for the time of their rows."""
    times = TimePlan(topology, conf)
    streams = [(bolt, stream) for bolt in stage.bolts for stream in topology.components[bolt].streams]
    for component, stream in [*streams, *([(stage.feed.spout, stage.feed.stream)] if stage.feed else [])]:
        for listener in times.listeners(component, stream):
            settings = times.settings.get(listener)
            if settings is not None and settings.is_event_time:
                yield component, settings.timestamp_field


class Clocks:
    """Newest times of the partitions that feed one task, by sending component and stream."""

    def __init__(self, settings: TimeSettings | None) -> None:
        self._field = None if settings is None else settings.timestamp_field
        self._slack_ms = 0 if settings is None else settings.lag_ms + settings.lateness_ms
        self._newest: dict[tuple[str, str], dict[int, int]] = {}
        self._floors: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    def take_out(self, codec: Codec, chunks: Iterable[Chunk], component_by_task: Mapping[int, str]) -> Iterator[Chunk]:
        """Pass on chunks of rows; those that say how far the clock of one partition has come are before all of them."""
        for chunk in chunks:
            if chunk.kind == CLOCK:
                self.hear(component_by_task[chunk.sender], chunk.stream, chunk.source, codec.unpack(chunk.data))
            else:
                yield chunk

    def hear(self, sender: str, stream: str, number: int, newest_ms: int) -> None:
        """Take in how far the clock of partition `number` has come for one sending component and stream."""
        known = self._newest.setdefault((sender, stream), {})
        known[number] = max(newest_ms, known.get(number, NEVER))

    def sources(self, source: Source, number: int, values: Sequence[tuple[Any, ...]]) -> Iterable[Source]:
        """Return the source of each row of a chunk from partition `number`: as it is, or late by the partitions before."""
        floor_ms = NEVER if source.is_late or self._field is None else self._floor_ms(source, number)
        if floor_ms <= 0 or self._field is None:
            return repeat(source, len(values))
        place = source.position(self._field)
        late = Source(source.component, source.task, source.stream, source.fields, is_late=True)
        return [late if type(row[place]) is int and 0 <= row[place] < floor_ms else source for row in values]

    def _floor_ms(self, source: Source, number: int) -> int:
        key = (source.component, source.stream)
        if key not in self._newest:
            return NEVER
        if key not in self._floors:
            numbers = sorted(self._newest[key])
            newest = accumulate((self._newest[key][each] for each in numbers), max)
            self._floors[key] = numbers, [NEVER, *newest]
        numbers, newest_before = self._floors[key]
        newest_ms = newest_before[bisect_left(numbers, number)]
        return NEVER if newest_ms == NEVER else newest_ms - self._slack_ms


def starts_of(newest_ms: Iterable[int | None], begin_ms: int) -> list[int]:
    """Return the virtual time with which each partition begins, from the newest event time of each."""
    newest = [begin_ms if at_ms is None else at_ms for at_ms in newest_ms]
    return list(accumulate([begin_ms, *newest], max))[:-1]
