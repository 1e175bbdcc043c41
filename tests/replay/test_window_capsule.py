"""Capsules of bolts with windows and timers: a failed window, timer or tuple fails again by itself,
with what it met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import (
    BasicOutputCollector,
    Count,
    Duration,
    FoldingBolt,
    JoinBolt,
    TimedBolt,
    Timer,
    TopologyBuilder,
    Tuple,
    Window,
    WindowedBolt,
    joins,
)
from sparkstorm.common.errors import RecordingError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.topology import Topology
from sparkstorm.data_plane.executor import window_records
from sparkstorm.extensions.recording.capsule_files import ENDING, write_capsule
from sparkstorm.extensions.recording.stepping.stepper import Step
from sparkstorm.replay import open_capsule
from sparkstorm.testing import CaptureBolt, FeederSpout
from tests.topologies import running

ROW = ("key", "ts", "value")
# "a" and "c" have one task of two.
ROWS = [
    ("a", 1000, 1),
    ("c", 2000, 2),
    ("a", 3000, 3),
    ("a", 12_000, 4),
    ("c", 13_000, 5),
    ("a", 25_000, 6),
]


def windowed(bolt: Any, spout: FeederSpout | None = None) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("rows", spout or FeederSpout(ROW))
    declarer = builder.set_bolt("windows", bolt, 2)
    if bolt.key_fields:
        declarer.fields_grouping("rows", "key")
    else:
        declarer.global_grouping("rows")
    builder.set_bolt("capture", CaptureBolt()).global_grouping("windows")
    return builder.build()


def parked(bolt: Any, rows: Sequence[Sequence[Any]] = ROWS, **conf: Any) -> list[DeadLetter]:
    """Run a bolt over rows; return what was parked."""
    spout = FeederSpout(ROW)
    with running(
        windowed(bolt, spout), {"topology.max.retries": 1, "topology.retry.backoff.ms": 1, **conf}
    ) as cluster:
        for row in rows:
            spout.feed(row)
        cluster.run_until_idle()
        cluster.advance(ms=30_000)
        spout.finish()
        cluster.run_until_idle()
        return list(cluster.dead_letters)


def stepped(folder: Path, letter: DeadLetter, bolt: Any) -> Step:
    """Execute a letter on a bolt by way of a capsule."""
    path = folder / f"one{ENDING}"
    write_capsule(path, letter)
    step: Step = open_capsule(path).step(windowed(bolt))
    return step


class Total(WindowedBolt):
    """Total of a window and of all windows before it; fails at some total."""

    outputs: Any = ("key", "total", "new", "update")

    def __init__(self, fails_at: int = 0) -> None:
        self.fails_at = fails_at

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        total = sum(tup["value"] for tup in window) + self.state.get(window.key, 0)
        self.state.put(window.key, total)
        if total == self.fails_at:
            raise ValueError(f"{total} in all by {self.timers.watermark_ms}")
        news = [(tup["value"], tup.component) for tup in window.get_new()]
        collector.emit((list(window.key), total, news, window.is_update))


class Folded(FoldingBolt):
    """Sum in accumulators; fails for a tuple that brings it to some sum."""

    outputs: Any = ("key", "sum")

    def __init__(self, fails_at: int = 0) -> None:
        self.fails_at = fails_at

    def initial(self) -> int:
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        if accumulator + tup["value"] == self.fails_at:
            raise ValueError("this one is too much")
        return accumulator + int(tup["value"])

    def merge(self, one: int, other: int) -> int:
        return one + other

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        if window.value == -self.fails_at:
            raise ValueError("not this sum")
        collector.emit((list(window.key), window.value))


def seconds(bolt: Any, length: int = 10, slide: int | None = None) -> Any:
    slides = None if slide is None else Duration.seconds(slide)
    return (
        bolt.with_window(Duration.seconds(length), slides)
        .with_key("key")
        .with_timestamp_field("ts")
    )


def test_a_failed_window_has_its_tuples_its_state_and_its_watermark(tmp_path: Path) -> None:
    (letter,) = parked(seconds(Total(fails_at=8)))  # "a": 1 + 3, then + 4
    assert (letter.stream, letter.values) == ("__window", (["a"], 10_000, 20_000))
    result = dict(letter.state or ())
    assert result == {("a",): 4, ("c",): 2}
    step = stepped(tmp_path, letter, seconds(Total(fails_at=8)))
    assert step.failure is not None
    assert step.failure.text == letter.reason
    assert "8 in all by" in letter.reason
    assert step.state["a",] == 4 and not step.emitted, "what a failed call did is undone"
    mended = stepped(tmp_path, letter, seconds(Total()))
    assert mended.failure is None and mended.state["a",] == 8
    assert mended.emitted == {"default": [(["a"], 8, [[4, "rows"]], False)]}


@pytest.mark.parametrize(
    ("bolt", "fails_at"),
    [
        (lambda fails_at: seconds(Total(fails_at), 20, 10), 12),
        (
            lambda fails_at: (
                Total(fails_at)
                .with_session_window(Duration.seconds(5))
                .with_key("key")
                .with_timestamp_field("ts")
            ),
            8,
        ),
        (lambda fails_at: Total(fails_at).with_tumbling_window(Count(2)).with_key("key"), 14),
        (
            lambda fails_at: (
                Total(fails_at).with_tumbling_window(Count(2)).with_timestamp_field("ts")
            ),
            10,
        ),
        (
            lambda fails_at: (
                Total(fails_at).with_tumbling_window(Duration.seconds(5)).with_key("key")
            ),
            14,
        ),
    ],
    ids=["sliding", "session", "count", "count in order of time", "by the clock"],
)
def test_windows_of_every_kind_fail_again_and_pass_when_mended(
    bolt: Any, fails_at: int, tmp_path: Path
) -> None:
    letters = parked(bolt(fails_at))
    assert letters
    for letter in letters:
        step = stepped(tmp_path, letter, bolt(fails_at))
        assert step.failure is not None and step.failure.text == letter.reason
        assert stepped(tmp_path, letter, bolt(0)).failure is None


def test_a_tuple_that_cannot_be_folded_meets_the_accumulator_of_its_window(tmp_path: Path) -> None:
    (letter,) = parked(seconds(Folded(fails_at=4)), ROWS[:3], **{"topology.max.retries": 0})
    assert (letter.stream, letter.values) == ("default", ("a", 3000, 3))
    step = stepped(tmp_path, letter, seconds(Folded(fails_at=4)))
    assert step.failure is not None and step.failure.text == letter.reason
    assert stepped(tmp_path, letter, seconds(Folded())).failure is None
    alone = replace(letter, window={"watermark_ms": 0})
    assert stepped(tmp_path, alone, seconds(Folded(fails_at=4))).failure is None, (
        "by itself it does no harm"
    )


def test_a_folded_window_has_its_accumulator(tmp_path: Path) -> None:
    (letter,) = parked(seconds(Folded(fails_at=-6)))
    assert stepped(tmp_path, letter, seconds(Folded(fails_at=-6))).failure is not None
    assert stepped(tmp_path, letter, seconds(Folded())).emitted == {"default": [(["a"], 6)]}


class Alarm(TimedBolt):
    """Sets a timer per key; fails at a tuple or at a timer."""

    outputs: Any = ("key", "seen")

    def __init__(self, tuple_value: int = 0, timer_seen: int = 0) -> None:
        self.tuple_value, self.timer_seen = tuple_value, timer_seen

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["value"] == self.tuple_value:
            raise ValueError("not this value")
        self.state.add(tup["key"], 1)
        self.timers.set_event_timer(tup["key"], tup["ts"] + 5_000)

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        if self.state[timer.name] == self.timer_seen:
            raise ValueError(f"{self.timer_seen} seen at {timer.at_ms}")
        collector.emit((timer.name, self.state[timer.name]))


def timed(bolt: Any) -> Any:
    bolt.key_fields = ("key",)
    return bolt.with_timestamp_field("ts")


def test_a_timer_and_a_tuple_of_a_timed_bolt_fail_again(tmp_path: Path) -> None:
    (letter,) = parked(timed(Alarm(timer_seen=3)))
    assert (letter.stream, letter.values) == ("__timer", ("event", "a", 17_000))
    step = stepped(tmp_path, letter, timed(Alarm(timer_seen=3)))
    assert step.failure is not None and step.failure.text == letter.reason
    assert stepped(tmp_path, letter, timed(Alarm())).emitted == {"default": [("a", 3)]}
    (letter,) = parked(timed(Alarm(tuple_value=5)))
    step = stepped(tmp_path, letter, timed(Alarm(tuple_value=5)))
    assert step.failure is not None and step.failure.text == letter.reason
    assert stepped(tmp_path, letter, timed(Alarm())).failure is None


def joined() -> Any:
    join = (
        JoinBolt("rows", key="key")
        .join("others", key="key")
        .select("rows:value as one", "others:value as other")
    )
    return join.with_tumbling_window(Duration.seconds(10)).with_timestamp_field("ts")


def test_a_window_of_a_join_fails_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spouts = [FeederSpout(ROW), FeederSpout(ROW)]

    def build() -> Topology:
        builder = TopologyBuilder()
        for name, spout in zip(("rows", "others"), spouts, strict=True):
            builder.set_spout(name, spout)
        builder.set_bolt("join", joined(), inputs=["rows", "others"])
        return builder.build()

    monkeypatch.setattr(joins, "_MOST_ROWS", 3)
    with running(build(), {"topology.max.retries": 0}) as cluster:
        for spout in spouts:
            for row in ROWS:
                spout.feed(row)
        for spout in spouts:
            spout.finish()
        cluster.run_until_idle()
        (letter,) = cluster.dead_letters
    write_capsule(tmp_path / f"one{ENDING}", letter)
    capsule = open_capsule(tmp_path / f"one{ENDING}")
    step = capsule.step(build())
    assert step.failure is not None
    assert step.failure.text == letter.reason
    assert "joins to more than 3 rows" in letter.reason
    monkeypatch.setattr(joins, "_MOST_ROWS", 1000)
    result = sorted(capsule.step(build()).emitted["default"])
    assert result == [(1, 1), (1, 3), (2, 2), (3, 1), (3, 3)]


def test_a_window_that_is_too_large_is_left_out_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_records, "_MOST_BYTES", 20)
    (letter,) = parked(seconds(Total(fails_at=8)))
    assert letter.window == {"is_left_out": True}
    with pytest.raises(RecordingError, match="the window of 'windows' is not in its dead letter"):
        stepped(tmp_path, letter, seconds(Total()))


WINDOW = {"tuples": [], "new": [], "expired": [], "value": 0, "is_update": False}


@pytest.mark.parametrize(
    "window",
    [
        {**WINDOW, "tuples": 7},
        {**WINDOW, "tuples": [7]},
        {**WINDOW, "tuples": [["rows", 1, "default", [1]]]},
        {**WINDOW, "tuples": [["gone", 1, "default", [1]]]},
        {**WINDOW, "tuples": [["rows", 1, [], [1]]]},
        {**WINDOW, "new": [5]},
        {"tuples": []},
        {"tuples": [], "cells": [7]},
        {"tuples": [], "cells": 7},
        {"tuples": [], "cells": [[[], 7]]},
    ],
)
def test_a_window_that_is_none_is_named_in_one_sentence(
    window: dict[str, Any], tmp_path: Path
) -> None:
    (letter,) = parked(seconds(Total(fails_at=8)))
    with pytest.raises(RecordingError, match="of this dead letter"):
        stepped(tmp_path, replace(letter, window=window), seconds(Total()))
