"""Records of a gray upgrade: its parameters, the record under gray_upgrade/<id>, and what may take
it back. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sparkstorm.common.model.assignment import WorkerCode, WorkerSlot
from sparkstorm.common.model.outline import TopologyOutline


@dataclass(frozen=True, slots=True)
class UpgradeOptions:
    """Choice of the next batch (S0.6); workers go before the component, the component before the
    number alone.

    `worker_num` 0 means every worker of the component; without a component it means none.
    """

    workers: tuple[WorkerSlot, ...] = ()
    component: str = ""
    worker_num: int = 0


@dataclass(frozen=True, slots=True)
class RollbackBounds:
    """Bounds beyond which an upgrade takes itself back."""

    is_enabled: bool = False
    # tuples that the upgraded workers must have executed before they are compared
    least_executed: int = 1000
    # failed tries and parked tuples per executed one, above the others' share by this much
    failed_share: float = 0.01
    deaths: int = 2  # more deaths of one upgraded worker than this
    # mean execute latency of a component against the others'; 0 compares none
    latency_factor: float = 5.0


@dataclass(frozen=True, slots=True)
class ShadowBar:
    """Bar before the first batch: so many tuples of a task of this component, executed by both
    codes without a difference.
    """

    component: str
    tuples: int
    is_passed: bool = False


@dataclass(frozen=True, slots=True)
class GrayUpgrade:
    """A gray upgrade under way (JStorm's GrayUpgradeConfig), at gray_upgrade/<id>; all times are
    milliseconds.

    `code` is the new code, `former` the code of workers without code of their own before,
    `former_by_slot` of the others. `batch` are the workers that were picked last; it is written
    together with `continue_upgrading`, before the workers appear under upgrading_workers, so that
    no crash picks a second batch. `rollback`: why it is taken back.
    """

    topology_id: str
    code: WorkerCode
    former: WorkerCode
    outline: TopologyOutline
    started_ms: int
    expires_ms: int
    former_by_slot: Mapping[WorkerSlot, WorkerCode] = field(default_factory=dict)
    options: UpgradeOptions = UpgradeOptions()
    continue_upgrading: bool = True
    batch: tuple[WorkerSlot, ...] = ()
    batches: int = 0  # picked so far
    completed_ms: int = 0
    rollback: str = ""
    # the last request that changed it: one that is carried out again changes nothing
    request_id: str = ""
    bounds: RollbackBounds = RollbackBounds()
    shadow: ShadowBar | None = None

    @property
    def unpassed_bar(self) -> ShadowBar | None:
        """The bar that the shadow must still pass before a worker is upgraded; None when there is
        none, or the upgrade is over.
        """
        is_open = self.shadow is not None and not (
            self.shadow.is_passed or self.rollback or self.completed_ms
        )
        return self.shadow if is_open else None

    def target(self, slot: WorkerSlot) -> WorkerCode:
        """Return the code that a worker of the batch is to run: the new one, or in a rollback its
        former one.
        """
        return self.former_by_slot.get(slot, self.former) if self.rollback else self.code

    def blob_keys(self) -> set[str]:
        """Keys of the blobs that it needs."""
        codes = (self.code, self.former, *self.former_by_slot.values())
        return {key for code in codes for key in (code.code_key, code.conf_key)}


class UpgradeStage(StrEnum):
    """Stage of a gray upgrade (S0.17); in SHADOWING its code runs next to a live task, and no worker
    is upgraded yet.
    """

    NONE = "NONE"
    SHADOWING = "SHADOWING"
    IN_PROGRESS = "IN_PROGRESS"
    EXPIRED = "EXPIRED"
    COMPLETED = "COMPLETED"
    ROLLING_BACK = "ROLLING_BACK"


@dataclass(frozen=True, slots=True)
class UpgradeState:
    """Records under gray_upgrade/<id>: the record, and the workers in its two folders with the code
    they were moved to.
    """

    upgrade: GrayUpgrade | None
    upgrading: frozenset[WorkerSlot] = frozenset()
    # texts of codes, as `code_text` writes them
    upgraded: Mapping[WorkerSlot, str] = field(default_factory=dict)


def code_text(code: WorkerCode) -> str:
    """Return a worker's code as the text that an upgraded worker's node holds."""
    return f"{code.code_key} {code.conf_key}"
