"""Session windows of one key: CPU seconds by number of sessions that are open at once, live
(LocalCluster) and replayed.

Run: python -m benchmarks.sessions [--counts N ...] [--order time|chance]. All sessions are of one key; what they cost together
must grow with their number, not with its square.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from random import Random
from typing import Any

from sparkstorm.api import (
    BasicOutputCollector,
    Duration,
    FoldingBolt,
    TopologyBuilder,
    Tuple,
    Window,
)
from sparkstorm.model.topology import Topology
from sparkstorm.replay.local import replay_locally
from sparkstorm.testing import FeederSpout, LocalCluster

_FIELDS = ("user", "at_ms")
_GAP_MS = 1000
_STEP_MS = 2000


class Visits(FoldingBolt):
    """Counts the tuples of each session."""

    outputs = ("user", "start_ms", "count")

    def initial(self) -> int:
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        return accumulator + 1

    def merge(self, one: int, other: int) -> int:
        return one + other

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((window.key[0], window.start, window.value))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[500, 1000, 2000, 20_000])
    parser.add_argument(
        "--order", choices=("time", "chance"), default="time", help="in which sessions begin"
    )
    options = parser.parse_args()
    print(
        f"{'sessions':>10}{'live, s':>10}{'replay, s':>11}{'us per session, live':>22}{'replay':>8}"
    )
    for count in options.counts:
        rows = [("a", number * _STEP_MS) for number in range(count)]
        if options.order == "chance":
            Random(1).shuffle(rows)
        live = live_s(rows)
        replayed = replay_s(rows)
        print(
            f"{count:>10,}{live:>10.2f}{replayed:>11.2f}{live / count * 1e6:>22.0f}{replayed / count * 1e6:>8.0f}",
            flush=True,
        )


def live_s(rows: Sequence[Sequence[Any]]) -> float:
    """CPU seconds of a topology from submission until every session has fired."""
    spout = FeederSpout(_FIELDS)
    for row in rows:
        spout.feed(row)
    spout.finish()
    began = time.process_time()
    with LocalCluster() as cluster:
        cluster.submit(topology(spout, len(rows)))
        cluster.run_until_idle()
        assert cluster.counts("visits").emitted == len(rows)
    return time.process_time() - began


def replay_s(rows: Sequence[Sequence[Any]]) -> float:
    """CPU seconds of a local replay of the same rows."""
    began = time.process_time()
    assert len(
        replay_locally(topology(FeederSpout(_FIELDS), len(rows)), {"rows": rows})["visits"]
    ) == len(rows)
    return time.process_time() - began


def topology(spout: FeederSpout, count: int) -> Topology:
    """Rows to sessions, with a lag that lets them come in any order."""
    builder = TopologyBuilder()
    builder.set_spout("rows", spout)
    builder.set_bolt(
        "visits",
        Visits()
        .with_session_window(Duration.millis(_GAP_MS))
        .with_key("user")
        .with_timestamp_field("at_ms")
        .with_lag(Duration.millis(count * _STEP_MS)),
    ).fields_grouping("rows", "user")
    return builder.build()


if __name__ == "__main__":
    main()
