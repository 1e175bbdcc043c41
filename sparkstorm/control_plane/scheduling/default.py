"""Storm's DefaultScheduler: frees workers that do not fit an even distribution, then schedules
evenly (S4.8-S4.20).

Without the first step a topology that lost workers would stay crowded on those that it has left
when new slots appear: the EvenScheduler frees nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.control_plane.scheduling.even import IdleRules, move_to_idle, schedule_evenly
from sparkstorm.control_plane.scheduling.placement import Placement
from sparkstorm.control_plane.scheduling.records import Conf, Topologies, TopologyView
from sparkstorm.control_plane.scheduling.settings import DefaultSettings
from sparkstorm.control_plane.scheduling.view import ClusterView


def integer_divided(total: int, pieces: int) -> dict[int, int]:
    """Return the sizes of `pieces` parts of `total` that differ by at most one, as {size: how many}
    (S4.16).
    """
    base, larger = divmod(total, pieces)
    sizes = {base: pieces - larger}
    if larger:
        sizes[base + 1] = larger
    return sizes


def bad_slots(placement: Placement, num_executors: int, num_workers: int) -> list[WorkerSlot]:
    """Return the used slots whose executor count does not occur in an even distribution, by node
    and port (S4.14-S4.18).
    """
    if num_workers == 0:
        return []
    wanted = integer_divided(num_executors, num_workers)
    bad = []
    for slot in sorted(placement.executors_by_slot):
        size = len(placement.executors_by_slot[slot])
        if wanted.get(size, 0) > 0:
            wanted[size] -= 1
        else:
            bad.append(slot)
    return bad


def _free_misfits(topology: TopologyView, cluster: ClusterView) -> None:
    placement = cluster.placement(topology.id)
    reusable = sum(
        cluster.can_reassign(slot) or cluster.stays(slot) for slot in placement.executors_by_slot
    )
    total_slots = min(topology.num_workers, reusable + cluster.free.count)
    if total_slots > placement.num_workers or not placement.is_exact:
        misfits = bad_slots(placement, len(topology.executors), total_slots)
        if cluster.reasons is not None and misfits:
            words = f"its worker had no place in an even distribution of {len(topology.executors)} executors over {total_slots}"
            cluster.reasons.freed(topology.id, misfits, words)
        cluster.free_slots(misfits)


@dataclass(frozen=True, slots=True)
class DefaultRules:
    """Rules of a round: whether topologies are served one by one, and how workers move to idle
    supervisors.
    """

    one_by_one: bool = True
    idle: IdleRules = field(default_factory=IdleRules)

    @classmethod
    def of(cls, conf: Conf) -> DefaultRules:
        """Read `default.scheduler.scope`, "topology" (Storm 3 and 0.9) or "cluster" (Storm 2), and
        the rules of `IdleRules`.
        """
        return cls(DefaultSettings.of_partial(conf).scope == "topology", IdleRules.of(conf))


def schedule_by_default(
    cluster: ClusterView, rules: DefaultRules, scope: Topologies | None = None
) -> None:
    """Visit each topology that needs scheduling, by id: free its misfits, then schedule evenly
    (S4.20).

    One by one, only the topology whose workers were freed is scheduled; else, as in Storm 2.x,
    every topology with missing executors is scheduled after each freeing. Only topologies in
    `scope` are changed.
    """
    move_to_idle(cluster, rules.idle, scope)
    for topology in cluster.topologies_to_schedule():
        if scope is None or topology.id in scope:
            _free_misfits(topology, cluster)
            schedule_evenly(cluster, {topology.id: topology} if rules.one_by_one else scope)


class DefaultScheduler:
    """Storm's DefaultScheduler, the scheduler where `storm.scheduler` is not set."""

    def __init__(self) -> None:
        self._rules = DefaultRules()

    def prepare(self, conf: Conf) -> None:
        """Read the rules of a round."""
        self._rules = DefaultRules.of(conf)

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Schedule every topology of the cluster that needs it."""
        schedule_by_default(cluster, self._rules)
