"""Laws of seed 001 (S1.*) that every ledger keeps, each test named with its line."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.data_plane.acking.ledger import Ledger
from tests.acking.messages import AnyLedger, MakeLedger, ack, acked, fail, failed, init, rows_of

ROOT, SPOUT_TASK, OTHER_TASK = 77, 5, 6


def test_s1_1_a_root_is_acked_only_after_its_tuple_and_every_derived_one_were(
    make: MakeLedger,
) -> None:
    ledger = make()
    parent, child, grandchild = 0b001, 0b010, 0b100
    assert not init(ledger, (ROOT, parent, SPOUT_TASK))
    assert not ack(ledger, (ROOT, parent ^ child))
    assert not ack(ledger, (ROOT, child ^ grandchild))
    assert acked(ack(ledger, (ROOT, grandchild))) == [(ROOT, SPOUT_TASK)]


def test_s1_2_the_spout_task_is_told_about_success_and_failure_of_each_root(
    make: MakeLedger,
) -> None:
    ledger = make()
    init(ledger, (1, 10, SPOUT_TASK), (2, 20, OTHER_TASK))
    settled = ledger.apply(acks=([1], [10]), fails=[2])
    assert (acked(settled), failed(settled)) == ([(1, SPOUT_TASK)], [(2, OTHER_TASK)])


def test_s1_5_the_value_is_the_xor_of_emitted_and_acked_edges_in_any_order(
    make: MakeLedger,
) -> None:
    draw = random.Random(1)
    edges = [draw.getrandbits(63) for _ in range(20)]
    for seed in range(10):
        ledger = make()
        messages = edges[1:] * 2
        random.Random(seed).shuffle(messages)
        init(ledger, (ROOT, edges[0], SPOUT_TASK))
        for edge in messages:
            assert not ack(ledger, (ROOT, edge))
        assert acked(ack(ledger, (ROOT, edges[0]))) == [(ROOT, SPOUT_TASK)]


def test_s1_6_messages_are_matched_by_root_id_alone(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (1, 9, SPOUT_TASK), (2, 9, SPOUT_TASK))
    assert acked(ack(ledger, (2, 9))) == [(2, SPOUT_TASK)]
    assert 1 in ledger
    assert 2 not in ledger


def test_s1_7_an_init_sets_the_spout_task_and_adds_to_the_value(make: MakeLedger) -> None:
    ledger = make()
    ack(ledger, (ROOT, 3))
    assert acked(init(ledger, (ROOT, 3, SPOUT_TASK))) == [(ROOT, SPOUT_TASK)]


def test_s1_8_one_record_per_root_is_the_whole_state_however_large_the_tree(
    make: MakeLedger,
) -> None:
    ledger = make()
    init(ledger, (ROOT, 1, SPOUT_TASK))
    for edge in range(2, 200):
        ack(ledger, (ROOT, edge))
    assert len(ledger) == 1


def test_s1_10_s1_11_a_tuple_of_two_roots_acks_both_with_one_value_each(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (1, 100, SPOUT_TASK), (2, 200, OTHER_TASK))
    child = 999
    assert not ack(ledger, (1, 100 ^ child), (2, 200 ^ child))
    assert acked(ack(ledger, (1, child), (2, child))) == [(1, SPOUT_TASK), (2, OTHER_TASK)]


def test_s1_14_a_root_without_edges_is_acked_by_its_init(make: MakeLedger) -> None:
    assert acked(init(make(), (ROOT, 0, SPOUT_TASK))) == [(ROOT, SPOUT_TASK)]


def test_s1_15_a_fail_ends_the_tree_whatever_edges_are_open(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (ROOT, 12345, SPOUT_TASK))
    assert failed(fail(ledger, ROOT)) == [(ROOT, SPOUT_TASK)]
    assert len(ledger) == 0


def test_s1_15_a_fail_before_the_init_is_kept(make: MakeLedger) -> None:
    ledger = make()
    assert not fail(ledger, ROOT)
    assert failed(init(ledger, (ROOT, 4, SPOUT_TASK))) == [(ROOT, SPOUT_TASK)]


def test_s1_16_a_settled_root_is_gone_and_late_messages_about_it_are_ignored(
    make: MakeLedger,
) -> None:
    ledger = make()
    init(ledger, (ROOT, 4, SPOUT_TASK))
    ack(ledger, (ROOT, 4))
    assert not ack(ledger, (ROOT, 4))
    assert not fail(ledger, ROOT)
    assert [ledger.rotate() for _ in range(3)] == [0, 0, 1]
    assert len(ledger) == 0


def test_s1_16_messages_of_one_batch_about_one_root_settle_it_once(make: MakeLedger) -> None:
    ledger = make()
    settled = ledger.apply(inits=([ROOT], [7], [SPOUT_TASK]), acks=([ROOT, ROOT, ROOT], [7, 1, 1]))
    assert acked(settled) == [(ROOT, SPOUT_TASK)]


def test_s1_16_a_value_that_is_0_only_in_the_middle_of_a_batch_settles_nothing(
    make: MakeLedger,
) -> None:
    ledger = make()
    init(ledger, (ROOT, 7, SPOUT_TASK))
    assert not ack(ledger, (ROOT, 7), (ROOT, 8))
    assert acked(ack(ledger, (ROOT, 8))) == [(ROOT, SPOUT_TASK)]


def test_s1_17_ack_is_tested_before_fail_after_the_whole_batch(make: MakeLedger) -> None:
    ledger = make()
    settled = ledger.apply(
        inits=([1, 2], [7, 7], [SPOUT_TASK] * 2), acks=([1, 2], [7, 6]), fails=[1, 2]
    )
    assert (acked(settled), failed(settled)) == ([(1, SPOUT_TASK)], [(2, SPOUT_TASK)])


def test_s1_18_an_ack_before_its_init_waits_for_the_spout_task(make: MakeLedger) -> None:
    ledger = make()
    assert not ack(ledger, (ROOT, 5))
    assert not ack(ledger, (ROOT, 5))  # value 0 again, yet nobody to tell
    assert len(ledger) == 1
    assert acked(init(ledger, (ROOT, 0, SPOUT_TASK))) == [(ROOT, SPOUT_TASK)]


def test_s1_19_an_entry_expires_silently_by_the_third_rotation(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (1, 5, SPOUT_TASK))
    assert ledger.rotate() == 0
    init(ledger, (2, 5, SPOUT_TASK))
    assert [ledger.rotate() for _ in range(3)] == [0, 1, 1]
    assert not ack(ledger, (1, 5))  # nobody is told: the spout's own pending fails the message


def test_s1_19_an_ack_does_not_make_an_entry_younger_but_a_fail_does(make: MakeLedger) -> None:
    ledger = make()
    ack(ledger, (1, 5))
    fail(ledger, 2)
    ledger.rotate()
    ledger.rotate()
    ack(ledger, (1, 6))
    fail(ledger, 2)
    assert ledger.rotate() == 1
    assert 1 not in ledger
    assert 2 in ledger


@pytest.mark.parametrize("turns", range(7))
@pytest.mark.parametrize("age", [1, 2])
def test_s1_19_a_root_made_young_lives_as_long_as_a_new_one_from_any_bucket(
    make: MakeLedger, turns: int, age: int
) -> None:
    ledger = make()
    for _ in range(turns):
        ledger.rotate()
    init(ledger, (1, 5, SPOUT_TASK))
    ack(ledger, (2, 5))
    for _ in range(age):
        ledger.rotate()
    fail(ledger, 2)
    ledger.reset_timeouts([1])
    assert [ledger.rotate() for _ in range(3)] == [0, 0, 2]


def test_a_reset_timeout_makes_open_roots_young_again_and_ignores_others(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (1, 5, SPOUT_TASK), (2, 5, SPOUT_TASK))
    ledger.rotate()
    ledger.rotate()
    ledger.reset_timeouts([2, 3])
    assert ledger.rotate() == 1
    assert 2 in ledger
    assert len(ledger) == 1


@pytest.mark.parametrize("column", [list, tuple])
def test_columns_may_be_lists_or_tuples(
    make: MakeLedger, column: Callable[[list[int]], Any]
) -> None:
    ledger = make()
    settled = ledger.apply(
        inits=(column([1, 2]), column([7, 9]), column([SPOUT_TASK, OTHER_TASK])),
        acks=(column([1]), column([7])),
        fails=column([2]),
    )
    assert (acked(settled), failed(settled)) == ([(1, SPOUT_TASK)], [(2, OTHER_TASK)])


BAD_ROOTS: list[Any] = [[0], [1 << 63], [-1], [1 << 64], ["1"], [1.5], [None]]


@pytest.mark.parametrize("roots", BAD_ROOTS, ids=repr)
@pytest.mark.parametrize("stream", ["__ack_init", "__ack_ack", "__ack_fail"])
def test_a_column_of_no_roots_is_refused_and_nothing_applied(
    make: MakeLedger, roots: list[int], stream: str
) -> None:
    ledger = make()
    good_init: tuple[list[int], list[int], list[int]] = ([5], [3], [SPOUT_TASK])
    with pytest.raises(MalformedFrameError, match=stream):
        ledger.apply(
            inits=(roots, [1], [1]) if stream == "__ack_init" else good_init,
            acks=(roots, [1]) if stream == "__ack_ack" else ([6], [3]),
            fails=roots if stream == "__ack_fail" else [7],
        )
    assert len(ledger) == 0


@pytest.mark.parametrize(
    ("inits", "acks"),
    [
        (([1, 2], [1], [1, 1]), ((), ())),
        (([1], [1], [-1]), ((), ())),
        (([1], [1], [1 << 31]), ((), ())),
        (([1], [1 << 64], [1]), ((), ())),
        (((), (), ()), ([1, 2], [1])),
        (((), (), ()), ([1], ["x"])),
    ],
)
def test_columns_that_do_not_fit_together_or_their_type_are_refused(
    make: MakeLedger, inits: Any, acks: Any
) -> None:
    ledger = make()
    with pytest.raises(MalformedFrameError):
        ledger.apply(inits=inits, acks=acks)
    assert len(ledger) == 0


def test_an_empty_batch_settles_nothing(make: MakeLedger) -> None:
    assert not make().apply()


def test_without_time_outs_only_what_nobody_has_begun_is_forgotten(make: MakeLedger) -> None:
    ledger = make()
    ledger.apply(([1], [5], [7]), ([2], [9]), [3])
    for _ in range(5):
        ledger.renew_begun()
        ledger.rotate()
    assert [root in ledger for root in (1, 2, 3)] == [True, False, False]
    settled = ledger.apply(acks=([1], [5]))
    assert list(settled.acked) == [1]


# -- many open roots never take each other's messages ----------------------------------------------


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
    result = acked(ack(ledger, *((root, 9) for root in rest)))
    assert result == sorted((root, root % 7) for root in rest)


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
    result = acked(ack(ledger, *((root, 9 + at) for at, root in rest)))
    assert result == sorted((root, at % 7) for at, root in rest)
    assert len(ledger) == 0


# -- data that survive a crash of an acker ---------------------------------------------------------


TASK = 5


def reloaded(make: MakeLedger, snapshot: bytes, *deltas: bytes) -> AnyLedger:
    ledger = make()
    ledger.load(snapshot, deltas)
    return ledger


def test_an_epoch_without_change_journals_nothing(make: MakeLedger) -> None:
    ledger = make()
    assert ledger.take_delta() == b""
    init(ledger, (1, 5, TASK))
    assert ledger.take_delta() != b""
    assert ledger.take_delta() == b""


def test_a_tree_that_begins_and_ends_inside_one_epoch_leaves_no_trace(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (1, 5, TASK))
    ack(ledger, (1, 5))
    assert ledger.take_delta() == b""


def test_open_trees_go_on_after_a_restart(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (1, 5, TASK), (2, 6, TASK))
    ack(ledger, (3, 7))
    fail(ledger, 4)
    first = ledger.take_delta()
    ack(ledger, (1, 5), (2, 2))
    second = ledger.take_delta()
    again = reloaded(make, b"", first, second)
    assert len(again) == 3
    assert 1 not in again
    assert acked(ack(again, (2, 4))) == [(2, TASK)]
    assert acked(init(again, (3, 7, TASK))) == [(3, TASK)]
    assert failed(init(again, (4, 8, TASK))) == [(4, TASK)]


def test_a_delta_replayed_twice_does_no_harm(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (1, 5, TASK), (2, 6, TASK))
    first = ledger.take_delta()
    ack(ledger, (1, 5))
    second = ledger.take_delta()
    again = reloaded(make, b"", first, first, second, second)
    assert len(again) == 1
    assert acked(ack(again, (2, 6))) == [(2, TASK)]


def test_a_root_removed_and_put_again_in_one_epoch_is_there_after_a_restart(
    make: MakeLedger,
) -> None:
    ledger = make()
    init(ledger, (1, 5, TASK))
    first = ledger.take_delta()
    ack(ledger, (1, 5))
    init(ledger, (1, 9, TASK))
    again = reloaded(make, b"", first, ledger.take_delta())
    assert acked(ack(again, (1, 9))) == [(1, TASK)]


def test_expired_roots_leave_the_journal_too(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (1, 5, TASK))
    first = ledger.take_delta()
    for _ in range(3):
        ledger.rotate()
    assert len(reloaded(make, b"", first, ledger.take_delta())) == 0


def test_a_snapshot_replaces_the_deltas_before_it(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (1, 5, TASK), (2, 6, TASK))
    fail(ledger, 3)
    ledger.take_delta()
    snapshot = ledger.snapshot()
    ack(ledger, (1, 5))
    again = reloaded(make, snapshot, ledger.take_delta())
    assert len(again) == 2
    assert failed(init(again, (3, 1, TASK))) == [(3, TASK)]


def test_a_reloaded_ledger_has_nothing_to_journal_and_young_entries(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (1, 5, TASK))
    ledger.rotate()
    ledger.rotate()
    again = reloaded(make, b"", ledger.take_delta())
    assert again.take_delta() == b""
    assert [again.rotate() for _ in range(3)] == [0, 0, 1]
    assert again.take_delta() != b""


def test_a_ledger_of_one_kind_reads_what_another_wrote(make: MakeLedger) -> None:
    writer = Ledger()
    init(writer, *((root, root * 3, TASK) for root in range(1, 500)))
    reader = reloaded(make, b"", writer.take_delta())
    assert len(acked(ack(reader, *((root, root * 3) for root in range(1, 500))))) == 499


def _records() -> tuple[bytes, bytes]:
    ledger = Ledger()
    init(ledger, (1, 5, TASK), (2, 6, TASK))
    delta = ledger.take_delta()
    return ledger.snapshot(), delta


def test_cut_or_lengthened_bytes_are_refused(make: MakeLedger) -> None:
    snapshot, delta = _records()
    for cut in range(1, len(delta)):
        with pytest.raises(MalformedFrameError, match="delta 0"):
            reloaded(make, b"", delta[:cut])
        with pytest.raises(MalformedFrameError, match="snapshot"):
            reloaded(make, snapshot[:cut])
    with pytest.raises(MalformedFrameError):
        reloaded(make, b"", delta + b"\0")


def test_a_snapshot_is_no_delta_and_a_delta_no_snapshot(make: MakeLedger) -> None:
    snapshot, delta = _records()
    with pytest.raises(MalformedFrameError):
        reloaded(make, delta)
    with pytest.raises(MalformedFrameError):
        reloaded(make, b"", snapshot)


HEADER = struct.Struct("<2sBBII")


@pytest.mark.parametrize(
    ("rows", "removed", "told"),
    [
        ([(0, 1, 1, 0)], [], "root"),
        ([(1 << 63, 1, 1, 0)], [], "root"),
        ([(1, 1, -2, 0)], [], "task"),
        ([(1, 1, 1, 2)], [], "flags"),
        ([(1, 1, 1, 0), (1, 2, 1, 0)], [], "twice"),
        ([], [0], "root"),
    ],
)
def test_bytes_of_the_right_length_with_illegal_content_are_refused(
    make: MakeLedger, rows: list[tuple[int, int, int, int]], removed: list[int], told: str
) -> None:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    packed = HEADER.pack(b"AL", 1, 0, len(rows), len(removed))
    for letter, column in zip("QQiBQ", (*columns, removed), strict=True):
        packed += struct.pack(f"<{len(column)}{letter}", *column)
    with pytest.raises(MalformedFrameError, match=told):
        reloaded(make, b"", packed)


def test_a_refused_load_changes_nothing(make: MakeLedger) -> None:
    ledger = make()
    init(ledger, (1, 5, TASK))
    with pytest.raises(MalformedFrameError):
        ledger.load(b"nonsense")
    assert acked(ack(ledger, (1, 5))) == [(1, TASK)]


def test_random_histories_reload_to_the_same_ledger_at_every_epoch(make: MakeLedger) -> None:
    rng = random.Random(7)
    ledger, snapshot, deltas = make(), b"", []
    for epoch in range(60):
        for _ in range(rng.randrange(6)):
            _say_something(ledger, rng)
        if rng.random() < 0.1:
            ledger.rotate()
        deltas.append(ledger.take_delta())
        if epoch % 17 == 16:
            snapshot, deltas = ledger.snapshot(), []
        assert rows_of(reloaded(make, snapshot, *deltas)) == rows_of(ledger)


def _say_something(ledger: AnyLedger, rng: random.Random) -> None:
    root, value = rng.randrange(1, 12), rng.randrange(4)
    match rng.randrange(3):
        case 0:
            init(ledger, (root, value, TASK))
        case 1:
            ack(ledger, (root, value))
        case _:
            fail(ledger, root)
