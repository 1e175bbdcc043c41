"""Every grouping, end to end over several workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    Stream,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from sparkstorm.api.builder import Declarer
from sparkstorm.common.grouping.routes import LOCAL_RUN
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster

WORKERS = {"topology.workers": 3, "topology.acker.executors": 1}


class Tagging(BasicBolt):
    """Says which task got what."""

    outputs = ("task", "value")

    def prepare(self, conf: Any, context: TopologyContext) -> None:
        self.task = context.task_id

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((self.task, tup[0]))


def run(
    group: Callable[[Declarer], Any], rows: Sequence[Any], tasks: int = 4, workers: int = 3
) -> list[tuple[Any, ...]]:
    from_capture = CaptureBolt()
    spout, builder = FeederSpout(["value", "other"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    group(builder.set_bolt("bolt", Tagging(), tasks))
    builder.set_bolt("capture", from_capture).global_grouping("bolt")
    for row in rows:
        spout.feed([row, 0])
    with LocalCluster(supervisors=3, slots=2) as cluster:
        cluster.submit(builder.build(), {**WORKERS, "topology.workers": workers})
        cluster.run_until_idle()
        assert sorted(spout.acked) == list(range(len(rows)))
        assert not cluster.errors
        by_component = dict(cluster.topology().component_by_task)
    assert {by_component[task] for task, _ in from_capture.values} == {"bolt"}
    return from_capture.values


def test_shuffle_spreads_evenly() -> None:
    counts = Counter(task for task, _ in run(lambda d: d.shuffle_grouping("spout"), range(100)))
    assert sorted(counts.values()) == [25, 25, 25, 25]


def test_fields_sends_equal_values_to_one_task_and_uses_several() -> None:
    # 21: no multiple of the tasks
    got = run(lambda d: d.fields_grouping("spout", "value"), [f"k{n % 21}" for n in range(210)])
    tasks_by_key: dict[str, set[int]] = {}
    for task, key in got:
        tasks_by_key.setdefault(key, set()).add(task)
    assert all(len(tasks) == 1 for tasks in tasks_by_key.values())
    assert len({task for task, _ in got}) == 4
    assert len(got) == 210


def test_all_gives_everybody_everything() -> None:
    got = run(lambda d: d.all_grouping("spout"), range(10))
    assert Counter(task for task, _ in got) == dict.fromkeys({task for task, _ in got}, 10)
    assert len(got) == 40


def test_global_chooses_the_lowest_task() -> None:
    got = run(lambda d: d.global_grouping("spout"), range(10))
    assert len({task for task, _ in got}) == 1
    result = {task for task, _ in got}
    assert result == {min(t for t, _ in run(lambda d: d.all_grouping("spout"), [1]))}


class Waiting(Tagging):
    """Has its own thread."""

    blocking = True


@pytest.mark.parametrize("tagging", [Tagging, Waiting])
def test_a_local_shuffle_gives_rows_in_runs_to_tasks_without_threads(tagging: type) -> None:
    spout, capture, builder = FeederSpout(["value"]), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("bolt", tagging(), 4).local_or_shuffle_grouping("spout")
    builder.set_bolt("capture", capture).global_grouping("bolt")
    for n in range(2000):
        spout.feed([n])
    with LocalCluster(draws_epochs=False) as cluster:
        cluster.submit(builder.build(), {"topology.workers": 1})
        cluster.run_until_idle()
    tasks = [task for task, _ in sorted(capture.values, key=lambda row: row[1])]
    counts = Counter(tasks)
    assert len(counts) == 4 and sum(counts.values()) == 2000
    neighbours = sum(task == other for task, other in pairwise(tasks))
    # such a task would have a queue while the threads of the others rest
    assert neighbours == 0 if tagging is Waiting else neighbours > 1600
    assert max(counts.values()) - min(counts.values()) <= (1 if tagging is Waiting else LOCAL_RUN)


class Dealer(Spout):
    """Names the task of every tuple."""

    outputs = {"default": Stream(["value"], direct=True)}  # noqa: RUF012

    def open(self, conf: Any, context: TopologyContext, collector: Any) -> None:
        self.collector, self.tasks, self.next = collector, context.component_tasks("bolt"), 0

    def next_tuple(self) -> None:
        if not self.is_exhausted():
            self.collector.emit_direct(
                self.tasks[self.next % 2], (self.next,), message_id=self.next
            )
            self.next += 1

    def is_exhausted(self) -> bool:
        return self.next == 10


def test_direct_goes_where_the_producer_says() -> None:
    capture, builder = CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", Dealer())
    builder.set_bolt("bolt", Tagging(), 4).direct_grouping("spout")
    builder.set_bolt("capture", capture).global_grouping("bolt")
    with LocalCluster() as cluster:
        cluster.submit(builder.build(), WORKERS)
        cluster.run_until_idle()
        first, second = [t for t, c in cluster.topology().component_by_task.items() if c == "bolt"][
            :2
        ]
        result = sorted(capture.values)
        assert result == sorted((first if n % 2 == 0 else second, n) for n in range(10))
        assert cluster.counts("spout").acked == 10


class EveryThird:
    """A custom grouping: multiples of three go to two tasks, the rest to none."""

    def prepare(self, tasks: Sequence[int]) -> None:
        self.tasks = list(tasks)

    def choose_tasks(self, task: int, values: Sequence[Any]) -> list[int]:
        return [self.tasks[0], self.tasks[-1]] if values[0] % 3 == 0 else []


def test_custom_chooses_any_number_of_tasks() -> None:
    got = run(lambda d: d.custom_grouping("spout", EveryThird()), range(9))
    assert sorted(value for _, value in got) == [0, 0, 3, 3, 6, 6]
    assert len({task for task, _ in got}) == 2


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_placement_never_changes_values(workers: int) -> None:
    values = ["text", 1, 1.5, None, True, b"bytes", [1, "two"], {"a": [1]}]
    got = run(lambda d: d.shuffle_grouping("spout"), [*values, (3, ("four",))], workers=workers)
    result = sorted(map(repr, (value for _, value in got)))
    assert result == sorted(map(repr, [*values, [3, ["four"]]]))
