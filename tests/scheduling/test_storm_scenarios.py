"""Scenarios of Storm's own scheduler tests, with figures of our own."""

from typing import Any

import pytest

from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.control_plane.scheduling.blacklist import BlacklistScheduler
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.multitenant.scheduler import MultitenantScheduler
from sparkstorm.control_plane.scheduling.records import ComponentView, SupervisorView, TopologyView
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.resource.scheduler import ResourceAwareScheduler
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.scheduling.clusters import (
    cluster,
    component,
    places,
    singles,
    supervisor,
    topology,
    workers_by_node,
)

HEAP = "topology.component.resources.onheap.memory.mb"
CPU = "topology.component.cpu.pcore.percent"


def load(
    name: str,
    executors: int,
    heap: float = 128.0,
    cpu: float = 10.0,
    owner: str = "ann",
    **conf: Any,
) -> TopologyView:
    """A spout and a bolt that reads it, so many executors each."""
    parts = [
        ComponentView("in", "spout", singles(executors), {HEAP: heap, CPU: cpu}),
        component("out", singles(executors, executors + 1), "bolt", "in", **{HEAP: heap, CPU: cpu}),
    ]
    return topology(
        name,
        parts,
        1,
        owner=owner,
        conf={key.replace("__", "."): value for key, value in conf.items()},
    )


def nodes(
    names: str, memory: float = 2000.0, cpu: float = 400.0, **more: Any
) -> list[SupervisorView]:
    return [supervisor(name, 1, 2, 3, 4, memory=memory, cpu=cpu, **more) for name in names]


def schedule(view: ClusterView, **conf: Any) -> ClusterView:
    scheduler = ResourceAwareScheduler()
    scheduler.prepare(conf)
    scheduler.schedule(view.topologies, view)
    return view


def survivors(view: ClusterView, *lost: str, ports: tuple[str, ...] = ()) -> ClusterView:
    """The next round after these supervisors, or these workers, died."""
    alive = {
        name: {
            tuple(each): str(slot)
            for each, slot in rows.items()
            if slot.node not in lost and str(slot) not in ports
        }
        for name, rows in view.assignments().items()
    }
    living = [each for each in view.supervisors.values() if each.id not in lost]
    return cluster(living, list(view.topologies.values()), alive)  # type: ignore[arg-type]


# -- resources -------------------------------------------------------------------------------------


def test_a_small_topology_fits_into_one_worker() -> None:
    view = schedule(cluster(nodes("ab"), [load("t", 2)]))
    assert list(workers_by_node(view, "t").values()) == [1]
    assert view.status["t"].startswith("Running - Fully Scheduled")


def test_what_is_taken_from_a_node_is_the_sum_of_its_executors() -> None:
    view = schedule(cluster(nodes("a"), [load("t", 2, 100.0, 25.0)]))
    ledger = ResourceLedger(view)
    assert (ledger.taken("a"), ledger.available("a")) == ((400.0, 100.0), (1600.0, 300.0))


def test_a_dead_worker_alone_is_placed_again() -> None:
    view = schedule(cluster(nodes("ab"), [load("t", 6, 256.0)]))
    before = places(view, "t")
    lost = sorted(set(before.values()))[0]
    after = places(schedule(survivors(view, ports=(lost,))), "t")
    assert len(before) == len(after) == 12
    assert {each: where for each, where in after.items() if before[each] != lost} == {
        each: where for each, where in before.items() if where != lost
    }


def test_a_dead_supervisors_executors_move_and_the_others_stay() -> None:
    view = schedule(cluster(nodes("abc", cpu=60.0), [load("t", 6)]))
    before = places(view, "t")
    lost = before[(1, 1)][0]
    after = places(schedule(survivors(view, lost)), "t")
    stay = {each: where for each, where in before.items() if where[0] != lost}
    assert stay
    assert stay.items() <= after.items()
    assert len(after) == 12
    assert lost not in {where[0] for where in after.values()}


def test_a_topology_that_waits_gets_in_when_another_is_killed() -> None:
    first, second = load("first", 2, cpu=100.0), load("second", 2, cpu=100.0)
    view = schedule(cluster(nodes("a"), [first, second]))
    assert (len(places(view, "first")), places(view, "second")) == (4, {})
    later = schedule(cluster(nodes("a"), [second]))
    assert len(places(later, "second")) == 4


def test_big_executors_go_where_there_is_room_for_them() -> None:
    offers = [*nodes("s", memory=512.0, cpu=100.0), *nodes("b", memory=8192.0, cpu=1200.0)]
    view = schedule(
        cluster(
            offers,
            [load("big", 1, 700.0, 300.0), load("small", 1, 100.0, 40.0, topology__priority=30)],
        )
    )
    assert workers_by_node(view, "big").keys() == {"b"}
    assert len(places(view, "small")) == 2


def test_an_executor_larger_than_a_workers_heap_is_never_placed() -> None:
    view = schedule(
        cluster(nodes("a"), [load("t", 1, 256.0, topology__worker__max__heap__size__mb=128.0)])
    )
    assert places(view, "t") == {}
    assert view.status["t"].startswith("Not enough resources")


def test_many_small_topologies_fill_a_cluster_and_the_last_waits() -> None:
    asked = [load(f"t{at}", 1, 100.0, 50.0) for at in range(5)]
    view = schedule(cluster(nodes("ab", cpu=200.0), asked))
    assert [len(places(view, each.id)) for each in asked] == [2, 2, 2, 2, 0]


def test_several_are_evicted_until_the_greater_fits_and_no_more_than_needed() -> None:
    lesser = [load(f"l{at}", 1, 100.0, 50.0, topology__priority=20 + at) for at in range(4)]
    view = schedule(cluster(nodes("a"), lesser))
    great = load("great", 1, 100.0, 100.0, topology__priority=0)
    both = cluster(
        nodes("a"), [*lesser, great], {each.id: places(view, each.id) for each in lesser}
    )
    schedule(both)
    assert len(places(both, "great")) == 2
    assert both.evicted == ["l3", "l2"]
    assert [len(places(both, each.id)) for each in lesser] == [2, 2, 0, 0]


def test_nobody_gives_way_when_no_node_is_left() -> None:
    """The only node was lost with the lesser topology on it: its eviction would leave no node at
    all.
    """
    great = topology(
        "great",
        [ComponentView("in", "spout", singles(1))],
        1,
        owner="ann",
        conf={"topology.priority": 0},
    )
    small = load("small", 3, topology__priority=9)
    view = schedule(
        cluster([], [great, small], {"small": {(at, at): "gone:1" for at in range(1, 7)}})
    )
    assert (len(places(view, "small")), places(view, "great"), view.evicted) == (6, {}, [])
    assert "No available nodes" in view.status["great"]


def test_a_failed_attempt_leaves_no_trace() -> None:
    """Two of three executors fit, then the search is given up: the room they were tried in is whole
    again for the next.
    """
    parts = [ComponentView("in", "spout", singles(3), {CPU: 60.0})]
    conf = {"topology.priority": 1, "topology.ras.constraint.max.state.search": 4}
    broad = topology("broad", parts, 1, owner="ann", conf=conf)
    next_one = topology(
        "next", [ComponentView("in", "spout", singles(2), {CPU: 95.0})], 1, owner="ann"
    )
    view = schedule(cluster(nodes("ab", cpu=100.0), [broad, next_one]))
    assert (places(view, "broad"), len(places(view, "next"))) == ({}, 2)


def test_a_topology_never_evicts_one_of_its_own_rank_that_runs_longer() -> None:
    old, new = (
        topology(
            name,
            [ComponentView("in", "spout", singles(2), {CPU: 200.0})],
            1,
            owner="ann",
            uptime_ms=age,
        )
        for name, age in (("old", 9_000), ("new", 1_000))
    )
    view = cluster(nodes("a"), [old, new], {"old": {(1, 1): "a:1", (2, 2): "a:1"}})
    schedule(view)
    assert (len(places(view, "old")), places(view, "new"), view.evicted) == (2, {}, [])


def test_users_without_guarantees_take_turns() -> None:
    asked = [
        load(f"{owner}{at}", 1, cpu=50.0, owner=owner)
        for owner in ("ann", "bob")
        for at in range(3)
    ]
    view = schedule(cluster(nodes("ab", cpu=200.0), asked))
    got = [each.owner for each in asked if places(view, each.id)]
    assert sorted(got) == ["ann", "ann", "bob", "bob"]


def test_every_worker_takes_the_least_cpu_of_a_worker() -> None:
    """Two workers of 50 fit on 100, a third does not, though its executor asks for a tenth of
    that.
    """
    asked = [topology(name, singles(1), 1, owner="ann") for name in ("t", "u", "v")]
    view = cluster(nodes("a", cpu=100.0), asked, conf={"storm.worker.min.cpu.pcore.percent": 50.0})
    schedule(view)
    assert [len(places(view, each.id)) for each in asked] == [1, 1, 0]


def test_topologies_that_need_no_rare_resource_leave_it_alone() -> None:
    offers = [*nodes("gh", gpu=1.0), *nodes("pq")]
    plain = [load(f"p{at}", 1, owner="bob") for at in range(3)]
    view = schedule(cluster(offers, plain))
    assert {where[0] for each in plain for where in places(view, each.id).values()} <= {"p", "q"}


def test_a_generic_resource_is_reason_enough_to_evict() -> None:
    def wants(name: str, priority: int) -> TopologyView:
        parts = [
            ComponentView(
                "in", "spout", singles(1), {"topology.component.resources.map": {"gpu.count": 1.0}}
            )
        ]
        return topology(name, parts, 1, owner="ann", conf={"topology.priority": priority})

    view = cluster(
        nodes("a", gpu=1.0), [wants("great", 1), wants("small", 9)], {"small": {(1, 1): "a:1"}}
    )
    schedule(view)
    assert (places(view, "great"), places(view, "small"), view.evicted) == (
        {(1, 1): "a:1"},
        {},
        ["small"],
    )


def test_a_worker_is_bound_to_the_ackers_that_its_heap_leaves_room_for() -> None:
    parts = [
        ComponentView("in", "spout", singles(2), {HEAP: 700.0}),
        component("__acker", singles(2, 3), "system"),
    ]
    view = schedule(cluster(nodes("a"), [topology("t", parts, 1, owner="ann")]))
    sizes = sorted(len(each) for each in view.placement("t").executors_by_slot.values())
    assert sizes == [1, 1, 2]  # 700 + 128 is above 768: the ackers share their own worker


# -- constraints -----------------------------------------------------------------------------------


def constrained(spout: int, bolt: int, **conf: Any) -> TopologyView:
    parts = [
        component("in", singles(spout), "spout"),
        component("out", singles(bolt, spout + 1), "bolt", "in"),
    ]
    named = {key.replace("__", "."): value for key, value in conf.items()}
    return topology(
        "t",
        parts,
        1,
        owner="ann",
        conf={"topology.scheduler.strategy": "ConstraintSolverStrategy", **named},
    )


def test_a_spread_component_has_one_executor_per_node() -> None:
    view = schedule(
        cluster(nodes("abc"), [constrained(2, 3, topology__spread__components=["out"])])
    )
    bolts = [where[0] for each, where in places(view, "t").items() if each[0] > 2]
    assert sorted(bolts) == ["a", "b", "c"]


def test_pairs_keep_two_components_out_of_one_worker() -> None:
    view = schedule(
        cluster(nodes("ab"), [constrained(2, 2, topology__ras__constraints=[["in", "out"]])])
    )
    found = places(view, "t")
    assert not {found[(1, 1)], found[(2, 2)]} & {found[(3, 3)], found[(4, 4)]}


def test_a_co_location_count_above_one_is_a_limit_per_node() -> None:
    rules = {"out": {"maxNodeCoLocationCnt": 2}}
    view = schedule(cluster(nodes("abc"), [constrained(1, 6, topology__ras__constraints=rules)]))
    bolts = [where[0] for each, where in places(view, "t").items() if each[0] > 1]
    assert sorted(bolts) == list("aabbcc")


def test_a_lost_executor_returns_without_breaking_the_constraints() -> None:
    asked = constrained(
        2, 2, topology__spread__components=["in"], topology__ras__constraints=[["in", "out"]]
    )
    view = schedule(cluster(nodes("ab"), [asked]))
    before = places(view, "t")
    again = schedule(survivors(view, ports=(before[(1, 1)],)))
    after = places(again, "t")
    assert len(after) == 4
    assert after[(1, 1)][0] != after[(2, 2)][0]
    assert not {after[(1, 1)], after[(2, 2)]} & {after[(3, 3)], after[(4, 4)]}


def test_a_search_beyond_its_states_is_given_up_and_leaves_nothing() -> None:
    """Storm's TestConstraintSolverStrategy: too many states."""
    rules = [["in", "out"], ["in", "in"]]
    asked = constrained(
        6, 6, topology__ras__constraints=rules, topology__ras__constraint__max__state__search=14
    )
    view = schedule(cluster(nodes("a"), [asked]))
    assert places(view, "t") == {}
    assert "states traversed" in view.status["t"]


def test_a_topology_of_no_executors_is_scheduled_as_it_is() -> None:
    empty = topology("t", [component("in", (), "spout")], 1, owner="ann")
    assert schedule(cluster(nodes("a"), [empty])).status["t"] == "Fully Scheduled"


# -- blacklist -------------------------------------------------------------------------------------


def watch(
    seen: list[list[SupervisorView]], wanted: TopologyView | None = None, counts_ports: bool = True
) -> list[tuple[str, ...]]:
    """The blacklisted hosts, round by round of ten seconds; sixty count, twice bad is too often,
    sixty to resume.
    """
    scheduler = BlacklistScheduler(DefaultScheduler())
    words = {
        "nimbus.monitor.freq.secs": 10,
        "blacklist.scheduler.tolerance.time.secs": 60,
        "blacklist.scheduler.tolerance.count": 2,
        "blacklist.scheduler.resume.time.secs": 60,
        "blacklist.scheduler.assume.supervisor.bad.based.on.bad.slot": counts_ports,
    }
    scheduler.prepare(words)
    found = []
    for supervisors in seen:
        view = cluster(supervisors, [wanted or topology("t", singles(1), 1)])
        scheduler.schedule(view.topologies, view)
        found.append(scheduler.blacklisted_hosts)
    return found


def test_a_port_that_is_often_missing_is_no_sign_when_the_conf_says_so() -> None:
    whole, part = supervisor("b", 1, 2), supervisor("b", 1)
    rounds = [[supervisor("a", 1), each] for each in (whole, part, whole, part, whole)]
    assert watch(rounds)[-1] == ("host-b",)
    assert watch(rounds, counts_ports=False)[-1] == ()


def test_a_port_that_is_new_is_nothing_bad() -> None:
    rounds = [
        [supervisor("a", 1), supervisor("b", *ports)]
        for ports in ((1,), (1, 2), (1, 2, 3), (1, 2, 3))
    ]
    assert watch(rounds) == [()] * 4


def test_one_bad_supervisor_takes_its_host_with_it() -> None:
    first, second = supervisor("b1", 1, host="b"), supervisor("b2", 1, host="b")
    rounds = [
        [supervisor("a", 1), second, *([first] if shown else [])]
        for shown in (True, False, True, False, True)
    ]
    assert watch(rounds)[-1] == ("b",)


def test_only_as_many_hosts_are_released_as_slots_are_missing() -> None:
    everything = [supervisor(name, 1) for name in "abcd"]
    rounds = [everything if at % 2 == 0 else everything[:1] for at in range(5)]
    assert watch(rounds)[-1] == ("host-b", "host-c", "host-d")
    assert watch(rounds, topology("t", singles(3), 3))[-1] == ("host-d",)


def test_released_nodes_are_the_last_to_be_used() -> None:
    """Storm greylists what it had to release: the resource-aware scheduler sorts those nodes
    last.
    """
    offers = [supervisor(name, 1, memory=2000.0, cpu=400.0) for name in "abc"]
    view = cluster(offers, [load("t", 1, 700.0)], greylisted_hosts=["host-a"])
    assert set(workers_by_node(schedule(view), "t")) == {"b", "c"}


# -- multitenant -----------------------------------------------------------------------------------


def share(view: ClusterView, **pools: int) -> MultitenantScheduler:
    scheduler = MultitenantScheduler()
    scheduler.prepare({"multitenant.scheduler.user.pools": pools})
    scheduler.schedule(view.topologies, view)
    return scheduler


def test_an_isolated_topology_takes_nodes_from_the_default_pool_when_none_is_free() -> None:
    """The default pool's topology keeps what it has elsewhere, and says what it lacks."""
    shared = topology("shared", singles(4), 4, owner="bob")
    alone = topology("alone", singles(2), 2, owner="ann", conf={"topology.isolate.machines": 1})
    placed = {"shared": {(1, 1): "a:1", (2, 2): "b:1", (3, 3): "a:2", (4, 4): "b:2"}}
    view = cluster([supervisor(name, 1, 2) for name in "ab"], [shared, alone], placed)
    share(view, ann=1)
    mine, theirs = workers_by_node(view, "alone"), workers_by_node(view, "shared")
    assert (len(mine), len(theirs), mine.keys() & theirs.keys()) == (1, 1, set())
    assert len(places(view, "shared")) == 2
    assert "2 executors not scheduled" in view.status["shared"]


def test_nodes_in_a_bad_state_are_freed_by_force() -> None:
    """Isolated workers found among others' go: their topology is placed on nodes of its own."""
    alone = topology("alone", singles(2), 2, owner="ann", conf={"topology.isolate.machines": 1})
    other = topology("other", singles(1), 1, owner="bob")
    placed = {"alone": {(1, 1): "a:1", (2, 2): "a:2"}, "other": {(1, 1): "a:3"}}
    view = cluster([supervisor(name, 1, 2, 3) for name in "ab"], [alone, other], placed)
    share(view, ann=1)
    for _ in range(2):
        view = cluster(
            list(view.supervisors.values()),
            list(view.topologies.values()),
            {
                name: {tuple(each): str(slot) for each, slot in rows.items()}  # type: ignore[misc]
                for name, rows in view.assignments().items()
            },
        )
        share(view, ann=1)
    assert (len(places(view, "alone")), len(places(view, "other"))) == (2, 1)


def test_a_topology_found_among_others_stays_in_the_default_pool() -> None:
    """Whose node is shared is not taken into the user's pool: that would throw the others off."""
    mine, other = (
        topology("mine", singles(2), 2, owner="ann"),
        topology("other", singles(1), 1, owner="bob"),
    )
    view = cluster(
        [supervisor("a", 1, 2, 3)],
        [mine, other],
        {"mine": {(1, 1): "a:1"}, "other": {(1, 1): "a:2"}},
    )
    sizes = share(view, ann=2).pool_sizes
    assert sizes is not None
    assert (sizes.isolated, sizes.default) == ({"ann": 0}, 1)
    assert (places(view, "mine"), places(view, "other")) == (
        {(1, 1): "a:1", (2, 2): "a:3"},
        {(1, 1): "a:2"},
    )


def test_more_slots_than_executors_are_not_asked_for() -> None:
    view = cluster([supervisor("a", 1, 2, 3)], [topology("t", singles(1), 9, owner="bob")])
    share(view)
    assert workers_by_node(view, "t") == {"a": 1}


# -- even and default ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "sizes"), [(1, [7]), (2, [3, 4]), (3, [2, 2, 3]), (7, [1] * 7), (9, [1] * 7)]
)
def test_executors_are_divided_as_evenly_as_integers_allow(workers: int, sizes: list[int]) -> None:
    view = cluster(
        [supervisor(name, 1, 2, 3) for name in "abc"], [topology("t", singles(7), workers)]
    )
    scheduler = DefaultScheduler()
    scheduler.prepare({})
    scheduler.schedule(view.topologies, view)
    assert sorted(len(each) for each in view.placement("t").executors_by_slot.values()) == sizes


def test_a_rebalance_to_more_workers_keeps_what_still_fits() -> None:
    """Storm's scheduler test: of three workers of two, two keep their place when four of two, two,
    one, one are wanted.
    """
    placed = {(at + 1, at + 1): f"a:{at // 2 + 1}" for at in range(6)}
    view = cluster(
        [supervisor("a", 1, 2, 3), supervisor("b", 1, 2, 3)],
        [topology("t", singles(6), 4)],
        {"t": placed},
    )
    scheduler = DefaultScheduler()
    scheduler.prepare({})
    scheduler.schedule(view.topologies, view)
    found = view.placement("t").slot_by_executor
    stayed = [each for each, where in placed.items() if str(found[ExecutorId(*each)]) == where]
    assert len(stayed) >= 4
    assert view.placement("t").num_workers == 4
