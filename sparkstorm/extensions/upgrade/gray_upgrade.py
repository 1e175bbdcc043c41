"""Decisions of a gray upgrade (JStorm's GrayUpgradeHandler): classify it, pick the next batch, find
its end. PURE.

Laws: a batch is picked once, by one write of the record; children of upgrading_workers are added
for its workers only; a worker counts as upgraded when it reports that it runs the code that it was
to get; nothing here depends on what a former handler had in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from zlib import crc32

from sparkstorm.common.model.assignment import Assignment, WorkerCode, WorkerSlot
from sparkstorm.common.model.topology import MASTER
from sparkstorm.common.model.upgrade import (
    GrayUpgrade,
    UpgradeOptions,
    UpgradeStage,
    UpgradeState,
    code_text,
)

Workers = Mapping[WorkerSlot, Set[str]]
"""Components of each worker that can be upgraded."""


@dataclass(frozen=True, slots=True)
class UpgradeStep:
    """Writes of one step, in this order: the record, then children added to and removed from the
    two folders.
    """

    record: GrayUpgrade | None = None  # None: as it is
    add_upgrading: tuple[WorkerSlot, ...] = ()
    drop_upgrading: tuple[WorkerSlot, ...] = ()
    drop_upgraded: tuple[WorkerSlot, ...] = ()
    is_rolled_back: bool = False

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to write."""
        return self == UpgradeStep()


def classify(upgrade: GrayUpgrade | None, now_ms: int) -> UpgradeStage:
    """Return the stage of an upgrade (S0.17); a rollback and an end go before the time limit."""
    if upgrade is None:
        return UpgradeStage.NONE
    if upgrade.rollback:
        return UpgradeStage.ROLLING_BACK
    if upgrade.completed_ms:
        return UpgradeStage.COMPLETED
    if now_ms > upgrade.expires_ms:
        return UpgradeStage.EXPIRED
    return UpgradeStage.SHADOWING if upgrade.unpassed_bar else UpgradeStage.IN_PROGRESS


def upgradable(
    assignment: Assignment, component_by_task: Mapping[int, str]
) -> dict[WorkerSlot, frozenset[str]]:
    """Return the workers of an assignment with their components, the topology master's own worker
    left out (S0.28).
    """
    components_by_slot = {
        slot: frozenset(
            component_by_task.get(task, "") for executor in held for task in executor.tasks
        )
        for slot, held in assignment.executors_by_slot().items()
    }
    return {slot: names for slot, names in components_by_slot.items() if names != {MASTER}}


def has_single_master(assignment: Assignment, component_by_task: Mapping[int, str]) -> bool:
    """Return whether the topology master has its own worker (S0.7); True when the topology has
    no master.
    """
    slots = {
        s
        for e, s in assignment.slot_by_executor.items()
        if any(component_by_task.get(t) == MASTER for t in e.tasks)
    }
    return not slots & upgradable(assignment, component_by_task).keys()


def pick(options: UpgradeOptions, remaining: Workers, seed: str) -> tuple[WorkerSlot, ...]:
    """Return the next batch out of the workers that are not upgraded yet (S0.9-S0.13).

    Named workers go first and alone; then workers of the component; then any. "Random" is an order
    drawn from `seed`.
    """
    if options.workers:
        return tuple(sorted(set(options.workers) & remaining.keys()))
    able = [
        slot
        for slot, components in remaining.items()
        if not options.component or options.component in components
    ]
    number = len(able) if options.component and not options.worker_num else options.worker_num
    return tuple(
        sorted(sorted(able, key=lambda slot: (crc32(f"{seed}/{slot}".encode()), slot))[:number])
    )


def done_workers(upgrade: GrayUpgrade, state: UpgradeState, workers: Workers) -> set[WorkerSlot]:
    """Return the workers that report that they run the code they were to get."""
    return {
        slot
        for slot, text in state.upgraded.items()
        if slot in workers and text == code_text(upgrade.target(slot))
    }


def confirmed(state: UpgradeState, assignment: Assignment) -> UpgradeState:
    """Return a state whose upgraded workers are those to which the assignment gives the code that
    they reported.

    A worker whose executors were without a place for a while comes back on the topology's code,
    until Nimbus gives it the new one again: until then it is no upgraded worker. Workers without a
    place stay listed, for `advance` to drop.
    """
    placed = set(assignment.slot_by_executor.values())
    told = {
        s: text
        for s, text in state.upgraded.items()
        if s not in placed or code_text(assignment.code_at(s)) == text
    }
    return replace(state, upgraded=told)


def advance(
    upgrade: GrayUpgrade, state: UpgradeState, workers: Workers, now_ms: int
) -> UpgradeStep:
    """Return the writes that bring an upgrade on by one step; an idle step when it waits for
    workers or for a request.
    """
    if upgrade.completed_ms:
        return UpgradeStep()
    done = done_workers(upgrade, state, workers)
    wanted = {slot for slot in upgrade.batch if slot in workers}
    add = tuple(sorted(wanted - done - state.upgrading))
    gone = state.upgrading - wanted
    if add or gone:
        return UpgradeStep(add_upgrading=add, drop_upgrading=tuple(sorted(gone)))
    if lost := state.upgraded.keys() - workers.keys():
        return UpgradeStep(drop_upgraded=tuple(sorted(lost)))
    if wanted - done:
        return UpgradeStep()
    if upgrade.rollback:
        return UpgradeStep(is_rolled_back=True)
    if len(done) >= len(workers) or now_ms > upgrade.expires_ms:
        return UpgradeStep(record=replace(upgrade, completed_ms=now_ms, continue_upgrading=False))
    if upgrade.unpassed_bar or not upgrade.continue_upgrading:
        return UpgradeStep()
    remaining = {slot: components for slot, components in workers.items() if slot not in done}
    return UpgradeStep(record=_with_batch(upgrade, remaining))


def _with_batch(upgrade: GrayUpgrade, remaining: Workers) -> GrayUpgrade:
    """Return the record with its next batch; named workers are published once and then forgotten
    (S0.10, S0.23).
    """
    batch = pick(
        upgrade.options, remaining, f"{upgrade.topology_id}/{upgrade.started_ms}/{upgrade.batches}"
    )
    options = replace(upgrade.options, workers=())
    return replace(
        upgrade, batch=batch, batches=upgrade.batches + 1, options=options, continue_upgrading=False
    )


def taken_back(
    upgrade: GrayUpgrade, state: UpgradeState, assignment: Assignment, workers: Workers, why: str
) -> GrayUpgrade:
    """Return the record of an upgrade that is rolled back: every worker that has, or is to have,
    the new code is its batch.
    """
    moved = {slot for slot in workers if assignment.code_at(slot) == upgrade.code} | state.upgrading
    batch = tuple(
        sorted(
            slot
            for slot in moved
            if slot in workers and upgrade.former_by_slot.get(slot, upgrade.former) != upgrade.code
        )
    )
    return replace(upgrade, rollback=why, batch=batch, continue_upgrading=False, completed_ms=0)


def codes_wanted(
    upgrade: GrayUpgrade, state: UpgradeState, assignment: Assignment
) -> dict[WorkerSlot, WorkerCode]:
    """Return the code of each slot with code of its own, for the next assignment.

    Workers that were moved to another slot keep the new code that they had, and workers that come
    back to theirs get it again; a rollback takes it from all.
    """
    if upgrade.rollback:
        return dict(upgrade.former_by_slot)
    kept_slots = {slot for slot, code in assignment.code_by_slot.items() if code == upgrade.code}
    listed = {slot for slot, text in state.upgraded.items() if text == code_text(upgrade.code)}
    return {
        **upgrade.former_by_slot,
        **dict.fromkeys(state.upgrading | kept_slots | listed, upgrade.code),
    }


def final_code(upgrade: GrayUpgrade, assignment: Assignment, workers: Workers) -> WorkerCode:
    """Return the code of the topology after a completed upgrade: the new one when every worker runs
    it, else the former.

    An upgrade of some workers or one component that is completed by force leaves the others on
    their code (S0.30).
    """
    return (
        upgrade.code
        if all(assignment.code_at(slot) == upgrade.code for slot in workers)
        else upgrade.former
    )
