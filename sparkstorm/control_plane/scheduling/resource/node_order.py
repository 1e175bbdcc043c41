"""Order in which nodes are tried (Storm's NodeSorter and NodeSorterHostProximity): racks, hosts and
nodes with most of the topology first, then the emptiest.

A topology that stays together sends fewer tuples over the network; of equal nodes the emptiest
leaves room on all.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.resource.ledger import ResourceLedger
from sparkstorm.control_plane.scheduling.resource.resources import FIRST_GENERIC, ResourceRequest
from sparkstorm.control_plane.scheduling.settings import StrategySettings

DEFAULT_RACK = "/default-rack"

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class NodeSort(Enum):
    """Sort criterion after the number of executors of the topology."""

    COMMON = "average share left, then the scarcest share"
    GENERIC = "average share left"
    DEFAULT = "scarcest share left, then the average"


def ranked(
    names: Sequence[str],
    available: Floats,
    held: Ints,
    request: ResourceRequest | None,
    sort: NodeSort,
) -> list[str]:
    """Return the names by executors held, then by share of the free resources.

    Generic resources that the executor did not request lower the rank, so that rare ones stay free.
    """
    if len(names) == 1:
        return list(names)
    overall = available.sum(axis=0)
    shares = available.copy()
    if request is not None and sort is not NodeSort.DEFAULT:
        unasked = [
            index
            for index in range(FIRST_GENERIC, len(request.vector))
            if request.vector[index] == 0.0
        ]
        shares[:, unasked] *= -1.0
    average = np.zeros(len(names))
    scarcest = np.ones(len(names))
    counted = np.flatnonzero(overall)
    for index in counted:
        share = shares[:, index] / overall[index]
        average += share
        scarcest = np.minimum(scarcest, share)
    average = average * 100.0 / len(counted) if len(counted) else average + 100.0
    keys = {
        NodeSort.COMMON: (-scarcest, -average, -held),
        NodeSort.GENERIC: (-average, -held),
        NodeSort.DEFAULT: (-average, -scarcest, -held),
    }[sort]
    return [names[index] for index in np.lexsort(keys)]


class NodeMap:
    """Racks, hosts and nodes of one round, living nodes only."""

    def __init__(self, ledger: ResourceLedger) -> None:
        self.ledger = ledger
        self.nodes_by_host: dict[str, list[str]] = {}
        rack_by_host: dict[str, str] = {}
        for node in sorted(ledger.alive):
            supervisor = ledger.cluster.supervisors[node]
            self.nodes_by_host.setdefault(supervisor.host, []).append(node)
            rack_by_host.setdefault(supervisor.host, supervisor.rack or DEFAULT_RACK)
        self.hosts_by_rack: dict[str, list[str]] = {}
        for host in sorted(self.nodes_by_host):
            self.hosts_by_rack.setdefault(rack_by_host[host], []).append(host)
        self.hosts_by_rack = dict(sorted(self.hosts_by_rack.items()))
        index = ledger.index_by_node
        self.rows_by_host = {
            host: [index[node] for node in nodes] for host, nodes in self.nodes_by_host.items()
        }
        self._rows_by_rack = {
            rack: [row for host in hosts for row in self.rows_by_host[host]]
            for rack, hosts in self.hosts_by_rack.items()
        }
        self._starts_by_rack = {
            rack: np.cumsum([0, *(len(self.rows_by_host[host]) for host in hosts[:-1])])
            for rack, hosts in self.hosts_by_rack.items()
        }

    def rack_sums(self, held: Ints) -> tuple[Floats, Ints]:
        """Return free resources and held executors by rack."""
        matrix = self.ledger.matrix
        remaining = np.array([matrix[rows].sum(axis=0) for rows in self._rows_by_rack.values()])
        return remaining, np.array([held[rows].sum() for rows in self._rows_by_rack.values()])

    def host_sums(self, rack: str, held: Ints) -> tuple[Floats, Ints]:
        """Return free resources and held executors by host of a rack."""
        rows = self._rows_by_rack[rack]
        starts = self._starts_by_rack[rack]
        if len(rows) == len(starts):
            return self.ledger.matrix[rows], held[rows]
        return np.add.reduceat(self.ledger.matrix[rows], starts, axis=0), np.add.reduceat(
            held[rows], starts
        )


class Preferences:
    """Nodes that a topology prefers or avoids; greylisted nodes come last."""

    def __init__(self, topology: TopologyView, nodes: NodeMap) -> None:
        self.grey = sorted(nodes.ledger.cluster.greylisted_nodes)
        settings = StrategySettings.of_partial(topology.conf)
        favored = _nodes_on(settings.favored, nodes.nodes_by_host)
        self.favored = [node for node in favored if node not in self.grey]
        listed = {*self.grey, *self.favored}
        self.unfavored = [
            node
            for node in _nodes_on(settings.unfavored, nodes.nodes_by_host)
            if node not in listed
        ]
        self.special = frozenset([*self.favored, *self.unfavored, *self.grey])


def _nodes_on(hosts: Sequence[str] | None, nodes_by_host: Mapping[str, Sequence[str]]) -> list[str]:
    return [node for host in hosts or () for node in nodes_by_host.get(host, ())]


class NodeOrder:
    """Lazy order of all nodes; racks are ranked at once.

    Hosts and nodes are ranked when first reached, and then cached, as in Storm's
    NodeSorterHostProximity.
    """

    def __init__(
        self,
        nodes: NodeMap,
        preferences: Preferences,
        held: Ints,
        request: ResourceRequest | None,
        sort: NodeSort,
    ) -> None:
        self._nodes = nodes
        self._preferences = preferences
        self._held = held.copy()
        self._request = request
        self._sort = sort
        self._hosts: dict[str, list[str]] = {}
        self._members: dict[str, list[str]] = {}
        racks = list(nodes.hosts_by_rack)
        self._racks = (
            ranked(racks, *nodes.rack_sums(self._held), request, sort) if len(racks) > 1 else racks
        )
        self._reached: list[str] = []
        self._further = self._walk()

    def __iter__(self) -> Iterator[str]:
        """Iterate from the start: favored nodes, then rack by rack, then unfavored and greylisted
        ones.
        """
        yield from self._reached
        for node in self._further:
            self._reached.append(node)
            yield node

    def _walk(self) -> Iterator[str]:
        special = self._preferences.special
        yield from self._preferences.favored
        for rack in self._racks:
            for host in self._hosts_of(rack):
                for node in self._members_of(host):
                    if node not in special:
                        yield node
        yield from self._preferences.unfavored
        yield from self._preferences.grey

    def _hosts_of(self, rack: str) -> list[str]:
        if rack not in self._hosts:
            hosts = self._nodes.hosts_by_rack[rack]
            if len(hosts) == 1:
                return hosts
            sums = self._nodes.host_sums(rack, self._held)
            self._hosts[rack] = ranked(hosts, *sums, self._request, self._sort)
        return self._hosts[rack]

    def _members_of(self, host: str) -> list[str]:
        members = self._nodes.nodes_by_host[host]
        if len(members) == 1:
            return members
        if host not in self._members:
            rows = self._nodes.rows_by_host[host]
            available = self._nodes.ledger.matrix[rows]
            self._members[host] = ranked(
                members, available, self._held[rows], self._request, self._sort
            )
        return self._members[host]
