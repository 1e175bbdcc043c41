"""Places of a topology's graph for the page: boxes, curves and labels in one coordinate system.
PURE.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import Any

from sparkstorm.insight.records import EdgeView, TopologyView
from sparkstorm.notebook.graph_layout import Layout, lay_out
from sparkstorm.notebook.svg import cut

# of a box
WIDE = 168
TALL = 66
# between layers; between the middles of two rows; margin
_GAP = 118
_ROW = 96
_EDGE = 24
_LABEL = 60  # an edge is level where its label is
# between the ends of two edges at a box: a line of a label, so that labels have lanes of their own
_PORT = 17


def graph(view: TopologyView) -> dict[str, Any]:
    """Return size, boxes by component and edges of a topology's graph, in flow order, without the
    system's components.

    It is one object as long as the graph is the same, so that an open page costs no drawing, and
    is not to be changed.
    """
    names = tuple(name for name in view.components if not name.startswith("__"))
    known = {*names}
    lines = tuple(
        (key, edge.sender, edge.receiver, _words(edge))
        for key, edge in view.edges.items()
        if edge.sender in known and edge.receiver in known
    )
    return _drawn(names, lines)


Line = tuple[str, str, str, str]
"""Key, sender, receiver and words of an edge."""


# An open page asks each second, and a graph changes only with its topology. Half of the entries would
# do for most clusters; one entry is some kilobytes.
@lru_cache(maxsize=64)
def _drawn(among: tuple[str, ...], lines: tuple[Line, ...]) -> dict[str, Any]:
    layout = lay_out(among, tuple((sender, receiver) for _, sender, receiver, _ in lines))
    names = sorted(among, key=lambda name: (layout.layers[name], layout.heights[name]))
    rows = max(
        [
            *layout.heights.values(),
            *(height for path in layout.paths.values() for _, height in path),
        ],
        default=0.0,
    )
    layers = max(layout.layers.values(), default=-1) + 1
    boxes = {
        name: {"x": _x(layout.layers[name]), "y": round(_y(layout.heights[name]) - TALL / 2)}
        for name in names
    }
    return {
        "width": 2 * _EDGE + layers * (WIDE + _GAP) - _GAP if layers else 0,
        "height": round(2 * _EDGE + TALL + rows * _ROW) if layers else 0,
        "wide": WIDE,
        "tall": TALL,
        "order": names,
        "boxes": boxes,
        "edges": _edges(lines, layout),
    }


def _edges(lines: tuple[Line, ...], layout: Layout) -> dict[str, dict[str, Any]]:
    """Return curve and label of each pair of components; streams between the same two are drawn as
    one.
    """
    pairs: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        if line[1:3] in layout.paths:
            pairs[line[1:3]].append(line)
    into: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for pair in sorted(
        pairs, key=lambda pair: layout.paths[pair][-2][1] if layout.paths[pair] else 0.0
    ):
        into[pair[1]].append(pair)
    found = {}
    for several in into.values():
        for number, pair in enumerate(several):
            port = (number - (len(several) - 1) / 2) * _PORT
            d, x, y = (
                _loop(pair[0], layout) if pair[0] == pair[1] else _through(layout.paths[pair], port)
            )
            words = {each[3] for each in pairs[pair]}
            found[f"{pair[0]}/{pair[1]}"] = {
                "d": d,
                "x": x,
                "y": y,
                "keys": [each[0] for each in pairs[pair]],
                "sender": pair[0],
                "receiver": pair[1],
                "label": cut("; ".join(sorted(words)), 17),
                "back": pair in layout.feedback,
            }
    return found


def _words(edge: EdgeView) -> str:
    words = f"by {', '.join(edge.fields)}" if edge.fields else edge.grouping.replace("_", " ")
    return words if edge.stream == "default" else f"{edge.stream}: {words}"


def _x(layer: int) -> int:
    return _EDGE + layer * (WIDE + _GAP)


def _y(height: float) -> float:
    return _EDGE + TALL / 2 + height * _ROW


def _through(path: tuple[tuple[int, float], ...], port: float) -> tuple[str, int, int]:
    """Return the curve of an edge through its places, and where its label begins: before the
    receiver, on its own lane.
    """
    is_forward = path[0][0] < path[-1][0]
    leaves, enters = (WIDE, 0) if is_forward else (0, WIDE)
    x = _x(path[0][0]) + leaves
    y = _y(path[0][1])
    d = f"M{x} {y:.0f}"
    for layer, height in path[1:-1]:
        d += _bend(x, y, _x(layer) + enters, _y(height)) + f"H{_x(layer) + leaves}"
        x = _x(layer) + leaves
        y = _y(height)
    end_x = _x(path[-1][0]) + enters
    end_y = _y(path[-1][1]) + port
    label_x = end_x - 12 if is_forward else end_x + 12
    level_x = end_x - _LABEL if is_forward else end_x + _LABEL
    return d + _bend(x, y, level_x, end_y) + f"H{end_x}", label_x, round(end_y) - 5


def _loop(name: str, layout: Layout) -> tuple[str, int, int]:
    x = _x(layout.layers[name])
    top = round(_y(layout.heights[name]) - TALL / 2)
    right = x + WIDE - 30
    left = x + 30
    return (
        f"M{right} {top}C{right} {top - 20} {left} {top - 20} {left} {top}",
        x + WIDE // 2,
        top - 4,
    )


def _bend(x: float, y: float, to_x: float, to_y: float) -> str:
    middle = (x + to_x) / 2
    return f"C{middle:.0f} {y:.0f} {middle:.0f} {to_y:.0f} {to_x} {to_y:.0f}"
