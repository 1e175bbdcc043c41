"""Scheduler per topology: `topology.scheduler` where it is set, else the cluster's
`storm.scheduler`.

Each scheduler sees its own topologies only. Slots of other topologies are not offered to it, and
their resources are subtracted from the supervisors', so evictions and isolations never affect other
schedulers' topologies, nor those that are being killed. If a topology's own scheduler fails, only
its topologies miss the round.

To all of them a topology over several stores is as many topologies as it has cells
(`schedule_cells`): no scheduler has to know what a cell is.
"""

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.tasks import shares
from sparkstorm.control_plane.scheduling.blacklist import BlacklistScheduler
from sparkstorm.control_plane.scheduling.catalogue import BLACKLIST, scheduler_by_name
from sparkstorm.control_plane.scheduling.placement import Placement
from sparkstorm.control_plane.scheduling.reconcile import check_answer
from sparkstorm.control_plane.scheduling.records import (
    Conf,
    SupervisorView,
    Topologies,
    TopologyView,
)
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.resource.resources import CPU, FIRST_GENERIC, MEMORY
from sparkstorm.control_plane.scheduling.settings import ChoiceSettings
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology
from sparkstorm.control_plane.scheduling.view import ClusterView, Scheduler

CLUSTER_KEY = "storm.scheduler"
TOPOLOGY_KEY = "topology.scheduler"
DEFAULT = "default"

Make = Callable[[str, Conf], Scheduler]
Fence = Callable[[Scheduler], Scheduler]


def chosen_scheduler(conf: Conf, fence: Fence = lambda scheduler: scheduler) -> Scheduler:
    """Return the prepared scheduler that a configuration names; plug-ins are wrapped by `fence`.

    "blacklist" wraps all schedulers, so a blacklisted host is excluded for every topology.
    """

    def make(name: str, conf: Conf) -> Scheduler:
        made = scheduler_by_name(name, conf)
        return fence(made) if "." in name else made

    name = ChoiceSettings.of_partial(conf).cluster or DEFAULT
    if name != BLACKLIST:
        return PerTopologySchedulers(name, make, conf)
    scheduler = BlacklistScheduler(PerTopologySchedulers(DEFAULT, make, conf))
    scheduler.prepare(conf)
    return scheduler


def dry_run_copy(scheduler: Scheduler) -> Scheduler:
    """Return a scheduler that answers as this one would, for a dry run that must not change its
    history of rounds.

    Of the built-in schedulers Blacklist has a history, and Traffic says that it keeps one; a
    plug-in may have one.
    """
    if isinstance(scheduler, BlacklistScheduler):
        inner = dry_run_copy(scheduler.inner)
        return copy.deepcopy(scheduler, {id(scheduler.inner): inner})
    return scheduler.dry_run_copy() if isinstance(scheduler, PerTopologySchedulers) else scheduler


def wanting(scheduler: Scheduler, topologies: Mapping[str, KnownTopology]) -> set[str]:
    """Return the topologies whose scheduler asks for measurements (`wants_measurements`)."""
    if isinstance(scheduler, BlacklistScheduler):
        return wanting(scheduler.inner, topologies)
    if isinstance(scheduler, PerTopologySchedulers):
        return scheduler.wanting(topologies)
    return set(topologies) if getattr(scheduler, "wants_measurements", False) else set()


def check_choice(conf: Conf) -> None:
    """Refuse a `topology.scheduler` that cannot be made; `conf` is the topology's configuration
    over the cluster's.
    """
    name = ChoiceSettings.of_partial(conf).topology
    if name == BLACKLIST:
        raise InvalidConfigError(
            f"{TOPOLOGY_KEY}: {BLACKLIST} is for the whole cluster; set {CLUSTER_KEY}"
        )
    if name is not None:
        scheduler_by_name(name, conf)


class PerTopologySchedulers:
    """The cluster's scheduler and those that topologies name, each made when it is first needed."""

    def __init__(self, name: str, make: Make, conf: Conf) -> None:
        self._name = name
        self._make = make
        self._own = make(name, conf)
        self._guests: dict[str, Scheduler] = {}
        self._conf = conf

    def prepare(self, conf: Conf) -> None:
        """Start again under another configuration."""
        self._own = self._make(self._name, conf)
        self._guests = {}
        self._conf = conf

    def dry_run_copy(self) -> "PerTopologySchedulers":
        """Return the same with copies of the plug-ins."""
        twin = copy.copy(self)
        twin._own = self._copied(self._name, self._own)
        twin._guests = {name: self._copied(name, guest) for name, guest in self._guests.items()}
        return twin

    def wanting(self, topologies: Mapping[str, KnownTopology]) -> set[str]:
        """Return the topologies whose scheduler asks for measurements."""
        names = {
            each: ChoiceSettings.of_partial(known.conf).topology or self._name
            for each, known in topologies.items()
        }
        asking = {name for name in set(names.values()) if self._asks(name)}
        return {each for each, name in names.items() if name in asking}

    def _asks(self, name: str) -> bool:
        try:
            made = self._own if name == self._name else self._guest(name)
        except Exception:  # user code: `schedule` says that it cannot be made
            return False
        return bool(getattr(made, "wants_measurements", False))

    def _guest(self, name: str) -> Scheduler:
        if name not in self._guests:
            self._guests[name] = self._make(name, self._conf)
        return self._guests[name]

    def _copied(self, name: str, scheduler: Scheduler) -> Scheduler:
        if "." not in name and not getattr(scheduler, "keeps_history", False):
            return scheduler
        try:
            return copy.deepcopy(scheduler)
        # It holds a lock or a connection: a fresh one answers without what this one has kept.
        except Exception:
            return self._make(name, self._conf)

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Run the cluster's scheduler, then the topologies' own schedulers by name."""
        groups: dict[str, list[str]] = {self._name: []}
        for topology_id, topology in sorted(topologies.items()):
            groups.setdefault(
                ChoiceSettings.of_partial(topology.conf).topology or self._name, []
            ).append(topology_id)
        if len(groups) == 1 and len(topologies) == len(cluster.topologies):
            self._own.schedule(topologies, cluster)
            return
        _schedule_apart(self._own, groups.pop(self._name), cluster)
        for name, group in sorted(groups.items()):
            self._host(name, group, cluster)

    def _host(self, name: str, group: Collection[str], cluster: ClusterView) -> None:
        try:
            _schedule_apart(self._guest(name), group, cluster)
        except Exception as error:  # user code: a scheduler that was plugged in
            for topology_id in group:
                if cluster.placement(topology_id).num_missing:
                    reason = f"scheduler {name} failed: {type(error).__name__}: {error}"
                    cluster.refused[topology_id] = cluster.status[topology_id] = reason


def schedule_cells(scheduler: Scheduler, topologies: Topologies, cluster: ClusterView) -> None:
    """Run a scheduler that sees a topology for each cell of those over several stores, and unite
    its answer; others pass unchanged.
    """
    parts_by_id = {
        key: cell_views(view, view.num_workers)
        for key, view in cluster.topologies.items()
        if view.cell_by_task
    }
    if not parts_by_id:
        scheduler.schedule(topologies, cluster)
        return
    owner = {part.id: key for key, parts in parts_by_id.items() for part in parts}
    apart = _view_of_cells(parts_by_id, cluster)
    usable = apart.offered_slots()
    usable |= apart.used_slots().keys()
    before = apart.assignments()
    scheduler.schedule(
        {key: view for key, view in apart.topologies.items() if owner.get(key, key) in topologies},
        apart,
    )
    answer = apart.assignments()
    _check_cells(answer, before, apart, usable)
    for part, topology_id in owner.items():
        answer.setdefault(topology_id, {}).update(answer.pop(part))
    cluster.set_blacklisted_hosts(apart.blacklisted_hosts)
    cluster.greylisted_nodes = apart.greylisted_nodes
    _apply(answer, cluster)
    for ours, theirs in ((cluster.status, apart.status), (cluster.refused, apart.refused)):
        # Of several cells the words of one that lacks a place.
        for part in sorted(theirs, key=lambda part: bool(apart.placement(part).num_missing)):
            ours[owner.get(part, part)] = theirs[part]
    cluster.evicted += dict.fromkeys(owner.get(part, part) for part in apart.evicted)


def cell_views(view: TopologyView, workers: int) -> list[TopologyView]:
    """Return the cells of a topology as topologies of their own, each with its share of so many
    workers, at least one; the topology itself with them where it lies in one store.
    """
    if not view.cell_by_task:
        return [replace(view, num_workers=workers)]
    cells = 1 + max(view.cell_by_task.values())
    return [
        _cell_view(view, cell, share)
        for cell, share in enumerate(shares(max(workers, cells), cells))
    ]


def _cell_view(view: TopologyView, cell: int, workers: int) -> TopologyView:
    # Components without an executor here stay: a topology without a spout is none to some
    # schedulers.
    components = tuple(
        replace(
            part,
            executors=tuple(
                executor for executor in part.executors if view.cell_of(executor) == cell
            ),
        )
        for part in view.components
    )
    return replace(
        view,
        id=f"{view.id}@{cell}",
        components=components,
        num_workers=workers,
        conf={**view.conf, "topology.workers": workers},
        cell_by_task={},
    )


def _view_of_cells(
    parts_by_id: Mapping[str, Collection[TopologyView]], cluster: ClusterView
) -> ClusterView:
    views: list[TopologyView] = []
    placed: dict[str, Placement | Mapping[ExecutorId, WorkerSlot]] = {}
    previous = dict(cluster.previous)
    for topology_id, view in cluster.topologies.items():
        parts = parts_by_id.get(topology_id)
        if parts is None:
            views.append(view)
            # A copy on write: what changes is compared with what was.
            placed[topology_id] = cluster.placement(topology_id).fork()
            continue
        views += parts
        before = previous.pop(topology_id, None)
        slots = cluster.placement(topology_id).slot_by_executor
        for cell, part in enumerate(parts):
            placed[part.id] = _of_cell(slots, view, cell)
            if before is not None:
                its = _of_cell(before.slot_by_executor, view, cell)
                previous[part.id] = replace(
                    before, slot_by_executor=its, alive=before.alive & its.keys()
                )
    grey = {
        host for node in cluster.greylisted_nodes if (host := cluster.host_of(node)) is not None
    }
    apart = ClusterView(
        cluster.supervisors.values(),
        views,
        placed,
        cluster.conf,
        cluster.blacklisted_hosts,
        grey,
        cluster.excluded_hosts,
    )
    apart.previous = previous
    apart.reasons = cluster.reasons
    return apart


def _of_cell(
    slots: Mapping[ExecutorId, WorkerSlot], view: TopologyView, cell: int
) -> dict[ExecutorId, WorkerSlot]:
    return {executor: slot for executor, slot in slots.items() if view.cell_of(executor) == cell}


def _check_cells(
    answer: Mapping[str, Mapping[ExecutorId, WorkerSlot]],
    before: Mapping[str, Mapping[ExecutorId, WorkerSlot]],
    apart: ClusterView,
    usable: Collection[WorkerSlot],
) -> None:
    """Refuse an answer in which a slot has executors of two cells; what is as it was may have
    executors that its topology has no more.
    """
    touched = {key: placed for key, placed in answer.items() if placed != before[key]}
    taken = {
        slot: key
        for key, placed in answer.items()
        if key not in touched
        for slot in placed.values()
    }
    executors = {key: apart.topologies[key].executors for key in touched}
    check_answer(touched, executors, usable, taken)


def _apply(answer: Mapping[str, Mapping[ExecutorId, WorkerSlot]], cluster: ClusterView) -> None:
    """Take over placements, the changed ones: first all leave their slots."""
    changed = [
        key for key, placed in answer.items() if placed != cluster.placement(key).slot_by_executor
    ]
    for topology_id in changed:
        cluster.unassign(topology_id)
    for topology_id in changed:
        cluster.set_assignment(topology_id, answer[topology_id])


def _schedule_apart(scheduler: Scheduler, group: Collection[str], cluster: ClusterView) -> None:
    """Run a scheduler on its own view topologies, check its answer, and apply it."""
    apart = _view_of(group, cluster)
    in_use = set(apart.used_slots())
    scheduler.schedule({key: apart.topologies[key] for key in group}, apart)
    answer = apart.assignments()
    executors = {key: view.executors for key, view in apart.topologies.items()}
    check_answer(answer, executors, apart.offered_slots() | in_use)
    _apply({key: answer[key] for key in group}, cluster)
    cluster.status.update(apart.status)
    cluster.refused.update(apart.refused)
    cluster.evicted += apart.evicted


def _view_of(group: Collection[str], cluster: ClusterView) -> ClusterView:
    others = cluster.topologies.keys() - set(group)
    taken = {slot for slot, owner in cluster.used_slots().items() if owner in others}
    remaining = _left_by(others, cluster) if taken else {}
    supervisors = [_without(view, taken, remaining) for view in cluster.supervisors.values()]
    apart = ClusterView(
        supervisors,
        [cluster.topologies[key] for key in group],
        {key: cluster.placement(key).slot_by_executor for key in group},
        cluster.conf,
        cluster.blacklisted_hosts,
        {
            cluster.supervisors[node].host
            for node in cluster.greylisted_nodes
            if node in cluster.supervisors
        },
    )
    apart.previous = cluster.previous
    apart.reasons = cluster.reasons
    return apart


def _without(
    supervisor: SupervisorView,
    taken: Collection[WorkerSlot],
    remaining: Mapping[str, Mapping[str, float]],
) -> SupervisorView:
    ports = tuple(port for port in supervisor.ports if WorkerSlot(supervisor.id, port) not in taken)
    if len(ports) == len(supervisor.ports):
        return supervisor
    return replace(supervisor, ports=ports, resources=remaining[supervisor.id])


def _left_by(others: Collection[str], cluster: ClusterView) -> dict[str, dict[str, float]]:
    """Return the supervisors' resources without those that other schedulers' topologies use."""
    placed = {key: cluster.placement(key).slot_by_executor for key in others}
    ledger = ResourceLedger(
        ClusterView(
            cluster.supervisors.values(),
            [cluster.topologies[key] for key in others],
            placed,
            cluster.conf,
        )
    )
    names = {MEMORY: "supervisor.memory.capacity.mb", CPU: "supervisor.cpu.capacity"}
    names |= dict(enumerate(ledger.shape.generic, start=FIRST_GENERIC))
    return {
        node: {names[index]: amount for index, amount in enumerate(ledger.available(node))}
        for node in cluster.supervisors
    }
