"""Variants that the benchmark of batch replay compares: replays, hand-written PySpark, the
DataFrame API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    CombiningBolt,
    Spout,
    Stateful,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.api.columns import BatchCollector, ColumnBolt
from sparkstorm.api.windows import Duration, FoldingBolt, Window
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.tuples import Source
from sparkstorm.replay import EventTime, replay
from sparkstorm.replay.arrow_map import map_in_arrow

TASKS = 2
USERS = 10_000
EVENTS_PER_S = 10_000
WINDOW_MS = 10_000
Variant = Callable[[SparkSession, str], dict[object, int]]


class Data(Spout):
    """Stands for the live source."""

    def __init__(self, *fields: str) -> None:
        self.outputs = fields


class Split(BasicBolt):
    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for word in tup.values[0].split():
            collector.emit((word,))


class Count(StatefulBolt):
    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup.values[0], 1)


class WindowSum(StatefulBolt):
    """Sums per user and window of 10 s; the key of the state is both."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        user, amount, at_ms = tup.values
        self.state.add((user, at_ms // WINDOW_MS), amount)


class SplitColumns(ColumnBolt):
    outputs = ("word",)

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        words = pc.list_flatten(pc.utf8_split_whitespace(batch.column(0)))
        collector.emit_batch(pa.RecordBatch.from_arrays([words], ["word"]))


class CountColumns(Stateful, ColumnBolt):
    order_insensitive = True

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        counts = batch.column(0).value_counts()
        self.state.add_batch(counts.field(0), counts.field(1))


class SumColumns(Stateful, ColumnBolt):
    order_insensitive = True

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        sums = sums_of(batch)
        self.state.add_batch(sums.select(["user", "window"]), sums["amount_sum"])


class Combined(CombiningBolt):
    """The same counts, put together before the shuffle; of whole batches where there are any."""

    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        return tup.values[0], 1

    def combine(self, one: int, other: int) -> int:
        return one + other


class CombinedColumns(Combined):
    def pairs_of(self, batch: pa.RecordBatch) -> Any:
        return [
            (pair["values"], pair["counts"]) for pair in batch.column(0).value_counts().to_pylist()
        ]


class CombinedSums(Combined):
    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        user, amount, at_ms = tup.values
        return (user, at_ms // WINDOW_MS), amount


class CombinedSumColumns(CombinedSums):
    def pairs_of(self, batch: pa.RecordBatch) -> Any:
        users, windows, values = (column.to_pylist() for column in sums_of(batch).columns)
        return zip(zip(users, windows, strict=True), values, strict=True)


def sums_of(batch: pa.RecordBatch) -> pa.Table:
    """Sums of a batch by user and window."""
    table = pa.table(
        [batch["user"], pc.divide(batch["at_ms"], WINDOW_MS), batch["amount"]],
        ["user", "window", "amount"],
    )
    return table.group_by(["user", "window"]).aggregate([("amount", "sum")])


class RealWindows(FoldingBolt):
    """The same sums by the windows of the API, which also know late tuples and hand out each window
    once.
    """

    outputs = ("user", "window", "value")
    key_fields = ("user",)

    def initial(self) -> int:
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        total: int = accumulator + tup.values[1]
        return total

    def merge(self, one: int, other: int) -> int:
        return one + other

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((*window.key, window.start // WINDOW_MS, window.value))


class Totals(BasicBolt):
    """An order with its hour and total; what comes in are a time, a decimal and a list of structs."""

    outputs = ("id", "hour", "total", "items")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        id, moment, price, items = tup.values
        collector.emit((id, *total_of(moment, price, items), items))


def total_of(moment: datetime, price: Decimal, items: list[Any]) -> tuple[datetime, Decimal]:
    """The hour and the total of an order."""
    return moment.replace(minute=0, second=0, microsecond=0), price * sum(
        item["n"] for item in items
    )


def word_topology(split: BasicBolt, count: BasicBolt) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("lines", Data("line"))
    builder.set_bolt("split", split, TASKS).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", count, TASKS).fields_grouping("split", "word")
    return builder.build()


def sum_topology(bolt: Any) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("events", Data("user", "amount", "at_ms"))
    builder.set_bolt("sum", bolt, TASKS).fields_grouping("events", "user")
    return builder.build()


# -- word count ------------------------------------------------------------------------------------


def replayed_words(spark: SparkSession, path: str) -> dict[object, int]:
    return _counted(spark, path, word_topology(Split(), Count()))


def replayed_word_columns(spark: SparkSession, path: str) -> dict[object, int]:
    return _counted(spark, path, word_topology(SplitColumns(), CountColumns()))


def combined_word_columns(spark: SparkSession, path: str) -> dict[object, int]:
    return _counted(spark, path, word_topology(SplitColumns(), CombinedColumns()))


def _counted(spark: SparkSession, path: str, topology: Topology) -> dict[object, int]:
    results = replay(
        topology,
        {"lines": spark.read.parquet(path)},
        outputs=["count!state"],
        types={"count!state": "key string, value bigint"},
    )
    pairs = _pairs(results["count!state"].select("key", "value"))
    results.close()
    return pairs


def split_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        words = [word for line in batch.column(0).to_pylist() for word in line.split()]
        yield pa.RecordBatch.from_arrays([pa.array(words)], ["word"])


def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    counts: dict[str, int] = {}
    for batch in batches:
        for word in batch.column(0).to_pylist():
            counts[word] = counts.get(word, 0) + 1
    yield pa.RecordBatch.from_arrays(
        [pa.array(list(counts)), pa.array(list(counts.values()), pa.int64())], ["word", "n"]
    )


def partial_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    counts: dict[str, int] = {}
    for batch in batches:
        for line in batch.column(0).to_pylist():
            for word in line.split():
                counts[word] = counts.get(word, 0) + 1
    yield pa.RecordBatch.from_arrays(
        [pa.array(list(counts)), pa.array(list(counts.values()), pa.int64())], ["word", "n"]
    )


def same_work_words(spark: SparkSession, path: str) -> dict[object, int]:
    """The same Python work in the same two steps, with Spark's shuffle of rows between them."""
    words = map_in_arrow(spark.read.parquet(path), split_rows, "word string").repartition(
        TASKS, "word"
    )
    return _pairs(map_in_arrow(words, count_rows, "word string, n long"))


def split_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [pc.list_flatten(pc.utf8_split_whitespace(batch.column(0)))], ["word"]
        )


def count_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(list(batches), pa.schema([("word", pa.string())]))
    counts = table.group_by("word").aggregate([("word", "count")]).rename_columns(["word", "n"])
    yield from counts.combine_chunks().to_batches()


def arrow_words(spark: SparkSession, path: str) -> dict[object, int]:
    """The same two steps in Arrow's functions."""
    words = map_in_arrow(spark.read.parquet(path), split_columns, "word string").repartition(
        TASKS, "word"
    )
    return _pairs(map_in_arrow(words, count_columns, "word string, n long"))


def partial_words(spark: SparkSession, path: str) -> dict[object, int]:
    """Counted before the shuffle: less work."""
    counts = map_in_arrow(spark.read.parquet(path), partial_rows, "word string, n long")
    return _pairs(counts.groupBy("word").agg(sf.sum("n").alias("n")))


def partial_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return count_columns(split_columns(batches))


def partial_arrow_words(spark: SparkSession, path: str) -> dict[object, int]:
    """Counted before the shuffle by Arrow."""
    counts = map_in_arrow(spark.read.parquet(path), partial_columns, "word string, n long")
    return _pairs(counts.groupBy("word").agg(sf.sum("n").alias("n")))


def frame_words(spark: SparkSession, path: str) -> dict[object, int]:
    """The DataFrame API: no Python at all."""
    words = spark.read.parquet(path).select(sf.explode(sf.split("line", " ")).alias("word"))
    return _pairs(words.groupBy("word").count())


# -- keyed tumbling sum ----------------------------------------------------------------------------


def replayed_sums(spark: SparkSession, path: str) -> dict[object, int]:
    return _summed(spark, path, sum_topology(WindowSum()))


def replayed_sum_columns(spark: SparkSession, path: str) -> dict[object, int]:
    return _summed(spark, path, sum_topology(SumColumns()))


def combined_sum_columns(spark: SparkSession, path: str) -> dict[object, int]:
    return _summed(spark, path, sum_topology(CombinedSumColumns()))


def replayed_windows(spark: SparkSession, path: str) -> dict[object, int]:
    windows = RealWindows().with_tumbling_window(Duration.millis(WINDOW_MS))
    bolt = windows.with_timestamp_field("at_ms").with_lag(Duration.seconds(3))
    results = replay(
        sum_topology(bolt),
        {"events": spark.read.parquet(path)},
        outputs=["sum"],
        event_time=EventTime("at_ms"),
        types={"sum": "user bigint, window bigint, value bigint"},
    )
    sums = _sums(results["sum"])
    results.close()
    return sums


def _summed(spark: SparkSession, path: str, topology: Topology) -> dict[object, int]:
    results = replay(
        topology,
        {"events": spark.read.parquet(path)},
        outputs=["sum!state"],
        types={"sum!state": "key struct<user:bigint,window:bigint>, value bigint"},
    )
    sums = _sums(results["sum!state"].select("key.user", "key.window", "value"))
    results.close()
    return sums


def sum_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    sums: dict[tuple[int, int], int] = {}
    for batch in batches:
        for user, amount, at_ms in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            key = (user, at_ms // WINDOW_MS)
            sums[key] = sums.get(key, 0) + amount
    yield _batch_of(sums)


class _Called:
    """The body of `sum_rows` as a method that is called for each row, as any host calls a bolt."""

    def __init__(self) -> None:
        self.sums: dict[tuple[int, int], int] = {}

    def execute(self, row: tuple[int, int, int]) -> None:
        user, amount, at_ms = row
        key = (user, at_ms // WINDOW_MS)
        self.sums[key] = self.sums.get(key, 0) + amount


def sum_called(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    called = _Called()
    execute = called.execute
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            execute(row)
    yield _batch_of(called.sums)


def _batch_of(sums: dict[tuple[int, int], int]) -> pa.RecordBatch:
    users, windows = zip(*sums, strict=True) if sums else ((), ())
    arrays = [pa.array(column, pa.int64()) for column in (users, windows, list(sums.values()))]
    return pa.RecordBatch.from_arrays(arrays, ["user", "window", "value"])


def sum_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(
        list(batches), pa.schema([(n, pa.int64()) for n in ("user", "amount", "at_ms")])
    )
    table = table.append_column("window", pc.divide(table["at_ms"], WINDOW_MS))
    sums = table.group_by(["user", "window"]).aggregate([("amount", "sum")])
    sums = sums.select(["user", "window", "amount_sum"]).rename_columns(["user", "window", "value"])
    yield from sums.combine_chunks().to_batches()


_SUMS = "user long, window long, value long"


def same_work_sums(spark: SparkSession, path: str) -> dict[object, int]:
    """The same Python loop behind Spark's shuffle by user."""
    return _sums(map_in_arrow(spark.read.parquet(path).repartition(TASKS, "user"), sum_rows, _SUMS))


def called_sums(spark: SparkSession, path: str) -> dict[object, int]:
    """The same with the loop's body in a method: no host that calls a bolt by rows does less."""
    events = spark.read.parquet(path).repartition(TASKS, "user")
    return _sums(map_in_arrow(events, sum_called, _SUMS))


def arrow_sums(spark: SparkSession, path: str) -> dict[object, int]:
    """Arrow's group_by behind the same shuffle."""
    return _sums(
        map_in_arrow(spark.read.parquet(path).repartition(TASKS, "user"), sum_columns, _SUMS)
    )


def partial_sums(spark: SparkSession, path: str) -> dict[object, int]:
    """Summed before the shuffle."""
    sums = map_in_arrow(spark.read.parquet(path), sum_rows, _SUMS)
    return _sums(sums.groupBy("user", "window").agg(sf.sum("value").alias("value")))


def partial_arrow_sums(spark: SparkSession, path: str) -> dict[object, int]:
    """Summed before the shuffle by Arrow."""
    sums = map_in_arrow(spark.read.parquet(path), sum_columns, _SUMS)
    return _sums(sums.groupBy("user", "window").agg(sf.sum("value").alias("value")))


def frame_sums(spark: SparkSession, path: str) -> dict[object, int]:
    """The DataFrame API."""
    window = sf.floor(sf.col("at_ms") / WINDOW_MS).alias("window")
    return _sums(
        spark.read.parquet(path).groupBy("user", window).agg(sf.sum("amount").alias("value"))
    )


# -- orders ----------------------------------------------------------------------------------------

ITEMS = "array<struct<sku:string,n:bigint,price:double>>"
_TOTALS = f"id bigint, hour timestamp, total decimal(20,2), items {ITEMS}"


def order_topology() -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("orders", Data("id", "at", "price", "items"))
    builder.set_bolt("totals", Totals(), TASKS).shuffle_grouping("orders")
    return builder.build()


def replayed_orders(spark: SparkSession, path: str) -> dict[object, int]:
    results = replay(
        order_topology(),
        {"orders": spark.read.parquet(path)},
        outputs=["totals"],
        types={"totals": _TOTALS},
    )
    summary = _summary(results["totals"])
    results.close()
    return summary


def totals_by_hand(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    item = pa.struct({"sku": pa.string(), "n": pa.int64(), "price": pa.float64()})
    kinds = (pa.int64(), pa.timestamp("us", "UTC"), pa.decimal128(20, 2), pa.list_(item))
    for batch in batches:
        rows = [
            (id, *total_of(moment, price, items), items)
            for id, moment, price, items in zip(
                *(column.to_pylist() for column in batch.columns), strict=True
            )
        ]
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, ["id", "hour", "total", "items"])


def same_work_orders(spark: SparkSession, path: str) -> dict[object, int]:
    """The same loop between pyarrow's `to_pylist` and `array`."""
    return _summary(map_in_arrow(spark.read.parquet(path), totals_by_hand, _TOTALS))


def _summary(frame: DataFrame) -> dict[object, int]:
    row = frame.select(
        sf.sum("id"),
        sf.sum(sf.unix_seconds("hour")),
        sf.sum("total").cast("bigint"),
        sf.sum(sf.aggregate("items", sf.lit(0).cast("bigint"), lambda done, item: done + item.n)),
    ).first()
    return dict(enumerate(row or ()))


def _pairs(frame: DataFrame) -> dict[object, int]:
    table = frame.toArrow()
    return dict(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))


def _sums(frame: DataFrame) -> dict[object, int]:
    users, windows, values = (column.to_pylist() for column in frame.toArrow().columns)
    return dict(zip(zip(users, windows, strict=True), values, strict=True))


ROWS = "by hand, rows"
CALLED = "by hand, rows, called"
COLUMNS = "by hand, columns"
WORDS: dict[str, Variant] = {
    "replay, rows": replayed_words,
    ROWS: same_work_words,
    "replay, columns": replayed_word_columns,
    COLUMNS: arrow_words,
    "by hand, rows, partial": partial_words,
    "replay, columns, combined": combined_word_columns,
    "by hand, columns, partial": partial_arrow_words,
    "DataFrame API": frame_words,
}
SUMS: dict[str, Variant] = {
    "replay, rows": replayed_sums,
    ROWS: same_work_sums,
    CALLED: called_sums,
    "replay, columns": replayed_sum_columns,
    COLUMNS: arrow_sums,
    "by hand, rows, partial": partial_sums,
    "replay, columns, combined": combined_sum_columns,
    "by hand, columns, partial": partial_arrow_sums,
    "replay, windows of the API": replayed_windows,
    "DataFrame API": frame_sums,
}
ORDERS: dict[str, Variant] = {"replay, rows": replayed_orders, ROWS: same_work_orders}
