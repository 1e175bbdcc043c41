"""Shared memory of R-Storm: counted once per worker or node, in heaps, evictions and priorities;
its declaration.
"""

import json
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    SharedMemory,
    Spout,
    TopologyBuilder,
    Tuple,
    shared_off_heap_within_node,
    shared_off_heap_within_worker,
    shared_on_heap,
)
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.shared_memory import SHARED_MEMORY_KEY
from sparkstorm.control_plane.scheduling.catalogue import scheduler_by_name
from sparkstorm.control_plane.scheduling.records import ComponentView, TopologyView
from sparkstorm.control_plane.scheduling.view import ClusterView
from sparkstorm.extensions.laboratory import Scene
from sparkstorm.extensions.laboratory.form.solve import solve
from tests.scheduling.clusters import cluster, places, singles, slot, supervisor, topology


class Lines(Spout):
    outputs = ("line",)

    def next_tuple(self) -> None:
        """Emit nothing."""


class Spell(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Check nothing."""


HEAP = "topology.component.resources.onheap.memory.mb"
MOST_HEAP = "topology.worker.max.heap.size.mb"


def sharing(name: str, count: int, *regions: SharedMemory, **conf: Any) -> TopologyView:
    """One spout whose executors ask for 100 MB each and share these regions."""
    own = {HEAP: 100.0, SHARED_MEMORY_KEY: {each.name: each.amounts() for each in regions}}
    named = {key.replace("__", "."): value for key, value in conf.items()}
    return topology(
        name, [ComponentView("in", "spout", singles(count), own)], 1, owner="ann", conf=named
    )


def scheduled(view: ClusterView) -> ClusterView:
    scheduler_by_name("resource-aware", {}).schedule(view.topologies, view)
    return view


def taken(view: ClusterView) -> dict[str, float]:
    scene = Scene(
        tuple(view.supervisors.values()), tuple(view.topologies.values()), view.assignments(), {}
    )
    return {row["node"]: row["memory_mb_taken"] for row in scene.nodes()}


@pytest.mark.parametrize(
    ("region", "memory"),
    [
        (shared_off_heap_within_worker(50.0, "r"), 400 + 2 * 50),
        (shared_off_heap_within_node(50.0, "r"), 400 + 50),
        (shared_on_heap(50.0, "r"), 400 + 2 * 50),
    ],
)
def test_a_region_counts_once_per_worker_or_once_per_node(
    region: SharedMemory, memory: float
) -> None:
    asked = sharing("t", 4, region, topology__worker__max__heap__size__mb=250.0)
    view = scheduled(cluster([supervisor("a", 1, 2, 3, memory=4096.0, cpu=400.0)], [asked]))
    assert view.placement("t").num_workers == 2
    assert taken(view) == {"a": memory}


@pytest.mark.parametrize(("amount", "workers"), [(0.0, 1), (100.0, 1), (101.0, 2), (301.0, 0)])
def test_a_region_on_the_heap_leaves_less_of_it_for_executors(amount: float, workers: int) -> None:
    asked = sharing(
        "t", 3, shared_on_heap(amount, "r"), topology__worker__max__heap__size__mb=400.0
    )
    view = scheduled(cluster([supervisor("a", 1, 2, 3, 4, memory=4096.0, cpu=400.0)], [asked]))
    assert view.placement("t").num_workers == workers


def test_a_node_without_room_for_the_region_takes_nobody() -> None:
    asked = sharing("t", 2, shared_off_heap_within_node(900.0, "r"))
    small = supervisor("a", 1, memory=1000.0, cpu=400.0)
    large = supervisor("b", 1, memory=1100.0, cpu=400.0)
    assert set(places(scheduled(cluster([small], [asked])), "t")) == set()
    assert set(places(scheduled(cluster([small, large], [asked])), "t").values()) == {"b:1"}


def test_the_memory_that_is_required_includes_shared_regions() -> None:
    asked = sharing("t", 2, shared_off_heap_within_node(900.0, "r"))
    view = scheduled(cluster([supervisor("a", 1, memory=1000.0, cpu=400.0)], [asked]))
    assert "memory MB: 1100 required, 1000 left" in view.status["t"], (
        "two of 100 MB, and 900 that they share"
    )


def test_workers_that_share_a_node_with_others_of_their_topology_add_no_second_region() -> None:
    asked = sharing(
        "t", 4, shared_off_heap_within_node(500.0, "r"), topology__worker__max__heap__size__mb=200.0
    )
    view = scheduled(cluster([supervisor("a", 1, 2, memory=900.0, cpu=400.0)], [asked]))
    assert (view.placement("t").num_missing, taken(view)) == (0, {"a": 900.0})


def test_an_eviction_gives_the_region_back_and_one_that_fails_leaves_it() -> None:
    low = sharing("low", 4, shared_off_heap_within_node(300.0, "r"), topology__priority=20)
    high = sharing("high", 5, topology__priority=1)
    node = supervisor("a", 1, 2, 3, memory=1000.0, cpu=400.0)
    placed = {"low": {each: slot("a:1") for each in singles(4)}}
    view = scheduled(ClusterView([node], [low, high], placed))
    assert (view.placement("high").num_missing, view.evicted) == (0, ["low"])
    greedy = sharing("high", 11, topology__priority=1)
    view = scheduled(ClusterView([node], [low, greedy], placed))
    assert (view.placement("low").num_missing, view.placement("high").num_workers) == (0, 0)
    assert taken(view) == {"a": 700.0}


# -- how it is declared ----------------------------------------------------------------------------


def test_the_builder_declares_regions_on_components() -> None:
    builder = TopologyBuilder()
    cache = shared_off_heap_within_node(512, "cache")
    builder.set_spout("in", Lines()).add_shared_memory(cache)
    out = builder.set_bolt("out", Spell()).shuffle_grouping("in")
    out.add_shared_memory(cache).add_shared_memory(shared_on_heap(64, "model"))
    parts = builder.build().components
    assert parts["in"].conf == {
        SHARED_MEMORY_KEY: {"cache": {"on_heap": 0.0, "off_heap_worker": 0.0, "off_heap_node": 512}}
    }
    assert sorted(parts["out"].conf[SHARED_MEMORY_KEY]) == ["cache", "model"]


@pytest.mark.parametrize(
    ("region", "words"),
    [
        (
            SharedMemory("cache", off_heap_node=7),
            "component 'out': shared memory 'cache' differs from that of component 'in'",
        ),
        (
            SharedMemory("x", on_heap=-1),
            "component 'out': shared memory 'x': on_heap must be from 0 to 1e+15 MB, got -1",
        ),
        (SharedMemory("x", on_heap=float("nan")), "on_heap must be from 0"),
        (SharedMemory("x", on_heap=10**5000), "on_heap must be from 0"),
        (SharedMemory("x", on_heap=True), "on_heap must be from 0"),
        (SharedMemory("", on_heap=1), "shared memory needs a name"),
        ("cache", "component 'out': add_shared_memory needs a SharedMemory, not 'cache'"),
    ],
)
def test_mistakes_in_regions_are_named(region: Any, words: str) -> None:
    def build() -> None:
        builder = TopologyBuilder()
        builder.set_spout("in", Lines()).add_shared_memory(
            shared_off_heap_within_node(512, "cache")
        )
        builder.set_bolt("out", Spell()).shuffle_grouping("in").add_shared_memory(region)
        builder.build()

    with pytest.raises(InvalidTopologyError) as error:
        build()
    assert words in str(error.value)


def test_a_problem_file_declares_regions_in_its_components_conf() -> None:
    def problem(**amounts: float) -> dict[str, Any]:
        conf = {HEAP: 100.0, SHARED_MEMORY_KEY: {"cache": amounts}}
        components = [{"id": "in", "kind": "spout", "executors": [[1, 1], [2, 2]], "conf": conf}]
        resources = {"supervisor.memory.capacity.mb": 1000.0, "supervisor.cpu.capacity": 400.0}
        return {
            "scheduler": "resource-aware",
            "supervisors": [{"id": "a", "host": "h", "ports": [1, 2], "resources": resources}],
            "topologies": [{"id": "t", "name": "t", "owner": "ann", "components": components}],
        }

    assert len(solve(problem(off_heap_node=800.0))["assignments"]["t"]) == 2
    assert solve(problem(off_heap_node=801.0))["assignments"]["t"] == []
    text = Scene.from_text(json.dumps(problem(off_heap_node=801.0))).to_text("resource-aware")
    assert solve(json.loads(text))["assignments"]["t"] == []
