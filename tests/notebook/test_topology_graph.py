"""Graphs of topologies: the layout's laws over random graphs, and pictures and texts that hostile
names do not break.
"""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.api import TopologyBuilder
from sparkstorm.notebook.graph_layout import GraphLayout, lay_out
from sparkstorm.notebook.topology_graph import (
    GraphLink,
    GraphNode,
    TopologyGraph,
    dot,
    graph_of,
    mermaid,
    picture,
    rows_of,
)
from sparkstorm.testing import CaptureBolt, FeederSpout

NODES = [chr(ord("a") + n) for n in range(9)]
EDGES = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=24)


def places(layout: GraphLayout) -> set[tuple[int, float]]:
    """Return the distinct places of nodes, and of edges that pass through a layer."""
    inner = {point for path in layout.paths.values() for point in path[1:-1]}
    return {(layout.layers[node], layout.heights[node]) for node in layout.layers} | inner


@given(EDGES)
def test_every_edge_that_closes_no_cycle_leads_from_a_lower_layer_to_a_higher_one(
    edges: list[tuple[str, str]],
) -> None:
    layout = lay_out(NODES, edges)
    for source, target in edges:
        path = layout.paths[source, target]
        if source == target:
            assert path == ()
            continue
        assert path[0] == (layout.layers[source], layout.heights[source])
        assert path[-1] == (layout.layers[target], layout.heights[target])
        step = -1 if (source, target) in layout.feedback else 1
        assert {b[0] - a[0] for a, b in itertools.pairwise(path)} == {step}


@given(EDGES)
def test_nodes_and_passing_edges_of_a_layer_are_at_least_a_row_apart(
    edges: list[tuple[str, str]],
) -> None:
    layout = lay_out(NODES, edges)
    nodes = [(layout.layers[node], layout.heights[node]) for node in NODES]
    assert len(set(nodes)) == len(nodes)
    for layer, column in itertools.groupby(sorted(places(layout)), key=lambda place: place[0]):
        heights = [height for _, height in column]
        assert all(b - a >= 1 for a, b in itertools.pairwise(heights)), layer
    assert min(height for _, height in places(layout)) == 0


@given(EDGES)
def test_a_graph_without_cycles_has_no_feedback(edges: list[tuple[str, str]]) -> None:
    assert lay_out(NODES, [(a, b) for a, b in edges if a < b]).feedback == frozenset()


def test_an_order_without_crossings_is_found() -> None:
    layout = lay_out(["a", "b", "c", "d"], [("a", "d"), ("b", "c")])
    assert layout.heights["a"] == layout.heights["d"] and layout.heights["b"] == layout.heights["c"]


def test_a_chain_is_level() -> None:
    assert set(lay_out("abc", [("a", "b"), ("b", "c")]).heights.values()) == {0}


def test_an_edge_over_a_layer_goes_round_the_nodes_there() -> None:
    layout = lay_out(["a", "b", "c"], [("a", "b"), ("b", "c"), ("a", "c")])
    (_, (layer, height), _) = layout.paths["a", "c"]
    assert layer == 1 and abs(height - layout.heights["b"]) >= 1


def words() -> TopologyGraph:
    """Return the graph of a word count with a sink that gets two streams."""
    builder = TopologyBuilder()
    builder.set_bolt("count", CaptureBolt(), 2, num_tasks=4).fields_grouping("lines", "value")
    builder.set_spout("lines", FeederSpout())
    return graph_of(builder.build(), {})


def test_a_table_has_components_in_flow_order_with_executors_tasks_and_inputs() -> None:
    result = rows_of(words())
    assert result == [("lines", "spout", 1, 1, "-"), ("count", "bolt", 2, 4, "lines (by value)")]


HOSTILE = TopologyGraph(
    (GraphNode("<b>&\"'`", "spout", 1, 1), GraphNode("#end[]()", "bolt", 2, 4)),
    (
        GraphLink("<b>&\"'`", "default", "#end[]()", 'by "<script>"'),
        GraphLink("#end[]()", "again", "<b>&\"'`", "shuffle"),
        GraphLink("#end[]()", "self", "#end[]()", "all"),
    ),
)


@pytest.mark.parametrize(
    "graph", [words(), HOSTILE, TopologyGraph((), ())], ids=["words", "hostile names", "empty"]
)
def test_a_picture_is_well_formed_and_names_every_component(graph: TopologyGraph) -> None:
    root = ElementTree.fromstring(picture(graph).text)
    shown = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {node.id for node in graph.nodes} <= set(shown)
    assert {link.label for link in graph.links} <= set(shown)


def test_a_mermaid_text_quotes_whatever_is_syntax() -> None:
    lines = mermaid(HOSTILE).splitlines()
    assert lines[0] == "flowchart LR" and len(lines) == 6
    for line in lines[1:]:
        quoted = re.findall(r'"([^"]*)"', line)
        assert len(quoted) == 1 and not re.search("[<>&`]", quoted[0])
    result = mermaid(words()).splitlines()[1:]
    assert result == ['    n0(["lines ×1"])', '    n1["count ×2"]', '    n0 -->|"by value"| n1']


def test_a_dot_text_quotes_names() -> None:
    result = dot(HOSTILE).splitlines()[3]
    assert result == r"""    "<b>&\"'`" [label="<b>&\"'` ×1", shape=ellipse];"""
