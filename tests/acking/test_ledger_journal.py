"""Checks the data that survive a crash of an acker: deltas, snapshots, and bytes that are not
ours.
"""

from __future__ import annotations

import random
import struct

import pytest

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.data_plane.acking.ledger import DictLedger
from tests.acking.messages import AnyLedger, MakeLedger, ack, acked, fail, failed, init, rows_of

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
    writer = DictLedger()
    init(writer, *((root, root * 3, TASK) for root in range(1, 500)))
    reader = reloaded(make, b"", writer.take_delta())
    assert len(acked(ack(reader, *((root, root * 3) for root in range(1, 500))))) == 499


def _records() -> tuple[bytes, bytes]:
    ledger = DictLedger()
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
