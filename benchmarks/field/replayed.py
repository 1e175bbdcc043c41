"""A case replayed on Spark over its files: python -m benchmarks.field.replayed rows|columns CASE FOLDER.

Prints times and the answer as peers do. The session stands before the clock starts; of two runs the
second is given.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench_replay import session
from benchmarks.field.case import RESULT, Case
from benchmarks.field.systems import CASES, generator_of
from benchmarks.peers.clock import Stopwatch
from benchmarks.peers.sql import COLUMNS
from sparkstorm.replay import EventTime, read_value, replay


def frames(spark: SparkSession, case: Case, folder: str) -> dict[str, DataFrame]:
    """Return the frame of each stream that a case reads."""
    if case.name.startswith("nexmark"):
        return {
            f"events:{stream}": spark.read.schema(COLUMNS[stream]).csv(f"{folder}/{stream}")
            for stream in case.streams
        }
    fields = generator_of(case.name, 1).streams
    return {
        f"events:{s}": spark.read.text(f"{folder}/text").withColumnRenamed("value", fields[s][0])
        for s in case.streams
    }


def main() -> None:
    """Run one case."""
    by, name, folder = sys.argv[1:]
    case = CASES[name]
    spark = session()
    spark.range(1000).groupBy().count().collect()
    more: dict[str, Any] = {} if case.time is None else {"event_time": EventTime(case.time)}
    for _ in range(2):
        watch = Stopwatch()
        results = replay(
            case.topology(generator_of(name, 1), by),
            frames(spark, case, folder),
            outputs=[f"{RESULT}!state"],
            **more,
        )
        cells = [(row.key, row.value) for row in results.state(RESULT).collect()]
        answer = case.read(
            {
                tuple(key) if isinstance(key, tuple) else read_value(key): read_value(value)
                for key, value in cells
            }
        )
        results.close()
    watch.hand_in(answer)
    spark.stop()


if __name__ == "__main__":
    main()
