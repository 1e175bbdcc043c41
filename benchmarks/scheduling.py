"""Times every scheduler on growing clusters: a first schedule, and the one after a node's loss;
prints slopes and memory.

    python -m benchmarks.scheduling [--most 100000] [SCHEDULER...]

Floors: "even" places 100,000 executors on 5,000 nodes in under 2 s and re-schedules after one
node's loss in under 200 ms.
"""

import argparse
import gc
import math
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

from sparkstorm.control_plane.scheduling.catalogue import scheduler_by_name
from sparkstorm.control_plane.scheduling.jstorm.records import (
    AssignContext,
    AssignType,
    JStormComponent,
    SupervisorPorts,
    give_task_ids,
)
from sparkstorm.control_plane.scheduling.jstorm.scheduler import assign_tasks
from sparkstorm.control_plane.scheduling.records import Conf, InputView
from sparkstorm.extensions.laboratory import Scene, generate

SCHEDULERS = (
    "even",
    "default",
    "isolation",
    "multitenant",
    "resource-aware",
    "blacklist",
    "jstorm",
)
SIZES = ((1_000, 100), (10_000, 1_000), (100_000, 5_000))
EXECUTORS_PER_TOPOLOGY = 1_000
FLOORS_S = {"schedule": 2.0, "after a loss": 0.2}
LOST = "node-00003"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for the round alone and with the building of the view, both for a first and a later
    round, and memory.
    """

    first_s: float
    again_s: float
    again_with_view_s: float
    view_mb: float


def _clock(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _conf(name: str, nodes: int, topologies: int) -> Conf:
    """A tenth of the topologies is isolated, or belongs to a user with a pool."""
    some = max(topologies // 10, 1)
    machines = {f"topology-{index:05}": max(nodes // topologies, 1) for index in range(some)}
    return {
        "isolation.scheduler.machines": machines,
        "multitenant.scheduler.user.pools": {"laboratory": nodes // 2}
        if name == "multitenant"
        else {},
    }


def _storm(name: str, executors: int, nodes: int) -> Timing:
    topologies = max(executors // EXECUTORS_PER_TOPOLOGY, 1)
    # two of four slots of a node are wanted; resources make their own workers, of six executors
    # each
    slots = 6 if name == "resource-aware" else 4
    scene = generate(nodes, topologies, executors // topologies, 2 * nodes // topologies, slots)
    conf = _conf(name, nodes, topologies)
    scheduler = scheduler_by_name(name, conf)
    cluster = scene.view()
    first = _clock(lambda: scheduler.schedule(cluster.topologies, cluster))
    after = Scene(scene.supervisors, scene.topologies, cluster.assignments(), {}).without(LOST)
    later = after.view()
    again = _clock(lambda: scheduler.schedule(later.topologies, later))
    whole_round = _clock(lambda: _round(name, after, conf))
    tracemalloc.start()
    view = after.view()
    memory = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    del view
    return Timing(first, again, whole_round, memory)


def _round(name: str, scene: Scene, conf: Conf) -> None:
    cluster = scene.view()
    scheduler_by_name(name, conf).schedule(cluster.topologies, cluster)


def _jstorm(executors: int, nodes: int) -> Timing:
    """JStorm schedules one topology at a time: one with all tasks; the loss kills the tasks of its
    workers there.
    """
    third = executors // 3
    parts = (
        JStormComponent("read", "spout", third),
        JStormComponent("split", "bolt", third, {}, (InputView("read"),)),
        JStormComponent("count", "bolt", executors - 2 * third, {}, (InputView("split"),)),
    )
    supervisors = tuple(
        SupervisorPorts(f"node-{index:05}", f"host-{index:05}", (1, 2, 3, 4), (1, 2, 3, 4))
        for index in range(nodes)
    )
    conf = {"topology.workers": 2 * nodes}
    tasks = give_task_ids(parts)
    context = AssignContext("t", AssignType.NEW, parts, supervisors, tasks, conf)
    tracemalloc.start()
    plans = assign_tasks(context)
    memory = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    first = _clock(lambda: assign_tasks(context))
    used = {(plan.node, plan.port) for plan in plans}
    remaining = tuple(
        SupervisorPorts(
            supervisor.id,
            supervisor.host,
            supervisor.ports,
            tuple(p for p in supervisor.ports if (supervisor.id, p) not in used),
        )
        for supervisor in supervisors
        if supervisor.id != LOST
    )
    dead = frozenset(task for plan in plans if plan.node == LOST for task in plan.tasks)
    monitor = AssignContext(
        "t",
        AssignType.MONITOR,
        parts,
        remaining,
        tasks,
        conf,
        old_workers=tuple(plans),
        dead_tasks=dead,
    )
    again = _clock(lambda: assign_tasks(monitor))
    return Timing(first, again, again, memory)


def measure(name: str, executors: int, nodes: int) -> Timing:
    """One scheduler on one cluster."""
    return _jstorm(executors, nodes) if name == "jstorm" else _storm(name, executors, nodes)


def slope(sizes: list[int], seconds: list[float]) -> float:
    """The exponent of growth: 1 is linear (least squares of the logarithms)."""
    xs = [math.log(size) for size in sizes]
    ys = [math.log(max(second, 1e-6)) for second in seconds]
    mean_x = sum(xs) / len(xs)
    mean_y = sum(ys) / len(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - mean_x) ** 2 for x in xs)


def main() -> int:
    """Print a table; 1 when "even" misses a floor."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("schedulers", nargs="*", default=SCHEDULERS)
    parser.add_argument(
        "--most", type=int, default=SIZES[-1][0], help="executors of the largest cluster"
    )
    arguments = parser.parse_args()
    sizes = [size for size in SIZES if size[0] <= arguments.most]
    failed = False
    print(
        f"{'scheduler':16}{'executors':>10}{'nodes':>7}{'first s':>10}{'loss s':>9}{'+view s':>9}{'view MB':>9}"
    )
    for name in arguments.schedulers:
        timings = [measure(name, *size) for size in sizes]
        for (executors, nodes), timing in zip(sizes, timings, strict=True):
            times = f"{timing.first_s:10.3f}{timing.again_s:9.3f}{timing.again_with_view_s:9.3f}{timing.view_mb:9.1f}"
            print(f"{name:16}{executors:10}{nodes:7}{times}")
        if len(sizes) > 1:
            grown = slope(
                [executors for executors, _ in sizes], [timing.first_s for timing in timings]
            )
            print(f"{name:16}{'slope':>10}{'':7}{grown:10.2f}")
        if name == "even" and sizes[-1][0] == SIZES[-1][0]:
            last = timings[-1]
            failed = (
                last.first_s > FLOORS_S["schedule"]
                or last.again_with_view_s > FLOORS_S["after a loss"]
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
