"""Types of results: a value is written unchanged or refused by result and column, and a state reads
back as it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.api import BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.api.value_columns import plain_values
from sparkstorm.common.errors import CodecError, InvalidTopologyError, ReplayFailedError
from sparkstorm.common.model.topology import Grouping
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.tagged import MARK, read_value
from sparkstorm.replay.arrow_map import batches_of, chunks_in
from sparkstorm.replay.plan import make_plan
from sparkstorm.replay.results import types
from sparkstorm.replay.results.columns import declared_columns
from sparkstorm.replay.results.frames import found_columns, seeing, writing
from sparkstorm.replay.results.types import definite_type, result_type, typed_array
from sparkstorm.replay.spark import packing
from sparkstorm.replay.tasks.chunks import KEPT_STATE, ChunkWriter
from tests.api.test_column_values import arrow_columns
from tests.model.test_codec import same
from tests.replay.bolts import Count, Source, Split, word_count
from tests.tiers import examples
from tests.transport.values import scalars, values

UNDECLARED = [("key", None), ("value", None)]


def through(column: list[Any], is_key: bool = False) -> tuple[str, list[Any]]:
    """The type of a result's column, and its cells as a reader has them."""
    kind = definite_type(result_type(column, is_key))
    return str(kind), [
        read_value(cell)
        for cell in typed_array(column, kind, "field").to_pylist(maps_as_pydicts="strict")
    ]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([1, None], "int64"),
        ([True], "bool"),
        ([1.0, math.inf], "double"),
        ([b"x"], "binary"),
        ([None], "string"),
        ([], "string"),
        ([{1: "a"}, {}], "map<int64, string>"),
        ([{"a": 1}, {"b": 2}, {}], "map<string, int64>"),
        ([{}], "map<string, string>"),
        ([[], [1, None]], "list<item: int64>"),
        ([[[]], []], "list<item: list<item: string>>"),
        ([{"a": [1]}, {"b": []}], "map<string, list<item: int64>>"),
        ([{"b": 1, "a": "x"}, None, {"b": 2, "a": None}], "struct<b: int64, a: string>"),
        (
            [[{"b": 1, "a": {"x": [1], "y": 2}}]],
            "list<item: struct<b: int64, a: struct<x: list<item: int64>, y: int64>>>",
        ),
    ],
)
def test_values_of_one_type_make_a_column_of_it(column: list[Any], kind: str) -> None:
    found, cells = through(column)
    assert found == kind and same(cells, column)


@pytest.mark.parametrize(
    "column",
    [
        [{"a": [1, "x"]}],
        ["ab", ["a", "b"]],
        [[1, "a", 3]],
        [1, 2.5],
        [True, 1],
        ["a", b"a"],
        [{None: 1}],
        [{1.0: 1}],
        [{1: 1}, {"a": 1}],
        [[], {}],
        [{"a": 1, "b": "x"}, {"b": "x", "a": 1}],
        [{"a": 1, "b": "x"}, {"a": 1}],
        [{"a": 1, "A": "x"}],
        [{"_1": 1, "_2": "x"}],
        [MARK, "a"],
        [[[[[[[[[[1]]]]]]]]]],
    ],
    ids=repr,
)
def test_values_of_several_types_are_tagged_and_read_back_as_they_were(column: list[Any]) -> None:
    found, cells = through(column)
    assert found == "large_string" and same(cells, column)


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.lists(values, max_size=5))
def test_any_column_reads_back_as_it_was(column: list[Any]) -> None:
    normal = Codec().normalise(column)
    assert same(through(normal)[1], normal)


FAR = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5)))


def test_mappings_whose_keys_are_no_text_have_a_declared_type() -> None:
    for key, kind in (
        (date(2026, 1, 1), pa.date32()),
        (Decimal("1.5"), pa.decimal128(5, 1)),
        (datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC")),
    ):
        column = Codec().normalise([{key: "x"}, None])
        made = typed_array(column, pa.map_(kind, pa.string()), "field")
        assert made.to_pylist(maps_as_pydicts="strict") == [{key: "x"}, None]


@pytest.mark.parametrize(
    ("column", "kind", "said"),
    [
        ([1.5], pa.int64(), "1.5 is of type float"),
        ([2.0], pa.int64(), "float"),
        ([True], pa.int64(), "bool"),
        ([b"a"], pa.string(), "bytes"),
        (["a"], pa.binary(), "str"),
        ([True], pa.float64(), "bool"),
        ([0.1], pa.float32(), "no float of 32 bits"),
        ([1e300], pa.float32(), "32 bits"),
        ([2**53 + 1], pa.float64(), ""),
        ([300], pa.int8(), ""),
        ([{"a": 1}], pa.struct([("a", pa.int64()), ("b", pa.int64())]), "exactly the fields a, b"),
        ([{"a": 1, "c": 2}], pa.struct([("a", pa.int64())]), "exactly"),
        ([[1, 2]], pa.struct([("a", pa.int64())]), "exactly"),
        (["ab"], pa.struct([("a", pa.string()), ("b", pa.string())]), "exactly"),
        (["ab"], pa.list_(pa.string()), "str"),
        ([{"a": 1}], pa.list_(pa.string()), "dict"),
        ([{"a": 1.5}], pa.map_(pa.string(), pa.int64()), "1.5"),
        ([{None: 1}], pa.map_(pa.string(), pa.int64()), "a key that is none"),
        ([[["a", 1]]], pa.map_(pa.string(), pa.int64()), "list"),
        ([Decimal("-0.0")], pa.decimal128(10, 2), "-0 would lose its sign"),
        ([[Decimal("-0")]], pa.list_(pa.decimal128(10, 2)), "-0 would lose its sign"),
        ([FAR], pa.timestamp("us", "UTC"), "in no year from 1 to 9999 in UTC"),
        ([[FAR]], pa.list_(pa.timestamp("us", "UTC")), "in no year"),
    ],
    ids=repr,
)
def test_a_value_that_a_declared_type_would_change_is_refused(
    column: list[Any], kind: pa.DataType, said: str
) -> None:
    sentence = f"column 'field' does not hold .* throughout .*{said}.*declare another type"
    with pytest.raises(ReplayFailedError, match=sentence):
        typed_array(column, kind, "field")


def test_arrays_of_batches_are_held_to_the_same() -> None:
    assert typed_array(pa.array([1, None], pa.uint8()), pa.int16(), "f").to_pylist() == [1, None]
    assert typed_array(pa.array(["a"]).dictionary_encode(), pa.string(), "f").to_pylist() == ["a"]
    with pytest.raises(ReplayFailedError, match="column 'f' does not hold string"):
        typed_array(pa.array([1]), pa.string(), "f")


# -- states


def written_and_read(
    pairs: Sequence[tuple[Any, Any]], columns: Any = UNDECLARED, path: Any = None
) -> list[tuple[Any, Any]]:
    """A state as a task keeps it, through the frame of its result (and a file), to the task that
    loads it.
    """
    chunks = list(ChunkWriter(Codec(), 1, False).state(KEPT_STATE, 7, pairs))
    halves = [chunks[::2], chunks[1::2]]
    seen = [
        b.column(0)[0].as_py()
        for half in halves
        for b in seeing("bolt!state", columns)(batches_of(half))
    ]
    write, _ = writing("bolt!state", found_columns(columns, seen))
    batches = list(write(iter(chunks)))
    if path is not None and batches:
        pq.write_table(pa.Table.from_batches(batches), path)
        batches = pq.read_table(path).to_batches()
    read = chunks_in(packing("bolt", [7], Grouping("fields"))(iter(batches)))
    return [pair for chunk in read for pair in zip(*Codec().unpack(chunk.data)[1], strict=True)]


def as_kept(pairs: Sequence[tuple[Any, Any]]) -> list[list[Any]]:
    return [
        [list(key) if isinstance(key, tuple) else key, Codec().normalise(value)]
        for key, value in pairs
    ]


keys = (
    scalars
    | st.lists(scalars, max_size=3).map(tuple)
    | st.tuples(st.text(max_size=3), st.integers(0, 9))
)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(keys, values), max_size=6)
    | st.lists(st.tuples(st.text(max_size=4), st.integers(0, 9)), max_size=6)
)
def test_a_state_that_is_written_and_read_is_the_same_state(pairs: list[tuple[Any, Any]]) -> None:
    assert same(list(map(list, written_and_read(pairs))), as_kept(pairs))


@pytest.mark.parametrize(
    "pairs",
    [
        [("a", [1, "a", 3]), ("b", {"x": 1}), ("c", {"y": 2})],
        [("a", 1), ("b", 2.5)],
        [(("a", 1), 1), (("b", None), 2)],
        [(("a",), 1), ("a", 2)],
        [((), 1)],
        [(None, None)],
        [(b"x", {1: {2: 3}})],
        [("a", {"_1": 1})],
        [(MARK, MARK)],
        [("a", True), ("b", 1)],
    ],
    ids=repr,
)
def test_states_through_a_file_are_the_same(pairs: list[tuple[Any, Any]], tmp_path: Any) -> None:
    assert same(
        list(map(list, written_and_read(pairs, path=tmp_path / "state.parquet"))), as_kept(pairs)
    )


def test_states_of_declared_types_are_the_same_or_refused() -> None:
    def declared(key: pa.DataType, value: pa.DataType) -> Any:
        return [("key", key), ("value", value)]

    pairs: list[tuple[Any, Any]] = [(("a", 1), {"n": 1, "t": None})]
    record = pa.struct([("n", pa.int64()), ("t", pa.string())])
    two = pa.struct([("user", pa.string()), ("day", pa.int64())])
    assert written_and_read(pairs, declared(two, record)) == [(["a", 1], {"n": 1, "t": None})]
    places = pa.struct([("_1", pa.int64()), ("_2", pa.string())])
    assert written_and_read([("a", [1, "x"])], declared(pa.string(), places)) == [("a", [1, "x"])]
    assert written_and_read([(MARK, "x")], declared(pa.string(), pa.string())) == [(MARK, "x")]
    # it would be read back as a mapping
    with pytest.raises(ReplayFailedError, match="result 'bolt!state': column 'value'"):
        written_and_read([("a", [1, "x"])], declared(pa.string(), record))


def test_a_damaged_cell_of_a_first_state_is_named() -> None:
    batch = pa.RecordBatch.from_pydict({"key": ["a"], "value": [MARK + "!"]})
    with pytest.raises(ReplayFailedError, match=r"initial state of 'count': .* is no tagged text"):
        list(packing("count", [1], Grouping("fields"))(iter([batch])))


# -- declarations


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"split": "wrod string"}, "types of 'split': 'wrod' is no column; its columns are word"),
        (
            {"count": "word string"},
            "types of 'count': column 'count' has no type; its columns are word, count",
        ),
        (
            {"count": "count bigint, word string"},
            r"types of 'count' name its columns in another order \(count, word\)",
        ),
        (
            {"count!state": "value bigint, key string"},
            "types of 'count!state' name its columns in another order",
        ),
        ({"count!state": "key string, value bigint, task int"}, "'task' is no column"),
        (
            {"cuont": "a int"},
            "types of 'cuont': there is no such result; there are count, count!state, split",
        ),
        ({"split!state": "key int, value int"}, "there is no such result"),
        (
            {"lines": "line string"},
            "types of 'lines': it is data, which has the types of its input",
        ),
        ({"split": "word number"}, "types of 'split': 'number' is no type that values can have"),
        ({"split": "word interval"}, "'interval' is no type"),
    ],
)
def test_declarations_go_by_name_and_mistakes_are_named_before_anything_runs(
    types: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidTopologyError, match=said):
        declared_columns(make_plan(word_count(), {}, "replay", {}), types)


class Totals(StatefulBolt):
    outputs = {"word": "string", "n": "bigint", "what": "any"}  # noqa: RUF012
    state_key_type = "struct<word:string,day:int>"
    state_type = "map<string,bigint>"

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        pass


def test_streams_and_states_declare_types_of_their_own() -> None:
    builder = TopologyBuilder()
    builder.set_spout("lines", Source("line"))
    builder.set_bolt("totals", Totals()).fields_grouping("lines", "line")
    plan = make_plan(builder.build(), {}, "replay", {})
    key = pa.struct([("word", pa.string()), ("day", pa.int32())])
    value = pa.map_(pa.string(), pa.int64())
    assert declared_columns(plan, {}) == {
        "totals": [("word", pa.string()), ("n", pa.int64()), ("what", None)],
        "totals!state": [("key", key), ("value", value)],
    }
    result = declared_columns(plan, {"totals": "word string, n int, what double"})["totals"][1:]
    assert result == [("n", pa.int32()), ("what", pa.float64())]


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (
            {"word": "strin"},
            "component 'split', stream 'default', field 'word': 'strin' is no type",
        ),
        (
            {"words": {"word": 5}},
            "component 'split', stream 'words', field 'word': 5 is no text of a type",
        ),
        (
            {"a": "int", "b": ["x"]},
            "component 'split', stream 'a': fields must be a list of names, not 'int'",
        ),
    ],
)
def test_a_wrong_type_of_a_stream_is_named_when_it_is_declared(outputs: Any, said: str) -> None:
    with pytest.raises(InvalidTopologyError, match=said):
        TopologyBuilder().set_bolt("split", Split(), outputs=outputs)


@pytest.mark.parametrize(
    ("attribute", "kind", "said"),
    [
        ("state_type", "number", "component 'count', state_type: 'number' is no type"),
        ("state_key_type", "map<string,int>", "component 'count', state_key_type: state keys are"),
        ("state_key_type", "struct<a:array<int>>", "state keys are"),
    ],
)
def test_a_wrong_type_of_a_state_is_named_when_it_is_declared(
    attribute: str, kind: str, said: str
) -> None:
    bolt = type("Typed", (Count,), {attribute: kind})()
    with pytest.raises(InvalidTopologyError, match=said):
        TopologyBuilder().set_bolt("count", bolt)


def as_rows(value: Any, kind: pa.DataType) -> Any:
    """A value with the mappings of structs as tuples."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return tuple(as_rows(value[field.name], field.type) for field in kind)
    if pa.types.is_map(kind):
        return {key: as_rows(item, kind.item_type) for key, item in value.items()}
    return [as_rows(item, kind.value_type) for item in value]


def made(make: Any, *arguments: Any) -> Any:
    """A column, or the type of the error."""
    try:
        array = make(*arguments)
        array.validate(full=True)
    except (types._Misfit, pa.ArrowException, ValueError, TypeError, OverflowError):
        return "refused"
    return array.type, repr(plain_values(array))


ODD: list[Any] = [1, "a", {}, [None], {"f0": 1}, (1, 2), {None: 1}]


@settings(max_examples=examples(300), deadline=None)
@given(
    arrow_columns(),
    st.booleans(),
    st.booleans(),
    st.none() | st.tuples(st.integers(0, 5), st.sampled_from(ODD)),
)
def test_nested_columns_are_made_as_row_by_row(
    column: pa.Array, has_rows: bool, by_place: bool, odd: tuple[int, Any] | None
) -> None:
    try:
        values = plain_values(column)
    except CodecError:
        return
    if has_rows:
        values = [as_rows(value, column.type) for value in values]
    if values and odd is not None:
        at, value = odd
        values[at % len(values)] = value
    kind = types._without_widths(column.type)  # as of every result
    expected = made(types._row_by_row, values, kind, by_place)
    if pa.types.is_nested(kind):
        assert made(types._array, values, kind, by_place) == expected


def test_usual_nested_columns_are_made_by_their_children() -> None:
    inside = pa.struct({"sku": pa.string(), "n": pa.int64()})
    for kind, column in (
        (inside, [("a", 1), None, ["b", 2]]),
        (inside, [{"sku": "a", "n": None}, None]),
        (pa.list_(inside), [[{"sku": "a", "n": 1}], None, []]),
        (pa.map_(pa.string(), pa.list_(pa.int64())), [{"a": [1]}, None, {}]),
        (pa.list_(pa.int64()), []),
    ):
        assert types._by_column(column, kind, True).equals(types._row_by_row(column, kind, True))
