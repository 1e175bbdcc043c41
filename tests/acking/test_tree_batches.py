"""Batches of trees in an acker's ledger: what ends with its batch, what is left out of it, what is
told when, and what is kept.
"""

from __future__ import annotations

import pytest

from sparkstorm.common.model.roots import batch_root, split
from sparkstorm.data_plane.acking.ledger import Ledger, Settled
from sparkstorm.data_plane.acking.tree_batches import TreeBatches
from tests.acking.messages import ack, acked, fail, failed, init

BATCH = batch_root(7 << 10)
OTHER = batch_root(8 << 10)
ONE, TWO, THREE = (split(BATCH + place) for place in (1, 2, 3))
TASK = 4


def kept(settled: Settled) -> list[tuple[int, int]]:
    return sorted(settled.kept.items())


def again(trees: TreeBatches, *deltas: bytes) -> TreeBatches:
    """Return what a later owner reads of it."""
    found = TreeBatches()
    found.load(b"", [*deltas, trees.take_delta()])
    return found


@pytest.fixture
def trees() -> TreeBatches:
    return TreeBatches()


def test_a_batch_is_acked_except_the_members_whose_split_root_is_open(trees: TreeBatches) -> None:
    init(trees, (BATCH, 5, TASK))
    ack(trees, (ONE, 9), (TWO, 9))
    ack(trees, (TWO, 9))
    settled = ack(trees, (BATCH, 5))
    assert (acked(settled), failed(settled), kept(settled)) == ([(BATCH, TASK)], [], [(ONE, TASK)])
    assert acked(ack(trees, (ONE, 9))) == [(ONE, TASK)]
    assert len(trees) == 0


def test_a_split_root_that_comes_to_zero_says_nothing_before_its_batch(trees: TreeBatches) -> None:
    init(trees, (BATCH, 5, TASK))
    ack(trees, (ONE, 9))
    assert not ack(trees, (ONE, 9))
    assert kept(ack(trees, (BATCH, 5))) == []
    assert len(trees) == 0


def test_splits_may_be_heard_before_their_batch_and_in_its_last_message(trees: TreeBatches) -> None:
    ack(trees, (ONE, 9))
    settled = trees.apply(([BATCH], [5], [TASK]), ([BATCH, TWO], [5, 3]))
    assert (acked(settled), kept(settled)) == ([(BATCH, TASK)], [(ONE, TASK), (TWO, TASK)])


def test_a_failure_is_told_at_once_and_its_member_is_not_acked_with_its_batch(
    trees: TreeBatches,
) -> None:
    init(trees, (BATCH, 5, TASK))
    settled = trees.apply(acks=([ONE], [9]), fails=[ONE])
    assert (acked(settled), failed(settled)) == ([], [(ONE, TASK)])
    ack(trees, (ONE, 4))  # another row of it goes on
    settled = ack(trees, (BATCH, 5))
    assert (acked(settled), kept(settled)) == ([(BATCH, TASK)], [(ONE, TASK)])
    assert len(trees) == 0


def test_a_failure_before_the_init_of_its_batch_is_told_with_it(trees: TreeBatches) -> None:
    assert not trees.apply(acks=([ONE], [9]), fails=[ONE])
    assert failed(init(again(trees), (BATCH, 5, TASK))) == [(ONE, TASK)]
    assert failed(init(trees, (BATCH, 5, TASK))) == [(ONE, TASK)]


def test_a_member_that_was_kept_fails_like_any_tree(trees: TreeBatches) -> None:
    init(trees, (BATCH, 5, TASK))
    ack(trees, (ONE, 9))
    ack(trees, (BATCH, 5))
    assert failed(fail(trees, ONE)) == [(ONE, TASK)]
    assert len(trees) == 0


def test_a_batch_that_ended_where_it_began_leaves_trees_like_any_others(trees: TreeBatches) -> None:
    ack(trees, (ONE, 6))  # of a worker that was heard first
    init(trees, (ONE, 9, TASK), (TWO, 3, TASK))
    assert acked(ack(trees, (ONE, 15), (TWO, 3))) == [(ONE, TASK), (TWO, TASK)]
    assert len(trees) == 0


def test_batches_do_not_touch_each_other(trees: TreeBatches) -> None:
    init(trees, (BATCH, 5, TASK), (OTHER, 5, 6))
    ack(trees, (ONE, 9), (split(OTHER + 1), 9))
    assert kept(ack(trees, (OTHER, 5))) == [(split(OTHER + 1), 6)]
    assert kept(ack(trees, (BATCH, 5))) == [(ONE, TASK)]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_later_owner_knows_which_splits_wait_and_which_have_failed(
    trees: TreeBatches, restarts: bool
) -> None:
    init(trees, (BATCH, 5, TASK))
    trees.apply(acks=([ONE, TWO, THREE], [9, 8, 7]), fails=[TWO])
    ack(trees, (THREE, 7))
    found = again(trees) if restarts else trees
    settled = ack(found, (BATCH, 5))
    assert acked(settled) == [(BATCH, TASK)]
    assert failed(settled) == [(TWO, TASK)]
    assert kept(settled) == [(ONE, TASK), (TWO, TASK)]
    assert acked(ack(found, (ONE, 9))) == [(ONE, TASK)]


def test_a_split_root_lives_as_long_as_its_batch(trees: TreeBatches) -> None:
    init(trees, (BATCH, 5, TASK))
    ack(trees, (ONE, 9))
    for _ in range(5):
        trees.rotate()
        assert trees.reset_timeouts([TWO]) == {TASK: [TWO]}  # of a row on the common path
    assert kept(ack(trees, (BATCH, 5))) == [(ONE, TASK)]


def test_without_time_outs_only_what_nobody_has_begun_is_forgotten(trees: TreeBatches) -> None:
    init(trees, (BATCH, 5, TASK))
    ack(trees, (ONE, 9), (split(OTHER + 1), 9))
    for _ in range(5):
        trees.renew_begun()
        trees.rotate()
    assert split(OTHER + 1) not in trees
    assert kept(ack(trees, (BATCH, 5))) == [(ONE, TASK)]


def test_the_time_out_of_a_member_that_was_kept_is_its_own(trees: TreeBatches) -> None:
    init(trees, (BATCH, 5, TASK))
    ack(trees, (ONE, 9))
    ack(trees, (BATCH, 5))
    assert trees.reset_timeouts([ONE, TWO]) == {TASK: [ONE]}


def test_what_is_forgotten_waits_for_no_batch_any_more(trees: TreeBatches) -> None:
    ack(trees, (ONE, 9))
    for _ in range(3):
        trees.rotate()
    assert len(trees) == 0
    init(trees, (BATCH, 5, TASK))
    assert kept(ack(trees, (BATCH, 5))) == []


def test_a_verdict_of_failures_alone_is_a_verdict() -> None:
    """The acker's task sends nothing for a verdict that is false."""
    found = Ledger().apply(([5], [7], [3]), ([], []), [5])
    assert list(found.failed) == [5] and not found.acked
    assert found
