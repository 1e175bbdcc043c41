"""Wide problems: big clusters, odd names, gaps in ids, leftovers of removed topologies, as users of
the form may write them.
"""

from random import Random
from typing import Any

from benchmarks.conformance import problems

Problem = dict[str, Any]

GROUPINGS = ("shuffle", "local_or_shuffle", "fields", "all", "global", "none", "direct", "custom")
ODD_NAMES = (
    "Zähler",
    "данные",
    "数える",
    "a b",
    "x.y",
    "UPPER",
    "lower",
    "_one",
    "n-1-2",
    "0",
    "10",
    "9",
    "é",
    "word/count",
    "Ω",
)
AMOUNTS = ((0.0, 64.0, 200.0, 513.7, 900.0), (0.0, 32.5, 700.0), (0, 0.1, 10, 33.3, 80.0))
OWNERS = ("ann", "bob", "cyd", "dan", "eva", "Ünal")


def _size(rng: Random, sizes: tuple[tuple[int, int], ...], weights: tuple[int, ...]) -> int:
    return rng.randint(*rng.choices(sizes, weights)[0])


def make_names(rng: Random, stem: str, count: int) -> list[str]:
    """Distinct names whose order as texts is not their order as numbers, odd ones among them."""
    names = [f"{stem}{number}" for number in rng.sample(range(1, 3 * count + 3), count)]
    if rng.random() < 0.2:
        for index, odd in enumerate(rng.sample(ODD_NAMES, min(count, 3))):
            names[index] = odd
    return names


def _ports(rng: Random, most: int) -> list[int]:
    ports = rng.sample(
        range(6700, 6700 + 2 * most), rng.randint(0 if rng.random() < 0.1 else 1, most)
    )
    return ports if rng.random() < 0.3 else sorted(ports)


def _supervisors(rng: Random) -> list[Problem]:
    count = _size(rng, ((0, 1), (2, 8), (9, 30), (31, 80)), (1, 6, 4, 1))
    hosts = make_names(rng, "h", max(1, rng.randint(count // 2, count)))
    racks = make_names(rng, "rack", rng.randint(1, 6))
    rack_of = {host: rng.choice(racks) for host in hosts}
    most = rng.choice((2, 4, 8))
    has_racks = rng.random() < 0.5
    is_even = rng.random() < 0.3
    ports = _ports(rng, most)
    supervisors: list[Problem] = []
    for name in make_names(rng, "s", count):
        host = rng.choice(hosts) if rng.random() < 0.3 else hosts[len(supervisors) % len(hosts)]
        supervisor: Problem = {
            "id": name,
            "host": host,
            "ports": ports if is_even else _ports(rng, most),
        }
        if has_racks and rng.random() < 0.9:
            supervisor["rack"] = rack_of[host] if rng.random() < 0.95 else rng.choice(racks)
        if rng.random() < 0.5:
            supervisor["uptime_secs"] = rng.randint(0, 10_000)
        supervisors.append(supervisor)
    return supervisors


class _Tasks:
    """Gives executors their task ids, with gaps now and then."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._next = rng.choice((1, 1, 1, 7))

    def executors(self, count: int) -> list[list[int]]:
        """Return a number of executors."""
        executors = []
        for _ in range(count):
            if self._rng.random() < 0.05:
                self._next += self._rng.randint(1, 3)
            last = self._next + (self._rng.randint(1, 3) if self._rng.random() < 0.2 else 0)
            executors.append([self._next, last])
            self._next = last + 1
        return executors


def make_inputs(rng: Random, sources: list[str]) -> list[Problem]:
    """Subscriptions to some of these components, no stream twice."""
    input_by_stream: dict[tuple[str, str], Problem] = {}
    for _ in range(rng.randint(1, 3)):
        source = rng.choice(sources)
        stream = rng.choice(("default", "default", "errors"))
        input_by_stream[source, stream] = {
            "from": source,
            "stream": stream,
            "grouping": rng.choice(GROUPINGS),
        }
    for wanted in input_by_stream.values():
        if wanted["stream"] == "default" and rng.random() < 0.3:
            del wanted["stream"]
        if wanted["grouping"] == "shuffle" and rng.random() < 0.3:
            del wanted["grouping"]
    return list(input_by_stream.values())


def _components(rng: Random, most: int) -> list[Problem]:
    """A random graph, now and then with cycles, components without executors, and every kind of
    system component.
    """
    tasks = _Tasks(rng)
    names = make_names(rng, "c", _size(rng, ((1, 2), (3, 6), (7, 12)), (2, 4, 1)))
    components = []
    for index, name in enumerate(names):
        kind = "spout" if (index == 0 and rng.random() < 0.97) or rng.random() < 0.15 else "bolt"
        count = 0 if rng.random() < 0.03 else rng.randint(1, most)
        component: Problem = {"id": name, "kind": kind, "executors": tasks.executors(count)}
        if kind == "bolt":
            component["inputs"] = make_inputs(
                rng, names if rng.random() < 0.1 else names[: index or 1]
            )
        if rng.random() < 0.5:
            component["conf"] = {}
        components.append(component)
    for name in ("__acker", "__eventlogger", "__metrics_org.x.Consumer"):
        if rng.random() < (0.5 if name == "__acker" else 0.1):
            components.append(
                {"id": name, "kind": "system", "executors": tasks.executors(rng.randint(1, 6))}
            )
    if rng.random() < 0.3:
        rng.shuffle(components)
    if rng.random() < 0.2:
        for component in components:
            rng.shuffle(component["executors"])
    return components


def _topologies(rng: Random) -> list[Problem]:
    count = _size(rng, ((0, 0), (1, 4), (5, 12)), (1, 14, 7))
    most = rng.choice((1, 4, 10, 30))
    topologies: list[Problem] = []
    for index, name in enumerate(make_names(rng, "t", count)):
        topology: Problem = {
            "id": f"{name}-{index + 1}-1700000000",
            "name": name,
            "components": _components(rng, most),
        }
        if rng.random() < 0.95:
            topology["owner"] = rng.choice(OWNERS)
        if rng.random() < 0.8:
            topology["uptime_secs"] = rng.choice((0, 60, rng.randint(0, 100_000)))
        topology["conf"] = (
            {"topology.priority": rng.choice((0, 1, 9, 10, 20, 29, 30))}
            if rng.random() < 0.8
            else {}
        )
        if rng.random() < 0.9:
            topology["conf"]["topology.workers"] = _size(
                rng, ((0, 0), (1, 4), (5, 12), (13, 60)), (1, 10, 5, 2)
            )
        topologies.append(topology)
    rng.shuffle(topologies)
    return topologies


def _executors(topology: Problem) -> list[list[int]]:
    return [
        list(executor)
        for component in topology["components"]
        for executor in component["executors"]
    ]


def _slots(rng: Random, problem: Problem) -> list[tuple[str, int]]:
    """Slots that may be in use: offered ones, ports that are gone, nodes that are gone."""
    slots = [
        (supervisor["id"], port)
        for supervisor in problem["supervisors"]
        for port in supervisor["ports"]
    ]
    if rng.random() < 0.4:
        slots += [("gone", 6700), ("gone", 6701), ("a-gone", 6700)]
    if rng.random() < 0.2:
        slots += [(supervisor["id"], 6999) for supervisor in problem["supervisors"][:3]]
    rng.shuffle(slots)
    return slots


def _rows(rng: Random, topology: Problem, mine: list[tuple[str, int]]) -> list[Problem]:
    executors = _executors(topology)
    share = rng.choice((1.0, 1.0, 0.9, 0.5, 0.1))
    alive = [executor for executor in executors if rng.random() < share]
    if rng.random() < 0.1:
        alive.append([90_000, 90_001])  # an executor that a rebalance has taken out of the topology
    if rng.random() < 0.5:
        rng.shuffle(alive)
    deal = rng.choice(
        (
            lambda index: index % len(mine),
            lambda index: rng.randrange(len(mine)),
            lambda index: index * len(mine) // len(alive),
        )
    )
    return [
        {"executor": executor, "node": mine[deal(index)][0], "port": mine[deal(index)][1]}
        for index, executor in enumerate(alive)
    ]


def assignments(rng: Random, problem: Problem) -> Problem:
    """Return what is alive before the round."""
    slots = _slots(rng, problem)
    rows_by_topology: Problem = {}
    for topology in problem["topologies"]:
        workers = max(1, topology["conf"].get("topology.workers", 1))
        count = min(
            rng.choice((workers, workers, rng.randint(1, workers), workers + 2)), len(slots)
        )
        if rng.random() < 0.3 or not count:
            if rng.random() < 0.2:
                rows_by_topology[topology["id"]] = []
            continue
        mine = slots[:count]
        slots = slots[count:]
        rows_by_topology[topology["id"]] = _rows(rng, topology, mine)
    return rows_by_topology


def _cluster(rng: Random, scheduler: str) -> Problem:
    problem: Problem = {
        "scheduler": scheduler,
        "supervisors": _supervisors(rng),
        "topologies": _topologies(rng),
        "conf": {},
    }
    if rng.random() < 0.1:
        problem["conf"]["topology.workers"] = rng.randint(1, 5)
    if rng.random() < 0.75:
        problem["assignments"] = assignments(rng, problem)
    hosts = sorted({supervisor["host"] for supervisor in problem["supervisors"]})
    if rng.random() < 0.3:
        listed = rng.sample(hosts, rng.randint(0, min(3, len(hosts))))
        problem["blacklisted_hosts"] = [*listed, "elsewhere"] if rng.random() < 0.2 else listed
    if rng.random() < 0.02:
        problem["blacklisted_hosts"] = hosts
    if rng.random() < 0.3:
        chosen = rng.sample(problem["supervisors"], min(3, len(problem["supervisors"])))
        problem["dead_ports"] = {
            supervisor["id"]: [port for port in supervisor["ports"] if rng.random() < 0.5]
            for supervisor in chosen
        }
    return problem


def even(rng: Random) -> Problem:
    """Return a problem for the EvenScheduler."""
    return _cluster(rng, "even")


def default(rng: Random) -> Problem:
    """Return a problem for the DefaultScheduler."""
    return _cluster(rng, "default")


def isolation(rng: Random) -> Problem:
    """Isolated topologies on many or few machines, names without a topology, more machines than
    workers.
    """
    problem = _cluster(rng, "isolation")
    names = [topology["name"] for topology in problem["topologies"]] + ["nobody"]
    most = rng.choice((1, 3, 8))
    machines = {
        name: rng.randint(1, most) for name in rng.sample(names, rng.randint(1, len(names)))
    }
    problem["conf"]["isolation.scheduler.machines"] = machines
    if rng.random() < 0.4 and machines:
        _settle(rng, problem, machines)
    return problem


def _settle(rng: Random, problem: Problem, machines: Problem) -> None:
    """Some isolated topologies run already as they should, on their own hosts."""
    free = [supervisor for supervisor in problem["supervisors"] if len(supervisor["ports"]) > 0]
    rng.shuffle(free)
    taken = problem["assignments"] = {}
    for topology in problem["topologies"]:
        workers = topology["conf"].get("topology.workers", 1)
        count = machines.get(topology["name"])
        if not count or not workers or workers % count or len(free) < count:
            continue
        each_has = workers // count
        mine = [(node["id"], port) for node in free[:count] for port in node["ports"][:each_has]]
        free = free[count:]
        by_component = sorted(topology["components"], key=lambda part: part["id"])
        executors = [executor for part in by_component for executor in sorted(part["executors"])]
        if len(mine) == workers:
            slots = [mine[index % workers] for index in range(len(executors))]
            rows = zip(executors, slots, strict=True)
            taken[topology["id"]] = [
                {"executor": executor, "node": node, "port": port}
                for executor, (node, port) in rows
            ]


def multitenant(rng: Random) -> Problem:
    """Pools of every size, topologies of users without a pool, spread components, isolation beyond
    the pool, several rounds.
    """
    problem = _cluster(rng, "multitenant")
    users = rng.sample(OWNERS, rng.randint(0, 5))
    most = rng.choice((2, 5, 20))
    if users or rng.random() < 0.5:
        problem["conf"]["multitenant.scheduler.user.pools"] = {
            user: rng.randint(0, most) for user in users
        }
    for topology in problem["topologies"]:
        names = [component["id"] for component in topology["components"]]
        if rng.random() < 0.4:
            topology["conf"]["topology.isolate.machines"] = rng.randint(0, most)
        if rng.random() < 0.25:
            topology["conf"]["topology.spread.components"] = rng.sample(
                names, rng.randint(0, min(2, len(names)))
            )
    if rng.random() < 0.1:
        problem["rounds"] = [{"assignments": assignments(rng, problem)} for _ in range(2)]
    return problem


def _offer(rng: Random, generic: tuple[str, ...], scale: float) -> Problem:
    resources = {
        "supervisor.memory.capacity.mb": round(
            rng.choice((512.0, 1024.0, 3000.0, 4096.0)) * scale, 1
        ),
        "supervisor.cpu.capacity": round(rng.choice((100.0, 150.0, 400.0)) * scale, 1),
    }
    for name in generic:
        if rng.random() < 0.7:
            resources[name] = rng.choice((0.0, 1.0, 2.5, 8.0))
    return resources


def _ask(rng: Random, topology: Problem, generic: tuple[str, ...]) -> None:
    if rng.random() < 0.3:
        topology["conf"][problems.RAS_KEYS[rng.randrange(3)]] = rng.choice((10.0, 33.3, 100.0))
    for kind in ("acker", "metrics.consumer"):
        if rng.random() < 0.1:
            topology["conf"][f"topology.{kind}.resources.onheap.memory.mb"] = rng.choice(
                (16.0, 64.0, 300.0)
            )
            topology["conf"][f"topology.{kind}.cpu.pcore.percent"] = rng.choice((1.0, 30.0))
    for component in topology["components"]:
        conf = component.setdefault("conf", {})
        for key, amounts in zip(problems.RAS_KEYS, AMOUNTS, strict=True):
            if rng.random() < 0.3:
                conf[key] = rng.choice(amounts)
        if generic and rng.random() < 0.3:
            conf["topology.component.resources.map"] = {
                rng.choice(generic): rng.choice((0.0, 0.25, 1.0))
            }
    problems.share_memory(rng, topology)


def _limits(rng: Random, topology: Problem) -> None:
    """Constraints in both forms, on components that are there and that are not."""
    conf = topology["conf"]
    names = [component["id"] for component in topology["components"]] + ["nobody"]
    if rng.random() < 0.5:
        pairs = [[rng.choice(names), rng.choice(names)] for _ in range(rng.randint(0, 4))]
        conf["topology.ras.constraints"] = pairs
        conf["topology.spread.components"] = rng.sample(names, rng.randint(0, min(3, len(names))))
    elif rng.random() < 0.8:
        rules: Problem = {}
        for name in rng.sample(names, rng.randint(0, min(3, len(names)))):
            rules[name] = {
                "incompatibleComponents": rng.sample(names, rng.randint(0, min(2, len(names))))
            }
            if rng.random() < 0.6:
                rules[name]["maxNodeCoLocationCnt"] = rng.randint(1, 4)
        conf["topology.ras.constraints"] = rules
        if rng.random() < 0.2:
            conf["topology.spread.components"] = rng.sample(names, 1)


def resource_aware(rng: Random) -> Problem:
    """Racks, generic resources, owners with guarantees, evictions, every strategy and limit."""
    problem = _cluster(rng, "resource-aware")
    generic = rng.choice(((), (), ("gpu.count",), ("gpu.count", "ssd", "network.resource.units")))
    scale = rng.choice((0.5, 1.0, 2.0, 8.0))
    for supervisor in problem["supervisors"]:
        if rng.random() < 0.98:
            supervisor["resources"] = _offer(rng, generic, scale)
    hosts = sorted({supervisor["host"] for supervisor in problem["supervisors"]})
    strategies, weights = zip(*problems.STRATEGIES, strict=True)
    for topology in problem["topologies"]:
        conf = topology["conf"]
        _ask(rng, topology, generic)
        if rng.random() < 0.9:
            conf["topology.scheduler.strategy"] = (
                f"{problems.PACKAGE}.scheduling.{rng.choices(strategies, weights)[0]}"
            )
        if "Constraint" in conf.get("topology.scheduler.strategy", "") or rng.random() < 0.1:
            _limits(rng, topology)
        _add_rarities(rng, conf, hosts)
    _add_cluster_rarities(rng, problem, generic, hosts)
    return problem


def _add_rarities(rng: Random, conf: Problem, hosts: list[str]) -> None:
    if rng.random() < 0.6:
        conf["topology.worker.max.heap.size.mb"] = rng.choice((300.0, 768.0, 1500.0, 4096.0))
    for key in (
        "one.executor.per.worker",
        "one.component.per.worker",
        "order.executors.by.proximity.needs",
    ):
        if rng.random() < 0.15:
            conf[f"topology.ras.{key}"] = True
    for key in ("favored", "unfavored"):
        if rng.random() < 0.15:
            conf[f"topology.scheduler.{key}.nodes"] = [
                *rng.sample(hosts, min(len(hosts), rng.randint(0, 3))),
                "elsewhere",
            ]
    if rng.random() < 0.15:
        conf["topology.isolate.machines"] = rng.randint(1, 5)
    if rng.random() < 0.15:
        conf["topology.ras.acker.executors.per.worker"] = rng.randint(0, 3)
    # what cannot be placed is searched for up to the limit: the default costs seconds
    if rng.random() < 0.85:
        conf["topology.ras.constraint.max.state.search"] = rng.choice((5, 50, 300, 1_000))


def _add_cluster_rarities(
    rng: Random, problem: Problem, generic: tuple[str, ...], hosts: list[str]
) -> None:
    conf = problem["conf"]
    if rng.random() < 0.2:
        conf["storm.worker.min.cpu.pcore.percent"] = rng.choice((0.0, 5.0, 20.0, 100.0))
    if rng.random() < 0.1:
        conf["resource.aware.scheduler.max.topology.scheduling.attempts"] = rng.randint(1, 3)
    if rng.random() < 0.1:
        conf["resource.aware.scheduler.constraint.max.state.search"] = rng.choice((10, 100))
    if rng.random() < 0.6:
        names = ("cpu", "memory", *generic)
        pools = {
            user: {name: rng.choice((0.0, 50.0, 1024.0)) for name in names if rng.random() < 0.8}
            for user in OWNERS[:4]
        }
        conf["resource.aware.scheduler.user.pools"] = pools
    kind = rng.choice(("Default", "FIFO", "GenericResourceAware"))
    if rng.random() < 0.8:
        conf["resource.aware.scheduler.priority.strategy"] = (
            f"{problems.PACKAGE}.priority.{kind}SchedulingPriorityStrategy"
        )
    if rng.random() < 0.2:
        problem["greylisted_hosts"] = rng.sample(hosts, min(len(hosts), 2))
