"""Report of a chaos run: faults by kind with their recoveries, and what each topology lost or doubled."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Exactness:
    """Differences between a topology's state and the expected one."""

    runs: int = 0
    expected: int = 0
    lost: int = 0
    doubled: int = 0

    def compare(self, expected: Mapping[Any, int], found: Mapping[Any, int]) -> None:
        """Take in one run's state."""
        self.runs += 1
        self.expected += sum(expected.values())
        for key in {*expected, *found}:
            difference = found.get(key, 0) - expected.get(key, 0)
            self.lost += max(0, -difference)
            self.doubled += max(0, difference)


@dataclass(slots=True)
class ChaosReport:
    """Recoveries in seconds by kind of fault, and exactness by topology."""

    backend: str
    seconds_by_kind: dict[str, list[float]] = field(default_factory=dict)
    exactness: dict[str, Exactness] = field(default_factory=dict)

    def add(self, kind: str, seconds: float) -> None:
        """Take in one recovery."""
        self.seconds_by_kind.setdefault(kind, []).append(seconds)

    def of(self, topology: str) -> Exactness:
        """Return the exactness of a topology, for changes."""
        return self.exactness.setdefault(topology, Exactness())

    @property
    def is_exact(self) -> bool:
        """Return whether nothing was lost or doubled."""
        return not any(each.lost or each.doubled for each in self.exactness.values())

    def __str__(self) -> str:
        times = [second for seconds in self.seconds_by_kind.values() for second in seconds]
        lines = [f"{self.backend}: {len(times)} faults of {len(self.seconds_by_kind)} kinds", ""]
        lines += ["| fault | times | recovery p50 (s) | max (s) |", "| --- | --- | --- | --- |"]
        for kind, seconds in sorted(self.seconds_by_kind.items()):
            lines.append(f"| {kind} | {len(seconds)} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |")
        lines += ["", "| topology | runs | counted | lost | doubled |", "| --- | --- | --- | --- | --- |"]
        for name, each in sorted(self.exactness.items()):
            lines.append(f"| {name} | {each.runs} | {each.expected} | {each.lost} | {each.doubled} |")
        return "\n".join(lines)
