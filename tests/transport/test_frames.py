"""Checks that frames come back as they went, and that bytes from outside are either a frame or
MalformedFrameError.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from dataclasses import dataclass
from typing import Any

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.roots import tracked
from sparkstorm.common.model.tuples import Roots, Source, each_root
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.unfolding import require_bounded, weigh
from sparkstorm.common.model.values.value_types import register
from sparkstorm.data_plane.transport import frames
from sparkstorm.data_plane.transport.frames import AckerMessages, RowFrame, SettledRoots
from tests.tiers import examples
from tests.transport.values import values

CODEC = Codec()


@dataclass
class Point:
    """A registered class."""

    x: float
    y: float


register([f"{__name__}:Point"])
IDS = st.integers(1, 2**63 - 1)
# Members of few batches, split ones too: their runs meet.
MEMBERS = st.tuples(st.sampled_from([1 << 61, 3 << 61]), st.integers(0, 2), st.integers(0, 3)).map(
    lambda m: m[0] | m[1] << 10 | m[2]
)
SENDERS = [Source("component", task, "words", ("field",)) for task in (7, 8)]
SENDER = SENDERS[0]
ROOTS = (
    st.just(0)
    | IDS
    | MEMBERS
    | st.lists(IDS | MEMBERS, min_size=2, max_size=4, unique=True).map(tuple)
)
ROW: list[Any] = ["failed", "no", "bolt", 3, "host", "node:1", 5, 0, "", {}]


def failed(text: str) -> Failure:
    return Failure(FailureKind.FAILED, text, "bolt", 3, traceback="frames", waited_ms={"tree": 5})


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(st.data())
def test_rows_come_back_as_they_went(data: st.DataObject) -> None:
    width, count = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 6))
    is_tracked = data.draw(st.booleans())
    rows = [
        (
            tuple(CODEC.normalise(data.draw(values)) for _ in range(width)),
            data.draw(ROOTS) if is_tracked else 0,
            data.draw(st.sampled_from(SENDERS)),
        )
        for _ in range(count)
    ]
    drawn: list[Any] = []

    def draw(roots: Any) -> int:
        drawn.append(list(roots))
        return 5

    found = frames.decode(
        CODEC, frames.encode_rows(CODEC, "words", 1234, rows, draw if is_tracked else None, 99)
    )
    assert isinstance(found, RowFrame)
    assert (found.stream, found.oldest_ms, found.origin, len(found)) == ("words", 1234, 99, count)
    assert found.values == [row for row, _, _ in rows]
    assert found.roots == [roots for _, roots, _ in rows]
    senders = found.senders * count if len(found.senders) == 1 else found.senders
    assert senders == [source.task for _, _, source in rows]
    last = {
        tracked(root): place
        for place, (_, roots, _) in enumerate(rows)
        for root in each_root(roots)
        if root
    }
    assert found.edge == (5 if last else 0) and bool(drawn) == bool(last)
    if drawn and found.root_runs is not None:
        assert sorted(drawn[0]) == sorted(last) and list(found.root_runs.distinct()) == drawn[0]
        assert found.root_runs.ends() == sorted(last.items(), key=lambda end: end[1])


@given(
    st.lists(st.tuples(IDS, IDS, st.integers(1, 2**31 - 1)), max_size=5),
    st.lists(st.tuples(IDS, IDS), max_size=5),
    st.dictionaries(IDS, st.text("abc'\n é", max_size=9).map(failed), max_size=3),
    st.lists(IDS, max_size=3),
)
@settings(max_examples=examples(50), deadline=None, derandomize=True)
def test_acker_messages_and_verdicts_come_back_as_they_went(
    inits: list[tuple[int, int, int]],
    acks: list[tuple[int, int]],
    failures: dict[int, Failure],
    renewed: list[int],
) -> None:
    roots, values, tasks = ([init[n] for init in inits] for n in range(3))
    acked, edges = ([ack[n] for ack in acks] for n in range(2))
    sent = AckerMessages(roots, values, tasks, acked, edges, failures, renewed, 77)
    found = frames.decode(CODEC, frames.encode_messages(CODEC, sent))
    assert isinstance(found, AckerMessages)
    for name in ("init_roots", "init_values", "init_tasks", "ack_roots", "ack_values"):
        assert list(getattr(found, name)) == list(getattr(sent, name))
    assert (found.failures, found.oldest_ms) == (failures, 77) and list(found.renewed) == renewed
    assert len(found) == len(inits) + len(acks) + len(failures) + len(renewed)
    verdicts = SettledRoots([a[0] for a in acks], failures, 78, renewed, [a[1] for a in acks])
    assert frames.decode(CODEC, frames.encode_settled(CODEC, verdicts)) == verdicts
    assert len(verdicts) == len(acks) + len(failures) + len(renewed)


def test_multi_anchored_untracked_and_single_roots_share_a_frame() -> None:
    roots: list[Roots] = [(5, 6), 0, 7, (8, 9, 2**63 - 1)]
    rows: list[frames.Row] = [((n,), root, SENDER) for n, root in enumerate(roots)]
    found = frames.decode(CODEC, frames.encode_rows(CODEC, "s", 0, rows, lambda roots: 1))
    assert isinstance(found, RowFrame)
    assert found.roots == roots


def test_a_block_of_many_senders_names_the_sender_of_each_row() -> None:
    senders = [Source("component", task, "words", ("field",)) for task in range(400)]
    rows: list[frames.Row] = [((n,), 0, senders[(n * 7) % 400]) for n in range(1000)]
    found = frames.decode(CODEC, frames.encode_rows(CODEC, "s", 0, rows))
    assert isinstance(found, RowFrame) and found.senders == [(n * 7) % 400 for n in range(1000)]


def test_the_kind_of_a_frame_shows_without_decoding_it() -> None:
    assert frames.kind_of(a_frame()) == frames.ROWS
    assert frames.kind_of(frames.encode_messages(CODEC, AckerMessages())) == frames.MESSAGES
    assert frames.kind_of(frames.encode_settled(CODEC, SettledRoots([], {}))) == frames.SETTLED


def test_the_birth_of_a_frame_shows_without_decoding_it() -> None:
    assert frames.birth_of(a_frame()) == 99
    assert frames.birth_of(frames.encode_messages(CODEC, AckerMessages(oldest_ms=2**50))) == 2**50
    assert frames.birth_of(frames.encode_settled(CODEC, SettledRoots([], {}, 7))) == 7
    assert [frames.birth_of(data) for data in (b"", b"SF\x04\x01", bytes(20))] == [None] * 3


# -- hostile bytes


def a_frame() -> bytes:
    rows: list[frames.Row] = [
        (
            (f"word{n}", n, [n, None], {"k": 1.5}, Point(1.0, 2.0)),
            (n, n + 1) if n % 3 == 0 else n,
            SENDERS[n % 2],
        )
        for n in range(1, 9)
    ]
    return frames.encode_rows(CODEC, "words", 99, rows, lambda roots: 5)


ONE, TOO_LARGE = struct.pack("<Q", 1), struct.pack("<Q", 1 << 63)


def framed(kind: int, body: Any) -> bytes:
    return (
        b"SF"
        + bytes((frames.VERSION, kind))
        + bytes(8)
        + ormsgpack.packb(body, option=ormsgpack.OPT_NON_STR_KEYS)
    )


def rows_body(**changes: Any) -> bytes:
    fields = {
        "origin": 3,
        "edge": 7,
        "stream": "s",
        "senders": [1],
        "numbers": b"",
        "count": 2,
        "columns": [["a", "b"]],
        "roots": ONE * 2,
        "lengths": b"",
        "several": None,
    } | changes
    return framed(frames.ROWS, list(fields.values()))


def messages_body(**changes: Any) -> bytes:
    fields = {
        "init_roots": b"",
        "init_values": b"",
        "init_tasks": b"",
        "ack_roots": ONE,
        "ack_values": bytes(8),
        "failures": [],
        "renewed": b"",
    } | changes
    return framed(frames.MESSAGES, list(fields.values()))


def test_the_crafted_bodies_are_sound_before_they_are_spoilt() -> None:
    assert isinstance(frames.decode(CODEC, rows_body()), RowFrame)
    assert isinstance(frames.decode(CODEC, messages_body()), AckerMessages)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "begins with b''"),
        (b"SF", "not a frame"),
        (b"PK\x03\x04rest", "begins with b'PK"),
        (b"SF\x01\x01" + bytes(8) + b"\x90", "not a frame of version 4"),
        (b"SF\x04\x05" + bytes(8) + b"\x90", "not a frame"),
        (b"SF\x04\x01" + bytes(7), "not a frame"),
        (b"SF\x04\x01" + bytes(8), "not a packed value"),
        (framed(frames.ROWS, {"a": 1}), "not a list"),
        (framed(frames.ROWS, [1, 2]), "not enough values"),
        (framed(frames.ROWS, list(range(20))), "too many values"),
        (rows_body(origin="1"), "source"),
        (rows_body(origin=True), "source"),
        (rows_body(stream=b"s"), "source"),
        (rows_body(edge=-1), "an edge id is not between"),
        (rows_body(edge=1 << 63), "an edge id is not between"),
        (rows_body(edge=True), "an edge id is not between"),
        (rows_body(senders=[1, 2]), "other senders"),
        (rows_body(senders=[]), "other senders"),
        (rows_body(senders=["1"]), "not tasks"),
        (rows_body(senders=1), "not tasks"),
        (rows_body(numbers=[0, 0]), "not tasks"),
        (rows_body(numbers=b"\0\0"), "of which there is one"),
        (rows_body(senders=[1, 2], numbers=b"\0\0\1"), "other senders"),
        (rows_body(senders=[1, 2], numbers=b"\0\2"), "other senders"),
        (rows_body(senders=list(range(300)), numbers=b"\0\0\0"), "16-bit"),
        (rows_body(count=0), "claims 0 rows"),
        (rows_body(count=-1), "claims -1 rows"),
        (rows_body(count=True), "claims True rows"),
        (rows_body(count=2**40, columns=[]), "claims 1099511627776 rows"),
        (rows_body(columns=[["a"]]), "uneven"),
        (rows_body(columns=[["a", "b"], []]), "uneven"),
        (rows_body(columns=["ab"]), "uneven"),
        (rows_body(columns=None), "uneven"),
        (rows_body(roots=bytes(15)), "64-bit"),
        (rows_body(roots=bytes(24)), "other rows than it claims"),
        (rows_body(roots=[1, 2]), "64-bit"),
        (rows_body(roots=b""), "an edge without roots"),
        (rows_body(edge=0), "roots without an edge"),
        (rows_body(edge=0, roots=b"", several={}), "anchors without an edge"),
        (rows_body(lengths=b"abc"), "32-bit"),
        (rows_body(lengths=[1, 1]), "32-bit"),
        (rows_body(lengths=struct.pack("<II", 2, 0)), "other rows than it claims"),
        (rows_body(lengths=struct.pack("<I", 2)), "other rows than it claims"),
        (rows_body(lengths=struct.pack("<II", 1, 0xFFFFFFFF)), "other rows than it claims"),
        (rows_body(several=[1]), "not a mapping"),
        (rows_body(several={2: ONE * 2}), "outside the rows"),
        (rows_body(several={-1: ONE * 2}), "outside the rows"),
        (rows_body(several={"0": ONE * 2}), "outside the rows"),
        (rows_body(several={0: b""}), "without a root"),
        (rows_body(several={0: 5}), "64-bit"),
        (rows_body(several={0: bytes(8) + ONE}), "an anchor is not between 1"),
        (rows_body(several={0: ["a", "b"]}), "64-bit"),
        (messages_body(ack_values=b""), "uneven"),
        (messages_body(init_roots=ONE), "uneven"),
        (messages_body(init_tasks="text"), "64-bit"),
        (messages_body(failures={}), "tracebacks, rows and places"),
        (messages_body(failures=[[], [], {1: 0}]), "a root has no failure"),
        (messages_body(failures=[[""], [ROW], {"1": 0}]), "by root"),
        (messages_body(failures=[[""], [ROW], {0: 0}]), "by root"),
        (messages_body(failures=[[""], [ROW], {1 << 63: 0}]), "by root"),
        (messages_body(failures=[[""], [ROW[:-1]], {1: 0}]), "is no failure"),
        (messages_body(failures=[[1], [ROW], {1: 0}]), "is no failure"),
        (messages_body(failures=[[""], [["exploded", *ROW[1:]]], {1: 0}]), "exploded"),
        (
            messages_body(failures=[[""], [[*ROW[:-1], {"tree": "long"}]], {1: 0}]),
            "no times by place",
        ),
        (messages_body(ack_roots=bytes(8)), "a root is not between 1"),
        (messages_body(ack_roots=TOO_LARGE), "a root is not between 1"),
        (messages_body(ack_values=TOO_LARGE), "a value is not between 0"),
        (
            messages_body(init_roots=bytes(8), init_values=ONE, init_tasks=ONE),
            "a root is not between 1",
        ),
        (
            messages_body(init_roots=TOO_LARGE, init_values=ONE, init_tasks=ONE),
            "a root is not between 1",
        ),
        (
            messages_body(init_roots=ONE, init_values=TOO_LARGE, init_tasks=ONE),
            "a value is not between 0",
        ),
        (
            messages_body(init_roots=ONE, init_values=ONE, init_tasks=TOO_LARGE),
            "a spout task is not between 0",
        ),
        (
            messages_body(
                init_roots=ONE, init_values=ONE, init_tasks=(2**31).to_bytes(8, "little")
            ),
            "a spout task is above",
        ),
        (rows_body(roots=ONE + TOO_LARGE), "a root is not between 0"),
        (rows_body(several={0: TOO_LARGE}), "an anchor is not between 1"),
        (
            frames.encode_rows(Codec(), "s", 0, [((1,), 0, SENDER)] * 2).replace(
                b"SF\x04\x01", b"SF\x04\x04"
            ),
            "one row",
        ),
        (framed(frames.SETTLED, [bytes(8), [], b"", b""]), "a root is not between 1"),
        (framed(frames.SETTLED, [b"", [], b"", b"", 1]), "too many"),
        (framed(frames.SETTLED, [bytes(9), [], b"", b""]), "64-bit"),
        (framed(frames.SETTLED, None), "not a list"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bytes_that_are_no_frame_are_refused_with_the_reason(data: bytes, complaint: str) -> None:
    with pytest.raises(MalformedFrameError, match=complaint):
        frames.decode(CODEC, data)


@pytest.mark.slow
def test_a_hundred_thousand_spoilt_frames_raise_nothing_but_malformed_frame_error() -> None:
    chance = random.Random(20)
    two, one = [1, 2], [3]
    sound = [
        a_frame(),
        frames.encode_settled(CODEC, SettledRoots([5, 6], {7: failed("late"), 8: failed("no")})),
        messages_body(),
        frames.encode_messages(CODEC, AckerMessages(two, two, two, one, one, {9: failed("why")})),
        rows_body(),
    ]
    refused = 0
    for _ in range(100_000):
        try:
            frames.decode(CODEC, spoilt(chance, chance.choice(sound)))
        except MalformedFrameError:
            refused += 1
    assert 50_000 < refused < 100_000


def spoilt(chance: random.Random, data: bytes) -> bytes:
    """Cut off, overwritten at some places behind the head, or random from the body on."""
    way = chance.random()
    if way < 0.2:
        return data[: chance.randrange(len(data))]
    if way < 0.3:
        return data[:12] + chance.randbytes(chance.randrange(40))
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        place = chance.randrange(12, len(changed))
        changed[place] = chance.choice((chance.randrange(256), 0xDD, 0xDF, 0xC6, 0xC9, 0xFF))
    return bytes(changed)


@pytest.mark.parametrize(
    "header",
    [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"],
    ids=["array", "map", "text", "bytes", "ext"],
)
def test_a_length_that_is_claimed_is_not_allocated(header: bytes) -> None:
    data = b"SF\x04\x01" + bytes(8) + b"\x98" + header + b"\xff\xff\xff\xff" + b"\x01"
    tracemalloc.start()
    with pytest.raises(MalformedFrameError):
        frames.decode(CODEC, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_frame_above_the_limit_is_refused_before_it_is_opened() -> None:
    with pytest.raises(MalformedFrameError, match="the limit is 67108864"):
        frames.decode(CODEC, bytes(frames.MAX_FRAME_BYTES + 1))


def nested_in_extensions(levels: int) -> bytes:
    data = b"\xc0"
    for _ in range(levels):
        body = b"\x92\xa7complex" + data
        data = b"\xc9" + len(body).to_bytes(4, "big") + b"\x01" + body
    return data


@pytest.mark.parametrize(
    "body", [b"\x91" * 100_000 + b"\xc0", nested_in_extensions(20_000)], ids=["lists", "extensions"]
)
def test_endless_nesting_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        frames.decode(CODEC, b"SF\x04\x01" + body)


def test_a_frame_that_would_fill_the_memory_is_refused_before_it_is_unpacked() -> None:
    count = 5 << 20
    data = (
        b"SF\x04\x01"
        + bytes(8)
        + b"\x97\x01\xa1s\x01\x91\x91\xdd"
        + count.to_bytes(4, "big")
        + b"\x90" * count
    )
    with pytest.raises(
        MalformedFrameError, match="would take more than 384 MiB of memory; divide them"
    ):  # else: the rest is missing
        frames.decode(CODEC, data)


@pytest.mark.parametrize(("unit", "weight"), [
    (b"\x90", 88), (b"\x80", 88), (b"\x91\x01", 98), (b"\xdc\x00\x00", 88), (b"\xdf\x00\x00\x00\x00", 88), (b"\xe0", 40),
    (b"\xa2\x90\x90\x90", 170), (b"\xc4\x01\x90\x80", 169), (b"\xc7\x01\x01\x90", 344), (b"\xd4\x01\x90", 344), (b"\xc0", 10),
    (b"\xcb" + b"\x90" * 8 + b"\x90", 128), (b"\x82\x01\x02\x03\xe0", 184 + 2 * 68 + 70), (b"\xd4\x06\x91\xe0", 256 + 88 + 40),
])  # fmt: skip
def test_values_are_weighed_whatever_lies_between_them(unit: bytes, weight: int) -> None:
    data = b"\xdd\x00\x00\x10\x00" + unit * 999
    require_bounded(data, 88 + 999 * weight)
    assert weigh(data, 1 << 60) == 88 + 999 * weight


def test_large_texts_and_bytes_are_no_lists_whatever_their_bytes_look_like() -> None:
    row: frames.Row = (("привет " * 400_000, b"\x90" * (6 << 20)), 0, SENDER)
    data = frames.encode_rows(CODEC, "s", 0, [row])
    found = frames.decode(CODEC, data)
    assert isinstance(found, RowFrame) and found.values == [row[0]]


@given(st.lists(values, max_size=4))
def test_a_replayed_row_reads_back_as_one_row_of_no_tree(row: list[Any]) -> None:
    found = frames.decode(Codec(), frames.encode_replayed(Codec(), 7, "default", 123, row))
    assert isinstance(found, frames.RowFrame) and found.is_replayed
    assert found.senders == [7]
    assert found.stream == "default"
    assert found.oldest_ms == 123
    assert found.roots == [0]
    assert found.edge == 0
    assert len(found) == 1 and found.values == [tuple(map(CODEC.normalise, row))]
