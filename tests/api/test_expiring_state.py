"""Checks that keys of an ExpiringState end at the caller's time, on both backends, over owners, and
in a replay as live.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import (
    BasicOutputCollector,
    Duration,
    ExpiringState,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.contracts.benches import LocalBench
from tests.contracts.test_states import Owner


@pytest.mark.parametrize("backend", ["memory", "lazy"])
def test_a_key_ends_after_its_time_and_not_before_whoever_owns_it(backend: str) -> None:
    bench = LocalBench()
    first = Owner(bench, backend)
    keys = ExpiringState(first.state, 100)
    for number in range(20):  # more than a lazy owner keeps in memory
        keys.put(("key", number), number, now_ms=number)
    first.commit()
    second = Owner(bench, backend, token=2)
    keys = ExpiringState(second.state, 100)
    assert [keys.get(("key", n), 110) for n in range(20)] == [None] * 10 + list(range(10, 20))
    assert keys.add(("key", 3), 5, 110) == 5 and keys.add(("key", 12), 5, 110) == 17
    keys.put(("key", 12), 1, now_ms=50)  # late: its life is not shortened
    second.commit()
    third = Owner(bench, backend, token=3)
    keys = ExpiringState(third.state, 100)
    assert keys.purge(115) == 4 and len(third.state) == 7
    assert keys.get(("key", 12), 210) == 1 and keys.get(("key", 12), 211, "none") == "none"
    keys.delete(("key", 12))
    keys.delete(("key", 3))
    assert sorted(key[1] for key in third.state) == [15, 16, 17, 18, 19]
    bench.close()


@pytest.mark.parametrize("ttl_ms", [0, -1, "5", None, Duration(5), float("nan")])
def test_a_time_to_live_must_be_positive(ttl_ms: Any) -> None:
    with pytest.raises(ValueError, match=r"ttl_ms is .*; write the milliseconds that a key lives"):
        ExpiringState({}, ttl_ms)


@pytest.mark.parametrize("now_ms", [None, "5", float("nan")])
def test_what_is_no_time_is_named_and_not_stored(now_ms: Any) -> None:
    state: dict[Any, Any] = {"b": [1, 5]}
    view = ExpiringState(state, 10)
    for call in (
        lambda: view.put("a", 1, now_ms),
        lambda: view.add("b", 1, now_ms),
        lambda: view.get("b", now_ms),
        lambda: view.purge(now_ms),
    ):
        with pytest.raises(ValueError, match=r"the time is .*; give it in milliseconds"):
            call()
    assert state == {"b": [1, 5]}


class Visits(StatefulBolt):
    """Counts the visits of a user that follow each other within ten seconds."""

    outputs = ("user", "visits")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one."""
        collector.emit(
            (tup["user"], ExpiringState(self.state, 10_000).add(tup["user"], 1, tup["ms"]))
        )


@pytest.mark.parametrize("backend", ["memory", "lazy"])
def test_it_goes_by_event_time_in_a_bolt_whatever_the_clock_says(backend: str) -> None:
    spout = FeederSpout(["user", "ms"])
    builder = TopologyBuilder()
    builder.set_spout("visits", spout)
    builder.set_bolt("count", Visits()).fields_grouping("visits", "user")
    with LocalCluster(seed=1) as cluster:
        cluster.submit(builder.build(), {"topology.state.backend": backend})
        for at_ms in (0, 9_000, 19_000, 29_001, 30_000):
            spout.feed(("ann", at_ms))
            cluster.advance(ms=60_000)  # six lives of a key by the worker's clock
        assert cluster.state("count") == {"ann": [2, 30_000]}
