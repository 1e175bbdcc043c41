"""A topology with a known answer: numbers at a steady rate until a file exists, two words of each,
and the sums by word.
"""

from typing import Any

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.model.topology import Topology
from tests.chaos.topologies import Numbers, Sum, Words


class LoggedSum(Sum):
    """Sums that say in their worker's log that they begin."""

    def prepare(self, conf: Any, context: Any) -> None:
        """Say so."""
        print(f"task {context.task_id} counts", flush=True)


def build(gate: str, per_second: int, parallelism: int) -> Topology:
    """Build it with that many tasks of each bolt."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(gate, per_second))
    builder.set_bolt("words", Words(), parallelism=parallelism).shuffle_grouping("numbers")
    builder.set_bolt("count", LoggedSum(), parallelism=parallelism).fields_grouping("words", "word")
    return builder.build()
