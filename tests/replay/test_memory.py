"""Checks that memory is bounded: chunks leave while rows still come in, few rows go in where each
makes many.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar
from uuid import UUID
from weakref import ref

import pyarrow as pa
import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    StatefulBolt,
    Tuple,
    WindowedBolt,
)
from sparkstorm.common.config import check, merge
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor import emitter as output
from sparkstorm.replay import replay_locally
from sparkstorm.replay.job import Job, RunSettings, make_job
from sparkstorm.replay.plan import Feed, make_plan
from sparkstorm.replay.tasks.batches import Sizer
from sparkstorm.replay.tasks.chunks import KEPT_STATE, ROWS, START, ChunkWriter, EdgeChunk, order_of
from sparkstorm.replay.tasks.stage import StageRun
from tests.replay import counting
from tests.replay.bolts import Source
from tests.topologies import building


class Many(BasicBolt):
    """Many rows out for one in."""

    outputs = ("n",)

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        counting.bump("executed")
        for n in range(self.rows):
            collector.emit((n,))


class RememberIds(StatefulBolt):
    """Keeps keys that can be referred to weakly; this process alone runs it."""

    refs: ClassVar[list[ref[UUID]]] = []

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        key = UUID(int=tup["n"])
        self.refs.append(ref(key))
        self.state.add(key)


class Remember(StatefulBolt):
    """Keeps every input under its own key, with much next to it."""

    outputs = ("n",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put(tup["n"], "x" * 10_000)
        collector.emit((tup["n"],))


def job_of(first: BasicBolt, **settings: Any) -> Job:
    builder = building(source=Source("n"))
    builder.set_bolt("first", first).shuffle_grouping("source")
    builder.set_bolt("remember", Remember()).fields_grouping("first", "n")
    return make_job(
        make_plan(builder.build(), merge(check({}, "test")).as_dict(), "test", {}),
        RunSettings(**settings),
        is_local=True,
    )


def counted(items: Any, taken: list[int]) -> Iterator[Any]:
    for item in items:
        taken[0] += 1
        yield item


def nothing(evidence: Any) -> None:
    """Ignores evidence."""


@pytest.mark.parametrize("shortcuts", [True, False])
def test_chunks_leave_while_batches_still_come_in(shortcuts: bool) -> None:
    job, taken = job_of(Many(1), shortcuts=shortcuts), [0]
    batches = [pa.RecordBatch.from_pydict({"n": list(range(10_000))})] * 10
    behind = 0
    for number, _ in enumerate(
        StageRun(job, job.plan.stages[0], nothing).over_data(0, counted(batches, taken))
    ):
        behind = max(behind, taken[0] - number)
    assert taken[0] == 10 and behind <= 5


def test_a_task_frees_its_state_without_a_collection_of_garbage() -> None:
    builder = building(source=Source("n"))
    builder.set_bolt("bolt", RememberIds()).fields_grouping("source", "n")
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        results = replay_locally(
            builder.build(), {"source": [(n,) for n in range(20)]}, outputs=["bolt!state"]
        )
        results.states_by_task.clear()
        refs = RememberIds.refs
        assert len(refs) == 20 and not [each for each in refs if each() is not None]
    finally:
        if was_enabled:
            gc.enable()
        RememberIds.refs.clear()


@pytest.mark.parametrize("shortcuts", [True, False])
def test_few_rows_go_in_where_each_makes_many(shortcuts: bool) -> None:
    job = job_of(Many(3_000), shortcuts=shortcuts)
    batch = pa.RecordBatch.from_pydict({"n": list(range(200))})
    counting.clear()
    next(StageRun(job, job.plan.stages[0], nothing).over_data(0, [batch]))
    assert counting.COUNTS["executed"] == 64  # the first go
    sizer = Sizer()
    sizer.learn(64, 64 * 5_000)
    assert sizer.rows * 5_000 <= 1 << 17
    assert [len(part) for part in sizer.parts(range(60))] == [26, 26, 8]


def test_the_pace_doubles_while_rows_make_few() -> None:
    sizer = Sizer()
    for _ in range(20):
        sizer.learn(sizer.rows, sizer.rows)
    assert sizer.rows == 16_384
    assert [len(part) for part in sizer.parts(range(40_000))] == [16_384, 16_384, 7_232]


def test_an_exchange_takes_chunks_one_by_one_and_hands_its_state_out_in_pieces() -> None:
    job, taken = job_of(Many(1)), [0]
    stage = job.plan.stages[1]
    (task,) = job.plan.tasks("remember")
    (sender,) = job.plan.tasks("first")
    writer = ChunkWriter(Codec(), 1, False)
    writer.sizer.rows = 200
    rows = [((n,), 0) for n in range(4_000)]
    chunks = [
        EdgeChunk(START, task, 0, 0, 0, task, "", 0, b""),
        *writer.rows(task, sender, "default", rows),
    ]
    waiting, states = 0, 0
    for number, chunk in enumerate(
        StageRun(job, stage, nothing).over_chunks(counted(chunks, taken))
    ):
        if chunk.kind == KEPT_STATE:
            states += 1
            assert len(chunk.data) <= 4 << 20
        else:
            waiting = max(waiting, taken[0] - number)
    assert waiting <= 12 and states > 10


def test_a_state_is_read_as_it_is_written() -> None:
    taken = [0]
    pairs = counted(([n, "x" * 1_000] for n in range(100_000)), taken)
    chunks = ChunkWriter(Codec(), 1, False).state(KEPT_STATE, 1, pairs)
    next(chunks)
    assert taken[0] < 1_000


def test_many_rows_of_many_inputs_are_not_taken_for_those_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "MAX_ROWS_PER_TUPLE", 1_000)
    builder = building(source=Source("n"))
    builder.set_bolt("first", Many(15)).shuffle_grouping("source")
    results = replay_locally(builder.build(), {"source": [(n,) for n in range(130)]}, skip_bad=True)
    assert len(results["first"]) == 130 * 15 and not results.dead_letters


class Windows(WindowedBolt):
    """Counts the chunks that had been read when its first window fired."""

    outputs = ("n",)

    def execute(self, window: Any, collector: Any) -> None:
        counting.note_first("first window", "read")
        collector.emit((len(window.get()),))


class Pass(BasicBolt):
    outputs = ("at",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(tup.values)


def read(chunks: Iterable[EdgeChunk]) -> Iterator[EdgeChunk]:
    for chunk in chunks:
        counting.bump("read")
        yield chunk


def test_windows_fire_while_the_tasks_of_later_data_have_not_begun() -> None:
    builder = building(source=Source("at"))
    builder.set_bolt("pass", Pass(), 2).shuffle_grouping("source")
    windows = (
        Windows()
        .with_tumbling_window(Duration.seconds(1))
        .with_timestamp_field("at")
        .with_lag(Duration.millis(10))
    )
    builder.set_bolt("windows", windows).global_grouping("pass")
    plan = make_plan(builder.build(), merge(check({}, "test")).as_dict(), "test", {})
    job = make_job(plan, RunSettings(time_fields={Feed("source", "default"): "at"}), is_local=True)
    (task,) = plan.tasks("windows")
    chunks = [EdgeChunk(START, task, 0, 0, 0, task, "", 0, b"")]
    for partition in (0, 1):
        times = [partition * 100_000 + 10 * n for n in range(10_000)]
        batches = [
            ([(at,) for at in times[n : n + 500]], times[n : n + 500])
            for n in range(0, 10_000, 500)
        ]
        chunks += [
            chunk
            for chunk in StageRun(job, plan.stages[0], nothing).over_data(partition, batches)
            if chunk.kind == ROWS
        ]
    counting.clear()
    (stage,) = [stage for stage in plan.stages if stage.bolts == ("windows",)]
    made = StageRun(job, stage, nothing).over_chunks(read(sorted(chunks, key=order_of)))
    assert sum(chunk.rows for chunk in made if chunk.kind == ROWS) == 200
    assert (
        0
        < counting.COUNTS["first window"]
        < len(chunks) / 2
        < counting.COUNTS["read"]
        == len(chunks)
    )
