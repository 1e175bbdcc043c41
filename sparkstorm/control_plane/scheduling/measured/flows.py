"""Traffic between executors, estimated from a topology's measurements or, without any, from its
edges. PURE.

A flow between two components is divided by what each sender has sent of its component's rows, times
what each receiver has taken in of its component's. That is exact where the receiver of a row does
not depend on its sender: shuffle, all, global, and fields where all senders see the same keys. Left
out: a count for each pair of tasks, which would be work for every tuple, and a record that grows
with the product of two parallelisms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.control_plane.scheduling.measured.measurements import Measurements
from sparkstorm.control_plane.scheduling.records import ComponentView, TopologyView

Shares = Mapping[ExecutorId, float]


@dataclass(frozen=True, slots=True)
class SharedFlow:
    """A flow in bytes and rows a second, and the shares (sums are 1) of its senders and receivers."""

    sender: str
    receiver: str
    bytes_per_s: float
    sent: Shares = field(default_factory=dict)
    taken: Shares = field(default_factory=dict)
    rows_per_s: float = 0.0

    def between(self, sender: ExecutorId, receiver: ExecutorId) -> float:
        """Return the bytes a second from one executor to another."""
        return self.bytes_per_s * self.sent.get(sender, 0.0) * self.taken.get(receiver, 0.0)


def flows_of(topology: TopologyView) -> tuple[SharedFlow, ...]:
    """Return the flows between the components of users.

    Without measurements each subscription weighs 1, and all tasks of a component are equal.
    """
    measured = topology.measured
    rates: dict[tuple[str, str, str], tuple[float, float]] = {}
    for flow in measured.flows if measured else ():
        rates[flow.component, flow.stream, flow.receiver] = flow.bytes_per_s, flow.rows_per_s
    parts = {part.id: part for part in topology.components if not part.is_system}
    flows = []
    for part in parts.values():
        for source in part.inputs:
            sender = parts.get(source.component)
            unknown = (0.0, 0.0) if measured else (1.0, 1.0)
            size, rows = rates.get((source.component, source.stream, part.id), unknown)
            if sender is None or not size:
                continue
            sent = _shares(sender, measured, "emitted_per_s")
            taken = _taken(part, source.grouping, measured)
            flows.append(SharedFlow(sender.id, part.id, size, sent, taken, rows))
    return tuple(flows)


def _taken(part: ComponentView, grouping: str, measured: Measurements | None) -> Shares:
    if grouping == "global" and part.executors:
        # the task with the lowest id takes all rows
        return {min(part.executors): 1.0}
    if grouping == "all":
        measured = None
    return _shares(part, measured, "executed_per_s")


def _shares(part: ComponentView, measured: Measurements | None, rate: str) -> Shares:
    """Return the share of each executor by a measured rate; by its tasks where none is known."""
    amounts: dict[ExecutorId, float] = {}
    if measured:
        amounts = {executor: getattr(measured.load(executor), rate) for executor in part.executors}
    total = sum(amounts.values())
    if total <= 0.0:
        amounts = {executor: float(len(executor.tasks)) for executor in part.executors}
        total = sum(amounts.values())
    return {executor: amount / total for executor, amount in amounts.items()} if total else {}


def bytes_between(topology: TopologyView, sender: ExecutorId, receiver: ExecutorId) -> float:
    """Return the bytes a second that one executor sends to another; of many pairs, ask `flows_of`
    once.
    """
    return sum(flow.between(sender, receiver) for flow in flows_of(topology))
