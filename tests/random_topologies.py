"""Random topologies live, replayed locally and replayed on Spark: `python -m
tests.random_topologies --seeds 600 [--first 0] [--spark]`.

Each has windows and timers over event time behind bolts of several tasks. Some bolts fail at first
tries, set timers by timers, keep states in folds, or change attributes. A component that differs
from the replay without a warning of its own ends the run with its seed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pyspark.sql import Row, SparkSession

from sparkstorm.api import BasicBolt, BasicOutputCollector, Bolt, OutputCollector, Tuple
from sparkstorm.replay import read_value, replay, replay_locally
from tests.replay.bolts import FIELDS, Pass
from tests.replay.test_time_warnings import (
    compared,
    differing,
    kind_of,
    outcome,
    outcomes_of_replay,
    replay_options,
)
from tests.replay.timed_topologies import (
    COLLECTING,
    FOLDING,
    KEEPING,
    TIMES_AS_KEYS,
    Bad,
    Disorder,
    Steps,
    random_topology,
)


class FirstTries(BasicBolt):
    """Fails at the first try of some tuples, after it has emitted."""

    outputs = FIELDS

    def prepare(self, conf: Any, context: Any) -> None:
        self.failed: set[str] = set()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["key"], tup["value"], tup["ts"]))
        if tup["value"] % 5 == 2 and repr(tup.values) not in self.failed:
            self.failed.add(repr(tup.values))
            raise ValueError("the first try")


class Numbers(BasicBolt):
    """Counts its inputs in an attribute."""

    outputs = FIELDS

    def prepare(self, conf: Any, context: Any) -> None:
        self.calls = 0

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.calls += 1
        collector.emit((tup["key"], tup["value"] + self.calls, tup["ts"]))


class ByHand(Bolt):
    """Acks by itself, and fails for good on some values."""

    outputs = FIELDS

    def prepare(self, conf: Any, context: Any, collector: OutputCollector) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        if tup["value"] % 9 == 4:
            self.collector.fail(tup, "never")
            return
        self.collector.emit((tup["key"], tup["value"], tup["ts"]), tup)
        self.collector.ack(tup)


TIMED: Sequence[Any] = (*FOLDING, *COLLECTING, Steps, *KEEPING)
PLAIN: Sequence[Any] = (Pass, Disorder, Bad, FirstTries, Numbers, ByHand)
GIVEN = (["a", "b", *TIMES_AS_KEYS], TIMED, PLAIN)


def on_spark(spark: SparkSession, seed: int) -> list[str]:
    """Return the components whose replay on Spark differs from the local one."""
    topology, rows = random_topology(Random(seed), "abc", TIMED, PLAIN)
    options = replay_options(topology, seed) | {"skip_bad": True}
    frames = {
        id: spark.createDataFrame(of, "key string, value int, ts bigint").coalesce(1)
        for id, of in rows.items()
    }
    results = replay(topology, frames, **options)
    results.run()

    def values_of(id: str, stream: str) -> Any:
        name = id if stream == "default" else f"{id}:{stream}"
        return [_plain(row) for row in results[name].collect()] if name in results else ()

    mine = outcomes_of_replay(topology, replay_locally(topology, rows, **options))
    found = {
        c.id: outcome(topology, c.id, values_of, _states(results, c.id), results.dead_letters)
        for c in topology.bolts
    }
    return differing(topology, mine, found)


def _states(results: Any, id: str) -> Mapping[int, Any]:
    found: dict[int, Any] = {}
    for row in results[f"{id}!state"].collect() if f"{id}!state" in results else ():
        found.setdefault(row.task, {})[_plain(row.key)] = _plain(row.value)
    return found


def _plain(value: Any) -> Any:
    """A cell of Spark's as the value that it stands for."""
    value = read_value(value)
    if isinstance(value, Row):
        if value.__fields__[:1] == ["_1"]:
            return [*map(_plain, value)]
        if "key" not in value.__fields__ and "component" not in value.__fields__:
            return {name: _plain(item) for name, item in value.asDict().items()}
        return tuple(map(_plain, value))
    return [*map(_plain, value)] if isinstance(value, list) else value


def main() -> None:
    """Compare as many topologies as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=600, help="how many (default 600)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--spark", action="store_true", help="Spark against replay_locally")
    arguments = parser.parse_args()
    tally: Counter[str] = Counter()
    spark = session() if arguments.spark else None
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        if spark is not None:
            assert not (unequal := on_spark(spark, seed)), f"seed {seed}: {unequal} differ on Spark"
            tally["equal on Spark"] += 1
            print(seed, flush=True)
        else:
            tally[kind_of(seed, *compared(seed, *GIVEN))] += 1
    print(", ".join(f"{count:,} {what}" for what, count in sorted(tally.items())))


def session() -> SparkSession:
    """Return a small session of two cores."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    return builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()


if __name__ == "__main__":
    main()
