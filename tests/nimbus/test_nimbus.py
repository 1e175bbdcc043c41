"""Tells what Nimbus does with topologies, deaths, restarts and bad records, in a simulated
cluster.
"""

from collections import Counter

import pytest

from sparkstorm.common.errors import FailedAssignTopologyError, IllegalTransitionError
from sparkstorm.common.model.assignment import SupervisorInfo
from sparkstorm.common.model.requests import OutcomeState, RequestKind
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.topology import Component, Grouping, Stream, Subscription, Topology
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.hooks import NimbusHooks, NothingToRetire
from sparkstorm.control_plane.nimbus.nimbus import Nimbus
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.nimbus.nimbus_bench import KEY, Bench, FakeSupervisor, submitted, wordcount


def test_a_submitted_topology_is_assigned_over_all_workers() -> None:
    bench, topology_id = submitted()
    slots = bench.slots(topology_id)
    assert len(slots) == 1 + 4 + 4 + 4  # lines, split, count, ackers
    assert len(set(slots.values())) == 4
    assert bench.base_of(topology_id).status == TopologyStatus.ACTIVE


def test_ten_executors_on_two_workers_are_five_each() -> None:
    """The example of S3.24: a spout of 2 executors, a bolt of 2 with 4 tasks, a bolt of 6."""
    blue, green = (Subscription(each, "default", Grouping("shuffle")) for each in ("blue", "green"))
    streams = {"default": Stream(("value",))}
    parts = (
        Component("blue", "spout", None, 2, streams=streams),
        Component("green", "bolt", None, 2, 4, streams=streams, inputs=(blue,)),
        Component("yellow", "bolt", None, 6, inputs=(green,)),
    )
    bench = Bench()
    topology = Topology({each.id: each for each in parts})
    placed = bench.slots(
        bench.submit(topology=topology, topology__workers=2, topology__acker__executors=0)
    )
    assert sorted(Counter(placed.values()).values()) == [5, 5]
    assert sorted(len(executor.tasks) for executor in placed) == [1] * 8 + [2] * 2


def test_an_untroubled_cluster_is_left_alone() -> None:
    bench, topology_id = submitted()
    before = bench.state.read_assignment(topology_id)
    bench.advance(600)
    assert bench.state.read_assignment(topology_id) == before


def test_a_topology_waits_for_supervisors_that_come_later() -> None:
    bench = Bench()
    for supervisor in bench.supervisors.values():
        supervisor.is_up = False
        supervisor.store.expire_session()
    topology_id = bench.submit()
    bench.advance(11)  # a whole period: no turn is left over from the submission
    assert bench.slots(topology_id) == {}
    assert bench.nimbus.step(bench.clock.now_ms()) >= bench.clock.now_ms() + 3_000
    for supervisor in bench.supervisors.values():
        supervisor.is_up = True
    bench.advance(2)  # the watch on supervisors makes a round due at once
    assert len(set(bench.slots(topology_id).values())) == 4


class Asked(DefaultScheduler):
    """Counts the rounds."""

    rounds = 0

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        self.rounds += 1
        super().schedule(topologies, cluster)


def test_a_supervisor_that_comes_or_goes_makes_a_round_at_once() -> None:
    """S3.48: the watch on the supervisors; without it the next period of 10 s would."""
    scheduler = Asked()
    bench = Bench(scheduler=scheduler)
    bench.submit()
    bench.advance(11)
    now_ms, before = bench.clock.now_ms(), scheduler.rounds
    assert bench.nimbus.step(now_ms) >= now_ms + 3_000 and scheduler.rounds == before
    newcomer = FakeSupervisor("node-9", "host-9", (6700,), bench.tree)
    newcomer.step(now_ms)
    bench.nimbus.step(now_ms)
    assert scheduler.rounds == before + 1, "one has come"
    assert bench.nimbus.step(now_ms) >= now_ms + 3_000
    newcomer.store.expire_session()
    bench.nimbus.step(now_ms)
    assert scheduler.rounds == before + 2, "it has gone"


def test_slots_that_come_back_to_a_supervisor_are_used_before_the_next_round() -> None:
    bench, topology_id = submitted(ports=(6700,))
    bench.advance(11)
    assert len(set(bench.slots(topology_id).values())) == 2
    assert bench.nimbus.step(bench.clock.now_ms()) >= bench.clock.now_ms() + 3_000
    for supervisor in bench.supervisors.values():
        supervisor.ports = (6700, 6701)
    bench.advance(1)
    assert len(set(bench.slots(topology_id).values())) == 4
    due_ms = bench.nimbus.step(bench.clock.now_ms())
    bench.advance(1)  # supervisors that register as before make no round
    assert bench.nimbus.step(bench.clock.now_ms()) == due_ms


def test_the_executors_of_a_lost_host_move_and_the_others_stay() -> None:
    bench, topology_id = submitted(nodes=3)
    before = bench.assignment_of(topology_id)
    lost = before.executors_by_slot()
    node = sorted(lost)[0].node
    bench.supervisors[node].die()
    bench.advance(60)
    after = bench.assignment_of(topology_id)
    assert node not in {slot.node for slot in after.slot_by_executor.values()}
    assert after.slot_by_executor.keys() == before.slot_by_executor.keys()
    for executor, slot in before.slot_by_executor.items():
        if slot.node != node:
            assert after.slot_by_executor[executor] == slot
            result = after.placed_version_by_executor[executor]
            assert result == before.placed_version_by_executor[executor]
            assert after.start_ms_by_executor[executor] == before.start_ms_by_executor[executor]
        else:
            assert (
                after.placed_version_by_executor[executor]
                > before.placed_version_by_executor[executor]
            )


def test_killing_stops_the_workers_first_and_leaves_no_trace() -> None:
    bench = Bench()
    retired: list[str] = []

    class Retirement(NothingToRetire):
        def retire(self, topology_id: str) -> None:
            assert topology_id not in bench.state.assignment_ids()
            retired.append(topology_id)

        def hand_over(self, old_id: str, new_id: str) -> None:
            raise AssertionError("nobody deploys here")

    bench.nimbus.hooks.retirement = Retirement()
    topology_id = bench.submit()
    bench.service.kill("wc", wait_secs=5)
    assert bench.base_of(topology_id).status == TopologyStatus.KILLED
    bench.advance(4)
    assert bench.slots(topology_id)
    bench.advance(3)
    assert bench.state.known_ids() == set()
    assert retired == [topology_id]
    bench.advance(700)
    assert bench.state.blob_keys() == []
    assert bench.bytes_store.list_keys() == []


def test_a_kill_waits_for_workers_that_do_not_stop_but_not_for_ever() -> None:
    bench, topology_id = submitted()
    bench.advance(2)
    for supervisor in bench.supervisors.values():
        supervisor.is_up = False  # its beats stay
    bench.service.kill("wc", wait_secs=0)
    bench.advance(5)
    assert bench.state.read_base(topology_id)
    bench.advance(10)
    assert bench.state.known_ids() == set()


def test_a_rebalance_to_more_workers_moves_only_what_must_move() -> None:
    bench = Bench(nodes=4)
    # 12 executors, 6 in each worker
    topology_id = bench.submit(topology__workers=2, topology__acker__executors=3)
    before = bench.slots(topology_id)
    bench.service.rebalance("wc", RebalanceOptions(4), wait_secs=0)
    bench.advance(3)
    after = bench.slots(topology_id)
    assert len(set(after.values())) == 4
    assert sum(before[each] == slot for each, slot in after.items()) == 6


def test_a_rebalancing_topology_can_be_killed() -> None:
    bench = Bench()
    bench.submit()
    pending = bench.begin_rebalance("wc", RebalanceOptions(2), 30)
    bench.service.kill("wc", wait_secs=1)
    sentence = "called off: another request came before it fell due"
    with pytest.raises(IllegalTransitionError, match=sentence):
        pending.wait()
    bench.advance(5)
    assert bench.state.known_ids() == set()


def test_a_dry_run_plans_what_the_rebalance_then_does_and_writes_nothing() -> None:
    bench = Bench(nodes=4)
    topology_id = bench.submit(topology__workers=2)
    before = bench.state.read_assignment(topology_id)
    plan = bench.service.plan_rebalance("wc", RebalanceOptions(3, {"count": 2}))
    base = bench.state.read_base(topology_id)
    assert bench.state.read_assignment(topology_id) == before
    assert base and base.status == TopologyStatus.ACTIVE and base.pending is None
    assert before and plan.before == before.slot_by_executor and plan.unplaced == ()
    bench.service.rebalance("wc", RebalanceOptions(3, {"count": 2}), wait_secs=0)
    bench.advance(2)
    assert bench.slots(topology_id) == dict(plan.after)
    assert len(plan.movement.dropped) == 4
    assert len(plan.movement.stayed) + len(plan.movement.moved) == len(plan.after)


class Misbehaving:
    """A plugged-in scheduler that works until told otherwise."""

    def __init__(self) -> None:
        self.good = DefaultScheduler()
        self.is_broken = False

    def prepare(self, conf: object) -> None:
        pass

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        self.good.schedule(topologies, cluster)
        if self.is_broken:
            raise RuntimeError("boom")


def test_a_misbehaving_scheduler_changes_nothing_and_fails_the_submission_with_its_reason() -> None:
    scheduler = Misbehaving()
    bench = Bench(nodes=4, scheduler=scheduler)
    topology_id = bench.submit("first", topology__workers=2)
    before = bench.state.read_assignment(topology_id)
    scheduler.is_broken = True
    with pytest.raises(FailedAssignTopologyError, match="boom"):
        bench.submit("second")
    bench.advance(30)
    assert bench.state.read_assignment(topology_id) == before
    assert bench.state.known_ids() == {topology_id}
    assert "scheduler" in bench.nimbus.problems


def test_a_topology_with_a_broken_record_is_left_out_and_the_others_go_on() -> None:
    bench = Bench(nodes=4)
    broken = bench.submit("broken", topology__workers=2)
    sound = bench.submit("sound", topology__workers=2)
    bench.store.put(paths.outline(broken), b"garbage")
    bench.restart_nimbus()
    node = sorted(set(bench.slots(sound).values()))[0].node
    held = set(bench.slots(broken).values())
    bench.supervisors[node].die()
    bench.advance(40)
    assert node not in {slot.node for slot in bench.slots(sound).values()}
    assert set(bench.slots(broken).values()) == held
    assert paths.outline(broken) in bench.nimbus.problems[broken]
    bench.service.kill("broken", wait_secs=0)
    bench.advance(20)
    assert bench.state.known_ids() == {sound}


@pytest.mark.parametrize(
    "path",
    [
        paths.deploy("other"),
        paths.submission("other"),
        paths.request("other"),
        paths.outcome("a" * 32),
    ],
)
def test_a_broken_record_of_a_deploy_or_a_submission_stops_nobody_else(path: str) -> None:
    bench, topology_id = submitted(nodes=3)
    bench.store.put(path, b"garbage")
    node = min(bench.slots(topology_id).values()).node
    bench.supervisors[node].die()
    bench.advance(40)
    assert node not in {slot.node for slot in bench.slots(topology_id).values()}
    assert path != paths.deploy("other") or path in bench.nimbus.problems["other"]
    bench.service.kill("wc", 0)
    bench.advance(20)
    assert bench.state.known_ids() == set()


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"format":9}'])
def test_a_broken_beat_is_silence_and_nothing_worse(data: bytes) -> None:
    bench, topology_id = submitted(nodes=3)
    bench.advance(150)
    victim = sorted(set(bench.slots(topology_id).values()))[0]
    bench.supervisors[victim.node].silent_ports.add(victim.port)
    bench.store.put(paths.workerbeat(topology_id, victim), data)
    bench.advance(50)
    assert victim not in bench.slots(topology_id).values()
    assert len(bench.slots(topology_id)) == 13


def test_orphans_are_swept_and_a_submission_under_way_is_not() -> None:
    bench = Bench()
    bench.state.prepare_worker_beats("orphan-1-1")
    bench.state.prepare_gray_upgrade("orphan-1-1")
    bench.state.protect("under-way-2-2")
    bench.state.prepare_worker_beats("under-way-2-2")
    bench.advance(30)
    assert bench.state.known_ids() == {"under-way-2-2"}


def test_only_the_leader_works_and_a_follower_takes_over_at_once() -> None:
    bench, topology_id = submitted()
    woken: list[int] = []
    state = StormState(LocalStateStore(bench.tree), KEY)
    second = Nimbus(
        state,
        bench.blobs,
        bench.scheduler,
        bench.conf,
        "second",
        NimbusHooks(wake=lambda: woken.append(1)),
    )
    second.step(bench.clock.now_ms())
    assert (bench.nimbus.is_leading, second.is_leading) == (True, False)
    assert "nimbus leads" in second.problems["leader"]
    client = bench.client(LocalStateStore(bench.tree))
    pending = client.begin(client.new_request(RequestKind.KILL, "wc", wait_ms=0))
    second.step(bench.clock.advance(20_000))
    assert pending.poll() is None and bench.state.read_base(topology_id)
    woken.clear()
    bench.store.expire_session()
    assert woken
    for _ in range(20):
        second.step(bench.clock.advance(1000))
        for supervisor in bench.supervisors.values():
            supervisor.step(bench.clock.now_ms())
    assert second.is_leading and "leader" not in second.problems
    outcome = pending.poll()
    assert outcome and outcome.state is OutcomeState.DONE
    assert bench.state.known_ids() == set()


def test_listeners_hear_of_everything_and_may_fail() -> None:
    bench = Bench()
    heard: list[tuple[str, str]] = []

    class Listener:
        def notify(self, topology_name: str, action: str) -> None:
            heard.append((topology_name, action))
            raise RuntimeError("a listener of a user")

    bench.nimbus.hooks.listeners.append(Listener())
    bench.submit()
    bench.service.deactivate("wc")
    bench.service.activate("wc")
    bench.service.rebalance("wc", RebalanceOptions(2), wait_secs=0)
    bench.advance(2)
    bench.service.kill("wc", wait_secs=0)
    bench.advance(5)
    actions = [action for name, action in heard if name == "wc"]
    assert actions == [
        "startTopology", "submitTopology", "deactivate", "activate", "rebalanceRequested", "rebalance",
        "killTopology", "removeTopology",
    ]  # fmt: skip


def test_nobody_is_reassigned_when_reassigning_is_off() -> None:
    bench, topology_id = submitted(nodes=3, nimbus__reassign=False)
    before = bench.state.read_assignment(topology_id)
    bench.supervisors["node-0"].die()
    bench.advance(300)
    assert bench.state.read_assignment(topology_id) == before


def test_rounds_are_as_rare_as_the_key_says() -> None:
    bench = Bench()
    bench.submit(topology=wordcount(1, 1))
    bench.advance(20)
    now_ms = bench.clock.now_ms()
    due = bench.nimbus.step(now_ms)
    assert now_ms < due <= now_ms + 10_000
    assert bench.nimbus.step(due - 1) == due


@pytest.mark.parametrize("data", [None, b"", b"garbage", b"sparkstorm-2 json 00ff\n{}"])
def test_a_lost_or_damaged_assignment_is_written_again_without_moving_anybody(
    data: bytes | None,
) -> None:
    bench, topology_id = submitted()
    before = bench.assignment_of(topology_id)
    if data is None:
        bench.store.delete(paths.assignment(topology_id))
    else:
        bench.store.put(paths.assignment(topology_id), data)
    bench.nimbus.step(bench.clock.advance(10_000))
    after = bench.assignment_of(topology_id)
    assert after.version > before.version
    assert after.slot_by_executor == before.slot_by_executor
    assert after.placed_version_by_executor == before.placed_version_by_executor


def test_a_damaged_backup_stops_no_other_topology() -> None:
    bench = Bench(nodes=4)
    broken = bench.submit("broken", topology__workers=2)
    sound = bench.submit("sound", topology__workers=2)
    for path in (paths.assignment(broken), paths.under(paths.ASSIGNMENTS_BACKUP, "broken")):
        bench.store.put(path, b"garbage")
    node = sorted(set(bench.slots(sound).values()))[0].node
    bench.supervisors[node].die()
    for _ in range(60):
        for supervisor in bench.supervisors.values():
            if supervisor.is_up:
                supervisor.state.register_supervisor(
                    SupervisorInfo(supervisor.node, supervisor.host, 0, 0, supervisor.ports)
                )
        bench.nimbus.step(bench.clock.advance(1000))
    assert node not in {slot.node for slot in bench.slots(sound).values()}
    assert any("garbage" in problem for problem in bench.nimbus.problems.values())


def test_chunks_that_a_cut_submission_left_are_swept_by_the_next_nimbus() -> None:
    bench = Bench()
    bench.submit()
    whole = bench.bytes_store.list_keys()
    bench.bytes_store.put("f00:0", b"left over")
    bench.restart_nimbus()
    bench.advance(2)
    assert bench.bytes_store.list_keys() != whole, "a client may be storing them now"
    bench.advance(320)
    assert bench.bytes_store.list_keys() == whole
