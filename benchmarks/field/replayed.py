"""Cases replayed on Spark over their files: python -m benchmarks.field.replayed.

It is asked for kinds (rows, columns), cases and folders by lines on standard input, as peers are
(benchmarks/peers/clock.py). The session stands before the first clock starts.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench_replay import session
from benchmarks.field.case import RESULT, Answer, Case
from benchmarks.field.systems import CASES, generator_of
from benchmarks.peers.clock import serve
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
    # Windows by a time that is in the texts: of two files, read one after the other, each with all
    # times, the second one's rows would be late.
    texts = f"{folder}/whole/text" if case.name == "yahoo" else f"{folder}/text"
    return {
        f"events:{s}": spark.read.text(texts).withColumnRenamed("value", fields[s][0])
        for s in case.streams
    }


def main() -> None:
    """Run the cases that are asked for."""
    spark = session()
    spark.range(1000).groupBy().count().collect()

    def run(by: str, name: str, folder: str) -> Answer:
        case = CASES[name]
        more: dict[str, Any] = {} if case.time is None else {"event_time": EventTime(case.time)}
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
        return answer

    serve(run, spark._jvm.System.gc)  # type: ignore[union-attr]
    spark.stop()


if __name__ == "__main__":
    main()
