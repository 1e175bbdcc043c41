"""Values as JSON: whatever a tuple may carry reads back exactly, and what is plain stays plain."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.errors import CodecError
from sparkstorm.model.codec import Codec
from sparkstorm.model.tagged import from_json, to_json

scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.binary())
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3), max_leaves=8)


@given(values)
def test_every_value_of_a_tuple_reads_back_exactly(value: Any) -> None:
    normal = Codec().normalise(value)
    line = to_json(normal)
    assert "\n" not in line and json.loads(line) is not ...
    assert repr(from_json(line)) == repr(normal)


@pytest.mark.parametrize("value", [None, True, -7, 1.5, "café", ["a", 1], {"a": {"b": []}}, 2**63 - 1, -(2**63)])
def test_plain_values_are_plain_json(value: Any) -> None:
    assert json.loads(to_json(value)) == value


@pytest.mark.parametrize("value", [b"\xff", math.inf, -math.inf, {1: "a"}, {"$bytes": "no bytes"}, {"$": 1}, {True: 1, None: 2},
                                   -0.0, {1: {b"x": [math.inf]}}])
def test_other_values_are_tagged(value: Any) -> None:
    assert repr(from_json(to_json(value))) == repr(value)


@pytest.mark.parametrize("text", ["", "{", '{"$bytes": 1}', '{"$bytes": "?"}', '{"$nonsense": 1}', '{"$map": [1]}',
                                  '{"$map": [[[], 1]]}',
                                  '{"$float": "x"}', '{"$bytes": "", "more": 1}', "[" * 100_000])
def test_what_it_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        from_json(text)


def test_what_is_no_value_is_refused() -> None:
    with pytest.raises(CodecError, match="a set is no value of tuples or state"):
        to_json([{1}])
