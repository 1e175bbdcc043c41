"""Stepping a bolt through recorded input: what each tuple emits, changes, or why it fails."""

from __future__ import annotations

import pytest

from sparkstorm.api import BasicOutputCollector, Duration, TopologyBuilder, Window, WindowedBolt
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.topology import WATERMARK_STREAM, WINDOW_STREAM, Topology
from sparkstorm.extensions.recording.stepping.stepper import Stepper
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
    first, second, third = (
        step.failure for step in steps.through([("a",), ("b",), ("c",)], "source")
    )
    assert first is None and third is None
    assert second is not None
    assert second.text.startswith("ValueError: not this one (bolts.py, line ")
    assert steps.execute(("b",), "source").emitted == {}


def test_direct_streams_are_shown_too() -> None:
    step = Stepper(many_streams(), "sort").execute((3,), "numbers")
    assert step.emitted == {"odd": [(3,)], "to": [(3,)]}


@pytest.mark.parametrize(
    ("component", "sender", "values", "said"),
    [
        ("cuont", "split", ("a",), "there is no bolt 'cuont', only split, count"),
        (
            "count",
            "lines",
            ("a",),
            "'count' does not listen to lines:default, only to split:default",
        ),
        ("count", "split", ("a", "b"), "has the fields word; 2 values were given"),
    ],
)
def test_a_wrong_bolt_sender_or_tuple_is_refused(
    component: str, sender: str, values: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InvalidTopologyError, match=said):
        Stepper(word_count(), component).execute(values, sender)


def test_a_windowed_bolt_is_stepped_through_with_its_stored_windows_only() -> None:
    bolt = Sizes().with_tumbling_window(Duration.seconds(1)).with_timestamp_field("at_ms")
    builder = TopologyBuilder()
    builder.set_spout("source", Source("value", "at_ms"))
    builder.set_bolt("sizes", bolt).shuffle_grouping("source")
    sentence = "'sizes' has windows or timers, which cannot be stepped through"
    with pytest.raises(InvalidTopologyError, match=sentence):
        Stepper(builder.build(), "sizes")
    steps = Stepper(builder.build(), "sizes", cells=())
    outcomes = [steps.outcome((1, at_ms), "source", at_ms=9) for at_ms in (0, 500, 1500)]
    outcomes += [steps.outcome((at_ms,), "", WATERMARK_STREAM, 9) for at_ms in (999, 1000, 2000)]
    result = [emitted.get("default") for emitted, *_ in outcomes]
    assert result == [None, None, None, None, [(2,)], [(1,)]]
    record: dict[str, object] = {
        "tuples": [],
        "new": [],
        "expired": [],
        "value": None,
        "is_update": False,
    }
    emitted, *_ = steps.outcome(([], 0, 1000, record), "sizes", WINDOW_STREAM, 9)
    assert emitted == {"default": [(0,)]}, "a window that was replayed out of a dead letter"


class Sizes(WindowedBolt):
    """Emits the number of tuples of each window."""

    outputs = ("size",)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Count them."""
        collector.emit((len(window.get()),))
