"""Storm's BlacklistScheduler: a wrapper around any scheduler that excludes supervisors which fail
repeatedly: a host that comes and goes would move its workers each time.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.settings import TrackingSettings
from sparkstorm.control_plane.scheduling.records import (
    ComponentView,
    Conf,
    Topologies,
    TopologyView,
)
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.resource.resources import (
    ACKER,
    MEMORY,
    Requests,
    ResourceRequest,
    Vector,
    minus,
    plus,
)
from sparkstorm.control_plane.scheduling.settings import BlacklistSettings, WorkerLimits
from sparkstorm.control_plane.scheduling.view import ClusterView, Scheduler

STRATEGY_KEY = "blacklist.scheduler.strategy"


class HostSighting(NamedTuple):
    """Missing ports of one supervisor in one round: the ports known before and the ports it
    reported.
    """

    known: set[int]  # the cache's own set: a port that is removed there is not counted here either
    shown: frozenset[int]

    @property
    def bad_ports(self) -> set[int]:
        """The ports that were missing."""
        return self.known - self.shown


class ReleaseRule(Protocol):
    """Choice of the blacklisted supervisors to release because capacity is short."""

    def __call__(self, cluster: ClusterView, blacklisted: list[str]) -> set[str]:
        """Return the supervisors to release."""


class BlacklistScheduler:
    """Storm's BlacklistScheduler: counts, in a sliding window, the rounds in which a supervisor or
    one of its ports was missing.
    """

    def __init__(self, inner: Scheduler) -> None:
        self.inner = inner
        self._known: dict[str, set[int]] = {}
        self._rounds_left: dict[str, int] = {}
        self._window: deque[dict[str, HostSighting]] = deque()
        self._release: ReleaseRule = _release_by_slots
        self.blacklisted_hosts: tuple[str, ...] = ()

    def prepare(self, conf: Conf) -> None:
        """Read the window, the tolerance and the time to resume, all in rounds of
        `nimbus.monitor.freq.secs`.
        """
        settings = BlacklistSettings.of(conf)
        every = settings.monitor_ms
        self._rounds = settings.tolerance_ms // every
        self._tolerance = settings.tolerance_count
        # Storm counts zero rounds for a time below one round, and then never resumes.
        self._resume_rounds = max(settings.resume_ms // every, 1)
        self._counts_bad_ports = settings.counts_bad_ports
        self._release = _release_rule(settings.strategy.rpartition(".")[2])
        self._window = deque(maxlen=self._rounds)
        self.inner.prepare(conf)

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Update the blacklist by this round's missing supervisors and ports, then run the inner
        scheduler.
        """
        self._resume()
        self._window.append(self._sightings(cluster))
        self._blacklist(cluster)
        hosts = {cluster.host_of(node) for node in self._rounds_left}
        self.blacklisted_hosts = tuple(sorted(host for host in hosts if host is not None))
        cluster.set_blacklisted_hosts(self.blacklisted_hosts)
        self._forget_long_lost()
        self.inner.schedule(topologies, cluster)

    def _resume(self) -> None:
        rounds_left = {node: rounds - 1 for node, rounds in self._rounds_left.items()}
        self._rounds_left = {node: rounds for node, rounds in rounds_left.items() if rounds > 0}

    def _sightings(self, cluster: ClusterView) -> dict[str, HostSighting]:
        bad = {
            node: HostSighting(self._known[node], frozenset())
            for node in self._known.keys() - cluster.supervisors
        }
        for node, supervisor in cluster.supervisors.items():
            known_ports = self._known.get(node)
            shown = frozenset(supervisor.ports)
            if known_ports is None:
                self._known[node] = set(shown)
            elif self._counts_bad_ports:
                if shown - known_ports:
                    self._known[node] = known_ports | shown
                if known_ports - shown:
                    bad[node] = HostSighting(known_ports, shown)
        return bad

    def _blacklist(self, cluster: ClusterView) -> None:
        counts = Counter(node for sightings in self._window for node in sightings)
        for node, count in counts.items():
            if count >= self._tolerance:
                self._rounds_left.setdefault(node, self._resume_rounds)
        released = self._release(cluster, sorted(self._rounds_left)) if self._rounds_left else set()
        cluster.greylisted_nodes = frozenset(released)
        for node in released:
            del self._rounds_left[node]

    def _forget_long_lost(self) -> None:
        """Forget supervisors and ports that were missing in every round of the window: they are
        gone, not failing.
        """
        wholly_bad: Counter[str] = Counter()
        ports: Counter[tuple[str, int]] = Counter()
        for sightings in self._window:
            for node, sighting in sightings.items():
                bad = sighting.bad_ports
                wholly_bad[node] += bad == self._known.get(node)
                ports.update((node, port) for port in bad)
        for node, count in wholly_bad.items():
            if count == self._rounds:
                self._known.pop(node, None)
        for (node, port), count in ports.items():
            if count == self._rounds and node in self._known:
                self._known[node].discard(port)


def _release_rule(name: str) -> ReleaseRule:
    rules: Mapping[str, ReleaseRule] = {
        "default": _release_by_slots,
        "DefaultBlacklistStrategy": _release_by_slots,
        "resource-aware": _release_by_resources,
        "RasBlacklistStrategy": _release_by_resources,
    }
    if name not in rules:
        raise InvalidConfigError(
            f"{STRATEGY_KEY}: expected one of {', '.join(rules)}, got {name!r}"
        )
    return rules[name]


def _by_host(cluster: ClusterView, nodes: Iterable[str]) -> list[list[str]]:
    nodes_by_host: dict[str, list[str]] = {}
    for node in nodes:
        host = cluster.host_of(node)
        if host is not None:
            nodes_by_host.setdefault(host, []).append(node)
    return [nodes_by_host[host] for host in sorted(nodes_by_host)]


def _free_elsewhere(cluster: ClusterView, blacklisted: list[str]) -> int:
    return sum(
        len(cluster.free.ports(node)) for node in cluster.supervisors.keys() - set(blacklisted)
    )


def _release_by_slots(cluster: ClusterView, blacklisted: list[str]) -> set[str]:
    """Return hosts in order of name until they have the slots that topologies lack (Storm's
    DefaultBlacklistStrategy).
    """
    lacking = cluster.topologies_to_schedule()
    needed = sum(
        topology.num_workers - cluster.placement(topology.id).num_workers for topology in lacking
    )
    short = needed - _free_elsewhere(cluster, blacklisted)
    released: set[str] = set()
    for nodes in _by_host(cluster, blacklisted):
        if short <= 0:
            break
        released.update(nodes)
        short -= sum(len(cluster.free.ports(node)) for node in nodes)
    return released


def _estimated_workers(topology: TopologyView, requests: Requests, acker: ResourceRequest) -> int:
    """Return the heap of the user's components and the configured ackers, divided by the maximum
    heap of a worker.
    """
    users = [part for part in topology.components if not part.is_system]
    heap = sum(requests.of(executor).on_heap for part in users for executor in part.executors)
    ackers = TrackingSettings.of_partial(topology.conf).ackers
    heap += (topology.num_workers if ackers is None else ackers) * acker.vector[MEMORY]
    max_heap = WorkerLimits.of_partial(topology.conf).max_heap_mb
    return math.ceil(heap / max_heap) if max_heap > 0 else 1


def _release_by_resources(cluster: ClusterView, blacklisted: list[str]) -> set[str]:
    """Return hosts in order of name until slots and resources suffice (Storm's
    RasBlacklistStrategy).
    """
    ledger = ResourceLedger(cluster)
    needed = ledger.shape.zero
    slots = -_free_elsewhere(cluster, blacklisted)
    for topology in cluster.hungry_topologies():
        requests = ledger.requests(topology)
        needed = plus(needed, requests.total)
        acker = ledger.shape.request(topology, ComponentView(ACKER, "system", ()))
        wanted = _estimated_workers(topology, requests, acker)
        slots += wanted - cluster.placement(topology.id).num_workers
    missing, _ = minus(needed, _left_elsewhere(ledger, set(blacklisted)))
    released: set[str] = set()
    for nodes in _by_host(cluster, blacklisted):
        if slots <= 0 and not any(amount > 0 for amount in missing):
            break
        for node in nodes:
            released.add(node)
            missing, _ = minus(missing, _what_is_left(ledger, node))
            slots -= len(cluster.free.ports(node))
    return released


def _what_is_left(ledger: ResourceLedger, node: str) -> Vector:
    """Return a node's free resources; CPU and generic ones may be negative if it is overcommitted,
    memory is not (as in Storm).
    """
    remaining = [
        have - less for have, less in zip(ledger.offer(node), ledger.taken(node), strict=True)
    ]
    remaining[MEMORY] = max(remaining[MEMORY], 0.0)
    return tuple(remaining)


def _left_elsewhere(ledger: ResourceLedger, blacklisted: set[str]) -> Vector:
    remaining = ledger.shape.zero
    for node in sorted(ledger.alive - blacklisted):
        remaining, _ = minus(plus(remaining, ledger.offer(node)), ledger.taken(node))
    return remaining
