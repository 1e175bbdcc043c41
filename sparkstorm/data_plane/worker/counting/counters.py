"""Counters of a worker: its tasks' counts go into the progress record of each commit.

Law: a count is part of the commit that has what it counts, so counts are exact after any crash.
Left out: sampling, as Storm's metrics do (topology.stats.sample.rate, one in twenty): taking over a
number for a whole turn costs no more than a sample.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from sparkstorm.common.model.heartbeats import added
from sparkstorm.data_plane.executor.runner import ReportError, report_of
from sparkstorm.data_plane.transport.base import Commit
from sparkstorm.data_plane.transport.progress import EdgeCounts, Progress, TaskCounts
from sparkstorm.data_plane.worker.counting.meters import Meters
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask
from sparkstorm.data_plane.worker.tasks.task_set import TaskSet
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan

# Items in memory from which on the heartbeat names them. Half of it names healthy states of some
# thousand keys; with double a leak is named when it is twice as large. Not measured.
_WORTH_SAYING = 10_000
_changed = attrgetter("changed")
_worth_a_commit = attrgetter("executed", "emitted", "pending", "is_exhausted", "is_waiting", "done")
_CONTAINERS = frozenset({list, dict, set, deque, defaultdict, OrderedDict, Counter})


class Counters:
    """Collector of the tasks' counts into a Progress."""

    def __init__(
        self, plan: WorkerPlan, task_set: TaskSet, progress: Progress, meters: Meters
    ) -> None:
        self._meters = meters
        self._plan = plan
        self._task_set = task_set
        self._progress = progress
        for task in (*task_set.spouts, *task_set.bolts):
            # By it the counts of two owners of a task are distinguished: gauges are those of the
            # newer one.
            self.of(task).token = plan.token_by_task[task]
        self._spouts = [(self.of(task), spout) for task, spout in task_set.spouts.items()]
        self._bolts = [(self.of(task), bolt) for task, bolt in task_set.bolts.items()]
        self._spent = [(self.of(sender.task), sender.spent) for sender in task_set.senders()]
        self._emitters = task_set.emitters
        self._timed_outputs = [
            (emitter.component, output)
            for emitter in task_set.emitters
            for output in emitter.timed_outputs
            if output.clock is not None
        ]
        self._sampled = 0  # values of user metrics that came from elsewhere than calls
        # The loop does not see the calls of a bolt with a thread: its time comes from there.
        self._threads = [
            (counts, self._meters.of(bolt.task), bolt.thread)
            for counts, bolt in self._bolts
            if bolt.thread is not None
        ]

    def of(self, task: int) -> TaskCounts:
        """One task's counts."""
        counts = self._progress.counts_by_task.get(task)
        if counts is None:
            counts = self._progress.counts_by_task[task] = TaskCounts(
                self._plan.component_by_task[task]
            )
        return counts

    def edge(self, component: str, stream: str, receiver: str) -> EdgeCounts:
        """One edge's counts."""
        edge = component, stream, receiver
        counts = self._progress.edges.get(edge)
        if counts is None:
            counts = self._progress.edges[edge] = EdgeCounts()
        return counts

    def note_commit(self, commit: Commit) -> None:
        """Count a commit; its entries are counted by edge."""
        self._progress.commits += 1
        written = 0
        for _, data, _ in commit.frames:
            written += len(data)
        for _, data in commit.journal:
            written += len(data)
        self._progress.commit_bytes += written

    def note(self, now_ms: int, now_us: int, count_by_latency: Mapping[int, int]) -> None:
        """Take over what tasks have counted since the last call."""
        self._progress.now_ms = now_ms
        self._progress.add_latencies(count_by_latency)
        for counts, spout in self._spouts:
            _note_spout(counts, spout)
        for counts, bolt in self._bolts:
            _note_bolt(counts, bolt)
        for counts, spent in self._spent:
            if spent.has_news:
                counts.add_times(*spent.take(now_us))
        for counts, meter, thread in self._threads:
            for call_ms in thread.take_calls_ms():
                counts.busy_us += 1000 * call_ms
                meter.add_call(1000 * call_ms)
        for component, output in self._timed_outputs:
            if output.clock is not None and output.clock.behind_ms:
                edge = self.edge(component, output.stream, output.subscriber)
                edge.note_behind(output.clock.behind_ms, output.mark_source.task)
        for metrics in self._task_set.metrics.values():
            self._sampled += metrics.take_others()

    def sample(self, now_ms: int, report: ReportError) -> int:
        """Ask the functions of user gauges that are due; return how many values are new."""
        sampled = 0
        for task, metrics in self._task_set.metrics.items():
            component = metrics.component

            def failed(error: BaseException, component: str = component, task: int = task) -> None:
                report(report_of(error, component, task))

            sampled += metrics.sample(now_ms, failed)
        self._sampled += sampled
        return sampled

    def gauges(self) -> Any:
        """Return the counts that alone are worth a commit: trees that began and ended inside one
        epoch, and user metrics.
        """
        # Sums that only grow: comparing them is enough to see that something has changed.
        metrics = self._sampled + sum(map(_changed, self._emitters))
        return metrics, [*map(_worth_a_commit, self._progress.counts_by_task.values())]

    def by_executor(self) -> dict[str, dict[str, Any]]:
        """Return counts and statistics of each executor ("1-3") for the heartbeat (S3.38), by task
        too if it has several.
        """
        shown_by_executor = {}
        for executor in self._plan.executors:
            shown = shown_by_executor[str(executor)] = self._shown(list(executor.tasks))
            # One task is its executor: its figures would be twice in a record that ZooKeeper
            # bounds.
            if len(executor.tasks) > 1:
                shown["tasks"] = {str(task): self._shown([task]) for task in executor.tasks}
        return shown_by_executor

    def _shown(self, tasks: list[int]) -> dict[str, Any]:
        counts = [
            counts
            for task in tasks
            if (counts := self._progress.counts_by_task.get(task)) is not None
        ]
        meters = self._meters.shown(tasks, {**self._task_set.bolts, **self._task_set.spouts})
        return {
            **asdict(added(counts)),
            "pending": sum(count.pending for count in counts),
            **meters,
        }

    def keeps(self) -> list[str]:
        """Return the largest of what tasks keep in memory, a phrase each: state, inputs, messages,
        attributes of user code.
        """
        sizes: list[tuple[int, str]] = []
        for task, bolt in self._task_set.bolts.items():
            where = f"{bolt.component}#{task}"
            sizes.append(
                (len(bolt.state) if bolt.state is not None else 0, f"keys of state in {where}")
            )
            sizes.append((len(bolt.held.by_key), f"inputs that {where} has not acked"))
            sizes += _attributes(bolt.runner.bolt, where)
        for task, spout in self._task_set.spouts.items():
            sizes.append((len(spout.pending), f"open messages of {spout.component}#{task}"))
            sizes += _attributes(spout.spout, f"{spout.component}#{task}")
        largest = sorted((size for size in sizes if size[0] >= _WORTH_SAYING), reverse=True)[:3]
        return [f"{count:,} {what}" for count, what in largest]


def _note_spout(counts: TaskCounts, spout: SpoutTask) -> None:
    acked, failed = spout.take_counts()
    counts.acked += acked
    counts.failed += failed
    counts.pending = len(spout.pending)
    # Messages that `fail` emits again are not there before it has returned.
    counts.is_exhausted = (
        spout.is_exhausted and spout.has_said_all and (counts.pending > 0 or not spout.is_waiting)
    )
    counts.total, counts.done = spout.extent()


def _note_bolt(counts: TaskCounts, bolt: BoltTask) -> None:
    # In an epoch of few rows most bolts of a worker have not run.
    if bolt.counts.executed or bolt.counts.acked or bolt.inbox.replayed:
        executed, acked, replayed = bolt.take_counts()
        counts.executed += executed
        counts.acked += acked
        counts.replayed += replayed
    counts.is_waiting = bolt.is_waiting
    counts.held = bolt.held.num_kept(len(bolt.queued)) if bolt.held.by_key else 0
    if bolt.time is not None and bolt.time.timing is not None:
        counts.late += bolt.time.timing.take_late_rows()


def _attributes(instance: Any, where: str) -> list[tuple[int, str]]:
    """Return the sizes of an instance's containers; a threaded component's own are behind its
    wrapper and left out.
    """
    values = dict(getattr(instance, "__dict__", {}))
    return [
        (len(v), f"items in '{name}' of {where}")
        for name, v in values.items()
        if type(v) in _CONTAINERS
    ]
