"""Benchmark of a replay larger than memory: 4 GB through two stages and a kept result, on an
executor of 1 GB.

Run: python -m benchmarks.replay_memory [--gigabytes 4] [--way kept|sums|one|divided]: two stages and both results, only the sums,
one stage and its rows as the only result, data that Spark itself divides. The history is Parquet of few distinct payloads, so it
is small on disk; what flows between Spark, Python and the shuffle is the whole. Prints the peak of resident memory of the
executor's JVM and of its Python workers, sampled five times a second, and checks every sum.

python -m benchmarks.replay_memory --way windows [--rows 500000 2000000 8000000]: a row a
millisecond in 4 partitions, a bolt of two tasks that passes rows on, then tumbling windows of 10 s
over 100 keys, on local[2] with a heap of 1 GB. The number of rows in open windows does not depend on
the length of the history, so memory must not either. Each number of rows has its own process.
Bytes that Spark's sorts have spilled come from its event log.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

try:
    import psutil
except ImportError:
    sys.exit("replay_memory needs psutil: pip install -e '.[test]'")

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Duration,
    Spout,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
    Window,
    WindowedBolt,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import replay
from sparkstorm.replay.spark import SMALL_MEMORY

EXECUTOR_MB = 1024
HEAP_MB = 1024  # of --way windows: Spark's default, said here because the peaks depend on it
CORES = 2
KEYS = 100_000
PAYLOADS = 1_000
PAYLOAD_BYTES = 1_000
ROWS_PER_FILE = 250_000


class Data(Spout):
    """Stands for the live source."""

    outputs = ("key", "payload")


class Clean(BasicBolt):
    """Passes every row on, changed."""

    outputs = ("key", "payload")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """One row out for one in."""
        key, payload = tup.values
        collector.emit((key, payload.swapcase()))


class Sizes(StatefulBolt):
    """Bytes per key."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Add one row's."""
        self.state.add(tup.values[0], len(tup.values[1]))


def topology(way: str) -> Topology:
    """Two stages, everything shuffled between them; one of them where the way has only one."""
    builder = TopologyBuilder()
    builder.set_spout("data", Data())
    if way != "divided":
        builder.set_bolt("clean", Clean(), 4).shuffle_grouping("data")
    if way != "one":
        builder.set_bolt("sizes", Sizes(), 8).fields_grouping(
            "data" if way == "divided" else "clean", "key"
        )
    return builder.build()


WINDOW_S = 10
WINDOW_KEYS = 100
PARTITIONS = 4
LAG_MS = 10


class Times(Spout):
    """Stands for the live source."""

    outputs = ("key", "at")


class PassOn(BasicBolt):
    """Passes every row on."""

    outputs = ("key", "at")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """One row out for one in."""
        collector.emit(tup.values)


class Rows(WindowedBolt):
    """Rows of a key in a window, all of which are kept until it fires."""

    outputs = ("key", "rows")
    key_fields = ("key",)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Emit the number of rows."""
        collector.emit((*window.key, len(window)))


def windowed() -> Topology:
    """A pass-through bolt before keyed windows."""
    builder = TopologyBuilder()
    builder.set_spout("times", Times())
    builder.set_bolt("pass", PassOn(), 2).shuffle_grouping("times")
    rows = (
        Rows()
        .with_tumbling_window(Duration.seconds(WINDOW_S))
        .with_timestamp_field("at")
        .with_lag(Duration.millis(LAG_MS))
    )
    builder.set_bolt("rows", rows, 2).fields_grouping("pass", "key")
    return builder.build()


def run_windows(rows: int) -> None:
    """Replay a history of windows; print the peaks."""
    with tempfile.TemporaryDirectory() as folder:
        run_windows_in(Path(folder), rows)


def run_windows_in(folder: Path, rows: int) -> None:
    """Replay with Spark's files in a folder; print the peaks."""
    log = folder / "log"
    log.mkdir()
    builder = SparkSession.builder.master(f"local[{CORES}]").config("spark.ui.enabled", "false")
    conf: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": f"{HEAP_MB}m",
        "spark.local.dir": str(folder),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": log.as_uri(),
        "spark.ui.showConsoleProgress": "false",
        **SMALL_MEMORY,
    }
    spark = builder.config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    history = spark.range(0, rows, 1, PARTITIONS).selectExpr(
        f"id * 7 % {WINDOW_KEYS} AS key", "id AS at"
    )
    peaks = Peaks()
    began = time.perf_counter()
    results = replay(
        windowed(),
        {"times": history},
        event_time="at",
        outputs=["rows"],
        types={"rows": "key bigint, rows bigint"},
    )
    summary = results["rows"].selectExpr("count(*) AS windows", "sum(rows) AS rows").collect()[0]
    took = time.perf_counter() - began
    peaks.stop()
    spark.stop()
    if summary.rows != rows:
        sys.exit(f"{rows:,} rows, and {summary.rows:,} in windows")
    print(
        f"{rows:,} rows in {summary.windows:,} windows: {took:.0f} s, {rows / took:,.0f} rows/s; peaks of resident memory: "
        f"a Python worker {peaks.worker:.0f} MB, all of them {peaks.workers:.0f} MB, the JVM {peaks.driver:.0f} MB; "
        f"{spilled(log) / 1e6:.0f} MB spilled to disk",
        flush=True,
    )


def spilled(log: Path) -> int:
    """Return the bytes that tasks have spilled to disk, from the only application's event log."""
    (file,) = log.iterdir()
    total = 0
    with file.open() as lines:
        for line in lines:
            if '"Event":"SparkListenerTaskEnd"' in line:
                total += json.loads(line)["Task Metrics"]["Disk Bytes Spilled"]
    return total


def write_history(folder: Path, gigabytes: float) -> tuple[int, dict[int, int]]:
    """Parquet files; (rows, exact bytes by key)."""
    random = np.random.default_rng(42)
    letters = np.frombuffer(random.bytes(PAYLOADS * PAYLOAD_BYTES), np.uint8) % 26 + 97
    payloads = pa.array(
        [
            letters[i * PAYLOAD_BYTES : (i + 1) * PAYLOAD_BYTES].tobytes().decode()
            for i in range(PAYLOADS)
        ]
    )
    files = max(1, round(gigabytes * 1e9 / PAYLOAD_BYTES / ROWS_PER_FILE))
    counts = np.zeros(KEYS, np.int64)
    folder.mkdir()
    for n in range(files):
        keys = random.integers(0, KEYS, ROWS_PER_FILE)
        picks = random.integers(0, PAYLOADS, ROWS_PER_FILE)
        counts += np.bincount(keys, minlength=KEYS)
        table = pa.table(
            {
                "key": keys,
                "payload": pa.DictionaryArray.from_arrays(pa.array(picks, pa.int32()), payloads),
            }
        )
        pq.write_table(
            table.cast(pa.schema([("key", pa.int64()), ("payload", pa.string())])),
            folder / f"{n}.parquet",
        )
    return files * ROWS_PER_FILE, {key: int(n) * PAYLOAD_BYTES for key, n in enumerate(counts) if n}


class Peaks:
    """Peaks of resident memory below this process, in MB: the executor, the JVM of the driver, one
    Python worker, all Python workers.
    """

    def __init__(self) -> None:
        self.executor = self.driver = self.worker = self.workers = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._over.wait(0.2):
            workers = [0.0]
            for process in me.children(recursive=True):
                try:
                    words = " ".join(process.cmdline())
                    size = process.memory_info().rss / 1e6
                except psutil.Error:  # it has ended
                    continue
                if "CoarseGrainedExecutorBackend" in words:
                    self.executor = max(self.executor, size)
                elif "SparkSubmit" in words:
                    self.driver = max(self.driver, size)
                elif "pyspark" in words and "daemon" in words:
                    workers.append(size)
            self.worker, self.workers = max(self.worker, *workers), max(self.workers, sum(workers))


def run(spark: SparkSession, path: Path, exact: dict[int, int], way: str) -> None:
    """Replay, look at everything, check."""
    outputs = {"kept": ["sizes!state", "clean"], "one": ["clean"]}.get(way, ["sizes!state"])
    types = {"clean": "key bigint, payload string", "sizes!state": "key bigint, value bigint"}
    results = replay(
        topology(way), {"data": spark.read.parquet(str(path))}, outputs=outputs, types=types
    )
    if "sizes!state" in outputs:
        state = results["sizes!state"].toArrow()
        counts = dict(
            zip(state.column("key").to_pylist(), state.column("value").to_pylist(), strict=True)
        )
        if counts != exact:
            sys.exit("the sizes are wrong")
    if "clean" in outputs:
        total = results["clean"].selectExpr("sum(length(payload)) AS bytes").collect()[0].bytes
        if total != sum(exact.values()):
            sys.exit("the kept rows are wrong")
    results.close()


def main() -> None:
    """Print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument(
        "--way", choices=("kept", "sums", "one", "divided", "windows"), default="kept"
    )
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=[500_000, 2_000_000, 8_000_000],
        help="of --way windows",
    )
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    if options.way == "windows":
        if len(options.rows) == 1:
            run_windows(options.rows[0])
            return
        command = [sys.executable, "-m", "benchmarks.replay_memory", "--way", "windows", "--rows"]
        sys.exit(
            max(
                subprocess.run([*command, str(rows)], check=False).returncode
                for rows in options.rows
            )
        )
    with tempfile.TemporaryDirectory() as folder:
        history = Path(folder, "history")
        rows, exact = write_history(history, options.gigabytes)
        on_disk = sum(file.stat().st_size for file in history.iterdir())
        flowing = sum(exact.values())
        print(
            f"{rows:,} rows, {flowing / 1e9:.2f} GB of payload ({on_disk / 1e6:.0f} MB of Parquet), {KEYS:,} keys",
            flush=True,
        )
        spark = session(folder)
        peaks = Peaks()
        began = time.perf_counter()
        run(spark, history, exact, options.way)
        took = time.perf_counter() - began
        peaks.stop()
        spark.stop()
    print(
        f"{took:.0f} s, {rows / took:,.0f} rows/s, {flowing / took / 1e6:.0f} MB/s; peaks of resident memory: "
        f"executor's JVM {peaks.executor:.0f} MB (heap {EXECUTOR_MB}), a Python worker {peaks.worker:.0f} MB, "
        f"all of them {peaks.workers:.0f} MB"
    )


def session(folder: str) -> SparkSession:
    """One executor of 1 GB and two cores, in its own process."""
    builder = SparkSession.builder.master(f"local-cluster[1,{CORES},{EXECUTOR_MB}]").appName(
        "replay-memory"
    )
    conf = {
        "spark.executor.memory": f"{EXECUTOR_MB}m",
        "spark.local.dir": folder,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **SMALL_MEMORY,
    }  # as replay_history.py has it
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


if __name__ == "__main__":
    main()
