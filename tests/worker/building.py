"""Small topologies for the runtime's tests: one spout, one bolt under test, one capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkstorm.api import BasicBolt, BasicOutputCollector, Bolt, Spout, TopologyBuilder, Tuple
from sparkstorm.api.builder import Declarer
from sparkstorm.common.model.topology import Topology
from sparkstorm.testing import CaptureBolt

GUARANTEES = ("at-most-once", "at-least-once", "exactly-once")


class Pass(BasicBolt):
    """Hands on what it gets."""

    outputs = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((tup[0],))


class Collecting(Bolt):
    """A Bolt that keeps its collector."""

    outputs: Any = ("value",)

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        self.context = context
        self.collector = collector


class Hoards(Collecting):
    """Keeps every input until a tick, then lets it go: acks it."""

    outputs: Any = ()

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        super().prepare(conf, context, collector)
        self.hoard: list[Tuple] = []

    def execute(self, tup: Tuple) -> None:
        if not tup.is_tick:
            self.hoard.append(tup)
            return
        for tup in self.hoard:
            self.let_go(tup)
        self.hoard = []

    def let_go(self, tup: Tuple) -> None:
        self.collector.ack(tup)


def chain(
    spout: Spout,
    bolt: Bolt | BasicBolt,
    capture: BasicBolt | None = None,
    parallelism: int = 1,
    group: Callable[[Declarer], Any] | None = None,
    bolt_conf: Any = None,
) -> Topology:
    """spout -> bolt (shuffle, unless `group` says otherwise) -> capture, where the bolt has an
    output.
    """
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    declarer = builder.set_bolt("bolt", bolt, parallelism, conf=bolt_conf)
    (group or (lambda d: d.shuffle_grouping("spout")))(declarer)
    if bolt.outputs:
        builder.set_bolt("capture", capture or CaptureBolt()).global_grouping("bolt")
    return builder.build()
