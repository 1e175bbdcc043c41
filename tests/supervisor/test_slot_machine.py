"""The slot's machine under simulated time: every phase, every way out of it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.model.assignment import FAILED, ExecutorId
from sparkstorm.common.model.worker_messages import ExitCode
from sparkstorm.common.model.worker_spec import PlacedExecutor
from sparkstorm.control_plane.supervisor.slot_machine import (
    BlobView,
    ChildView,
    DumpStacks,
    FetchBlob,
    KillChild,
    LocalAssignment,
    Observation,
    Phase,
    SlotAction,
    SlotState,
    StartChild,
    StopChild,
    Timing,
    WorkerExited,
    pause_ms,
    settle,
    step,
)
from tests.tiers import examples

TIMING = Timing()
WORDS = LocalAssignment(
    "words-1", "code-1", "conf-1", (PlacedExecutor(ExecutorId(1, 2), 1),), version=1
)
OTHER = replace(WORDS, topology_id="other-1")
NEW_CODE = replace(WORDS, code_key="code-2")
LARGER = replace(
    WORDS, executors=(*WORDS.executors, PlacedExecutor(ExecutorId(3, 3), 2)), version=2
)
SAME_PART = replace(WORDS, version=7)
READY_BLOB = Observation(wanted=WORDS, blob=BlobView.READY)


def wanting(
    assignment: LocalAssignment | None, child: ChildView | None = None, stop: bool = False
) -> Observation:
    return Observation(assignment, BlobView.READY, child, stop)


def in_phase(phase: Phase, since_ms: int = 0, **changes: int) -> SlotState:
    return SlotState(phase, since_ms, assignment=WORDS, **changes)


def alive(heard_ms: int = 0, ready: bool = True) -> ChildView:
    return ChildView(heard_ms, ready)


def dead(exit_code: int = -9, ready: bool = True) -> ChildView:
    return ChildView(0, ready, exit_code)


FETCHING = in_phase(Phase.WAITING_FOR_BLOB)
STARTING, RUNNING = in_phase(Phase.WAITING_FOR_WORKER_START), in_phase(Phase.RUNNING)
KILL = in_phase(Phase.KILL, due_ms=3_000)
RELAUNCHING = in_phase(Phase.KILL_AND_RELAUNCH, due_ms=250)
PAUSING = in_phase(Phase.WAITING_FOR_RELAUNCH, due_ms=250)

# state, observation, now, phase after, actions
TABLE: list[tuple[str, SlotState, Observation, int, Phase, list[SlotAction]]] = [
    ("an empty slot that nobody wants stays so", SlotState(), wanting(None), 9, Phase.EMPTY, []),
    ("a wish is fetched", SlotState(), wanting(WORDS), 9, Phase.WAITING_FOR_BLOB, [FetchBlob(WORDS)]),
    ("an empty slot stops at once", SlotState(), wanting(WORDS, stop=True), 9, Phase.STOPPED, []),
    ("a missing blob is waited for", FETCHING, Observation(WORDS), 9, Phase.WAITING_FOR_BLOB, []),
    ("a blob that is here is started", FETCHING, READY_BLOB, 9,
     Phase.WAITING_FOR_WORKER_START, [StartChild(WORDS)]),
    ("a failed blob waits", replace(FETCHING, due_ms=10), Observation(WORDS, BlobView.FAILED), 9,
     Phase.WAITING_FOR_BLOB, []),
    ("a failed blob is fetched again", replace(FETCHING, due_ms=9), Observation(WORDS, BlobView.FAILED), 9,
     Phase.WAITING_FOR_BLOB, [FetchBlob(WORDS)]),
    ("a wish that goes while its blob is fetched", FETCHING, wanting(None), 9, Phase.EMPTY, []),
    ("a child that is not ready is waited for", STARTING, wanting(WORDS, alive(ready=False)), 9,
     Phase.WAITING_FOR_WORKER_START, []),
    ("a ready child runs", STARTING, wanting(WORDS, alive()), 9, Phase.RUNNING, []),
    ("a child that could not be spawned is tried again", STARTING, wanting(WORDS), 9, Phase.WAITING_FOR_RELAUNCH, []),
    ("a child that dies starting is buried", STARTING, wanting(WORDS, dead(20, ready=False)), 9,
     Phase.WAITING_FOR_RELAUNCH, [WorkerExited(20, blameless=False, started=False)]),
    ("a child that never gets ready is killed", STARTING, wanting(WORDS, alive(ready=False)), 120_000,
     Phase.KILL_AND_RELAUNCH, [DumpStacks()]),
    ("a child that is no longer wanted while it starts", STARTING, wanting(None, alive(ready=False)), 9,
     Phase.KILL, [StopChild()]),
    ("a running child is left alone", RUNNING, wanting(WORDS, alive()), 29_999, Phase.RUNNING, []),
    ("a new version of the same part is no change", RUNNING, wanting(SAME_PART, alive()), 9, Phase.RUNNING, []),
    ("a silent child is killed", RUNNING, wanting(WORDS, alive()), 30_000,
     Phase.KILL_AND_RELAUNCH, [DumpStacks()]),
    ("a dead child is buried", RUNNING, wanting(WORDS, dead()), 9, Phase.WAITING_FOR_RELAUNCH,
     [WorkerExited(-9, blameless=False, started=True)]),
    ("another topology ends the child softly", RUNNING, wanting(OTHER, alive()), 9, Phase.KILL, [StopChild()]),
    ("new code ends the child softly", RUNNING, wanting(NEW_CODE, alive()), 9, Phase.KILL, [StopChild()]),
    ("more executors end the child softly", RUNNING, wanting(LARGER, alive()), 9, Phase.KILL, [StopChild()]),
    ("a stopping slot ends its child softly", RUNNING, wanting(WORDS, alive(), stop=True), 9,
     Phase.KILL, [StopChild()]),
    ("a child that is ending gets its time", KILL, wanting(None, alive()), 2_999, Phase.KILL, []),
    ("a child that does not end is killed", KILL, wanting(None, alive()), 3_000, Phase.KILL, [KillChild()]),
    ("a child that ended is buried without blame", KILL, wanting(None, dead(0)), 9, Phase.EMPTY,
     [WorkerExited(0, blameless=True, started=True)]),
    ("a wish that comes back does not save a child that was told to end", KILL, wanting(WORDS, alive()), 9,
     Phase.KILL, []),
    ("a hung child gets a moment for its stacks", RELAUNCHING, wanting(WORDS, alive()), 249,
     Phase.KILL_AND_RELAUNCH, []),
    ("a hung child is killed, again and again until it is dead", RELAUNCHING, wanting(WORDS, alive()), 250,
     Phase.KILL_AND_RELAUNCH, [KillChild()]),
    ("a child that is alive and gets on stays", RUNNING, wanting(WORDS, ChildView(40_000, True, moved_ms=30_001)), 60_000,
     Phase.RUNNING, []),
    ("a child that is alive and does not get on is asked where it hangs", RUNNING,
     wanting(WORDS, ChildView(59_999, True, moved_ms=30_000)), 60_000, Phase.KILL_AND_RELAUNCH, [DumpStacks()]),
    ("a child that is alive and never becomes ready has the start's time", STARTING,
     wanting(WORDS, ChildView(119_999, moved_ms=0)), 120_000, Phase.KILL_AND_RELAUNCH, [DumpStacks()]),
    ("a killed child is followed by another", RELAUNCHING, wanting(WORDS, dead()), 9, Phase.WAITING_FOR_RELAUNCH,
     [WorkerExited(-9, blameless=False, started=True)]),
    ("a pause lasts", PAUSING, wanting(WORDS), 249, Phase.WAITING_FOR_RELAUNCH, []),
    ("a pause ends", PAUSING, wanting(WORDS), 250, Phase.WAITING_FOR_WORKER_START, [StartChild(WORDS)]),
    ("a wish that goes during a pause", PAUSING, wanting(None), 9, Phase.EMPTY, []),
    ("a stopped slot stays stopped", in_phase(Phase.STOPPED), wanting(WORDS), 9, Phase.STOPPED, []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "seen", "now_ms", "phase", "actions"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_table(
    state: SlotState, seen: Observation, now_ms: int, phase: Phase, actions: list[SlotAction]
) -> None:
    after, asked = step(state, seen, now_ms, TIMING)
    assert (after.phase, asked) == (phase, actions)


def test_every_phase_is_in_the_table() -> None:
    assert {row[1].phase for row in TABLE} == set(Phase) == {row[4] for row in TABLE}


def test_a_child_that_dies_right_after_it_got_ready_had_been_running() -> None:
    after, asked = settle(STARTING, wanting(WORDS, dead(1)), 9, TIMING)
    assert asked == [WorkerExited(1, blameless=False, started=True)]
    assert (after.phase, after.failed_starts) == (Phase.WAITING_FOR_RELAUNCH, 0)


def test_the_first_death_costs_no_pause_and_later_early_ones_ever_longer_pauses() -> None:
    assert [pause_ms(deaths, TIMING) for deaths in range(6)] == [0, 0, 250, 500, 1_000, 2_000]
    assert pause_ms(1_000, TIMING) == TIMING.longest_pause_ms


def test_a_child_that_had_lived_long_is_followed_at_once() -> None:
    old = replace(RUNNING, young_deaths=8)
    after, _ = step(old, wanting(WORDS, dead()), TIMING.young_ms, TIMING)
    assert (after.due_ms, after.young_deaths) == (TIMING.young_ms, 1)


@pytest.mark.parametrize(
    ("child", "after_ms"),
    [(None, 0), (dead(20, ready=False), 0), (alive(ready=False), TIMING.start_timeout_ms)],
    ids=["cannot be spawned", "dies", "hangs"],
)
def test_starts_that_keep_failing_are_reported_and_tried_on(
    child: ChildView | None, after_ms: int
) -> None:
    state, now_ms, words = SlotState(), 0, []
    for _ in range(4):
        while state.phase is not Phase.WAITING_FOR_WORKER_START:
            now_ms = max(now_ms, state.due_ms)
            state, _ = settle(state, READY_BLOB, now_ms, TIMING)
        if child is not None and child.exit_code is None:
            child = replace(child, heard_ms=now_ms)
        now_ms += after_ms
        state, _ = step(state, wanting(WORDS, child), now_ms, TIMING)
        if state.phase is Phase.KILL_AND_RELAUNCH:
            state, _ = step(state, wanting(WORDS, dead(-9, ready=False)), now_ms, TIMING)
        words.append(state.reported(TIMING))
    assert words[2:] == [FAILED, FAILED] and FAILED not in words[:2]


def test_a_start_that_succeeds_after_failures_is_running_again() -> None:
    state, _ = step(replace(STARTING, failed_starts=9), wanting(WORDS, alive()), 9, TIMING)
    assert state.reported(TIMING) == "RUNNING" and state.failed_starts == 0


def test_a_new_wish_forgets_the_failures_of_the_old_one() -> None:
    state, _ = settle(replace(PAUSING, failed_starts=9, young_deaths=9), wanting(OTHER), 9, TIMING)
    assert (state.assignment, state.failed_starts, state.young_deaths) == (OTHER, 0, 0)


OBSERVATIONS = st.tuples(
    st.sampled_from([None, WORDS, OTHER, NEW_CODE, LARGER, SAME_PART]),
    st.sampled_from(list(BlobView)),
    st.sampled_from(["lives", "gets ready", "dies", "is silent"]),
    st.integers(0, 40_000),
)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.lists(OBSERVATIONS, max_size=60))
def test_whatever_happens_there_is_one_child_and_no_wait_without_end(
    events: list[tuple[object, ...]],
) -> None:
    state, child, now_ms = SlotState(), None, 0
    for wanted, blob, fate, elapsed_ms in [
        *events,
        *[(None, BlobView.FAILED, "is silent", 130_000)] * 4,
    ]:
        assert isinstance(elapsed_ms, int)
        now_ms += elapsed_ms
        child = _fated(child, str(fate), now_ms)
        for _ in range(4):
            seen = Observation(wanted, blob, child)  # type: ignore[arg-type]
            state, actions = step(state, seen, now_ms, TIMING)
            child = _carried_out(actions, child, now_ms)
    assert state.phase is Phase.EMPTY and child is None


def _fated(child: ChildView | None, fate: str, now_ms: int) -> ChildView | None:
    if child is None or child.exit_code is not None or fate == "is silent":
        return child
    if fate == "dies":
        return replace(child, exit_code=1)
    return replace(child, heard_ms=now_ms, ready=child.ready or fate == "gets ready")


def _carried_out(
    actions: list[SlotAction], child: ChildView | None, now_ms: int
) -> ChildView | None:
    for action in actions:
        if isinstance(action, StartChild):
            assert child is None, "a second child"
            return ChildView(now_ms)
        if isinstance(action, WorkerExited):
            assert child is not None and child.exit_code is not None, "buried alive"
            return None
        if isinstance(action, KillChild):
            assert child is not None, "killed nobody"
            return replace(child, exit_code=-9)
    return child


@pytest.mark.parametrize("state", [STARTING, RUNNING], ids=["while it starts", "while it runs"])
def test_a_child_that_found_damaged_data_is_reported_at_once_and_hardly_tried_again(
    state: SlotState,
) -> None:
    after, actions = step(
        state, wanting(WORDS, dead(ExitCode.DAMAGED, ready=state is RUNNING)), 1_000, TIMING
    )
    assert [type(action) for action in actions] == [WorkerExited]
    assert after.phase == Phase.WAITING_FOR_RELAUNCH
    assert after.due_ms == 1_000 + TIMING.longest_pause_ms
    assert after.reported(TIMING) == FAILED


def test_a_mistake_of_the_job_is_reported_after_as_many_early_deaths_as_failed_starts() -> None:
    words = []
    for code in (ExitCode.MISTAKEN, ExitCode.FAILED_START):
        state, now_ms = RUNNING, TIMING.young_ms  # the first one had lived long
        for _ in range(4):
            state, _ = step(state, wanting(WORDS, dead(code)), now_ms, TIMING)
            words.append(state.reported(TIMING))
            now_ms = max(now_ms, state.due_ms)
            state, _ = step(state, wanting(WORDS, None), now_ms, TIMING)
            state, _ = step(state, wanting(WORDS, alive()), now_ms, TIMING)
            assert state.reported(TIMING) == "RUNNING"
    waits = Phase.WAITING_FOR_RELAUNCH.value
    assert words == [waits, waits, FAILED, FAILED, *[waits] * 4]
