"""Health of a topology over its last minutes. PURE. This is the one verdict: command line, page, REST
and metrics show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sparkstorm.common.model.heartbeats import NO_COUNTS, Counts, added, counts_of
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.control_plane.insight.audit import EdgeAudit, audit
from sparkstorm.control_plane.insight.culprits import (
    GRAVE,
    LOST,
    Culprit,
    culprits,
    time_span,
    waiting,
)
from sparkstorm.control_plane.insight.loads import StoreSnapshot, TaskLoad, loads, open_trees
from sparkstorm.data_plane.transport.progress import percentile_ms


@dataclass(frozen=True, slots=True)
class Life:
    """Where a topology is in its life, without which its counts cannot be judged."""

    status: TopologyStatus = TopologyStatus.ACTIVE
    # why Nimbus deactivated it
    paused: str = ""
    # its sources have emitted everything, and nothing is under way
    is_drained: bool = False
    # workers that it was given and that do not run yet
    starting: int = 0

    @property
    def is_running(self) -> bool:
        """Return whether its spouts may emit and its workers are meant to stay where they are."""
        return self.status in _RUNNING


_RUNNING = frozenset({TopologyStatus.ACTIVE, TopologyStatus.UPGRADING, TopologyStatus.ROLLBACK})


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a topology over the time between two snapshots."""

    name: str
    sentence: str
    culprits: tuple[Culprit, ...]
    loads: tuple[TaskLoad, ...]
    edges: tuple[EdgeAudit, ...]
    # complete latency of the trees that ended between the snapshots; None without any
    p99_ms: float | None
    counts: Mapping[str, Counts]  # what was added meanwhile, by component
    wanted_workers: int | None  # None: its scheduler decides
    given_workers: int
    problems: tuple[str, ...]
    life: Life = Life()
    judged_s: float = 0.0  # time that it is about

    @property
    def is_well(self) -> bool:
        """Return whether no tuples leak, fail, wait long or are late, no worker died, no problem is
        known, and it has the workers it wants.

        One that is being killed is well: it needs nothing any more.
        """
        if self.life.status is TopologyStatus.KILLED:
            return True
        is_grave = any(culprit.fault in GRAVE for culprit in self.culprits)
        return not (is_grave or self.problems or self.life.paused or self.lacks_workers)

    @property
    def lacks_workers(self) -> bool:
        """Return whether it has fewer workers than it wants, or none; not while it is
        rebalanced.
        """
        if self.life.status is TopologyStatus.REBALANCING:
            return False
        # one whose scheduler decides the number still needs one
        wanted = 1 if self.wanted_workers is None else self.wanted_workers
        return self.given_workers < wanted


def examine(
    name: str,
    before: StoreSnapshot,
    after: StoreSnapshot,
    wanted_workers: int | None = None,
    given_workers: int = 0,
    problems: Sequence[str] = (),
    life: Life = Life(),
    deaths: Sequence[Culprit] = (),
) -> Health:
    """Return the health of a topology between two snapshots, from its requested and present workers,
    its known problems, where it is in its life, and the deaths of its workers.
    """
    now_ms = after.now_ms or after.merged.now_ms
    task_loads = loads(before.progress, after.progress, now_ms)
    grown = _grown(before, after)
    merged = after.merged
    buckets = before.merged.latency_buckets
    ended = {
        bucket: count - buckets.get(bucket, 0) for bucket, count in merged.latency_buckets.items()
    }
    p99_ms = percentile_ms({bucket: count for bucket, count in ended.items() if count > 0}, 0.99)
    edges = audit(merged, after.backlog_by_task, after.is_one_moment)
    waits = waiting(task_loads, after, p99_ms) if life.is_running else None
    judged = task_loads if life.is_running else _unheld(task_loads)
    at_fault = culprits(judged, edges, waits, grown, deaths, merged)
    health = Health(
        name,
        "",
        at_fault,
        task_loads,
        edges,
        p99_ms,
        grown,
        wanted_workers,
        given_workers,
        tuple(problems),
        life,
        (now_ms - (before.now_ms or before.merged.now_ms)) / 1000,
    )
    return replace(health, sentence=_in_words(health, after))


def _grown(before: StoreSnapshot, after: StoreSnapshot) -> dict[str, Counts]:
    """Return what was added between two snapshots, by component, over all owners of its tasks."""
    old = before.merged.counts_by_task
    counts_by_component: dict[str, list[Counts]] = {}
    for task, new in after.merged.counts_by_task.items():
        since = old.get(task, NO_COUNTS)
        grown = (
            max(0, now - then) for now, then in zip(counts_of(new), counts_of(since), strict=True)
        )
        counts_by_component.setdefault(new.component, []).append(Counts(*grown))
    return {component: added(several) for component, several in counts_by_component.items()}


def _unheld(of: Iterable[TaskLoad]) -> tuple[TaskLoad, ...]:
    """Return the loads without pauses: while a topology is deactivated they are its spouts'
    rest.
    """
    return tuple(replace(load, paused={}) for load in of)


def _in_words(health: Health, after: StoreSnapshot) -> str:
    """Return the health of a topology in one sentence; it is that of a fault or problem exactly
    where the topology is not well.
    """
    name, life = health.name, health.life
    trees = open_trees(after.merged)
    still_open = f"; {counted(trees, 'tree is', 'trees are')} open" if trees else ""
    if life.status is TopologyStatus.KILLED:
        return f"{name} is being killed{still_open}"
    if not health.is_well:
        return f"{name} does not run well: {_worst(health)}{_figures(health)} ({over(health.judged_s)})"
    if life.status is TopologyStatus.REBALANCING:
        return f"{name} is being rebalanced{still_open}"
    if not life.is_running:
        return f"{name} is deactivated: its spouts emit nothing until it is activated{still_open}"
    upgrade = "" if life.status is TopologyStatus.ACTIVE else "; an upgrade is under way"
    return f"{_running(health, trees, after)}{upgrade}"


def _worst(health: Health) -> str:
    """Return the gravest of what is wrong; missing workers and problems, for which trees wait, come
    before the wait.
    """
    grave = [culprit for culprit in health.culprits if culprit.fault in GRAVE]
    if health.life.paused:
        return f"it was deactivated, since {health.life.paused}"
    if grave and grave[0].fault in LOST:
        return grave[0].sentence
    if health.lacks_workers and not health.given_workers:
        return "it has no workers"
    if health.lacks_workers:
        return f"it has {health.given_workers} of the {health.wanted_workers} workers that it wants"
    return health.problems[0] if health.problems else grave[0].sentence


def _running(health: Health, trees: int, after: StoreSnapshot) -> str:
    """Return the sentence of a topology that is well and runs."""
    name = health.name
    limits = [culprit for culprit in health.culprits if culprit.fault not in GRAVE]
    is_still = not any(load.executed_per_s or load.emitted_per_s for load in health.loads)
    if health.life.is_drained:
        return f"{name} is done: its sources have emitted everything, and nothing is under way"
    if is_still and health.life.starting:
        of = counted(health.given_workers, "worker")
        return f"{name} starts: {health.life.starting} of {of} {'does' if health.life.starting == 1 else 'do'} not run yet"
    if is_still and not after.merged.now_ms:  # what is inherited has no time
        return f"{name} starts: no worker has committed anything yet"
    if is_still and not limits and not (trees or any(after.backlog_by_task.values())):
        return (
            f"{name} has nothing to do: no tuple was emitted or executed ({over(health.judged_s)})"
        )
    return f"{sentence(name, health.loads, health.p99_ms, limits)} ({over(health.judged_s)})"


def over(judged_s: float) -> str:
    """Return the time that a verdict is about, in words."""
    return f"last {judged_s / 60:.0f} min" if judged_s >= 120 else f"last {judged_s:.0f} s"


def sentence(
    name: str, of: Sequence[TaskLoad], p99_ms: float | None, limits: Sequence[Culprit]
) -> str:
    """Return the sentence of a topology that works: that it keeps up, or the limit of its rate."""
    figures = _rates(of, p99_ms)
    if limits:
        return f"{name} runs at its limit: {limits[0].sentence}; {figures}"
    # an acker that limits the rate is among the limits; one that does not is of no use to a user
    own = (load for load in of if not load.component.startswith("__"))
    busiest = max(own, key=lambda load: load.busy, default=None)
    slowest = (
        ""
        if busiest is None
        else f"; slowest part {busiest.component}, {busiest.busy:.0%} busy on {busiest.slot}"
    )
    return f"{name} keeps up: {figures}{slowest}"


def _figures(health: Health) -> str:
    """Return rate and latency as the end of a sentence; empty where nothing was measured."""
    return f"; {_rates(health.loads, health.p99_ms)}" if health.loads else ""


def _rates(of: Iterable[TaskLoad], p99_ms: float | None) -> str:
    # ackers execute messages
    per_s = sum(load.executed_per_s for load in of if not load.component.startswith("__"))
    latency = "" if p99_ms is None else f", p99 {time_span(p99_ms)}"
    return f"{_short(per_s)} tuples/s{latency}"


def _short(number: float) -> str:
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"
