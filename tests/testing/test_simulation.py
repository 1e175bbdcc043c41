"""The schedule of a simulation, clocks that run ahead, and frames that arrive late."""

from __future__ import annotations

import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.clock import SimClock
from sparkstorm.common.model.roots import split
from sparkstorm.data_plane.transport.base import Commit
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.testing import LocalCluster, Simulation, SlowBolt
from sparkstorm.testing.components import FeederSpout
from sparkstorm.testing.invariants import Invariants
from sparkstorm.testing.sim_transport import Arrivals, CommitFault, FaultyTransport, SimTransport
from sparkstorm.testing.simulation import START_MS, WorkerClock, spend
from tests.sim.topologies import word_count


class Actor:
    """Steps every so many milliseconds, or when woken."""

    def __init__(self, name: str, every_ms: int | None, diary: list[tuple[int, str]]) -> None:
        self.name, self.every_ms, self.diary = name, every_ms, diary
        self.woken = False

    def step(self, now_ms: int) -> int | None:
        self.woken = False
        self.diary.append((now_ms - START_MS, self.name))
        return None if self.every_ms is None else now_ms + self.every_ms

    def is_woken(self) -> bool:
        return self.woken

    def wait_for_threads(self) -> bool:
        return False


def test_time_leaps_to_what_is_due_and_ends_where_it_was_told_to() -> None:
    diary: list[tuple[int, str]] = []
    simulation = Simulation()
    simulation.add(Actor("a", 300, diary))
    simulation.add(Actor("b", None, diary))
    simulation.advance(1000)
    result = [entry for entry in diary if entry[1] == "a"]
    assert result == [(0, "a"), (300, "a"), (600, "a"), (900, "a")]
    assert [entry for entry in diary if entry[1] == "b"] == [(0, "b")]
    assert simulation.clock.now_ms() - START_MS == 1000
    assert simulation.steps == 5


def test_a_woken_actor_is_stepped_without_being_due() -> None:
    diary: list[tuple[int, str]] = []
    simulation, idle = Simulation(), Actor("idle", None, diary)
    simulation.add(idle)
    simulation.advance(10)
    idle.woken = True
    simulation.advance(10)
    simulation.wake(idle)
    simulation.advance(10)
    assert diary == [(0, "idle"), (10, "idle"), (20, "idle")]


def test_rest_takes_no_wake_up_away() -> None:
    diary: list[tuple[int, str]] = []
    simulation = Simulation()
    actors = [Actor(name, 100, diary) for name in "ab"]
    for actor in actors:
        simulation.add(actor)
    simulation.advance(10)
    simulation.wake(actors[1])
    for actor in actors:
        simulation.rest(actor)
    simulation.advance(50)
    assert sorted(diary) == [(0, "a"), (0, "b"), (10, "b")]


def test_the_order_comes_from_the_seed() -> None:
    def order(seed: int) -> list[tuple[int, str]]:
        diary: list[tuple[int, str]] = []
        simulation = Simulation(seed)
        for name in "abcdef":
            simulation.add(Actor(name, 10, diary))
        simulation.advance(50)
        return diary

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)) == sorted(order(2))


def test_an_actor_that_has_gone_is_not_stepped_even_in_the_same_round() -> None:
    diary: list[tuple[int, str]] = []
    simulation = Simulation()
    actors = [Actor(name, 10, diary) for name in "ab"]
    for actor in actors:
        simulation.add(actor)

    def all_go() -> None:
        for actor in actors:
            simulation.discard(actor)

    simulation.watchers.append(all_go)
    simulation.advance(100)
    assert len(diary) == 1


def test_watchers_are_called_after_every_step() -> None:
    seen: list[int] = []
    simulation = Simulation()
    simulation.add(Actor("a", 10, []))
    simulation.watchers.append(lambda: seen.append(simulation.steps))
    simulation.advance(35)
    assert seen == [1, 2, 3, 4]


# -- clocks and arrivals


def test_a_busy_workers_clock_runs_ahead_and_is_caught_up_with() -> None:
    base = SimClock(100)
    clock = WorkerClock(base)
    with clock.running():
        spend(30)
        spend(20)
    assert (clock.now_ms(), clock.is_busy, base.now_ms()) == (150, True, 100)
    base.advance(60)
    assert (clock.now_ms(), clock.is_busy) == (160, False)
    with pytest.raises(ValueError, match="backwards"):
        clock.spend(-1)


def test_frames_of_a_busy_sender_arrive_when_its_clock_says_so_and_in_order() -> None:
    store, base = LocalStore(), SimClock(1000)
    arrivals, slow = Arrivals(store), WorkerClock(base)
    sender = SimTransport(store, slow, arrivals)
    receiver = SimTransport(store, WorkerClock(base), arrivals)
    sender.claim("s", {1: 1})
    receiver.claim("r", {2: 1})
    slow.spend(50)
    sender.commit(Commit("s", {1: 1}, 0, 1, frames=[(2, b"late", 4)]))
    slow.busy_until_ms = 0
    sender.commit(Commit("s", {1: 1}, 0, 2, frames=[(2, b"behind it", 9)]))
    assert receiver.poll({2: "0-0"}, 10) == []
    assert (arrivals.newest(2, 1049), arrivals.next_ms()) == (0, 1050)
    base.advance(50)
    assert [entry.data for entry in receiver.poll({2: "0-0"}, 10)] == [b"late", b"behind it"]
    assert arrivals.next_ms() is None


# -- faults and invariants


@pytest.mark.parametrize(("fault", "applied", "dies"), [
    (CommitFault.NONE, 1, False), (CommitFault.CRASH_BEFORE, 0, True), (CommitFault.CRASH_AFTER, 1, True),
    (CommitFault.LOST_ANSWER, 1, False), (CommitFault.NOT_SENT, 1, False), (CommitFault.SENT_TWICE, 1, False),
])  # fmt: skip
def test_each_fault_does_what_it_says(fault: CommitFault, applied: int, dies: bool) -> None:
    case = word_count(1)
    faults = [fault]
    with LocalCluster(
        make_transport=lambda w: FaultyTransport(
            w, lambda: faults.pop() if faults else CommitFault.NONE
        )
    ) as c:
        c.submit(case.topology, {"topology.workers": 1})
        (slot,) = c.topology().workers
        at_death: list[int] = []

        def look() -> None:
            if slot.deaths and not at_death:
                at_death.append(sum(c.topology().store.seq_by_owner.values()))

        c.simulation.watchers.append(look)
        c.run_until_idle()
        assert at_death == ([applied] if dies else [])
        case.check(c)


def test_the_invariants_see_a_root_in_two_places_and_a_lost_message() -> None:
    case = word_count(6)
    with LocalCluster() as cluster:
        cluster.submit(case.topology, {"topology.workers": 2, "topology.epoch.rows": 1})
        invariants = Invariants(cluster)
        while not any(
            len(s.pending)
            for w in cluster.topology().workers
            if w.worker
            for s in w.worker.task_set.spouts.values()
        ):
            cluster.simulation.run_round()
            cluster.simulation.clock.advance(1)
        invariants()
        spouts = [
            s
            for w in cluster.topology().workers
            if w.worker
            for s in w.worker.task_set.spouts.values()
        ]
        holder = next(s for s in spouts if len(s.pending))
        other = next(s for s in spouts if s is not holder)
        root, message_id, born_ms = holder.pending.snapshot()[0][0]
        other.pending.add(root, message_id, born_ms)
        invariants.forget()
        with pytest.raises(AssertionError, match=f"root {split(root)} is at tasks"):
            invariants()
        other.pending.settle([root], (), born_ms)
        other.pending.confirm(other.pending.take_callbacks())
        holder.pending.settle([root], (), born_ms)
        holder.pending.confirm(holder.pending.take_callbacks())
        invariants.forget()
        with pytest.raises(AssertionError, match="emitted 1, but 0 settled and 0 open"):
            invariants()


def test_a_commit_of_a_former_owner_is_seen_even_if_the_store_takes_it() -> None:
    store = LocalStore()
    arrivals = Arrivals(store)
    old, new = (SimTransport(store, WorkerClock(SimClock(0)), arrivals) for _ in range(2))
    old.claim("a", {1: 1})
    new.claim("b", {1: 2})
    store.task(1).fence = 1  # a store that has lost its fences
    with pytest.raises(AssertionError, match="a has committed with token 1 after token 2"):
        old.commit(Commit("a", {1: 1}, 0, 1, parked=[b"x"]))


def test_a_slow_bolt_delays_its_own_frames() -> None:
    spout = FeederSpout()
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("slow", SlowBolt(500)).shuffle_grouping("spout")
    with LocalCluster(supervisors=3, slots=1) as cluster:
        cluster.submit(builder.build(), {"topology.workers": 3})
        spout.feed([1])
        cluster.advance(ms=400)
        assert not spout.acked
        cluster.advance(ms=200)
        assert spout.acked == [0]
