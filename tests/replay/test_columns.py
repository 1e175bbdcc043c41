"""Bolts over whole Arrow batches: equal to their rows, in a replay and live; a failing batch costs
only its culprit.
"""

from __future__ import annotations

import random
from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import Stateful, TopologyContext
from sparkstorm.api.columns import BatchCollector, ColumnBolt
from sparkstorm.api.components import Conf
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.grouping.routes import Target
from sparkstorm.common.model.topology import Grouping, KeyRanges, Topology
from sparkstorm.common.model.tuples import Source as Sender
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.column_runner import BatchEmitter
from sparkstorm.data_plane.executor.emitter import Emitter, Route
from sparkstorm.data_plane.executor.pieces import unfold
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.replay import EventTime, LocalResults, replay, replay_locally
from sparkstorm.replay.tasks import column_state
from sparkstorm.replay.tasks.batches import OutEdge
from sparkstorm.replay.tasks.chunks import ChunkWriter, unpack_rows
from sparkstorm.replay.tasks.column_state import ColumnState
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Count, Source, Timed, one_bolt
from tests.replay.random_topologies import ByKey
from tests.topologies import building


class Double(ColumnBolt):
    """Twice the value; odd ones go to their own stream."""

    outputs = {"default": ("key", "value"), "odd": ("key", "value")}  # noqa: RUF012

    def execute_batch(
        self, batch: pa.RecordBatch, source: Sender, collector: BatchCollector
    ) -> None:
        odd = pc.equal(pc.bit_wise_and(batch["value"], 1), 1)
        doubled = pa.RecordBatch.from_arrays(
            [batch["key"], pc.multiply(batch["value"], 2)], ["a", "b"]
        )
        collector.emit_batch(doubled.filter(pc.invert(odd)))
        collector.emit_batch(doubled.filter(odd), "odd")


class Emitting(ColumnBolt):
    """Emits a column as it is for each batch that it gets."""

    outputs = ("value",)

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def execute_batch(
        self, batch: pa.RecordBatch, source: Sender, collector: BatchCollector
    ) -> None:
        collector.emit_batch(pa.RecordBatch.from_arrays([self._column], ["value"]))


class SumByKey(Stateful, ColumnBolt):
    """Sums by key; emits a row for every batch too, to the state alone it matters nothing."""

    order_insensitive = True
    types = {"value": pa.int64()}  # noqa: RUF012

    def execute_batch(
        self, batch: pa.RecordBatch, source: Sender, collector: BatchCollector
    ) -> None:
        sums = pa.table(batch).group_by("key").aggregate([("value", "sum")])
        for row in sums.to_pylist():
            self.state.add(row["key"], row["value_sum"])


class NoSevens(Stateful, ColumnBolt):
    """Fails on a 7, after it has put and emitted everything."""

    outputs = ("value",)

    def execute_batch(
        self, batch: pa.RecordBatch, source: Sender, collector: BatchCollector
    ) -> None:
        self.state.add("rows", batch.num_rows)
        collector.emit_batch(batch.select(["value"]))
        if 7 in batch["value"].to_pylist():
            raise ValueError("a seven")


class Wrong(ColumnBolt):
    outputs = ("a", "b")

    def execute_batch(
        self, batch: pa.RecordBatch, source: Sender, collector: BatchCollector
    ) -> None:
        collector.emit_batch(batch.select(["value"]))


class BothWays(ColumnBolt):
    """Says which of its two methods ran, and at what time."""

    outputs = ("how", "now_ms")

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        self.now_ms = context.now_ms

    def execute_batch(
        self, batch: pa.RecordBatch, source: Sender, collector: BatchCollector
    ) -> None:
        for _ in range(batch.num_rows):
            collector.emit(("batch", self.now_ms()))

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit(("row", self.now_ms()))


def topology(tasks: int = 2) -> Topology:
    builder = building(source=Source("key", "value"))
    builder.set_bolt("double", Double(), tasks).shuffle_grouping("source")
    builder.set_bolt("sum", SumByKey(), tasks + 1).fields_grouping("double", "key").fields_grouping(
        "double", "key", stream="odd"
    )
    builder.set_bolt("rows", Count(), 2).fields_grouping("double", "key", stream="odd")
    return builder.build()


def rows(seed: int, count: int = 200) -> list[tuple[Any, ...]]:
    random = Random(seed)
    return [
        (random.choice(["a", "b", "ä", None, ""]), random.randint(-99, 99)) for _ in range(count)
    ]


def assert_same(one: LocalResults, other: LocalResults) -> None:
    assert one.states_by_task == other.states_by_task
    for name in one.outputs:
        assert Counter(one[name]) == Counter(other[name]), name


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(20))
def test_batches_and_rows_give_the_same_results(seed: int) -> None:
    whole = replay_locally(topology(), {"source": rows(seed)}, partitions=2)
    assert_same(whole, replay_locally(topology(), {"source": rows(seed)}, columns=False))


def test_a_live_run_gives_the_same_results() -> None:
    replayed = replay_locally(topology(), {"source": rows(1)})
    live = complete_topology(topology(), {"source": rows(1)})
    assert replayed.states == {id: dict(live.state(id)) for id in ("sum", "rows")}
    assert Counter(replayed["double"]) == Counter(live["double"])


def test_a_failing_batch_leaves_no_trace_but_its_culprit() -> None:
    values = [(n % 10, n) for n in range(100)]
    results = replay_locally(
        one_bolt(NoSevens(), fields=("value", "ts")), {"source": values}, skip_bad=True
    )
    assert [d.values[0] for d in results.dead_letters] == [7] * 10
    assert Counter(results["bolt"]) == Counter((n % 10,) for n in range(100) if n % 10 != 7)
    assert results.states["bolt"] == {"rows": 90}
    with pytest.raises(ReplayFailedError, match=r"failed 4 times on record .*value=7.*a seven"):
        replay_locally(one_bolt(NoSevens(), fields=("value", "ts")), {"source": values})


def test_a_batch_of_wrong_width_is_refused_as_a_row_would_be() -> None:
    with pytest.raises(ReplayFailedError, match="emitted 1 value for 2 fields"):
        replay_locally(one_bolt(Wrong(), fields=("value", "ts")), {"source": [(1, 2)]})


def test_values_of_several_types_in_one_column_are_executed_row_by_row() -> None:
    results = replay_locally(
        one_bolt(BothWays(), fields=("value", "ts")), {"source": [(1, 1), ("a", 2), (None, 3)]}
    )
    assert [how for how, _ in results["bolt"]] == ["row"] * 3


def test_a_batch_has_the_time_of_its_last_row_and_ticks_cut_it() -> None:
    conf = {"topology.tick.tuple.freq.secs": 1}
    # fewer come as rows
    values = [
        ("a", at_ms)
        for first, last in ((500, 900), (1100, 1200))
        for at_ms in [first] * 31 + [last]
    ]
    results = replay_locally(
        one_bolt(BothWays(), fields=("value", "ts")),
        {"source": values},
        event_time=EventTime("ts"),
        conf=conf,
    )
    assert results["bolt"] == [("batch", 900)] * 32 + [("row", 1000)] + [("batch", 1200)] * 32


@pytest.mark.parametrize(
    "grouping",
    [
        Grouping("fields", ("key",)),
        Grouping("fields", ("key", "value")),
        Grouping("key_range", ("key",), KeyRanges(["b", "d"])),
        Grouping("key_range", ("value",), KeyRanges([-10, 0, 10])),
        Grouping("all"),
        Grouping("global"),
        Grouping("partial_key", ("key",)),
        Grouping("custom", custom=ByKey()),
    ],
)
def test_a_batch_is_divided_as_its_rows_are(grouping: Grouping) -> None:
    sender = Sender("c", 1, "default", ("key", "value"))
    values = rows(5)
    found = []
    for size in (1, len(values)):
        targets = [Target(task, [], False) for task in (4, 5, 6)]
        route = Route(sender, Codec(), False)
        route.subscribe(grouping, targets, 1, 0)
        emitter = Emitter("c", {"default": route}, False)
        for start in range(0, len(values), size):
            BatchEmitter(emitter).emit_batch(
                pa.RecordBatch.from_pydict(
                    dict(
                        zip(
                            sender.fields,
                            zip(*values[start : start + size], strict=True),
                            strict=True,
                        )
                    )
                )
            )
        found.append([[row[0] for row in unfold(target.rows)] for target in targets])
    assert found[0] == found[1]
    assert sum(map(len, found[0])) > 0


@pytest.mark.slow
def test_batches_come_back_from_chunks_in_order() -> None:
    sender = Sender("c", 1, "default", ("n", "m"))
    edge = OutEdge(sender, Target(3, [], False), may_hold_pieces=True)
    for start in range(0, 100_000, 7_000):
        column = pa.array(range(start, start + 7_000))
        maps = pa.array([[("k", n)] for n in range(7_000)], pa.map_(pa.string(), pa.int64()))
        edge.rows.append((pa.RecordBatch.from_arrays([column, maps], ["n", "m"]), 5, sender))
    chunks = list(ChunkWriter(Codec(), 0, is_timed=False).edge(edge))
    read = [row for chunk in chunks for row in unpack_rows(Codec(), chunk)[0]]
    assert [n for n, _ in read] == list(range(105_000)) and read[1] == (1, {"k": 1})
    assert max(len(chunk.data) for chunk in chunks) < 3 << 20


@pytest.mark.system
def test_on_spark_batches_give_what_rows_give(spark: SparkSession) -> None:
    frame = spark.createDataFrame(rows(3), "key string, value int").repartition(3)
    local = replay_locally(topology(), {"source": rows(3)}, columns=False)
    results = replay(topology(), {"source": frame})
    for id in ("sum", "rows"):
        assert {row.key: row.value for row in results.state(id).collect()} == local.states[id]
    for name in ("double", "double:odd", "rows"):
        assert Counter(map(tuple, results[name].collect())) == Counter(local[name])


@pytest.mark.system
def test_on_spark_timed_rows_reach_batch_bolts_in_order(spark: SparkSession) -> None:
    builder = building(source=Source("value", "ts"))
    builder.set_bolt("bolt", BothWays()).global_grouping("source")
    builder.set_bolt("timed", Timed()).global_grouping("bolt")
    frame = spark.createDataFrame(
        [(str(n), 1000 - n) for n in range(100)], "value string, ts bigint"
    )
    found = replay(builder.build(), {"source": frame}, event_time="ts")["timed"].collect()
    assert [row.value for row in found] == ["batch"] * 100
    assert [row.now_ms for row in found] == sorted(row.now_ms for row in found)


TWICE = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))


@pytest.mark.parametrize(
    "column",
    [
        TWICE,
        pa.array([TWICE.to_pylist()], pa.list_(TWICE.type)),
        pa.array([1 << 60]).cast(pa.timestamp("us", "Asia/Tokyo")),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]),
    ],
    ids=["map", "list", "time", "struct"],
)
def test_a_column_that_no_tuple_carries_fails_its_row_in_every_replay(column: pa.Array) -> None:
    builder = building(source=Source("value"))
    builder.set_bolt("emit", Emitting(column)).global_grouping("source")
    builder.set_bolt("count", Count()).global_grouping("emit")
    found = []
    for columns in (True, False):
        results = replay_locally(
            builder.build(), {"source": [(1,)]}, columns=columns, skip_bad=True
        )
        (letter,) = results.dead_letters
        found.append((results["emit"], letter.component, letter.failure.text))
    assert found[0] == found[1] and found[0][:2] == ([], "emit")


# -- ColumnState -----------------------------------------------------------------------------------


def test_every_method_of_a_memory_state_ends_the_columns_or_knows_them() -> None:
    kind: Any = column_state._Columns
    public = {
        name
        for name, member in vars(MemoryState).items()
        if callable(member) and not name.startswith("_")
    }
    public |= {"__len__", "__contains__", "__iter__", "__getitem__", "__setitem__", "__delitem__"}
    public.remove("is_key")  # looks at the key alone
    public -= {"keep_changes", "holds"}  # of a live bolt's turn; no replay calls them
    result = {name for name in public if name not in vars(kind) and name not in vars(ColumnState)}
    assert result == set()


def test_sums_of_batches_come_out_as_columns() -> None:
    state = ColumnState(Codec())
    state.add_batch(pa.table({"user": [1, 2, 1], "word": ["a", "b", "a"]}), pa.array([1, 2, 3]))
    state.add_batch(pa.record_batch({"user": [2], "word": ["b"]}), 5)
    keys: Any
    values: Any
    keys, values = state.columns()
    assert isinstance(keys, pa.StructArray) and values.to_pylist() == [4, 7]
    assert [column.to_pylist() for column in keys.flatten()] == [[1, 2], ["a", "b"]]
    assert dict(state.items()) == {(1, "a"): 4, (2, "b"): 7}
    assert state.columns() == ([(1, "a"), (2, "b")], [4, 7])


@pytest.mark.parametrize(
    ("keys", "amounts"),
    [
        (pa.array([1.5]), 1),
        (pa.array([True]), 1),
        (pa.array(["a", None]), 1),
        (pa.array([2**63], pa.uint64()), 1),
        (pa.array(["a"]), pa.array([0.5])),
        (pa.array(["a"]), 2**70),
        (["a"], 1),
    ],
)
def test_other_types_are_kept_by_key(keys: Any, amounts: Any) -> None:
    state, plain = ColumnState(Codec()), MemoryState(Codec())
    for each in (state, plain):
        each.add_batch(keys, amounts)
    assert type(state) is ColumnState and list(state.items()) == list(plain.items())


def test_a_sum_beyond_64_bits_is_the_one_of_python() -> None:
    state = ColumnState(Codec())
    for _ in range(3):
        state.add_batch(pa.array([7]), 2**62)
    assert state[7] == 3 * 2**62


def test_amounts_of_another_length_are_refused_and_change_nothing() -> None:
    state = ColumnState(Codec())
    state.add_batch(pa.array([1]), 1)
    with pytest.raises(ValueError, match="zip"):
        state.add_batch(pa.array([1, 2]), pa.array([1]))
    assert dict(state.items()) == {1: 1}


@pytest.mark.parametrize("seed", range(60))
def test_any_calls_leave_what_they_leave_in_a_memory_state(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_state, "_FEW_ROWS", 8)
    rng = random.Random(seed)
    state, plain = ColumnState(Codec()), MemoryState(Codec())
    is_tuple = rng.random() < 0.5

    def keys(count: int, kind: pa.DataType) -> Any:
        found = pa.array([rng.randrange(6) for _ in range(count)], pa.int64()).cast(kind)
        return pa.table({"a": found, "b": found}) if is_tuple else found

    def both(call: Any) -> None:
        first, second = call(state), call(plain)
        assert first == second, seed

    for _ in range(40):
        step = rng.random()
        if step < 0.72:
            kind = pa.int64() if rng.random() < 0.97 else pa.string()
            added = keys(rng.randrange(5), kind)
            amounts = rng.choice(
                [1, -3, pa.array([rng.randrange(-5, 5) for _ in range(len(added))], pa.int32())]
            )
            both(lambda each, a=added, n=amounts: each.add_batch(a, n))
        elif step < 0.82:
            for each in (state, plain):
                each.undo.clear()
        elif step < 0.9:
            kept = [len(state.undo), len(plain.undo)]
            added = keys(3, pa.int64())
            both(lambda each, a=added: each.add_batch(a, 2))
            if rng.random() < 0.5:
                both(lambda each: each.add((1, 1) if is_tuple else 1, 4))
            for each, mark in zip((state, plain), kept, strict=True):
                each.roll_back(mark)
        elif step < 0.93:
            both(lambda each: each.get((2, 2) if is_tuple else 2))
        elif step < 0.95:
            both(lambda each: each.delete((3, 3) if is_tuple else 3))
        elif step < 0.97:
            both(lambda each: each.put((4, 4) if is_tuple else 4, 9))
        else:
            both(len)
    assert dict(state.items()) == dict(plain.items()), seed
    assert list(state) == list(plain), seed
