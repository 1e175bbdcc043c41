"""Turns of a load-aware shuffle: who gets how many, by what waits for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest

from sparkstorm.common.grouping.load_ring import LoadRing
from sparkstorm.common.grouping.routes import Target, pick_one, ring_of
from sparkstorm.common.model.topology import Grouping

TASKS = (10, 11, 12, 13)


def ring(seed: int = 0, tasks: tuple[int, ...] = TASKS) -> LoadRing:
    return LoadRing({task: [task] for task in tasks}, seed)


def taken(of: LoadRing, count: int) -> list[int]:
    return [rows[0] for rows in islice(of.turns, count)]


def refreshed(of: LoadRing, times: int, standing: Mapping[int, int]) -> LoadRing:
    for _ in range(times):
        of.refresh(standing)
    return of


@pytest.mark.parametrize("seed", range(5))
def test_it_begins_as_a_shuffle_with_the_same_seed(seed: int) -> None:
    targets = [Target(task, [task], False) for task in TASKS]
    shuffle = pick_one(Grouping("shuffle"), (), targets, seed)
    assert taken(ring(seed), 9) == [shuffle(())[0] for _ in range(9)]


def test_its_picker_takes_its_turns() -> None:
    grouping = Grouping("load_aware_shuffle")
    targets = [Target(task, [task], False) for task in TASKS]
    of = ring_of(grouping, targets, 0)
    assert of is not None
    pick = pick_one(grouping, (), targets, 0, of)
    refreshed(of, 5, {11: 1_000_000})
    assert {pick(())[0] for _ in range(30)} == {10, 12, 13}


@pytest.mark.parametrize("kind", ["shuffle", "none", "fields", "all"])
def test_other_groupings_have_none(kind: Any) -> None:
    assert ring_of(Grouping(kind), [Target(10, [], False)], 0) is None


def test_a_receiver_with_a_standing_backlog_has_half_its_turns_and_after_five_looks_none() -> None:
    of = ring()
    for others in (2, 4, 8, 16):
        of.refresh({12: 100_000})
        assert Counter(taken(of, 3 * others + 1)) == {10: others, 11: others, 12: 1, 13: others}
    of.refresh({12: 100_000})
    assert Counter(taken(of, 57)) == {10: 19, 11: 19, 13: 19}


def test_it_takes_effect_with_the_next_tuple() -> None:
    of = ring()
    assert taken(of, 2) == [10, 11]
    refreshed(of, 5, {12: 100_000})
    assert set(taken(of, 3)) == {10, 11, 13}


def test_a_receiver_that_has_caught_up_gains_its_share_back_in_sixteen_looks() -> None:
    of = refreshed(ring(), 5, {12: 100_000})
    of.refresh({})
    assert 0 < Counter(taken(of, 490))[12] < 20
    refreshed(of, 15, {})
    assert set(Counter(taken(of, 40)).values()) == {10}


@pytest.mark.parametrize(
    "standing",
    [
        {},
        dict.fromkeys(TASKS, 8_000_000),
        {10: 4_096},
        {10: 40_000, 11: 20_000, 12: 30_000, 13: 25_000},
    ],
    ids=["nothing waits", "as much for each", "little", "within twice as much"],
)
def test_what_is_no_burden_changes_nothing(standing: Mapping[int, int]) -> None:
    assert set(Counter(taken(refreshed(ring(), 10, standing), 40)).values()) == {10}


def test_the_burden_may_be_anywhere_and_somebody_has_turns_always() -> None:
    of = ring()
    for step in range(200):
        of.refresh({task: (step * (task - 7) * 7919) % 50_000 for task in TASKS})
        assert len(taken(of, 5)) == 5


def test_turns_of_unequal_weights_are_spread() -> None:
    of = refreshed(ring(tasks=(1, 2)), 1, {2: 100_000})
    assert Counter(taken(of, 3)) == {1: 2, 2: 1}
    assert [len(set(taken(of, 3))) for _ in range(5)] == [2] * 5


def test_the_same_looks_give_the_same_turns() -> None:
    looks = [{10: 9_000 * (step % 3), 13: 7_000 * (step % 2)} for step in range(30)]
    runs = []
    for _ in range(2):
        of, found = ring(3), list[int]()
        for look in looks:
            of.refresh(look)
            found += taken(of, 7)
        runs.append(found)
    assert runs[0] == runs[1]


def test_changes_of_weight_do_not_favour_the_first_receiver() -> None:
    of, counts = ring(), Counter[int]()
    for step in range(400):
        of.refresh({TASKS[step % 4]: 100_000})
        counts.update(taken(of, 1))
    assert max(counts.values()) < 2 * min(counts.values())
