"""Duties of a topology master (JStorm's TopologyMaster): gather task heartbeats, run the handler of
gray upgrades.

The slot that holds the master's task does them; for a topology without a master, Nimbus. Nothing is
in memory that the next one needs, so the loss of either only delays the duties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from sparkstorm.common.model.assignment import Assignment, WorkerBeat
from sparkstorm.common.model.task_beats import TaskBeats, gather
from sparkstorm.common.model.topology import MASTER
from sparkstorm.common.model.upgrade import GrayUpgrade, UpgradeState
from sparkstorm.extensions.upgrade.gray_upgrade import advance, confirmed, taken_back, upgradable
from sparkstorm.extensions.upgrade.judgement import Sightings, judge
from sparkstorm.extensions.upgrade.live_shadow import judge_shadow
from sparkstorm.extensions.upgrade.state import GrayUpgradeState


class TaskBeatStore(Protocol):
    """The store of task heartbeats."""

    def write_task_beats(self, beats: TaskBeats) -> None:
        """Record a topology's task heartbeats."""


def master_task(component_by_task: Mapping[int, str]) -> int | None:
    """Return the task of the topology master; None when the topology has none."""
    return next(
        (task for task, component in sorted(component_by_task.items()) if component == MASTER), None
    )


class UpgradeHandler:
    """Handler of one topology's gray upgrade (JStorm's GrayUpgradeHandler): judges, picks, lists,
    and reports its end.
    """

    def __init__(self, store: GrayUpgradeState) -> None:
        self._store = store
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
        self._store.carry_out(upgrade, step)
        return True

    def _change(self, upgrade: GrayUpgrade, changed: GrayUpgrade) -> None:
        self._store.change_upgrade(
            upgrade.topology_id, lambda found: changed if found == upgrade else None
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


class TaskBeatGatherer:
    """Writer of taskbeats/<id>, once per period, when workers have statistics."""

    def __init__(self, store: TaskBeatStore, period_ms: int) -> None:
        self._store = store
        self._period_ms = period_ms
        self._due_ms: dict[str, int] = {}

    def is_due(self, topology_id: str, now_ms: int) -> bool:
        """Return whether that topology's record is to be written now."""
        return now_ms >= self._due_ms.get(topology_id, 0)

    def step(
        self,
        topology_id: str,
        beats: Sequence[WorkerBeat],
        component_by_task: Mapping[int, str],
        now_ms: int,
    ) -> None:
        """Write the record if it is due."""
        if not self.is_due(topology_id, now_ms) or not component_by_task:
            return
        self._due_ms[topology_id] = now_ms + self._period_ms
        found = gather(
            topology_id, master_task(component_by_task), beats, component_by_task, now_ms
        )
        if found.by_task:
            self._store.write_task_beats(found)

    def keep_only(self, topology_ids: set[str]) -> None:
        """Drop topologies that are gone."""
        self._due_ms = {
            each: due_ms for each, due_ms in self._due_ms.items() if each in topology_ids
        }
