"""Contents of one epoch until its commit: XOR of edges per root, new roots, failures, frames.

An edge id exists only for what outlives the epoch: one for each block that leaves (to another
worker or to the stream of a task of this one), and one for each input that is held. A block's id is
XORed into the value of each of its roots when it leaves, and again when the last row of that root
is consumed: while any row of a root waits in a block, its last one does. Blocks have the roots
under which ackers track their rows (common/model/roots.py): one for all rows of a batch. Inputs that are
held or fail leave their batch, and so does all that descends from them. Tuples that live and die
inside one epoch never touch the ledger; the algebra per root is that of Storm's acker (seed 001).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Protocol

import numpy as np
import numpy.random

from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.roots import SPLIT, batch_of, home_of, homes_of, split, split_roots
from sparkstorm.common.model.tuples import Roots, Tuple, each_root
from sparkstorm.data_plane.transport.frames import AckerMessages, Ids, SettledRoots

_HELD_KEY = re.compile("([0-9a-f]{14})-([0-9a-f]{10})")


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
            # Drawn ahead: a call of numpy's generator costs as much as some hundred of its numbers.
            # Half as many call it twice as often, double keeps 8 kB more.
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
        self.births: dict[int, int] = {}  # root of a tree or batch -> spout task
        self.messages: dict[int, AckerMessages] = {}
        self.rows = 0  # executed: the measure of the row budget
        self.bytes = 0  # of rows emitted, about: the measure of the byte budget
        self.sent = 0  # rows emitted, one for each receiver

    def draw_edge(self, roots: Iterable[int]) -> int:
        """Draw the edge id of a block that leaves, and put it into the value of each of its
        roots.
        """
        # One id for all trees of the block (decision 6): an id per row would be 8 bytes and two
        # XORs for each.
        edge = self._ids.root()
        self.consume(roots, edge)
        return edge

    def consume(self, roots: Iterable[int], edge: int) -> None:
        """Take the edge of a block out of the values of these distinct roots: their last rows in it
        are consumed.
        """
        values = self.value_by_root
        # The fold runs for every entry; the loop below is its twin.
        if core is not None:
            core.fold(values, roots, edge)
            return
        get = values.get
        for root in roots:
            values[root] = get(root, 0) ^ edge

    def hold(self, tup: Tuple) -> int:
        """Split an input that is held off its batches and draw its edge id; 0 when it belongs to no
        tree.
        """
        if not tup.roots or not self.is_tracking:
            return 0  # without trees no acker uses the id: it would only be stored
        tup.roots = split_roots(tup.roots)  # what it emits from now on descends from these
        return self.draw_edge(each_root(tup.roots))

    def let_go(self, roots: Roots, edge: int) -> None:
        """Take the edge of a held input, which is done, out again; 0: it has none yet."""
        if edge:
            self.consume([root for root in each_root(roots) if root], edge)

    def fail(self, roots: Roots, failure: Failure) -> None:
        """Fail the trees of these roots, members of batches under their split roots: each gets an
        edge that is never consumed.

        Without it a tree whose last tuple failed inside the epoch could end at zero, and an ack is
        tested before a fail (S1.16, S1.17).
        """
        for root in map(split, each_root(roots)):
            # The first reason counts: later ones mostly follow from it.
            if root and root not in self.failed:
                self.failed[root] = failure
                self.value_by_root[root] = self.value_by_root.get(root, 0) ^ self._ids.root()

    def renew(self, roots: Iterable[Roots]) -> None:
        """Let the time-outs of these trees begin anew."""
        self.renewed.update(
            split(root) for of_input in roots for root in each_root(of_input) if root
        )

    def messages_to(self, acker: int) -> AckerMessages:
        """Return the messages of this epoch for one acker task."""
        return self.messages.setdefault(acker, AckerMessages())

    def take_edges(self) -> dict[int, int]:
        """XOR per tracked root."""
        edges = self.value_by_root
        self.value_by_root = {}
        # Rows of no tree are folded under root 0, which is cheaper than a test for each of them.
        edges.pop(0, None)
        return edges

    def address(self, ackers: Sequence[int]) -> dict[int, SettledRoots]:
        """Sort edges and failures by acker task, into `messages`; return the ends of trees that
        began here, by spout task.
        """
        edges = self.take_edges()
        failed = self.failed
        begun: list[int] = []
        values: list[int] = []
        spout_tasks: list[int] = []
        verdicts: dict[int, SettledRoots] = {}
        splits = _splits_of(self.births, edges)
        take_edge = edges.pop
        for root, spout_task in self.births.items():
            value = take_edge(root, 0)
            if value and not (failed and root in failed):
                begun.append(root)
                values.append(value)
                spout_tasks.append(spout_task)
                continue
            verdict = verdicts.get(spout_task)
            if verdict is None:
                verdict = verdicts[spout_task] = SettledRoots([], {})
            if value:
                verdict.failed[root] = failed.pop(root)
                continue
            verdict.acked.append(root)
            for split_root in splits.get(root, ()):  # trees like any others from here on
                value = take_edge(split_root)
                if split_root in failed:
                    verdict.failed[split_root] = failed.pop(split_root)
                elif value:
                    begun.append(split_root)
                    values.append(value)
                    spout_tasks.append(spout_task)
                else:
                    continue
                verdict.kept.append(split_root)
        if begun:
            for messages, part in self._by_acker(ackers, begun, values, spout_tasks):
                messages.init_roots, messages.init_values, messages.init_tasks = part
        if edges:
            for messages, part in self._by_acker(ackers, list(edges), list(edges.values())):
                messages.ack_roots, messages.ack_values = part
        for root, failure in failed.items():
            self.messages_to(ackers[home_of(root, len(ackers))]).failures[root] = failure
        if reset := self.renewed - self.births.keys():
            for messages, part in self._by_acker(ackers, list(reset)):
                (messages.renewed,) = part
        return verdicts

    def _by_acker(
        self, ackers: Sequence[int], *columns: list[int]
    ) -> Iterator[tuple[AckerMessages, tuple[list[int], ...]]]:
        """Yield the messages of each acker with its rows of these columns, the first of which are
        roots.
        """
        count = len(ackers)
        # One root is most of the epochs of a worker that is not loaded: a list for each acker and
        # column would be most of the work.
        if len(columns[0]) == 1:
            yield self.messages_to(ackers[home_of(columns[0][0], count)]), columns
            return
        homes = homes_of(columns[0], count)
        # Column by column in lists: numpy takes twice as long for 48 roots (four ackers, 27 us
        # against
        # 16) and a sixth less for 4,000; a tuple for each row takes twice as long for 4,000.
        divided = [_divided(column, homes, count) for column in columns]
        for acker, part in zip(ackers, zip(*divided, strict=True), strict=True):
            if part[0]:
                yield self.messages_to(acker), part


def _splits_of(births: Collection[int], edges: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the split roots of batches that began in this epoch, by batch."""
    roots_by_batch: dict[int, list[int]] = {}
    if births and edges and max(edges) >= SPLIT:
        for root in edges:
            if root >= SPLIT and batch_of(root) in births:
                roots_by_batch.setdefault(batch_of(root), []).append(root)
    return roots_by_batch


def _divided(column: list[int], homes: list[int], count: int) -> list[list[int]]:
    """Return the numbers of a column by home."""
    parts: list[list[int]] = [[] for _ in range(count)]
    put = [part.append for part in parts]
    for home, number in zip(homes, column, strict=True):
        put[home](number)
    return parts


def key_source(token_by_task: Mapping[int, int], held: Iterable[str]) -> Callable[[], str]:
    """Return a source of keys for held inputs: each is greater than all before it, and than the
    keys `held` that former workers have left.
    """
    # Keys sort by age over restarts: held inputs are executed again in the order in which they
    # came. Within a topology fence tokens only grow; a hot deploy begins with a lower one, or with
    # an equal one within a second, whose keys would overwrite inputs that wait for a retry.
    token = max(token_by_task.values(), default=0)
    number = 0
    for key in held:
        if match := _HELD_KEY.fullmatch(key):
            token, number = max((token, number), (int(match[1], 16), int(match[2], 16)))
    numbers = count(number + 1)
    return lambda: f"{token:014x}-{next(numbers):010x}"
