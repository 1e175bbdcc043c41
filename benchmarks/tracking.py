"""CPU that tracking costs: python -m benchmarks.tracking [--runs N] [--words N] [--systems ...]
[--cases ...] [--commits].

Real workers over the in-process store, stepped in turn in one process under a simulated clock, so
that epochs do not depend on what else the machine does. Two workers ("8 workers" and "1,000 tasks":
eight), exactly-once, 5,000 open trees per spout task; each line is microseconds of CPU (user and
system time of the process, store included) per unit: a word of the word count (27 words, 6.4 a
line), or a tuple that is a whole tree. Systems take turns in every round: trees in batches, each by
itself as in Storm, and untracked. Counts are checked, and that nothing is left open. With
`--commits` each line has the share of the workers' CPU in which commits were built and handed to
that store, and units and CPU (all of it) for each commit of a worker.
"""

from __future__ import annotations

import argparse
import copy
import gc
import resource
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.topologies import Count, Split
from benchmarks.wordcount import FEW
from sparkstorm.api import BasicBolt, BasicOutputCollector, Bolt, Spout, TopologyBuilder, Tuple
from sparkstorm.clock import SimClock
from sparkstorm.config import default_conf, merge
from sparkstorm.model.failure import Failure
from sparkstorm.model.tasks import number_tasks
from sparkstorm.model.topology import Topology
from sparkstorm.model.worker_messages import SetStatus
from sparkstorm.transport.local import LocalStore, LocalTransport
from sparkstorm.worker.commits import Commits
from sparkstorm.worker.epoch import RandomIds
from sparkstorm.worker.parts import WorkerParts
from sparkstorm.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.worker.worker import Worker

SYSTEMS: dict[str, dict[str, Any]] = {
    "in batches": {},
    "each by itself": {"topology.acker.batch.size": 1},
    "untracked": {"topology.acker.executors": 0},
}
_HELD = 2_000
_MANY_TASKS = 64
# Of each of three components, 125 tasks in a worker; ackers come on top
_MOST_TASKS = 333
_MOST_WORKERS = 8
_WIDE = ("8 workers", "1,000 tasks")


class Lines(Spout):
    """Emits the five sentences in turn, so many lines in all, with a message id each."""

    outputs = ("line",)

    def __init__(self, count: int) -> None:
        self._left = count

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        """Keep the collector."""
        self._emit = collector.emit

    def next_tuple(self) -> None:
        """Emit one line."""
        if self._left:
            self._left -= 1
            self._emit((FEW[self._left % 5],), self._left)

    def is_exhausted(self) -> bool:
        """Return whether all were emitted."""
        return not self._left


class End(BasicBolt):
    """Takes tuples in."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Do nothing."""


class Passing(BasicBolt):
    """Passes its inputs on."""

    outputs = ("line",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit the line."""
        collector.emit((tup.values[0],))


class PassingByHand(Bolt):
    """The same with its own anchors and acks, as most bolts of Storm are written."""

    outputs = ("line",)

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        """Keep the collector."""
        self._collector = collector

    def execute(self, tup: Tuple) -> None:
        """Emit the line and ack."""
        self._collector.emit((tup.values[0],), tup)
        self._collector.ack(tup)


class Holding(Bolt):
    """Acks its inputs two thousand at a time, so that most are held over the end of an epoch."""

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        """Begin with no inputs."""
        self._collector = collector
        self._held: list[Tuple] = []

    def execute(self, tup: Tuple) -> None:
        """Keep an input, or ack all."""
        self._held.append(tup)
        if len(self._held) == _HELD:
            for each in self._held:
                self._collector.ack(each)
            self._held.clear()


class Silent:
    """A worker's Reporter that stops the run at the first error."""

    def trying(self, task: int, entry: str, row: int) -> None:
        """Take no note."""

    def passed(self) -> None:
        """Take no note."""

    def error(self, failure: Failure) -> None:
        """Raise it."""
        raise AssertionError(failure.text)


def word_count(lines: int, tasks: int = 2) -> Topology:
    """Lines -> split -> count, so many tasks each."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines(lines // tasks), tasks)
    builder.set_bolt("split", Split(), tasks).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", Count(), tasks).fields_grouping("split", "word")
    return builder.build()


class Stopwatch:
    """CPU of methods of a class since it was made, in nanoseconds, and calls of the last of them."""

    def __init__(self, kind: type, *methods: str) -> None:
        self.spent_ns = 0
        self.calls = 0
        for name in methods:
            setattr(kind, name, self._timed(getattr(kind, name), int(name == methods[-1])))

    def _timed(self, method: Callable[..., Any], counted: int) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began_ns = time.thread_time_ns()
            found = method(*arguments)
            self.spent_ns += time.thread_time_ns() - began_ns
            self.calls += counted
            return found

        return timed


def one_hop(lines: int, bolt: BasicBolt | Bolt | None = None) -> Topology:
    """Lines -> a bolt, two tasks each, half of them at the other worker: each tuple is a tree."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines(lines // 2), 2)
    builder.set_bolt("end", bolt or End(), 2).shuffle_grouping("lines")
    return builder.build()


def two_hops(lines: int, bolt: BasicBolt | Bolt) -> Topology:
    """Lines -> a bolt -> end, two tasks each; the first hop stays in its worker."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines(lines // 2), 2)
    builder.set_bolt("pass", bolt, 2).local_or_shuffle_grouping("lines")
    builder.set_bolt("end", End(), 2).local_or_shuffle_grouping("pass")
    return builder.build()


def cpu_us(topology: Topology, own: Mapping[str, Any], units: int) -> float:
    """Return microseconds of CPU per unit of one run."""
    conf = merge(
        default_conf(), {"topology.workers": 2, "topology.max.spout.pending": 5_000, **own}
    )
    component_by_task = number_tasks(topology, conf)
    clock = SimClock(1_767_225_600_000)
    store = LocalStore()
    by_component: Counter[str] = Counter()
    shares: list[list[int]] = [[] for _ in range(conf["topology.workers"])]
    for task, component in component_by_task.items():
        shares[by_component[component] % len(shares)].append(task)
        by_component[component] += 1
    workers = []
    for number, tasks in enumerate(shares, 1):
        plan = WorkerPlan(
            "t-1-1",
            topology,
            component_by_task,
            tuple(tasks),
            f"n:{number}",
            dict.fromkeys(tasks, number),
            conf,
            lambda component: copy.deepcopy(topology.components[component].instance),
        )
        workers.append(
            Worker(WorkerParts(plan, LocalTransport(store), clock, RandomIds(number), Silent()))
        )
        workers[-1].follow(SetStatus("ACTIVE"))
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)  # as in a worker process
    before = resource.getrusage(resource.RUSAGE_SELF)
    while not all(worker.is_drained for worker in workers):
        for worker in workers:
            clock.advance(1)
            worker.step(clock.now_ms())
    after = resource.getrusage(resource.RUSAGE_SELF)
    gc.unfreeze()
    check(workers, component_by_task, units)
    return 1e6 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / units


def check(workers: list[Worker], component_by_task: Mapping[int, str], units: int) -> None:
    """AssertionError unless everything was counted and is closed."""
    for _ in range(20):  # verdicts on their way
        for worker in workers:
            worker.step(0)
    states = [
        bolt.state
        for worker in workers
        for bolt in worker.task_set.bolts.values()
        if bolt.state is not None
    ]
    if states:
        assert sum(value for state in states for _, value in state.snapshot()) == units
    assert not any(
        len(acker.ledger) for worker in workers for acker in worker.task_set.ackers.values()
    )


def _words(lines: int, tasks: int) -> tuple[Callable[[int], Topology], int, int]:
    """Return the word count with so many tasks of each component, its lines and its words: as many
    lines for each spout task, each sentence as often.
    """
    count = max(1, lines // (5 * tasks)) * 5 * tasks
    return (
        lambda n: word_count(n, tasks),
        count,
        sum(len(line.split()) for line in FEW) * count // 5,
    )


def main() -> None:
    """Print medians by case and system, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--words", type=int, default=200_000)
    parser.add_argument("--cases", nargs="+")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--commits", action="store_true")
    options = parser.parse_args()
    lines = options.words * 5 // 32 // 10 * 10
    if options.commits:
        commits = Stopwatch(Commits, "build", "complete", "send")
        steps = Stopwatch(Worker, "step")
    cases: dict[str, tuple[Callable[[int], Topology], int, int]] = {
        "word count": _words(lines, 2),
        "64 tasks": _words(lines, _MANY_TASKS),
        "8 workers": _words(lines, _MOST_WORKERS),
        "1,000 tasks": _words(lines, _MOST_TASKS),
        "a tree a tuple": (one_hop, 2 * lines, 2 * lines),
        "a hop": (lambda count: two_hops(count, Passing()), 2 * lines, 2 * lines),
        "a hop by hand": (lambda count: two_hops(count, PassingByHand()), 2 * lines, 2 * lines),
        "held inputs": (
            lambda count: one_hop(count, Holding()),
            2 * lines // 8_000 * 8_000,
            2 * lines // 8_000 * 8_000,
        ),
    }
    chosen = {case: each for case, each in cases.items() if case in (options.cases or cases)}
    figures: dict[tuple[str, str], list[float]] = {
        (case, system): [] for case in chosen for system in options.systems
    }
    shares: dict[tuple[str, str], list[float]] = {}
    epochs: dict[tuple[str, str], list[float]] = {}
    for run in range(options.runs + 1):  # the first round warms caches and is not counted
        for case, (make, count, units) in chosen.items():
            for system in options.systems:
                if options.commits:
                    commits.spent_ns = steps.spent_ns = commits.calls = 0
                workers = {"topology.workers": _MOST_WORKERS} if case in _WIDE else {}
                taken = cpu_us(make(count), {**SYSTEMS[system], **workers}, units)
                figures[case, system] += [taken] if run else []
                if run and options.commits:
                    shares.setdefault((case, system), []).append(commits.spent_ns / steps.spent_ns)
                    epochs.setdefault((case, system), []).append(units / commits.calls)
    for each, taken_us in figures.items():
        share = ""
        if each in shares:
            size = statistics.median(epochs[each])
            epoch_us = statistics.median(taken_us) * size
            share = f", commits {statistics.median(shares[each]):.1%}, {size:.0f} units and {epoch_us:.0f} us a commit"
        print(
            f"{each[0]:16}{each[1]:16}{statistics.median(taken_us):8.3f} us ({min(taken_us):.3f} to {max(taken_us):.3f}){share}"
        )


if __name__ == "__main__":
    main()
