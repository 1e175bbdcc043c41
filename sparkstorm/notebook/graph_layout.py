"""Layered layout of a directed graph: the layer and height of each node, the points of each edge.
PURE.

The method is Sugiyama's (1981): edges that close a cycle are turned round, a node's layer is its
longest path from a source, an edge over several layers gets a place in each of them, places within
a layer are ordered by the barycentres of their neighbours, and heights follow their neighbours' as
closely as that order permits. The same graph always gives the same picture. Graphviz would need a
binary; layout packages of Python either draw edges through nodes or have had no release for years.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

# Sweeps over all layers; the best order seen is kept. Topologies of 30 components settle within
# six.
_SWEEPS = 8
# Rounds in which heights settle. After a quarter of them edges that could be level still slope
# visibly.
_ROUNDS = 40

Edge = tuple[str, str]
_Place = tuple[int, str]  # layer, and a node or an edge that passes through


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """Layer and height of each node; of each edge its (layer, height) points from source to target.

    Heights are in rows: neighbours in a layer are at least 1 apart, and the least height is 0. The
    points of an edge that was turned round (`feedback`) go from a higher layer to a lower one. An
    edge from a node to itself has none.
    """

    layers: Mapping[str, int]
    heights: Mapping[str, float]
    paths: Mapping[Edge, tuple[tuple[int, float], ...]]
    feedback: frozenset[Edge]


def lay_out(nodes: Sequence[str], edges: Iterable[Edge]) -> GraphLayout:
    """Return the layout of a graph of `nodes`, in the order of their declaration, and `edges`
    between them.
    """
    distinct = list(dict.fromkeys(edges))
    feedback = _back_edges(nodes, distinct)
    forward = {
        edge: edge[::-1] if edge in feedback else edge for edge in distinct if edge[0] != edge[1]
    }
    layers = _layers(nodes, list(forward.values()))
    chains = {edge: _chain(edge, layers) for edge in forward.values()}
    columns = _columns(nodes, layers, list(chains.values()))
    steps = [step for chain in chains.values() for step in pairwise(chain)]
    heights = _heights(_ordered(columns, steps), steps)
    paths = {}
    for edge in distinct:
        chain = chains[forward[edge]] if edge in forward else ()
        points = tuple((place[0], heights[place]) for place in chain)
        paths[edge] = points[::-1] if edge in feedback else points
    return GraphLayout(
        layers, {node: heights[layers[node], node] for node in nodes}, paths, frozenset(feedback)
    )


def _back_edges(nodes: Sequence[str], edges: Sequence[Edge]) -> set[Edge]:
    """Return the edges that close a cycle in a walk in the order of declaration, self-loops left
    out.
    """
    following: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in edges:
        following[source].append(target)
    closing: set[Edge] = set()
    done: set[str] = set()
    for start in nodes:
        path = [(start, iter(following[start]))]
        open_now = {start}
        while path and start not in done:
            node, rest = path[-1]
            reached = next(
                (candidate for candidate in rest if candidate not in done and candidate != node),
                None,
            )
            if reached is None:
                path.pop()
                open_now.discard(node)
                done.add(node)
            elif reached in open_now:
                closing.add((node, reached))
            else:
                open_now.add(reached)
                path.append((reached, iter(following[reached])))
    return closing


def _layers(nodes: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """Return the longest path of each node from a node without inputs."""
    inputs: dict[str, list[str]] = {node: [] for node in nodes}
    outputs: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in edges:
        inputs[target].append(source)
        outputs[source].append(target)
    waits = {node: len(inputs[node]) for node in nodes}
    ready = [node for node in nodes if not waits[node]]
    layers: dict[str, int] = {}
    for node in ready:  # grows while it is read
        layers[node] = max((layers[source] + 1 for source in inputs[node]), default=0)
        for target in outputs[node]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    return layers


def _chain(edge: Edge, layers: Mapping[str, int]) -> list[_Place]:
    """Return the places of an edge from source to target, one in each layer."""
    source, target = edge
    between = [
        (layer, f"{source}\0{target}") for layer in range(layers[source] + 1, layers[target])
    ]
    return [(layers[source], source), *between, (layers[target], target)]


def _columns(
    nodes: Sequence[str], layers: Mapping[str, int], chains: Sequence[list[_Place]]
) -> list[list[_Place]]:
    """Return the places of each layer in the order of declaration."""
    columns: list[list[_Place]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for node in nodes:
        columns[layers[node]].append((layers[node], node))
    for chain in chains:
        for place in chain[1:-1]:
            columns[place[0]].append(place)
    return columns


def _ordered(
    columns: list[list[_Place]], steps: Sequence[tuple[_Place, _Place]]
) -> list[list[_Place]]:
    """Return the columns with the fewest crossings among those that sweeps by barycentre find."""
    before, after = _neighbours(steps)
    best = columns
    fewest = _crossings(columns, after)
    for sweep in range(_SWEEPS):
        neighbours, numbers = (
            (before, range(1, len(columns)))
            if sweep % 2 == 0
            else (after, range(len(columns) - 2, -1, -1))
        )
        columns = [list(column) for column in columns]
        for number in numbers:
            _sort_by_neighbours(columns, number, neighbours)
        crossings = _crossings(columns, after)
        if crossings < fewest:
            best = columns
            fewest = crossings
    return best


def _neighbours(
    steps: Sequence[tuple[_Place, _Place]],
) -> tuple[dict[_Place, list[_Place]], dict[_Place, list[_Place]]]:
    before: dict[_Place, list[_Place]] = {}
    after: dict[_Place, list[_Place]] = {}
    for one, other in steps:
        after.setdefault(one, []).append(other)
        before.setdefault(other, []).append(one)
    return before, after


def _sort_by_neighbours(
    columns: list[list[_Place]], number: int, neighbours: Mapping[_Place, list[_Place]]
) -> None:
    """Sort one column by the mean position of neighbours; a place without any keeps its
    position.
    """
    positions = {place: index for column in columns for index, place in enumerate(column)}

    def mean(place: _Place) -> float:
        near = neighbours.get(place)
        return (
            sum(positions[neighbour] for neighbour in near) / len(near)
            if near
            else positions[place]
        )

    columns[number].sort(key=mean)


def _crossings(columns: Sequence[Sequence[_Place]], after: Mapping[_Place, list[_Place]]) -> int:
    positions = {place: index for column in columns for index, place in enumerate(column)}
    crossings = 0
    for column in columns:
        ends = [
            positions[target]
            for place in column
            for target in sorted(after.get(place, ()), key=positions.__getitem__)
        ]
        crossings += sum(
            later < end for index, end in enumerate(ends) for later in ends[index + 1 :]
        )
    return crossings


def _heights(
    columns: Sequence[Sequence[_Place]], steps: Sequence[tuple[_Place, _Place]]
) -> dict[_Place, float]:
    """Return heights that are near the mean of all neighbours' and keep the order of each
    column.
    """
    before, after = _neighbours(steps)
    heights = {place: float(index) for column in columns for index, place in enumerate(column)}
    for sweep in range(_ROUNDS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            wanted = []
            for place in column:
                near = [
                    heights[neighbour]
                    for neighbour in (*before.get(place, ()), *after.get(place, ()))
                ]
                wanted.append(sum(near) / len(near) if near else heights[place])
            heights.update(zip(column, _spread(wanted), strict=True))
    least = min(heights.values(), default=0.0)
    # Quarters of a row: an edge that would slope by less is level. Rounding keeps places 1 apart.
    return {place: round(4 * (height - least)) / 4 for place, height in heights.items()}


def _spread(wanted: Sequence[float]) -> list[float]:
    """Return the heights nearest to `wanted` (least squares) that are at least 1 apart, in the same
    order.

    Isotonic regression of `wanted[i] - i` by pooling adjacent violators.
    """
    pools: list[tuple[float, int]] = []  # sum, size
    for index, height in enumerate(wanted):
        total = height - index
        size = 1
        while pools and pools[-1][0] / pools[-1][1] > total / size:
            former, count = pools.pop()
            total += former
            size += count
        pools.append((total, size))
    means = [total / size for total, size in pools for _ in range(size)]
    return [mean + index for index, mean in enumerate(means)]
