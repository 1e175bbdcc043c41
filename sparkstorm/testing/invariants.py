"""Invariants that must hold after every step of a simulated topology."""

from __future__ import annotations

from collections import Counter

from sparkstorm.testing.components import FeederSpout
from sparkstorm.testing.sim_topology import SimTopology
from sparkstorm.testing.sim_worker import SimWorker
from sparkstorm.worker.progress import Progress
from sparkstorm.worker.tasks.spout_task import SpoutTask


class Invariants:
    """Call it after every step; AssertionError says what does not hold.

    1. An executor is in at most one live slot, and no two live workers hold the same token for a task.
    2. A root is in exactly one place: open at one spout task, or settled there, never both, never at two.
    3. What a feeder has emitted is open, acked or failed: nothing is lost, nothing is counted twice.
    """

    def __init__(self, topology: SimTopology) -> None:
        self._topology = topology
        self._decoded: dict[str, tuple[bytes, Progress]] = {}
        self._seen: list[int] = []
        self.checks = 0

    def __call__(self) -> None:
        """Check, unless nothing was committed since the last time."""
        seen = [*self._topology.store.seq_by_owner.values(), self._topology.store.generation]
        if seen == self._seen:
            return
        self._seen = seen
        self.checks += 1
        live = [worker for worker in self._topology.workers if self._is_settled(worker)]
        self._check_places()
        self._check_roots(live)
        for worker in live:
            assert worker.worker is not None
            for task, spout in worker.worker.crew.spouts.items():
                self._check_feeder(task, spout)

    def _is_settled(self, worker: SimWorker) -> bool:
        """Whether a worker's memory is what the store holds: no commit under way, and the store is not behind it."""
        store = self._topology.store
        return (
            worker.worker is not None
            and worker.worker.is_settled
            and not worker.is_fenced
            and worker.worker.commits == (store.generation, store.seq_by_owner.get(str(worker.slot), 0))
        )

    def _check_places(self) -> None:
        executors = Counter(e for worker in self._topology.workers for e in worker.version_by_executor)
        twice = [str(executor) for executor, count in executors.items() if count > 1]
        assert not twice, f"executor {twice[0]} is in {executors.most_common(1)[0][1]} slots"

    def _check_roots(self, live: list[SimWorker]) -> None:
        owner_by_root: dict[int, int] = {}
        for worker in live:
            assert worker.worker is not None
            for task, spout in worker.worker.crew.spouts.items():
                opened, settled = spout.pending.snapshot()
                for root, *_ in [*opened, *settled]:
                    assert root not in owner_by_root, f"root {root} is at tasks {owner_by_root[root]} and {task}"
                    owner_by_root[root] = task

    def _check_feeder(self, task: int, spout: SpoutTask) -> None:
        if not isinstance(spout.spout, FeederSpout):
            return
        settled = 0
        for owner, data in self._topology.store.progress_by_owner.items():
            known = self._decoded.get(owner)
            if known is None or known[0] is not data:
                known = self._decoded[owner] = (data, Progress.decode(data))
            counts = known[1].counts_by_task.get(task)
            settled += counts.acked + counts.failed if counts is not None else 0
        emitted, pending = spout.spout.emitted, len(spout.pending)
        assert emitted == settled + pending, f"task {task} emitted {emitted}, but {settled} settled and {pending} open"
