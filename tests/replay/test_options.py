"""Options of a replay: one record, or its fields as keyword arguments."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.replay import EventTime, ReplayOptions, replay_locally
from sparkstorm.replay.options import OptionArguments, options_of
from tests.replay.bolts import LINES, word_count

CONF = {"topology.workers": 3}


def test_keyword_arguments_are_the_fields_of_the_record() -> None:
    assert list(OptionArguments.__annotations__) == [each.name for each in fields(ReplayOptions)]


def test_keyword_arguments_win_over_the_record_and_none_is_the_default() -> None:
    options = ReplayOptions(conf=CONF, name="one", skip_bad=True)
    assert options_of(options, {"name": "other"}) == ReplayOptions(
        conf=CONF, name="other", skip_bad=True
    )
    assert options_of(options, {"conf": None, "states": None}) == ReplayOptions(
        name="one", skip_bad=True
    )


def test_an_option_that_there_is_not_is_named() -> None:
    unknown: Any = {"skipbad": True}
    with pytest.raises(
        InvalidTopologyError,
        match=r"^a replay has no option 'skipbad', only conf, name, .*skip_bad",
    ):
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
    assert ReplayOptions(event_time=EventTime("ts", in_order=True)).time(
        in_order=False
    ) == EventTime("ts", in_order=True)
