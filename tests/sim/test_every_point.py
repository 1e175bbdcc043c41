"""One small run per topology, harmed once at every single commit: no point in the life of an epoch
is left out.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from sparkstorm.common.model.worker_messages import ExitCode
from sparkstorm.testing import LocalCluster
from sparkstorm.testing.in_process_worker import InProcessWorker
from sparkstorm.testing.invariants import Invariants
from sparkstorm.testing.sim_transport import CommitFault, FaultyTransport
from tests.sim.topologies import (
    Case,
    batching,
    fan_out_fan_in,
    flaky,
    flaky_windows,
    loop,
    stream_joins,
    word_count,
)

pytestmark = pytest.mark.slow

SMALL: dict[str, Callable[[], Case]] = {  # states are lazy by odd seeds
    "word_count in memory": lambda: word_count(5),
    "word_count": lambda: word_count(5), "fan_out_fan_in": lambda: fan_out_fan_in(4), "flaky": lambda: flaky(3),
    "batching": lambda: batching(6), "loop": lambda: loop(4),
    "flaky_windows": lambda: flaky_windows(6), "stream_joins": lambda: stream_joins(4),
}  # fmt: skip
CONF = {
    "topology.workers": 3,
    "topology.acker.executors": 2,
    "topology.epoch.rows": 3,
    "topology.max.worker.deaths": 1000,
    "topology.message.timeout.secs": 3600,
}
MOST_COMMITS = 200


class OnePoint:
    """Chooses one fault for the n-th commit of the whole run, and does something to the cluster
    after the n-th step.
    """

    def __init__(self, point: int, fault: CommitFault) -> None:
        self.point = point
        self.fault = fault
        self.commits = 0

    def make_transport(self, worker: InProcessWorker) -> FaultyTransport:
        return FaultyTransport(worker, self.choose)

    def choose(self) -> CommitFault:
        self.commits += 1
        return self.fault if self.commits == self.point else CommitFault.NONE


def run(
    name: str, point: OnePoint, after_commit: Callable[[LocalCluster, OnePoint], None] | None = None
) -> None:
    """Run to the end and check everything."""
    case = SMALL[name]()
    with LocalCluster(
        supervisors=3,
        slots=1,
        seed=8 if name.endswith("in memory") else 7,
        make_transport=point.make_transport,
    ) as cluster:
        cluster.submit(case.topology, {**CONF, **case.conf})
        cluster.simulation.watchers.append(Invariants(cluster))
        if after_commit is not None:
            cluster.simulation.watchers.append(lambda: after_commit(cluster, point))
        try:
            cluster.run_until_idle(limit_secs=600)
            case.check(cluster)
        except Exception as error:
            raise AssertionError(
                f"{name}, commit {point.point}, {point.fault.value}: {error}"
            ) from error


def commits_of(name: str) -> int:
    """Return how many commits an unharmed run makes."""
    counter = OnePoint(0, CommitFault.NONE)
    run(name, counter)
    assert 8 < counter.commits < MOST_COMMITS
    return counter.commits


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    "fault", [fault for fault in CommitFault if fault is not CommitFault.NONE], ids=lambda f: f.name
)
@pytest.mark.parametrize("name", SMALL)
def test_one_fault_at_every_commit(name: str, fault: CommitFault) -> None:
    for number in range(1, commits_of(name) + 1):
        point = OnePoint(number, fault)
        run(name, point)
        assert point.commits >= number


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", SMALL)
def test_a_zombie_at_every_commit(name: str) -> None:
    for number in range(1, commits_of(name) + 1):
        zombies: list[InProcessWorker] = []

        def leave(
            cluster: LocalCluster, point: OnePoint, zombies: list[InProcessWorker] = zombies
        ) -> None:
            if point.commits < point.point or zombies:
                return
            zombies.extend(
                zombie
                for slot in cluster.topology().workers
                if (zombie := slot.disown()) is not None
            )

        run(name, OnePoint(number, CommitFault.NONE), leave)
        assert len(zombies) >= 2
        # one that has committed nothing since lives until the simulation ends
        ends = (None, ExitCode.FENCED, -signal.SIGKILL)
        assert all(zombie.exit_code in ends for zombie in zombies)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("back", [1, 3, 1000])
@pytest.mark.parametrize("name", SMALL)
def test_the_store_goes_back_at_every_commit(name: str, back: int) -> None:
    """By one commit, by three, or to the very beginning."""
    for number in range(1, commits_of(name) + 1):
        checkpoints: list[dict[str, object]] = []
        done: list[int] = []

        def go_back(
            cluster: LocalCluster,
            point: OnePoint,
            kept: list[dict[str, object]] = checkpoints,
            done: list[int] = done,
        ) -> None:
            store = cluster.topology().store
            if done or point.commits == len(kept):
                return
            if point.commits >= point.point:
                done.append(point.commits)
                store.restore(kept[max(0, len(kept) - back)] if kept else store.checkpoint())
                cluster.simulation.wake_all()
                cluster.wake_workers()  # its restart has cut their connections
                return
            kept += [store.checkpoint()] * (point.commits - len(kept))

        run(name, OnePoint(number, CommitFault.NONE), go_back)
        assert done
