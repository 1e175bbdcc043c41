"""Latency benchmark: 1,000 tuples/s over 3 hops, each to the other of 2 workers through Redis,
acking on.

Run: python -m benchmarks.latency [--rate N] [--seconds S] [--runs N] [--affinity]. Open loop: a
tuple's clock starts when it was due, so a late source counts. The sink takes the time; the first
second of a run is left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.topologies import paced_chain
from sparkstorm.common.config import merge
from sparkstorm.driver.cluster import Cluster


def main() -> None:
    """Print p50, p99 and the worst of each run, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--affinity",
        action="store_true",
        help="worker.cpu.affinity: each worker on a CPU of its own",
    )
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    rows = []
    conf = {"worker.cpu.affinity": options.affinity}
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster.open(merge({"storm.local.dir": f"{folder}/storm", **conf})) as cluster,
    ):
        for run in range(options.runs):
            rows.append(measure(cluster, options.rate, options.seconds))
            print(
                f"run {run + 1}: p50 {rows[-1][0]:.2f} ms  p99 {rows[-1][1]:.2f} ms  max {rows[-1][2]:.2f} ms",
                flush=True,
            )
    p50, p99, worst = (statistics.median(column) for column in zip(*rows, strict=True))
    print(
        f"\n{options.rate} tuples/s, 3 hops, 2 workers, median of {len(rows)}: "
        f"p50 {p50:.2f} ms  p99 {p99:.2f} ms  max {worst:.2f} ms"
    )


def measure(cluster: Cluster, rate: int, seconds: float) -> tuple[float, float, float]:
    """p50, p99 and maximum of one run in milliseconds."""
    handle = cluster.submit(
        "latency",
        paced_chain(rate, seconds),
        {"topology.workers": 2, "topology.acker.executors": 2},
    )
    while not handle.progress().is_drained:
        time.sleep(0.2)
    steps: dict[int, int] = {}
    for step, count in handle.key_values("sink"):
        steps[step] = steps.get(step, 0) + count
    handle.kill(0)
    while cluster.find("latency") is not None:
        time.sleep(0.05)
    return quantile(steps, 0.5), quantile(steps, 0.99), quantile(steps, 1.0)


def quantile(steps: Mapping[int, int], share: float) -> float:
    """Upper bound of the 50 microsecond step below which this share lies, in milliseconds."""
    wanted = share * sum(steps.values())
    seen = 0
    for step in sorted(steps):
        seen += steps[step]
        if seen >= wanted:
            return (step + 1) * 0.05
    return float("nan")


if __name__ == "__main__":
    main()
