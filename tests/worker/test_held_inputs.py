"""Checks HeldInputs: the orders of births, event times and tries, and what a commit is told."""

from __future__ import annotations

from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.task_kit.held import PendingInput
from sparkstorm.data_plane.worker.tasks.held_inputs import HeldInputs

SOURCE = Source("spout", 1, "default", ("value",))


def pending(key: str, born_ms: int = 100, value: object = 1) -> PendingInput:
    return PendingInput(Tuple((value,), 0, SOURCE), 0, born_ms, key, (value,))


def held_inputs(*inputs: PendingInput) -> HeldInputs:
    inputs_held = HeldInputs(None)
    for held in inputs:
        inputs_held.keep(held, 0)
    return inputs_held


def test_the_oldest_birth_counts_held_inputs_until_they_are_let_go() -> None:
    held = held_inputs(pending("old", 100), pending("young", 300), pending("middle", 200))
    seen = [held.oldest_ms(500)]
    for gone in ("young", "old", "middle"):
        held.let_go(gone)
        seen.append(held.oldest_ms(500))
    assert seen == [100, 100, 200, 500]
    assert held.oldest_ms(50) == 50


def test_due_inputs_are_named_once_and_in_the_order_of_their_tries() -> None:
    inputs = [pending(key) for key in "abc"]
    for due_ms, put_off in zip((20, 0, 10), inputs, strict=True):
        put_off.due_ms = due_ms
    held = held_inputs(*inputs)
    assert held.next_due_ms() == 0
    due = [held.take_due(now_ms) for now_ms in (15, 15, 15)]
    assert [one and one.key for one in due] == ["b", "c", None]
    assert held.next_due_ms() == 20
    assert held.waiting_since_ms(()) == 100


def test_an_input_that_was_put_off_again_or_let_go_is_not_due_by_its_former_time() -> None:
    again, gone = pending("again"), pending("gone")
    again.due_ms = gone.due_ms = 10
    held = held_inputs(again, gone)
    again.due_ms = 30
    held.keep(again, 0)
    held.let_go("gone")
    assert held.take_due(20) is None
    assert held.take_due(30) is again


def test_inputs_that_user_code_keeps_do_not_hold_time_outs_back() -> None:
    kept, queued, late = pending("kept", 10), pending("queued", 20), pending("late", 30)
    late.due_ms = 99
    held = held_inputs(kept, queued)
    assert held.waiting_since_ms(()) is None
    assert held.waiting_since_ms({id(queued.tuple)}) == 20
    held.keep(late, 0)
    assert held.waiting_since_ms(()) == 30
    assert (held.num_kept(), held.num_kept(1), held.num_kept(9)) == (2, 1, 0)


def test_the_least_event_time_holds_a_mark_back_until_its_input_is_let_go() -> None:
    held = HeldInputs(lambda tup: tup.values[0])
    for key, time_ms in (("b", 70), ("a", 50)):
        held.keep(pending(key, value=time_ms), 0)
    assert (held.hold_back(60), held.hold_back(40)) == (50, 40)
    held.let_go("a")
    assert held.hold_back(90) == 70
    held.let_go("b")
    assert held.hold_back(90) == 90


def test_a_commit_is_told_of_stored_inputs_that_were_let_go_and_of_no_others() -> None:
    stored, new = pending("stored"), pending("new")
    stored.is_stored = True
    held = held_inputs(stored, new)
    assert list(held.changed) == ["stored", "new"]
    held.let_go("stored")
    held.let_go("new")
    assert (held.changed, held.released) == ({}, ["stored"])


def test_an_input_keeps_its_key_and_gets_the_values_that_it_had_before() -> None:
    changed = PendingInput(Tuple(([1, 2],), 7, SOURCE), 0, 100, "a", ([1],))
    held = held_inputs(changed)
    before = changed.tuple
    held.renew(changed, Codec())
    assert changed.tuple.values == ([1],) and changed.tuple.roots == 7
    assert (held.key_of(before), held.key_of(changed.tuple)) == (None, "a")
    assert changed.tuple.values[0] is not changed.original[0]
