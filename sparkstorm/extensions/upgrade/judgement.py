"""Judgement of upgraded workers against the others: failed tries, parked tuples, deaths, latencies.
PURE.

Counts in heartbeats are totals since the topology began. A sighting is the first total that was
seen of a worker under its present code, so only what the worker did since is compared. A judge that
begins afresh sees later and judges later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sparkstorm.common.model.assignment import (
    FAILED,
    RUNNING,
    Assignment,
    ExecutorId,
    WorkerCode,
    WorkerSlot,
)
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.upgrade import GrayUpgrade

_SUMMED = ("executed", "failed", "parked", "retried", "busy_us")
# below that a latency depends more on the machine, and the start of a process, than on the code
_LEAST_US = 100
Counts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Sightings:
    """First counts of each worker's executors since an upgrade's workers run as they do now, by
    slot and launch.

    They belong to one upgrade: a slot's process outlives many, and the restarts of one are no
    deaths in the next.
    """

    upgrade: tuple[int, WorkerCode] | None = None  # its beginning and its code
    first: Mapping[tuple[WorkerSlot, int], Mapping[ExecutorId, Counts]] = field(
        default_factory=dict
    )
    # of upgraded workers: launch seen last, deaths
    deaths: Mapping[WorkerSlot, tuple[int, int]] = field(default_factory=dict)

    def with_beats(
        self, beats: Iterable[WorkerBeat], assignment: Assignment, upgrade: GrayUpgrade
    ) -> Sightings:
        """Return the sightings with what these heartbeats show for the first time."""
        identity = (upgrade.started_ms, upgrade.code)
        own = self if self.upgrade == identity else Sightings(identity)
        first = dict(own.first)
        deaths = dict(own.deaths)
        for beat in beats:
            slot = beat.slot
            # not of the process before, which was asked to end
            is_of_now = beat.assignment_version >= assignment.version
            if is_of_now and is_upgraded(slot, assignment, upgrade) and beat.launch:
                launch, died = deaths.get(slot, (beat.launch, 0))
                deaths[slot] = (beat.launch, died + (beat.launch != launch))
            if (
                beat.state == RUNNING
                and beat.stats_by_executor
                and (slot, beat.launch) not in first
            ):
                first[slot, beat.launch] = counts_of(beat)
        return Sightings(identity, first, deaths)


def counts_of(beat: WorkerBeat) -> dict[ExecutorId, Counts]:
    """Return the summed counts of each executor in a heartbeat; what is no number is left out."""
    counts_by_executor: dict[ExecutorId, Counts] = {}
    for executor, stats in beat.stats_by_executor.items():
        if isinstance(stats, Mapping):
            counts_by_executor[executor] = {
                name: n for name in _SUMMED if isinstance(n := stats.get(name), int | float)
            }
    return counts_by_executor


def is_upgraded(slot: WorkerSlot, assignment: Assignment, upgrade: GrayUpgrade) -> bool:
    """Return whether a slot's worker runs, or is starting with, the new code of the upgrade."""
    return (
        assignment.code_at(slot) == upgrade.code
        and upgrade.former_by_slot.get(slot, upgrade.former) != upgrade.code
    )


def judge(
    upgrade: GrayUpgrade,
    assignment: Assignment,
    beats: Iterable[WorkerBeat],
    seen: Sightings,
    component_by_task: Mapping[int, str],
) -> str:
    """Return why the upgrade is to be taken back; an empty text while there is no reason."""
    bounds = upgrade.bounds
    totals: dict[tuple[bool, str], dict[str, float]] = {}
    for beat in beats:
        slot = beat.slot
        is_new = is_upgraded(slot, assignment, upgrade)
        if is_new and beat.state == FAILED:
            sentence = beat.message.partition("\n")[0]  # the end of its log follows
            return f"the upgraded worker {slot} does not start: {sentence[:500]}"
        for executor, counts in counts_of(beat).items() if beat.state == RUNNING else ():
            before = seen.first.get((slot, beat.launch), {}).get(executor, {})
            total = totals.setdefault(
                (is_new, component_by_task.get(executor.first_task, "")), dict.fromkeys(_SUMMED, 0)
            )
            for name, value in counts.items():
                total[name] += max(0, value - before.get(name, 0))
    for slot, (_, died) in sorted(seen.deaths.items()):
        if died > bounds.deaths and is_upgraded(slot, assignment, upgrade):
            return f"the upgraded worker {slot} died {died} times, the limit is {bounds.deaths}"
    return _compared(upgrade, totals)


def _compared(upgrade: GrayUpgrade, totals: Mapping[tuple[bool, str], Mapping[str, float]]) -> str:
    bounds = upgrade.bounds
    none = dict.fromkeys(_SUMMED, 0)
    for component in sorted(name for is_new, name in totals if is_new):
        new = totals[True, component]
        old = totals.get((False, component), none)
        if new["executed"] < bounds.least_executed:
            continue
        shares = [_share(counts) for counts in (new, old)]
        if shares[0] > shares[1] + bounds.failed_share:
            return (
                f"component '{component}' fails {100 * shares[0]:.2f} % of its tuples in upgraded workers, "
                f"{100 * shares[1]:.2f} % in the others; the limit is {100 * bounds.failed_share:g} percentage points more"
            )
        if bounds.latency_factor and old["executed"] >= bounds.least_executed:
            took = [counts["busy_us"] / counts["executed"] for counts in (new, old)]
            if took[0] > bounds.latency_factor * max(took[1], _LEAST_US):
                return (
                    f"component '{component}' takes {took[0]:.0f} us per tuple in upgraded workers, "
                    f"{took[1]:.0f} us in the others; {bounds.latency_factor:g} times as long is borne"
                )
    return ""


def _share(counts: Mapping[str, float]) -> float:
    """Return failed tries and parked or failed tuples per executed tuple."""
    bad = counts["retried"] + counts["failed"]  # a parked tuple has failed too
    return bad / counts["executed"] if counts["executed"] else 0.0
