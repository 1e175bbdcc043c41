"""Seeded random problems on small clusters, which reach rare branches."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

Problem = dict[str, Any]

RAS_KEYS = (
    "topology.component.resources.onheap.memory.mb",
    "topology.component.resources.offheap.memory.mb",
    "topology.component.cpu.pcore.percent",
)
STRATEGIES = (
    ("DefaultResourceAwareStrategy", 4),
    ("GenericResourceAwareStrategy", 2),
    ("ConstraintSolverStrategy", 3),
    ("RoundRobinResourceAwareStrategy", 2),
    ("DefaultResourceAwareStrategyOld", 1),
    ("GenericResourceAwareStrategyOld", 1),
)
PACKAGE = "org.apache.storm.scheduler.resource.strategies"


def _supervisors(rng: Random, least: int = 1, most: int = 7) -> list[Problem]:
    supervisors = []
    hosts = 0
    for index in range(rng.randint(least, most)):
        hosts += 0 if index and rng.random() < 0.15 else 1
        ports = sorted(rng.sample(range(6700, 6708), rng.randint(1, 5)))
        supervisors.append(
            {"id": f"s{index + 1}", "host": f"h{hosts}", "ports": ports, "uptime_secs": 3600}
        )
    return supervisors


def _components(rng: Random, ackers: bool, most_executors: int = 5) -> list[Problem]:
    """A random graph: spouts first, bolts that read earlier components, ackers where asked for."""
    components: list[Problem] = []
    task = 1
    names = ["in", "split", "count", "rank", "out"][: rng.randint(1, 5)]
    for index, name in enumerate(names):
        executors = []
        for _ in range(rng.randint(1, most_executors)):
            last = task + (rng.randint(0, 2) if rng.random() < 0.3 else 0)
            executors.append([task, last])
            task = last + 1
        kind = "spout" if index == 0 or (index == 1 and rng.random() < 0.2) else "bolt"
        sources = rng.sample(names[:index], rng.randint(1, min(2, index))) if kind == "bolt" else []
        groupings = ("shuffle", "fields", "local_or_shuffle", "all")
        inputs = [
            {"from": source, "stream": "default", "grouping": rng.choice(groupings)}
            for source in sources
        ]
        components.append(
            {"id": name, "kind": kind, "executors": executors, "conf": {}, "inputs": inputs}
        )
    if ackers:
        count = rng.randint(1, 3)
        executors = [[task + index, task + index] for index in range(count)]
        components.append({"id": "__acker", "kind": "system", "executors": executors})
    return components


def _topologies(rng: Random, least: int = 1, most: int = 4) -> list[Problem]:
    topologies = []
    for index in range(rng.randint(least, most)):
        name = ("wordcount", "alerts", "join", "etl", "sessions")[index]
        topologies.append(
            {
                "id": f"{name}-{index + 1}-1700000000",
                "name": name,
                "owner": rng.choice(("ann", "bob", "cyd")),
                "uptime_secs": rng.randint(0, 500),
                "conf": {
                    "topology.workers": rng.randint(1, 6),
                    "topology.priority": rng.choice((0, 10, 29)),
                },
                "components": _components(rng, rng.random() < 0.4),
            }
        )
    return topologies


def _executors(topology: Problem) -> list[list[int]]:
    return [executor for component in topology["components"] for executor in component["executors"]]


def _assignments(rng: Random, problem: Problem) -> Problem:
    """Return what is alive before the round: dealt to some slots, evenly or not, some executors
    dead, some nodes gone.
    """
    slots = [
        (supervisor["id"], port)
        for supervisor in problem["supervisors"]
        for port in supervisor["ports"]
    ]
    if rng.random() < 0.3:
        slots += [("gone", 6700), ("gone", 6701)]
    rng.shuffle(slots)
    rows_by_topology: Problem = {}
    for topology in problem["topologies"]:
        if rng.random() < 0.35 or not slots:
            continue
        count = min(rng.randint(1, topology["conf"]["topology.workers"]), len(slots))
        mine = slots[:count]
        slots = slots[count:]
        executors = _executors(topology)
        alive = (
            [executor for executor in executors if rng.random() < 0.8]
            if rng.random() < 0.6
            else executors
        )
        evenly = rng.random() < 0.5
        rows = []
        for index, executor in enumerate(alive):
            node, port = mine[index % count] if evenly else rng.choice(mine)
            rows.append({"executor": executor, "node": node, "port": port})
        rows_by_topology[topology["id"]] = rows
    return rows_by_topology


def _cluster(rng: Random, scheduler: str) -> Problem:
    problem: Problem = {
        "scheduler": scheduler,
        "conf": {},
        "supervisors": _supervisors(rng),
        "topologies": _topologies(rng),
    }
    if rng.random() < 0.7:
        problem["assignments"] = _assignments(rng, problem)
    if rng.random() < 0.2:
        problem["blacklisted_hosts"] = [rng.choice(problem["supervisors"])["host"]]
    if rng.random() < 0.2:
        supervisor = rng.choice(problem["supervisors"])
        problem["dead_ports"] = {supervisor["id"]: [rng.choice(supervisor["ports"])]}
    return problem


def even(rng: Random) -> Problem:
    """A cluster for the EvenScheduler."""
    return _cluster(rng, "even")


def default(rng: Random) -> Problem:
    """A cluster for the DefaultScheduler."""
    return _cluster(rng, "default")


def isolation(rng: Random) -> Problem:
    """A cluster in which some topologies are isolated."""
    problem = _cluster(rng, "isolation")
    names = [topology["name"] for topology in problem["topologies"]]
    chosen = rng.sample(names, rng.randint(1, len(names)))
    problem["conf"] = {"isolation.scheduler.machines": {name: rng.randint(1, 3) for name in chosen}}
    return problem


def multitenant(rng: Random) -> Problem:
    """A cluster with user pools."""
    problem = _cluster(rng, "multitenant")
    users = rng.sample(("ann", "bob", "cyd"), rng.randint(0, 3))
    problem["conf"] = {
        "multitenant.scheduler.user.pools": {user: rng.randint(0, 5) for user in users}
    }
    for topology in problem["topologies"]:
        if rng.random() < 0.4:
            topology["conf"]["topology.isolate.machines"] = rng.randint(1, 4)
        if rng.random() < 0.2:
            topology["conf"]["topology.spread.components"] = [topology["components"][0]["id"]]
    return problem


def _resources(rng: Random, generic: bool) -> Problem:
    resources = {
        "supervisor.memory.capacity.mb": rng.choice((1024.0, 2048.0, 3072.0, 4096.0)),
        "supervisor.cpu.capacity": rng.choice((100.0, 200.0, 400.0)),
    }
    if generic:
        resources["gpu.count"] = rng.choice((0.0, 1.0, 2.0, 4.0))
    return resources


def _ask(rng: Random, topology: Problem, generic: bool) -> None:
    for component in topology["components"]:
        if component["kind"] == "system":
            continue
        conf = component["conf"]
        if rng.random() < 0.6:
            conf[RAS_KEYS[0]] = rng.choice((64.0, 128.0, 256.0, 512.0))
        if rng.random() < 0.2:
            conf[RAS_KEYS[1]] = rng.choice((32.0, 64.0))
        if rng.random() < 0.6:
            conf[RAS_KEYS[2]] = rng.choice((5.0, 10.0, 25.0, 50.0))
        if generic and rng.random() < 0.4:
            conf["topology.component.resources.map"] = {"gpu.count": rng.choice((0.5, 1.0))}
    share_memory(rng, topology)


def share_memory(rng: Random, topology: Problem) -> None:
    """Give a third of the topologies regions that some of their components share, on and off heap,
    per worker and node.
    """
    if rng.random() > 0.35:
        return
    amounts = (0.0, 16.0, 100.0, 300.0, 333.3)
    regions = {}
    for name in ("cache", "dictionary", "model")[: rng.randint(1, 3)]:
        kinds = rng.sample(
            ("on_heap", "off_heap_worker", "off_heap_node"), rng.choice((1, 1, 1, 2, 3))
        )
        regions[name] = {kind: rng.choice(amounts) for kind in kinds}
    for component in topology["components"]:
        names = [name for name in regions if rng.random() < 0.4]
        if names:
            component.setdefault("conf", {})["topology.component.shared.memory"] = {
                name: regions[name] for name in names
            }


def _constrain(rng: Random, topology: Problem) -> None:
    conf = topology["conf"]
    names = [component["id"] for component in topology["components"]]
    shape = rng.random()
    if shape < 0.4 and len(names) > 1:
        conf["topology.ras.constraints"] = [rng.sample(names, 2) for _ in range(rng.randint(1, 2))]
        conf["topology.spread.components"] = rng.sample(names, 1)
    elif shape < 0.8 and len(names) > 1:
        first, second = rng.sample(names, 2)
        conf["topology.ras.constraints"] = {
            first: {"maxNodeCoLocationCnt": rng.randint(1, 3), "incompatibleComponents": [second]}
        }
    conf["topology.ras.constraint.max.state.search"] = rng.choice((50, 300, 10_000))


def resource_aware(rng: Random) -> Problem:
    """A cluster with resources, often too small, so that topologies are evicted."""
    problem = _cluster(rng, "resource-aware")
    generic = rng.random() < 0.3
    for supervisor in problem["supervisors"]:
        supervisor["resources"] = _resources(rng, generic)
        if rng.random() < 0.5:
            supervisor["rack"] = rng.choice(("r1", "r2"))
    hosts = sorted({supervisor["host"] for supervisor in problem["supervisors"]})
    for topology in problem["topologies"]:
        _ask(rng, topology, generic)
        conf = topology["conf"]
        strategy = rng.choices(
            [name for name, _ in STRATEGIES], [weight for _, weight in STRATEGIES]
        )[0]
        conf["topology.scheduler.strategy"] = f"{PACKAGE}.scheduling.{strategy}"
        conf["topology.worker.max.heap.size.mb"] = rng.choice((512.0, 768.0, 1024.0))
        if strategy == "ConstraintSolverStrategy":
            _constrain(rng, topology)
        _add_rarities(rng, conf, hosts)
    _add_cluster_rarities(rng, problem, generic, hosts)
    return problem


def _add_rarities(rng: Random, conf: Problem, hosts: list[str]) -> None:
    # what cannot be placed is searched for up to the limit: the default costs seconds
    if rng.random() < 0.7:
        conf.setdefault("topology.ras.constraint.max.state.search", rng.choice((100, 500)))
    if rng.random() < 0.15:
        conf["topology.ras.one.executor.per.worker"] = True
    if rng.random() < 0.15:
        conf["topology.ras.one.component.per.worker"] = True
    if rng.random() < 0.3:
        conf["topology.ras.order.executors.by.proximity.needs"] = True
    if rng.random() < 0.15:
        conf["topology.scheduler.favored.nodes"] = rng.sample(hosts, 1)
    if rng.random() < 0.15:
        conf["topology.scheduler.unfavored.nodes"] = rng.sample(hosts, 1)
    if rng.random() < 0.15:
        conf["topology.isolate.machines"] = rng.randint(1, 3)


def _add_cluster_rarities(rng: Random, problem: Problem, generic: bool, hosts: list[str]) -> None:
    conf = problem["conf"]
    if rng.random() < 0.2:
        conf["storm.worker.min.cpu.pcore.percent"] = 20.0
    if rng.random() < 0.5:
        pools = {
            user: {"cpu": rng.choice((50.0, 200.0)), "memory": 1024.0} for user in ("ann", "bob")
        }
        conf["resource.aware.scheduler.user.pools"] = pools
    kind = rng.choice(("Default", "FIFO", "GenericResourceAware" if generic else "Default"))
    conf["resource.aware.scheduler.priority.strategy"] = (
        f"{PACKAGE}.priority.{kind}SchedulingPriorityStrategy"
    )
    if rng.random() < 0.15:
        problem["greylisted_hosts"] = rng.sample(hosts, 1)


def blacklist(rng: Random) -> Problem:
    """A sequence of rounds in which supervisors and ports come and go."""
    problem = _cluster(rng, "blacklist")
    problem["inner"] = rng.choice(("default", "even", "default", "resource-aware"))
    problem["conf"] = {
        "nimbus.monitor.freq.secs": 10,
        "blacklist.scheduler.tolerance.time.secs": rng.choice((20, 40, 60)),
        "blacklist.scheduler.tolerance.count": rng.randint(1, 3),
        "blacklist.scheduler.resume.time.secs": rng.choice((20, 40, 60)),
        "blacklist.scheduler.assume.supervisor.bad.based.on.bad.slot": rng.random() < 0.8,
    }
    if rng.random() < 0.3:
        kind = f"{rng.choice(('Default', 'Ras'))}BlacklistStrategy"
        problem["conf"]["blacklist.scheduler.strategy"] = (
            f"org.apache.storm.scheduler.blacklist.strategies.{kind}"
        )
    everything = problem["supervisors"]
    for supervisor in everything:
        supervisor["resources"] = _resources(rng, False)
    problem["rounds"] = []
    for _ in range(rng.randint(2, 10)):
        shown = [dict(supervisor) for supervisor in everything if rng.random() < 0.8]
        for offered in shown:
            if rng.random() < 0.15 and len(offered["ports"]) > 1:
                offered["ports"] = offered["ports"][1:]
        later: Problem = {"supervisors": shown}
        if rng.random() < 0.6:
            later["assignments"] = _assignments(rng, problem)
        problem["rounds"].append(later)
    return problem


def jstorm(rng: Random) -> Problem:
    """One topology for JStorm's scheduler: new, rebalanced or with dead tasks."""
    conf: Problem = {
        "topology.workers": rng.randint(1, 12),
        "topology.acker.executors": rng.randint(0, 2),
    }
    conf["topology.master.single.worker"] = rng.choice((None, None, True, False))
    components = _jstorm_components(rng, conf)
    names = _jstorm_tasks(components)
    problem: Problem = {
        "scheduler": "jstorm",
        "assign_type": rng.choice(("NEW", "NEW", "REBALANCE", "MONITOR")),
        "reassign": rng.random() < 0.4,
        "conf": conf,
        "supervisors": _jstorm_supervisors(rng),
        "topology": {"id": "wc-1-1700000000", "name": "wc", "components": components},
    }
    if problem["assign_type"] != "NEW" or rng.random() < 0.2:
        _add_old_workers(rng, problem, sorted(names))
    if rng.random() < 0.15:
        hosts = [supervisor["host"] for supervisor in problem["supervisors"]]
        conf["isolation.scheduler.machines"] = rng.sample(hosts, rng.randint(1, len(hosts)))
    if rng.random() < 0.2:
        conf["worker.memory.size"] = 1024**3
    if rng.random() < 0.2:
        conf["use.userdefine.assignment"] = _definitions(rng, problem)
    return problem


def _jstorm_supervisors(rng: Random) -> list[Problem]:
    supervisors = []
    for index in range(rng.randint(1, 6)):
        ports = list(range(6800, 6800 + rng.randint(2, 7)))
        available = [port for port in ports if rng.random() < 0.7]
        supervisors.append(
            {"id": f"s{index + 1}", "host": f"h{index + 1}", "ports": ports, "available": available}
        )
    return supervisors


def _jstorm_components(rng: Random, conf: Problem) -> list[Problem]:
    components = []
    for component in _components(rng, False):
        component["parallelism"] = len(component.pop("executors"))
        if rng.random() < 0.15:
            component["conf"] = {"task.on.differ.node": True}
        components.append(component)
    master = {"id": "__topology_master", "kind": "system", "parallelism": 1}
    acker = {"id": "__acker", "kind": "system", "parallelism": conf["topology.acker.executors"]}
    return [*components, acker, master]


def _jstorm_tasks(components: list[Problem]) -> dict[int, str]:
    bolts = [component for component in components if component["kind"] != "spout"]
    spouts = [component for component in components if component["kind"] == "spout"]
    names = [
        component["id"] for component in [*bolts, *spouts] for _ in range(component["parallelism"])
    ]
    return dict(enumerate(names, start=1))


def _add_old_workers(rng: Random, problem: Problem, tasks: list[int]) -> None:
    """Old workers hold all tasks, on ports that are not available now (or on a supervisor that is
    lost).
    """
    slots = [
        (supervisor, port)
        for supervisor in problem["supervisors"]
        for port in supervisor["ports"]
        if port not in supervisor["available"]
    ]
    slots += [({"id": "gone", "host": "h9"}, 6800)] if rng.random() < 0.3 else []
    rng.shuffle(slots)
    slots = slots[: rng.randint(1, problem["conf"]["topology.workers"])]
    if not slots:
        problem["assign_type"] = "NEW"
        return
    old = [
        {
            "node": supervisor["id"],
            "host": supervisor["host"],
            "port": port,
            "tasks": [],
            "memory_bytes": 2 * 1024**3,
            "cpu": 1,
        }
        for supervisor, port in slots
    ]
    deal = rng.choice(("evenly", "at random", "steeply"))
    for index, task in enumerate(tasks):
        steep = min(int(rng.expovariate(0.7)), len(old) - 1)
        old[
            {"evenly": index % len(old), "at random": rng.randrange(len(old)), "steeply": steep}[
                deal
            ]
        ]["tasks"].append(task)
    problem["old_workers"] = old = [worker for worker in old if worker["tasks"]]
    if rng.random() < 0.2:
        problem["conf"]["use.old.assignment"] = True
    if problem["assign_type"] == "MONITOR":
        problem["dead_tasks"] = sorted(rng.sample(tasks, rng.randint(1, len(tasks))))
    if problem["assign_type"] != "NEW" and rng.random() < 0.3:
        problem["unstopped_tasks"] = unstopped_tasks(rng, problem, old)


def unstopped_tasks(rng: Random, problem: Problem, old: list[Problem]) -> list[int]:
    """Living tasks on the lost supervisor; now and then of workers that have dead tasks, too."""
    dead = set(problem.get("dead_tasks", ()))
    mixes = rng.random() < 0.4
    lost = [
        worker["tasks"]
        for worker in old
        if worker["node"] == "gone" and (mixes or not dead & set(worker["tasks"]))
    ]
    alive = [task for tasks in lost for task in tasks if task not in dead]
    if mixes and problem["assign_type"] == "REBALANCE":
        alive = [task for task in alive if rng.random() < 0.8]
    return sorted(alive)


def _definitions(rng: Random, problem: Problem) -> list[str]:
    """Workers as JStorm's client writes them: JSON texts whose values are texts."""
    definitions = []
    users = [
        component
        for component in problem["topology"]["components"]
        if component["kind"] != "system"
    ]
    for _ in range(rng.randint(1, 2)):
        component = rng.choice(users)
        host = rng.choice(problem["supervisors"])["host"] if rng.random() < 0.7 else None
        counts = {component["id"]: rng.randint(1, component["parallelism"])}
        memory = rng.choice(("0", str(3 * 1024**3)))
        wanted = {
            "componentToNum": json.dumps(counts),
            "hostName": host,
            "port": "0",
            "mem": memory,
            "cpu": "0",
        }
        definitions.append(json.dumps(wanted))
    return definitions


GENERATORS: dict[str, Callable[[Random], Problem]] = {
    "even": even,
    "default": default,
    "isolation": isolation,
    "multitenant": multitenant,
    "resource-aware": resource_aware,
    "blacklist": blacklist,
    "jstorm": jstorm,
}
