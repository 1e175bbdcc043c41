"""Rows for other workers that are packed before their epoch ends."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.grouping.routes import Target
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.roots import split_roots
from sparkstorm.common.model.tuples import Roots, Source, union_roots
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.transport.frames import RowFrame, decode, encode_rows
from sparkstorm.data_plane.worker import open_blocks
from sparkstorm.data_plane.worker.epoch_commit import _split_off
from sparkstorm.data_plane.worker.open_blocks import Births, OpenBlock, OpenBlocks
from sparkstorm.data_plane.worker.packed_rows import BYTES_PER_ENTRY, ROWS_PER_ENTRY
from sparkstorm.testing import CaptureBolt, FeederSpout
from tests.tiers import examples
from tests.transport.values import values
from tests.worker.building import Pass, chain
from tests.worker.by_hand import Workers

pytestmark = pytest.mark.skipif(core is None, reason="rows are packed early by the compiled core")
CODEC = Codec()
SOURCES = [Source("s", task, "default", ("a", "b")) for task in (3, 4)]
ROOTS = st.just(0) | st.integers(1, 9) | st.just((5, 7)) | st.just(1 << 61 | 7)
ROW = st.tuples(
    st.tuples(values.map(CODEC.normalise), values.map(CODEC.normalise)),
    ROOTS,
    st.sampled_from(SOURCES),
)


def block(rows: list[Any]) -> OpenBlock:
    return OpenBlock("s", "default", Target(1, rows, False), Births())


def encoded(opened: OpenBlock) -> list[bytes]:
    """Bytes of each entry of a block, whose edges are 3."""
    return [each.encode(CODEC, "default", 9, lambda roots: 3, 8) for each in opened.packed]


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=4))
def test_rows_packed_in_portions_have_the_bytes_of_the_plain_way(portions: list[list[Any]]) -> None:
    opened = block([])
    for portion in portions:
        opened.rows += portion
        opened.pack()
    rows = [row for portion in portions for row in portion]
    assert not opened.rows
    assert encoded(opened) == [encode_rows(CODEC, "default", 9, rows, lambda roots: 3, 8)]


def test_a_row_of_other_types_stays_and_so_do_those_behind_it() -> None:
    rows: list[Any] = [((n, frozenset({1}) if n == 2 else n), 0, SOURCES[0]) for n in range(5)]
    opened = block(list(rows))
    for _ in range(2):
        opened.pack()
        assert [len(each) for each in opened.packed] == [2] and opened.rows == rows[2:]
    assert encoded(opened) == [encode_rows(CODEC, "default", 9, rows[:2], None, 8)]


@pytest.mark.parametrize(("value", "count", "entries"), [
    (7, ROWS_PER_ENTRY + 1, [ROWS_PER_ENTRY, 1]), ("x" * 100_000, 5, [2, 2, 1]),
    ("x" * (BYTES_PER_ENTRY - 6), 2, [1, 1]), ("x" * (BYTES_PER_ENTRY - 5), 2, []),
])  # fmt: skip
def test_an_entry_has_so_many_rows_and_bytes_at_the_most(
    value: Any, count: int, entries: list[int]
) -> None:
    opened = block([((1, value), 0, SOURCES[0])] * count)
    opened.pack()
    assert [len(each) for each in opened.packed] == entries
    assert len(opened.rows) == count - sum(entries), "one that is too large for an entry stays"


def test_late_rows_that_are_packed_leave_their_batches() -> None:
    roots: list[Roots] = [1 << 61 | 7, 0, (1 << 61 | 1, 5)]
    rows = [((1, 2), each, SOURCES[0]) for each in roots]
    opened = block([*rows, ((1, frozenset({1})), roots[0], SOURCES[0])])
    opened.pack()
    _split_off(opened)
    assert [roots for _, roots, _ in opened.rows] == [split_roots(roots[0])]
    frame = decode(CODEC, encoded(opened)[0])
    assert isinstance(frame, RowFrame)
    assert frame.roots == [split_roots(each) for each in roots] != roots
    assert union_roots(frame.roots) != union_roots(roots)


@pytest.mark.parametrize(("rows_to_pack", "least"), [(100, 10), (1, 1)])
@pytest.mark.parametrize("other_type_at", [999, -1])
def test_many_rows_reach_another_worker_in_their_order_whatever_is_packed_early(
    monkeypatch: pytest.MonkeyPatch, rows_to_pack: int, least: int, other_type_at: int
) -> None:
    monkeypatch.setattr(open_blocks, "_ROWS_TO_PACK", rows_to_pack)
    monkeypatch.setattr(open_blocks, "_LEAST_TO_PACK", least)
    packed: list[int] = []

    def noted(blocks: OpenBlocks, rows: int, size: int) -> None:
        pack_early(blocks, rows, size)
        packed.append(sum(map(len, (each for one in blocks.data for each in one.packed))))

    pack_early = OpenBlocks.pack_early
    monkeypatch.setattr(OpenBlocks, "pack_early", noted)
    spout, capture = FeederSpout(), CaptureBolt()
    cluster = Workers(chain(spout, Pass(), capture), {"topology.acker.executors": 1})
    sent = [frozenset({1}) if n % 1000 == other_type_at else {"n": [n]} for n in range(3000)]
    for each in copy.deepcopy(sent):
        spout.feed([each])
    first = cluster.claim("n:1", ["spout", "bolt", "__acker"])
    second = cluster.claim("n:2", ["capture"])
    for _ in range(20):
        cluster.step(first)
        cluster.step(second)
    assert [value for (value,) in capture.values] == sent
    assert sorted(spout.acked) == list(range(3000))
    assert max(packed) > 900
