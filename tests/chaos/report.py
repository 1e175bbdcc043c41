"""Report of a chaos run: faults by kind with their recoveries, and what each topology lost or
doubled under each guarantee.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

GUARANTEES = ("exactly-once", "at-least-once", "at-most-once")
DRIVER_DEATH = "kill driver"


@dataclass(slots=True)
class Exactness:
    """Differences between a topology's state, or the target of its sink, and the expected one,
    under one guarantee.

    `said` counts what is there again after a loss of the stores that was reported; it is not in
    `doubled`.
    """

    guarantee: str = GUARANTEES[0]
    runs: int = 0
    expected: int = 0
    lost: int = 0
    doubled: int = 0
    said: int = 0

    def compare(
        self, expected: Mapping[Any, int], found: Mapping[Any, int], most_said: int = 0
    ) -> None:
        """Take in one run's state; each key may be there `most_said` times more, because so many
        losses were reported.
        """
        self.runs += 1
        self.expected += sum(expected.values())
        for key in {*expected, *found}:
            difference = found.get(key, 0) - expected.get(key, 0)
            self.lost += max(0, -difference)
            said = min(max(0, difference), most_said if key in expected else 0)
            self.said += said
            self.doubled += max(0, difference) - said

    @property
    def is_kept(self) -> bool:
        """Return whether the guarantee was kept: at-least-once loses nothing, at-most-once doubles
        nothing.
        """
        is_lossless = not self.lost or self.guarantee == "at-most-once"
        return is_lossless and (not self.doubled or self.guarantee == "at-least-once")


@dataclass(slots=True)
class ChaosReport:
    """Recoveries in seconds by kind of fault, and exactness by topology and guarantee."""

    backend: str
    seconds_by_kind: dict[str, list[float]] = field(default_factory=dict)
    exactness: dict[tuple[str, str], Exactness] = field(default_factory=dict)

    def add(self, kind: str, seconds: float) -> None:
        """Take in one recovery."""
        self.seconds_by_kind.setdefault(kind, []).append(seconds)

    def of(self, topology: str, guarantee: str = GUARANTEES[0]) -> Exactness:
        """Return the exactness of a topology under a guarantee, for changes."""
        return self.exactness.setdefault((topology, guarantee), Exactness(guarantee))

    @property
    def is_kept(self) -> bool:
        """Return whether every guarantee was kept."""
        return all(each.is_kept for each in self.exactness.values())

    def __str__(self) -> str:
        times = [second for seconds in self.seconds_by_kind.values() for second in seconds]
        lines = [f"{self.backend}: {len(times)} faults of {len(self.seconds_by_kind)} kinds", ""]
        lines += ["| fault | times | recovery p50 (s) | max (s) |", "| --- | --- | --- | --- |"]
        lines += [_row(kind, seconds) for kind, seconds in sorted(self.seconds_by_kind.items())]
        rest = [
            s
            for kind, seconds in self.seconds_by_kind.items()
            if kind != DRIVER_DEATH
            for s in seconds
        ]
        lines += [_row("all but a driver's death", rest)] if rest else []
        lines += ["", "| topology | guarantee | runs | counted | lost | doubled | again, as said |"]
        lines.append("| --- | --- | --- | --- | --- | --- | --- |")
        for (name, guarantee), each in sorted(self.exactness.items()):
            lines.append(
                f"| {name} | {guarantee} | {each.runs} | {each.expected} | {each.lost} | {each.doubled} | {each.said} |"
            )
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        fields = ("runs", "expected", "lost", "doubled", "said")
        exact = [
            {
                "topology": name,
                "guarantee": guarantee,
                **{each: getattr(found, each) for each in fields},
            }
            for (name, guarantee), found in self.exactness.items()
        ]
        return {
            "backend": self.backend,
            "seconds_by_kind": self.seconds_by_kind,
            "topologies": exact,
        }


def _row(kind: str, seconds: Iterable[float]) -> str:
    times = [*seconds]
    return f"| {kind} | {len(times)} | {statistics.median(times):.2f} | {max(times):.2f} |"
