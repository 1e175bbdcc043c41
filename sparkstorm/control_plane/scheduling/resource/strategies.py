"""Strategies of `topology.scheduler.strategy` (Storm's IStrategy classes): order of nodes and
executors, and the checks that spare a search without hope.
"""

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.resource.attempt import Attempt
from sparkstorm.control_plane.scheduling.resource.constraints import Constraints
from sparkstorm.control_plane.scheduling.resource.executor_order import (
    by_connection_count,
    by_constraint_severity,
    by_proximity,
)
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.resource.node_order import NodeMap, NodeSort
from sparkstorm.control_plane.scheduling.resource.resources import ACKER
from sparkstorm.control_plane.scheduling.resource.search import (
    Search,
    SearchOptions,
    SearchOutcome,
    SearchResult,
)
from sparkstorm.control_plane.scheduling.settings import ResourceAwareSettings, StrategySettings

STRATEGY_KEY = "topology.scheduler.strategy"

_BY_NAME = {
    options.title: options
    for options in (
        SearchOptions("DefaultResourceAwareStrategy"),
        SearchOptions("GenericResourceAwareStrategy"),
        SearchOptions("DefaultResourceAwareStrategyOld", sort=NodeSort.DEFAULT, sorts_again=False),
        SearchOptions("GenericResourceAwareStrategyOld", sort=NodeSort.GENERIC),
        SearchOptions("ConstraintSolverStrategy", constrained=True),
        SearchOptions("RoundRobinResourceAwareStrategy", sorts_again=False, round_robin=True),
    )
}
_SHORT = {
    "default": "DefaultResourceAwareStrategy",
    "generic": "GenericResourceAwareStrategy",
    "constraint": "ConstraintSolverStrategy",
    "round-robin": "RoundRobinResourceAwareStrategy",
}


def strategy_of(topology: TopologyView) -> SearchOptions:
    """Return the topology's strategy, by Storm's class name (any package) or a short name;
    InvalidTopologyError if unknown.
    """
    name = StrategySettings.of_partial(topology.conf).strategy
    options = _BY_NAME.get(_SHORT.get(name, name.rpartition(".")[2]))
    if options is None:
        raise InvalidTopologyError(
            f"{STRATEGY_KEY}: no strategy is called {name!r}; expected one of {', '.join(_SHORT)}"
        )
    return options


class Strategy:
    """Search for one topology: `search` fills the attempt; the caller undoes it on failure."""

    def __init__(
        self, topology: TopologyView, ledger: ResourceLedger, nodes: NodeMap, options: SearchOptions
    ) -> None:
        self._topology = topology
        self._ledger = ledger
        self._nodes = nodes
        self._options = options
        self._constraints = Constraints(topology) if options.constrained else None
        self.attempt = Attempt(topology, ledger, self._constraints)

    def search(self) -> SearchResult:
        """Search, unless a preliminary check fails."""
        settings = StrategySettings.of_partial(self._topology.conf)
        max_states = min(
            settings.max_states,
            ResourceAwareSettings.of_partial(self._ledger.cluster.conf).max_states,
        )
        hopeless = self._hopeless(max_states)
        if hopeless is not None:
            return hopeless
        return Search(self.attempt, self._nodes, self._options, max_states).place(self._executors())

    def _executors(self) -> list[ExecutorId]:
        """Return the missing executors in the strategy's order, unassigned ackers last."""
        missing = self.attempt.missing
        if self._constraints is not None:
            ordered = by_constraint_severity(self._topology, missing, self._constraints)
        elif StrategySettings.of_partial(self._topology.conf).is_by_proximity:
            ordered = by_proximity(self._topology, missing)
        else:
            ordered = by_connection_count(self._topology, missing)
        component_of = self._topology.component_by_executor
        return [
            executor for executor in ordered if component_of[executor] != ACKER
        ] + self.attempt.free_ackers

    def _hopeless(self, max_states: int) -> SearchResult | None:
        missing = len(self.attempt.missing)
        if not self._ledger.count_nodes():
            return SearchResult(
                SearchOutcome.NOT_ENOUGH_RESOURCES, "No available nodes to schedule tasks on!"
            )
        if not any(
            part.kind == "spout" and not part.is_system for part in self._topology.components
        ):
            return SearchResult(SearchOutcome.INVALID_TOPOLOGY, "Cannot find a Spout!")
        if missing >= max_states:
            return SearchResult(
                SearchOutcome.OTHER,
                f"{missing} unassigned executors are more than {max_states} states can be searched for",
            )
        if self._constraints is not None and not self._is_feasible(self._constraints):
            return SearchResult(
                SearchOutcome.OTHER,
                "Scheduling not feasible: more executors than their nodes may hold together",
            )
        return None

    def _is_feasible(self, constraints: Constraints) -> bool:
        nodes = self._ledger.count_nodes()
        sizes = {part.id: len(part.executors) for part in self._topology.components}
        return all(sizes[name] <= nodes * limit for name, limit in constraints.max_on_node.items())
