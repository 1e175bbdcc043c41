"""Checks that many open roots never take each other's messages, however they lie in the table
(S1.6).
"""

from __future__ import annotations

import random

import pytest

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
    assert acked(ack(ledger, *((root, 9) for root in rest))) == sorted(
        (root, root % 7) for root in rest
    )


@pytest.mark.parametrize("shift", [0, 32, 54])
def test_s1_6_roots_that_agree_in_all_but_a_few_bits_are_told_apart(
    make: MakeLedger, shift: int
) -> None:
    """In one batch and one by one, with a value each: no part of the 63 bits may be left out of the
    comparison.
    """
    ledger, like = make(), ~(0x1FF << shift) & 0x2AAA_5555_1234_9876
    roots = [like | high << shift for high in range(1, 301)]
    rows = [(root, 9 + at, at % 7) for at, root in enumerate(roots)]
    init(ledger, *rows[:150])
    init(ledger, *rows[150:])  # new ones among those that are there
    assert len(ledger) == 300 and all(root in ledger for root in roots)
    assert like not in ledger and (like | 301 << shift) not in ledger
    for at, root in enumerate(roots[:40]):
        assert acked(ack(ledger, (root, 9 + at))) == [(root, at % 7)]
        assert len(ledger) == 299 - at and root not in ledger
    rest = list(enumerate(roots))[40:]
    assert acked(ack(ledger, *((root, 9 + at) for at, root in rest))) == sorted(
        (root, at % 7) for at, root in rest
    )
    assert len(ledger) == 0
