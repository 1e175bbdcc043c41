"""Tagged text: every value of the closed set comes back equal and of the same types; anything else
is refused.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import CodecError
from sparkstorm.common.model.values.codec import INT_MAX, INT_MIN, Codec
from sparkstorm.common.model.values.tagged import (
    MARK,
    from_json,
    read_value,
    row_writer,
    tag_text,
    to_json,
)
from tests.model.test_codec import same
from tests.tiers import examples
from tests.transport.values import values

HARD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    INT_MIN,
    INT_MAX,
    2**53 + 1,
    0.0,
    1.0,
    -0.0,
    5e-324,
    1e22,
    math.inf,
    -math.inf,
    "",
    "1",
    "null",
    '\x00\n\r\u2028"\\',
    MARK,
    MARK + "1}",
    "ä\U0001f600",
    b"",
    b"\xff\x00",
    [],
    {},
    [[]],
    [{}],
    {"": None},
    {"$float": "nan"},
    {"$value": 1},
    {"$map": []},
    {1: "a"},
    {1.5: {b"x": [None, True]}},
    {None: 1, "a": 2.0},
    {"1": 1, 1: 2},
    [1, "a", 3.0, True, None],
]


@pytest.mark.parametrize("value", HARD, ids=repr)
def test_hard_values_come_back_as_they_were(value: Any) -> None:
    assert same(read_value(tag_text(value)), value)
    assert same(from_json(to_json(value)), value)
    assert json.loads(tag_text(value))  # plain JSON for every other reader
    assert math.copysign(1, from_json(to_json(-0.0))) == -1


@settings(max_examples=examples(400), derandomize=True)
@given(values)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    normal = Codec().normalise(value)
    assert same(read_value(tag_text(normal)), normal)
    line = to_json(normal)
    assert "\n" not in line and same(from_json(line), normal)


@settings(max_examples=examples(200), derandomize=True)
@given(st.lists(st.tuples(st.text(max_size=5), values), max_size=5, unique_by=lambda pair: pair[0]))
def test_a_row_is_written_as_the_mapping_of_its_fields(pairs: list[tuple[str, Any]]) -> None:
    row = {name: Codec().normalise(value) for name, value in pairs}
    assert row_writer(list(row))(list(row.values())) == to_json(row)


@settings(max_examples=examples(300), derandomize=True)
@given(
    st.text()
    | st.text(st.sampled_from('{}[]":$,0.e-nullmapfotbys')).map(lambda text: MARK + text + "}")
)
def test_any_other_text_is_itself_or_refused(text: str) -> None:
    try:
        found = read_value(text)
    except CodecError:
        assert text.startswith(MARK)
    else:
        assert found == text or text.startswith(MARK)


def test_what_is_no_number_comes_back_as_none_too_and_keys_stay_apart() -> None:
    assert math.isnan(read_value(tag_text(math.nan)))
    assert len(read_value(tag_text({float("nan"): 1, float("nan"): 2}))) == 2


@pytest.mark.parametrize("cell", [None, 1, 2.5, True, "text", b"x", [1], {"a": 1}, " " + MARK])
def test_a_cell_that_is_not_tagged_is_its_own_value(cell: Any) -> None:
    assert read_value(cell) is cell


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "NaN}",
        '{"$float":1}}',
        '{"$float":"1"}}',
        '{"$bytes":"*"}}',
        '{"$map":[[1]]}}',
        '{"$map":[[[1],2]]}}',
        '{"$none":1}}',
        '{"$float":"nan","a":1}}',
        '{"a":1,"a":2}}',
        '{"$map":[[1,2],[1,3]]}}',
        "9" * 5000 + "}",
        "[" * 70 + "]" * 70 + "}",
        "[" * 100_000 + "}",
        '"\\ud800"}',
        '{"$datetime":["2024-01-01T00:00:00","Europe/Nowhere",0]}}',
        '{"$datetime":["2024-01-01T00:00:00",1e300,0]}}',
        '{"$decimal":"abc"}}',
        '{"$uuid":5}}',
    ],
    ids=lambda text: text[:20],
)
def test_tagged_text_that_was_not_written_so_is_refused_in_one_sentence(text: str) -> None:
    sentence = r"is no (value as SparkStorm writes it|tagged text)"
    with pytest.raises(CodecError, match=sentence) as caught:
        read_value(MARK + text)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value", [None, True, -7, 1.5, "café", ["a", 1], {"a": {"b": []}}, 2**63 - 1, -(2**63)]
)
def test_plain_values_are_plain_json(value: Any) -> None:
    assert json.loads(to_json(value)) == value


@pytest.mark.parametrize(
    "text", ["", "{", '{"$bytes": 1}', '{"$nonsense": 1}', '{"$map": [[[], 1]]}', "[" * 100_000]
)
def test_json_that_was_not_written_so_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        from_json(text)


def test_what_is_no_value_is_refused() -> None:
    with pytest.raises(CodecError, match="a complex is no value of tuples or state"):
        to_json([1j])
