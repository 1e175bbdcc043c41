"""Previous placement of each topology and why it is being rescheduled (JStorm's scheduler needs
both).
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot


class ScheduleReason(StrEnum):
    """Reason for scheduling a topology with a previous placement again."""

    DEATH = "DEATH"  # the regular round: executors may have died, or none
    REBALANCE = "REBALANCE"
    REASSIGN = "REASSIGN"  # a rebalance that keeps no executor in place
    SUBMISSION = "SUBMISSION"  # the placement is that of the last topology of the same name


@dataclass(frozen=True, slots=True)
class PreviousPlacement:
    """A topology's placement before the round, dead executors included; `alive` ones send
    heartbeats or may still start.
    """

    slot_by_executor: Mapping[ExecutorId, WorkerSlot]
    host_by_node: Mapping[str, str]
    reason: ScheduleReason = ScheduleReason.DEATH
    alive: Set[ExecutorId] = field(default_factory=frozenset)
