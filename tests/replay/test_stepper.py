"""Stepping a bolt through recorded input: what each tuple emits, changes, or why it fails."""

from __future__ import annotations

import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.errors import InvalidTopologyError
from sparkstorm.model.topology import Topology
from sparkstorm.replay.stepping.stepper import Stepper
from tests.replay.bolts import Picky, Source, many_streams, word_count


def picky() -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("value"))
    builder.set_bolt("picky", Picky("b")).shuffle_grouping("source")
    return builder.build()


def test_every_step_shows_what_was_emitted_and_the_state_behind_it() -> None:
    steps = Stepper(word_count(), "count", state={"a": 5})
    first, second = steps.through([("a",), ("b",)], "split")
    assert first.emitted == {"default": [("a", 6)]} and first.state == {"a": 6}
    assert second.emitted == {"default": [("b", 1)]} and second.state == {"a": 6, "b": 1}


def test_a_failing_step_says_why_and_leaves_no_trace() -> None:
    steps = Stepper(picky(), "picky")
    first, second, third = (step.failure for step in steps.through([("a",), ("b",), ("c",)], "source"))
    assert first is None and third is None
    assert second is not None and second.text.startswith("ValueError: not this one (bolts.py, line ")
    assert steps.execute(("b",), "source").emitted == {}


def test_direct_streams_are_shown_too() -> None:
    step = Stepper(many_streams(), "sort").execute((3,), "numbers")
    assert step.emitted == {"odd": [(3,)], "to": [(3,)]}


@pytest.mark.parametrize(
    ("component", "sender", "values", "said"),
    [
        ("cuont", "split", ("a",), "there is no bolt 'cuont', only split, count"),
        ("count", "lines", ("a",), "'count' does not listen to lines:default, only to split:default"),
        ("count", "split", ("a", "b"), "has the fields word; 2 values were given"),
    ],
)
def test_a_wrong_bolt_sender_or_tuple_is_refused(component: str, sender: str, values: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidTopologyError, match=said):
        Stepper(word_count(), component).execute(values, sender)
