"""Reader of the chunks of one task: initial state, clocks of partitions, rows by virtual time or
source by source. PURE.

Chunks come sorted by (time of the first row, source, position), and the times of one source never
fall. So a row earlier than the newest chunk's first row has its final position; only rows in which
sources overlap are buffered and sorted.

Lateness across partitions: a live spout task has one clock per subscriber over all rows that it
emits to it. In a replay the rows of one input lie in partitions, each with its own clock.
Every partition therefore sends its newest time to the receivers (a CLOCK chunk, read before any
row), and a receiver compares each row also with the newest time of all partitions before the row's
own. So the same rows are late wherever Spark cuts the history.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.windowing.settings import TimeSettings
from sparkstorm.common.windowing.watermarks import NEVER
from sparkstorm.replay.tasks.chunks import CLOCK, START, STATE, EdgeChunk, unpack_rows

# Above the rows of any chunk, so that position in a source is one number.
_STRIDE = 1 << 24
# Rows gathered before the next sorting: each sorting walks all that wait for a later time.
_LEAST_ROWS = 4096
Keyed = tuple[int, int, int, tuple[Any, ...], Source]
SourcesOf = Callable[[EdgeChunk, Sequence[tuple[Any, ...]]], Iterable[Source]]
"""The source of every row of a chunk."""


def rows_by_time(
    codec: Codec, chunks: Iterable[EdgeChunk], sources_of: SourcesOf
) -> Iterator[list[Any]]:
    """Yield one task's rows in the order of their times, in lists."""
    waiting = _Waiting()
    settled = list[Any]()
    for chunk in chunks:
        settled += waiting.take_before(chunk)
        if len(settled) >= _LEAST_ROWS:
            yield settled
            settled = []
        rows, times = unpack_rows(codec, chunk)
        values = list(rows)
        waiting.add(_Part(chunk, values, list(times), sources_of(chunk, values)))
    if settled := settled + waiting.take_all():
        yield settled


class _Part(NamedTuple):
    """Rows of one chunk, column by column."""

    chunk: EdgeChunk
    values: list[tuple[Any, ...]]
    times: list[int]
    sources: Iterable[Source]

    def keyed(self) -> Iterator[Keyed]:
        """Return its rows behind their places in the order of all rows."""
        first = self.chunk.seq * _STRIDE
        places = range(first, first + len(self.values))
        return zip(
            self.times, repeat(self.chunk.source), places, self.values, self.sources, strict=False
        )


class _Waiting:
    """Rows that a later chunk may come before."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._keyed: list[Keyed] = []
        self._size = 0
        # time, source and position of the last row's chunk, or later ones
        self._newest = (NEVER, NEVER, NEVER)
        self._enough = _LEAST_ROWS

    def add(self, part: _Part) -> None:
        """Add the rows of the next chunk."""
        self._parts.append(part)
        self._size += len(part.values)
        newest = max(part.times, default=NEVER), part.chunk.source, part.chunk.seq
        self._newest = max(newest, self._newest) if self._size > len(part.values) else newest

    def take_before(self, chunk: EdgeChunk) -> list[Any]:
        """Remove and return rows that come before all of this chunk and of later ones: all such
        rows, or none yet of a few.
        """
        # The usual history: what senders have sent follows each other in time. Then nothing is
        # sorted, and no row gets a key.
        if self._newest <= (chunk.first_ms, chunk.source, chunk.seq):
            return self.take_all()
        if self._size < self._enough:
            return []
        self._sort()
        until = bisect_left(self._keyed, chunk.first_ms, key=itemgetter(0))
        taken = _rows(self._keyed[:until])
        del self._keyed[:until]
        self._size = len(self._keyed)
        # Twice what was left over: where sources overlap widely, sorting
        # after every chunk would be quadratic in the rows that wait.
        self._enough = 2 * self._size + _LEAST_ROWS
        return taken

    def take_all(self) -> list[Any]:
        """Remove and return all rows."""
        part = self._parts[0] if len(self._parts) == 1 and not self._keyed else None
        if part is not None and part.times == sorted(part.times):
            taken = list(zip(part.values, part.times, part.sources, strict=False))
        else:
            self._sort()
            taken = _rows(self._keyed)
        self._parts = []
        self._keyed = []
        self._size = 0
        self._enough = _LEAST_ROWS
        return taken

    def _sort(self) -> None:
        for part in self._parts:
            self._keyed += part.keyed()
        self._parts.clear()
        self._keyed.sort(key=itemgetter(0, 1, 2))


def _rows(keyed: Iterable[Keyed]) -> list[Any]:
    return [(values, at_ms, source) for at_ms, _, _, values, source in keyed]


class PartitionClocks:
    """Newest times of the partitions that feed one task, by sending component and stream."""

    def __init__(self, settings: TimeSettings | None) -> None:
        self._field = None if settings is None else settings.timestamp_field
        self._slack_ms = 0 if settings is None else settings.lag_ms + settings.lateness_ms
        self._newest: dict[tuple[str, str], dict[int, int]] = {}
        self._floors: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    def take_out(
        self, codec: Codec, chunks: Iterable[EdgeChunk], component_by_task: Mapping[int, str]
    ) -> Iterator[EdgeChunk]:
        """Take in the CLOCK chunks, which come first, and yield all others."""
        for chunk in chunks:
            if chunk.kind == CLOCK:
                self.hear(
                    component_by_task[chunk.sender],
                    chunk.stream,
                    chunk.source,
                    codec.unpack(chunk.data),
                )
            else:
                yield chunk

    def hear(self, sender: str, stream: str, number: int, newest_ms: int) -> None:
        """Take in the newest time of partition `number` for one sending component and stream."""
        newest_by_number = self._newest.setdefault((sender, stream), {})
        newest_by_number[number] = max(newest_ms, newest_by_number.get(number, NEVER))

    def sources(
        self, source: Source, number: int, values: Sequence[tuple[Any, ...]]
    ) -> Iterable[Source]:
        """Return the source of each row of a chunk from partition `number`, late ones marked by the
        partitions before.
        """
        floor_ms = (
            NEVER if source.is_late or self._field is None else self._floor_ms(source, number)
        )
        # The usual case: no list is made of one source.
        if floor_ms <= 0 or self._field is None:
            return repeat(source, len(values))
        position = source.position(self._field)
        late = Source(source.component, source.task, source.stream, source.fields, is_late=True)
        return [
            late if type(row[position]) is int and 0 <= row[position] < floor_ms else source
            for row in values
        ]

    def _floor_ms(self, source: Source, number: int) -> int:
        key = (source.component, source.stream)
        if key not in self._newest:
            return NEVER
        if key not in self._floors:
            numbers = sorted(self._newest[key])
            newest = accumulate((self._newest[key][earlier] for earlier in numbers), max)
            self._floors[key] = numbers, [NEVER, *newest]
        numbers, newest_before = self._floors[key]
        newest_ms = newest_before[bisect_left(numbers, number)]
        return NEVER if newest_ms == NEVER else newest_ms - self._slack_ms


def state_and_rest(
    codec: Codec, chunks: Iterable[EdgeChunk]
) -> tuple[Iterator[Any], Iterator[EdgeChunk]]:
    """Return the keys and values of one task's initial state, read lazily, and the chunks behind
    it.

    What is not read of the state is skipped when the rest is asked for.
    """
    parts = groupby(chunks, key=lambda chunk: chunk.kind in (START, STATE))
    _, head = next(parts)
    pairs = (
        pair
        for chunk in head
        if chunk.kind == STATE
        for pair in zip(*codec.unpack(chunk.data)[1], strict=True)
    )
    return pairs, (chunk for _, rest in parts for chunk in rest)
