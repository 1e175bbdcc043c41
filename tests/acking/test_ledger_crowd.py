"""Checks that many open roots never take each other's messages, however they lie in the table (S1.6)."""

from __future__ import annotations

import random

from tests.acking.messages import MakeLedger, ack, acked, init


def test_s1_6_hundreds_of_roots_with_one_value_are_told_apart(make: MakeLedger) -> None:
    ledger, dice = make(), random.Random(6)
    roots = [dice.getrandbits(62) + 1 for _ in range(400)]
    init(ledger, *((root, 9, root % 7) for root in roots))
    assert len(ledger) == 400
    dice.shuffle(roots)
    for left, root in zip(range(399, 379, -1), roots, strict=False):
        assert acked(ack(ledger, (root, 9))) == [(root, root % 7)]
        assert len(ledger) == left and root not in ledger
    rest = roots[20:]
    assert acked(ack(ledger, *((root, 9) for root in rest))) == sorted((root, root % 7) for root in rest)
