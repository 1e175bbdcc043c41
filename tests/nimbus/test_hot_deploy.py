"""Tells that a hot deploy ends well whenever its driver dies: the old topology or the new one, with
the data, and no trace.
"""

from collections.abc import Collection
from typing import Any

import pytest

from sparkstorm.client.cluster import ClusterClient
from sparkstorm.common.config import default_conf
from sparkstorm.common.errors import (
    AlreadyAliveError,
    FailedAssignTopologyError,
    IllegalTransitionError,
    NotAliveError,
    StoreUnavailableError,
)
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.worker_spec import StoreMark
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.nimbus.crash_points import CrashPoint
from tests.nimbus.nimbus_bench import CODE, KEY, Bench, wordcount

NEW_CODE = b"new code"
# of two cells
MARKS = {0: StoreMark("first", 2, 30, 7, 20, ("lost",)), 1: StoreMark("second", 0, 5, 7)}


class Keeper:
    """Keeps what topologies leave, by the law of TopologyRetirement: an id ends once."""

    def __init__(self) -> None:
        self.data: dict[str, set[str]] = {}
        self.gone: set[str] = set()
        self.calls: list[tuple[str, ...]] = []

    def retire(self, topology_id: str) -> None:
        self.calls.append((topology_id,))
        self.gone.add(topology_id)
        self.data.pop(topology_id, None)

    def unended(self) -> dict[str, int]:
        return {}

    def ended(self, topology_ids: Collection[str]) -> Collection[str]:
        return ()

    def hand_over(self, old_id: str, new_id: str) -> None:
        self.calls.append((old_id, new_id))
        assert new_id not in self.gone, "data may not be handed to an id that has ended"
        moved = self.data.pop(old_id, set()) if old_id not in self.gone else set()
        self.gone.add(old_id)
        if moved:
            self.data.setdefault(new_id, set()).update(moved)

    def repeat_all(self) -> None:
        """Make every call once more, as a leader that was deposed in the middle of one may."""
        for call in list(self.calls):
            if len(call) == 1:
                self.retire(*call)
            elif call[0] not in self.gone or call[1] not in self.gone:
                self.hand_over(*call)


def deploy_and_die(
    at: int, is_written: bool, topology: Topology
) -> tuple[Bench, Keeper, str, bool]:
    """The cluster some time after a driver died at its n-th write and another took over; whether it
    died at all.
    """
    bench, keeper = Bench(nodes=3, nimbus__topology__blobstore__deletion__delay__ms=1000), Keeper()
    bench.nimbus.hooks.retirement = keeper
    old = bench.submit()
    keeper.data[old] = {"streams", "states"}
    for cell, mark in MARKS.items():
        bench.state.note_store_mark(old, mark, cell)
    bench.store.close()
    bench.store = CrashPoint(at, is_written).around(LocalStateStore(bench.tree))
    bench.state = StormState(bench.store, KEY)
    bench.start_nimbus()
    bench.nimbus.hooks.retirement = keeper
    try:
        bench.submit(topology=topology, code=NEW_CODE, topology__hot__deploy__enable=True)
        died = False
    except StoreUnavailableError:
        died = True
    bench.restart_nimbus()
    bench.nimbus.hooks.retirement = keeper
    for _ in range(23):
        bench.tick(4000)
    return bench, keeper, old, died


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("is_written", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("split", [4, 5], ids=["the same tasks", "other tasks"])
def test_wherever_the_driver_dies_one_topology_runs_with_its_data_and_nothing_else_is_left(
    is_written: bool, split: int
) -> None:
    outcomes = set()
    for at in range(1, 80):
        bench, keeper, old, died = deploy_and_die(at, is_written, wordcount(split))
        (now,) = bench.state.topology_ids()
        base = bench.state.read_base(now)
        assert (
            base
            and base.status == TopologyStatus.ACTIVE
            and len(bench.slots(now)) == (13 if now == old else split + 9)
        ), at
        code = bench.blobs.get(base.code_key)
        assert (code == CODE) == (now == old), at
        is_heir = now == old or split == 4
        assert keeper.data == ({now: {"streams", "states"}} if is_heir else {}), at
        assert bench.state.read_store_marks(now, 2) == (MARKS if is_heir else {}), at
        keeper.repeat_all()
        assert keeper.data == ({now: {"streams", "states"}} if is_heir else {}), (
            f"{at}: a deposed leader did harm"
        )
        assert bench.state.known_ids() == {now}, at
        assert not bench.state.deploy_names() and bench.state.open_requests() == ([], {}), at
        outcomes.add(code)
        if not died:
            break
    else:
        raise AssertionError("no deploy came to its end")
    assert outcomes == {CODE, NEW_CODE}


def left_over(bench: Bench, keeper: Keeper) -> str:
    """A deploy whose Nimbus died right after the kill; the old topology's id. The one that follows
    has yet to take a turn.
    """
    bench.nimbus.hooks.retirement = keeper
    old = bench.submit()
    keeper.data[old] = {"states"}
    client = bench.client(LocalStateStore(bench.tree))
    client.begin(client.update_request("wc", wordcount(), {"topology.workers": 4}, NEW_CODE))

    def status() -> TopologyStatus | None:
        base = bench.state.read_base(old)
        return base.status if base else None

    while status() is TopologyStatus.ACTIVE:
        bench.nimbus.step(bench.clock.now_ms())
    assert status() is TopologyStatus.KILLED
    bench.restart_nimbus()
    bench.nimbus.hooks.retirement = keeper
    return old


class Moody(DefaultScheduler):
    """Scheduler that refuses every topology while it is switched on."""

    is_sulking = False

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        if self.is_sulking and any(cluster.needs_scheduling(each) for each in topologies.values()):
            raise FailedAssignTopologyError("there's no enough worker")
        super().schedule(topologies, cluster)


def test_a_driver_that_follows_gives_its_supervisors_time_before_it_goes_back_to_the_old_code() -> (
    None
):
    scheduler, keeper = Moody(), Keeper()
    bench = Bench(nodes=3, scheduler=scheduler)
    left_over(bench, keeper)
    scheduler.is_sulking = True
    bench.advance(45)
    assert "no enough worker" in bench.nimbus.problems["wc"] and bench.state.topology_ids() == []
    scheduler.is_sulking = False
    bench.advance(15)
    (new,) = bench.state.topology_ids()
    assert bench.blobs.get(bench.base_of(new).code_key) == NEW_CODE and keeper.data == {
        new: {"states"}
    }


def test_an_old_topology_that_cannot_come_back_at_once_comes_back_when_it_can() -> None:
    scheduler, keeper = Moody(), Keeper()
    bench = Bench(nodes=3, scheduler=scheduler)
    bench.nimbus.hooks.retirement = keeper
    old = bench.submit()
    keeper.data[old] = {"states"}
    bench.state.note_store_mark(old, MARKS[0])
    scheduler.is_sulking = True
    sentence = "the old one cannot start again yet, Nimbus goes on trying"
    with pytest.raises(FailedAssignTopologyError, match=sentence):
        bench.submit(code=NEW_CODE, topology__hot__deploy__enable=True)
    bench.advance(90)
    assert bench.state.topology_ids() == []
    scheduler.is_sulking = False
    bench.advance(30)
    (back,) = bench.state.topology_ids()
    assert bench.blobs.get(bench.base_of(back).code_key) == CODE and len(bench.slots(back)) == 13
    assert keeper.data == {back: {"states"}} and bench.state.known_ids() == {back}
    assert bench.state.read_store_marks(back) == {0: MARKS[0]}


def test_the_name_is_taken_until_the_deploy_is_finished_and_waiting_for_it_helps() -> None:
    bench, keeper = Bench(nodes=3), Keeper()
    old = left_over(bench, keeper)
    with pytest.raises(AlreadyAliveError):
        bench.submit(topology__workers=1)
    assert bench.service.wait_deployed("wc")
    (new,) = bench.state.topology_ids()
    assert new != old and keeper.data == {new: {"states"}}


def test_what_is_being_deployed_cannot_be_killed_half_way_and_keeps_its_data() -> None:
    bench, keeper = Bench(nodes=3), Keeper()
    left_over(bench, keeper)
    with pytest.raises(IllegalTransitionError, match="hot deploy of wc is under way"):
        bench.service.kill("wc", 0)
    assert bench.service.wait_deployed("wc")
    (new,) = bench.state.topology_ids()
    assert keeper.data == {new: {"states"}}
    bench.service.kill("wc", 0)
    bench.advance(30)
    assert bench.state.known_ids() == set() and keeper.data == {}


def test_a_deploy_that_cannot_be_finished_is_told_of_tried_again_and_can_be_called_off() -> None:
    bench, keeper = Bench(nodes=3), Keeper()
    old = left_over(bench, keeper)
    deploy = bench.state.read_deploy("wc")
    assert deploy and deploy.old_id == old
    bench.state.store.delete(f"/outlines/{deploy.base.topology_id}")
    bench.advance(40)
    assert "its outline is missing" in bench.nimbus.problems["wc"]
    assert bench.state.topology_ids() == []
    with pytest.raises(AlreadyAliveError, match="a hot deploy of wc is being finished"):
        bench.submit(topology__workers=1)
    redis: Any = None
    client = ClusterClient(bench.state, redis, bench.service, default_conf())
    sentence = r"outline is missing.*`sparkstorm kill wc` calls it off"
    with pytest.raises(NotAliveError, match=sentence):
        client.topology("wc")
    assert client.kill("wc") == "wc"
    bench.advance(20)
    assert (
        bench.state.known_ids() == set() and keeper.data == {} and "wc" not in bench.nimbus.problems
    )
    with pytest.raises(NotAliveError):
        bench.service.kill("wc")
    assert bench.submit()


def test_the_new_topology_expects_the_data_of_the_old_one() -> None:
    bench, keeper = Bench(nodes=3), Keeper()
    bench.nimbus.hooks.retirement = keeper
    old = bench.submit()
    for cell, mark in MARKS.items():
        bench.state.note_store_mark(old, mark, cell)
    new = bench.submit(code=NEW_CODE, topology__hot__deploy__enable=True)
    assert bench.state.read_store_marks(new, 2) == MARKS and bench.state.known_ids() == {new}
    other = bench.submit(topology=wordcount(5), topology__hot__deploy__enable=True)
    assert bench.state.read_store_marks(other, 2) == {}, "other tasks begin without data"
    assert bench.state.known_ids() == {other}
