"""Snapshots of a topology's records in the store, and the load of each task between two of them. PURE.

Shares are of the time between two records of the same worker. A worker whose record did not change
is left out: it may be idle, or inside one long call, and its record cannot distinguish them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter, sub

from sparkstorm.data_plane.transport.progress import (
    EARLIER_MS,
    PAUSES,
    Progress,
    TaskCounts,
    merge,
)


# without slots: what is merged is kept with it
@dataclass(frozen=True)
class StoreSnapshot:
    """Records of a topology in the store, at one moment as a rule: the owners' records with earlier
    ones, and what waits by task.
    """

    progress: Mapping[str, Progress]
    backlog_by_task: Mapping[int, int]  # bytes
    # age of the oldest tree of which a row waits
    waited_ms_by_task: Mapping[int, int] = field(default_factory=dict)
    # False where they are of several stores that were written meanwhile: nothing adds up then
    is_one_moment: bool = True
    now_ms: int = 0  # by the reader's clock; 0: as of the newest record
    earlier: Mapping[str, Sequence[Progress]] = field(default_factory=dict)

    @cached_property
    def merged(self) -> Progress:
        """Return all owners' progress as one."""
        return merge(self.progress.values())

    def before(self, time_ms: int) -> StoreSnapshot:
        """Return what the owners' records were at a time, to a minute."""
        records = {owner: self._record(owner, time_ms) for owner in self.progress}
        return StoreSnapshot(records, {}, now_ms=time_ms)

    def _record(self, owner: str, time_ms: int) -> Progress:
        new = self.progress[owner]
        # An owner with records in several stores has one beginning in each.
        earlier = [
            progress
            for progress in self.earlier.get(owner.partition("@")[0], ())
            if progress.started_ms == new.started_ms and progress.now_ms <= new.now_ms
        ]
        history = [Progress(now_ms=new.started_ms), *earlier, new]
        begun = [progress for progress in history if progress.now_ms <= time_ms] or history[:1]
        last = max(begun, key=lambda progress: progress.now_ms)
        # Where it is older than a minute, nothing was committed for long behind it.
        return replace(last, now_ms=max(last.now_ms, time_ms - EARLIER_MS))


def open_trees(of: Progress) -> int:
    return sum(counts.pending for counts in of.counts_by_task.values())


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """One task over a time: shares of it (0 to 1), and inputs per second."""

    task: int
    component: str
    slot: str
    busy: float
    executed_per_s: float
    emitted_per_s: float
    executed: int = 0
    paused: Mapping[str, float] = field(default_factory=dict)  # by cause


def loads(
    before: Mapping[str, Progress], after: Mapping[str, Progress], now_ms: int = 0
) -> tuple[TaskLoad, ...]:
    """Return the load of each task from two readings of the owners' records, by task; the later one
    is of `now_ms`, or of the newest commits.
    """
    newest: dict[int, int] = {}
    for record in after.values():
        for task, counts in record.counts_by_task.items():
            newest[task] = max(counts.token, newest.get(task, counts.token))
    load_by_task = {}
    for slot, new in after.items():
        old = before.get(slot)
        if old is None or new.now_ms <= old.now_ms:
            continue
        elapsed_ms = max(now_ms, new.now_ms) - old.now_ms
        for task, counts in new.counts_by_task.items():
            if counts.token == newest[task]:
                since = old.counts_by_task.get(task) or TaskCounts(counts.component)
                load_by_task[task] = _load(task, slot, since, counts, elapsed_ms)
    return tuple(load_by_task[task] for task in sorted(load_by_task))


_LOADED = attrgetter(
    "busy_us",
    "executed",
    "emitted",
    *(f"{cause}_us" for cause in PAUSES),
)


def _load(task: int, slot: str, old: TaskCounts, new: TaskCounts, elapsed_ms: int) -> TaskLoad:
    busy_us, executed, emitted, *paused_us = map(sub, _LOADED(new), _LOADED(old))
    paused = {
        cause: spent_us / 1000 / elapsed_ms
        for cause, spent_us in zip(PAUSES, paused_us, strict=True)
        if spent_us
    }
    return TaskLoad(
        task,
        new.component,
        slot,
        busy_us / 1000 / elapsed_ms,
        1000 * executed / elapsed_ms,
        1000 * emitted / elapsed_ms,
        executed,
        paused,
    )
