"""Storm's resource-aware scheduler and the blacklist around any scheduler."""

from typing import Any

import pytest

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.control_plane.scheduling.blacklist import BlacklistScheduler
from sparkstorm.control_plane.scheduling.catalogue import scheduler_by_name
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.records import ComponentView, TopologyView
from sparkstorm.control_plane.scheduling.resource.executor_order import (
    by_connection_count,
    by_proximity,
)
from sparkstorm.control_plane.scheduling.resource.resources import ResourceShape
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.scheduling.clusters import (
    cluster,
    component,
    executors,
    places,
    singles,
    supervisor,
    topology,
)

HEAP = "topology.component.resources.onheap.memory.mb"
CPU = "topology.component.cpu.pcore.percent"


def schedule(view: ClusterView, **conf: Any) -> ClusterView:
    scheduler = scheduler_by_name("resource-aware", conf)
    scheduler.schedule(view.topologies, view)
    return view


def asking(
    name: str, count: int, heap: float, cpu: float, owner: str = "ann", **conf: Any
) -> TopologyView:
    """A topology of one spout whose executors ask for so much each."""
    part = ComponentView("in", "spout", singles(count), {HEAP: heap, CPU: cpu})
    named = {key.replace("__", "."): value for key, value in conf.items()}
    return topology(name, [part], 1, owner=owner, conf=named)


def test_requests_come_from_the_component_then_the_topology_then_the_defaults() -> None:
    parts = [
        component("in", singles(1), "spout", topology__component__cpu__pcore__percent=25.0),
        component("__acker", singles(1, 2), "system"),
    ]
    asked = topology("t", parts, 1, conf={HEAP: 256.0, "topology.acker.cpu.pcore.percent": 5.0})
    shape = ResourceShape([supervisor("a", 1, gpu=1.0)], [asked])
    spout, acker = (shape.request(asked, asked.component(name)) for name in ("in", "__acker"))
    assert (spout.on_heap, spout.vector) == (256.0, (256.0, 25.0, 0.0))
    assert (acker.on_heap, acker.vector) == (256.0, (256.0, 5.0, 0.0))


def test_metrics_consumers_are_known_by_their_whole_prefix() -> None:
    parts = [
        component(name, singles(1, at), "system")
        for at, name in enumerate(("__metrics_x", "__metricsx", "__system"), 1)
    ]
    asked = topology(
        "t", parts, 1, conf={"topology.metrics.consumer.resources.onheap.memory.mb": 7.0}
    )
    shape = ResourceShape([], [asked])
    assert [shape.request(asked, each).on_heap for each in parts] == [7.0, 128.0, 128.0]


def test_a_topology_that_cannot_fit_is_not_placed_in_part() -> None:
    view = cluster([supervisor("a", 1, 2, memory=512.0, cpu=100.0)], [asking("t", 3, 128.0, 50.0)])
    schedule(view)
    assert places(view, "t") == {}
    assert "CPU %: 150 required, 100 left" in view.status["t"]


def test_a_resource_that_no_supervisor_declares_is_left_out_of_the_order_of_users() -> None:
    """Storm leaves it out or puts every user last, by what its process has heard of before."""
    rich = asking("rich", 2, 256.0, 50.0, owner="ann")
    poor = asking("poor", 2, 256.0, 50.0, owner="bob")
    rare = asking(
        "rare", 1, 64.0, 1.0, owner="cid", topology__component__resources__map={"fpga.count": 1.0}
    )
    pools = {"bob": {"cpu": 100.0, "memory": 512.0}}
    conf = {
        "resource.aware.scheduler.priority.strategy": "generic",
        "resource.aware.scheduler.user.pools": pools,
    }
    cases: list[tuple[dict[str, Any], str]] = [({}, "poor"), ({"fpga.count": 0.0}, "rich")]
    for declared, first in cases:  # of equal users by name
        offers = [supervisor("a", 1, 2, memory=512.0, cpu=100.0, **declared)]
        view = schedule(cluster(offers, [rich, poor, rare]), **conf)
        assert {name for name in ("rich", "poor", "rare") if places(view, name)} == {first}


def test_executors_are_ordered_by_connections_or_by_proximity() -> None:
    parts = [
        component("in", executors((1, 1), (2, 2)), "spout"),
        component("mid", executors((3, 3), (4, 4), (5, 5), (6, 6)), "bolt", "in"),
        component("out", executors((7, 7)), "bolt", "mid"),
    ]
    asked = topology("t", parts, 1)
    missing = set(asked.executors)
    result = [each.first_task for each in by_connection_count(asked, missing)]
    assert result == [3, 7, 1, 4, 2, 5, 6]
    assert [each.first_task for each in by_proximity(asked, missing)] == [1, 3, 7, 4, 2, 5, 6]


def test_an_impossible_constraint_is_said() -> None:
    conf = {"topology.scheduler.strategy": "constraint", "topology.spread.components": ["in"]}
    view = cluster(
        [supervisor("a", 1, memory=999.0, cpu=100.0)],
        [topology("t", singles(2), 1, owner="ann", conf=conf)],
    )
    assert "not feasible" in schedule(view).status["t"]


@pytest.mark.parametrize(
    "rule",
    [
        [["in"]],
        "in",
        {"in": "out"},
        {"in": {"incompatibleComponents": 5}},
        {"in": {"incompatibleComponents": [{}]}},
    ],
)
def test_malformed_constraints_fail_their_topology_alone(rule: object) -> None:
    bad = topology(
        "bad",
        singles(1),
        1,
        owner="ann",
        conf={"topology.scheduler.strategy": "constraint", "topology.ras.constraints": rule},
    )
    good = topology("good", singles(1), 1, owner="ann")
    view = schedule(cluster([supervisor("a", 1, 2, memory=999.0, cpu=100.0)], [bad, good]))
    assert "topology.ras.constraints" in view.status["bad"]
    assert len(places(view, "good")) == 1


def test_a_topology_without_owner_spout_or_known_strategy_is_left_alone() -> None:
    offers = [supervisor("a", 1, memory=1024.0, cpu=100.0)]
    bolts = [component("b", singles(1))]
    unowned = schedule(cluster(offers, [topology("t", singles(1), 1)]))
    assert places(unowned, "t") == {}
    assert unowned.status["t"].startswith("t has no owner")
    assert (
        "Cannot find a Spout"
        in schedule(cluster(offers, [topology("t", bolts, 1, owner="ann")])).status["t"]
    )
    odd = topology("t", singles(1), 1, owner="ann", conf={"topology.scheduler.strategy": "magic"})
    assert "'magic'" in schedule(cluster(offers, [odd])).status["t"]


# -- blacklist -------------------------------------------------------------------------------------


def watched(**conf: Any) -> BlacklistScheduler:
    scheduler = BlacklistScheduler(DefaultScheduler())
    words = {
        "tolerance_count": "blacklist.scheduler.tolerance.count",
        "resume": "blacklist.scheduler.resume.time.secs",
    }
    named = {words.get(key, key): value for key, value in conf.items()}
    scheduler.prepare(
        {"nimbus.monitor.freq.secs": 10, "blacklist.scheduler.tolerance.time.secs": 60, **named}
    )
    return scheduler


def rounds(scheduler: BlacklistScheduler, *shown: str, spare: str = "xyz") -> list[tuple[str, ...]]:
    """The blacklisted hosts after each round; letters are supervisors, spare ones are always
    there.
    """
    found = []
    for names in shown:
        view = cluster(
            [supervisor(name, 1, 2) for name in names + spare], [topology("t", singles(1), 1)]
        )
        scheduler.schedule(view.topologies, view)
        found.append(scheduler.blacklisted_hosts)
    return found


def test_a_resume_time_below_one_round_ends_in_the_next_round() -> None:
    """Storm counts zero rounds and never resumes; the comparison excuses it (NEVER_RESUMES)."""
    scheduler = watched(
        tolerance_count=1, resume=7, **{"blacklist.scheduler.tolerance.time.secs": 20}
    )
    assert rounds(scheduler, "ab", "a", "ab", "ab", "ab") == [(), (), ("host-b",), (), ()]


def test_a_supervisor_gone_for_the_whole_window_is_forgotten() -> None:
    scheduler = watched(tolerance_count=3, resume=1800)
    rounds(scheduler, "ab", *["a"] * 7)
    assert "b" not in scheduler._known


def test_hosts_are_released_when_slots_are_short() -> None:
    scheduler = watched(tolerance_count=1, resume=600)
    assert rounds(scheduler, "a", "", "a", spare="") == [(), (), ()]
    view = cluster([supervisor("a", 1)], [topology("t", singles(1), 1)])
    scheduler.schedule(view.topologies, view)
    assert len(places(view, "t")) == 1


@pytest.mark.parametrize("key", ["nimbus.monitor.freq.secs", "blacklist.scheduler.tolerance.count"])
def test_a_window_without_rounds_is_refused(key: str) -> None:
    with pytest.raises(InvalidConfigError, match=key.replace(".", r"\.")):
        watched(**{key: 0})
