"""Checks the simulator's model of CPU (`sparkstorm/extensions/laboratory/network.py`) against live runs.

    python -m benchmarks.placement_live [--rate 400] [--seconds 75]

A source of a fixed rate and three bolts of two executors that work, joined by shuffle, run on one
worker and on two, at the rate and at twice the rate. The two runs on one worker give what a worker
takes without rows and the CPU of user code, two workers at the rate the cost of a row that leaves
its worker; from these the model predicts two workers at twice the rate. CPU time is compared, and
not the throughput; but a worker that waits for a processor falls behind, and then nothing is
compared. Latency is not checked.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.topologies import Paced
from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.common.config import merge
from sparkstorm.common.model.topology import Topology
from sparkstorm.control_plane.scheduling.measured.flows import flows_of
from sparkstorm.driver.cluster import Cluster
from sparkstorm.extensions.laboratory import Network, Scene, predict
from sparkstorm.notebook.live import Inspector

NAME = "work"
_KEPT_UP = 0.95
FREE = Network(us_per_row=0.0, us_per_kb=0.0)


class Work(BasicBolt):
    """Passes values on after some tenths of a millisecond of CPU."""

    outputs = ("due_us",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Work, and emit what came."""
        sum(range(20_000))
        collector.emit(tup.values)


def working(rate: int) -> Topology:
    """Return the topology."""
    builder = TopologyBuilder()
    builder.set_spout("paced", Paced(rate, 1e6), 1)
    before = "paced"
    for name in ("work1", "work2", "work3"):
        builder.set_bolt(name, Work(), 2).shuffle_grouping(before)
        before = name
    return builder.build()


def measured(cluster: Cluster, folder: Path, workers: int, rate: int, seconds: float) -> Scene:
    """Run for so long, and return the scene with what was measured; nodes have no limits in it."""
    conf = {"topology.workers": workers, "topology.acker.executors": 1}
    handle = cluster.submit(NAME, working(rate), conf)
    time.sleep(seconds)
    with Inspector.connect(folder / "connection.json") as inspector:
        scene = inspector.look(measures=True).scene
    handle.kill(0)
    while cluster.find(NAME) is not None:
        time.sleep(0.05)
    bare = (replace(each, resources={}, measured=None) for each in scene.supervisors)
    return replace(scene, supervisors=tuple(bare))


def cores(scene: Scene) -> float:
    """Return the measured cores of all workers."""
    (topology,) = scene.topologies
    assert topology.measured is not None
    return sum(load.cpu for load in topology.measured.tasks.values()) / 100


def rate_of(scene: Scene) -> float:
    """Return the rows a second that the source was measured to emit."""
    (row,) = predict(scene, FREE)
    return float(row["rows_per_s"])


def check_pace(scene: Scene) -> None:
    """Raise SystemExit where the bolts did not keep up: they waited for a processor."""
    rates = [flow.rows_per_s for flow in flows_of(scene.topologies[0])]
    if min(rates) < _KEPT_UP * max(rates):
        raise SystemExit(
            f"bolts took in {min(rates):,.0f} of {max(rates):,.0f} rows/s: the machine is too busy"
        )


def fitted(runs: Mapping[tuple[int, int], Scene]) -> Network:
    """Return the costs of all runs but the last."""
    slow, fast = runs[1, 1], runs[1, 2]
    slope = max(0.0, (cores(fast) - cores(slow)) / (rate_of(fast) - rate_of(slow)))
    idle = max(0.0, cores(slow) - slope * rate_of(slow))
    apart = runs[2, 1]
    rows = sum(flow.rows_per_s for flow in flows_of(apart.topologies[0]))
    ends = 2 * rows * apart.measures()["crossing_workers"]
    more = max(0.0, cores(apart) - 2 * idle - slope * rate_of(apart))
    return Network(us_per_row=more / ends * 1e6, us_per_kb=0.0, idle_cores=idle)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=75.0)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        storm = Path(folder) / "storm"
        with Cluster.open(merge({"storm.local.dir": str(storm)})) as cluster:
            for workers in (1, 2):
                for times in (1, 2):
                    rate = times * options.rate
                    runs[workers, times] = measured(cluster, storm, workers, rate, options.seconds)
                    found = runs[workers, times]
                    print(
                        f"{workers} workers, {rate_of(found):,.0f} rows/s: {cores(found):.3f} cores",
                        flush=True,
                    )
    for each in runs.values():
        check_pace(each)
    network = fitted(runs)
    print(f"without rows a worker takes {network.idle_cores:.3f} cores")
    print(f"a row that leaves its worker costs {network.us_per_row:.1f} us at each end")
    one, last = runs[1, 1], runs[2, 2]
    profile = replace(last.topologies[0], measured=one.topologies[0].measured)
    scene = replace(last, topologies=(profile,))
    # Each run has another id, and the same executors.
    (placed,) = one.assignments.values()
    before = replace(one, assignments={profile.id: placed})
    (row,) = predict(scene, network, rate_of(last) / rate_of(one), measured_in=before)
    (busiest,) = predict(last, FREE)
    error = row["used"] / busiest["used"] - 1
    print(
        f"busiest of two workers: {row['used']:.3f} cores predicted, {busiest['used']:.3f} measured"
    )
    print(f"error {error:+.0%}")


if __name__ == "__main__":
    main()
