"""Numbers of a Kafka topic through a bolt that takes 2 ms a row, for test_autoscale_live.py."""

from __future__ import annotations

import time
from typing import Any

from sparkstorm import connectors
from sparkstorm.api import StatefulBolt, TopologyBuilder, bolt
from sparkstorm.common.model.topology import Topology

ROW_SECS = 0.002


@bolt({"n": "bigint"})
def work(tup: Any) -> Any:
    # It waits. A computation would catch up only on a machine with as many free cores as workers.
    time.sleep(ROW_SECS)
    yield (tup["n"],)


class Seen(StatefulBolt):
    """Count of the numbers of each hundred."""

    def execute(self, tup: Any, collector: Any) -> None:
        key = tup["n"] // 100
        self.state.put(key, self.state.get(key, 0) + 1)


def build(kafka: str) -> Topology:
    """Return the topology: source, work of four tasks, and count."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", connectors.KafkaSource(kafka, "in", {"n": "bigint"}))
    builder.set_bolt("work", work, 1, num_tasks=4, inputs="numbers")
    builder.set_bolt("seen", Seen(), 1).fields_grouping("work", "n")
    return builder.build()
