"""The comparison of our answers with the originals': every row must be equal, and each excuse is a
predicate that is tested.

Where one of Storm's schedulers raises, it is asked a second time, fixed, so that what follows the
exception is compared too. JStorm's defects are put back into ours instead, and then every row must
be the original's.
"""

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from benchmarks.conformance import jstorm_defects
from sparkstorm.control_plane.scheduling.blacklist import BlacklistScheduler
from sparkstorm.control_plane.scheduling.jstorm.records import AssignType
from sparkstorm.extensions.laboratory.form.jstorm_problem import context_from
from sparkstorm.extensions.laboratory.form.solve import solve

Problem = dict[str, Any]
Answer = dict[str, Any]
DIFFERENT = "DIFFERENT"


def same(problem: Problem, ours: Answer, theirs: Answer) -> bool:
    """Return whether two answers are equal in every row, round by round, and in pools and
    blacklisted hosts where there are any.
    """
    return "raised" not in theirs and _text(problem, ours) == _text(problem, theirs)


def _text(problem: Problem, answer: Answer) -> str | None:
    if problem["scheduler"] == "jstorm":
        return json.dumps(jstorm_defects.comparable(answer), sort_keys=True)
    rounds = answer.get("rounds") if problem.get("rounds") else [answer]
    if rounds is None or any("assignments" not in round_ for round_ in rounds):
        return None if "raised" in answer else json.dumps(answer)
    return json.dumps([_shown(problem, round_) for round_ in rounds], sort_keys=True)


def _shown(problem: Problem, answer: Answer) -> list[Any]:
    shown = [answer["assignments"], answer.get("blacklisted_hosts")]
    return [*shown, answer["pools"]] if problem["scheduler"] == "multitenant" else shown


# -- where Storm's schedulers raise ----------------------------------------------------------------


def _rounds_of(problem: Problem) -> list[Problem]:
    rounds = []
    former = {key: value for key, value in problem.items() if key != "rounds"}
    for round_ in problem.get("rounds") or [{}]:
        former = {**former, **round_}
        rounds.append(former)
    return rounds


def _num_workers(problem: Problem, topology: Problem) -> int:
    default = problem["conf"].get("topology.workers", 1)
    wanted = topology.get("conf", {}).get("topology.workers", default)
    return int(wanted)


def _isolated(problem: Problem) -> list[tuple[int, int]]:
    """Workers and executors of every isolated topology."""
    names = problem["conf"].get("isolation.scheduler.machines", {})
    return [
        (
            _num_workers(problem, topology),
            sum(len(part["executors"]) for part in topology["components"]),
        )
        for topology in problem["topologies"]
        if topology["name"] in names
    ]


def has_more_workers_than_wanted(problem: Problem) -> bool:
    """EvenScheduler takes a sublist that ends before it begins: a topology has more workers placed
    than it asks for.
    """
    for round_ in _rounds_of(problem):
        placed = round_.get("assignments") or {}
        for topology in round_["topologies"]:
            slots = {(row["node"], row["port"]) for row in placed.get(topology["id"], ())}
            if len(slots) > _num_workers(problem, topology):
                return True
    return False


def isolates_fewer_executors_than_workers(problem: Problem) -> bool:
    """IsolationScheduler takes the next worker's executors from an empty set."""
    return any(executors < workers for workers, executors in _isolated(problem))


def isolates_no_workers(problem: Problem) -> bool:
    """IsolationScheduler deals executors to workers modulo none."""
    return any(workers == 0 and executors > 0 for workers, executors in _isolated(problem))


RAISES: Mapping[str, tuple[str, Callable[[Problem], bool]]] = {
    "more workers placed than wanted": ("IllegalArgumentException", has_more_workers_than_wanted),
    "an isolated topology has fewer executors than workers": (
        "NoSuchElementException",
        isolates_fewer_executors_than_workers,
    ),
    "an isolated topology wants no workers": ("ArithmeticException", isolates_no_workers),
}
_INNER = {"IllegalArgumentException": ("even", "default", "isolation")}


def _raise_excuse(problem: Problem, theirs: Answer) -> str | None:
    kind = theirs["raised"].partition(":")[0].rpartition(".")[2]
    scheduler = (
        problem.get("inner", "default")
        if problem["scheduler"] == "blacklist"
        else problem["scheduler"]
    )
    for words, (exception, holds) in RAISES.items():
        if kind == exception and scheduler in _INNER.get(kind, ("isolation",)) and holds(problem):
            return f"the original raises {kind}: {words}"
    return None


# -- where Storm's blacklist never ends ------------------------------------------------------------

NEVER_RESUMES = "the original never resumes: the resume time is below one round"


def resumes_within_a_round(problem: Problem) -> bool:
    """Return whether BlacklistScheduler counts the rounds to resume from zero, which it passes
    over: it tests for zero after.
    """
    conf = problem["conf"]
    every = conf.get("nimbus.monitor.freq.secs", 10)
    return problem["scheduler"] == "blacklist" and bool(
        conf.get("blacklist.scheduler.resume.time.secs", 1800) < every
    )


def without_resuming(problem: Problem) -> Answer:
    """Return our answer with that defect put back."""
    with jstorm_defects.replaced(BlacklistScheduler, "_resume", lambda scheduler: None):
        return solve(problem)


def with_scope(problem: Problem, scope: str) -> Problem:
    """Return a problem with the default scheduler's scope in its configuration: "cluster" does as
    Storm 2, "topology" as 3.

    The originals pass it over.
    """
    if problem["scheduler"] == "jstorm":
        return problem
    return {**problem, "conf": {**problem.get("conf", {}), "default.scheduler.scope": scope}}


def with_idle_rules(problem: Problem, rng: Random) -> Problem:
    """Return a problem that moves workers to supervisors without any, which Storm 3 knows, in seven
    of ten draws.

    Of supervisors that have been up for an hour, 1,200 periods of three seconds are just enough.
    """
    rules = {
        "nimbus.even.rebalance.idle.supervisor.enabled": rng.random() < 0.7,
        "nimbus.even.rebalance.max.free.per.topology": rng.choice((0, 0, 1, 2)),
        "nimbus.even.rebalance.idle.supervisor.min.stable.rounds": rng.choice((0, 3, 1200, 1201)),
    }
    return (
        problem
        if problem["scheduler"] == "jstorm"
        else {**problem, "conf": {**problem["conf"], **rules}}
    )


# -- the verdict -----------------------------------------------------------------------------------


def second_question(problem: Problem, ours: Answer, theirs: Answer) -> Problem | None:
    """Return the repeated question to the original where its first answer cannot be compared; None
    where it can.
    """
    if problem["scheduler"] == "jstorm":
        return None
    return (
        {**problem, "mended": True}
        if "raised" in theirs and _raise_excuse(problem, theirs)
        else None
    )


def verdict(problem: Problem, ours: Answer, theirs: Answer, second: Answer | None = None) -> str:
    """ "equal", the tag of a difference that is meant, or DIFFERENT; `second` answers the second question."""
    if same(problem, ours, theirs):
        return "equal"
    if problem["scheduler"] == "jstorm":
        tag = jstorm_defects.excuse(problem, theirs)
        return tag if tag and places_all(problem, ours) else DIFFERENT
    reason = _raise_excuse(problem, theirs) if "raised" in theirs else None
    compared = theirs if reason is None else second
    if compared is None:
        return DIFFERENT
    if reason is not None and same(problem, ours, compared):
        return reason
    if resumes_within_a_round(problem) and same(problem, without_resuming(problem), compared):
        return NEVER_RESUMES if reason is None else f"{reason}; {NEVER_RESUMES}"
    return DIFFERENT


def places_all(problem: Problem, ours: Answer) -> bool:
    """Return whether each task has exactly one place, on a free port or where it was; or our answer
    says why there is none.

    Under MONITOR a task that is neither dead nor on an old worker needs no place; one that cannot
    be stopped never does.
    """
    if "failed" in ours:
        return True
    context = context_from(problem)
    known_tasks = set(context.component_by_task)
    wanted = known_tasks - context.unstopped_tasks
    if context.assign_type is AssignType.MONITOR:
        wanted &= context.dead_tasks.union(*(worker.tasks for worker in context.old_workers))
    placed = [task for row in ours["workers"] for task in row["tasks"]]
    offered = {
        (supervisor["id"], port)
        for supervisor in problem["supervisors"]
        for port in supervisor.get("available", supervisor["ports"])
    }
    offered |= {(worker["node"], worker["port"]) for worker in problem.get("old_workers", ())}
    slots = [(row["node"], row["port"]) for row in ours["workers"]]
    is_once = len(set(placed)) == len(placed) and len(set(slots)) == len(slots)
    return is_once and wanted <= set(placed) <= known_tasks and set(slots) <= offered
