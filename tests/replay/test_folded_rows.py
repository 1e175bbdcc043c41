"""Folded windows: rows that are folded together, and windows that fire together, give what tuple by
tuple and window by window do, live and replayed, failures included.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from sparkstorm.api import BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.api.windows import Duration, FoldingBolt, Window
from sparkstorm.data_plane.executor.folded_rows import FoldedRows
from sparkstorm.data_plane.executor.windowed_runner import TimedRunner
from sparkstorm.replay import EventTime, LocalResults, replay_locally
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster
from tests.replay.bolts import Source


class Sums(FoldingBolt):
    """Sums of a key; some values and some windows fail, always or at their first try."""

    outputs = ("key", "start", "value")

    def __init__(self, empty: Any, key_fields: tuple[str, ...]) -> None:
        self.empty = empty
        self.key_fields = key_fields
        self.seen: set[Any] = set()

    def initial(self) -> Any:
        return self.empty if self.empty == 0 else list(self.empty)

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        value = tup["value"]
        self.state.add("folded", value)
        if value == 13:
            raise ValueError("thirteen")
        if value < 3:
            return accumulator  # as it came
        if self.empty == 0:
            return accumulator + value
        accumulator.append(value)
        return accumulator

    def merge(self, one: Any, other: Any) -> Any:
        return one + other

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((repr(window.key), window.start, window.value))
        self.state.add("fired", 1)
        name = (window.key, window.start)
        if hash(name) % 5 == 0 and name not in self.seen:
            self.seen.add(name)
            raise ValueError("first try")
        if window.start % 70 == 0 and 2 in window.key:
            raise ValueError("never")


SHAPES = {
    "tumbling": lambda bolt: bolt.with_tumbling_window(Duration.millis(10)),
    "sliding": lambda bolt: bolt.with_window(Duration.millis(20), Duration.millis(10)),
    "gaps": lambda bolt: bolt.with_window(Duration.millis(10), Duration.millis(20)),
}


def topology(bolt: Any, source: Any) -> Any:
    builder = TopologyBuilder()
    builder.set_spout("source", source)
    timed = bolt.with_timestamp_field("ts").with_lag(Duration.millis(5))
    builder.set_bolt("sums", timed.with_late_tuple_stream("late"), 2).fields_grouping(
        "source", "key"
    )
    return builder


def replayed(bolt: Any, rows: list[Any], in_order: bool) -> Any:
    time = EventTime("ts", in_order=in_order)
    found: LocalResults = replay_locally(
        topology(bolt, Source("key", "value", "ts")).build(),
        {"source": rows},
        event_time=time,
        skip_bad=True,
        partitions=2,
    )
    counts = {name: count for name, count in found.counts["sums"].items() if name != "failures"}
    late = Counter(map(repr, found["sums:late"]))
    return found["sums"], late, found.states_by_task, _letters(found.dead_letters), counts


def live(bolt: Any, rows: list[Any]) -> Any:
    spout, capture = FeederSpout(["key", "value", "ts"]), CaptureBolt()
    builder = topology(bolt, spout)
    builder.set_bolt("capture", capture).shuffle_grouping("sums").shuffle_grouping("sums", "late")
    for row in rows:
        spout.feed(list(row))
    with LocalCluster(seed=1) as cluster:
        cluster.submit(builder.build(), {"topology.max.retries": 1})
        cluster.run_until_idle()
        emitted = Counter(map(repr, capture.values))
        return emitted, cluster.state_by_task("sums"), _letters(cluster.dead_letters)


def _letters(letters: Any) -> Counter[Any]:
    return Counter((letter.stream, repr(letter.values), letter.failure.text) for letter in letters)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("empty", [0, ()], ids=["number", "list"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_folded_together_give_what_row_by_row_does(
    seed: int, empty: Any, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    key_fields = (("key",), (), ("key", "value"))[seed % 3]
    keys: list[Any] = [1, 2, 3, "a", None] if seed % 2 else [1, 2, 3, 4, 5]
    rows = [
        (
            random.choice(keys),
            13 if seed > 2 and random.random() < 0.01 else random.randrange(12),
            max(0, at + random.randrange(-9, 9)),
        )
        for at in range(0, 600, random.choice((1, 2)))
    ]
    folded: list[int] = []
    fold = FoldedRows.fold

    def noted(self: FoldedRows, rows: Any, begin: int, cells: Any) -> Any:
        end, failed = fold(self, rows, begin, cells)
        folded.append(end - begin)
        return end, failed

    def outcomes() -> list[Any]:
        def bolt() -> Any:
            return SHAPES[shape](Sums(empty, key_fields))

        return [live(bolt(), rows), *(replayed(bolt(), rows, order) for order in (True, False))]

    monkeypatch.setattr(FoldedRows, "fold", noted)
    together = outcomes()
    assert any(folded) == (shape != "gaps") and together[0][0]
    monkeypatch.setattr(FoldedRows, "cells_of", lambda self, source: None)
    monkeypatch.setattr(TimedRunner, "_fire_cells", lambda self, now_ms, most: 0)
    assert together == outcomes()
