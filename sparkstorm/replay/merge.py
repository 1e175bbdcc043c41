"""Owns the order in which a task sees its rows: by virtual time over all sources, or source by source without one.

Chunks come sorted by (time of the first row, source, position), and no source's time ever falls. So every row that is
earlier than the newest chunk's first row has its final place, and what must be held is what sources overlap. PURE.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from operator import itemgetter
from typing import Any

from sparkstorm.model.codec import Codec
from sparkstorm.model.tuples import Source, Tuple
from sparkstorm.replay.chunks import Chunk, unpack_rows

_STRIDE = 1 << 24  # above the rows of any chunk
_LEAST_ROWS = 4096  # rows gathered before the next sorting
Keyed = tuple[int, int, int, tuple[Any, ...], Source]


def tuples_of(codec: Codec, chunks: Iterable[Chunk], source_of: Callable[[int, str], Source],
              is_timed: bool) -> Iterator[list[Tuple]]:
    """One task's rows in batches, in their order."""
    if is_timed:
        return _by_time(codec, chunks, source_of)
    return (_plain(codec, chunk, source_of) for chunk in chunks)


def _plain(codec: Codec, chunk: Chunk, source_of: Callable[[int, str], Source]) -> list[Tuple]:
    source = source_of(chunk.sender, chunk.stream)
    values, _ = unpack_rows(codec, chunk)
    return list(map(Tuple, values, repeat(0), repeat(source)))


def _by_time(codec: Codec, chunks: Iterable[Chunk], source_of: Callable[[int, str], Source]) -> Iterator[list[Tuple]]:
    gathered: list[Keyed] = []
    enough = _LEAST_ROWS
    for chunk in chunks:
        if len(gathered) >= enough:
            gathered.sort(key=itemgetter(0, 1, 2))
            until = bisect_left(gathered, chunk.first_ms, key=itemgetter(0))
            yield [Tuple(values, at_ms, source) for at_ms, _, _, values, source in gathered[:until]]
            del gathered[:until]
            enough = 2 * len(gathered) + _LEAST_ROWS
        values, times = unpack_rows(codec, chunk)
        first = chunk.seq * _STRIDE
        gathered += zip(times, repeat(chunk.source), range(first, first + chunk.rows), values,
                        repeat(source_of(chunk.sender, chunk.stream)), strict=False)
    gathered.sort(key=itemgetter(0, 1, 2))
    yield [Tuple(values, at_ms, source) for at_ms, _, _, values, source in gathered]
