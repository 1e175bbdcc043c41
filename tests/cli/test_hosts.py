"""Rows of `sparkstorm hosts`."""

from sparkstorm.cli.hosts import drain_text, host_rows, mark_text
from sparkstorm.model.assignment import ExecutorId, SupervisorInfo, WorkerSlot
from sparkstorm.model.requests import HostMark, RebalancePlan


def test_two_drivers_nodes_of_a_host_are_one_row_with_the_slots_of_both() -> None:
    infos = [
        SupervisorInfo("w2", "w2", 50, 9, (6700,), scheduler_meta={"rack": "r1"}),
        SupervisorInfo("w1@2", "w1", 70, 10, (6700, 6701)),
        SupervisorInfo("w1", "w1", 60, 30, (6700, 6701)),
    ]
    used = {WorkerSlot("w1", 6700), WorkerSlot("w1@2", 6701), WorkerSlot("gone", 6700)}
    first, second = host_rows(infos, used)
    assert first == {
        "host": "w1",
        "rack": None,
        "slots": 4,
        "used": 2,
        "free": 2,
        "uptime_ms": 30,
        "time_ms": 70,
        "health": "ok",
        "nodes": ["w1", "w1@2"],
    }
    assert (second["host"], second["rack"], second["slots"], second["used"], second["free"]) == ("w2", "r1", 1, 0, 1)


def test_the_health_of_a_host_is_all_that_is_against_it() -> None:
    infos = [SupervisorInfo(f"w{n}", f"w{n}", 0, 0, (6700,), store_problem="cut" if n == 2 else "") for n in range(1, 5)]
    marks = {"w1": HostMark(True, 0, "ann"), "w2": HostMark(False, 0, "ann")}
    rows = host_rows(infos, set(), marks, {"blacklist": "w1, w3: a port was missing there too often"})
    assert [row["health"] for row in rows] == ["drained, blacklisted", "excluded, no Redis", "blacklisted", "ok"]


def test_a_marked_host_is_named_with_who_when_why_and_the_workers_that_stay() -> None:
    drained, excluded = HostMark(True, 1_000, "ann@desk:7", "new disks"), HostMark(False, 1_000, "ann@desk:7")
    assert mark_text("w1", drained, 2, 61_000) == (
        "w1 drained 1 min 0 s ago by ann@desk:7: new disks; 2 workers are still there, until slots elsewhere are free"
    )
    assert mark_text("w1", drained, 0, 61_000) == "w1 drained 1 min 0 s ago by ann@desk:7: new disks"
    assert mark_text("w1", excluded, 2, 61_000) == "w1 excluded 1 min 0 s ago by ann@desk:7"


def test_the_plan_of_a_drain_says_how_many_workers_move_and_stay() -> None:
    here, there = [WorkerSlot("w1", port) for port in (6700, 6701)], WorkerSlot("w2", 6700)
    plan = RebalancePlan(
        "t-1", {ExecutorId(1, 1): here[0], ExecutorId(2, 2): here[1]}, {ExecutorId(1, 1): there, ExecutorId(2, 2): here[1]}
    )
    assert drain_text("w1", [plan], set(here)) == "plan for w1: 1 of 2 workers there move; 1 stays until slots elsewhere are free"
    assert drain_text("w1", [], set()) == "plan for w1: 0 of 0 workers there move"
