"""CPU of a nested value on its way, beside a list of whole numbers of as many bytes:
python -m benchmarks.nested [--runs N] [--tuples N].

An order with five items passes one hop between two workers, half of the tuples within one of them,
as `benchmarks.tracking` runs them: real workers over the in-process store, stepped in one process.
Each line is microseconds of CPU per tuple, and the ratio is the median of the rounds' ratios. Then
the same value's steps by themselves: copied at emit, packed, unpacked, weighed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.tracking import End, cpu_us
from sparkstorm.api import Spout, TopologyBuilder
from sparkstorm.executor.emitter import weigh
from sparkstorm.model.topology import Topology
from sparkstorm.model.values.codec import Codec

CODEC = Codec()
EVENT = {
    "order": 1234567,
    "user": "u-1234567",
    "at": 1767225600000,
    "items": [{"sku": f"sku-{n}", "count": n, "price": 19.5 + n} for n in range(5)],
}
SIZE = len(CODEC.pack(EVENT))
NUMBERS = [2**40 + n for n in range((SIZE - 3) // 9)]
"""Nine bytes each, and three of the list."""
CASES: dict[str, Any] = {"a number": 7, "a list of numbers": NUMBERS, "an order": EVENT}


class Values(Spout):
    """Emits one value so many times, with a message id each."""

    outputs = ("value",)

    def __init__(self, count: int, value: Any) -> None:
        self._left = count
        self._value = value

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        """Keep the collector."""
        self._emit = collector.emit

    def next_tuple(self) -> None:
        """Emit the value."""
        if self._left:
            self._left -= 1
            self._emit((self._value,), self._left)

    def is_exhausted(self) -> bool:
        """Return whether all were emitted."""
        return not self._left


def hop(value: Any, count: int) -> Topology:
    """Values -> a bolt, two tasks each."""
    builder = TopologyBuilder()
    builder.set_spout("values", Values(count // 2, value), 2)
    builder.set_bolt("end", End(), 2).shuffle_grouping("values")
    return builder.build()


def ns_each(step: Callable[[], Any]) -> float:
    """Return the least nanoseconds of CPU of a call, of nine times a thousand."""
    found = []
    for _ in range(9):
        began = time.process_time_ns()
        for _ in range(1000):
            step()
        found.append((time.process_time_ns() - began) / 1000)
    return min(found)


def steps(value: Any) -> dict[str, float]:
    """Return nanoseconds of a value's steps: the copy, packing, unpacking, and its weight."""
    packed = CODEC.pack(value)
    rows = [((value,), 0, None)] * 16
    return {
        "copied": ns_each(lambda: CODEC.normalise(value)),
        "packed": ns_each(lambda: CODEC.pack(value)),
        "unpacked": ns_each(lambda: CODEC.unpack(packed)),
        "weighed": ns_each(lambda: weigh(rows)) / 16,
    }


def main() -> None:
    """Print medians by case, their ratio, and the steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tuples", type=int, default=60_000)
    options = parser.parse_args()
    count = options.tuples // 2 * 2
    taken: dict[str, list[float]] = {case: [] for case in CASES}
    for run in range(options.runs + 1):  # the first round warms caches and is not counted
        for case, value in CASES.items():
            us = cpu_us(hop(value, count), {}, count)
            taken[case] += [us] if run else []
    print(f"{SIZE} bytes, {len(NUMBERS)} numbers")
    for case, each_us in taken.items():
        print(
            f"{case:20}{statistics.median(each_us):8.3f} us ({min(each_us):.3f} to {max(each_us):.3f})"
        )
    ratios = [
        order / numbers
        for order, numbers in zip(taken["an order"], taken["a list of numbers"], strict=True)
    ]
    print(
        f"order / list of numbers: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}, n = {options.runs})"
    )
    for case, value in CASES.items():
        print(f"{case:20}" + ", ".join(f"{name} {ns:.0f} ns" for name, ns in steps(value).items()))


if __name__ == "__main__":
    main()
