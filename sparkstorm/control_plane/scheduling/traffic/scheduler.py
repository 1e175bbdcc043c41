"""Scheduler by traffic, after T-Storm (Xu, Chen, Tang, Su; ICDCS 2014) and Aniello, Baldoni and
Querzoni (DEBS 2013): executors that talk share a node, by rates that were measured.

Law: no node gets more CPU or memory than it offers; a topology has the workers that it asks for
where there are slots for them; what runs moves only by a plan that pays (plans.py), or where missing
executors and workers have no other place. Left out: one worker of a topology per node, as in
T-Storm: `topology.workers` is what users set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from sparkstorm.common.config import check
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot, grouped_by_slot
from sparkstorm.common.model.names import counted
from sparkstorm.control_plane.scheduling.isolation import checked_machines
from sparkstorm.control_plane.scheduling.measured.measurements import Measurements
from sparkstorm.control_plane.scheduling.records import Conf, Topologies, TopologyView
from sparkstorm.control_plane.scheduling.settings import IsolationSettings, TrafficSettings
from sparkstorm.control_plane.scheduling.traffic.placing import (
    Node,
    Task,
    machines_of,
    most_nodes,
    most_workers,
    nodes_for,
    price,
    solved,
)
from sparkstorm.control_plane.scheduling.traffic.plans import (
    Plan,
    Plans,
    Price,
    cpu_of_row,
    moves,
)
from sparkstorm.control_plane.scheduling.traffic.problem import Demand, Placed, TrafficProblem
from sparkstorm.control_plane.scheduling.view import ClusterView

_BY_EDGES = ", by its edges: nothing was measured"


class TrafficScheduler:
    """Placement by traffic; without measurements by the edges of the topology, all of equal
    weight.
    """

    wants_measurements = True
    keeps_history = True

    def __init__(self) -> None:
        self._settings = TrafficSettings.of_partial({})
        self._machines: Mapping[str, int] = {}
        self._plans = Plans(self._settings)

    def prepare(self, conf: Conf) -> None:
        """Read the keys traffic.scheduler.*, and machines of isolated topologies by name;
        InvalidConfigError where one is unknown or out of range.
        """
        own = {
            key: value
            for key, value in conf.items()
            if key.startswith("traffic.scheduler.") and value is not None
        }
        self._settings = TrafficSettings.of(check(own, "scheduler traffic"))
        machines = IsolationSettings.of_partial(conf).machines
        self._machines = checked_machines(machines) if isinstance(machines, Mapping) else {}
        self._plans = Plans(self._settings)

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Place what is missing, and make the plans that pay; isolated topologies first, then
        by id.
        """
        self._plans.keep_only(cluster.topologies)
        machines = {
            topology.id: count
            for topology in cluster.topologies.values()
            if (count := machines_of(topology, self._machines)) is not None
        }
        demand = Demand(cluster)
        # A round has one budget, however many topologies a new cluster is to place.
        budget = self._settings.budget // max(1, len(topologies))
        settings = replace(self._settings, budget=budget)
        # Those that share no machine first: others would be on each by then.
        for topology_id in sorted(topologies, key=lambda each: (each not in machines, each)):
            topology = cluster.topologies[topology_id]
            turn = _Turn(topology, cluster, demand, machines, settings)
            try:
                if turn.lacks_something:
                    turn.fill()
                elif topology.measured is not None:
                    self._consider(turn, topology.measured)
            except InvalidTopologyError as error:  # its constraints, before anything has changed
                turn.say(str(error))

    def _consider(self, turn: _Turn, measured: Measurements) -> None:
        """Judge the last plan of a running topology, or make one."""
        topology, plans = turn.topology, self._plans
        if plans.is_settled(measured):
            plan = plans.unjudged(topology.id, turn.home)
            is_due = plan is not None or plans.may_plan(topology.id, topology.uptime_ms)
            # Asked last: the nodes are known by all executors of the cluster.
            is_movable = is_due and turn.is_movable
            if is_movable and plan is None:
                self._plan(turn, measured)
            elif is_movable and plan is not None and (old := turn.price(plan.before)).total:
                # Without any traffic nothing can be saved: that says nothing about the plan.
                saving = old.saving(turn.price(turn.home))
                if not plans.judge(topology.id, plan, saving, cpu_of_row(measured)):
                    self._take_back(turn, plan, saving)
                    return
        if (last := plans.last(topology.id)) is not None:
            turn.say(last.words())

    def _take_back(self, turn: _Turn, plan: Plan, saving: float) -> None:
        words = f"a plan is taken back: {plan.predicted:.0%} of the cost was to be saved, {saving:.0%} was"
        self._plans.take_back(turn.topology.id, turn.topology.uptime_ms)
        if turn.is_possible(plan.before):
            turn.apply(plan.before, words)
            turn.say(words)

    def _plan(self, turn: _Turn, measured: Measurements) -> None:
        placed = turn.solve(stay=False)
        movers = moves(turn.home, placed) if placed else []
        if placed is None or not movers:
            return
        before, after = turn.price(turn.home), turn.price(placed)
        if not self._plans.pays(before, after, turn.move_cost(movers)):
            return
        saving = before.saving(after)
        words = f"a plan of {counted(len(movers), 'move')} saves {saving:.0%} of the cost of its traffic and imbalance"
        turn.apply(placed, words)
        plan = Plan(
            turn.topology.uptime_ms, turn.home, placed, len(movers), saving, cpu_of_row(measured)
        )
        self._plans.note(turn.topology.id, plan)


class _Turn:
    """One topology in one round."""

    def __init__(
        self,
        topology: TopologyView,
        cluster: ClusterView,
        demand: Demand,
        machines: Mapping[str, int],
        settings: TrafficSettings,
    ) -> None:
        self.topology = topology
        self._cluster = cluster
        self._demand = demand
        self._machines = machines
        self._settings = settings
        placement = cluster.placement(topology.id)
        self._placement = placement
        self.home: Placed = {
            executor: slot
            for executor, slot in placement.slot_by_executor.items()
            if executor in topology.component_by_executor
        }
        self._problem: TrafficProblem | None = None

    @property
    def problem(self) -> TrafficProblem:
        """Return the numbers of the topology, made when they are first needed."""
        if self._problem is None:
            self._problem = TrafficProblem(self.topology, self._demand.of(self.topology))
        return self._problem

    @cached_property
    def workers(self) -> int:
        """Return how many workers it can have on the nodes that it may use."""
        executors = self.topology.executors
        most = self._most_workers(self._nodes(with_grey=True), executors)
        return min(self.topology.num_workers, len(executors), most)

    def _most_workers(self, nodes: Iterable[Node], executors: Iterable[ExecutorId]) -> int:
        needs = self._demand.of(self.topology)
        return most_workers(nodes, [needs[executor] for executor in executors])

    def _nodes(self, with_grey: bool) -> tuple[Node, ...]:
        return nodes_for(self.topology, self._cluster, self._demand, self._machines, with_grey)

    @property
    def lacks_something(self) -> bool:
        """Return whether executors have no place, or the topology fewer workers than it can have."""
        workers = self._placement.num_workers
        own = sum(map(self._cluster.can_reassign, self._placement.executors_by_slot))
        slots = self._cluster.free.count + own  # at most: some may be on machines of others
        wanted = min(self.topology.num_workers, len(self.topology.executors), slots)
        lacks_workers = workers < wanted and workers < self.workers
        return bool(self._placement.num_missing) or lacks_workers

    @property
    def is_movable(self) -> bool:
        """Return whether some of its executors are on nodes that may get new ones."""
        return self._task(stay=False, with_grey=True) is not None

    def _task(self, stay: bool, with_grey: bool) -> Task | None:
        nodes = self._nodes(with_grey)
        # Workers on hosts that get nothing new stay there.
        known = {slot for node in nodes for slot in node.own}
        elsewhere = {slot for slot in self.home.values() if slot not in known}
        executors = tuple(
            executor
            for executor in self.topology.executors
            if self.home.get(executor) not in elsewhere
        )
        wanted = max(self.topology.num_workers - len(elsewhere), 1)
        workers = min(wanted, len(executors), self._most_workers(nodes, executors))
        if not workers:
            return None
        most = most_nodes(self.topology, self._machines, workers)
        return Task(self.problem, executors, nodes, workers, most, self.home, stay, self._settings)

    def solve(self, stay: bool, with_grey: bool = False) -> dict[ExecutorId, WorkerSlot] | None:
        """Return a placement; None where none was placed that fits."""
        task = self._task(stay, with_grey)
        placed = solved(task) if task is not None else None
        if task is None or placed is None:
            return None
        return {
            **{executor: slot for executor, slot in self.home.items() if executor not in placed},
            **placed,
        }

    def fill(self) -> None:
        """Place missing executors where the others stay, else where some move; on greylisted hosts
        where the others have too few slots.
        """
        fallback = None
        for with_grey in (False, True) if self._cluster.greylisted_nodes else (False,):
            for stay in (True, False) if self.home else (False,):
                placed = self.solve(stay, with_grey)
                if placed is None:
                    continue
                words = "its place fits the executors that stay" if stay else ""
                if len({*placed.values()}) >= self.workers:
                    self.apply(placed, words)
                    return
                fallback = fallback or (placed, words)
        if fallback is None:
            self.refuse()
        else:
            self.apply(*fallback)

    def refuse(self) -> None:
        """Say that no placement was placed."""
        name = self.topology.name
        if not self._cluster.free.count:
            self.say(f"No available slots for topology: {name}")
            return
        workers = counted(self.topology.num_workers, "worker")
        self.say(
            f"no placement of {name} on {workers} was found within the CPU, memory, slots and constraints of the nodes"
        )

    def say(self, words: str) -> None:
        """Set the status of the topology."""
        self._cluster.status[self.topology.id] = words

    def price(self, placed: Placed) -> Price:
        """Return the cost of a placement."""
        task = self._task(stay=False, with_grey=True)
        assert task is not None
        return price(task, placed)

    def move_cost(self, movers: list[ExecutorId]) -> float:
        """Return what it costs to move executors, in bytes: their traffic waits meanwhile."""
        items = self.problem.items(movers)
        return sum(item.traffic for item in items) * self._settings.move_ms / 1000

    def is_possible(self, placed: Placed) -> bool:
        """Return whether the topology may be placed so: its slots are free or its own, and it
        fits.
        """
        own = self._placement.executors_by_slot
        free = all(
            slot in own or slot.port in self._cluster.free.ports(slot.node)
            for slot in placed.values()
        )
        return free and self.price(placed).fits

    def apply(self, placed: Placed, words: str) -> None:
        """Change the placement, slot by slot where executors come or go."""
        before = self._placement.slot_by_executor
        movers = [
            executor
            for executor in before.keys() | placed.keys()
            if before.get(executor) != placed.get(executor)
        ]
        changed = {
            slot
            for executor in movers
            for slot in (before.get(executor), placed.get(executor))
            if slot is not None
        }
        used = changed & self._placement.executors_by_slot.keys()
        for slot in sorted(used):
            self._cluster.free_slot(slot, words)
        by_slot = grouped_by_slot(sorted(placed.items()))
        for slot, executors in by_slot.items():
            if slot in changed:
                self._cluster.assign(slot, self.topology.id, executors)
        if self._cluster.reasons is not None:
            self._explain(placed, set(movers))
        self.say(self._summary(placed))

    def _summary(self, placed: Placed) -> str:
        racks = {node: supervisor.rack for node, supervisor in self._cluster.supervisors.items()}
        traffic = self.problem.traffic(placed, racks)
        share = traffic.nodes / traffic.total if traffic.total else 0.0
        workers = counted(len(set(placed.values())), "worker")
        by = "" if self.topology.measured else _BY_EDGES
        return f"{counted(len(placed), 'executor')} on {workers}, {share:.0%} of its traffic between nodes{by}"

    def _explain(self, placed: Placed, movers: set[ExecutorId]) -> None:
        reasons = self._cluster.reasons
        assert reasons is not None
        by = "" if self.topology.measured else _BY_EDGES
        for executor in sorted(movers & placed.keys()):
            slot = placed[executor]
            here, all_of_it = self.problem.shared_with_node(executor, placed)
            words = (
                f"{here / all_of_it:.0%} of its traffic is with executors of {slot.node}{by}"
                if all_of_it
                else f"no traffic of it is known{by}"
            )
            reasons.placed(self.topology.id, [executor], slot, words)
