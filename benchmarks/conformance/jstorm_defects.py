"""JStorm's defects put back into our scheduler, so that a difference is excused only where it is
reproduced row by row.

An excuse holds when our scheduler *with the defect* gives exactly the original's answer, exceptions
included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import combinations
from typing import Any

from sparkstorm.control_plane.scheduling.jstorm import scheduler, workers
from sparkstorm.control_plane.scheduling.jstorm.records import (
    AssignContext,
    AssignType,
    PlannedWorker,
)
from sparkstorm.control_plane.scheduling.jstorm.slots import JStormSlot
from sparkstorm.control_plane.scheduling.jstorm.tasks import TaskScheduler
from sparkstorm.control_plane.scheduling.jstorm.workers import Ports, WorkerScheduler
from sparkstorm.extensions.laboratory.form.jstorm_problem import answer, context_from

Problem = dict[str, Any]
Answer = dict[str, Any]


class OriginalRaisedError(Exception):
    """The original ends with an exception; the text is its Java class."""


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Give an attribute of a module or class another value for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _place_as_the_original(slots: Sequence[JStormSlot], supervisors: Sequence[Ports]) -> None:
    """Leave a worker whose host has no room where it was (2); divide by the number of supervisors
    with room (1).
    """
    with_room = [supervisor for supervisor in supervisors if supervisor.free]
    for slot in slots:
        home = (
            next(
                (
                    supervisor
                    for supervisor in with_room
                    if supervisor.host == slot.host and supervisor.free
                ),
                None,
            )
            if slot.host
            else None
        )
        if home is not None:
            slot.port = home.take(slot.port)
            slot.node = home.id
    with_free = sorted(
        (supervisor for supervisor in with_room if supervisor.free),
        key=lambda supervisor: -len(supervisor.free),
    )
    if not with_free:
        raise OriginalRaisedError("ArithmeticException")
    workers._place_by_load(slots, with_free)


class _KeepsAsTheOriginal(TaskScheduler):
    """Counts full workers' tasks again in every round, also of workers that were full before (12).

    It raises for a kept task whose worker is full already (15).
    """

    def _keep(self, num_tasks: int) -> None:
        pool = set(self._pool)
        for worker in sorted(
            self._context.old_workers,
            key=lambda old_worker: (old_worker.host, old_worker.port, old_worker.node),
        ):
            # two nodes of one host may share it
            slot = self._slot_at.get((worker.host, worker.port))
            tasks = worker.tasks & self._tasks
            has_master = self._single_master and self._master in worker.tasks
            tasks &= {self._master} if has_master else tasks
            if tasks and slot is not None:
                if slot not in pool:
                    raise OriginalRaisedError("NullPointerException")
                pool -= {slot} if has_master else set()
        super()._keep(num_tasks)

    def _retire_kept(self, workers: Any, num_tasks: int) -> None:
        slots = [self._slot_at.get((worker.host, worker.port)) for worker in workers]
        waiting = [slot for slot in dict.fromkeys(slots) if slot is not None]
        counted = 0
        # also one that was full from the beginning
        while full := [slot for slot in waiting if self._is_full(slot)]:
            for slot in full:
                if slot in self._pool:
                    del self._pool[slot]
                    self._done.append(slot)
                counted += slot.num_tasks
            self._num_workers -= len(full)
            num_tasks -= counted
            self._share_out(num_tasks)
            waiting = [slot for slot in waiting if slot not in full]

    def _place(self, task: int) -> None:
        part = self._parts[self._context.component_by_task[task]]
        if (
            not self._pool
            and not str(part.conf.get("task.on.differ.node", False)).lower() == "true"
        ):
            raise OriginalRaisedError("NoSuchElementException")
        super()._place(task)


def _retire_kept_twice(
    tasks: TaskScheduler, workers: Iterable[PlannedWorker], num_tasks: int
) -> None:
    """Count a full worker once for each old worker that is taken for it (defect 19)."""
    slots = [tasks._slot_like(worker) for worker in workers]
    while full := [
        slot for slot in slots if slot is not None and slot in tasks._pool and tasks._is_full(slot)
    ]:
        for slot in dict.fromkeys(full):
            del tasks._pool[slot]
            tasks._done.append(slot)
        tasks._num_workers -= len(full)
        num_tasks -= sum(slot.num_tasks for slot in full)
        tasks._share_out(num_tasks)


def _place_or_raise(tasks: TaskScheduler, task: int) -> None:
    if not tasks._pool:
        raise OriginalRaisedError("NoSuchElementException")
    _PLACE(tasks, task)


class _Lenient(dict[int, str]):
    """Components by task; "" for a task of no component."""

    def __missing__(self, task: int) -> str:
        return ""


def _with_unknown_tasks(context: AssignContext) -> AssignContext:
    return replace(context, component_by_task=_Lenient(context.component_by_task))


def _dead_unknown_tasks_too(context: AssignContext) -> set[int]:
    """Return the tasks to place when those of other topologies on a dead worker count too (defect
    17).
    """
    if context.assign_type is not AssignType.MONITOR:
        return _TASKS_TO_ASSIGN(context)
    dead = set(context.dead_tasks)
    for worker in context.old_workers:
        if worker.tasks & (context.dead_tasks - context.unstopped_tasks):
            dead |= worker.tasks
    return dead


def _wanted_slots_with_unknown_tasks(
    placing: WorkerScheduler, need: set[int], count: int
) -> list[JStormSlot]:
    slots = _WANTED_SLOTS(placing, need, count)
    context = placing._context
    if scheduler.has_single_master(context) and not need <= context.component_by_task.keys():
        raise OriginalRaisedError("NullPointerException")
    return slots


def _assign_with_unknown_tasks(tasks: TaskScheduler) -> list[JStormSlot]:
    if not tasks._tasks <= tasks._context.component_by_task.keys():
        raise OriginalRaisedError("IllegalArgumentException")
    return _ASSIGN(tasks)


_TASKS_TO_ASSIGN = scheduler._tasks_to_assign
_WANTED_SLOTS = WorkerScheduler._wanted_slots
_ASSIGN = TaskScheduler.assign
_PLACE = TaskScheduler._place


def _whole_workers(context: AssignContext) -> list[PlannedWorker]:
    return [worker for worker in context.old_workers if worker.tasks & context.unstopped_tasks]


# What is replaced where, by the number that the tag names.
_Patch = tuple[tuple[Any, str, object], ...]
DEFECTS: Mapping[str, _Patch] = {
    "2": (
        (workers, "place", _place_as_the_original),
        # A worker that was left on a port that another took is the same key of the original's hash
        # maps.
        (
            JStormSlot,
            "__eq__",
            lambda one, other: (
                isinstance(other, JStormSlot) and (one.node, one.port) == (other.node, other.port)
            ),
        ),
        (JStormSlot, "__hash__", lambda slot: hash((slot.node, slot.port))),
    ),
    "12": ((scheduler, "TaskScheduler", _KeepsAsTheOriginal),),
    "16": (
        (scheduler, "_unstopped_workers", _whole_workers),
        (scheduler, "_tasks_without_place", lambda context: scheduler._tasks_to_assign(context)),
        (scheduler, "_lost_among_unstopped", lambda context: set()),
    ),
    "17": (
        (scheduler, "_without_unknown_tasks", _with_unknown_tasks),
        (scheduler, "_tasks_to_assign", _dead_unknown_tasks_too),
        (WorkerScheduler, "_wanted_slots", _wanted_slots_with_unknown_tasks),
        (TaskScheduler, "assign", _assign_with_unknown_tasks),
    ),
    "18": ((TaskScheduler, "_is_taken", lambda tasks, slot: False),),
    "19": (
        (
            TaskScheduler,
            "_slot_like",
            lambda tasks, worker: tasks._slot_at.get((worker.host, worker.port)),
        ),
        (TaskScheduler, "_retire_kept", _retire_kept_twice),
        (TaskScheduler, "_place", _place_or_raise),
    ),
}
_WORDS = {
    "12": "defect 12: the original counts kept tasks again in every round",
    "15": "defect 15: the original raises for a kept task whose worker is full",
    "16": "defect 16: the original runs tasks of a lost worker twice",
    "17": "defect 17: the original places a task that no component has",
    "18": "defect 18: the original's master replaces the tasks of a worker, and they get no place",
    "19": "defect 19: the original takes workers of two supervisors of a host at one port for each other",
}


def answer_with(problem: Problem, defects: Sequence[str]) -> Answer:
    """Our answer with these defects put back; `raised` is the simple name of the original's
    exception.
    """
    with ExitStack() as stack:
        for number in defects:
            for patch in DEFECTS[number]:
                stack.enter_context(replaced(*patch))
        try:
            return answer(context_from(problem))
        except OriginalRaisedError as error:
            return {"raised": str(error)}


def reproduced(problem: Problem, theirs: Answer) -> tuple[str, ...] | None:
    """The fewest defects with which ours is the original's answer, or None."""
    for count in range(1, len(DEFECTS) + 1):
        for chosen in combinations(DEFECTS, count):
            if comparable(answer_with(problem, chosen)) == comparable(theirs):
                return chosen
    return None


def comparable(raw_answer: Answer) -> Any:
    """Every row; "failed" without its words; the simple name of an exception."""
    if "raised" in raw_answer:
        return ["raised", raw_answer["raised"].partition(":")[0].rpartition(".")[2]]
    return raw_answer.get("workers", "failed")


def excuse(problem: Problem, theirs: Answer) -> str | None:
    """The tag of a difference that is one of JStorm's defects, reproduced exactly; None where it is
    not.
    """
    if theirs.get("raised", "").endswith("loops for ever"):
        return "defect 13: the original loops for ever" if _may_loop(problem) else None
    numbers = reproduced(problem, theirs)
    if numbers is None:
        return None
    return "; ".join(_words(number, problem, theirs) for number in numbers)


def _may_loop(problem: Problem) -> bool:
    """A rebalance that keeps old workers as they are: they change in a hash set while it is
    walked.
    """
    keeps = problem["assign_type"] == "REBALANCE" and not problem["reassign"]
    return keeps and bool(problem["conf"].get("use.old.assignment"))


def _words(number: str, problem: Problem, theirs: Answer) -> str:
    raised = comparable(theirs) if "raised" in theirs else ()
    if number == "12" and "NullPointerException" in raised:
        return _WORDS["15"]
    if number != "2":
        return _WORDS[number]
    if "ArithmeticException" in raised:
        return "defect 1: the original divides by no supervisors"
    if raised or "workers" not in theirs:
        return "defect 2: the original leaves a worker on a slot that is gone or taken"
    return _where_stale(problem, theirs)


def _where_stale(problem: Problem, theirs: Answer) -> str:
    """Return the sentence of the first row with a worker that the original leaves without a
    place.
    """
    supervisors = {supervisor["id"]: supervisor for supervisor in problem["supervisors"]}
    hosts = problem["conf"].get("isolation.scheduler.machines") or ()
    isolates = any(supervisor["host"] in hosts for supervisor in supervisors.values())
    offered = {
        (supervisor["id"], port)
        for supervisor in supervisors.values()
        for port in supervisor.get("available", supervisor["ports"])
    }
    old = {(worker["node"], worker["port"]) for worker in problem.get("old_workers", ())}
    ours = answer(context_from(problem)).get("workers", ())
    stale = [
        row for row in theirs["workers"] if row not in ours and (row["node"], row["port"]) in old
    ]
    if any(row["node"] not in supervisors for row in stale):
        return "defect 2: the original leaves a worker on a lost supervisor"
    if isolates and any(row["host"] not in hosts for row in stale):
        return "defect 2a: the original leaves a worker on a host outside the isolation list"
    monitors = problem["assign_type"] == AssignType.MONITOR
    if monitors and any((row["node"], row["port"]) not in offered for row in stale):
        return "defect 2b: the original leaves a dead worker on a port that is not offered"
    return "defect 2c: the original leaves a worker on a port that another has taken"
