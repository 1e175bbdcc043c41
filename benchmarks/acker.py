"""Figures of the acker: messages per second and core, bytes per pending root, small epochs.

Run: python -m benchmarks.acker [--pending 1000000] [--rounds 7]. A message is one (root, value)
update. All ledgers get the same messages in the same process, in turns. Time is CPU time of the
thread: a ledger never waits, and the figures are per core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from sparkstorm.acking import DictLedger, Ledger, Pending, TableLedger
from sparkstorm.model import compiled


class Batch(NamedTuple):
    """An epoch's messages."""

    inits: tuple[Any, Any, Any]
    acks: tuple[Any, Any]

    @property
    def rows(self) -> int:
        """Messages in it."""
        return len(self.inits[0]) + len(self.acks[0])


class Traffic:
    """Endless epochs that keep the number of pending roots: a third inits, a third acks in between,
    a third last acks.

    Every root is told about three times: init, one ack that leaves an edge open, one that closes
    the tree.
    """

    def __init__(self, pending: int, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)
        self.roots = self._ids(pending)
        self._values = self._ids(pending)

    def _ids(self, count: int) -> Any:
        return self._rng.integers(1, 1 << 63, count, dtype=np.uint64)

    def fill(self) -> Batch:
        """All roots of the beginning."""
        return Batch((self.roots, self._values, np.full(len(self.roots), 7, np.int32)), ((), ()))

    def updates(self, rows: int) -> Batch:
        """Acks in the middle of random trees: nothing begins, nothing ends."""
        at = self._rng.choice(len(self.roots), rows, replace=False)
        edges = self._ids(rows)
        self._values[at] ^= edges
        return Batch(((), (), ()), (self.roots[at], edges))

    def epoch(self, third: int) -> Batch:
        """The oldest third ends, a random third moves on, a new third begins."""
        new = self._ids(third)
        new_values = self._ids(third)
        middle = self._rng.choice(len(self.roots) - third, third, replace=False) + third
        edges = self._ids(third)
        roots = np.concatenate((self.roots[:third], self.roots[middle]))
        values = np.concatenate((self._values[:third], edges))
        self._values[middle] ^= edges
        order = self._rng.permutation(2 * third)
        self.roots = np.concatenate((self.roots[third:], new))
        self._values = np.concatenate((self._values[third:], new_values))
        return Batch((new, new_values, np.full(third, 7, np.int32)), (roots[order], values[order]))


class Subject(NamedTuple):
    """A ledger under test, and whether its journal is taken."""

    name: str
    ledger: Ledger
    journalled: bool

    def run(self, batches: list[Batch]) -> float:
        """Seconds to apply these epochs."""
        fed = [_as_lists(batch) for batch in batches]
        begin = time.thread_time()
        settled = 0
        for batch in fed:
            settled += len(self.ledger.apply(batch.inits, batch.acks).acked_roots)
            if self.journalled:
                self.ledger.take_delta()
        seconds = time.thread_time() - begin
        if settled != sum(len(batch.inits[0]) for batch in batches):
            raise SystemExit(
                f"{self.name}: {settled} trees ended, not as many as were due: the figures mean nothing"
            )
        return seconds


def _as_lists(batch: Batch) -> Batch:
    inits, acks = (
        [np.asarray(column).tolist() for column in columns] for columns in (batch.inits, batch.acks)
    )
    return Batch((inits[0], inits[1], inits[2]), (acks[0], acks[1]))


def _subjects() -> Iterator[Subject]:
    for journalled in (False, True):
        note = " + journal" if journalled else ""
        yield Subject(f"dict twin{note}", DictLedger(), journalled)
        if compiled.core is not None:
            yield Subject(f"table{note}", TableLedger(), journalled)


def measure_throughput(pending: int, rounds: int, rows: int, updates: bool) -> None:
    """Print messages per second and bytes per root, medians over the rounds."""
    traffic = Traffic(pending)
    draw = traffic.updates if updates else lambda count: traffic.epoch(count // 3)
    subjects = list(_subjects())
    for subject in subjects:
        subject.ledger.apply(_as_lists(traffic.fill()).inits)
        if subject.journalled:
            subject.ledger.take_delta()
    epochs = max(1, 600_000 // rows)
    seconds: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for _ in range(rounds):
        batches = [draw(rows) for _ in range(epochs)]
        for subject in subjects:
            seconds[subject.name].append(
                subject.run(batches) / sum(batch.rows for batch in batches)
            )
    kind = "updates of open trees only" if updates else "1/3 begin a tree, 1/3 go on, 1/3 end one"
    print(
        f"\n{pending:,} pending, epochs of {rows:,} messages: {kind}; median of {rounds} (min-max)"
    )
    print(f"{'':28}{'M messages/s':>14}{'(min-max)':>18}{'x dict':>9}{'bytes/root':>12}")
    for subject in subjects:
        twin = statistics.median(
            seconds["dict twin + journal" if subject.journalled else "dict twin"]
        )
        mine = seconds[subject.name]
        span = f"({1e-6 / max(mine):.2f}-{1e-6 / min(mine):.2f})"
        middle = statistics.median(mine)
        size = subject.ledger.bytes_per_root()
        print(f"{subject.name:28}{1e-6 / middle:14.2f}{span:>18}{twin / middle:9.1f}{size:12.1f}")


def measure_small_epochs(pending: int, rounds: int) -> None:
    """Print microseconds for epochs of a few messages, as lists, journal included."""
    print(
        f"\nsmall epochs at {pending:,} pending, journal taken: microseconds per epoch, median of {rounds}"
    )
    sizes = (3, 6, 15, 60, 120, 300, 1200)
    print(f"{'messages per epoch':28}" + "".join(f"{size:>9}" for size in sizes))
    for subject in _subjects():
        if not subject.journalled:
            continue
        traffic = Traffic(pending)
        subject.ledger.apply(_as_lists(traffic.fill()).inits)
        subject.ledger.take_delta()
        figures = []
        for size in sizes:
            runs = [
                subject.run([traffic.epoch(size // 3) for _ in range(20)]) / 20
                for _ in range(rounds)
            ]
            figures.append(statistics.median(runs) * 1e6)
        print(f"{subject.name:28}" + "".join(f"{figure:9.1f}" for figure in figures))


def measure_pending(rounds: int) -> None:
    """Print what a root costs on the spout's side: add, settle, callback, journal."""
    roots = list(range(1, 10_001))

    def live(needs_callbacks: bool) -> float:
        pending = Pending(max_spout_pending=100_000, needs_callbacks=needs_callbacks)
        begin = time.thread_time()
        for root in roots:
            pending.add(root, ("file", root), root)
        pending.take_delta()
        pending.settle(roots, (), 20_000)
        pending.take_delta()
        pending.confirm(pending.take_callbacks())
        pending.expire(30_000, 30_000, None)
        pending.take_delta()
        return (time.thread_time() - begin) / len(roots)

    print(f"\nspout pending, every root journalled, median of {rounds}")
    for needs_callbacks in (True, False):
        cost = statistics.median(live(needs_callbacks) for _ in range(rounds))
        print(
            f"{'with callbacks' if needs_callbacks else 'without callbacks':28}{cost * 1e6:9.2f} us/root"
        )


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if options.pending < 60_000:
        parser.error("--pending: at least 60000, twice the largest epoch")
    for rows, updates in ((30_000, True), (30_000, False), (3_000, False)):
        measure_throughput(options.pending, options.rounds, rows, updates)
    measure_small_epochs(min(options.pending, 100_000), options.rounds)
    measure_pending(options.rounds)


if __name__ == "__main__":
    main()
