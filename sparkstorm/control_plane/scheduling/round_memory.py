"""Cache between rounds of scheduling: views and placements of unchanged topologies. PURE.

Readers return the same objects for unchanged records, so the cache compares identities. Cached
placements never change: schedulers get copies on write. A round with an empty cache gives the same
plan.
"""

import copy
from collections.abc import Container, Mapping
from dataclasses import dataclass

from sparkstorm.common.model.assignment import Assignment, ExecutorId
from sparkstorm.common.model.tasks import cell_by_task
from sparkstorm.control_plane.scheduling.placement import Placement
from sparkstorm.control_plane.scheduling.records import ComponentView, InputView, TopologyView
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology


@dataclass(frozen=True, slots=True)
class _Remembered:
    """One topology: its records, the view and the placement made of them; `placement` has the whole
    assignment.
    """

    known: KnownTopology
    view: TopologyView
    assignment: Assignment | None = None
    placement: Placement | None = None


class RoundMemory:
    """Memory of the topologies of the last round."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Remembered] = {}

    def keep_only(self, topology_ids: Container[str]) -> None:
        """Drop topologies that are gone."""
        self._by_id = {each: found for each, found in self._by_id.items() if each in topology_ids}

    def view(self, known: KnownTopology, now_ms: int) -> TopologyView:
        """Return the topology as schedulers see it."""
        topology_id = known.base.topology_id
        found = self._by_id.get(topology_id)
        if found is None or not _same(found.known, known):
            found = self._by_id[topology_id] = _Remembered(known, topology_view(known, now_ms))
        return _aged(found.view, max(0, now_ms - known.base.launch_ms))

    def placement(self, topology_id: str, assignment: Assignment) -> Placement:
        """Return a copy on write of the assignment's placement without unknown executors; call
        `view` first.
        """
        found = self._by_id[topology_id]
        if found.placement is None or found.assignment is not assignment:
            placed = assignment.slot_by_executor
            if not placed.keys() <= found.view.component_by_executor.keys():
                placed = {
                    each: slot
                    for each, slot in placed.items()
                    if each in found.view.component_by_executor
                }
            whole = Placement(found.view, placed)
            found = self._by_id[topology_id] = _Remembered(
                found.known, found.view, assignment, whole
            )
        assert found.placement is not None
        return found.placement.fork()


def _same(old: KnownTopology, new: KnownTopology) -> bool:
    # Confs are merged at each reading: compare the key of the topology's conf blob; the cluster's
    # conf does not change.
    return old is new or (
        old.base is new.base and old.outline is new.outline and old.conf == new.conf
    )


def _aged(view: TopologyView, uptime_ms: int) -> TopologyView:
    if view.uptime_ms == uptime_ms:
        return view
    twin = copy.copy(view)
    object.__setattr__(twin, "uptime_ms", uptime_ms)
    return twin


def topology_view(known: KnownTopology, now_ms: int) -> TopologyView:
    """Return a topology as schedulers see it, made from its records."""
    by_component: dict[str, list[ExecutorId]] = {each: [] for each in known.outline.components}
    for executor in known.executors():
        by_component[known.outline.component_by_task[executor.first_task]].append(executor)
    components = tuple(
        ComponentView(
            name,
            part.kind,
            tuple(by_component[name]),
            part.conf,
            tuple(InputView(each.component, each.stream, each.grouping) for each in part.inputs),
        )
        for name, part in sorted(known.outline.components.items())
    )
    base = known.base
    uptime_ms = max(0, now_ms - base.launch_ms)
    return TopologyView(
        base.topology_id,
        base.name,
        components,
        base.num_workers,
        base.owner,
        uptime_ms,
        known.conf,
        _cells(known),
    )


def _cells(known: KnownTopology) -> Mapping[int, int]:
    """Return the cell of each task of a topology over several stores."""
    cells = known.base.cells
    return cell_by_task(known.outline.component_by_task, len(cells)) if cells else {}
