"""Deaths of workers as faults: their component, their order, and what they are named before."""

from __future__ import annotations

from typing import Any

from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.insight.culprits import Fault
from sparkstorm.control_plane.insight.deaths import death_culprits
from sparkstorm.control_plane.insight.health import Life, examine
from sparkstorm.control_plane.insight.loads import StoreSnapshot
from sparkstorm.data_plane.transport.progress import Progress, TaskCounts

NOW = 1_700_000_000_000
COMPONENTS = {1: "__acker", 2: "lines", 3: "count"}


def beat(port: int = 6700, **stats: Any) -> WorkerBeat:
    died = {"last_death_ms": NOW - 9_000, "last_end": "exit status 7", **stats}
    return WorkerBeat("t-1-1", "n1", port, NOW, NOW - 60_000, 17, 1, "RUNNING", 1, stats=died)


def test_a_death_is_a_fault_of_the_component_whose_input_was_tried() -> None:
    (death,) = death_culprits([beat(recent_deaths=3, last_death_task=3)], COMPONENTS, 600_000)
    assert (death.fault, death.component) == (Fault.DYING, "count")
    assert ", 3 times in the last ten minutes: exit status 7" in death.sentence


def test_a_first_death_is_a_fault_without_a_component() -> None:
    (death,) = death_culprits([beat(recent_deaths=1, last_death_task=0)], COMPONENTS, 600_000)
    assert death.component == "" and "worker n1:6700 died at " in death.sentence


def test_a_worker_that_runs_one_input_per_commit_is_named_as_such() -> None:
    (death,) = death_culprits([beat(recent_deaths=1, careful=5_000)], COMPONENTS, 600_000)
    assert death.sentence.endswith("it runs one input per commit")


def test_the_worker_with_most_deaths_comes_first() -> None:
    beats = [beat(6700, recent_deaths=1), beat(6701, recent_deaths=4), beat(6702)]
    first, second = death_culprits(beats, COMPONENTS, 600_000)
    assert "n1:6701" in first.sentence and "n1:6700" in second.sentence


def test_deaths_are_named_before_the_dead_letters_that_they_cause() -> None:
    def look(parked: int, now_ms: int) -> StoreSnapshot:
        counts = TaskCounts("count", 1, executed=now_ms, parked=parked)
        return StoreSnapshot({"n1:6700": Progress({3: counts}, now_ms=now_ms)}, {}, now_ms=now_ms)

    deaths = death_culprits([beat(recent_deaths=3, last_death_task=3)], COMPONENTS, 600_000)
    life = Life(TopologyStatus.ACTIVE)
    health = examine("words", look(0, 1_000), look(6, 11_000), 1, 1, (), life, deaths)
    assert [culprit.fault for culprit in health.culprits] == [Fault.DYING, Fault.PARKED]
    assert health.sentence.startswith("words does not run well: worker n1:6700 died at ")
    assert not health.is_well
