"""CPU of a tuple by its grouping, stream, values and state: python -m benchmarks.row_ways [--runs N]
[--tuples N] [--cases ...].

The harness of `benchmarks.tracking`: real workers over the in-process store, stepped in turn in one
process, two of them, exactly-once. A spout's orders pass a bolt and end in another, two tasks each;
each line is microseconds of CPU (user and system time of the process, store included) per order.
The cases differ from the first in one thing alone, and take turns in every round.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np

from benchmarks.tracking import cpu_us
from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.api.builder import Declarer
from sparkstorm.model.topology import Topology

FIELDS = ("customer", "shop", "value")
_NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
_VALUES: dict[str, Callable[[int], Any]] = {
    "number": lambda n: n,
    "datetime": lambda n: _NOON + datetime.timedelta(milliseconds=n),
    "Decimal": lambda n: Decimal(n).scaleb(-2),
    "UUID": lambda n: UUID(int=n),
}


class Orders(Spout):
    """Emits orders with a message id each: `keys` customers by Zipf's law, 100 shops."""

    outputs = FIELDS

    def __init__(self, count: int, keys: int, value: str) -> None:
        self._left = count
        self._keys = keys
        self._value = value

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        """Make the orders."""
        ranks = np.random.default_rng(42).zipf(1.2, self._left) % self._keys
        make = _VALUES[self._value]
        self._orders = [
            (f"customer-{rank}", n % 100, make(n)) for n, rank in enumerate(ranks.tolist())
        ]
        self._emit = collector.emit

    def next_tuple(self) -> None:
        """Emit one order."""
        if self._left:
            self._left -= 1
            self._emit(self._orders[self._left], self._left)

    def is_exhausted(self) -> bool:
        """Return whether all were emitted."""
        return not self._left


class Pass(BasicBolt):
    """Passes orders on."""

    outputs = FIELDS

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit the order."""
        collector.emit(tup.values)


class PassAside(BasicBolt):
    """Passes orders on to a stream that is not the default one."""

    outputs: Any = {"default": FIELDS, "aside": FIELDS}  # noqa: RUF012

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit the order."""
        collector.emit(tup.values, "aside")


class PassTwice(BasicBolt):
    """Passes orders on, and to a stream without subscribers."""

    outputs: Any = {"default": FIELDS, "audit": FIELDS}  # noqa: RUF012

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit the order twice."""
        collector.emit(tup.values)
        collector.emit(tup.values, "audit")


class Add(StatefulBolt):
    """Counts by customer."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one order."""
        self.state.add(tup.values[0], 1)


class GetAndPut(StatefulBolt):
    """Counts by customer with a read and a write."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Count one order."""
        customer = tup.values[0]
        self.state.put(customer, self.state.get(customer, 0) + 1)


Group = Callable[[Declarer], Any]


def orders(
    count: int,
    keys: int = 27,
    value: str = "number",
    middle: type[BasicBolt] = Pass,
    group: Group | None = None,
    end: type[StatefulBolt] = Add,
) -> Topology:
    """Orders -> a bolt -> counts."""
    builder = TopologyBuilder()
    builder.set_spout("orders", Orders(count // 2, keys, value), 2)
    builder.set_bolt("pass", middle(), 2).local_or_shuffle_grouping("orders")
    bolt = builder.set_bolt("count", end(), 2)
    (group or (lambda to: to.fields_grouping("pass", "customer")))(bolt)
    return builder.build()


CASES: dict[str, Callable[[int], Topology]] = {
    "by a field, 27 keys": orders,
    "by a field, 20,000 keys": partial(orders, keys=20_000),
    "by two fields": partial(
        orders, group=lambda to: to.fields_grouping("pass", "customer", "shop")
    ),
    "by a partial key": partial(orders, group=lambda to: to.partial_key_grouping("pass", "shop")),
    "to all tasks": partial(orders, group=lambda to: to.all_grouping("pass")),
    "to a named stream": partial(
        orders,
        middle=PassAside,
        group=lambda to: to.fields_grouping("pass", "customer", stream="aside"),
    ),
    "and to a stream without readers": partial(orders, middle=PassTwice),
    "a read and a write": partial(orders, end=GetAndPut),
    "with a datetime": partial(orders, value="datetime"),
    "with a Decimal": partial(orders, value="Decimal"),
    "with a UUID": partial(orders, value="UUID"),
}


def main() -> None:
    """Print the median of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tuples", type=int, default=100_000)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    options = parser.parse_args()
    figures: dict[str, list[float]] = {case: [] for case in options.cases}
    count = options.tuples // 2 * 2
    for run in range(options.runs + 1):  # the first round warms caches and is not counted
        for case in options.cases:
            counted = 2 * count if case == "to all tasks" else count
            taken = cpu_us(CASES[case](count), {}, counted) * counted / count
            figures[case] += [taken] if run else []
    for case, taken_us in figures.items():
        print(
            f"{case:32}{statistics.median(taken_us):8.3f} us ({min(taken_us):.3f} to {max(taken_us):.3f})"
        )


if __name__ == "__main__":
    main()
