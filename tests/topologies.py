"""Word count and a log for tests: the components and the topology that many of them need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    ReplayableSpout,
    Spout,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.testing import FeederSpout, LocalCluster, Shared


class Split(BasicBolt):
    """Emits the words of a line."""

    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for word in tup[0].split():
            collector.emit((word,))


class Count(StatefulBolt):
    """Counts the first values of tuples."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put(tup[0], self.state.get(tup[0], 0) + 1)


def building(**spouts: Spout) -> TopologyBuilder:
    """A builder that has these spouts by their ids, of one task each."""
    builder = TopologyBuilder()
    for component_id, spout in spouts.items():
        builder.set_spout(component_id, spout)
    return builder


def word_count(
    lines: Spout,
    spouts: int = 1,
    splits: int = 2,
    counts: int = 2,
    count: StatefulBolt | None = None,
) -> Topology:
    """Build lines -> split -> count, of so many tasks each; another bolt may count."""
    builder = TopologyBuilder()
    builder.set_spout("lines", lines, spouts)
    builder.set_bolt("split", Split(), splits).shuffle_grouping("lines")
    builder.set_bolt("count", count or Count(), counts).fields_grouping("split", "word")
    return builder.build()


class Log(ReplayableSpout):
    """Reads a log, which keeps every number, from its stored position."""

    def __init__(self, numbers: Shared[list[int]], field: str = "number") -> None:
        self.shared = numbers
        self.outputs = (field,)

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector, self.at = collector, 0

    def next_tuple(self) -> None:
        if self.at < len(self.shared.value):
            self.collector.emit([self.shared.value[self.at]], self.at)
            self.at += 1

    def is_exhausted(self) -> bool:
        return self.at >= len(self.shared.value)

    def snapshot(self) -> Any:
        return self.at

    def restore(self, position: Any) -> None:
        self.at = position


def feed(spout: FeederSpout, values: Iterable[Any]) -> None:
    """Feed each of the values as a tuple of one field."""
    for value in values:
        spout.feed([value])


@contextmanager
def running(
    topology: Topology, conf: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[LocalCluster]:
    """A local cluster, made with these options, that runs the topology."""
    with LocalCluster(**options) as cluster:
        cluster.submit(topology, conf)
        yield cluster


@contextmanager
def ran(
    topology: Topology,
    spout: FeederSpout,
    values: Iterable[Any],
    conf: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[LocalCluster]:
    """The same after its spout was fed these values and nothing waits any more."""
    with running(topology, conf, **options) as cluster:
        feed(spout, values)
        cluster.run_until_idle()
        yield cluster
