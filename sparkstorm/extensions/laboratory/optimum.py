"""Small placement problems, and the least that any placement of one can reach, by exhaustive search.
PURE.

A problem is one topology with measurements on a few nodes. A placement fits if no node has more CPU
or memory than it offers and the wanted workers can be made of it, at most as many on a node as it
has slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from sparkstorm.control_plane.scheduling.measured.flows import flows_of
from sparkstorm.control_plane.scheduling.records import SupervisorView
from sparkstorm.control_plane.scheduling.resource.resources import CPU, MEMORY
from sparkstorm.control_plane.scheduling.traffic.problem import Demand
from sparkstorm.extensions.laboratory.generator import MEMORY_MB, random_topology
from sparkstorm.extensions.laboratory.scene import Scene

_SLACK = 1e-9
_TRIES = 200
_MOST_EXECUTORS = 8
_MOST_NODES = 4


@dataclass(frozen=True, slots=True)
class Small:
    """A problem in numbers, by executor and by node."""

    cpu: tuple[float, ...]  # in percent of a core, as measured
    traffic: tuple[tuple[float, ...], ...]  # bytes a second between two executors, both ways
    capacity: tuple[float, ...]
    memory: tuple[float, ...]  # in MB, of executors
    room: tuple[float, ...]  # of nodes
    slots: tuple[int, ...]
    workers: int

    def crossing(self, places: Sequence[int]) -> float:
        """Return the bytes a second between nodes."""
        pairs = ((one, other) for one in range(len(places)) for other in range(one))
        return sum(self.traffic[a][b] for a, b in pairs if places[a] != places[b])

    def loads(self, places: Sequence[int]) -> list[float]:
        """Return the share of its CPU that each node uses."""
        sums = [0.0] * len(self.capacity)
        for cpu, node in zip(self.cpu, places, strict=True):
            sums[node] += cpu
        return [load / most for load, most in zip(sums, self.capacity, strict=True)]

    def busiest(self, places: Sequence[int]) -> float:
        """Return the largest of these shares."""
        return max(self.loads(places))

    def fits(self, places: Sequence[int]) -> bool:
        """Return whether a placement keeps every limit."""
        counts = [places.count(node) for node in range(len(self.slots))]
        taken = [0.0] * len(self.room)
        for memory, node in zip(self.memory, places, strict=True):
            taken[node] += memory
        is_roomy = all(took <= most + _SLACK for took, most in zip(taken, self.room, strict=True))
        most = sum(map(min, counts, self.slots))
        makes_workers = sum(map(bool, counts)) <= self.workers <= most
        return is_roomy and makes_workers and self.busiest(places) <= 1.0 + _SLACK


def least_crossing(problem: Small) -> float | None:
    """Return the least bytes a second between nodes; None where no placement fits."""

    def added(value: float, at: int, places: Sequence[int], _load: float) -> float:
        row = problem.traffic[at]
        return value + sum(row[b] for b in range(at) if places[b] != places[at])

    return _least(problem, added)


def least_busiest(problem: Small) -> float | None:
    """Return the least share of CPU of the busiest node; None where no placement fits."""
    return _least(problem, lambda value, _at, _places, load: max(value, load))


def _least(
    problem: Small, added: Callable[[float, int, Sequence[int], float], float]
) -> float | None:
    """Visit all placements, executor by executor; a part that is no better than the best whole is
    given up, since a value never falls.
    """
    best: float | None = None
    loads = [0.0] * len(problem.capacity)
    places: list[int] = []

    def visit(value: float) -> None:
        nonlocal best
        at = len(places)
        if at == len(problem.cpu):
            if problem.fits(places):
                best = value
            return
        for node, most in enumerate(problem.capacity):
            loads[node] += problem.cpu[at]
            places.append(node)
            if loads[node] <= most * (1.0 + _SLACK):
                after = added(value, at, places, loads[node] / most)
                if best is None or after < best:
                    visit(after)
            places.pop()
            loads[node] -= problem.cpu[at]

    visit(0.0)
    return best


def numbers_of(scene: Scene) -> Small:
    """Return a scene of one topology, which has measurements, in numbers."""
    topology, cluster = scene.topologies[0], scene.view()
    assert topology.measured is not None
    flows = flows_of(topology)
    executors = topology.executors
    one_way = [[sum(flow.between(a, b) for flow in flows) for b in executors] for a in executors]
    size = range(len(executors))
    demand = Demand(cluster)
    needs = demand.of(topology)
    offers = [demand.offer(node) for node in scene.supervisors]
    return Small(
        tuple(needs[executor][CPU] for executor in executors),
        tuple(tuple(one_way[a][b] + one_way[b][a] for b in size) for a in size),
        tuple(offer[CPU] for offer in offers),
        tuple(needs[executor][MEMORY] for executor in executors),
        tuple(offer[MEMORY] for offer in offers),
        tuple(len(node.ports) for node in scene.supervisors),
        topology.num_workers,
    )


def distance(scene: Scene) -> tuple[float, float] | None:
    """Return the bytes between nodes and the load of the busiest node of a placement, each as a
    multiple of the least that fits.

    None where a search of all placements would take too long (more than one topology, eight
    executors or four nodes), an executor has no place, or no placement fits or crosses nodes.
    """
    executors = [executor for topology in scene.topologies for executor in topology.executors]
    is_small = len(executors) <= _MOST_EXECUTORS and len(scene.supervisors) <= _MOST_NODES
    if len(scene.topologies) != 1 or not is_small or scene.topologies[0].measured is None:
        return None
    placed = scene.assignments.get(scene.topologies[0].id, {})
    problem = numbers_of(scene)
    crossing, busiest = least_crossing(problem), least_busiest(problem)
    if len(placed) < len(executors) or not crossing or not busiest:
        return None
    at = {node.id: number for number, node in enumerate(scene.supervisors)}
    places = [at[placed[executor].node] for executor in scene.topologies[0].executors]
    return problem.crossing(places) / crossing, problem.busiest(places) / busiest


# -- drawing ---------------------------------------------------------------------------------------


def draw(dice: Random, used: tuple[float, float] = (0.6, 0.9)) -> Scene:
    """Return a problem that has an answer and that no single node holds; its nodes are `used` full
    of CPU in all.
    """
    for _ in range(_TRIES):
        scene = _drawn(dice, dice.uniform(*used))
        problem = numbers_of(scene)
        if least_busiest(problem) is not None and least_crossing(problem):
            return scene
    raise AssertionError(f"none of {_TRIES} problems has an answer")


def _drawn(dice: Random, used: float) -> Scene:
    topology = random_topology(dice, _MOST_EXECUTORS)
    assert topology.measured is not None
    cpu = sum(load.cpu for load in topology.measured.tasks.values())
    count = dice.randint(2, _MOST_NODES)
    is_mixed = dice.random() < 0.25
    shares = [dice.choice((0.5, 1.0)) if is_mixed else 1.0 for _ in range(count)]
    nodes = tuple(
        SupervisorView(
            f"node-{at}",
            f"host-{at}",
            tuple(range(6700, 6700 + dice.randint(2, 4))),
            None,
            3_600_000,
            {
                "supervisor.cpu.capacity": cpu / used * share / sum(shares),
                "supervisor.memory.capacity.mb": MEMORY_MB * dice.randint(2, 12),
            },
        )
        for at, share in enumerate(shares)
    )
    slots = sum(len(node.ports) for node in nodes)
    workers = dice.randint(2, min(slots, len(topology.executors)))
    sized = replace(
        topology,
        num_workers=workers,
        owner="laboratory",
        uptime_ms=3_600_000,
        conf={"topology.workers": workers},
    )
    return Scene(nodes, (sized,), {}, {})
