"""Throughput and latency of a placement, predicted from measured rates by a model of CPU and of the
network. PURE.

Throughput: the utilisation law (Denning and Buzen: The operational analysis of queueing network
models, ACM Computing Surveys 10(3), 1978). Every worker, node and link has a demand at the measured
rates; the one whose demand can grow least is the bottleneck: by 1 / demand, less what it takes idle.
Latency: the longest way from a source to a sink (Cardellini, Grassi, Lo Presti, Nardelli: Optimal
operator placement for distributed stream processing applications, DEBS 2016): a component adds
service / (1 - utilisation of its worker), as in M/M/1; an edge adds its latency by distance, and the
time of a row on the link.

Left out: batches and commits, which add to each hop between workers and make rows cheaper under
load; back-pressure; queues on links; local groupings; time of day of any rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields

from sparkstorm.common.errors import InvalidConfigError, show
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.names import counted
from sparkstorm.control_plane.scheduling.measured.flows import SharedFlow, Shares, flows_of
from sparkstorm.control_plane.scheduling.records import ComponentView, TopologyView
from sparkstorm.control_plane.scheduling.resource.resources import CPU
from sparkstorm.control_plane.scheduling.traffic.problem import Demand, Placed
from sparkstorm.extensions.laboratory.arguments import check_kind, is_amount
from sparkstorm.extensions.laboratory.scene import Row, Scene, check_scene

_DIVISORS = ("node_bytes_per_s", "rack_bytes_per_s", "cores_per_worker")


@dataclass(frozen=True, slots=True)
class Network:
    """Costs by distance. The defaults are those of a data centre with links of 1 Gb/s and racks
    with 10 Gb/s; none of them was measured.
    """

    worker_ms: float = 0.0  # one way, within a worker
    node_ms: float = 0.1  # between workers of a node
    rack_ms: float = 0.5  # between nodes of a rack
    far_ms: float = 1.0  # between racks
    node_bytes_per_s: float = 125e6  # of a node's link, each way
    rack_bytes_per_s: float = 1.25e9  # of a rack's link, each way
    us_per_row: float = 1.0  # CPU of each end for a row that leaves its worker
    us_per_kb: float = 1.0  # and for 1,000 bytes of it
    cores_per_worker: float = 1.0  # executors of a worker share one core
    idle_cores: float = 0.0  # of a worker without rows

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            is_divisor = part.name in _DIVISORS
            if not is_amount(value) or (is_divisor and not value):
                least = "more than 0" if is_divisor else "0 or more"
                raise InvalidConfigError(f"{part.name}: expected {least}, got {show(value)}")

    def serialising(self, rows: float, size: float) -> float:
        """Return the cores that one end needs for so many rows and bytes a second."""
        return (rows * self.us_per_row + size / 1000 * self.us_per_kb) / 1e6


@dataclass(frozen=True, slots=True)
class _Way:
    """A flow of a topology with the shares of it between slots."""

    flow: SharedFlow
    shares: Mapping[tuple[WorkerSlot, WorkerSlot], float]


def predict(
    scene: Scene,
    network: Network | None = None,
    load: float = 1.0,
    measured_in: Scene | None = None,
) -> list[Row]:
    """Return a row per topology: rows a second of its sources at `load` times the measured rates,
    the most that the placement can take with its bottleneck, and the latency in ms.

    All topologies grow together. `used` is the share in use of the busiest worker, node or link at
    that load; the latency is None where that is 1 or more. Measured CPU counts as user code's
    alone; where it was measured on a live cluster, give that placement as `measured_in`, and what
    the network costs there is subtracted. InvalidConfigError names a topology that was not
    measured, or lacks a place in either scene.
    """
    check_scene(scene)
    network = Network() if network is None else network
    check_kind("network", network, Network, "a Network")
    if measured_in is not None:
        check_scene(measured_in, "measured_in")
    if not is_amount(load):
        raise InvalidConfigError(f"load: expected 0 or more times the rates, got {show(load)}")
    model = _Model(scene, network, measured_in)
    return [model.row(topology, load) for topology in scene.topologies]


class _Model:
    """Demands of a scene at the measured rates: the share of each worker, node and link in use."""

    def __init__(self, scene: Scene, network: Network, measured_in: Scene | None) -> None:
        self._network = network
        self._racks = {node.id: node.rack for node in scene.supervisors}
        demand = Demand(scene.view())
        self._offers = {node.id: demand.offer(node)[CPU] / 100 for node in scene.supervisors}
        self._placed: dict[str, Placed] = {}
        self._cores: dict[str, dict[ExecutorId, float]] = {}
        self._ways: dict[str, list[_Way]] = {}
        # what is in use at any load, and what the measured rates add
        self._fixed: defaultdict[str, float] = defaultdict(float)
        self._demands: defaultdict[str, float] = defaultdict(float)
        self._used: dict[str, set[str]] = {}
        for topology in scene.topologies:
            before = measured_in.assignments.get(topology.id) if measured_in else None
            if measured_in and not before:
                raise InvalidConfigError(
                    f"{show(topology.id)} has no assignment in measured_in: give the scene in which "
                    "it was measured, under the same id"
                )
            self._add(topology, _checked(topology, scene), before)

    def _add(self, topology: TopologyView, placed: Placed, before: Placed | None) -> None:
        self._placed[topology.id] = placed
        self._ways[topology.id] = ways = _ways_of(topology, placed)
        self._cores[topology.id] = _cores_of(topology, placed, before, self._network)
        parts: list[tuple[str, float, float]] = []
        for executor, cores in self._cores[topology.id].items():
            slot = placed[executor]
            parts.append((f"worker {slot}", cores, self._network.cores_per_worker))
            # A node that is gone has no capacity to compare with.
            parts.append((f"CPU of {slot.node}", cores, self._offers.get(slot.node) or math.inf))
        for way in ways:
            for (sender, receiver), share in way.shares.items():
                size = way.flow.bytes_per_s * share
                links = self._links(sender.node, receiver.node)
                parts += ((link, size, most) for link, most in links)
        for name, amount, most in parts:
            self._demands[name] += amount / most
        for slot in set(placed.values()):
            idle = self._network.idle_cores
            self._fixed[f"worker {slot}"] += idle / self._network.cores_per_worker
            self._fixed[f"CPU of {slot.node}"] += idle / (self._offers.get(slot.node) or math.inf)
        self._used[topology.id] = {name for name, _, _ in parts}

    def _links(self, sender: str, receiver: str) -> list[tuple[str, float]]:
        if sender == receiver:
            return []
        most = self._network.node_bytes_per_s
        links = [(f"link from {sender}", most), (f"link to {receiver}", most)]
        one, other = self._racks.get(sender), self._racks.get(receiver)
        if one != other:
            most = self._network.rack_bytes_per_s
            links += [(f"link from rack {one}", most), (f"link to rack {other}", most)]
        return links

    def row(self, topology: TopologyView, load: float) -> Row:
        """Return the prediction for one topology."""
        names = sorted(self._used[topology.id])
        bottleneck = min(names, key=self._growth, default="")
        used = max((self._in_use(name, load) for name in names), default=0.0)
        rows = _source_rows(topology)
        return {
            "topology": topology.id,
            "rows_per_s": rows * load,
            "most_rows_per_s": rows * self._growth(bottleneck) if bottleneck else math.inf,
            "bottleneck": bottleneck,
            "used": used,
            "latency_ms": self._latency(topology, load) if used < 1.0 else None,
        }

    def _growth(self, name: str) -> float:
        """Return how many times the measured rates it can take."""
        left = max(0.0, 1.0 - self._fixed[name])
        return left / self._demands[name] if self._demands[name] else math.inf

    def _in_use(self, name: str, load: float) -> float:
        return self._fixed[name] + load * self._demands[name]

    # -- latency -----------------------------------------------------------------------------------

    def _latency(self, topology: TopologyView, load: float) -> float:
        edges: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
        for way in self._ways[topology.id]:
            pairs = way.shares.items()
            mean = sum(share * self._hop_ms(way.flow, *ends) for ends, share in pairs)
            edges[way.flow.sender].append((way.flow.receiver, mean))
        service = {
            part.id: self._service_ms(topology, part, load)
            for part in topology.components
            if not part.is_system
        }
        longest: dict[str, float] = {}

        def from_here(name: str, above: frozenset[str]) -> float:
            if name not in longest:
                inside = above | {name}
                # An edge that closes a circle is not followed.
                ahead = [(to, ms) for to, ms in edges[name] if to not in inside]
                rest = max((ms + from_here(to, inside) for to, ms in ahead), default=0.0)
                longest[name] = service[name] + rest
            return longest[name]

        sources = [
            part.id for part in topology.components if part.id in service and not part.inputs
        ]
        return max((from_here(name, frozenset()) for name in sources), default=0.0)

    def _hop_ms(self, flow: SharedFlow, sender: WorkerSlot, receiver: WorkerSlot) -> float:
        net = self._network
        if sender == receiver:
            return net.worker_ms
        size = flow.bytes_per_s / flow.rows_per_s if flow.rows_per_s else 0.0
        link_s = sum(size / most for _, most in self._links(sender.node, receiver.node))
        is_far = self._racks.get(sender.node) != self._racks.get(receiver.node)
        near = net.node_ms if sender.node == receiver.node else net.rack_ms
        return (net.far_ms if is_far else near) + 1000 * link_s

    def _service_ms(self, topology: TopologyView, part: ComponentView, load: float) -> float:
        """Return the mean time of a row at a component: its CPU, longer as its worker is busier."""
        flows = [way.flow for way in self._ways[topology.id]]
        rows = sum(flow.rows_per_s for flow in flows if flow.receiver == part.id)
        if not rows:
            rows = max((flow.rows_per_s for flow in flows if flow.sender == part.id), default=0.0)
        total = 0.0
        for executor in part.executors:
            slot = self._placed[topology.id][executor]
            idle = 1.0 - self._in_use(f"worker {slot}", load)
            total += self._cores[topology.id][executor] / idle
        return 1000 * total / rows if rows else 0.0


def _checked(topology: TopologyView, scene: Scene) -> Placed:
    if topology.measured is None:
        raise InvalidConfigError(f"{show(topology.id)} was not measured: nothing can be predicted")
    placed = scene.assignments.get(topology.id, {})
    if missing := sum(executor not in placed for executor in topology.executors):
        raise InvalidConfigError(
            f"{show(topology.id)} has {counted(missing, 'executor')} without a place"
        )
    return placed


def _source_rows(topology: TopologyView) -> float:
    """Return the rows a second that its sources emit: a row that goes to two components is one."""
    flows = flows_of(topology)
    sources = [part.id for part in topology.components if not part.inputs and not part.is_system]
    return sum(
        max((flow.rows_per_s for flow in flows if flow.sender == name), default=0.0)
        for name in sources
    )


def _ways_of(topology: TopologyView, placed: Placed) -> list[_Way]:
    ways = []
    for flow in flows_of(topology):
        senders, receivers = _by_slot(flow.sent, placed), _by_slot(flow.taken, placed)
        shares = {
            (sender, receiver): sent * taken
            for sender, sent in senders.items()
            for receiver, taken in receivers.items()
        }
        ways.append(_Way(flow, shares))
    return ways


def _by_slot(shares: Shares, placed: Placed) -> Mapping[WorkerSlot, float]:
    share_by_slot: defaultdict[WorkerSlot, float] = defaultdict(float)
    for executor, share in shares.items():
        if share and executor in placed:
            share_by_slot[placed[executor]] += share
    return share_by_slot


def _cores_of(
    topology: TopologyView, placed: Placed, before: Placed | None, network: Network
) -> dict[ExecutorId, float]:
    """Return the cores of each executor: its user code's, and those for what leaves its worker."""
    assert topology.measured is not None
    now = _serialising(topology, placed, network)
    cores = {
        executor: topology.measured.load(executor).cpu / 100 for executor in topology.executors
    }
    if before:
        # What its worker takes without rows was divided as the rest of its CPU.
        workers: defaultdict[WorkerSlot, float] = defaultdict(float)
        for executor, slot in before.items():
            workers[slot] += cores.get(executor, 0.0)
        then = _serialising(topology, before, network)
        for executor, slot in before.items():
            if executor in cores and workers[slot]:
                idle = network.idle_cores * cores[executor] / workers[slot]
                cores[executor] = max(0.0, cores[executor] - idle - then[executor])
    return {executor: cores[executor] + now[executor] for executor in topology.executors}


def _serialising(
    topology: TopologyView, placed: Placed, network: Network
) -> defaultdict[ExecutorId, float]:
    cores_by_executor: defaultdict[ExecutorId, float] = defaultdict(float)
    for flow in flows_of(topology):
        cores = network.serialising(flow.rows_per_s, flow.bytes_per_s)
        for mine, others in ((flow.sent, flow.taken), (flow.taken, flow.sent)):
            here = _by_slot(others, placed)
            for executor, share in mine.items():
                if executor in placed:
                    leaving = max(0.0, 1.0 - here.get(placed[executor], 0.0))
                    cores_by_executor[executor] += cores * share * leaving
    return cores_by_executor
