"""Evidence from the tasks of a replay: their counts, and how far out of order the times of their
rows were. PURE.

Law: merging is the same in any order, and merging a report twice is merging it once. Spark promises
no more for accumulators that transformations update: each attempt of a task may add to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple

from sparkstorm.common.model.values.metric_values import MetricKind, MetricValue
from sparkstorm.common.model.values.metric_values import merged as added_metrics
from sparkstorm.common.windowing.watermarks import END, NEVER, SourceClock

OutputKey = tuple[str, str, str]
"""Sending component, stream, subscriber."""


class RowTimes(NamedTuple):
    """Times of the rows that one partition sent to one subscriber."""

    oldest_ms: int = END
    newest_ms: int = NEVER
    # greatest distance of a row behind the newest one that its task had sent before it
    behind_ms: int = 0
    # greatest distance of a result of a window or timer behind what its task can have announced
    behind_mark_ms: int = 0

    @staticmethod
    def of(clock: SourceClock, behind_mark_ms: int) -> RowTimes:
        """Return the times that a sender's clock has recorded."""
        return RowTimes(clock.oldest_ms, clock.newest_ms, clock.behind_ms, behind_mark_ms)

    def merged(self, other: RowTimes) -> RowTimes:
        """Return the times of the rows of both; neither is ordered after the other."""
        return RowTimes(
            min(self.oldest_ms, other.oldest_ms),
            max(self.newest_ms, other.newest_ms),
            max(self.behind_ms, other.behind_ms),
            max(self.behind_mark_ms, other.behind_mark_ms),
        )


@dataclass(slots=True)
class Evidence:
    """Reports of finished tasks, sent from executors to the driver."""

    # Accumulators of Spark are updated by every attempt of a task. Counts are
    # kept by part, so that one which ran twice is counted once.
    # counts by component and part of its stage
    parts: dict[str, dict[int, dict[str, int]]] = field(default_factory=dict)
    # of user code, likewise
    metric_parts: dict[str, dict[int, dict[str, MetricValue]]] = field(default_factory=dict)
    # by number of the sending partition
    times: dict[OutputKey, dict[int, RowTimes]] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Return what the tasks of each component did, added up."""
        return {
            component: reduce(_added, parts.values(), {}) for component, parts in self.parts.items()
        }

    @property
    def metrics(self) -> dict[str, dict[str, MetricValue]]:
        """Return the counters and histograms of user code by component and name, added up."""
        return {
            component: added_metrics(parts.values())
            for component, parts in self.metric_parts.items()
        }

    def add_metrics(self, component: str, part: int, values: Mapping[str, MetricValue]) -> None:
        """Add up what user code of a component has counted in one part of its stage; a gauge is of
        a moment, and left out.
        """
        # A gauge is of a moment, and partitions of a batch have no common one.
        counts = {
            name: value for name, value in values.items() if value.kind is not MetricKind.GAUGE
        }
        if counts:
            parts = self.metric_parts.setdefault(component, {})
            parts[part] = added_metrics([parts.get(part, {}), counts])

    def add_counts(self, component: str, part: int, counts: Mapping[str, int]) -> None:
        """Add up what the tasks of a component did in one part of its stage."""
        parts = self.parts.setdefault(component, {})
        parts[part] = _added(parts.get(part, {}), counts)

    def add_times(self, output: OutputKey, partition: int, times: RowTimes) -> None:
        """Record the times of rows; a partition that Spark ran twice counts once."""
        by_partition = self.times.setdefault(output, {})
        # Extremes of the same rows merge to the same extremes, so a second attempt changes nothing.
        by_partition[partition] = by_partition.get(partition, RowTimes()).merged(times)

    def merge(self, other: Evidence) -> None:
        """Add another record to this one; parts that ran again count once."""
        for component, parts in other.parts.items():
            self.parts.setdefault(component, {}).update(parts)
        for component, values in other.metric_parts.items():
            self.metric_parts.setdefault(component, {}).update(values)
        for output, by_partition in other.times.items():
            for partition, times in by_partition.items():
                self.add_times(output, partition, times)

    def as_list(self) -> list[Any]:
        """Return it for a chunk."""
        metrics = {
            component: {
                part: {name: value.as_list() for name, value in values.items()}
                for part, values in parts.items()
            }
            for component, parts in self.metric_parts.items()
        }
        times = [
            [*output, partition, *row_times]
            for output, by_part in self.times.items()
            for partition, row_times in by_part.items()
        ]
        return [self.parts, metrics, times]

    @classmethod
    def of_list(cls, parts: Sequence[Any]) -> Evidence:
        """Return one from a chunk."""
        made = cls(parts[0])
        for component, by_part in parts[1].items():
            made.metric_parts[component] = {
                part: {name: MetricValue.of_list(value) for name, value in values.items()}
                for part, values in by_part.items()
            }
        for sender, stream, subscriber, partition, *row_times in parts[2]:
            made.times.setdefault((sender, stream, subscriber), {})[partition] = RowTimes(
                *row_times
            )
        return made

    def behind_marks(self, output: OutputKey) -> int:
        """Return how far a result of a window or timer was behind what its task can have announced
        before.
        """
        return max(
            (times.behind_mark_ms for times in self.times.get(output, {}).values()), default=0
        )

    def behind_in_partitions(self, output: OutputKey) -> int:
        """Return how far a row was behind a newer one that its task had sent before it."""
        return max((times.behind_ms for times in self.times.get(output, {}).values()), default=0)

    def behind_in_sequence(self, output: OutputKey) -> int:
        """Return how far a row was behind any newer one before it, where the partitions follow each
        other.
        """
        row_times = [times for _, times in sorted(self.times.get(output, {}).items())]
        newest_before = accumulate((times.newest_ms for times in row_times), max, initial=NEVER)
        between = (
            newest - times.oldest_ms
            for newest, times in zip(newest_before, row_times, strict=False)
        )
        return max([0, *between, *(times.behind_ms for times in row_times)])

    def span(self, output: OutputKey) -> int:
        """Return the distance between the oldest and the newest row, whichever was sent first."""
        row_times = list(self.times.get(output, {}).values())
        return max((t.newest_ms for t in row_times), default=0) - min(
            (t.oldest_ms for t in row_times), default=0
        )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
