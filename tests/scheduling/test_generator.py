"""Generated clusters and topologies: drawn from a seed alone, whole, and with measurements that fit
each other.
"""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.control_plane.scheduling.measured.flows import flows_of
from sparkstorm.extensions.laboratory import CLUSTERS, SHAPES, Scene, costs, generate
from tests.tiers import examples

SEEDS = st.integers(0, 10**9)
FEW = settings(max_examples=examples(40), deadline=None)


@FEW
@given(seed=SEEDS, shape=st.sampled_from(SHAPES), cluster=st.sampled_from(CLUSTERS))
def test_a_scene_is_drawn_from_its_arguments_and_survives_a_file(
    seed: int, shape: str, cluster: str
) -> None:
    scene = generate(4, 2, 12, 3, seed=seed, shapes=shape, cluster=cluster)
    assert scene == generate(4, 2, 12, 3, seed=seed, shapes=[shape], cluster=cluster)
    again = Scene.from_text(scene.to_text())
    result = [each.measured for each in again.topologies]
    assert result == [each.measured for each in scene.topologies]
    assert again.supervisors == scene.supervisors


@FEW
@given(seed=SEEDS, shape=st.sampled_from(SHAPES), size=st.integers(10, 30))
def test_a_topology_is_a_connected_graph_whose_components_take_in_what_flows_to_them(
    seed: int, shape: str, size: int
) -> None:
    (topology,) = generate(3, 1, size, 3, seed=seed, shapes=shape).topologies
    measured = topology.measured
    assert measured is not None and len(topology.executors) <= size
    assert [each.first_task for each in topology.executors] == [*range(1, len(measured.tasks) + 1)]
    reached = {part.id for part in topology.components if not part.inputs}
    assert reached == {part.id for part in topology.components if part.kind == "spout"}
    parts = {part.id: part for part in topology.components}
    for flow in measured.flows:
        assert flow.component in [source.component for source in parts[flow.receiver].inputs]
    for part in topology.components:
        arrived = sum(flow.rows_per_s for flow in measured.flows if flow.receiver == part.id)
        taken = sum(measured.load(executor).executed_per_s for executor in part.executors)
        assert math.isclose(arrived, taken, rel_tol=1e-9)
    assert len(flows_of(topology)) == len(measured.flows)


def test_each_shape_has_its_components() -> None:
    def graph(shape: str) -> dict[str, list[str]]:
        (topology,) = generate(3, 1, 12, 3, seed=4, shapes=shape).topologies
        return {
            part.id: sorted(source.component for source in part.inputs)
            for part in topology.components
        }

    chain = graph("chain")
    assert [len(inputs) for _, inputs in sorted(chain.items())] == [0] + [1] * (len(chain) - 1)
    diamond = graph("diamond")
    arms = sorted(name for name, inputs in diamond.items() if inputs == ["source"])
    assert diamond["join"] == arms and len(arms) >= 2
    star = graph("star")
    assert all(inputs in ([], ["center"]) for name, inputs in star.items() if name != "center")
    assert len(star["center"]) >= 2
    result = graph("stats")["mqtt_publish"]
    assert result == ["distinct_count", "linear_regression", "second_order_moment"]
    assert len(graph("etl")) == 10
    result = graph("pred")["decision_tree"]
    assert result == ["blob_download", "senml_parse"]


def test_five_observations_of_a_message_are_joined_again() -> None:
    (topology,) = generate(3, 1, 12, 3, seed=1, shapes="etl").topologies
    assert topology.measured is not None
    rows = {flow.receiver: flow.rows_per_s for flow in topology.measured.flows}
    assert rows["range_filter"] == pytest.approx(5 * rows["senml_parse"])
    assert rows["annotation"] == pytest.approx(rows["senml_parse"])


@FEW
@given(seed=SEEDS, cluster=st.sampled_from(CLUSTERS), used=st.sampled_from([0.3, 0.6, 0.9]))
def test_nodes_are_as_full_as_asked(seed: int, cluster: str, used: float) -> None:
    scene = generate(5, 2, 12, 3, seed=seed, shapes=SHAPES, cluster=cluster, used=used)
    loads = [
        load for each in scene.topologies if each.measured for load in each.measured.tasks.values()
    ]
    offered = sum(node["cpu_offered"] for node in scene.nodes())
    assert sum(load.cpu for load in loads) / offered == pytest.approx(used)
    offered = sum(node["memory_mb_offered"] for node in scene.nodes())
    assert sum(load.memory_mb or 0.0 for load in loads) / offered == pytest.approx(used / 2)


def test_clusters_differ_as_they_are_called() -> None:
    made = {each: generate(8, 1, 9, 3, seed=2, cluster=each) for each in CLUSTERS}
    racks = {name: {each.rack for each in scene.supervisors} for name, scene in made.items()}
    result = {name: len(several) for name, several in racks.items()}
    assert result == {"homogeneous": 1, "mixed": 2, "racked": 2}
    sizes = {
        name: {(len(each.ports), *each.resources.values()) for each in scene.supervisors}
        for name, scene in made.items()
    }
    assert len(sizes["homogeneous"]) == len(sizes["racked"]) == 1 < len(sizes["mixed"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"shapes": "chains"}, "shapes: there is no 'chains', only chain, diamond, star"),
        ({"cluster": "rack"}, "mixed, racked; did you mean 'racked'?"),
        ({"shapes": "etl", "executors_each": 9}, "shapes: etl has 10 components: executors_each"),
        ({"used": 0.0}, "used: a share above 0 and up to 1 is needed, not 0.0"),
        ({"used": "half"}, "used: a share above 0 and up to 1 is needed, not 'half'"),
        ({"used": None}, "used: a share above 0 and up to 1 is needed, not None"),
        ({"used": True}, "used: a share above 0 and up to 1 is needed, not True"),
        ({"seed": 1.5}, "seed: expected an integer from 0 to 9223372036854775807, got 1.5"),
        ({"seed": "x"}, "seed: expected an integer from 0 to 9223372036854775807, got 'x'"),
        ({"shapes": 5}, "shapes: there is no 5, only chain"),
        ({"shapes": [["chain"]]}, "shapes: there is no ['chain'], only chain"),
        ({"num_nodes": 0}, "num_nodes: expected an integer from 1 to 10000000, got 0"),
        ({"slots_per_node": 0, "seed": 1}, "slots_per_node: expected an integer from 1 to 58836"),
        ({"workers_each": 1.5}, "workers_each: expected an integer from 1 to 10000000, got 1.5"),
        ({"shapes": []}, "shapes: give one or more of chain, diamond"),
        ({"shapes": "random", "executors_each": 1}, "shapes: random has 2 components"),
    ],
)
def test_what_cannot_be_generated_is_named(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        generate(**arguments)  # type: ignore[arg-type]
    assert text in str(caught.value)


# -- costs -----------------------------------------------------------------------------------------


def test_costs_of_a_placement_that_is_known() -> None:
    scene = generate(2, 1, 3, 2).scheduled("even")  # read and count on one node, split on the other
    found = costs(scene)
    # each subscription counts 1 without measurements
    assert (found["bytes"], found["bytes_between_nodes"], found["bytes_between_racks"]) == (2, 2, 0)
    assert found["imbalance"] == pytest.approx(2 / 1.5)
    assert found["fragmentation"] == 1.0, "both nodes have a worker"
    alone = costs(generate(2, 1, 3, 1).scheduled("even"))
    assert (alone["bytes_between_workers"], alone["fragmentation"]) == (0, 3 / 7)
    assert costs(generate(2, 1, 3, 1))["fragmentation"] == 0.0


@FEW
@given(seed=SEEDS, shape=st.sampled_from(SHAPES))
def test_bytes_between_racks_are_some_of_those_between_nodes_and_workers(
    seed: int, shape: str
) -> None:
    scene = generate(8, 1, 16, 6, seed=seed, shapes=shape, cluster="racked").scheduled("even")
    found = costs(scene)
    parts = ("bytes_between_racks", "bytes_between_nodes", "bytes_between_workers", "bytes")
    amounts = [found[name] for name in parts]
    # sums of floats, in different orders
    assert all(part <= whole * (1 + 1e-12) for part, whole in pairwise(amounts))
    assert amounts[0] >= 0.0
