"""Spark beside us: the field's queries as a batch and as Structured Streaming over the same files.

Run: python -m benchmarks.peers.spark_field batch|streaming CASE FOLDER. Prints times and the answer. The session stands, and one
small query has run, before the clock starts; of two runs the second is given.
"""

import sys
from collections import Counter

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from benchmarks.peers.clock import Stopwatch
from benchmarks.peers.sql import COLUMNS, SPARK, STREAMED, answer_of

_AD = "ad_id STRING, event_type STRING, event_time STRING"


def views(spark, folder, case, streams):
    """Make a view of each table that the case reads; a stream takes one file a trigger at the
    least.
    """
    reader = spark.readStream if streams else spark.read
    if case.startswith("nexmark"):
        for table, columns in COLUMNS.items():
            frame = reader.schema(columns).csv(f"{folder}/{table}")
            frame.withColumn("rowtime", sf.timestamp_millis("time")).createOrReplaceTempView(table)
        return
    frame = reader.schema("text STRING").text(f"{folder}/text")
    frame.createOrReplaceTempView("text")
    if case == "yahoo":
        parsed = frame.select(sf.from_json("text", _AD).alias("e")).select("e.*")
        parsed.withColumn(
            "rowtime", sf.timestamp_millis(sf.col("event_time").cast("bigint"))
        ).createOrReplaceTempView("ad")
        spark.read.schema("ad STRING, campaign STRING").csv(
            f"{folder}/campaign"
        ).createOrReplaceTempView("campaign")


def streamed(spark, case):
    """Run a case as a stream that ends with its files; return its last rows."""
    found = []

    def take(frame, _):
        rows = [tuple(row) for row in frame.collect()]
        if STREAMED[case] == "complete":
            found[:] = rows
        else:
            found.extend(rows)

    query = (
        spark.sql(SPARK[case])
        .writeStream.outputMode(STREAMED[case])
        .foreachBatch(take)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


def main():
    """Run one case."""
    kind, case, folder = sys.argv[1:]
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", 2)
    )
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1000).groupBy().count().collect()
    for _ in range(2):
        watch = Stopwatch()
        views(spark, folder, case, kind == "streaming")
        rows = (
            streamed(spark, case)
            if kind == "streaming"
            else [tuple(row) for row in spark.sql(SPARK[case]).collect()]
        )
        answer = answer_of(case, Counter(rows).items())
    watch.hand_in(answer)
    spark.stop()


if __name__ == "__main__":
    main()
