"""Chunks: what goes in comes out, in order, at any size of rows."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from sparkstorm.api.components import Effects
from sparkstorm.config import merge
from sparkstorm.errors import CodecError
from sparkstorm.model.tuples import Source
from sparkstorm.model.values.codec import Codec
from sparkstorm.replay.job import RunSettings, make_job
from sparkstorm.replay.plan import make_plan
from sparkstorm.replay.results.frames import writing
from sparkstorm.replay.tasks.chunks import ROWS, START, Chunk, ChunkWriter, OpenChunk, order_of, unpack_rows
from sparkstorm.replay.tasks.stage import run_exchange, run_feed
from tests.replay.random_topologies import random_topology


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
    (chunk,) = ChunkWriter(Codec(), 0, is_timed=False).rows(1, 1, "default", [((), 0)] * 5)
    assert read([chunk]) == [((), 0)] * 5


def test_a_value_outside_the_closed_set_is_refused() -> None:
    with pytest.raises(CodecError, match="object"):
        list(ChunkWriter(Codec(), 0, is_timed=False).rows(1, 1, "default", [((object(),), 0)]))


@pytest.mark.parametrize(("seed", "skip_bad"), [(3, True), (12, False), (15, False), (17, False)])
def test_a_stage_that_runs_again_on_chunks_in_another_order_makes_the_same_chunks(seed: int, skip_bad: bool) -> None:
    """Return what Spark does to a lost task: its input comes in any order, its output must be what it was."""
    random = Random(seed)
    topology, rows = random_topology(random, ["a", "b", "c"])
    plan = make_plan(topology, merge({}).as_dict(), "again", {c.id: Effects.RUN for c in topology.bolts})
    job = make_job(plan, RunSettings(skip_bad=skip_bad), is_local=True)
    made: dict[int, list[Chunk]] = {}
    for stage in plan.stages:
        if stage.feed is not None:
            values = rows[stage.feed.spout]
            made[stage.number] = list(run_feed(job, stage, 0, [(values, [0] * len(values))], lambda *_: None))
            continue
        tasks = plan.tasks(stage.bolts[0])
        chunks = [Chunk(START, task, 0, 0, 0, task, "", 0, b"") for task in tasks]
        chunks += [c for s in plan.exchanges_into(stage) for c in made[s.number] if c.kind == ROWS and c.target in tasks]
        runs = []
        for _ in range(3):
            random.shuffle(chunks)
            runs.append(list(run_exchange(job, stage, iter(sorted(chunks, key=order_of)), lambda *_: None)))
        assert runs[0] == runs[1] == runs[2]
        made[stage.number] = runs[0]
    assert sum(len(chunks) for chunks in made.values()) > len(made)


@pytest.mark.parametrize("is_timed", [False, True])
def test_rows_written_as_a_result_at_once_are_those_of_packed_chunks(is_timed: bool) -> None:
    source = Source("bolt", 3, "default", ("n", "text", "list"))
    plain = [((n, "é" * (n % 5) if n % 7 else None, None), n, source) for n in range(20_000)]
    nested = [((1, "a", (1, 2)), 0, source), ((None, "b", []), 0, source)]
    write, _ = writing("bolt", [("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int64()))])
    for rows in (plain, nested):
        packed, opened = (
            list(ChunkWriter(Codec(), 1, is_timed, is_open).rows(0, 3, "default", list(rows))) for is_open in (False, True)
        )
        assert {type(chunk) for chunk in opened} == ({OpenChunk} if rows is plain else {Chunk})
        tables = [pa.Table.from_batches(write(chunks)) for chunks in (packed, opened)]
        assert tables[0].equals(tables[1]) and tables[0].num_rows == len(rows)


def test_text_that_is_not_valid_utf_8_is_refused_alike_where_rows_are_written_as_a_result_at_once() -> None:
    rows = [((1, "fine"), 0, Source("bolt", 3, "default", ("n", "text"))), ((2, "\ud800"), 0, None)]
    for is_open in (False, True):
        with pytest.raises(CodecError, match=r"surrogates|UTF-8"):
            list(ChunkWriter(Codec(), 1, False, is_open).rows(0, 3, "default", list(rows)))
