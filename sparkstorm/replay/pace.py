"""Owns how many rows go through a stage at once: fewer where each makes many, so that what lies in memory is bounded. PURE.

Depends on counts of rows alone, so a stage that runs again cuts its rows in the same places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from sparkstorm.replay.batches import PIECE_ROWS

_FIRST_ROWS, _MOST_EMITTED = 64, 1 << 17
TimedRows = tuple[Sequence[tuple[Any, ...]], list[int | None]]
"""Rows of data and their times, which may be missing."""


class Pace:
    """The number of rows for the next go: doubled while they make few, cut when they make many."""

    def __init__(self) -> None:
        self.rows = _FIRST_ROWS

    def learn(self, taken: int, emitted: int) -> None:
        """So many rows made so many."""
        if emitted > _MOST_EMITTED:
            self.rows = max(1, min(self.rows, taken) * _MOST_EMITTED // emitted)
        else:
            self.rows = min(PIECE_ROWS, self.rows * 2)

    def parts(self, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Neighbouring rows, as many at a time as the pace says when they are asked for."""
        start = 0
        while start < len(rows):
            most = self.rows
            yield rows[start : start + most] if start or len(rows) > most else rows
            start += most

    def pieces(self, batch: pa.RecordBatch | TimedRows) -> Iterator[pa.RecordBatch | TimedRows]:
        """The same for a batch, or for rows with times."""
        start, size = 0, size_of(batch)
        while start < size:
            most = self.rows
            if isinstance(batch, pa.RecordBatch):
                yield batch.slice(start, most)
            else:
                yield batch[0][start : start + most], batch[1][start : start + most]
            start += most


def size_of(batch: pa.RecordBatch | TimedRows) -> int:
    """How many rows there are."""
    return batch.num_rows if isinstance(batch, pa.RecordBatch) else len(batch[1])
