"""Workers that are being placed, and user-defined workers (`use.userdefine.assignment`)."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkstorm.common.errors import FailedAssignTopologyError, InvalidConfigError, show
from sparkstorm.control_plane.scheduling.jstorm.records import AssignContext, PlannedWorker

USER_DEFINED_KEY = "use.userdefine.assignment"
MOST_PORT = 65_535
MOST_CPU = 2**31 - 1
MOST_TASKS = 2**31 - 1
MOST_BYTES = 2**62
MOST_DIGITS = 30


@dataclass(slots=True, eq=False)
class JStormSlot:
    """A worker that is being placed (JStorm's ResourceWorkerSlot): it may name a host, or a node,
    before it has one.
    """

    node: str | None = None
    host: str | None = None
    port: int = 0
    tasks: set[int] | None = None
    memory_bytes: int = 0
    cpu: int = 0
    jvm: str | None = None
    placed_by: str = ""

    @classmethod
    def of(cls, plan: PlannedWorker) -> "JStormSlot":
        """Return a slot like an old worker, tasks included."""
        return cls(
            plan.node, plan.host, plan.port, set(plan.tasks), plan.memory_bytes, plan.cpu, plan.jvm
        )

    @property
    def order(self) -> tuple[str, int, str]:
        """Sort key among equal workers: host, port, then node (two supervisors of a host may have
        the same port).
        """
        return (self.host or "", self.port, self.node or "")

    @property
    def num_tasks(self) -> int:
        """Tasks given to it so far."""
        return len(self.tasks or ())

    def plan(self) -> PlannedWorker:
        """Return the finished worker; FailedAssignTopologyError when it was never placed."""
        if self.node is None or self.host is None:
            raise FailedAssignTopologyError("a worker was left without a supervisor")
        return PlannedWorker(
            self.node,
            self.host,
            self.port,
            frozenset(self.tasks or ()),
            self.memory_bytes,
            self.cpu,
            self.jvm,
        )


@dataclass(frozen=True, slots=True)
class Definition:
    """A user-defined worker; 0 and None mean "any" (JStorm's WorkerAssignment)."""

    count_by_component: Mapping[str, int]
    host: str | None
    node: str | None
    port: int
    memory_bytes: int
    cpu: int
    jvm: str | None

    def describes(self, worker: PlannedWorker, component_by_task: Mapping[int, str]) -> bool:
        """Return whether a running worker matches the definition."""
        counts = Counter(component_by_task.get(task, "") for task in worker.tasks)
        return (
            self.cpu in (0, worker.cpu)
            and self.memory_bytes in (0, worker.memory_bytes)
            and self.jvm in (None, worker.jvm)
            and self.host == worker.host
            and self.port in (0, worker.port)
            and counts == dict(self.count_by_component)
        )


def definitions(context: AssignContext) -> list[Definition]:
    """Return the conf's definitions; InvalidConfigError names a malformed one and its field."""
    wanted = context.conf.get(USER_DEFINED_KEY) or ()
    if not isinstance(wanted, (list, tuple)):
        raise InvalidConfigError(
            f"{USER_DEFINED_KEY}: expected a list of workers, got {show(wanted)}"
        )
    return [
        _definition(entry, f"{USER_DEFINED_KEY}[{index}]") for index, entry in enumerate(wanted)
    ]


def _object(value: object, where: str) -> Mapping[str, Any]:
    """Return an object, also from its JSON text; its fields are not checked."""
    try:
        definition = json.loads(value, parse_int=_integer) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        raise InvalidConfigError(f"{where}: not JSON: {show(value)}") from None
    if not isinstance(definition, Mapping):
        raise InvalidConfigError(f"{where}: expected an object, got {show(definition)}")
    return definition


def _integer(digits: str) -> int:
    return int(digits[:MOST_DIGITS])  # cut: still above every bound


def _text(fields: Mapping[str, Any], name: str, where: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidConfigError(f"{where}.{name}: expected a text, got {show(value)}")
    return value


def _whole(fields: Mapping[str, Any], name: str, most: int, where: str) -> int:
    """Return an integer from 0 to `most`, also from its text; 0 if it is absent or empty."""
    value = fields.get(name)
    if value is None or value == "":
        return 0
    is_text = (
        isinstance(value, str)
        and value.isascii()
        and value.isdecimal()
        and len(value) <= MOST_DIGITS
    )
    number = int(value) if is_text else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
        raise InvalidConfigError(
            f"{where}.{name:.60}: expected an integer from 0 to {most}, got {show(value)}"
        )
    return number


def _definition(value: object, where: str) -> Definition:
    fields = _object(value, where)
    # JStorm leaves a worker without them out, and says so in its log alone.
    for name, remedy in (("componentToNum", "tasks by component"), ("port", "0 is any")):
        if fields.get(name) in (None, ""):
            raise InvalidConfigError(f"{where}.{name}: missing ({remedy})")
    counts = _object(fields["componentToNum"], f"{where}.componentToNum")
    return Definition(
        {name: _whole(counts, name, MOST_TASKS, f"{where}.componentToNum") for name in counts},
        _text(fields, "hostName", where),
        _text(fields, "nodeId", where),
        _whole(fields, "port", MOST_PORT, where),
        _whole(fields, "mem", MOST_BYTES, where),
        _whole(fields, "cpu", MOST_CPU, where),
        _text(fields, "jvm", where),
    )


def defined_slots(
    context: AssignContext, unstopped: Iterable[PlannedWorker], is_new: bool
) -> list[JStormSlot]:
    """Return slots for the user's definitions with tasks in order; definitions without tasks are
    left out (S0.83).
    """
    wanted = definitions(context)
    if not is_new:
        running = list(unstopped)
        wanted = [
            definition
            for definition in wanted
            if not any(definition.describes(w, context.component_by_task) for w in running)
        ]
    unused: dict[str, list[int]] = {}
    for task in sorted(context.component_by_task):
        unused.setdefault(context.component_by_task[task], []).append(task)
    slots = []
    for own in wanted:
        tasks: set[int] = set()
        for component, count in own.count_by_component.items():
            unused_tasks = unused.get(component, [])
            tasks.update(unused_tasks[: max(count, 0)])
            unused[component] = unused_tasks[max(count, 0) :]
        if tasks:
            slots.append(
                JStormSlot(own.node, own.host, own.port, tasks, own.memory_bytes, own.cpu, own.jvm)
            )
    return slots
