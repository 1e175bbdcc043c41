"""Records under /gray_upgrade/<id>: the upgrade, and the workers that are being upgraded and that
were (S0.15-S0.31).

The record is written by Nimbus and by the handler, always as a change of what was read. The two
folders hold one child per worker, which is only added and removed: slots that upgrade at the same
time never write the same node.

An upgrade ends with its record; then the children are removed. A writer that adds a child reads the
record again afterwards and takes the child back when the upgrade has ended meanwhile: either the
remover has seen the child, or its writer sees the end.
"""

from sparkstorm.common.model.assignment import WorkerCode, WorkerSlot
from sparkstorm.common.model.names import name_to_node, node_to_name
from sparkstorm.common.model.upgrade import GrayUpgrade, UpgradeState, code_text
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.base import Hint
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.extensions.upgrade.gray_upgrade import UpgradeStep


class GrayUpgradeState:
    """Verbs of gray upgrades next to those of their record, which StormState has."""

    def __init__(self, state: StormState) -> None:
        self._state = state
        self.store = state.store

    def upgrade_state(self, topology_id: str, hint: Hint | None = None) -> UpgradeState:
        """Return the record and both folders; names that are no workers are passed over."""
        upgrade = self._state.read_upgrade(topology_id, hint)
        upgrading = self._workers(paths.upgrading_workers(topology_id), hint)
        folder = paths.upgraded_workers(topology_id)
        upgraded = {}
        for slot in self._workers(folder, hint):
            node = self.store.get(paths.under(folder, str(slot)), hint)
            if node is not None:
                upgraded[slot] = node.data.decode(errors="replace")
        return UpgradeState(upgrade, frozenset(upgrading), upgraded)

    def is_upgrading(self, topology_id: str, slot: WorkerSlot, hint: Hint | None = None) -> bool:
        """Return whether that worker is to be upgraded; the hint fires when the folder changes."""
        return name_to_node(str(slot)) in self.store.children(
            paths.upgrading_workers(topology_id), hint
        )

    def is_upgraded(self, topology_id: str, slot: WorkerSlot, code: WorkerCode) -> bool:
        """Return whether that worker is among the upgraded ones with that code."""
        stored = self.store.get(paths.under(paths.upgraded_workers(topology_id), str(slot)))
        return stored is not None and stored.data == code_text(code).encode()

    def write_upgraded(self, topology_id: str, slot: WorkerSlot, code: WorkerCode) -> None:
        """Record that a worker runs its new code: first among the upgraded, then no longer among
        the upgrading.
        """
        path = paths.under(paths.upgraded_workers(topology_id), str(slot))
        self.store.put(path, code_text(code).encode())
        self.store.delete(paths.under(paths.upgrading_workers(topology_id), str(slot)))
        upgrade = self._state.read_upgrade(topology_id)
        if upgrade is None or upgrade.target(slot) != code:
            self.store.delete(path)

    def carry_out(self, upgrade: GrayUpgrade, step: UpgradeStep) -> None:
        """Write one step of an upgrade, its record first; nothing when the record has changed
        since.
        """
        topology_id = upgrade.topology_id
        record = step.record
        if record is not None:
            self._state.change_upgrade(
                topology_id, lambda stored: record if stored == upgrade else None
            )
        upgrading = paths.upgrading_workers(topology_id)
        upgraded = paths.upgraded_workers(topology_id)
        for slot in step.add_upgrading:
            self.store.ensure_path(paths.under(upgrading, str(slot)))
        for slot in step.drop_upgrading:
            self.store.delete(paths.under(upgrading, str(slot)))
        for slot in step.drop_upgraded:
            self.store.delete(paths.under(upgraded, str(slot)))
        if step.add_upgrading and not self._is_under_way(upgrade):
            for slot in step.add_upgrading:
                self.store.delete(paths.under(upgrading, str(slot)))

    def _is_under_way(self, upgrade: GrayUpgrade) -> bool:
        stored = self._state.read_upgrade(upgrade.topology_id)
        return stored is not None and (stored.started_ms, stored.code) == (
            upgrade.started_ms,
            upgrade.code,
        )

    def clear_upgrade(self, topology_id: str) -> None:
        """Remove the record, then both folders' children (S0.29); to be called again if it is cut
        in between.
        """
        self.store.put(paths.gray_upgrade(topology_id), b"")
        for folder in (paths.upgrading_workers(topology_id), paths.upgraded_workers(topology_id)):
            for name in self.store.children(folder):
                self.store.delete(f"{folder}/{name}")

    def _workers(self, folder: str, hint: Hint | None) -> list[WorkerSlot]:
        slots = []
        for node in self.store.children(folder, hint):
            try:
                slots.append(WorkerSlot.parse(node_to_name(node)))
            except ValueError:
                continue
        return slots
