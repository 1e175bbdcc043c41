"""Completion of trees: random trees, random order of delivery, any cut into batches."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.data_plane.acking.ledger import Ledger

SPOUT_TASK = 3
Message = tuple[str, int, int]
"""Stream, root, value."""


class Forest(NamedTuple):
    """Trees as the messages their tuples sent: an init per root, an ack per tuple and root
    (S1.9-S1.14).
    """

    inits: list[Message]
    acks: list[Message]


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Roots whose tuples beget tuples, some anchored to several at once; every edge has a fresh
    random id.
    """
    edges = draw(st.lists(st.integers(1, (1 << 63) - 1), unique=True, min_size=40, max_size=40))
    roots = range(1, draw(st.integers(1, 4)) + 1)
    inits: list[Message] = []
    acks: list[Message] = []
    open_tuples: list[dict[int, int]] = []
    for root in roots:
        first = edges.pop()
        inits.append(("init", root, first))
        open_tuples.append({root: first})
    generated: list[int] = [0] * len(open_tuples)
    for _ in range(draw(st.integers(0, 25))):
        anchors = draw(st.sets(st.integers(0, len(open_tuples) - 1), min_size=1, max_size=3))
        child: dict[int, int] = {}
        for anchor in anchors:  # S1.13: one new id per anchor, for each of that anchor's roots
            edge = edges.pop() if len(edges) > 3 else 0
            if not edge:
                break
            generated[anchor] ^= edge
            for root in open_tuples[anchor]:
                child[root] = child.get(root, 0) ^ edge
        if child:
            open_tuples.append(child)
            generated.append(0)
    for ids, children in zip(open_tuples, generated, strict=True):
        acks.extend(("ack", root, value ^ children) for root, value in ids.items())  # S1.10, S1.11
    return Forest(inits, acks)


def _deliver(ledger: Ledger, batch: list[Message]) -> tuple[list[int], list[int]]:
    rows = {
        stream: [message[1:] for message in batch if message[0] == stream]
        for stream in ("init", "ack", "fail")
    }
    init_roots, init_values = zip(*rows["init"], strict=True) if rows["init"] else ((), ())
    ack_roots, ack_values = zip(*rows["ack"], strict=True) if rows["ack"] else ((), ())
    fails = [root for root, _ in rows["fail"]]
    settled = ledger.apply(
        (init_roots, init_values, [SPOUT_TASK] * len(init_roots)), (ack_roots, ack_values), fails
    )
    assert set(settled.acked.values()) <= {SPOUT_TASK}
    return list(settled.acked), list(settled.failed)


def _cut(draw: st.DataObject, messages: list[Message]) -> list[list[Message]]:
    cuts = sorted(
        draw.draw(st.sets(st.integers(0, len(messages)), max_size=6)) | {0, len(messages)}
    )
    return [messages[begin:end] for begin, end in pairwise(cuts)]


@pytest.mark.slow
@settings(derandomize=True)
@given(forest=forests(), data=st.data())
def test_s1_5_every_tree_is_acked_by_exactly_its_last_message_in_any_order(
    forest: Forest, data: st.DataObject
) -> None:
    ledger = Ledger()
    messages = data.draw(st.permutations(forest.inits + forest.acks))
    left = {root: sum(message[1] == root for message in messages) for _, root, _ in forest.inits}
    for batch in _cut(data, messages):
        for _, root, _ in batch:
            left[root] -= 1
        due = sorted({root for _, root, _ in batch if not left[root]})
        acked, failed = _deliver(ledger, batch)
        assert sorted(acked) == due
        assert failed == []
    assert len(ledger) == 0


@pytest.mark.slow
@settings(derandomize=True)
@given(forest=forests(), data=st.data())
def test_s1_15_a_tree_with_a_lost_ack_is_never_acked_and_a_fail_ends_it(
    forest: Forest, data: st.DataObject
) -> None:
    ledger = Ledger()
    lost = data.draw(st.sampled_from(forest.acks))
    messages = forest.inits + [message for message in forest.acks if message is not lost]
    told: list[int] = []
    for batch in _cut(data, data.draw(st.permutations(messages))):
        told += _deliver(ledger, batch)[0]
    assert lost[1] not in told
    assert _deliver(ledger, [("fail", lost[1], 0)]) == ([], [lost[1]])


@pytest.mark.slow
@settings(derandomize=True)
@given(forest=forests(), data=st.data())
def test_s1_16_s1_17_no_root_is_told_twice_whatever_fails_and_when(
    forest: Forest, data: st.DataObject
) -> None:
    ledger = Ledger()
    fails = [
        ("fail", root, 0)
        for root in data.draw(st.lists(st.sampled_from([root for _, root, _ in forest.inits])))
    ]
    told: list[int] = []
    for batch in _cut(data, data.draw(st.permutations(forest.inits + forest.acks + fails))):
        for roots in _deliver(ledger, batch):
            told += roots
    assert sorted(told) == [root for _, root, _ in forest.inits]
