"""Checks whom each grouping sends a tuple to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.grouping import routes
from sparkstorm.common.grouping.hashing import stable_hash
from sparkstorm.common.grouping.routes import PickOne, Rows, Target, is_single, pick_many, pick_one
from sparkstorm.common.model.compiled import core, description
from sparkstorm.common.model.topology import Grouping


def targets(count: int, local: Sequence[int] = ()) -> list[Target]:
    """Tasks 10, 11, …; each one's row list holds its own id, so that a picked list says whose it
    is.
    """
    return [Target(task, [task], task in local) for task in range(10, 10 + count)]


def picked(pick: PickOne, rows: Sequence[tuple[Any, ...]]) -> list[int]:
    return [pick(values)[0] for values in rows]


def one(
    kind: Any, to: Sequence[Target], *, positions: Sequence[int] = (), seed: int = 0
) -> PickOne:
    return pick_one(Grouping(kind), positions, to, seed)


WORDS = [(f"word{n % 50}", n) for n in range(2000)]


@pytest.mark.parametrize(
    ("kind", "single"),
    [
        ("shuffle", True),
        ("load_aware_shuffle", True),
        ("key_range", True),
        ("fields", True),
        ("partial_key", True),
        ("global", True),
        ("none", True),
        ("local_or_shuffle", True),
        ("all", False),
        ("custom", False),
        ("direct", False),
    ],
)
def test_groupings_that_pick_exactly_one_task_are_known(kind: Any, single: bool) -> None:
    assert is_single(Grouping(kind)) is single


# -- shuffle, none, local or shuffle


@pytest.mark.parametrize("kind", ["shuffle", "none"])
@pytest.mark.parametrize("tasks", [1, 2, 3, 7])
def test_shuffle_is_even_to_a_tuple(kind: str, tasks: int) -> None:
    counts = Counter(picked(one(kind, targets(tasks), seed=5), [("x",)] * (tasks * 40 + 1)))
    assert sorted(counts) == list(range(10, 10 + tasks))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_shuffle_begins_where_the_seed_says_so_that_senders_do_not_all_begin_alike() -> None:
    firsts = [picked(one("shuffle", targets(4), seed=seed), [()])[0] for seed in range(8)]
    assert firsts == [10, 11, 12, 13] * 2
    result = picked(one("shuffle", targets(4), seed=6), [()] * 9)
    assert result == picked(one("shuffle", targets(4), seed=6), [()] * 9)


def test_local_or_shuffle_stays_in_the_worker_while_it_can() -> None:
    result = set(picked(one("local_or_shuffle", targets(4, local=(11, 13)), seed=3), [()] * 20))
    assert result == {11, 13}
    assert set(picked(one("local_or_shuffle", targets(4), seed=3), [()] * 20)) == {10, 11, 12, 13}


@pytest.fixture(params=["plain", "compiled"])
def each_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled" and core is None:
        pytest.skip(description)
    if request.param == "plain":
        monkeypatch.setattr(routes, "core", None)


def filled(tasks: int, run: int, bursts: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Rows that each task has after each burst of a local shuffle; the tasks take theirs then."""
    to = [Target(task, [], is_local=True, run=run) for task in range(tasks)]
    pick = one("local_or_shuffle", to, seed=seed)
    found = []
    for burst in bursts:
        for n in range(burst):
            pick((n,)).append(n)
        found.append([len(target.rows) for target in to])
        for target in to:
            target.rows.clear()
    return found


@pytest.mark.usefixtures("each_core")
@pytest.mark.parametrize(
    ("tasks", "run", "bursts", "rows"),
    [
        (3, 4, [10], [[4, 4, 2]]),
        (3, 4, [1, 1, 1, 1], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]),
        (3, 4, [6, 6], [[4, 2, 0], [0, 2, 4]]),
        # each has got its four before one gets more
        (3, 4, [15], [[7, 4, 4]]),
        (3, 1, [4], [[2, 1, 1]]),
        (1, 4, [9], [[9]]),
    ],
)
def test_rows_of_a_burst_lie_in_runs_and_single_rows_go_in_turn(
    tasks: int, run: int, bursts: list[int], rows: list[list[int]]
) -> None:
    assert filled(tasks, run, bursts) == rows
    assert filled(tasks, run, [1], seed=2)[0].index(1) == 2 % tasks, "it begins where the seed says"


@pytest.mark.usefixtures("each_core")
@pytest.mark.parametrize("taken", [0, 1, 5, 1000])
def test_runs_are_even_however_many_rows_a_task_takes_at_once(taken: int) -> None:
    chance = random.Random(taken)
    to = [Target(task, [], is_local=True, run=16) for task in range(7)]
    pick = one("local_or_shuffle", to, seed=3)
    counts = Counter[int]()
    for _ in range(300):
        for _ in range(chance.randint(1, 60)):
            rows = pick(())
            rows.append(0)
            counts[id(rows)] += 1
        assert max(counts.values()) - min(counts[id(each.rows)] for each in to) <= 16
        # the first one is slower than the others
        for target in to:
            del target.rows[: taken if target.task else taken // 2]


@pytest.mark.usefixtures("each_core")
def test_one_task_of_its_own_pace_makes_all_go_in_turn() -> None:
    to = [Target(task, [], is_local=True, run=1 if task == 2 else 4) for task in range(3)]
    pick = one("local_or_shuffle", to)
    for n in range(6):
        pick((n,)).append(n)
    assert [target.rows for target in to] == [[0, 3], [1, 4], [2, 5]]


def test_global_goes_to_the_lowest_task() -> None:
    assert set(picked(one("global", targets(5), seed=3), WORDS)) == {10}


# -- by key


def test_fields_sends_equal_keys_to_one_task_and_every_task_gets_some() -> None:
    tasks = picked(one("fields", targets(4), positions=[0]), WORDS)
    task_by_word = dict(zip([word for word, _ in WORDS], tasks, strict=True))
    assert tasks == [task_by_word[word] for word, _ in WORDS]
    assert set(tasks) == {10, 11, 12, 13}


def test_fields_choice_is_the_hash_and_so_the_same_for_every_sender() -> None:
    for seed in (0, 9):
        pick = one("fields", targets(7), positions=[1], seed=seed)
        result = picked(pick, [("ignored", "a"), ("other", "b"), ("", "a")])
        assert result == [10 + stable_hash(key) % 7 for key in ("a", "b", "a")]


def test_several_fields_are_one_key_in_their_order() -> None:
    pick = one("fields", targets(1000), positions=[2, 0])
    assert picked(pick, [("a", 0, "b"), ("a", 1, "b")]) == [10 + stable_hash(["b", "a"]) % 1000] * 2
    assert picked(pick, [("b", 0, "a")]) == [10 + stable_hash(["a", "b"]) % 1000]


@pytest.mark.parametrize("keys", [(1, 1.0, True), (0, -0.0, False)])
def test_numbers_that_compare_equal_go_to_one_task_whichever_comes_first(
    keys: tuple[Any, ...],
) -> None:
    for first in keys:
        pick = one("fields", targets(1000), positions=[0])
        assert len(set(picked(pick, [(first,), *((key,) for key in keys)]))) == 1


@pytest.mark.parametrize("key", [["a", 1], {"k": [1]}, [], {}], ids=repr)
def test_lists_and_mappings_may_be_keys(key: Any) -> None:
    expected = 10 + stable_hash(key) % 50
    assert picked(one("fields", targets(50), positions=[0]), [(key,), (key,)]) == [expected] * 2
    both = picked(one("fields", targets(50), positions=[0, 1]), [(key, "x")] * 2)
    assert both == [10 + stable_hash([key, "x"]) % 50] * 2


def test_more_keys_than_are_remembered_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkstorm.common.grouping.routes._CACHED_KEYS", 8)
    rows = [(n % 20,) for n in range(200)]
    result = picked(one("fields", targets(6), positions=[0]), rows)
    assert result == [10 + stable_hash(n) % 6 for (n,) in rows]


@pytest.mark.parametrize("kind", ["fields", "partial_key"])
def test_a_single_task_gets_every_key(kind: str) -> None:
    assert set(picked(one(kind, targets(1), positions=[0]), WORDS)) == {10}


def test_partial_key_uses_two_tasks_a_key_and_evens_out_a_heavy_one() -> None:
    pick = one("partial_key", targets(5), positions=[0])
    rows = [("heavy" if n % 4 else f"light{n}",) for n in range(4000)]
    tasks = picked(pick, rows)
    of_heavy = Counter(task for (word,), task in zip(rows, tasks, strict=True) if word == "heavy")
    assert len(of_heavy) == 2
    assert max(Counter(tasks).values()) < 2 * 4000 * 0.75 / 2
    assert abs(of_heavy.most_common()[0][1] - of_heavy.most_common()[1][1]) < 700


def test_partial_key_offers_every_key_the_same_two_tasks_from_every_sender() -> None:
    for word in ("a", "b", "c", "d"):
        choices = [
            set(picked(one("partial_key", targets(8), positions=[0], seed=s), [(word,)] * 10))
            for s in (1, 2)
        ]
        assert choices[0] == choices[1]
        assert len(choices[0]) == 2


def test_partial_key_on_two_tasks_is_even_for_one_key() -> None:
    counts = Counter(picked(one("partial_key", targets(2), positions=[0]), [("only",)] * 101))
    assert sorted(counts.values()) == [50, 51]


# -- many


class Chooser:
    """A user's grouping whose answer the test sets."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.prepared: list[int] = []
        self.asked: list[tuple[int, tuple[Any, ...]]] = []

    def prepare(self, tasks: list[int]) -> None:
        self.prepared = tasks

    def choose_tasks(self, task: int, values: tuple[Any, ...]) -> Any:
        self.asked.append((task, values))
        return self.answer


def chosen(
    grouping: Grouping, to: Sequence[Target], values: tuple[Any, ...] = ("v",)
) -> list[Rows]:
    return list(pick_many(grouping, 3, to)(values))


def test_all_goes_to_every_task_once() -> None:
    assert chosen(Grouping("all"), targets(3)) == [[10], [11], [12]]


def test_custom_code_learns_the_tasks_then_chooses_with_the_senders_task_and_the_values() -> None:
    chooser = Chooser([12, 10])
    pick = pick_many(Grouping("custom", custom=chooser), 3, list(reversed(targets(3))))
    assert chooser.prepared == [10, 11, 12]
    assert list(pick(("v",))) == [[12], [10]]
    assert chooser.asked == [(3, ("v",))]


def test_custom_code_may_choose_nobody_and_need_not_prepare() -> None:
    class Nobody:
        def choose_tasks(self, task: int, values: tuple[Any, ...]) -> tuple[int, ...]:
            return ()

    assert chosen(Grouping("custom", custom=Nobody()), targets(3)) == []


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ([10, 99], r"chose task 99; the subscriber's tasks are \[10, 11, 12\]"),
        (["10"], "chose task '10'"),
        ([[10]], r"chose task \[10\]"),
        (10, "must return a list of task ids, not 10"),
        (None, "not None"),
        ("10", "must return a list of task ids, not '10'"),
    ],
)
def test_a_bad_choice_of_custom_code_is_named(answer: Any, complaint: str) -> None:
    with pytest.raises(InvalidTopologyError, match=complaint):
        chosen(Grouping("custom", custom=Chooser(answer)), targets(3))
