"""Faults of a simulated cluster as data: drawn from a seed, each by itself, so that some can be
left out and the rest stays.

A fault strikes at a moment, at a commit, or at a write of Nimbus or of a slot to the state store.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sparkstorm.testing.sim_transport import CommitFault


class Trigger(StrEnum):
    """Unit in which a fault's `at` counts."""

    TIME = "ms"
    COMMIT = "commit"
    NIMBUS_WRITE = "write of Nimbus"
    SLOT_WRITE = "write of a slot"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: when it strikes, how often it is drawn, and the greatest size (milliseconds,
    mostly).
    """

    name: str
    trigger: Trigger
    weight: int = 2
    longest: int = 0


KINDS: tuple[Kind, ...] = (
    *(Kind(fault.name, Trigger.COMMIT) for fault in CommitFault if fault is not CommitFault.NONE),
    Kind("LATE_FRAMES", Trigger.COMMIT, 2, 400),
    Kind("NIMBUS_DIES_BEFORE_WRITE", Trigger.NIMBUS_WRITE, 3, 3_000),
    Kind("NIMBUS_DIES_AFTER_WRITE", Trigger.NIMBUS_WRITE, 3, 3_000),
    Kind("NIMBUS_WRITE_REFUSED", Trigger.NIMBUS_WRITE),
    Kind("NIMBUS_ANSWER_LOST", Trigger.NIMBUS_WRITE),
    Kind("SLOT_WRITE_REFUSED", Trigger.SLOT_WRITE),
    Kind("SLOT_ANSWER_LOST", Trigger.SLOT_WRITE),
    Kind("KILL_WORKER", Trigger.TIME, 3),
    Kind("CRASH_WORKER", Trigger.TIME, 3),
    Kind("PAUSE_WORKER", Trigger.TIME, 2, 6_000),
    Kind("LEAVE_ZOMBIE", Trigger.TIME, 3),
    Kind("KILL_SLOT", Trigger.TIME, 3, 3_000),
    Kind("PAUSE_SLOT", Trigger.TIME, 2, 6_000),
    Kind("LOSE_NODE", Trigger.TIME, 3, 9_000),
    Kind("REPLACE_NODE", Trigger.TIME, 1, 9_000),
    Kind("FREEZE_NODE", Trigger.TIME, 3, 12_000),
    Kind("CUT_FROM_REDIS", Trigger.TIME, 2, 15_000),
    Kind("KILL_NIMBUS", Trigger.TIME, 2, 5_000),
    Kind("PAUSE_NIMBUS", Trigger.TIME, 2, 12_000),
    Kind("EXPIRE_SESSION", Trigger.TIME, 3),
    Kind("CUT_SESSION", Trigger.TIME, 3, 9_000),
    Kind("ZOOKEEPER_AWAY", Trigger.TIME, 2, 9_000),
    Kind("ZOOKEEPER_BACK", Trigger.TIME, 1, 6_000),
    Kind("ZOOKEEPER_EMPTIED", Trigger.TIME, 1),
    Kind("DISK_FULL", Trigger.TIME, 1, 2_000),
    Kind("REDIS_GOES_BACK", Trigger.TIME, 2, 2_000),
    Kind("REDIS_EMPTIED", Trigger.TIME, 1),
    Kind("REDIS_OLDER", Trigger.TIME, 1, 6_000),
    Kind("REDIS_OLDER_TWICE", Trigger.TIME, 1, 3_000),
    Kind("DEACTIVATE", Trigger.TIME, 2, 3_000),
    Kind("REBALANCE", Trigger.TIME, 5, 2_000),
    Kind("UPDATE", Trigger.TIME, 4),
    Kind("GRAY_UPGRADE", Trigger.TIME, 4, 6_000),
    Kind("RESTART_WORKER", Trigger.TIME, 2),
    Kind("SET_LOG_LEVEL", Trigger.TIME, 1, 3_000),
    Kind("SUBMIT_OTHER", Trigger.TIME, 4),
    Kind("KILL_OTHER", Trigger.TIME, 3, 2_000),
    Kind("LATE_CLEANUP", Trigger.TIME),
    Kind("CLOCK_JUMP", Trigger.TIME, 1, 20_000),
)
STORE_KINDS: tuple[Kind, ...] = (
    Kind("STORE_AWAY", Trigger.TIME, 6, 6_000),
    Kind("STORE_FULL", Trigger.TIME, 4, 3_000),
    Kind("CUT_BETWEEN_CELLS", Trigger.TIME, 6, 6_000),
    Kind("STORE_RESTARTS", Trigger.TIME, 6),
)
"""Faults of one of several stores. Apart from the others: drawn with them, every seed of a topology
in one store would have other faults.
"""
EDGE_KINDS: tuple[Kind, ...] = (
    Kind("WORKER_OVER_MEMORY", Trigger.TIME, 4),
    Kind("STOP_WHILE_REFUSED", Trigger.TIME, 12, 3_000),
    Kind("CLOCK_BACK", Trigger.TIME, 6, 9_000),
    Kind("KILL_MAIN", Trigger.TIME, 4, 1_500),
    Kind("KILL_WHILE_REFUSED", Trigger.TIME, 4, 3_000),
)
"""Faults at the edge of a commit, of callbacks and of clocks. They are drawn where a subject names
them (`Subject.kinds`).
"""
FAIL_OVER = Kind("STORE_FAILS_OVER", Trigger.TIME, 6, 800)
"""Fault that durability `replica` alone takes: a store's replica is behind for so long, and is
promoted then. It is drawn where it is named.
"""
POWER_CUT = Kind("STORE_LOSES_POWER", Trigger.TIME, 6, 1_000)
"""Fault that durability `disk` alone takes: a store comes back with what it had synced, which is
all that it answered, or what it had so long before. It is drawn where it is named.
"""
KIND_BY_NAME = {
    kind.name: kind for kind in (*KINDS, *STORE_KINDS, *EDGE_KINDS, FAIL_OVER, POWER_CUT)
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `at` counts in the unit of its kind's trigger, `pick` chooses among what is there,
    `size` is how long or how many.
    """

    kind: Kind
    at: int
    pick: int
    size: int

    def __str__(self) -> str:
        return f"{self.kind.name} at {self.kind.trigger.value} {self.at} (pick {self.pick}, size {self.size})"


@dataclass(frozen=True, slots=True)
class Scale:
    """Last count of each trigger in a run without faults."""

    duration_ms: int
    commits: int
    nimbus_writes: int
    slot_writes: int

    def most(self, trigger: Trigger) -> int:
        """The last place at which a fault of that trigger may strike."""
        return {
            Trigger.TIME: self.duration_ms,
            Trigger.COMMIT: self.commits,
            Trigger.NIMBUS_WRITE: self.nimbus_writes,
            Trigger.SLOT_WRITE: self.slot_writes,
        }[trigger]


def draw_faults(
    seed: int, scale: Scale, kinds: Sequence[Kind] = KINDS, most: int = 8
) -> tuple[Fault, ...]:
    """One to `most` faults of a seed."""
    chance = random.Random(seed)
    drawn = chance.choices(kinds, [kind.weight for kind in kinds], k=chance.randint(1, most))
    return tuple(
        Fault(
            kind,
            chance.randint(1, max(1, scale.most(kind.trigger))),
            chance.getrandbits(16),
            chance.randint(0, kind.longest),
        )
        for kind in drawn
    )


def kinds_named(names: Iterable[str]) -> tuple[Kind, ...]:
    """Return kinds by their names; ValueError names an unknown one and lists all."""
    listed = tuple(names)
    if unknown := [name for name in listed if name not in KIND_BY_NAME]:
        raise ValueError(
            f"{unknown[0]!r} is no kind of fault; there are {', '.join(sorted(KIND_BY_NAME))}"
        )
    return tuple(KIND_BY_NAME[name] for name in listed)
