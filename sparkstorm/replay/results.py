"""Owns what a replay hands back: a mapping of lazy DataFrames by "component[:stream]" and "component!state"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sparkstorm.model.codec import Codec
from sparkstorm.model.tasks import tasks_by_component
from sparkstorm.model.topology import LATE_PREFIX
from sparkstorm.replay.arrow_map import chunks_in, map_in_arrow
from sparkstorm.replay.batches import is_batch, unpack_batch
from sparkstorm.replay.chunks import DEAD, KEPT_STATE, ROWS, Chunk
from sparkstorm.replay.failures import as_result, unwrapped
from sparkstorm.replay.fidelity import ReplayWarning, sums_among
from sparkstorm.replay.job import STATE_MARK, result_names, targets_of
from sparkstorm.replay.plan import Feed, Plan, Stage
from sparkstorm.replay.result_types import definite_type, merged_type, seen_type, typed_array
from sparkstorm.replay.spark import SparkStages, WriteChunks
from sparkstorm.runtime.dead_letter import DeadLetter

_DEAD = pa.schema([
    ("component", pa.string()), ("task", pa.int32()), ("source_component", pa.string()), ("source_task", pa.int32()),
    ("stream", pa.string()), ("record", pa.string()), ("attempts", pa.int32()), ("reason", pa.string()),
    ("time_ms", pa.int64()),
])


class Replay(Mapping[str, DataFrame]):
    """Results by name: "count" a component's default stream, "count:late" another, "count!state" its final state.

    Nothing has run yet when it is handed out. A result whose types were declared stays lazy until an action; for another
    one, asking for it runs its stages once (they are kept) and takes the types that were seen. `close` frees what is kept.
    """

    def __init__(self, plan: Plan, stages: SparkStages, types: Mapping[str, str], warnings: tuple[ReplayWarning, ...]) -> None:
        self._warnings = warnings
        self._plan = plan
        self._stages = stages
        self._types = dict(types)
        self._frames: dict[str, DataFrame] = {}
        spouts = {c.id for c in plan.topology.spouts}
        self._feeds = {n: feed for n, feed in result_names(plan).items() if feed.spout in spouts or stages.may_ask(n)}
        self._stateful = [c.id + STATE_MARK for c in plan.topology.bolts if stages.keeps_state(c.id)]

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._frames:
            with unwrapped():
                self._frames[name] = as_result(self._frame(name, self._types.get(name)))
        return self._frames[name]

    @property
    def sinks(self) -> list[str]:
        """The results that no bolt of this replay works on further: ends of the graph, redirected inputs, states."""
        heard = {Feed(s.component, s.stream) for c in self._plan.topology for s in c.inputs}
        spouts = {c.id for c in self._plan.topology.spouts}
        ends = [n for n, feed in self._feeds.items() if n in self._plan.redirected or not (feed in heard or feed.spout in spouts)]
        return [*(n for n in ends if n in self._plan.redirected or self._feeds[n] not in self._plan.redirected.values()),
                *self._stateful]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._feeds, *self._stateful])

    def __len__(self) -> int:
        return len(self._feeds) + len(self._stateful)

    def _frame(self, name: str, types: str | None) -> DataFrame:
        if name in self._stateful:
            return self._typed_state(name, types and f"{types}, task int")
        if name not in self._feeds:
            raise KeyError(f"there is no result '{name}', only {', '.join(self)}"
                           + ("; others were not asked for in `outputs`" if name in result_names(self._plan) else ""))
        feed = self._feeds[name]
        component = self._plan.topology.components[feed.spout]
        if component.kind == "spout":
            return self._stages.input(feed)
        stage = self._plan.stage_of(feed.spout, feed.stream)
        if types is not None and self._stages.only_result(stage) == name:
            return self._only(stage, types)
        tasks, targets = self._plan.tasks(feed.spout), targets_of(self._plan, feed.spout, feed.stream)
        chunks = self._stages.frame(stage).where(
            f"kind = {ROWS} AND sender BETWEEN {tasks[0]} AND {tasks[-1]} AND target BETWEEN {targets[0]} AND {targets[-1]}"
        ).where(sf.col("stream").isin(feed.stream, LATE_PREFIX + feed.stream))
        return self._typed(chunks, component.streams[feed.stream].fields, types)

    @property
    def warnings(self) -> tuple[ReplayWarning, ...]:
        """Why these results may differ from those of a live run, as far as the topology and the stages run so far tell."""
        tasks = tasks_by_component(self._plan.component_by_task)
        return self._warnings + sums_among(self._plan.topology, self.counts, tasks)

    def state(self, component: str) -> DataFrame:
        """A stateful bolt's final keys and values, with the task that holds them: fit to be another run's first state."""
        return self[component + STATE_MARK]

    @property
    def dead_letters(self) -> DataFrame:
        """Records that were put aside, each with its component, task and cause; without skip_bad none ever is."""
        if not self._stages.skips_bad:
            return self._stages.spark.createDataFrame([], from_arrow_schema(_DEAD))
        frames = [self._stages.frame(stage) for stage in self._plan.stages
                  if self._stages.is_kept(stage) and (stage.bolts or self._stages.is_timed)]
        chunks = reduce(DataFrame.union, frames).where(f"kind = {DEAD}")
        return map_in_arrow(chunks, _letters, from_arrow_schema(_DEAD))

    def run(self) -> dict[str, dict[str, int]]:
        """Run every stage now; what each component did: prepared, executed, emitted, parked."""
        with unwrapped():
            for stage in self._plan.stages:
                if stage.bolts and self._stages.is_kept(stage):
                    name = self._stages.only_result(stage)
                    (self[name] if name in self._types else self._stages.frame(stage)).count()
        return self.counts

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """What each component did so far, added up over finished tasks (a task that Spark ran twice counts twice)."""
        return dict(self._stages.tally.value)

    def close(self) -> None:
        """Free the stages' results; what was not collected or written is gone, or is computed anew when asked for."""
        self._stages.unpersist()

    def kept(self, *kinds: int) -> DataFrame:
        """The chunks of some kinds that the stages with bolts have made."""
        frames = [self._stages.frame(stage) for stage in self._plan.stages if stage.bolts]
        return reduce(DataFrame.union, frames).where(sf.col("kind").isin(*kinds))

    def _typed_state(self, name: str, types: str | None) -> DataFrame:
        component = name.removesuffix(STATE_MARK)
        stage = next(s for s in self._plan.stages if s.has(component))
        if types is not None and self._stages.only_result(stage) == name:
            return self._only(stage, types)
        tasks = self._plan.tasks(component)
        chunks = self._stages.frame(stage).where(f"kind = {KEPT_STATE} AND target BETWEEN {tasks[0]} AND {tasks[-1]}")
        return self._typed(chunks, ("key", "value", "task"), types)

    def _only(self, stage: Stage, types: str) -> DataFrame:
        """A stage's only result needs no frame of chunks between it and its types."""
        schema = cast(StructType, StructType.fromDDL(types))
        return self._stages.only_frame(stage, _writing(to_arrow_schema(schema)), schema)

    def _typed(self, chunks: DataFrame, fields: tuple[str, ...], types: str | None) -> DataFrame:
        seen = from_arrow_schema(_seen_schema(chunks, fields)) if types is None else StructType.fromDDL(types)
        schema = cast(StructType, seen)
        write = _writing(to_arrow_schema(schema))
        return map_in_arrow(chunks, lambda batches: write(chunks_in(batches)), schema)


def _writing(schema: pa.Schema) -> WriteChunks:
    def write(chunks: Iterable[Chunk]) -> Iterator[pa.RecordBatch]:
        codec = Codec()
        for chunk in chunks:
            columns = zip(_columns(codec, chunk), schema, strict=False)
            arrays = [typed_array(values, field.type, field.name) for values, field in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    return write


def _columns(codec: Codec, chunk: Chunk) -> Sequence[Any]:
    """A chunk's columns: lists of values, or Arrow arrays as they are."""
    if is_batch(chunk.data):
        return list(unpack_batch(chunk.data).columns)
    columns: list[list[Any]] = codec.unpack(chunk.data)[1]
    return [*columns, [chunk.target] * chunk.rows] if chunk.kind == KEPT_STATE else columns


def _seen_schema(chunks: DataFrame, fields: tuple[str, ...]) -> pa.Schema:
    """The types of all values of a stream: a pass over kept chunks, a schema per partition."""
    def see(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        codec, kinds = Codec(), [pa.null()] * len(fields)
        for chunk in chunks_in(batches):
            seen = [seen_type(values, f) for values, f in zip(_columns(codec, chunk), fields, strict=True)]
            kinds = [merged_type(one, other, f) for one, other, f in zip(kinds, seen, fields, strict=True)]
        schema = pa.schema(list(zip(fields, kinds, strict=True)))
        yield pa.RecordBatch.from_arrays([pa.array([schema.serialize().to_pybytes()])], ["schema"])

    kinds = [pa.null()] * len(fields)
    for row in map_in_arrow(chunks, see, "schema binary").collect():
        seen = pa.ipc.read_schema(pa.py_buffer(row.schema))
        kinds = [merged_type(kind, f.type, f.name) for kind, f in zip(kinds, seen, strict=True)]
    kinds = [definite_type(kind) for kind in kinds]
    return pa.schema([(f, pa.int32() if f == "task" else k) for f, k in zip(fields, kinds, strict=True)])


def _letters(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    codec = Codec()
    for chunk in chunks_in(batches):
        letter = DeadLetter.decode(codec, chunk.data)
        record = repr(dict(zip(letter.fields, letter.values, strict=False)))
        values = [letter.component, letter.task, letter.source_component, letter.source_task, letter.stream, record,
                  letter.attempts, letter.reason, letter.time_ms]
        yield pa.RecordBatch.from_arrays([pa.array([v], f.type) for v, f in zip(values, _DEAD, strict=True)], schema=_DEAD)


