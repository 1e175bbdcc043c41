"""Benchmark of batch replay: word count, a keyed tumbling sum of 10 s, and orders of times, decimals
and lists of structs, next to hand-written PySpark and live.

Run: python -m benchmarks.bench_replay [--sentences N] [--events N] [--orders N] [--runs 5] [--cold 1]
[--only words|sums|orders] [--pairs] [--skip-live].
All variants read the same Parquet and run in turns in one session; every result is checked against the exact answer. Times
are from the first call to the last row of the result on the driver. "By hand" is mapInArrow as sparkstorm/replay/arrow_map.py calls
it (the public method asks for pandas; the operator is the same), with the same work of the same kind in the same two steps. Cold is
the first run in a process and its own session, whose start is not counted. The live run of the word count has its own cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.replay_variants import (
    CALLED,
    COLUMNS,
    EVENTS_PER_S,
    ORDERS,
    ROWS,
    SUMS,
    USERS,
    WINDOW_MS,
    WORDS,
    Variant,
)
from benchmarks.wordcount import ours
from sparkstorm.common.config import merge
from sparkstorm.driver.cluster import Cluster

# those of Storm's RandomSentenceSpout
SENTENCES = (
    "the cow jumped over the moon",
    "an apple a day keeps the doctor away",
    "four score and seven years ago",
    "snow white and the seven dwarfs",
    "i am at two with nature",
)
LIVE_SENTENCES = 500_000
_PAIRS = ("replay, rows", ROWS, CALLED, "replay, columns", COLUMNS)
_WARMING = 4  # rounds: the JVM is still compiling what Spark has generated for each variant


def write_sentences(folder: Path, count: int) -> tuple[int, dict[object, int]]:
    """Parquet of sentences; (words, exact counts)."""
    choice = np.random.default_rng(42).integers(0, len(SENTENCES), count)
    _write(folder, pa.table({"line": pa.array(SENTENCES).take(pa.array(choice))}))
    counts: Counter[object] = Counter()
    for index, times in zip(*np.unique(choice, return_counts=True), strict=True):
        for word in SENTENCES[index].split():
            counts[word] += int(times)
    return sum(counts.values()), dict(counts)


def write_events(folder: Path, count: int) -> tuple[int, dict[object, int]]:
    """Parquet of events, up to a second out of order; (events, exact sums)."""
    random = np.random.default_rng(42)
    at_ms = np.maximum(
        0, np.arange(count) * 1000 // EVENTS_PER_S + random.integers(-1000, 1000, count)
    )
    user = random.integers(0, USERS, count)
    amount = random.integers(1, 100, count)
    _write(folder, pa.table({"user": user, "amount": amount, "at_ms": at_ms}))
    keys, places = np.unique(user * 2**32 + at_ms // WINDOW_MS, return_inverse=True)
    sums = np.bincount(places, amount).astype(int)
    return count, {
        (int(k) >> 32, int(k) & 0xFFFFFFFF): int(v) for k, v in zip(keys, sums, strict=True)
    }


def write_orders(folder: Path, count: int) -> tuple[int, dict[object, int]]:
    """Parquet of orders with a time, a price and three items; (orders, exact sums)."""
    random = np.random.default_rng(42)
    seconds = 1_790_000_000 + np.arange(count)
    cents = random.integers(100, 10_000, count)
    pieces = random.integers(1, 5, 3 * count)
    items = pa.StructArray.from_arrays(
        [
            pa.array([f"sku-{n}" for n in range(1000)]).take(random.integers(0, 1000, 3 * count)),
            pa.array(pieces),
            pa.array(random.integers(100, 10_000, 3 * count) / 100),
        ],
        ["sku", "n", "price"],
    )
    table = pa.table(
        {
            "id": np.arange(count),
            "at": pa.array(seconds * 1_000_000, pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal(int(c)).scaleb(-2) for c in cents], pa.decimal128(10, 2)),
            "items": pa.ListArray.from_arrays(
                pa.array(np.arange(0, 3 * count + 1, 3), pa.int32()), items
            ),
        }
    )
    _write(folder, table)
    bought = pieces.reshape(count, 3).sum(axis=1)
    hours = seconds - seconds % 3600
    totals = int((cents * bought).sum()) // 100
    return count, {
        0: int(np.arange(count).sum()),
        1: int(hours.sum()),
        2: totals,
        3: int(bought.sum()),
    }


def _write(folder: Path, table: pa.Table) -> None:
    folder.mkdir()
    size = -(-table.num_rows // 4)
    for part in range(4):
        pq.write_table(table.slice(part * size, size), folder / f"{part}.parquet")


def measure(
    spark: SparkSession,
    title: str,
    variants: dict[str, Variant],
    path: Path,
    exact: dict[object, int],
    runs: int,
) -> dict[str, list[float]]:
    """Seconds of every variant, in turns, every other round backwards; the first rounds warm and
    are not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for run in range(-_WARMING, runs):
        for name, variant in list(variants.items())[:: -1 if run % 2 else 1]:
            began = time.perf_counter()
            counts = variant(spark, str(path))
            took = time.perf_counter() - began
            if run >= 0:
                seconds[name].append(took)
            if counts != exact:
                sys.exit(f"{title}, {name}: wrong result")
    return seconds


def show(title: str, size: int, warm: dict[str, list[float]], cold: dict[str, list[float]]) -> None:
    """A line per variant; ratios to the same work by hand, of the same kind: medians of the rounds'
    ratios, and their range.
    """
    print(
        f"\n{title}: {size:,} in all; millions per second, median [least..most] of {len(warm[ROWS])} warm runs, median cold"
    )
    for name, seconds in warm.items():
        partial = (
            next(
                (
                    n
                    for n in warm
                    if n.endswith("partial") and n.split(", ")[1] == name.split(", ")[-2]
                ),
                "",
            )
            if name.endswith("combined")
            else ""
        )
        base = partial or (COLUMNS if "columns" in name else ROWS)
        median = statistics.median(seconds)
        first = f"{size / statistics.median(cold[name]) / 1e6:6.2f}" if cold.get(name) else "     -"
        by_round = [theirs / own for theirs, own in zip(warm[base], seconds, strict=True)]
        ratios = f"{statistics.median(by_round):6.2f} [{min(by_round):.2f}..{max(by_round):.2f}]"
        if cold.get(name) and cold.get(base):
            ratios += f" (cold {statistics.median(cold[base]) / statistics.median(cold[name]):.2f})"
        print(
            f"  {name:28} {size / median / 1e6:7.2f} [{size / max(seconds) / 1e6:.2f}..{size / min(seconds) / 1e6:.2f}]"
            f"  cold {first}  x '{base}': {ratios}",
            flush=True,
        )


def show_start(spark: SparkSession, folder: Path, runs: int) -> None:
    """Print what a replay costs before it has any rows to speak of, on a warm session."""
    folder.mkdir()
    path = folder / "few"
    _, exact = write_sentences(path, 8)
    seconds = measure(spark, "start", {"replay, rows": WORDS["replay, rows"]}, path, exact, runs)[
        "replay, rows"
    ]
    print(
        f"\nreplay of 8 sentences on a warm session: {statistics.median(seconds):.2f} s [{min(seconds):.2f}..{max(seconds):.2f}]"
    )


def cold_runs(
    only: str, variants: dict[str, Variant], path: Path, runs: int
) -> dict[str, list[float]]:
    """Seconds of first runs, each in its own process."""
    times_by_name: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(runs):
        for name in variants:
            command = [
                sys.executable,
                "-m",
                "benchmarks.bench_replay",
                "--one",
                f"{only}:{name}",
                "--data",
                str(path),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            times_by_name[name].append(json.loads(done.stdout.splitlines()[-1]))
    return times_by_name


def first_run(which: str, path: str) -> None:
    """Print the seconds of one variant's first run in this process."""
    only, _, name = which.partition(":")
    if only == "live":
        print(json.dumps(live(Path(path), 1)[0]))
        return
    spark = session()
    spark.range(10).count()  # the session stands
    began = time.perf_counter()
    {"words": WORDS, "sums": SUMS, "orders": ORDERS}[only][name](spark, path)
    print(json.dumps(time.perf_counter() - began))
    spark.stop()


def live(path: Path, runs: int) -> list[float]:
    """Seconds of word counts of a part of the same sentences on one cluster: 2 workers, acking on,
    exactly-once.
    """
    lines = pq.read_table(path).column(0).slice(0, LIVE_SENTENCES).to_pylist()
    expected = Counter(word for line in lines for word in line.split())
    with tempfile.TemporaryDirectory() as folder:
        halves = [Path(folder, f"{i}.txt") for i in (0, 1)]
        for i, half in enumerate(halves):
            half.write_text("\n".join(lines[i::2]))
        with Cluster.open(merge({"storm.local.dir": f"{folder}/storm"})) as cluster:
            return [ours(cluster, halves, expected) for _ in range(runs)]


def show_live(path: Path, runs: int, cold: int) -> None:
    """The same as a line of the table; the first run of its own cluster is cold."""
    words = sum(
        len(line.split())
        for line in pq.read_table(path).column(0).slice(0, LIVE_SENTENCES).to_pylist()
    )
    seconds = live(path, runs + 1)[1:]
    first = cold_runs("live", {"live": _no_variant}, path, cold)["live"]
    shown = f"{words / statistics.median(first) / 1e6:.2f}" if first else "-"
    print(
        f"  {'live':28} {words / statistics.median(seconds) / 1e6:7.2f} "
        f"[{words / max(seconds) / 1e6:.2f}..{words / min(seconds) / 1e6:.2f}]  cold {shown:>6}",
        flush=True,
    )


def _no_variant(spark: SparkSession, path: str) -> dict[object, int]:
    raise AssertionError("a live run is none of the session's")


def session() -> SparkSession:
    """Spark as the caller's settings make it."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    spark: SparkSession = (
        SparkSession.builder.appName("bench-replay")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    """Print a table per computation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sentences", type=int, default=2_000_000)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", type=int, default=1)
    parser.add_argument("--orders", type=int, default=200_000)
    parser.add_argument("--only", choices=("words", "sums", "orders"))
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="replay and the same work by hand alone, by rows and by columns",
    )
    parser.add_argument("--skip-live", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        first_run(options.one, options.data)
        return
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            ("words", "word count, words", WORDS, write_sentences, options.sentences),
            ("sums", "keyed 10 s sums, events", SUMS, write_events, options.events),
            ("orders", "totals of orders", ORDERS, write_orders, options.orders),
        ]
        for only, title, every, write, count in jobs:
            variants = (
                {name: every[name] for name in _PAIRS if name in every} if options.pairs else every
            )
            if options.only in (None, only):
                path = Path(folder, only)
                size, exact = write(path, count)
                spark = session()
                warm = measure(spark, title, variants, path, exact, options.runs)
                show_start(spark, Path(folder, f"start-{only}"), options.runs)
                spark.stop()
                show(title, size, warm, cold_runs(only, variants, path, options.cold))
                if only == "words" and not options.skip_live:
                    show_live(path, options.runs, options.cold)


if __name__ == "__main__":
    main()
