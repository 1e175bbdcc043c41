"""Trees of an acker task: a ledger in which a batch of trees has one value, and the members that
were split off. PURE.

    A spout's tuples of one turn are a batch: their rows have roots of their own, and one value in the ledger, the batch's.
    A row that leaves the common path (held, failed, late) is split off: its edge goes into the value of its member's split
    root, as does all that descends from it. Until the batch's value is 0, split roots have no spout task, like roots whose ack
    came before their init (S1.18).
    The batch's value is 0 -> the batch is acked, except its members whose split root is not 0. These are begun now, with the
    batch's spout task: from here on a split root is a tree like any other.
    A split root has failed -> reported at once if the batch's spout task is known. Its entry stays until the batch ends, so that
    the member is among those that are not acked with it, whichever verdict reaches its spout first.

Why a batch at 0 has no common row that waits, and no split that is unknown: docs/decisions/0060.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from sparkstorm.common.model.roots import ID_LIMIT, SPLIT, batch_of
from sparkstorm.data_plane.acking.journal import FAILED, UNKNOWN_TASK
from sparkstorm.data_plane.acking.ledger import (
    NO_ACKS,
    NO_INITS,
    Acks,
    Column,
    Inits,
    Ledger,
    Settled,
)


class TreeBatches:
    """A ledger with batches; one without any costs a look at the largest root of each column."""

    __slots__ = ("_ledger", "_waiting")

    def __init__(self) -> None:
        self._ledger = Ledger()
        # batch -> split roots that wait for its end, and whether they have failed
        self._waiting: dict[int, dict[int, bool]] = {}

    def __len__(self) -> int:
        return len(self._ledger)

    def __contains__(self, root: int) -> bool:
        return root in self._ledger

    def apply(self, inits: Inits = NO_INITS, acks: Acks = NO_ACKS, fails: Column = ()) -> Settled:
        """Apply an epoch's inits (roots, values, spout tasks), acks (roots, values) and fails
        (roots); return what ended.

        MalformedFrameError (and nothing applied) when a column is not what it should be.
        """
        if not self._waiting and not _have_splits(inits[0], acks[0], fails):
            return self._ledger.apply(inits, acks, fails)
        begun = set(inits[0]) | set(
            self._begun(root for root in chain(acks[0], fails) if SPLIT <= root < ID_LIMIT)
        )
        settled = self._ledger.apply(inits, acks, fails)
        self._note(inits[0], acks[0], fails, begun)
        return self._with_splits(settled, inits[0], fails)

    def _begun(self, roots: Iterable[int]) -> Iterator[int]:
        return (root for root in roots if self._ledger.task_of(root) != UNKNOWN_TASK)

    def _note(self, inits: Column, acks: Column, fails: Column, begun: set[int]) -> None:
        """Take note of the split roots that wait for their batch."""
        # a split root among them: its batch has ended in the epoch in which it began
        for root in inits:
            splits = self._waiting.get(batch_of(root), {}) if root >= SPLIT else {}
            if root in splits:
                del splits[root]
                if not splits:
                    del self._waiting[batch_of(root)]
        for root in chain(acks, fails):
            if root >= SPLIT and root not in begun:
                self._waiting.setdefault(batch_of(root), {}).setdefault(root, False)
        for root in fails:
            if root >= SPLIT and root not in begun:
                self._waiting[batch_of(root)][root] = True

    def _with_splits(self, settled: Settled, inits: Column, fails: Column) -> Settled:
        """Begin the split roots of batches that have ended, and report failures of those that have
        not.
        """
        begun = {
            root: task
            for batch, task in settled.acked.items()
            for root in self._waiting.pop(batch, ())
        }
        failed = settled.failed | dict(self._open_failures(inits, fails))
        of_splits = self._ledger.apply(([*begun], [0] * len(begun), [*begun.values()]))
        remaining = {root: task for root, task in begun.items() if root not in of_splits.acked}
        return Settled(settled.acked, failed | of_splits.failed, remaining)

    def _open_failures(self, inits: Column, fails: Column) -> Iterator[tuple[int, int]]:
        """Failed split roots of open batches that were begun or have failed now, with their spout
        tasks.
        """
        if not self._waiting:
            return
        told = {root: None for root in fails if batch_of(root) in self._waiting}
        for batch in inits:
            if splits := self._waiting.get(batch):
                self._ledger.reset_timeouts([*splits])  # a split root lives as long as its batch
                told |= {root: None for root, has_failed in splits.items() if has_failed}
        for root in told:
            if (task := self._ledger.task_of(batch_of(root))) != UNKNOWN_TASK:
                yield root, task

    def rotate(self) -> int:
        """Begin a new bucket and drop the oldest one; returns how many entries that were never
        settled it held.
        """
        late = self._ledger.rotate()
        if self._waiting and late:
            still_waiting = {
                batch: {root: failed for root, failed in splits.items() if root in self._ledger}
                for batch, splits in self._waiting.items()
            }
            self._waiting = {batch: splits for batch, splits in still_waiting.items() if splits}
        return late

    def renew_begun(self) -> None:
        """Let only roots age whose spout task is unknown, and which wait for no batch whose task is
        known.
        """
        self._ledger.renew_begun()
        if waiting := [
            root for batch in self._begun(self._waiting) for root in self._waiting[batch]
        ]:
            self._ledger.reset_timeouts(waiting)

    def reset_timeouts(self, roots: Column) -> dict[int, list[int]]:
        """Let the time-outs of open roots begin anew; return those whose spout task is known, by
        task.

        The time-out of a member which waits for its batch is the batch's in the ledger, and its own
        at the spout.
        """
        begun = set(self._begun(roots))
        of_batches: dict[int, list[int]] = {}
        for root in roots:
            if root >= SPLIT and root not in begun:
                of_batches.setdefault(batch_of(root), []).append(root)
        by_task = self._ledger.reset_timeouts(
            [root for root in roots if root < SPLIT or root in begun]
        )
        for task, batches in self._ledger.reset_timeouts([*of_batches]).items():
            by_task.setdefault(task, []).extend(
                root for batch in batches for root in of_batches[batch]
            )
        self._ledger.reset_timeouts(
            [root for batch in of_batches for root in self._waiting.get(batch, ())]
        )
        return by_task

    def take_delta(self) -> bytes:
        """Return the changes since the last call, for the epoch's journal; empty bytes when there
        are none.
        """
        return self._ledger.take_delta()

    def snapshot(self) -> bytes:
        """Return everything open as bytes that replace all deltas taken so far; take the delta
        first.
        """
        return self._ledger.snapshot()

    def load(self, snapshot: bytes, deltas: Iterable[bytes] = ()) -> None:
        """Become the ledger that wrote them; MalformedFrameError changes nothing."""
        self._ledger.load(snapshot, deltas)
        self._waiting = {}
        for root, _, task, flags in self._ledger.rows():
            if root >= SPLIT and task == UNKNOWN_TASK:
                self._waiting.setdefault(batch_of(root), {})[root] = flags == FAILED


def _have_splits(*columns: Column) -> bool:
    try:
        return any(max(column, default=0) >= SPLIT for column in columns)
    except TypeError:  # what is no number, the ledger refuses
        return False
