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


def test_a_pool_never_exceeds_its_limit() -> None:
    view = cluster(
        [supervisor(name, 1) for name in "abc"], [topology("t", singles(3), 3, owner="ann")]
    )
    assert share(view, ann=2) == PoolSizes(3, 0, {"ann": 0})
    assert "Max Nodes(2)" in view.status["t"]


def test_an_isolated_topology_with_more_machines_than_it_asks_for_says_so() -> None:
    asked = topology("t", singles(5), 5, owner="ann", conf={"topology.isolate.machines": 3})
    nodes = "abcde"
    placed = {"t": {(at, at): f"{node}:1" for at, node in enumerate(nodes, 1)}}
    view = cluster([supervisor(name, 1) for name in nodes], [asked], placed)
    share(view, ann=5)
    assert view.status["t"].endswith(" It has 5 of 3 machines.")
