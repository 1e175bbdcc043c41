"""Requests that slots send to the state store at rest."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.control_plane.cluster.base import StateStore
from sparkstorm.testing.local_cluster import LocalCluster

REQUESTS = {
    "get",
    "last_change",
    "put",
    "delete",
    "children",
    "create",
    "ensure_path",
    "put_ephemeral",
    "try_ephemeral",
    "create_sequential",
}


class Idle(Spout):
    outputs = ("word",)

    def open(self, conf: Any, context: Any, collector: SpoutOutputCollector) -> None:
        pass

    def next_tuple(self) -> None:
        pass


class Swallow(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        pass


class CountingSession:
    """A session that counts its requests."""

    def __init__(self, store: StateStore, count: Counter[str], who: str) -> None:
        self._store, self._count, self._who = store, count, who

    def __getattr__(self, name: str) -> Any:
        if name in REQUESTS:
            self._count[self._who] += 1
        return getattr(self._store, name)


class CountingCluster(LocalCluster):
    """A simulated cluster that counts the requests of each session."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.count: Counter[str] = Counter()
        super().__init__(*args, **options)

    def open_session(self, who: str) -> StateStore:
        return cast(StateStore, CountingSession(super().open_session(who), self.count, who))


def test_a_slot_at_rest_sends_less_than_a_request_a_second() -> None:
    cluster = CountingCluster(3, 2, is_lively=True)
    builder = TopologyBuilder()
    builder.set_spout("idle", Idle(), 3)
    builder.set_bolt("swallow", Swallow(), 6).shuffle_grouping("idle")
    topology_id = cluster.submit(builder.build(), {"topology.workers": 6})
    cluster.advance(5)
    cluster.count.clear()
    cluster.advance(60)
    rate = {str(slot.slot): cluster.count[str(slot.slot)] / 60 for slot in cluster.slots}
    # heartbeats, the supervisor's record, a slow read again
    assert all(0.5 <= each < 1 for each in rate.values()), rate
    beats = [cluster.storm_state.read_worker_beat(topology_id, slot.slot) for slot in cluster.slots]
    assert all(beat is not None and cluster.now_ms - beat.time_ms <= 2_000 for beat in beats)
    cluster.close()
