"""A bolt that sums up by key: combined before the shuffle or not, live or replayed, it ends up with
the same.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import CombiningBolt, Tuple
from sparkstorm.api.columns import BatchCollector, ColumnBolt
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.tuples import Source as Sender
from sparkstorm.replay import replay, replay_locally
from sparkstorm.replay.tasks import combiner
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Source
from tests.replay.random_topologies import Shift, random_rows
from tests.topologies import building

pytestmark = pytest.mark.sampled

FIELDS = ("key", "value", "ts")


class Sum(CombiningBolt):
    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        return tup["key"], tup["value"]

    def combine(self, one: Any, other: Any) -> Any:
        return one + other


class Fussy(Sum):
    """Has no pair for some tuples."""

    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        if tup["value"] % 7 == 0:
            raise ValueError("no sevens")
        return super().pair(tup)


class ByBatch(Sum):
    """Whole batches where there are any; not those with a key that is none."""

    def pairs_of(self, batch: pa.RecordBatch) -> Any:
        if batch["key"].null_count:
            return None
        sums = pa.table(batch).group_by("key").aggregate([("value", "sum")])
        return zip(sums["key"].to_pylist(), sums["value_sum"].to_pylist(), strict=True)


class PerWindow(ByBatch):
    """A key of two parts, and a value of several, which not all batches have."""

    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        return (tup["key"], tup["ts"] // 50), [tup["value"], 1, tup["value"]]

    def combine(self, one: Any, other: Any) -> Any:
        return [one[0] + other[0], one[1] + other[1], max(one[2], other[2])]

    def pairs_of(self, batch: pa.RecordBatch) -> Any:
        if batch.num_rows % 5 == 0:
            raise ValueError("no fives")
        return [
            ((row["key"], row["ts"] // 50), [row["value"], 1, row["value"]])
            for row in batch.to_pylist()
        ]


class Halves(ColumnBolt):
    """Batches on their way."""

    outputs = FIELDS

    def execute_batch(
        self, batch: pa.RecordBatch, source: Sender, collector: BatchCollector
    ) -> None:
        collector.emit_batch(
            pa.RecordBatch.from_arrays(
                [batch["key"], pc.shift_right(batch["value"], 1), batch["ts"]], FIELDS
            )
        )


def topology(bolt: CombiningBolt, random: Random, middle: Any = None) -> Topology:
    builder = building(source=Source(*FIELDS))
    builder.set_bolt(
        "middle", middle or random.choice((Shift(), Halves())), random.randint(1, 3)
    ).shuffle_grouping("source")
    declarer = builder.set_bolt("sum", bolt, random.randint(1, 3))
    if random.random() < 0.8:
        declarer.fields_grouping("middle", "key")
    else:
        declarer.global_grouping("middle")
    return builder.build()


@pytest.mark.slow
@pytest.mark.parametrize("bolt", [PerWindow, ByBatch])
def test_what_is_combined_before_it_travels_is_the_same_live_and_in_both_replays(
    bolt: type[CombiningBolt], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(60):
        random = Random(seed)
        monkeypatch.setattr(combiner, "MOST_KEYS", random.choice((1, 2, 1 << 16)))
        made, rows = topology(bolt(), random), random_rows(random, ["a", "b", "ä", "", None])
        found = [
            replay_locally(
                made,
                {"source": rows},
                outputs=["sum!state"],
                skip_bad=True,
                partitions=2,
                shortcuts=shortcuts,
                conf={"topology.max.retries": 0},
            )
            for shortcuts in (True, False)
        ]
        live = complete_topology(made, {"source": rows}, conf={"topology.max.retries": 0})
        assert found[0].states == found[1].states == {"sum": dict(live.state("sum"))}, (
            f"seed {seed}"
        )
        letters = [
            Counter((d.component, repr(d.values), d.reason) for d in each.dead_letters)
            for each in found
        ]
        assert letters[0] == letters[1], f"seed {seed}"


ROWS = [(f"k{n % 4}", 1, n) for n in range(400)]


def test_one_value_per_key_and_sender_travels_of_batches() -> None:
    made = topology(ByBatch(), Random(1), Halves())
    replayed = replay_locally(made, {"source": ROWS}, outputs=["sum!state"])
    assert replayed.counts["middle"]["executed"] == 400
    assert 4 <= replayed.counts["sum"]["executed"] <= 4 * 3


@pytest.mark.parametrize("middle", [Shift(), Halves()])
@pytest.mark.parametrize("outputs", [None, ["sum!state"]])
def test_rows_and_tuples_that_are_results_travel_as_they_are(middle: Any, outputs: Any) -> None:
    made = topology(ByBatch(), Random(1), middle)
    replayed = replay_locally(made, {"source": ROWS}, outputs=outputs)
    combines = outputs is not None and isinstance(middle, Halves)
    assert (replayed.counts["sum"]["executed"] < 400) is combines


def test_a_failing_record_is_named_as_without_combining() -> None:
    builder = building(source=Source(*FIELDS))
    builder.set_bolt("sum", Fussy()).fields_grouping("source", "key")
    sentence = r"component 'sum' .*failed 4 times.*value=49.*no sevens"
    with pytest.raises(ReplayFailedError, match=sentence):
        replay_locally(builder.build(), {"source": [*ROWS, ("k", 49, 0)]}, outputs=["sum!state"])


class Given(Sum):
    """Key and value as they are in a table, of rows and of batches."""

    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        found: tuple[Any, Any] = GIVEN[tup["value"]]
        return found

    def combine(self, one: Any, other: Any) -> Any:
        if type(one) is not type(other):
            raise TypeError(f"{one} and {other}")
        return one + other

    def pairs_of(self, batch: pa.RecordBatch) -> Any:
        return list(map(GIVEN.__getitem__, batch["value"].to_pylist()))


NAIVE = datetime(2026, 1, 1)
GIVEN: list[tuple[Any, Any]] = [
    *(("a", 1), ("a", 2), ("a", "x"), ("a", "y"), ("a", 1 << 9000), ("a", 4)),
    *(("b", "\ud800"), ("b", NAIVE), ("b", 1 << 63), ("b", {1, 2}), ("c", 1 << 8191)),
    *(("c", 1 << 8191), ("\ud800", 1), (NAIVE, 1), (1 << 9000, 1), (("d", NAIVE), 1), ([], 1)),
]


def test_tuples_that_cannot_be_combined_fail_alone_as_live() -> None:
    builder = building(source=Source(*FIELDS))
    builder.set_bolt("sum", Given()).global_grouping("source")
    rows = {"source": [("", at, 0) for at in range(len(GIVEN))]}
    conf = {"topology.max.retries": 0}
    found: list[Any] = [
        replay_locally(builder.build(), rows, skip_bad=True, shortcuts=shortcuts, conf=conf)
        for shortcuts in (True, False)
    ]
    live = complete_topology(builder.build(), rows, conf=conf)
    states = {"a": 7, "b": 1 << 63, "c": 1 << 8191}
    assert [each.states for each in found] == [{"sum": states}] * 2
    assert dict(live.state("sum")) == states
    bad = [2, 3, 4, 6, 7, 9, 11, 12, 13, 14, 15, 16]
    for each in (*found, live):
        assert sorted(letter.values[1] for letter in each.dead_letters) == bad


@pytest.mark.system
def test_on_spark_too(spark: SparkSession) -> None:
    made = topology(PerWindow(), Random(1), Halves())
    results = replay(
        made,
        {"source": spark.createDataFrame(ROWS, "key string, value int, ts int").repartition(3)},
        outputs=["sum!state"],
    )
    found = {tuple(row.key): list(row.value) for row in results["sum!state"].collect()}
    assert found == replay_locally(made, {"source": ROWS}).states["sum"]
    assert results.counts["sum"]["executed"] < 400
