"""Rows of `sparkstorm hosts`."""

from dataclasses import replace
from typing import Any

from sparkstorm.cli.hosts import drain_text, host_row, mark_text
from sparkstorm.common.model.assignment import ExecutorId, SupervisorInfo, WorkerSlot
from sparkstorm.common.model.requests import HostMark, RebalancePlan
from sparkstorm.control_plane.insight.cluster_views import cluster_view
from sparkstorm.control_plane.insight.reading import StoreReading
from sparkstorm.control_plane.insight.records import HostView


def hosts(*infos: SupervisorInfo, **more: Any) -> list[HostView]:
    """Return the records of hosts from their supervisors' records."""
    return [*cluster_view(StoreReading(1_000, {}, infos, (), None, **more), {}, 1).hosts.values()]


def test_two_drivers_nodes_of_a_host_are_one_row_with_the_slots_of_both() -> None:
    first, second = hosts(
        SupervisorInfo("w2", "w2", 50, 9, (6700,), scheduler_meta={"rack": "r1"}),
        SupervisorInfo("w1@2", "w1", 70, 10, (6700, 6701)),
        SupervisorInfo("w1", "w1", 60, 30, (6700, 6701)),
    )
    assert host_row(first) == {
        "host": "w1",
        "rack": None,
        "slots": 4,
        "used": 0,
        "free": 4,
        "uptime_ms": 30,
        "beat_ms": 70,
        "health": "ok",
        "nodes": ["w1", "w1@2"],
    }
    row = host_row(second)
    assert row["host"] == "w2"
    assert row["rack"] == "r1"
    assert row["slots"] == 1
    assert row["used"] == 0
    assert row["free"] == 1


def test_the_health_of_a_host_is_all_that_is_against_it() -> None:
    infos = [
        SupervisorInfo(f"w{n}", f"w{n}", 0, 0, (6700,), store_problem="cut" if n == 2 else "")
        for n in range(1, 5)
    ]
    marks = {"w1": HostMark(True, 0, "ann"), "w2": HostMark(False, 0, "ann")}
    problems = {"blacklist": ("w1, w3: a port was missing there too often",)}
    found = hosts(*infos, host_marks=marks, problems=problems)
    result = [host_row(each)["health"] for each in found]
    assert result == ["drained, blacklisted", "excluded, no Redis", "blacklisted", "ok"]


def test_a_host_of_two_nodes_has_no_redis_when_both_have_none() -> None:
    cut = SupervisorInfo("w1", "w1", 0, 0, (6700,), store_problem="cut")
    well = SupervisorInfo("w1@2", "w1", 0, 0, (6700,))
    assert [host_row(each)["health"] for each in hosts(cut, well)] == ["ok"]


def test_a_host_that_does_not_reach_the_driver_of_one_of_its_nodes_says_so() -> None:
    cut = SupervisorInfo("w1", "w1", 0, 0, (6700,), driver="d1:1", driver_problem="no answer")
    well = SupervisorInfo("w1@2", "w1", 0, 0, (6700,), driver="d2:1")
    assert [host_row(each)["health"] for each in hosts(cut, well)] == ["no driver"]


def test_a_marked_host_is_named_with_who_when_why_and_the_workers_that_stay() -> None:
    def marked(mark: HostMark, used: int) -> str:
        (host,) = hosts(host_marks={"w1": mark})
        return mark_text(replace(host, slots_used=used), 61_000)

    drained = HostMark(True, 1_000, "ann@desk:7", "new disks")
    excluded = HostMark(False, 1_000, "ann@desk:7")
    assert marked(drained, 2) == (
        "w1 drained 1 min 0 s ago by ann@desk:7: new disks; 2 workers are still there, until slots elsewhere are free"
    )
    assert marked(drained, 0) == "w1 drained 1 min 0 s ago by ann@desk:7: new disks"
    assert marked(excluded, 2) == "w1 excluded 1 min 0 s ago by ann@desk:7"


def test_the_plan_of_a_drain_says_how_many_workers_move_and_stay() -> None:
    here, there = [WorkerSlot("w1", port) for port in (6700, 6701)], WorkerSlot("w2", 6700)
    plan = RebalancePlan(
        "t-1",
        {ExecutorId(1, 1): here[0], ExecutorId(2, 2): here[1]},
        {ExecutorId(1, 1): there, ExecutorId(2, 2): here[1]},
    )
    assert (
        drain_text("w1", [plan], set(here))
        == "plan for w1: 1 of 2 workers there move; 1 stays until slots elsewhere are free"
    )
    assert drain_text("w1", [], set()) == "plan for w1: 0 of 0 workers there move"
