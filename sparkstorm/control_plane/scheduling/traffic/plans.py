"""Plans that move running executors for traffic: whether one pays, and whether it has paid. PURE.

A plan is made where the placement has stood for a period, what was measured lies within that time,
and what the plan saves while it holds exceeds what its moves cost. After another period it is
judged by the rates measured since: one that has saved less than half of what it promised, or made
rows dearer, is taken back, and no other is made for some periods. The memory is that of one Nimbus:
after a change of leader the period still holds, since measurements say for how long a placement has
stood, but a plan of the former leader is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.measured.measurements import Measurements
from sparkstorm.control_plane.scheduling.settings import TrafficSettings
from sparkstorm.control_plane.scheduling.traffic.problem import Placed

# of the promised saving; at 1 noise takes half of the good plans back, near 0 none ever is
_KEPT_PROMISE = 0.5
_DEARER = 1.1  # CPU of a row, against that before the plan
_REST_PERIODS = 4  # after a plan that was taken back


@dataclass(frozen=True, slots=True)
class Price:
    """Cost of a placement in bytes a second: traffic between nodes and workers, and imbalance."""

    traffic: float
    balance: float
    fits: bool = True
    is_busy: bool = False  # a worker has more than it should carry

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.traffic + self.balance

    def saving(self, after: Price) -> float:
        """Return the share of this cost that another placement saves; negative where it costs
        more.
        """
        return 1.0 - after.total / self.total if self.total > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that was carried out; `measured` is None before it was judged."""

    made_ms: int  # of the topology's age
    before: Placed
    after: Placed
    moves: int
    predicted: float  # share of the cost
    cpu_of_row: float
    measured: float | None = None

    def words(self) -> str:
        """Return what it has promised and what came of it."""
        outcome = "not measured yet" if self.measured is None else f"{self.measured:.0%} measured"
        return f"last plan: {self.moves} moves, {self.predicted:.0%} of the cost saved as predicted, {outcome}"


class Plans:
    """Plans by topology."""

    def __init__(self, settings: TrafficSettings) -> None:
        self._settings = settings
        self._last: dict[str, Plan] = {}
        self._next_ms: dict[str, int] = {}  # when a plan may be looked for again

    def keep_only(self, topology_ids: Mapping[str, object]) -> None:
        """Forget topologies that are gone."""
        for by_topology in (self._last, self._next_ms):
            for gone in by_topology.keys() - topology_ids.keys():
                del by_topology[gone]

    def last(self, topology_id: str) -> Plan | None:
        """Return the last plan of a topology."""
        return self._last.get(topology_id)

    def is_settled(self, measured: Measurements) -> bool:
        """Return whether a placement has stood for a period, and for all of what was measured."""
        return measured.settled_ms >= max(self._settings.period_ms, measured.window_ms)

    def may_plan(self, topology_id: str, age_ms: int) -> bool:
        """Return whether to look for a plan now; the next look is a period later. A search each
        round would be most of the round's cost, and rates are means of minutes.
        """
        if age_ms < self._next_ms.get(topology_id, 0):
            return False
        self._next_ms[topology_id] = age_ms + self._settings.period_ms
        return True

    def pays(self, before: Price, after: Price, move_cost: float) -> bool:
        """Return whether to change a placement; `move_cost` is in bytes. One that does not fit, or
        has a worker that is too busy, is left whatever that saves.
        """
        if not before.fits or not after.fits:
            return after.fits and not before.fits
        if before.is_busy != after.is_busy:
            return before.is_busy
        saved = (before.total - after.total) * self._settings.hold_ms / 1000
        is_worth = before.saving(after) >= self._settings.min_gain
        return is_worth and saved > move_cost

    def note(self, topology_id: str, plan: Plan) -> None:
        """Remember a plan that is carried out."""
        self._last[topology_id] = plan

    def unjudged(self, topology_id: str, placed: Placed) -> Plan | None:
        """Return the plan that is in force and was not judged; one that something else has changed
        since is forgotten.
        """
        plan = self._last.get(topology_id)
        if plan is not None and plan.after != placed:
            del self._last[topology_id]
            return None
        return plan if plan is not None and plan.measured is None else None

    def judge(self, topology_id: str, plan: Plan, saving: float, cpu_of_row: float) -> bool:
        """Note what came of a plan; whether it has paid."""
        judged = Plan(
            plan.made_ms,
            plan.before,
            plan.after,
            plan.moves,
            plan.predicted,
            plan.cpu_of_row,
            saving,
        )
        self._last[topology_id] = judged
        is_dearer = plan.cpu_of_row > 0.0 and cpu_of_row > _DEARER * plan.cpu_of_row
        # A plan that relieves a node or worker may have promised a loss.
        least = plan.predicted - (1.0 - _KEPT_PROMISE) * abs(plan.predicted)
        return saving >= least and not is_dearer

    def take_back(self, topology_id: str, age_ms: int) -> None:
        """Remember that the last plan is taken back."""
        self._last.pop(topology_id, None)
        self._next_ms[topology_id] = age_ms + _REST_PERIODS * self._settings.period_ms


def cpu_of_row(measured: Measurements) -> float:
    """Return the CPU that an executed row takes, in percent of a core for one a second."""
    rows = sum(load.executed_per_s for load in measured.tasks.values())
    return sum(load.cpu for load in measured.tasks.values()) / rows if rows else 0.0


def moves(before: Placed, after: Mapping[ExecutorId, WorkerSlot]) -> list[ExecutorId]:
    """Return the executors that another placement moves."""
    return [executor for executor, slot in after.items() if before.get(executor) != slot]
