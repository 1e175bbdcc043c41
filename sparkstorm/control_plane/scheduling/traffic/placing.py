"""Placement of one topology by two searches: executors over nodes, then those of each node over its
workers. PURE.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from operator import add, sub

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.resource.resources import CPU, Vector
from sparkstorm.control_plane.scheduling.settings import MachineSettings, TrafficSettings
from sparkstorm.control_plane.scheduling.traffic.division import (
    NOWHERE,
    UNBOUNDED,
    Division,
    Limits,
    Weights,
    coloured,
)
from sparkstorm.control_plane.scheduling.traffic.plans import Price
from sparkstorm.control_plane.scheduling.traffic.problem import (
    Demand,
    Placed,
    TrafficProblem,
)
from sparkstorm.control_plane.scheduling.traffic.search import Chance, Search
from sparkstorm.control_plane.scheduling.view import ClusterView

# Share of its traffic that a topology is taken to send between nodes at the least, when the balance
# of CPU is weighed: all of it on one node would make balance worth nothing.
_LEAST_CROSSING = 0.05
# of a node's traffic, per doubling of its busiest worker: a worker's executors share one core
_WORKER_BALANCE = 0.25
_ONE_CORE = 100.0
# Load of a worker, of one core: the loop of a worker that is busier waits for itself.
_BUSY_WORKER = 90.0
# Times the mean load of the workers, where it was measured, and where it is what was asked for. At
# 1 hardly any division is even enough, at 2 one of two workers may have all.
_UNEVEN = 1.5
_UNEVEN_GUESS = 1.25
_BINS_OF_A_LOOK = 16  # up to which a budget counts looks alone; no measurement chose it
_LEAST_PASSES = 4  # over all executors: the first answer, and what moves and swaps bring at once
_RESTARTED = 200  # executors up to which answers are disturbed and improved again


@dataclass(frozen=True, slots=True)
class Node:
    """A node as a bin: what is left for this topology."""

    id: str
    rack: str
    capacity: Vector
    strength: float  # CPU of the whole node
    base_load: float  # CPU of other topologies there
    own: tuple[WorkerSlot, ...]  # slots of this topology there
    free: tuple[int, ...]  # ports


@dataclass(frozen=True, slots=True)
class Task:
    """Input of a search: the topology, the nodes, and the executors that stay."""

    problem: TrafficProblem
    executors: tuple[ExecutorId, ...]  # all but those on nodes that get nothing new
    nodes: tuple[Node, ...]
    workers: int
    most_nodes: int
    home: Placed  # slots that executors have now
    stay: bool  # whether those executors stay there whatever it costs
    settings: TrafficSettings

    @property
    def move_share(self) -> float:
        """Return what a move costs, as a share of the executor's traffic over the plan's time."""
        return self.settings.move_ms / max(1, self.settings.hold_ms)

    @property
    def worker_load(self) -> float:
        """Return what one worker may carry; without measurements not much more than its share."""
        loads = [self.problem.load(executor) for executor in self.executors]
        total = sum(loads)
        is_measured = self.problem.topology.measured is not None
        busy = _BUSY_WORKER if is_measured else 0.0
        share = (_UNEVEN if is_measured else _UNEVEN_GUESS) * total / max(1, self.workers)
        return max(busy, share, max(loads)) if total > 0.0 else UNBOUNDED


def nodes_for(
    topology: TopologyView,
    cluster: ClusterView,
    demand: Demand,
    machines: Mapping[str, int],
    with_grey: bool,
) -> tuple[Node, ...]:
    """Return the nodes that may take executors of a topology; `machines` are those of topologies
    that share none with others.
    """
    taken = demand.taken_by_others(topology.id)
    own: dict[str, list[WorkerSlot]] = {}
    for slot in cluster.placement(topology.id).executors_by_slot:
        own.setdefault(slot.node, []).append(slot)
    users: dict[str | None, set[str]] = {}  # by host, which may have several supervisors
    for slot, owner in cluster.used_slots().items():
        users.setdefault(cluster.host_of(slot.node), set()).add(owner)
    nodes = []
    for node, supervisor in cluster.supervisors.items():
        free = tuple(cluster.free.ports(node))
        mine = tuple(slot for slot in sorted(own.get(node, ())) if cluster.can_reassign(slot))
        others = users.get(supervisor.host, set()) - {topology.id}
        is_grey = node in cluster.greylisted_nodes and not mine and not with_grey
        is_shared = bool(others) and (topology.id in machines or bool(others & machines.keys()))
        if not (free or mine) or is_grey or is_shared:
            continue
        offer = demand.offer(supervisor)
        used = taken.get(node, demand.zero)
        # A node of unknown strength is as strong as any other of that kind.
        strength = offer[CPU] if 0.0 < offer[CPU] < UNBOUNDED else _ONE_CORE
        nodes.append(
            Node(
                node,
                supervisor.rack or "",
                tuple(max(0.0, left) for left in map(sub, offer, used)),
                strength,
                used[CPU],
                mine,
                free,
            )
        )
    return tuple(nodes)


def most_workers(nodes: Iterable[Node], needs: Sequence[Vector]) -> int:
    """Return how many workers these nodes have slots and room for, at most: a worker has an executor,
    so a node takes no more of them than it holds of the smallest executors.
    """
    sums = [[*accumulate(sorted(amounts))] for amounts in zip(*needs, strict=True)]
    total = 0
    for node in nodes if needs else ():
        held = (
            bisect_right(sizes, most * (1.0 + 1e-9) + 1e-9)
            for sizes, most in zip(sums, node.capacity, strict=True)
        )
        total += min(len(node.own) + len(node.free), *held)
    return total


def most_nodes(topology: TopologyView, machines: Mapping[str, int], workers: int) -> int:
    """Return on how many nodes a topology may be."""
    return min(workers, machines.get(topology.id, workers))


def machines_of(topology: TopologyView, by_name: Mapping[str, int]) -> int | None:
    """Return the number of machines that a topology has for itself; None: it shares them."""
    own = MachineSettings.of_partial(topology.conf).machines
    return by_name.get(topology.name, own)


def solved(task: Task) -> dict[ExecutorId, WorkerSlot] | None:
    """Return a placement of all executors; None where none was found that fits.

    That workers are not too busy is a wish: a placement that is not even is better than none.
    """
    wished = task.worker_load
    for most in dict.fromkeys((wished, UNBOUNDED)):
        by_node = _over_nodes(task, most)
        workers = _workers(task, by_node, most) if by_node is not None else None
        if by_node is not None and workers is not None:
            placed = _divided(task, by_node, workers, wished)
            if placed is not None:
                return placed
    return None


def _divided(
    task: Task,
    by_node: Mapping[str, Sequence[ExecutorId]],
    workers: Mapping[str, int],
    worker_load: float,
) -> dict[ExecutorId, WorkerSlot] | None:
    placed: dict[ExecutorId, WorkerSlot] = {}
    for node in task.nodes:
        if node.id in by_node:
            count = workers[node.id]
            on_node = _over_workers(task, node, by_node[node.id], count, worker_load)
            if on_node is None:
                return None
            placed |= on_node
    return placed


def price(task: Task, placed: Placed) -> Price:
    """Return the cost of a placement, with the measures of this task."""
    settings = task.settings
    racks = {node.id: node.rack for node in task.nodes}
    traffic = task.problem.traffic(placed, racks, settings.rack_weight)
    loads = {node.id: node.base_load for node in task.nodes}
    taken: dict[str, Vector] = {}
    for executor, slot in placed.items():
        need = task.problem.needs[executor]
        loads[slot.node] = loads.get(slot.node, 0.0) + need[CPU]
        taken[slot.node] = tuple(map(add, taken[slot.node], need)) if slot.node in taken else need
    shares = [loads[node.id] / node.strength for node in task.nodes]
    least = sum(loads.values()) / max(sum(node.strength for node in task.nodes), 1e-9)
    scale = _LEAST_CROSSING * task.problem.total
    busiest = max(shares, default=0.0) / least if least else 1.0
    fits = all(
        need <= most * (1.0 + 1e-9) + 1e-9
        for node in task.nodes
        if node.id in taken
        for need, most in zip(taken[node.id], node.capacity, strict=True)
    )
    between = traffic.nodes + settings.worker_weight * traffic.workers
    balance = settings.balance_weight * max(scale, traffic.nodes) * busiest
    of_worker: dict[WorkerSlot, float] = {}
    for executor, slot in placed.items():
        of_worker[slot] = of_worker.get(slot, 0.0) + task.problem.load(executor)
    is_busy = max(of_worker.values(), default=0.0) > task.worker_load * (1.0 + 1e-9)
    return Price(between, balance, fits, is_busy)


# -- over nodes ------------------------------------------------------------------------------------


def _over_nodes(task: Task, worker_load: float) -> dict[str, list[ExecutorId]] | None:
    problem, settings = task.problem, task.settings
    executors = task.executors
    items = problem.items(executors, task.move_share)
    bin_by_node = {node.id: bin_ for bin_, node in enumerate(task.nodes)}
    racks = {rack: n for n, rack in enumerate(sorted({node.rack for node in task.nodes}))}
    locked = task.home if task.stay else {}
    limits = Limits(
        [node.capacity for node in task.nodes],
        [node.strength for node in task.nodes],
        [len(node.own) + len(node.free) for node in task.nodes],
        task.workers,
        task.most_nodes,
        [node.base_load for node in task.nodes],
        [
            len({slot for slot in locked.values() if slot.node == node.id}) if locked else 0
            for node in task.nodes
        ],
        [racks[node.rack] for node in task.nodes],
        problem.most_of_component,
        worker_load,
        problem.apart,
    )
    weights = Weights(rack=settings.rack_weight - 1.0)
    division = Division(items, limits, problem.num_rows, weights)
    for item, executor in enumerate(executors):
        slot = task.home.get(executor)
        if slot is not None and slot.node in bin_by_node:
            division.homes[item] = bin_by_node[slot.node]
            if task.stay:
                division.lock(item, bin_by_node[slot.node])
    budget = _looks(settings.budget, len(items), len(task.nodes))
    if not _search(Search(division, budget), problem, settings):
        return None
    by_node: dict[str, list[ExecutorId]] = {}
    for executor, bin_ in zip(executors, division.bins, strict=True):
        by_node.setdefault(task.nodes[bin_].id, []).append(executor)
    return by_node


def _search(search: Search, problem: TrafficProblem, settings: TrafficSettings) -> bool:
    """Search for little traffic, then for a balance that is worth its traffic."""
    division = search.division
    homes = [*division.homes]
    budget = search.budget

    def weigh(crossing: float) -> None:
        balance = settings.balance_weight * _scale(problem, crossing)
        division.weights = replace(division.weights, balance=balance)

    weigh(0.0)
    if not search.start():
        return False
    answers = [[*division.bins]]
    if NOWHERE not in homes and not any(division.is_locked):
        division.load_answer(homes)
        # From an answer that is over, the search would stay there: what relieves it may cost more.
        if division.is_whole() and division.room.fits():
            answers.append(homes)
    if len(division.items) > _RESTARTED:
        weigh(max(0.0, problem.total - division.value))
        division.load_answer(answers[-1])
        search.improve()
        return True
    chance = Chance()
    # Without balance first: what crosses at the least is the measure by which balance is weighed.
    division.weights = replace(division.weights, balance=0.0 if problem.total else 1.0)
    least = _best(search, answers, chance, budget // 2)
    weigh(max(0.0, problem.total - division.value))
    division.load_answer(_best(search, [least, *answers], chance, budget // 2))
    return True


def _looks(budget: int, executors: int, bins: int) -> int:
    """Return how many looks at an executor a search may take: fewer among many bins, of which each
    look compares all.
    """
    return max(_LEAST_PASSES * executors, budget * _BINS_OF_A_LOOK // max(_BINS_OF_A_LOOK, bins))


def _scale(problem: TrafficProblem, crossing: float) -> float:
    return max(crossing, _LEAST_CROSSING * problem.total) or 1.0


def _best(
    search: Search, answers: Sequence[Sequence[int]], chance: Chance, budget: int
) -> list[int]:
    """Improve several answers, disturb the best one, and go to the best of all."""
    division = search.division
    search.budget = budget
    improved: list[tuple[float, list[int]]] = []
    for answer in answers:
        division.load_answer(answer)
        search.improve()
        improved.append((division.cost(), [*division.bins]))
    division.load_answer(min(improved)[1])
    if len(division.items) <= _RESTARTED:
        search.restart(chance)
    return [*division.bins]


# -- over workers ----------------------------------------------------------------------------------


def _workers(
    task: Task, by_node: Mapping[str, Sequence[ExecutorId]], worker_load: float
) -> dict[str, int] | None:
    """Return how many workers each node gets: what it must have, then by CPU for each worker; None
    where it does not come to the wanted number.
    """
    locked = task.home if task.stay else {}
    counts: dict[str, int] = {}
    most: dict[str, int] = {}
    load: dict[str, float] = {}
    for node in task.nodes:
        executors = by_node.get(node.id)
        if not executors:
            continue
        staying = {locked[executor] for executor in executors if executor in locked}
        free = sum(executor not in locked for executor in executors)
        slots = len(node.own) + len(node.free)
        load[node.id] = sum(map(task.problem.load, executors))
        for_load = ceil(load[node.id] / worker_load - 1e-9)
        for_constraints = 1 + max(_colours(task.problem, executors).values())
        counts[node.id] = max(len(staying), for_load, for_constraints)
        most[node.id] = min(slots, len(staying) + free)
        if counts[node.id] > most[node.id]:
            return None
    left = task.workers - sum(counts.values())
    if left < 0 or left > sum(most.values()) - sum(counts.values()):
        return None
    homes = {node.id: len(node.own) for node in task.nodes}
    for _ in range(left):
        open_nodes = [node for node in counts if counts[node] < most[node]]
        wanted = max(
            open_nodes,
            key=lambda node: (counts[node] < homes[node], load[node] / counts[node], node),
        )
        counts[wanted] += 1
    return counts


def _colours(problem: TrafficProblem, executors: Sequence[ExecutorId]) -> dict[ExecutorId, int]:
    """Return a worker's number for each executor, such that components that may not share a worker
    do not.
    """
    topology = problem.topology
    number_by_id = {part.id: number for number, part in enumerate(topology.components)}
    parts = {
        executor: number_by_id[topology.component_by_executor[executor]] for executor in executors
    }
    colours = coloured(parts.values(), problem.apart)
    return {executor: colours[part] for executor, part in parts.items()}


def _over_workers(
    task: Task, node: Node, executors: Sequence[ExecutorId], count: int, worker_load: float
) -> dict[ExecutorId, WorkerSlot] | None:
    """Return the slot of each executor of a node; None where those that stay leave none to one that
    may not share a worker with them.
    """
    homes = {executor: task.home[executor] for executor in executors if executor in task.home}
    slots = _slots(node, homes, count, task.stay)
    if count == 1:
        return dict.fromkeys(executors, slots[0])
    search = _search_of_workers(task, executors, slots, homes, worker_load)
    if not search.start():
        search = _search_of_workers(task, executors, slots, homes, UNBOUNDED)
        if not search.start():
            is_free = not (task.stay and homes)
            return _dealt(slots, _colours(task.problem, executors)) if is_free else None
    division = search.division
    answers = [[*division.bins]]
    if NOWHERE not in division.homes:
        division.load_answer(division.homes)
        if division.is_whole():
            answers.append([*division.homes])
    if len(task.executors) > _RESTARTED:
        division.load_answer(answers[-1])
        for item in search.movable:
            search.move(item)
    else:
        division.load_answer(_best(search, answers, Chance(), search.budget))
    return {executor: slots[bin_] for executor, bin_ in zip(executors, division.bins, strict=True)}


def _search_of_workers(
    task: Task,
    executors: Sequence[ExecutorId],
    slots: Sequence[WorkerSlot],
    homes: Placed,
    worker_load: float,
) -> Search:
    problem = task.problem
    items = [
        replace(item, needs=(item.load,)) for item in problem.items(executors, task.move_share)
    ]
    count = len(slots)
    locked = set(homes.values()) if task.stay else set()
    limits = Limits(
        [(worker_load,)] * count,
        [_ONE_CORE] * count,
        [1] * count,
        count,
        count,
        staying=[int(slot in locked) for slot in slots],
        apart=problem.apart,
    )
    inside = sum(item.traffic for item in items) / 2.0
    balance = _WORKER_BALANCE * inside or 1.0
    budget = _looks(task.settings.budget // 10, len(items), count)
    division = Division(items, limits, problem.num_rows, Weights(balance=balance))
    for item, executor in enumerate(executors):
        slot = homes.get(executor)
        if slot in slots:
            division.homes[item] = slots.index(slot)
            if task.stay:
                division.lock(item, slots.index(slot))
    return Search(division, budget)


def _slots(
    node: Node, homes: Mapping[ExecutorId, WorkerSlot], count: int, stay: bool
) -> list[WorkerSlot]:
    """Return the slots of a node's workers: those that most executors have already, then free
    ports.
    """
    stayers = {slot: sum(home == slot for home in homes.values()) for slot in node.own}
    own = sorted(node.own, key=lambda slot: (-stayers[slot], slot))
    return [*own, *(WorkerSlot(node.id, port) for port in node.free)][:count]


def _dealt(
    slots: Sequence[WorkerSlot], colours: Mapping[ExecutorId, int]
) -> dict[ExecutorId, WorkerSlot]:
    """Deal executors out to workers, each of which has one at least, and those of one colour."""
    by_colour: dict[int, list[ExecutorId]] = {}
    for executor, colour in colours.items():
        by_colour.setdefault(colour, []).append(executor)
    counts = dict.fromkeys(by_colour, 1)
    for _ in range(len(slots) - len(counts)):
        open_colours = [colour for colour in counts if counts[colour] < len(by_colour[colour])]
        counts[max(open_colours, key=lambda colour: len(by_colour[colour]) / counts[colour])] += 1
    dealt: dict[ExecutorId, WorkerSlot] = {}
    left = iter(slots)
    for colour, executors in by_colour.items():
        own = [next(left) for _ in range(counts[colour])]
        dealt |= {executor: own[n % len(own)] for n, executor in enumerate(executors)}
    return dealt
