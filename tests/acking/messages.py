"""Short forms of a ledger's messages for the tests: init, ack, fail, and its answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from sparkstorm.data_plane.acking.journal import replay
from sparkstorm.data_plane.acking.ledger import Ledger, Settled
from sparkstorm.data_plane.acking.tree_batches import TreeBatches

AnyLedger: TypeAlias = Ledger | TreeBatches
MakeLedger: TypeAlias = Callable[[], AnyLedger]


def init(ledger: AnyLedger, *rows: tuple[int, int, int]) -> Settled:
    roots, values, tasks = zip(*rows, strict=True)
    return ledger.apply(inits=(roots, values, tasks))


def ack(ledger: AnyLedger, *rows: tuple[int, int]) -> Settled:
    roots, values = zip(*rows, strict=True)
    return ledger.apply(acks=(roots, values))


def fail(ledger: AnyLedger, *roots: int) -> Settled:
    return ledger.apply(fails=roots)


def acked(settled: Settled) -> list[tuple[int, int]]:
    return sorted(settled.acked.items())


def failed(settled: Settled) -> list[tuple[int, int]]:
    return sorted(settled.failed.items())


def rows_of(ledger: AnyLedger) -> list[tuple[int, int, int, int]]:
    """Return all open roots as (root, value, spout task, flags), in the order of roots."""
    return sorted(replay(ledger.snapshot(), ()))
