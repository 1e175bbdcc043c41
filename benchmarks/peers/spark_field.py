"""Spark as a peer: the field's queries as a batch and as Structured Streaming over the same files.

Run: python -m benchmarks.peers.spark_field; it is asked for kinds (batch, streaming), cases and
folders by lines on standard input (clock.py). The session stands, and one small query has run,
before the first clock starts.
"""

from collections import Counter

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from benchmarks.peers.clock import serve
from benchmarks.peers.sql import BATCH_PART, COLUMNS, SPARK, STREAM_PART, STREAMED, answer_of

_AD = "ad_id STRING, event_type STRING, event_time STRING"


def views(spark, folder, case, streams):
    """Make a view of each table that the case reads; a stream takes one file a trigger at the
    least.
    """
    reader = spark.readStream if streams else spark.read
    if case.startswith("nexmark"):
        for table, columns in COLUMNS.items():
            frame = reader.schema(columns).csv(f"{folder}/{table}")
            timed = frame.withColumn("rowtime", sf.timestamp_millis("time"))
            # of a join it bounds what is kept
            timed = timed.withWatermark("rowtime", "4 seconds") if case == "nexmark q8" else timed
            timed.createOrReplaceTempView(table)
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
    collected = []

    def take(frame, _):
        if case in BATCH_PART:
            # without it the micro-batch would be computed twice
            frame.persist()
            frame.createOrReplaceTempView("c")
            frame = frame.sparkSession.sql(BATCH_PART[case])
        rows = [tuple(row) for row in frame.collect()]
        if STREAMED[case] == "complete":
            collected[:] = rows
        else:
            collected.extend(rows)
        if case in BATCH_PART:
            frame.sparkSession.table("c").unpersist()

    query = (
        spark.sql(STREAM_PART.get(case, SPARK[case]))
        .writeStream.outputMode(STREAMED[case])
        .foreachBatch(take)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return collected


def main():
    """Run the cases that are asked for."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", 2)
    )
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1000).groupBy().count().collect()

    def run(kind, case, folder):
        views(spark, folder, case, kind == "streaming")
        rows = (
            streamed(spark, case)
            if kind == "streaming"
            else [tuple(row) for row in spark.sql(SPARK[case]).collect()]
        )
        return answer_of(case, Counter(rows).items())

    serve(run, spark._jvm.System.gc)
    spark.stop()


if __name__ == "__main__":
    main()
