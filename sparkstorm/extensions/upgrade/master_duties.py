"""Handler of gray upgrades (JStorm's GrayUpgradeHandler).

The slot that holds the topology master's task runs it; for a topology without a master, Nimbus.
Nothing is in memory that the next one needs, so the loss of either only delays an upgrade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sparkstorm.common.model.assignment import Assignment
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.upgrade import GrayUpgrade, UpgradeState
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.extensions.upgrade.gray_upgrade import advance, confirmed, taken_back, upgradable
from sparkstorm.extensions.upgrade.judgement import Sightings, judge
from sparkstorm.extensions.upgrade.live_shadow import judge_shadow
from sparkstorm.extensions.upgrade.state import GrayUpgradeState


class UpgradeHandler:
    """Handler of one topology's gray upgrade (JStorm's GrayUpgradeHandler): judges, picks, lists,
    and reports its end.
    """

    def __init__(self, state: StormState) -> None:
        self._state = state
        self._records = GrayUpgradeState(state)
        self._seen = Sightings()

    def step(
        self,
        state: UpgradeState,
        assignment: Assignment,
        component_by_task: Mapping[int, str],
        beats: Sequence[WorkerBeat],
        now_ms: int,
    ) -> bool:
        """Carry the upgrade on by one step; whether something was written."""
        upgrade = state.upgrade
        if upgrade is None or upgrade.completed_ms:
            return False
        workers = upgradable(assignment, component_by_task)
        is_passed, why = judge_shadow(upgrade, beats)
        if why := why or self._judged(upgrade, assignment, component_by_task, beats):
            self._change(upgrade, taken_back(upgrade, state, assignment, workers, why))
            return True
        if is_passed and upgrade.shadow:
            self._change(upgrade, replace(upgrade, shadow=replace(upgrade.shadow, is_passed=True)))
            return True
        step = advance(upgrade, confirmed(state, assignment), workers, now_ms)
        if step.is_idle or step.is_rolled_back:
            return False
        self._records.carry_out(upgrade, step)
        return True

    def _change(self, upgrade: GrayUpgrade, changed: GrayUpgrade) -> None:
        self._state.change_upgrade(
            upgrade.topology_id, lambda stored: changed if stored == upgrade else None
        )

    def _judged(
        self,
        upgrade: GrayUpgrade,
        assignment: Assignment,
        component_by_task: Mapping[int, str],
        beats: Sequence[WorkerBeat],
    ) -> str:
        """Return why the upgrade is to be taken back; nothing when it is not."""
        if upgrade.rollback or not upgrade.bounds.is_enabled:
            return ""
        self._seen = self._seen.with_beats(beats, assignment, upgrade)
        return judge(upgrade, assignment, beats, self._seen, component_by_task)
