"""Checks a journal: whatever was changed and swept, in whatever pieces, its entries tell the state
as it is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.task_kit import journal as journals
from sparkstorm.data_plane.task_kit.journal import Journal, whole_and_deltas
from sparkstorm.data_plane.transport.base import START, Commit, TaskRecord
from tests.tiers import examples

CODEC = Codec()


class Owner:
    """A task with one state, and what the store keeps of it."""

    def __init__(self) -> None:
        self.state = MemoryState(CODEC)
        self.stored: list[bytes] = []
        self.journal = Journal(7, CODEC)
        self.largest = 0

    def commit(self, **more: Any) -> None:
        pairs, gone = self.state.take_changes()
        delta = {**({"s": pairs} if pairs else {}), **({"d": gone} if gone else {}), **more}
        commit = Commit("o", {7: 1}, 0, 1)
        self.journal.write(
            commit, delta, lambda: ({"L": b"whole"} if more else {}, {"s": self.state})
        )
        self.stored += [data for _, data in commit.journal]
        del self.stored[: commit.dropped.get(7, 0)]
        self.largest = max(self.largest, sum(len(data) for _, data in commit.journal))

    def restart(self) -> None:
        former, self.journal, self.state = self.state, Journal(7, CODEC), MemoryState(CODEC)
        for fields in self.journal.read(TaskRecord(START, list(self.stored), {})):
            self.state.load(fields.get("s", ()), fields.get("d", ()))
        assert dict(self.state.items()) == dict(former.items())


step = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 12), st.text(max_size=30)),
    st.tuples(st.just("delete"), st.integers(0, 12)),
    st.just(("commit",)),
    st.just(("restart",)),
)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(step, max_size=80))
def test_entries_tell_the_state_as_it_is_whenever_the_owner_dies(steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(journals, "_SWEEP_FROM_BYTES", 40)
        small.setattr(journals, "_SWEEP_BYTES", 10)
        small.setattr(journals, "_SWEEP_KEYS", 2)
        owner = Owner()
        for kind, *arguments in steps:
            if kind in ("put", "delete"):
                getattr(owner.state, kind)(*arguments)
            else:
                owner.commit()
            if kind == "restart":
                owner.restart()
        owner.commit()
        owner.restart()


def test_each_sweep_of_an_owner_drops_only_what_lies_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals, "_SWEEP_FROM_BYTES", 40)
    monkeypatch.setattr(journals, "_SWEEP_BYTES", 10)
    monkeypatch.setattr(journals, "_SWEEP_KEYS", 2)
    owner, entries = Owner(), list[int]()
    for turn in range(60):
        owner.state.put(turn % 6, f"{turn:020}")
        owner.commit()
        entries.append(len(owner.stored))
        found = MemoryState(CODEC)
        for fields in Journal(7, CODEC).read(TaskRecord(START, list(owner.stored), {})):
            found.load(fields.get("s", ()), fields.get("d", ()))
        assert dict(found.items()) == dict(owner.state.items())
    # several sweeps have ended
    assert sum(after < before for before, after in pairwise(entries)) > 1


@pytest.mark.slow
def test_no_commit_writes_a_large_state_as_a_whole_and_the_journal_stays_in_proportion() -> None:
    owner = Owner()
    for key in range(100_000):
        owner.state.put(key, "x" * 20)
        if key % 500 == 499:
            owner.commit()
    kept = sum(len(CODEC.pack({"s": owner.state.pairs([key])})) for key in range(100_000))
    for turn in range(1500):
        for key in range(turn * 250, turn * 250 + 250):
            owner.state.put(key % 100_000, f"{turn:020}")
        owner.commit()
        assert sum(map(len, owner.stored)) < 5 * kept
    assert owner.largest < 64 * 1024
    owner.restart()


def test_a_whole_stands_for_the_deltas_before_it() -> None:
    entries: list[dict[str, Any]] = [{"l": 1}, {"s": []}, {"l": 2}, {"L": 3}, {"o": 5}, {"l": 4}]
    assert whole_and_deltas(entries, "l") == (3, [4])
    assert whole_and_deltas(entries[:3], "l") == (None, [1, 2])
    assert whole_and_deltas([], "l") == (None, [])


def test_what_is_written_at_once_ends_its_sweep_in_the_same_commit() -> None:
    owner = Owner()
    owner.commit(l=b"x" * 300_000)
    assert [CODEC.unpack(data) for data in owner.stored] == [{"L": b"whole"}]


def test_an_entry_that_no_owner_writes_is_refused() -> None:
    sentence = "journal of task 7 holds what no owner writes"
    with pytest.raises(StoreInconsistentError, match=sentence):
        list(Journal(7, CODEC).read(TaskRecord(START, [CODEC.pack({"z": 1})], {})))
