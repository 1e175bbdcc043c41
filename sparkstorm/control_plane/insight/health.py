"""Health of a topology over its last minutes: load of each task, and the components at fault, ranked.
PURE. This is the one verdict: command line, page, REST and metrics show it.

Shares are of the time between two records of the same worker. A worker whose record did not change
is left out: it may be idle, or inside one long call, and its record cannot distinguish them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter, sub
from types import MappingProxyType

from sparkstorm.common.model.heartbeats import NO_COUNTS, Counts, added, counts_of
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.topology import ACKER, BAD_STREAM
from sparkstorm.control_plane.insight.audit import EdgeAudit, audit
from sparkstorm.data_plane.transport.progress import (
    EARLIER_MS,
    PAUSES,
    Progress,
    TaskCounts,
    merge,
    percentile_ms,
)

# busy share; at 0.4 a task that keeps up would be called slow, at 1.0 hardly any ever would
_SLOW = 0.8
_HELD = 0.1  # paused share; half of it is the noise of a pause between two commits
_FAULTY = 0.01  # failed inputs per executed one, failed trees per ended one
# that a tree waits: a third of the default time-out; half is a pause after a restart, with the
# double some fail
_LONG_MS = 10_000
# times the mean of its component; at 2 no component of two tasks could have one, at 1.2 chance
# would
_SKEW = 1.5


class Fault(StrEnum):
    """Kind of fault, the gravest first."""

    LEAKING = "leaking"
    DYING = "dying"
    PARKED = "dead letters"
    BAD = "bad records"
    LATE = "late"
    FAILING = "failing"
    WAITING = "waiting"
    SLOW = "slow"
    SKEWED = "skewed"
    HELD_BACK = "held back"


_RANKS = {fault: rank for rank, fault in enumerate(Fault)}
_LOST = frozenset({Fault.LEAKING, Fault.DYING, Fault.PARKED, Fault.BAD, Fault.LATE, Fault.FAILING})
"""Faults that are said before missing workers and problems, for which trees may wait."""
_GRAVE = _LOST | {Fault.WAITING}
"""Faults that cost tuples or time. The others name the limit of the rate: at full speed some part
is always the slowest.
"""

_REASONS = {"store": "Redis is full"}
"""Causes of a pause whose state's name says nothing to a reader."""


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


@dataclass(frozen=True, slots=True)
class Culprit:
    """A component at fault, and a sentence with the reason."""

    fault: Fault
    component: str
    sentence: str


# without slots: what is merged is kept with it
@dataclass(frozen=True)
class StoreLook:
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

    def before(self, time_ms: int) -> StoreLook:
        """Return what the owners' records were at a time, to a minute."""
        records = {owner: self._record(owner, time_ms) for owner in self.progress}
        return StoreLook(records, {}, now_ms=time_ms)

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
    """Health of a topology over the time between two looks."""

    name: str
    sentence: str
    culprits: tuple[Culprit, ...]
    loads: tuple[TaskLoad, ...]
    edges: tuple[EdgeAudit, ...]
    # complete latency of the trees that ended between the looks; None without any
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
        is_grave = any(culprit.fault in _GRAVE for culprit in self.culprits)
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
    before: StoreLook,
    after: StoreLook,
    wanted_workers: int | None = None,
    given_workers: int = 0,
    problems: Sequence[str] = (),
    life: Life = Life(),
    deaths: Sequence[Culprit] = (),
) -> Health:
    """Return the health of a topology between two looks, from its requested and present workers,
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
    at_fault = culprits(judged, edges, waits, grown, deaths)
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


def _grown(before: StoreLook, after: StoreLook) -> dict[str, Counts]:
    """Return what was added between two looks, by component, over all owners of its tasks."""
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


def _in_words(health: Health, after: StoreLook) -> str:
    """Return the health of a topology in one sentence; it is that of a fault or problem exactly
    where the topology is not well.
    """
    name, life = health.name, health.life
    trees = _open_trees(after.merged)
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
    grave = [culprit for culprit in health.culprits if culprit.fault in _GRAVE]
    if health.life.paused:
        return f"it was deactivated, since {health.life.paused}"
    if grave and grave[0].fault in _LOST:
        return grave[0].sentence
    if health.lacks_workers and not health.given_workers:
        return "it has no workers"
    if health.lacks_workers:
        return f"it has {health.given_workers} of the {health.wanted_workers} workers that it wants"
    return health.problems[0] if health.problems else grave[0].sentence


def _running(health: Health, trees: int, after: StoreLook) -> str:
    """Return the sentence of a topology that is well and runs."""
    name = health.name
    limits = [culprit for culprit in health.culprits if culprit.fault not in _GRAVE]
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


def waiting(of: Iterable[TaskLoad], after: StoreLook, p99_ms: float | None) -> Culprit | None:
    """Return the component before which rows wait long, or have waited; None when they do not.

    Trees whose inputs a component's code holds, as to write them in batches, do not count: the code
    decides when it acks them.
    """
    new = after.merged
    pending = _open_trees(new)
    held = sum(counts.held for counts in new.counts_by_task.values())
    if not (pending or any(after.backlog_by_task.values())) or (held and 2 * held >= pending):
        return None
    task, oldest_ms = max(after.waited_ms_by_task.items(), key=lambda item: item[1], default=(0, 0))
    # A worker inside one call sends no new ages.
    still_ms = after.now_ms - new.now_ms if after.now_ms and new.now_ms else 0
    longest_ms = max(oldest_ms, still_ms)
    if max(longest_ms, p99_ms or 0.0) < _LONG_MS:
        return None
    component = _before_which(of, after, new, task if oldest_ms >= _LONG_MS else None)
    if longest_ms < _LONG_MS:
        sentence = (
            f"trees took up to {_span(p99_ms or 0.0)}; rows wait for {_in_user_words(component)}"
        )
        return Culprit(Fault.WAITING, component, sentence)
    what = counted(sum(after.backlog_by_task.values()), "byte waits", "bytes wait")
    if pending:
        what = counted(pending, "open tree waits", "open trees wait")
    still = "; no worker has committed anything meanwhile" if still_ms >= _LONG_MS else ""
    return Culprit(
        Fault.WAITING,
        component,
        f"{what} for {_in_user_words(component)}, up to {_span(longest_ms)}{still}",
    )


def _open_trees(of: Progress) -> int:
    return sum(counts.pending for counts in of.counts_by_task.values())


def _before_which(
    of: Iterable[TaskLoad], after: StoreLook, merged: Progress, task: int | None
) -> str:
    """Return where rows wait: of the task with the oldest, else of most waiting bytes, else of the
    busiest.
    """
    if task in merged.counts_by_task:
        return merged.counts_by_task[task].component
    backlog = Counter[str]()
    for receiver, size in after.backlog_by_task.items():
        if receiver in merged.counts_by_task:
            backlog[merged.counts_by_task[receiver].component] += size
    if (most := backlog.most_common(1)) and most[0][1]:
        return most[0][0]
    busiest = max(of, key=lambda load: load.busy, default=None)
    return busiest.component if busiest else "an acker"


def culprits(
    of: Iterable[TaskLoad],
    edges: Iterable[EdgeAudit] = (),
    waits: Culprit | None = None,
    counts: Mapping[str, Counts] = MappingProxyType({}),
    deaths: Sequence[Culprit] = (),
) -> tuple[Culprit, ...]:
    """Return the components at fault, the gravest first, of equal ones the busiest."""
    by_component: dict[str, list[TaskLoad]] = {}
    for load in of:
        by_component.setdefault(load.component, []).append(load)
    suspects = [
        Culprit(
            Fault.LEAKING,
            edge.receiver,
            f"{edge.sender}/{edge.stream} to {edge.receiver}: {edge.fault}",
        )
        for edge in edges
        if edge.fault
    ]
    suspects += [*deaths, *([waits] if waits else [])]
    busiest = max(
        (load for task_loads in by_component.values() for load in task_loads),
        key=lambda load: load.busy,
        default=None,
    )
    for component, grown in counts.items():
        suspects += _of_counts(component, grown)
    for component, tasks in by_component.items():
        suspects += _of_component(component, tasks, busiest)
    most_busy = {
        component: max(load.busy for load in tasks) for component, tasks in by_component.items()
    }
    return tuple(
        sorted(
            suspects,
            key=lambda culprit: (
                _RANKS[culprit.fault],
                -most_busy.get(culprit.component, 0.0),
                culprit.component,
            ),
        )
    )


def _of_counts(component: str, grown: Counts) -> Iterator[Culprit]:
    """Yield what has gone wrong with a component's inputs."""
    executed, late = grown.executed, grown.late
    if (parked := grown.parked - grown.replayed) > 0:
        words = counted(parked, "input became a dead letter", "inputs became dead letters")
        yield Culprit(Fault.PARKED, component, f"{component}: {words}")
    if grown.bad:
        words = counted(grown.bad, "record")
        yield Culprit(Fault.BAD, component, f"{component}: {words} went to its stream {BAD_STREAM}")
    if late:
        of = f"{late:,} of {executed:,} inputs came too late for its windows"
        remedy = "read the source by time (KafkaSource: end_wait_secs), give the bolts before it one task each, or raise the lag"
        yield Culprit(Fault.LATE, component, f"{component}: {of}; {remedy}")
    failed = grown.failed + grown.retried
    ended = failed + grown.acked  # trees, of a spout: it executes nothing
    if failed and failed >= _FAULTY * (executed or ended):
        of = f"{executed:,} executions" if executed else counted(ended, "tree")
        yield Culprit(Fault.FAILING, component, f"{component}: {failed:,} of {of} failed")


def _of_component(
    component: str, tasks: Sequence[TaskLoad], busiest: TaskLoad | None
) -> list[Culprit]:
    suspects = []
    executed = sum(load.executed for load in tasks)
    most = max(tasks, key=lambda load: load.busy)
    if most.busy >= _SLOW:
        suspects.append(
            Culprit(
                Fault.SLOW,
                component,
                f"{_in_user_words(component)} is {most.busy:.0%} busy on {most.slot} (task {most.task}){_more_of(component)}",
            )
        )
    fullest = max(tasks, key=lambda load: load.executed)
    if (
        executed
        and len(tasks) > 1
        and fullest.busy >= _SLOW
        and fullest.executed * len(tasks) >= _SKEW * executed
    ):
        share = fullest.executed / executed
        suspects.append(
            Culprit(
                Fault.SKEWED,
                component,
                f"task {fullest.task} of {_in_user_words(component)} executes {share:.0%} of its inputs",
            )
        )
    return [*suspects, *_held_back(component, tasks, busiest)]


def _held_back(
    component: str, tasks: Sequence[TaskLoad], busiest: TaskLoad | None
) -> list[Culprit]:
    """Return the fault of a component whose worst task is paused for much of its time."""
    share, cause = max(
        ((share, cause) for load in tasks for cause, share in load.paused.items()),
        default=(0.0, ""),
    )
    if share < _HELD:
        return []
    is_by_load = (
        cause in ("pending", "backlog") and busiest is not None and busiest.component != component
    )
    whom = (
        f", behind {_in_user_words(busiest.component)}"
        if is_by_load and busiest is not None
        else ""
    )
    # in a topology that is active now: it was activated meanwhile, or waits for its own failures
    how = "was inactive" if cause == "inactive" else "is held back"
    why = "" if cause == "inactive" else f" ({_REASONS.get(cause, cause)})"
    return [
        Culprit(
            Fault.HELD_BACK,
            component,
            f"{_in_user_words(component)} {how} {share:.0%} of the time{why}{whom}",
        )
    ]


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


def _in_user_words(component: str) -> str:
    """Return the name of a component as a sentence has it: users know no `__acker`."""
    return "an acker" if component == ACKER else component


def _more_of(component: str) -> str:
    return "; topology.acker.executors says how many there are" if component == ACKER else ""


def _figures(health: Health) -> str:
    """Return rate and latency as the end of a sentence; empty where nothing was measured."""
    return f"; {_rates(health.loads, health.p99_ms)}" if health.loads else ""


def _rates(of: Iterable[TaskLoad], p99_ms: float | None) -> str:
    # ackers execute messages
    per_s = sum(load.executed_per_s for load in of if not load.component.startswith("__"))
    latency = "" if p99_ms is None else f", p99 {_span(p99_ms)}"
    return f"{_short(per_s)} tuples/s{latency}"


def _span(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms < _LONG_MS else f"{ms / 1000:,.0f} s"


def _short(number: float) -> str:
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"
