"""Random topologies live, replayed locally and replayed on Spark: `python -m
tests.random_topologies --seeds 600 [--first 0] [--spark]`.

Each has windows and timers over event time behind bolts of several tasks. Some bolts fail at first
tries, set timers by timers, keep states in folds, change attributes, block, await, or look up. A
component that differs from the replay without its own warning ends the run with its seed.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pyspark.sql import Row, SparkSession

from sparkstorm.api import (
    AsyncBolt,
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    OutputCollector,
    StatefulBolt,
    Tuple,
)
from sparkstorm.replay import LocalResults, read_value, replay, replay_locally
from sparkstorm.replay.job import STATE_MARK
from sparkstorm.replay.local import _collect
from sparkstorm.replay.tasks.chunks import DEAD, KEPT_STATE, ROWS, EdgeChunk
from sparkstorm.streams.lookup import LookupBolt
from tests.replay.bolts import FIELDS, Pass
from tests.replay.conftest import MASTER, Session
from tests.replay.test_time_warnings import compared, differing, outcomes_of_replay, replay_options
from tests.replay.test_warnings import kind_of
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


class Shares(BasicBolt):
    """Emits its own list that it changes in place afterwards."""

    outputs = (*FIELDS, "values")

    def __init__(self) -> None:
        super().__init__()
        self.items: list[Any] = []

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.items.append([tup["value"] % 3])
        collector.emit((tup["key"], tup["value"], tup["ts"], self.items))
        self.items[0].append(tup["value"])
        del self.items[:-3]


class Changes(BasicBolt):
    """Changes a list that it was sent, and one that it has emitted."""

    outputs = (*FIELDS, "values")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        items = tup["values"] if "values" in tup.fields else [tup["value"]]
        items.append(len(items))
        collector.emit((tup["key"], tup["value"], tup["ts"], items))
        items.reverse()
        collector.emit((tup["key"], len(items), tup["ts"], items))
        items.clear()


class Gathers(StatefulBolt):
    """Changes a list in its state in place, and puts it on some inputs alone."""

    outputs = (*FIELDS, "values")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        items = self.state.get(tup["key"], [])
        items.append(tup["value"])
        if tup["value"] % 3:
            self.state.put(tup["key"], items)
            items.append(0)  # no longer what was put, or is it
        collector.emit((tup["key"], len(items), tup["ts"], items))


class Blocks(Gathers):
    """Runs on its own thread, and fails on some values after it has changed its state."""

    blocking = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        super().execute(tup, collector)
        if tup["value"] % 8 == 5:
            raise ValueError("five of eight")


class Awaits(AsyncBolt):
    """Awaits a while that depends on the value; fails at first tries, and for good on some."""

    outputs = FIELDS
    capacity = 4

    async def start(self, conf: Any, context: Any) -> None:
        self.failed: set[str] = set()

    async def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup["key"], tup["value"], tup["ts"]))
        for _ in range(tup["value"] % 3):
            await asyncio.sleep(0)
        if tup["value"] % 9 == 7 or (tup["value"] % 5 == 2 and repr(tup.values) not in self.failed):
            self.failed.add(repr(tup.values))
            raise ValueError("seven of nine, or the first try")
        collector.emit((tup["key"], -tup["value"], tup["ts"]))


class AwaitsInAnyOrder(Awaits):
    """Lets rows pass each other."""

    ordered = False


class LooksUp(LookupBolt):
    """Looks up values, of which some are missing."""

    def __init__(self) -> None:
        values = {value: value % 5 for value in range(-200, 200, 3)}

        def fetch(keys: Sequence[Any]) -> Mapping[Any, Any]:
            return {key: values[key] for key in keys if key in values}

        super().__init__(
            fetch, "value", keep=FIELDS, add=("found",), kind="inner", batch=3, snapshot=values
        )


TIMED: Sequence[Any] = (*FOLDING, *COLLECTING, Steps, *KEEPING)
CALLED = (Pass, Disorder, Bad, FirstTries, Numbers, ByHand, Shares, Changes, Gathers)
PLAIN: Sequence[Any] = (*CALLED, Blocks, Awaits, AwaitsInAnyOrder, LooksUp)
GIVEN = (["a", "b", *TIMES_AS_KEYS], TIMED, PLAIN)


def on_spark(spark: SparkSession, seed: int) -> list[str]:
    """Return the components whose replay on Spark differs from the local one without a warning, by
    the chunks of all stages, which one job computes; and one result whose table differs from them.
    """
    topology, rows = random_topology(Random(seed), "abc", TIMED, PLAIN)
    options = replay_options(topology, seed) | {"skip_bad": True}
    frames = {
        id: spark.createDataFrame(of, "key string, value int, ts bigint").coalesce(1)
        for id, of in rows.items()
    }
    mine = replay_locally(topology, rows, **options)
    results = replay(topology, frames, **options)
    collected = results.kept(ROWS, KEPT_STATE, DEAD).collect()
    chunks = [EdgeChunk(*row)._replace(data=bytes(row.data)) for row in collected]
    local_results = LocalResults()
    _collect(results._plan, {}, {0: chunks}, local_results, results._stages.job.wanted)
    unequal = differing(
        topology, *(outcomes_of_replay(topology, of) for of in (mine, local_results))
    )
    name = Random(seed).choice([n for n in results if n.split(":")[0] not in rows])
    table = Counter(repr(_plain(row, True)) for row in results[name].collect())
    warned = {warning.component for warning in (*mine.warnings, *results.warnings)}
    results.close()
    id = name.removesuffix(STATE_MARK)
    kept_rows = (
        local_results.outputs[name]
        if id == name
        else _pairs(local_results.states_by_task.get(id, {}))
    )
    is_equal = table == Counter(map(repr, kept_rows))
    return [*(id for id in unequal if id not in warned), *([] if is_equal else [name])]


def _pairs(states: Mapping[int, Any]) -> list[tuple[Any, ...]]:
    return [(*pair, task) for task, state in states.items() for pair in state.items()]


def _plain(value: Any, is_table: bool = False) -> Any:
    """A cell of Spark's, or a row of a table, as the value that it stands for."""
    value = read_value(value)
    if isinstance(value, Row):
        items = [_plain(item) for item in value]
        if is_table:
            return tuple(items)
        names = value.__fields__
        return items if names[0] == "_1" else dict(zip(names, items, strict=True))
    return [*map(_plain, value)] if isinstance(value, list) else value


def main() -> None:
    """Compare as many topologies as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=600, help="how many (default 600)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--spark", action="store_true", help="Spark against replay_locally")
    arguments = parser.parse_args()
    tally: Counter[str] = Counter()
    spark = Session().get(MASTER) if arguments.spark else None
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        if spark is not None:
            assert not (unequal := on_spark(spark, seed)), f"seed {seed}: {unequal} differ on Spark"
            tally["equal on Spark"] += 1
            print(seed, flush=True)
        else:
            tally[kind_of(seed, *compared(seed, *GIVEN))] += 1
    print(", ".join(f"{count:,} {what}" for what, count in sorted(tally.items())))


if __name__ == "__main__":
    main()
