"""Problems for JStorm's topology scheduler: the JSON form and the answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkstorm.common.errors import FailedAssignTopologyError, InvalidConfigError, show
from sparkstorm.common.model.strict import UnfitValueError, expected, named_errors, read_as
from sparkstorm.control_plane.scheduling.jstorm.records import (
    MASTER,
    AssignContext,
    AssignType,
    JStormComponent,
    PlannedWorker,
    SupervisorPorts,
    give_task_ids,
)
from sparkstorm.control_plane.scheduling.jstorm.scheduler import assign_tasks, living_workers
from sparkstorm.control_plane.scheduling.jstorm.slots import definitions
from sparkstorm.extensions.laboratory.form.fields import (
    ABSENT,
    Bytes,
    Count,
    Input,
    Kind,
    Port,
    Settings,
    Text,
    no_duplicates,
    no_repeated_inputs,
)

MAX_TASKS = 1_000_000
MOST_TASK_DIGITS = 10
ACKER = "__acker"
ACKERS_KEY = "topology.acker.executors"


@dataclass(frozen=True, slots=True)
class _JStormComponent:
    id: Text
    kind: Kind
    parallelism: Count
    conf: Settings = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True)
class _JStormTopology:
    id: Text
    components: tuple[_JStormComponent, ...]
    name: Text = ""
    conf: Settings = field(default_factory=dict)
    tasks: Mapping[str, Text] = ABSENT

    def __post_init__(self) -> None:
        no_duplicates((component.id for component in self.components), "components")
        for at, component in enumerate(self.components):
            no_repeated_inputs(component.inputs, at)


@dataclass(frozen=True, slots=True)
class _JStormSupervisor:
    id: Text
    host: Text
    ports: tuple[Port, ...]
    available: tuple[Port, ...] = ABSENT

    def __post_init__(self) -> None:
        strange = {*(self.available or ())} - {*self.ports}
        if strange:
            raise UnfitValueError(f"{min(strange)} is not one of its ports", "available")

    def view(self) -> SupervisorPorts:
        available = self.ports if self.available is None else self.available
        return SupervisorPorts(
            self.id, self.host, tuple(sorted({*self.ports})), tuple(sorted({*available}))
        )


@dataclass(frozen=True, slots=True)
class _OldWorker:
    node: Text
    host: Text
    port: Port
    tasks: tuple[Count, ...]
    memory_bytes: Bytes = 0
    cpu: Count = 0
    jvm: Text | None = None


@dataclass(frozen=True, slots=True)
class _JStormProblem:
    scheduler: Text
    topology: _JStormTopology
    supervisors: tuple[_JStormSupervisor, ...]
    assign_type: AssignType = AssignType.NEW
    reassign: bool = False
    conf: Settings = field(default_factory=dict)
    tasks: Mapping[str, Text] = ABSENT
    old_workers: tuple[_OldWorker, ...] = ()
    dead_tasks: tuple[Count, ...] = ()
    unstopped_tasks: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        no_duplicates((supervisor.id for supervisor in self.supervisors), "supervisors")

    def context(self) -> AssignContext:
        topology = self.topology
        if self.tasks is not None and topology.tasks is not None:
            raise UnfitValueError("given twice: here and in topology.tasks", "tasks")
        components = tuple(
            JStormComponent(
                component.id,
                component.kind,
                component.parallelism,
                component.conf,
                tuple(source.view() for source in component.inputs),
            )
            for component in topology.components
        )
        conf = {**self.conf, **topology.conf}
        return AssignContext(
            topology.id,
            self.assign_type,
            _as_counted(components, conf),
            tuple(supervisor.view() for supervisor in self.supervisors),
            _task_ids(components, topology.tasks if self.tasks is None else self.tasks),
            conf,
            self.reassign,
            tuple(
                PlannedWorker(
                    old_worker.node,
                    old_worker.host,
                    old_worker.port,
                    frozenset(old_worker.tasks),
                    old_worker.memory_bytes,
                    old_worker.cpu,
                    old_worker.jvm,
                )
                for old_worker in self.old_workers
            ),
            frozenset(self.dead_tasks),
            frozenset(self.unstopped_tasks),
        )


def context_from(value: object) -> AssignContext:
    """Read a problem; InvalidConfigError names the field that is wrong."""
    with named_errors(InvalidConfigError, "problem"):
        context = read_as(_JStormProblem, value).context()
        _check_offers(context)
    definitions(context)  # refuse a malformed definition even if no worker is needed
    return context


def _check_offers(context: AssignContext) -> None:
    """Refuse an offered port in which a living worker sits: a worker that were placed there would
    lose its tasks.
    """
    offers = {
        supervisor.id: (index, supervisor.available)
        for index, supervisor in enumerate(context.supervisors)
    }
    for worker in living_workers(context):
        index, offered = offers.get(worker.node, (0, ()))
        if worker.port in offered:
            sentence = f"{worker.port} is offered, but a worker of old_workers lives there"
            raise UnfitValueError(sentence, "supervisors", index, "available")


def _as_counted(
    components: tuple[JStormComponent, ...], conf: Mapping[str, Any]
) -> tuple[JStormComponent, ...]:
    """Return the components by which JStorm counts workers: ackers by the conf, and a master,
    whether listed or not.
    """
    counts = {ACKER: int(conf.get(ACKERS_KEY, 0)), MASTER: 1}
    listed = {component.id for component in components}
    implied = [
        JStormComponent(name, "system", count)
        for name, count in counts.items()
        if name not in listed
    ]
    return (
        *(
            replace(component, parallelism=counts.get(component.id, component.parallelism))
            for component in components
        ),
        *implied,
    )


def _task_ids(
    components: tuple[JStormComponent, ...], named: Mapping[str, str] | None
) -> dict[int, str]:
    if named is None:
        if sum(component.parallelism for component in components) > MAX_TASKS:
            raise UnfitValueError(f"more than {MAX_TASKS} tasks", "topology", "components")
        return give_task_ids(components)
    known_ids = {component.id for component in components}
    for task, component in named.items():
        is_id = task.isascii() and task.isdecimal() and len(task) <= MOST_TASK_DIGITS
        # "01" beside "1" would be two entries of one task
        if not is_id or str(int(task)) != task:
            raise expected("a task id", task).inside("tasks")
        if component not in known_ids:
            raise UnfitValueError(f"task {task}: no component is called {show(component)}", "tasks")
    return {int(task): component for task, component in named.items()}


def answer(context: AssignContext, explains: bool = False) -> dict[str, Any]:
    """Return the workers, sorted by (host, port), or the scheduler's refusal; with `explains` the
    reason of each task's place.
    """
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
