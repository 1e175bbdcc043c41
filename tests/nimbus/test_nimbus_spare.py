"""Two drivers on one tree, one standing by: the leading one dies, slots and all, at every write of
every request.
"""

from collections.abc import Callable

import pytest

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.model.names import driver_of_node, node_of_driver
from sparkstorm.common.model.requests import LogLevel
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.control_plane.cluster.nimbus_state import DriverInfo
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.leader_election import LeaderStore
from sparkstorm.control_plane.nimbus.nimbus import Nimbus
from tests.nimbus.crash_points import MOST_WRITES, CrashPoint
from tests.nimbus.crashing_bench import CrashingBench
from tests.nimbus.nimbus_bench import KEY, FakeSupervisor, wordcount
from tests.nimbus.test_nimbus_crash_points import (
    NEW_CODE,
    REBALANCE,
    assert_tidy,
    deploy_in_vain,
    is_back,
    is_deployed,
    is_killed,
    is_logging,
    is_rebalanced,
)


class TwoDrivers(CrashingBench):
    """Driver 1 leads and runs a topology; driver 2 came later, has slots too, and its Nimbus stands
    by.
    """

    def __init__(self, dies_at: int = 1_000_000) -> None:
        super().__init__()
        self.first = list(self.supervisors.values())
        for node, supervisor in list(self.supervisors.items()):
            name = node_of_driver(node, 2)
            self.supervisors[name] = FakeSupervisor(
                name, supervisor.host, supervisor.ports, self.tree
            )
        self.sessions = {number: self.register(number) for number in (1, 2)}
        self.crash_nimbus(crash := CrashPoint(1_000_000))
        self.spare = self.follower(2)
        self.advance(2)
        assert (self.nimbus.is_leading, self.spare.is_leading) == (True, False)
        crash._left = dies_at

    def register(self, number: int) -> LocalStateStore:
        session = LocalStateStore(self.tree)
        StormState(session).register_driver(
            DriverInfo(f"driver-{number}", "host", number, "", "", number=number, is_alone=False)
        )
        return session

    def follower(self, number: int) -> Nimbus:
        state = StormState(LeaderStore(LocalStateStore(self.tree)), KEY)
        made = Nimbus(
            state,
            BlobStore(state, self.bytes_store, KEY),
            self.scheduler,
            self.conf,
            f"nimbus-{number}",
        )
        made.hooks.retirement = self.keeper
        return made

    def kill_first(self) -> None:
        """Driver 1 dies: its Nimbus, its session and its slots."""
        self.nimbus._state.store.close()
        self.sessions[1].close()
        for supervisor in self.first:
            supervisor.die()
        self.nimbus = self.spare

    def step_nimbus(self, now_ms: int) -> None:
        try:
            self.nimbus.step(now_ms)
        except StoreUnavailableError:
            assert self.crash and self.crash.is_dead
            self.kill_first()
        if hasattr(self, "spare"):
            self.spare.step(now_ms)
            assert sum(each.is_leading for each in {self.nimbus, self.spare}) <= 1

    def homes(self) -> set[int]:
        """Numbers of the drivers on whose slots topologies are; those that end are left where they
        were.
        """
        bases = [self.state.read_base(each) for each in self.state.topology_ids()]
        killed = {
            each.topology_id for each in bases if each and each.status is TopologyStatus.KILLED
        }
        placed = [
            found for each, found in self.state.read_assignments().items() if each not in killed
        ]
        return {
            driver_of_node(slot.node) for each in placed for slot in each.slot_by_executor.values()
        }


def test_the_topologies_of_a_dead_driver_are_on_the_spares_slots_with_its_first_turn() -> None:
    bench = TwoDrivers()
    assert bench.homes() == {1}
    before = bench.assignment()
    bench.kill_first()
    bench.spare.step(bench.clock.advance(1))
    now = bench.assignment()
    assert bench.homes() == {2} and now.slot_by_executor.keys() == before.slot_by_executor.keys()
    assert all(placed > before.version for placed in now.placed_version_by_executor.values())


def test_heartbeats_of_workers_that_died_with_their_driver_are_removed_once_they_are_replaced() -> (
    None
):
    bench = TwoDrivers()
    before = set(bench.before.slot_by_executor.values())
    assert set(bench.state.worker_beat_slots(bench.old)) == before
    bench.kill_first()
    bench.spare.step(bench.clock.advance(1))
    # a spare that dies now leaves them for the next one
    assert set(bench.state.worker_beat_slots(bench.old)) == before
    bench.advance(12)
    result = set(bench.state.worker_beat_slots(bench.old))
    assert result == set(bench.assignment().slot_by_executor.values())


def test_workers_of_a_driver_that_lives_are_left_alone_by_a_new_leader() -> None:
    bench = TwoDrivers()
    bench.nimbus._state.store.close()  # its Nimbus ends, its slots go on
    bench.nimbus = bench.spare
    bench.advance(60)
    assert bench.spare.is_leading and bench.assignment() == bench.before


def test_slots_whose_driver_lives_have_their_usual_grace() -> None:
    bench = TwoDrivers()
    for supervisor in bench.first:
        supervisor.die()
    bench.tick()
    assert bench.assignment() == bench.before
    bench.advance(30)
    assert bench.homes() == {2}


def test_a_driver_that_comes_back_stands_by_and_takes_over_in_its_turn() -> None:
    bench = TwoDrivers()
    bench.kill_first()
    bench.advance(5)
    bench.sessions[1] = bench.register(1)
    for supervisor in bench.first:
        supervisor.is_up = True
    again = bench.follower(1)
    again.step(bench.clock.now_ms())
    assert not again.is_leading
    assert again.problems == {"leader": "nimbus-2 leads, this Nimbus stands by"}
    bench.advance(5)
    assert bench.homes() == {2}
    bench.spare._state.store.close()  # an orderly stop of its Nimbus, then its slots
    bench.nimbus = bench.spare = again
    bench.tick(0)
    assert again.is_leading and bench.homes() == {2}
    bench.sessions[2].close()
    for node, supervisor in bench.supervisors.items():
        if driver_of_node(node) == 2:
            supervisor.die()
    bench.tick()
    assert bench.homes() == {1}


def test_a_nimbus_that_leads_again_has_forgotten_what_it_saw() -> None:
    bench = TwoDrivers()
    duties = bench.nimbus.duties
    session = bench.nimbus._state.store
    session.expire_session()  # type: ignore[attr-defined]
    bench.spare.step(bench.clock.advance(10))
    bench.nimbus.step(bench.clock.advance(10_000))
    assert bench.spare.is_leading and not bench.nimbus.is_leading
    bench.service.begin(bench.service.rebalance_request("wc", REBALANCE, 0))
    for _ in range(5):
        bench.spare.step(bench.clock.advance(1000))
    bench.spare._state.store.close()
    bench.spare = bench.nimbus
    bench.advance(2)
    assert bench.nimbus.is_leading and bench.nimbus.duties is not duties
    assert is_rebalanced(bench)


def has_new_fences(bench: TwoDrivers) -> bool:
    return all(
        placed > bench.before.version
        for placed in bench.assignment().placed_version_by_executor.values()
    )


REQUESTS: dict[str, tuple[Callable[[TwoDrivers], object], Callable[[TwoDrivers], bool], int]] = {
    "deactivate": (
        lambda bench: bench.service.deactivate("wc"),
        lambda bench: status(bench) is TopologyStatus.INACTIVE,
        24,
    ),
    "set a log level": (
        lambda bench: bench.service.set_log_level("wc", {"": LogLevel("DEBUG")}),
        is_logging,
        24,
    ),
    "restart all workers": (lambda bench: bench.service.restart_worker("wc"), has_new_fences, 24),
    "kill": (lambda bench: bench.service.kill("wc", 2), is_killed, 60),
    "rebalance": (lambda bench: bench.service.rebalance("wc", REBALANCE, 2), is_rebalanced, 60),
    "update": (
        lambda bench: bench.service.carry_out(
            bench.service.update_request("wc", wordcount(), {"topology.workers": 4}, NEW_CODE)
        ),
        is_deployed,
        60,
    ),
    "refused update": (lambda bench: deploy_in_vain(bench, 4), is_back, 100),
}


def status(bench: TwoDrivers) -> TopologyStatus | None:
    base = bench.state.read_base(bench.old)
    return base.status if base else None


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_wherever_the_leading_driver_dies_the_spare_brings_the_request_to_its_end(
    name: str,
) -> None:
    ask, is_done, secs = REQUESTS[name]
    for at in range(1, MOST_WRITES):
        bench = TwoDrivers(at)
        ask(bench)  # raises unless the request comes to its end
        assert bench.crash
        if not bench.crash.has_crashed:
            return
        assert bench.spare.is_leading and bench.homes() <= {2}, at
        bench.rest(secs)
        assert is_done(bench) and bench.homes() <= {2}, at
        bench.spare._state.store.close()
        bench.nimbus = bench.spare = bench.follower(2)
        bench.rest(24)
        assert_tidy(bench, at)
    raise AssertionError("the leading driver died every time")
