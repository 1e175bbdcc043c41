"""Throws random and spoilt bytes at every reader of what Redis holds, and at workers over the local
twin.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import MalformedFrameError, StoreInconsistentError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.task_kit.held import decode_held
from sparkstorm.data_plane.task_kit.journal import Journal
from sparkstorm.data_plane.transport import frames
from sparkstorm.data_plane.transport.base import START, TaskRecord
from sparkstorm.data_plane.transport.frames import AckerMessages, SettledRoots
from sparkstorm.data_plane.transport.keys import prefix_of
from sparkstorm.data_plane.transport.progress import Progress
from sparkstorm.testing import FeederSpout
from sparkstorm.testing.local_topology import LocalTopology
from tests.tiers import examples
from tests.topologies import Count, feed, running
from tests.worker.building import Collecting, Pass, chain

CODEC = Codec()
IDS = st.sampled_from([0, 1, 2, 7, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
COLUMNS = st.lists(IDS, max_size=3).map(lambda ids: np.array(ids, "<u8").tobytes()) | st.binary(
    max_size=20
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(LEAVES, inner, max_size=3),
    max_leaves=12,
)
TASKS = st.integers(0, 9)
STREAMS = st.sampled_from(["default", "__watermark", "__late:default", "", "x"])
COUNT = st.integers(1, 3)
REASONS = st.dictionaries(IDS, st.text(max_size=4), max_size=2)


def pack(value: Any) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


def framed(kind: int, body: Any) -> bytes:
    return (
        b"SF\x03"
        + bytes([kind])
        + bytes(8)
        + ormsgpack.packb(body, option=ormsgpack.OPT_NON_STR_KEYS)
    )


@st.composite
def rows(draw: Any) -> bytes:
    """A frame of rows whose every part may be a lie."""
    count = draw(COUNT)
    ids = draw(st.lists(IDS, min_size=count, max_size=count) | st.just([]))
    columns = draw(st.lists(st.lists(VALUES, min_size=count, max_size=count), max_size=3))
    column = np.array(ids, "<u8").tobytes()
    several = draw(st.none() | st.dictionaries(st.integers(0, 3), COLUMNS, max_size=1))
    senders = draw(st.lists(TASKS, max_size=3))
    numbers = draw(st.just(b"") | st.just(bytes(count)) | st.binary(max_size=4))
    lengths = draw(
        st.just(b"")
        | st.lists(COUNT, max_size=3).map(lambda each: np.array(each, "<u4").tobytes())
        | st.binary(max_size=9)
    )
    return framed(
        frames.ROWS,
        [
            draw(IDS),
            draw(IDS),
            draw(STREAMS),
            senders,
            numbers,
            count,
            columns,
            draw(st.just(column) | COLUMNS),
            lengths,
            several,
        ],
    )


@st.composite
def messages(draw: Any) -> bytes:
    """Acker messages of the right shape with any ids."""
    count, more = draw(COUNT), draw(COUNT)
    init = [
        np.array(draw(st.lists(IDS, min_size=count, max_size=count)), "<u8").tobytes()
        for _ in range(2)
    ]
    tasks = np.array(draw(st.lists(TASKS | IDS, min_size=count, max_size=count)), "<u8").tobytes()
    acks = [
        np.array(draw(st.lists(IDS, min_size=more, max_size=more)), "<u8").tobytes()
        for _ in range(2)
    ]
    return framed(frames.MESSAGES, [*init, tasks, *acks, draw(REASONS)])


@st.composite
def spoilt(draw: Any) -> bytes:
    """A sound frame or record, cut or overwritten at some places."""
    data = draw(st.sampled_from(SOUND))
    chance = random.Random(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        return bytes(data[: chance.randrange(len(data))])
    changed = bytearray(data)
    for _ in range(chance.choice((1, 2, 8))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


SENDER = Source("component", 1, "default", ("field",))
TWO = [1, 2]
SOUND = [
    frames.encode_rows(
        CODEC, "default", 5, [(("a",), 1, SENDER), (("b",), 2, SENDER)], lambda ends: 7, 9
    ),
    frames.encode_messages(
        CODEC, AckerMessages(TWO, TWO, TWO, TWO, TWO, {3: Failure(FailureKind.FAILED, "why")})
    ),
    frames.encode_settled(CODEC, SettledRoots([1], {2: Failure(FailureKind.FAILED, "late")})),
    CODEC.pack({"s": [["key", 1]], "d": ["gone"]}),
    CODEC.pack({"p": [[[5, "id", 7]], [], []]}),
    CODEC.pack([1, "default", ["a"], 1, 2, 0, 5, None]),
    Progress(started_ms=1).encode(),
]
HOSTILE = (
    st.binary(max_size=60)
    | spoilt()
    | rows()
    | messages()
    | VALUES.map(lambda v: b"SF\x03\x01" + bytes(8) + pack(v))
    | st.builds(lambda column, why: framed(frames.SETTLED, [column, why]), COLUMNS, REASONS)
    | VALUES.map(pack)
)


def a_source(task: int, stream: str) -> Source:
    return Source("component", task, stream, ("field",))


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "frame": lambda data: frames.decode(CODEC, data),
    "held input": lambda data: decode_held(CODEC, "key", data, a_source, 0),
    "progress": Progress.decode,
    "dead letter": lambda data: DeadLetter.decode(CODEC, data),
    "journal": lambda data: list(Journal(1, CODEC).read(TaskRecord(START, [data], {}))),
}


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=examples(100), deadline=None)
@given(data=HOSTILE)
def test_a_decoder_returns_a_record_or_refuses_with_a_sentence(name: str, data: bytes) -> None:
    refusal(lambda: DECODERS[name](data))


def refusal(call: Callable[[], Any]) -> str:
    """The sentence with which bytes are refused; empty when they are taken."""
    try:
        call()
    except (MalformedFrameError, StoreInconsistentError) as error:
        return str(error)
    return ""


def inject(topology: LocalTopology, task: int, data: bytes) -> None:
    """Write a frame as a stranger does: with nothing counted."""
    keys = topology.store.task(task)
    keys.last_number += 1
    keys.stream.append((keys.last_number, data))


@settings(max_examples=examples(50), deadline=None)
@given(
    hostile=st.lists(st.tuples(st.integers(0, 20), HOSTILE), min_size=1, max_size=6),
    workers=st.integers(1, 3),
)
def test_no_frame_of_a_stranger_kills_a_worker_or_holds_a_run_up(
    hostile: list[tuple[int, bytes]], workers: int
) -> None:
    spout = FeederSpout()
    with running(
        chain(spout, Pass(), Count(), 2),
        {"topology.workers": workers, "topology.acker.executors": 2},
    ) as cluster:
        topology = cluster.topology()
        tasks = sorted(task for worker in topology.workers for task in worker.tasks)
        feed(spout, range(4))
        for place, data in hostile:
            inject(topology, tasks[place % len(tasks)], data)
        cluster.run_until_idle()
        feed(spout, range(4, 8))
        cluster.run_until_idle()
        assert [death for worker in topology.workers for death in worker.deaths] == []
        assert {*spout.acked, *spout.failed} == set(range(8))
        assert not any(keys.backlog for keys in topology.store.task_keys.values())
        assert all(cluster.state("capture").get(n, 0) >= 1 or n in spout.failed for n in range(8))


def test_a_frame_of_another_kind_is_quarantined_and_the_run_goes_on() -> None:
    spout = FeederSpout()
    with running(
        chain(spout, Pass(), Count(), 2), {"topology.workers": 2, "topology.acker.executors": 2}
    ) as cluster:
        topology = cluster.topology()
        tasks = sorted(task for worker in topology.workers for task in worker.tasks)
        for task in tasks:
            for data in SOUND[:3]:
                inject(topology, task, data)
        spout.feed([1])
        cluster.run_until_idle()
        assert spout.acked == [0]
        assert len(topology.store.quarantine) >= 2 * len(tasks)
        assert [death for worker in topology.workers for death in worker.deaths] == []


class Batching(Collecting):
    """Holds every input for good."""

    def execute(self, tup: Any) -> None:
        pass


@settings(max_examples=examples(60), deadline=None)
@given(
    data=HOSTILE, what=st.sampled_from(["journal", "held", "progress"]), place=st.integers(0, 20)
)
def test_a_damaged_record_is_gone_on_with_or_refused_with_its_key(
    data: bytes, what: str, place: int
) -> None:
    spout = FeederSpout()
    with running(
        chain(spout, Batching() if what == "held" else Pass(), Count(), 2), {"topology.workers": 2}
    ) as cluster:
        topology = cluster.topology()
        feed(spout, range(4))
        cluster.advance(1)
        store = topology.store
        if what == "progress":
            owner = sorted(store.progress_by_owner)[place % len(store.progress_by_owner)]
            store.progress_by_owner[owner] = data
        else:
            kept = [keys for _, keys in sorted(store.task_keys.items()) if getattr(keys, what)]
            keys = kept[place % len(kept)]
            if what == "held":
                keys.held[min(keys.held)] = data
            else:
                keys.journal[0] = data
        for number in range(len(topology.workers)):
            cluster.kill_worker(number)
        said = refusal(lambda: cluster.advance(2))
        assert not said or (
            f"the key {prefix_of(topology.id)}:{what}" in said
            and "kill the topology and submit it again" in said
        )
