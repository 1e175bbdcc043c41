"""A thousand seeded schedules of harm: whatever is done to whom, results are exact and every tree is settled once.

A failure prints its seed and what was done; `run_schedule(name, seed)` runs it again.
"""

from __future__ import annotations

import pytest

from sparkstorm.testing import LocalCluster
from sparkstorm.testing.faults import FaultSchedule
from sparkstorm.testing.invariants import Invariants
from tests.sim.topologies import CASES

SCHEDULES_PER_CASE = 210  # five cases: more than 1,000 in all
BATCH = 30


def run_schedule(
    name: str, seed: int, events: int = 12, make: type[FaultSchedule] = FaultSchedule, limit_secs: float = 600
) -> FaultSchedule:
    """One schedule; AssertionError tells what was done."""
    case, schedule = CASES[name](), make(seed)
    conf = {
        "topology.workers": 1 + seed % 4,
        "topology.acker.executors": 1 + seed % 3,
        "topology.epoch.rows": 1 + seed % 7,
        "topology.max.worker.deaths": 1_000_000,
        "topology.message.timeout.secs": 3600,
        "topology.max.spout.pending": (None, 3, 10)[seed % 3],
        "topology.acker.local": seed % 2 == 0,
        **case.conf,
    }
    with LocalCluster(supervisors=3, slots=2, seed=seed, make_transport=schedule.make_transport) as cluster:
        cluster.submit(case.topology, conf)
        invariants = Invariants(cluster.topology())
        cluster.simulation.watchers.append(invariants)
        try:
            schedule.run(cluster, events)
            cluster.run_until_idle(limit_secs, limit_steps=20_000)
            case.check(cluster)
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {error}\n" + "\n".join(schedule.log)) from error
        assert invariants.checks > 3
    return schedule


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SCHEDULES_PER_CASE, BATCH))
@pytest.mark.parametrize("name", CASES)
def test_no_schedule_of_harm_loses_or_doubles_anything(name: str, first: int) -> None:
    for seed in range(first, first + BATCH):
        run_schedule(name, seed)
