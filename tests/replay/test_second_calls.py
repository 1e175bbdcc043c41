"""User code that a replay calls apart from its task, to try it or where tuples are emitted, changes
nothing that anybody sees.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkstorm.api import BasicOutputCollector, CombiningBolt, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.api.columns import BatchCollector, ColumnBolt
from sparkstorm.api.windows import Duration, FoldingBolt, Window
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import EventTime, replay_locally
from sparkstorm.testing import complete_topology
from tests.replay.bolts import Source

CALLS = "TEST_SECOND_CALLS"
ROWS = [(f"k{n % 2}", [n], n) for n in range(40)]


def note(what: Any) -> None:
    """Leave a line in a file: modules are sent to a replay as copies."""
    with open(os.environ[CALLS], "a") as file:
        print(what, file=file)


class Fold(FoldingBolt):
    """A fold that only uses its arguments."""

    outputs = ("key", "value")

    def initial(self) -> Any:
        return 0

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        return accumulator + tup["ts"]

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((window.key[0], window.value))


class Distinct(Fold):
    """Counts what it has not seen before, in an attribute."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        new = tup["ts"] not in self.seen
        self.seen.add(tup["ts"])
        return accumulator + new


class Helped(Distinct):
    """The same by way of a method."""

    def _is_new(self, at: int) -> bool:
        new = at not in self.seen
        self.seen.add(at)
        return new

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        return accumulator + self._is_new(tup["ts"])


class Numbered(Fold):
    def prepare(self, conf: Any, context: Any) -> None:
        self.number = 0

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        self.number += 1
        return accumulator + self.number


class Stating(Fold):
    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        self.state.add(tup["key"], 1)
        return accumulator + self.state.get(tup["key"])


class Metering(Fold):
    def prepare(self, conf: Any, context: Any) -> None:
        self.folded = context.counter("folded")

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        self.folded.inc()
        return accumulator + 1


class Global(Fold):
    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        note(tup["ts"])
        return accumulator + 1


class GlobalByHelper(Fold):
    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        return _noted(accumulator)


def _noted(accumulator: Any) -> Any:
    note(accumulator)
    return accumulator + 1


class Shared(Fold):
    """Begins with a list that all windows share."""

    zero: list[int] = []  # noqa: RUF012

    def initial(self) -> Any:
        note(None)
        return list(self.zero)

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        return [*accumulator, tup["ts"]]


class Editing(Fold):
    """Changes the values of its tuple."""

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        tup["value"].append(1)
        return accumulator + len(tup["value"])


class Failing(Metering):
    """Refuses a tuple among many."""

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        if tup["ts"] == 30:
            raise ValueError("thirty")
        note(tup["ts"])
        return super().fold(accumulator, tup)


class FailingGlobal(Fold):
    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        if tup["ts"] == 30:
            raise ValueError("thirty")
        note(tup["ts"])
        return accumulator + 1


class FailingState(Fold):
    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        if tup["ts"] == 30:
            raise ValueError("thirty")
        note(tup["ts"])
        self.state.add(tup["key"], 1)
        return accumulator + 1


def folding(bolt: FoldingBolt, senders: int = 1) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("key", "value", "ts"), senders)
    bolt.with_tumbling_window(Duration.millis(10)).with_timestamp_field("ts").with_key("key")
    builder.set_bolt("bolt", bolt).fields_grouping("source", "key")
    return builder.build()


@pytest.mark.parametrize(
    "bolt",
    [
        Fold,
        Distinct,
        Helped,
        Numbered,
        Stating,
        Metering,
        Global,
        GlobalByHelper,
        Shared,
        Editing,
        Failing,
        FailingGlobal,
        FailingState,
    ],
)
def test_a_fold_is_called_as_often_as_live_and_sees_what_it_sees_live(
    bolt: type[FoldingBolt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = {"topology.max.retries": 0}
    noted = [tmp_path / name for name in ("live", "replay")]
    for file in noted:
        file.touch()
    monkeypatch.setenv(CALLS, str(noted[0]))
    live = complete_topology(folding(bolt()), {"source": ROWS}, conf=conf)
    monkeypatch.setenv(CALLS, str(noted[1]))
    replayed = replay_locally(
        folding(bolt()),
        {"source": [(key, list(value), at) for key, value, at in ROWS]},
        event_time=EventTime("ts"),
        skip_bad=True,
        conf=conf,
    )
    assert sorted(replayed["bolt"]) == sorted(live["bolt"])
    assert replayed.states.get("bolt", {}) == dict(live.state("bolt"))
    assert noted[0].read_text() == noted[1].read_text()
    if bolt in (Metering, Failing):
        folded = replayed.metrics["bolt"]["folded"].value
        assert folded == len(ROWS) - (bolt is Failing)


def test_a_fold_that_cannot_be_tried_is_warned_about_by_what_it_uses() -> None:
    found = replay_locally(
        folding(Distinct(), 2), {"source": ROWS}, event_time=EventTime("ts")
    ).warnings
    text = next(str(each) for each in found if each.cause == "order of senders")
    assert "uses more than its arguments" in text


class Sum(CombiningBolt):
    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        return tup["key"], tup["ts"]

    def combine(self, one: Any, other: Any) -> Any:
        return one + other

    def pairs_of(self, batch: pa.RecordBatch) -> Any:
        pairs = []
        for row in batch.to_pylist():
            pairs.append(self.pair(row))
        return pairs


class Batches(ColumnBolt):
    outputs = ("key", "ts")

    def execute_batch(self, batch: pa.RecordBatch, source: Any, collector: BatchCollector) -> None:
        collector.emit_batch(batch.select(["key", "ts"]))


class Prepared(Sum):
    factor = 1

    def prepare(self, conf: Any, context: Any) -> None:
        self.factor = 10

    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        return tup["key"], tup["ts"] * self.factor


class Begun(Sum):
    """Sets what `pair` uses when the state is there."""

    factor = 1

    def init_state(self, state: Any) -> None:
        super().init_state(state)
        self.factor = 10

    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        return tup["key"], tup["ts"] * self.factor


class Once(Sum):
    """Counts a time once, whatever its sender."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        is_new = tup["ts"] // 2 not in self.seen
        self.seen.add(tup["ts"] // 2)
        return tup["key"][0], int(is_new)


class OnceByHelper(Once):
    def _mark(self, at: int) -> bool:
        is_new = at not in self.seen
        self.seen.add(at)
        return is_new

    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        return tup["key"][0], int(self._mark(tup["ts"] // 2))


class OnceByFunction(Once):
    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        return tup["key"][0], int(_mark(self, tup["ts"] // 2))


def _mark(bolt: Once, at: int) -> bool:
    is_new = at not in bolt.seen
    bolt.seen.add(at)
    return is_new


class OwnExecute(Sum):
    """Does more than to combine, for each tuple."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add("tuples", 1)
        super().execute(tup, collector)


class OwnAdd(Sum):
    def add(self, key: Any, value: Any) -> None:
        self.state.add("tuples", 1)
        super().add(key, value)


class Fixed(Sum):
    """Uses an attribute that nothing changes: it is combined where tuples are emitted."""

    def __init__(self) -> None:
        self.factor = 10

    def _scaled(self, value: int) -> int:
        return value * self.factor

    def pair(self, tup: Tuple) -> tuple[Any, Any]:
        return tup["key"], self._scaled(tup["ts"])


def combining(bolt: StatefulBolt) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("key", "value", "ts"), 2)
    builder.set_bolt("batches", Batches(), 2).shuffle_grouping("source")
    builder.set_bolt("sum", bolt).fields_grouping("batches", "key")
    return builder.build()


@pytest.mark.parametrize(
    ("bolt", "is_combined"),
    [
        (Sum, True),
        (Fixed, True),
        (Prepared, False),
        (Begun, False),
        (Once, False),
        (OnceByHelper, False),
        (OnceByFunction, False),
        (OwnExecute, False),
        (OwnAdd, False),
    ],
)
def test_tuples_are_combined_early_only_by_code_that_the_bolt_does_not_change(
    bolt: type[CombiningBolt], is_combined: bool
) -> None:
    rows = [(f"k{n % 2}", n, n) for n in range(400)]  # few, or lists, travel as rows
    live = complete_topology(combining(bolt()), {"source": rows})
    replayed = replay_locally(
        combining(bolt()), {"source": rows}, outputs=["sum!state"], partitions=2
    )
    assert replayed.states["sum"] == dict(live.state("sum"))
    assert (replayed.counts["sum"]["executed"] < len(rows)) == is_combined
