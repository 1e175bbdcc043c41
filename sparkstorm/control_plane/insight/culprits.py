"""Components at fault in a topology over its last minutes, the gravest first. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from sparkstorm.common.model.heartbeats import Counts
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.topology import ACKER, BAD_STREAM
from sparkstorm.common.model.values.metric_values import BEHIND
from sparkstorm.control_plane.insight.audit import EdgeAudit
from sparkstorm.control_plane.insight.loads import StoreSnapshot, TaskLoad, open_trees
from sparkstorm.data_plane.transport.progress import EdgeCounts, Progress

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
LOST = frozenset({Fault.LEAKING, Fault.DYING, Fault.PARKED, Fault.BAD, Fault.LATE, Fault.FAILING})
"""Faults that are said before missing workers and problems, for which trees may wait."""
GRAVE = LOST | {Fault.WAITING}
"""Faults that cost tuples or time. The others name the limit of the rate: at full speed some part
is always the slowest.
"""

_REASONS = {"store": "Redis is full"}
"""Causes of a pause whose state's name says nothing to a reader."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A component at fault, and a sentence with the reason."""

    fault: Fault
    component: str
    sentence: str


def culprits(
    of: Iterable[TaskLoad],
    edges: Iterable[EdgeAudit] = (),
    waits: Culprit | None = None,
    counts: Mapping[str, Counts] = MappingProxyType({}),
    deaths: Sequence[Culprit] = (),
    merged: Progress | None = None,
) -> tuple[Culprit, ...]:
    """Return the components at fault, the gravest first, of equal ones the busiest; `merged`: all
    workers' counts, which say what sends late rows.
    """
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
        suspects += _of_counts(component, grown, merged or Progress())
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


def _of_counts(component: str, grown: Counts, merged: Progress) -> Iterator[Culprit]:
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
        remedy = (
            "read the source by time (KafkaSource: a longer end_wait_secs), "
            "give the bolts before it one task each, or raise the lag"
        )
        behind = most_behind(component, merged)
        yield Culprit(
            Fault.LATE, component, f"{component}: {of}{behind and f' ({behind})'}; {remedy}"
        )
    failed = grown.failed + grown.retried
    ended = failed + grown.acked  # trees, of a spout: it executes nothing
    if failed and failed >= _FAULTY * (executed or ended):
        of = f"{executed:,} executions" if executed else counted(ended, "tree")
        yield Culprit(Fault.FAILING, component, f"{component}: {failed:,} of {of} failed")


def most_behind(component: str, merged: Progress) -> str:
    """Return which task sends a component rows farthest behind its newest one, and how far, also
    within the partitions of a source that measures it; empty where all come in the order of their
    times.
    """
    sender, flow = max(
        ((edge[0], flow) for edge, flow in merged.edges.items() if edge[2] == component),
        key=lambda pair: pair[1].behind_ms,
        default=("", EdgeCounts()),
    )
    if not flow.behind_ms:
        return ""
    behind_by_partition = [
        (metric.value, name.removeprefix(f"{BEHIND}."))
        for name, metric in merged.metrics_by_task.get(flow.behind_task, {}).items()
        if name.startswith(f"{BEHIND}.")
    ]
    behind_ms, partition = max(behind_by_partition, default=(0.0, ""))
    within = f", within partition {partition} up to {time_span(behind_ms)}" if partition else ""
    return f"task {flow.behind_task} of {sender} sends rows up to {time_span(flow.behind_ms)} behind its newest one{within}"


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
                f"{in_user_words(component)} is {most.busy:.0%} busy on {most.slot} (task {most.task}){_more_of(component)}",
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
                f"task {fullest.task} of {in_user_words(component)} executes {share:.0%} of its inputs",
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
        f", behind {in_user_words(busiest.component)}" if is_by_load and busiest is not None else ""
    )
    # in a topology that is active now: it was activated meanwhile, or waits for its own failures
    how = "was inactive" if cause == "inactive" else "is held back"
    why = "" if cause == "inactive" else f" ({_REASONS.get(cause, cause)})"
    return [
        Culprit(
            Fault.HELD_BACK,
            component,
            f"{in_user_words(component)} {how} {share:.0%} of the time{why}{whom}",
        )
    ]


def waiting(of: Iterable[TaskLoad], after: StoreSnapshot, p99_ms: float | None) -> Culprit | None:
    """Return the component before which rows wait long, or have waited; None when they do not.

    Trees whose inputs a component's code holds, as to write them in batches, do not count: the code
    decides when it acks them.
    """
    new = after.merged
    pending = open_trees(new)
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
            f"trees took up to {time_span(p99_ms or 0.0)}; rows wait for {in_user_words(component)}"
        )
        return Culprit(Fault.WAITING, component, sentence)
    what = counted(sum(after.backlog_by_task.values()), "byte waits", "bytes wait")
    if pending:
        what = counted(pending, "open tree waits", "open trees wait")
    still = "; no worker has committed anything meanwhile" if still_ms >= _LONG_MS else ""
    return Culprit(
        Fault.WAITING,
        component,
        f"{what} for {in_user_words(component)}, up to {time_span(longest_ms)}{still}",
    )


def _before_which(
    of: Iterable[TaskLoad], after: StoreSnapshot, merged: Progress, task: int | None
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


def in_user_words(component: str) -> str:
    """Return the name of a component as a sentence has it: users know no `__acker`."""
    return "an acker" if component == ACKER else component


def _more_of(component: str) -> str:
    return "; topology.acker.executors says how many there are" if component == ACKER else ""


def time_span(ms: float) -> str:
    """Return a time as a sentence has it: in seconds from ten on."""
    return f"{ms:,.0f} ms" if ms < _LONG_MS else f"{ms / 1000:,.0f} s"
