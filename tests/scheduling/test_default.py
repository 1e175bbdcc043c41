"""Storm's even and default schedulers."""

from typing import Any

import pytest

from sparkstorm.control_plane.scheduling.default import DefaultScheduler, bad_slots
from sparkstorm.control_plane.scheduling.even import EvenScheduler, reassignment
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.scheduling.clusters import (
    cluster,
    places,
    singles,
    slot,
    supervisor,
    topology,
    workers_by_node,
)


def default(view: ClusterView, scope: str = "") -> None:
    scheduler = DefaultScheduler()
    scheduler.prepare({"default.scheduler.scope": scope} if scope else {})
    scheduler.schedule(view.topologies, view)


def test_no_workers_wanted_means_no_bad_slots() -> None:
    """S4.15."""
    view = cluster([supervisor("a", 1)], [topology("t", singles(2), 1)], {"t": {(1, 1): "a:1"}})
    assert bad_slots(view.placement("t"), 2, 0) == []


def test_a_worker_is_kept_while_its_size_has_a_place_in_the_distribution() -> None:
    """S4.17."""
    placed = {(1, 1): "a:1", (2, 2): "a:1", (3, 3): "a:2", (4, 4): "a:2", (5, 5): "a:3"}
    view = cluster([supervisor("a", 1, 2, 3)], [topology("t", singles(6), 3)], {"t": placed})
    assert bad_slots(view.placement("t"), 6, 3) == [slot("a:3")]
    assert bad_slots(view.placement("t"), 5, 3) == []
    assert bad_slots(view.placement("t"), 3, 3) == [slot("a:1"), slot("a:2")]


def test_seven_executors_on_three_workers_leave_one_place_for_three() -> None:
    """S4.18: {2: 2, 3: 1}: a slot with one executor, or a second slot with three, is bad."""
    placed = dict(
        zip([(at, at) for at in range(1, 8)], ["a:1"] * 3 + ["a:2"] * 3 + ["a:3"], strict=True)
    )
    view = cluster([supervisor("a", 1, 2, 3)], [topology("t", singles(7), 3)], {"t": placed})
    assert bad_slots(view.placement("t"), 7, 3) == [slot("a:2"), slot("a:3")]


def test_nothing_is_said_of_slots_unless_something_moved() -> None:
    """S4.29: pure code logs nothing; the status stays silent when all is placed and speaks when no
    slot is free.
    """
    view = cluster(
        [supervisor("a", 1)], [topology("t", singles(1), 1), topology("u", singles(1), 1)]
    )
    EvenScheduler().schedule(view.topologies, view)
    assert view.status == {"u": "No available slots for topology: u"}
    assert reassignment(view.topologies["t"], view) == []


@pytest.mark.parametrize("scheduler", [EvenScheduler, DefaultScheduler])
def test_fewer_workers_than_before_is_no_trap(scheduler: type) -> None:
    """The original raises here (a negative sub-list)."""
    placed = {(1, 1): "a:1", (2, 2): "a:2", (3, 3): "a:3"}
    view = cluster([supervisor("a", 1, 2, 3, 4)], [topology("t", singles(4), 2)], {"t": placed})
    scheduler().schedule(view.topologies, view)
    if scheduler is DefaultScheduler:
        assert len(view.placement("t").executors_by_slot) == 2
        assert view.placement("t").is_exact
    else:
        assert places(view, "t") == placed


# -- workers for supervisors without any (Storm 3) -------------------------------------------------

IDLE = "nimbus.even.rebalance.idle.supervisor.enabled"
MOST = "nimbus.even.rebalance.max.free.per.topology"
STABLE = "nimbus.even.rebalance.idle.supervisor.min.stable.rounds"


def returned() -> ClusterView:
    """Two topologies of four workers on two supervisors, and a third one that has just come."""
    placed = {
        "t": {(1, 1): "a:1", (2, 2): "a:2", (3, 3): "b:1", (4, 4): "b:2"},
        "u": {(1, 1): "a:3", (2, 2): "a:4", (3, 3): "b:3", (4, 4): "b:4"},
    }
    here = [supervisor(name, 1, 2, 3, 4) for name in "abc"]
    return cluster(here, [topology(name, singles(4), 4) for name in placed], placed)


@pytest.mark.parametrize("kind", [EvenScheduler, DefaultScheduler])
@pytest.mark.parametrize(
    ("conf", "moved"),
    [
        ({}, {}),
        # a third of four workers is one
        ({IDLE: True}, {"t": {(2, 2): "c:1"}, "u": {(2, 2): "c:2"}}),
        ({IDLE: True, STABLE: 1_201}, {}),  # periods of 3 s; it is up for an hour
        ({IDLE: True, STABLE: 1_200}, {"t": {(2, 2): "c:1"}, "u": {(2, 2): "c:2"}}),
    ],
)
def test_a_supervisor_that_has_returned_gets_a_share_of_each_topology_if_that_is_switched_on(
    kind: type[EvenScheduler] | type[DefaultScheduler],
    conf: dict[str, Any],
    moved: dict[str, dict[tuple[int, int], str]],
) -> None:
    before, view, scheduler = returned(), returned(), kind()
    scheduler.prepare(conf)
    scheduler.schedule(view.topologies, view)
    for name in ("t", "u"):
        assert places(view, name) == {**places(before, name), **moved.get(name, {})}


def test_a_topology_gives_no_more_than_the_key_says_and_never_its_last_worker_of_a_supervisor() -> (
    None
):
    placed = {(n, n): f"a:{n}" for n in range(1, 9)}
    here = [supervisor("a", *range(1, 9)), supervisor("b", 1, 2, 3, 4, 5, 6)]
    for most, moved in ((0, 4), (3, 3), (9, 4)):
        view = cluster(here, [topology("t", singles(8), 8)], {"t": placed})
        scheduler = EvenScheduler()
        scheduler.prepare({IDLE: True, MOST: most})
        scheduler.schedule(view.topologies, view)
        assert workers_by_node(view, "t") == {"a": 8 - moved, "b": moved}
    alone = {(1, 1): "a:1", (2, 2): "b:1"}
    here = [supervisor("a", 1), supervisor("b", 1), supervisor("c", 1)]
    view, scheduler = cluster(here, [topology("t", singles(2), 3)], {"t": alone}), EvenScheduler()
    scheduler.prepare({IDLE: True})
    scheduler.schedule(view.topologies, view)
    assert places(view, "t") == alone
