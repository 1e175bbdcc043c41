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
from sparkstorm.control_plane.scheduling.measured.measurements import Measurements
from sparkstorm.control_plane.scheduling.placement import Placement
from sparkstorm.control_plane.scheduling.records import ComponentView, InputView, TopologyView
from sparkstorm.control_plane.scheduling.snapshot import KnownTopology, Snapshot


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
        self._by_id = {
            topology_id: remembered
            for topology_id, remembered in self._by_id.items()
            if topology_id in topology_ids
        }

    def views(self, snapshot: Snapshot, now_ms: int) -> dict[str, TopologyView]:
        """Return all topologies as schedulers see them, and drop those that are gone."""
        self.keep_only(snapshot.topologies.keys())
        return {
            topology_id: self.view(topology, now_ms, snapshot.measured.get(topology_id))
            for topology_id, topology in snapshot.topologies.items()
        }

    def view(
        self, topology: KnownTopology, now_ms: int, measured: Measurements | None = None
    ) -> TopologyView:
        """Return the topology as schedulers see it."""
        topology_id = topology.base.topology_id
        remembered = self._by_id.get(topology_id)
        if remembered is None or not _same(remembered.known, topology):
            remembered = self._by_id[topology_id] = _Remembered(
                topology, topology_view(topology, now_ms)
            )
        return _aged(remembered.view, max(0, now_ms - topology.base.launch_ms), measured)

    def placement(self, topology_id: str, assignment: Assignment) -> Placement:
        """Return a copy on write of the assignment's placement without unknown executors; call
        `view` first.
        """
        remembered = self._by_id[topology_id]
        if remembered.placement is None or remembered.assignment is not assignment:
            placed = assignment.slot_by_executor
            if not placed.keys() <= remembered.view.component_by_executor.keys():
                placed = {
                    executor: slot
                    for executor, slot in placed.items()
                    if executor in remembered.view.component_by_executor
                }
            placement = Placement(remembered.view, placed)
            remembered = self._by_id[topology_id] = _Remembered(
                remembered.known, remembered.view, assignment, placement
            )
        assert remembered.placement is not None
        return remembered.placement.fork()


def _same(old: KnownTopology, new: KnownTopology) -> bool:
    # Confs are merged at each reading: compare the key of the topology's conf blob; the cluster's
    # conf does not change.
    return old is new or (
        old.base is new.base and old.outline is new.outline and old.conf == new.conf
    )


def _aged(view: TopologyView, uptime_ms: int, measured: Measurements | None) -> TopologyView:
    if view.uptime_ms == uptime_ms and view.measured is measured:
        return view
    twin = copy.copy(view)
    object.__setattr__(twin, "uptime_ms", uptime_ms)
    object.__setattr__(twin, "measured", measured)
    return twin


def topology_view(topology: KnownTopology, now_ms: int) -> TopologyView:
    """Return a topology as schedulers see it, made from its records."""
    by_component: dict[str, list[ExecutorId]] = {name: [] for name in topology.outline.components}
    for executor in topology.executors():
        by_component[topology.outline.component_by_task[executor.first_task]].append(executor)
    components = tuple(
        ComponentView(
            name,
            part.kind,
            tuple(by_component[name]),
            part.conf,
            tuple(
                InputView(source.component, source.stream, source.grouping)
                for source in part.inputs
            ),
        )
        for name, part in sorted(topology.outline.components.items())
    )
    base = topology.base
    uptime_ms = max(0, now_ms - base.launch_ms)
    return TopologyView(
        base.topology_id,
        base.name,
        components,
        base.num_workers,
        base.owner,
        uptime_ms,
        topology.conf,
        _cells(topology),
    )


def _cells(topology: KnownTopology) -> Mapping[int, int]:
    """Return the cell of each task of a topology over several stores."""
    cells = topology.base.cells
    return cell_by_task(topology.outline.component_by_task, len(cells)) if cells else {}
