"""Health of a topology over a time: load of each task, and the components at fault, ranked. PURE.

Shares are of the time between two records of the same worker. A worker whose record did not change
is left out: it may be idle, or inside one long call, and its record cannot distinguish them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter, sub

from sparkstorm.insight.audit import EdgeAudit, audit
from sparkstorm.model.names import counted
from sparkstorm.model.status import TopologyStatus
from sparkstorm.model.topology import ACKER
from sparkstorm.transport.progress import PAUSES, Progress, TaskCounts, merge, percentile_ms

# busy share; at 0.4 a task that keeps up would be called slow, at 1.0 hardly any ever would
_SLOW = 0.8
_HELD = 0.1  # paused share; half of it is the noise of a pause between two commits
_FAULTY = 0.01  # failed or late inputs per executed one, failed trees per ended one
# that a tree waits: a third of the default time-out; half is a pause after a restart, with the
# double some fail
_LONG_MS = 10_000
# least wait that is called growing: half is a busy host's noise, with the double it is found a
# second later
_GROWING_MS = 1_000
# of the time between the looks: 1.0 would be a standstill, at 0.1 chance would be enough
_GROWING = 0.3
_MANY = 100  # open trees, from which on rates give their wait: of fewer one slow call may be all
# times the mean of its component; at 2 no component of two tasks could have one, at 1.2 chance
# would
_SKEW = 1.5


class Fault(StrEnum):
    """Kind of fault, the gravest first."""

    LEAKING = "leaking"
    FAILING = "failing"
    WAITING = "waiting"
    SLOW = "slow"
    SKEWED = "skewed"
    LATE = "late"
    HELD_BACK = "held back"


_RANKS = {fault: rank for rank, fault in enumerate(Fault)}
_GRAVE = frozenset({Fault.LEAKING, Fault.FAILING, Fault.WAITING, Fault.LATE})
"""Faults that cost tuples or time. The others name the limit of the rate: at full speed some part
is always the slowest.
"""
_LOST = frozenset({Fault.LEAKING, Fault.FAILING})
"""Faults that are said before missing workers, for which the others may wait."""


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """One task over a time: shares of it (0 to 1), and inputs per second."""

    task: int
    component: str
    slot: str
    busy: float
    executed_per_s: float
    emitted_per_s: float
    failed: int = 0
    late: int = 0
    executed: int = 0
    paused: Mapping[str, float] = field(default_factory=dict)  # by cause
    acked: int = 0


@dataclass(frozen=True, slots=True)
class Culprit:
    """A component at fault, and a sentence with the reason."""

    fault: Fault
    component: str
    sentence: str


# without slots: what is merged is kept with it
@dataclass(frozen=True)
class Look:
    """Records of a topology in the store, at one moment as a rule: the owners' records, and what
    waits by task.
    """

    progress: Mapping[str, Progress]
    backlog_by_task: Mapping[int, int]  # bytes
    # age of the oldest tree of which a row waits
    waited_ms_by_task: Mapping[int, int] = field(default_factory=dict)
    # False where they are of several stores that were written meanwhile: nothing adds up then
    is_one_moment: bool = True

    @cached_property
    def merged(self) -> Progress:
        """Return all owners' progress as one."""
        return merge(self.progress.values())


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
    late_shares: Mapping[str, float]  # of a component's executed inputs, where any came too late
    wanted_workers: int | None  # None: its scheduler decides
    given_workers: int
    problems: tuple[str, ...]
    life: Life = Life()

    @property
    def is_well(self) -> bool:
        """Return whether no tuples leak, fail, wait long or are late, no problem is known, and it
        has the workers it wants.

        One that is being killed is well: it needs nothing any more.
        """
        if self.life.status is TopologyStatus.KILLED:
            return True
        is_grave = any(each.fault in _GRAVE for each in self.culprits)
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
    before: Look,
    after: Look,
    wanted_workers: int | None = None,
    given_workers: int = 0,
    problems: Sequence[str] = (),
    life: Life = Life(),
) -> Health:
    """Return the health of a topology from two looks, its requested and present workers, its known
    problems, and where it is in its life.
    """
    found = loads(before.progress, after.progress)
    merged = after.merged
    buckets = before.merged.latency_buckets
    grown = {
        bucket: count - buckets.get(bucket, 0) for bucket, count in merged.latency_buckets.items()
    }
    p99_ms = percentile_ms({bucket: count for bucket, count in grown.items() if count > 0}, 0.99)
    edges = audit(merged, after.backlog_by_task, after.is_one_moment)
    waits = waiting(found, before, after, p99_ms) if life.is_running else None
    at_fault = culprits(found if life.is_running else _unheld(found), edges, waits)
    late = Counter[str]()
    executed = Counter[str]()
    for load in found:
        late[load.component] += load.late
        executed[load.component] += load.executed
    shares = {
        component: count / max(1, executed[component]) for component, count in late.items() if count
    }
    health = Health(
        name,
        "",
        at_fault,
        found,
        edges,
        p99_ms,
        shares,
        wanted_workers,
        given_workers,
        tuple(problems),
        life,
    )
    return replace(health, sentence=_in_words(health, before, after))


def _unheld(of: Iterable[TaskLoad]) -> tuple[TaskLoad, ...]:
    """Return the loads without pauses: while a topology is deactivated they are its spouts'
    rest.
    """
    return tuple(replace(each, paused={}) for each in of)


def _in_words(health: Health, before: Look, after: Look) -> str:
    """Return the health of a topology in one sentence; it is that of a fault or problem exactly
    where the topology is not well.
    """
    name, life = health.name, health.life
    trees = _open_trees(after.merged)
    still_open = f"; {counted(trees, 'tree is', 'trees are')} open" if trees else ""
    if life.status is TopologyStatus.KILLED:
        return f"{name} is being killed{still_open}"
    if not health.is_well:
        return f"{name} does not run well: {_worst(health)}{_figures(health)}"
    if life.status is TopologyStatus.REBALANCING:
        return f"{name} is being rebalanced{still_open}"
    if not life.is_running:
        return f"{name} is deactivated: its spouts emit nothing until it is activated{still_open}"
    upgrade = "" if life.status is TopologyStatus.ACTIVE else "; an upgrade is under way"
    return f"{_running(health, trees, before, after)}{upgrade}"


def _worst(health: Health) -> str:
    """Return the gravest of what is wrong; missing workers, for which trees wait, come before the
    wait.
    """
    grave = [each for each in health.culprits if each.fault in _GRAVE]
    if health.life.paused:
        return f"it was deactivated, since {health.life.paused}"
    if grave and grave[0].fault in _LOST:
        return grave[0].sentence
    if health.lacks_workers and not health.given_workers:
        return "it has no workers"
    if health.lacks_workers:
        return f"it has {health.given_workers} of the {health.wanted_workers} workers that it wants"
    return grave[0].sentence if grave else health.problems[0]


def _running(health: Health, trees: int, before: Look, after: Look) -> str:
    """Return the sentence of a topology that is well and runs."""
    name = health.name
    limits = [each for each in health.culprits if each.fault not in _GRAVE]
    is_still = not any(load.executed_per_s or load.emitted_per_s for load in health.loads)
    # also where it is judged since it began
    if health.life.is_drained and (is_still or not before.merged.counts_by_task):
        return f"{name} is done: its sources have emitted everything, and nothing is under way"
    if is_still and health.life.starting:
        of = counted(health.given_workers, "worker")
        return f"{name} starts: {health.life.starting} of {of} {'does' if health.life.starting == 1 else 'do'} not run yet"
    if is_still and not after.merged.now_ms:  # what is inherited has no time
        return f"{name} starts: no worker has committed anything yet"
    waits = counted(sum(after.backlog_by_task.values()), "byte waits", "bytes wait")
    if trees:
        waits = counted(trees, "open tree waits", "open trees wait")
    has_work = trees or any(after.backlog_by_task.values())
    if not health.loads and has_work:
        return f"{name} stands still: no worker has committed anything meanwhile, and {waits}"
    if not health.loads:
        return f"{name} has nothing to do: no worker has committed anything meanwhile"
    if is_still and not limits and not has_work:
        return f"{name} has nothing to do: no tuple was emitted meanwhile"
    return sentence(name, health.loads, health.p99_ms, limits)


def loads(before: Mapping[str, Progress], after: Mapping[str, Progress]) -> tuple[TaskLoad, ...]:
    """Return the load of each task from two readings of the owners' records, by task."""
    newest: dict[int, int] = {}
    for record in after.values():
        for task, counts in record.counts_by_task.items():
            newest[task] = max(counts.token, newest.get(task, counts.token))
    found = {}
    for slot, new in after.items():
        old = before.get(slot)
        elapsed_ms = new.now_ms - old.now_ms if old is not None else 0
        if old is None or elapsed_ms <= 0:
            continue
        for task, counts in new.counts_by_task.items():
            if counts.token == newest[task]:
                since = old.counts_by_task.get(task) or TaskCounts(counts.component)
                found[task] = _load(task, slot, since, counts, elapsed_ms)
    return tuple(found[task] for task in sorted(found))


_LOADED = attrgetter(
    "busy_us",
    "executed",
    "emitted",
    "failed",
    "retried",
    "late",
    "acked",
    *(f"{cause}_us" for cause in PAUSES),
)


def _load(task: int, slot: str, old: TaskCounts, new: TaskCounts, elapsed_ms: int) -> TaskLoad:
    busy_us, executed, emitted, failed, retried, late, acked, *paused_us = map(
        sub, _LOADED(new), _LOADED(old)
    )
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
        failed + retried,
        late,
        executed,
        paused,
        acked,
    )


def waiting(
    of: Iterable[TaskLoad], before: Look, after: Look, p99_ms: float | None
) -> Culprit | None:
    """Return the component before which open trees wait long, or ever longer; None when they do
    not.

    Trees whose inputs a component's code holds, as to write them in batches, do not count: the code
    decides when it acks them.
    """
    old = before.merged
    new = after.merged
    pending = _open_trees(new)
    if not pending or 2 * sum(each.held for each in new.counts_by_task.values()) >= pending:
        return None
    elapsed_ms = new.now_ms - old.now_ms
    task, oldest_ms = max(after.waited_ms_by_task.items(), key=lambda each: each[1], default=(0, 0))
    least_ms = max(_GROWING_MS, before.waited_ms_by_task.get(task, 0) + _GROWING * elapsed_ms)
    is_older = task in before.waited_ms_by_task and oldest_ms > least_ms and elapsed_ms > 0
    seen_ms = max(p99_ms or 0.0, oldest_ms)
    expected_ms = _expected_ms(old, new, elapsed_ms)
    is_growing = is_older or (
        expected_ms >= _GROWING_MS and pending >= (1 + _GROWING / 3) * _open_trees(old)
    )
    if max(seen_ms, expected_ms) < _LONG_MS and not is_growing:
        return None
    component = _before_which(of, after, new, task if oldest_ms >= _GROWING_MS else None)
    how_long = (
        f"up to {_span(seen_ms)}" if seen_ms >= expected_ms else f"about {_span(expected_ms)}"
    )
    longer = " and ever longer" if is_growing else ""
    trees = counted(pending, "open tree waits", "open trees wait")
    return Culprit(
        Fault.WAITING, component, f"{trees} for {_in_user_words(component)}, {how_long}{longer}"
    )


def _open_trees(of: Progress) -> int:
    return sum(each.pending for each in of.counts_by_task.values())


def _expected_ms(old: Progress, new: Progress, elapsed_ms: int) -> float:
    """Return how long a tree that begins now waits, by Little's law; 0 where too few are open.

    The fewer of both looks count: a burst that has just come, and that is done in a moment, is no
    queue.
    """
    fewest = min(_open_trees(old), _open_trees(new))
    done = sum(new.latency_buckets.values()) - sum(old.latency_buckets.values())
    if fewest < _MANY or elapsed_ms <= 0:
        return 0.0
    return fewest * elapsed_ms / done if done > 0 else elapsed_ms


def _before_which(of: Iterable[TaskLoad], after: Look, merged: Progress, task: int | None) -> str:
    """Return where rows wait: of the task with the oldest, else of most waiting bytes, else of the
    busiest.
    """
    if task in merged.counts_by_task:
        return merged.counts_by_task[task].component
    backlog = Counter[str]()
    for each, size in after.backlog_by_task.items():
        if each in merged.counts_by_task:
            backlog[merged.counts_by_task[each].component] += size
    if (most := backlog.most_common(1)) and most[0][1]:
        return most[0][0]
    busiest = max(of, key=lambda load: load.busy, default=None)
    return busiest.component if busiest else "an acker"


def culprits(
    of: Iterable[TaskLoad], edges: Iterable[EdgeAudit] = (), waits: Culprit | None = None
) -> tuple[Culprit, ...]:
    """Return the components at fault, the gravest first, of equal ones the busiest."""
    by_component: dict[str, list[TaskLoad]] = {}
    for load in of:
        by_component.setdefault(load.component, []).append(load)
    found = [
        Culprit(
            Fault.LEAKING,
            edge.receiver,
            f"{edge.sender}/{edge.stream} to {edge.receiver}: {edge.fault}",
        )
        for edge in edges
        if edge.fault
    ]
    found += [waits] if waits else []
    busiest = max(
        (load for each in by_component.values() for load in each),
        key=lambda load: load.busy,
        default=None,
    )
    for component, tasks in by_component.items():
        found += _of_component(component, tasks, busiest)
    most_busy = {
        component: max(load.busy for load in tasks) for component, tasks in by_component.items()
    }
    return tuple(
        sorted(
            found,
            key=lambda each: (
                _RANKS[each.fault],
                -most_busy.get(each.component, 0.0),
                each.component,
            ),
        )
    )


def _of_component(
    component: str, tasks: Sequence[TaskLoad], busiest: TaskLoad | None
) -> list[Culprit]:
    found = []
    executed, failed, late = (
        sum(values) for values in zip(*((t.executed, t.failed, t.late) for t in tasks), strict=True)
    )
    ended = failed + sum(load.acked for load in tasks)  # trees, of a spout: it executes nothing
    if failed and failed >= _FAULTY * (executed or ended):
        of = f"{executed:,} executed inputs" if executed else counted(ended, "tree")
        found.append(Culprit(Fault.FAILING, component, f"{component}: {failed:,} of {of} failed"))
    if late and late >= _FAULTY * executed:
        found.append(
            Culprit(
                Fault.LATE, component, f"{component}: {late:,} of {executed:,} inputs came too late"
            )
        )
    most = max(tasks, key=lambda load: load.busy)
    if most.busy >= _SLOW:
        found.append(
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
        found.append(
            Culprit(
                Fault.SKEWED,
                component,
                f"task {fullest.task} of {_in_user_words(component)} executes {share:.0%} of its inputs",
            )
        )
    return [*found, *_held_back(component, tasks, busiest)]


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
    why = "" if cause == "inactive" else f" ({cause})"
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
