"""Back-pressure inside a worker: tasks that may not run because a downstream task has too much
input waiting.

A task is held back by the bytes that wait in the receivers' streams, or in those of a receiver that
is held back here; edges inside a cycle never hold back (they would deadlock), edges into it do.
Acker traffic does not count as waiting. Left out: credits per channel, as Flink's network stack
has: a stream in the store takes what comes and has one reader, so a sender needs only the number of
bytes that wait there, and its commit brings that along.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sparkstorm.common.grouping.load_ring import LoadRing
from sparkstorm.common.model.tasks import tasks_by_component
from sparkstorm.data_plane.transport.base import Pressure
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan

# Shares of the store's memory. Spouts stop well before bolts do, so that what has been emitted can
# still drain: a bolt's commit needs room for the entries that it writes before those that it read
# go. Nearer together, bolts would stop with the spouts and nothing would drain; lower, memory that
# was paid for stays unused. Not measured; tests/worker/test_backpressure.py fills a store.
SPOUTS_STOP_AT = 0.6
_BOLTS_STOP_AT = 0.8
# Over which the least backlog of a receiver is taken (see common/grouping/load_ring.py): Storm looks once
# a second. Half of it may have one commit of a loaded worker, whose rows are then taken for a
# backlog; with double a slow task gets its full share for twice as long. Not measured.
_LOAD_MS = 200
# Between two looks whether the tasks that hold a task back have drained: a commit brings the news.
# Half of it commits twice as often while a task is held back; double lets it rest up to 5 ms
# longer. Not measured.
LOOK_MS = 5


class Backpressure:
    """Set of this worker's tasks that are held back."""

    def __init__(self, plan: WorkerPlan, rings: Iterable[LoadRing] = ()) -> None:
        """`rings`: the turns of load-aware shuffles of this worker's tasks."""
        self._rings = tuple(rings)
        # waiting bytes by task, the least since the rings were turned
        self._least: dict[int, int] = {}
        self._load_due_ms = 0
        self._high = plan.settings.inbox_high_bytes
        cycle = plan.topology.cycles()
        fed_by_task = {task: _fed_tasks(plan, task, cycle) for task in plan.tasks}
        self._fed_by_task = {task: _reached(fed_by_task, task) for task in plan.tasks}
        self._full: set[int] = set()
        self._waiting: dict[int, int] = {}  # bytes by watched task, as of the last commit
        self._fullness = 0.0
        # Only receivers of this worker's tasks: each watched stream is a number in the answer of
        # every commit.
        self.watched = tuple(sorted({t for fed in self._fed_by_task.values() for t in fed}))

    @property
    def is_store_filling(self) -> bool:
        """Return whether spouts must stop so that bolts can drain what there is."""
        return self._fullness >= SPOUTS_STOP_AT

    @property
    def fullness(self) -> float:
        """Share of the store's memory in use, 0 to 1, as of the last commit; 0 when it has no
        limit.
        """
        return self._fullness

    def held_back_by(self, task: int) -> list[tuple[int, int]]:
        """The tasks that hold this one back, ascending, and the bytes that wait for each."""
        return [
            (fed, self._waiting.get(fed, 0)) for fed in sorted(self._full & self._fed_by_task[task])
        ]

    @property
    def must_ask(self) -> bool:
        """Return whether anything is held back, so that only news of the pressure can set it
        free.
        """
        return bool(self._full) or self._fullness >= SPOUTS_STOP_AT

    def feeds_any(self, task: int, receivers: Collection[int]) -> bool:
        """Return whether rows of this task reach one of these tasks, also through others of this
        worker.
        """
        return not self._fed_by_task[task].isdisjoint(receivers)

    def holds_back(self, task: int) -> bool:
        """Return whether this task must wait for its receivers."""
        return bool(self._full) and not self._full.isdisjoint(self._fed_by_task[task])

    def note(self, pressure: Pressure, now_ms: int) -> None:
        """Take in the answer to the last commit; a task that was held back goes on at half the
        mark.

        In a store that is nearly full any backlog holds its senders back: the store drains from the
        sinks upwards, and since the last task with a backlog is never held back, it does drain.
        """
        self._fullness = pressure.fullness
        self._waiting.update(pressure.backlog_by_task)
        self._note_load(pressure.backlog_by_task, now_ms)
        high = self._high if pressure.fullness < _BOLTS_STOP_AT else 0
        for task, waiting in pressure.backlog_by_task.items():
            if waiting > high:
                self._full.add(task)
            # Between the two nothing changes: with one mark a task would stop and go on with every
            # commit.
            elif waiting <= high // 2:
                self._full.discard(task)

    def _note_load(self, backlog_by_task: Mapping[int, int], now_ms: int) -> None:
        """Take a look at what waits, and let the rings of load-aware shuffles follow it now and
        then.
        """
        if not self._rings:
            return
        least = self._least
        for task, waiting in backlog_by_task.items():
            least[task] = min(least.get(task, waiting), waiting)
        if now_ms >= self._load_due_ms:
            self._load_due_ms = now_ms + _LOAD_MS
            for ring in self._rings:
                ring.refresh(least)
            least.clear()


def _reached(fed_by_task: Mapping[int, frozenset[int]], task: int) -> frozenset[int]:
    """Return the receivers of a task, also through tasks of this worker: rows for one that is held
    back would only wait in the store.
    """
    reached: set[int] = set()
    new = set(fed_by_task[task])
    # Each task once, not each path: six bolts of 64 tasks in one worker have 64^5 paths.
    while new:
        reached |= new
        new = {fed for local in new & fed_by_task.keys() for fed in fed_by_task[local]} - reached
    return frozenset(reached)


def _fed_tasks(plan: WorkerPlan, task: int, cycle: Mapping[str, int]) -> frozenset[int]:
    component = plan.topology.components.get(plan.component_by_task[task])
    if component is None:
        return frozenset()
    tasks = tasks_by_component(plan.component_by_task)
    return frozenset(
        fed
        for stream in component.streams
        for subscriber, _ in plan.topology.subscribers(component.id, stream)
        if cycle[subscriber] != cycle[component.id]
        for fed in tasks.get(subscriber, ())
    )
