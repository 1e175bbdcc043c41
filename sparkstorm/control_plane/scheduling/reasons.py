"""Reasons of placements, recorded by the schedulers while they decide, on request. PURE."""

from collections.abc import Iterable

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot


class Reasons:
    """Reason of each placement as text; schedulers record them only if ClusterView.reasons is set.

    A later reason replaces an earlier one: a search may place an executor several times.
    """

    def __init__(self) -> None:
        self._by_executor: dict[tuple[str, ExecutorId], tuple[WorkerSlot, str]] = {}
        self._freed: dict[tuple[str, WorkerSlot], str] = {}

    def placed(
        self, topology_id: str, executors: Iterable[ExecutorId], slot: WorkerSlot, words: str
    ) -> None:
        """Record why executors are placed on a slot."""
        for executor in executors:
            self._by_executor[topology_id, executor] = (slot, words)

    def freed(self, topology_id: str, slots: Iterable[WorkerSlot], words: str) -> None:
        """Record why slots of a topology are freed."""
        for slot in slots:
            self._freed[topology_id, slot] = words

    def all(self) -> list[str]:
        """Return the texts of all reasons."""
        return [words for _, words in self._by_executor.values()] + [*self._freed.values()]

    def of(
        self,
        topology_id: str,
        executor: ExecutorId,
        slot: WorkerSlot | None,
        before: WorkerSlot | None,
        scheduler: str,
        status: str = "",
    ) -> str:
        """Return the reason for an executor's present place, after the reason for leaving its place
        before.

        An executor without a place has its topology's `status`, the scheduler's own text.
        """
        noted = self._by_executor.get((topology_id, executor))
        reason = (
            self._freed.get((topology_id, before), "")
            if before is not None and before != slot
            else ""
        )
        if slot is None:
            return "; ".join(words for words in (reason, status) if words) or "no place was found"
        if slot == before and (noted is None or noted[0] != slot):
            return "runs here already, and nothing asks it to move"
        words = (
            noted[1]
            if noted is not None and noted[0] == slot
            else f"placed here by {scheduler}, which gives no reason"
        )
        return f"{reason}; {words}" if reason else words
