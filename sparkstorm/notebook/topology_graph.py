"""Graph of a topology as an SVG picture, a Mermaid or DOT text, or a table. PURE."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from sparkstorm.common.model.names import counted
from sparkstorm.common.model.tasks import executors_by_component, task_count
from sparkstorm.common.model.topology import DEFAULT_STREAM, Grouping, Topology
from sparkstorm.notebook.graph_layout import GraphLayout, lay_out
from sparkstorm.notebook.graph_places import TALL, WIDE, places_of
from sparkstorm.notebook.svg import FAINT, INK, LINE, PALETTE, PAPER, Svg, cut, document, text

_SPOUT = PALETTE[2]
_BOLT = PALETTE[0]
_LOAD = PALETTE[5]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """Component of a graph: kind is "spout" or "bolt"."""

    id: str
    kind: str
    executors: int
    tasks: int


@dataclass(frozen=True, slots=True)
class GraphLink:
    """Subscription of a graph; `grouping` in words, as "shuffle" or "by word"."""

    source: str
    stream: str
    target: str
    grouping: str

    @property
    def label(self) -> str:
        """Return the grouping, and the stream unless it is the default one."""
        return self.grouping if self.stream == DEFAULT_STREAM else f"{self.stream}: {self.grouping}"


@dataclass(frozen=True, slots=True)
class TopologyGraph:
    """Components in flow order and their subscriptions."""

    nodes: tuple[GraphNode, ...]
    links: tuple[GraphLink, ...]

    def layout(self) -> GraphLayout:
        """Return the places of components and edges."""
        return lay_out(
            [node.id for node in self.nodes], [(link.source, link.target) for link in self.links]
        )


def graph_of(topology: Topology, conf: Mapping[str, Any]) -> TopologyGraph:
    """Return the graph of a topology under its configuration, without the system's components."""
    executors = executors_by_component(topology, conf)
    nodes = [
        GraphNode(
            component.id, component.kind, executors[component.id], task_count(component, conf)
        )
        for component in topology
    ]
    links = [
        GraphLink(source.component, source.stream, component.id, grouping_words(source.grouping))
        for component in topology
        for source in component.inputs
    ]
    graph = TopologyGraph(tuple(nodes), tuple(links))
    layers = graph.layout().layers
    return TopologyGraph(tuple(sorted(nodes, key=lambda node: layers[node.id])), graph.links)


def grouping_words(grouping: Grouping) -> str:
    """Return a grouping in words: its kind, or the fields that choose the task."""
    if grouping.kind == "fields":
        return f"by {', '.join(grouping.fields)}"
    if grouping.kind == "key_range":
        return f"by ranges of {', '.join(grouping.fields)}"
    if grouping.kind == "partial_key":
        return f"partly by {', '.join(grouping.fields)}"
    return grouping.kind.replace("_", " ")


def rows_of(graph: TopologyGraph) -> list[tuple[str, str, int, int, str]]:
    """Return a row per component in flow order: id, kind, executors, tasks, inputs."""
    return [
        (
            node.id,
            node.kind,
            node.executors,
            node.tasks,
            "; ".join(f"{link.source} ({link.label})" for link in inputs) or "-",
        )
        for node in graph.nodes
        for inputs in [[link for link in graph.links if link.target == node.id]]
    ]


def mermaid(graph: TopologyGraph) -> str:
    """Return the graph as a Mermaid flowchart, for a README or a wiki."""
    names = {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for node in graph.nodes:
        words = _mermaid_text(f"{node.id} ×{node.executors}")
        lines.append(
            f"    {names[node.id]}([{words}])"
            if node.kind == "spout"
            else f"    {names[node.id]}[{words}]"
        )
    lines += [
        f"    {names[link.source]} -->|{_mermaid_text(link.label)}| {names[link.target]}"
        for link in graph.links
    ]
    return "\n".join(lines)


def _mermaid_text(words: str) -> str:
    """Return quoted text in which nothing is read as Mermaid's syntax or as HTML."""
    special = {ord(char): f"#{ord(char)};" for char in '"#<>&`'}
    return f'"{words.translate(special)}"'


def dot(graph: TopologyGraph) -> str:
    """Return the graph in Graphviz's language."""
    lines = ["digraph topology {", "    rankdir=LR;", "    node [shape=box, style=rounded];"]
    for node in graph.nodes:
        shape = ", shape=ellipse" if node.kind == "spout" else ""
        lines.append(
            f"    {json.dumps(node.id)} [label={json.dumps(f'{node.id} ×{node.executors}', ensure_ascii=False)}{shape}];"
        )
    for link in graph.links:
        ends = f"{json.dumps(link.source)} -> {json.dumps(link.target)}"
        lines.append(f"    {ends} [label={json.dumps(link.label, ensure_ascii=False)}];")
    return "\n".join([*lines, "}"])


def picture(
    graph: TopologyGraph, title: str = "", busy: Mapping[str, float | None] | None = None
) -> Svg:
    """Draw the graph: components in layers from left to right, feedback edges dashed; `busy` (0 to
    1) colours them.
    """
    links = [
        (str(index), link.source, link.target, link.label) for index, link in enumerate(graph.links)
    ]
    places = places_of(tuple(node.id for node in graph.nodes), tuple(links))
    parts = [_MARKER]
    for edge in places["edges"].values():
        style = ' stroke-dasharray="5 4"' if edge["back"] else ""
        parts.append(
            f'<path d="{edge["d"]}" fill="none" stroke="{LINE}" stroke-width="1.6"{style} marker-end="url(#arrow)"/>'
        )
        is_loop = edge["sender"] == edge["receiver"]
        anchor = "start" if edge["back"] else "middle" if is_loop else "end"
        parts.append(text(edge["x"], edge["y"], edge["label"], 11, FAINT, anchor=anchor))
    for node in graph.nodes:
        parts += _box(node, places["boxes"][node.id], (busy or {}).get(node.id))
    words = title or f"topology of {len(graph.nodes)} components: " + ", ".join(
        node.id for node in graph.nodes
    )
    size = (places["width"] or WIDE, places["height"] or TALL)  # an empty graph has none
    return Svg(document(*size, parts, words), *size)


_MARKER = (
    f'<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0 0L8 4L0 8z" fill="{FAINT}"/></marker></defs>'
)


def _box(node: GraphNode, position: Mapping[str, int], busy: float | None = None) -> Iterator[str]:
    """Yield the parts of one component."""
    x = position["x"]
    y = position["y"]
    color = _SPOUT if node.kind == "spout" else _BOLT
    tasks = "" if node.tasks == node.executors else f", {counted(node.tasks, 'task')}"
    size = f"{counted(node.executors, 'executor')}, {counted(node.tasks, 'task')}"
    yield f"<g><title>{escape(f'{node.kind} {node.id}: {size}')}</title>"
    yield f'<rect x="{x}" y="{y}" width="{WIDE}" height="{TALL}" rx="8" fill="{PAPER}" stroke="{color}" stroke-width="1.5"/>'
    if busy is not None:
        load = f'fill="{_LOAD}" fill-opacity="{0.6 * min(busy, 1):.2f}"'
        yield f'<rect x="{x}" y="{y}" width="{WIDE}" height="{TALL}" rx="8" {load}/>'
        yield text(x + WIDE - 12, y + 43, f"{busy:.0%}", 12, INK, anchor="end")
    yield text(x + 12, y + 24, cut(node.id, 19), 14, INK, "600")
    yield text(x + 12, y + 43, f"{node.kind} ×{node.executors}{tasks}", 12, FAINT)
    yield "</g>"
