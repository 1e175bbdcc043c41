"""Replay of dead letters over a simulated cluster: each input is given to its task once more, and
counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from sparkstorm.api import BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.api.windows import Count, Duration, TimedBolt, Window, WindowedBolt
from sparkstorm.cli.topologies import counts_by_component
from sparkstorm.client.dead_letters import Replayed, StoredLetters
from sparkstorm.common.errors import NotAliveError, ReadOnlyConnectionError, StoreInconsistentError
from sparkstorm.common.model.assignment import TaskInfo
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.windowing.timers import Timer
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.data_plane.transport.base import Commit
from sparkstorm.data_plane.transport.local import LocalTransport
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.testing import FeederSpout, LocalCluster, Shared
from sparkstorm.testing.local_topology import LocalTopology

FEW = {"topology.max.retries": 0, "topology.acker.executors": 1}


class CountOrRaise(StatefulBolt):
    """Counts numbers; raises on odd ones while it is broken."""

    outputs = ("number",)

    def __init__(self) -> None:
        self.is_broken: Shared[bool] = Shared(True)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if self.is_broken.value and tup[0] % 2:
            raise ValueError(f"odd {tup[0]}")
        self.state.add(tup[0], 1)
        collector.emit((tup[0],))


class CountAll(StatefulBolt):
    """Counts numbers."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup[0], 1)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        yield made


WORKERS = pytest.mark.parametrize("workers", [1, 3])


def parked(cluster: LocalCluster, workers: int = 1) -> tuple[LocalTopology, CountOrRaise]:
    """A topology that has parked the odd ones of ten numbers."""
    spout, bolt, builder = FeederSpout(["number"]), CountOrRaise(), TopologyBuilder()
    builder.set_spout("numbers", spout)
    builder.set_bolt("count", bolt, parallelism=2).fields_grouping("numbers", "number")
    builder.set_bolt("all", CountAll(), parallelism=2).fields_grouping("count", "number")
    cluster.submit(builder.build(), {**FEW, "topology.workers": workers})
    for number in range(10):
        spout.feed([number])
    cluster.run_until_idle()
    assert cluster.state("count") == dict.fromkeys(range(0, 10, 2), 1)
    return cluster.topology(), bolt


def letters_of(
    topology: LocalTopology,
    status: TopologyStatus | None = TopologyStatus.ACTIVE,
    tasks: dict[int, TaskInfo] | None = None,
) -> StoredLetters:
    known = {
        task: TaskInfo(component, "bolt") for task, component in topology.component_by_task.items()
    }
    store, found = LocalReader(topology.store), known if tasks is None else tasks
    return StoredLetters(topology.id, store, lambda: found, lambda: status, lambda: None)


@WORKERS
def test_replayed_letters_are_executed_once_and_leave_the_dead_letters(
    cluster: LocalCluster, workers: int
) -> None:
    topology, bolt = parked(cluster, workers)
    letters = letters_of(topology)
    ids = list(letters.read())
    assert len(ids) == 5
    bolt.is_broken.value = False
    assert letters.replay(ids[:2]).done == tuple(ids[:2])
    cluster.run_until_idle()
    assert list(letters.read()) == ids[2:]
    again = letters.replay(ids)
    assert (again.done, again.missing) == (tuple(ids[2:]), tuple(ids[:2]))
    cluster.run_until_idle()
    assert letters.read() == {}
    assert cluster.state("count") == cluster.state("all") == dict.fromkeys(range(10), 1)


@WORKERS
def test_a_replayed_letter_is_parked_no_more_until_it_fails_again(
    cluster: LocalCluster, workers: int
) -> None:
    topology, bolt = parked(cluster, workers)
    letters = letters_of(topology)

    def counted() -> tuple[int, int]:
        sampler = Sampler(cluster.source())
        sampler.step()
        return counts_by_component(sampler.topology(topology.id))["count"][
            "parked"
        ], letters.count()

    assert counted() == (5, 5)
    letters.replay(list(letters.read())[:2])
    cluster.run_until_idle()
    assert counted() == (5, 5), "they were given up again"
    bolt.is_broken.value = False
    letters.replay(list(letters.read())[:2])
    cluster.run_until_idle()
    assert counted() == (3, 3)


def test_many_letters_are_put_back_in_few_steps(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology, _ = parked(cluster)
    steps: list[int] = []
    store = LocalReader(topology.store)
    put_back = store.put_back

    def counted(letters: Sequence[tuple[str, int, bytes]]) -> list[str]:
        steps.append(len(letters))
        return put_back(letters)

    monkeypatch.setattr(store, "put_back", counted)
    known = {
        task: TaskInfo(component, "bolt") for task, component in topology.component_by_task.items()
    }
    letters = StoredLetters(
        topology.id, store, lambda: known, lambda: TopologyStatus.ACTIVE, lambda: None
    )
    ids = list(letters.read())
    assert letters.replay([*ids, ids[0], "9-9"]) == Replayed(tuple(ids), (ids[0], "9-9"))
    assert steps == [6]


@WORKERS
def test_a_replayed_letter_that_fails_again_is_parked_again(
    cluster: LocalCluster, workers: int
) -> None:
    topology, _ = parked(cluster, workers)
    letters = letters_of(topology)
    before = letters.read()
    letters.replay(before)
    cluster.run_until_idle()
    after = letters.read()
    result = sorted(letter.values for letter in after.values())
    assert result == sorted(letter.values for letter in before.values())
    assert not after.keys() & before.keys()
    assert cluster.state("all") == dict.fromkeys(range(0, 10, 2), 1)


@WORKERS
def test_a_replay_is_exact_when_its_worker_dies_over_it(
    cluster: LocalCluster, workers: int
) -> None:
    topology, bolt = parked(cluster, workers)
    bolt.is_broken.value = False
    letters_of(topology).replay(letters_of(topology).read())
    cluster.kill_worker("count")
    cluster.run_until_idle()
    assert cluster.state("count") == cluster.state("all") == dict.fromkeys(range(10), 1)


@pytest.mark.parametrize("status", [None, TopologyStatus.KILLED])
def test_a_topology_that_ends_takes_no_replay(
    cluster: LocalCluster, status: TopologyStatus | None
) -> None:
    topology, _ = parked(cluster)
    letters = letters_of(topology, status)
    with pytest.raises(NotAliveError, match="does not run any more"):
        letters.replay(letters.read())
    assert len(letters.read()) == 5


def test_a_letter_of_another_components_task_is_refused_by_name(cluster: LocalCluster) -> None:
    topology, _ = parked(cluster)
    letters = letters_of(topology, tasks={})
    sentence = r"task . of component 'count', which test-1-.* does not have"
    with pytest.raises(StoreInconsistentError, match=sentence):
        letters.replay(letters.read())
    assert len(letters.read()) == 5


def test_a_letter_that_is_none_can_be_dropped_only(cluster: LocalCluster) -> None:
    topology, _ = parked(cluster)
    owner = LocalTransport(topology.store)
    token = 1 << 40
    claim = owner.claim("o", {99: token})
    owner.commit(Commit("o", {99: token}, claim.generation, claim.seq + 1, parked=[b"\xc1"]))
    letters = letters_of(topology)
    (bad,) = [id for id, letter, _ in letters if letter is None]
    assert bad not in letters.read()
    with pytest.raises(StoreInconsistentError, match="can only be dropped"):
        letters.replay([bad])
    assert letters.drop([bad, bad]) == 1
    assert (letters.drop(), list(letters)) == (5, [])


def test_a_reader_without_rights_changes_nothing(cluster: LocalCluster) -> None:
    def refuse() -> None:
        raise ReadOnlyConnectionError("read only")

    topology, _ = parked(cluster)
    letters = StoredLetters(
        topology.id, LocalReader(topology.store), dict, lambda: TopologyStatus.ACTIVE, refuse
    )
    with pytest.raises(ReadOnlyConnectionError):
        letters.drop()
    with pytest.raises(ReadOnlyConnectionError):
        letters.replay(letters.read())
    assert len(letters.read()) == 5


class Summing(WindowedBolt):
    """Emits the sum of each window; raises on windows and timers while it is broken."""

    outputs = ("sum",)

    def __init__(self) -> None:
        self.is_broken: Shared[bool] = Shared(True)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        if self.is_broken.value:
            raise ValueError("not yet")
        collector.emit((sum(tup["n"] for tup in window),))


class Alarm(TimedBolt):
    """Sets a timer per tuple; raises on timers while it is broken."""

    outputs = ("sum",)

    def __init__(self) -> None:
        self.is_broken: Shared[bool] = Shared(True)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.timers.set_event_timer((tup["n"], "n"), tup["ts"])

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        if self.is_broken.value:
            raise ValueError("not yet")
        collector.emit((timer.name[0],))


TIMED: dict[str, Callable[[], Any]] = {
    "windows by count": lambda: Summing().with_tumbling_window(Count(2)),
    "windows by time": lambda: (
        Summing().with_tumbling_window(Duration(20)).with_timestamp_field("ts")
    ),
    "timers": lambda: Alarm().with_timestamp_field("ts"),
}
SUMS = {"windows by count": [1, 5], "windows by time": [1, 5], "timers": [0, 1, 2, 3]}


def parked_in_time(cluster: LocalCluster, bolt: Any, **conf: Any) -> LocalTopology:
    """A topology that has parked all windows, or timers, of four numbers."""
    spout, builder = FeederSpout(["n", "ts"]), TopologyBuilder()
    builder.set_spout("numbers", spout)
    builder.set_bolt("timed", bolt).global_grouping("numbers")
    builder.set_bolt("all", CountAll()).global_grouping("timed")
    cluster.submit(builder.build(), {**FEW, "topology.max.retries": 1, **conf})
    for n in range(4):
        spout.feed([n, n * 10])
    spout.finish()
    cluster.run_until_idle()
    return cluster.topology()


def content(letter: DeadLetter) -> tuple[Any, ...]:
    window = {
        name: value for name, value in (letter.window or {}).items() if name != "watermark_ms"
    }
    return (
        letter.source_component,
        letter.source_task,
        letter.stream,
        letter.fields,
        letter.values,
        window,
    )


@pytest.mark.parametrize("kind", TIMED)
@pytest.mark.parametrize("death", [False, True])
def test_replayed_windows_and_timers_fire_once(
    cluster: LocalCluster, kind: str, death: bool
) -> None:
    bolt = TIMED[kind]()
    letters = letters_of(parked_in_time(cluster, bolt))
    before = letters.read()
    assert len(before) == len(SUMS[kind])
    letters.replay(before)
    cluster.run_until_idle()
    again = letters.read()  # still broken: parked as they were
    assert list(map(content, again.values())) == list(map(content, before.values()))
    assert not again.keys() & before.keys()
    bolt.is_broken.value = False
    letters.replay(again)
    if death:
        cluster.kill_worker("timed")
    cluster.run_until_idle()
    assert (cluster.state("all"), letters.read()) == (dict.fromkeys(SUMS[kind], 1), {})


def test_a_replayed_window_is_tried_again_and_survives_its_worker(cluster: LocalCluster) -> None:
    bolt = TIMED["windows by count"]()
    letters = letters_of(parked_in_time(cluster, bolt, **{"topology.max.retries": 3}))
    letters.replay(letters.read())
    cluster.advance(ms=1)
    assert cluster.counts("timed").retried > 6 and letters.read() == {}
    cluster.kill_worker("timed")
    bolt.is_broken.value = False
    cluster.run_until_idle()
    assert (cluster.state("all"), letters.read()) == (dict.fromkeys([1, 5], 1), {})


def test_a_window_whose_content_was_too_large_for_its_letter_is_refused(
    cluster: LocalCluster,
) -> None:
    class Large(Summing):
        def execute(self, window: Window, collector: BasicOutputCollector) -> None:
            raise ValueError("not yet")

    spout, builder = FeederSpout(["n"]), TopologyBuilder()
    builder.set_spout("numbers", spout)
    builder.set_bolt("timed", Large().with_tumbling_window(Count(2))).global_grouping("numbers")
    cluster.submit(builder.build(), FEW)
    for _ in range(2):
        spout.feed(["x" * 200_000])
    cluster.run_until_idle()
    letters = letters_of(cluster.topology())
    sentence = "the content of its window was too large for it; it can only be dropped"
    with pytest.raises(StoreInconsistentError, match=sentence):
        letters.replay(letters.read())
    assert len(letters.read()) == 1
