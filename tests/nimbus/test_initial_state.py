"""A driver that is killed at any write of a submission with seeds: the next one begins from all of
them, or goes on, never both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from sparkstorm.client.request_client import Seed
from sparkstorm.common.errors import FencedError, InvalidConfigError
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.data_plane.transport.base import Commit
from sparkstorm.data_plane.transport.local import LocalStore, LocalTransport
from sparkstorm.data_plane.transport.local_reader import LocalSeeding
from tests.nimbus.nimbus_bench import CODE, KEY, Bench, wordcount

FROM = {"topology.workers": 2, "topology.from.checkpoint": "some/folder"}


class Killed(BaseException):
    """kill -9 of the driver: nothing of it runs any more, no undo either."""


class Life:
    """Counts a driver's writes and ends it before or after one of them."""

    def __init__(self, dies_at: int, is_after: bool, look: Callable[[], None]) -> None:
        self.dies_at, self.is_after, self._look = dies_at, is_after, look
        self.writes, self.is_over = 0, False

    def write(self, do: Callable[[], Any]) -> Any:
        self.writes += 1
        is_last = self.writes == self.dies_at
        self.is_over |= is_last and not self.is_after
        if self.is_over:
            raise Killed
        done = do()
        self._look()
        self.is_over |= is_last
        if self.is_over:
            raise Killed
        return done


class CrashingStore(LocalStateStore):
    """A driver's session, every write of which may be its last."""

    def __init__(self, tree: LocalStateTree, life: Life) -> None:
        super().__init__(tree)
        for name in (
            "ensure_path",
            "create",
            "put",
            "delete",
            "put_ephemeral",
            "try_ephemeral",
            "create_sequential",
        ):
            write = getattr(self, name)
            setattr(self, name, lambda *given, write=write: life.write(lambda: write(*given)))


class World:
    """A cluster whose topologies' data lie in a store each."""

    def __init__(self, dies_at: int = 0, is_after: bool = False) -> None:
        self.stores: dict[str, LocalStore] = {}
        self.life = Life(dies_at, is_after, self.check)
        self.bench = Bench()
        self.bench.store.close()
        self.bench.store = CrashingStore(self.bench.tree, self.life)
        self.looking = StormState(LocalStateStore(self.bench.tree), KEY)
        self.bench.state = StormState(self.bench.store, KEY)
        self.start()

    def start(self) -> None:
        self.bench.start_nimbus()
        self.bench.nimbus.hooks.retirement = self

    def retire(self, topology_id: str) -> None:
        self.stores.pop(topology_id, None)

    def unended(self) -> dict[str, int]:
        return {}

    def ended(self, topology_ids: Collection[str]) -> Collection[str]:
        return ()

    def hand_over(self, old_id: str, new_id: str) -> None:
        raise AssertionError("nothing is hot deployed here")

    def seed(self, write: Callable[[Callable[[], None]], None]) -> Seed:
        def sow(topology_id: str, component_by_task: Mapping[int, str]) -> None:
            for task in component_by_task:
                seeding = LocalSeeding(self.stores.setdefault(topology_id, LocalStore()))
                write(lambda task=task, seeding=seeding: seeding.sow(task, [b"seed %d" % task]))  # type: ignore[misc]
                self.bench.nimbus.step(self.bench.clock.now_ms())  # it does not wait for us

        return sow

    def check(self) -> None:
        """Anyone who is assigned, and so may run, has every seed."""
        for topology_id in self.looking.assignment_ids():
            outline = self.looking.read_outline(topology_id)
            assert outline is not None
            for task in outline.component_by_task:
                assert self.stores[topology_id].task(task).journal[0] == b"seed %d" % task

    def run_workers(self) -> None:
        """One commit in the name of a worker of everybody who is assigned."""
        for topology_id in self.looking.assignment_ids():
            transport = LocalTransport(self.stores[topology_id])
            claim = transport.claim("worker", {1: 1})
            transport.commit(
                Commit("worker", {1: 1}, claim.generation, claim.seq + 1, journal=[(1, b"counted")])
            )

    def begin_again(self) -> str:
        """Another driver, with the same command."""
        self.life.dies_at, self.life.is_over = 0, False
        self.bench.store.expire_session()
        self.bench.restart_nimbus()
        self.start()
        self.bench.advance(15)
        found = self.bench.service.find("wc")
        if found is None:
            self.submit()
        self.bench.advance(40)
        return "new" if found is None else "same"

    def submit(self) -> str:
        return self.bench.service.submit(
            "wc", wordcount(), FROM, CODE, seed=self.seed(self.life.write)
        )


@pytest.mark.parametrize("is_after", [False, True])
def test_a_driver_killed_at_any_write_leaves_no_gap_and_no_double(is_after: bool) -> None:
    whole = World()
    whole.submit()
    outcomes = []
    for dies_at in range(1, whole.life.writes + 1):
        world = World(dies_at, is_after)
        with pytest.raises(Killed):
            world.submit()
        has_run = world.looking.assignment_ids() != []
        world.run_workers()
        outcomes.append(world.begin_again())
        alive = [
            base.topology_id
            for each in world.looking.topology_ids()
            if (base := world.looking.read_base(each))
        ]
        assert len(alive) == 1 and list(world.stores) == alive, (
            f"write {dies_at}: {alive}, data of {list(world.stores)}"
        )
        world.check()
        journal = world.stores[alive[0]].task(1).journal
        assert journal == ([b"seed 1", b"counted"] if has_run else [b"seed 1"]), f"write {dies_at}"
    assert {"new", "same"} == set(outcomes)


def test_a_submission_that_fails_takes_its_seeds_along() -> None:
    world = World()

    def fail(write: Callable[[], None]) -> None:
        write()
        raise FencedError("in the middle")

    with pytest.raises(FencedError, match="in the middle"):
        world.bench.service.submit("wc", wordcount(), FROM, CODE, seed=world.seed(fail))
    world.bench.advance(12)
    assert world.stores == {} and world.looking.known_ids() == set()


def test_a_checkpoint_that_nobody_has_read_and_one_for_a_hot_deploy_are_refused() -> None:
    bench = Bench()
    with pytest.raises(InvalidConfigError, match=r"topology\.from\.checkpoint: nobody has read it"):
        bench.service.submit("wc", wordcount(), FROM, CODE)
    bench.submit()
    sentence = r"topology\.from\.checkpoint: a hot deploy goes on from what runs"
    with pytest.raises(InvalidConfigError, match=sentence):
        bench.service.submit("wc", wordcount(), {**FROM, "topology.hot.deploy.enable": True}, CODE)


def test_nothing_is_sown_over_what_has_run() -> None:
    store = LocalStore()
    LocalSeeding(store).sow(1, [b"a"])
    LocalSeeding(store).sow(1, [b"a"])
    LocalTransport(store).claim("worker", {1: 1})
    with pytest.raises(FencedError, match="newer than any checkpoint"):
        LocalSeeding(store).sow(2, [b"b"])
    assert store.task(1).journal == [b"a"] and store.task(2).journal == []
