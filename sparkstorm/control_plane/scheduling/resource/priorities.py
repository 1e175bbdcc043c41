"""Order of topologies: those of the user furthest below the guaranteed share come first, so that
others' topologies are evicted before guaranteed ones (Storm's ISchedulingPriorityStrategy classes).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.resource.resources import (
    CPU,
    FIRST_GENERIC,
    MEMORY,
    Vector,
    plus,
)
from sparkstorm.control_plane.scheduling.settings import PrioritySettings

POOLS_KEY = "resource.aware.scheduler.user.pools"
STRATEGY_KEY = "resource.aware.scheduler.priority.strategy"
LAST = math.inf


@dataclass(slots=True)
class Claimant:
    """A user's topologies that are still to be ordered, and the requests of those already
    ordered.
    """

    guaranteed: Vector
    waiting: list[TopologyView]
    ordered: Vector = field(default_factory=tuple)


def _by_priority(topology: TopologyView) -> tuple[int, int, str]:
    return (PrioritySettings.of_partial(topology.conf).priority, -topology.uptime_ms, topology.id)


class PriorityOrder:
    """Storm's scheduling priority strategies, by the cluster's total resources."""

    def __init__(
        self, ledger: ResourceLedger, counts_generic: bool, first_in_first_out: bool
    ) -> None:
        self._ledger = ledger
        self._counts_generic = counts_generic
        self._fifo = first_in_first_out
        self._left = ledger.shape.zero
        for node in ledger.cluster.supervisors:
            self._left = plus(self._left, ledger.offer(node))
        # A declared resource counts, even if its amount is zero.
        offers = ledger.cluster.supervisors.values()
        declared = {name for offer in offers for name in offer.resources}
        names = ledger.shape.generic
        self._offered_generic = [
            FIRST_GENERIC + index for index, name in enumerate(names) if name in declared
        ]

    def order(self, guarantees: Mapping[str, Mapping[str, float]]) -> list[TopologyView]:
        """Return every topology with an owner in scheduling order; equal users by name."""
        claimants = self._claimants(guarantees)
        ordered: list[TopologyView] = []
        while claimants:
            scores = {id(claimant): self._score(claimant) for claimant in claimants}
            claimants.sort(key=lambda claimant: scores[id(claimant)])
            first = claimants[0]
            if not first.waiting:
                claimants.pop(0)
                continue
            topology = first.waiting.pop(0)
            asked = self._asked(topology)
            first.ordered = plus(first.ordered, asked)
            self._left = tuple(have - less for have, less in zip(self._left, asked, strict=True))
            ordered.append(topology)
        return ordered

    def _asked(self, topology: TopologyView) -> Vector:
        requests = self._ledger.requests(topology)
        return (requests.total[MEMORY] + requests.shared.least, *requests.total[CPU:])

    def _claimants(self, guarantees: Mapping[str, Mapping[str, float]]) -> list[Claimant]:
        by_owner: dict[str, list[TopologyView]] = {}
        for topology in self._ledger.cluster.topologies.values():
            if topology.owner:
                by_owner.setdefault(topology.owner, []).append(topology)
        zero = self._ledger.shape.zero
        return [
            Claimant(
                self._guarantee(guarantees.get(owner, {})),
                sorted(by_owner[owner], key=_by_priority),
                zero,
            )
            for owner in sorted(by_owner)
        ]

    def _guarantee(self, pool: Mapping[str, float]) -> Vector:
        generic = (float(pool.get(name, 0.0)) for name in self._ledger.shape.generic)
        return (float(pool.get("memory", 0.0)), float(pool.get("cpu", 0.0)), *generic)

    def _score(self, claimant: Claimant) -> float:
        """Return how far the next topology brings its owner over the guarantee, as a share of the
        free resources.
        """
        score = self._share(claimant)
        if not self._fifo or score < 0:
            return score
        claimant.waiting.sort(key=lambda topology: (topology.uptime_ms, topology.id))
        return float(claimant.waiting[0].uptime_ms) if claimant.waiting else LAST

    def _share(self, claimant: Claimant) -> float:
        counted = [CPU, MEMORY]
        if self._counts_generic:
            counted += self._offered_generic
        if not claimant.waiting or any(self._left[index] <= 0 for index in counted):
            return LAST
        would = plus(claimant.ordered, self._asked(claimant.waiting[0]))
        return max(
            (would[index] - claimant.guaranteed[index]) / self._left[index] for index in counted
        )


_STRATEGIES: dict[str, Callable[[ResourceLedger], PriorityOrder]] = {
    "DefaultSchedulingPriorityStrategy": lambda ledger: PriorityOrder(ledger, False, False),
    "FIFOSchedulingPriorityStrategy": lambda ledger: PriorityOrder(ledger, False, True),
    "GenericResourceAwareSchedulingPriorityStrategy": lambda ledger: PriorityOrder(
        ledger, True, False
    ),
}
_SHORT = {
    "default": "DefaultSchedulingPriorityStrategy",
    "fifo": "FIFOSchedulingPriorityStrategy",
    "generic": "GenericResourceAwareSchedulingPriorityStrategy",
}


def priority_order(name: str) -> Callable[[ResourceLedger], PriorityOrder]:
    """Return the strategy of that name (Storm's class name, with or without package, or a short
    name).
    """
    strategy = _STRATEGIES.get(_SHORT.get(name, name.rpartition(".")[2]))
    if strategy is None:
        raise InvalidConfigError(
            f"{STRATEGY_KEY}: expected one of {', '.join(_SHORT)}, got {name!r}"
        )
    return strategy
