"""Owns the order in which a task sees its rows: by virtual time over all sources, or source by source without one.

Chunks come sorted by (time of the first row, source, position), and no source's time ever falls. So every row that is
earlier than the newest chunk's first row has its final place, and what must be held is what sources overlap. PURE.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from operator import itemgetter
from typing import Any

from sparkstorm.model.codec import Codec
from sparkstorm.model.tuples import Source, Tuple
from sparkstorm.replay.tasks.chunks import CLOCK, START, STATE, Chunk, unpack_rows
from sparkstorm.windowing.settings import TimeSettings
from sparkstorm.windowing.watermarks import NEVER

_STRIDE = 1 << 24  # above the rows of any chunk
_LEAST_ROWS = 4096  # rows gathered before the next sorting
Keyed = tuple[int, int, int, tuple[Any, ...], Source]
SourcesOf = Callable[[Chunk, Sequence[tuple[Any, ...]]], Iterable[Source]]
"""The source of every row of a chunk."""


def tuples_of(codec: Codec, chunks: Iterable[Chunk], sources_of: SourcesOf, is_timed: bool) -> Iterator[list[Tuple]]:
    """One task's rows in batches, in their order."""
    if is_timed:
        return _by_time(codec, chunks, sources_of)
    return (_plain(codec, chunk, sources_of) for chunk in chunks)


def _plain(codec: Codec, chunk: Chunk, sources_of: SourcesOf) -> list[Tuple]:
    values = list(unpack_rows(codec, chunk)[0])
    return list(map(Tuple, values, repeat(0), sources_of(chunk, values)))


def _by_time(codec: Codec, chunks: Iterable[Chunk], sources_of: SourcesOf) -> Iterator[list[Tuple]]:
    gathered: list[Keyed] = []
    enough = _LEAST_ROWS
    for chunk in chunks:
        if len(gathered) >= enough:
            gathered.sort(key=itemgetter(0, 1, 2))
            until = bisect_left(gathered, chunk.first_ms, key=itemgetter(0))
            yield [Tuple(values, at_ms, source) for at_ms, _, _, values, source in gathered[:until]]
            del gathered[:until]
            enough = 2 * len(gathered) + _LEAST_ROWS
        rows, times = unpack_rows(codec, chunk)
        values, first = list(rows), chunk.seq * _STRIDE
        places = range(first, first + chunk.rows)
        gathered += zip(times, repeat(chunk.source), places, values, sources_of(chunk, values), strict=False)
    gathered.sort(key=itemgetter(0, 1, 2))
    yield [Tuple(values, at_ms, source) for at_ms, _, _, values, source in gathered]


class PartitionClocks:
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


class InitialChunks:
    """What comes before a task's rows: its START and its state, read as it is loaded."""

    def __init__(self, codec: Codec, chunks: Iterator[Chunk]) -> None:
        self._codec = codec
        self._chunks = chunks
        self._first: Chunk | None = None  # of those behind

    def pairs(self) -> Iterator[Any]:
        """Keys and values of the state."""
        for chunk in self._chunks:
            if chunk.kind not in (START, STATE):
                self._first = chunk
                return
            if chunk.kind == STATE:
                yield from zip(*self._codec.unpack(chunk.data)[1], strict=True)

    def rest(self) -> Iterator[Chunk]:
        """The rows' chunks, a state that nobody wanted skipped."""
        if self._first is not None:
            yield self._first
        yield from (chunk for chunk in self._chunks if chunk.kind not in (START, STATE))
