"""Checks a topology's handle over the cluster's tree, on a local twin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sparkstorm.client.handle import TopologyHandle
from sparkstorm.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.model.failure import Failure, FailureKind


def test_the_errors_of_a_topology_are_read_oldest_first_of_all_components_or_of_one() -> None:
    """S3.47."""
    state = StormState(LocalStateStore(LocalStateTree()))
    of_count, of_split, of_another = (
        Failure(FailureKind.SYSTEM, "boom", "count", 3, "host", "node-1:6700", 2_000),
        Failure(FailureKind.SYSTEM, "bang", "split", 1, "host", "node-1:6700", 1_000),
        Failure(FailureKind.SYSTEM, "of another topology", "count", 3, "host", "node-1:6701", 1_500),
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
