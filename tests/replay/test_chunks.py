"""Chunks: what goes in comes out, in order, at any size of rows."""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.errors import CodecError
from sparkstorm.model.codec import Codec
from sparkstorm.replay.chunks import ChunkWriter, order_of, unpack_rows


def read(chunks: list[Any]) -> list[tuple[Any, ...]]:
    return [row for chunk in sorted(chunks, key=order_of) for row in zip(*unpack_rows(Codec(), chunk), strict=False)]


@pytest.mark.parametrize("size", [1, 100, 5_000])
@pytest.mark.parametrize("count", [1, 2048, 30_001])
def test_rows_come_back_in_order_whatever_their_number_and_size(count: int, size: int) -> None:
    rows = [((n, "x" * (size if n % 50 == 0 else 1)), n) for n in range(count)]
    writer = ChunkWriter(Codec(), 7, is_timed=True)
    waiting = list(rows)
    chunks = list(writer.rows(3, 2, "default", waiting))
    assert read(chunks) == rows and waiting == []
    assert {(c.target, c.sender, c.source) for c in chunks} == {(3, 2, 7)}


def test_large_rows_make_short_chunks() -> None:
    writer = ChunkWriter(Codec(), 0, is_timed=False)
    for _ in range(12):
        chunks = list(writer.rows(1, 1, "default", [(("x" * 100_000,), 0)] * 200))
    assert max(len(c.data) for c in chunks) < 2 << 20


def test_rows_without_fields_are_counted() -> None:
    chunk, = ChunkWriter(Codec(), 0, is_timed=False).rows(1, 1, "default", [((), 0)] * 5)
    assert read([chunk]) == [((), 0)] * 5


def test_a_value_outside_the_closed_set_is_refused() -> None:
    with pytest.raises(CodecError, match="object"):
        list(ChunkWriter(Codec(), 0, is_timed=False).rows(1, 1, "default", [((object(),), 0)]))
