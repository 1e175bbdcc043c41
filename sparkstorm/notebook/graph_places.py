"""Places of a topology's graph in a picture: boxes, curves and labels in one coordinate system.
PURE.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from sparkstorm.notebook.graph_layout import GraphLayout, lay_out
from sparkstorm.notebook.svg import cut

# of a box
WIDE = 168
TALL = 66
# between layers; between the middles of two rows; margin
_GAP = 118
_ROW = 96
_EDGE = 24
# An edge is level where its label is: at least and at most, and for each letter of it.
_LABEL = 60
_LONGEST_LABEL = 92
_LETTER = 6.2
# Layers side by side: at their own size five are as wide as the page. More are wrapped into bands,
# like the lines of a text, since a graph of 100 layers in one row would shrink to a line.
_MOST_ABREAST = 5
# between two bands, and for each edge that goes from one band to the next
_GUTTER = 34
_LANE = 7
# left of a band that an edge enters from the band before: room for its label
_ENTRY = 64
# between the ends of two edges at a box: a line of a label, so that labels have lanes of their own
_PORT = 17


Line = tuple[str, str, str, str]
"""Key, sender, receiver and words of an edge."""


# An open page asks each second, and a graph changes only with its topology. Half of the entries would
# do for most clusters; one entry is some kilobytes.
@lru_cache(maxsize=64)
def places_of(among: tuple[str, ...], lines: tuple[Line, ...]) -> dict[str, Any]:
    """Return the size of a picture, the places of its boxes and the curves and labels of its edges;
    edges between the same two boxes are one.
    """
    layout = lay_out(among, tuple((sender, receiver) for _, sender, receiver, _ in lines))
    names = sorted(among, key=lambda name: (layout.layers[name], layout.heights[name]))
    frame = _frame(layout)
    boxes = {
        name: {
            "x": frame.x(layout.layers[name]),
            "y": round(frame.y(layout.layers[name], layout.heights[name]) - TALL / 2),
        }
        for name in names
    }
    return {
        "width": frame.width,
        "height": frame.height,
        "wide": WIDE,
        "tall": TALL,
        "order": names,
        "boxes": boxes,
        "edges": _edges(lines, layout, frame),
    }


@dataclass(frozen=True, slots=True)
class _Frame:
    """Places of layers and heights, in bands of `abreast` layers below each other."""

    abreast: int
    left: int
    # of each band
    tops: tuple[float, ...]
    lows: tuple[float, ...]
    # by the last layer of a band, the number of each edge among those that go on in the next band
    lanes: Mapping[tuple[int, tuple[str, str]], int]
    width: int
    height: int

    def x(self, layer: int) -> int:
        return self.left + layer % self.abreast * (WIDE + _GAP)

    def y(self, layer: int, height: float) -> float:
        """Return the middle of a place."""
        band = layer // self.abreast
        return self.tops[band] + TALL / 2 + (height - self.lows[band]) * _ROW

    def gutter(self, layer: int, lane: int) -> float:
        """Return where an edge runs between the band of a layer and the next."""
        return self.tops[layer // self.abreast + 1] - _GUTTER / 2 - lane * _LANE


def _frame(layout: GraphLayout) -> _Frame:
    layers = max(layout.layers.values(), default=-1) + 1
    if not layers:
        return _Frame(1, _EDGE, (), (), {}, 0, 0)
    bands = -(-layers // _MOST_ABREAST)
    abreast = -(-layers // bands)
    heights: list[list[float]] = [[] for _ in range(bands)]
    for name, layer in layout.layers.items():
        heights[layer // abreast].append(layout.heights[name])
    crossing: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for pair, path in layout.paths.items():
        for layer, height in path:
            heights[layer // abreast].append(height)
        for (one, _), (other, _) in pairwise(path):
            if one // abreast != other // abreast:
                crossing[min(one, other)].append(pair)
    lanes = {(layer, pair): n for layer, pairs in crossing.items() for n, pair in enumerate(pairs)}
    most = max(map(len, crossing.values()), default=0)
    lanes_width = _LANE * most
    left = _EDGE + (_ENTRY + lanes_width if most else 0)
    right = _EDGE + lanes_width + (_ENTRY if most and layout.feedback else 0)
    tops = []
    bottom = float(_EDGE)
    for band, several in enumerate(heights):
        between = _GUTTER + _LANE * len(crossing[band * abreast - 1]) if band else 0
        tops.append(bottom + between)
        bottom = tops[-1] + TALL + (max(several) - min(several)) * _ROW
    return _Frame(
        abreast,
        left,
        tuple(tops),
        tuple(min(several) for several in heights),
        lanes,
        left + abreast * (WIDE + _GAP) - _GAP + right,
        round(bottom + _EDGE),
    )


def _edges(
    lines: tuple[Line, ...], layout: GraphLayout, frame: _Frame
) -> dict[str, dict[str, Any]]:
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
    drawn = {}
    for several in into.values():
        for number, pair in enumerate(several):
            port = (number - (len(several) - 1) / 2) * _PORT
            label = cut("; ".join(sorted({line[3] for line in pairs[pair]})), 17)
            # the page shows the label of a receiver's only edge
            letters = len(label) if len(several) == 1 else 0
            d, x, y = (
                _loop(pair[0], layout, frame)
                if pair[0] == pair[1]
                else _through(pair, layout, frame, port, letters)
            )
            drawn[f"{pair[0]}/{pair[1]}"] = {
                "d": d,
                "x": x,
                "y": y,
                "keys": [line[0] for line in pairs[pair]],
                "sender": pair[0],
                "receiver": pair[1],
                "label": label,
                "back": pair in layout.feedback,
            }
    return drawn


def _through(
    pair: tuple[str, str], layout: GraphLayout, frame: _Frame, port: float, letters: int
) -> tuple[str, int, int]:
    """Return the curve of an edge through its places, and where its label begins: before the
    receiver, on its own lane.
    """
    path = layout.paths[pair]
    side = 1 if path[0][0] < path[-1][0] else -1
    leaves, enters = (WIDE, 0) if side > 0 else (0, WIDE)
    x = float(frame.x(path[0][0]) + leaves)
    y = frame.y(*path[0])
    d = f"M{x:.0f} {y:.0f}"
    level = min(_LONGEST_LABEL, max(_LABEL, 16 + _LETTER * letters))
    for (layer, _), (to_layer, to_height) in pairwise(path):
        is_last = to_layer == path[-1][0]
        to_x = frame.x(to_layer) + enters
        to_y = frame.y(to_layer, to_height) + (port if is_last else 0)
        lane = frame.lanes.get((min(layer, to_layer), pair))
        if lane is not None:
            d += _around(x, y, to_x, to_y, side, lane, frame.gutter(min(layer, to_layer), lane))
        elif is_last:
            d += _bend(x, y, to_x - side * level, to_y) + f"H{to_x}"
        else:
            d += _bend(x, y, to_x, to_y)
        x = float(to_x)
        y = to_y
        if not is_last:
            x = float(frame.x(to_layer) + leaves)
            d += f"H{x:.0f}"
    return d, round(x - side * 12), round(y) - 5


def _around(
    x: float, y: float, to_x: float, to_y: float, side: int, lane: int, gutter: float
) -> str:
    """Return the way from the end of a band to the begin of the next, or back: out, along the
    gutter between them, in.
    """
    out = x + side * (12 + _LANE * lane)
    back = to_x - side * (_ENTRY + _LANE * lane)
    return f"H{out:.0f}V{gutter:.0f}H{back:.0f}V{to_y:.0f}H{to_x:.0f}"


def _loop(name: str, layout: GraphLayout, frame: _Frame) -> tuple[str, int, int]:
    layer = layout.layers[name]
    x = frame.x(layer)
    top = round(frame.y(layer, layout.heights[name]) - TALL / 2)
    right = x + WIDE - 30
    left = x + 30
    return (
        f"M{right} {top}C{right} {top - 20} {left} {top - 20} {left} {top}",
        x + WIDE // 2,
        top - 4,
    )


def _bend(x: float, y: float, to_x: float, to_y: float) -> str:
    middle = (x + to_x) / 2
    return f"C{middle:.0f} {y:.0f} {middle:.0f} {to_y:.0f} {to_x:.0f} {to_y:.0f}"
