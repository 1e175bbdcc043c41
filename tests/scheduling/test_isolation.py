"""Storm's isolation and multitenant schedulers."""

import pytest

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.control_plane.scheduling.isolation import IsolationScheduler, worker_specs
from sparkstorm.control_plane.scheduling.multitenant.scheduler import (
    MultitenantScheduler,
    PoolSizes,
)
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


def isolate(view: ClusterView, **machines: int) -> None:
    scheduler = IsolationScheduler()
    scheduler.prepare({"isolation.scheduler.machines": machines})
    scheduler.schedule(view.topologies, view)


def share(view: ClusterView, **pools: int) -> PoolSizes:
    scheduler = MultitenantScheduler()
    scheduler.prepare({"multitenant.scheduler.user.pools": pools})
    scheduler.schedule(view.topologies, view)
    assert scheduler.pool_sizes is not None
    return scheduler.pool_sizes


def test_an_isolated_topology_gets_machines_of_its_own() -> None:
    view = cluster(
        [supervisor(name, 1, 2) for name in "abc"],
        [topology("iso", singles(4), 4), topology("other", singles(3), 3)],
    )
    isolate(view, iso=2)
    assert workers_by_node(view, "iso") == {"a": 2, "b": 2}
    assert workers_by_node(view, "other") == {"c": 2}
    assert view.blacklisted_hosts == frozenset()


def test_the_roomiest_hosts_go_first_then_the_freest_then_by_name() -> None:
    view = cluster(
        [supervisor("a", 1), supervisor("b", 1, 2), supervisor("c", 1, 2), supervisor("d", 1, 2)],
        [topology("iso", singles(2), 2), topology("other", singles(1), 1)],
        {"other": {(1, 1): "b:1"}},
    )
    isolate(view, iso=1)
    assert workers_by_node(view, "iso") == {"c": 2}
    assert places(view, "other") == {(1, 1): "b:1"}


def test_a_machine_that_already_fits_is_kept() -> None:
    placed = {(1, 1): "b:1", (3, 3): "b:1", (2, 2): "b:2", (4, 4): "b:2"}
    view = cluster(
        [supervisor(name, 1, 2, 3) for name in "ab"],
        [topology("iso", singles(4), 2), topology("other", singles(1), 1)],
        {"iso": placed},
    )
    isolate(view, iso=1)
    assert places(view, "iso") == dict(sorted(placed.items()))
    assert workers_by_node(view, "other") == {"a": 1}


def test_a_machine_shared_with_others_gives_the_isolated_workers_up() -> None:
    view = cluster(
        [supervisor(name, 1, 2) for name in "ab"],
        [topology("iso", singles(1), 1), topology("other", singles(1), 1)],
        {"iso": {(1, 1): "a:1"}, "other": {(1, 1): "a:2"}},
    )
    isolate(view, iso=1)
    assert (workers_by_node(view, "iso"), workers_by_node(view, "other")) == ({"b": 1}, {"a": 1})


def test_too_few_machines_clear_everything_else_and_wait() -> None:
    view = cluster(
        [supervisor(name, 1) for name in "ab"],
        [topology("iso", singles(3), 3), topology("other", singles(1), 1)],
        {"other": {(1, 1): "b:1"}},
    )
    isolate(view, iso=3)
    assert len(view.placement("iso").executors_by_slot) == 2
    assert places(view, "other") == {}
    assert view.status["iso"].startswith("Unable to isolate: it has 2 of 3 machines, ")


def test_more_workers_than_executors_are_no_trap() -> None:
    """The original raises here (it takes a bucket from an empty set)."""
    view = cluster([supervisor("a", 1, 2, 3)], [topology("iso", singles(2), 3)])
    isolate(view, iso=1)
    assert workers_by_node(view, "iso") == {"a": 2}
    assert len(worker_specs(topology("t", singles(2), 2_000_000_000))) == 2


@pytest.mark.parametrize("machines", [None, {}, {"t": 0}, {"t": "two"}, ["t"]])
def test_isolation_without_sensible_machines_is_refused(machines: object) -> None:
    with pytest.raises(InvalidConfigError, match=r"isolation\.scheduler\.machines"):
        IsolationScheduler().prepare({"isolation.scheduler.machines": machines})


def test_a_user_with_a_pool_gets_whole_nodes_and_others_share() -> None:
    view = cluster(
        [supervisor(name, 1, 2) for name in "abcd"],
        [topology("t", singles(3), 3, owner="ann"), topology("u", singles(2), 2, owner="bob")],
    )
    assert share(view, ann=2) == PoolSizes(1, 1, {"ann": 2})
    assert (workers_by_node(view, "t"), workers_by_node(view, "u")) == ({"a": 2, "b": 1}, {"c": 2})
    assert view.status == {"t": "Scheduled Isolated on 2 Nodes", "u": "Fully Scheduled"}


def test_a_pool_never_exceeds_its_limit() -> None:
    view = cluster(
        [supervisor(name, 1) for name in "abc"], [topology("t", singles(3), 3, owner="ann")]
    )
    assert share(view, ann=2) == PoolSizes(3, 0, {"ann": 0})
    assert "Max Nodes(2)" in view.status["t"]


def test_isolated_machines_are_taken_from_the_users_own_open_topologies() -> None:
    open_one = topology("a-open", singles(2), 2, owner="ann")
    asked = topology("b-iso", singles(2), 2, owner="ann", conf={"topology.isolate.machines": 1})
    view = cluster(
        [supervisor(name, 1, 2) for name in "ab"],
        [open_one, asked],
        {"a-open": {(1, 1): "a:1", (2, 2): "a:2"}},
    )
    share(view, ann=1)
    assert workers_by_node(view, "b-iso") == {"a": 2}
    assert places(view, "a-open") == {}


def test_an_isolated_topology_with_more_machines_than_it_asks_for_says_so() -> None:
    asked = topology("t", singles(5), 5, owner="ann", conf={"topology.isolate.machines": 3})
    nodes = "abcde"
    placed = {"t": {(at, at): f"{node}:1" for at, node in enumerate(nodes, 1)}}
    view = cluster([supervisor(name, 1) for name in nodes], [asked], placed)
    share(view, ann=5)
    assert view.status["t"].endswith(" It has 5 of 3 machines.")


def test_spread_components_go_to_different_nodes_while_there_are_any() -> None:
    parts = [component("in", singles(3), "spout"), component("out", singles(3, 4), "bolt", "in")]
    asked = topology(
        "t",
        parts,
        3,
        owner="ann",
        conf={"topology.spread.components": ["in"], "topology.isolate.machines": 3},
    )
    view = cluster([supervisor(name, 1, 2) for name in "abc"], [asked])
    share(view, ann=3)
    nodes = [places(view, "t")[(task, task)].partition(":")[0] for task in (1, 2, 3)]
    assert sorted(nodes) == ["a", "b", "c"]


def test_the_default_pool_reschedules_a_running_topology_that_could_get_more() -> None:
    view = cluster(
        [supervisor("a", 1, 2)],
        [topology("t", singles(4), 2)],
        {"t": {(at, at): "a:1" for at in range(1, 5)}},
    )
    share(view)
    assert len(view.placement("t").executors_by_slot) == 2
    assert view.status["t"] == "Fully Scheduled"


def test_dead_nodes_lend_nothing() -> None:
    view = cluster([supervisor("a", 1)], [topology("t", singles(2), 2)], {"t": {(1, 1): "gone:1"}})
    share(view)
    assert places(view, "t") == {(1, 1): "gone:1", (2, 2): "a:1"}
