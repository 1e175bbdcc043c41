"""Costs of a placement: bytes that cross workers, nodes and racks, load of the nodes, and how the
free slots lie. PURE.
"""

from __future__ import annotations

from collections import Counter

from sparkstorm.control_plane.scheduling.resource.resources import CPU
from sparkstorm.control_plane.scheduling.traffic.problem import Demand, TrafficProblem
from sparkstorm.extensions.laboratory.scene import Row, Scene, check_scene


def node_loads(scene: Scene) -> dict[str, float]:
    """Return the share of its CPU that each node uses: of what was measured, else asked for."""
    cluster = scene.view()
    demand = Demand(cluster)
    taken = demand.taken_by_others("")
    offers = {node.id: demand.offer(node)[CPU] for node in scene.supervisors}
    return {
        node: taken.get(node, demand.zero)[CPU] / offer if offer else 0.0
        for node, offer in offers.items()
    }


def costs(scene: Scene) -> Row:
    """Return the costs of a scene's placement.

    Bytes are per second; those between nodes are part of those between workers, those between racks
    of both. A topology without measurements counts 1 for each of its subscriptions. `imbalance` is
    the CPU share of the busiest node by the mean of all; `fragmentation` the share of free slots
    that lie on nodes with a worker, 0 where whole nodes are free.
    """
    check_scene(scene)
    racks = {node.id: node.rack for node in scene.supervisors}
    total = workers = nodes = between_racks = 0.0
    for topology in scene.topologies:
        problem = TrafficProblem(topology, {})
        placed = scene.assignments.get(topology.id, {})
        traffic = problem.traffic(placed, racks)
        total += problem.total
        nodes += traffic.nodes
        workers += traffic.nodes + traffic.workers
        between_racks += traffic.racks
    loads = node_loads(scene)
    mean = sum(loads.values()) / len(loads) if loads else 0.0
    busiest = max(loads.values(), default=0.0)
    return {
        "bytes": total,
        "bytes_between_workers": workers,
        "bytes_between_nodes": nodes,
        "bytes_between_racks": between_racks,
        "busiest_node": busiest,
        "imbalance": busiest / mean if mean else 0.0,
        "fragmentation": _fragmentation(scene),
    }


def _fragmentation(scene: Scene) -> float:
    free = Counter(slot.node for slot in scene.view().available_slots())
    used = {slot.node for rows in scene.assignments.values() for slot in rows.values()}
    return sum(free[node] for node in used) / free.total() if free else 0.0
