"""Load-aware shuffle and key ranges in running workers: in a simulated cluster, and over a real
Redis.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    ReplayableSpout,
    StatefulBolt,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    key_range,
)
from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.worker_spec import PlacedExecutor
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.extensions.embedded import RedisServer
from sparkstorm.replay import replay_locally
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster, complete_topology
from sparkstorm.testing.simulation import spend
from tests.waiting import wait_until
from tests.worker.test_loop import Running, spec_of

KB = 1024
TASKS = 4
TUPLES = 1200


class Flood(ReplayableSpout):
    """A kilobyte per tuple, as fast as it may."""

    outputs = ("value", "ballast")

    def open(self, conf: Any, context: TopologyContext, collector: Any) -> None:
        self.collector, self.next = collector, 0

    def next_tuple(self) -> None:
        if self.next < TUPLES:
            self.collector.emit((self.next, "x" * KB), message_id=self.next)
            self.next += 1

    def is_exhausted(self) -> bool:
        return self.next >= TUPLES

    def snapshot(self) -> int:
        return self.next

    def restore(self, position: int) -> None:
        self.next = position


class Limping(BasicBolt):
    """The last of its tasks takes 10 ms of simulated time for a tuple, the others none."""

    outputs = ("task", "value")

    def prepare(self, conf: Any, context: TopologyContext) -> None:
        self.place = context.task_index
        self.is_last = context.task_index == len(context.peers) - 1

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if self.is_last:
            self.limp()
        collector.emit((self.place, tup[0]))

    def limp(self) -> None:
        spend(10)


def limping(grouping: str, bolt: BasicBolt, capture: BasicBolt | None = None) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("flood", Flood())
    builder.set_bolt("limping", bolt, TASKS, inputs={"flood": grouping})  # type: ignore[dict-item]
    builder.set_bolt("capture", capture or CaptureBolt()).global_grouping("limping")
    return builder.build()


def simulated(grouping: str) -> tuple[list[int], int]:
    """Return the place of each tuple's task, by its value, and the simulated milliseconds until all
    were done.
    """
    capture = CaptureBolt()
    with LocalCluster(supervisors=3, slots=2, seed=3) as cluster:
        conf = {
            "topology.workers": 6,
            "topology.acker.executors": 1,
            "topology.max.spout.pending": 200,
        }
        cluster.submit(limping(grouping, Limping(), capture), conf)
        began_ms = cluster.now_ms
        cluster.run_until_idle()
        assert cluster.counts("flood").acked == TUPLES
        took_ms = cluster.now_ms - began_ms
    place_by_value = {value: place for place, value in capture.values}
    assert len(capture.values) == len(place_by_value) == TUPLES
    return [place_by_value[value] for value in range(TUPLES)], took_ms


@pytest.mark.slow
def test_a_slow_task_gets_what_it_can_do_and_the_others_the_rest() -> None:
    even, even_ms = simulated("shuffle")
    places, took_ms = simulated("load_aware_shuffle")
    assert Counter(even) == dict.fromkeys(range(TASKS), TUPLES // TASKS)
    counts = Counter(places)
    assert counts[TASKS - 1] < TUPLES // TASKS // 2
    assert min(counts[place] for place in range(TASKS - 1)) > TUPLES // TASKS
    assert took_ms < even_ms // 2
    assert simulated("load_aware_shuffle") == (places, took_ms)  # the same seed, the same turns


PLACES: dict[int, int] = {}
_LOCK = threading.Lock()


class ReallyLimping(Limping):
    """The same by the wall clock; tells the test, which is in the same process, who got what."""

    def limp(self) -> None:
        time.sleep(0.01)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        super().execute(tup, collector)
        with _LOCK:
            PLACES[tup[0]] = self.place


class Quiet(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        pass


@pytest.mark.system
def test_over_a_real_redis_a_slow_task_gets_less_too(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    PLACES.clear()
    spec = spec_of(tmp_path, own_redis)
    code = pack_topology(limping("load_aware_shuffle", ReallyLimping(), Quiet()))
    Path(spec.code_path).write_bytes(code)
    components = {
        1: "flood",
        **dict.fromkeys(range(2, 2 + TASKS), "limping"),
        6: "capture",
        7: "__acker",
    }
    shares = [(1, 6, 7), *((task,) for task in range(2, 2 + TASKS))]
    placed = tuple(PlacedExecutor(ExecutorId(task, task), 1) for task in components)
    conf = {
        "topology.max.spout.pending": 200,
        "topology.acker.executors": 1,
        "topology.workers": len(shares),
    }
    base = replace(
        spec, component_by_task=components, conf=conf, code_key=hashlib.sha256(code).hexdigest()
    )
    running = []
    for number, tasks in enumerate(shares):
        own = tuple(each for each in placed if each.executor.first_task in tasks)
        running.append(Running(replace(base, port=6700 + number, executors=own)))
    try:
        wait_until(lambda: len(PLACES) == TUPLES, limit_s=60)
    finally:
        codes = [each.stop() for each in running]
    assert set(codes) == {0}
    assert Counter(PLACES.values())[TASKS - 1] < TUPLES // TASKS // 2


class Total(StatefulBolt):
    """Sums and its task by key."""

    def prepare(self, conf: Any, context: TopologyContext) -> None:
        self.place = context.task_index

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put(
            tup["key"], [self.place, self.state.get(tup["key"], [0, 0])[1] + tup["value"]]
        )


def by_ranges(bounds: list[Any]) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["key", "value"]))
    builder.set_bolt("total", Total(), 3, inputs={"spout": key_range("key", bounds)})
    return builder.build()


def test_ranges_have_the_same_tasks_live_and_in_a_replay() -> None:
    topology = by_ranges([10, 20, 30, 40, 50])
    rows = {"spout": [[n * 7 % 60, n] for n in range(300)]}
    live = complete_topology(topology, rows, conf={"topology.workers": 3})
    replayed = replay_locally(topology, rows)
    state = live.state("total")
    assert replayed.states["total"] == state
    result = {key: place for key, (place, _) in state.items()}
    assert result == {key: key // 20 for key in range(60)}
    assert sum(total for _, total in state.values()) == sum(range(300))
    assert replayed.warnings == ()


def test_an_initial_state_of_a_replay_begins_in_the_tasks_of_its_ranges() -> None:
    topology = by_ranges([10, 20])
    begun = {"total": {5: [0, 100], 15: [1, 100], 25: [2, 100]}}
    replayed = replay_locally(topology, {"spout": [[5, 1], [15, 1], [25, 1]]}, states=begun)
    result = [dict(state) for _, state in sorted(replayed.states_by_task["total"].items())]
    assert result == [{5: [0, 101]}, {15: [1, 101]}, {25: [2, 101]}]


def test_a_tuple_whose_key_has_no_place_fails_where_it_was_sent_and_the_others_go_on() -> None:
    class Keyed(BasicBolt):
        outputs = ("key",)

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            collector.emit((tup[0],))

    capture, builder = CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", FeederSpout(["value"]))
    builder.set_bolt("keyed", Keyed(), inputs="spout")
    builder.set_bolt("capture", capture, 2, inputs={"keyed": key_range("key", [10])})
    done = complete_topology(
        builder.build(), {"spout": [[1], ["text"], [11]]}, conf={"topology.max.retries": 0}
    )
    assert sorted(capture.values) == [(1,), (11,)]
    letter = done.dead_letters[0]
    assert (letter.component, letter.values) == ("keyed", ("text",))
    assert (
        "component 'keyed', stream 'default', field 'key': key_range grouping has no place for the key 'text' among its "
        "bounds [10]; give bounds of its type" in str(letter)
    )
