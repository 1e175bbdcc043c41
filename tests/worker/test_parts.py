"""Small parts of the runtime by themselves: edges, gates, births."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.errors import CodecError
from sparkstorm.executor.emitter import Emitter
from sparkstorm.executor.runner import BasicCollector, BasicRunner
from sparkstorm.executor.state import MemoryState
from sparkstorm.executor.user_traceback import describe_error
from sparkstorm.model.codec import Codec
from sparkstorm.model.failure import Failure, FailureKind
from sparkstorm.model.tasks import number_tasks
from sparkstorm.model.tuples import Source, Tuple, union_roots
from sparkstorm.testing import FeederSpout
from sparkstorm.transport.base import Commit, Cursor, Pressure
from sparkstorm.worker.backpressure import Backpressure
from sparkstorm.worker.epoch import Epoch, RandomIds, xor_by_root
from sparkstorm.worker.tasks.bolt_task import BoltTask
from sparkstorm.worker.tasks.inbox import Inbox
from sparkstorm.worker.tasks.pending_inputs import PendingInput
from sparkstorm.worker.tasks.task_factory import WorkerPlan
from tests.worker.building import Pass

SOURCE = Source("spout", 1, "default", ("value",))


@pytest.mark.parametrize("roots", [
    [1, 2, 1], [1], [(1, 2), (2, 3), (1, 3)], [(1, 2)], [(1, 2), 3, (1, 2, 3)], [0, 5, 0], [2**63 - 1, 1, 2**63 - 1],
])  # fmt: skip
def test_edges_fold_into_every_root_of_their_row(roots: list[int | tuple[int, ...]]) -> None:
    ids = [7 * (n + 1) for n in range(len(roots))]
    wanted: dict[int, int] = {}
    for root, edge in zip(roots, ids, strict=True):
        for one in root if isinstance(root, tuple) else (root,):
            wanted[one] = wanted.get(one, 0) ^ edge
    found: dict[int, int] = {}
    xor_by_root(found, roots, np.array(ids, np.uint64))
    assert found == wanted


def test_rows_that_leave_together_have_an_edge_each_even_copies_of_one_tuple() -> None:
    epoch = Epoch(RandomIds(1), is_tracking=True)
    edges = epoch.leave([(("copy",), 7)] * 4000 + [(("other",), (7, 8))]).tolist()
    assert len(set(edges)) == 4001 and min(edges) > 0 and max(edges) < 2**63
    value = 0
    for edge in edges:
        value ^= edge
    assert epoch.take_edges() == {7: value, 8: edges[-1]} and value != 0


def test_a_failed_tree_never_ends_at_zero() -> None:
    epoch = Epoch(RandomIds(1), is_tracking=True)
    edges = epoch.leave([(("a",), 5)])
    epoch.consume([5], edges)
    assert epoch.value_by_root[5] == 0
    why = Failure(FailureKind.FAILED, "why")
    epoch.fail(5, why)
    epoch.fail(5, Failure(FailureKind.FAILED, "again"))
    assert epoch.take_edges()[5] != 0
    assert epoch.failed == {5: why}


def test_anchors_are_united_without_repeats_and_untracked_ones() -> None:
    assert [union_roots([]), union_roots([0]), union_roots([4]), union_roots([4, 4, 0]), union_roots([(4, 5), 5, 6])] == [
        0,
        0,
        4,
        4,
        (4, 5, 6),
    ]


# -- gates


def gates(high: int = 10_000) -> Backpressure:
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
    return Backpressure(WorkerPlan("t-1-1", topology, tasks, (1, 2, 3, 4), "n:1", {}, conf, lambda c: None))


def shut(found: Backpressure) -> list[int]:
    return [task for task in (1, 2, 3, 4) if found.is_shut(task)]


def test_a_gate_shuts_above_the_mark_and_opens_at_half_of_it() -> None:
    found = gates()
    steps = []
    for waiting in (10_000, 10_001, 6_000, 5_001, 5_000, 6_000, 10_001):
        found.note(Pressure({2: waiting}))
        steps.append(shut(found))
    assert steps == [[], [1], [1], [1], [], [], [1]]


def test_edges_inside_a_cycle_never_gate_edges_out_of_it_do() -> None:
    found = gates()
    found.note(Pressure({2: 100_000, 3: 100_000}))
    assert shut(found) == [1]
    found.note(Pressure({2: 0, 3: 0, 4: 100_000}))
    assert shut(found) == [3]


def test_in_a_store_that_is_nearly_full_anything_that_waits_shuts_the_gate() -> None:
    found = gates()
    found.note(Pressure({2: 1, 4: 1}, fullness=0.85))
    assert shut(found) == [1, 3]
    assert (found.is_store_filling, found.must_ask) == (True, True)
    found.note(Pressure({2: 1, 4: 0}, fullness=0.85))
    assert shut(found) == [1]
    found.note(Pressure({2: 1, 4: 0}, fullness=0.5))
    assert (shut(found), found.is_store_filling, found.must_ask) == ([], False, False)


def test_what_a_commit_frees_is_measured_in_rows() -> None:
    commit = Commit("o", {}, 0, 1, cursors={1: Cursor("1-0", 5)}, frames=[(2, b"x" * 50, 50), (9, b"acks" * 100, 0)])
    assert not commit.frees(49)
    assert commit.frees(50)
    commit.consumed_bytes = 50
    assert commit.frees(0)
    commit.consumed_bytes = 0
    commit.is_urgent = True
    assert commit.frees(0)


# -- held inputs


def bolt_task() -> BoltTask:
    emitter = Emitter("bolt", {}, is_strict=True)
    runner = BasicRunner(Pass(), emitter, None, BasicCollector(emitter, 2, lambda *_: None))
    inbox = Inbox(2, Codec(), lambda task, stream: SOURCE)
    return BoltTask(2, "bolt", runner, emitter, None, inbox, iter("abcdef").__next__)


def test_the_oldest_birth_counts_held_inputs_until_they_are_let_go() -> None:
    bolt = bolt_task()
    for key, born_ms in (("old", 100), ("young", 300), ("middle", 200)):
        bolt.hold(PendingInput(Tuple((1,), 0, SOURCE), 0, born_ms, key))
    seen = []
    for gone in ("", "young", "old", "middle"):
        if gone:
            bolt.let_go(gone)
        bolt.oldest_ms = 0
        bolt.begin(500)
        seen.append(bolt.oldest_ms)
    assert seen == [100, 100, 200, 500]


def test_due_inputs_are_named_once_and_at_most_as_many_as_wanted() -> None:
    bolt = bolt_task()
    for n, key in enumerate("abc"):
        held = PendingInput(Tuple((n,), 0, SOURCE), 0, 100, key)
        held.due_ms = 10 * n
        bolt.hold(held)
    assert bolt.next_due_ms() == 0
    assert [held.key for held in bolt.due(15, most=1)] == ["a"]
    assert [held.key for held in bolt.due(15)] == ["b"]
    assert bolt.due(15) == []
    assert bolt.next_due_ms() == 20
    assert bolt.waiting_since_ms() == 100


def _parse(text: str) -> int:
    return int(json.loads(text)["n"])


@pytest.mark.parametrize(("text", "name"), [("[]", "TypeError"), ("{", "JSONDecodeError")])
def test_an_error_is_shown_with_the_line_of_the_users_file_and_not_of_a_library_it_called(text: str, name: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        _parse(text)
    here = _parse.__code__.co_firstlineno + 1
    assert describe_error(raised.value).startswith(f"{name}: ") and describe_error(raised.value).endswith(
        f" (test_parts.py, line {here})"
    )


def test_an_error_of_ours_alone_is_shown_without_a_line() -> None:
    with pytest.raises(KeyError) as raised:
        MemoryState(Codec())["k"]
    ours = raised.value.with_traceback(raised.value.__traceback__ and raised.value.__traceback__.tb_next)
    assert describe_error(ours) == "KeyError: 'k'"


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
    assert [state.add("n"), state.add("n", 1.5), state.add("hits", True), state.add("hits", True)] == [1, 2.5, True, 2]
    with pytest.raises(CodecError, match=r"state key 'm': 'x' is no number"):
        state.add("m", "x")  # type: ignore[arg-type]
    state.put("text", "x")
    with pytest.raises(CodecError, match=r"state key 'text': 'y' cannot be added to 'x'"):
        state.add("text", "y")  # type: ignore[arg-type]
    assert "m" not in state and state["text"] == "x"
