"""Owns a worker in the making, and the definitions of workers that a user may put into the conf."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkstorm.errors import FailedAssignTopologyError, InvalidConfigError
from sparkstorm.scheduling.jstorm.records import AssignContext, WorkerPlan

USER_DEFINED_KEY = "use.userdefine.assignment"


@dataclass(slots=True, eq=False)
class Slot:
    """A worker that is being placed: it may name a host, or a node, before it has one."""

    node: str | None = None
    host: str | None = None
    port: int = 0
    tasks: set[int] | None = None
    memory_bytes: int = 0
    cpu: int = 0
    jvm: str | None = None

    @classmethod
    def of(cls, plan: WorkerPlan) -> "Slot":
        """A slot like an old worker, tasks included."""
        return cls(plan.node, plan.host, plan.port, set(plan.tasks), plan.memory_bytes, plan.cpu, plan.jvm)

    @property
    def order(self) -> tuple[str, int, str]:
        """Where it comes among equals: host, then port; the node when two supervisors of a host name one port."""
        return (self.host or "", self.port, self.node or "")

    @property
    def num_tasks(self) -> int:
        """Tasks given to it so far."""
        return len(self.tasks or ())

    def plan(self) -> WorkerPlan:
        """The finished worker; FailedAssignTopologyError when it was never placed."""
        if self.node is None or self.host is None:
            raise FailedAssignTopologyError("a worker was left without a supervisor")
        return WorkerPlan(
            self.node, self.host, self.port, frozenset(self.tasks or ()), self.memory_bytes, self.cpu, self.jvm
        )


@dataclass(frozen=True, slots=True)
class Definition:
    """A worker as the user wants it; 0 and None mean "any" (JStorm's WorkerAssignment)."""

    count_by_component: Mapping[str, int]
    host: str | None
    node: str | None
    port: int
    memory_bytes: int
    cpu: int
    jvm: str | None

    def describes(self, worker: WorkerPlan, component_by_task: Mapping[int, str]) -> bool:
        """Whether a worker that runs is this one."""
        counts: dict[str, int] = {}
        for task in worker.tasks:
            name = component_by_task.get(task, "")
            counts[name] = counts.get(name, 0) + 1
        return (
            self.cpu in (0, worker.cpu)
            and self.memory_bytes in (0, worker.memory_bytes)
            and self.jvm in (None, worker.jvm)
            and self.host == worker.host
            and self.port in (0, worker.port)
            and counts == dict(self.count_by_component)
        )


def definitions(context: AssignContext) -> list[Definition]:
    """The conf's definitions; InvalidConfigError when one is not what JStorm's clients write."""
    wanted = context.conf.get(USER_DEFINED_KEY) or ()
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):
        raise InvalidConfigError(f"{USER_DEFINED_KEY}: expected a list of workers, got {wanted!r:.100}")
    return [_definition(each) for each in wanted]


def _object(value: object, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise InvalidConfigError(f"{where}: not JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise InvalidConfigError(f"{where}: expected an object, got {found!r:.100}")
    return found


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    return value


def _definition(value: object) -> Definition:
    fields = _object(value, USER_DEFINED_KEY)
    counts = _object(fields.get("componentToNum") or {}, f"{USER_DEFINED_KEY}: componentToNum")
    try:
        return Definition(
            {name: int(count) for name, count in counts.items()},
            _text(fields, "hostName"),
            _text(fields, "nodeId"),
            int(fields.get("port") or 0),
            int(fields.get("mem") or 0),
            int(fields.get("cpu") or 0),
            _text(fields, "jvm"),
        )
    except (TypeError, ValueError) as error:
        raise InvalidConfigError(f"{USER_DEFINED_KEY}: {error} in {value!r:.100}") from error


def defined_slots(context: AssignContext, unstopped: Iterable[WorkerPlan], is_new: bool) -> list[Slot]:
    """Slots for the user's definitions, tasks dealt to them in order; those without tasks are left out (S0.83)."""
    wanted = definitions(context)
    if not is_new:
        running = list(unstopped)
        wanted = [each for each in wanted if not any(each.describes(w, context.component_by_task) for w in running)]
    unused: dict[str, list[int]] = {}
    for task in sorted(context.component_by_task):
        unused.setdefault(context.component_by_task[task], []).append(task)
    slots = []
    for each in wanted:
        tasks: set[int] = set()
        for component, count in each.count_by_component.items():
            left = unused.get(component, [])
            tasks.update(left[: max(count, 0)])
            unused[component] = left[max(count, 0) :]
        if tasks:
            slots.append(Slot(each.node, each.host, each.port, tasks, each.memory_bytes, each.cpu, each.jvm))
    return slots
