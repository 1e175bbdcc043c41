"""Sentences on the problems of workers: dead ones, loops of restarts, reasons for which work stands
still.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.client.worker_problems import DeadWorkers, worker_problems
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.topologies import word_count

NOW = 1_700_000_000_000
SLOT = WorkerSlot("n1", 6700)


def beat(
    node: str = "n1", age_ms: int = 0, state: str = "RUNNING", message: str = "", **stats: Any
) -> WorkerBeat:
    return WorkerBeat(
        "t-1-1",
        node,
        6700,
        NOW - age_ms,
        NOW - 60_000,
        17,
        1,
        state,
        1,
        stats=stats,
        message=message,
    )


def masked(sentences: list[str]) -> list[str]:
    return [re.sub(r"\d\d:\d\d:\d\d", "TIME", each) for each in sentences]


def test_a_worker_that_works_is_no_problem() -> None:
    assert (
        worker_problems(
            "t-1-1",
            [beat(deaths=3, recent_deaths=0, last_end="killed", silent_ms=900)],
            frozenset(),
        )
        == []
    )


def test_a_death_is_a_problem_within_the_window() -> None:
    last: dict[str, Any] = {"recent_deaths": 1, "last_end": "killed by signal 11 (SIGSEGV)"}
    assert masked(
        worker_problems("t-1-1", [beat(last_death_ms=NOW - 9_000, **last)], frozenset())
    ) == ["worker n1:6700 died at TIME: killed by signal 11 (SIGSEGV)"]
    assert worker_problems("t-1-1", [beat(last_death_ms=NOW - 601_000, **last)], frozenset()) == []


def test_a_loop_of_deaths_says_how_many() -> None:
    found = worker_problems(
        "t-1-1",
        [beat(recent_deaths=7, last_death_ms=NOW - 500, last_end="exit status 7")],
        frozenset(),
    )
    assert masked(found) == [
        "worker n1:6700 died at TIME, 7 times in the last ten minutes: exit status 7"
    ]


def test_a_cause_of_several_workers_is_said_once() -> None:
    beats = [
        beat(node, blocked=[f"Redis is at {share}% of its maxmemory"])
        for node, share in (("n1", 61), ("n2", 62))
    ]
    result = worker_problems("t-1-1", beats, frozenset())
    assert result == ["work stands still: Redis is at 61% of its maxmemory"]


def test_what_a_worker_cannot_do_is_said_as_nimbus_says_it() -> None:
    failed = beat(state="FAILED", message="no such module\nand the end of its log")
    result = worker_problems("t-1-1", [failed], frozenset())
    assert result == ["worker n1:6700 of t-1-1 cannot start: no such module"]
    waiting = beat(state="WAITING_FOR_BLOB", message="the code of t-1-1 cannot be fetched: no room")
    result = worker_problems("t-1-1", [waiting], frozenset())
    assert result == ["worker n1:6700: the code of t-1-1 cannot be fetched: no room"]


def test_one_call_that_lasts_is_named() -> None:
    result = masked(worker_problems("t-1-1", [beat(silent_ms=5_000)], frozenset()))
    assert result == ["worker n1:6700 has been inside one call since TIME"]


def test_a_dead_worker_is_named_with_its_last_state() -> None:
    found = worker_problems(
        "t-1-1", [beat(age_ms=9_000, blocked=["x"])], frozenset({("t-1-1", SLOT)})
    )
    assert masked(found) == [
        "worker n1:6700 is dead: its slot has sent no heartbeat since TIME (it was RUNNING then)"
    ]


class Fixed:
    """A clock that stands."""

    def now_ms(self) -> int:
        return NOW

    def now_us(self) -> int:
        return NOW * 1000


def dead_workers(beats: list[WorkerBeat], waited: list[float], beat_ms: int = 1_000) -> DeadWorkers:
    """Return a watch whose second reading finds these heartbeats."""
    again = {(each.topology_id, each.node): each for each in beats}
    return DeadWorkers(
        lambda topology_id, slot: again.get((topology_id, slot.node)),
        beat_ms,
        Fixed(),
        waited.append,
    )


@pytest.mark.parametrize(
    ("age_ms", "beat_ms", "is_dead"),
    [(3_900, 1_000, False), (4_000, 1_000, True), (19_000, 5_000, False)],
)
def test_a_slot_is_dead_after_four_beats(age_ms: int, beat_ms: int, is_dead: bool) -> None:
    beats = [beat(age_ms=age_ms)]
    result = dead_workers(beats, [], beat_ms).among(beats)
    assert result == (frozenset({("t-1-1", SLOT)}) if is_dead else frozenset())


def test_a_slot_whose_clock_is_behind_is_not_dead() -> None:
    waited: list[float] = []
    old = beat(age_ms=60_000)
    moving = dead_workers([replace(old, time_ms=old.time_ms + 1_000)], waited)
    assert not moving.among([old]) and waited == [1.5]
    assert not moving.among([beat()]) and waited == [1.5], "a heartbeat of now is not read again"


def test_all_dead_slots_are_found_by_one_wait_and_stay_dead_without_another() -> None:
    waited: list[float] = []
    beats = [beat(node, age_ms=9_000) for node in ("n1", "n2", "n3")]
    watch = dead_workers(beats[:2], waited)
    for _ in range(2):
        assert {slot.node for _, slot in watch.among(beats[:2])} == {"n1", "n2"} and waited == [1.5]
    assert len(watch.among(beats)) == 2 and waited == [1.5, 1.5], "the third has gone since"
    assert not watch.among([beat("n1")]), "it is back"


@pytest.mark.parametrize(
    "foreign",
    [
        {"recent_deaths": "x"},
        {"blocked": 3},
        {"silent_ms": None},
        {"last_death_ms": [], "recent_deaths": True},
    ],
)
def test_foreign_statistics_are_passed_over(foreign: dict[str, Any]) -> None:
    assert worker_problems("t-1-1", [beat(**foreign)], frozenset()) == []


def test_workers_of_a_host_without_power_are_dead_after_four_beats_and_named_with_it_by_nimbus() -> (
    None
):
    """Its sessions last 20 s; in the first 4 s its last heartbeats may be two seconds old
    already.
    """
    with LocalCluster(3, 3, is_lively=True) as cluster:
        topology_id = cluster.submit(
            word_count(FeederSpout(["line"]), 3, 3, 3), {"topology.workers": 9}
        )
        cluster.advance(15)
        state, lost = cluster.storm_state, cluster.nodes[0]
        watch = DeadWorkers(
            state.read_worker_beat, 1_000, cluster.simulation.clock, cluster.advance
        )

        def shown() -> set[WorkerSlot]:
            beats = [
                state.read_worker_beat(topology_id, slot)
                for slot in state.worker_beat_slots(topology_id)
            ]
            return {slot for _, slot in watch.among([each for each in beats if each is not None])}

        ports = {slot.slot for slot in cluster.slots if slot.node is lost}
        left = [slot.die() for slot in cluster.slots if slot.node is lost]
        began_ms = cluster.now_ms
        cluster.advance(1.5)
        assert shown() == set()
        cluster.advance(3)
        assert shown() == ports and cluster.now_ms - began_ms <= 6_000
        cluster.advance(20 - (cluster.now_ms - began_ms) / 1000)
        for session in left:
            if session is not None:
                session.close()
        cluster.advance(13)
        assignment = state.read_assignment(topology_id)
        assert assignment is not None
        assert lost.name not in {slot.node for slot in assignment.slot_by_executor.values()}
        errors = [
            each.text
            for component in state.error_components(topology_id)
            for each in state.read_errors(topology_id, component)
        ]
        assert len(errors) == 3 and all(f"is dead on {lost.host}:" in each for each in errors), (
            errors
        )
        assert shown() <= ports, "those elsewhere go on"
