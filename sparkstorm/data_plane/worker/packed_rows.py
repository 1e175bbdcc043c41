"""Rows that will leave a worker, packed while their epoch still runs.

Law: the bytes of the entry are those of `frames.encode_rows` for the same rows in the same order.
Rows that wait for the end of an epoch lie between those that are made and dropped meanwhile: with
64 tasks an epoch's rows are ten times the processor's caches, and each row is fetched again to be
packed and to be freed: a word of a count with 64 tasks costs 1.15 times the CPU without it, one with
four 1.03 (decision 77). Left out: a smaller budget of rows, which means more commits.
"""

from __future__ import annotations

from sparkstorm.common.grouping.routes import Rows
from sparkstorm.common.model.compiled import core, empty
from sparkstorm.common.model.roots import split_roots
from sparkstorm.common.model.tuples import Roots, Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.transport import frames
from sparkstorm.data_plane.transport.frames import DrawEdge

# As the budget of an epoch is 65,536 rows: eight entries at the most for one receiver. Half of it
# costs twice the headers and edge ids; double lets a reader hold more rows of one entry in memory.
ROWS_PER_ENTRY = 8192
# Heavier rows leave in several entries: the window of a reader (4 MB, data_plane/worker/read_window.py) holds
# sixteen of these, eight of the largest. Half of it doubles the entries of large tuples; with
# double a reader over a distance has half as many entries on their way.
BYTES_PER_ENTRY = 256 << 10


class PackedRows:
    """Rows of one entry: their values as packed columns, which take a tenth of the memory."""

    __slots__ = ("roots", "_sources", "_portions", "_size")

    def __init__(self) -> None:
        self.roots: list[Roots] = []
        self._sources: list[Source] = []
        self._portions: list[tuple[bytes, ...]] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self.roots)

    def take(self, rows: Rows) -> bool:
        """Pack the first rows of a list and remove them from it; False where the first one has no
        room here, or values that only the codec packs.
        """
        before = len(self.roots)
        packed = core.pack_rows(
            rows, self.roots, self._sources, ROWS_PER_ENTRY - before, BYTES_PER_ENTRY - self._size
        )
        if packed is None:
            return False
        self._portions.append(packed)
        self._size += sum(map(len, packed))
        count = len(self.roots) - before
        if count == len(rows):
            empty(rows)
        else:
            del rows[:count]
        return True

    def split_off(self) -> None:
        """Let these rows leave their batches, as late rows do."""
        self.roots = [split_roots(roots) for roots in self.roots]

    def encode(
        self, codec: Codec, stream: str, oldest_ms: int, draw_edge: DrawEdge | None, origin: int
    ) -> bytes:
        """Return the bytes of the block; arguments as those of `frames.encode_rows`."""
        columns = [b"".join(column) for column in zip(*self._portions, strict=True)]
        return frames.encode_packed(
            codec, stream, oldest_ms, columns, self.roots, self._sources, draw_edge, origin
        )
