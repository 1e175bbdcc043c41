"""The slot's sync on local twins: what it makes of the tree, what it brings, what it delivers, what
it survives.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sparkstorm.common.errors import StoreInconsistentError, StoreUnavailableError
from sparkstorm.common.model.assignment import (
    Assignment,
    ExecutorId,
    NamedBlob,
    TaskInfo,
    TaskTable,
    TopologyBase,
    WorkerCode,
    WorkerSlot,
)
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.requests import LogConfig, LogLevel
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.upgrade import GrayUpgrade, code_text
from sparkstorm.common.model.worker_messages import SetStatus
from sparkstorm.common.model.worker_spec import PlacedExecutor, StoreMark
from sparkstorm.control_plane.blobs.local import LocalBytesStore
from sparkstorm.control_plane.blobs.store import BlobKind, BlobStore
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.scheduling.reconcile import with_codes
from sparkstorm.control_plane.supervisor.node_dir import NodeDir
from sparkstorm.control_plane.supervisor.slot_assignments import REFUSED
from sparkstorm.control_plane.supervisor.slot_machine import BlobView
from sparkstorm.control_plane.supervisor.slot_sync import (
    DesiredState,
    SlotStores,
    SlotSync,
)
from sparkstorm.control_plane.supervisor.supervisor import Supervisor, SupervisorDuties, part_of
from sparkstorm.extensions.upgrade.gray_upgrade import UpgradeStep
from sparkstorm.extensions.upgrade.state import GrayUpgradeState

SLOT = WorkerSlot("n1", 6700)
KEY = b"k" * 32
BEAT = WorkerBeat("t", "n1", 6700, 1, 1, 1, 1, "RUNNING", 1)


class Office:
    """A sync with everything around it in memory."""

    def __init__(self, folder: Path) -> None:
        self.tree = LocalStateTree()
        self.store = LocalStateStore(self.tree)
        self.state = StormState(self.store, KEY)
        self.blobs = BlobStore(self.state, LocalBytesStore(), KEY)
        self.node_dir = NodeDir(folder, "n1")
        self.connections: list[Callable[[], SlotStores]] = []
        self.sync = SlotSync(SLOT, self.node_dir, self._connect, "/slots/stop")
        self.woken = 0
        self.sync.notify = self._count

    def _count(self) -> None:
        self.woken += 1

    def _connect(self) -> SlotStores:
        if self.connections:
            return self.connections.pop()()
        settings = SupervisorDuties("host", 6700)
        return SlotStores(self.state, self.blobs, Supervisor(settings, self.node_dir, self.state))

    def submit(
        self, topology_id: str = "t", slot: WorkerSlot = SLOT, version: int = 1
    ) -> Assignment:
        code = self.blobs.put(f"code of {topology_id}".encode(), 0)
        conf = self.blobs.put(b'{"a": 1}', 0, BlobKind.CONF)
        executor = ExecutorId(1, 2)
        self.state.write_tasks(
            topology_id, TaskTable({1: TaskInfo("count", "bolt"), 2: TaskInfo("count", "bolt")})
        )
        base = TopologyBase(topology_id, topology_id, 0, TopologyStatus.ACTIVE, 1, {}, code, conf)
        self.state.create_base(base)
        whole = Assignment(
            topology_id, version, code, conf, {}, {executor: slot}, {}, {executor: version}
        )
        self.state.write_assignment(whole)
        return whole

    def wish(self) -> DesiredState:
        self.sync.step(0)
        assert self.sync.wish is not None
        return self.sync.wish


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


def test_nothing_assigned_is_no_wish(office: Office) -> None:
    office.submit(slot=WorkerSlot("n2", 6700))
    office.sync.step(0)
    assert office.sync.wish is None


def test_a_wish_holds_the_part_the_status_and_the_components(office: Office) -> None:
    whole = office.submit()
    assert office.wish() == DesiredState(
        part_of(whole, SLOT),  # type: ignore[arg-type]
        SetStatus("ACTIVE"),
        {1: "count", 2: "count"},
    )
    assert office.woken == 1


def test_the_cell_of_a_slot_is_that_of_its_tasks_and_tasks_of_two_are_refused(
    office: Office,
) -> None:
    whole = part_of(office.submit(), SLOT)
    assert whole is not None
    components = dict.fromkeys(range(1, 5), "count")
    two = replace(whole, executors=(PlacedExecutor(ExecutorId(3, 4), 1),))
    wish = DesiredState(two, component_by_task=components, stores=("near", "far"))
    assert (wish.cell, replace(wish, stores=("near",)).cell) == (1, 0)
    for executor in (ExecutorId(2, 3), ExecutorId(9, 9)):
        mixed = replace(two, executors=(PlacedExecutor(executor, 1),))
        with pytest.raises(StoreInconsistentError, match="tasks of several cells into one worker"):
            _ = replace(wish, assignment=mixed).cell


def test_marks_of_cells_are_kept_apart_in_zookeeper(office: Office) -> None:
    office.submit()
    state = office.state
    marks = [StoreMark(f"i{cell}", 0, 5 + cell, 1) for cell in range(3)]
    for cell, mark in enumerate(marks):
        state.note_store_mark("t", mark, cell)
        state.note_store_mark("t", replace(mark, step=2), cell)
    assert state.read_store_marks("t", 3) == dict(enumerate(marks))
    assert state.read_store_marks("t") == {0: marks[0]} and state.read_store_mark("t") == marks[0]
    state.remove_topology("t")
    assert state.read_store_marks("t", 3) == {} and "t" not in state.known_ids()
    state.note_store_mark("t", marks[1], 1)
    assert "t" not in state.known_ids(), "of a topology that is gone nothing is written"


def test_an_empty_stop_node_ends_the_slot_whatever_it_does(office: Office) -> None:
    office.submit()
    office.wish()
    assert not office.sync.stop
    office.store.put("/slots/stop", b"")
    office.sync.step(0)
    assert office.sync.stop and office.woken == 2


def test_a_slot_that_is_asked_to_move_ends_when_it_has_no_worker(office: Office) -> None:
    whole = office.submit()
    office.wish()
    office.store.put("/slots/stop", b"0")
    office.sync.step(0)
    assert not office.sync.stop  # it has a worker
    office.state.remove_assignment("t")
    office.sync.runs("t", WorkerCode(whole.code_key, whole.conf_key))
    office.sync.step(0)
    assert not office.sync.stop  # that worker is not gone yet
    office.sync.runs_nothing()
    office.store.put("/slots/stop", b"1")
    office.sync.step(0)
    assert not office.sync.stop  # another slot was asked
    office.store.put("/slots/stop", b"0")
    office.sync.step(0)
    assert office.sync.stop


def test_the_main_thread_is_woken_only_by_news(office: Office) -> None:
    office.submit()
    office.wish()
    office.wish()
    assert office.woken == 1
    office.state.update_base("t", lambda base: replace(base, status=TopologyStatus.INACTIVE))
    assert office.wish().order.status == "INACTIVE" and office.woken == 2


def test_an_assignment_that_comes_changes_or_goes_wakes_the_sync_without_a_poll(
    office: Office,
) -> None:
    """S2.26: the watch on the assignments, also on those that have nothing for this slot yet."""
    office.sync.step(0)
    assert not office.sync.is_woken
    whole = office.submit(slot=WorkerSlot("n2", 6700))
    assert office.sync.is_woken, "a topology came"
    office.sync.step(0)
    assert not office.sync.is_woken
    office.state.write_assignment(
        replace(whole, version=2, slot_by_executor={ExecutorId(1, 2): SLOT})
    )
    assert office.sync.is_woken, "its assignment changed"
    assert office.wish().assignment.topology_id == "t" and not office.sync.is_woken
    office.store.delete(paths.assignment("t"))
    assert office.sync.is_woken, "it is gone"


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("ACTIVE", "ACTIVE"),
        ("UPGRADING", "ACTIVE"),
        ("KILLED", "INACTIVE"),
        ("REBALANCING", "INACTIVE"),
    ],
)
def test_a_topology_works_or_rests(office: Office, status: str, word: str) -> None:
    office.submit()
    office.state.update_base("t", lambda base: replace(base, status=TopologyStatus(status)))
    assert office.wish().order.status == word


def test_of_two_topologies_on_one_port_the_running_one_stays(office: Office) -> None:
    office.submit("t")
    assert office.wish().assignment.topology_id == "t"
    office.submit("a")
    assert office.wish().assignment.topology_id == "t"


def test_the_end_of_a_worker_that_outlived_its_topology_leaves_a_trace_for_the_sweep(
    office: Office,
) -> None:
    office.submit()
    office.state.prepare_worker_beats("t")
    office.sync.step(0)
    office.sync.leave("t")
    office.sync.step(1)
    assert office.state.worker_beat_slots("t") == []
    office.state.remove_topology("t")
    office.sync.step(2)
    assert office.state.known_ids() == set()
    office.sync.leave("t")
    office.sync.step(3)
    assert office.state.known_ids() == {"t"}


def test_a_tampered_assignment_leaves_the_last_good_one_valid(office: Office) -> None:
    office.submit()
    before = office.wish()
    office.store.put(paths.assignment("t"), b"sparkstorm-2 json 00\n{}")
    assert office.wish() == before


def test_a_tampered_topology_does_not_hide_another(office: Office) -> None:
    office.store.put(paths.assignment("evil"), b"junk")
    office.submit()
    assert office.wish().assignment.topology_id == "t"


def test_code_is_brought_checked_and_kept(office: Office) -> None:
    office.submit()
    wanted = office.wish().assignment
    assert office.sync.code.view(wanted) is BlobView.MISSING
    office.sync.code.order(wanted)
    office.sync.step(0)
    code = office.sync.code.get(wanted)
    assert office.sync.code.view(wanted) is BlobView.READY and code is not None
    assert (code.code_path.read_bytes(), code.conf) == (b"code of t", {"a": 1})
    assert code.code_path.name == hashlib.sha256(b"code of t").hexdigest()


def test_a_whole_copy_on_the_disk_needs_no_store_and_a_damaged_one_is_replaced(
    office: Office,
) -> None:
    whole = office.submit()
    wanted = office.wish().assignment
    office.sync.code.order(wanted)
    office.sync.step(0)
    path = office.node_dir.code_dir("t") / whole.code_key
    path.write_bytes(b"damaged")
    office.sync.code.order(wanted)
    office.sync.step(0)
    assert path.read_bytes() == b"code of t"
    office.blobs.delete(whole.code_key)
    office.sync.code.order(wanted)
    office.sync.step(0)
    assert office.sync.code.view(wanted) is BlobView.READY


@pytest.mark.parametrize("what", ["missing", "not JSON", "key leads out"])
def test_code_that_cannot_be_had_is_a_failure_and_no_crash(office: Office, what: str) -> None:
    whole = office.submit()
    wanted = office.wish().assignment
    if what == "missing":
        office.blobs.delete(whole.code_key)
    elif what == "not JSON":
        wanted = replace(wanted, conf_key=office.blobs.put(b"[1]", 0, BlobKind.CONF))
    else:
        wanted = replace(wanted, code_key="../../x")
    office.sync.code.order(wanted)
    office.sync.step(0)
    assert office.sync.code.view(wanted) is BlobView.FAILED


def test_code_that_an_emptied_store_has_lost_is_put_back_when_the_worker_ends(
    office: Office,
) -> None:
    """Seed 703179 of small_fan_out_fan_in: one host alone had the configuration of an upgrade."""
    whole = office.submit()
    wanted = office.wish().assignment
    office.sync.code.order(wanted)
    office.sync.step(0)
    chunks = office.blobs._bytes
    for key in chunks.list_keys():
        chunks.delete(key)
    office.sync.step(0)
    assert not chunks.list_keys(), "nothing shows the loss yet"
    office.sync.runs_nothing()
    office.sync.step(0)
    assert office.blobs.get(whole.code_key) == b"code of t"
    assert office.blobs.get(whole.conf_key, BlobKind.CONF) == b'{"a": 1}'


def test_the_end_of_a_worker_takes_no_newer_blob_without_a_restart(office: Office) -> None:
    """The next worker may have started by then: it is to start anew with the new version."""

    def put(data: bytes, version: int) -> None:
        key = office.blobs.put(data, 0, BlobKind.NAMED)
        blob = NamedBlob(key, len(data), version, 0)
        office.state.change_named_blobs(lambda _: {"rules": blob})

    conf = b'{"topology.blobstore.map": {"rules": {"workerRestart": true}}}'
    conf_key = office.blobs.put(conf, 0, BlobKind.CONF)
    put(b"one", 1)
    office.state.write_assignment(replace(office.submit(), version=2, conf_key=conf_key))
    office.sync.code.order(office.wish().assignment)
    office.sync.step(0)
    put(b"two", 2)
    office.sync.runs_nothing()
    office.sync.step(0)
    assert office.sync.code.turn == 1


def test_code_that_vanished_from_the_disk_is_not_given_out(office: Office) -> None:
    office.submit()
    wanted = office.wish().assignment
    office.sync.code.order(wanted)
    office.sync.step(0)
    code = office.sync.code.get(wanted)
    assert code is not None
    code.code_path.unlink()
    assert office.sync.code.get(wanted) is None


def test_a_worker_that_left_takes_its_beat_along(office: Office) -> None:
    office.sync.beat(BEAT)
    office.sync.step(0)
    office.sync.leave("t")
    office.sync.step(1)
    assert office.state.read_worker_beat("t", SLOT) is None


def test_what_comes_while_a_write_fails_is_newer_than_what_could_not_be_written(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot's thread leaves more while ZooKeeper refuses what was left before."""
    written: list[object] = []

    def write(left: object) -> None:
        if not (written or has_come):
            has_come.append(True)
            office.sync.beat(replace(BEAT, time_ms=2))
            for number in range(200, 400):
                office.sync.report("t", Failure(FailureKind.RAISED, str(number), "c", 1))
            raise StoreUnavailableError("away")
        written.append(left)

    has_come: list[bool] = []
    monkeypatch.setattr(office.state, "write_worker_beat", write)
    monkeypatch.setattr(office.state, "report_error", lambda _, error: write(error.text))
    office.sync.beat(BEAT)
    office.sync.step(0)
    office.sync.step(1)
    assert written == [replace(BEAT, time_ms=2), *map(str, range(200, 400))]

    written.clear()
    has_come.clear()
    for number in range(200):
        office.sync.report("t", Failure(FailureKind.RAISED, str(number), "c", 1))
    office.sync.step(2)
    office.sync.step(3)
    assert written == [replace(BEAT, time_ms=2), *map(str, range(200, 400))]


def test_stores_that_cannot_be_reached_are_tried_again_and_nothing_is_lost(office: Office) -> None:
    def refuse() -> SlotStores:
        raise StoreUnavailableError("no ZooKeeper")

    office.connections += [refuse] * 2
    office.submit()
    office.sync.report(
        "t", Failure(FailureKind.SYSTEM, "kept", "count", 1, "host", "node-1:6700", 1)
    )
    office.sync.step(0)
    office.sync.step(1)
    assert office.sync.wish is None
    assert office.wish().assignment.topology_id == "t"
    assert [error.text for error in office.state.read_errors("t", "count")] == ["kept"]


def test_a_closed_clerk_gives_the_office_up(office: Office) -> None:
    office.sync.step(0)
    other = office.node_dir.duties_lock()
    assert not other.try_take()
    office.sync.close()
    assert other.try_take()


def replayed(office: Office, old: Assignment) -> None:
    """Put an old signed record back, as a writer of the tree without the key can."""
    path = paths.assignment(old.topology_id)
    office.store.delete(path)
    office.state.write_assignment(old)


def test_an_older_signed_assignment_is_not_followed_also_by_a_restarted_slot(
    office: Office,
) -> None:
    old = office.submit()
    office.wish()
    new = replace(old, version=2, placed_version_by_executor={ExecutorId(1, 2): 2})
    office.state.write_assignment(new)
    assert office.wish().assignment == part_of(new, SLOT)
    replayed(office, old)
    assert office.wish().assignment == part_of(new, SLOT)
    assert office.state.read_worker_beat("t", SLOT) is None
    office.sync = SlotSync(SLOT, office.node_dir, office._connect)
    office.sync.step(7)
    assert office.sync.wish is None
    beat = office.state.read_worker_beat("t", SLOT)
    assert beat is not None
    assert beat.state == REFUSED
    assert beat.assignment_version == 2
    assert beat.time_ms == 7
    office.store.delete(paths.assignment("t"))  # absence makes nothing forgotten
    office.sync.step(8)
    replayed(office, old)
    office.sync.step(9)
    assert office.sync.wish is None
    later = replace(new, version=3)
    office.state.write_assignment(later)
    assert office.wish().assignment == part_of(later, SLOT)


def test_a_new_topology_begins_at_its_own_version(office: Office) -> None:
    office.submit(version=9)
    office.wish()
    office.state.remove_assignment("t")
    office.submit("u", version=1)
    assert office.wish().assignment.topology_id == "u"


def test_a_damaged_list_of_versions_is_written_afresh(office: Office) -> None:
    office.submit()
    office.wish()
    office.node_dir.seen_versions(SLOT.port).path.write_text("{")
    office.sync = SlotSync(SLOT, office.node_dir, office._connect)
    assert office.wish().assignment.topology_id == "t"


def test_log_levels_are_wished_for_until_their_time_is_over(office: Office) -> None:
    office.submit()
    office.wish()
    office.state.write_log_config(
        LogConfig("t", {"": LogLevel("INFO"), "app": LogLevel("DEBUG", 50, 100)})
    )
    office.sync.step(99)
    assert office.sync.wish
    assert office.sync.wish.log_levels == {"": "INFO", "app": "DEBUG"}
    assert office.woken == 2
    office.sync.step(100)
    assert office.sync.wish.log_levels == {"": "INFO"} and office.woken == 3
    office.state.store.put(paths.log_config("t"), b"garbage")
    office.sync.step(101)
    assert office.sync.wish.log_levels == {"": "INFO"}


def upgraded(office: Office, whole: Assignment, code: bytes = b"new code") -> GrayUpgrade:
    """Have an upgrade that lists the slot, and an assignment that gives it the new code."""
    new = WorkerCode(office.blobs.put(code, 0), whole.conf_key)
    former = WorkerCode(whole.code_key, whole.conf_key)
    upgrade = GrayUpgrade("t", new, former, TopologyOutline({}, {}, {}), 0, 10**9, batch=(SLOT,))
    office.state.prepare_gray_upgrade("t")
    office.state.change_upgrade("t", lambda _: upgrade)
    GrayUpgradeState(office.state).carry_out(upgrade, UpgradeStep(add_upgrading=(SLOT,)))
    office.state.update_base("t", lambda base: replace(base, status=TopologyStatus.UPGRADING))
    after = with_codes(whole, former, {SLOT: new}, 5)
    assert after
    office.state.write_assignment(after)
    return upgrade


def test_a_worker_is_told_as_upgraded_after_its_first_heartbeat_under_the_new_code(
    office: Office,
) -> None:
    """Defects 17 and 18; S0.27."""
    whole = office.submit()
    office.sync.runs("t", WorkerCode(whole.code_key, whole.conf_key))
    office.sync.step(0)
    upgrade = upgraded(office, whole)
    office.sync.step(1)
    assert office.sync.wish and office.sync.wish.assignment.code_key == upgrade.code.code_key
    assert GrayUpgradeState(office.state).upgrade_state("t").upgrading == {SLOT}, (
        "it was ordered, and has not beaten yet"
    )
    office.sync.runs("t", upgrade.code)
    office.sync.step(2)
    state = GrayUpgradeState(office.state).upgrade_state("t")
    assert (state.upgrading, state.upgraded) == (frozenset(), {SLOT: code_text(upgrade.code)})


def test_a_worker_goes_on_when_its_new_code_cannot_be_fetched_or_is_not_what_was_signed(
    office: Office,
) -> None:
    """S0.25: code is fetched and checked before the worker is ended."""
    whole = office.submit()
    before = office.wish()
    upgrade = upgraded(office, whole)
    metadata = office.state.read_blob_metadata(upgrade.code.code_key)
    assert metadata
    office.state.remove_blob_metadata(upgrade.code.code_key)
    assert office.wish().assignment == before.assignment
    office.state.write_blob_metadata(replace(metadata, signature="0" * 64))
    office.sync.step(5_000)
    assert office.wish().assignment == before.assignment
    office.state.write_blob_metadata(metadata)
    assert office.wish().assignment == before.assignment, "it is tried again after some seconds"
    office.sync.step(10_000)
    assert office.sync.wish and office.sync.wish.assignment.code_key == upgrade.code.code_key


def test_a_full_disk_keeps_neither_beats_nor_errors_back(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    office.submit()
    office.sync.step(0)
    monkeypatch.setattr(Supervisor, "step", refuse)
    office.sync.beat(BEAT)
    office.sync.report("t", Failure(FailureKind.SYSTEM, "boom", "count", 1))
    office.sync.step(1)
    assert office.state.read_worker_beat("t", SLOT) == BEAT
    assert [error.text for error in office.state.read_errors("t", "count")] == ["boom"]
    result = office.sync.problem
    assert result == "the disk of n1 refuses writes: [Errno 28] No space left on device"
    monkeypatch.undo()
    office.sync.step(2)
    assert office.sync.problem == ""
