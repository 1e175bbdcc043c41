"""Checks Storm's verbs over the local twin of the store: permissions to write, and answers to
damaged nodes.
"""

from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.errors import (
    FailedAssignTopologyError,
    StateConflictError,
    StoreInconsistentError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import (
    Assignment,
    ExecutorId,
    SupervisorInfo,
    TaskInfo,
    TaskTable,
    TopologyBase,
    WorkerCode,
    WorkerSlot,
)
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.names import name_to_node, node_to_name
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.requests import Outcome, OutcomeState, Request, RequestKind
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.upgrade import GrayUpgrade
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.base import Hint, Stored
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.control_plane.cluster.nimbus_state import NimbusInfo
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.extensions.upgrade.gray_upgrade import UpgradeStep
from sparkstorm.extensions.upgrade.state import GrayUpgradeState

KEY = b"k" * 32
SLOT = WorkerSlot("host-a-1", 6700)
BASE = TopologyBase("wc-1-9", "wc", 7, TopologyStatus.ACTIVE, 2, {"split": 4}, "c0de", "c0nf")
ASSIGNMENT = Assignment("wc-1-9", 1, "c0de", "c0nf", {SLOT.node: "a"}, {ExecutorId(1, 1): SLOT})
BEAT = WorkerBeat(
    "wc-1-9", SLOT.node, SLOT.port, 10, 5, 321, 2, "RUNNING", 1, {ExecutorId(1, 1): {"acked": 1}}
)


@pytest.fixture
def store() -> LocalStateStore:
    return LocalStateStore()


@pytest.fixture
def state(store: LocalStateStore) -> StormState:
    return StormState(store, KEY)


def test_what_nimbus_writes_is_read_back(state: StormState) -> None:
    state.create_base(BASE)
    state.write_assignment(ASSIGNMENT)
    state.write_tasks("wc-1-9", TaskTable({1: TaskInfo("split", "bolt")}))
    assert state.read_base("wc-1-9") == BASE
    assert state.read_assignments() == {"wc-1-9": ASSIGNMENT}
    assert state.read_tasks("wc-1-9") == TaskTable({1: TaskInfo("split", "bolt")})
    assert state.topology_ids() == ["wc-1-9"]


@pytest.mark.parametrize("path", [paths.assignment("wc-1-9"), paths.storm("wc-1-9")])
def test_a_record_with_another_signature_is_not_opened(
    state: StormState, store: LocalStateStore, path: str
) -> None:
    stranger = StormState(store, b"another key")
    stranger.create_base(BASE)
    stranger.write_assignment(ASSIGNMENT)
    with pytest.raises(TamperedBlobError, match=path):
        _ = state.read_base("wc-1-9") if "storms" in path else state.read_assignment("wc-1-9")


def test_a_record_moved_to_another_path_is_not_opened(
    state: StormState, store: LocalStateStore
) -> None:
    state.write_assignment(ASSIGNMENT)
    found = store.get(paths.assignment("wc-1-9"))
    assert found
    store.put(paths.assignment("other"), found.data)
    with pytest.raises(TamperedBlobError, match="/assignments/other"):
        state.read_assignment("other")
    store.put(paths.assignment("wc-1-9"), found.data.replace(b'"version":1', b'"version":7'))
    with pytest.raises(TamperedBlobError, match="/assignments/wc-1-9"):
        state.read_assignment("wc-1-9")


def test_a_damaged_node_is_named(state: StormState, store: LocalStateStore) -> None:
    store.put(paths.assignment("wc-1-9"), b"\x00garbage")
    with pytest.raises(StoreInconsistentError, match="/assignments/wc-1-9"):
        state.read_assignments()
    store.put(paths.workerbeat("wc-1-9", SLOT), b"{}")
    with pytest.raises(StoreInconsistentError, match="/workerbeats/wc-1-9/host-a-1-6700"):
        state.read_worker_beat("wc-1-9", SLOT)


def test_an_upgrade_that_ends_while_it_is_read_is_read_whole_or_not_at_all(
    state: StormState, store: LocalStateStore
) -> None:
    upgrade = GrayUpgrade(
        "wc-1-9", WorkerCode("a", "b"), WorkerCode("c", "d"), TopologyOutline({}, {}, {}), 1, 2
    )
    state.prepare_gray_upgrade("wc-1-9")
    state.change_upgrade("wc-1-9", lambda _: upgrade)
    look = store.get

    def look_and_end(path: str, hint: Hint | None = None) -> Stored | None:
        found = look(path, hint)
        store.put(path, b"")
        return found

    store.get = look_and_end  # type: ignore[method-assign]
    assert state.read_upgrade("wc-1-9") == upgrade
    assert state.read_upgrade("wc-1-9") is None


def test_a_large_assignment_fits_a_node_and_comes_back(
    state: StormState, store: LocalStateStore
) -> None:
    slots = {ExecutorId(i, i): WorkerSlot(f"supervisor-{i % 500}", 6700) for i in range(1, 20_001)}
    large = replace(ASSIGNMENT, slot_by_executor=slots)
    state.write_assignment(large)
    found = store.get(paths.assignment("wc-1-9"))
    assert found and len(found.data) < 1_000_000
    assert state.read_assignment("wc-1-9") == large


@pytest.mark.slow
def test_an_assignment_too_large_for_a_node_is_refused_with_its_size(state: StormState) -> None:
    slots = {
        ExecutorId(i, i): WorkerSlot(f"{i * 7919 % 99_991:08x}{i * 104_729 % 65_537:06x}", i)
        for i in range(90_000)
    }
    with pytest.raises(FailedAssignTopologyError, match="90000 executors takes"):
        state.write_assignment(replace(ASSIGNMENT, slot_by_executor=slots))
    assert state.read_assignment("wc-1-9") is None


def test_an_older_assignment_never_replaces_a_newer_one(state: StormState) -> None:
    state.write_assignment(replace(ASSIGNMENT, version=5))
    with pytest.raises(StateConflictError, match="version 4"):
        state.write_assignment(replace(ASSIGNMENT, version=4))
    state.write_assignment(replace(ASSIGNMENT, version=6))
    assert state.read_assignment("wc-1-9") == replace(ASSIGNMENT, version=6)


def test_a_base_changes_by_a_function_and_a_missing_one_not_at_all(state: StormState) -> None:
    state.create_base(BASE)
    changed = state.update_base("wc-1-9", lambda base: replace(base, num_workers=9))
    assert changed == state.read_base("wc-1-9") == replace(BASE, num_workers=9, version=1)
    assert state.update_base("gone", lambda base: base) is None
    with pytest.raises(StateConflictError):
        state.create_base(BASE)


def test_a_base_is_changed_again_when_another_writer_was_first(state: StormState) -> None:
    state.create_base(BASE)
    rivals = [8, 7]

    def change(base: TopologyBase) -> TopologyBase:
        if rivals:
            number = rivals.pop()
            state.update_base("wc-1-9", lambda found: replace(found, num_workers=number))
        return replace(base, owner=f"after {base.num_workers}")

    changed = state.update_base("wc-1-9", change)
    assert changed == replace(BASE, num_workers=8, owner="after 8", version=3)


def test_workers_make_their_own_beat_and_survive_oversized_statistics(state: StormState) -> None:
    state.prepare_worker_beats("wc-1-9")
    assert state.worker_beat_slots("wc-1-9") == []
    state.write_worker_beat(BEAT)
    assert state.worker_beat_slots("wc-1-9") == [SLOT]
    assert state.read_worker_beat("wc-1-9", SLOT) == BEAT
    state.write_worker_beat(replace(BEAT, stats_by_executor={ExecutorId(1, 1): "x" * 1_000_000}))
    result = state.read_worker_beat("wc-1-9", SLOT)
    assert result == replace(BEAT, stats_by_executor={ExecutorId(1, 1): None})


def test_a_supervisor_is_gone_with_its_session(state: StormState, store: LocalStateStore) -> None:
    joined = LocalStateStore(store.tree)
    info = SupervisorInfo("s/1", "host", 5, 4, (6700,))
    StormState(joined).register_supervisor(info)
    assert state.supervisor_ids() == ["s/1"]
    assert state.read_supervisor("s/1") == info
    joined.expire_session()
    assert state.supervisor_ids() == []
    StormState(joined).register_supervisor(info)
    assert state.read_supervisor("s/1") == info


def test_the_newest_ten_errors_of_each_component_are_kept(state: StormState) -> None:
    for number in range(13):
        state.report_error(
            "wc-1-9",
            Failure(FailureKind.SYSTEM, f"error {number}", "a/b", 1, "host", "node-1:6700", number),
        )
    state.report_error(
        "wc-1-9", Failure(FailureKind.SYSTEM, "x" * 100_000, "other", 1, "host", "node-1:6700", 0)
    )
    kept = [error.text for error in state.read_errors("wc-1-9", "a/b")]
    assert kept == [f"error {number}" for number in range(3, 13)]
    assert state.error_components("wc-1-9") == ["a/b", "other"]
    assert len(state.read_errors("wc-1-9", "other")[0].text) < 100_000


def test_removing_a_topology_leaves_no_trace(state: StormState) -> None:
    state.create_base(BASE)
    state.write_assignment(ASSIGNMENT)
    state.write_tasks("wc-1-9", TaskTable({1: TaskInfo("split", "bolt")}))
    state.prepare_gray_upgrade("wc-1-9")
    state.write_worker_beat(BEAT)
    state.report_error(
        "wc-1-9", Failure(FailureKind.SYSTEM, "boom", "split", 1, "host", "node-1:6700", 1)
    )
    assert state.known_ids() == {"wc-1-9"}
    state.remove_topology("wc-1-9")
    assert state.known_ids() == set()


def test_a_hint_tells_that_an_assignment_came(state: StormState) -> None:
    calls: list[str] = []
    state.read_assignments(lambda: calls.append("changed"))
    state.write_assignment(ASSIGNMENT)
    assert calls


def test_submission_numbers_never_repeat(state: StormState, store: LocalStateStore) -> None:
    other = StormState(LocalStateStore(store.tree), KEY)
    assert [
        state.next_submission_number(),
        other.next_submission_number(),
        state.next_submission_number(),
    ] == [1, 2, 3]


def test_one_nimbus_leads(state: StormState, store: LocalStateStore) -> None:
    rival = StormState(LocalStateStore(store.tree), KEY)
    assert state.try_lead(NimbusInfo("a", 1))
    assert not rival.try_lead(NimbusInfo("b", 2))
    assert rival.read_leader() == NimbusInfo("a", 1)
    leader = rival.read_leader()
    assert leader and not rival.depose(NimbusInfo("a", 7)) and rival.depose(leader)
    assert rival.try_lead(NimbusInfo("b", 2))


@pytest.mark.parametrize("name", ["a/b", ".", "..", "%2F", "café", "a b:c#d", "$<>()"])
def test_any_component_id_has_a_node_name(name: str) -> None:
    node = name_to_node(name)
    assert "/" not in node and node not in (".", "..")
    assert node_to_name(node) == name


REQUEST = Request("ab" * 16, RequestKind.KILL, "wc", 1, 2)
ACCEPTED = Outcome(REQUEST.id, OutcomeState.ACCEPTED, 3)


def test_a_request_may_be_created_again_but_not_another_one_under_its_id(state: StormState) -> None:
    state.create_request(REQUEST)
    state.create_request(REQUEST)
    with pytest.raises(StateConflictError):
        state.create_request(replace(REQUEST, name="other"))
    assert state.request_ids() == [REQUEST.id] and state.read_request(REQUEST.id) == REQUEST
    state.remove_request(REQUEST.id)
    assert state.read_request(REQUEST.id) is None


def test_the_first_outcome_decides(state: StormState, store: LocalStateStore) -> None:
    client = StormState(LocalStateStore(store.tree), KEY)
    withdrawn = Outcome(REQUEST.id, OutcomeState.WITHDRAWN, 4)
    assert state.create_outcome(ACCEPTED) and state.create_outcome(ACCEPTED), (
        "a second try after a cut connection"
    )
    assert not client.create_outcome(withdrawn)
    assert client.read_outcome(REQUEST.id) == ACCEPTED
    state.write_outcome(replace(ACCEPTED, state=OutcomeState.DONE))
    assert client.read_outcome(REQUEST.id) == replace(ACCEPTED, state=OutcomeState.DONE)
    state.remove_outcome(REQUEST.id)
    assert client.create_outcome(withdrawn) and not state.create_outcome(ACCEPTED)


def test_requests_and_outcomes_of_another_key_or_another_node_are_not_opened(
    state: StormState, store: LocalStateStore
) -> None:
    foreign = StormState(LocalStateStore(store.tree), b"x" * 32)
    foreign.create_request(REQUEST)
    foreign.create_outcome(ACCEPTED)
    for read in (state.read_request, state.read_outcome):
        with pytest.raises(TamperedBlobError):
            read(REQUEST.id)
    state.create_request(replace(REQUEST, id="cd" * 16))
    found = store.get(paths.request("cd" * 16))
    assert found
    store.put(paths.request("ef" * 16), found.data)
    with pytest.raises(TamperedBlobError):
        state.read_request("ef" * 16)


def test_an_id_is_protected_until_its_session_ends(
    state: StormState, store: LocalStateStore
) -> None:
    client = StormState(LocalStateStore(store.tree), KEY)
    for topology_id in ("wc-1-9", "wc-2-9"):
        client.protect(topology_id)
        client.protect(topology_id)
    client.unprotect("wc-1-9")
    assert state.protected_ids() == ["wc-2-9"]
    client.store.close()
    assert state.protected_ids() == []


UPGRADE = GrayUpgrade(
    "wc-1-9", WorkerCode("a", "b"), WorkerCode("c", "d"), TopologyOutline({}, {}, {}), 1, 2
)


@pytest.mark.parametrize("now", [None, replace(UPGRADE, code=WorkerCode("e", "f"))])
def test_a_worker_that_is_late_is_not_among_the_upgraded_of_no_upgrade_or_of_the_next_one(
    state: StormState, now: GrayUpgrade | None
) -> None:
    state.prepare_gray_upgrade("wc-1-9")
    state.change_upgrade("wc-1-9", lambda _: UPGRADE)
    GrayUpgradeState(state).write_upgraded("wc-1-9", SLOT, UPGRADE.code)
    assert GrayUpgradeState(state).is_upgraded("wc-1-9", SLOT, UPGRADE.code)
    GrayUpgradeState(state).clear_upgrade("wc-1-9")
    if now is not None:
        state.change_upgrade("wc-1-9", lambda _: now)
    GrayUpgradeState(state).write_upgraded("wc-1-9", SLOT, UPGRADE.code)
    assert GrayUpgradeState(state).upgrade_state("wc-1-9").upgraded == {}


@pytest.mark.parametrize("change", [{"started_ms": 9}, {"code": WorkerCode("e", "f")}, None])
def test_a_step_that_is_late_names_no_worker_in_no_upgrade_or_in_the_next_one(
    state: StormState, change: dict[str, Any] | None
) -> None:
    step = UpgradeStep(add_upgrading=(SLOT,))
    state.prepare_gray_upgrade("wc-1-9")
    state.change_upgrade("wc-1-9", lambda _: UPGRADE)
    GrayUpgradeState(state).carry_out(UPGRADE, step)
    assert GrayUpgradeState(state).upgrade_state("wc-1-9").upgrading == {SLOT}
    GrayUpgradeState(state).clear_upgrade("wc-1-9")
    if change is not None:
        state.change_upgrade("wc-1-9", lambda _: replace(UPGRADE, **change))
    GrayUpgradeState(state).carry_out(UPGRADE, step)
    assert GrayUpgradeState(state).upgrade_state("wc-1-9").upgrading == set()
