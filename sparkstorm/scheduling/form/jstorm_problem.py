"""Owns the form of problems for JStorm's topology scheduler and of their answers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkstorm.errors import FailedAssignTopologyError, InvalidConfigError, show
from sparkstorm.scheduling.form import fields as read
from sparkstorm.scheduling.form.conf_kinds import conf
from sparkstorm.scheduling.form.fields import Fields
from sparkstorm.scheduling.form.storm_problem import input_from, kind
from sparkstorm.scheduling.jstorm.records import (
    MASTER,
    AssignContext,
    AssignType,
    JStormComponent,
    SupervisorPorts,
    WorkerPlan,
    give_task_ids,
)
from sparkstorm.scheduling.jstorm.scheduler import assign_tasks
from sparkstorm.scheduling.jstorm.slots import definitions

MAX_TASKS = 1_000_000
MOST_TASK_DIGITS = 10
ACKER = "__acker"
ACKERS_KEY = "topology.acker.executors"


def context_from(value: object) -> AssignContext:
    """Read a problem; InvalidConfigError names the field that is wrong."""
    taken = Fields(value, "")
    taken.take("scheduler", read.text)
    topology = Fields(taken.take("topology", read.mapping), "topology")
    holder = topology if topology.has("tasks") else taken
    named = holder.take("tasks", read.map_of(read.text), None)
    components = topology.take("components", read.list_of(_component))
    read.no_duplicates([each.id for each in components], "topology.components")
    own_conf = {**taken.take("conf", conf, {}), **topology.take("conf", conf, {})}
    found = AssignContext(
        topology.take("id", read.text),
        taken.take("assign_type", _assign_type, AssignType.NEW),
        _as_counted(components, own_conf),
        taken.take("supervisors", read.list_of(_supervisor)),
        _task_ids(components, named),
        own_conf,
        taken.take("reassign", read.switch, False),
        taken.take("old_workers", read.list_of(_old_worker), ()),
        frozenset(taken.take("dead_tasks", read.list_of(read.integer), ())),
        frozenset(taken.take("unstopped_tasks", read.list_of(read.integer), ())),
    )
    topology.take("name", read.text, None)
    definitions(found)  # a worker that is ill defined is a mistake even where no worker is made
    topology.done()
    taken.done()
    read.no_duplicates([each.id for each in found.supervisors], "supervisors")
    return found


def _as_counted(components: tuple[JStormComponent, ...], own_conf: Mapping[str, Any]) -> tuple[JStormComponent, ...]:
    """The components by which JStorm counts workers: ackers as the conf says, and a master, whether listed or not."""
    counts = {ACKER: int(own_conf.get(ACKERS_KEY, 0)), MASTER: 1}
    listed = {each.id for each in components}
    implied = [JStormComponent(name, "system", count) for name, count in counts.items() if name not in listed]
    return (*(replace(each, parallelism=counts.get(each.id, each.parallelism)) for each in components), *implied)


def _assign_type(value: object, where: str) -> AssignType:
    if value not in list(AssignType):
        raise read.wrong(where, f"one of {', '.join(AssignType)}", value)
    return AssignType(str(value))


def _task_ids(components: tuple[JStormComponent, ...], named: dict[str, str] | None) -> dict[int, str]:
    if named is None:
        if sum(each.parallelism for each in components) > MAX_TASKS:
            raise InvalidConfigError(f"topology.components: more than {MAX_TASKS} tasks")
        return give_task_ids(components)
    known = {each.id for each in components}
    for task, component in named.items():
        if not (task.isascii() and task.isdecimal() and len(task) <= MOST_TASK_DIGITS):
            raise InvalidConfigError(f"tasks: expected a task id, got {show(task)}")
        if component not in known:
            raise InvalidConfigError(f"tasks: task {task}: no component is called {show(component)}")
    return {int(task): component for task, component in named.items()}


def _component(value: object, where: str) -> JStormComponent:
    taken = Fields(value, where)
    found = JStormComponent(
        taken.take("id", read.text),
        taken.take("kind", kind),
        taken.take("parallelism", read.integer),
        taken.take("conf", conf, {}),
        taken.take("inputs", read.list_of(input_from), ()),
    )
    taken.done()
    return found


def _supervisor(value: object, where: str) -> SupervisorPorts:
    taken = Fields(value, where)
    ports = tuple(sorted(set(taken.take("ports", read.list_of(read.port)))))
    available = tuple(sorted(set(taken.take("available", read.list_of(read.port), ports))))
    found = SupervisorPorts(taken.take("id", read.text), taken.take("host", read.text), ports, available)
    taken.done()
    if not set(available) <= set(ports):
        raise InvalidConfigError(f"{where}.available: {sorted(set(available) - set(ports))[0]} is not one of its ports")
    return found


def _old_worker(value: object, where: str) -> WorkerPlan:
    taken = Fields(value, where)
    found = WorkerPlan(
        taken.take("node", read.text),
        taken.take("host", read.text),
        taken.take("port", read.port),
        frozenset(taken.take("tasks", read.list_of(read.integer))),
        taken.take("memory_bytes", lambda each, at: read.integer(each, at, 0, 2**62), 0),
        taken.take("cpu", read.integer, 0),
        taken.take("jvm", lambda each, at: None if each is None else read.text(each, at), None),
    )
    taken.done()
    return found


def answer(context: AssignContext, explains: bool = False) -> dict[str, Any]:
    """The workers, sorted by (host, port), or why there can be none; `why` holds the reason of each task's place."""
    reasons: dict[int, str] = {}
    try:
        plans = assign_tasks(replace(context, reason_by_task=reasons) if explains else context)
    except FailedAssignTopologyError as error:
        return {"failed": str(error)}
    why = {"why": {str(task): words for task, words in sorted(reasons.items())}} if explains else {}
    return why | {
        "workers": [
            {
                "node": plan.node,
                "host": plan.host,
                "port": plan.port,
                "tasks": sorted(plan.tasks),
                "memory_bytes": plan.memory_bytes,
                "cpu": plan.cpu,
            }
            for plan in plans
        ]
    }
