"""Problems for Storm's schedulers: the JSON form, single rounds and sequences of them, and the
answers.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Annotated, Any

from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError, show
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.shared_memory import check_regions
from sparkstorm.common.model.strict import (
    UnfitValueError,
    expected,
    named_errors,
    near_name,
    one_of,
    read_as,
    reader_of,
)
from sparkstorm.control_plane.scheduling.blacklist import BlacklistScheduler
from sparkstorm.control_plane.scheduling.catalogue import BLACKLIST, BUILT_IN
from sparkstorm.control_plane.scheduling.multitenant.scheduler import MultitenantScheduler
from sparkstorm.control_plane.scheduling.reasons import Reasons
from sparkstorm.control_plane.scheduling.records import (
    ComponentView,
    Conf,
    SupervisorView,
    TopologyView,
)
from sparkstorm.control_plane.scheduling.resource.scheduler import ResourceAwareScheduler
from sparkstorm.control_plane.scheduling.view import Assignments, ClusterView, Scheduler
from sparkstorm.extensions.laboratory.form.fields import (
    ABSENT,
    Count,
    Input,
    Kind,
    Number,
    Port,
    Resources,
    Settings,
    Text,
    no_duplicates,
    no_repeated_inputs,
)
from sparkstorm.extensions.laboratory.form.measured import HostForm, MeasuredForm
from sparkstorm.extensions.laboratory.plugged import schedule, scheduler_named


@dataclass(frozen=True, slots=True)
class Round:
    """Input of one round of scheduling."""

    supervisors: tuple[SupervisorView, ...] = ()
    topologies: tuple[TopologyView, ...] = ()
    assignments: Assignments | None = None
    dead_ports: Mapping[str, tuple[int, ...]] | None = None
    blacklisted_hosts: tuple[str, ...] = ()
    greylisted_hosts: tuple[str, ...] = ()

    def view(self, cluster_conf: Conf) -> ClusterView:
        """Return a new cluster view without dead ports."""
        dead = self.dead_ports or {}
        living = [
            replace(
                supervisor,
                ports=tuple(port for port in supervisor.ports if port not in dead[supervisor.id]),
            )
            if supervisor.id in dead
            else supervisor
            for supervisor in self.supervisors
        ]
        return ClusterView(
            living,
            self.topologies,
            self.assignments,
            cluster_conf,
            self.blacklisted_hosts,
            self.greylisted_hosts,
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem for one of Storm's schedulers; `rounds` is empty for a single round."""

    scheduler: str
    inner: str
    conf: Conf
    first: Round
    rounds: tuple[Round, ...] = ()


# -- the JSON form ---------------------------------------------------------------------------------


def _executor(value: object) -> ExecutorId:
    tasks: tuple[int, ...] = reader_of(tuple[Count, ...])(value)
    if len(tasks) != 2 or tasks[0] > tasks[1]:
        raise expected("[first task, last task]", value)
    return ExecutorId(*tasks)


def _assignment(value: object) -> Mapping[ExecutorId, WorkerSlot]:
    slot_by_executor: dict[ExecutorId, WorkerSlot] = {}
    for row in reader_of(tuple[_StormRow, ...])(value):
        if row.executor in slot_by_executor:
            raise UnfitValueError(f"executor {list(row.executor)} occurs twice")
        slot_by_executor[row.executor] = WorkerSlot(row.node, row.port)
    return slot_by_executor


def _owner(value: object) -> str:
    return "" if value in (None, "") else str(reader_of(Text)(value))


Executor = Annotated[ExecutorId, _executor]
Placed = Annotated[Mapping[ExecutorId, WorkerSlot], _assignment]


@dataclass(frozen=True, slots=True)
class _StormRow:
    executor: Executor
    node: Text
    port: Port


@dataclass(frozen=True, slots=True)
class _StormSupervisor:
    id: Text
    host: Text
    ports: tuple[Port, ...]
    rack: Text | None = None
    uptime_secs: Count = ABSENT
    resources: Resources = field(default_factory=dict)
    measured: HostForm | None = None

    def view(self) -> SupervisorView:
        uptime_ms = None if self.uptime_secs is None else self.uptime_secs * 1000
        return SupervisorView(
            self.id,
            self.host,
            tuple(sorted({*self.ports})),
            self.rack,
            uptime_ms,
            self.resources,
            self.measured.load() if self.measured else None,
        )


@dataclass(frozen=True, slots=True)
class _StormComponent:
    id: Text
    kind: Kind
    executors: tuple[Executor, ...]
    conf: Settings = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True)
class _StormTopology:
    id: Text
    name: Text
    components: tuple[_StormComponent, ...]
    owner: Annotated[str, _owner] = ""
    uptime_secs: Count = 0
    conf: Settings = field(default_factory=dict)
    measured: MeasuredForm | None = None

    def __post_init__(self) -> None:
        no_duplicates((component.id for component in self.components), "components")
        names = [component.id for component in self.components]
        for at, component in enumerate(self.components):
            no_repeated_inputs(component.inputs, at)
            for index, source in enumerate(component.inputs):
                sender = source.component
                if sender not in names and not sender.startswith("__"):
                    words = f"no component is called {show(sender)}{near_name(sender, names)}"
                    raise UnfitValueError(words, "components", at, "inputs", index, "from")
        if self.measured is not None:
            executors = [
                executor for component in self.components for executor in component.executors
            ]
            streams = {
                (source.component, source.stream, component.id)
                for component in self.components
                for source in component.inputs
            }
            self.measured.check({*names}, executors, streams)
        last = None
        for executor in sorted(
            executor for component in self.components for executor in component.executors
        ):
            if last is not None and executor.first_task <= last:
                raise UnfitValueError(
                    f"task {executor.first_task} is in two executors", "components"
                )
            last = executor.last_task
        try:
            check_regions(((component.id, component.conf) for component in self.components), "")
        except InvalidTopologyError as error:
            raise UnfitValueError(str(error), "components") from None

    def view(self, cluster_conf: Conf) -> TopologyView:
        conf = {**cluster_conf, **self.conf}
        components = tuple(
            ComponentView(
                component.id,
                component.kind,
                component.executors,
                component.conf,
                tuple(source.view() for source in component.inputs),
            )
            for component in self.components
        )
        num_workers = conf.get("topology.workers", 1)
        return TopologyView(
            self.id,
            self.name,
            components,
            num_workers,
            self.owner,
            self.uptime_secs * 1000,
            conf,
            measured=self.measured.measurements() if self.measured else None,
        )


@dataclass(frozen=True, slots=True)
class _WorkerResources:
    """Checked and not used: Storm too works out what running workers take from their executors."""

    node: Text
    port: Port
    memory_on_heap_mb: Number = 0.0
    memory_off_heap_mb: Number = 0.0
    cpu: Number = 0.0


@dataclass(frozen=True, slots=True)
class _Round:
    """A round; absent fields keep their value of the round before."""

    supervisors: tuple[_StormSupervisor, ...] = ABSENT
    topologies: tuple[_StormTopology, ...] = ABSENT
    assignments: Mapping[str, Placed] = ABSENT
    dead_ports: Mapping[str, tuple[Port, ...]] = ABSENT
    blacklisted_hosts: tuple[Text, ...] = ABSENT
    greylisted_hosts: tuple[Text, ...] = ABSENT
    worker_resources: Mapping[str, tuple[_WorkerResources, ...]] = ABSENT

    def __post_init__(self) -> None:
        for name in ("supervisors", "topologies"):
            no_duplicates((entry.id for entry in getattr(self, name) or ()), name)

    def over(self, former: Round, cluster_conf: Conf) -> Round:
        """Return the round, with absent fields taken from the former one."""
        names = ("assignments", "dead_ports", "blacklisted_hosts", "greylisted_hosts")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.supervisors is not None:
            given["supervisors"] = tuple(supervisor.view() for supervisor in self.supervisors)
        if self.topologies is not None:
            given["topologies"] = tuple(topology.view(cluster_conf) for topology in self.topologies)
        new_round = replace(former, **given)
        unknown = set(new_round.assignments or ()) - {
            topology.id for topology in new_round.topologies
        }
        if unknown:
            raise UnfitValueError(f"no topology is called {show(min(unknown))}", "assignments")
        return new_round


@dataclass(frozen=True, slots=True)
class _NamedPart:
    scheduler: Annotated[str, one_of((*BUILT_IN, BLACKLIST, "jstorm"))]


@dataclass(frozen=True, slots=True)
class _StormProblem(_Round):
    scheduler: Text = field(kw_only=True)
    inner: Annotated[str, one_of(tuple(BUILT_IN))] = "default"
    conf: Settings = field(default_factory=dict)
    rounds: tuple[_Round, ...] = ()

    def __post_init__(self) -> None:
        super(_StormProblem, self).__post_init__()
        for name in () if self.rounds else ("supervisors", "topologies"):
            if getattr(self, name) is None:
                raise UnfitValueError("missing", name)

    def problem(self) -> Problem:
        former = first = self.over(Round(), self.conf)
        rounds = []
        for index, round_ in enumerate(self.rounds):
            try:
                former = round_.over(former, self.conf)
            except UnfitValueError as error:
                raise error.inside(index).inside("rounds") from None
            rounds.append(former)
        self._check_dead_ports(*(now.supervisors for now in (first, *rounds)))
        return Problem(self.scheduler, self.inner, self.conf, first, tuple(rounds))

    def _check_dead_ports(self, *rounds: Sequence[SupervisorView]) -> None:
        """Refuse a port that no supervisor has in any round: it would be offered in silence. One that
        is missing in the round is no fault, since rounds keep the field.
        """
        ports: defaultdict[str, set[int]] = defaultdict(set)
        for supervisor in chain.from_iterable(rounds):
            ports[supervisor.id].update(supervisor.ports)
        for at, round_ in enumerate((self, *self.rounds)):
            inside = ("rounds", at - 1) if at else ()
            for node, dead in (round_.dead_ports or {}).items():
                if node not in ports:
                    words = f"no supervisor is called {show(node)}{near_name(node, ports)}"
                    raise UnfitValueError(words, *inside, "dead_ports")
                if strange := {*dead} - ports[node]:
                    words = f"{min(strange)} is not one of its ports"
                    raise UnfitValueError(words, *inside, "dead_ports", node)


def problem_from(value: object) -> Problem:
    """Read a problem; InvalidConfigError names the field that is wrong."""
    with named_errors(InvalidConfigError, "problem"):
        # named first: other fields depend on it
        if isinstance(value, dict) and "scheduler" in value:
            read_as(_NamedPart, {"scheduler": value["scheduler"]})
        return read_as(_StormProblem, value).problem()


# -- the answer ------------------------------------------------------------------------------------


def answer(problem: Problem, explains: bool = False) -> dict[str, Any]:
    """Return the answer to a problem; with rounds, one answer each, by the same scheduler object.

    With `explains`, `why` holds the reason of each executor's place.
    """
    scheduler = scheduler_named(problem.scheduler, problem.conf, problem.inner)

    def solved(now: Round) -> dict[str, Any]:
        cluster = now.view(problem.conf)
        if not explains:
            return _solve(scheduler, cluster)
        before = cluster.assignments()
        cluster.reasons = Reasons()
        solution = _solve(scheduler, cluster)
        return solution | {"why": _why(cluster, before, cluster.reasons, problem.scheduler)}

    if problem.rounds:
        return {"rounds": [solved(round_) for round_ in problem.rounds]}
    return solved(problem.first)


def _why(
    cluster: ClusterView, before: Assignments, reasons: Reasons, scheduler: str
) -> dict[str, list[dict[str, Any]]]:
    rows_by_topology = {}
    for name, slots in cluster.assignments().items():
        was = before[name]
        status = cluster.refused.get(name) or cluster.status.get(name, "")
        rows_by_topology[name] = [
            {
                "executor": list(executor),
                "reason": reasons.of(
                    name, executor, slots.get(executor), was.get(executor), scheduler, status
                ),
            }
            for executor in cluster.topologies[name].executors
        ]
    return rows_by_topology


def _solve(scheduler: Scheduler, cluster: ClusterView) -> dict[str, Any]:
    schedule(scheduler, cluster)
    solution: dict[str, Any] = {
        "assignments": {name: rows_of(placed) for name, placed in cluster.assignments().items()},
        "status": {
            name: cluster.status.get(name) or _status(cluster, name) for name in cluster.topologies
        },
    }
    if isinstance(scheduler, BlacklistScheduler):
        solution["blacklisted_hosts"] = list(scheduler.blacklisted_hosts)
        scheduler = scheduler.inner
    if isinstance(scheduler, ResourceAwareScheduler):
        # A topology that was placed again in the same round has only moved.
        solution["evicted"] = sorted(
            {name for name in cluster.evicted if not cluster.placement(name).num_workers}
        )
    if isinstance(scheduler, MultitenantScheduler) and scheduler.pool_sizes is not None:
        sizes = scheduler.pool_sizes
        solution["pools"] = {
            "free": sizes.free,
            "default": sizes.default,
            "isolated": dict(sizes.isolated),
        }
    return solution


def rows_of(placed: Mapping[ExecutorId, WorkerSlot]) -> list[dict[str, Any]]:
    """Return a placement as sorted rows."""
    return [
        {"executor": list(executor), "node": slot.node, "port": slot.port}
        for executor, slot in sorted(placed.items())
    ]


def _status(cluster: ClusterView, topology_id: str) -> str:
    placement = cluster.placement(topology_id)
    total = len(cluster.topologies[topology_id].executors)
    return f"{total - placement.num_missing} of {total} executors on {counted(placement.num_workers, 'worker')}"
