"""The local twin of a replay: plain lists through the same stages."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from sparkstorm.common.errors import InvalidTopologyError, ReplayFailedError
from sparkstorm.replay import EventTime, ReplayOptions, replay_locally
from sparkstorm.replay.options import OptionArguments, options_of
from tests.replay.bolts import LINES, WORDS, many_streams, word_count


def test_the_word_count_over_lists_gives_words_and_counts() -> None:
    results = replay_locally(word_count(), {"lines": LINES})
    assert results.states["count"] == WORDS
    assert sorted(results["split"]) == sorted((word,) for (line,) in LINES for word in line.split())
    assert max(count for word, count in results["count"] if word == "c") == 3


def test_every_task_is_prepared_once_even_without_a_row() -> None:
    results = replay_locally(word_count(4, 5), {"lines": []})
    assert results.counts["count"]["prepared"] == 5
    assert results["split"] == [] and results.states["count"] == {}


def test_every_grouping_reaches_whom_it_should() -> None:
    results = replay_locally(many_streams(), {"numbers": [(n,) for n in range(10)]})
    assert results.states["all"] == {
        f"{stream} {task}": n for stream, n in (("even", 20), ("odd", 25)) for task in range(3)
    }
    assert results.states["global"] == {"even 0": 20, "odd 0": 25}
    assert results.states["direct"] == {"to 0": 20, "to 1": 25}
    assert results.counts["all"]["executed"] == 30
    assert results.counts["global"]["executed"] == 10
    assert sorted(results["sort:to"]) == [(n,) for n in range(10)]
    assert results.counts["partial"]["executed"] == 5


def test_a_result_or_state_that_there_is_not_is_named() -> None:
    results = replay_locally(word_count(), {"lines": [("a b",)]})
    with pytest.raises(KeyError, match="there is no state of 'splt', only of count"):
        results.states["splt"]
    with pytest.raises(KeyError, match=r"there is no result 'splt', only .*count"):
        results["splt"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((), r"0 values for 1 fields \(line\); give one for each field, None where there is none"),
        (("a", 1), r"2 values for 1 fields \(line\)"),
        (
            {"line": "a"},
            "needs a list of values, not {'line': 'a'}; give those of line in this order",
        ),
        ("a", "needs a list of values, not 'a'"),
        ({"a"}, "needs a list of values, not {'a'}"),
        (None, "needs a list of values, not None"),
        (5, "needs a list of values, not 5"),
        ((datetime(2026, 1, 1),), "column 'line': a datetime without a zone"),
        (("\ud800",), "column 'line': text that is not valid UTF-8"),
        ((object(),), "column 'line': a value of type object"),
    ],
)
def test_a_row_that_no_spout_could_emit_is_named(row: Any, said: str) -> None:
    with pytest.raises(ReplayFailedError, match=f"^input 'lines', row 1(: |, ){said}"):
        replay_locally(word_count(), {"lines": [("a b",), row]}, skip_bad=True)


def test_scalars_of_numpy_are_plain_values_in_rows_and_states() -> None:
    results = replay_locally(
        word_count(), {"lines": [[np.str_("a b")]]}, states={"count": {np.str_("a"): np.int64(2)}}
    )
    assert results.states["count"] == {"a": 3, "b": 1}
    assert {type(each) for pair in results.states["count"].items() for each in pair} == {str, int}
    assert type(results["lines"][0][0]) is str


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ([("a", 1)], " is of type list, not a mapping from keys to values"),
        (None, " is of type NoneType, not a mapping"),
        ({float("nan"): 1}, ", key nan: it holds NaN, which equals no key; keys are text, numbers"),
        ({frozenset(): 1}, r", key frozenset\(\): it holds a frozenset"),
        ({("a", ("b",)): 1}, r", key \('a', \('b',\)\): it holds a tuple"),
        ({"a": object()}, ", key 'a': a value of type object"),
        ({"a": "\ud800"}, ", key 'a': text that is not valid UTF-8"),
        ({2**9000: 1}, ", key .*: a whole number of 9001 bits"),
    ],
)
def test_an_initial_state_that_no_bolt_could_keep_is_named(state: Any, said: str) -> None:
    with pytest.raises(ReplayFailedError, match=f"^initial state of 'count'{said}"):
        replay_locally(word_count(), {"lines": [("a",)]}, states={"count": state})


# -- options of a replay ---------------------------------------------------------------------------


CONF = {"topology.workers": 3}


def test_keyword_arguments_are_the_fields_of_the_record() -> None:
    assert list(OptionArguments.__annotations__) == [each.name for each in fields(ReplayOptions)]


def test_keyword_arguments_win_over_the_record_and_none_is_the_default() -> None:
    options = ReplayOptions(conf=CONF, name="one", skip_bad=True)
    result = options_of(options, {"name": "other"})
    assert result == ReplayOptions(conf=CONF, name="other", skip_bad=True)
    result = options_of(options, {"conf": None, "states": None})
    assert result == ReplayOptions(name="one", skip_bad=True)


def test_an_option_that_there_is_not_is_named() -> None:
    unknown: Any = {"skipbad": True}
    sentence = r"^a replay has no option 'skipbad', only conf, name, .*skip_bad"
    with pytest.raises(InvalidTopologyError, match=sentence):
        replay_locally(word_count(), {"lines": LINES}, **unknown)


def test_types_are_refused_where_results_have_none() -> None:
    with pytest.raises(InvalidTopologyError, match=r"^types are of DataFrames"):
        replay_locally(word_count(), {"lines": LINES}, types={"split": "word string"})


def test_a_record_and_keyword_arguments_make_the_same_replay() -> None:
    one = replay_locally(
        word_count(), {"lines": LINES}, ReplayOptions(conf=CONF, outputs=["split"])
    )
    other = replay_locally(word_count(), {"lines": LINES}, conf=CONF, outputs=["split"])
    assert one.outputs == other.outputs and set(one.outputs) == {"lines", "split"}


def test_an_event_time_given_by_name_keeps_or_makes_the_order() -> None:
    assert ReplayOptions(event_time="ts").time() == EventTime("ts", in_order=True)
    assert ReplayOptions(event_time="ts").time(in_order=False) == EventTime("ts", in_order=False)
    result = ReplayOptions(event_time=EventTime("ts", in_order=True)).time(in_order=False)
    assert result == EventTime("ts", in_order=True)
