"""Checks the size of an epoch: rows and bytes end it, and what one input may make has an end."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any, ClassVar

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, Spout, TopologyBuilder, Tuple
from sparkstorm.common.config import merge
from sparkstorm.common.settings import EpochSettings
from sparkstorm.data_plane.transport.base import Commit, Entry, Pressure
from sparkstorm.data_plane.worker.epoch import Epoch, RandomIds
from sparkstorm.data_plane.worker.epoch_budget import Budget
from sparkstorm.data_plane.worker.read_window import (
    LEAST_FRAMES,
    MOST_FRAMES,
    WINDOW_BYTES,
    ReadWindow,
)
from sparkstorm.testing import CaptureBolt, FeederSpout
from sparkstorm.testing.in_process_worker import InProcessWorker
from sparkstorm.testing.sim_transport import SimTransport
from tests.topologies import ran, running
from tests.worker.building import Pass, chain
from tests.worker.by_hand import Workers

KB = 1024


class Scales:
    """Makes transports that weigh the rows of every commit."""

    def __init__(self) -> None:
        self.heaviest = 0

    def __call__(self, worker: InProcessWorker) -> SimTransport:
        scales = self

        class Weighing(SimTransport):
            def commit(self, commit: Commit) -> Pressure:
                scales.heaviest = max(
                    scales.heaviest, sum(counted for _, _, counted in commit.frames)
                )
                return super().commit(commit)

        return Weighing(worker.host.store, worker.clock, worker.host.arrivals)


class Heavy(Spout):
    """A thousand rows of 16 kB that take no time to make."""

    outputs = ("ballast",)

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector, self.left = collector, 1000

    def next_tuple(self) -> None:
        if self.left:
            self.left -= 1
            self.collector.emit(("x" * 16 * KB,))

    def is_exhausted(self) -> bool:
        return not self.left


class Noted(Spout):
    """Notes which task emits each of its thousand rows."""

    outputs = ("number",)
    tasks: ClassVar[list[int]] = []

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector, self.task, self.left = collector, context.task_id, 1000

    def next_tuple(self) -> None:
        if self.left:
            self.left -= 1
            self.tasks.append(self.task)
            self.collector.emit((self.left,), self.left)

    def is_exhausted(self) -> bool:
        return not self.left


class Many(BasicBolt):
    """Makes thirty rows of 8 kB of every row."""

    outputs = ("ballast",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for _ in range(30):
            collector.emit((b"y" * 8 * KB,))


@pytest.mark.parametrize("workers", [1, 3])
def test_an_epoch_ends_when_enough_rows_were_executed(workers: int) -> None:
    rows, executed = 25, [0]
    with running(
        chain(Heavy(), Pass()), {"topology.workers": workers, "topology.epoch.rows": rows}
    ) as cluster:
        cluster.simulation.watchers.append(lambda: executed.append(cluster.counts("bolt").executed))
        cluster.run_until_idle()
        assert executed[-1] == 1000
        # and what was begun is finished
        assert max(after - before for before, after in pairwise(executed)) <= 2 * rows


def test_of_many_spout_tasks_a_few_emit_in_a_turn_and_all_in_time() -> None:
    builder = TopologyBuilder()
    builder.set_spout("spout", Noted(), 16)
    builder.set_bolt("capture", CaptureBolt()).global_grouping("spout")
    Noted.tasks.clear()
    workers = Workers(builder.build(), {})
    worker = workers.claim("n:1", ["spout", "capture", "__acker"])
    workers.step(worker, times=50)
    found, counts, most_apart = Noted.tasks, dict.fromkeys(Noted.tasks, 0), 0
    for task in found:
        counts[task] += 1
        if max(counts.values()) < 1000:
            most_apart = max(most_apart, max(counts.values()) - min(counts.values()))
    assert len(counts) == 16 and set(counts.values()) == {1000}
    # once each is known to be fast: simulated time stands still in a step
    assert max(len(list(run)) for _, run in groupby(found)) == 128
    assert most_apart <= 2 * 128


@pytest.mark.parametrize("workers", [1, 3])
def test_an_epoch_ends_when_enough_bytes_are_on_their_way(workers: int) -> None:
    budget, scales = 512 * KB, Scales()
    with running(
        chain(Heavy(), Pass()),
        {"topology.workers": workers, "topology.epoch.bytes": budget},
        make_transport=scales,
    ) as cluster:
        cluster.run_until_idle()
        assert cluster.counts("capture").executed == 1000
        assert scales.heaviest <= 2 * budget


def test_bolts_that_make_much_of_little_are_bounded_too() -> None:
    budget, scales = 1024 * KB, Scales()
    spout = FeederSpout()
    with ran(
        chain(spout, Many(), CaptureBolt()),
        spout,
        range(200),
        {"topology.workers": 4, "topology.epoch.bytes": budget},
        make_transport=scales,
    ) as cluster:
        assert cluster.counts("capture").executed == 6000
        assert scales.heaviest <= 2 * budget


def test_an_input_that_makes_more_than_any_commit_may_carry_is_parked_and_the_others_go_through() -> (
    None
):
    class Explodes(BasicBolt):
        outputs = ("value",)

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            for _ in range(300 if tup[0] == "bad" else 1):
                collector.emit((tup[0] + "z" * 4 * KB,))

    spout, capture = FeederSpout(), CaptureBolt()
    with running(
        chain(spout, Explodes(), capture), {"topology.workers": 4, "topology.epoch.bytes": 4 * KB}
    ) as cluster:
        for value in ("a", "bad", "b"):
            spout.feed([value], message_id=value)
        cluster.run_until_idle()
        assert sorted(value[0][0] for value in capture.values) == ["a", "b"]
        assert (spout.failed, sorted(spout.acked)) == (["bad"], ["a", "b"])
        deaths = [death for worker in cluster.topology().workers for death in worker.deaths]
        assert deaths and all(
            "component 'bolt', stream 'default': more than 1048576 bytes leave at once" in d
            for d in deaths
        )


def test_the_pace_falls_with_the_weight_of_what_is_sent() -> None:
    budget = Budget(EpochSettings.of({"topology.epoch.bytes": 4096}))
    assert budget.pace(8, 8, 0, 100, sent_bytes=0) == 16
    assert budget.pace(8, 8, 0, 100, sent_bytes=1024) == 16
    assert budget.pace(8, 8, 0, 100, sent_bytes=8192) == 1
    assert budget.pace(80, 80, 0, 100, sent_bytes=2048) == 40
    assert budget.pace(8, 8, 8, 100, sent_bytes=0) == 4


def test_a_spout_alone_is_asked_without_an_epoch_until_it_emits() -> None:
    spout = FeederSpout()
    with ran(chain(spout, Pass()), spout, ["first"], {"topology.workers": 1}) as cluster:
        worker = cluster.topology().workers[0].worker
        assert worker is not None
        before, now_ms = worker.commits, cluster.now_ms
        due_ms = worker.ask_spouts()
        assert due_ms is not None
        assert due_ms > now_ms
        spout.feed(["second"])
        cluster.simulation.clock.advance(10)
        assert worker.ask_spouts() is None  # a step is wanted now
        assert worker.commits == before
        cluster.run_until_idle()
        assert len(spout.acked) == 2


# -- windows that follow the distance --------------------------------------------------------------


def answer(count: int, size: int = 60, task: int = 1) -> list[Entry]:
    """Return an answer of so many frames for a task."""
    return [Entry(task, f"{number}-0", b"x" * size) for number in range(count)]


def grown(size: int = 60) -> ReadWindow:
    window = ReadWindow()
    for _ in range(20):
        assert window.note(answer(window.frames, size))
    return window


def test_full_answers_double_the_window_up_to_its_bounds() -> None:
    window = ReadWindow()
    window.note(answer(LEAST_FRAMES))
    assert window.frames == 2 * LEAST_FRAMES
    assert grown().frames == MOST_FRAMES
    assert grown(64 << 10).frames == WINDOW_BYTES // (64 << 10)
    assert grown(512 << 10).frames == LEAST_FRAMES


@pytest.mark.parametrize("size", [60, 5 << 20])
def test_an_answer_that_is_not_full_leaves_the_least_window_as_it_is(size: int) -> None:
    window = ReadWindow()
    for count in range(LEAST_FRAMES):
        assert not window.note(answer(count, size))
        assert window.frames == LEAST_FRAMES


def test_many_tasks_with_few_frames_each_are_no_full_answer() -> None:
    window = ReadWindow()
    assert not window.note([entry for task in range(20) for entry in answer(2, task=task)])
    assert window.frames == LEAST_FRAMES


def test_larger_frames_and_small_answers_let_it_shrink_and_none_leaves_it() -> None:
    window = grown()
    window.note(answer(MOST_FRAMES // 2, 2048))
    assert window.frames == WINDOW_BYTES // 2048
    assert not window.note([])
    assert window.frames == WINDOW_BYTES // 2048
    for _ in range(12):
        window.note(answer(1))
    assert window.frames == LEAST_FRAMES


def test_a_task_reads_ahead_so_many_frames_and_bytes() -> None:
    window = grown()
    assert window.has_room(MOST_FRAMES - 1, 0)
    assert not window.has_room(MOST_FRAMES, 0)
    assert not window.has_room(1, WINDOW_BYTES)


def loaded_ms(commit_ms: float) -> int:
    """Length to which epochs grow that never come to an end by themselves."""
    budget, epoch = Budget(EpochSettings.of(merge({}))), Epoch(RandomIds(), False)
    for _ in range(100):
        budget.note_commit(commit_ms)
        budget.end(was_over=True)
    budget.begin(0)
    return next(ms for ms in range(10_000) if budget.is_over(epoch, ms))


def test_an_epoch_under_load_is_as_long_as_a_slow_commit() -> None:
    assert loaded_ms(1) == 50
    assert loaded_ms(200) == 200
    assert loaded_ms(5_000) == 500


def test_rows_of_a_short_epoch_drain_as_long_as_a_loaded_one() -> None:
    """Rows that did not drain cross Redis, and those behind them in the next epoch too."""
    budget, epoch = Budget(EpochSettings.of(merge({}))), Epoch(RandomIds(), False)
    budget.begin(0)
    assert budget.is_over(epoch, 5)
    assert budget.left_to_drain(epoch, 54) and not budget.left_to_drain(epoch, 55)
