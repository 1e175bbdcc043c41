"""Results of a replay: a mapping of lazy DataFrames by "component[:stream]" and
"component!state".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from sparkstorm.common.errors import CodecError, ReplayFailedError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.topology import LATE_PREFIX
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.common.model.values.tagged import is_tagged, tag_text
from sparkstorm.common.spark_versions import arrow_schema, spark_schema
from sparkstorm.replay.arrow_map import MapBatches, chunks_in, map_in_arrow, quoted
from sparkstorm.replay.equality_warnings import ReplayWarning, warnings_of
from sparkstorm.replay.evidence import Evidence
from sparkstorm.replay.failures import as_result, unwrapped
from sparkstorm.replay.job import STATE_MARK, result_names, targets_of
from sparkstorm.replay.plan import Feed, Plan, Stage
from sparkstorm.replay.results.columns import Columns
from sparkstorm.replay.results.types import (
    TAGGED,
    definite_type,
    merged_type,
    result_type,
    typed_array,
)
from sparkstorm.replay.spark import SparkStages, WriteChunks
from sparkstorm.replay.tasks.batches import is_batch, unpack_batch
from sparkstorm.replay.tasks.chunks import DEAD, KEPT_STATE, REPORT, ROWS, EdgeChunk, OpenChunk

_KEY_FIELD = "key{}"
_LINES = pa.schema([("value", pa.string())])


class Replay(Mapping[str, DataFrame]):
    """Results by name: "count" a component's default stream, "count:late" another, "count!state"
    its final state.

    Nothing has run when it is returned. A result with declared types stays lazy; reading any other
    runs its stages once, persisted, to infer its types. A stage whose only result has declared
    types runs at each action, unless `keep` was called.
    """

    def __init__(self, plan: Plan, stages: SparkStages, columns: Mapping[str, Columns]) -> None:
        self._plan = plan
        self._stages = stages
        self._columns = columns
        self._frames: dict[str, DataFrame] = {}
        spouts = {c.id for c in plan.topology.spouts}
        self._feeds = {
            n: feed
            for n, feed in result_names(plan).items()
            if feed.spout in spouts or n in stages.job.wanted
        }
        self._stateful = [
            id + STATE_MARK for id in plan.stateful() if id + STATE_MARK in stages.job.wanted
        ]

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._frames:
            with unwrapped():
                self._frames[name] = as_result(self._frame(name))
        return self._frames[name]

    def columns_of(self, name: str) -> list[str]:
        """Return a result's columns without running anything; none for an unknown result."""
        if name in self._columns:
            return [field for field, _ in self._columns[name]]
        return list(self[name].columns) if name in self else []

    def columns_known(self, name: str) -> list[str]:
        """Return a result's columns where they are declared or it has been read."""
        if name in self._columns:
            return [field for field, _ in self._columns[name]]
        return list(self._frames[name].columns) if name in self._frames else []

    @property
    def sinks(self) -> list[str]:
        """Names of results that no bolt of this replay reads: ends of the graph, redirected inputs,
        states.
        """
        heard = {Feed(s.component, s.stream) for c in self._plan.topology for s in c.inputs}
        spouts = {c.id for c in self._plan.topology.spouts}
        ends = [
            n
            for n, feed in self._feeds.items()
            if n in self._plan.redirected or not (feed in heard or feed.spout in spouts)
        ]
        return [
            *(
                n
                for n in ends
                if n in self._plan.redirected
                or self._feeds[n] not in self._plan.redirected.values()
            ),
            *self._stateful,
        ]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._feeds, *self._stateful])

    def __len__(self) -> int:
        return len(self._feeds) + len(self._stateful)

    def _frame(self, name: str) -> DataFrame:
        if name not in self._feeds and name not in self._stateful:
            raise KeyError(
                f"there is no result '{name}', only {', '.join(self)}"
                + (
                    "; others were not asked for in `outputs`"
                    if name in result_names(self._plan)
                    else ""
                )
            )
        feed = self._feeds.get(name, Feed(name.removesuffix(STATE_MARK), ""))
        if self._plan.topology.components[feed.spout].kind == "spout":
            return self._stages.input(feed)
        stage = self._plan.stage_of(feed.spout, feed.stream)
        # Of declared types alone: to find types, the rows are read once more, and then they must be
        # kept.
        if self._is_declared(name) and self._stages.only_result(stage) == name:
            return self._only(stage, name)
        return self._typed(name, self._stages.frame(stage).where(self._chunks_of(name, feed)))

    def _chunks_of(self, name: str, feed: Feed) -> Column:
        """Return the condition that the chunks of a result fulfil."""
        tasks = self._plan.tasks(feed.spout)
        if name in self._stateful:
            return sf.expr(f"kind = {KEPT_STATE} AND target BETWEEN {tasks[0]} AND {tasks[-1]}")
        targets = targets_of(self._plan, feed.spout, feed.stream)
        sent = f"kind = {ROWS} AND sender BETWEEN {tasks[0]} AND {tasks[-1]} AND target BETWEEN {targets[0]} AND {targets[-1]}"
        return sf.expr(sent) & sf.col("stream").isin(feed.stream, LATE_PREFIX + feed.stream)

    @property
    def warnings(self) -> tuple[ReplayWarning, ...]:
        """Reasons why these results may differ from a live run's, as far as is known by now."""
        job = self._stages.job
        return warnings_of(
            self._plan, self._stages.evidence.value, job.sequence, job.settings.is_timed
        )

    def state(self, component: str) -> DataFrame:
        """Return a stateful bolt's final keys and values with their tasks; usable as an initial
        state.
        """
        return self[component + STATE_MARK]

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Records put aside (`skip_bad`)."""
        with unwrapped():
            return [DeadLetter.from_line(row.value)[1] for row in self.dead_letter_lines.collect()]

    @property
    def dead_letter_lines(self) -> DataFrame:
        """The same as a DataFrame, in the format of a run's `dead-letters.jsonl`."""
        settings = self._stages.job.settings
        if not settings.skip_bad:
            return self._stages.spark.createDataFrame([], spark_schema(_LINES))
        frames = [
            self._stages.frame(stage)
            for stage in self._plan.stages
            if stage.bolts or settings.is_timed
        ]
        chunks = reduce(DataFrame.union, frames).where(f"kind = {DEAD}")
        return map_in_arrow(chunks, _lines, spark_schema(_LINES))

    def keep(self) -> None:
        """Persist also results that each action would compute."""
        self._stages.keep()

    def run(self) -> dict[str, dict[str, int]]:
        """Run and keep every stage now and return the counts of each component."""
        self.keep()
        with unwrapped():
            for stage in self._plan.stages:
                if stage.bolts and self._stages.is_kept(stage):
                    # Counting the result itself runs the stage once. Its frame of chunks would be
                    # a second way to run the same stage.
                    name = self._stages.only_result(stage)
                    if name is not None and self._is_declared(name):
                        self[name].count()
                    else:
                        self._run_stage(stage)
        return self.counts

    def _run_stage(self, stage: Stage) -> None:
        """Keep a stage's chunks and read the reports of its tasks from them.

        Accumulators alone may miss a report: a task that is run again after it has kept its chunks
        reads these, and calls no code of ours (SPARK-41497).
        """
        for row in self._stages.frame(stage).where(f"kind = {REPORT}").select("data").collect():
            self._stages.evidence.value.merge(Evidence.of_list(Codec().unpack(bytes(row.data))))

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Counts of each component over finished tasks; a task that ran twice counts once."""
        return dict(self._stages.evidence.value.counts)

    @property
    def metrics(self) -> dict[str, dict[str, MetricValue]]:
        """Counters and histograms of user code by component and name, without spouts."""
        return self._stages.evidence.value.metrics

    def close(self) -> None:
        """Unpersist the stages; a result read afterwards is computed again."""
        self._stages.unpersist()

    def kept(self, *kinds: int) -> DataFrame:
        """Return the chunks of some kinds of all stages with bolts."""
        frames = [self._stages.frame(stage) for stage in self._plan.stages if stage.bolts]
        return reduce(DataFrame.union, frames).where(sf.col("kind").isin(*kinds))

    def _is_declared(self, name: str) -> bool:
        """Return whether the types of all columns of a result are known before its stages run."""
        return all(kind is not None for _, kind in self._columns[name])

    def _only(self, stage: Stage, name: str) -> DataFrame:
        """Return a stage's only result, without a frame of chunks."""
        columns = cast(Sequence[tuple[str, pa.DataType]], self._columns[name])
        write, schema = writing(name, columns, _key_of(name, columns))
        return _with_key(self._stages.only_frame(stage, write, schema), name, columns)

    def _typed(self, name: str, chunks: DataFrame) -> DataFrame:
        columns = self._columns[name]
        if not self._is_declared(name):
            with unwrapped():
                # Its own job. Guessing from the first rows would be cheaper, and a
                # text in the last row would end the replay or change a number.
                seen = [
                    row.schema
                    for row in map_in_arrow(
                        chunks, seeing(name, columns), "schema binary"
                    ).collect()
                ]
            columns = found_columns(columns, seen)
        write, schema = writing(name, cast(Sequence[tuple[str, pa.DataType]], columns))
        return map_in_arrow(chunks, lambda batches: write(chunks_in(batches)), schema)


def seeing(name: str, columns: Columns) -> MapBatches:
    """Return a pass over a result's chunks that gives the types of the columns without a declared
    one, a row per partition.
    """
    fields = [field for field, _ in columns]
    is_state = name.endswith(STATE_MARK)

    def see(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        codec = Codec()
        kinds = [pa.null()] * len(fields)
        for chunk in chunks_in(batches):
            for index, values in enumerate(_columns(codec, chunk)[: len(fields)]):
                if columns[index][1] is None:
                    kinds[index] = merged_type(
                        kinds[index], result_type(values, is_key=is_state and index == 0)
                    )
        schema = pa.schema(list(zip(fields, kinds, strict=True)))
        yield pa.RecordBatch.from_arrays([pa.array([schema.serialize().to_pybytes()])], ["schema"])

    return see


def found_columns(columns: Columns, seen: Iterable[bytes]) -> Columns:
    """Return the columns with types for all of them, by what every partition has seen."""
    kinds = [pa.null()] * len(columns)
    for data in seen:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        kinds = [merged_type(kind, field.type) for kind, field in zip(kinds, schema, strict=True)]
    return [
        (field, kind or definite_type(seen_kind))
        for (field, kind), seen_kind in zip(columns, kinds, strict=True)
    ]


def writing(
    name: str, columns: Sequence[tuple[str, pa.DataType]], key: pa.StructType | None = None
) -> tuple[WriteChunks, StructType]:
    """Return how chunks become batches of a result, and their schema; ReplayFailedError names
    result and column.

    `key`: the type of a state's key, which gets a column per field; `_with_key` makes the STRUCT,
    which Spark need not copy then.
    """
    is_state = name.endswith(STATE_MARK)
    all_columns = [*columns, ("task", pa.int32())] if is_state else columns
    # A field of the key is its own column on the way: Spark would copy the STRUCT row by row.
    if key is not None:
        all_columns = [
            *((_KEY_FIELD.format(index), field.type) for index, field in enumerate(key)),
            *all_columns[1:],
        ]
    try:
        made = spark_schema(
            pa.schema([(f, pa.string() if kind == TAGGED else kind) for f, kind in all_columns])
        )
    except PySparkTypeError as error:
        raise ReplayFailedError(
            f"result '{name}': its columns ({', '.join(f'{f}: {kind}' for f, kind in columns)}) hold a type "
            "that Spark has not; emit another one"
        ) from error
    schema = arrow_schema(made)
    kinds = [
        TAGGED if kind == TAGGED else field.type
        for (_, kind), field in zip(all_columns, schema, strict=True)
    ]

    def write(chunks: Iterable[EdgeChunk]) -> Iterator[pa.RecordBatch]:
        codec = Codec()
        for chunk in chunks:
            arrays = _columns(codec, chunk)
            first = [] if key is None else _key_fields(name, arrays[0], key)
            rest = zip(
                schema.names[len(first) :], arrays[bool(first) :], kinds[len(first) :], strict=True
            )
            yield pa.RecordBatch.from_arrays(
                [
                    *first,
                    *(_array(name, field, *values_and_kind) for field, *values_and_kind in rest),
                ],
                schema=schema,
            )

    return write, made


def _key_of(name: str, columns: Sequence[tuple[str, pa.DataType]]) -> pa.StructType | None:
    """Return the type of a state's key if it is a STRUCT of plain fields."""
    kind = columns[0][1]
    if not name.endswith(STATE_MARK) or kind == TAGGED or not pa.types.is_struct(kind):
        return None
    return (
        kind
        if kind.num_fields and not any(pa.types.is_nested(field.type) for field in kind)
        else None
    )


def _key_fields(name: str, values: Any, key: pa.StructType) -> list[pa.Array]:
    keys = _array(name, "key", values, key)
    if keys.null_count:
        raise ReplayFailedError(
            f"result '{name}': a key is none, which is no {key}; declare no types for this result"
        )
    return list(keys.flatten())


def _with_key(frame: DataFrame, name: str, columns: Sequence[tuple[str, pa.DataType]]) -> DataFrame:
    """Return a state's result with its key as a STRUCT."""
    key = _key_of(name, columns)
    if key is None:
        return frame
    fields = ", ".join(
        f"{_KEY_FIELD.format(index)} AS {quoted(field.name)}" for index, field in enumerate(key)
    )
    return frame.selectExpr(f"struct({fields}) AS key", "value", "task")


def _array(name: str, field: str, values: Any, kind: pa.DataType) -> pa.Array:
    is_state = name.endswith(STATE_MARK)
    # A ColumnState has tuples as columns. Fitting them
    # column by column needs no Python object per key.
    if isinstance(values, pa.StructArray) and is_state and field == "key":
        parts = values.flatten()
        if pa.types.is_struct(kind) and kind.num_fields == len(parts):
            typed = [
                typed_array(part, member.type, field)
                for part, member in zip(parts, kind, strict=True)
            ]
            return pa.StructArray.from_arrays(typed, fields=list(kind))
        values = list(zip(*(part.to_pylist() for part in parts), strict=True))
    if isinstance(values, pa.Array) and is_state and pa.types.is_string(values.type):
        values = values.to_pylist()
    if is_state and pa.types.is_string(kind) and any(map(is_tagged, values)):
        # A text that looks like tagged text would be read back as the value that it describes.
        values = [tag_text(value) if is_tagged(value) else value for value in values]
    try:
        return typed_array(values, kind, field, by_place=not is_state or field == "key")
    except (CodecError, ReplayFailedError) as error:
        raise ReplayFailedError(f"result '{name}': {error}") from error


def _columns(codec: Codec, chunk: EdgeChunk) -> Sequence[Any]:
    """Return a chunk's columns: lists of values or Arrow arrays."""
    if isinstance(chunk, OpenChunk):
        return [*chunk.columns, pa.repeat(pa.scalar(chunk.target, pa.int32()), chunk.rows)]
    if is_batch(chunk.data):
        return list(unpack_batch(chunk.data).columns)
    columns: list[list[Any]] = codec.unpack(chunk.data)[1]
    return [*columns, [chunk.target] * chunk.rows] if chunk.kind == KEPT_STATE else columns


def _lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    codec = Codec()
    for chunk in chunks_in(batches):
        yield pa.RecordBatch.from_arrays(
            [pa.array([DeadLetter.decode(codec, chunk.data).to_line()])], schema=_LINES
        )
