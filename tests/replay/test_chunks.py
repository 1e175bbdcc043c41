"""Chunks: what goes in comes out, in order, at any size of rows."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from sparkstorm.api.columns import rows_of
from sparkstorm.api.components import Effects
from sparkstorm.api.value_columns import value_type
from sparkstorm.common.config import merge
from sparkstorm.common.errors import CodecError
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.replay.job import RunSettings, make_job
from sparkstorm.replay.plan import make_plan
from sparkstorm.replay.results.value_cells import value_cells
from sparkstorm.replay.tasks.batches import pack_batch, unpack_batch
from sparkstorm.replay.tasks.chunk_reader import rows_by_time
from sparkstorm.replay.tasks.chunks import (
    ROWS,
    START,
    ChunkWriter,
    EdgeChunk,
    order_of,
    unpack_rows,
)
from sparkstorm.replay.tasks.stage import StageRun
from tests.replay.random_topologies import random_topology


def read(chunks: list[Any]) -> list[tuple[Any, ...]]:
    return [
        row
        for chunk in sorted(chunks, key=order_of)
        for row in zip(*unpack_rows(Codec(), chunk), strict=False)
    ]


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


def test_cells_of_values_are_values_in_the_next_stage_and_no_text() -> None:
    values = [6.1, "6.1", {"a": [1]}, None]
    batch = pa.RecordBatch.from_arrays(
        [pa.ExtensionArray.from_storage(value_type(), value_cells(values)), pa.array([1, 2, 3, 4])],
        ["any", "n"],
    )
    back = unpack_batch(pack_batch(batch))
    assert rows_of(back) == list(zip(values, [1, 2, 3, 4], strict=True))
    assert back.schema == batch.schema


def test_a_value_outside_the_closed_set_is_refused() -> None:
    with pytest.raises(CodecError, match="object"):
        list(ChunkWriter(Codec(), 0, is_timed=False).rows(1, 1, "default", [((object(),), 0)]))


@pytest.mark.parametrize(("seed", "skip_bad"), [(3, True), (12, False), (15, False), (17, False)])
def test_a_stage_that_runs_again_on_chunks_in_another_order_makes_the_same_chunks(
    seed: int, skip_bad: bool
) -> None:
    """Return what Spark does to a lost task: its input comes in any order, its output must be what
    it was.
    """
    random = Random(seed)
    topology, rows = random_topology(random, ["a", "b", "c"])
    plan = make_plan(
        topology, merge({}).as_dict(), "again", {c.id: Effects.RUN for c in topology.bolts}
    )
    job = make_job(plan, RunSettings(skip_bad=skip_bad), is_local=True)
    made: dict[int, list[EdgeChunk]] = {}
    for stage in plan.stages:
        run = StageRun(job, stage, lambda _: None)
        if stage.feed is not None:
            values = rows[stage.feed.spout]
            made[stage.number] = list(run.over_data(0, [(values, [0] * len(values))]))
            continue
        tasks = plan.tasks(stage.bolts[0])
        chunks = [EdgeChunk(START, task, 0, 0, 0, task, "", 0, b"") for task in tasks]
        chunks += [
            c
            for s in plan.exchanges_into(stage)
            for c in made[s.number]
            if c.kind == ROWS and c.target in tasks
        ]
        runs = []
        for _ in range(3):
            random.shuffle(chunks)
            runs.append(list(run.over_chunks(sorted(chunks, key=order_of))))
        assert runs[0] == runs[1] == runs[2]
        made[stage.number] = runs[0]
    assert sum(len(chunks) for chunks in made.values()) > len(made)


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_several_senders_are_read_by_time_then_sender_then_place(seed: int) -> None:
    """Senders that follow each other in time, that overlap, and that meet in one moment."""
    random = Random(seed)
    chunks: list[EdgeChunk] = []
    for number in range(4):
        writer = ChunkWriter(Codec(), number, is_timed=True)
        at_ms = random.choice([0, 0, 2_000 * number])
        for stream in random.choice(["a", "ab"]) * 6:
            rows = []
            for _ in range(random.choice([1, 300, 2_500])):
                at_ms += random.choice([0, 0, 1])
                rows.append(((number, at_ms), at_ms, None))
            chunks += writer.rows(1, number, stream, rows)
            at_ms -= random.choice([0, 0, 5]) if stream == "b" else 0
    check_order(chunks)


@pytest.mark.parametrize("first_writer", [0, 1])
def test_rows_of_the_moment_in_which_a_chunk_ends_are_read_by_sender_then_place(
    first_writer: int,
) -> None:
    """The chunk that begins later has the smaller number, of its sender or among those of its
    sender.
    """
    writers = [ChunkWriter(Codec(), number, is_timed=True) for number in (0, 1)]
    later = list(writers[first_writer].rows(1, 1, "b", [((f"b{n}",), 5, None) for n in range(3)]))
    earlier = list(writers[1].rows(1, 1, "a", [((f"a{at_ms}",), at_ms, None) for at_ms in (3, 5)]))
    check_order([*later, *earlier])


def check_order(chunks: list[EdgeChunk]) -> None:
    """Compare the rows that are read with all rows sorted by time, sender, number of the chunk and
    place in it.
    """
    expected = [
        (at_ms, chunk.source, chunk.seq, place, values)
        for chunk in chunks
        for place, (values, at_ms) in enumerate(zip(*unpack_rows(Codec(), chunk), strict=True))
    ]
    # in the place of sources
    numbers: Any = lambda chunk, values: [chunk.seq] * len(values)  # noqa: E731
    lists = list(rows_by_time(Codec(), sorted(chunks, key=order_of), numbers))
    found = [(at_ms, seq, values) for rows in lists for values, at_ms, seq in rows]
    assert all(lists)
    assert found == [(at_ms, seq, values) for at_ms, _, seq, _, values in sorted(expected)]
