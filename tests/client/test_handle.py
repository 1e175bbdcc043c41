"""Checks a topology's handle over the cluster's tree, on a local twin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sparkstorm.client.cluster import ClusterClient
from sparkstorm.client.handle import TopologyHandle
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.config import default_conf, merge
from sparkstorm.common.model.assignment import Assignment, ExecutorId, WorkerSlot
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.storm_state import StormState


def test_the_errors_of_a_topology_are_read_oldest_first_of_all_components_or_of_one() -> None:
    """S3.47."""
    state = StormState(LocalStateStore(LocalStateTree()))
    of_count = Failure(FailureKind.SYSTEM, "boom", "count", 3, "host", "node-1:6700", 2_000)
    of_split = Failure(FailureKind.SYSTEM, "bang", "split", 1, "host", "node-1:6700", 1_000)
    of_another = Failure(
        FailureKind.SYSTEM, "of another topology", "count", 3, "host", "node-1:6701", 1_500
    )
    state.report_error("words-1-1", of_count)
    state.report_error("words-1-1", of_split)
    state.report_error("words-2-1", of_another)
    cluster: Any = SimpleNamespace(state=state)  # of the client, errors need its tree alone
    reader: Any = None
    handle = TopologyHandle("words-1-1", cluster, reader)
    assert handle.errors() == [of_split, of_count]
    assert handle.errors("count") == [of_count]
    assert handle.errors("lines") == []


def test_the_problems_of_a_topology_are_nimbuss_and_its_workers() -> None:
    state = StormState(LocalStateStore(LocalStateTree()))
    slot = WorkerSlot("n1", 6700)
    now_ms = SystemClock().now_ms()
    executor = ExecutorId(1, 1)
    state.write_assignment(
        Assignment("words-1-1", 1, "", "", {"n1": "host"}, {executor: slot}, {}, {executor: 1})
    )
    stats: dict[str, Any] = {"blocked": ["Redis is at 61% of its maxmemory"]}
    # a heartbeat of a slot that the topology has left says nothing about it
    for node in ("n1", "elsewhere"):
        state.write_worker_beat(
            WorkerBeat("words-1-1", node, 6700, now_ms, now_ms, 7, 1, "RUNNING", 1, stats=stats)
        )
        stats = {"blocked": ["old"]}
    service: Any = SimpleNamespace(problems_of=lambda _: ["too few slots"])
    redis: Any = None
    cluster = ClusterClient(
        state, redis, service, merge(default_conf(), {"worker.heartbeat.frequency.secs": 0.1})
    )
    reader: Any = None
    handle = TopologyHandle("words-1-1", cluster, reader)
    result = handle.problems()
    assert result == ["too few slots", "work stands still: Redis is at 61% of its maxmemory"]
    state.write_worker_beat(
        WorkerBeat("words-1-1", "n1", 6700, now_ms - 60_000, 1, 7, 1, "RUNNING", 1)
    )
    assert handle.dead_slots(handle.beats()) == {slot}
    assert handle.problems()[1].startswith(
        "worker n1:6700 is dead: its slot has sent no heartbeat since "
    )
