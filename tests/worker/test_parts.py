"""Small parts of the runtime by themselves: edges, back-pressure, births."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence

import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.errors import CodecError, InvalidConfigError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.roots import is_batch, place_of
from sparkstorm.common.model.tasks import number_tasks
from sparkstorm.common.model.tuples import Roots, Source, Tuple, each_root, union_roots
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.connectors.patience import without_password
from sparkstorm.data_plane.acking.new_trees import NewTrees
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.user_traceback import describe_error, failure_of, preparing
from sparkstorm.data_plane.transport.base import Commit, Cursor, Pressure
from sparkstorm.data_plane.transport.frames import RowFrame, decode, encode_rows
from sparkstorm.data_plane.worker.backpressure import Backpressure
from sparkstorm.data_plane.worker.epoch import Epoch, RandomIds, key_source
from sparkstorm.data_plane.worker.tasks.inbox import Chunk, FrameRows, _join_plainly
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.testing import FeederSpout
from tests.worker.building import Pass

CODEC = Codec()
SOURCE = Source("spout", 1, "default", ("value",))


def block_of(roots: list[Roots], epoch: Epoch, codec: Codec = CODEC) -> RowFrame:
    """A block that has left the epoch and was read again."""
    rows = [((n,), root, SOURCE) for n, root in enumerate(roots)]
    frame = decode(
        codec,
        encode_rows(codec, "default", 0, rows, epoch.draw_edge if epoch.is_tracking else None),
    )
    assert isinstance(frame, RowFrame) and frame.roots == roots
    return frame


@pytest.mark.parametrize("roots", [
    [1, 2, 1], [1], [(1, 2), (2, 3), (1, 3)], [(1, 2)], [(1, 2), 3, (1, 2, 3)], [0, 5, 0], [2**63 - 1, 1, 2**63 - 1], [0, 0],
    list(range(1, 100)), [n // 7 for n in range(100)], [7] * 30 + [(7, 8)] * 3 + [9] * 30, [1, 2] * 40,
])  # fmt: skip
def test_a_block_stands_once_in_the_value_of_each_of_its_roots_until_the_last_row_of_the_root(
    roots: list[Roots],
) -> None:
    epoch = Epoch(RandomIds(1), is_tracking=True)
    frame = block_of(roots, epoch)
    waiting = {root: frame.edge for of_row in roots for root in each_root(of_row) if root}
    assert epoch.value_by_root == waiting
    chunk = Chunk("1-0", 10, frame, [((n,), root, SOURCE) for n, root in enumerate(roots)])
    for done in range(1, len(roots) + 1):
        chunk.done = done
        epoch.consume(chunk.take_ended(), chunk.edge)
        left = {root for of_row in roots[done:] for root in each_root(of_row)}
        assert {root for root, value in epoch.value_by_root.items() if value} == left - {0}


@pytest.mark.parametrize("seed", range(40))
def test_a_value_is_zero_when_and_only_when_nothing_of_its_root_waits(seed: int) -> None:
    """Law of edges: blocks with any anchors are cut anywhere, epochs are thrown away, rows are
    held, acked, failed and sent on.
    """
    chance, ids, ledger = random.Random(seed), RandomIds(seed), dict[int, int]()
    blocks: list[tuple[RowFrame, int]] = []  # with the rows that are done
    held: list[tuple[Roots, int]] = []
    failed: set[int] = set()
    made = 6  # blocks that a source makes
    while made or blocks or held:
        epoch = Epoch(ids, is_tracking=True)
        after_blocks, after_held, sent_on = list(blocks), list(held), list[Roots]()
        if made and chance.random() < 0.4:
            sent_on = [anchors(chance) for _ in range(chance.randint(1, 40))]
        elif held and chance.random() < 0.5:
            epoch.let_go(*after_held.pop(0))
        elif blocks:
            frame, done = after_blocks.pop(0)
            chunk = Chunk("1-0", 1, frame, [((0,), root, SOURCE) for root in frame.roots], done)
            chunk.done = chance.randint(done + 1, len(frame))
            for root in frame.roots[done : chunk.done]:
                match chance.randrange(8):
                    case 0:
                        after_held.append((root, epoch.hold(Tuple((0,), root, SOURCE))))
                    case 1 if chance.random() < 0.1:
                        epoch.fail(root, Failure(FailureKind.FAILED, "why"))
                    case 2 | 3:
                        sent_on.append(root)
            epoch.consume(chunk.take_ended(), chunk.edge)
            if chunk.done < len(frame):
                after_blocks.insert(0, (frame, chunk.done))
        if sent_on:
            after_blocks.append((block_of(sent_on, epoch), 0))
        if chance.random() < 0.15:
            continue  # the worker dies before its commit
        made -= bool(made and sent_on)
        blocks, held = after_blocks, after_held
        failed |= set(epoch.failed)
        for root, value in epoch.take_edges().items():
            ledger[root] = ledger.get(root, 0) ^ value
        waiting = {
            root
            for frame, done in blocks
            for of_row in frame.roots[done:]
            for root in each_root(of_row)
        }
        waiting |= {root for of_row, _ in held for root in each_root(of_row)} | failed
        assert {root for root, value in ledger.items() if value} == waiting - {0}


def anchors(chance: random.Random) -> Roots:
    if chance.random() < 0.2:
        return tuple(chance.sample(range(1, 9), chance.randint(2, 3)))
    return chance.randrange(9)


def test_a_failed_tree_never_ends_at_zero() -> None:
    epoch = Epoch(RandomIds(1), is_tracking=True)
    edge = epoch.hold(Tuple((0,), 5, SOURCE))
    epoch.let_go(5, edge)
    assert epoch.value_by_root[5] == 0
    why = Failure(FailureKind.FAILED, "why")
    epoch.fail(5, why)
    epoch.fail(5, Failure(FailureKind.FAILED, "again"))
    assert epoch.take_edges()[5] != 0
    assert epoch.failed == {5: why}


def test_messages_of_a_turn_are_in_batches_of_a_size_and_those_of_a_failed_call_in_none() -> None:
    drawn = itertools.count(1)
    trees = NewTrees(lambda: next(drawn) << 10)
    trees.size = 2

    def emit(*names: str) -> list[int]:
        found = []
        for name in names:
            found.append(trees.next_root())
            trees.ids.append(name)
        return found

    first, second, third = emit("a", "b", "c")
    assert (is_batch(first), second - first, place_of(third)) == (True, 1, 0)
    trees.roll_back(1)
    trees.begin_alone()
    trees.ids.append("d")
    trees.next_root()  # of a message that is not sent
    trees.end_batch()
    (last,) = emit("e")
    found = list(trees.take())
    assert [ids for _, ids in found] == [["a"], ["d"], ["e"]]
    assert [is_batch(root) for root, _ in found] == [True, False, True]
    assert found[0][0] == first
    assert found[2][0] == last
    trees.size = 1
    assert [is_batch(root) for root in emit("f", "g")] == [False, False]
    assert [ids for _, ids in trees.take()] == [["f"], ["g"]] and not list(trees.take())


def test_anchors_are_united_without_repeats_and_untracked_ones() -> None:
    assert [
        union_roots([]),
        union_roots([0]),
        union_roots([4]),
        union_roots([4, 4, 0]),
        union_roots([(4, 5), 5, 6]),
    ] == [
        0,
        0,
        4,
        4,
        (4, 5, 6),
    ]


# -- back-pressure


def back_pressure(high: int = 10_000) -> Backpressure:
    """Of a worker with the tasks a=spout, b, c of a chain a -> b -> c -> b."""
    builder = TopologyBuilder()
    builder.set_spout("a", FeederSpout())
    builder.set_bolt("b", Pass()).shuffle_grouping("a").shuffle_grouping("c")
    builder.set_bolt("c", Pass()).shuffle_grouping("b")
    builder.set_bolt("d", Pass()).shuffle_grouping("c")
    topology = builder.build()
    conf = {"topology.acker.executors": 0, "topology.inbox.high.bytes": high}
    tasks = number_tasks(topology, conf)
    assert tasks == {1: "a", 2: "b", 3: "c", 4: "d"}
    return Backpressure(
        WorkerPlan("t-1-1", topology, tasks, (1, 2, 3, 4), "n:1", {}, conf, lambda c: None)
    )


def shut(found: Backpressure, tasks: Sequence[int] = (1, 2, 3, 4)) -> list[int]:
    return [task for task in tasks if found.holds_back(task)]


def test_a_sender_is_held_back_above_the_mark_and_goes_on_at_half_of_it() -> None:
    found = back_pressure()
    steps = []
    for waiting in (10_000, 10_001, 6_000, 5_001, 5_000, 6_000, 10_001):
        found.note(Pressure({2: waiting}), 0)
        steps.append(shut(found))
    assert steps == [[], [1], [1], [1], [], [], [1]]


def test_edges_inside_a_cycle_never_hold_back_edges_out_of_it_do() -> None:
    found = back_pressure()
    found.note(Pressure({2: 100_000, 3: 100_000}), 0)
    assert shut(found) == [1]
    found.note(Pressure({2: 0, 3: 0, 4: 100_000}), 0)
    assert shut(found) == [3]


def test_a_sender_is_held_back_with_the_receiver_of_its_worker_that_is_held_back() -> None:
    builder = TopologyBuilder()
    builder.set_spout("a", FeederSpout())
    builder.set_bolt("b", Pass(), 2).shuffle_grouping("a")
    builder.set_bolt("c", Pass()).shuffle_grouping("b")
    topology = builder.build()
    conf = {"topology.acker.executors": 0, "topology.inbox.high.bytes": 10_000}
    tasks = {1: "a", 2: "b", 3: "b", 4: "c"}
    for local, held_back in (((1, 2), [1, 2]), ((1,), []), ((2, 3), [2, 3])):
        found = Backpressure(
            WorkerPlan("t-1-1", topology, tasks, local, "n:1", {}, conf, lambda c: None)
        )
        found.note(Pressure({4: 20_000}), 0)
        assert shut(found, local) == held_back


def test_in_a_store_that_is_nearly_full_anything_that_waits_holds_its_senders_back() -> None:
    found = back_pressure()
    found.note(Pressure({2: 1, 4: 1}, fullness=0.85), 0)
    assert shut(found) == [1, 3]
    assert (found.is_store_filling, found.must_ask) == (True, True)
    found.note(Pressure({2: 1, 4: 0}, fullness=0.85), 0)
    assert shut(found) == [1]
    found.note(Pressure({2: 1, 4: 0}, fullness=0.5), 0)
    assert (shut(found), found.is_store_filling, found.must_ask) == ([], False, False)


def test_what_a_commit_frees_is_measured_in_rows() -> None:
    commit = Commit(
        "o",
        {},
        0,
        1,
        cursors={1: Cursor("1-0", 5)},
        frames=[(2, b"x" * 50, 50), (9, b"acks" * 100, 0)],
    )
    assert not commit.frees(49)
    assert commit.frees(50)
    commit.consumed_bytes = 50
    assert commit.frees(0)
    commit.consumed_bytes = 0
    commit.is_urgent = True
    assert commit.frees(0)


def _parse(text: str) -> int:
    return int(json.loads(text)["n"])


@pytest.mark.parametrize(("text", "name"), [("[]", "TypeError"), ("{", "JSONDecodeError")])
def test_an_error_is_shown_with_the_line_of_the_users_file_and_not_of_a_library_it_called(
    text: str, name: str
) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        _parse(text)
    here = _parse.__code__.co_firstlineno + 1
    assert describe_error(raised.value).startswith(f"{name}: ")
    assert describe_error(raised.value).endswith(f" (test_parts.py, line {here})")


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _rows() -> Iterator[int]:
    yield next(iter([]))


def test_errors_without_text_and_of_ended_iterators_are_grouped_by_the_users_line() -> None:
    with pytest.raises(Speechless) as mute:
        raise Speechless
    with pytest.raises(RuntimeError) as ended:
        next(_rows())
    found = failure_of(ended.value)
    assert found.cause.place == f"(test_parts.py, line {_rows.__code__.co_firstlineno + 1})"
    assert "next(iter([]))" in found.traceback
    assert found.cause.error == "RuntimeError"
    assert failure_of(mute.value).cause.error == "Speechless"
    assert failure_of(mute.value).cause.place.startswith("(test_parts.py, line ")


def test_an_error_of_ours_alone_is_shown_without_a_line() -> None:
    with pytest.raises(KeyError) as raised:
        MemoryState(Codec())["k"]
    ours = raised.value.with_traceback(
        raised.value.__traceback__ and raised.value.__traceback__.tb_next
    )
    assert describe_error(ours) == "KeyError: 'k'"


def test_a_sentence_of_a_connector_is_reported_without_frames_of_the_libraries_below_it() -> None:
    reports: list[Failure] = []
    with pytest.raises(InvalidConfigError), preparing("sink", 3, reports.append):
        without_password("http://[", "SqlSink")
    (found,) = reports
    assert found.text.startswith("SqlSink: this is no URL") and "urlsplit" not in found.traceback


def test_state_may_be_used_like_a_dict_and_is_undone_all_the_same() -> None:
    state = MemoryState(Codec())
    state["a"], state["b"] = 1, [2]
    mark = len(state.undo)
    state["b"] += [3]
    state["c"] = 4
    del state["a"]
    assert list(state) == ["b", "c"] and state["b"] == [2, 3] and "a" not in state
    with pytest.raises(KeyError):
        del state["a"]
    state.roll_back(mark)
    assert sorted(state.items()) == [("a", 1), ("b", [2])]


def test_only_numbers_are_added_up() -> None:
    state = MemoryState(Codec())
    assert [
        state.add("n"),
        state.add("n", 1.5),
        state.add("hits", True),
        state.add("hits", True),
    ] == [1, 2.5, True, 2]
    with pytest.raises(CodecError, match=r"state key 'm': 'x' is no number"):
        state.add("m", "x")  # type: ignore[arg-type]
    state.put("text", "x")
    with pytest.raises(CodecError, match=r"state key 'text': 'y' cannot be added to 'x'"):
        state.add("text", "y")  # type: ignore[arg-type]
    assert "m" not in state and state["text"] == "x"


@pytest.mark.parametrize("ackers", [(7,), (7, 8), (7, 8, 9, 10, 11)])
def test_a_root_that_is_alone_goes_to_the_acker_that_it_has_among_others(
    ackers: tuple[int, ...],
) -> None:
    ids = RandomIds(5)
    roots = [ids.root() for _ in range(40)]
    spout_task = 3
    # None: for a message that goes on here, and not one that begins here
    for born in (None, spout_task):
        found = [_messages([root], born, ackers) for root in roots]
        assert [len(each) for each in found] == [1] * len(roots)
        together = _messages(roots, born, ackers)
        for acker, (begun, gone_on) in together.items():
            alone = [each[acker] for each in found if acker in each]
            assert sorted(begun) == sorted(root for each in alone for root in each[0])
            assert sorted(gone_on) == sorted(root for each in alone for root in each[1])
        assert sum(len(begun) + len(gone_on) for begun, gone_on in together.values()) == 40


def _messages(
    roots: Sequence[int], born: int | None, ackers: Sequence[int]
) -> dict[int, tuple[list[tuple[int, int, int]], list[tuple[int, int]]]]:
    """Return what each acker gets of an epoch with an open edge of each root: trees that begin, and
    changes of others.
    """
    epoch = Epoch(RandomIds(1), True)
    for root in roots:
        epoch.consume([root], root ^ 5)
        if born is not None:
            epoch.births[root] = born
    epoch.address(ackers)
    return {
        acker: (
            list(zip(each.init_roots, each.init_values, each.init_tasks, strict=True)),
            list(zip(each.ack_roots, each.ack_values, strict=True)),
        )
        for acker, each in epoch.messages.items()
    }


@pytest.mark.parametrize("senders", [1, 2, 300])
def test_rows_of_a_frame_are_made_when_they_are_asked_for(senders: int) -> None:
    sources = [
        Source("spout", task, "default", ("value", "more")) for task in range(1, senders + 1)
    ]
    made = [((n, "x"), n % 5, sources[n * 7 % senders]) for n in range(700)]
    frame = decode(CODEC, encode_rows(CODEC, "default", 0, made, lambda roots: 3))
    assert isinstance(frame, RowFrame)
    rows = FrameRows(frame, [sources[task - 1] for task in frame.tasks])
    assert len(rows) == 700 and rows[0] == made[0] and rows[-1] == made[-1]
    assert list(rows) == made
    for start, stop in ((0, 700), (0, 0), (3, 4), (690, 700)):
        assert rows[start:stop] == made[start:stop]
        asked = (frame.values, frame.roots, [sources[t - 1] for t in frame.tasks], frame.numbers)
        assert _join_plainly(*asked, start, stop) == made[start:stop]


def test_keys_of_held_inputs_follow_those_that_a_former_worker_has_left() -> None:
    """Seed 709216 of small_flaky_windows: a hot deploy within a second began with an equal token."""
    former = key_source({1: 7}, ())
    left = [former() for _ in range(3)]
    assert left == sorted(left)
    for token in (6, 7, 8):
        new = key_source({1: token, 2: 0}, [*left, "not a key"])
        keys = [new() for _ in range(20)]
        assert keys == sorted(keys) and keys[0] > left[-1]
