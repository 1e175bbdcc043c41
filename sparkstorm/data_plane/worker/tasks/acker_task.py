"""One acker task: its ledger, the messages of an epoch, and the settled roots for the spouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from sparkstorm.common.errors import StoreRolledBackError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.data_plane.acking.ledger import Settled
from sparkstorm.data_plane.acking.tree_batches import TreeBatches
from sparkstorm.data_plane.transport.base import START, entry_order
from sparkstorm.data_plane.transport.frames import AckerMessages, SettledRoots
from sparkstorm.data_plane.worker.tasks.inbox import Inbox

UNKNOWN = Failure(
    FailureKind.FAILED, "failed; its acker was started again since, and does not know why"
)
# Longer than a store may be away (60 s of tries, docs/redis-failures.md): half of it could end workers
# in an outage that they would survive; double leaves a topology of a store that has lost frames
# standing for three minutes.
_PATIENCE_MS = 90_000


class AckerTask:
    """One `__acker` task, after Storm's Acker."""

    def __init__(
        self, task: int, ledger: TreeBatches, inbox: Inbox, last_entry: str = START.entry
    ) -> None:
        """`last_entry`: the newest frame in its stream when it was claimed."""
        self.task = task
        self.ledger = ledger
        self.inbox = inbox
        self.executed = 0
        self._failure_by_root: dict[int, Failure] = {}
        self._caught_up_at = entry_order(last_entry)

    @property
    def is_behind(self) -> bool:
        """Return whether frames that lay in its stream at the claim have not been read yet."""
        return entry_order(self.inbox.read_to) < self._caught_up_at

    def apply(self, messages: list[AckerMessages]) -> dict[int, SettledRoots]:
        """Apply an epoch's messages as one batch; verdicts by spout task."""
        if not messages:
            return {}
        m = messages[0] if len(messages) == 1 else _joined(messages)
        self.executed += len(m)
        # In memory only: a reason that is lost with the acker is replaced by UNKNOWN, the fail
        # itself is in the ledger.
        self._failure_by_root.update(m.failures)
        settled = self.ledger.apply(
            (m.init_roots, m.init_values, m.init_tasks),
            (m.ack_roots, m.ack_values),
            list(m.failures),
        )
        oldest_ms = min(m.oldest_ms for m in messages)
        verdicts = self._verdicts(settled, oldest_ms) if settled else {}
        if len(m.renewed):
            for task, roots in self.ledger.reset_timeouts(m.renewed).items():
                verdicts.setdefault(task, SettledRoots([], {}, oldest_ms)).renewed.extend(roots)
        return verdicts

    def rotate(self, keeps_begun: bool = False) -> None:
        """Age the ledger by one bucket; what drops out is forgotten silently (S1.19)."""
        # Without time-outs a tree may stay open without end; only messages of trees without an init
        # are forgotten.
        if keeps_begun:
            self.ledger.renew_begun()
        self.ledger.rotate()
        self._failure_by_root = {
            r: why for r, why in self._failure_by_root.items() if r in self.ledger
        }

    def _verdicts(self, settled: Settled, oldest_ms: int) -> dict[int, SettledRoots]:
        acked: defaultdict[int, list[int]] = defaultdict(list)
        for root, task in settled.acked.items():
            acked[task].append(root)
        verdicts = {task: SettledRoots(roots, {}, oldest_ms) for task, roots in acked.items()}
        for root, task in settled.failed.items():
            verdicts.setdefault(task, SettledRoots([], {}, oldest_ms)).failed[root] = (
                self._failure_by_root.pop(root, UNKNOWN)
            )
        for root, task in settled.kept.items():
            verdicts[task].kept.append(root)
        return verdicts


class CatchUp:
    """A worker's ackers that have yet to read the frames that lay in their streams at the claim;
    true while there are any.

    Tasks run only after that: such a frame may be that of a former owner of a task that is here
    now. The worker's own messages are applied with its commit. If they came first, the rest of an
    entry would be taken out of a tree's value before the rows that its first part has sent on were
    put in, and the tree could be acked while they wait.
    """

    def __init__(self, ackers: Iterable[AckerTask], now_ms: int) -> None:
        self._behind = list(ackers)
        self._since_ms = now_ms

    def __bool__(self) -> bool:
        return bool(self._behind)

    def is_over(self, now_ms: int) -> bool:
        """Look once more; StoreRolledBackError when nothing has come for long: only another claim
        finds which frames are left.
        """
        behind = [acker for acker in self._behind if acker.is_behind]
        if len(behind) < len(self._behind) or any(acker.inbox.chunks for acker in behind):
            self._since_ms = now_ms
        self._behind = behind
        if behind and now_ms - self._since_ms > _PATIENCE_MS:
            raise StoreRolledBackError(
                f"the stream of acker task {behind[0].task} has lost frames since it was claimed"
            )
        return not behind


def _joined(messages: list[AckerMessages]) -> AckerMessages:
    """Return messages of several epochs as one, with their rows in the same order."""
    return AckerMessages(
        [root for m in messages for root in m.init_roots],
        [value for m in messages for value in m.init_values],
        [task for m in messages for task in m.init_tasks],
        [root for m in messages for root in m.ack_roots],
        [value for m in messages for value in m.ack_values],
        {root: why for m in messages for root, why in m.failures.items()},
        [root for m in messages for root in m.renewed],
    )
