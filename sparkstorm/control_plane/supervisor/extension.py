"""Interface by which an optional feature plugs into a slot process.

Law: an extension is called in the slot's store thread and reads and writes records; its worker gets
only what a method returns. StoreUnavailableError passes through: the slot comes back to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sparkstorm.common.extension_points import extensions_at
from sparkstorm.common.model.assignment import Assignment, WorkerCode, WorkerSlot
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.worker_messages import NO_SHADOW, SetShadow
from sparkstorm.control_plane.cluster.base import Hint
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.supervisor.slot_code import Code
from sparkstorm.control_plane.supervisor.slot_machine import LocalAssignment

BringCode = Callable[[LocalAssignment], Code]
"""Brings the code of an assignment to this host; an error names what is missing."""


@dataclass(frozen=True, slots=True)
class SlotContext:
    """View of a slot for an extension: the part of an assignment that it follows, and the
    status of that topology.

    `runs`: the code under which its worker has beaten, None when there is no such worker;
    `assignment`: the whole one, known from then on.
    """

    slot: WorkerSlot
    part: LocalAssignment
    component_by_task: Mapping[int, str]
    status: TopologyStatus | None
    runs: WorkerCode | None = None
    assignment: Assignment | None = None


class SlotExtension:
    """An optional feature in one slot process; every method may be left out."""

    def __init__(self, state: StormState, hint: Hint) -> None:
        self.state = state
        self.hint = hint  # for watches: has the slot step at once

    def shadow(self, view: SlotContext, known_shadow: SetShadow, bring: BringCode) -> SetShadow:
        """Return the code that is to run next to one of the worker's tasks; `known_shadow` is the
        last answer.
        """
        return NO_SHADOW

    def step(self, view: SlotContext, now_ms: int) -> None:
        """Do what is due; the worker's heartbeats are written."""


def slot_extensions(state: StormState, hint: Hint) -> tuple[SlotExtension, ...]:
    """Return the extensions of one slot."""
    return tuple(made(state, hint) for made in extensions_at("slot"))
