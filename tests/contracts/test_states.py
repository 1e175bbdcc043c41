"""Checks that a state of either backend, on the local store and on a real Redis, is a mapping that
survives its owners.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from sparkstorm.client import task_records as kept_module
from sparkstorm.client.task_records import stored_task
from sparkstorm.common.errors import CodecError, StoreInconsistentError
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.lazy_state import LazyState, UnreadableStateError, surfacing
from sparkstorm.data_plane.executor.state import MemoryState, noting
from sparkstorm.data_plane.task_kit import journal as journals
from sparkstorm.data_plane.task_kit.journal import Journal
from sparkstorm.data_plane.transport import state_base
from sparkstorm.data_plane.transport.base import Commit
from sparkstorm.data_plane.worker.tasks.states import TaskBase
from tests.contracts.benches import Bench

CODEC = Codec()
TASK = 7


class Owner:
    """Owner of one task with a state: commits as a worker does."""

    def __init__(self, bench: Bench, backend: str, token: int = 1, most: int = 4) -> None:
        self.transport = bench.open()
        self.token, self.most, self.backend = token, most, backend
        claim = self.transport.claim("o", {TASK: token})
        self.generation, self.seq = claim.generation, claim.seq
        self.journal = Journal(TASK, CODEC)
        fields = list(self.journal.read(claim.record_by_task[TASK]))
        self.entries = len(fields)
        if backend == "lazy":
            self.state: MemoryState = LazyState(CODEC, TaskBase(self.transport, "t", TASK), most)
            self.journal.lazy = self.state
        else:
            self.state = MemoryState(CODEC)
        for each in fields:
            self.state.load(each.get("s", ()), each.get("d", ()))
        if isinstance(self.state, LazyState):
            self.state.resume(next((each["n"] for each in reversed(fields) if "n" in each), None))

    def commit(self) -> None:
        commit = Commit("o", {TASK: self.token}, self.generation, self.seq + 1)
        if self.state.undo:
            pairs, gone = self.state.take_changes()
            delta = {"s": pairs, "d": gone, **self.state.marks()}
            self.journal.write(commit, delta, lambda: (self.state.marks(), {"s": self.state}))
        self.transport.commit(commit)
        self.seq += 1


@pytest.fixture
def small_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_SWEEP_FROM_BYTES", 60)
    monkeypatch.setattr(journals, "_SWEEP_BYTES", 10)
    monkeypatch.setattr(journals, "_SWEEP_KEYS", 3)


KEYS = [*range(8), "a", "ü", b"b", ("a", 1), ("a", "1"), Decimal("1.5"), UUID(int=3), None]
FORMS = [1, True, 1.0, Decimal("1.0"), 2, 2.0, ("a", 1), ("a", True), "a", "b", b"c"]
"""Keys of which some are equal: of those a dict keeps the first one."""


def change(
    chance: random.Random, state: MemoryState, model: dict[Any, Any], keys: list[Any]
) -> None:
    """Apply a change, or none, to both."""
    key, kind = chance.choice(keys), chance.randrange(8)
    if kind < 3:
        value: Any = chance.choice([1, "text", [1, {"a": 2}], 2.5])
        state.put(key, value)
        model[key] = value
    elif kind < 5 and type(model.get(key, 0)) in (int, float):
        assert state.add(key, 2) == model.get(key, 0) + 2
        model[key] = model.get(key, 0) + 2
    elif kind == 5:
        state.delete(key)
        model.pop(key, None)
    elif kind == 6 and key in model:
        del state[key]
        del model[key]
    else:
        assert (key in state) is (key in model)
        assert state.get(key, "none") == model.get(key, "none")


def look(state: MemoryState, model: dict[Any, Any]) -> None:
    assert len(state) == len(model)
    assert dict(state.items()) == model
    assert sorted(map(repr, state)) == sorted(map(repr, model))
    assert all(state[key] == value for key, value in model.items())


@pytest.mark.parametrize("backend", ["memory", "lazy"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("keys", [KEYS, FORMS], ids=["keys", "forms"])
def test_any_history_of_changes_failures_commits_and_deaths_gives_the_mapping(
    bench: Bench, backend: str, seed: int, keys: list[Any], small_sweeps: None
) -> None:
    chance = random.Random(seed)
    model: dict[Any, Any] = {}
    committed: dict[Any, Any] = {}
    owner = Owner(bench, backend)
    for token in range(2, 30):
        for _ in range(chance.randrange(12)):
            for _ in range(chance.randrange(10)):
                change(chance, owner.state, model, keys)
            if chance.random() < 0.4:  # a call fails
                mark, before = len(owner.state.undo), dict(model)
                for _ in range(6):
                    change(chance, owner.state, model, keys)
                owner.state.roll_back(mark)
                model = before
            if chance.random() < 0.2:
                look(owner.state, model)
            if chance.random() < 0.7:
                owner.commit()
                committed = dict(model)
        model = dict(committed)
        owner = Owner(bench, backend, token)  # the one before has died
        if chance.random() < 0.5:
            look(owner.state, model)


def test_a_state_of_the_memory_backend_goes_on_as_a_lazy_one(
    bench: Bench, small_sweeps: None
) -> None:
    first = Owner(bench, "memory")
    for key in range(100):
        first.state.put(key, "x")
        first.commit()
    second = Owner(bench, "lazy", 2)
    assert len(second.state) == 100
    second.state.delete(0)
    second.commit()
    look(Owner(bench, "lazy", 3).state, dict.fromkeys(range(1, 100), "x"))


def test_a_restart_reads_a_journal_in_proportion_to_changes_and_memory_is_bounded(
    bench: Bench,
) -> None:
    owner = Owner(bench, "lazy", most=100)
    for first in range(0, 20_000, 500):
        owner.state.add_batch(list(range(first, first + 500)))
        owner.commit()
    for key in range(20_000):
        assert owner.state.add(key % 10) is not None
        if key % 1000 == 0:
            owner.commit()
    owner.commit()
    restarted = Owner(bench, "lazy", 2, most=100)
    assert restarted.entries < 400
    state: Any = restarted.state
    assert len(state) == 20_000
    for key in range(5_000, 6_000):
        assert state.get(key) == 1
    assert len(state._data) + len(state._former) + len(state._absent) <= 200
    assert sum(value for _, value in state.items()) == 40_000


def test_keys_that_do_not_change_are_set_aside_and_stay_in_memory(bench: Bench) -> None:
    state: Any = Owner(bench, "lazy", most=400).state
    state.add_batch(list(range(100)))
    state.take_changes()
    state.delete(50)
    for _ in range(100):
        state.add_batch(list(range(10)))
        state.take_changes()
    assert len(state._data) == 10 and len(state._former) > 80
    state._base = None  # every key is found without it
    assert [state.get(key) for key in (9, 10, 50, 99)] == [101, 1, None, 1]
    assert len(state) == 99


@pytest.mark.parametrize("backend", ["memory", "lazy"])
def test_a_batch_of_several_columns_adds_under_tuples(bench: Bench, backend: str) -> None:
    owner = Owner(bench, backend)
    keys = pa.table({"user": [1, 2, 1], "day": ["a", "b", "a"]})
    owner.state.add_batch(keys, pa.array([1, 2, 3]))
    owner.state.add_batch(keys.to_batches()[0])
    owner.commit()
    look(owner.state, {(1, "a"): 6, (2, "b"): 3})


@pytest.mark.parametrize("backend", ["memory", "lazy"])
def test_amounts_of_numpy_are_plain_numbers_and_others_are_refused_by_name(
    bench: Bench, backend: str
) -> None:
    state: Any = Owner(bench, backend).state
    assert state.add("a", np.int64(2**62)) == 2**62
    assert state.add("a", np.int64(2**62)) == 2**63  # numpy's own sum wraps around
    assert state.add("b", np.float32(0.5)) == state.add("b", np.array(0)) == 0.5
    state.add_batch(["c", "d"], np.array([1, 2]))
    state.add_batch(["c", "d"], np.int64(1))
    state.add_batch(["e", "f"], Decimal("1.5"))
    found = {"a": 2**63, "b": 0.5, "c": 2, "d": 3, "e": Decimal("1.5"), "f": Decimal("1.5")}
    look(state, found)
    assert all(type(state.get(key)) is type(value) for key, value in found.items())
    for amounts, said in (
        (None, "add_batch: the amounts are None; give a number, or a list of one number for each"),
        (np.array([[1]]), r"state key 'x': \[1\] is no number"),
        (np.array(["y"]), "state key 'x': 'y' is no number"),
    ):
        with pytest.raises(CodecError, match=said):
            state.add_batch(["x"], amounts)
    look(state, found)


def test_keys_that_compare_equal_are_one(bench: Bench, small_sweeps: None) -> None:
    berlin = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    usual = datetime(2026, 10, 25, 5, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    west = ZoneInfo("America/New_York")
    pairs = [
        (1, 1.0),
        (1, True),
        (1, Decimal("1.0")),
        (0.5, Decimal("0.50")),
        (Decimal("1E+999999999999"), Decimal("10E+999999999998")),
        (berlin, datetime(2026, 1, 1, tzinfo=UTC)),
        (usual, usual.replace(fold=1)),
        (datetime.max.replace(tzinfo=west), datetime.max.replace(tzinfo=west, fold=1)),
    ]
    for token, (one, other) in enumerate(pairs, 1):
        for backend in ("lazy",):
            owner = Owner(bench, backend, token)
            owner.state.put(one, token)
            owner.state.put((one, "x"), token)
            for _ in range(30):  # until it is in the base
                owner.state.add("n")
                owner.commit()
            found = Owner(bench, backend, token).state
            assert found.get(other) == found.get((other, "x")) == token


TWICE = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
MISSED = datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize("backend", ["memory", "lazy"])
@pytest.mark.parametrize("first", [TWICE, MISSED], ids=["twice", "missed"])
@pytest.mark.parametrize("make", [lambda at: at, lambda at: ("day", at)], ids=["alone", "part"])
def test_times_with_two_offsets_are_two_keys(
    bench: Bench, backend: str, first: datetime, make: Any, small_sweeps: None
) -> None:
    one, other = make(first), make(first.replace(fold=1))
    owner = Owner(bench, backend)
    owner.state.put(one, 1)
    assert other not in owner.state and owner.state.get(other) is None
    assert owner.state.add(other) == 1 and owner.state.add(other) == 2
    owner.state.add_batch([other, one], [10, 20])
    for _ in range(30):  # until both are in the base
        owner.state.add("n")
        owner.commit()
    state = Owner(bench, backend, 2).state
    assert (state[one], state[other], len(state)) == (21, 12, 3)
    assert state.add(other, 5) == 17
    with noting(state, {}):
        state.get(other)
        assert [value for _, value in state.pairs(state.used or ())] == [17]
    mark = len(state.undo)
    del state[other]
    assert other not in state and state[one] == 21
    state.roll_back(mark)
    assert (state[one], state[other]) == (21, 17)
    result = [value for _, value in state.scan(make(first), None)][:2]
    assert result == ([21, 17] if first == TWICE else [21])


def test_a_time_that_comes_twice_equals_none_of_another_zone(
    bench: Bench, small_sweeps: None
) -> None:
    """As in a dict, though their hashes are equal (PEP 495)."""
    berlin = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    other = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert berlin != other and hash(berlin) == hash(other)
    owner = Owner(bench, "lazy")
    owner.state.put(berlin, 1)
    owner.state.put(other, 2)
    for _ in range(30):  # until both are in the base
        owner.state.add("n")
        owner.commit()
    found = Owner(bench, "lazy", 2).state
    assert (found.get(berlin), found.get(other)) == (1, 2)


def test_a_block_of_keys_is_read_at_once_and_a_changed_one_is_not_overwritten(
    bench: Bench, small_sweeps: None
) -> None:
    owner = Owner(bench, "lazy")
    owner.state.add_batch(list(range(50)))
    for _ in range(60):
        owner.state.add("n")
        owner.commit()
    state: Any = Owner(bench, "lazy", 2, most=1000).state
    state.add(3)
    reads: list[int] = []

    class Counting:
        base: TaskBase = state._base

        def read(self, keys: list[bytes]) -> list[bytes | None]:
            reads.append(len(keys))
            return self.base.read(keys)

    state._base = Counting()
    state.coming = lambda: range(60)
    assert state.get(3) == 2 and not reads, "a key in memory reads nothing"
    assert state.get(49) == 1 and reads == [59], (
        "the first that is missing brings the others of its block"
    )
    assert state.get(59) is None and state.get(48) == 1 and reads == [59]
    assert state.get(70) is None and reads == [59, 1]


def test_a_damaged_value_names_its_key_and_fails_the_worker_not_the_tuple(
    bench: Bench, small_sweeps: None
) -> None:
    owner = Owner(bench, "lazy")
    commit = Commit("o", {TASK: 1}, 0, owner.seq + 1, state=[(TASK, CODEC.pack("k"), b"\xc1")])
    owner.transport.commit(commit)
    for look_up in (lambda: owner.state.get("k"), lambda: dict(owner.state.items())):
        with pytest.raises(UnreadableStateError):
            look_up()
        with (
            pytest.raises(StoreInconsistentError, match=r"\{t\}:state:7:\* in Redis is damaged"),
            surfacing(),
        ):
            look_up()
    assert not issubclass(UnreadableStateError, Exception)


def test_a_state_is_not_gone_through_beyond_a_commit_that_changes_it(
    bench: Bench, small_sweeps: None
) -> None:
    owner = Owner(bench, "lazy")
    for key in range(40):
        owner.state.put(key, "x")
        owner.commit()
    going = owner.state.items()
    next(going)
    owner.state.put(1, "y")
    owner.commit()
    with pytest.raises(RuntimeError, match="beyond the call"):
        list(going)


def test_used_keys_are_noted_and_bad_keys_refused(bench: Bench) -> None:
    state = Owner(bench, "lazy").state
    used: dict[Any, None] = {}
    with noting(state, used):
        state.add("a")
        state.get("b")
        assert "c" not in state
    assert list(used) == ["a", "b", "c"] and type(state) is LazyState
    for key, said in (
        (float("nan"), "NaN"),
        (frozenset({1}), "a state key holds a frozenset"),
        ("\ud800", "surrogates"),
    ):
        with pytest.raises(CodecError, match=said):
            state.get(key)
    with pytest.raises(CodecError, match="NaN"):
        Owner(bench, "memory", 2).state.put(("a", float("nan")), 1)


class Disturbed:
    """Reader whose topology goes on whenever a part of a base is read."""

    def __init__(self, bench: Bench, go_on: Any) -> None:
        self._reader, self._go_on = bench.reader(), go_on
        self.record, self.progress = self._reader.record, self._reader.progress

    def scan_state(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        for part in self._reader.scan_state(task):
            for pair in part:
                yield [pair]
                self._go_on()


@pytest.mark.parametrize(("commits", "is_possible"), [(1, True), (100, False)])
@pytest.mark.sampled(2)
def test_a_state_is_read_as_of_one_commit_while_it_changes(
    bench: Bench,
    commits: int,
    is_possible: bool,
    small_sweeps: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each commit moves one from a key to another: the sum is the same as of any commit."""
    monkeypatch.setattr(state_base, "_PAIRS_OF_A_SCAN", 1)
    monkeypatch.setattr(kept_module, "_PARTS_PER_LOOK", 1)
    monkeypatch.setattr(kept_module, "_TRIES", 2)
    monkeypatch.setattr(journals, "_SWEEP_FROM_BYTES", 600)
    chance, owner, seen = random.Random(5), Owner(bench, "lazy", most=40), []
    owner.state.add_batch(list(range(20)), 100)

    def go_on() -> None:
        for _ in range(commits):
            owner.state.add(chance.randrange(20), -1)
            owner.state.add(chance.randrange(30), 1)
            owner.commit()
        seen.append(dict(owner.state.items()))

    for _ in range(200 // commits):
        go_on()
    reader: Any = Disturbed(bench, go_on)
    if not is_possible:
        with pytest.raises(StoreInconsistentError, match="changes faster than it can be read"):
            stored_task(reader, TASK)
        return
    found = dict(stored_task(reader, TASK).state.items())
    assert sum(found.values()) == 2000 and found == seen[-1]


@pytest.mark.parametrize("backend", ["memory", "lazy"])
def test_keys_are_scanned_in_order(bench: Bench, backend: str, small_sweeps: None) -> None:
    owner = Owner(bench, backend)
    keys = [
        3,
        True,
        2.5,
        "b",
        "ab",
        "a",
        b"x",
        ("u", 2),
        ("u", 1),
        ("t", 9, "x"),
        Decimal("-1"),
        None,
        date(2026, 1, 2),
    ]
    for place, key in enumerate(keys):
        owner.state.put(key, place)
        owner.commit()
    state = Owner(bench, backend, 2).state
    state.put("aa", "new")
    state.delete("ab")
    ordered = [
        None,
        Decimal("-1"),
        True,
        2.5,
        3,
        "a",
        "aa",
        "b",
        b"x",
        date(2026, 1, 2),
        ("t", 9, "x"),
        ("u", 1),
        ("u", 2),
    ]
    assert [key for key, _ in state.scan()] == ordered
    assert list(state.scan("a", "b")) == [("a", 5), ("aa", "new")]
    assert [key for key, _ in state.scan(prefix="a")] == ["a", "aa"]
    assert [key for key, _ in state.scan(prefix=("u",))] == [("u", 1), ("u", 2)]
    assert [key for key, _ in state.scan(("u", 2), prefix=("u",))] == [("u", 2)]
    assert [key for key, _ in state.scan(start=2, stop="a")] == [2.5, 3]


@pytest.mark.parametrize("backend", ["memory", "lazy"])
@pytest.mark.parametrize("way", ["get", "items", "scan"])
def test_values_are_handed_out_as_copies_so_that_undo_stays_possible(
    bench: Bench, backend: str, way: str
) -> None:
    owner = Owner(bench, backend)
    owner.state.put("items", [1])
    owner.commit()
    state = owner.state
    handed = state.get("items") if way == "get" else dict(getattr(state, way)())["items"]
    handed.append(2)
    state.put("items", handed)
    state.roll_back(0)
    assert state.get("items") == [1]
