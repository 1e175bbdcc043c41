"""Curves of the live data plane: words/s by tasks per component, MB/s of large tuples, words/s in
columns, threads.

Run: python -m benchmarks.live tasks|large|columns|threads [--words N] [--tasks 2 16 64] [--bytes 10000] [--runs N]. Acking on,
exactly-once, 2 workers on Spark slots, embedded Redis (AOF on) and ZooKeeper. Each run is timed from activation to the last
commit of the drained topology; all sizes run in turn in every round, and counts are checked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.topologies import column_count, large_tuples, slow_tuples, word_count
from benchmarks.wordcount import few_words, zipf_words
from sparkstorm.app.cluster import Cluster
from sparkstorm.client.submission import SubmitOptions
from sparkstorm.config import merge
from sparkstorm.model.status import TopologyStatus
from sparkstorm.model.topology import Topology


def main() -> None:
    """Print one line per round and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("tasks", "large", "columns", "threads"))
    parser.add_argument("--words", type=int, default=2_000_000)
    parser.add_argument(
        "--keys", type=int, default=27, help="27: Storm's sentences; more: Zipf over so many words"
    )
    parser.add_argument("--tasks", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--bytes", type=int, nargs="+", default=[10_000])
    parser.add_argument("--tuples", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--conf", nargs="*", default=[], help="settings of the topology, KEY=NUMBER"
    )
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            "tasks": by_tasks,
            "large": by_bytes,
            "columns": in_columns,
            "threads": in_threads,
        }[options.what](options, Path(folder))
        slots = max(1, (options.workers + 1) // 2)  # of each of two supervisors
        conf = {"storm.local.dir": f"{folder}/storm", "sparkstorm.slots.per.supervisor": slots}
        with Cluster.open(merge(conf)) as cluster:
            measure(cluster, cases, options)


Case = tuple[str, float, str, Topology, Callable[[Any], bool]]


def measure(cluster: Cluster, cases: list[Case], options: argparse.Namespace) -> None:
    """Run every case once in each round; the first round warms caches and is not counted when there
    are several.
    """
    own = {
        "topology.workers": options.workers,
        "topology.acker.executors": options.workers,
        **{key: int(value) for key, _, value in (pair.partition("=") for pair in options.conf)},
    }
    figures: dict[str, list[float]] = {name: [] for name, *_ in cases}
    for run in range(options.runs + (options.runs > 1)):
        for name, amount, unit, topology, is_right in cases:
            rate = amount / seconds_of(
                cluster, topology, {"topology.max.spout.pending": 5_000, **own}, is_right
            )
            print(f"  round {run}: {name:12} {rate:>14,.1f} {unit}", flush=True)
            if run or options.runs == 1:
                figures[name].append(rate)
    for name, rates in figures.items():
        print(
            f"{name:12} median {statistics.median(rates):>14,.1f} ({min(rates):,.1f} to {max(rates):,.1f})",
            flush=True,
        )


def seconds_of(
    cluster: Cluster, topology: Topology, own: dict[str, Any], is_right: Callable[[Any], bool]
) -> float:
    """Return the time from activation until everything is acked and committed."""
    handle = cluster.submit("bench", topology, own, options=SubmitOptions(TopologyStatus.INACTIVE))

    def is_up() -> bool:
        beats = handle.beats()
        return len(beats) >= own["topology.workers"] and all(b.state == "RUNNING" for b in beats)

    _wait(is_up, "its workers do not run")
    time.sleep(1.0)  # the workers stand and are quiet
    started = time.perf_counter()
    handle.activate()
    _wait(lambda: handle.progress().is_drained, "it does not drain")
    seconds = time.perf_counter() - started
    if not is_right(handle):
        sys.exit("the counts are wrong")
    handle.kill(0)
    _wait(lambda: cluster.find("bench") is None, "it is not gone")
    return seconds


def _wait(until: Callable[[], bool], what: str) -> None:
    """Wait for a topology; end the benchmark where it takes ten minutes."""
    deadline = time.monotonic() + 600
    while not until():
        if time.monotonic() > deadline:
            sys.exit(f"bench: {what} within 10 minutes")
        time.sleep(0.05)


def by_tasks(options: argparse.Namespace, folder: Path) -> list[Case]:
    """Word counts with so many tasks of each component."""
    paths, expected = text(options, folder, max(options.tasks))
    words = sum(expected.values())
    return [
        (
            f"{tasks} tasks",
            words,
            "words/s",
            word_count(paths, tasks),
            lambda handle: counts(handle) == expected,
        )
        for tasks in options.tasks
    ]


def in_columns(options: argparse.Namespace, folder: Path) -> list[Case]:
    """The word count of by_tasks by rows and by columns."""
    paths, expected = text(options, folder, 2)
    words = sum(expected.values())
    return [
        ("rows", words, "words/s", word_count(paths, 2), lambda handle: counts(handle) == expected),
        (
            "columns",
            words,
            "words/s",
            column_count(paths, 2),
            lambda handle: counts(handle) == expected,
        ),
    ]


def by_bytes(options: argparse.Namespace, folder: Path) -> list[Case]:
    """Tuples of so many bytes over two hops, each a shuffle: MB/s of what spouts emit."""
    return [
        (
            f"{size} bytes",
            options.tuples * size / 1e6,
            "MB/s",
            large_tuples(options.tuples, size),
            lambda handle: sum(n for _, n in handle.key_values("sink")) == options.tuples,
        )
        for size in options.bytes
    ]


def in_threads(options: argparse.Namespace, folder: Path) -> list[Case]:
    """Four tasks of a bolt that waits 1 ms, or computes, per tuple: in the worker's loop, or on a
    thread each.
    """
    count = options.tuples
    return [
        (
            f"{what}, {'threads' if threads else 'loop'}",
            amount,
            "tuples/s",
            slow_tuples(amount, what == "waits", threads),
            lambda handle, amount=amount: sum(n for _, n in handle.key_values("sink")) == amount,  # type: ignore[misc]
        )
        for what, amount in (("waits", count // 20), ("computes", count // 4))
        for threads in (False, True)
    ]


def text(options: argparse.Namespace, folder: Path, files: int) -> tuple[list[str], dict[str, int]]:
    """Write the text as so many files; return their paths and the words with their counts."""
    lines = (
        few_words(options.words) if options.keys == 27 else zipf_words(options.words, options.keys)
    )
    paths = [folder / f"{n}.txt" for n in range(files)]
    for n, path in enumerate(paths):
        path.write_text("\n".join(lines[n::files]))
    return [str(path) for path in paths], dict(
        Counter(word for line in lines for word in line.split())
    )


def counts(handle: Any) -> dict[str, int]:
    """Return the counted words."""
    return dict(handle.key_values("count"))


if __name__ == "__main__":
    main()
