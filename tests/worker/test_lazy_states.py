"""Checks topologies whose states are lazy: counts, capsules, savepoints, hot deploys, and what is
refused.
"""

from __future__ import annotations

import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.client.savepoints import SavepointSource
from sparkstorm.client.state_frames import state_table
from sparkstorm.client.submission import sow
from sparkstorm.common.errors import InvalidTopologyError, StoreUnavailableError, WorkerFailedError
from sparkstorm.common.grouping.hashing import stable_hash
from sparkstorm.common.model.outline import outline_of
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.control_plane.cluster.request_checks import check_upgraded_outline
from sparkstorm.data_plane.checkpoint.files import CheckpointWriter, read_checkpoint
from sparkstorm.data_plane.checkpoint.restore import Seeds
from sparkstorm.data_plane.executor.lazy_state import LazyState
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.data_plane.transport.local_reader import LocalReader, LocalSeeding
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster
from sparkstorm.testing.in_process_worker import InProcessWorker
from sparkstorm.testing.sim_transport import SimTransport
from tests.topologies import running

LAZY: dict[str, Any] = {"topology.state.backend": "lazy", "topology.state.cache.keys": 4}
MEMORY: dict[str, Any] = {"topology.state.backend": "memory"}


class Count(StatefulBolt):
    """Counts by user and day; fails at a negative number."""

    outputs = ("n",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add((tup["user"], tup["day"]))
        if tup["day"] < 0:
            raise ValueError("no such day")
        collector.emit((self.state.get((tup["user"], tup["day"])),))


class Blocking(Count):
    blocking = True


def counting(
    spout: FeederSpout, bolt: BasicBolt | None = None, tasks: int = 2, conf: Any = None
) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("count", bolt or Count(), tasks, conf=conf).fields_grouping(
        "spout", "user", "day"
    )
    return builder.build()


def feed(spout: FeederSpout, times: int = 1) -> None:
    for _ in range(times):
        for n in range(60):
            spout.feed([f"u{n % 12}", n % 5])


def expected(times: int) -> dict[Any, int]:
    return {(f"u{n % 12}", n % 5): times for n in range(60)}


def test_a_large_state_is_counted_over_kills_and_seen_from_outside(tmp_path: Path) -> None:
    spout = FeederSpout(["user", "day"])
    with LocalCluster() as cluster:
        cluster.submit(counting(spout), {**LAZY, "topology.workers": 2}, "one")
        for workers in (2, 1, 3, 2):
            feed(spout, 2)
            cluster.run_until_idle()
            cluster.kill_worker("count")
            cluster.rebalance(workers=workers, reassign=True)
        cluster.run_until_idle()
        assert cluster.state("count") == expected(8)
        topology = cluster.topology()
        bases = [keys.base for keys in topology.store.task_keys.values() if keys.base]
        assert len(bases) == 2 and sum(map(len, bases)) > 40, "most keys are in no worker's memory"
        states = [
            bolt.state
            for worker in topology.workers
            if worker.worker
            for bolt in worker.worker.task_set.bolts.values()
        ]
        assert all(len(state._data) < 20 for state in states if isinstance(state, LazyState))
        table = state_table(
            SavepointSource(topology.info_by_task, LocalReader(topology.store)).stored("count")
        )
        assert sorted(table["value"].to_pylist()) == [8] * 60
        cluster.savepoint(tmp_path / "saved")
        cluster.kill("one", 0)
        for times, (name, conf) in enumerate((("two", MEMORY), ("three", LAZY)), 9):
            cluster.submit(counting(spout), conf, name, from_checkpoint=tmp_path / "saved")
            keys = cluster.topology(name).store.task_keys.values()
            assert sum(len(each.base) for each in keys) == (60 if conf is LAZY else 0), (
                "a lazy state begins in its base"
            )
            feed(spout)
            cluster.run_until_idle()
            assert cluster.state("count", name) == expected(times), (
                "each goes on where the savepoint was taken"
            )
            cluster.kill(name, 0)


class Keyed(Count):
    state_keyed_by_grouping = True


@pytest.mark.nightly
def test_a_first_start_from_a_savepoint_holds_a_part_of_the_state_in_memory(tmp_path: Path) -> None:
    class Sizes(LocalSeeding):
        """Counts and forgets."""

        def __init__(self) -> None:
            super().__init__(LocalStore())
            self.sizes, self.journals = dict.fromkeys((2, 3, 4), 0), dict[int, list[Any]]()

        def add_base(self, task: int, pairs: Any) -> None:
            assert len(pairs) <= 4096
            self.sizes[task] += len(pairs)

        def base_size(self, task: int) -> int:
            return self.sizes[task]

        def sow(self, task: int, entries: Any) -> None:
            self.journals[task] = [Codec().unpack(entry) for entry in entries]

    spout, keys = FeederSpout(["user", "day"]), 50_000
    with CheckpointWriter(
        tmp_path / "saved", "one", {1: "spout", 2: "count", 3: "count"}
    ) as writer:
        writer.add("spout", "spout", [(1, "position", None, [0])])
        rows = (((f"user-{n}", n), f"{n:0200}") for n in range(keys))
        writer.add(
            "count",
            "bolt",
            ((2 + stable_hash(key) % 2, "state", key, value) for key, value in rows),
        )
        writer.close()
    component_by_task = {1: "spout", 2: "count", 3: "count", 4: "count"}
    seeds = Seeds.of(read_checkpoint(tmp_path / "saved"), counting(spout, Keyed(), 3))
    peaks = []
    for conf in (LAZY, MEMORY):
        seeding = Sizes()
        tracemalloc.start()
        sow(seeds, seeding, conf, component_by_task)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        if conf is LAZY:
            assert sum(seeding.sizes.values()) == keys and min(seeding.sizes.values()) > keys // 4
            assert seeding.journals[4] == [{"n": [seeding.sizes[4], 0]}]
    assert peaks[0] < peaks[1] / 2, peaks


def test_a_failed_input_takes_its_change_back_and_shows_the_keys_that_it_met() -> None:
    spout = FeederSpout(["user", "day"])
    with running(counting(spout, tasks=1), {**LAZY, "topology.max.retries": 1}) as cluster:
        for n in range(200):
            spout.feed([f"u{n}", 1])
        cluster.run_until_idle()
        spout.feed(["u7", -1])
        cluster.run_until_idle()
        assert ("u7", -1) not in cluster.state("count") and len(cluster.state("count")) == 200
        assert cluster.dead_letters[0].failure.text.startswith("ValueError: no such day")


def test_a_hot_deploy_hands_a_lazy_state_on_and_one_in_memory_becomes_lazy() -> None:
    spout = FeederSpout(["user", "day"])
    with running(counting(spout), MEMORY) as cluster:
        for times, conf in enumerate((LAZY, LAZY), 1):
            feed(spout)
            cluster.run_until_idle()
            topology = counting(spout)
            cluster._submitted.append(topology)
            cluster.service.carry_out(
                cluster.service.update_request("test", topology, conf, pack_topology(topology))
            )
            cluster.run_until_idle()
            assert cluster.state("count") == expected(times)


@pytest.mark.parametrize(
    ("conf", "bolt", "said"),
    [
        (
            MEMORY,
            Count(),
            r"component 'count' \(task \d\): its state was written with topology.state.backend: lazy",
        ),
        (
            LAZY,
            Blocking(),
            r"component 'count': a bolt with a thread of its own .* set topology.state.backend: memory in this",
        ),
    ],
)
def test_a_backend_that_cannot_have_the_state_is_refused(
    conf: dict[str, Any], bolt: BasicBolt, said: str
) -> None:
    spout = FeederSpout(["user", "day"])
    with running(counting(spout), LAZY) as cluster:
        feed(spout)
        cluster.run_until_idle()
        topology = counting(spout, bolt)
        cluster._submitted.append(topology)
        cluster.service.carry_out(
            cluster.service.update_request("test", topology, conf, pack_topology(topology))
        )
        with pytest.raises(WorkerFailedError, match=said):
            cluster.run_until_idle()


def test_a_gray_upgrade_keeps_the_backend() -> None:
    topology = counting(FeederSpout(["user", "day"]))
    before, after = (
        outline_of(topology, {"topology.workers": 1, "topology.acker.executors": 1, **conf})
        for conf in (MEMORY, LAZY)
    )
    sentence = r"'count': topology.state.backend is lazy in the new code, memory runs"
    with pytest.raises(InvalidTopologyError, match=sentence):
        check_upgraded_outline("words", before, after, is_forced=True)
    check_upgraded_outline("words", after, after, is_forced=False)


def test_a_read_that_fails_ends_the_worker_and_fails_no_tuple() -> None:
    class Away(SimTransport):
        reads = 0

        def read_state(self, task: int, keys: Any) -> list[bytes | None]:
            Away.reads += 1
            if Away.reads % 5 == 3:
                raise StoreUnavailableError("Redis did not come back")
            return super().read_state(task, keys)

    def make(worker: InProcessWorker) -> Away:
        return Away(worker.host.store, worker.clock, worker.host.arrivals)

    spout = FeederSpout(["user", "day"])
    with running(
        counting(spout), {**LAZY, "topology.epoch.rows": 5}, make_transport=make
    ) as cluster:
        feed(spout, 2)
        cluster.run_until_idle()
        assert cluster.state("count") == expected(2) and Away.reads > 10
        assert not cluster.dead_letters and not spout.failed


def test_the_first_missing_key_of_a_block_brings_the_others() -> None:
    class Counting(SimTransport):
        reads: ClassVar[list[int]] = []

        def read_state(self, task: int, keys: Any) -> list[bytes | None]:
            Counting.reads.append(len(keys))
            return super().read_state(task, keys)

    def make(worker: InProcessWorker) -> Counting:
        return Counting(worker.host.store, worker.clock, worker.host.arrivals)

    spout = FeederSpout(["user", "day"])
    with running(
        counting(spout, tasks=1), {**LAZY, "topology.state.cache.keys": 1000}, make_transport=make
    ) as cluster:
        for _ in range(2):
            feed(spout)
            cluster.run_until_idle()
        known = len(Counting.reads)
        for n in range(100):
            spout.feed([f"new{n}", 1])
        cluster.run_until_idle()
        assert sum(Counting.reads[known:]) == 100 and len(Counting.reads) - known < 20, (
            "also when the rows before missed none"
        )


def test_a_value_that_cannot_be_stored_fails_its_tuple_alone() -> None:
    class Bad(Count):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.state.put(tup["user"], object() if tup["day"] == 1 else tup["day"])

    spout = FeederSpout(["user", "day"])
    with running(counting(spout, Bad()), {**LAZY, "topology.max.retries": 0}) as cluster:
        for n in range(4):
            spout.feed([f"u{n}", n])
        cluster.run_until_idle()
        assert cluster.state("count") == {"u0": 0, "u2": 2, "u3": 3}
        assert "object" in cluster.dead_letters[0].failure.text


def test_a_bolt_may_be_grouped_by_values_that_are_no_keys_of_a_state() -> None:
    class Seen(Count):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.state.add(str(tup["user"]))

    users = [float("nan"), Decimal("NaN"), [1], {"a": 1}, {1, 2}]
    spout = FeederSpout(["user", "day"])
    with running(counting(spout, Seen()), {**LAZY, "topology.epoch.rows": 5}) as cluster:
        workers = {slot.process.pid for slot in cluster.slots if slot.process}
        for user in users:
            for _ in range(20):
                spout.feed([user, 1])
            cluster.run_until_idle()
        assert {slot.process.pid for slot in cluster.slots if slot.process} == workers
        assert not cluster.failures()
        assert (
            sum(n for state in cluster.state_by_task("count").values() for n in state.values())
            == 100
        )


class Growing(StatefulBolt):
    """Puts each number under a key of its own, and emits how many keys there are."""

    outputs = ("n", "keys")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put(tup["n"], True)
        collector.emit((tup["n"], len(self.state)))


@pytest.mark.parametrize("backend", [LAZY, MEMORY], ids=["lazy", "memory"])
def test_an_epoch_of_many_turns_counts_all_the_keys_that_it_has_put(backend: Any) -> None:
    spout = FeederSpout(["n"])
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("grow", Growing(), inputs="spout")
    end = CaptureBolt()
    builder.set_bolt("end", end, inputs="grow")
    with LocalCluster() as cluster:
        cluster.submit(builder.build(), backend, "one")
        for n in range(2000):
            spout.feed([n])
        cluster.run_until_idle()
    assert end.values == [(n, n + 1) for n in range(2000)]
