"""Flink as a peer: the field's queries in SQL (streaming), and some as a DataStream in Python, over
the same files.

Run in an environment with apache-flink: python -m benchmarks.peers.flink_field; it is asked for
kinds (sql, datastream), cases and folders by lines on standard input (clock.py). Its JVM stands
before the first clock starts; planning, deployment and the start of Python's workers are in the
time. Windows read one file: of several, a fast reader's rows would make those of another late.
"""

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.functions import AggregateFunction, ProcessWindowFunction
from pyflink.datastream.window import Time, TumblingEventTimeWindows
from pyflink.java_gateway import get_gateway
from pyflink.table import EnvironmentSettings, TableEnvironment

from benchmarks.peers.clock import serve
from benchmarks.peers.sql import COLUMNS, FLINK, answer_of

_TIMED = (
    ", rowtime AS TO_TIMESTAMP_LTZ({}, 3), WATERMARK FOR rowtime AS rowtime - INTERVAL '4' SECOND"
)
_FILES = "WITH ('connector' = 'filesystem', 'path' = 'file://{}', 'format' = '{}')"
_WEIGHTS = (1, 3, 7, 11, 13)


def in_sql(env, case, folder):
    """Run a query; return its rows with their numbers, retracted ones taken away."""
    if "WINDOW" in FLINK[case].upper():
        folder = f"{folder}/whole"
    if case == "yahoo":
        event = "ad_id STRING, event_type STRING, event_time STRING"
        time = _TIMED.format("CAST(event_time AS BIGINT)")
        env.execute_sql(
            f"CREATE TABLE IF NOT EXISTS ad ({event}{time}) "
            + _FILES.format(f"{folder}/text", "json")
        )
        env.execute_sql(
            "CREATE TABLE IF NOT EXISTS campaign (ad STRING, campaign STRING) "
            + _FILES.format(f"{folder}/campaign".replace("/whole/", "/"), "csv")
        )
        env.execute_sql(
            "CREATE VIEW IF NOT EXISTS ad_view AS SELECT ad_id, rowtime FROM ad WHERE event_type = 'view'"
        )
    else:
        for table, columns in COLUMNS.items():
            timed = columns + _TIMED.format("`time`")
            env.execute_sql(
                f"CREATE TABLE IF NOT EXISTS {table} ({timed}) "
                + _FILES.format(f"{folder}/{table}", "csv")
            )
    # by Arrow batches: `collect` of PyFlink asks the JVM several times for each row, which took 78 of
    # the 85 s of q2. Retracted rows are taken away by the JVM
    frame = env.sql_query(FLINK[case]).to_pandas()
    columns = [frame[name].tolist() for name in frame.columns]
    return list(Counter(zip(*columns, strict=True)).items())


class EventTime(TimestampAssigner):
    """Takes the time of an (ad, time) pair."""

    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Number(AggregateFunction):
    """Counts."""

    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


class Named(ProcessWindowFunction):
    """Puts key and window next to the number."""

    def process(self, key, context, elements):
        yield key, next(iter(elements)), context.window().end - 1


def _yahoo(lines, folder):
    pairs = (
        line.split(",")
        for file in sorted(Path(folder, "campaign").iterdir())
        for line in file.read_text().split()
    )
    campaigns = dict(pairs)
    views = lines.map(json.loads).filter(lambda event: event["event_type"] == "view")
    timed = views.map(lambda event: (campaigns[event["ad_id"]], int(event["event_time"])))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
    keyed = timed.assign_timestamps_and_watermarks(strategy).key_by(lambda pair: pair[0])
    return keyed.window(TumblingEventTimeWindows.of(Time.seconds(10))).aggregate(Number(), Named())


def _best(one, other):
    """Put together two of (key, greatest number, its rows)."""
    if one[1] == other[1]:
        return one[0], one[1], one[2] + other[2]
    return one if one[1] > other[1] else other


class OfWindow(ProcessWindowFunction):
    """Makes the window's last millisecond the key of what was found in it."""

    def process(self, key, context, elements):
        yield context.window().end - 1, *next(iter(elements))[1:]


class BidTime(TimestampAssigner):
    """Takes the time of a bid."""

    def extract_timestamp(self, value, record_timestamp):
        return value[3]


def _highest(bids):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(BidTime())
    timed = bids.assign_timestamps_and_watermarks(strategy)
    # by halves first: one key would leave a slot idle
    halves = timed.key_by(lambda row: row[1] % 2).window(
        TumblingEventTimeWindows.of(Time.seconds(10))
    )
    partial = halves.aggregate(Highest(), OfWindow())
    merged = partial.key_by(lambda row: row[0]).reduce(_best)
    return merged.flat_map(lambda merged_row: [(*row, merged_row[0]) for row in merged_row[2]])


class Highest(AggregateFunction):
    """The bids of the greatest price."""

    def create_accumulator(self):
        return 0, 0, []

    def add(self, value, accumulator):
        if value[2] < accumulator[1]:
            return accumulator
        return _best(accumulator, (0, value[2], [value]))

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return _best(a, b)


def _over_bids(case, lines):
    def bid(line):
        auction, bidder, price, _, _, time, extra = line.split(",")
        return int(auction), int(bidder), int(price), int(time), extra

    if case == "nexmark q7":
        return _highest(lines.map(bid))
    if case == "nexmark q2":
        return (
            lines.map(bid).filter(lambda row: row[0] % 123 == 0).map(lambda row: (row[0], row[2]))
        )
    rate = Decimal("0.908")

    def weighed(row):
        price = row[2] * rate if case == "nexmark q1" else row[2]
        return 1, int((row[0] + 3 * row[1] + 7 * price + 11 * row[3] + 13 * len(row[4])) * 1000)

    return (
        lines.map(bid)
        .map(weighed)
        .key_by(lambda pair: 0)
        .reduce(lambda a, b: (a[0] + b[0], a[1] + b[1]))
    )


def in_datastream(case, folder):
    """Run a case; return its rows with their numbers."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    # As a batch a keyed reduce or count gives its last value alone; a stream would give one per row
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    stream = "bid" if case.startswith("nexmark") else "text"
    is_windowed = case in ("nexmark q7", "yahoo")
    path = f"{folder}/whole/{stream}" if is_windowed else f"{folder}/{stream}"
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), path).build()
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines")
    if case == "yahoo":
        rows = _yahoo(lines, folder)
    elif case.startswith("nexmark"):
        rows = _over_bids(case, lines)
    elif case == "word count":
        words = lines.flat_map(lambda line: [(word, 1) for word in line.split()])
        rows = words.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    else:
        rows = lines.map(lambda line: line, Types.STRING()).map(lambda line: ("tuples", 1))
        rows = rows.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    with rows.execute_and_collect() as results:
        return [(tuple(row), times) for row, times in Counter(map(tuple, results)).items()]


def in_table(case, folder):
    """Run a query as a stream with mini-batches; return its rows with their numbers."""
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = {
        "parallelism.default": "2",
        "table.local-time-zone": "UTC",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "1 s",
        "table.exec.mini-batch.size": "5000",
    }
    for key, value in settings.items():
        env.get_config().set(key, value)
    return in_sql(env, case, folder)


def run(kind, case, folder):
    """Run a case; return its answer."""
    if kind == "sql":
        return answer_of(case, in_table(case, folder))
    rows = in_datastream(case, folder)
    if case == "nexmark q0":
        rows = [((row[0], row[1] // 1000), times) for row, times in rows]
    if case == "nexmark q1":
        rows = [((row[0], Decimal(row[1]) / 1000), times) for row, times in rows]
    return answer_of(case, rows)


if __name__ == "__main__":
    serve(run, get_gateway().jvm.System.gc)
