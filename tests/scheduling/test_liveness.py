"""Liveness of executors: heartbeats on the observer's clock, launch grace, lost supervisors, blind
time.
"""

from dataclasses import replace

import pytest

from sparkstorm.common.model.assignment import Assignment, ExecutorId, WorkerSlot
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.control_plane.scheduling.liveness import (
    BeatTimeouts,
    LastSeen,
    alive_executors,
    blind_ms_between,
    dead_slots,
    looks_like_our_fault,
    observe,
)

SLOT, EXECUTOR = WorkerSlot("n", 1), ExecutorId(1, 2)
TIMES = BeatTimeouts(task_ms=30_000, launch_ms=120_000, supervisor_ms=60_000, forsaken_ms=5_000)
ASSIGNMENT = Assignment(
    "t", 3, "c", "d", {"n": "h"}, {EXECUTOR: SLOT}, {EXECUTOR: 0}, {EXECUTOR: 2}
)
BEAT = WorkerBeat("t", "n", 1, 777, 0, 1, 1, "RUNNING", 3)
LATE = 1_000_000  # far beyond any launch grace


def after(*rounds: tuple[int, WorkerBeat | None, bool]) -> LastSeen:
    """LastSeen after rounds of (now, beat, whether the slot is offered)."""
    seen = LastSeen()
    for now_ms, beat, offered in rounds:
        seen = observe(seen, [beat] if beat else [], [SLOT] if offered else [], now_ms)
    return seen


def lives(seen: LastSeen, now_ms: int, assignment: Assignment = ASSIGNMENT) -> bool:
    return EXECUTOR in alive_executors(assignment, seen, now_ms, TIMES)


@pytest.mark.parametrize(("age_ms", "alive"), [(0, True), (30_000, True), (30_001, False)])
def test_an_unchanged_beat_ages_on_our_clock(age_ms: int, alive: bool) -> None:
    seen = after((LATE, BEAT, True), (LATE + age_ms, BEAT, True))
    assert lives(seen, LATE + age_ms) is alive


def test_a_worker_whose_clock_is_years_off_lives_as_long_as_its_beats_change() -> None:
    seen = LastSeen()
    for number in range(10):
        now_ms = LATE + number * 20_000
        seen = observe(seen, [replace(BEAT, time_ms=-number)], [SLOT], now_ms)
        assert lives(seen, now_ms)


@pytest.mark.parametrize(("age_ms", "alive"), [(119_999, True), (120_000, False)])
def test_a_worker_without_a_beat_has_its_launch_grace(age_ms: int, alive: bool) -> None:
    seen = after((0, None, True), (age_ms, None, True))
    assert lives(seen, age_ms) is alive


def test_a_beat_of_an_older_assignment_does_not_speak_for_what_was_placed_later() -> None:
    old = replace(BEAT, assignment_version=1)
    seen = after((LATE, old, True), (LATE + 31_000, replace(old, time_ms=778), True))
    assert not lives(seen, LATE + 31_000)
    seen = after((LATE, BEAT, True), (LATE + 31_000, replace(BEAT, time_ms=778), True))
    assert lives(seen, LATE + 31_000)


def test_a_slot_that_cannot_start_its_worker_gives_no_sign_of_life_for_it() -> None:
    failed = [replace(BEAT, state="FAILED", time_ms=778 + n) for n in range(4)]
    seen = after(
        (LATE, BEAT, True),
        *((LATE + 11_000 * (n + 1), beat, True) for n, beat in enumerate(failed)),
    )
    assert not lives(seen, LATE + 44_000)


@pytest.mark.parametrize(("silent_ms", "alive"), [(5_000, True), (5_001, False)])
def test_who_has_lost_its_supervisor_and_is_silent_is_given_up_soon(
    silent_ms: int, alive: bool
) -> None:
    seen = after((LATE, BEAT, True), (LATE + silent_ms, BEAT, False))
    assert lives(seen, LATE + silent_ms) is alive


@pytest.mark.parametrize(("gone_ms", "alive"), [(60_000, True), (61_000, False)])
def test_who_beats_on_without_a_supervisor_is_given_up_late(gone_ms: int, alive: bool) -> None:
    rounds = [(LATE + ms, replace(BEAT, time_ms=ms), ms == 0) for ms in range(0, gone_ms + 1, 1000)]
    assert lives(after(*rounds), LATE + gone_ms) is alive


def test_the_first_look_of_a_restarted_observer_buries_nobody() -> None:
    assert lives(after((LATE, BEAT, True)), LATE)
    assert lives(after((LATE, None, True)), LATE)
    assert lives(after((LATE, None, False)), LATE)
    assert not lives(after((LATE, None, True), (LATE + 31_000, None, True)), LATE + 31_000)


def test_time_in_which_we_were_blind_counts_for_nobody() -> None:
    seen = after((LATE, BEAT, True))
    now_ms = LATE + 300_000
    blind_ms = blind_ms_between(seen, now_ms, 10_000)
    assert blind_ms == 300_000
    assert lives(observe(seen, [BEAT], [SLOT], now_ms, blind_ms), now_ms)
    assert lives(observe(seen, [BEAT], [], now_ms, blind_ms), now_ms)  # nor for supervisors
    assert blind_ms_between(seen, LATE + 20_000, 10_000) == 0
    assert blind_ms_between(LastSeen(), LATE, 10_000) == 0


def test_a_slot_with_one_dead_executor_is_a_dead_slot() -> None:
    other = ExecutorId(3, 3)
    both = replace(ASSIGNMENT, slot_by_executor={EXECUTOR: SLOT, other: WorkerSlot("m", 1)})
    assert dead_slots([both], {"t": {other}}) == {SLOT}
    assert dead_slots([both], {}) == {SLOT, WorkerSlot("m", 1)}
    assert dead_slots([both], {"t": {EXECUTOR, other}}) == set()


@pytest.mark.parametrize(
    ("dead", "known", "trouble", "ours"),
    [
        (3, 5, True, True),
        (2, 4, True, False),
        (5, 5, False, False),
        (0, 0, True, False),
        (1, 1, True, True),
    ],
)
def test_many_deaths_at_once_after_trouble_are_our_fault(
    dead: int, known: int, trouble: bool, ours: bool
) -> None:
    assert looks_like_our_fault(dead, known, trouble) is ours


@pytest.mark.parametrize(("node", "alive"), [("n", False), ("other", True)])
def test_a_worker_whose_node_and_driver_are_gone_is_dead_without_a_wait(
    node: str, alive: bool
) -> None:
    seen = observe(LastSeen(), [BEAT], [], LATE, gone_nodes=frozenset({node}))
    assert lives(seen, LATE) is alive
    back = observe(seen, [BEAT], [SLOT], LATE + 1)
    assert lives(back, LATE + 1)
