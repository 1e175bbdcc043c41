"""Reads the chunks of one task: initial state, clocks of partitions, rows by virtual time or source by source. PURE.

Chunks come sorted by (time of the first row, source, position), and the times of one source never fall. So a row earlier
than the newest chunk's first row has its final position; only rows in which sources overlap are buffered.

Lateness across partitions: a live spout task has one clock per subscriber over all rows that it emits to it. In a replay the
rows of one input lie in partitions, each with a clock of its own. Every partition therefore sends its newest time to the
receivers (a CLOCK chunk, read before any row), and a receiver compares each row also with the newest time of all partitions
before the row's own. So the same rows are late wherever Spark cuts the history.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, repeat
from operator import itemgetter
from typing import Any

from sparkstorm.model.tuples import Source
from sparkstorm.model.values.codec import Codec
from sparkstorm.replay.tasks.chunks import CLOCK, START, STATE, Chunk, unpack_rows
from sparkstorm.windowing.settings import TimeSettings
from sparkstorm.windowing.watermarks import NEVER

# Above the rows of any chunk, so that position in a source is one number.
_STRIDE = 1 << 24
# Rows gathered before the next sorting: each sorting walks all that wait for a later time.
_LEAST_ROWS = 4096
Keyed = tuple[int, int, int, tuple[Any, ...], Source]
SourcesOf = Callable[[Chunk, Sequence[tuple[Any, ...]]], Iterable[Source]]
"""The source of every row of a chunk."""


def rows_by_time(codec: Codec, chunks: Iterable[Chunk], sources_of: SourcesOf) -> Iterator[list[Any]]:
    """Yield one task's rows in the order of their times, in lists."""
    gathered: list[Keyed] = []
    enough = _LEAST_ROWS
    for chunk in chunks:
        if len(gathered) >= enough:
            gathered.sort(key=itemgetter(0, 1, 2))
            until = bisect_left(gathered, chunk.first_ms, key=itemgetter(0))
            yield [(values, at_ms, source) for at_ms, _, _, values, source in gathered[:until]]
            del gathered[:until]
            # Twice what was left over: where sources overlap widely, sorting
            # after every chunk would be quadratic in the rows that wait.
            enough = 2 * len(gathered) + _LEAST_ROWS
        rows, times = unpack_rows(codec, chunk)
        values, first = list(rows), chunk.seq * _STRIDE
        places = range(first, first + chunk.rows)
        gathered += zip(times, repeat(chunk.source), places, values, sources_of(chunk, values), strict=False)
    gathered.sort(key=itemgetter(0, 1, 2))
    yield [(values, at_ms, source) for at_ms, _, _, values, source in gathered]


class PartitionClocks:
    """Newest times of the partitions that feed one task, by sending component and stream."""

    def __init__(self, settings: TimeSettings | None) -> None:
        self._field = None if settings is None else settings.timestamp_field
        self._slack_ms = 0 if settings is None else settings.lag_ms + settings.lateness_ms
        self._newest: dict[tuple[str, str], dict[int, int]] = {}
        self._floors: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    def take_out(self, codec: Codec, chunks: Iterable[Chunk], component_by_task: Mapping[int, str]) -> Iterator[Chunk]:
        """Take in the CLOCK chunks, which come first, and yield all others."""
        for chunk in chunks:
            if chunk.kind == CLOCK:
                self.hear(component_by_task[chunk.sender], chunk.stream, chunk.source, codec.unpack(chunk.data))
            else:
                yield chunk

    def hear(self, sender: str, stream: str, number: int, newest_ms: int) -> None:
        """Take in the newest time of partition `number` for one sending component and stream."""
        known = self._newest.setdefault((sender, stream), {})
        known[number] = max(newest_ms, known.get(number, NEVER))

    def sources(self, source: Source, number: int, values: Sequence[tuple[Any, ...]]) -> Iterable[Source]:
        """Return the source of each row of a chunk from partition `number`, late ones marked by the partitions before."""
        floor_ms = NEVER if source.is_late or self._field is None else self._floor_ms(source, number)
        # The usual case: no list is made of one source.
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


def state_and_rest(codec: Codec, chunks: Iterable[Chunk]) -> tuple[Iterator[Any], Iterator[Chunk]]:
    """Return the keys and values of one task's initial state, read lazily, and the chunks behind it.

    What is not read of the state is skipped when the rest is asked for.
    """
    parts = groupby(chunks, key=lambda chunk: chunk.kind in (START, STATE))
    _, head = next(parts)
    pairs = (pair for chunk in head if chunk.kind == STATE for pair in zip(*codec.unpack(chunk.data)[1], strict=True))
    return pairs, (chunk for _, rest in parts for chunk in rest)
