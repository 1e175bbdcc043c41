"""Graph of a topology as an SVG picture, a Mermaid or DOT text, or a table. PURE."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from sparkstorm.common.model.names import counted
from sparkstorm.common.model.tasks import executors_by_component, task_count
from sparkstorm.common.model.topology import DEFAULT_STREAM, Grouping, Topology
from sparkstorm.notebook.graph_layout import GraphLayout, lay_out
from sparkstorm.notebook.svg import FAINT, INK, LINE, PALETTE, PAPER, Svg, cut, document, text

# width and height of a component
_BOX = 168
_TALL = 58
# between two layers: room for an edge's label; between the middles of two rows
_GAP = 132
_ROW = 92
_EDGE = 40  # margin: room for the label of an edge from a component to itself
_PORT = 15  # between the ends of two edges at one component: a line of a label
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
        GraphNode(each.id, each.kind, executors[each.id], task_count(each, conf))
        for each in topology
    ]
    links = [
        GraphLink(one.component, one.stream, each.id, grouping_words(one.grouping))
        for each in topology
        for one in each.inputs
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
            "; ".join(f"{each.source} ({each.label})" for each in inputs) or "-",
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
    layout = graph.layout()
    rows = max((height for path in layout.paths.values() for _, height in path), default=0.0)
    rows = max([rows, *layout.heights.values()])
    width = 2 * _EDGE + (max(layout.layers.values(), default=0) + 1) * (_BOX + _GAP) - _GAP
    height = round(2 * _EDGE + rows * _ROW + _TALL)
    parts = [
        _MARKER,
        *_edges(graph, layout),
        *(part for node in graph.nodes for part in _box(node, layout, (busy or {}).get(node.id))),
    ]
    words = title or f"topology of {len(graph.nodes)} components: " + ", ".join(
        node.id for node in graph.nodes
    )
    return Svg(document(width, height, parts, words), width, height)


_MARKER = (
    f'<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0 0L8 4L0 8z" fill="{FAINT}"/></marker></defs>'
)


def _x(layer: int) -> int:
    """Return the left side of a layer's boxes."""
    return _EDGE + layer * (_BOX + _GAP)


def _y(height: float) -> float:
    """Return the middle of a row."""
    return _EDGE + _TALL / 2 + height * _ROW


def _box(node: GraphNode, layout: GraphLayout, busy: float | None = None) -> Iterator[str]:
    """Yield the parts of one component."""
    x = _x(layout.layers[node.id])
    y = round(_y(layout.heights[node.id]) - _TALL / 2)
    color = _SPOUT if node.kind == "spout" else _BOLT
    tasks = "" if node.tasks == node.executors else f", {counted(node.tasks, 'task')}"
    size = f"{counted(node.executors, 'executor')}, {counted(node.tasks, 'task')}"
    yield f"<g><title>{escape(f'{node.kind} {node.id}: {size}')}</title>"
    yield f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_TALL}" rx="8" fill="{PAPER}" stroke="{color}" stroke-width="1.5"/>'
    if busy is not None:
        load = f'fill="{_LOAD}" fill-opacity="{0.6 * min(busy, 1):.2f}"'
        yield f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_TALL}" rx="8" {load}/>'
        yield text(x + _BOX - 12, y + 43, f"{busy:.0%}", 12, INK, anchor="end")
    yield text(x + 12, y + 24, cut(node.id, 19), 14, INK, "600")
    yield text(x + 12, y + 43, f"{node.kind} ×{node.executors}{tasks}", 12, FAINT)
    yield "</g>"


def _edges(graph: TopologyGraph, layout: GraphLayout) -> Iterator[str]:
    """Yield the curves of all edges, with their labels at the receiver."""
    for node in graph.nodes:
        links = [link for link in graph.links if link.target == node.id]
        into = [link for link in links if link.source != node.id and not _is_feedback(link, layout)]
        into.sort(key=lambda link: layout.paths[link.source, link.target][-2][1])
        for number, link in enumerate(into):
            yield from _edge(link, layout, (number - (len(into) - 1) / 2) * _PORT)
        back = [link for link in links if _is_feedback(link, layout)]
        for number, link in enumerate(back):
            yield from _feedback_edge(link, layout, _TALL / 2 - 8 + number * _PORT)
        yield from _loop(node, [link for link in links if link.source == node.id], layout)


def _is_feedback(link: GraphLink, layout: GraphLayout) -> bool:
    return (link.source, link.target) in layout.feedback


def _edge(link: GraphLink, layout: GraphLayout, port: float) -> Iterator[str]:
    path = layout.paths[link.source, link.target]
    end = _y(path[-1][1]) + port
    yield _curve(_through(path, 0, end))
    yield text(_x(path[-1][0]) - 12, round(end) - 4, cut(link.label, 19), 11, FAINT, anchor="end")


def _feedback_edge(link: GraphLink, layout: GraphLayout, port: float) -> Iterator[str]:
    """Draw an edge against the flow: from the receiver's right side, below its outputs, to the
    sender's left one.
    """
    path = layout.paths[link.source, link.target]
    end = _y(path[-1][1]) + port
    yield _curve(_through(path, _TALL / 2 - 8, end), "5 4")
    yield text(_x(path[-1][0]) + _BOX + 14, round(end) + 12, cut(link.label, 19), 11, FAINT)


def _loop(node: GraphNode, links: Sequence[GraphLink], layout: GraphLayout) -> Iterator[str]:
    """Draw the edges from a component to itself as one, above it."""
    if links:
        x = _x(layout.layers[node.id])
        top = round(_y(layout.heights[node.id]) - _TALL / 2)
        yield _curve(
            f"M{x + _BOX - 30} {top}C{x + _BOX - 30} {top - 22} {x + 30} {top - 22} {x + 30} {top}"
        )
        yield text(
            x + _BOX // 2,
            top - 21,
            cut("; ".join(link.label for link in links), 28),
            11,
            FAINT,
            anchor="middle",
        )


def _curve(d: str, dashes: str = "") -> str:
    style = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{d}" fill="none" stroke="{LINE}" stroke-width="1.6"{style} marker-end="url(#arrow)"/>'


def _through(path: Sequence[tuple[int, float]], port: float, end: float) -> str:
    """Return an SVG path through the places of an edge, from `port` below its sender's middle to
    the height `end`.

    It is level across each layer, with a curve between two.
    """
    is_forward = path[0][0] < path[-1][0]
    leaves, enters = (_BOX, 0) if is_forward else (0, _BOX)
    x = _x(path[0][0]) + leaves
    y = _y(path[0][1]) + port
    d = f"M{x} {y:.0f}"
    for layer, height in path[1:-1]:
        d += _bend(x, y, _x(layer) + enters, _y(height)) + f"H{_x(layer) + leaves}"
        x = _x(layer) + leaves
        y = _y(height)
    return d + _bend(x, y, _x(path[-1][0]) + enters, end)


def _bend(x: int, y: float, to_x: int, to_y: float) -> str:
    middle = (x + to_x) // 2
    return f"C{middle} {y:.0f} {middle} {to_y:.0f} {to_x} {to_y:.0f}"
