"""The network model: laws that any placement obeys, and predictions that can be worked out by hand."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.measured.measurements import Flow, Measurements, TaskLoad
from sparkstorm.control_plane.scheduling.records import ComponentView, InputView, TopologyView
from sparkstorm.extensions.laboratory import SHAPES, Network, Scene, costs, generate, predict
from tests.scheduling.clusters import supervisor
from tests.tiers import examples

SEEDS = st.integers(0, 10**9)
FEW = settings(max_examples=examples(40), deadline=None)
FREE = Network(us_per_row=0.0, us_per_kb=0.0)


def scattered(seed: int, shape: str) -> Scene:
    """Return a scene whose executors are anywhere."""
    scene = generate(6, 1, 12, 3, seed=seed, shapes=shape, cluster="racked")
    dice = Random(seed)
    slots = [WorkerSlot(each.id, port) for each in scene.supervisors for port in each.ports]
    (topology,) = scene.topologies
    placed = {executor: dice.choice(slots) for executor in topology.executors}
    return replace(scene, assignments={topology.id: placed})


def with_all_in(scene: Scene, slot: WorkerSlot) -> Scene:
    (topology,) = scene.topologies
    return replace(scene, assignments={topology.id: dict.fromkeys(topology.executors, slot)})


@FEW
@given(seed=SEEDS, shape=st.sampled_from(SHAPES))
def test_all_in_one_worker_costs_no_network(seed: int, shape: str) -> None:
    scene = with_all_in(scattered(seed, shape), WorkerSlot("node-00000", 6700))
    dear = Network(us_per_row=1e6, us_per_kb=1e6, node_bytes_per_s=1.0, node_ms=1e9)
    (row,), (plain,) = predict(scene, dear, 0.1), predict(scene, FREE, 0.1)
    assert row["bottleneck"] == plain["bottleneck"]
    assert row["used"] == pytest.approx(plain["used"])
    assert row["latency_ms"] == pytest.approx(plain["latency_ms"])
    assert costs(scene)["bytes_between_workers"] == pytest.approx(0.0, abs=1e-6)


@FEW
@given(seed=SEEDS, shape=st.sampled_from(SHAPES))
def test_two_workers_joined_to_one_never_send_more(seed: int, shape: str) -> None:
    scene = scattered(seed, shape)
    (topology,) = scene.topologies
    placed = scene.assignments[topology.id]
    before = costs(scene)["bytes_between_workers"]
    one, *others = sorted(set(placed.values()))
    for other in others:
        joined = {each: one if slot == other else slot for each, slot in placed.items()}
        after = costs(replace(scene, assignments={topology.id: joined}))
        assert after["bytes_between_workers"] <= before * (1 + 1e-9)


@FEW
@given(seed=SEEDS, shape=st.sampled_from(SHAPES), by=st.floats(1.0, 100.0))
def test_throughput_and_latency_never_suffer_from_a_better_network(
    seed: int, shape: str, by: float
) -> None:
    scene = scattered(seed, shape)
    slow = Network(node_bytes_per_s=1e6, rack_bytes_per_s=1e6, us_per_row=10.0)
    (before,) = predict(scene, slow, 0.01)
    for better in (
        replace(slow, node_bytes_per_s=by * 1e6),
        replace(slow, rack_bytes_per_s=by * 1e6),
        replace(slow, us_per_row=10.0 / by),
        replace(slow, node_ms=0.1 / by, rack_ms=0.5 / by, far_ms=1.0 / by),
    ):
        (after,) = predict(scene, better, 0.01)
        assert after["most_rows_per_s"] >= before["most_rows_per_s"] * (1 - 1e-9)
        if before["latency_ms"] is not None:
            assert after["latency_ms"] <= before["latency_ms"] * (1 + 1e-9)


@FEW
@given(seed=SEEDS, shape=st.sampled_from(SHAPES))
def test_latency_grows_with_the_load_until_something_is_used_up(seed: int, shape: str) -> None:
    scene = scattered(seed, shape)
    (at_one,) = predict(scene, FREE)
    (light,) = predict(scene, FREE, 0.5 / at_one["used"])
    (heavy,) = predict(scene, FREE, 0.9 / at_one["used"])
    (full,) = predict(scene, FREE, 1.001 / at_one["used"])
    assert light["latency_ms"] <= heavy["latency_ms"] and full["latency_ms"] is None
    assert heavy["most_rows_per_s"] == light["most_rows_per_s"]


# -- by hand ---------------------------------------------------------------------------------------


def pair(one: WorkerSlot, other: WorkerSlot, size: float = 1e6) -> Scene:
    """Return a source of 1,000 rows a second with 20 % of a core, and a bolt with 50 %."""
    source, bolt = ExecutorId(1, 1), ExecutorId(2, 2)
    parts = (
        ComponentView("a", "spout", (source,)),
        ComponentView("b", "bolt", (bolt,), {}, (InputView("a"),)),
    )
    loads = {1: TaskLoad(1000.0, 0.0, 0.2, 20.0), 2: TaskLoad(0.0, 1000.0, 0.5, 50.0)}
    measured = Measurements((Flow("a", "default", "b", 1000.0, size),), loads)
    nodes = [supervisor(name, 1, 2, cpu=400.0) for name in ("n1", "n2", "n3")]
    nodes = [replace(each, rack=rack) for each, rack in zip(nodes, ("r1", "r1", "r2"), strict=True)]
    topology = TopologyView("t", "t", parts, 2, measured=measured)
    return Scene(tuple(nodes), (topology,), {"t": {source: one, bolt: other}}, {})


def test_a_worker_alone_is_limited_by_its_core() -> None:
    (row,) = predict(pair(WorkerSlot("n1", 1), WorkerSlot("n1", 1)))
    assert row["bottleneck"] == "worker n1:1" and row["used"] == pytest.approx(0.7)
    assert row["most_rows_per_s"] == pytest.approx(1000 / 0.7)
    # 0.2 ms and 0.5 ms of CPU a row, in a worker that is idle 30 % of the time
    assert row["latency_ms"] == pytest.approx(0.2 / 0.3 + 0.5 / 0.3)


def test_two_workers_add_serialisation_and_distance() -> None:
    net = Network(us_per_row=10.0, us_per_kb=10.0)
    (row,) = predict(pair(WorkerSlot("n1", 1), WorkerSlot("n1", 2)), net)
    # 1,000 rows of 1,000 bytes: 20 ms of CPU at each end
    assert row["bottleneck"] == "worker n1:2" and row["used"] == pytest.approx(0.52)
    ends = 0.22 / 0.78 + 0.52 / 0.48
    assert row["latency_ms"] == pytest.approx(ends + net.node_ms)
    (near,) = predict(pair(WorkerSlot("n1", 1), WorkerSlot("n2", 1)), net)
    assert near["latency_ms"] == pytest.approx(ends + net.rack_ms + 2 * 1000 / 125e3)
    (far,) = predict(pair(WorkerSlot("n1", 1), WorkerSlot("n3", 1)), net)
    way = 2 * 1000 / 125e3 + 2 * 1000 / 1.25e6
    assert far["latency_ms"] == pytest.approx(ends + net.far_ms + way)


def test_a_link_is_the_bottleneck_of_large_rows() -> None:
    scene = pair(WorkerSlot("n1", 1), WorkerSlot("n2", 1), size=250e6)
    (row,) = predict(scene, FREE)
    assert row["bottleneck"] == "link from n1" and row["used"] == pytest.approx(2.0)
    assert row["most_rows_per_s"] == pytest.approx(500.0) and row["latency_ms"] is None


def test_what_was_measured_live_has_the_cost_of_its_own_placement() -> None:
    net = Network(us_per_row=10.0, us_per_kb=10.0)
    apart = pair(WorkerSlot("n1", 1), WorkerSlot("n1", 2))
    together = pair(WorkerSlot("n1", 1), WorkerSlot("n1", 1))
    (same,) = predict(apart, net, measured_in=apart)
    assert same["used"] == pytest.approx(0.5), "measured there: as it was measured"
    (row,) = predict(together, net, measured_in=apart)
    assert row["used"] == pytest.approx(0.7 - 2 * 0.02)


def test_what_a_worker_takes_idle_does_not_grow_with_the_load() -> None:
    net = Network(us_per_row=0.0, us_per_kb=0.0, idle_cores=0.2)
    together = pair(WorkerSlot("n1", 1), WorkerSlot("n1", 1))
    (row,) = predict(together, net, 0.5)
    assert row["used"] == pytest.approx(0.2 + 0.5 * 0.7)
    assert row["most_rows_per_s"] == pytest.approx(1000 * 0.8 / 0.7)
    (row,) = predict(together, net, measured_in=together)
    assert row["used"] == pytest.approx(0.7), "0.2 of what was measured"
    (row,) = predict(together, net, 2.0, measured_in=together)
    assert row["used"] == pytest.approx(0.2 + 2 * 0.5)


def test_what_cannot_be_predicted_is_named() -> None:
    with pytest.raises(InvalidConfigError, match="node_bytes_per_s: expected more than 0, got 0"):
        Network(node_bytes_per_s=0)
    with pytest.raises(InvalidConfigError, match="node_ms: expected 0 or more, got nan"):
        Network(node_ms=float("nan"))
    with pytest.raises(InvalidConfigError, match="far_ms: expected 0 or more, got None"):
        Network(far_ms=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match="'topology-00000' was not measured"):
        predict(generate(2, 1, 3, 1).scheduled("even"))
    sentence = "'topology-00000' has 12 executors without a place"
    with pytest.raises(InvalidConfigError, match=sentence):
        predict(generate(2, 1, 12, 1, seed=1, shapes="chain"))
    together = pair(WorkerSlot("n1", 1), WorkerSlot("n1", 1))
    with pytest.raises(InvalidConfigError, match="'t' has no assignment in measured_in: give"):
        predict(together, measured_in=replace(together, assignments={}))


@pytest.mark.parametrize("load", [-1, float("nan"), float("inf"), "2", None, True])
def test_a_load_that_cannot_be_is_named(load: float) -> None:
    with pytest.raises(InvalidConfigError, match="load: expected 0 or more times the rates, got"):
        predict(pair(WorkerSlot("n1", 1), WorkerSlot("n1", 1)), load=load)
