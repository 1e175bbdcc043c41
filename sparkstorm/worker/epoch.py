"""Contents of one epoch until its commit: XOR of edges per root, new roots, failures, frames.

An edge id exists only for a tuple that outlives the epoch: it is drawn when the tuple leaves (to another worker, to
its own stream, or into the held set) and cancelled when the tuple is done in a later epoch. Tuples that live and die
inside one epoch never touch the ledger; the algebra per root is that of Storm's acker (seed 001).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from sparkstorm.model.failure import Failure
from sparkstorm.model.tuples import Roots, each_root
from sparkstorm.transport.frames import NO_IDS, AckerMessages, Ids, Row


class IdSource(Protocol):
    """Random ids: real ones from the system, simulated ones from a seed."""

    def edges(self, count: int) -> Ids:
        """Draw `count` edge ids, each non-zero and below 2**63."""

    def root(self) -> int:
        """One root id, non-zero and below 2**63."""


class RandomIds:
    """Ids from a seed; `seed=None` takes the system's entropy."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._roots: list[int] = []

    def edges(self, count: int) -> Ids:
        """Draw `count` edge ids."""
        return self._random.integers(1, 2**63 - 1, size=count, dtype=np.uint64)

    def root(self) -> int:
        """One root id, from a batch drawn ahead."""
        if not self._roots:
            self._roots = self.edges(1024).tolist()
        return self._roots.pop()


class Epoch:
    """The changes of one epoch, apart from what each task keeps for itself."""

    def __init__(self, ids: IdSource, is_tracking: bool) -> None:
        self._ids = ids
        self.is_tracking = is_tracking
        self.value_by_root: dict[int, int] = {}
        self.failed: dict[int, Failure] = {}
        self.renewed: set[int] = set()  # roots whose time-out begins anew
        self.births: dict[int, int] = {}  # root -> spout task
        self.messages: dict[int, AckerMessages] = {}
        self.rows = 0  # executed: the measure of the row budget
        self.bytes = 0  # of rows emitted, about: the measure of the byte budget

    def consume(self, roots: Sequence[Roots], ids: Ids) -> None:
        """These rows, which came with these edge ids, are done."""
        if len(ids):
            xor_by_root(self.value_by_root, roots, ids)

    def leave(self, rows: Sequence[Row]) -> Ids:
        """These rows outlive the epoch: draw their edge ids."""
        if not self.is_tracking:
            return NO_IDS
        ids = self._ids.edges(len(rows))
        xor_by_root(self.value_by_root, [row[1] for row in rows], ids)
        return ids

    def fail(self, roots: Roots, failure: Failure) -> None:
        """Fail the trees of these roots: each gets an edge that is never consumed.

        Without it a tree whose last tuple failed inside the epoch could end at zero, and an ack is tested before a fail
        (S1.16, S1.17).
        """
        for root in each_root(roots):
            if root and root not in self.failed:
                self.failed[root] = failure
                self.value_by_root[root] = self.value_by_root.get(root, 0) ^ self._ids.root()

    def renew(self, roots: Iterable[Roots]) -> None:
        """Let the time-outs of these trees begin anew."""
        self.renewed.update(root for of_input in roots for root in each_root(of_input) if root)

    def messages_to(self, acker: int) -> AckerMessages:
        """Return the messages of this epoch for one acker task."""
        return self.messages.setdefault(acker, AckerMessages())

    def take_edges(self) -> dict[int, int]:
        """XOR per tracked root."""
        edges, self.value_by_root = self.value_by_root, {}
        edges.pop(0, None)
        return edges


def xor_by_root(value_by_root: dict[int, int], roots: Sequence[Roots], ids: Ids) -> None:
    """Fold ids into the value of their roots; a row with several roots counts for each of them."""
    try:
        column = np.array(roots, np.uint64)
    except (TypeError, ValueError):
        column = np.empty((0, 0), np.uint64)
    if column.ndim != 1:  # rows with several roots: as many each makes a matrix, otherwise no array at all
        _xor_row_by_row(value_by_root, roots, ids.tolist())
        return
    starts = np.concatenate(([0], np.flatnonzero(column[1:] != column[:-1]) + 1))
    get = value_by_root.get
    for root, value in zip(column[starts].tolist(), np.bitwise_xor.reduceat(ids, starts).tolist(), strict=True):
        value_by_root[root] = get(root, 0) ^ value


def _xor_row_by_row(value_by_root: dict[int, int], roots: Iterable[Roots], ids: Iterable[int]) -> None:
    for of_row, edge in zip(roots, ids, strict=True):
        for root in each_root(of_row):
            value_by_root[root] = value_by_root.get(root, 0) ^ edge


def as_roots(value: Any) -> Roots:
    """Roots read back from a record."""
    return tuple(value) if isinstance(value, list) else int(value)
