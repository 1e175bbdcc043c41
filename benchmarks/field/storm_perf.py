"""storm-perf's ConstSpoutIdBoltNullBolt, and the word count (its FileReadWordCount over Storm's
five sentences).

A constant text goes from a spout over a bolt that passes it on to one that drops it; ours counts
what it drops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from benchmarks.field.case import RESULT, Answer, Case, Part, Pool, Row, Text, Wire
from benchmarks.topologies import Count, CountColumns, Relay, Split, SplitColumns
from benchmarks.wordcount import FEW
from sparkstorm.api import (
    BasicOutputCollector,
    BatchCollector,
    ColumnBolt,
    Stateful,
    StatefulBolt,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.common.model.tuples import Source

TEXT = "some data"


@dataclass(frozen=True, slots=True)
class Texts:
    """Generator of so many texts, each one of a few by chance."""

    events: int
    texts: Sequence[str]
    seed: int = 1
    chunk: int = 5_000
    streams: ClassVar[Mapping[str, Sequence[str]]] = {"text": ("text",)}

    def part(self, number: int, wanted: Sequence[str] = ()) -> Mapping[str, Part]:
        """Return a chunk's rows by stream."""
        size = min(self.chunk, self.events - number * self.chunk)
        places = np.random.default_rng([self.seed, number]).integers(0, len(self.texts), size)
        return {"text": Part(np.arange(size), [Text(Pool(self.texts), places)])}


def constants(events: int, **more: Any) -> Texts:
    """Return the constant text so many times."""
    return Texts(events, (TEXT,), **more)


def sentences(events: int, **more: Any) -> Texts:
    """Return so many of Storm's sentences."""
    return Texts(events, tuple(FEW), **more)


class RelayColumns(ColumnBolt):
    """Passes batches on."""

    outputs = ("text",)

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Emit what came."""
        collector.emit_batch(batch)


class Dropped(StatefulBolt):
    """Counts tuples, by task."""

    order_insensitive = True

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """The task's id is its key."""
        self._key = context.task_id

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one."""
        self.state.add(self._key, 1)


class DroppedColumns(Stateful, ColumnBolt):
    """Counts the rows of batches, by task."""

    order_insensitive = True

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Prepare as the bolt by rows does."""
        self._key = context.task_id

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Count a batch."""
        self.state.add(self._key, batch.num_rows)


def _through(relay: type[Any], drop: type[Any]) -> Wire:
    def wire(builder: TopologyBuilder, tasks: int) -> None:
        builder.set_bolt("id", relay(), tasks).local_or_shuffle_grouping("events", "text")
        builder.set_bolt(RESULT, drop(), tasks).local_or_shuffle_grouping("id")

    return wire


def _words(split: type[Any], count: type[Any]) -> Wire:
    def wire(builder: TopologyBuilder, tasks: int) -> None:
        builder.set_bolt("split", split(), tasks).local_or_shuffle_grouping("events", "text")
        builder.set_bolt(RESULT, count(), tasks).fields_grouping("split", "word")

    return wire


def _number(rows: Mapping[str, Sequence[Row]]) -> Answer:
    number = 0
    for (_,) in rows["text"]:
        number += 1
    return {"tuples": number}


def _all(state: Mapping[Any, Any]) -> Answer:
    return {"tuples": sum(state.values())}


def _counts(rows: Mapping[str, Sequence[Row]]) -> Answer:
    return dict(Counter(word for (line,) in rows["text"] for word in line.split()))


ID = Case(
    "id bolt",
    "a constant text over a bolt to nothing",
    ("text",),
    _through(Relay, Dropped),
    _through(RelayColumns, DroppedColumns),
    _number,
    _all,
)
WORDS = Case(
    "word count",
    "five sentences, lines",
    ("text",),
    _words(Split, Count),
    _words(SplitColumns, CountColumns),
    _counts,
)
CASES = (ID, WORDS)
