"""Gray upgrades of one topology, seen and asked for from a client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkstorm.client.access import ClusterAccess, here
from sparkstorm.client.request_client import Progress as Steps
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.topology import MASTER, Topology
from sparkstorm.common.model.upgrade import GrayUpgrade, UpgradeOptions, UpgradeStage, code_text
from sparkstorm.data_plane.user_code.trial import try_code
from sparkstorm.extensions.upgrade.gray_upgrade import classify, confirmed, upgradable
from sparkstorm.extensions.upgrade.live_shadow import ShadowFigures, shadow_figures
from sparkstorm.extensions.upgrade.state import GrayUpgradeState


@dataclass(frozen=True, slots=True)
class UpgradeStatus:
    """Stage of a topology's gray upgrade and its workers; without one, the workers that run other
    code than the others.
    """

    topology_id: str
    status: str  # of the topology
    stage: UpgradeStage
    upgraded: tuple[WorkerSlot, ...]  # run the new code (in a rollback: their former code again)
    upgrading: tuple[WorkerSlot, ...]
    remaining: tuple[WorkerSlot, ...]
    batches: int = 0
    started_ms: int = 0
    expires_ms: int = 0
    rollback: str = ""  # why it is taken back
    other_code: tuple[WorkerSlot, ...] = ()  # by the assignment
    last_rollback: Failure | None = None
    shadow: ShadowFigures | None = None
    shadow_tuples: int = 0  # that the bar asks for

    @property
    def is_resting(self) -> bool:
        """Return whether nothing happens before another request: the batch is done, or there is no
        upgrade.
        """
        return self.stage is UpgradeStage.NONE or (
            self.stage is UpgradeStage.IN_PROGRESS and not self.upgrading
        )


class Upgrades:
    """Requests and looks at the gray upgrade of one topology; changes raise ReadOnlyConnectionError
    without the right.
    """

    def __init__(self, topology_id: str, name: str, cluster: ClusterAccess) -> None:
        self.topology_id = topology_id
        self._name = name
        self._cluster = cluster

    def start(
        self,
        topology: Topology,
        conf: Mapping[str, Any] | None = None,
        *,
        workers: Iterable[WorkerSlot] = (),
        component: str = "",
        worker_num: int = 0,
        is_forced: bool = False,
        shadow: str = "",
        shadow_tuples: int = 0,
        by_value: Sequence[str] | None = None,
        progress: Steps | None = None,
    ) -> None:
        """Begin an upgrade to new code: its first batch restarts with it (named workers, else of a
        component, else any).

        With `shadow`, a bolt's id, the new code first runs next to that bolt's first task. The batch
        waits until `shadow_tuples` tuples (else topology.upgrade.shadow.tuples) came out the same;
        a difference ends the upgrade before any worker restarts. The new code is opened in a fresh
        process first. InvalidTopologyError when it does not open, or when it has other components,
        tasks, inputs or fields; IllegalTransitionError unless the topology is ACTIVE.
        """
        self._cluster.requests.require(self._name, self.topology_id)
        options = {
            "topology.upgrade.force": is_forced,
            "topology.upgrade.workers": [str(worker) for worker in workers],
            "topology.upgrade.component": component,
            "topology.upgrade.worker.num": worker_num,
            "topology.upgrade.shadow.component": shadow,
            "topology.upgrade.shadow.tuples": shadow_tuples,
        }
        total = {**here(conf), **{key: value for key, value in options.items() if value}}
        code = self._cluster.packed(topology, by_value, conf)
        try_code(self._name, code)
        service = self._cluster.service
        service.carry_out(service.upgrade_request(self._name, topology, total, code), progress)

    def go_on(
        self, workers: Iterable[WorkerSlot] = (), component: str = "", worker_num: int = 0
    ) -> None:
        """Upgrade the next batch."""
        options = UpgradeOptions(tuple(workers), component, worker_num)
        self._cluster.requests.continue_upgrade(self._name, options, self.topology_id)

    def complete(self) -> None:
        """End the upgrade as it is: upgraded workers keep the new code, the others theirs."""
        self._cluster.requests.complete_upgrade(self._name, self.topology_id)

    def roll_back(self) -> None:
        """Take the upgrade back: upgraded workers restart with the code that they had; nothing is
        lost.
        """
        self._cluster.requests.roll_back_upgrade(self._name, self.topology_id)

    def status(self) -> UpgradeStatus:
        """Return the stage, and which workers run what."""
        store = self._cluster.state
        topology_id = self.topology_id
        state = GrayUpgradeState(store).upgrade_state(topology_id)
        base = store.read_base(topology_id)
        assignment = store.read_assignment(topology_id)
        table = store.read_tasks(topology_id)
        components = (
            {task: info.component_id for task, info in table.info_by_task.items()} if table else {}
        )
        workers = upgradable(assignment, components) if assignment else {}
        state = confirmed(state, assignment) if assignment else state
        upgrade = state.upgrade
        now_ms = SystemClock().now_ms()
        done = {
            s
            for s, text in state.upgraded.items()
            if upgrade and s in workers and text == code_text(upgrade.target(s))
        }
        under_way = {
            slot
            for slot in (*state.upgrading, *(upgrade.batch if upgrade else ()))
            if slot in workers
        } - done
        errors = store.read_errors(topology_id, MASTER)
        return UpgradeStatus(
            topology_id,
            str(base.status) if base else "gone",
            _stage(upgrade, now_ms),
            tuple(sorted(done)),
            tuple(sorted(under_way)),
            tuple(sorted(workers.keys() - done - under_way)),
            upgrade.batches if upgrade else 0,
            upgrade.started_ms if upgrade else 0,
            upgrade.expires_ms if upgrade else 0,
            upgrade.rollback if upgrade else "",
            tuple(sorted(assignment.code_by_slot)) if assignment else (),
            errors[-1] if errors else None,
            shadow_figures(upgrade, store.read_worker_beats(topology_id))
            if upgrade and upgrade.unpassed_bar
            else None,
            upgrade.shadow.tuples if upgrade and upgrade.shadow else 0,
        )

    def is_waiting(self) -> bool:
        """Return whether a batch is still to be picked or upgraded, or an end or a rollback to be
        carried out.
        """
        upgrade = self._cluster.state.read_upgrade(self.topology_id)
        if upgrade is None:
            base = self._cluster.state.read_base(self.topology_id)
            return base is not None and base.status in ("UPGRADING", "ROLLBACK")
        if upgrade.continue_upgrading or upgrade.completed_ms or upgrade.rollback:
            return True
        status = self.status()
        return bool(status.upgrading) or not status.remaining  # all are upgraded: its end follows


def _stage(upgrade: GrayUpgrade | None, now_ms: int) -> UpgradeStage:
    stage = classify(upgrade, now_ms)
    return (
        UpgradeStage.IN_PROGRESS
        if upgrade and upgrade.continue_upgrading and stage is UpgradeStage.EXPIRED
        else stage
    )
