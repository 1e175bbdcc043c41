"""Two streams of rows for joins, run live and replayed, and joins by nested loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from sparkstorm.api import Duration, Topology, TopologyBuilder
from sparkstorm.replay import replay_locally
from sparkstorm.testing import CaptureBolt, FeederSpout, complete_topology
from tests.topologies import building, running

LEFT = {"k": "bigint", "l": "bigint", "at": "bigint"}
RIGHT = {"k": "bigint", "r": "bigint", "at": "bigint"}
LAG = Duration.millis(1_000)
Rows = Sequence[Sequence[Any]]

TIMES = st.integers(0, 60)
ROWS = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 2)), TIMES), max_size=14)


def numbered(rows: Sequence[tuple[Any, int]]) -> list[list[Any]]:
    """Return rows of key, number and time."""
    return [[key, number, at_ms] for number, (key, at_ms) in enumerate(rows)]


def topology(join: Any, tasks: int = 2) -> Topology:
    """Return left and right -> join."""
    builder = TopologyBuilder()
    builder.set_spout("left", FeederSpout(LEFT))
    builder.set_spout("right", FeederSpout(RIGHT))
    builder.set_bolt("join", join, tasks, inputs=["left", "right"])
    return builder.build()


def by_stream(rows_by_stream: Mapping[str, Rows]) -> Counter[Any]:
    """Return rows, each with its stream."""
    return Counter((stream, tuple(row)) for stream, rows in rows_by_stream.items() for row in rows)


def live_and_replayed(join: Any, left: Rows, right: Rows) -> list[Counter[Any]]:
    """Return what a join emits live, in a local replay, and in one over parts of the history."""
    made = topology(join)
    rows = {"left": [list(row) for row in left], "right": [list(row) for row in right]}
    streams = made.components["join"].streams
    live = complete_topology(made, rows, conf={"topology.workers": 2})
    assert live.dead_letters == []
    found = [by_stream({name: live.values("join", name) for name in streams})]
    for partitions in (1, 3):
        done = replay_locally(made, rows, event_time="at", partitions=partitions)
        assert done.warnings == ()
        names = {name: "join" if name == "default" else f"join:{name}" for name in streams}
        found.append(by_stream({name: done[result] for name, result in names.items()}))
    return found


def with_a_death(join: Any, left: Rows, right: Rows, at_ms: int) -> Counter[Any]:
    """Return what a join of two tasks emits whose worker dies meanwhile."""
    spouts = {"left": FeederSpout(LEFT), "right": FeederSpout(RIGHT)}
    builder = building(**spouts)
    builder.set_bolt("join", join, 2, inputs=["left", "right"])
    capture = CaptureBolt()
    builder.set_bolt("capture", capture, inputs="join")
    with running(builder.build(), {"topology.workers": 3}, seed=at_ms) as cluster:
        for spout, rows in zip(spouts.values(), (left, right), strict=True):
            for row in rows:
                spout.feed(row)
        cluster.advance(ms=at_ms)
        cluster.kill_worker("join")
        for spout in spouts.values():
            spout.finish()
        cluster.run_until_idle()
    return by_stream({"default": capture.values})
