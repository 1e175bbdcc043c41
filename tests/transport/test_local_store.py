"""Checks what only the local store is asked for: its limit of memory, and coming back as it was."""

from __future__ import annotations

import pytest

from sparkstorm.common.errors import StoreFullError, StoreRolledBackError
from sparkstorm.data_plane.transport.base import START, Commit, Cursor
from sparkstorm.data_plane.transport.local import LocalStore, LocalTransport
from sparkstorm.data_plane.transport.local_reader import LocalReader


def test_a_full_store_refuses_growth_as_a_whole_and_drains_to_exact_counts() -> None:
    store = LocalStore(max_bytes=25)
    sender, receiver = LocalTransport(store), LocalTransport(store)
    sender.claim("s", {1: 1})
    receiver.claim("r", {2: 1})
    for n in range(1, 4):
        pressure = sender.commit(
            Commit("s", {1: 1}, 0, n, frames=[(2, b"x" * 10, 10)], watched=(2,))
        )
    assert pressure.fullness == 1.2
    refused = Commit("s", {1: 1}, 0, 4, frames=[(2, b"y" * 10, 10)], journal=[(1, b"4")])
    before = store.checkpoint()
    with pytest.raises(StoreFullError):
        sender.commit(refused)
    assert store.checkpoint() == before
    found = receiver.poll({2: START.entry}, 10)
    swap = Commit(
        "r", {2: 1}, 0, 1, cursors={2: Cursor(found[0].id, 0)}, frames=[(3, b"z" * 11, 11)]
    )
    with pytest.raises(StoreFullError):
        receiver.commit(swap)
    swap.frames = [(3, b"z" * 10, 10)]
    receiver.commit(swap)  # as much as it consumes
    receiver.commit(
        Commit("r", {2: 1}, 0, 2, cursors={2: Cursor(found[2].id, 0)}, drained_bytes={2: 30})
    )
    sender.commit(refused)
    assert LocalReader(store).backlog() == {1: 0, 2: 10, 3: 10}
    assert LocalReader(store).record(1).journal == [b"4"]


def test_entry_ids_are_not_given_twice_after_a_loss() -> None:
    store = LocalStore()
    sender = LocalTransport(store)
    sender.claim("s", {1: 1})
    empty = store.checkpoint()
    sender.commit(Commit("s", {1: 1}, 0, 1, frames=[(1, b"lost", 4)]))
    store.restore(empty)
    sender.claim("s", {1: 1})
    sender.commit(Commit("s", {1: 1}, 0, 1, frames=[(1, b"again", 5)]))
    assert [e.data for e in sender.poll({1: "1-0"}, 10)] == [b"again"]


def test_a_checkpoint_does_not_change_with_its_store() -> None:
    store = LocalStore()
    owner = LocalTransport(store)
    owner.claim("o", {1: 1})
    checkpoint = store.checkpoint()
    owner.commit(Commit("o", {1: 1}, 0, 1, journal=[(1, b"a")], held=[(1, "k", b"h")]))
    for _ in range(2):
        store.restore(checkpoint)
        record = LocalReader(store).record(1)
        assert (record.journal, record.held) == ([], {})


@pytest.mark.parametrize("knows", [False, True])
def test_what_a_commit_consumed_is_in_doubt_until_its_owner_knows_the_answer(knows: bool) -> None:
    """The store goes back behind an entry and the commit that consumed it; the same commit must not
    go through again.
    """
    store = LocalStore()
    sender, receiver = LocalTransport(store), LocalTransport(store)
    sender.claim("s", {1: 1})
    receiver.claim("r", {2: 1})
    before = store.checkpoint()
    sender.commit(Commit("s", {1: 1}, 0, 1, frames=[(2, b"entry", 5)]))
    (found,) = receiver.poll({2: START.entry}, 1)
    commit = Commit("r", {2: 1}, 0, 1, cursors={2: Cursor(found.id, 0)}, drained_bytes={2: 5})
    in_doubt = receiver.in_doubt()
    receiver.commit(commit)
    if not knows:
        receiver.forget_answer(in_doubt)
    store.restore(before)
    if knows:
        # nothing shows that the entry is gone: an owner that knows the answer never sends this
        receiver.commit(commit)
    else:
        with pytest.raises(StoreRolledBackError):
            receiver.commit(commit)
