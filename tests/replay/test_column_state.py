"""ColumnState: the same keys and values as MemoryState, whatever the order of calls, with sums kept
as Arrow columns.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.replay.tasks import column_state
from sparkstorm.replay.tasks.column_state import ColumnState


def test_every_method_of_a_memory_state_ends_the_columns_or_knows_them() -> None:
    kind: Any = column_state._Columns
    public = {
        name
        for name, member in vars(MemoryState).items()
        if callable(member) and not name.startswith("_")
    }
    public |= {"__len__", "__contains__", "__iter__", "__getitem__", "__setitem__", "__delitem__"}
    public.remove("is_key")  # looks at the key alone
    public -= {"keep_changes", "holds"}  # of a live bolt's turn; no replay calls them
    assert {
        name for name in public if name not in vars(kind) and name not in vars(ColumnState)
    } == set()


def test_sums_of_batches_come_out_as_columns() -> None:
    state = ColumnState(Codec())
    state.add_batch(pa.table({"user": [1, 2, 1], "word": ["a", "b", "a"]}), pa.array([1, 2, 3]))
    state.add_batch(pa.record_batch({"user": [2], "word": ["b"]}), 5)
    keys: Any
    values: Any
    keys, values = state.columns()
    assert isinstance(keys, pa.StructArray) and values.to_pylist() == [4, 7]
    assert [column.to_pylist() for column in keys.flatten()] == [[1, 2], ["a", "b"]]
    assert dict(state.items()) == {(1, "a"): 4, (2, "b"): 7}
    assert state.columns() == ([(1, "a"), (2, "b")], [4, 7])


@pytest.mark.parametrize(
    ("keys", "amounts"),
    [
        (pa.array([1.5]), 1),
        (pa.array([True]), 1),
        (pa.array(["a", None]), 1),
        (pa.array([2**63], pa.uint64()), 1),
        (pa.array(["a"]), pa.array([0.5])),
        (pa.array(["a"]), 2**70),
        (["a"], 1),
    ],
)
def test_other_types_are_kept_by_key(keys: Any, amounts: Any) -> None:
    state, plain = ColumnState(Codec()), MemoryState(Codec())
    for each in (state, plain):
        each.add_batch(keys, amounts)
    assert type(state) is ColumnState and list(state.items()) == list(plain.items())


def test_a_sum_beyond_64_bits_is_the_one_of_python() -> None:
    state = ColumnState(Codec())
    for _ in range(3):
        state.add_batch(pa.array([7]), 2**62)
    assert state[7] == 3 * 2**62


def test_amounts_of_another_length_are_refused_and_change_nothing() -> None:
    state = ColumnState(Codec())
    state.add_batch(pa.array([1]), 1)
    with pytest.raises(ValueError, match="zip"):
        state.add_batch(pa.array([1, 2]), pa.array([1]))
    assert dict(state.items()) == {1: 1}


@pytest.mark.parametrize("seed", range(60))
def test_any_calls_leave_what_they_leave_in_a_memory_state(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_state, "_FEW_ROWS", 8)
    rng = random.Random(seed)
    state, plain = ColumnState(Codec()), MemoryState(Codec())
    is_tuple = rng.random() < 0.5

    def keys(count: int, kind: pa.DataType) -> Any:
        found = pa.array([rng.randrange(6) for _ in range(count)], pa.int64()).cast(kind)
        return pa.table({"a": found, "b": found}) if is_tuple else found

    def both(call: Any) -> None:
        first, second = call(state), call(plain)
        assert first == second, seed

    for _ in range(40):
        step = rng.random()
        if step < 0.72:
            kind = pa.int64() if rng.random() < 0.97 else pa.string()
            added = keys(rng.randrange(5), kind)
            amounts = rng.choice(
                [1, -3, pa.array([rng.randrange(-5, 5) for _ in range(len(added))], pa.int32())]
            )
            both(lambda each, a=added, n=amounts: each.add_batch(a, n))
        elif step < 0.82:
            for each in (state, plain):
                each.undo.clear()
        elif step < 0.9:
            kept = [len(state.undo), len(plain.undo)]
            added = keys(3, pa.int64())
            both(lambda each, a=added: each.add_batch(a, 2))
            if rng.random() < 0.5:
                both(lambda each: each.add((1, 1) if is_tuple else 1, 4))
            for each, mark in zip((state, plain), kept, strict=True):
                each.roll_back(mark)
        elif step < 0.93:
            both(lambda each: each.get((2, 2) if is_tuple else 2))
        elif step < 0.95:
            both(lambda each: each.delete((3, 3) if is_tuple else 3))
        elif step < 0.97:
            both(lambda each: each.put((4, 4) if is_tuple else 4, 9))
        else:
            both(len)
    assert dict(state.items()) == dict(plain.items()), seed
    assert list(state) == list(plain), seed
