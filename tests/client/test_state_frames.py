"""Columns of a live state as a table: of a type that gives each value back, else tagged text."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from sparkstorm.api.value_columns import plain_values
from sparkstorm.client.state_frames import _column
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.tagged import read_value

BERLIN = datetime.datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None], "int64"),
        ([[1], [2, 3]], "list<item: int64>"),
        ([[1, 2.5]], "string"),
        ([{1, 2}], "string"),
        ([Decimal("1.5"), Decimal("1.25")], "string"),
        ([Decimal("1.50"), Decimal("1.25")], "decimal128(3, 2)"),
        ([BERLIN], "timestamp[us, tz=Europe/Berlin]"),
        ([BERLIN, BERLIN.astimezone(datetime.UTC)], "string"),
        ([{"a": 1}], "string"),
        (['{"$value":1}'], "string"),
        ([2**70], "string"),
    ],
)
def test_a_column_of_a_state_gives_each_value_back(values: list[Any], kind: str) -> None:
    column = _column(values)
    back = [read_value(cell) for cell in plain_values(column)]
    assert str(column.type) == kind and Codec().pack(back) == Codec().pack(values)
