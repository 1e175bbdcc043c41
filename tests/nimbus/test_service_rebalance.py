"""Tells what may be asked of a rebalance, and that what may not be asked is refused by name and
changes nothing.
"""

from typing import Any

import pytest

from sparkstorm.common.errors import NotAliveError, SparkStormError, StoreInconsistentError
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.records import Topologies, TopologyView
from sparkstorm.control_plane.scheduling.resource.resources import ResourceShape
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.nimbus.nimbus_bench import Bench, submitted

ANY: Any = RebalanceOptions  # for options of wrong types


def of(conf: Any = None, executors: Any = None, resources: Any = None) -> Any:
    return ANY(None, executors or {}, {} if conf is None else conf, resources or {})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (RebalanceOptions(0), "0 workers; a whole number of at least 1"),
        (ANY(1.5), "1.5 workers; a whole number"),
        (ANY("two"), "'two' workers; a whole number"),
        (ANY(True), "True workers; a whole number"),
        (
            RebalanceOptions(3, {}, {"topology.workers": 4}),
            "3 workers are asked for, but topology.workers says 4",
        ),
        (of({"topology.workers": 0}), "topology.workers"),
        (of({"topology.wrokers": 1}), "did you mean"),
        (of({"topology.acker.executors": 9}), "fixed for a topology's life"),
        (of({"storm.local.dir": "/x"}), "belongs to the cluster"),
        (of({"topology.autoscale.utilization.min": 0.5}), "0.5, is more than half of"),
        (of({"app.x": float("inf")}), "app.x: .*not JSON"),
        (of({"topology.component.resources.map": {"gpu": -2}}), "'gpu': expected an amount"),
        (ANY(None, {}, None), "expected settings by key"),
        (of(executors={"split": 5}), "has 4 tasks, so it can have 1 to 4 executors, not 5"),
        (of(executors={"split": 0}), "not 0"),
        (of(executors={"split": 1.0}), "not 1.0"),
        (of(executors={"split": "x"}), "not 'x'"),
        (of(executors=["split"]), "expected a map by component"),
        (of(executors={"nobody": 1}), "no component 'nobody', only __acker, count, lines, split"),
        (of(resources={"nobody": {"cpu": 1.0}}), "no component 'nobody'"),
        (of(resources={"split": {"cpu": -1.0}}), "an amount of at least 0, got -1.0"),
        (of(resources={"split": {"cpu": float("nan")}}), "got nan"),
        (of(resources={"split": {"cpu": "much"}}), "got 'much'"),
        (of(resources={"split": 7}), "expected amounts by resource"),
    ],
)
def test_an_impossible_rebalance_is_refused_and_changes_nothing(options: Any, words: str) -> None:
    bench, topology_id = submitted()
    before = bench.state.read_base(topology_id)
    for ask in (bench.service.rebalance, bench.service.plan_rebalance):
        with pytest.raises(SparkStormError, match=words):
            ask("wc", options)
    assert bench.state.read_base(topology_id) == before


def test_workers_in_the_conf_of_a_rebalance_are_workers() -> None:
    bench = Bench()
    topology_id = bench.submit(topology__workers=4)
    planned = bench.service.plan_rebalance("wc", RebalanceOptions(conf={"topology.workers": 2}))
    assert len(set(planned.after.values())) == 2
    bench.service.rebalance("wc", RebalanceOptions(conf={"topology.workers": 2}), wait_secs=0)
    bench.advance(2)
    assert (
        bench.base_of(topology_id).num_workers == 2
        and len(set(bench.slots(topology_id).values())) == 2
    )


@pytest.mark.parametrize("scheduler", ["", "jstorm"])
def test_more_workers_than_there_are_slots_move_nothing_and_the_plan_says_so(
    scheduler: str,
) -> None:
    bench = Bench(nodes=3, ports=(6700,))
    own: dict[str, Any] = {"topology__scheduler": scheduler} if scheduler else {}
    topology_id = bench.submit(topology__workers=2, topology__acker__executors=3, **own)
    # a placement that no scheduler would deal out afresh
    bench.service.rebalance("wc", RebalanceOptions(3), wait_secs=0)
    bench.advance(3)
    before, slots = bench.slots(topology_id), len(set(bench.slots(topology_id).values()))
    plan = bench.service.plan_rebalance("wc", RebalanceOptions(99))
    assert plan.movement.moved == () and len(plan.movement.stayed) == len(before)
    assert (plan.wanted_workers, plan.given_workers, plan.slots) == (99, slots, slots)
    assert plan.shortfall == f"{slots} slots are there for it"
    bench.service.rebalance("wc", RebalanceOptions(99), wait_secs=0)
    bench.advance(3)
    assert bench.base_of(topology_id).num_workers == 99 and bench.slots(topology_id) == before


def test_a_topology_that_waits_for_slots_takes_none_that_a_rebalance_needs() -> None:
    bench = Bench(nodes=1)
    running = bench.submit("words", topology__workers=2)
    waiting = bench.submit("early", topology__workers=2)
    assert bench.state.read_assignment(waiting) is None
    planned = bench.service.plan_rebalance("words", RebalanceOptions(1))
    assert not planned.unplaced and len(set(planned.after.values())) == 1
    bench.service.rebalance("words", RebalanceOptions(1), wait_secs=0)
    assert len(set(bench.slots(running).values())) == 1
    bench.advance(20)
    assert {len(set(bench.slots(each).values())) for each in (running, waiting)} == {1}


class Watching(DefaultScheduler):
    """Keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[TopologyView] = []

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        self.shown += topologies.values()
        super().schedule(topologies, cluster)


def test_a_rebalance_of_resources_and_settings_is_seen_by_schedulers_in_the_dry_run_too() -> None:
    scheduler = Watching()
    bench = Bench(scheduler=scheduler)
    bench.submit(topology__priority=7)
    resources = {"split": {"cpu": 55.0, "memory": 300, "gpu": 2.0}}
    options = RebalanceOptions(conf={"topology.priority": 3}, resources_by_component=resources)

    def seen() -> set[tuple[float, tuple[float, ...], object]]:
        """On-heap memory and resources of split, and the priority, of all that was shown since the
        last call.
        """
        found = set()
        for view in scheduler.shown:
            request = ResourceShape([], [view]).request(view, view.component("split"))
            found.add((request.on_heap, request.vector, view.conf["topology.priority"]))
        scheduler.shown.clear()
        return found

    small, large = (128.0, (128.0, 10.0), 7), (300.0, (300.0, 55.0, 2.0), 3)
    assert seen() == {small}
    bench.service.plan_rebalance("wc", options)
    assert seen() == {small, large}
    bench.advance(20)
    assert seen() == {small}
    bench.service.rebalance("wc", options, wait_secs=0)
    seen()
    bench.advance(20)
    assert seen() == {large}
    bench.service.rebalance(
        "wc", RebalanceOptions(resources_by_component={"split": {"cpu": 60.0}}), wait_secs=0
    )
    seen()
    bench.advance(20)
    assert seen() == {(300.0, (300.0, 60.0, 2.0), 3)}


def test_a_topology_whose_record_is_damaged_is_named_with_what_helps_and_hides_no_other() -> None:
    bench = Bench(nodes=3)
    broken = bench.submit("broken", topology__workers=2)
    sound = bench.submit("sound", topology__workers=2)
    bench.store.put(f"/storms/{broken}", b"garbage")
    assert [each.topology_id for each in bench.service.summaries()] == [sound]
    sentence = f"/storms/{broken}: .*delete that node, and Nimbus removes what is left"
    with pytest.raises(StoreInconsistentError, match=sentence):
        bench.service.kill("broken")
    with pytest.raises(NotAliveError, match="topology other is not alive"):
        bench.service.kill("other")
    bench.store.delete(f"/storms/{broken}")
    bench.advance(30)
    assert bench.state.known_ids() == {sound}
