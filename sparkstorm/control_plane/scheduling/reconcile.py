"""Steps from a scheduler's answer to the next assignment: checks, unchanged executors, moves. PURE.

Laws: no difference, no new assignment; an executor that keeps its slot keeps its start time and its
fence; versions only grow; an answer that breaks the rules is refused as a whole, and the last good
assignment remains.
"""

from collections import Counter
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, replace

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.common.model.assignment import (
    Assignment,
    AssignmentKind,
    ExecutorId,
    WorkerCode,
    WorkerSlot,
)
from sparkstorm.common.model.names import machine_of_node

Placements = Mapping[str, Mapping[ExecutorId, WorkerSlot]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Contents of the next assignment next to the placement."""

    topology_id: str
    code_key: str
    conf_key: str
    kind: AssignmentKind


def next_assignment(
    old: Assignment | None,
    wanted: Wanted,
    placed: Mapping[ExecutorId, WorkerSlot],
    host_by_node: Mapping[str, str],
    now_ms: int,
) -> Assignment | None:
    """Return the assignment to write, or None if the present one is equal."""
    if (
        old
        and (old.slot_by_executor is placed or old.slot_by_executor == placed)
        and _same_content(old, wanted)
    ):
        return None
    version = old.version + 1 if old else 1
    stays = {
        executor
        for executor, slot in placed.items()
        if old and old.slot_by_executor.get(executor) == slot
    }
    nodes = {slot.node for slot in placed.values()}
    hosts = {**(old.host_by_node if old else {}), **host_by_node}
    return Assignment(
        topology_id=wanted.topology_id,
        version=version,
        code_key=wanted.code_key,
        conf_key=wanted.conf_key,
        host_by_node={node: hosts.get(node, "") for node in sorted(nodes)},
        slot_by_executor=dict(placed),
        start_ms_by_executor={
            executor: old.start_ms_by_executor.get(executor, now_ms)
            if old and executor in stays
            else now_ms
            for executor in placed
        },
        placed_version_by_executor={
            executor: old.placed_version_by_executor.get(executor, version)
            if old and executor in stays
            else version
            for executor in placed
        },
        kind=wanted.kind,
        code_by_slot=_codes_after(old, wanted, placed) if old and old.code_by_slot else {},
    )


def _codes_after(
    old: Assignment, wanted: Wanted, placed: Mapping[ExecutorId, WorkerSlot]
) -> dict[WorkerSlot, WorkerCode]:
    """Return the slots with code of their own: those that had it, and new ones whose executors all
    come from the same code.
    """
    held = set(old.slot_by_executor.values())
    base = WorkerCode(wanted.code_key, wanted.conf_key)
    former: dict[WorkerSlot, set[WorkerCode]] = {}
    for executor, slot in placed.items():
        source = slot if slot in held else old.slot_by_executor.get(executor)
        if source is not None:
            former.setdefault(slot, set()).add(old.code_by_slot.get(source, base))
    code_by_slot = {
        slot: next(iter(codes)) for slot, codes in sorted(former.items()) if len(codes) == 1
    }
    return {slot: code for slot, code in code_by_slot.items() if code != base}


def with_codes(
    old: Assignment, base: WorkerCode, code_by_slot: Mapping[WorkerSlot, WorkerCode], now_ms: int
) -> Assignment | None:
    """Return the same placement with these codes, `base` where a slot has none of its own; None
    when nothing changes.

    Fences of the workers whose code changes are raised to the new version: the store then refuses
    commits of the former code.
    """
    slots = sorted(set(old.slot_by_executor.values()))
    codes = {slot: code for slot in slots if (code := code_by_slot.get(slot, base)) != base}
    after = replace(old, code_key=base.code_key, conf_key=base.conf_key, code_by_slot=codes)
    if after == old:
        return None
    changed = {slot for slot in slots if after.code_at(slot) != old.code_at(slot)}
    return replace(restarted(after, changed, now_ms), kind=AssignmentKind.UPDATE)


def _same_content(old: Assignment, wanted: Wanted) -> bool:
    return (old.code_key, old.conf_key) == (wanted.code_key, wanted.conf_key)


def kept_for_rebalance(
    placed: Mapping[ExecutorId, WorkerSlot], executors: Collection[ExecutorId], num_workers: int
) -> dict[ExecutorId, WorkerSlot]:
    """Return the part of a placement that an even distribution over `num_workers` can keep; the
    rest moves.

    A slot is kept with exactly one of the sizes that remain, so what is freed fills the slots that
    remain: a scheduler never has to add to a slot in use. Slots with the most survivors go first,
    among equals those of the machine of which fewest are kept: half of the workers stay on all
    machines, not on the first half of them.
    """
    survivors: dict[WorkerSlot, list[ExecutorId]] = {}
    wanted = frozenset(executors)
    for executor in sorted(wanted & placed.keys()):
        survivors.setdefault(placed[executor], []).append(executor)
    base, extra = divmod(len(wanted), max(1, num_workers))
    sizes = [base + 1] * extra + [base] * (num_workers - extra)
    staying: dict[ExecutorId, WorkerSlot] = {}
    for slot in _spread(survivors):
        held = survivors[slot]
        size = next((candidate for candidate in sizes if 0 < candidate <= len(held)), 0)
        if size:
            sizes.remove(size)
            staying.update(dict.fromkeys(held[:size], slot))
    return staying


def _spread(survivors: Mapping[WorkerSlot, Collection[ExecutorId]]) -> list[WorkerSlot]:
    """Return the slots with most survivors first; those with equal numbers in turn, a slot of each
    machine.
    """
    turn_by_machine: Counter[str] = Counter()
    ranked = []
    for slot, held in sorted(survivors.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        machine = machine_of_node(slot.node)
        ranked.append((-len(held), turn_by_machine[machine], slot))
        turn_by_machine[machine] += 1
    return [slot for _, _, slot in sorted(ranked)]


def check_answer(
    answer: Placements,
    executors: Mapping[str, Collection[ExecutorId]],
    slots: Container[WorkerSlot],
    taken: Mapping[WorkerSlot, str] | None = None,
) -> None:
    """Refuse a scheduler's answer with executors of other topologies, a slot that is used twice or
    one that is not offered.

    `slots` are the offered ones and those already in use before the round; `taken` those of
    topologies left alone.
    """
    owner_by_slot = dict(taken or {})
    for topology_id, placed in sorted(answer.items()):
        unknown = placed.keys() - set(executors.get(topology_id, ()))
        if unknown:
            raise FailedAssignTopologyError(
                f"the scheduler placed {min(unknown)}, which {topology_id} does not have"
            )
        for slot in sorted(set(placed.values())):
            if slot not in slots:
                raise FailedAssignTopologyError(
                    f"the scheduler put {topology_id} on {slot}, which is not offered"
                )
            if owner_by_slot.setdefault(slot, topology_id) != topology_id:
                raise FailedAssignTopologyError(
                    f"the scheduler put both {owner_by_slot[slot]} and {topology_id} on {slot}"
                )


def with_new_version(old: Assignment, kind: AssignmentKind) -> Assignment:
    """Return the same placement under a new version (JStorm's UpdateTopology)."""
    return replace(old, version=old.version + 1, kind=kind)


def placed_anew(old: Assignment, version: int) -> Assignment:
    """Return the placement under that version, with every executor's fence raised to it, which
    fences off former owners.
    """
    return replace(
        old,
        version=version,
        placed_version_by_executor=dict.fromkeys(old.slot_by_executor, version),
    )


def restarted(old: Assignment, slots: Container[WorkerSlot], now_ms: int) -> Assignment:
    """Return the same placement under a new version, with the fences of the executors in those
    slots raised to it.
    """
    version = old.version + 1
    again = [executor for executor, slot in old.slot_by_executor.items() if slot in slots]
    return replace(
        old,
        version=version,
        start_ms_by_executor={**old.start_ms_by_executor, **dict.fromkeys(again, now_ms)},
        placed_version_by_executor={
            **old.placed_version_by_executor,
            **dict.fromkeys(again, version),
        },
    )
