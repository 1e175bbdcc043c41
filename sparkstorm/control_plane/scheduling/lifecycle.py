"""Life cycle of a topology: table of (status, action) -> decision. PURE; Nimbus carries the
decision out.

The union of Storm 2's table (Nimbus.TOPO_STATE_TRANSITIONS) and JStorm's (StatusTransition),
without JStorm's traps (docs/architecture.md): a rebalancing or rolling-back topology can be killed,
and a rebalance of an inactive topology ends inactive. Timers are records (`PendingAction`), so a
restarted Nimbus finds them in the store; KILL and REBALANCE asked for again set a new time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from sparkstorm.common.errors import IllegalTransitionError
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.status import Action, PendingAction, RebalanceOptions, TopologyStatus


class Effect(StrEnum):
    """Action of Nimbus beyond writing the topology's base."""

    NOTHING = "NOTHING"
    REMOVE = "REMOVE"
    REBALANCE = "REBALANCE"


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """Requested action with its parameters; `wait_ms` None or negative means the topology's message
    timeout.
    """

    action: Action
    wait_ms: int | None = None
    rebalance: RebalanceOptions | None = None
    has_heir: bool = False
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """New base of the topology, and the effect to carry out.

    Write the base only after the effect is done: a Nimbus that dies in between repeats the effect.
    """

    base: TopologyBase
    effect: Effect = Effect.NOTHING
    rebalance: RebalanceOptions | None = None


_Row: TypeAlias = Callable[[TopologyBase, ActionRequest, int], Decision]


def transition(
    base: TopologyBase, request: ActionRequest, now_ms: int, default_wait_ms: int
) -> Decision:
    """Return the decision for an action; IllegalTransitionError if the topology's status does not
    allow it.
    """
    rows = _rows(base)
    row = rows.get(request.action)
    if row is None:
        verb = _VERBS.get(request.action, (request.action.lower(),))[0]
        verbs = ", ".join(sorted(name for action in rows for name in _VERBS.get(action, ())))
        raise IllegalTransitionError(
            f"topology {base.name} is {base.status}: {verb} does not apply, only {verbs}"
        )
    wait_ms = (
        request.wait_ms if request.wait_ms is not None and request.wait_ms >= 0 else default_wait_ms
    )
    return row(base, replace(request, wait_ms=wait_ms), now_ms)


def _rows(base: TopologyBase) -> Mapping[Action, _Row]:
    """Return the actions of a topology's status.

    New code may be what a topology that was paused by its failures waits for; one that a user
    deactivated is not upgraded.
    """
    return _TABLE[base.status] | ({Action.UPGRADE: _upgrade} if base.paused else {})


def due_request(base: TopologyBase, now_ms: int) -> ActionRequest | None:
    """Return the pending action of a topology if it is due, else None."""
    pending = base.pending
    if pending is None or pending.due_ms > now_ms:
        return None
    return ActionRequest(pending.action, 0, pending.rebalance)


def _stay(base: TopologyBase, _request: ActionRequest, _now_ms: int) -> Decision:
    return Decision(base)


def _activate(base: TopologyBase, _request: ActionRequest, _now_ms: int) -> Decision:
    return Decision(
        replace(base, status=TopologyStatus.ACTIVE, activations=base.activations + 1, paused="")
    )


def _inactivate(base: TopologyBase, _request: ActionRequest, _now_ms: int) -> Decision:
    return Decision(replace(base, status=TopologyStatus.INACTIVE))


def _kill(base: TopologyBase, request: ActionRequest, now_ms: int) -> Decision:
    pending = PendingAction(
        Action.REMOVE,
        now_ms + (request.wait_ms or 0),
        has_heir=request.has_heir,
        request_id=request.request_id,
    )
    return Decision(
        replace(base, status=TopologyStatus.KILLED, previous_status=None, pending=pending)
    )


def _remove(base: TopologyBase, _request: ActionRequest, _now_ms: int) -> Decision:
    return Decision(base, Effect.REMOVE)


def _rebalance(base: TopologyBase, request: ActionRequest, now_ms: int) -> Decision:
    options = request.rebalance or RebalanceOptions()
    pending = PendingAction(
        Action.DO_REBALANCE, now_ms + (request.wait_ms or 0), options, request_id=request.request_id
    )
    previous = base.previous_status if base.status == TopologyStatus.REBALANCING else base.status
    return Decision(
        replace(base, status=TopologyStatus.REBALANCING, previous_status=previous, pending=pending)
    )


def _do_rebalance(base: TopologyBase, request: ActionRequest, _now_ms: int) -> Decision:
    options = request.rebalance or RebalanceOptions()
    after = replace(
        base,
        status=base.previous_status or TopologyStatus.ACTIVE,
        previous_status=None,
        pending=None,
        num_workers=base.num_workers if options.num_workers is None else options.num_workers,
        executors_by_component={**base.executors_by_component, **options.executors_by_component},
    )
    return Decision(after, Effect.REBALANCE, options)


def _upgrade(base: TopologyBase, _request: ActionRequest, _now_ms: int) -> Decision:
    return Decision(replace(base, status=TopologyStatus.UPGRADING))


def _roll_back(base: TopologyBase, _request: ActionRequest, _now_ms: int) -> Decision:
    return Decision(replace(base, status=TopologyStatus.ROLLBACK))


_TABLE: Mapping[TopologyStatus, dict[Action, _Row]] = {
    TopologyStatus.ACTIVE: {
        Action.ACTIVATE: _activate,
        Action.INACTIVATE: _inactivate,
        Action.REBALANCE: _rebalance,
        Action.KILL: _kill,
        Action.UPGRADE: _upgrade,
    },
    TopologyStatus.INACTIVE: {
        Action.ACTIVATE: _activate,
        Action.INACTIVATE: _stay,
        Action.REBALANCE: _rebalance,
        Action.KILL: _kill,
    },
    TopologyStatus.KILLED: {Action.KILL: _kill, Action.REMOVE: _remove},
    TopologyStatus.REBALANCING: {
        Action.REBALANCE: _rebalance,
        Action.DO_REBALANCE: _do_rebalance,
        Action.KILL: _kill,
    },
    TopologyStatus.UPGRADING: {
        Action.KILL: _kill,
        Action.ROLL_BACK: _roll_back,
        Action.END_UPGRADE: _activate,
    },
    TopologyStatus.ROLLBACK: {Action.KILL: _kill, Action.END_UPGRADE: _activate},
}
# Verbs of the actions that a user can request; actions of timers or of Nimbus itself have none.
_VERBS: Mapping[Action, tuple[str, ...]] = {
    Action.ACTIVATE: ("activate",),
    Action.INACTIVATE: ("deactivate",),
    Action.REBALANCE: ("rebalance",),
    Action.KILL: ("kill",),
    Action.UPGRADE: ("upgrade start",),
    Action.ROLL_BACK: ("upgrade rollback", "upgrade complete", "upgrade continue"),
}
