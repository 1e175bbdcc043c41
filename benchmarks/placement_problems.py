"""Small placement problems drawn from a seed, and the least that any placement can reach, by
exhaustive search.

A problem is one topology with measurements on a few nodes. A placement fits if no node has more CPU
or memory than it offers and the wanted workers can be made of it, at most as many on a node as it
has slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.control_plane.scheduling.measured.flows import flows_of
from sparkstorm.control_plane.scheduling.measured.measurements import (
    Flow,
    Measurements,
    TaskLoad,
)
from sparkstorm.control_plane.scheduling.records import (
    ComponentView,
    InputView,
    SupervisorView,
    TopologyView,
)
from sparkstorm.extensions.laboratory import Scene

MEMORY_MB = 128.0  # asked for by each executor, the key's default
_SLACK = 1e-9
_TRIES = 200


@dataclass(frozen=True, slots=True)
class Small:
    """A problem in numbers, by executor and by node."""

    cpu: tuple[float, ...]  # in percent of a core, as measured
    traffic: tuple[tuple[float, ...], ...]  # bytes a second between two executors, both ways
    capacity: tuple[float, ...]
    room: tuple[float, ...]  # memory, in executors
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
        is_roomy = all(count <= room for count, room in zip(counts, self.room, strict=True))
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
    """Return a scene of one topology in numbers."""
    topology, nodes = scene.topologies[0], scene.supervisors
    assert topology.measured is not None
    flows = flows_of(topology)
    executors = topology.executors
    one_way = [[sum(flow.between(a, b) for flow in flows) for b in executors] for a in executors]
    size = range(len(executors))
    return Small(
        tuple(topology.measured.load(each).cpu for each in executors),
        tuple(tuple(one_way[a][b] + one_way[b][a] for b in size) for a in size),
        tuple(each.resources["supervisor.cpu.capacity"] for each in nodes),
        tuple(each.resources["supervisor.memory.capacity.mb"] // MEMORY_MB for each in nodes),
        tuple(len(each.ports) for each in nodes),
        topology.num_workers,
    )


# -- drawing ---------------------------------------------------------------------------------------


def draw(dice: Random, used: tuple[float, float] = (0.6, 0.9)) -> Scene:
    """Return a problem that has an answer and that no single node holds; its nodes are `used` full
    of CPU in all.
    """
    for _ in range(_TRIES):
        scene = _drawn(dice, dice.uniform(*used))
        if least_busiest(numbers_of(scene)) is not None and least_crossing(numbers_of(scene)):
            return scene
    raise AssertionError(f"none of {_TRIES} problems has an answer")


def _drawn(dice: Random, used: float) -> Scene:
    topology = _topology(dice)
    assert topology.measured is not None
    cpu = sum(each.cpu for each in topology.measured.tasks.values())
    count = dice.randint(2, 4)
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
    slots = sum(len(each.ports) for each in nodes)
    workers = dice.randint(2, min(slots, len(topology.executors)))
    conf = {"topology.workers": workers}
    sized = TopologyView(
        "t",
        "t",
        topology.components,
        workers,
        "laboratory",
        3_600_000,
        conf,
        measured=topology.measured,
    )
    return Scene(nodes, (sized,), {}, {})


def _topology(dice: Random) -> TopologyView:
    """Return a random graph of two to four components with eight executors at most."""
    count = dice.randint(2, 4)
    widths = [1] * count
    for _ in range(dice.randint(max(0, 4 - count), 8 - count)):
        widths[dice.randrange(count)] += 1
    parts: list[ComponentView] = []
    flows: list[Flow] = []
    tasks: dict[int, TaskLoad] = {}
    for at, width in enumerate(widths):
        sources = dice.sample(range(at), min(at, dice.choice((1, 1, 2)))) if at else []
        inputs = tuple(InputView(f"c{each}", "default", "fields") for each in sources)
        for each in sources:
            rows = dice.lognormvariate(8.0, 1.0)
            size = rows * dice.uniform(20.0, 400.0)
            flows.append(Flow(f"c{each}", "default", f"c{at}", rows, size))
        first = len(tasks) + 1
        executors = tuple(ExecutorId(task, task) for task in range(first, first + width))
        cost = dice.lognormvariate(3.0, 0.5)
        for executor in executors:
            skew = dice.lognormvariate(0.0, 0.3)
            tasks[executor.first_task] = TaskLoad(
                1000.0 * skew, 1000.0 * skew, 0.0, cost * skew, MEMORY_MB
            )
        # what a user would ask for: the mean, which the schedulers of resources go by
        mean = sum(tasks[each.first_task].cpu for each in executors) / width
        conf = {"topology.component.cpu.pcore.percent": mean}
        parts.append(ComponentView(f"c{at}", "bolt" if at else "spout", executors, conf, inputs))
    measured = Measurements(tuple(flows), tasks, 300_000, 3_600_000)
    return TopologyView("t", "t", tuple(parts), measured=measured)
