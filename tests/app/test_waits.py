"""Sentences of a run that waits: the first cause, from the cluster inwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.client.handle import TopologyProgress
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.names import shown
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.driver.waits import IDLE_S, REPEAT_S, Waits

STILL = TopologyProgress(
    1000, 500, 90, 80, 7, 70, 1, 0, 4.0, 25.0, is_settled=False, is_drained=False
)
SLOT = WorkerSlot("node-1", 6700)
FULL = "Redis is at 63 % of its maxmemory, and spouts pause from 60 % on: raise maxmemory"


class Topology:
    """A handle that says what it is told to."""

    def __init__(
        self,
        slots: frozenset[WorkerSlot] = frozenset({SLOT}),
        status: TopologyStatus = TopologyStatus.ACTIVE,
        problems: list[str] | None = None,
        errors: list[Failure] | None = None,
    ) -> None:
        self._slots, self._status, self._problems = slots, status, problems or []
        self._errors = errors or []

    def status(self) -> TopologyStatus:
        return self._status

    def slots(self) -> frozenset[WorkerSlot]:
        return self._slots

    def problems(self) -> list[str]:
        return self._problems

    def errors(self) -> list[Failure]:
        return self._errors


class Bench:
    """Waits under its own clock; beats come with every look unless they are stopped."""

    def __init__(self, topology: Topology | None = None) -> None:
        self.now = 1000.0
        self.said: list[str] = []
        self.waits = Waits(
            topology or Topology(), self.said.append, lambda: self.now, lambda: self.now
        )

    def look(
        self,
        seconds: float,
        progress: TopologyProgress = STILL,
        state: str = "RUNNING",
        is_dead: bool = False,
        **stats: Any,
    ) -> list[str]:
        """Look at the same picture for so long, once a second; what was said of it."""
        before = len(self.said)
        for _ in range(int(seconds)):
            self.now += 1
            beat = WorkerBeat(
                "t-1-1",
                "node-1",
                6700,
                0 if is_dead else int(self.now),
                0,
                5,
                1,
                state,
                1,
                stats=stats,
            )
            self.waits.look(progress, [beat])
        return self.said[before:]


def test_work_and_short_pauses_are_no_waits() -> None:
    bench = Bench()
    for executed in range(100, 120):
        assert (
            bench.look(IDLE_S, replace(STILL, executed=executed), held_back=["spout 'a' pauses"])
            == []
        )


@pytest.mark.parametrize("age_s", [5, 500])
def test_an_error_of_the_last_minute_is_told_where_nothing_moves(age_s: int) -> None:
    away = Failure(
        FailureKind.REPORTED,
        "Kafka kafka.example:9092 cannot be reached: \x1ball brokers are down",
        "orders",
        time_ms=1_000_000 - 1000 * age_s,
    )
    said = Bench(Topology(errors=[away])).look(
        IDLE_S + 1, replace(STILL, pending=0, is_settled=True)
    )
    nothing = "waiting: the spouts have nothing to emit"
    assert said == [f"{nothing}; component 'orders': {shown(away.text)}" if age_s == 5 else nothing]


def test_a_full_redis_is_told_though_bolts_still_work() -> None:
    bench = Bench()
    for executed in range(100, 110):
        bench.look(1, replace(STILL, executed=executed), blocked=[FULL])
    assert bench.said == [f"waiting: {FULL}"]


def test_the_same_cause_is_told_again_after_half_a_minute_whatever_its_numbers() -> None:
    bench = Bench()
    for percent in range(60, 60 + int(REPEAT_S)):
        bench.look(1, blocked=[f"Redis is at {percent} %"])
    assert len(bench.said) == 1
    bench.look(IDLE_S, blocked=["Redis is at 99 %"])
    assert bench.said[1:] == ["waiting: Redis is at 99 %"]


def test_workers_that_say_the_same_are_told_once() -> None:
    bench = Bench()
    for _ in range(5):
        bench.now += 1
        beats = [
            WorkerBeat(
                "t-1-1",
                "node-1",
                6700 + n,
                int(bench.now),
                0,
                5,
                1,
                "RUNNING",
                1,
                stats={"blocked": [f"Redis is at {60 + n} %"]},
            )
            for n in range(3)
        ]
        bench.waits.look(STILL, beats)
    assert bench.said == ["waiting: Redis is at 60 %"]


@pytest.mark.parametrize(
    ("stats", "told"),
    [
        (
            {"held_back": ["spout 'a' pauses: 9,000,000 bytes wait for 'b'"]},
            "waiting: spout 'a' pauses: 9,000,000 bytes wait for 'b'",
        ),
        (
            {"silent_ms": 12_500, "held_back": ["spout 'a' pauses"]},
            "waiting: worker node-1:6700 has been inside one call for 12 s",
        ),
        ({}, "waiting: 7 trees are open"),
        ({"blocked": "no list", "held_back": 5, "silent_ms": "x"}, "waiting: 7 trees are open"),
    ],
    ids=["backlog", "one call", "open trees", "foreign beats"],
)
def test_a_run_that_does_nothing_names_the_cause(stats: dict[str, Any], told: str) -> None:
    (said,) = Bench().look(IDLE_S + 2, **stats)
    assert said.startswith(told)


@pytest.mark.parametrize(
    ("topology", "state", "told"),
    [
        (Topology(frozenset()), "RUNNING", "waiting: Nimbus has assigned no slots yet"),
        (
            Topology(frozenset(), problems=["2 slots are free, 3 needed"]),
            "RUNNING",
            "slots yet: 2 slots are free, 3 needed",
        ),
        (
            Topology(frozenset({SLOT, WorkerSlot("node-2", 6700)})),
            "RUNNING",
            "waiting: worker node-2:6700 has not been started",
        ),
        (
            Topology(),
            "WAITING_FOR_WORKER_START",
            "waiting: worker node-1:6700 starts: imports, then open() and prepare()",
        ),
        (
            Topology(),
            "WAITING_FOR_RELAUNCH",
            "waiting: worker node-1:6700 died and is started again",
        ),
        (Topology(status=TopologyStatus.INACTIVE), "RUNNING", "waiting: the topology is INACTIVE"),
    ],
    ids=["unassigned", "refused", "no worker", "starting", "died", "inactive"],
)
def test_a_run_that_cannot_work_yet_names_what_is_missing(
    topology: Topology, state: str, told: str
) -> None:
    (said,) = Bench(topology).look(IDLE_S + 2, state=state)
    assert told in said


def test_a_slot_whose_beats_have_stopped_is_named() -> None:
    bench = Bench()
    bench.look(1)
    bench.look(IDLE_S + 2, is_dead=True)
    assert "slot node-1:6700 has been silent for 3 s; Spark has to start it again" in bench.said[-1]


def test_a_source_without_news_and_a_drained_run() -> None:
    result = Bench().look(9, replace(STILL, pending=0, is_settled=True))
    assert result == ["waiting: the spouts have nothing to emit"]
    assert Bench().look(9, replace(STILL, pending=0, is_settled=True, is_drained=True)) == []


def test_a_run_that_waits_for_an_ack_names_the_bolt_and_how_many_inputs_it_holds() -> None:
    (said,) = Bench().look(10, replace(STILL, pending=0, held={"batch": 3}))
    assert said == (
        "waiting: component 'batch' holds 3 inputs that it has neither acked nor failed: the run goes on until it acks or fails "
        "them, and no window fires past them"
    )
