"""Tells how topologies end: how long a kill waits, in which order things go, and what the sweep
takes and leaves.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from sparkstorm.common.errors import FailedAssignTopologyError, StoreUnavailableError
from sparkstorm.common.model.assignment import Assignment
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.requests import Outcome, OutcomeState, Request
from sparkstorm.common.model.status import Action, RebalanceOptions, TopologyStatus
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.nimbus.guarded_scheduler import GuardedScheduler
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.lifecycle import ActionRequest, transition
from sparkstorm.control_plane.scheduling.per_topology import chosen_scheduler
from sparkstorm.control_plane.scheduling.reconcile import with_new_version
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.nimbus.nimbus_bench import Bench, submitted, wordcount

DELAY_SECS = 300  # nimbus.topology.blobstore.deletion.delay.ms


def due_in_ms(bench: Bench) -> int:
    (topology_id,) = bench.state.topology_ids()
    base = bench.base_of(topology_id)
    assert base.pending
    return base.pending.due_ms - bench.clock.now_ms()


@pytest.mark.parametrize("wait_secs", [None, -1])
def test_a_kill_waits_the_message_timeout_of_its_topology(wait_secs: float | None) -> None:
    bench = Bench()
    bench.submit(topology__message__timeout__secs=7)
    bench.begin_rebalance("wc", RebalanceOptions(2), wait_secs)
    assert due_in_ms(bench) == 7000
    bench.service.kill("wc", wait_secs)
    assert due_in_ms(bench) == 7000
    bench.service.kill("wc", 0.25)
    assert due_in_ms(bench) == 250


@pytest.mark.parametrize("damage", ["the bytes are gone", "other bytes", "the metadata are gone"])
def test_a_topology_whose_configuration_is_lost_can_be_killed(damage: str) -> None:
    bench = Bench()
    topology_id = bench.submit(topology__message__timeout__secs=7)
    base = bench.base_of(topology_id)
    if damage == "the bytes are gone":
        bench.bytes_store.delete(f"{base.conf_key}:0")
    elif damage == "other bytes":
        bench.bytes_store.put(f"{base.conf_key}:0", b"{}")
    else:
        bench.state.remove_blob_metadata(base.conf_key)
    bench.restart_nimbus()
    bench.service.kill("wc")
    assert due_in_ms(bench) == 30_000  # the cluster's
    bench.advance(60)
    assert bench.state.known_ids() == set()


def test_nobody_is_told_that_workers_of_a_killed_topology_are_dead() -> None:
    bench, topology_id = submitted(nodes=3)
    bench.advance(200)
    bench.service.kill("wc", 1000)
    bench.supervisors[min(bench.slots(topology_id).values()).node].die()
    bench.advance(60)
    assert bench.state.error_components(topology_id) == []
    assert len(bench.slots(topology_id)) == 13


def test_a_topology_killed_while_it_is_rebalanced_stays_killed() -> None:
    class Meddling(DefaultScheduler):
        deed: Callable[[], object] | None = None

        def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
            super().schedule(topologies, cluster)
            if self.deed and any(
                each.conf["topology.workers"] == 2 for each in topologies.values()
            ):
                deed, self.deed = self.deed, None
                deed()

    scheduler = Meddling()
    bench, topology_id = submitted(scheduler=scheduler)
    kill = ActionRequest(Action.KILL, 5000)
    # in the middle of Nimbus's turn: an old leader's late write, say
    scheduler.deed = lambda: bench.state.update_base(
        topology_id, lambda base: transition(base, kill, bench.clock.now_ms(), 0).base
    )
    bench.service.rebalance("wc", RebalanceOptions(2), wait_secs=0)
    assert bench.base_of(topology_id).status == TopologyStatus.KILLED
    bench.advance(20)
    assert bench.state.known_ids() == set()


def test_an_inactive_topology_whose_rebalance_is_given_up_stays_inactive() -> None:
    conf = {"storm.scheduler": "jstorm"}
    bench = Bench(scheduler=chosen_scheduler(conf, GuardedScheduler), storm__scheduler="jstorm")
    topology_id = bench.submit(topology__workers=2)
    before = bench.slots(topology_id)
    bench.service.deactivate("wc")
    with pytest.raises(FailedAssignTopologyError, match="there's no enough worker"):
        bench.service.rebalance("wc", RebalanceOptions(9), wait_secs=0)
    base = bench.base_of(topology_id)
    assert base.status == TopologyStatus.INACTIVE
    assert base.num_workers == 2
    assert base.pending is None
    assert bench.slots(topology_id) == before
    texts = [
        each.text
        for c in bench.state.error_components(topology_id)
        for each in bench.state.read_errors(topology_id, c)
    ]
    assert any("rebalance given up: there's no enough worker" in text for text in texts)


def test_a_lost_assignment_is_not_replaced_by_that_of_an_earlier_topology_of_the_name() -> None:
    bench, old = submitted(nodes=3)
    former = bench.state.read_assignment(old)
    bench.service.kill("wc", 0)
    bench.advance(20)
    new = bench.submit()
    assert former
    bench.advance(12)
    bench.nimbus.wake()
    bench.tick()
    bench.state.backup_assignment("wc", former)
    bench.store.delete(paths.assignment(new))
    bench.nimbus.wake()
    bench.tick()  # too early for the sweep, which would take away what is wrong
    assert bench.state.assignment_ids() == [new]
    assert len(bench.slots(new)) == 13


# -- the sweep -------------------------------------------------------------------------------------


def test_the_last_assignment_under_a_name_goes_a_week_after_its_last_use() -> None:
    bench = Bench()
    bench.submit("once")
    bench.submit("lives", topology__workers=1)
    bench.service.kill("once", 0)
    bench.advance(30)
    bench.tick(6 * 86_400_000)
    assert bench.state.backup_names() == ["lives", "once"]
    bench.tick(2 * 86_400_000)
    bench.advance(5)
    assert bench.state.backup_names() == ["lives"]


def test_a_blob_that_nobody_names_goes_after_the_delay_and_a_new_one_stays_until_then() -> None:
    bench = Bench()
    bench.submit()
    named = set(bench.state.blob_keys())
    key = bench.blobs.put(b"nobody's", bench.clock.now_ms())
    bench.advance(DELAY_SECS - 12)
    assert key in bench.state.blob_keys()
    bench.advance(24)
    assert set(bench.state.blob_keys()) == named
    assert {each.partition(":")[0] for each in bench.bytes_store.list_keys()} == named


def test_the_code_of_a_topology_that_has_ended_goes_at_once_unless_another_one_names_it() -> None:
    bench = Bench()
    base = bench.base_of(bench.submit())
    bench.service.kill("wc", 0)
    bench.advance(60)
    bench.service.discard_blobs([base.code_key, base.conf_key])
    assert (bench.state.blob_keys(), bench.bytes_store.list_keys()) == ([], [])
    running = bench.base_of(bench.submit())
    bench.service.discard_blobs([running.code_key, running.conf_key, base.conf_key])
    assert set(bench.state.blob_keys()) == {running.code_key, running.conf_key}


def open_request(bench: Bench) -> Request:
    """A submission that Nimbus has accepted and cannot finish: its redo waits for the store."""
    request = bench.service.submit_request(
        "other", wordcount(1), {"topology.workers": 1}, b"the other's"
    )
    bench.state.create_request(request)
    return request


def test_no_code_that_a_request_names_is_discarded() -> None:
    bench = Bench()
    request = open_request(bench)
    bench.service.discard_blobs(request.blob_keys())
    assert set(bench.state.blob_keys()) == request.blob_keys()
    bench.state.remove_request(request.id)
    bench.service.discard_blobs(request.blob_keys())
    assert bench.state.blob_keys() == []


def test_a_blob_whose_record_is_damaged_stops_no_sweep() -> None:
    bench = Bench()
    bench.submit()
    named = set(bench.state.blob_keys())
    bench.store.put(paths.blob("0" * 64), b"garbage")
    bench.store.put(paths.blob("f" * 64), b"garbage")
    bench.blobs.put(b"nobody's", bench.clock.now_ms())
    bench.advance(DELAY_SECS + 12)
    assert set(bench.state.blob_keys()) == named | {"0" * 64, "f" * 64}
    assert not bench.nimbus.problems


def test_no_blob_goes_that_an_open_request_names_or_while_a_record_cannot_be_read() -> None:
    bench, topology_id = submitted()
    request = open_request(bench)
    bench.state.create_outcome(Outcome(request.id, OutcomeState.ACCEPTED, 0, "other-9-9"))
    for _ in range(4):  # a sweep between two turns that would serve it
        bench.clock.advance(DELAY_SECS * 1000)
        bench.nimbus.duties.cleanup.sweep(bench.nimbus.duties.reader.read(), bench.clock.now_ms())
    assert set(bench.state.blob_keys()) >= request.blob_keys()
    bench.state.remove_request(request.id)
    whole = bench.store.get(paths.storm(topology_id))
    assert whole
    bench.store.put(paths.storm(topology_id), b"garbage")
    bench.advance(2 * DELAY_SECS)
    assert set(bench.state.blob_keys()) >= request.blob_keys()
    bench.store.put(paths.storm(topology_id), whole.data)
    bench.advance(12)
    assert not set(bench.state.blob_keys()) & request.blob_keys()


def test_what_only_an_assignment_names_stays_for_the_workers_that_start_again() -> None:
    bench, topology_id = submitted()
    old = bench.assignment_of(topology_id)
    key = bench.blobs.put(b'{"half":"rebalanced"}', bench.clock.now_ms())
    bench.service.kill("wc", 3 * DELAY_SECS)
    bench.state.write_assignment(replace(with_new_version(old, old.kind), conf_key=key))
    bench.advance(2 * DELAY_SECS)
    assert key in bench.state.blob_keys()
    bench.advance(2 * DELAY_SECS)
    assert bench.state.blob_keys() == []


def put_back(bench: Bench, old: Assignment, versions_seen: int, with_backup: bool) -> None:
    """Put an old signed record in place of the present one, while slots speak of later versions."""
    for supervisor in bench.supervisors.values():
        # these follow whatever they read; a slot does not (test_slot_clerk.py)
        supervisor.is_up = False
    bench.state.remove_assignment(old.topology_id)
    bench.state.write_assignment(old)
    if with_backup:
        bench.state.backup_assignment("wc", old)
    slot = next(iter(old.slot_by_executor.values()))
    now_ms = bench.clock.now_ms()
    bench.state.write_worker_beat(
        WorkerBeat(old.topology_id, slot.node, slot.port, now_ms, 0, 1, 1, "REFUSED", versions_seen)
    )
    bench.tick()


@pytest.mark.parametrize(
    "is_whole_tree", [False, True], ids=["one record is put back", "the whole tree is rolled back"]
)
def test_an_assignment_that_went_back_is_overtaken_under_a_version_that_slots_follow(
    is_whole_tree: bool,
) -> None:
    bench, topology_id = submitted()
    old = bench.assignment_of(topology_id)
    newer = old
    for _ in range(4):
        newer = with_new_version(newer, newer.kind)
        bench.nimbus.duties.assigner.publish(newer, "wc")
    put_back(bench, old, newer.version, with_backup=is_whole_tree)
    found = bench.assignment_of(topology_id)
    assert found.version == newer.version + 1
    assert found.slot_by_executor == old.slot_by_executor
    placed = found.placed_version_by_executor
    assert placed == (
        dict.fromkeys(placed, found.version) if is_whole_tree else newer.placed_version_by_executor
    )
    assert bench.state.read_backup_assignment("wc") == found


def test_a_forged_heartbeat_cannot_use_the_versions_up() -> None:
    bench, topology_id = submitted()
    old = bench.assignment_of(topology_id)
    put_back(bench, old, 1 << 40, with_backup=False)
    assert bench.state.read_assignment(topology_id) == old


class Kept:
    """Data of topologies outside the state store, by topology id."""

    def __init__(self) -> None:
        self.keys_by_id: dict[str, int] = {}
        self.gone: set[str] = set()
        self.is_away = False

    def retire(self, topology_id: str) -> None:
        self.keys_by_id.pop(topology_id, None)

    def hand_over(self, old_id: str, new_id: str) -> None:
        raise AssertionError("nothing is hot deployed here")

    def unended(self) -> dict[str, int]:
        if self.is_away:
            raise StoreUnavailableError("Redis is away")
        return dict(self.keys_by_id)

    def ended(self, topology_ids: Collection[str]) -> Collection[str]:
        return self.gone & {*topology_ids}


def forgetting(trace: str) -> tuple[Bench, Kept, str]:
    """Return a cluster whose state store has lost a topology's records but for one trace, under
    another Nimbus.
    """
    bench, kept = Bench(), Kept()
    topology_id = bench.submit()
    kept.keys_by_id[topology_id] = 27
    for parent in (
        paths.STORMS,
        paths.ASSIGNMENTS,
        paths.WORKERBEATS,
        paths.ERRORS,
        paths.TASKBEATS,
        paths.TASKS,
        paths.OUTLINES,
    ):
        if parent != trace:
            bench.store.delete(f"{parent}/{topology_id}")
    bench.restart_nimbus()
    bench.nimbus.hooks.retirement = kept
    return bench, kept, topology_id


@pytest.mark.parametrize("trace", ["", paths.ERRORS, paths.OUTLINES])
def test_data_of_a_topology_whose_records_are_lost_stay_and_are_named(trace: str) -> None:
    bench, kept, topology_id = forgetting(trace)
    bench.advance(60)
    assert kept.keys_by_id == {topology_id: 27}
    assert "keeps 27 keys" in bench.service.problems()[topology_id]
    assert f"sparkstorm kill {topology_id}" in bench.service.problems()[topology_id]


def test_nothing_is_swept_while_the_data_cannot_be_looked_at() -> None:
    bench, kept, topology_id = forgetting(paths.ERRORS)
    kept.is_away = True
    bench.advance(30)
    assert bench.state.known_ids() == {topology_id}
    kept.is_away, kept.keys_by_id = False, {}
    bench.advance(30)
    assert bench.state.known_ids() == set()


@pytest.mark.parametrize("had_run", [True, False])
def test_a_refused_submission_that_zookeeper_has_again_deletes_no_data_of_its_first_run(
    had_run: bool,
) -> None:
    bench, kept = Bench(), Kept()
    bench.nimbus.hooks.retirement = kept
    request = bench.service.submit_request("wc", wordcount(), {}, b"code")
    topology_id = request.topology_id
    bench.service.begin(request)
    bench.blobs.delete(min(request.blob_keys()))
    if had_run:
        kept.keys_by_id[topology_id] = 27
    bench.advance(60)
    outcome = bench.state.read_outcome(request.id)
    assert outcome and "submit wc again" in outcome.error
    assert (topology_id in bench.service.problems()) is had_run
    assert kept.keys_by_id == ({topology_id: 27} if had_run else {})


def test_a_submission_under_the_name_of_lost_records_says_that_it_begins_anew() -> None:
    bench, _, topology_id = forgetting("")
    bench.advance(1)
    said: list[str] = []
    new = bench.service.submit("wc", wordcount(), {}, b"code", progress=said.append)
    assert any(
        sentence.startswith(f"{new} begins anew") and topology_id in sentence for sentence in said
    )


def test_a_kill_by_the_id_of_lost_records_deletes_the_data() -> None:
    bench, kept, topology_id = forgetting(paths.ERRORS)
    bench.advance(1)
    new = bench.submit()
    bench.service.kill("wc", topology_id=topology_id)
    bench.advance(1)
    assert kept.keys_by_id == {} and topology_id not in bench.service.problems()
    assert bench.state.topology_ids() == [new]


def test_a_topology_that_zookeeper_has_again_after_its_end_is_named_until_it_is_killed() -> None:
    bench, kept = Bench(), Kept()
    bench.nimbus.hooks.retirement = kept
    topology_id = bench.submit()
    bench.restart_nimbus()
    bench.nimbus.hooks.retirement = kept
    bench.advance(60)
    assert bench.service.problems() == {}
    kept.gone = {topology_id}
    bench.restart_nimbus()
    bench.nimbus.hooks.retirement = kept
    bench.advance(60)
    assert f"sparkstorm kill {topology_id}" in bench.service.problems()[topology_id]
    bench.service.kill("wc", 0, topology_id)
    bench.advance(60)
    assert bench.service.problems() == {} and bench.state.topology_ids() == []


def test_a_revived_topology_is_named_too_while_a_request_for_it_is_open() -> None:
    bench, kept = Bench(), Kept()
    topology_id = bench.submit()
    bench.begin_rebalance("wc", RebalanceOptions(2), 600)
    (request, _), *_ = bench.state.open_requests()[0]
    assert request.topology_id == topology_id
    kept.gone = {topology_id}
    bench.restart_nimbus()
    bench.nimbus.hooks.retirement = kept
    bench.advance(60)
    assert f"sparkstorm kill {topology_id}" in bench.service.problems()[topology_id]
