"""Owns the form of problems for Storm's schedulers, single rounds and sequences of them, and of their answers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkstorm.errors import InvalidConfigError, InvalidTopologyError, show
from sparkstorm.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.model.shared_memory import check_regions
from sparkstorm.scheduling.blacklist import BlacklistScheduler
from sparkstorm.scheduling.catalogue import BLACKLIST, BUILT_IN, scheduler_by_name
from sparkstorm.scheduling.form import fields as read
from sparkstorm.scheduling.form.conf_kinds import conf
from sparkstorm.scheduling.form.fields import Fields
from sparkstorm.scheduling.multitenant.scheduler import MultitenantScheduler
from sparkstorm.scheduling.reasons import Reasons
from sparkstorm.scheduling.records import ComponentView, Conf, InputView, SupervisorView, TopologyView
from sparkstorm.scheduling.resource.scheduler import ResourceAwareScheduler
from sparkstorm.scheduling.view import Assignments, ClusterView, Scheduler

KINDS = ("spout", "bolt", "system")


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of scheduling is given."""

    supervisors: tuple[SupervisorView, ...] = ()
    topologies: tuple[TopologyView, ...] = ()
    assignments: Assignments | None = None
    dead_ports: Mapping[str, tuple[int, ...]] | None = None
    blacklisted_hosts: tuple[str, ...] = ()
    greylisted_hosts: tuple[str, ...] = ()

    def view(self, cluster_conf: Conf) -> ClusterView:
        """A fresh cluster view; dead ports are hidden from their supervisors."""
        dead = self.dead_ports or {}
        living = [
            replace(each, ports=tuple(port for port in each.ports if port not in dead.get(each.id, ())))
            for each in self.supervisors
        ]
        return ClusterView(living, self.topologies, self.assignments, cluster_conf, self.blacklisted_hosts, self.greylisted_hosts)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem for one of Storm's schedulers; `rounds` is empty for a single round."""

    scheduler: str
    inner: str
    conf: Conf
    first: Round
    rounds: tuple[Round, ...] = ()


def problem_from(value: object) -> Problem:
    """Read a problem; InvalidConfigError names the field that is wrong."""
    taken = Fields(value, "")
    scheduler = taken.take("scheduler", _scheduler)
    inner = taken.take("inner", _inner, "default")
    cluster_conf = taken.take("conf", conf, {})
    later = taken.take("rounds", read.list_of(read.mapping), ())
    first = _round(taken, Round(), cluster_conf, needs_all=not later)
    taken.done()
    rounds = []
    former = first
    for at, each in enumerate(later):
        fields = Fields(each, f"rounds[{at}]")
        former = _round(fields, former, cluster_conf, needs_all=False)
        fields.done()
        rounds.append(former)
    return Problem(scheduler, inner, cluster_conf, first, tuple(rounds))


def _scheduler(value: object, where: str) -> str:
    names = [*BUILT_IN, BLACKLIST]
    if value not in names:
        raise read.wrong(where, f"one of {', '.join([*names, 'jstorm'])}", value)
    return str(value)


def _inner(value: object, where: str) -> str:
    if value not in list(BUILT_IN):
        raise read.wrong(where, f"one of {', '.join(BUILT_IN)}", value)
    return str(value)


def _round(taken: Fields, former: Round, cluster_conf: Conf, needs_all: bool) -> Round:
    """The fields of a round; those absent stay as they were in the former one."""

    def topology(value: object, where: str) -> TopologyView:
        return _topology(value, where, cluster_conf)

    must: dict[str, Any] = {} if needs_all else {"default": former.supervisors}
    supervisors = taken.take("supervisors", read.list_of(_supervisor), **must)
    must = {} if needs_all else {"default": former.topologies}
    topologies = taken.take("topologies", read.list_of(topology), **must)
    found = Round(
        supervisors,
        topologies,
        taken.take("assignments", read.map_of(_assignment), former.assignments),
        taken.take("dead_ports", read.map_of(read.list_of(read.port)), former.dead_ports),
        taken.take("blacklisted_hosts", read.list_of(read.text), former.blacklisted_hosts),
        taken.take("greylisted_hosts", read.list_of(read.text), former.greylisted_hosts),
    )
    # Checked and not used: Storm too works out what running workers take from their executors.
    taken.take("worker_resources", read.map_of(read.list_of(_worker_resources)), None)
    read.no_duplicates([each.id for each in supervisors], "supervisors")
    read.no_duplicates([each.id for each in topologies], "topologies")
    unknown = set(found.assignments or ()) - {each.id for each in topologies}
    if unknown:
        raise InvalidConfigError(f"assignments: no topology is called {show(sorted(unknown)[0])}")
    return found


def _supervisor(value: object, where: str) -> SupervisorView:
    taken = Fields(value, where)
    uptime = taken.take("uptime_secs", read.integer, None)
    found = SupervisorView(
        taken.take("id", read.text),
        taken.take("host", read.text),
        tuple(sorted(set(taken.take("ports", read.list_of(read.port))))),
        taken.take("rack", _optional_text, None),
        None if uptime is None else uptime * 1000,
        taken.take("resources", read.map_of(read.number), {}),
    )
    taken.done()
    return found


def _optional_text(value: object, where: str) -> str | None:
    return None if value is None else read.text(value, where)


def _topology(value: object, where: str, cluster_conf: Conf) -> TopologyView:
    taken = Fields(value, where)
    own_conf = {**cluster_conf, **taken.take("conf", conf, {})}
    components = taken.take("components", read.list_of(_component))
    read.no_duplicates([each.id for each in components], f"{where}.components")
    _check_tasks(components, where)
    _check_shared_memory(components, where)
    found = TopologyView(
        taken.take("id", read.text),
        taken.take("name", read.text),
        components,
        own_conf.get("topology.workers", 1),
        taken.take("owner", _owner, ""),
        taken.take("uptime_secs", read.integer, 0) * 1000,
        own_conf,
    )
    taken.done()
    return found


def _owner(value: object, where: str) -> str:
    return "" if value in (None, "") else read.text(value, where)


def _check_tasks(components: tuple[ComponentView, ...], where: str) -> None:
    last = None
    for executor in sorted(executor for each in components for executor in each.executors):
        if last is not None and executor.first_task <= last:
            raise InvalidConfigError(f"{where}.components: task {executor.first_task} is in two executors")
        last = executor.last_task


def _check_shared_memory(components: tuple[ComponentView, ...], where: str) -> None:
    try:
        check_regions(((each.id, each.conf) for each in components), f"{where}.components: ")
    except InvalidTopologyError as error:
        raise InvalidConfigError(str(error)) from None


def _component(value: object, where: str) -> ComponentView:
    taken = Fields(value, where)
    found = ComponentView(
        taken.take("id", read.text),
        taken.take("kind", kind),
        taken.take("executors", read.list_of(_executor)),
        taken.take("conf", conf, {}),
        taken.take("inputs", read.list_of(input_from), ()),
    )
    taken.done()
    return found


def kind(value: object, where: str) -> str:
    """Spout, bolt or system."""
    if value not in KINDS:
        raise read.wrong(where, f"one of {', '.join(KINDS)}", value)
    return str(value)


def input_from(value: object, where: str) -> InputView:
    """One subscription."""
    taken = Fields(value, where)
    found = InputView(
        taken.take("from", read.text),
        taken.take("stream", read.text, "default"),
        taken.take("grouping", read.text, "shuffle"),
    )
    taken.done()
    return found


def _executor(value: object, where: str) -> ExecutorId:
    tasks = read.list_of(read.integer)(value, where)
    if len(tasks) != 2 or tasks[0] > tasks[1]:
        raise read.wrong(where, "[first task, last task]", value)
    return ExecutorId(*tasks)


def _assignment(value: object, where: str) -> Mapping[ExecutorId, WorkerSlot]:
    found: dict[ExecutorId, WorkerSlot] = {}
    for executor, slot in read.list_of(_row)(value, where):
        if executor in found:
            raise InvalidConfigError(f"{where}: executor {list(executor)} occurs twice")
        found[executor] = slot
    return found


def _row(value: object, where: str) -> tuple[ExecutorId, WorkerSlot]:
    taken = Fields(value, where)
    executor = taken.take("executor", _executor)
    slot = WorkerSlot(taken.take("node", read.text), taken.take("port", read.port))
    taken.done()
    return executor, slot


def _worker_resources(value: object, where: str) -> WorkerSlot:
    taken = Fields(value, where)
    slot = WorkerSlot(taken.take("node", read.text), taken.take("port", read.port))
    for name in ("memory_on_heap_mb", "memory_off_heap_mb", "cpu"):
        taken.take(name, read.number, 0.0)
    taken.done()
    return slot


def answer(problem: Problem, explains: bool = False) -> dict[str, Any]:
    """Solve a problem; with rounds, one answer each, by one scheduler object for all of them.

    Where `explains` is set, `why` holds the reason of each executor's place.
    """
    scheduler = scheduler_by_name(problem.scheduler, problem.conf, problem.inner)

    def solved(now: Round) -> dict[str, Any]:
        cluster = now.view(problem.conf)
        if not explains:
            return _solve(scheduler, cluster)
        before, cluster.reasons = cluster.assignments(), Reasons()
        found = _solve(scheduler, cluster)
        return found | {"why": _why(cluster, before, cluster.reasons, problem.scheduler)}

    if problem.rounds:
        return {"rounds": [solved(each) for each in problem.rounds]}
    return solved(problem.first)


def _why(cluster: ClusterView, before: Assignments, reasons: Reasons, scheduler: str) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [
            {"executor": list(each), "reason": reasons.of(name, each, slots.get(each), before[name].get(each), scheduler)}
            for each in cluster.topologies[name].executors
        ]
        for name, slots in cluster.assignments().items()
    }


def _solve(scheduler: Scheduler, cluster: ClusterView) -> dict[str, Any]:
    scheduler.schedule(cluster.topologies, cluster)
    found: dict[str, Any] = {
        "assignments": {name: rows_of(placed) for name, placed in cluster.assignments().items()},
        "status": {name: cluster.status.get(name) or _status(cluster, name) for name in cluster.topologies},
    }
    if isinstance(scheduler, BlacklistScheduler):
        found["blacklisted_hosts"] = list(scheduler.blacklisted_hosts)
        scheduler = scheduler.inner
    if isinstance(scheduler, ResourceAwareScheduler):
        # Those who found another place in the same round have only moved.
        found["evicted"] = sorted({name for name in cluster.evicted if not cluster.placement(name).num_workers})
    if isinstance(scheduler, MultitenantScheduler) and scheduler.pool_sizes is not None:
        sizes = scheduler.pool_sizes
        found["pools"] = {"free": sizes.free, "default": sizes.default, "isolated": dict(sizes.isolated)}
    return found


def rows_of(placed: Mapping[ExecutorId, WorkerSlot]) -> list[dict[str, Any]]:
    """Where executors are, as sorted rows."""
    return [{"executor": list(at), "node": slot.node, "port": slot.port} for at, slot in sorted(placed.items())]


def _status(cluster: ClusterView, topology_id: str) -> str:
    placement = cluster.placement(topology_id)
    total = len(cluster.topologies[topology_id].executors)
    return f"{total - placement.num_missing} of {total} executors on {placement.num_workers} workers"
