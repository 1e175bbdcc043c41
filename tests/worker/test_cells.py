"""Workers of a topology over several stores: acks, state and counts stay exact while workers die,
stores are away, and stores restart.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.transport.base import Commit, Cursor, Entry, ForeignProgress
from sparkstorm.data_plane.transport.frames import encode_rows
from sparkstorm.data_plane.transport.progress import Progress, merge
from sparkstorm.data_plane.worker.tasks.inbox import Inbox
from sparkstorm.data_plane.worker.worker import Worker
from sparkstorm.testing import FeederSpout
from sparkstorm.testing.invariants import WaitingRows, acked_roots
from sparkstorm.testing.local_topology import unconsumed
from tests.topologies import Count
from tests.worker.by_hand import Workers

CONF = {
    "topology.acker.executors": 2,
    "topology.epoch.rows": 3,
    "topology.message.timeout.secs": 2,
}
LINES = 30
WORDS = 4  # of a line


class Split(BasicBolt):
    """Some words of a line."""

    outputs = ("word",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for n in range(WORDS):
            collector.emit((f"{tup[0]}.{n}",))


class Died(Exception):
    """The end of a worker process, in the middle of a commit."""


class Topology(Workers):
    """spout -> split -> words, two tasks each and two ackers; tasks lie in the cells in turn."""

    def __init__(self, seed: int, cells: int) -> None:
        self.spout = FeederSpout()
        builder = TopologyBuilder()
        builder.set_spout("spout", self.spout, 2)
        builder.set_bolt("split", Split(), 2).shuffle_grouping("spout")
        builder.set_bolt("words", Count(), 2).fields_grouping("split", "word")
        super().__init__(builder.build(), CONF, cells=cells)
        self.chance = random.Random(seed)
        self.cell_of = {task: task % cells for task in self.component_by_task}
        self.deaths = 0
        self.workers = [self.start(cell) for cell in range(cells)]
        for n in range(LINES):
            self.spout.feed((f"l{n}",))

    def start(self, cell: int) -> Worker:
        tasks = [task for task, its in self.cell_of.items() if its == cell]
        worker = self.claim_tasks(f"n:{cell}", tasks, cell)
        transport: Any = worker.parts.transport
        apply = transport.commit

        def commit(commit: Commit) -> Any:
            at = self.chance.random() if self.deaths < 12 else 1.0
            if at < 0.15:
                raise Died
            found = apply(commit)
            if at < 0.3:
                raise Died
            return found

        transport.commit = commit
        return worker

    def turn(self) -> None:
        """Step one worker, or let something happen to a store."""
        cell = self.chance.randrange(len(self.workers))
        at = self.chance.random()
        if at < 0.03:
            self.away ^= {cell}
        elif at < 0.06:
            self.stores[cell].restore(self.stores[cell].checkpoint())
        self.clock.advance(self.chance.choice((1, 1, 60)))
        try:
            self.workers[cell].step(self.clock.now_ms())
        except Died:
            self.deaths += 1
            self.workers[cell] = self.start(cell)

    @property
    def words(self) -> dict[Any, Any]:
        """Return the counts of all words, in the states of the running workers."""
        bolts = [
            bolt
            for worker in self.workers
            for bolt in worker.task_set.bolts.values()
            if bolt.component == "words"
        ]
        return {key: n for bolt in bolts if bolt.state for key, n in bolt.state.items()}

    def progress(self) -> Progress:
        """Return the counts of all workers, in all stores."""
        records = [data for store in self.stores for data in store.progress_by_owner.values()]
        return merge(map(Progress.decode, records))


@pytest.mark.sampled
@pytest.mark.parametrize("cells", [2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_acks_states_and_counts_are_exact_over_deaths_outages_and_restarts(
    seed: int, cells: int
) -> None:
    topology = Topology(seed, cells)
    rows = WaitingRows()
    for turn in range(6_000):
        topology.turn()
        if turn % 10 == 0:
            spouts = [spout for w in topology.workers for spout in w.task_set.spouts.values()]
            acked = {root for spout in spouts for root in acked_roots(spout)}
            for store in unconsumed(topology.stores, topology.cell_of):
                rows.require_done(store, Codec(), acked)
        if turn > 400 and topology.spout.num_open == 0:
            break
    assert topology.deaths
    topology.away.clear()
    for _ in range(30):
        topology.clock.advance(100)
        topology.step(*topology.workers, times=1)
    assert topology.words == {f"l{n}.{k}": 1 for n in range(LINES) for k in range(WORDS)}
    assert set(topology.spout.acked) == topology.spout.fed_ids
    assert topology.spout.failed == []
    assert not topology.said.errors
    counts = topology.progress().counts_by_task.values()
    by_component = {
        name: (sum(c.executed for c in counts if c.component == name))
        for name in ("split", "words")
    }
    assert by_component == {"split": LINES, "words": LINES * WORDS}
    for flow in topology.progress().edges.values():
        assert flow.sent == flow.consumed


@pytest.mark.parametrize("is_away", [False, True])
def test_no_tree_times_out_while_a_row_of_it_waits_in_another_cells_store(is_away: bool) -> None:
    """The words lie in the store of "split", and the worker that counts them does not run."""
    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("split", Split()).shuffle_grouping("spout")
    builder.set_bolt("words", Count()).shuffle_grouping("split")
    cluster = Workers(builder.build(), {**CONF, "topology.acker.executors": 1}, cells=3)
    tasks = cluster.tasks
    first = cluster.claim_tasks("n:0", [*tasks["spout"], *tasks["__acker"]], 0)
    second = cluster.claim_tasks("n:1", tasks["split"], 1)
    last = cluster.claim_tasks("n:2", tasks["words"], 2)
    spout.feed(("line",))
    cluster.step(first, second, times=20)
    if is_away:
        cluster.away.add(1)
    for _ in range(20):
        cluster.clock.advance(1_000)
        cluster.step(first, second)
    assert (spout.acked, spout.failed) == ([], [])
    cluster.away.clear()
    cluster.step(last, second, first, times=40)
    assert (spout.acked, spout.failed) == ([0], [])


def test_an_inbox_keeps_a_cursor_for_each_cell_and_drops_what_it_cannot_read() -> None:
    inbox = Inbox(7, Codec(), source_of, Cursor("5-0", 0), foreign={1: Cursor("4-0", 1)})
    for id, cell, words in (("6-0", None, "a"), ("5-0", 1, "bcd"), ("3-0", 2, "e")):
        inbox.add(Entry(7, id, frame(*words), cell=cell))
    assert inbox.read_to == "6-0"
    own, half, other = inbox.chunks
    assert (own.name, half.name, half.done) == ("6-0", "5-0@1", 1)
    inbox.consume(own, 1)
    inbox.consume(half, 1)
    first = Commit("o", {}, 0, 1)
    inbox.take_progress(first)
    assert first.cursors == {7: Cursor("6-0", 0)}
    assert first.foreign == {(1, 7): ForeignProgress(Cursor("4-0", 2), 0)}
    assert first.consumed_bytes == own.size, "a full store gets no room by it"
    inbox.consume(half, 1)
    with pytest.raises(MalformedFrameError):
        inbox.add(Entry(7, "9-0", b"garbage", cell=2))
    inbox.consume(other, 1)
    inbox.take_controls()
    second = Commit("o", {}, 0, 2)
    inbox.take_progress(second)
    assert second.cursors == {}
    assert second.foreign == {
        (1, 7): ForeignProgress(Cursor("5-0", 0), half.size),
        (2, 7): ForeignProgress(Cursor("9-0", 0), other.size + len(b"garbage")),
    }
    third = Commit("o", {}, 0, 3)
    inbox.take_progress(third)
    assert third.is_empty() and inbox.waiting == 0


SOURCE = Source("split", 1, "default", ("word",))


def source_of(task: int, stream: str) -> Source:
    return SOURCE


def frame(*words: str) -> bytes:
    rows: list[Any] = [((word,), (), SOURCE) for word in words]
    return encode_rows(Codec(), "default", 5, rows)
