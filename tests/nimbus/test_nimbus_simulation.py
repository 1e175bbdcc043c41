"""Runs seeded schedules of deaths, restarts, outages, kills and rebalances, and checks the
invariants at every step.
"""

import contextlib
import random
from collections.abc import Callable

import pytest

from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from tests.nimbus.nimbus_bench import Bench, wordcount

pytestmark = pytest.mark.sampled

SEEDS = range(25)
STEPS = 100


class Fate:
    """Does one random thing at a time to a bench."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.bench = Bench(nodes=4, ports=(6700, 6701, 6702), nimbus__task__launch__secs=20)
        self.versions: dict[str, int] = {}
        self.fences: dict[tuple[str, int], int] = {}
        self.deeds = [
            self.nothing, self.nothing, self.nothing, self.kill_host, self.raise_host, self.silence, self.restart,
            self.outage, self.submit, self.kill, self.rebalance, self.pause, self.expire,
            self.update, self.toggle, self.restart_worker,
        ]  # fmt: skip

    def step(self) -> None:
        self.dice.choice(self.deeds)()
        self.bench.tick(self.dice.choice((200, 1000, 5000)))
        self.check_growth()

    def nothing(self) -> None:
        pass

    def kill_host(self) -> None:
        self.dice.choice(list(self.bench.supervisors.values())).die()

    def raise_host(self) -> None:
        for supervisor in self.bench.supervisors.values():
            supervisor.is_up, supervisor.silent_ports = True, set()

    def silence(self) -> None:
        self.dice.choice(list(self.bench.supervisors.values())).silent_ports.add(
            self.dice.choice((6700, 6701, 6702))
        )

    def restart(self) -> None:
        self.bench.restart_nimbus()

    def outage(self) -> None:
        self.bench.tree.is_down = True
        self.bench.advance(self.dice.choice((1, 20, 90)))
        self.bench.tree.is_down = False

    def expire(self) -> None:
        self.bench.store.expire_session()

    def pause(self) -> None:
        self.bench.clock.advance(self.dice.choice((30_000, 200_000)))

    def submit(self) -> None:
        name = self.dice.choice("abc")
        topology, workers = wordcount(self.dice.randint(1, 6), 2), self.dice.randint(1, 5)
        with contextlib.suppress(SparkStormError):
            self.bench.submit(name, topology, topology__workers=workers)

    def kill(self) -> None:
        self.ask(lambda name: self.bench.service.kill(name, self.dice.choice((0, 3))))

    def rebalance(self) -> None:
        options = RebalanceOptions(
            self.dice.randint(1, 6), {"split": 1}, reassign=self.dice.random() < 0.3
        )
        self.ask(lambda name: self.bench.service.rebalance(name, options, self.dice.choice((0, 2))))

    def update(self) -> None:
        topology = wordcount(self.dice.randint(1, 6), 2)
        conf = {"topology.workers": self.dice.randint(1, 5)}
        self.ask(
            lambda name: self.bench.service.carry_out(
                self.bench.service.update_request(name, topology, conf, b"new code")
            )
        )

    def toggle(self) -> None:
        self.ask(
            lambda name: self.dice.choice(
                (self.bench.service.activate, self.bench.service.deactivate)
            )(name)
        )

    def restart_worker(self) -> None:
        self.ask(self.bench.service.restart_worker)

    def ask(self, request: Callable[[str], object]) -> None:
        with contextlib.suppress(SparkStormError):
            request(self.dice.choice("abc"))

    def check_growth(self) -> None:
        """Versions of a topology and fences of a task never go back."""
        for topology_id, assignment in self.bench.state.read_assignments().items():
            assert assignment.version >= self.versions.get(topology_id, 0)
            self.versions[topology_id] = assignment.version
            for executor, placed in assignment.placed_version_by_executor.items():
                for task in executor.tasks:
                    assert placed >= self.fences.get((topology_id, task), 0)
                    self.fences[topology_id, task] = placed

    def calm(self) -> None:
        """Let everything live again for some minutes."""
        self.raise_host()
        for _ in range(60):
            self.bench.tick(5000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_the_invariants_hold_and_calm_brings_everything_back(seed: int) -> None:
    fate = Fate(seed)
    for _ in range(STEPS):
        fate.step()
    fate.calm()
    bench = fate.bench
    wanted = free = 0
    for topology_id in bench.state.topology_ids():
        base = bench.base_of(topology_id)
        assert base.status in (TopologyStatus.ACTIVE, TopologyStatus.INACTIVE)
        assert base.pending is None
        wanted += base.num_workers
        free += len(bench.slots(topology_id)) == sum(base.executors_by_component.values())
    assert free == len(bench.state.topology_ids()) or wanted > 12, (
        f"seed {seed}: something has no place"
    )
    assert bench.state.known_ids() == set(bench.state.topology_ids())
    assert bench.state.protected_ids() == bench.state.deploy_names() == []
    assert bench.state.open_requests() == ([], {})
