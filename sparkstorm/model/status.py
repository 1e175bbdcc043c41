"""Owns a topology's status words, the actions of its life cycle and the request that waits for its time.

Laws: an action that waits is a record with its due time and its parameters, so that every timer survives a Nimbus
restart; nothing here decides (scheduling/lifecycle.py does).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


class TopologyStatus(StrEnum):
    """Where a topology stands (after Storm's TopologyStatus and JStorm's StatusType)."""

    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
    KILLED = "KILLED"
    REBALANCING = "REBALANCING"
    UPGRADING = "UPGRADING"
    ROLLBACK = "ROLLBACK"


class Action(StrEnum):
    """What may happen to a topology's status: asked for by a user, or due by a timer (REMOVE, DO_REBALANCE)."""

    ACTIVATE = "ACTIVATE"
    INACTIVATE = "INACTIVATE"
    KILL = "KILL"
    REMOVE = "REMOVE"
    REBALANCE = "REBALANCE"
    DO_REBALANCE = "DO_REBALANCE"


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """What a rebalance changes; None or an empty map leaves that part as it is (after Storm's RebalanceOptions)."""

    num_workers: int | None = None
    executors_by_component: Mapping[str, int] = field(default_factory=dict)
    conf: Mapping[str, JsonValue] = field(default_factory=dict)
    resources_by_component: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # True: place every worker afresh; False: keep what may stay (JStorm's `rebalance -r`).
    reassign: bool = False


@dataclass(frozen=True, slots=True)
class PendingAction:
    """An action with the moment it falls due."""

    action: Action
    due_ms: int
    rebalance: RebalanceOptions | None = None
    # REMOVE only: a successor takes over what the topology leaves outside the state store (hot deploy).
    has_heir: bool = False
    request_id: str = ""  # of the client's request that this carries out
