"""Election of the leading Nimbus, and what a Nimbus that no longer leads can do: nothing."""

import pytest

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.control_plane.cluster.nimbus_state import NimbusInfo
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.leader_election import LeaderStore, own_name

WRITES = {
    "put": lambda store: store.put("/a", b"x"),
    "create": lambda store: store.create("/b", b"x"),
    "delete": lambda store: store.delete("/a"),
    "ensure_path": lambda store: store.ensure_path("/c"),
    "put_ephemeral": lambda store: store.put_ephemeral("/d", b"x"),
    "try_ephemeral": lambda store: store.try_ephemeral("/e", b"x"),
    "create_sequential": lambda store: store.create_sequential("/f", b"x"),
}


def lead(store: LeaderStore, name: str = "") -> bool:
    return StormState(store).try_lead(NimbusInfo(name or own_name(), 1))


@pytest.mark.parametrize("write", WRITES)
def test_only_the_elected_session_writes(write: str) -> None:
    session = LocalStateStore()
    one, other = LeaderStore(session), LeaderStore(LocalStateStore(session.tree))
    assert lead(one) and not lead(other)
    WRITES[write](one)
    with pytest.raises(StoreUnavailableError, match="does not lead"):
        WRITES[write](other)
    # in the middle of a turn: the one does not know yet that the other leads
    session.expire_session()
    assert lead(other)
    with pytest.raises(StoreUnavailableError, match="does not lead"):
        WRITES[write](one)
    other.put("/a", b"y")
    assert not lead(one) and one.get("/nimbus/leader") == other.get("/nimbus/leader")


def test_the_end_of_the_session_hands_the_leadership_over() -> None:
    tree = LocalStateStore().tree
    one, other = LeaderStore(LocalStateStore(tree)), LeaderStore(LocalStateStore(tree))
    assert lead(one) and not lead(other)
    one.close()
    assert lead(other)


def test_a_leader_that_is_no_longer_there_is_not_deposed_again() -> None:
    session = LocalStateStore()
    dead, state = NimbusInfo("dead", 1), StormState(LocalStateStore(session.tree))
    StormState(session).try_lead(dead)
    assert state.depose(dead) and not state.depose(dead)
    assert state.try_lead(NimbusInfo("next", 2)) and not state.depose(dead)
    assert state.read_leader() == NimbusInfo("next", 2)


def test_two_do_not_depose_at_once() -> None:
    session = LocalStateStore()
    dead = NimbusInfo("dead", 1)
    StormState(session).try_lead(dead)
    LocalStateStore(session.tree).try_ephemeral("/nimbus/deposing", b"")
    assert not StormState(LocalStateStore(session.tree)).depose(dead)
