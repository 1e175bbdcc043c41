"""Throughput benchmark: words/s of the whole pipeline next to a bare Python loop and next to Bytewax,
on the same text.

Run: python -m benchmarks.wordcount [--words N] [--runs N] [--skip-bytewax]. Acking on,
exactly-once, 2 workers on Spark slots, embedded Redis (AOF on) and ZooKeeper. Each run of ours is
timed from activation to the last commit of the drained topology.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.topologies import word_count
from sparkstorm.client.request_client import SubmitOptions
from sparkstorm.common.config import merge
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.driver.cluster import Cluster

FEW = [
    "the cow jumped over the moon",
    "an apple a day keeps the doctor away",
    "four score and seven years ago",
    "snow white and the seven dwarfs",
    "i am at two with nature",
]  # the sentences of Storm's own word count


def main() -> None:
    """Print a table per text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--skip-bytewax", action="store_true")
    options = parser.parse_args()
    if not options.skip_bytewax and find_spec("bytewax") is None:
        parser.error(
            "Bytewax is not installed: pip install -e '.[bench]', or leave it out with --skip-bytewax"
        )
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        conf = merge({"storm.local.dir": f"{folder}/storm"})
        with Cluster.open(conf) as cluster:
            for name, lines in (
                ("27 words", few_words(options.words)),
                ("20 k words, zipf", zipf_words(options.words)),
            ):
                compare(cluster, Path(folder), name, lines, options.runs, not options.skip_bytewax)


def compare(
    cluster: Cluster, folder: Path, name: str, lines: list[str], runs: int, with_bytewax: bool
) -> None:
    """Run all systems in turn so that each round sees the same machine."""
    texts = Path(tempfile.mkdtemp(dir=folder)) / "text"
    texts.mkdir()
    halves = [texts / f"{i}.txt" for i in (0, 1)]
    for i, half in enumerate(halves):
        half.write_text("\n".join(lines[i::2]))
    expected = Counter(word for line in lines for word in line.split())
    words = sum(expected.values())
    figures: dict[str, list[float]] = {
        "bare Python loop, 1 thread": [],
        "SparkStorm, 2 workers": [],
        "Bytewax, 2 processes": [],
    }
    for run in range(runs + 1):  # the first round warms caches and is not counted
        taken = {
            "bare Python loop, 1 thread": bare_loop(lines),
            "SparkStorm, 2 workers": ours(cluster, halves, expected),
        }
        if with_bytewax:
            taken["Bytewax, 2 processes"] = bytewax(halves)
        for system, seconds in taken.items() if run else ():
            figures[system].append(words / seconds)
        print(
            f"  round {run}: " + ", ".join(f"{s} {words / t:,.0f}" for s, t in taken.items()),
            flush=True,
        )
    show(f"{name}: {words:,} words", figures)


def show(title: str, figures: dict[str, list[float]]) -> None:
    """A table: median, least, most, ratios."""
    mine = statistics.median(figures["SparkStorm, 2 workers"])
    print(
        f"\n{title}\n{'system':30}{'words/s (median)':>18}{'least':>13}{'most':>13}{'ours / it':>11}"
    )
    for system, values in figures.items():
        if values:
            middle = statistics.median(values)
            print(
                f"{system:30}{middle:>18,.0f}{min(values):>13,.0f}{max(values):>13,.0f}{mine / middle:>11.2f}"
            )
    print(flush=True)


def ours(cluster: Cluster, halves: list[Path], expected: Counter[str]) -> float:
    """Seconds from activation until everything is counted, acked and committed; counts are
    checked.
    """
    topology = word_count([str(half) for half in halves])
    own = {
        "topology.workers": 2,
        "topology.acker.executors": 2,
        "topology.max.spout.pending": 5_000,
    }
    handle = cluster.submit("bench", topology, own, options=SubmitOptions(TopologyStatus.INACTIVE))
    while len(handle.beats()) < 2 or any(b.state != "RUNNING" for b in handle.beats()):
        time.sleep(0.05)
    time.sleep(1.0)  # both workers stand and are quiet
    started = time.perf_counter()
    handle.activate()
    while not handle.progress().is_drained:
        time.sleep(0.05)
    seconds = time.perf_counter() - started
    if dict(handle.key_values("count")) != dict(expected):
        sys.exit("the counts are wrong")
    handle.kill(0)
    while cluster.find("bench") is not None:
        time.sleep(0.05)
    return seconds


def bare_loop(lines: list[str]) -> float:
    """Seconds of the least Python could do."""
    counts: dict[str, int] = {}
    started = time.perf_counter()
    for line in lines:
        for word in line.split():
            counts[word] = counts.get(word, 0) + 1
    return time.perf_counter() - started


def bytewax(halves: list[Path]) -> float:
    """Seconds of Bytewax on two processes, their start excluded."""
    return run_bytewax("word count", halves[0].parent.parent)[0]


def run_bytewax(
    case: str, folder: Path, processes: int = 2
) -> tuple[float, float, list[tuple[Any, Any]]]:
    """Run a case of benchmarks/peers/bytewax_field.py over the files in a folder; return wall and
    CPU seconds without the start, and the pairs of the answer.

    CalledProcessError with what was said when it fails.
    """
    answer = folder / "answer"
    shutil.rmtree(answer, ignore_errors=True)
    answer.mkdir()
    environment = {**os.environ, "FIELD_CASE": case, "FIELD_FOLDER": str(folder)}
    words = ["bytewax.testing", "benchmarks.peers.bytewax_field:flow", "-p", str(processes)]
    subprocess.run(
        [sys.executable, "-m", *words],
        cwd=Path(__file__).parent.parent,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    records = [json.loads(file.read_text()) for file in answer.iterdir()]
    seconds = max(record["ended"] for record in records) - min(
        record["began"] for record in records
    )
    pairs = [(key, value) for record in records for key, value in record["pairs"]]
    return seconds, sum(record["cpu"] for record in records), pairs


def few_words(words: int) -> list[str]:
    """Storm's five sentences at random."""
    picks = np.random.default_rng(42).integers(0, len(FEW), words * 10 // 64)
    return [FEW[i] for i in picks.tolist()]


def zipf_words(words: int, keys: int = 20_000) -> list[str]:
    """Lines of ten words, Zipf-distributed over 20,000."""
    ranks = np.random.default_rng(42).zipf(1.2, size=words) % keys
    names = [f"w{i}" for i in range(keys)]
    picked = [names[i] for i in ranks.tolist()]
    return [" ".join(picked[i : i + 10]) for i in range(0, len(picked), 10)]


if __name__ == "__main__":
    main()
