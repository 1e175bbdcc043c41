"""Checks that the hash behind fields grouping is the same everywhere and for ever: state lies where
it put the keys. tests/replay/test_sql_shuffle.py compares it with Spark's.
"""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, FloatOperation, Inexact, localcontext
from enum import IntEnum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.grouping import hashing
from sparkstorm.common.grouping.hashing import canonical_bytes, stable_hash
from sparkstorm.common.model.compiled import core, description
from tests.tiers import examples
from tests.transport.values import values

# Written down once. A topology that is upgraded finds its keys' state only while these stay.
VECTORS: list[tuple[Any, int]] = [
    ("", 142593372),
    ("a", 1485273170),
    ("word", -281256481),
    ("Zürich", -761243618),
    ("日本", -336983209),
    (0, -1670924195),
    (1, -1712319331),
    (-1, -939490007),
    (9223372036854775807, -1604625029),
    (-9223372036854775808, -853646085),
    (0.5, 538068697),
    (-1.25, 747866589),
    (1e300, -1376258304),
    (math.inf, 833680482),
    (b"", 142593372),
    (b"\x00\xff", 1246198977),
    (None, 42),
    ([], 42),
    (["a", 1], 1838122449),
    (["the", None, 2.5], 1082356804),
    ([[1], [2]], -1181176833),
    ({}, -29603362),
    ({"k": 1, "j": [2]}, -680977182),
    ({1: "x"}, 2016534220),
    (Decimal("1.10"), 1775220401),
    (Decimal("-1E+30"), 1274876717),
    (date(2026, 10, 25), -2040647182),
    (datetime(2026, 10, 25, 2, 30, tzinfo=UTC), 1566161215),
    (datetime(2026, 7, 1, 2, 30, 0, 5, tzinfo=ZoneInfo("Europe/Berlin")), 2058642855),
]


@pytest.mark.parametrize(("value", "expected"), VECTORS, ids=lambda value: repr(value)[:20])
def test_the_hash_of_a_value_never_changes(value: Any, expected: int) -> None:
    assert stable_hash(value) == hashing._stable_hash(value) == expected


class Kind(IntEnum):
    ONE = 1


ODD: list[Any] = [
    2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2.0**63, -(2.0**63), 2.0**62, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324,
    True, False, "\ud800", "\0", "\U0001f600", "x" * 128, "x" * 129, "ä" * 64, "ä" * 65, b"x" * 129, (), ((),), (1, (2,)),
    (None, True, 1.0, "a", b"b"), [1.5, -7, "ü"], ("x" * 300, 1), (1, {2: 3}), Kind.ONE,
]  # fmt: skip


@given(values | st.tuples(values, values) | st.sampled_from(ODD))
@settings(max_examples=examples(500))
def test_the_core_hashes_as_its_twin(value: Any) -> None:
    assert stable_hash(value) == hashing._stable_hash(value)


def test_odd_values_are_hashed_alike_one_by_one_and_as_a_list_of_keys() -> None:
    if core is None:
        pytest.skip(description)
    expected = [hashing._stable_hash(value) for value in ODD]
    assert [stable_hash(value) for value in ODD] == expected
    for count in (1, 2, 7, 2**31 - 1):
        places = core.places(ODD, count)
        assert struct.unpack(f"={len(ODD)}i", places) == tuple(h % count for h in expected)


def test_another_process_with_another_hash_seed_agrees() -> None:
    code = (
        "import datetime, json, sys, zoneinfo\nfrom decimal import Decimal\n"
        "from sparkstorm.common.grouping.hashing import stable_hash\n"
        "inf = float('inf')\nprint(json.dumps([stable_hash(eval(v)) for v in json.load(sys.stdin)]))"
    )
    root = Path(__file__).parents[2]
    for seed in ("1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps([repr(value) for value, _ in VECTORS]),
            text=True,
            timeout=900,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            check=True,
        )
        assert json.loads(done.stdout) == [expected for _, expected in VECTORS]


@pytest.mark.parametrize(
    "group",
    [
        (1, 1.0, True),
        (0, 0.0, -0.0, False),
        (10**15, 1e15),
        (-7, -7.0),
        ([1, "a"], (1, "a"), [1.0, "a"], (True, "a")),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": True}),
        (math.nan, -math.nan, float("nan"), math.inf - math.inf),
    ],
    ids=lambda group: repr(group[0]),
)
def test_values_that_a_dict_takes_for_one_hash_alike(group: tuple[Any, ...]) -> None:
    assert len({stable_hash(value) for value in group}) == 1


@settings(max_examples=examples(200), derandomize=True)
@given(values, values)
def test_different_values_have_different_spellings_and_equal_ones_the_same(
    one: Any, other: Any
) -> None:
    assert (canonical_bytes(one) == canonical_bytes(other)) == (plain(one) == plain(other))


def plain(value: Any) -> Any:
    """The value with tuples as lists."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", 1),
        (b"a", "a"),
        (None, ""),
        (None, 0),
        ("", b""),
        ([], {}),
        (["ab"], ["a", "b"]),
        (["a", "bc"], ["ab", "c"]),
        ([[]], []),
        ({"a": "b"}, ["a", "b"]),
        ({1: {2: 3}}, {1: 2, 3: 3}),
        (0.5, 0),
        ("n", None),
        (["1:s"], ["1:", "s"]),
    ],
    ids=repr,
)
def test_values_of_different_kinds_or_cuts_are_not_taken_for_one_another(
    one: Any, other: Any
) -> None:
    assert canonical_bytes(one) != canonical_bytes(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["ab"], ["a", "b"]),
        (["a", "bc"], ["ab", "c"]),
        ({1: {2: 3}}, {1: 2, 3: 3}),
        (0.5, 0),
        (0, ""),
    ],
    ids=repr,
)
def test_lists_of_other_cuts_and_close_numbers_have_other_hashes(one: Any, other: Any) -> None:
    assert stable_hash(one) != stable_hash(other)


LONG = Decimal("12345678901234567890123456789.5")


@pytest.mark.parametrize(
    "text", ["1E+4000", "1E+1000000", "-1E+999999999999999999", "1E-999999999"]
)
def test_a_decimal_of_any_exponent_is_hashed_by_its_digits(text: str) -> None:
    # As a whole number the second took 31 s, and the third all memory.
    value = Decimal(text)
    assert canonical_bytes(value) == b"d" + text.encode()
    assert stable_hash(value) == stable_hash(Decimal(text.replace("1E", "1.0E")))


@pytest.mark.parametrize(
    ("value", "equal"),
    [("0E+999999", 0), ("1E+2466", 10**2466), ("2.50", 2.5), ("1E+300", 10**300)],
)
def test_a_decimal_hashes_as_the_number_that_it_equals(value: str, equal: Any) -> None:
    assert Decimal(value) == equal and stable_hash(Decimal(value)) == stable_hash(equal)


@pytest.mark.parametrize(
    "value", [LONG, Decimal("0.1"), Decimal("1.1E-400"), Decimal("0.5"), Decimal(7)], ids=str
)
def test_the_hash_of_a_decimal_is_the_same_in_every_context(value: Decimal) -> None:
    expected = stable_hash(value)
    with localcontext() as context:
        context.prec, context.capitals, context.Emax = 3, 0, 5
        context.traps[Inexact] = context.traps[FloatOperation] = True
        assert stable_hash(value) == expected


def test_decimals_that_differ_behind_28_digits_are_spelt_apart() -> None:
    assert canonical_bytes(LONG) != canonical_bytes(Decimal(str(LONG)[:-1] + "6"))


def test_the_hour_that_comes_twice_is_two_keys_as_in_utc() -> None:
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    for time in (first, first.replace(fold=1)):
        assert canonical_bytes(time) == canonical_bytes(time.astimezone(UTC))
    usual = first.replace(hour=5)
    assert stable_hash(usual) == stable_hash(usual.replace(fold=1))


def test_datetimes_beyond_the_years_of_utc_are_keys() -> None:
    west, east = ZoneInfo("America/New_York"), ZoneInfo("Europe/Berlin")
    last, first = datetime.max.replace(tzinfo=west), datetime.min.replace(tzinfo=east)
    near = [last, last - timedelta(microseconds=1), first, first + timedelta(microseconds=1)]
    assert len({canonical_bytes(value) for value in near}) == len(near)


def test_text_that_is_not_utf_8_still_has_a_hash() -> None:
    assert stable_hash("\ud800") != stable_hash("\ud801")


@pytest.mark.parametrize(
    "value", [1j, object(), [object()]], ids=lambda value: type(value).__name__
)
def test_a_key_outside_the_closed_set_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be a grouping key; group by text, numbers"):
        stable_hash(value)


@pytest.mark.parametrize("buckets", [2, 3, 7, 16, 100])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: n,
        lambda n: f"word{n}",
        lambda n: f"{n:08d}",
        lambda n: n * 1024,
        lambda n: [n, "x"],
    ],
    ids=["numbers", "words", "padded", "multiples", "lists"],
)
def test_keys_spread_evenly(make: Any, buckets: int) -> None:
    counts = [0] * buckets
    for n in range(20_000):
        counts[stable_hash(make(n)) % buckets] += 1
    mean = 20_000 / buckets
    assert max(abs(count - mean) for count in counts) < 6 * math.sqrt(mean)
