"""A topology with a known answer: numbers at a steady rate until a file exists, two words of each,
and the sums by word.
"""

from sparkstorm.api import TopologyBuilder
from sparkstorm.model.topology import Topology
from sparkstorm.testing.chaos.topologies import Numbers, Sum, Words


def build(gate: str, per_second: int, parallelism: int) -> Topology:
    """Build it with that many tasks of each bolt."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(gate, per_second))
    builder.set_bolt("words", Words(), parallelism=parallelism).shuffle_grouping("numbers")
    builder.set_bolt("count", Sum(), parallelism=parallelism).fields_grouping("words", "word")
    return builder.build()
