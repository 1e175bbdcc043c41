"""Storm's IsolationScheduler: listed topologies get dedicated machines, the others share the
rest, so that an experiment cannot slow down what production depends on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.default import (
    DefaultRules,
    integer_divided,
    schedule_by_default,
)
from sparkstorm.control_plane.scheduling.records import Conf, Topologies, TopologyView
from sparkstorm.control_plane.scheduling.settings import IsolationSettings
from sparkstorm.control_plane.scheduling.view import ClusterView

MACHINES_KEY = "isolation.scheduler.machines"


def checked_machines(machines: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of machines by topology; InvalidConfigError names one that is none."""
    for name, count in machines.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidConfigError(
                f"{MACHINES_KEY}: {name}: expected a positive integer, got {count!r}"
            )
    return dict(machines)


def worker_specs(topology: TopologyView) -> list[frozenset[ExecutorId]]:
    """Return the executors of each worker: dealt round robin, component by component; no worker is
    empty.
    """
    in_turn = [executor for part in topology.components for executor in sorted(part.executors)]
    num_buckets = min(topology.num_workers, len(in_turn))
    return sorted(
        (frozenset(in_turn[start::num_buckets]) for start in range(num_buckets)), key=sorted
    )


@dataclass
class _Wanted:
    """Workers that an isolated topology still lacks, with their executors, and the number of
    workers per machine.
    """

    specs: list[frozenset[ExecutorId]]
    machines_by_size: dict[int, int]

    def accepts(self, workers: list[frozenset[ExecutorId]]) -> bool:
        return self.machines_by_size.get(len(workers), 0) > 0 and all(
            worker in self.specs for worker in workers
        )

    def settle(self, workers: list[frozenset[ExecutorId]]) -> None:
        self.machines_by_size[len(workers)] -= 1
        self.specs = [spec for spec in self.specs if spec not in set(workers)]


class IsolationScheduler:
    """Storm's IsolationScheduler; `isolation.scheduler.machines` is {topology name: machines}."""

    def __init__(self) -> None:
        self._machines: Mapping[str, int] = {}
        self._rules = DefaultRules()

    def prepare(self, conf: Conf) -> None:
        """Read how many machines each topology gets; InvalidConfigError when the map is missing,
        empty or unfit.
        """
        machines = IsolationSettings.of_partial(conf).machines
        if not isinstance(machines, Mapping) or not machines:
            raise InvalidConfigError(
                f"{MACHINES_KEY}: expected a map of topology name to machines, got {machines!r}"
            )
        self._machines = checked_machines(machines)
        self._rules = DefaultRules.of(conf)

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Keep matching machines, assign new ones, then schedule the other topologies by default;
        the blacklist is restored.
        """
        before = cluster.blacklisted_hosts
        wanted = {
            topology_id: self._wanted(topology)
            for topology_id, topology in sorted(topologies.items())
            if topology.name in self._machines
        }
        keeps_dead = _keep_good_hosts(cluster, wanted)
        _give_hosts(cluster, wanted)
        if any(need.specs for need in wanted.values()):
            _clear_shared_hosts(cluster, wanted, keeps_dead, self._machines)
        else:
            # Storm 2 schedules an isolated topology with fewer workers than it asked for by default
            # too. It has all its executors and does not change, but every topology with missing
            # executors is filled before the next is freed.
            visits_isolated = not self._rules.one_by_one
            rest = {
                key: topology
                for key, topology in topologies.items()
                if key not in wanted or (visits_isolated and topology.num_workers)
            }
            schedule_by_default(cluster, self._rules, rest)
        cluster.set_blacklisted_hosts(before)

    def _wanted(self, topology: TopologyView) -> _Wanted:
        sizes = integer_divided(topology.num_workers, self._machines[topology.name])
        sizes.pop(0, None)
        return _Wanted(worker_specs(topology), sizes)


def _used_by_host(cluster: ClusterView) -> dict[str | None, list[WorkerSlot]]:
    slots_by_host: dict[str | None, list[WorkerSlot]] = {}
    for slot in sorted(cluster.used_slots()):
        slots_by_host.setdefault(cluster.host_of(slot.node), []).append(slot)
    return dict(sorted(slots_by_host.items(), key=lambda entry: entry[0] or ""))


def _keep_good_hosts(cluster: ClusterView, wanted: Mapping[str, _Wanted]) -> bool:
    """Keep hosts whose workers all match workers of one isolated topology; free isolated workers on
    other hosts.

    Workers on dead supervisors count as one more host, as in Storm. Return whether that host was
    kept.
    """
    taken = set(cluster.blacklisted_hosts)
    keeps_dead = False
    for host, slots in _used_by_host(cluster).items():
        owners = {cluster.used_slots()[slot] for slot in slots}
        owner = next(iter(owners))
        workers = [
            frozenset(cluster.placement(cluster.used_slots()[s]).executors_by_slot[s])
            for s in slots
        ]
        if len(owners) == 1 and owner in wanted and wanted[owner].accepts(workers):
            wanted[owner].settle(workers)
            keeps_dead = keeps_dead or host is None
            if host is not None:
                taken.add(host)
        else:
            isolated = [slot for slot in slots if cluster.used_slots()[slot] in wanted]
            cluster.free_slots(isolated, "its host is not wholly its own")
    cluster.set_blacklisted_hosts(taken)
    return keeps_dead


def _hosts_by_room(cluster: ClusterView) -> list[tuple[str, list[WorkerSlot]]]:
    """Return hosts with their slots: most slots first, then most free slots (fewest evictions),
    then by name.
    """
    slots_by_host: dict[str, list[WorkerSlot]] = {}
    for node, supervisor in cluster.supervisors.items():
        slots = cluster.assignable_slots(node)
        if slots:
            slots_by_host.setdefault(supervisor.host, []).extend(slots)
    used = cluster.used_slots()
    return sorted(
        slots_by_host.items(),
        key=lambda entry: (-len(entry[1]), -sum(slot not in used for slot in entry[1]), entry[0]),
    )


def _give_hosts(cluster: ClusterView, wanted: Mapping[str, _Wanted]) -> None:
    hosts = _hosts_by_room(cluster)
    used_by_host = _used_by_host(cluster)
    taken = set(cluster.blacklisted_hosts)
    index = 0
    for topology_id, need in wanted.items():
        for size, count in sorted(need.machines_by_size.items(), reverse=True):
            for _ in range(count):
                if not need.specs or index == len(hosts) or len(hosts[index][1]) < size:
                    break
                host, slots = hosts[index]
                index += 1
                words = f"gave way to {topology_id}, which is isolated"
                cluster.free_slots(used_by_host.get(host, ()), words)
                for slot in slots[: min(size, len(need.specs))]:
                    spec = sorted(need.specs.pop(0))
                    words = f"isolated: {host} is the next host for {size} of its workers, most slots first ({len(slots)})"
                    cluster.assign(slot, topology_id, spec, words)
                taken.add(host)
    cluster.set_blacklisted_hosts(taken)


def _clear_shared_hosts(
    cluster: ClusterView,
    wanted: Mapping[str, _Wanted],
    keeps_dead: bool,
    machines: Mapping[str, int],
) -> None:
    """Free all workers on hosts that are not isolated, since machines are missing (Storm frees them
    and waits).
    """
    short = [topology_id for topology_id, need in wanted.items() if need.specs]
    for topology_id in short:
        own = cluster.placement(topology_id).executors_by_slot
        has = len({cluster.host_of(slot.node) for slot in own})
        of = machines[cluster.topologies[topology_id].name]
        cluster.status[topology_id] = (
            f"Unable to isolate: it has {has} of {of} machines, and no other has enough worker slots"
        )
    for host, slots in _used_by_host(cluster).items():
        if not (host in cluster.blacklisted_hosts or (host is None and keeps_dead)):
            cluster.free_slots(slots, f"cleared until there are machines for {', '.join(short)}")
