"""Defects of the originals that Nimbus could share, by number (those of scheduling are in
test_jstorm.py): none is copied.
"""

import json
from dataclasses import replace

import pytest

from sparkstorm.common.errors import (
    IllegalTransitionError,
    InvalidConfigError,
    NimbusUnavailableError,
)
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.upgrade import UpgradeStage
from sparkstorm.control_plane.blobs.local import LocalBytesStore
from sparkstorm.control_plane.blobs.store import BlobKind
from sparkstorm.extensions.upgrade.gray_upgrade import classify
from tests.nimbus.nimbus_bench import CODE, Bench, submitted, wordcount
from tests.nimbus.test_requests import Absent


def test_defect_4_no_task_comes_or_goes_with_a_rebalance_and_each_runs_once() -> None:
    bench, topology_id = submitted(nodes=3)
    tasks = bench.state.read_tasks(topology_id)
    assert tasks
    for options in (
        RebalanceOptions(1, {"split": 1, "count": 2}),
        RebalanceOptions(4, {"split": 4, "count": 4}),
    ):
        bench.service.rebalance("wc", options, wait_secs=0)
        bench.advance(3)
        assert bench.state.read_tasks(topology_id) == tasks
        running = sorted(task for executor in bench.slots(topology_id) for task in executor.tasks)
        assert running == sorted(tasks.info_by_task)


@pytest.mark.parametrize("status", [TopologyStatus.ACTIVE, TopologyStatus.INACTIVE])
def test_defect_5_a_rebalance_ends_in_the_status_it_found(status: TopologyStatus) -> None:
    bench, topology_id = submitted()
    if status == TopologyStatus.INACTIVE:
        bench.service.deactivate("wc")
    bench.service.rebalance("wc", RebalanceOptions(2), wait_secs=1)
    bench.advance(3)
    base = bench.base_of(topology_id)
    assert (base.status, base.previous_status, base.num_workers) == (status, None, 2)


def test_defect_7_a_topology_that_is_still_starting_keeps_nobody_from_looking_at_the_others() -> (
    None
):
    bench = Bench(nodes=4)
    old = bench.submit("z-old", topology__workers=2)
    bench.advance(200)
    victim = min(bench.slots(old).values())
    bench.supervisors[victim.node].silent_ports.add(victim.port)
    bench.advance(25)
    for supervisor in bench.supervisors.values():
        supervisor.silent_ports |= {
            port for port in supervisor.ports if port not in supervisor.running
        }
    # first by id, and without its own beat
    young = bench.submit("a-young", topology__workers=2)
    before = bench.slots(young)
    bench.advance(20)
    assert victim not in bench.slots(old).values() and len(bench.slots(old)) == 11
    assert bench.slots(young) == before


def start_upgrade(bench: Bench, number: int = 1, **conf: object) -> None:
    own = {
        "topology.workers": 4,
        "topology.upgrade.worker.num": number,
        **{k.replace("__", "."): v for k, v in conf.items()},
    }
    bench.service.carry_out(bench.service.upgrade_request("wc", wordcount(), own, b"new code"))


def test_defect_9_a_gray_upgrade_stores_the_normalised_topology_and_keeps_the_former_conf() -> None:
    bench = Bench()
    topology_id = bench.submit(app__colour="blue")
    before = bench.state.read_base(topology_id)
    start_upgrade(bench, app__colour="red", topology__max__task__parallelism=4)
    upgrade = bench.state.read_upgrade(topology_id)
    assert before and upgrade
    conf = json.loads(bench.blobs.get(upgrade.code.conf_key, BlobKind.CONF))
    assert conf["app.colour"] == "red"
    assert conf["topology.acker.executors"] == 4
    assert conf["topology.id"] == topology_id
    result = upgrade.outline.executors_by_component
    assert result == {"__acker": 4, "count": 4, "lines": 1, "split": 4}
    bench.advance(100)  # the sweep comes by
    assert (
        json.loads(bench.blobs.get(upgrade.former.conf_key, BlobKind.CONF))["app.colour"] == "blue"
    )
    assert bench.blobs.get(upgrade.former.code_key) == CODE
    bench.service.roll_back_upgrade("wc")
    bench.advance(5)
    assert bench.assignment_of(topology_id).blob_keys() == {before.code_key, before.conf_key}


def test_defect_10_all_times_of_a_gray_upgrade_are_milliseconds() -> None:
    bench, topology_id = submitted()
    start_upgrade(bench, topology__upgrade__ttl=60)
    upgrade = bench.state.read_upgrade(topology_id)
    assert upgrade and (upgrade.started_ms, upgrade.expires_ms) == (
        bench.clock.now_ms(),
        bench.clock.now_ms() + 60_000,
    )
    bench.advance(59)
    assert (
        classify(bench.state.read_upgrade(topology_id), bench.clock.now_ms())
        is UpgradeStage.IN_PROGRESS
    )
    bench.advance(3)
    base = bench.base_of(topology_id)
    assert base.status is TopologyStatus.ACTIVE
    assert bench.state.read_upgrade(topology_id) is None


@pytest.mark.parametrize(
    "status", [each for each in TopologyStatus if each is not TopologyStatus.ACTIVE]
)
def test_defect_11_only_an_active_topology_can_be_upgraded(status: TopologyStatus) -> None:
    bench, topology_id = submitted()
    # of a turn only requests: no other duty changes that status
    bench.nimbus.duties.in_turn = bench.nimbus.duties.in_turn[2:3]
    bench.nimbus.duties.in_round = ()
    bench.state.update_base(topology_id, lambda base: replace(base, status=status))
    sentence = rf"is {status}: upgrade start does not apply|is in progress"
    with pytest.raises(IllegalTransitionError, match=sentence):
        start_upgrade(bench)
    assert (
        bench.base_of(topology_id).status is status
        and bench.state.read_upgrade(topology_id) is None
    )


@pytest.mark.parametrize(("secs", "limit_ms"), [(7, 7_000), (0, 0), (-1, 0)])
def test_defect_15_a_second_of_waiting_for_copies_is_a_second(secs: float, limit_ms: int) -> None:
    asked: list[tuple[int, int]] = []

    class Lonely(LocalBytesStore):
        def wait_copies(self, wanted: int, timeout_ms: int) -> int:
            asked.append((wanted, timeout_ms))
            return 1

    bench = Bench()
    bench.bytes_store = Lonely()
    bench.start_nimbus()
    assert bench.submit(
        topology__min__replication__count=3, topology__max__replication__wait__time__sec=secs
    )
    assert asked == [(3, limit_ms)]


def test_defect_16_a_hot_deploy_waits_until_the_old_workers_have_really_stopped() -> None:
    bench, old = submitted(task__cleanup__timeout__sec=20)
    bench.advance(2)
    for supervisor in bench.supervisors.values():
        supervisor.is_up = False  # nobody stops the workers, and their beats stay
    began_ms = bench.clock.now_ms()
    new = bench.submit(code=b"new", topology__hot__deploy__enable=True)
    assert bench.state.topology_ids() == [new] != [old]
    assert bench.clock.now_ms() - began_ms >= 20_000


@pytest.mark.parametrize("times", [1, 3])
def test_defect_19_a_name_is_free_again_after_every_end_of_a_submission(times: int) -> None:
    bench = Bench(nimbus__request__timeout__secs=5)
    for _ in range(times):
        with pytest.raises(InvalidConfigError):
            bench.submit(topology__wrokers=1)
        bench.nimbus, nimbus = Absent(), bench.nimbus  # type: ignore[assignment]
        with pytest.raises(NimbusUnavailableError):
            bench.submit()
        bench.nimbus = nimbus
        bench.submit()
        bench.submit(code=b"new", topology__hot__deploy__enable=True)
        bench.service.kill("wc", 0)
        bench.advance(30)
        assert bench.state.known_ids() == set()
        assert bench.state.request_ids() == bench.state.outcome_ids() == []
