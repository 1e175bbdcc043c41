"""Topologies over several stores in a simulated cluster: each task has its cell and each worker
tasks of one, and nothing is lost or doubled, whatever fails in a store, between two, or around
them.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.common.model.tasks import cell_by_task
from sparkstorm.testing import FeederSpout, LocalCluster, SimulationError, Subject, simulate
from sparkstorm.testing.faults import STORE_KINDS
from sparkstorm.testing.local_topology import LocalTopology
from tests.sim.topologies import subject
from tests.topologies import word_count

pytestmark = pytest.mark.nightly

STORES = ("near", "far", "third")
LINES = [[f"the quick {n} the lazy {n % 5} end"] for n in range(12)]


def cut(cells: int, name: str = "word_count", size: int = 10) -> Subject:
    """A subject of the simulation, cut into so many cells."""
    plain = subject(name, size)
    conf = {**plain.conf, "topology.cells": cells, "topology.workers": 4}
    return Subject(plain.make, plain.sources, conf, plain.check, STORES[:cells])


def cells_of_workers(topology: LocalTopology, cells: int) -> list[set[int]]:
    """Return the cells of each worker's tasks."""
    cell = cell_by_task(topology.component_by_task, cells)
    return [{cell[task] for task in topology.tasks_at(slot)} for slot in topology.workers]


@pytest.mark.parametrize(("cells", "first"), [(2, 0), (3, 100)])
def test_nothing_is_lost_or_doubled_or_left_open_over_several_stores(
    cells: int, first: int
) -> None:
    report = simulate(cut(cells), range(first, first + 10))
    assert report.runs == 10 and not report.uncompared


@pytest.mark.parametrize("cells", [2, 3])
def test_stores_that_are_away_full_cut_off_or_restarted_lose_and_double_nothing(
    cells: int,
) -> None:
    kinds = [*(kind.name for kind in STORE_KINDS), "KILL_WORKER", "CRASH_AFTER"]
    assert simulate(cut(cells), range(12), kinds=kinds).faults > 24


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fan_out_fan_in", "flaky", "loop", "batching"])
@pytest.mark.parametrize("first", [0, 20])
def test_other_topologies_over_two_stores(name: str, first: int) -> None:
    assert simulate(cut(2, name, 6), range(first, first + 20)).runs == 20


@pytest.mark.parametrize("cells", [2, 3])
@pytest.mark.parametrize(
    ("durability", "fault"), [("replica", "STORE_FAILS_OVER"), ("disk", "STORE_LOSES_POWER")]
)
def test_what_a_durability_covers_loses_and_doubles_nothing(
    durability: str, fault: str, cells: int
) -> None:
    """Fail-overs to replicas that are behind, and power cuts; with `process` the trial finds what
    is doubled.
    """
    kinds = [fault, "STORE_AWAY", "KILL_WORKER"]
    case = cut(cells)
    durable = replace(case, conf={**case.conf, "topology.cells.durability": durability})
    assert simulate(durable, range(12), kinds=kinds).faults > 24
    with pytest.raises(SimulationError):
        simulate(case, range(12), kinds=kinds)


def test_a_durability_that_a_store_cannot_keep_is_refused_where_it_is_asked_for() -> None:
    from sparkstorm.data_plane.user_code.topology_code import pack_topology

    topology = word_count(FeederSpout(["line"]))
    conf = {"topology.workers": 4, "topology.cells": 2}
    on_disk = {"topology.cells.durability": "disk"}
    words = "the store far has appendfsync everysec"
    with LocalCluster(stores=STORES[:2]) as cluster:
        cluster.data_plane.is_synced = True
        with pytest.raises(SparkStormError, match=words):
            cluster.submit(topology, {**conf, **on_disk}, "one")
        assert cluster.data_plane.stores_of("one") == []
        cluster.submit(topology, conf, "one")
        with pytest.raises(SparkStormError, match=words):
            cluster.service.rebalance("one", RebalanceOptions(conf=on_disk), 0)
        request = cluster.service.update_request(
            "one", topology, {**conf, **on_disk}, pack_topology(topology)
        )
        with pytest.raises(SparkStormError, match=words):
            cluster.service.carry_out(request)
        cluster.data_plane.at("far").is_synced = True
        cluster.service.rebalance("one", RebalanceOptions(conf=on_disk), 0)


def after_one_store_went_back(seed: int, loss: str) -> tuple[int, int, set[str]]:
    """Put the store of one of two cells back by some hundred milliseconds, under work; return how
    many words are lost and doubled in the end, and what was said of it.
    """
    chance = random.Random(seed)
    feed = FeederSpout(["line"])
    conf = {
        "topology.cells": 2,
        "topology.workers": 4,
        "topology.acker.executors": 2,
        "topology.message.timeout.secs": 5,
        "topology.store.loss": loss,
    }
    lines = [[f"a{n} b{n % 5} c{n}"] for n in range(40)]
    first = chance.randrange(5, 20)
    last = first + chance.randrange(1, 15)
    with LocalCluster(supervisors=2, slots=4, seed=seed, stores=STORES[:2]) as cluster:
        cluster.submit(word_count(feed, 2, 2, 4), conf, name="one")
        view = cluster.topology("one")
        store = view.stores[chance.randrange(2)]
        for n, line in enumerate(lines):
            feed.feed(line)
            if n == first:
                checkpoint = store.checkpoint()
            if n == last:
                store.restore(checkpoint)
            # not advance(), which raises what a worker says that does not start
            cluster.wake_workers()
            cluster.simulation.advance(chance.choice((1, 5, 40)))
        for _ in range(40):
            cluster.wake_workers()
            cluster.simulation.advance(1_000)
        if loss == "continue":
            assert not feed.num_open, "each message is acked, or has failed"
        counted = Counter(cluster.state("count", "one"))
        wanted = Counter(word for (line,) in lines for word in line.split())
        said = [error.text for error in view.errors]
        said += [why for slot in cluster.slots for why in slot.deaths]
    told = {words for words in said if "does not have the newest entries" in words}
    return (wanted - counted).total(), (counted - wanted).total(), told


@pytest.mark.parametrize("loss", ["continue", "stop"])
def test_a_store_that_goes_back_alone_loses_and_doubles_nothing_in_silence(loss: str) -> None:
    """It does lose and double: the other store does not go back with it. With "stop" no worker of
    the other cell goes on.
    """
    histories = [after_one_store_went_back(seed, loss) for seed in range(10)]
    assert all(told for lost, doubled, told in histories if lost or doubled)
    assert any(doubled for _, doubled, _ in histories) and any(lost for lost, _, _ in histories)


def test_a_cell_that_never_tells_what_it_has_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation looks at what cells send each other: frames that lie there for ever."""
    from sparkstorm.extensions.cells.local_foreign import LocalForeign

    def nothing(self: LocalForeign, after: Any, count: int) -> Any:
        return ()

    monkeypatch.setattr(LocalForeign, "poll", nothing)
    with pytest.raises(SimulationError, match=r"messages of spout|not settled"):
        simulate(cut(2), range(1), kinds=["KILL_WORKER"])


@pytest.mark.parametrize("cells", [2, 3])
def test_a_topology_over_stores_runs_exact_is_rebalanced_and_leaves_nothing(cells: int) -> None:
    feed = FeederSpout(["line"])
    conf = {"topology.cells": cells, "topology.workers": 4, "topology.acker.executors": 3}
    with LocalCluster(supervisors=2, slots=4, seed=5, stores=STORES) as cluster:
        topology_id = cluster.submit(word_count(feed, 2, 3, 4), conf, name="one")
        view = cluster.topology("one")
        base = cluster.storm_state.read_base(topology_id)
        assert base is not None and base.cells == STORES[:cells] and base.store == "near"
        workers = cells_of_workers(view, cells)
        assert all(len(worker) == 1 for worker in workers)
        assert set().union(*workers) == set(range(cells))
        for round_, line in enumerate(LINES):
            feed.feed(line)
            cluster.advance(ms=1)
            cluster.kill_worker(round_ % 4, "one")
            if round_ == 6:
                cluster.rebalance("one", workers=6, executors={"count": 3})
                assert Counter(map(len, cells_of_workers(view, cells))) == {1: 6}
        cluster.run_until_idle()
        words = Counter(word for (line,) in LINES for word in line.split())
        assert cluster.state("count", "one") == words
        assert set(feed.acked) == feed.fed_ids and not feed.failed
        assert cluster.counts("count", "one").executed >= words.total()
        assert sorted(cluster.data_plane.stores_of(topology_id)) == sorted(STORES[:cells])
        cluster.kill("one", 0)
        assert cluster.data_plane.stores_of(topology_id) == []
        assert not any(data.store.holds_data() for data in cluster.data_plane.all())
        assert topology_id not in cluster.storm_state.known_ids()


@pytest.mark.parametrize("inherits", [True, False])
def test_a_hot_deploy_stays_in_its_stores_with_what_was_under_way(inherits: bool) -> None:
    from sparkstorm.data_plane.user_code.topology_code import pack_topology

    feed = FeederSpout(["line"])
    conf = {"topology.cells": 2, "topology.workers": 4}
    with LocalCluster(supervisors=2, slots=4, seed=3, stores=STORES[:2]) as cluster:
        old = cluster.submit(word_count(feed, 2, 2, 2), conf, "one")
        for line in LINES[:8]:
            feed.feed(line)
        cluster.advance(ms=3)
        topology = word_count(feed, 2, 2 if inherits else 3, 2)
        request = cluster.service.update_request("one", topology, conf, pack_topology(topology))
        new = cluster.service.carry_out(request)
        cluster.advance(10)
        base = cluster.storm_state.read_base(new)
        assert new != old and base is not None and base.cells == STORES[:2]
        assert cluster.data_plane.stores_of(old) == []
        for line in LINES[8:]:
            feed.feed(line)
        cluster.run_until_idle()
        words = Counter(word for (line,) in LINES for word in line.split())
        if inherits:
            assert cluster.state("count", "one") == words
            assert set(feed.acked) == feed.fed_ids
        else:
            assert cluster.state("count", "one").keys() == words.keys()


def test_reports_add_up_over_the_stores(tmp_path: Path) -> None:
    from sparkstorm.control_plane.insight.sampler import Sampler

    feed = FeederSpout(["line"])
    conf = {"topology.cells": 2, "topology.workers": 2}
    with LocalCluster(stores=STORES[:2]) as cluster:
        topology_id = cluster.submit(word_count(feed, 2, 2, 2), conf, name="one")
        sampler = Sampler(cluster.source())
        sampler.step()
        for line in LINES:
            feed.feed(line)
        cluster.run_until_idle()
        cluster.advance(2)
        sampler.step()
        edges = {
            (edge.sender, edge.receiver): (edge.sent, edge.consumed, edge.fault)
            for edge in sampler.topology(topology_id).edges.values()
        }
        rows = sum(len(line.split()) for (line,) in LINES)
        assert edges["lines", "split"] == (len(LINES), len(LINES), "")
        assert edges["split", "count"] == (rows, rows, "")
        reader = cluster.topology("one").reader()
        assert not any(reader.backlog().values()), "what was read is subtracted in both stores"
        cluster.savepoint(tmp_path / "saved", "one")
        before = cluster.state("count", "one")
        cluster.kill("one", 0)
        stores = {"topology.redis.store": "far,near"}
        cluster.submit(
            word_count(feed, 2, 2, 2), {**conf, **stores}, "two", from_checkpoint=tmp_path / "saved"
        )
        cluster.run_until_idle()
        assert cluster.state("count", "two") == before
        base = cluster.storm_state.read_base(cluster.topology("two").id)
        assert base is not None and base.cells == ("far", "near")


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"topology.cells": 4}, "every host knows and reaches 3 of the cluster's 3"),
        (
            {"topology.cells": 3, "topology.workers": 2},
            r"set topology\.workers to 3 or more, not 2",
        ),
        ({"topology.cells": 2, "topology.redis.store": "near"}, "name 2 stores with commas"),
        ({"topology.cells": 2, "topology.redis.store": "near,near"}, "name 2 stores with commas"),
        ({"topology.cells": 2, "topology.redis.store": "near,moon"}, "names the store 'moon'"),
    ],
)
def test_a_submission_that_cannot_be_cut_is_refused_in_a_sentence(
    conf: dict[str, Any], words: str
) -> None:
    with (
        LocalCluster(stores=STORES) as cluster,
        pytest.raises(SparkStormError, match=words),
    ):
        cluster.submit(word_count(FeederSpout(["line"])), {"topology.workers": 4, **conf}, "one")


def test_what_would_move_tasks_between_cells_is_refused_in_a_sentence() -> None:
    from sparkstorm.data_plane.user_code.topology_code import pack_topology

    topology = word_count(FeederSpout(["line"]), 2, 2, 4)
    conf = {"topology.cells": 2, "topology.workers": 3}
    with LocalCluster(stores=STORES[:2]) as cluster:
        cluster.submit(topology, conf, "one")
        with pytest.raises(SparkStormError, match=r"set topology\.workers to 2 or more, not 1"):
            cluster.rebalance("one", workers=1)
        with pytest.raises(SparkStormError, match=r"the 4 tasks of 'count' .* 2 executors or more"):
            cluster.rebalance("one", executors={"count": 1})
        for cells, workers, words in ((1, 3, "lies in 2 and stays"), (2, 1, "to 2 or more, not 1")):
            new = {**conf, "topology.cells": cells, "topology.workers": workers}
            request = cluster.service.update_request("one", topology, new, pack_topology(topology))
            with pytest.raises(SparkStormError, match=words):
                cluster.service.carry_out(request)
        new = {**conf, "topology.cells": 1, "topology.upgrade.worker.num": 1}
        with pytest.raises(SparkStormError, match="lies in 2 and stays there"):
            cluster.upgrade(topology, new, "one")
        cluster.run_until_idle()
