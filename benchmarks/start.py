"""Figures of the start: from submit to the first tuple executed, and from a worker's SIGKILL to the
first tuple after it.

Run: python -m benchmarks.start [--runs N]. A warm cluster (Spark, slots, Redis and ZooKeeper are
up); two workers. Times are read from outside, from the workers' committed progress, every 5 ms.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.topologies import paced_chain
from sparkstorm.app.cluster import Cluster
from sparkstorm.client.handle import TopologyHandle
from sparkstorm.config import merge

_CONF = {"topology.workers": 2, "topology.acker.executors": 2}


def main() -> None:
    """Print each run and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    began = time.perf_counter()
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster.open(merge({"storm.local.dir": f"{folder}/storm"})) as cluster,
    ):
        print(
            f"cluster up after {time.perf_counter() - began:.2f} s (Spark context, Redis, ZooKeeper, slots)"
        )
        for run in range(runs):
            rows.append(measure(cluster))
            print(
                f"run {run + 1}: submit to first tuple {rows[-1][0]:.2f} s, SIGKILL to first tuple after {rows[-1][1]:.2f} s",
                flush=True,
            )
    started, recovered = (statistics.median(column) for column in zip(*rows, strict=True))
    print(
        f"\nmedian of {runs}: submit to first tuple {started:.2f} s, SIGKILL to first tuple after {recovered:.2f} s"
    )


def measure(cluster: Cluster) -> tuple[float, float]:
    """Seconds to the first tuple, and from a kill to the next one of the killed worker."""
    began = time.perf_counter()
    handle = cluster.submit("start", paced_chain(500, 60.0), _CONF)
    wait(lambda: executed(handle) > 0)
    started = time.perf_counter() - began
    wait(lambda: len(handle.beats()) == 2 and executed(handle) > 1000)
    victim = handle.beats()[0]
    killed = time.perf_counter()
    os.kill(victim.pid, signal.SIGKILL)
    owner = f"{victim.node}:{victim.port}"
    before = executed_by(handle, owner)
    wait(lambda: executed_by(handle, owner) > before)
    recovered = time.perf_counter() - killed
    handle.kill(0)
    wait(lambda: cluster.find("start") is None)
    return started, recovered


def executed(handle: TopologyHandle) -> int:
    """Tuples executed so far, over all workers."""
    return handle.progress().executed


def executed_by(handle: TopologyHandle, owner: str) -> int:
    """Tuples executed by the tasks of one worker slot."""
    record = handle.progress_by_worker().get(owner)
    return 0 if record is None else sum(c.executed for c in record.counts_by_task.values())


def wait(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Poll every 5 ms."""
    deadline = time.perf_counter() + limit_s
    while not condition():
        if time.perf_counter() > deadline:
            raise TimeoutError("nothing happened in a minute")
        time.sleep(0.005)


if __name__ == "__main__":
    main()
