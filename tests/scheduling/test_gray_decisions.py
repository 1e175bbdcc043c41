"""Decisions of a gray upgrade: its stage, the next batch, when it is over; and the judgement of
upgraded workers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.model.assignment import (
    Assignment,
    AssignmentKind,
    ExecutorId,
    WorkerCode,
    WorkerSlot,
)
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.topology import MASTER
from sparkstorm.common.model.upgrade import (
    GrayUpgrade,
    RollbackBounds,
    ShadowBar,
    UpgradeOptions,
    UpgradeStage,
    UpgradeState,
    code_text,
)
from sparkstorm.control_plane.scheduling.reconcile import Wanted, next_assignment, with_codes
from sparkstorm.extensions.upgrade.gray_upgrade import (
    UpgradeStep,
    advance,
    classify,
    codes_wanted,
    final_code,
    has_single_master,
    pick,
    taken_back,
    upgradable,
)
from sparkstorm.extensions.upgrade.judgement import Sightings, judge
from sparkstorm.extensions.upgrade.live_shadow import judge_shadow, shadow_figures, shadowed_task

OLD, NEW = WorkerCode("old", "conf"), WorkerCode("new", "conf2")
A, B, C, D = SLOTS = [
    WorkerSlot("n1", 1),
    WorkerSlot("n1", 2),
    WorkerSlot("n2", 1),
    WorkerSlot("n2", 2),
]
WORKERS = {A: {"split"}, B: {"count", "split"}, C: {"count"}, D: {"lines"}}
UPGRADE = GrayUpgrade(
    "wc-1-9",
    NEW,
    OLD,
    TopologyOutline({}, {}, {}),
    1000,
    9000,
    options=UpgradeOptions(worker_num=2),
)
E = [ExecutorId(n, n) for n in range(1, 5)]
COMPONENTS = {1: "split", 2: "count", 3: "count", 4: "lines"}
PLACED = dict(zip(E, SLOTS, strict=True))
RUNNING = Assignment(
    "wc-1-9", 5, "old", "conf", {}, PLACED, dict.fromkeys(E, 7), dict.fromkeys(E, 3)
)


def state(upgrade: GrayUpgrade, upgrading: Any = (), upgraded: Any = ()) -> UpgradeState:
    return UpgradeState(
        upgrade, frozenset(upgrading), {slot: code_text(upgrade.target(slot)) for slot in upgraded}
    )


@pytest.mark.parametrize(
    ("upgrade", "stage"),
    [
        (None, UpgradeStage.NONE),
        (UPGRADE, UpgradeStage.IN_PROGRESS),
        (replace(UPGRADE, expires_ms=1999), UpgradeStage.EXPIRED),
        (replace(UPGRADE, completed_ms=1500, expires_ms=1), UpgradeStage.COMPLETED),
        (replace(UPGRADE, rollback="why", expires_ms=1), UpgradeStage.ROLLING_BACK),
    ],
)
def test_an_upgrade_is_expired_completed_taken_back_or_in_progress(
    upgrade: GrayUpgrade | None, stage: UpgradeStage
) -> None:
    """S0.17."""
    assert classify(upgrade, 2000) is stage


@pytest.mark.parametrize(
    ("options", "batch"),
    [
        (UpgradeOptions((C, A), "split", 1), {A, C}),  # S0.9: names go first, the rest is ignored
        (UpgradeOptions((C, WorkerSlot("gone", 1))), {C}),
        (UpgradeOptions(component="count", worker_num=5), {B, C}),
        (UpgradeOptions(component="count"), {B, C}),  # S0.12
        (UpgradeOptions(worker_num=9), set(SLOTS)),
        (UpgradeOptions(), set()),
    ],
)
def test_named_workers_go_before_the_component_and_that_before_the_number(
    options: UpgradeOptions, batch: set[WorkerSlot]
) -> None:
    assert set(pick(options, WORKERS, "seed")) == batch


def test_a_number_of_workers_is_drawn_and_the_draw_can_be_repeated() -> None:
    """S0.11, S0.13."""
    draws = [pick(UpgradeOptions(worker_num=2), WORKERS, f"seed {n}") for n in range(50)]
    assert {len(set(each)) for each in draws} == {2}
    assert {slot for each in draws for slot in each} == set(SLOTS)
    assert draws == [pick(UpgradeOptions(worker_num=2), WORKERS, f"seed {n}") for n in range(50)]
    assert {*pick(UpgradeOptions(component="split", worker_num=1), WORKERS, "x")} < {A, B}


def test_a_batch_is_written_before_its_workers_are_listed_and_no_other_follows_by_itself() -> None:
    """S0.10, S0.22, S0.23."""
    first = advance(
        replace(UPGRADE, options=UpgradeOptions((A, B), "x", 3)), state(UPGRADE), WORKERS, 2000
    )
    assert first.record is not None and first.add_upgrading == ()
    assert first.record.batch == (A, B)
    assert first.record.continue_upgrading is False
    assert first.record.options.workers == ()
    listed = advance(first.record, state(first.record), WORKERS, 2000)
    assert listed == UpgradeStep(add_upgrading=(A, B))
    for upgrading, upgraded in (((A, B), ()), ((B,), (A,)), ((), (A, B))):
        assert advance(
            first.record, state(first.record, upgrading, upgraded), WORKERS, 2000
        ).is_idle


def test_a_worker_counts_as_upgraded_only_under_the_code_it_was_to_get() -> None:
    upgrade = replace(UPGRADE, batch=(A,), continue_upgrading=False)
    stale = UpgradeState(upgrade, frozenset(), {A: code_text(OLD)})
    assert advance(upgrade, stale, WORKERS, 2000).add_upgrading == (A,)


def test_an_upgrade_is_over_when_every_worker_but_the_masters_is_upgraded() -> None:
    """S0.28."""
    with_master = replace(
        RUNNING, slot_by_executor={**PLACED, ExecutorId(5, 5): WorkerSlot("n3", 1)}
    )
    workers = upgradable(with_master, {**COMPONENTS, 5: MASTER})
    assert workers.keys() == set(SLOTS)
    upgrade = replace(UPGRADE, batch=(D,), continue_upgrading=False)
    assert advance(upgrade, state(upgrade, (), SLOTS[1:]), workers, 2000).is_idle
    over = advance(upgrade, state(upgrade, (), SLOTS), workers, 2000)
    assert over.record is not None and over.record.completed_ms == 2000
    assert advance(over.record, state(over.record), workers, 2000).is_idle, (
        "what is completed is Nimbus's to end"
    )


def test_a_master_among_other_tasks_is_no_single_worker() -> None:
    """S0.7."""
    among = replace(RUNNING, slot_by_executor={**PLACED, ExecutorId(5, 5): A})
    alone = replace(RUNNING, slot_by_executor={**PLACED, ExecutorId(5, 5): WorkerSlot("n3", 1)})
    components = {**COMPONENTS, 5: MASTER}
    result = [has_single_master(each, components) for each in (RUNNING, alone, among)]
    assert result == [True, True, False]


def test_workers_that_moved_away_are_forgotten() -> None:
    upgrade = replace(UPGRADE, batch=(A, B), continue_upgrading=False)
    gone = {slot: each for slot, each in WORKERS.items() if slot != A}
    assert advance(upgrade, state(upgrade, (A, B)), gone, 2000) == UpgradeStep(drop_upgrading=(A,))
    result = advance(upgrade, state(upgrade, (), (A, B)), gone, 2000)
    assert result == UpgradeStep(drop_upgraded=(A,))


def test_a_rollback_restarts_every_worker_with_new_code_and_then_is_over() -> None:
    now = with_codes(RUNNING, OLD, {A: NEW, B: NEW}, 50)
    assert now is not None
    back = taken_back(replace(UPGRADE, batch=(B,)), state(UPGRADE, (B,), (A,)), now, WORKERS, "why")
    assert (back.batch, back.rollback, back.target(A)) == ((A, B), "why", OLD)
    held = UpgradeState(back, frozenset({B}), {A: code_text(NEW)})
    assert codes_wanted(back, held, now) == {}
    assert advance(back, held, WORKERS, 10**9) == UpgradeStep(add_upgrading=(A,)), (
        "also when its time is over"
    )
    assert advance(back, state(back, (), (A, B)), WORKERS, 2000).is_rolled_back


def test_codes_are_per_worker_and_raise_the_fences_of_those_that_change() -> None:
    now = with_codes(RUNNING, OLD, {B: NEW, WorkerSlot("gone", 1): NEW, C: OLD}, 50)
    assert now is not None and now.code_by_slot == {B: NEW} and now.version == 6
    assert [now.code_at(slot) for slot in SLOTS] == [OLD, NEW, OLD, OLD]
    assert [now.placed_version_by_executor[each] for each in E] == [3, 6, 3, 3]
    assert with_codes(now, OLD, {B: NEW}, 60) is None
    whole = with_codes(now, NEW, {}, 60)
    assert whole is not None
    assert whole.code_by_slot == {}
    assert (whole.code_key, whole.conf_key) == ("new", "conf2")
    assert [whole.placed_version_by_executor[each] for each in E] == [7, 6, 7, 7], (
        "the upgraded one is left alone"
    )
    assert [final_code(UPGRADE, each, WORKERS) for each in (now, whole)] == [OLD, NEW]


def test_code_follows_a_worker_that_is_moved_as_a_whole() -> None:
    now = with_codes(RUNNING, OLD, {A: NEW, B: NEW}, 50)
    assert now is not None
    free, wanted = WorkerSlot("n3", 1), Wanted("wc-1-9", "old", "conf", AssignmentKind.MONITOR)
    moved = next_assignment(now, wanted, {**PLACED, E[0]: free}, {}, 60)
    assert moved is not None and moved.code_by_slot == {free: NEW, B: NEW}
    mixed = next_assignment(now, wanted, {**PLACED, E[0]: free, E[2]: free}, {}, 60)
    assert mixed is not None and mixed.code_by_slot == {B: NEW}, (
        "a worker of both kinds runs the topology's own code"
    )


# -- judgement -------------------------------------------------------------------------------------

BOUNDS = RollbackBounds(True, 100, 0.01, 1, 3.0)
MIXED = with_codes(RUNNING, OLD, {B: NEW}, 50)
JUDGED = replace(UPGRADE, bounds=BOUNDS, batch=(B,))


def beat(slot: WorkerSlot, launch: int = 1, word: str = "RUNNING", **counts: int) -> WorkerBeat:
    assert MIXED
    stats: dict[ExecutorId, Any] = {each: dict(counts) for each in MIXED.executors_at(slot)}
    return WorkerBeat(
        "wc-1-9",
        slot.node,
        slot.port,
        0,
        0,
        1,
        launch,
        word,
        6,
        stats,
        {},
        "ImportError: no module\n  a log",
    )


def verdict(*rounds: list[WorkerBeat]) -> str:
    assert MIXED
    seen = Sightings()
    for beats in rounds:
        seen = seen.with_beats(beats, MIXED, JUDGED)
    return judge(JUDGED, MIXED, rounds[-1], seen, COMPONENTS)


NOTHING = [beat(B, executed=5000, failed=900), beat(C, executed=5000)]


def timed(upgraded_us: int, other_us: int) -> list[WorkerBeat]:
    """Heartbeats of an upgraded worker and another one with these times of a thousand tuples."""
    upgraded = beat(B, executed=6000, failed=900, busy_us=upgraded_us)
    return [upgraded, beat(C, executed=6000, busy_us=other_us)]


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ([beat(B, executed=5099, failed=999), beat(C, executed=9000)], ""),  # too few to judge by
        ([beat(B, executed=5200, failed=901, retried=0), beat(C, executed=9000)], ""),
        (
            [beat(B, executed=6000, failed=900, retried=20), beat(C, executed=9000)],
            "component 'count' fails 2.00 % of its tuples",
        ),
        # the others fail as many
        ([beat(B, executed=6000, failed=920), beat(C, executed=9000, failed=100)], ""),
        (timed(900_000, 200_000), "takes 900 us per tuple"),
        (timed(500_000, 200_000), ""),
        (timed(90_000, 2_000), ""),  # too short to tell
        (
            [beat(B, word="FAILED"), beat(C, executed=9000)],
            "worker n1:2 does not start: ImportError: no module",
        ),
        ([beat(C, word="FAILED"), beat(B, executed=5000, failed=900)], ""),
    ],
)
def test_upgraded_workers_are_judged_by_what_they_did_since(
    after: list[WorkerBeat], words: str
) -> None:
    found = verdict(NOTHING, after)
    assert words in found and bool(words) == bool(found) and "a log" not in found


def test_deaths_of_an_upgraded_worker_are_counted_by_its_launches() -> None:
    launches = [[beat(B, launch, executed=1)] for launch in (4, 4, 5, 7)]
    assert verdict(*launches[:3]) == ""
    assert "died 2 times, the limit is 1" in verdict(*launches)
    assert verdict(*[[beat(C, launch, executed=1)] for launch in (4, 5, 6, 7)]) == ""
    assert MIXED and MIXED.version == 6
    asked = [[replace(beat(B, launch, executed=1), assignment_version=5)] for launch in (2, 3)]
    assert verdict(*asked, *launches[:3]) == "", (
        "a worker that is restarted with the new code has not died"
    )


def test_an_upgrade_is_not_judged_by_the_launches_and_counts_of_the_one_before() -> None:
    """A slot's handler outlives many upgrades, each of which starts the slot's worker anew."""
    assert MIXED
    seen = Sightings()
    for n in range(1, 9):
        upgrade = replace(JUDGED, started_ms=1000 * n)
        beats = [beat(B, launch=n, executed=1000 * n, failed=500)]
        seen = seen.with_beats(beats, MIXED, upgrade)
        assert judge(upgrade, MIXED, beats, seen, COMPONENTS) == "", n


SHADOWED = replace(UPGRADE, shadow=ShadowBar("count", 100))
FIGURES = {
    "component": "count",
    "task": 2,
    "code_key": "new",
    "compared": 100,
    "different": 0,
    "skipped": 3,
    "problem": "",
}


def shadow_beat(time_ms: int = 5, **changed: Any) -> WorkerBeat:
    figures: dict[str, Any] = {**FIGURES, "first": ["row 7"], **changed}
    return WorkerBeat("wc-1-9", "n1", 2, time_ms, 1, 1, 1, "RUNNING", 5, stats={"shadow": figures})


def test_no_worker_is_upgraded_before_the_bar_is_passed() -> None:
    assert classify(SHADOWED, 2000) is UpgradeStage.SHADOWING
    assert advance(SHADOWED, state(SHADOWED), WORKERS, 2000).is_idle
    passed = replace(SHADOWED, shadow=ShadowBar("count", 100, is_passed=True))
    assert classify(passed, 2000) is UpgradeStage.IN_PROGRESS
    record = advance(passed, state(passed), WORKERS, 2000).record
    assert record is not None and len(record.batch) == 2
    assert shadowed_task("count", COMPONENTS) == 2 and shadowed_task("nothing", COMPONENTS) is None
    expired = advance(SHADOWED, state(SHADOWED), WORKERS, 9001).record
    assert expired is not None and expired.completed_ms, (
        "an upgrade that never passes its bar ends as it is"
    )


@pytest.mark.parametrize(
    ("beats", "is_passed", "why"),
    [
        ([], False, ""),
        ([shadow_beat(compared=99)], False, ""),
        ([shadow_beat()], True, ""),
        ([shadow_beat(code_key="other")], False, ""),
        ([shadow_beat(), shadow_beat(9, compared=5)], False, ""),  # the newest process begins anew
        (
            [shadow_beat(different=1)],
            False,
            "1 of 100 tuples come out differently in the shadow of count#2, before",
        ),
        ([shadow_beat(problem="it hangs")], False, "the shadow of count#2 ended: it hangs"),
        ([shadow_beat(compared="many")], False, ""),
        ([shadow_beat(compared=True)], False, ""),
        ([shadow_beat(first=[1])], False, ""),
        ([replace(shadow_beat(), stats={"shadow": 7})], False, ""),
    ],
)
def test_the_bar_is_passed_by_enough_tuples_without_a_difference(
    beats: list[WorkerBeat], is_passed: bool, why: str
) -> None:
    found = judge_shadow(SHADOWED, beats)
    assert found[0] is is_passed and found[1].startswith(why) and bool(found[1]) is bool(why)
    assert ("row 7" in found[1]) is ("differently" in why)
    assert judge_shadow(UPGRADE, beats) == (False, "")


def test_the_figures_of_a_shadow_are_shown() -> None:
    figures = shadow_figures(SHADOWED, [shadow_beat()])
    assert str(figures) == "count#2: 100 tuples compared, 0 come out differently, 3 skipped"
