"""Values of metrics of user code: what a counter, gauge or histogram has counted. PURE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PER_OCTAVE = 8
"""Buckets of a histogram per doubling of the value: each is 9 % wide."""
BEHIND = "behind_ms"
"""Name of a source's gauges by partition: how far a record was behind the newest one of the
same partition, at the most. The sentence on late rows reads them.
"""
LOWEST = -40 * PER_OCTAVE
HIGHEST = 60 * PER_OCTAVE
"""First and last bucket: of values up to 1e-12, zero and below, and of those from 1e18 on."""


class MetricKind(StrEnum):
    """Kind of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True)
class MetricValue:
    """Committed value of one metric of a task; of a histogram `value` is the sum."""

    kind: MetricKind
    value: float = 0
    count: int = 0  # of a histogram
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, amount: float) -> None:
        """Take in one change."""
        if self.kind is MetricKind.COUNTER:
            self.value += amount
        elif self.kind is MetricKind.GAUGE:
            self.value = amount
        else:
            bucket = value_bucket(amount)
            self.value += amount
            self.count += 1
            self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def plus(self, newer: MetricValue) -> MetricValue:
        """Return the sum of both, of gauges the newer; that one alone where the code has changed
        the kind.
        """
        if self.kind is not newer.kind or newer.kind is MetricKind.GAUGE:
            return newer
        buckets = dict(self.buckets)
        for bucket, count in newer.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
        return MetricValue(self.kind, self.value + newer.value, self.count + newer.count, buckets)

    def as_list(self) -> list[Any]:
        """Return it for a record."""
        return [str(self.kind), self.value, self.count, self.buckets]

    @classmethod
    def of_list(cls, parts: Sequence[Any]) -> MetricValue:
        """Return one from a record; ValueError when it is none."""
        kind, value, count, buckets = parts
        numbers = [type(number) for pair in buckets.items() for number in pair]
        if type(value) not in (int, float) or type(count) is not int or set(numbers) - {int}:
            raise ValueError(f"{parts!r:.80} is no metric")
        return cls(MetricKind(kind), value, count, dict(buckets))


def merged(values: Iterable[Mapping[str, MetricValue]]) -> dict[str, MetricValue]:
    """Return metrics by name, added up; the newest is the last."""
    value_by_name: dict[str, MetricValue] = {}
    for metrics in values:
        for name, value in metrics.items():
            value_by_name[name] = (
                value_by_name[name].plus(value) if name in value_by_name else value
            )
    return value_by_name


def value_bucket(value: float) -> int:
    """Return the bucket of a value: the first one whose bound is not below it."""
    if not value > 0:
        return LOWEST
    return (
        HIGHEST
        if math.isinf(value)
        else min(HIGHEST, max(LOWEST, math.ceil(math.log2(value) * PER_OCTAVE)))
    )


def value_bound(bucket: int) -> float:
    """Return the upper bound of a bucket."""
    return float(2.0 ** (bucket / PER_OCTAVE))


def quantile(buckets: Mapping[int, int], share: float) -> float | None:
    """Return the upper bound of the bucket below which this share of the values lies; None without
    any.
    """
    total = sum(buckets.values())
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= share * total:
            return value_bound(bucket)
    return None
