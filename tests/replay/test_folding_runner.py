"""Folded windows in a replay: the short way gives what tuple by tuple and window by window do,
failures included.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from sparkstorm.api import BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.api.windows import Duration, FoldingBolt, Window
from sparkstorm.replay import EventTime, LocalResults, replay_locally
from sparkstorm.replay.tasks.folding_runner import FoldingRunner
from tests.replay.bolts import Source


class Sums(FoldingBolt):
    """Sums of a key; some values and some windows fail, always or at their first try."""

    outputs = ("key", "start", "value")
    key_fields = ("key",)

    def __init__(self, empty: Any) -> None:
        self.empty = empty
        self.seen: set[Any] = set()

    def initial(self) -> Any:
        return self.empty if self.empty == 0 else list(self.empty)

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        value = tup["value"]
        if value == 13:
            raise ValueError("thirteen")
        return accumulator + (value if self.empty == 0 else [value])

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((*window.key, window.start, window.value))
        self.state.add("fired", 1)
        name = (window.key, window.start)
        if hash(name) % 5 == 0 and name not in self.seen:
            self.seen.add(name)
            raise ValueError("first try")
        if window.start % 70 == 0 and window.key[0] == 2:
            raise ValueError("never")


def outcome(rows: list[Any], empty: Any, in_order: bool) -> Any:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("key", "value", "ts"))
    bolt = (
        Sums(empty)
        .with_tumbling_window(Duration.millis(10))
        .with_timestamp_field("ts")
        .with_lag(Duration.millis(5))
    )
    builder.set_bolt("sums", bolt, 2).fields_grouping("source", "key")
    time = EventTime("ts", in_order=in_order)
    found: LocalResults = replay_locally(
        builder.build(), {"source": rows}, event_time=time, skip_bad=True, partitions=2
    )
    letters = Counter(
        (letter.stream, repr(letter.values), letter.failure.text) for letter in found.dead_letters
    )
    counts = {name: count for name, count in found.counts["sums"].items() if name != "failures"}
    return found["sums"], found.states_by_task, letters, counts


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("empty", [0, ()], ids=["number", "list"])
def test_the_short_way_gives_what_the_long_way_does(
    seed: int, empty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    keys: list[Any] = [1, 2, 3, "a", None] if seed % 2 else [1, 2, 3, 4, 5]
    rows = [
        (
            random.choice(keys),
            13 if seed > 3 and random.random() < 0.01 else random.randrange(12),
            max(0, at + random.randrange(-9, 9)),
        )
        for at in range(0, 600, random.choice((1, 2)))
    ]
    used: list[int] = []
    fold = FoldingRunner._fold

    def noted(self: FoldingRunner, part: Any) -> tuple[int, BaseException | None]:
        done, error = fold(self, part)
        used.append(done)
        return done, error

    monkeypatch.setattr(FoldingRunner, "_fold", noted)
    short = [outcome(rows, empty, in_order) for in_order in (True, False)]
    monkeypatch.setattr(FoldingRunner, "_fold", lambda self, part: (0, None))
    monkeypatch.setattr(FoldingRunner, "_fire_cells", lambda self, now_ms, most: 0)
    assert short == [outcome(rows, empty, in_order) for in_order in (True, False)]
    assert any(used) and short[0][0]
