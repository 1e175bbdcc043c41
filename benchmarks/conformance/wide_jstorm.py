"""Wide problems for JStorm's scheduler: shared hosts, old assignments with gaps, definitions of
every kind.
"""

import json
from random import Random
from typing import Any

from benchmarks.conformance.problems import unstopped_tasks
from benchmarks.conformance.wide import make_inputs, make_names

Problem = dict[str, Any]
GIB = 1024**3


def jstorm(rng: Random) -> Problem:
    """One topology: new, rebalanced or with dead tasks, on a cluster of any size."""
    conf: Problem = (
        {"topology.workers": rng.choice((1, 2, 4, 9, 10, 11, 25))} if rng.random() < 0.95 else {}
    )
    if rng.random() < 0.6:
        conf["topology.master.single.worker"] = rng.choice((None, True, False))
    components = _components(rng, conf)
    problem: Problem = {
        "scheduler": "jstorm",
        "assign_type": rng.choice(("NEW", "REBALANCE", "MONITOR")),
        "reassign": rng.random() < 0.4,
        "conf": conf,
        "supervisors": _supervisors(rng),
        "topology": {"id": "wc-1-1700000000", "name": "wc", "components": components},
    }
    names = problem["tasks"] = _tasks(rng, components)
    if problem["assign_type"] != "NEW" or rng.random() < 0.3:
        _add_old_workers(rng, problem, sorted(int(task) for task in names))
    _add_rarities(rng, problem)
    if rng.random() < 0.7 and list(names) == [str(number) for number in range(1, len(names) + 1)]:
        del problem["tasks"]
    return problem


def _supervisors(rng: Random) -> list[Problem]:
    count = rng.choice((0, 1, 2, 5, 8, 20)) if rng.random() < 0.9 else 1
    hosts = make_names(rng, "h", count)
    share = rng.choice((0.2, 0.7, 1.0))
    most = rng.choice((1, 4, 12))
    supervisors: list[Problem] = []
    for name, host in zip(make_names(rng, "s", count), hosts, strict=True):
        shared = supervisors[-1]["host"] if supervisors and rng.random() < 0.05 else host
        low = rng.choice((6800, 6800, 6805, 7001))
        ports = list(range(low, low + rng.randint(1, most)))
        supervisor = {
            "id": name,
            "host": shared,
            "ports": ports,
            "available": [port for port in ports if rng.random() < share],
        }
        if share == 1.0:
            del supervisor["available"]
        supervisors.append(supervisor)
    return supervisors


def _components(rng: Random, conf: Problem) -> list[Problem]:
    names = make_names(rng, "c", rng.randint(1, 8))
    most = rng.choice((2, 6, 25))
    components = []
    for index, name in enumerate(names):
        kind = "spout" if index == 0 or rng.random() < 0.2 else "bolt"
        component: Problem = {"id": name, "kind": kind, "parallelism": rng.randint(1, most)}
        if kind == "bolt":
            component["inputs"] = make_inputs(rng, names if rng.random() < 0.1 else names[:index])
        if rng.random() < 0.1:
            component["conf"] = {"task.on.differ.node": rng.random() < 0.8}
        components.append(component)
    ackers = rng.choice((0, 1, 1, 3, 8))
    if rng.random() < 0.9:
        conf["topology.acker.executors"] = ackers
    if rng.random() < 0.8:
        components.append({"id": "__acker", "kind": "system", "parallelism": ackers})
    if rng.random() < 0.7:
        components.append({"id": "__topology_master", "kind": "system", "parallelism": 1})
    return components


def _tasks(rng: Random, components: list[Problem]) -> dict[str, str]:
    """Task ids as given out at first, or as they are after rebalances: gaps, and late ones at the
    end.
    """
    bolts = [component for component in components if component["kind"] != "spout"]
    spouts = [component for component in components if component["kind"] == "spout"]
    names = [
        component["id"] for component in [*bolts, *spouts] for _ in range(component["parallelism"])
    ]
    if rng.random() < 0.2:
        rng.shuffle(names)
        ids = sorted(rng.sample(range(1, 2 * len(names) + 1), len(names)))
        return {str(task): name for task, name in zip(ids, names, strict=True)}
    return {str(task): name for task, name in enumerate(names, start=1)}


def _add_old_workers(rng: Random, problem: Problem, tasks: list[int]) -> None:
    """Old workers on ports that are in use, gone, or on lost supervisors; not all tasks need be on
    one.
    """
    slots = [
        (supervisor, port)
        for supervisor in problem["supervisors"]
        for port in supervisor["ports"]
        if port not in supervisor.get("available", (port,))
    ]
    if rng.random() < 0.3:
        slots += [
            ({"id": "gone", "host": "h-gone"}, 6800),
            ({"id": "gone", "host": "h-gone"}, 6801),
        ]
    rng.shuffle(slots)
    slots = slots[: rng.randint(1, problem["conf"].get("topology.workers", 5) + 2)]
    if not slots:
        problem["assign_type"] = "NEW"
        return
    # a task that the rebalance takes away
    known_tasks = [*tasks, 90_001] if rng.random() < 0.05 else tasks
    placed = [task for task in known_tasks if rng.random() < rng.choice((1.0, 1.0, 0.9))]
    old = [
        {
            "node": supervisor["id"],
            "host": supervisor["host"],
            "port": port,
            "tasks": [],
            "memory_bytes": rng.choice((2, 3)) * GIB,
            "cpu": 2,
        }
        for supervisor, port in slots
    ]
    step = rng.choice((1, 1, max(1, len(placed) // len(old))))
    for index, task in enumerate(placed):
        old[index // step % len(old)]["tasks"].append(task)
    problem["old_workers"] = old = [worker for worker in old if worker["tasks"]]
    _add_states(rng, problem, placed, old)


def _add_states(rng: Random, problem: Problem, placed: list[int], old: list[Problem]) -> None:
    if problem["assign_type"] == "MONITOR" and placed:
        count = rng.choice((1, rng.randint(0, len(placed)), len(placed)))
        problem["dead_tasks"] = sorted(rng.sample(placed, count))
    if problem["assign_type"] != "NEW" and rng.random() < 0.5:
        problem["unstopped_tasks"] = unstopped_tasks(rng, problem, old)


def _add_rarities(rng: Random, problem: Problem) -> None:
    conf = problem["conf"]
    hosts = sorted({supervisor["host"] for supervisor in problem["supervisors"]})
    if rng.random() < 0.2:
        conf["use.old.assignment"] = rng.random() < 0.8
    if rng.random() < 0.15 and hosts:
        conf["isolation.scheduler.machines"] = rng.sample(
            [*hosts, "elsewhere"], rng.randint(0, len(hosts))
        )
    if rng.random() < 0.2:
        conf["worker.memory.size"] = rng.choice((1, 4)) * GIB
    if rng.random() < 0.1:
        conf["worker.cpu.slot.num"] = rng.randint(1, 3)
    if rng.random() < 0.1:
        conf["topology.master.worker.memory.size"] = GIB
    if rng.random() < 0.25 and hosts:
        conf["use.userdefine.assignment"] = [
            _definition(rng, problem, hosts) for _ in range(rng.randint(1, 4))
        ]


def _definition(rng: Random, problem: Problem, hosts: list[str]) -> str:
    """A worker as JStorm's client writes it: a JSON text whose values are texts."""
    parts = [component["id"] for component in problem["topology"]["components"]]
    counts = {
        name: rng.randint(0, 4) for name in rng.sample(parts, rng.randint(1, min(3, len(parts))))
    }
    if rng.random() < 0.1:
        counts["nobody"] = 1
    wanted: Problem = {"componentToNum": json.dumps(counts)}
    if rng.random() < 0.8:
        wanted["hostName"] = rng.choice([*hosts, "elsewhere"])
    ports = [port for supervisor in problem["supervisors"] for port in supervisor["ports"]] or [0]
    wanted |= {"port": str(rng.choice((0, rng.choice(ports), 6999))), "cpu": rng.choice(("0", "2"))}
    wanted["mem"] = rng.choice(("0", str(3 * GIB)))
    if rng.random() < 0.2:
        wanted["jvm"] = "-Xmn1g"
    return json.dumps(wanted)
