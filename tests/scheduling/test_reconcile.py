"""Next assignment: what it keeps, what a rebalance may keep, and which answers are refused."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.common.model.assignment import (
    Assignment,
    AssignmentKind,
    ExecutorId,
    WorkerSlot,
    movement,
)
from sparkstorm.control_plane.scheduling.reconcile import (
    Wanted,
    check_answer,
    kept_for_rebalance,
    next_assignment,
)

E = [ExecutorId(n, n) for n in range(1, 41)]
A, B, C = (WorkerSlot(node, 1) for node in "abc")
WANTED = Wanted("t", "code", "conf", AssignmentKind.MONITOR)
HOSTS = {"a": "host-a", "b": "host-b", "c": "host-c"}


def first() -> Assignment:
    made = next_assignment(None, WANTED, {E[0]: A, E[1]: B}, HOSTS, 10)
    assert made
    return made


def test_a_first_assignment_has_version_one_everywhere() -> None:
    made = first()
    assert made.version == 1
    assert made.host_by_node == {"a": "host-a", "b": "host-b"}
    assert made.start_ms_by_executor == {E[0]: 10, E[1]: 10}
    assert made.placed_version_by_executor == {E[0]: 1, E[1]: 1}


def test_no_difference_makes_no_assignment() -> None:
    assert next_assignment(first(), WANTED, {E[1]: B, E[0]: A}, HOSTS, 99) is None


def test_who_stays_keeps_its_start_and_its_fence_and_who_moves_gets_new_ones() -> None:
    made = next_assignment(first(), WANTED, {E[0]: A, E[1]: C, E[2]: C}, HOSTS, 50)
    assert made and made.version == 2
    assert made.start_ms_by_executor == {E[0]: 10, E[1]: 50, E[2]: 50}
    assert made.placed_version_by_executor == {E[0]: 1, E[1]: 2, E[2]: 2}
    assert made.host_by_node == {"a": "host-a", "c": "host-c"}


def test_who_comes_back_after_an_absence_gets_a_new_fence() -> None:
    without = next_assignment(first(), WANTED, {E[0]: A}, HOSTS, 50)
    assert without and E[1] not in without.slot_by_executor
    back = next_assignment(without, WANTED, {E[0]: A, E[1]: B}, HOSTS, 60)
    assert back and back.version == 3
    assert back.placed_version_by_executor == {E[0]: 1, E[1]: 3}


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("t", "code2", "conf", AssignmentKind.UPDATE),
        Wanted("t", "code", "conf2", AssignmentKind.UPDATE),
    ],
)
def test_new_code_or_conf_is_a_new_version_in_which_nobody_moved(wanted: Wanted) -> None:
    made = next_assignment(first(), wanted, first().slot_by_executor, HOSTS, 50)
    assert made
    assert made.version == 2
    assert made.code_key == wanted.code_key
    assert made.conf_key == wanted.conf_key
    assert made.placed_version_by_executor == first().placed_version_by_executor


def test_the_host_of_a_vanished_supervisor_is_remembered() -> None:
    made = next_assignment(first(), WANTED, {E[0]: A, E[1]: C}, {"c": "host-c"}, 50)
    assert made and made.host_by_node == {"a": "host-a", "c": "host-c"}


def test_movement_tells_who_stayed_moved_and_went() -> None:
    moves = movement({E[0]: A, E[1]: A, E[2]: B}, {E[0]: A, E[1]: B, E[3]: C})
    assert moves.stayed == (E[0],)
    assert moves.moved == ((E[1], A, B), (E[3], None, C))
    assert moves.dropped == ((E[2], B),)


def spread(num: int, slots: int) -> dict[ExecutorId, WorkerSlot]:
    return {executor: WorkerSlot("n", i % slots) for i, executor in enumerate(E[:num])}


@pytest.mark.parametrize(
    ("num", "slots", "workers", "kept"),
    [
        (12, 2, 4, 6),
        (12, 4, 2, 0),
        (12, 4, 4, 12),
        (7, 3, 3, 7),
        (12, 3, 4, 9),
        (4, 4, 8, 4),
        (0, 1, 3, 0),
    ],
)
def test_growth_keeps_what_fits_and_shrinking_frees_what_must_merge(
    num: int, slots: int, workers: int, kept: int
) -> None:
    assert len(kept_for_rebalance(spread(num, slots), E[:num], workers)) == kept


@pytest.mark.parametrize("second", ["", "@2"])
def test_a_rebalance_to_fewer_workers_keeps_some_on_every_machine(second: str) -> None:
    """Six workers on three machines, on two slots of one driver's or on a slot of each of two
    drivers'.
    """
    slots = [
        WorkerSlot(f"w{n}{part}", port) for n in (1, 2, 3) for part, port in (("", 1), (second, 2))
    ]
    kept = kept_for_rebalance(dict(zip(E[:6], slots, strict=True)), E[:6], 5)
    assert len(kept) == 4
    result = {slot.node.partition("@")[0] for slot in kept.values()}
    assert result == {"w1", "w2", "w3"}


@given(
    st.dictionaries(
        st.sampled_from(E), st.builds(WorkerSlot, st.sampled_from("abcd"), st.integers(1, 3))
    ),
    st.sets(st.sampled_from(E)),
    st.integers(1, 9),
)
def test_what_is_freed_always_fits_the_workers_that_remain(
    placed: dict[ExecutorId, WorkerSlot], executors: set[ExecutorId], workers: int
) -> None:
    kept = kept_for_rebalance(placed, executors, workers)
    assert all(placed[each] == slot and each in executors for each, slot in kept.items())
    base, extra = divmod(len(executors), workers)
    sizes = Counter([base + 1] * extra + [base] * (workers - extra))
    used = Counter(Counter(kept.values()).values())
    assert all(sizes[size] >= number for size, number in used.items())
    remaining = workers - len(set(kept.values()))
    assert remaining > 0 or len(kept) == len(executors)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ({"t": {E[5]: A}}, "which t does not have"),
        ({"t": {E[0]: C}}, "which is not offered"),
        ({"t": {E[0]: A}, "u": {E[0]: A}}, "both t and u on a:1"),
        ({"x": {E[0]: A}}, "which x does not have"),
    ],
)
def test_an_answer_that_breaks_the_rules_is_refused(
    answer: dict[str, dict[ExecutorId, WorkerSlot]], complaint: str
) -> None:
    with pytest.raises(FailedAssignTopologyError, match=complaint):
        check_answer(answer, {"t": E[:2], "u": E[:2]}, {A, B})


def test_a_sound_answer_passes() -> None:
    check_answer({"t": {E[0]: A, E[1]: A}, "u": {E[0]: B}}, {"t": E[:2], "u": E[:2]}, {A, B})
