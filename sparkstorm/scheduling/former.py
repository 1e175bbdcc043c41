"""Owns what was before a round, for schedulers that go by it as JStorm's does: the former placement and why it changes."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

from sparkstorm.model.assignment import ExecutorId, WorkerSlot


class Cause(StrEnum):
    """Why a topology with a former placement may be placed anew."""

    DEATH = "DEATH"  # or nothing at all: the monitor's round
    REBALANCE = "REBALANCE"
    REASSIGN = "REASSIGN"  # a rebalance that keeps nothing
    SUBMISSION = "SUBMISSION"  # the placement is that of the last topology of this name


@dataclass(frozen=True, slots=True)
class Former:
    """A topology's placement before the round, the dead included; `alive` are those that beat or may still start."""

    slot_by_executor: Mapping[ExecutorId, WorkerSlot]
    host_by_node: Mapping[str, str]
    cause: Cause = Cause.DEATH
    alive: Set[ExecutorId] = field(default_factory=frozenset)
