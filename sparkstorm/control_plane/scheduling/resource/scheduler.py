"""Storm's ResourceAwareScheduler: topologies in order of priority; lower ones are evicted if one
does not fit.
"""

from collections.abc import Mapping, Sequence

from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError
from sparkstorm.control_plane.scheduling.records import Conf, Topologies, TopologyView
from sparkstorm.control_plane.scheduling.resource.attempt import Attempt
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.resource.node_order import NodeMap
from sparkstorm.control_plane.scheduling.resource.priorities import POOLS_KEY, priority_order
from sparkstorm.control_plane.scheduling.resource.resources import MEMORY, Vector, minus, plus
from sparkstorm.control_plane.scheduling.resource.search import (
    SearchOptions,
    SearchOutcome,
    SearchResult,
)
from sparkstorm.control_plane.scheduling.resource.strategies import Strategy, strategy_of
from sparkstorm.control_plane.scheduling.settings import ResourceAwareSettings
from sparkstorm.control_plane.scheduling.view import ClusterView


class _Need:
    """A topology's remaining request and the cluster's free resources (Storm's
    TopologySchedulingResources).
    """

    def __init__(self, topology: TopologyView, ledger: ResourceLedger) -> None:
        self._topology = topology
        self._ledger = ledger
        self._requests = ledger.requests(topology)
        self._left = ledger.left_in_cluster()
        self._scheduled = self._requests.sum(ledger.cluster.placement(topology.id).slot_by_executor)
        self._remaining: Vector | None = None
        # Memory with shared regions: the vectors exclude them, as in Storm.
        self._least_memory = self._requests.total[MEMORY] + self._requests.shared.least
        self._memory_left = self._left[MEMORY]
        self._counts_shared = ledger.shares_memory
        self._memory_scheduled = 0.0
        self._memory_remaining = 0.0
        if self._counts_shared:
            self._memory_scheduled = ledger.memory_of(
                topology, ledger.cluster.placement(topology.id).slot_by_executor
            )

    def begin(self) -> None:
        """Start an attempt: only the cluster's free resources count."""
        self._remaining = None

    def can_schedule(self) -> bool:
        """Return whether the cluster's free resources suffice for the topology."""
        _, short = minus(plus(self._left, self._scheduled), self._requests.total)
        if short or any(amount > 0 for amount in self._remaining or ()):
            return False
        if not self._counts_shared:
            return True
        if self._remaining is not None and self._memory_remaining > 0:
            return False
        return self._memory_left + self._memory_scheduled >= self._least_memory

    def failed(self, attempt: Attempt) -> None:
        """Record the resources that a failed attempt still needs from evictions."""
        placed = {
            **self._ledger.cluster.placement(self._topology.id).slot_by_executor,
            **attempt.slot_by_executor,
        }
        self._scheduled = self._requests.sum(placed)
        self._remaining, _ = minus(self._requests.total, self._scheduled)
        if self._counts_shared:
            self._memory_scheduled = self._ledger.memory_of(self._topology, placed)
            self._memory_remaining = self._least_memory - self._memory_scheduled

    def evicted(self, topology: TopologyView) -> None:
        """Record the resources of an evicted topology."""
        executors = self._ledger.cluster.placement(topology.id).slot_by_executor
        resources = self._ledger.requests(topology).sum(executors)
        self._left = plus(self._left, resources)
        if self._remaining is not None:
            self._remaining, _ = minus(self._remaining, resources)
        if self._counts_shared:
            memory = self._ledger.memory_of(topology, executors)
            self._memory_left += memory
            self._memory_remaining -= memory

    def words(self, ledger: ResourceLedger) -> str:
        """Return the missing resources as text."""
        names = ("memory MB", "CPU %", *ledger.shape.generic)
        missing = list(self._remaining or self._requests.total)
        remaining = list(self._left)
        if self._counts_shared:
            missing[MEMORY] = (
                self._least_memory if self._remaining is None else self._memory_remaining
            )
            remaining[MEMORY] = self._memory_left
        pairs = zip(names, missing, remaining, strict=True)
        return "; ".join(
            f"{name}: {more:g} required, {have:g} left" for name, more, have in pairs if more > 0
        )


class ResourceAwareScheduler:
    """Storm's ResourceAwareScheduler: resources determine the number of workers; `topology.workers`
    is ignored.
    """

    def __init__(self) -> None:
        self._guarantees: Mapping[str, Mapping[str, float]] = {}
        self._attempts = 5
        self._order_by = priority_order("default")

    def prepare(self, conf: Conf) -> None:
        """Read the priority strategy, the users' guarantees and the number of attempts."""
        settings = ResourceAwareSettings.of_partial(conf)
        guarantees = settings.guarantees or {}
        if not isinstance(guarantees, Mapping) or not all(
            isinstance(guarantee, Mapping) for guarantee in guarantees.values()
        ):
            raise InvalidConfigError(
                f"{POOLS_KEY}: expected {{user: {{resource: amount}}}}, got {guarantees!r:.100}"
            )
        self._guarantees = guarantees
        self._attempts = settings.attempts
        self._order_by = priority_order(settings.strategy)

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Place every topology with missing executors, whole or not at all."""
        ledger = ResourceLedger(cluster)
        nodes = NodeMap(ledger)
        ordered = self._order_by(ledger).order(self._guarantees)
        for topology in cluster.topologies.values():
            # As in Storm, whose users' resources are counted by owner; there only the log says so.
            if not topology.owner and cluster.placement(topology.id).num_missing:
                cluster.status[topology.id] = (
                    f"{topology.name} has no owner, and resources are given to owners: set `owner`"
                )
        for index, topology in enumerate(ordered):
            if cluster.placement(topology.id).num_missing:
                round_ = _Placing(topology, ordered[:index:-1], ledger, nodes)
                cluster.status[topology.id] = round_.place(self._attempts)
            else:
                cluster.status.setdefault(topology.id, "Fully Scheduled")


class _Placing:
    """Scheduling of one topology: attempts, evictions between them, then commit or restore."""

    def __init__(
        self,
        topology: TopologyView,
        lesser: Sequence[TopologyView],
        ledger: ResourceLedger,
        nodes: NodeMap,
    ) -> None:
        self._topology = topology
        self._lesser = lesser  # lowest priority first
        self._ledger = ledger
        self._cluster = ledger.cluster
        self._nodes = nodes
        self._evicted: list[TopologyView] = []

    def place(self, attempts: int) -> str:
        """Schedule the topology if possible; return the status text."""
        try:
            options = strategy_of(self._topology)
            status = self._try(options, attempts)
        except InvalidTopologyError as error:
            status = f"Unsuccessful in scheduling - {error}"
        for topology in self._evicted:
            self._ledger.restore(topology)
        return status

    def _try(self, options: SearchOptions, attempts: int) -> str:
        need = _Need(self._topology, self._ledger)
        for _ in range(attempts):
            need.begin()
            strategy = Strategy(self._topology, self._ledger, self._nodes, options)
            result = (
                strategy.search()
                if need.can_schedule()
                else SearchResult(SearchOutcome.NOT_ENOUGH_RESOURCES, "")
            )
            if result.outcome is SearchOutcome.SUCCESS:
                self._commit(strategy.attempt)
                return f"Running - {result.text}"
            need.failed(strategy.attempt)
            strategy.attempt.undo()
            if result.outcome is not SearchOutcome.NOT_ENOUGH_RESOURCES:
                return f"{result.outcome.value}: {result.text}"
            if not self._evict(need):
                return (
                    "Not enough resources to schedule after evicting lower priority topologies. "
                    f"{need.words(self._ledger)}. {result.text}"
                )
        return (
            f"Failed to make enough resources for {self._topology.id} by evicting lower priority topologies "
            f"within {attempts} attempts. {need.words(self._ledger)}"
        )

    def _evict(self, need: _Need) -> bool:
        """Evict topologies of lower priority, the lowest first, until the resources suffice; return
        whether any was evicted.
        """
        before = len(self._evicted)
        for topology in self._lesser:
            workers = self._cluster.placement(topology.id).executors_by_slot
            if not workers or topology in self._evicted:
                continue
            need.evicted(topology)
            self._ledger.evict(topology)
            self._evicted.append(topology)
            if need.can_schedule():
                break
        return len(self._evicted) > before

    def _commit(self, attempt: Attempt) -> None:
        for topology in self._evicted:
            words = f"evicted for {self._topology.id}, which goes first"
            self._cluster.unassign(topology.id, words)
            self._cluster.evicted.append(topology.id)
        self._evicted = []
        for slot, executors in sorted(attempt.executors_by_slot.items()):
            self._cluster.assign(slot, self._topology.id, executors)
        self._ledger.settle(self._topology)
