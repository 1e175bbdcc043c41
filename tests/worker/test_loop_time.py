"""Time of a worker's loop and of its tasks, and the counts of its edges, in the records that it
commits.
"""

from __future__ import annotations

from typing import Any

import ormsgpack
import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.common.clock import SimClock
from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.failure import Cause, Failure
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.worker_messages import SetStatus
from sparkstorm.data_plane.transport.progress import (
    BACKLOG,
    BUSY,
    COMMIT,
    IDLE,
    PENDING,
    STATES,
    EdgeCounts,
    Progress,
    TaskCounts,
    merge,
)
from sparkstorm.data_plane.worker.counting.loop_time import LoopTime, TaskTime
from sparkstorm.data_plane.worker.worker import Worker
from sparkstorm.testing import FeederSpout, LocalCluster
from sparkstorm.testing.invariants import Invariants
from tests.topologies import feed
from tests.worker.building import Pass, chain
from tests.worker.by_hand import Workers

clock = SimClock()


class Slow(BasicBolt):
    """Takes 5 ms for an input."""

    outputs = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        clock.advance(5)
        collector.emit((tup[0],))


def feeding(*numbers: int) -> tuple[FeederSpout, Workers]:
    global clock
    spout = FeederSpout(["value"])
    feed(spout, numbers)
    workers = Workers(
        chain(spout, Slow()), {"topology.max.spout.pending": 2, "topology.acker.executors": 1}
    )
    clock = workers.clock
    return spout, workers


def states(worker: Worker) -> dict[str, int]:
    """Return the milliseconds of a worker's loop by state, without those in which it was not."""
    return {
        name: us // 1000 for name, us in zip(STATES, worker.progress.loop_us, strict=True) if us
    }


def counts(worker: Worker, component: str) -> TaskCounts:
    return next(
        each for each in worker.progress.counts_by_task.values() if each.component == component
    )


def test_each_moment_belongs_to_one_state() -> None:
    loop = LoopTime([0] * len(STATES), 100)
    loop.lap(IDLE, 130)
    loop.lap(BUSY, 137)
    loop.lap(COMMIT, 138)
    loop.lap(BUSY, 140)
    result = {STATES[n]: us for n, us in enumerate(loop.spent_us) if us}
    assert result == {"busy": 9, "commit": 1, "idle": 30}


def test_a_pause_counts_by_its_cause_and_goes_on_over_a_commit() -> None:
    spent = TaskTime()
    spent.hold(PENDING, 100)
    spent.hold(PENDING, 130)
    assert spent.take(140) == (0, {PENDING: 40})
    spent.hold(BACKLOG, 145)
    spent.hold(None, 150)
    spent.busy_us += 7
    assert spent.take(200) == (7, {PENDING: 5, BACKLOG: 5})
    assert spent.take(300) == (0, {})


def test_a_bolts_time_is_busy_time_of_its_task_and_of_its_worker() -> None:
    _, workers = feeding(1, 2, 3)
    worker = workers.claim("a", ["spout", "bolt", "capture", "__acker"])
    began_us = workers.clock.now_us()
    workers.step(worker, times=20)
    assert counts(worker, "bolt").executed == 3
    assert counts(worker, "bolt").busy_us == 15_000
    assert counts(worker, "capture").busy_us == counts(worker, "spout").busy_us == 0
    # what the loop comes back for at once is not idle
    assert states(worker) == {"busy": 15, "read": 2, "idle": 18}
    assert sum(worker.progress.loop_us) == workers.clock.now_us() - began_us


class SlowlySettled(FeederSpout):
    """Takes 3 ms for an `ack`, 4 for a `fail`."""

    def ack(self, message_id: Any) -> None:
        clock.advance(3)
        super().ack(message_id)

    def fail(self, message_id: Any, failure: Failure | None = None) -> None:
        clock.advance(4)
        super().fail(message_id, failure)


class Odd(BasicBolt):
    """Refuses even numbers."""

    outputs = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup[0] % 2 == 0:
            raise ValueError("even")
        collector.emit((tup[0],))


def test_callbacks_are_busy_time_of_their_spout() -> None:
    global clock
    spout = SlowlySettled(["value"])
    feed(spout, (1, 2, 3))
    conf = {"topology.acker.executors": 1, "topology.max.retries": 0}
    workers = Workers(chain(spout, Odd()), conf)
    clock = workers.clock
    worker = workers.claim("a", ["spout", "bolt", "capture", "__acker"])
    workers.step(worker, times=30)
    assert (len(spout.acked), len(spout.failed)) == (2, 1)
    assert counts(worker, "spout").busy_us == 10_000
    assert states(worker)["busy"] == 10


def test_a_spout_that_may_not_have_more_trees_open_is_paused_for_that() -> None:
    _, workers = feeding(*range(9))
    worker = workers.claim("a", ["spout"])  # nobody executes its rows
    workers.step(worker, times=31)
    assert counts(worker, "spout").emitted == 2
    assert states(worker) == {"idle": 1, "pending": 30}
    worker.summary()
    stored = Progress.decode(workers.store.progress_by_owner["a"])
    assert stored.counts_by_task.keys() == worker.progress.counts_by_task.keys()


def test_an_inactive_topology_pauses_its_spouts_and_not_its_bolts() -> None:
    _, workers = feeding(1)
    sending = workers.claim("a", ["spout"])
    running = workers.claim("b", ["bolt", "capture", "__acker"])
    sending.follow(SetStatus("INACTIVE"))
    running.follow(SetStatus("INACTIVE"))
    workers.step(sending, running, times=10)
    assert states(sending) == {"idle": 1, "inactive": 18}
    assert states(running) == {"idle": 20}


def test_a_bolt_whose_receiver_is_full_is_paused_by_its_backlog() -> None:
    spout = FeederSpout(["value"])
    workers = Workers(chain(spout, Pass()), {"topology.inbox.high.bytes": 4096})
    spout.feed(["x" * 5000])
    # nobody runs the capture
    sending, running = workers.claim("a", ["spout"]), workers.claim("b", ["bolt", "__acker"])
    workers.step(sending, running, times=3)
    for _ in range(3):
        spout.feed(["x" * 5000])
        workers.step(sending, running, times=10)
    assert states(running)["backlog"] > 30
    assert states(sending)["backlog"] > 30
    assert counts(running, "bolt").executed == 1


def test_entries_and_rows_are_counted_by_stream_and_receiver() -> None:
    _, workers = feeding(1, 2)
    sending = workers.claim("a", ["spout"])
    running = workers.claim("b", ["bolt", "capture", "__acker"])
    workers.step(sending, running, times=10)
    out = sending.progress.edges["spout", "default", "bolt"]
    into = running.progress.edges["spout", "default", "bolt"]
    assert (out.sent, out.consumed, out.entries) == (2, 0, 1)
    assert out.bytes > 0
    assert (into.sent, into.consumed, into.entries) == (0, 2, 0)
    local = running.progress.edges["bolt", "default", "capture"]
    assert local == EdgeCounts(2, 2, 0, 0)  # handed over within the worker
    result = merge([sending.progress, running.progress]).edges["spout", "default", "bolt"]
    assert result == EdgeCounts(2, 2, 1, out.bytes)
    assert sending.progress.commits == sending.commits[1]
    assert sending.progress.commit_bytes >= out.bytes


def test_times_go_on_where_a_former_process_has_left_them() -> None:
    _, workers = feeding(1)
    everything = ["spout", "bolt", "capture", "__acker"]
    worker = workers.claim("a", everything)
    workers.step(worker, times=3)
    workers.clock.advance(1000)  # its process is dead meanwhile
    again = workers.claim("a", everything)
    workers.step(again, times=10)
    assert counts(again, "bolt").busy_us == 5000
    assert sum(again.progress.loop_us) < 100_000


def test_a_record_of_an_older_version_has_no_times() -> None:
    record = Progress(
        {3: TaskCounts("a", executed=5)}, failures={Cause("a", "b", "c"): 1}, commits=7
    )
    parts = ormsgpack.unpackb(record.encode(), option=ormsgpack.OPT_NON_STR_KEYS)
    parts[0] = {task: values[:18] for task, values in parts[0].items()}
    old = ormsgpack.packb(parts[:6], option=ormsgpack.OPT_NON_STR_KEYS)
    result = Progress.decode(old)
    assert result == Progress({3: TaskCounts("a", executed=5)}, failures={Cause("a", "b", "c"): 1})


def test_an_edge_of_an_older_version_has_no_rows_behind() -> None:
    edge = ("a", "default", "b")
    parts = ormsgpack.unpackb(
        Progress(edges={edge: EdgeCounts(1, 2, 3, 4, 5, 6)}).encode(),
        option=ormsgpack.OPT_NON_STR_KEYS,
    )
    parts[7] = [row[:7] for row in parts[7]]
    old = ormsgpack.packb(parts, option=ormsgpack.OPT_NON_STR_KEYS)
    assert Progress.decode(old).edges == {edge: EdgeCounts(1, 2, 3, 4)}


@pytest.mark.parametrize(
    "later",
    [
        [[0] * 8, 1],
        [[[0] * 7, 1, 1], []],
        [[[0] * 8, 1, "1"], []],
        [[[0] * 8, 1, 1], [["a", "b", "c", 1, 2, 3]]],
        [[[0] * 8, 1, 1]],
    ],
)
def test_times_that_are_none_are_refused(later: Any) -> None:
    parts = ormsgpack.unpackb(Progress().encode(), option=ormsgpack.OPT_NON_STR_KEYS)
    with pytest.raises(StoreInconsistentError, match="not one of ours"):
        Progress.decode(ormsgpack.packb([*parts[:6], *later], option=ormsgpack.OPT_NON_STR_KEYS))


def diamond() -> tuple[FeederSpout, Topology]:
    spout, builder = FeederSpout(["value"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("left", Pass(), 2).shuffle_grouping("spout")
    builder.set_bolt("right", Pass(), 2).all_grouping("spout")
    builder.set_bolt("end", Pass()).shuffle_grouping("left").shuffle_grouping("right")
    return spout, builder.build()


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_sent_on_an_edge_is_consumed_and_a_lost_row_is_seen(workers: int) -> None:
    spout, topology = diamond()
    with LocalCluster() as cluster:
        invariants = Invariants(cluster)
        cluster.submit(topology, {"topology.workers": workers})
        feed(spout, range(10))
        cluster.advance(seconds=5)
        invariants()
        store = cluster.topology().store
        records = {owner: Progress.decode(data) for owner, data in store.progress_by_owner.items()}
        flows = {
            edge: (flow.sent, flow.consumed) for edge, flow in merge(records.values()).edges.items()
        }
        assert flows == {
            ("spout", "default", "left"): (10, 10),
            ("spout", "default", "right"): (20, 20),
            ("left", "default", "end"): (10, 10),
            ("right", "default", "end"): (20, 20),
        }
        owner, record = next(
            (o, r) for o, r in records.items() if ("left", "default", "end") in r.edges
        )
        record.edges["left", "default", "end"].sent += 1
        store.progress_by_owner[owner] = record.encode()
        invariants.forget()
        with pytest.raises(AssertionError, match=r"11 sent, 10 consumed, 0 wait"):
            invariants()
