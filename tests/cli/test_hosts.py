"""Rows of `sparkstorm hosts`."""

from sparkstorm.cli.hosts import host_rows
from sparkstorm.model.assignment import SupervisorInfo, WorkerSlot


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
        "nodes": ["w1", "w1@2"],
    }
    assert (second["host"], second["rack"], second["slots"], second["used"], second["free"]) == ("w2", "r1", 1, 0, 1)
