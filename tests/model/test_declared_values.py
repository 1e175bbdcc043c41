"""Values of declared types: the check of single values and the columns of a batch job agree."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from sparkstorm.api.columns import arrow_type
from sparkstorm.common.errors import ReplayFailedError
from sparkstorm.common.model.values.column_types import parse_type
from sparkstorm.common.model.values.declared_values import holds_of
from sparkstorm.replay.results.types import typed_array

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
EAST, WEST = timezone(timedelta(hours=12)), timezone(timedelta(hours=-12))
NUMBERS = [
    *(sign * 2**bits + more for bits in (7, 15, 24, 31, 53, 63) for sign in (1, -1) for more in (-1, 0, 1)),
    *(0, 300, 2**70, 0.0, -0.0, 0.1, 0.5, 2.0, 1e300, math.inf, math.nan),
]  # fmt: skip
DECIMALS = [
    *("0", "-0", "0.00", "0E-5", "1", "1.5", "1.500", "1.555", "123.4500", "12345.1", "999.99"),
    *("1000", "1E+2", "1E+3", "0.001", "0.100", "NaN", "Infinity", "12E+1", "-1.5", "1E+999999"),
    *("1E-999999", "9" * 38, "9" * 39, "1." + "0" * 40, "0." + "0" * 60),
]
TIMES = [
    *(MOMENT.date(), date(1, 1, 1), MOMENT, MOMENT.astimezone(WEST)),
    *(datetime(1, 1, 1, tzinfo=EAST), datetime(9999, 12, 31, 23, tzinfo=WEST)),
    *(datetime(1, 1, 1, tzinfo=WEST), datetime(9999, 12, 31, tzinfo=UTC)),
]
NESTED: list[Any] = [
    *([], [1], [1, "x"], [1, None], (1, 2), [[1]], [1.5], [300], [MOMENT], [Decimal("1.5")]),
    *({}, {"a": 1}, {"a": None}, {"a": "x"}, {"b": 1}, {"b": "x", "a": 1}, {"a": [1]}, {1: "a"}),
    *({None: 1}, {True: 1}, {b"k": 1}, {"_1": 1, "_2": "x"}, {1, 2}),
]
OTHERS = [None, True, "", "x", "1", b"x", UUID(int=1)]


@pytest.mark.parametrize(
    "text",
    [
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary"),
        *("date", "timestamp", "decimal(5,2)", "decimal(38,0)", "decimal(38,38)", "array<bigint>"),
        *("array<tinyint>", "array<array<bigint>>", "array<timestamp>", "array<decimal(5,2)>"),
        *("map<string,bigint>", "map<bigint,string>", "map<boolean,bigint>", "map<binary,bigint>"),
        *("struct<a:bigint,b:string>", "struct<a:bigint>", "struct<_1:bigint,_2:string>"),
    ],
)
def test_a_value_is_of_a_type_where_its_column_holds_it(text: str) -> None:
    kind = parse_type(text)
    holds = holds_of(kind)
    for value in (*OTHERS, *NUMBERS, *map(Decimal, DECIMALS), *TIMES, *NESTED):
        try:
            typed_array([value], arrow_type(kind), "field")
        except ReplayFailedError:
            assert not holds(value), value
        else:
            assert holds(value), value
