"""Owns what counts as equal, scheduler by scheduler, and the tags of differences that are meant."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from sparkstorm.errors import FailedAssignTopologyError
from sparkstorm.scheduling.form.jstorm_problem import context_from
from sparkstorm.scheduling.jstorm import scheduler
from sparkstorm.scheduling.jstorm.tasks import TaskScheduler, master_task

Problem = dict[str, Any]
Answer = dict[str, Any]
Comparison = Callable[[Problem, Answer], Any]


def _rows(problem: Problem, answer: Answer) -> Any:
    return answer["assignments"]


def _host_of(problem: Problem) -> dict[str, str]:
    return {each["id"]: each["host"] for each in problem["supervisors"]}


def _workers_by_host(problem: Problem, answer: Answer) -> list[Any]:
    hosts = _host_of(problem)
    slots = {(name, row["node"], row["port"]) for name, rows in answer["assignments"].items() for row in rows}
    return sorted(Counter((hosts.get(node, ""), name) for name, node, _ in slots).items())


def _isolation(problem: Problem, answer: Answer) -> Any:
    """Workers per (host, topology), and the executor sets of isolated topologies' workers whatever their slot."""
    isolated = problem["conf"]["isolation.scheduler.machines"]
    names = {each["id"]: each["name"] for each in problem["topologies"]}
    buckets: dict[tuple[str, str, int], list[Any]] = {}
    for name, rows in answer["assignments"].items():
        for row in rows:
            if names[name] in isolated:
                buckets.setdefault((name, row["node"], row["port"]), []).append(row["executor"])
    return _workers_by_host(problem, answer), sorted((key[0], sorted(each)) for key, each in buckets.items())


def _nodes(problem: Problem, answer: Answer) -> Any:
    """The node of every executor."""
    return {name: [(row["executor"], row["node"]) for row in rows] for name, rows in answer["assignments"].items()}


def _pools(problem: Problem, answer: Answer) -> Any:
    """Pools (seen of a scheduler that no other wraps), workers per (host, topology) and executors per topology."""
    counts = {name: len(rows) for name, rows in answer["assignments"].items()}
    return answer["pools"] if problem["scheduler"] == "multitenant" else None, _workers_by_host(problem, answer), counts


def _blacklist(problem: Problem, answer: Answer) -> Any:
    return answer["blacklisted_hosts"], COMPARISONS[problem.get("inner", "default")](problem, answer)


def _workers(problem: Problem, answer: Answer) -> Any:
    return answer.get("workers", "failed")


COMPARISONS: dict[str, Comparison] = {
    "even": _rows,
    "default": _rows,
    "isolation": _isolation,
    "multitenant": _pools,
    "resource-aware": _nodes,
    "blacklist": _blacklist,
    "jstorm": _workers,
}


def same(problem: Problem, ours: Answer, theirs: Answer) -> bool:
    """Whether two answers are equal as far as they must be, round by round."""
    shown = COMPARISONS[problem["scheduler"]]

    def text(answer: Answer) -> str:
        rounds = answer["rounds"] if "rounds" in problem else [answer]
        return json.dumps([shown(problem, each) for each in rounds], sort_keys=True)

    try:
        return text(ours) == text(theirs)
    except KeyError:
        return False


def tag(problem: Problem, ours: Answer, theirs: Answer) -> str | None:
    """Why a difference is meant, or None."""
    if "raised" in theirs:
        defect = "defect 1: " if "ArithmeticException" in theirs["raised"] and problem["scheduler"] == "jstorm" else ""
        return f"{defect}the original raises {theirs['raised'].partition(':')[0].rpartition('.')[2]}"
    if problem["scheduler"] == "jstorm":
        return _jstorm_tag(problem, ours, theirs)
    rounds = theirs["rounds"] if "rounds" in problem else [theirs]
    if any(words.startswith("Internal Error") for each in rounds for words in each.get("status", {}).values()):
        return "the original raises inside one topology's turn"
    return None


def _jstorm_tag(problem: Problem, ours: Answer, theirs: Answer) -> str | None:
    rows = theirs.get("workers", [])
    if any(row["node"] is None for row in rows):
        return "defect 3: the original leaves a worker without a host"
    old = {(each["node"], each["port"]) for each in problem.get("old_workers", ())}
    free = {(each["id"], port) for each in problem["supervisors"] for port in each.get("available", each["ports"])}
    hosts = problem["conf"].get("isolation.scheduler.machines")
    alive = {each["id"] for each in problem["supervisors"] if not hosts or each["host"] in hosts}
    if problem["assign_type"] == "REBALANCE":
        free |= {slot for slot in old if slot[0] in alive}
    stay = [row for row in rows if row in ours.get("workers", ())]
    stale = [row for row in rows if (row["node"], row["port"]) in old - free and row not in stay]
    tasks = [sorted(task for row in each for task in row["tasks"]) for each in (rows, ours.get("workers", ()))]
    if stale or len(tasks[0]) < len(tasks[1]):
        return "defect 2: the original leaves a worker on a slot that is gone or taken"
    known = set(context_from(problem).component_by_task)
    if any(task not in known for row in rows for task in row["tasks"]):
        return "the original places a task that no component has"
    if _rounds_of_retirement(problem) > 1:
        return "defect 12: the original counts kept tasks again in every round"
    return None


class _Counted(TaskScheduler):
    """Counts how often quotas are worked out anew."""

    shares = 0

    def _share_out(self, num_tasks: int) -> None:
        _Counted.shares += 1
        super()._share_out(num_tasks)


def _rounds_of_retirement(problem: Problem) -> int:
    """In how many rounds full workers left the pool before the first task was placed."""
    if problem["assign_type"] != "REBALANCE" or problem["reassign"]:
        return 0
    _Counted.shares = 0
    context = context_from(problem)
    with patched(scheduler, "TaskScheduler", _Counted):
        try:
            scheduler.assign_tasks(context)
        except FailedAssignTopologyError:
            return 0
    masters = any(master_task(context) in worker.tasks for worker in context.old_workers)
    return _Counted.shares - 2 - masters


@contextmanager
def patched(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """A module's name stands for something else for a while: this is a measuring tool, not a test."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
