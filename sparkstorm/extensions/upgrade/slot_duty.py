"""Gray upgrades in a slot: its worker reports its new code, runs it as a shadow before, and the
slot of the topology master's task runs the handler.

The master's worker child has no session with the store, so its slot reads and writes for it, while
that worker beats. When the worker or the slot is lost, the handler waits until the master runs
again; the topology goes on meanwhile. Source: JStorm's TopologyMaster.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from sparkstorm.common.errors import SparkStormError, StateConflictError, StoreUnavailableError
from sparkstorm.common.model.assignment import Assignment, WorkerCode
from sparkstorm.common.model.heartbeats import master_task
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.worker_messages import NO_SHADOW, SetShadow
from sparkstorm.control_plane.cluster.base import Hint
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.supervisor.extension import BringCode, SlotContext, SlotExtension
from sparkstorm.extensions.upgrade.live_shadow import shadowed_task
from sparkstorm.extensions.upgrade.master_duties import UpgradeHandler
from sparkstorm.extensions.upgrade.state import GrayUpgradeState

_LOG = logging.getLogger(__name__)
_UPGRADES = (TopologyStatus.UPGRADING, TopologyStatus.ROLLBACK)
_HANDLER_MS = 1_000  # JStorm's handler looks every 15 s


class SlotUpgrades(SlotExtension):
    """Duties of one slot in the gray upgrade of its topology."""

    def __init__(self, state: StormState, hint: Hint) -> None:
        super().__init__(state, hint)
        self._records = GrayUpgradeState(state)
        self._handler = UpgradeHandler(state)
        self._handled_id = ""  # topology of the handler
        self._due_ms = 0

    def shadow(self, view: SlotContext, known_shadow: SetShadow, bring: BringCode) -> SetShadow:
        """Return the new code of an upgrade whose bar is open, fetched and checked, where one of
        this worker's tasks is the one that the bar measures.
        """
        part, upgrade = view.part, None
        if view.status is TopologyStatus.UPGRADING:
            upgrade = self.state.read_upgrade(part.topology_id, self.hint)
        bar = upgrade.unpassed_bar if upgrade is not None else None
        task = shadowed_task(bar.component, view.component_by_task) if bar is not None else None
        if upgrade is None or task is None or task not in part.tasks:
            return NO_SHADOW
        new = upgrade.code
        if (known_shadow.task, known_shadow.code_key) == (task, new.code_key):
            return known_shadow
        try:
            code = bring(replace(part, code_key=new.code_key, conf_key=new.conf_key))
        except (SparkStormError, OSError) as fault:
            if isinstance(fault, StoreUnavailableError):
                raise
            _LOG.error("slot %s: code of the shadow of %s: %s", view.slot, part.topology_id, fault)
            return NO_SHADOW
        return SetShadow(task, str(code.code_path), new.code_key, code.conf)

    def step(self, view: SlotContext, now_ms: int) -> None:
        """Report the new code of the worker, and run the handler where it holds the topology
        master's task.
        """
        if view.runs is None or view.status not in _UPGRADES:
            return
        self._report_upgraded(view, view.runs)
        is_master = master_task(view.component_by_task) in view.part.tasks
        if is_master and view.assignment is not None and now_ms >= self._due_ms:
            self._handle(view.assignment, view.component_by_task, now_ms)

    def _report_upgraded(self, view: SlotContext, code: WorkerCode) -> None:
        """Move this worker from upgrading_workers to upgraded_workers when it has beaten under its
        new code (S0.24-S0.27).
        """
        part, records = view.part, self._records
        topology_id = part.topology_id
        if WorkerCode(part.code_key, part.conf_key) != code:
            return
        upgrade = self.state.read_upgrade(topology_id, self.hint)
        if upgrade is None or upgrade.target(view.slot) != code:
            return
        is_listed = records.is_upgrading(topology_id, view.slot, self.hint)
        if is_listed or (
            not upgrade.rollback
            and code != upgrade.former
            and not records.is_upgraded(topology_id, view.slot, code)
        ):
            records.write_upgraded(topology_id, view.slot, code)

    def _handle(
        self, assignment: Assignment, component_by_task: Mapping[int, str], now_ms: int
    ) -> None:
        topology_id = assignment.topology_id
        if topology_id != self._handled_id:
            self._handled_id, self._handler = topology_id, UpgradeHandler(self.state)
        try:
            did = self._handler.step(
                self._records.upgrade_state(topology_id),
                assignment,
                component_by_task,
                self.state.read_worker_beats(topology_id),
                now_ms,
            )
        except StateConflictError:
            did = True  # a request has changed the record meanwhile
        self._due_ms = now_ms + (0 if did else _HANDLER_MS)
