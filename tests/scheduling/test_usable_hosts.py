"""Decisions about hosts that do not reach Redis, are drained or excluded, alone and as Nimbus acts
on them.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.common.config import default_conf
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import Assignment, ExecutorId, SupervisorInfo, WorkerSlot
from sparkstorm.common.model.requests import RequestKind
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.common.settings import NimbusSettings
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.nimbus.heartbeat_monitor import StoreWatch
from sparkstorm.control_plane.scheduling.jstorm.adapter import JStormScheduler
from sparkstorm.control_plane.scheduling.liveness import StoreReach, look_at_stores, vacated
from sparkstorm.control_plane.scheduling.snapshot import Snapshot
from sparkstorm.control_plane.scheduling.view import Scheduler
from tests.nimbus.nimbus_bench import Bench

LIMIT_MS = 20_000


def supervisors(**cut: bool) -> list[SupervisorInfo]:
    """Supervisors by node; the host is the node's name before an underscore."""
    return [
        SupervisorInfo(
            node,
            node.partition("_")[0],
            0,
            0,
            (6700,),
            store_problem="cut" if is_cut else "",
            store_away_ms=2_000,
        )
        for node, is_cut in cut.items()
    ]


def after(*rounds: tuple[int, dict[str, bool]]) -> StoreReach:
    reach = StoreReach()
    for now_ms, cut in rounds:
        reach = look_at_stores(reach, supervisors(**cut), now_ms, LIMIT_MS)
    return reach


def test_a_host_is_named_at_once_and_given_up_after_the_time_out() -> None:
    early = after((10_000, {"w1": False, "w2": True}))
    assert early.cut["w2"].since_ms == 8_000 and not early.given_up and not early.is_general
    assert early.due_ms(LIMIT_MS) == 30_000
    assert not after(
        (10_000, {"w1": False, "w2": True}), (29_999, {"w1": False, "w2": True})
    ).given_up
    late = after((10_000, {"w1": False, "w2": True}), (30_000, {"w1": False, "w2": True}))
    assert late.given_up == {"w2"}
    assert late.due_ms(LIMIT_MS) is None
    assert late.cut["w2"].since_ms == 8_000


def test_nobody_is_moved_while_nobody_reaches_redis() -> None:
    all_cut = {"w1": True, "w2": True}
    reach = after((0, all_cut), (100_000, all_cut))
    assert reach.is_general
    assert not reach.given_up
    assert reach.due_ms(LIMIT_MS) is None
    assert set(reach.cut) == {"w1", "w2"}


def test_the_last_host_to_reach_redis_again_after_an_outage_keeps_its_workers() -> None:
    reach = after(
        (0, {"w1": True, "w2": True}),
        (100_000, {"w1": True, "w2": True}),
        (101_000, {"w1": False, "w2": True}),
    )
    assert not reach.given_up and reach.due_ms(LIMIT_MS) == 121_000


def test_an_outage_for_all_begins_the_wait_of_a_cut_host_anew() -> None:
    one, both = {"w1": False, "w2": True}, {"w1": True, "w2": True}
    assert not after((0, one), (15_000, both), (16_000, one), (30_000, one)).given_up
    assert after((0, one), (15_000, both), (16_000, one), (36_000, one)).given_up == {"w2"}


def test_a_host_that_is_back_is_used_at_once() -> None:
    one = {"w1": False, "w2": True}
    assert after((0, one), (20_000, one), (21_000, {"w1": False, "w2": False})) == StoreReach()


def test_two_nodes_of_one_host_must_agree() -> None:
    assert not after((0, {"w1_a": True, "w1_b": False, "w2": False})).cut
    assert set(after((0, {"w1_a": True, "w1_b": True, "w2": False})).cut) == {"w1"}


def test_a_host_that_was_given_up_offers_nothing_and_nobody_lives_there() -> None:
    on = {ExecutorId(1, 1): WorkerSlot("w1", 6700), ExecutorId(2, 2): WorkerSlot("w2", 6700)}
    assignment = Assignment("t", 1, "", "", {}, on)
    known: Any = {}
    snapshot = Snapshot(
        known,
        {"t": assignment},
        {each.supervisor_id: each for each in supervisors(w1=False, w2=True)},
    )
    seen, alive = vacated(snapshot, {"t": on.keys()}, {"w2"})
    assert alive == {"t": {ExecutorId(1, 1)}}
    assert (seen.supervisors["w1"].ports, seen.supervisors["w2"].ports) == ((6700,), ())
    same = vacated(snapshot, {"t": on.keys()}, frozenset())
    assert same[0] is snapshot


class Cluster(Bench):
    """A simulated cluster with three hosts, whose supervisors say that Redis is away when they are
    told to.
    """

    def __init__(self, workers: int = 3, scheduler: Scheduler | None = None, **conf: Any) -> None:
        super().__init__(nodes=3, scheduler=scheduler, **conf)
        self.topology_id = self.submit(topology__workers=workers)
        self.advance(12)

    def cut(self, *nodes: str) -> None:
        for node, supervisor in self.supervisors.items():
            supervisor.store_problem = "the network is cut" if node in nodes else ""

    def used(self) -> set[str]:
        return {slot.node for slot in self.slots(self.topology_id).values()}


def test_nimbus_names_a_cut_host_at_once_moves_its_workers_and_uses_it_again_later() -> None:
    cluster = Cluster()
    assert cluster.used() == {"node-0", "node-1", "node-2"}
    cluster.cut("node-1")
    cluster.advance(1)
    sentence = cluster.nimbus.problems["host host-1"]
    assert sentence.startswith("host-1 does not reach Redis since ")
    assert "moved when that has lasted 20 s" in sentence
    shown = cluster.state.read_problems()
    assert shown is not None and shown.by_subject["host host-1"] == sentence
    assert cluster.service.problems_of(cluster.topology_id) == [sentence]
    cluster.advance(18)
    assert "node-1" in cluster.used()
    cluster.advance(3)
    assert "node-1" not in cluster.used() and len(cluster.slots(cluster.topology_id)) == 12
    assert "its workers are moved to other hosts" in cluster.nimbus.problems["host host-1"]
    assert cluster.service.problems_of(cluster.topology_id) == [], "it has no worker there any more"
    state, topology_id = cluster.state, cluster.topology_id
    assert not any(
        state.read_errors(topology_id, each) for each in state.error_components(topology_id)
    ), "nobody is dead"
    cluster.advance(60)
    assert "node-1" not in cluster.used(), "the cut lasts"
    cluster.cut()
    cluster.advance(1)
    assert "host host-1" not in cluster.nimbus.problems
    cluster.service.rebalance("wc", RebalanceOptions(3, reassign=True), 0)
    cluster.advance(30)
    assert "node-1" in cluster.used()


def test_nimbus_leaves_all_in_place_when_no_host_reaches_redis() -> None:
    cluster = Cluster()
    before = cluster.state.read_assignment(cluster.topology_id)
    cluster.cut("node-0", "node-1", "node-2")
    cluster.advance(60)
    assert cluster.state.read_assignment(cluster.topology_id) == before
    assert cluster.nimbus.problems["redis"].startswith("no host reaches Redis since ")
    assert cluster.service.problems_of(cluster.topology_id) == [cluster.nimbus.problems["redis"]]
    cluster.cut("node-1")
    cluster.advance(10)
    assert cluster.state.read_assignment(cluster.topology_id) == before, (
        "its wait begins when others reach Redis"
    )


def test_nimbus_that_may_not_reassign_names_a_cut_host_only() -> None:
    cluster = Cluster(nimbus__reassign=False)
    cluster.cut("node-1")
    cluster.advance(60)
    assert "node-1" in cluster.used()
    assert "nimbus.reassign is false" in cluster.nimbus.problems["host host-1"]


def drain(cluster: Bench, host: str) -> None:
    cluster.service.mark_host(RequestKind.DRAIN_HOST, host, "new disks")


def workers_on(cluster: Cluster, node: str) -> int:
    return len({slot for slot in cluster.slots(cluster.topology_id).values() if slot.node == node})


@pytest.mark.parametrize("kind", ["default", "jstorm"])
def test_the_workers_of_a_drained_host_move_and_nobody_else_does(kind: str) -> None:
    cluster = Cluster(scheduler=JStormScheduler() if kind == "jstorm" else None)
    before = cluster.slots(cluster.topology_id)
    drain(cluster, "host-1")
    cluster.advance(12)
    after = cluster.slots(cluster.topology_id)
    assert workers_on(cluster, "node-1") == 0
    assert len(set(after.values())) == 3
    assert after.keys() == before.keys()
    assert all(after[each] == slot for each, slot in before.items() if slot.node != "node-1")
    mark = cluster.state.read_host_marks()["host-1"]
    assert (mark.is_drained, mark.reason) == (True, "new disks") and "@" in mark.by
    state = cluster.state
    assert not any(
        state.read_errors(cluster.topology_id, each)
        for each in state.error_components(cluster.topology_id)
    )
    assert "blacklist" not in cluster.nimbus.problems


@pytest.mark.parametrize("num_workers", [5, 6])
def test_of_a_drained_host_as_many_workers_move_as_slots_elsewhere_are_free(
    num_workers: int,
) -> None:
    cluster = Cluster(workers=num_workers)
    before = cluster.slots(cluster.topology_id)
    drain(cluster, "host-1")
    cluster.advance(12)
    after = cluster.slots(cluster.topology_id)
    assert workers_on(cluster, "node-1") == num_workers - 4
    assert len(set(after.values())) == num_workers and after.keys() == before.keys()
    assert all(after[each] == slot for each, slot in before.items() if slot.node != "node-1")


def test_a_drain_goes_on_when_slots_become_free() -> None:
    cluster = Cluster(workers=2)
    other = cluster.submit("other", topology__workers=4)
    cluster.advance(12)
    assert {slot.node for slot in cluster.slots(other).values()} >= {"node-1"}
    drain(cluster, "host-1")
    cluster.advance(12)
    stay = {
        slot
        for each in (cluster.topology_id, other)
        for slot in cluster.slots(each).values()
        if slot.node == "node-1"
    }
    assert len(stay) == 2
    cluster.service.kill("wc", 0)
    cluster.advance(20)
    assert "node-1" not in {slot.node for slot in cluster.slots(other).values()}
    assert len(set(cluster.slots(other).values())) == 4


def test_an_excluded_host_keeps_its_workers_and_gets_no_new_ones_until_it_is_included() -> None:
    cluster = Cluster()
    before = cluster.slots(cluster.topology_id)
    cluster.service.mark_host(RequestKind.EXCLUDE_HOST, "host-1")
    cluster.advance(12)
    assert cluster.slots(cluster.topology_id) == before
    other = cluster.submit("other", topology__workers=3)
    cluster.advance(12)
    assert {slot.node for slot in cluster.slots(other).values()} == {"node-0", "node-2"}
    assert len(set(cluster.slots(other).values())) == 2, "the third has no slot"
    cluster.service.mark_host(RequestKind.INCLUDE_HOST, "host-1")
    cluster.advance(12)
    assert "node-1" in {slot.node for slot in cluster.slots(other).values()}
    assert not cluster.state.read_host_marks()


def test_every_node_of_a_drained_host_is_drained_and_another_nimbus_keeps_it_so() -> None:
    cluster = Cluster(workers=2)
    cluster.supervisors["node-1"].host = "host-0"
    cluster.advance(60)
    drain(cluster, "host-0")
    cluster.restart_nimbus()
    cluster.advance(60)
    assert cluster.used() == {"node-2"}
    cluster.service.rebalance("wc", RebalanceOptions(2, reassign=True), 0)
    cluster.advance(30)
    assert cluster.used() == {"node-2"}


def test_a_rebalance_that_places_all_anew_leaves_them_there_when_every_host_is_excluded() -> None:
    cluster = Cluster()
    for host in ("host-0", "host-1", "host-2"):
        cluster.service.mark_host(RequestKind.EXCLUDE_HOST, host)
    cluster.service.rebalance("wc", RebalanceOptions(3, reassign=True), 0)
    cluster.advance(12)
    assert len(cluster.slots(cluster.topology_id)) == 12


def test_a_host_that_is_none_of_the_clusters_is_refused_by_name() -> None:
    cluster = Cluster()
    sentence = "host host-9 is not one of this cluster's: host-0, host-1, host-2"
    with pytest.raises(InvalidConfigError, match=sentence):
        drain(cluster, "host-9")
    sentence = "host host-1 is neither drained nor excluded; no host is"
    with pytest.raises(InvalidConfigError, match=sentence):
        cluster.service.mark_host(RequestKind.INCLUDE_HOST, "host-1")
    with pytest.raises(InvalidConfigError, match="is no host's name"):
        drain(cluster, "a\nb")
    assert not cluster.state.read_host_marks()


def test_damaged_marks_are_named_the_last_good_ones_hold_and_the_next_change_mends_them() -> None:
    cluster = Cluster()
    drain(cluster, "host-1")
    cluster.store.put(paths.HOSTS, b"damaged")
    cluster.advance(12)
    assert paths.HOSTS in cluster.nimbus.problems["hosts"] and workers_on(cluster, "node-1") == 0
    cluster.service.mark_host(RequestKind.EXCLUDE_HOST, "host-2")
    cluster.advance(2)
    assert "hosts" not in cluster.nimbus.problems
    result = {host: mark.is_drained for host, mark in cluster.state.read_host_marks().items()}
    assert result == {"host-1": True, "host-2": False}


def test_the_plan_of_a_drain_is_what_the_drain_does_and_changes_nothing() -> None:
    cluster = Cluster(workers=5)
    before = cluster.slots(cluster.topology_id)
    (plan,) = cluster.service.plan_drain("host-1")
    assert cluster.slots(cluster.topology_id) == before == plan.before
    assert not cluster.state.read_host_marks()
    drain(cluster, "host-1")
    cluster.advance(12)
    assert cluster.slots(cluster.topology_id) == plan.after != before
    assert cluster.service.plan_drain("host-1") == (), "what stays has no slot to go to"


def test_each_of_several_stores_is_judged_by_itself() -> None:
    def hosts(far: dict[str, str]) -> list[SupervisorInfo]:
        return [
            SupervisorInfo(host, host, 0, 0, (6700,), other_stores={"far": far.get(host, "")})
            for host in ("h1", "h2")
        ]

    watch = StoreWatch(NimbusSettings.of(default_conf()))
    watch.observe(hosts({"h1": "cut"}), 1_000)
    assert watch.problems.keys() == {"host h1"}
    assert "h1 does not reach Redis far since" in watch.problems["host h1"]
    due_ms = watch.due_ms
    assert due_ms is not None and due_ms > 1_000
    watch.observe(hosts({"h1": "cut"}), due_ms)
    snapshot, _ = watch.usable(
        Snapshot({}, {}, {info.supervisor_id: info for info in hosts({})}), {}
    )
    assert [bool(info.ports) for info in snapshot.supervisors.values()] == [False, True]
    watch.observe(hosts({"h1": "cut", "h2": "cut"}), due_ms + 1)
    assert watch.problems.keys() == {"redis far"} and watch.due_ms is None
    assert "no host reaches Redis far" in watch.problems["redis far"]
    watch.observe(hosts({}), due_ms + 2)
    assert watch.problems == {} and watch.usable(snapshot, {}) == (snapshot, {})
