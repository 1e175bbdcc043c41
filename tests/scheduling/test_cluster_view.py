"""ClusterView: topologies to schedule, free slots, and the methods that change placements."""

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.names import machine_of_node
from sparkstorm.control_plane.scheduling.default import DefaultScheduler, integer_divided
from sparkstorm.control_plane.scheduling.free_slots import FreeSlots
from sparkstorm.control_plane.scheduling.per_topology import chosen_scheduler
from sparkstorm.control_plane.scheduling.records import Conf, Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.scheduling.clusters import (
    cluster,
    executors,
    places,
    singles,
    slot,
    supervisor,
    topology,
)


def test_topologies_hold_static_facts_of_those_that_need_nothing_too() -> None:
    """S4.2."""
    done = topology("done", singles(1), 1)
    new = topology("new", singles(2), 1)
    view = cluster([supervisor("a", 1, 2)], [new, done], {"done": {(1, 1): "a:1"}})
    assert list(view.topologies) == ["done", "new"]
    assert [each.id for each in view.topologies_to_schedule()] == ["new"]
    assert view.topologies["done"].executors == singles(1)


def test_the_cluster_holds_what_runs() -> None:
    """S4.3."""
    view = cluster(
        [supervisor("a", 1, 2), supervisor("b", 1)],
        [topology("t", singles(1), 1)],
        {"t": {(1, 1): "b:1"}},
    )
    assert list(view.supervisors) == ["a", "b"]
    assert view.available_slots() == [slot("a:1"), slot("a:2")]
    assert view.assignments() == {"t": {ExecutorId(1, 1): slot("b:1")}}


def test_results_are_read_and_set_by_topology_id() -> None:
    """S4.4."""
    view = cluster([supervisor("a", 1, 2)], [topology("t", singles(2), 1)], {"t": {(1, 1): "a:1"}})
    view.set_assignment("t", {ExecutorId(1, 1): slot("a:2"), ExecutorId(2, 2): slot("a:2")})
    assert view.assignments()["t"] == {ExecutorId(1, 1): slot("a:2"), ExecutorId(2, 2): slot("a:2")}
    assert view.available_slots() == [slot("a:1")]


@pytest.mark.parametrize(
    ("workers", "placed", "needed"),
    [
        (2, {(1, 1): "a:1", (2, 2): "a:2"}, False),
        (3, {(1, 1): "a:1", (2, 2): "a:2"}, True),  # fewer workers than wanted
        (1, {(1, 1): "a:1"}, True),  # an executor without a slot
        (1, {(1, 1): "a:1", (2, 2): "a:1", (9, 9): "a:1"}, False),  # one too many is no reason
    ],
)
def test_scheduling_is_needed_for_missing_workers_or_executors(
    workers: int, placed: dict[tuple[int, int], str], needed: bool
) -> None:
    """S4.6."""
    asked = topology("t", singles(2), workers)
    view = cluster([supervisor("a", 1, 2, 3)], [asked], {"t": placed})
    assert view.needs_scheduling(asked) is needed


def test_both_causes_of_scheduling_are_seen() -> None:
    """S4.7: a slot died or slots were short (fewer workers), or the topology is new or executors
    died.
    """
    short = topology("short", singles(2), 2)
    fresh = topology("fresh", singles(1), 1)
    wounded = topology("wounded", singles(2), 1)
    fine = topology("fine", singles(1), 1)
    placed = {
        "short": {(1, 1): "a:1", (2, 2): "a:1"},
        "wounded": {(1, 1): "a:2"},
        "fine": {(1, 1): "a:3"},
    }
    view = cluster([supervisor("a", 1, 2, 3, 4)], [short, fresh, wounded, fine], placed)
    assert [each.id for each in view.topologies_to_schedule()] == ["fresh", "short", "wounded"]


def test_available_slots_are_ports_minus_used_ones() -> None:
    """S4.9."""
    view = cluster(
        [supervisor("a", 1, 2, 3), supervisor("b", 1)],
        [topology("t", singles(2), 2)],
        {"t": {(1, 1): "a:2", (2, 2): "gone:7"}},
        blacklisted_hosts=["host-b"],
    )
    assert view.available_slots() == [slot("a:1"), slot("a:3")]


def test_executors_are_start_and_end_task() -> None:
    """S4.10."""
    result = topology("t", executors((5, 7), (1, 3), (4, 4)), 1).executors
    assert result == executors((1, 3), (4, 4), (5, 7))


def test_alive_executors_are_those_that_were_handed_in() -> None:
    """S4.11."""
    view = cluster(
        [supervisor("a", 1, 2)],
        [topology("t", singles(3), 2)],
        {"t": {(1, 1): "a:1", (2, 2): "a:2"}},
    )
    placement = view.placement("t")
    result = placement.executors_by_slot
    assert result == {slot("a:1"): [ExecutorId(1, 1)], slot("a:2"): [ExecutorId(2, 2)]}
    assert placement.missing() == [ExecutorId(3, 3)]


def test_a_slot_can_be_reassigned_when_its_node_lives_is_trusted_and_offers_the_port() -> None:
    """S4.12: live executors may sit on slots that are not reusable."""
    view = cluster([supervisor("a", 1), supervisor("b", 1)], [], blacklisted_hosts=["host-b"])
    result = [view.can_reassign(slot(each)) for each in ("a:1", "a:2", "b:1", "gone:1")]
    assert result == [True, False, False, False]


def test_assigning_puts_executors_on_a_slot_and_freeing_takes_them_off() -> None:
    """S4.19 and S4.30."""
    view = cluster([supervisor("a", 1, 2)], [topology("t", singles(2), 2)])
    view.assign(slot("a:1"), "t", singles(2))
    assert places(view, "t") == {(1, 1): "a:1", (2, 2): "a:1"}
    view.free_slot(slot("a:1"))
    assert places(view, "t") == {}
    assert view.available_slots() == [slot("a:1"), slot("a:2")]


def test_a_slot_on_a_dead_port_does_not_become_free() -> None:
    view = cluster([supervisor("a", 1)], [topology("t", singles(1), 1)], {"t": {(1, 1): "a:9"}})
    view.free_slot(slot("a:9"))
    assert view.available_slots() == [slot("a:1")]


def test_assigning_to_a_used_slot_or_an_executor_twice_is_an_error() -> None:
    """S4.31."""
    view = cluster(
        [supervisor("a", 1, 2)], [topology("t", singles(2), 2), topology("u", singles(1), 1)]
    )
    view.assign(slot("a:1"), "t", singles(1))
    with pytest.raises(FailedAssignTopologyError, match="a:1 is already occupied by t"):
        view.assign(slot("a:1"), "u", singles(1))
    with pytest.raises(FailedAssignTopologyError, match="executor 1-1 is on slot a:1 already"):
        view.assign(slot("a:2"), "t", singles(2))
    with pytest.raises(FailedAssignTopologyError, match="'nobody'"):
        view.assign(slot("a:2"), "nobody", singles(1))
    assert view.available_slots() == [slot("a:2")]


def test_a_slot_claimed_twice_stays_with_the_first_topology_by_id() -> None:
    view = cluster(
        [supervisor("a", 1)],
        [topology("u", singles(1), 1), topology("t", singles(1), 1)],
        {"u": {(1, 1): "a:1"}, "t": {(1, 1): "a:1"}},
    )
    assert (places(view, "t"), places(view, "u")) == ({(1, 1): "a:1"}, {})


def test_blacklisting_and_trusting_again_moves_free_slots_along() -> None:
    view = cluster([supervisor("a", 1, 2)], [topology("t", singles(1), 1)], {"t": {(1, 1): "a:1"}})
    view.set_blacklisted_hosts(["host-a"])
    assert view.available_slots() == []
    view.set_blacklisted_hosts([])
    assert view.available_slots() == [slot("a:2")]


def test_free_slots_come_one_node_after_the_other_the_roomiest_first() -> None:
    """S4.25: ports ascending, nodes by free ports and id; n3 is the roomiest here."""
    free = FreeSlots()
    for node, ports in {"n1": (1, 2), "n2": (1, 2, 3), "n3": (3, 1, 2, 4)}.items():
        free.set_ports(node, ports)
    wanted = ["n3:1", "n2:1", "n1:1", "n3:2", "n2:2", "n1:2", "n3:3", "n2:3", "n3:4"]
    assert [str(each) for each in free.interleaved(99)] == wanted
    assert [str(each) for each in free.interleaved(4)] == wanted[:4]
    free.take(WorkerSlot("n3", 1))
    free.take(WorkerSlot("n3", 4))
    assert [str(each) for each in free.interleaved(3)] == ["n2:1", "n1:1", "n3:2"]
    assert free.count == 7


def test_nodes_of_two_drivers_on_one_machine_are_one_in_turn() -> None:
    free = FreeSlots()
    for machine in ("w1", "w2", "w3"):
        free.set_ports(machine, (1, 2))
        free.set_ports(f"{machine}@2", (1, 2))
    result = [str(each) for each in free.interleaved(6)]
    assert result == ["w1:1", "w2:1", "w3:1", "w1:2", "w2:2", "w3:2"]
    free.set_ports("w1", ())  # the first driver has lost its slots there
    assert [str(each) for each in free.interleaved(3)] == ["w2:1", "w3:1", "w1@2:1"]


NODES = st.sampled_from(["w1", "w1@2", "w2", "w2@2", "n@x"])


@given(st.lists(st.tuples(NODES, st.integers(1, 4), st.booleans()), max_size=40))
def test_free_slots_are_those_given_and_not_taken_one_of_each_machine_before_any_second(
    changes: list[tuple[str, int, bool]],
) -> None:
    free, wanted = FreeSlots(), set[WorkerSlot]()
    for node, port, is_given in changes:
        slot = WorkerSlot(node, port)
        (free.give if is_given else free.take)(slot)
        (wanted.add if is_given else wanted.discard)(slot)
    found = free.interleaved(99)
    assert set(found) == wanted and free.count == len(found) == len(wanted)
    machines = [machine_of_node(slot.node) for slot in found]
    assert len(set(machines[: len(set(machines))])) == len(set(machines))
    assert free.copy().interleaved(99) == found


def test_an_even_division_differs_by_at_most_one() -> None:
    """S4.16, and the example of S4.18."""
    assert integer_divided(7, 3) == {2: 2, 3: 1}
    assert integer_divided(6, 3) == {2: 3}
    assert integer_divided(2, 3) == {0: 1, 1: 2}


class Noting(DefaultScheduler):
    """A user's own scheduler: notes what it is called with, then decides as the default one."""

    calls: ClassVar[list[object]] = []

    def prepare(self, conf: Conf) -> None:
        self.calls.append(("prepare", conf["app.colour"]))

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        self.calls.append(("schedule", list(topologies)))
        super().schedule(topologies, cluster)


def test_a_scheduler_is_prepared_once_and_then_asked_in_every_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4.1, by the one way in which Nimbus makes schedulers and asks them."""
    monkeypatch.setattr(Noting, "calls", [])
    path = f"{__name__}.Noting"
    mine = chosen_scheduler(
        {"storm.scheduler": path, "storm.scheduler.allowed": [path], "app.colour": "red"}
    )
    view = cluster([supervisor("a", 1)], [topology("t", singles(1), 1)])
    mine.schedule(view.topologies, view)
    mine.schedule(view.topologies, view)
    assert Noting.calls == [("prepare", "red"), ("schedule", ["t"]), ("schedule", ["t"])]
    assert len(view.assignments()["t"]) == 1
