"""Plan of a topology's executors and workers from its true rates. PURE.

The model is DS2's (Kalavri et al., OSDI 2018): a component's true rate is its rows by its useful
time, so what it could do does not depend on what it was given. From the sources, whose rate is what
arrives plus a share of the backlog (as Flink's operator has it), the wanted rate of each component
follows by the measured ratios of the edges; from that the executors in one step. Left out: Dhalion's
rules, which add one executor at a time and look again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sparkstorm.common.model.names import counted
from sparkstorm.extensions.autoscale.model import (
    Bounds,
    ComponentLoad,
    ComponentPlan,
    Plan,
    TopologyLoad,
)

# How long a placement must have stood before it shrinks. With half of it a load that comes back
# within the hour would be scaled for twice; what is given back later is an hour of some cores.
DOWN_MS = 3_600_000
# Times the mean of its component, as in insight/health.py: at 2 no component of two tasks has one.
_SKEW = 1.5
# A source whose backlog is less than it reads in this time keeps up: commits and polls take seconds.
_BEHIND_S = 10.0
# One that has been behind for all the time that was measured: before that, means of busy and idle
# minutes look like waiting.
_LONG_BEHIND_S = 120.0
# Rows that wait for longer than this before a component wait for it; a commit takes less.
_WAITING_S = 2.0
_HELD = 0.1  # as in insight/health.py
# Share of a sink's time in code that is no CPU. On a host with other busy processes a quarter is that
# of a process that only computes.
_WAITS = 0.75


def due(load: TopologyLoad, bounds: Bounds, grace_ms: int) -> Plan | None:
    """Return the plan that is carried out without a question: at most one in a grace period, and
    nothing shrinks within an hour; None where nothing is due.
    """
    if load.settled_ms < grace_ms:
        return None
    is_new = load.settled_ms < max(DOWN_MS, grace_ms)
    made = plan(load, bounds, "it was placed less than an hour ago" if is_new else "")
    return made if made.is_change else None


def plan(load: TopologyLoad, bounds: Bounds, stays: str = "") -> Plan:
    """Return the executors of each component and the workers in all that the load needs; `stays`
    says why nothing may shrink.
    """
    wanted = wanted_rates(load.components, bounds.catch_up_s)
    blocked = stays or _not_down(load, bounds)
    senders = {sender for part in load.components for sender in part.inputs}
    full = _full_workers(load.components, bounds.high)
    late = any(is_behind(part, _LONG_BEHIND_S) for part in load.components)
    named = {}
    for part in load.components:
        rate, is_last = wanted[part.id], part.id not in senders
        slow = _slow(part, rate, bounds, is_last, full) if late else ""
        if cause := _named(part, rate, bounds, slow):
            named[part.id] = cause
    # What cannot get through a bottleneck reaches no other component: executors for it would grow
    # with the backlog for ever.
    # One that is to have no rows, behind a source at its end, holds nothing back.
    shares = [most / wanted[name] for name, (_, most) in named.items() if wanted[name]]
    through = min(1.0, *shares) if shares else 1.0
    # Where one grows, what is near the band's end does too: the error of the next measurement would
    # make another plan for it.
    for most in (bounds.high, _limit(bounds)):
        parts = tuple(
            _component(part, through * wanted[part.id], bounds, most, blocked, named, load.cells)
            for part in load.components
        )
        if all(part.wanted <= part.executors for part in parts):
            break
    return _with_workers(load, parts, bounds, blocked)


# -- rates -----------------------------------------------------------------------------------------


def wanted_rates(parts: Iterable[ComponentLoad], catch_up_s: float) -> dict[str, float]:
    """Return the rate that each component should have, from the sources on."""
    by_id = {part.id: part for part in parts}
    wanted: dict[str, float] = {}
    for part in _in_order(by_id):
        if part.source is not None:
            source = part.source
            arrives = 0.0 if source.is_exhausted else source.arrived_per_s
            wanted[part.id] = arrives + source.backlog / catch_up_s
            continue
        rate = part.waiting / catch_up_s
        for sender, rows_per_s in part.inputs.items():
            # The rate of a sender in a cycle is not known yet: its present one counts.
            emits = by_id[sender].rows_per_s if sender in by_id else 0.0
            rate += rows_per_s * (wanted[sender] / emits if sender in wanted and emits else 1.0)
        wanted[part.id] = rate
    return wanted


def _in_order(by_id: Mapping[str, ComponentLoad]) -> list[ComponentLoad]:
    """Return the components, senders first; of a cycle the first by its id begins."""
    remaining = dict(sorted(by_id.items()))
    ordered: list[ComponentLoad] = []
    while remaining:
        ready = [
            part
            for part in remaining.values()
            if not any(sender in remaining and sender != part.id for sender in part.inputs)
        ]
        for part in ready or [next(iter(remaining.values()))]:
            ordered.append(remaining.pop(part.id))
    return ordered


def is_behind(part: ComponentLoad, seconds: float = _BEHIND_S) -> bool:
    """Return whether a source has more to read than it reads in the time of a poll and a commit, or
    in so many seconds.
    """
    source = part.source
    if source is None or source.is_exhausted:
        return False
    if not source.knows_backlog:
        return source.held >= _HELD
    return source.backlog > seconds * max(source.arrived_per_s, part.rows_per_s)


def _not_down(load: TopologyLoad, bounds: Bounds) -> str:
    """Return why nothing may shrink; empty where it may."""
    for part in load.components:
        if part.source is not None and part.source.is_exhausted:
            return f"{part.id} is at its end"
        if is_behind(part):
            return f"{part.id} is behind"
        # The busiest executor: by the mean, Flink's autoscaler took workers from operators that
        # were 100 % busy (FLINK-38538).
        busiest = max(part.executors.values(), default=0.0)
        if busiest > bounds.high:
            return f"an executor of {part.id} is {busiest:.0%} busy"
    return ""


def _full_workers(parts: Iterable[ComponentLoad], high: float) -> frozenset[str]:
    used: dict[str, float] = {}
    for part in parts:
        for task in part.tasks:
            used[task.worker] = used.get(task.worker, 0.0) + task.core
    return frozenset(worker for worker, cores in used.items() if cores > high)


# -- one component ---------------------------------------------------------------------------------


_Named = tuple[str, float]
"""Sentence of a bottleneck, and the rows per second that it lets through."""


def _named(part: ComponentLoad, wanted: float, bounds: Bounds, slow: str) -> _Named | None:
    """Return why more executors would not bring a component to its wanted rate; None where they
    would.
    """
    if (part.source is not None and part.source.is_exhausted) or not part.tasks:
        return None
    if slow:
        return slow, part.rows_per_s
    if part.true_rate is None:
        return None
    if hot := _hot(part, wanted, bounds):
        return hot
    most = part.true_rate * len(part.tasks)
    return (_needs_tasks(part), most) if wanted > most * bounds.high else None


def _component(
    part: ComponentLoad,
    wanted: float,
    bounds: Bounds,
    most: float,
    blocked: str,
    named_by_id: Mapping[str, _Named],
    cells: int,
) -> ComponentPlan:
    named = named_by_id.get(part.id)
    now = max(1, len(part.executors))
    true_rate = part.true_rate
    bottleneck = named[0] if named else ""

    def line(number: int, why: str) -> ComponentPlan:
        busy = part.useful / now
        return ComponentPlan(
            part.id, part.rows_per_s, true_rate, busy, wanted, now, number, why, bottleneck
        )

    if part.source is not None and part.source.is_exhausted:
        return line(now, "its source is at its end")
    if true_rate is None:
        return line(now, "it has executed nothing that could be measured")
    demand = f"{_rate(wanted)} wanted, an executor does {_rate(true_rate)}"
    load = wanted / (true_rate * now)
    tasks = len(part.tasks)
    if bounds.low <= load and wanted * _shares(tasks, now)[0] / true_rate <= most:
        band = f"{bounds.low:.0%} to {bounds.high:.0%}"
        return line(now, f"{demand}: {load:.0%} of {_executors(now)} is within {band}")
    fewest = number = max(1, min(cells, tasks), _ceil(wanted / (true_rate * bounds.target)))
    # Tasks stay whole: of three executors over four tasks one has half of the rows.
    while number < tasks and wanted * _shares(tasks, number)[0] / true_rate > _limit(bounds):
        number += 1
    why = f"{demand}, at {bounds.target:.0%}: {_executors(number)}"
    if number > fewest:
        share = _shares(tasks, fewest)[0]
        why += (
            f", since of {fewest} one would have {round(share * tasks)} of {tasks} tasks, "
            f"{wanted * share / true_rate:.0%}"
        )
    if number > tasks:
        number, why = tasks, f"{why}; {_needs_tasks(part)}"
    if number > now and named and named[1] < true_rate * tasks:
        return line(now, f"{why}; it keeps {now}, since more would not raise its rate")
    if number < now and blocked:
        return line(now, f"{why}; it keeps {now}, since {blocked}")
    if number == now and load < bounds.low:
        too_few = ", and fewer would be too few" if now > 1 else ""
        return line(now, f"{demand}: {load:.0%} of {_executors(now)}{too_few}")
    return line(number, why)


def _needs_tasks(part: ComponentLoad) -> str:
    tasks = counted(len(part.tasks), "task")
    if part.source is not None:
        return f"{part.id} has {tasks}, and a partition is read by one: submit it with more tasks, up to its partitions"
    held = "which hold its keys" if part.is_keyed else "a number that stays"
    return f"{part.id} has {tasks}, {held}: submit it with a greater topology.tasks"


def _hot(part: ComponentLoad, wanted: float, bounds: Bounds) -> _Named | None:
    """Return the sentence about a task that has much more than its share; None without one."""
    if len(part.tasks) < 2 or not (part.is_keyed or part.source is not None):
        return None
    hottest = max(part.tasks, key=lambda task: task.rows_per_s)
    share = hottest.rows_per_s / part.rows_per_s
    busy = hottest.useful * max(1.0, wanted / part.rows_per_s)
    if share * len(part.tasks) < _SKEW or busy <= bounds.high:
        return None
    what, remedy = (
        ("a hot key", "combine rows before it, or split the key")
        if part.is_keyed
        else ("a partition", "balance the partitions")
    )
    text = f"{part.id}: task {hottest.task} has {share:.0%} of the rows, {what} that no other executor can take: {remedy}"
    return text, part.rows_per_s / hottest.useful


def _slow(
    part: ComponentLoad, wanted: float, bounds: Bounds, is_last: bool, full: frozenset[str]
) -> str:
    """Return the sentence about a component that waits for what it calls; empty where it does not.

    It is idle or has the time for the wanted rate, its workers are not full, and yet rows wait for
    it. In a sink that is busy, most of its time in code is no CPU; another bolt of that kind may do
    more calls at once.
    """
    if not part.tasks:
        return ""
    busiest = max(part.executors.values())
    could_be = busiest * max(1.0, wanted / part.rows_per_s) if part.rows_per_s else busiest
    # A backlog that grows for hours wants any rate: what is idle while rows wait waits for others.
    if could_be > bounds.high and busiest >= bounds.low:
        busy = sum(task.busy for task in part.tasks)
        cpu = sum(task.cpu for task in part.tasks)
        if is_last and busiest > bounds.high and cpu < (1.0 - _WAITS) * busy:
            return f"{part.id} waits {1.0 - cpu / busy:.0%} of its time in code: its target is slow"
        return ""
    if any(task.worker in full for task in part.tasks):
        return ""
    if part.source is not None:
        if part.source.held >= _HELD or not is_behind(part):
            return ""
        return f"{part.id} is behind, neither busy nor held back: what it reads is slow"
    if not part.waiting or part.waiting <= _WAITING_S * part.rows_per_s:
        return ""
    return (
        f"{part.id} is {busiest:.0%} busy while rows wait for it: what it writes or calls is slow"
    )


# -- workers ---------------------------------------------------------------------------------------


def _with_workers(
    load: TopologyLoad, parts: tuple[ComponentPlan, ...], bounds: Bounds, blocked: str
) -> Plan:
    cores = {part.id: part.cores for part in load.components}
    costs: list[float] = []  # of each executor, as the default scheduler deals them
    tasks = {part.id: len(part.tasks) for part in load.components}
    for part in parts:
        grown = part.wanted_per_s / part.rows_per_s if part.rows_per_s else 1.0
        # A bottleneck does not get the rows that are wanted of it.
        costs += [
            min(cores[part.id] * grown * share, 1.0)
            for share in _shares(tasks[part.id], part.wanted)
        ]
    sources = [part for part in load.components if part.source is not None]
    emitted = sum(part.rows_per_s for part in sources)
    wanted = sum(
        part.wanted_per_s for part in parts if part.id in {source.id for source in sources}
    )
    system = load.system_cpu * (wanted / emitted if emitted else 1.0)
    total = sum(costs) + system
    now = max(1, load.workers)
    number = now
    why = f"{total:.1f} cores at the wanted rates, {bounds.target:.0%} of a core for each worker"
    # A worker's executors share a core: the mean may be low while two heavy ones meet in one.
    if total > bounds.high * now or _fullest(costs, system, now) > bounds.high:
        number = _least_workers(costs, system, bounds, now)
    elif total < bounds.low * now:
        number = min(now, _least_workers(costs, system, bounds, 1))
    else:
        band = f"the band of {counted(now, 'worker')}"
        why = f"{total:.1f} cores at the wanted rates are within {band}"
    if number > max(1, _ceil(total / bounds.target)) and number != now:
        why += f"; of {number - 1} the fullest would have {_fullest(costs, system, number - 1):.0%}"
    if number < now and blocked:
        number, why = now, f"{why}; it keeps {now}, since {blocked}"
    if not any(part.rows_per_s for part in parts) or all(
        part.source is not None and part.source.is_exhausted for part in sources
    ):
        number, why = now, "nothing is read, so nothing can be measured"
    allowed = max(bounds.min_workers, load.cells, min(number, bounds.max_workers or number))
    # A worker without an executor is none; one with an acker alone may be there already.
    filled = min(allowed, max(len(costs), now))
    given = min(filled, max(load.slots, load.workers))
    shortage = ""
    if given == filled < bounds.min_workers:
        shortage = (
            f"topology.autoscale.min.workers is {bounds.min_workers}, and it has "
            f"{counted(len(costs), 'executor')}"
        )
    elif given < allowed:
        shortage = (
            f"it needs {counted(allowed, 'worker')} and {counted(load.slots, 'slot')} are there for it: "
            "start a cluster with a greater sparkstorm.supervisors"
        )
    elif allowed < number:
        shortage = (
            f"it needs {counted(number, 'worker')}, and topology.autoscale.max.workers is {allowed}"
        )
    return Plan(parts, now, given, why, shortage)


def _least_workers(costs: list[float], system: float, bounds: Bounds, least: int) -> int:
    """Return the least number of workers, from one on, none of which is above the band (decision
    80).
    """
    most = max(least, len(costs))
    least = max(least, _ceil((sum(costs) + system) / bounds.target))
    fitting = (n for n in range(least, most) if _fullest(costs, system, n) <= _limit(bounds))
    return next(fitting, most)


def _fullest(costs: list[float], system: float, workers: int) -> float:
    """Return the load of the fullest worker that has several executors: more workers take nothing
    from one that has a single one.
    """
    dealt = [system / workers] * workers
    for index, cost in enumerate(costs):
        dealt[index % workers] += cost
    return max(dealt[: max(0, len(costs) - workers)], default=0.0)


def _shares(tasks: int, executors: int) -> list[float]:
    """Return the share of a component's tasks that each of its executors has, the greatest first."""
    base, larger = divmod(tasks, executors)
    if not tasks:
        return [1.0 / executors] * executors
    return [(base + 1) / tasks] * larger + [base / tasks] * (executors - larger)


def _limit(bounds: Bounds) -> float:
    """Return the load up to which a change may fill an executor or worker: with the band's end
    itself, the error of the next measurement would take the change back.
    """
    return (bounds.target + bounds.high) / 2


def _ceil(number: float) -> int:
    # What is a rounding error above a whole number is that number.
    return math.ceil(number - 1e-9)


def _executors(number: int) -> str:
    return counted(number, "executor")


def _rate(rows_per_s: float) -> str:
    return f"{rows_per_s:,.0f} rows/s" if rows_per_s >= 10 else f"{rows_per_s:.1f} rows/s"
