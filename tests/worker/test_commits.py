"""Contents of one commit: positions, verdicts, changed held inputs, cursors in the middle of an
entry.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.task_kit import journal
from sparkstorm.data_plane.transport.base import Cursor, Entry
from sparkstorm.data_plane.transport.frames import encode_rows
from sparkstorm.data_plane.worker.tasks.inbox import Inbox
from sparkstorm.testing import FeederSpout, Nothing
from tests.worker.building import Collecting, Pass, chain
from tests.worker.by_hand import Workers

SOURCE = Source("spout", 1, "default", ("value",))
ATTEMPTS = 5  # its place in the record of a held input
CONF = {"topology.acker.executors": 1, "topology.message.timeout.secs": 3600}


@pytest.fixture(params=["deltas", "sweeps"], autouse=True)
def journals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals that grow by deltas, or are swept at almost every commit."""
    if request.param == "sweeps":
        monkeypatch.setattr(journal, "_SWEEP_FROM_BYTES", 1)


class Count(StatefulBolt):
    """Counts its inputs."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.put("count", self.state.get("count", 0) + 1)


def counted(cluster: Workers, bolt: str, owner: str = "n:1") -> int:
    """Return the count that a new owner of the bolt finds."""
    (task,) = cluster.claim(owner, [bolt]).task_set.bolts.values()
    assert task.state is not None
    return int(task.state.get("count", 0))


def test_a_position_is_saved_also_by_a_commit_that_opens_and_ends_no_tree() -> None:
    for is_tracked in (False, True):
        spout = FeederSpout(is_tracked=is_tracked)
        cluster = Workers(
            chain(spout, Count()), {**CONF, "topology.acker.executors": int(is_tracked)}
        )
        components = ["spout", "bolt", *(["__acker"] if is_tracked else [])]
        for n in range(3):
            spout.feed([n])
        for _ in range(4):
            cluster.step(cluster.claim("n:1", components), times=5)  # each dies after its commits
        assert counted(cluster, "bolt") == 3
        assert set(spout.acked) == ({0, 1, 2} if is_tracked else set())


class Refuse(Collecting):
    """Fails what it gets."""

    outputs = ()

    def execute(self, tup: Tuple) -> None:
        self.collector.fail(tup)


def test_a_spout_of_another_worker_is_told_of_failures_alone() -> None:
    spout = FeederSpout()
    cluster = Workers(
        chain(spout, Refuse()), {**CONF, "topology.delivery.guarantee": "at-least-once"}
    )
    workers = [
        cluster.claim(f"n:{n}", [component])
        for n, component in enumerate(("spout", "bolt", "__acker"))
    ]
    spout.feed(["x"])
    (task,) = workers[0].task_set.spouts.values()
    cluster.step_until(lambda: task.pending.snapshot()[1], *reversed(workers))
    settled = task.pending.snapshot()[1]
    assert "failed by the bolt" in str(settled) and "does not know why" not in str(settled)
    cluster.step(*workers, times=10)
    assert (spout.acked, spout.failed) == ([], [0])


class Broken(BasicBolt):
    """Raises on what it gets."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        raise ValueError("broken")


def test_each_try_of_a_held_input_is_written_and_counts_over_deaths() -> None:
    spout = FeederSpout()
    conf = {**CONF, "topology.max.retries": 5, "topology.retry.backoff.ms": 10}
    cluster = Workers(chain(spout, Broken()), conf)
    spout.feed(["x"])
    attempts, deaths = [], 0
    while not cluster.store.dead_letters:
        worker = cluster.claim("n:1", ["spout", "bolt", "__acker"])
        cluster.clock.advance(10_000)
        cluster.step(worker, times=2)
        attempts += [Codec().unpack(held)[ATTEMPTS] for held in cluster.keys("bolt").held.values()]
        deaths += 1
        assert deaths < 20, f"tries so far: {attempts}"
    assert attempts == sorted(attempts) and attempts[0] < attempts[-1]


class Later(Bolt):
    """Acks two inputs when it has the second."""

    outputs = ()

    def prepare(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector = collector
        self.waiting: list[Tuple] = []

    def execute(self, tup: Tuple) -> None:
        self.waiting.append(tup)
        if len(self.waiting) == 2:
            for each in self.waiting:
                self.collector.ack(each)


@pytest.mark.parametrize("has_moved", [False, True])
def test_an_input_that_is_held_and_acked_later_is_released(has_moved: bool) -> None:
    spout = FeederSpout()
    cluster = Workers(chain(spout, Later()), CONF)
    home, bolt, acker = (
        cluster.claim(f"n:{n}", [component])
        for n, component in enumerate(("spout", "bolt", "__acker"))
    )
    spout.feed(["x"])
    cluster.step(home, bolt, acker, times=5)
    assert len(cluster.keys("bolt").held) == 1 and spout.acked == []
    if has_moved:
        bolt = cluster.claim("n:1", ["bolt"])
    spout.feed(["y"])
    cluster.step(home, bolt, acker, times=8)
    assert not cluster.keys("bolt").held and sorted(spout.acked) == [0, 1]


def test_an_input_that_is_held_and_acked_within_an_epoch_leaves_no_record() -> None:
    spout = FeederSpout()
    cluster = Workers(chain(spout, Later()), CONF)
    worker = cluster.claim("n:1", ["spout", "bolt", "__acker"])
    for n in range(2):
        spout.feed([n])
    cluster.step(worker, times=5)
    assert not cluster.keys("bolt").held and sorted(spout.acked) == [0, 1]


def row_frame(*values: Any) -> bytes:
    return encode_rows(Codec(), "default", 0, [((value,), 0, SOURCE) for value in values], None)


def test_an_inbox_counts_the_bytes_of_all_frames_and_passes_none_that_waits() -> None:
    inbox = Inbox(7, Codec(), lambda task, stream: SOURCE)
    frames = [row_frame(1), row_frame(2, 3), row_frame(4)]
    for number, frame in enumerate(frames[:2], 1):
        inbox.add(Entry(7, f"{number}-0", frame))
    with pytest.raises(MalformedFrameError):
        inbox.add(Entry(7, "3-0", b"no frame"))
    assert inbox.cursor == Cursor("0-0", 0), "a damaged frame lies behind two that wait"
    inbox.add(Entry(7, "4-0", frames[2]))
    inbox.consume(inbox.chunks[0], 1)
    inbox.consume(inbox.chunks[0], 2)
    assert (inbox.cursor, inbox.drained) == (Cursor("2-0", 0), len(frames[0]) + len(frames[1]))
    assert inbox.take_controls() and inbox.cursor == Cursor("3-0", 0)


def test_a_chunk_knows_when_its_entry_was_sent_if_the_store_does() -> None:
    inbox = Inbox(7, Codec(), lambda task, stream: SOURCE)
    inbox.add(Entry(7, "1-0", row_frame(1), 5_000))
    inbox.add(Entry(7, "2-0", row_frame(2)))
    assert [chunk.sent_ms for chunk in inbox.chunks] == [5_000, None]


class Many(BasicBolt):
    """Twenty tuples for one."""

    outputs = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for n in range(20):
            collector.emit((n,))


def test_rows_of_an_entry_are_counted_once_though_each_owner_dies_within_it() -> None:
    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("many", Many()).shuffle_grouping("spout")
    builder.set_bolt("count", Count()).shuffle_grouping("many")
    cluster = Workers(builder.build(), {**CONF, "topology.epoch.rows": 1})
    home = cluster.claim("n:1", ["spout", "many", "__acker"])
    for _ in range(3):
        spout.feed(["x"])
    cluster.step(home, times=6)
    for _ in range(200):
        cluster.step(cluster.claim("n:2", ["count"]), times=2)
        cluster.step(home)
    assert counted(cluster, "count", "n:2") == 60
    assert not cluster.keys("count").stream and not cluster.keys("count").backlog
    cluster.step(home, times=5)
    assert sorted(spout.acked) == [0, 1, 2]


def test_nothing_of_a_settled_tree_stays_with_ackers_and_spouts() -> None:
    spout, builder = FeederSpout(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("pass", Pass()).shuffle_grouping("spout")
    builder.set_bolt("end", Nothing()).shuffle_grouping("pass")
    cluster = Workers(builder.build(), CONF)
    places = {"n:1": ["spout"], "n:2": ["pass", "__acker"], "n:3": ["end"]}
    for n in range(12):
        spout.feed([n])
        workers = [cluster.claim(place, components) for place, components in places.items()]
        cluster.step(*workers, times=4)
    cluster.step(*workers, times=10)
    assert sorted(spout.acked) == list(range(12)) and not spout.failed
    workers = [cluster.claim(place, components) for place, components in places.items()]
    assert all(spout.pending.idle for spout in workers[0].task_set.spouts.values())
    assert not any(len(acker.ledger) for acker in workers[1].task_set.ackers.values())


def test_what_came_while_a_commit_was_refused_is_read_at_once() -> None:
    spout = FeederSpout()
    cluster = Workers(chain(spout, Count()), CONF)
    home, bolt = cluster.claim("n:1", ["spout", "__acker"]), cluster.claim("n:2", ["bolt"])
    spout.feed(["x"])
    cluster.step(home)
    cluster.store.is_disk_full = True
    cluster.step(bolt)
    cluster.store.is_disk_full = False
    spout.feed(["y"])
    cluster.step(home)
    now_ms = cluster.clock.now_ms()
    assert bolt.step(now_ms) == now_ms
    cluster.step(bolt)
    assert counted(cluster, "bolt") == 2


def test_open_trees_outlive_their_acker() -> None:
    spout = FeederSpout()
    cluster = Workers(chain(spout, Count()), CONF)
    home, acker, end = (
        cluster.claim(f"n:{n}", [component])
        for n, component in enumerate(("spout", "__acker", "bolt"))
    )
    spout.feed(["x"])
    cluster.step(home, acker, times=4)
    acker = cluster.claim("n:1", ["__acker"])
    cluster.step(end, acker, home, times=5)
    assert spout.acked == [0]
