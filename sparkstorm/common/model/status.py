"""Status of a topology, actions of its life cycle, and the pending action with its due time.

A pending action is a stored record with its due time and parameters, so that timers survive a
restart of Nimbus. The transitions are in control_plane/scheduling/lifecycle.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

ADDED_LATER: Mapping[str, bool] = MappingProxyType({"added later": True})
"""Metadata of a field that records of earlier versions lack; they are read with its default
(common/model/strict.py).
"""


class TopologyStatus(StrEnum):
    """Life-cycle status of a topology (after Storm's TopologyStatus and JStorm's StatusType)."""

    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
    KILLED = "KILLED"
    REBALANCING = "REBALANCING"
    UPGRADING = "UPGRADING"
    ROLLBACK = "ROLLBACK"


class Action(StrEnum):
    """Event that changes a topology's status: requested by a user, or due by a timer (REMOVE,
    DO_REBALANCE).
    """

    ACTIVATE = "ACTIVATE"
    INACTIVATE = "INACTIVATE"
    KILL = "KILL"
    REMOVE = "REMOVE"
    REBALANCE = "REBALANCE"
    DO_REBALANCE = "DO_REBALANCE"
    UPGRADE = "UPGRADE"
    ROLL_BACK = "ROLL_BACK"
    END_UPGRADE = "END_UPGRADE"


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """Changes by a rebalance (Storm's RebalanceOptions); None or an empty map changes nothing."""

    num_workers: int | None = None
    executors_by_component: Mapping[str, int] = field(default_factory=dict)
    conf: Mapping[str, JsonValue] = field(default_factory=dict)
    resources_by_component: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # True: place every worker anew; False: keep valid placements (JStorm's `rebalance -r`).
    reassign: bool = False


@dataclass(frozen=True, slots=True)
class PendingAction:
    """An action with its due time."""

    action: Action
    due_ms: int
    rebalance: RebalanceOptions | None = None
    # REMOVE only: a successor takes over the topology's data outside the state store (hot deploy).
    has_heir: bool = False
    request_id: str = ""  # of the client's request that this carries out
