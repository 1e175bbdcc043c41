"""Clusters and topologies drawn from a seed, with rates, bytes, CPU and memory as a running cluster
would have measured them. PURE: equal arguments give an equal scene.

Chain, diamond and star are the micro-benchmarks of R-Storm (Peng et al., Middleware 2015). `etl`,
`stats` and `pred` have the components and edges of RIoTBench's Storm topologies (Shukla, Chaturvedi,
Simmhan: RIoTBench, Concurrency and Computation 29(21), 2017); how many rows each emits for one is
ours. `random` is a random DAG whose edges have rates that do not depend on each other.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from sparkstorm.common.errors import InvalidConfigError, show
from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.control_plane.scheduling.measured.measurements import Flow, Measurements, TaskLoad
from sparkstorm.control_plane.scheduling.records import (
    ComponentView,
    InputView,
    SupervisorView,
    TopologyView,
)
from sparkstorm.extensions.laboratory.arguments import check_known, checked_whole, is_amount
from sparkstorm.extensions.laboratory.scene import Scene

CLUSTERS = ("homogeneous", "mixed", "racked")
MEMORY_MB = 128.0  # asked for by each executor, the key's default
_WINDOW_MS = 300_000
_SETTLED_MS = 3_600_000
_BARE_NODE = (65_536.0, 3_200.0)  # MB, and percent of a core
_WORKER_LOAD = 50.0  # percent of a core
MOST_SEED = 2**63 - 1  # none below 0: Random draws the same for 1 and -1
_MOST = 10_000_000
_FIRST_PORT = 6700
MOST_SLOTS = 65_536 - _FIRST_PORT
_MEMORY_ROOM = 2.0  # nodes are half as full of memory as of CPU
CPU_KEY = "topology.component.cpu.pcore.percent"
MEMORY_KEY = "topology.component.resources.onheap.memory.mb"


@dataclass(frozen=True, slots=True)
class Part:
    """A component of a shape: its senders by number, and the rows that it emits for one."""

    name: str
    senders: tuple[int, ...] = ()
    selectivity: float = 1.0
    grouping: str = "shuffle"


def _chain(dice: Random, most: int) -> list[Part]:
    count = min(most, dice.randint(3, 5))
    return [Part(f"c{at}", (at - 1,) if at else (), 1.0, _either(dice)) for at in range(count)]


def _diamond(dice: Random, most: int) -> list[Part]:
    arms = range(1, 1 + min(max(most - 2, 1), dice.randint(2, 4)))
    middle = [Part(f"arm{at}", (0,), 1.0, _either(dice)) for at in arms]
    return [Part("source"), *middle, Part("join", tuple(arms), 1.0, "fields")]


def _star(dice: Random, most: int) -> list[Part]:
    sources = range(min(max(most - 2, 1), dice.randint(2, 3)))
    center = len(sources)
    sinks = range(min(max(most - center - 1, 1), dice.randint(2, 3)))
    return [
        *(Part(f"source{at}") for at in sources),
        Part("center", tuple(sources), 1.0, "fields"),
        *(Part(f"sink{at}", (center,), 1.0, _either(dice)) for at in sinks),
    ]


def _either(dice: Random) -> str:
    return dice.choice(("shuffle", "fields"))


# A message of a sensor is parsed into five observations, which are joined again.
_ETL = (
    Part("source"),
    Part("senml_parse", (0,), 5.0),
    Part("range_filter", (1,), 1.0, "fields"),
    Part("bloom_filter", (2,), 1.0, "fields"),
    Part("interpolation", (3,), 1.0, "fields"),
    Part("join", (4,), 0.2, "fields"),
    Part("annotation", (5,)),
    Part("csv_to_senml", (6,)),
    Part("mqtt_publish", (7,)),
    Part("sink", (8,)),
)
_STATS = (
    Part("source"),
    Part("parse", (0,), 5.0),
    Part("bloom_filter", (1,), 1.0, "fields"),
    Part("kalman_filter", (2,), 1.0, "fields"),
    Part("linear_regression", (3,), 0.1, "fields"),
    Part("second_order_moment", (2,), 0.1, "fields"),
    Part("distinct_count", (2,), 0.1, "fields"),
    Part("mqtt_publish", (4, 5, 6)),
    Part("sink", (7,)),
)
_PRED = (
    Part("source"),
    Part("senml_parse", (0,)),
    Part("model_updates", (), 0.001),
    Part("blob_download", (2,)),
    Part("decision_tree", (1, 3)),
    Part("linear_regression", (1, 3)),
    Part("window_average", (1,), 0.1),
    Part("error_estimation", (5, 6)),
    Part("mqtt_publish", (4, 7), 1.0, "fields"),
    Part("sink", (8,)),
)
_SHAPES: Mapping[str, Callable[[Random, int], Sequence[Part]]] = {
    "chain": _chain,
    "diamond": _diamond,
    "star": _star,
    "etl": lambda _dice, _most: _ETL,
    "stats": lambda _dice, _most: _STATS,
    "pred": lambda _dice, _most: _PRED,
}
SHAPES = (*_SHAPES, "random")


def generate(
    num_nodes: int = 8,
    num_topologies: int = 3,
    executors_each: int = 12,
    workers_each: int = 4,
    slots_per_node: int = 4,
    seed: int | None = None,
    shapes: str | Sequence[str] | None = None,
    cluster: str | None = None,
    used: float = 0.6,
) -> Scene:
    """Return a cluster without placements.

    `shapes` (of `SHAPES`) are those of the topologies in turn, drawn with measurements from the
    seed; without any all are chains of one spout and two bolts that nothing is known of. Nodes are
    `homogeneous` (equal, racks of twenty), `mixed` (one to all of the slots and a quarter to all of
    memory and CPU, racks of four) or `racked` (equal, racks of four); by default mixed with a seed,
    else homogeneous. Measured topologies need the share `used` of all CPU. InvalidConfigError names
    what cannot be.
    """
    kind = cluster or ("homogeneous" if seed is None else "mixed")
    check_known(kind, CLUSTERS, "cluster")
    for name, number, most in (
        ("num_nodes", num_nodes, _MOST),
        ("num_topologies", num_topologies, _MOST),
        ("executors_each", executors_each, _MOST),
        ("workers_each", workers_each, _MOST),
        ("slots_per_node", slots_per_node, MOST_SLOTS),
    ):
        checked_whole(number, name, most)
    if seed is not None:
        checked_whole(seed, "seed", MOST_SEED, least=0)
    if not is_amount(used) or not 0.0 < used <= 1.0:
        raise InvalidConfigError(f"used: a share above 0 and up to 1 is needed, not {show(used)}")
    names = [f"topology-{index:05}" for index in range(num_topologies)]
    topologies: tuple[TopologyView, ...]
    whole = _BARE_NODE
    if shapes is None:
        topologies = tuple(_bare_chain(name, executors_each, workers_each) for name in names)
    else:
        dice = Random(seed or 0)
        wanted = (
            [shapes] if isinstance(shapes, str) or not isinstance(shapes, Iterable) else [*shapes]
        )
        if not wanted:
            raise InvalidConfigError(f"shapes: give one or more of {', '.join(SHAPES)}")
        topologies = tuple(
            topology_of(dice, name, wanted[at % len(wanted)], executors_each, workers_each)
            for at, name in enumerate(names)
        )
        whole = _needed(
            topologies, sum(_share(at, seed or 0, kind) for at in range(num_nodes)), used
        )
    nodes = (_node(at, slots_per_node, seed or 0, kind, whole) for at in range(num_nodes))
    return Scene(tuple(nodes), topologies, {}, {})


def _drawn(index: int, seed: int, kind: str) -> int:
    # Not the generator of the topologies: the nodes of a seed are the same under any of them.
    return zlib.crc32(f"{seed} {index}".encode()) if kind == "mixed" else 0


def _share(index: int, seed: int, kind: str) -> float:
    return (0.25, 0.5, 1.0)[_drawn(index, seed, kind) % 3] if kind == "mixed" else 1.0


def _node(index: int, slots: int, seed: int, kind: str, whole: Sequence[float]) -> SupervisorView:
    """Return a node; `whole` are the memory and CPU of one that has a share of 1."""
    ports = 1 + _drawn(index, seed, kind) // 3 % slots if kind == "mixed" else slots
    rack = index // (20 if kind == "homogeneous" else 4)
    share = _share(index, seed, kind)
    resources = {
        "supervisor.memory.capacity.mb": whole[0] * share,
        "supervisor.cpu.capacity": whole[1] * share,
    }
    return SupervisorView(
        f"node-{index:05}",
        f"host-{index:05}",
        tuple(range(_FIRST_PORT, _FIRST_PORT + ports)),
        f"rack-{rack:04}",
        3_600_000,
        resources,
    )


def _needed(topologies: Sequence[TopologyView], shares: float, used: float) -> tuple[float, float]:
    """Return the memory and CPU of a node with a share of 1, of so many shares in all."""
    loads = [
        load
        for topology in topologies
        if topology.measured
        for load in topology.measured.tasks.values()
    ]
    memory = _MEMORY_ROOM * sum(load.memory_mb or 0.0 for load in loads)
    return memory / used / shares, sum(load.cpu for load in loads) / used / shares


def _bare_chain(name: str, num_executors: int, workers: int) -> TopologyView:
    third = max(num_executors // 3, 1)
    cuts = (0, min(third, num_executors), min(2 * third, num_executors), num_executors)
    parts: list[ComponentView] = []
    for index, part in enumerate(("read", "split", "count")):
        executors = tuple(
            ExecutorId(task + 1, task + 1) for task in range(cuts[index], cuts[index + 1])
        )
        inputs = (InputView(parts[-1].id),) if parts else ()
        parts.append(ComponentView(part, "bolt" if parts else "spout", executors, {}, inputs))
    return TopologyView(
        name, name, tuple(parts), workers, "laboratory", 60_000, {"topology.workers": workers}
    )


# -- topologies with measurements ------------------------------------------------------------------


def topology_of(
    dice: Random, name: str, shape: str, num_executors: int, workers: int
) -> TopologyView:
    """Return a topology of a shape. Executors beyond one of each component are dealt at random."""
    check_known(shape, SHAPES, "shapes")
    if shape == "random":
        _check_width(shape, 2, num_executors)
        return _finished(
            random_topology(dice, num_executors, (2, min(8, num_executors))), name, workers
        )
    parts = _SHAPES[shape](dice, num_executors)
    _check_width(shape, len(parts), num_executors)
    widths = [1] * len(parts)
    for _ in range(num_executors - len(parts)):
        widths[dice.randrange(len(parts))] += 1
    builder = _Builder(dice, memory_mb=(64.0, 128.0, 256.0))
    emitted: list[float] = []
    for part, width in zip(parts, widths, strict=True):
        rates = [(sender, emitted[sender]) for sender in part.senders]
        arrived = sum(rate for _, rate in rates) or dice.lognormvariate(8.0, 1.0)
        emitted.append(arrived * part.selectivity)
        builder.add(part.name, width, rates, part.grouping, emitted[-1])
    return _finished(builder.topology(), name, workers)


def _check_width(shape: str, components: int, num_executors: int) -> None:
    if components > num_executors:
        raise InvalidConfigError(
            f"shapes: {shape} has {components} components: executors_each is to be that or more, "
            f"not {num_executors}"
        )


def random_topology(dice: Random, most: int, components: tuple[int, int] = (2, 4)) -> TopologyView:
    """Return a random DAG of at least four executors where it may have so many."""
    count = dice.randint(*components)
    widths = [1] * count
    for _ in range(dice.randint(max(0, min(4, most) - count), most - count)):
        widths[dice.randrange(count)] += 1
    builder = _Builder(dice)
    for at, width in enumerate(widths):
        senders = dice.sample(range(at), min(at, dice.choice((1, 1, 2)))) if at else []
        builder.add(f"c{at}", width, [(sender, None) for sender in senders], "fields")
    return builder.topology()


def _finished(topology: TopologyView, name: str, workers: int) -> TopologyView:
    """Return it with a name, and with CPU that fills half of a core of each worker."""
    assert topology.measured is not None
    tasks = topology.measured.tasks
    scale = _WORKER_LOAD * workers / sum(load.cpu for load in tasks.values())
    loads = {task: replace(load, cpu=load.cpu * scale) for task, load in tasks.items()}
    loads = {task: replace(load, busy=min(1.0, load.cpu / 100)) for task, load in loads.items()}
    parts = []
    for part in topology.components:
        # what a user would ask for: the mean, which the schedulers of resources go by
        mean = sum(loads[executor.first_task].cpu for executor in part.executors) / len(
            part.executors
        )
        parts.append(replace(part, conf={**part.conf, CPU_KEY: mean}))
    return replace(
        topology,
        id=name,
        name=name,
        components=tuple(parts),
        num_workers=workers,
        owner="laboratory",
        uptime_ms=_SETTLED_MS,
        conf={"topology.workers": workers},
        measured=replace(topology.measured, tasks=loads),
    )


class _Builder:
    """A topology with measurements, component by component; rates that are None are drawn."""

    def __init__(self, dice: Random, memory_mb: Sequence[float] = (MEMORY_MB,)) -> None:
        self._dice = dice
        self._memory_mb = memory_mb
        self._parts: list[ComponentView] = []
        self._flows: list[Flow] = []
        self._tasks: dict[int, TaskLoad] = {}

    def add(
        self,
        name: str,
        width: int,
        senders: Sequence[tuple[int, float | None]],
        grouping: str,
        emitted: float = 1000.0,
    ) -> None:
        """Add a component with so many executors; `senders` are numbers of components with the rows
        per second of their edges.
        """
        dice = self._dice
        arrived = 0.0
        for sender, rate in senders:
            rows = dice.lognormvariate(8.0, 1.0) if rate is None else rate
            size = rows * dice.uniform(20.0, 400.0)
            self._flows.append(Flow(self._parts[sender].id, "default", name, rows, size))
            arrived += rows
        first = len(self._tasks) + 1
        executors = tuple(ExecutorId(task, task) for task in range(first, first + width))
        cost = dice.lognormvariate(3.0, 0.5)  # percent of a core
        skews = [dice.lognormvariate(0.0, 0.3) for _ in executors]
        memory = self._memory_mb[0] if len(self._memory_mb) == 1 else dice.choice(self._memory_mb)
        for executor, skew in zip(executors, skews, strict=True):
            share = skew / sum(skews)
            cpu = cost * skew
            self._tasks[executor.first_task] = TaskLoad(
                emitted * share, arrived * share, min(1.0, cpu / 100), cpu, memory
            )
        # what a user would ask for
        mean = cost * sum(skews) / width
        conf = {CPU_KEY: mean} | ({MEMORY_KEY: memory} if len(self._memory_mb) > 1 else {})
        inputs = tuple(
            InputView(self._parts[sender].id, "default", grouping) for sender, _ in senders
        )
        kind = "bolt" if senders else "spout"
        self._parts.append(ComponentView(name, kind, executors, conf, inputs))

    def topology(self) -> TopologyView:
        """Return it without a name."""
        measured = Measurements(tuple(self._flows), self._tasks, _WINDOW_MS, _SETTLED_MS)
        return TopologyView("t", "t", tuple(self._parts), measured=measured)
