"""Why executors are where they are: notes that schedulers take while they decide, where somebody asks for them. PURE."""

from collections.abc import Iterable

from sparkstorm.model.assignment import ExecutorId, WorkerSlot


class Reasons:
    """The reason of each placement, in words; schedulers take notes only where a ClusterView has one of these.

    A later note replaces an earlier one, so that the search's last word counts.
    """

    def __init__(self) -> None:
        self._by_executor: dict[tuple[str, ExecutorId], tuple[WorkerSlot, str]] = {}
        self._freed: dict[tuple[str, WorkerSlot], str] = {}

    def placed(self, topology_id: str, executors: Iterable[ExecutorId], slot: WorkerSlot, words: str) -> None:
        """Note why executors are put on a slot."""
        for executor in executors:
            self._by_executor[topology_id, executor] = (slot, words)

    def freed(self, topology_id: str, slots: Iterable[WorkerSlot], words: str) -> None:
        """Note why slots are taken from a topology."""
        for slot in slots:
            self._freed[topology_id, slot] = words

    def of(self, topology_id: str, executor: ExecutorId, slot: WorkerSlot | None, before: WorkerSlot | None, scheduler: str) -> str:
        """The reason for an executor's place now; why it left the place before comes first."""
        noted = self._by_executor.get((topology_id, executor))
        left = self._freed.get((topology_id, before), "") if before is not None and before != slot else ""
        if slot is None:
            return left or "no place was found"
        if slot == before and (noted is None or noted[0] != slot):
            return "runs here already, and nothing asks it to move"
        words = noted[1] if noted is not None and noted[0] == slot else f"placed here by {scheduler}, which gives no reason"
        return f"{left}; {words}" if left else words
