"""Key-range grouping: which task has a key, and which bounds are refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.grouping.routes import Target, pick_one
from sparkstorm.common.model.topology import Grouping, KeyRanges

NAN = float("nan")


def places(bounds: list[Any], keys: list[Any], tasks: int) -> list[int]:
    targets = [Target(task, [task], False) for task in range(tasks)]
    pick = pick_one(Grouping("key_range", ("key",), KeyRanges(bounds)), [0], targets, 5)
    # Twice: the second time from the keys that are remembered.
    assert [pick((key,))[0] for key in keys] == [pick((key,))[0] for key in keys]
    return [pick((key,))[0] for key in keys]


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TABLE: dict[str, tuple[list[Any], list[Any], int, list[int]]] = {
    "a bound begins its range": (
        [10, 100],
        [-(2**70), 9, 10, 99, 100, 2**70],
        3,
        [0, 0, 1, 1, 2, 2],
    ),
    "numbers of all types": (
        [10, 100],
        [9.99, 10.0, Decimal("99.9"), Decimal(100), True],
        3,
        [0, 1, 1, 2, 0],
    ),
    "infinity and NaN": (
        [10],
        [float("-inf"), float("inf"), NAN, Decimal("inf"), Decimal("nan")],
        2,
        [0, 1, 1, 1, 1],
    ),
    "NaN among Decimals": ([Decimal(1), 2.0], [NAN, Decimal("nan"), 1.5], 3, [2, 2, 1]),
    "None is below": ([10], [None, 9, 10], 2, [0, 0, 1]),
    "text": (["h", "p"], ["", "golf", "h", "oz", "zulu"], 3, [0, 0, 1, 1, 2]),
    "bytes": ([b"\x80"], [b"\x7f\xff", b"\x80"], 2, [0, 1]),
    "dates": ([date(2026, 1, 1)], [date(2025, 12, 31), date(2026, 1, 1)], 2, [0, 1]),
    "datetimes": ([NOON], [NOON.replace(hour=11), NOON], 2, [0, 1]),
    "neighbours share a task": ([1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], 2, [0, 0, 0, 1, 1, 1]),
    "uneven": ([1, 2, 3, 4], [0, 1, 2, 3, 4], 3, [0, 0, 1, 1, 2]),
    "one task": ([1], [0, 5], 1, [0, 0]),
}


@pytest.mark.parametrize("case", TABLE)
def test_a_key_goes_to_the_task_of_its_range(case: str) -> None:
    bounds, keys, tasks, expected = TABLE[case]
    assert places(bounds, keys, tasks) == expected


@pytest.mark.parametrize(
    "key", ["text", b"b", [1], {"a": 1}, NOON, date(2026, 1, 1), Decimal("snan")], ids=repr
)
def test_a_key_without_an_order_with_the_bounds_is_refused(key: Any) -> None:
    with pytest.raises(InvalidTopologyError) as refused:
        places([10, 100], [key], 2)
    assert str(refused.value).endswith("among its bounds [10, 100]; give bounds of its type")
    with pytest.raises(InvalidTopologyError, match="no place for the key nan among its bounds"):
        places(["a"], [NAN], 2)


REFUSED: dict[str, tuple[Any, str]] = {
    "none": ([], "key_range needs a list of bounds, as in key_range('amount', [10, 100]), not []"),
    "a number": (10, "not 10"),
    "a text": ("az", "not 'az'"),
    "None": (
        [None],
        "key_range cannot have the bound None: bounds are numbers, texts, bytes, dates or datetimes",
    ),
    "NaN": ([1, NAN], "cannot have the bound nan"),
    "a list": ([[1]], "cannot have the bound [1]"),
    "a set": ([{1}], "cannot have the bound {1}"),
    "descending": (
        [1, 3, 2],
        "key_range needs bounds of one type in ascending order, but 3 is followed by 2; sort them",
    ),
    "twice": ([1, 1.0], "1 is followed by 1.0; sort them, and drop those that are there twice"),
    "two types": ([1, "a"], "1 is followed by 'a'"),
    "a date and a datetime": ([date(2026, 1, 1), NOON], "bounds of one type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_bounds_are_refused(case: str) -> None:
    bounds, said = REFUSED[case]
    with pytest.raises(InvalidTopologyError) as refused:
        KeyRanges(bounds)
    assert said in str(refused.value)


def test_every_task_has_a_range() -> None:
    for ranges in range(2, 9):
        found = KeyRanges(list(range(1, ranges)))
        for tasks in range(1, ranges + 1):
            of = [found.place(key, tasks) for key in range(ranges)]
            assert (of, set(of)) == (sorted(of), set(range(tasks)))
