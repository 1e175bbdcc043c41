"""`ack` and `fail` come behind the commit that ends a message, and count when what they emit is
committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, ReplayableSpout, Spout, Tuple
from sparkstorm.common.model.topology import Topology
from sparkstorm.data_plane.worker.worker import Worker
from sparkstorm.testing import Shared
from tests.waiting import wait_until
from tests.worker.building import chain
from tests.worker.by_hand import Workers

EITHER = pytest.mark.parametrize("blocking", [False, True])
GUARANTEES = pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])


class Messages(Spout):
    """Emits 0, 1, ... of a shared list; a message that fails is emitted again by `fail` itself."""

    outputs = ("value",)

    def __init__(self, count: int, blocking: bool = False) -> None:
        self.left: Shared[list[int]] = Shared(list(range(count)))
        self.acked: Shared[list[int]] = Shared([])
        self.failed: Shared[list[int]] = Shared([])
        self.may_fail: Shared[threading.Event] = Shared(threading.Event())
        self.may_fail.value.set()
        self.blocking = blocking  # type: ignore[misc]

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector

    def next_tuple(self) -> None:
        if self.left.value:
            value = self.left.value.pop(0)
            self.collector.emit((value,), value)

    def is_exhausted(self) -> bool:
        return not self.left.value

    def ack(self, message_id: Any) -> None:
        self.acked.value.append(message_id)

    def fail(self, message_id: Any) -> None:
        self.failed.value.append(message_id)
        assert self.may_fail.value.wait(60)
        self.collector.emit((message_id,), message_id)


class FailsOnce(BasicBolt):
    """Fails each odd value once, and keeps what it has passed."""

    def __init__(self) -> None:
        self.failed: Shared[set[int]] = Shared(set())
        self.passed: Shared[list[int]] = Shared([])

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup[0] % 2 and tup[0] not in self.failed.value:
            self.failed.value.add(tup[0])
            raise ValueError("odd")
        self.passed.value.append(tup[0])


def started(workers: Workers) -> Worker:
    return workers.claim("all", workers.tasks)


def running(
    spout: Spout, bolt: BasicBolt, guarantee: str = "at-least-once"
) -> tuple[Workers, Worker]:
    topology: Topology = chain(spout, bolt)
    workers = Workers(topology, {"topology.delivery.guarantee": guarantee})
    return workers, started(workers)


def step_until(is_done: Callable[[], object], workers: Workers, worker: Worker) -> None:
    """Step a worker until something is the case, on whatever thread."""

    def stepped() -> object:
        workers.step(worker)
        return is_done()

    wait_until(stepped)


@EITHER
def test_a_message_that_fail_emits_again_is_not_lost_with_a_worker_that_dies_before_its_commit(
    blocking: bool,
) -> None:
    spout, bolt = Messages(2, blocking), FailsOnce()
    workers, worker = running(spout, bolt)
    if blocking:
        spout.may_fail.value.clear()
    step_until(lambda: spout.failed.value, workers, worker)
    if blocking:
        # The callback returns on its thread, and the loop commits, but takes nothing of the source.
        (task,) = worker.task_set.spouts.values()
        task.rest.until_ms = workers.clock.now_ms() + 10_000
        spout.may_fail.value.set()
        wait_until(lambda: task.spout._batches)  # type: ignore[attr-defined]
        workers.step(worker, times=5)
        assert bolt.passed.value == [0]
    worker.close()
    other = started(workers)
    step_until(lambda: 1 in bolt.passed.value, workers, other)
    step_until(lambda: other.is_drained, workers, other)
    assert sorted(bolt.passed.value) == [0, 1]
    assert set(spout.acked.value) == {0, 1}
    other.close()


@EITHER
def test_a_worker_is_not_drained_while_fail_has_not_returned(blocking: bool) -> None:
    spout, bolt = Messages(2, blocking), FailsOnce()
    workers, worker = running(spout, bolt)
    if blocking:
        spout.may_fail.value.clear()
        step_until(lambda: spout.failed.value, workers, worker)
        workers.step(worker, times=20)
        assert not worker.is_drained
        assert not any(counts.is_exhausted for counts in spout_counts(worker))
        spout.may_fail.value.set()
    else:
        # as it stands in the store while `fail` runs, a step after the commit that settles it
        seen: list[bool] = []
        spout.failed.value = Looks(lambda: seen.append(drained(worker)))
        step_until(lambda: seen, workers, worker)
        assert seen == [False]
    step_until(lambda: worker.is_drained, workers, worker)
    assert sorted(bolt.passed.value) == [0, 1]
    assert all(counts.is_exhausted for counts in spout_counts(worker))
    worker.close()


class Looks(list[int]):
    """A list that calls a function with each value it gets."""

    def __init__(self, look: Any) -> None:
        super().__init__()
        self.look = look

    def append(self, value: int) -> None:
        super().append(value)
        self.look()


def drained(worker: Worker) -> bool:
    """Return whether the progress that was committed says that nothing is left."""
    return all(counts.is_exhausted and not counts.pending for counts in spout_counts(worker))


def spout_counts(worker: Worker) -> list[Any]:
    counts = worker.progress.counts_by_task
    return [counts[task] for task in worker.task_set.spouts]


@EITHER
@GUARANTEES
def test_nothing_is_acked_whose_commit_the_store_refuses(blocking: bool, guarantee: str) -> None:
    spout, bolt = Messages(3, blocking), FailsOnce()
    workers, worker = running(spout, bolt, guarantee)
    workers.store.is_disk_full = True
    # Only the first one: the thread of a blocking spout may emit the others after the commit that is
    # refused, behind which nothing runs.
    step_until(lambda: 0 in bolt.passed.value, workers, worker)
    workers.step(worker, times=5)
    assert not worker.is_settled
    worker.close()
    assert spout.acked.value == spout.failed.value == []


@GUARANTEES
def test_nothing_is_acked_before_its_commit_when_spouts_are_asked_alone(guarantee: str) -> None:
    spout, bolt = Messages(0), FailsOnce()
    workers, worker = running(spout, bolt, guarantee)
    workers.step(worker, times=20)
    spout.left.value += [0, 2]
    workers.clock.advance(100)
    workers.store.is_disk_full = True
    wait_until(lambda: worker.ask_spouts() is None)
    workers.step(worker, times=3)
    assert bolt.passed.value == [0, 2] and spout.acked.value == []
    workers.store.is_disk_full = False
    step_until(lambda: worker.is_drained, workers, worker)
    assert sorted(spout.acked.value) == [0, 2]
    worker.close()


class Requeues(ReplayableSpout):
    """Emits 0 and 1; its position has what `fail` is to have emitted again."""

    outputs = ("value",)

    def __init__(self, blocking: bool) -> None:
        self.may_emit: Shared[threading.Event] = Shared(threading.Event())
        self.failed: Shared[list[int]] = Shared([])
        self.blocking = blocking  # type: ignore[misc]
        self.left = [0, 1]

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector

    def next_tuple(self) -> None:
        if self.left and (not self.failed.value or self.may_emit.value.is_set()):
            value = self.left.pop(0)
            self.collector.emit((value,), value)

    def snapshot(self) -> Any:
        return list(self.left)

    def restore(self, position: Any) -> None:
        self.left = list(position)

    def is_exhausted(self) -> bool:
        return not self.left

    def fail(self, message_id: Any) -> None:
        self.left.append(message_id)
        self.failed.value.append(message_id)


@EITHER
def test_a_position_that_fail_has_moved_is_committed_with_it(blocking: bool) -> None:
    spout, bolt = Requeues(blocking), FailsOnce()
    workers, worker = running(spout, bolt)
    (task,) = worker.task_set.spouts.values()
    step_until(lambda: spout.failed.value and not task.is_waiting, workers, worker)
    other = started(workers)
    spout.may_emit.value.set()
    step_until(lambda: other.is_drained, workers, other)
    assert bolt.passed.value == [0, 1]
    worker.task_set.abandon()
    other.close()


@EITHER
def test_what_fail_emits_is_committed_with_the_end_of_its_call(blocking: bool) -> None:
    spout, bolt = Messages(2, blocking), FailsOnce()
    workers, worker = running(spout, bolt)
    step_until(lambda: 1 in bolt.passed.value, workers, worker)
    other = started(workers)
    step_until(lambda: other.is_drained, workers, other)
    assert spout.failed.value == [1] and bolt.passed.value == [0, 1]
    worker.task_set.abandon()
    other.close()
