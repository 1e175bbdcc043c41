"""The topology that the page is looked at with: orders, of which some are bad, summed by customer."""

from __future__ import annotations

from typing import Any

from sparkstorm.api import BasicBolt, BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.api.context import TopologyContext
from sparkstorm.testing import FeederSpout

CONF = {"topology.workers": 2, "topology.max.retries": 1}


class Clean(BasicBolt):
    """Lets orders through and gives up those without an amount."""

    outputs = ("customer", "amount")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        customer, amount = str(tup["order"]).split(":")
        collector.emit([customer, int(amount)])


class Sum(StatefulBolt):
    """Adds up by customer, with metrics of its own."""

    outputs = ("customer", "total")

    def prepare(self, conf: Any, context: TopologyContext) -> None:
        self.orders, self.amounts = context.counter("orders"), context.histogram("amount")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.orders.inc()
        self.amounts.update(tup["amount"])
        collector.emit([tup["customer"], self.state.add(tup["customer"], tup["amount"])])


class Take(BasicBolt):
    """Takes what comes."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        return


def sums_of(orders: FeederSpout) -> Any:
    """Return a topology of five components that sums orders up."""
    builder = TopologyBuilder()
    builder.set_spout("orders", orders)
    builder.set_bolt("clean", Clean(), 2).shuffle_grouping("orders")
    builder.set_bolt("sum", Sum(), 3).fields_grouping("clean", "customer")
    builder.set_bolt("alerts", Take()).shuffle_grouping("sum")
    builder.set_bolt("archive", Take(), 2).shuffle_grouping("clean").shuffle_grouping("sum")
    return builder.build()


def idle() -> Any:
    """Return a topology in which nothing happens."""
    builder = TopologyBuilder()
    builder.set_spout("nothing", FeederSpout(["word"]))
    builder.set_bolt("take", Take()).shuffle_grouping("nothing")
    return builder.build()


def order(second: int, at: int) -> str:
    """Return one of the orders of a second; the first of every tenth second is bad."""
    return f"c{(second * 7 + at) % 5}:{at * second % 90}" if at or second % 10 else "no amount"
