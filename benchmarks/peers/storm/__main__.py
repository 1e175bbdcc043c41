"""Real Apache Storm 2.8.3 next to SparkStorm: word count with acking on one and two workers, and
latency over three hops.

Run: python -m benchmarks.peers.storm [--words N] [--runs N] [--seconds S] [--skip-two]
[--skip-words] [--skip-latency]. Needs Maven and a JDK 17; the jars are fetched once from Maven
Central and never committed. One worker is Storm's LocalCluster in one JVM; two are a real
ZooKeeper, Nimbus and supervisor with two worker JVMs, all from the jars. All systems run in turn in
every round. A run of Storm has several phases over the same text: the first is cold, "warm" is the
median of the others. Storm keeps its counts in memory only: it neither stores nor recovers them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from benchmarks.latency import measure
from benchmarks.peers.storm.runner import Job, class_path, phases, run_job
from benchmarks.pipeline import cluster, run
from benchmarks.topologies import word_count
from benchmarks.wordcount import bare_loop, few_words, zipf_words
from sparkstorm.driver.cluster import Cluster

_PHASES = 4
_RUNNERS = {"Storm, one worker JVM": 1, "Storm, two worker JVMs": 2}


def compare_words(
    on: Cluster, path: str, title: str, lines: list[str], runs: int, runners: Mapping[str, int]
) -> None:
    """Print words/s of every system, run in turn."""
    expected = Counter(word for line in lines for word in line.split())
    figures: dict[str, list[float]] = {}
    for round_ in range(runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            files = [folder / f"{i}.txt" for i in (0, 1)]
            for i, file in enumerate(files):
                file.write_text("\n".join(lines[i::2]))
            taken = {"bare Python loop": bare_loop(lines)}
            for workers in (1, 2):
                conf = {
                    "topology.workers": workers,
                    "topology.acker.executors": workers,
                    "topology.max.spout.pending": 5_000,
                }
                result = run(on, word_count([str(file) for file in files]), conf, "count")
                if result.state != expected:
                    raise SystemExit("wrong counts")
                taken[f"SparkStorm, {workers} worker{'s' * (workers > 1)}"] = result.seconds
            for runner, workers in runners.items():
                for old in folder.glob("[!01]*"):
                    old.unlink()
                run_job(path, folder, Job("words", _PHASES, workers))
                cold, *warm = phases(folder)
                taken |= {f"{runner}, cold": cold, f"{runner}, warm": statistics.median(warm)}
        for system, seconds in taken.items():
            figures.setdefault(system, []).append(expected.total() / seconds)
        print(
            f"  round {round_ + 1}: "
            + ", ".join(f"{s} {v[-1] / 1e6:.2f} M" for s, v in figures.items()),
            flush=True,
        )
    print(f"\n| {title}, n = {runs} | M words/s | least-most |\n|---|---|---|")
    for system, rates in figures.items():
        print(
            f"| {system} | {statistics.median(rates) / 1e6:.2f} | {min(rates) / 1e6:.2f}-{max(rates) / 1e6:.2f} |",
            flush=True,
        )


def compare_latency(
    on: Cluster, path: str, seconds: int, runs: int, runners: Mapping[str, int]
) -> None:
    """Print p50 and p99 of 1,000 tuples/s over three hops."""
    figures: dict[str, list[tuple[float, float]]] = {}
    for _ in range(runs):
        p50, p99, _ = measure(on, 1000, seconds)
        figures.setdefault("SparkStorm, 2 workers", []).append((p50, p99))
        for runner, workers in runners.items():
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                run_job(path, folder, Job("latency", seconds, workers))
                latencies = sorted(
                    int(line) / 1000 for line in (folder / "latencies.txt").read_text().split()
                )
                figures.setdefault(runner, []).append(
                    (latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100])
                )
    print(f"\n| 1,000 tuples/s, 3 hops, n = {runs} | p50 ms | p99 ms |\n|---|---|---|")
    for system, rows in figures.items():
        p50, p99 = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {system} | {p50:.2f} | {p99:.2f} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--words", type=int, default=3_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument(
        "--skip-two", action="store_true", help="without the cluster of two worker JVMs"
    )
    parser.add_argument("--skip-words", action="store_true")
    parser.add_argument("--skip-latency", action="store_true")
    options = parser.parse_args()
    path = class_path()
    runners = {
        name: workers for name, workers in _RUNNERS.items() if workers == 1 or not options.skip_two
    }
    with cluster() as on:
        for title, lines in (
            ()
            if options.skip_words
            else (
                ("27 words", few_words(options.words)),
                ("20 k words, Zipf", zipf_words(options.words)),
            )
        ):
            compare_words(on, path, title, lines, options.runs, runners)
        if not options.skip_latency:
            compare_latency(on, path, options.seconds, options.runs, runners)


if __name__ == "__main__":
    main()
