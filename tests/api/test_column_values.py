"""Tests of reading Arrow columns as values: by whole columns next to cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.api import value_columns
from sparkstorm.api.value_columns import plain_values
from sparkstorm.common.errors import CodecError
from tests.tiers import examples

BERLIN = "Europe/Berlin"
Column = tuple[pa.DataType, st.SearchStrategy[Any]]
"""A type, and what `pa.array` makes its cells from."""


def _leaves() -> st.SearchStrategy[Column]:
    """Types of Arrow with numbers, text or bytes that `pa.array` makes columns of them from."""
    longs = st.integers(-(2**62), 2**62)
    near = st.sampled_from([0, -1, 253_402_300_799_999_999, -62_135_596_800_000_000, 10**15])
    times = st.one_of(near, st.integers(-(2**55), 2**55), st.integers(-(2**58), 2**58))
    stamps = [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("us", BERLIN)]
    seconds = [pa.timestamp("s", "GMT+2"), pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC")]
    return st.sampled_from(
        [
            (pa.int64(), longs),
            (pa.int16(), st.integers(-9, 9)),
            (pa.float64(), st.floats(allow_nan=False)),
            (pa.bool_(), st.booleans()),
            (pa.string(), st.text(max_size=3)),
            (pa.large_string(), st.text(max_size=3)),
            (pa.binary(), st.binary(max_size=3)),
            (pa.null(), st.none()),
            *((kind, times) for kind in stamps),
            *((kind, st.integers(-(2**40), 2**40)) for kind in seconds),
            (pa.date32(), st.integers(-719_200, 2_932_900)),
            (pa.time64("us"), st.integers(0, 86_399_999_999)),
            (pa.duration("us"), st.integers(-(10**9), 10**9)),
            (pa.decimal128(9, 3), st.decimals(-99999, 99999, places=3)),
            (pa.decimal128(9, 0), st.decimals(-99999, 99999, places=0)),
            (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "c"])),
            (pa.dictionary(pa.int8(), pa.int64()), st.integers(0, 3)),
        ]
    )


def _nested(
    inner: st.SearchStrategy[Column],
) -> st.SearchStrategy[Column]:
    def lists(one: Column) -> Any:
        kind, values = one
        many = st.lists(st.none() | values, max_size=3)
        fixed = st.lists(st.none() | values, min_size=2, max_size=2)
        return st.sampled_from(
            [(pa.list_(kind), many), (pa.large_list(kind), many), (pa.list_(kind, 2), fixed)]
        )

    def structs(parts: list[Column]) -> Any:
        names = [f"f{n}" for n in range(len(parts))]
        kind = pa.struct(list(zip(names, (part for part, _ in parts), strict=True)))
        values = {name: st.none() | of for name, (_, of) in zip(names, parts, strict=True)}
        return st.just((kind, st.fixed_dictionaries(values)))

    def maps(one: Column) -> Any:
        kind, values = one
        pairs = st.lists(st.tuples(st.sampled_from("abc"), st.none() | values), max_size=3)
        return st.just((pa.map_(pa.string(), kind), pairs))

    return st.one_of(
        inner.flatmap(lists), st.lists(inner, max_size=3).flatmap(structs), inner.flatmap(maps)
    )


@st.composite
def arrow_columns(draw: st.DrawFn) -> pa.Array:
    """Columns of any type, slices among them."""
    kind, values = draw(st.recursive(_leaves(), _nested, max_leaves=3))
    cells = draw(st.lists(st.none() | values, max_size=6))
    column = pa.array(cells, kind)
    start = draw(st.integers(0, len(cells)))
    return column.slice(start, draw(st.integers(0, len(cells))))


def _read(read: Callable[[Any], list[Any]], column: pa.Array) -> Any:
    try:
        return [(type(value), repr(value)) for value in read(column)]
    except CodecError as error:
        return str(error)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.timestamp("ns")), pa.list_(pa.timestamp("ns"), 1)], ids=str
)
def test_elements_outside_of_a_slice_are_not_read(kind: pa.DataType) -> None:
    column = pa.array([[1], None, [2000]], kind).slice(1)
    expected = [None, [datetime(1970, 1, 1, 0, 0, 0, 2)]]
    assert plain_values(column) == value_columns._one_by_one(column) == expected


@settings(max_examples=examples(200), deadline=None)
@given(arrow_columns())
def test_columns_are_read_as_cell_by_cell(column: pa.Array) -> None:
    expected = _read(value_columns._one_by_one, column)
    assert _read(plain_values, column) == expected
    chunks = pa.chunked_array([column, column], column.type)
    if not isinstance(expected, str):
        assert _read(plain_values, chunks) == expected * 2


def test_usual_columns_are_read_as_a_whole() -> None:
    at = pa.array([0, None, 10**15], pa.timestamp("us", BERLIN))
    for column in (
        at,
        pa.array([[1, 2], None, []]),
        pa.array([{"at": 1}, None]).cast(pa.struct({"at": pa.timestamp("us", "UTC")})),
        pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())).slice(0, 1),
        pa.array([Decimal("1.50"), None]),
        pa.array(["a", "b", None]).dictionary_encode(),
    ):
        assert repr(value_columns._by_column(column)) == repr(value_columns._one_by_one(column))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "GMT+2", BERLIN])
def test_times_have_one_value_in_every_container(unit: str, zone: str | None) -> None:
    kind = pa.timestamp(unit, zone)
    times = pa.array([0, None], kind)
    [at, _] = plain_values(pa.array([0, None], pa.timestamp("us", zone)))
    columns = {
        "plain": (times, at),
        "dictionary": (times.dictionary_encode(), at),
        "struct": (pa.StructArray.from_arrays([times], names=["at"]), {"at": at}),
        "list": (pa.array([[0]], pa.list_(kind)), [at]),
        "large list": (pa.array([[0]], pa.large_list(kind)), [at]),
        "list of one size": (pa.array([[0]], pa.list_(kind, 1)), [at]),
        "map": (pa.array([[("a", 0)]], pa.map_(pa.string(), kind)), {"a": at}),
        "list of lists": (pa.array([[[0]]], pa.list_(pa.large_list(kind))), [[at]]),
    }
    for read in (value_columns._one_by_one, plain_values):
        values = {name: repr(read(column)[0]) for name, (column, _) in columns.items()}
        assert values == {name: repr(value) for name, (_, value) in columns.items()}


@pytest.mark.parametrize("zone", [None, "UTC", BERLIN])
def test_nanoseconds_are_refused(zone: str | None) -> None:
    with pytest.raises(CodecError, match="would lose data"):
        plain_values(pa.array([1], pa.timestamp("ns", zone)))


def test_a_time_in_utc_that_is_folded_has_no_natural_column() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    found = value_columns.natural_array([at, None])
    assert found.type == pa.timestamp("us", "UTC") and plain_values(found) == [at, None]
    assert value_columns.natural_array([at, at.replace(fold=1)]) is None
