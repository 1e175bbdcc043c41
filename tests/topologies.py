"""Word count for tests: the bolts and the topology that many of them need."""

from __future__ import annotations

from sparkstorm.api import BasicBolt, BasicOutputCollector, Spout, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.model.topology import Topology


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


def word_count(lines: Spout, spouts: int = 1, splits: int = 2, counts: int = 2, count: StatefulBolt | None = None) -> Topology:
    """Build lines -> split -> count, of so many tasks each; another bolt may count."""
    builder = TopologyBuilder()
    builder.set_spout("lines", lines, spouts)
    builder.set_bolt("split", Split(), splits).shuffle_grouping("lines")
    builder.set_bolt("count", count or Count(), counts).fields_grouping("split", "word")
    return builder.build()
