"""The scheduler laboratory: make or load a cluster, schedule it under any scheduler, and compare,
as plain data.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from sparkstorm.common.errors import InvalidConfigError, SparkStormError, show
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.tasks import partition_fixed
from sparkstorm.control_plane.scheduling.previous import PreviousPlacement, ScheduleReason
from sparkstorm.control_plane.scheduling.reasons import Reasons
from sparkstorm.control_plane.scheduling.reconcile import kept_for_rebalance
from sparkstorm.control_plane.scheduling.records import (
    Conf,
    SupervisorView,
    TopologyView,
)
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.view import Assignments, ClusterView, Scheduler
from sparkstorm.data_plane.executor.user_traceback import describe_error
from sparkstorm.extensions.laboratory.arguments import (
    check_conf,
    check_kind,
    checked_whole,
    listed,
    scheduler_names,
)
from sparkstorm.extensions.laboratory.form.fields import parse
from sparkstorm.extensions.laboratory.form.measured import host_row, measured_row
from sparkstorm.extensions.laboratory.form.storm_problem import Round, problem_from, rows_of
from sparkstorm.extensions.laboratory.plugged import schedule, scheduler_named

Row = dict[str, Any]
NOWHERE: Row = dict.fromkeys(("node", "host", "port"))


@dataclass(frozen=True, slots=True)
class Scene:
    """Cluster state: living supervisors, topologies, and the present placement."""

    supervisors: tuple[SupervisorView, ...]
    topologies: tuple[TopologyView, ...]
    assignments: Assignments
    conf: Conf
    blacklisted_hosts: tuple[str, ...] = ()
    greylisted_hosts: tuple[str, ...] = ()
    # hidden from schedulers, by supervisor
    dead_ports: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # placements before a requested rebalance
    previous: Mapping[str, PreviousPlacement] = field(default_factory=dict)
    # status texts of the last scheduler
    reason_by_topology: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_text(cls, text: str) -> "Scene":
        """Read a problem in the form of cluster files; its `scheduler` is ignored.

        InvalidConfigError when it is malformed, is of JStorm's form, or has rounds: a scene is one
        moment.
        """
        check_kind("text", text, (str, bytes), "a problem's text, such as Path(file).read_text()")
        fields = parse(text)
        if isinstance(fields, dict) and fields.get("scheduler") == "jstorm":
            raise InvalidConfigError(
                "a problem of JStorm's form is no scene: `sparkstorm schedule` answers it; "
                "a scene from any other form may be scheduled by 'jstorm'"
            )
        problem = problem_from(fields)
        if problem.rounds:
            raise InvalidConfigError(
                f"rounds: a scene is one moment, and this problem has {len(problem.rounds)}: `sparkstorm schedule` answers it; "
                "give a scene the fields of one round"
            )
        first: Round = problem.first
        return cls(
            first.supervisors,
            first.topologies,
            first.assignments or {},
            problem.conf,
            first.blacklisted_hosts,
            first.greylisted_hosts,
            first.dead_ports or {},
        )

    @classmethod
    def from_records(
        cls,
        supervisors: Iterable[SupervisorView],
        topologies: Iterable[TopologyView],
        assignments: Assignments,
        conf: Conf | None = None,
    ) -> "Scene":
        """Return the scene of a live cluster, from the records that Nimbus schedules with."""
        nodes = listed("supervisors", supervisors, "SupervisorView", SupervisorView)
        views = listed("topologies", topologies, "TopologyView", TopologyView)
        check_kind("assignments", assignments, Mapping, "a mapping by topology")
        check_conf(conf)
        placed = {name: dict(rows) for name, rows in assignments.items()}
        return cls(tuple(nodes), tuple(views), placed, conf or {})

    def view(self) -> ClusterView:
        """Return a new cluster view of this scene without dead ports."""
        kept_by_topology = {name: self._kept(name) for name in self.assignments}
        now = Round(
            self.supervisors,
            self.topologies,
            kept_by_topology,
            self.dead_ports,
            self.blacklisted_hosts,
            self.greylisted_hosts,
        )
        cluster = now.view(self.conf)
        cluster.previous = self.previous
        return cluster

    def _kept(self, topology_id: str) -> Mapping[ExecutorId, WorkerSlot]:
        """Return the living part of a topology's placement; during a rebalance, the part that may
        stay.
        """
        placed = self.assignments[topology_id]
        previous = self.previous.get(topology_id)
        if previous is None:
            return placed
        if previous.reason is ScheduleReason.REASSIGN:
            return {}
        topology = next(candidate for candidate in self.topologies if candidate.id == topology_id)
        offered = {
            WorkerSlot(supervisor.id, port)
            for supervisor in self.supervisors
            for port in supervisor.ports
        } | set(placed.values())
        taken = {
            slot
            for name, others in self.assignments.items()
            if name != topology_id
            for slot in others.values()
        }
        return kept_for_rebalance(
            placed, topology.executors, min(topology.num_workers, len(offered - taken))
        )

    def rebalanced(
        self,
        topology_id: str,
        num_workers: int | None = None,
        executors: Mapping[str, int] | None = None,
        conf: Conf | None = None,
        reassign: bool = False,
    ) -> "Scene":
        """Return the scene with a requested rebalance of one topology; the next round of any
        scheduler carries it out.

        `executors` are numbers by component, tasks do not change; with `reassign` no executor keeps
        its slot. InvalidConfigError names the topology, component or number that is wrong.
        """
        topology = next(
            (candidate for candidate in self.topologies if candidate.id == topology_id), None
        )
        if topology is None:
            raise InvalidConfigError(
                f"there is no topology {show(topology_id)}, only {_some(other.id for other in self.topologies)}"
            )
        check_conf(conf)
        changed = _resized(topology, {} if executors is None else executors)
        workers = (
            topology.num_workers
            if num_workers is None
            else checked_whole(num_workers, "num_workers")
        )
        own_conf = {**topology.conf, **(conf or {}), "topology.workers": workers}
        changed = replace(changed, num_workers=workers, conf=own_conf)
        placed = dict(self.assignments.get(topology_id, {}))
        hosts = {supervisor.id: supervisor.host for supervisor in self.supervisors}
        reason = ScheduleReason.REASSIGN if reassign else ScheduleReason.REBALANCE
        previous = PreviousPlacement(placed, hosts, reason, frozenset(placed))
        others = tuple(changed if other is topology else other for other in self.topologies)
        return replace(self, topologies=others, previous={**self.previous, topology_id: previous})

    def without(self, *nodes: str) -> "Scene":
        """Return the scene after these supervisors died; their executors are no longer in the
        assignments, and the status of the last round no longer holds.

        InvalidConfigError when there is no such supervisor.
        """
        known_ids = [supervisor.id for supervisor in self.supervisors]
        for node in nodes:
            if node not in known_ids:
                raise InvalidConfigError(
                    f"there is no supervisor {show(node)}, only {_some(known_ids)}"
                )
        alive = {
            name: {executor: slot for executor, slot in rows.items() if slot.node not in nodes}
            for name, rows in self.assignments.items()
        }
        living = tuple(supervisor for supervisor in self.supervisors if supervisor.id not in nodes)
        return replace(self, supervisors=living, assignments=alive, reason_by_topology={})

    def scheduled(
        self, scheduler: str, conf: Conf | None = None, inner: str = "default"
    ) -> "Scene":
        """Return the scene after one round of the named scheduler, or of one by `module:Class`."""
        return self.answered(self._scheduler(scheduler, conf, inner))

    def why(self, scheduler: str, conf: Conf | None = None, inner: str = "default") -> list[Row]:
        """Return each executor's place after one round of a scheduler, with the reason that the
        scheduler gives.

        An executor without a place has its topology's reason, after the reason for leaving its
        place before.
        """
        reasons = Reasons()
        after = self.answered(self._scheduler(scheduler, conf, inner), reasons)
        rows = []
        for row, (topology_id, executor, slot) in zip(after.rows(), after._places(), strict=True):
            before = self.assignments.get(topology_id, {}).get(executor)
            status = after.reason_by_topology.get(topology_id, "")
            reason = reasons.of(topology_id, executor, slot, before, scheduler, status)
            rows.append(
                {key: row[key] for key in ("topology", "component", "executor", "node", "port")}
                | {"reason": reason}
            )
        return rows

    def answered(self, scheduler: Scheduler, reasons: Reasons | None = None) -> "Scene":
        """Return the scene after one round of a scheduler that is prepared; what it remembers is
        kept for its next round.
        """
        # A plug-in may write to what it is shown.
        own = tuple(map(_with_own_conf, self.topologies))
        cluster = replace(self, conf=deepcopy(self.conf), topologies=own).view()
        cluster.reasons = reasons
        schedule(scheduler, cluster)
        words = {**cluster.status, **cluster.refused}
        return replace(
            self, assignments=cluster.assignments(), reason_by_topology=words, previous={}
        )

    def _scheduler(self, name: str, conf: Conf | None, inner: str) -> Scheduler:
        check_conf(conf)
        return scheduler_named(name, {**self.conf, **(conf or {})}, inner)

    def _places(self) -> Iterable[tuple[str, ExecutorId, WorkerSlot | None]]:
        for topology in self.topologies:
            placed = self.assignments.get(topology.id, {})
            yield from (
                (topology.id, executor, placed.get(executor)) for executor in topology.executors
            )

    # -- tables ------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Return a row per executor: component and slot, or None."""
        hosts = {supervisor.id: supervisor.host for supervisor in self.supervisors}
        rows = []
        for topology in self.topologies:
            placed = self.assignments.get(topology.id, {})
            for executor in topology.executors:
                slot = placed.get(executor)
                row: Row = {
                    "topology": topology.id,
                    "component": topology.component_by_executor[executor],
                }
                row |= {"executor": str(executor), "tasks": len(executor.tasks)}
                row |= (
                    {"node": slot.node, "host": hosts.get(slot.node), "port": slot.port}
                    if slot
                    else NOWHERE
                )
                rows.append(row)
        return rows

    def nodes(self) -> list[Row]:
        """Return a row per supervisor: slots, workers, executors, resources taken and offered."""
        ledger = ResourceLedger(self.view())
        executors = Counter(
            slot.node for rows in self.assignments.values() for slot in rows.values()
        )
        workers = self._workers_by_node()
        names = ("memory_mb", "cpu", *ledger.shape.generic)
        rows = []
        for supervisor in sorted(self.supervisors, key=lambda supervisor: supervisor.id):
            slots = set(supervisor.ports) - set(self.dead_ports.get(supervisor.id, ()))
            row: Row = {"node": supervisor.id, "host": supervisor.host, "slots": len(slots)}
            row |= {
                "workers": workers.get(supervisor.id, 0),
                "executors": executors.get(supervisor.id, 0),
            }
            for name, taken, offered in zip(
                names, ledger.taken(supervisor.id), ledger.offer(supervisor.id), strict=True
            ):
                row |= {f"{name}_taken": taken, f"{name}_offered": offered}
            rows.append(row)
        return rows

    def unplaced(self) -> list[Row]:
        """Return a row per topology with unplaced executors: their number and the last scheduler's
        status.
        """
        rows = []
        for topology in self.topologies:
            placed = self.assignments.get(topology.id, {})
            missing = sum(executor not in placed for executor in topology.executors)
            if missing:
                reason = self.reason_by_topology.get(topology.id)
                rows.append({"topology": topology.id, "unplaced": missing, "reason": reason})
        return rows

    def edges(self) -> list[Row]:
        """Return a row per subscription: pairs of communicating tasks, and how many cross workers
        and nodes.
        """
        rows = []
        for topology in self.topologies:
            spread = _Spread(topology, self.assignments.get(topology.id, {}))
            for component in topology.components:
                for source in component.inputs:
                    row: Row = {
                        "topology": topology.id,
                        "from": source.component,
                        "to": component.id,
                    }
                    rows.append(row | spread.pairs(source.component, component.id))
        return rows

    def _workers_by_node(self) -> dict[str, int]:
        slots = {slot for rows in self.assignments.values() for slot in rows.values()}
        return Counter(slot.node for slot in slots)

    def measures(self) -> Row:
        """Return the scene's measures: unplaced executors, workers, balance over nodes, share of
        pairs that cross.
        """
        workers = self._workers_by_node()
        per_node = [workers.get(supervisor.id, 0) for supervisor in self.supervisors]
        edges = self.edges()
        pairs = sum(row["pairs"] for row in edges)
        return {
            "executors": sum(len(topology.executors) for topology in self.topologies),
            "unplaced": sum(row["node"] is None for row in self.rows()),
            "workers": sum(workers.values()),
            "most_workers_on_a_node": max(per_node, default=0),
            "fewest_workers_on_a_node": min(per_node, default=0),
            "idle_nodes": per_node.count(0),
            "crossing_nodes": sum(row["crossing_nodes"] for row in edges) / pairs if pairs else 0.0,
            "crossing_workers": sum(row["crossing_workers"] for row in edges) / pairs
            if pairs
            else 0.0,
        }

    def to_text(self, scheduler: str = "default") -> str:
        """Return the scene as a problem in the form of cluster files, which cannot hold a requested
        rebalance.
        """
        check_kind("scheduler", scheduler, str, "a name")
        return json.dumps(
            {
                "scheduler": scheduler,
                "conf": dict(self.conf),
                "supervisors": [_supervisor_row(supervisor) for supervisor in self.supervisors],
                "blacklisted_hosts": list(self.blacklisted_hosts),
                "greylisted_hosts": list(self.greylisted_hosts),
                "dead_ports": {
                    supervisor.id: list(self.dead_ports[supervisor.id])
                    for supervisor in self.supervisors
                    if supervisor.id in self.dead_ports
                },
                "topologies": [_topology_row(topology) for topology in self.topologies],
                "assignments": {name: rows_of(placed) for name, placed in self.assignments.items()},
            }
        )


class _Spread:
    """Tasks per (component, slot) of one topology."""

    def __init__(self, topology: TopologyView, placed: Mapping[ExecutorId, WorkerSlot]) -> None:
        self._by_slot: defaultdict[str, Counter[WorkerSlot]] = defaultdict(Counter)
        self._by_node: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for executor, slot in placed.items():
            component = topology.component_by_executor.get(executor, "")
            self._by_slot[component][slot] += len(executor.tasks)
            self._by_node[component][slot.node] += len(executor.tasks)

    def pairs(self, source: str, target: str) -> Row:
        """Return the pairs of placed tasks, and those on different workers and on different
        nodes.
        """
        from_slots, to_slots = self._by_slot[source], self._by_slot[target]
        from_nodes, to_nodes = self._by_node[source], self._by_node[target]
        total = from_slots.total() * to_slots.total()
        same_worker = sum(count * to_slots[slot] for slot, count in from_slots.items())
        same_node = sum(count * to_nodes[node] for node, count in from_nodes.items())
        return {
            "pairs": total,
            "crossing_workers": total - same_worker,
            "crossing_nodes": total - same_node,
        }


def _with_own_conf(topology: TopologyView) -> TopologyView:
    parts = tuple(replace(part, conf=deepcopy(part.conf)) for part in topology.components)
    return replace(topology, conf=deepcopy(topology.conf), components=parts)


def _supervisor_row(supervisor: SupervisorView) -> Row:
    row: Row = {
        "id": supervisor.id,
        "host": supervisor.host,
        "ports": list(supervisor.ports),
        "resources": dict(supervisor.resources),
    }
    if supervisor.rack is not None:
        row["rack"] = supervisor.rack
    if supervisor.uptime_ms is not None:
        row["uptime_secs"] = supervisor.uptime_ms // 1000
    if supervisor.measured is not None:
        row["measured"] = host_row(supervisor.measured)
    return row


def _topology_row(topology: TopologyView) -> Row:
    parts = [
        {
            "id": part.id,
            "kind": part.kind,
            "executors": [list(executor) for executor in part.executors],
            "conf": dict(part.conf),
            "inputs": [
                {"from": a.component, "stream": a.stream, "grouping": a.grouping}
                for a in part.inputs
            ],
        }
        for part in topology.components
    ]
    conf = {**topology.conf, "topology.workers": topology.num_workers}
    row = {
        "id": topology.id,
        "name": topology.name,
        "owner": topology.owner,
        "uptime_secs": topology.uptime_ms // 1000,
    }
    measured = (
        {"measured": measured_row(topology.measured)} if topology.measured is not None else {}
    )
    return {**row, "conf": conf, "components": parts, **measured}


def _resized(topology: TopologyView, executors: Mapping[str, int]) -> TopologyView:
    """Return the topology with other numbers of executors; each component's tasks are divided among
    them again.
    """
    check_kind("executors", executors, Mapping, "a mapping of numbers by component")
    parts = {part.id: part for part in topology.components}
    for name, number in executors.items():
        if name not in parts:
            raise InvalidConfigError(
                f"executors: there is no component {show(name)}, only {_some(parts)}"
            )
        tasks = [task for executor in parts[name].executors for task in executor.tasks]
        count = checked_whole(number, f"executors.{name}", max(len(tasks), 1))
        chunks = partition_fixed(count, sorted(tasks))
        parts[name] = replace(
            parts[name], executors=tuple(ExecutorId(chunk[0], chunk[-1]) for chunk in chunks)
        )
    return replace(topology, components=tuple(parts.values()))


def _some(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:20]) or "none"


def check_scene(scene: object, name: str = "scene") -> None:
    """Raise InvalidConfigError where an argument is no scene."""
    check_kind(name, scene, Scene, "a Scene")


def moved(before: Scene, after: Scene) -> list[Row]:
    """Return a row for each executor with a task whose slot has changed; a first placement has None
    before.

    Tasks count, since a rebalance may deal them to other executors: those that stay in their slot
    have not moved.
    """
    check_scene(before, "before")
    check_scene(after, "after")
    moves = []
    for topology in after.topologies:
        old = before.assignments.get(topology.id, {})
        new = after.assignments.get(topology.id, {})
        for executor in topology.executors:
            was = former_slots(executor, old)
            now = new.get(executor)
            if was != ({now} if now else set()):
                places = {
                    "before": ", ".join(map(str, sorted(was))) or None,
                    "after": str(now) if now else None,
                }
                moves.append({"topology": topology.id, "executor": str(executor), **places})
    return moves


def former_slots(executor: ExecutorId, placed: Mapping[ExecutorId, WorkerSlot]) -> set[WorkerSlot]:
    """Return the slots that an executor's tasks have in an assignment, there perhaps under other
    executors.
    """
    if executor in placed:
        return {placed[executor]}
    tasks = set(executor.tasks)
    return {slot for other, slot in placed.items() if not tasks.isdisjoint(other.tasks)}


def compare(scene: Scene, schedulers: Sequence[str], conf: Conf | None = None) -> list[Row]:
    """Return one row per scheduler: measures after its round, number of moved executors, reason for
    unplaced ones.

    A scheduler that raises, because a setting is missing or by its own fault, has a row with
    the reason only.
    """
    check_scene(scene)
    return [_compared(scene, name, conf) for name in scheduler_names(schedulers)]


def _compared(scene: Scene, name: str, conf: Conf | None) -> Row:
    try:
        after = scene.scheduled(name, conf)
    except SparkStormError as error:
        return {"scheduler": name, "reason": str(error)}
    except (Exception, SystemExit) as error:  # user code
        return {"scheduler": name, "reason": describe_error(error)}
    changes = moved(scene, after)
    row = {"scheduler": name, "placed": sum(change["before"] is None for change in changes)}
    reason = next(
        (unplaced_row["reason"] for unplaced_row in after.unplaced() if unplaced_row["reason"]),
        None,
    )
    return (
        row
        | {"moved": sum(change["before"] is not None for change in changes)}
        | after.measures()
        | {"reason": reason}
    )


def frame(rows: Sequence[Row]) -> Any:
    """Return rows as a pandas DataFrame; ImportError when pandas is not installed."""
    return import_module("pandas").DataFrame(checked_rows(rows))


def checked_rows(rows: Iterable[Row]) -> list[Row]:
    """Return rows as a list; InvalidConfigError where they are none."""
    return listed("rows", rows, "mappings by column", Mapping)
