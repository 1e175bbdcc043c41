"""Tells what people may ask of Nimbus, what is refused with which words, and that a refusal leaves nothing behind."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.blobs.local import LocalBytesStore
from sparkstorm.blobs.store import BlobStore
from sparkstorm.cluster.local import LocalStateStore
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.daemons.assign_event import AssignEvent
from sparkstorm.daemons.nimbus import Nimbus
from sparkstorm.daemons.service import NimbusService
from sparkstorm.daemons.submission import SubmitOptions
from sparkstorm.errors import (
    AlreadyAliveError,
    FailedAssignTopologyError,
    IllegalTransitionError,
    InvalidConfigError,
    InvalidTopologyError,
    NotAliveError,
    SparkStormError,
    StoreUnavailableError,
)
from sparkstorm.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.model.topology import Component, Topology
from sparkstorm.scheduling.default import DefaultScheduler
from sparkstorm.scheduling.records import Topologies
from sparkstorm.scheduling.view import ClusterView
from tests.daemons.nimbus_bench import CODE, KEY, Bench, wordcount


def assert_nothing_is_left(bench: Bench) -> None:
    assert bench.state.known_ids() == set()
    assert bench.state.blob_keys() == []
    assert bench.bytes_store.list_keys() == []
    assert bench.state.submissions() == {}


def refuse(name: str, conf: Any, topology: Any) -> None:
    """A cluster's own validator."""
    raise ValueError(f"{name} is not welcome")


@pytest.mark.parametrize(
    ("name", "topology", "conf", "error", "words"),
    [
        ("a b", wordcount(), {}, InvalidTopologyError, "'a b' is not a valid topology name"),
        ("", wordcount(), {}, InvalidTopologyError, "not a valid topology name"),
        ("123", wordcount(), {}, InvalidTopologyError, "not a valid topology name"),
        ("../x", wordcount(), {}, InvalidTopologyError, "not a valid topology name"),
        ("wc", Topology({}), {}, InvalidTopologyError, "at least one spout"),
        ("wc", Topology({"__s": Component("__s", "spout", None)}), {}, InvalidTopologyError, "reserved"),
        ("wc", wordcount(), {"topology.wrokers": 2}, InvalidConfigError, "did you mean topology.workers"),
        ("wc", wordcount(), {"topology.workers": 0}, InvalidConfigError, "topology.workers"),
        ("wc", wordcount(), {"topology.workers": None}, InvalidConfigError, "topology.workers"),
        ("wc", wordcount(), {"topology.acker.executors": -1}, InvalidConfigError, "topology.acker.executors"),
        (
            "wc",
            wordcount(),
            {"storm.local.dir": "/elsewhere"},
            InvalidConfigError,
            "storm.local.dir belongs to the cluster",
        ),
        ("wc", wordcount(), {"topology.bolt.parallelism": {"split": 0}}, InvalidConfigError, "parallelism of 'split'"),
        ("wc", wordcount(), {"topology.upgrade": True}, InvalidConfigError, "gray upgrades"),
    ],
)
def test_an_illegal_submission_is_refused_by_name_and_leaves_nothing(
    name: str, topology: Topology, conf: dict[str, Any], error: type[SparkStormError], words: str
) -> None:
    bench = Bench()
    with pytest.raises(error, match=words):
        bench.service.submit(name, topology, conf, CODE)
    assert_nothing_is_left(bench)
    assert bench.submit()


def test_the_clusters_own_validator_may_refuse() -> None:
    bench = Bench(nimbus__topology__validator="tests.daemons.test_service:refuse")
    with pytest.raises(InvalidTopologyError, match="wc is not welcome"):
        bench.submit()
    assert_nothing_is_left(bench)
    bench = Bench(nimbus__topology__validator="no.such:thing")
    with pytest.raises(InvalidConfigError, match=r"cannot import 'no\.such:thing'"):
        bench.submit()


def test_a_running_name_is_taken_until_its_topology_is_gone() -> None:
    bench = Bench()
    bench.submit()
    with pytest.raises(AlreadyAliveError, match="wc runs already"):
        bench.submit()
    bench.service.kill("wc", wait_secs=5)
    with pytest.raises(AlreadyAliveError):
        bench.submit()
    bench.advance(10)
    assert bench.submit()


def test_two_submissions_of_one_name_at_the_same_moment_leave_one() -> None:
    bench = Bench()
    outcomes: list[object] = []
    start = threading.Barrier(3)

    def submit() -> None:
        start.wait()
        try:
            outcomes.append(bench.service.begin_submit("wc", wordcount(), {"topology.workers": 1}, CODE))
        except SparkStormError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    start.wait()
    for thread in threads:
        thread.join(10)
    assert sorted(type(each).__name__ for each in outcomes) == ["AlreadyAliveError", "Submission"]


def test_another_driver_cannot_take_a_name_under_submission() -> None:
    bench = Bench()
    submission = bench.service.begin_submit("wc", wordcount(), {"topology.workers": 1}, CODE)
    other_state = StormState(LocalStateStore(bench.tree), KEY)
    other = NimbusService(other_state, bench.blobs, bench.nimbus, bench.conf, bench.clock)
    with pytest.raises(AlreadyAliveError, match="another driver"):
        other.begin_submit("wc", wordcount(), {"topology.workers": 1}, CODE)
    bench.tick()
    assert submission.poll_done() == submission.prepared.topology_id
    bench.service.end_submit(submission)
    with pytest.raises(AlreadyAliveError, match="runs already"):
        other.begin_submit("wc", wordcount(), {"topology.workers": 1}, CODE)


class Failing:
    """A state store that fails at its n-th write."""

    def __init__(self, inner: LocalStateStore, at: int) -> None:
        self._inner, self._left = inner, at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("put", "create", "ensure_path", "create_sequential"):
            return found

        def write(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                raise StoreUnavailableError("the store went away")
            return found(*arguments, **options)

        return write


@pytest.mark.parametrize("at", range(2, 12))  # the first write is the submission counter's
def test_a_submission_whose_store_fails_at_any_write_leaves_nothing(at: int) -> None:
    bench = Bench()
    failing: Any = Failing(bench.store, at)
    state = StormState(failing, KEY)
    blobs = BlobStore(state, bench.bytes_store, KEY)
    service = NimbusService(state, blobs, bench.nimbus, bench.conf, bench.clock, bench.wait_until)
    try:
        service.submit("wc", wordcount(), {"topology.workers": 2}, CODE)
    except StoreUnavailableError:
        assert_nothing_is_left(bench)
        assert bench.submit()
    else:
        assert at > 8, "this submission should have failed"


class Refusing:
    """A scheduler that lacks workers."""

    def prepare(self, conf: object) -> None:
        pass

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        if any(cluster.needs_scheduling(topology) for topology in topologies.values()):
            raise FailedAssignTopologyError("there's no enough worker. allocWorkerNum=4, availableWorkerNum=2,reserveWorkerNum=0")


def test_a_topology_that_cannot_be_assigned_is_refused_with_the_numbers_and_leaves_nothing() -> None:
    bench = Bench(scheduler=Refusing())
    with pytest.raises(FailedAssignTopologyError, match="allocWorkerNum=4, availableWorkerNum=2"):
        bench.submit()
    assert_nothing_is_left(bench)


def test_a_submission_that_nimbus_does_not_serve_is_given_up_after_five_minutes() -> None:
    bench = Bench()
    waited: list[int] = []

    def never(condition: Callable[[], bool], timeout_ms: int) -> bool:
        waited.append(timeout_ms)
        return condition()

    bench.service = NimbusService(bench.state, bench.blobs, bench.nimbus, bench.conf, bench.clock, never)
    with pytest.raises(FailedAssignTopologyError, match="not assigned within 300 s"):
        bench.submit()
    assert waited == [300_000]
    assert_nothing_is_left(bench)
    bench.advance(3)
    assert bench.state.known_ids() == set()


def test_a_submission_survives_a_store_that_is_away_while_it_waits() -> None:
    bench = Bench()
    submission = bench.service.begin_submit("wc", wordcount(), {"topology.workers": 2}, CODE)
    bench.tree.is_down = True
    bench.advance(5)
    assert submission.poll_done() is None
    bench.tree.is_down = False
    bench.advance(2)
    assert submission.poll_done() == submission.prepared.topology_id
    bench.service.end_submit(submission)


def test_everything_a_submission_records_is_there() -> None:
    bench = Bench()
    topology_id = bench.submit(topology__workers=3, app__colour="red", topology__bolt__parallelism={"split": 6})
    assert topology_id == f"wc-1-{bench.clock.now_ms() // 1000}"
    base, tasks = bench.state.read_base(topology_id), bench.state.read_tasks(topology_id)
    assert base and tasks
    assert base.executors_by_component == {"__acker": 3, "count": 4, "lines": 1, "split": 6}
    by_component: dict[str, list[int]] = {}
    for task, info in sorted(tasks.info_by_task.items()):
        by_component.setdefault(info.component_id, []).append(task)
        assert info.kind == ("spout" if info.component_id == "lines" else "bolt")
    assert sorted(by_component) == ["__acker", "count", "lines", "split"]
    assert all(found == list(range(found[0], found[-1] + 1)) for found in by_component.values())
    assert bench.state.read_task_beats(topology_id)
    assert bench.store.get(f"/errors/{topology_id}") is not None
    assert bench.store.children(f"/gray_upgrade/{topology_id}") == ["upgraded_workers", "upgrading_workers"]
    assert (bench.store.get(f"/workerbeats/{topology_id}") or (None,))[0] == b""
    conf = bench.blobs.get(base.conf_key)
    assert b'"app.colour":"red"' in conf and f'"topology.id":"{topology_id}"'.encode() in conf
    assert b"password" not in conf
    assert bench.blobs.get(base.code_key) == CODE
    assert bench.state.submissions() == {}


def test_parallelism_is_capped_by_the_topology_and_by_the_component() -> None:
    bench = Bench()
    topology_id = bench.submit(topology__max__task__parallelism=2, topology__acker__executors=0)
    base = bench.state.read_base(topology_id)
    assert base and base.executors_by_component == {"count": 2, "lines": 1, "split": 2}


def test_a_topology_may_start_inactive_and_as_nothing_else() -> None:
    bench = Bench()
    topology_id = bench.service.submit("wc", wordcount(), {}, CODE, SubmitOptions(TopologyStatus.INACTIVE, "ann"))
    base = bench.state.read_base(topology_id)
    assert base and (base.status, base.owner) == (TopologyStatus.INACTIVE, "ann")
    with pytest.raises(InvalidTopologyError, match="KILLED"):
        bench.service.submit("other", wordcount(), {}, CODE, SubmitOptions(TopologyStatus.KILLED))


@pytest.mark.parametrize("request_name", ["kill", "activate", "deactivate"])
def test_who_asks_about_a_topology_that_is_not_there_is_told(request_name: str) -> None:
    with pytest.raises(NotAliveError, match="nobody"):
        getattr(Bench().service, request_name)("nobody")


def test_a_killed_topology_cannot_be_activated() -> None:
    bench = Bench()
    bench.submit()
    bench.service.kill("wc", wait_secs=100)
    with pytest.raises(IllegalTransitionError, match="KILLED"):
        bench.service.activate("wc")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (RebalanceOptions(0), "at least 1"),
        (RebalanceOptions(None, {"split": 5}), "'split' has 4 tasks, so it can have 1 to 4 executors, not 5"),
        (RebalanceOptions(None, {"split": 0}), "not 0"),
        (RebalanceOptions(None, {"nobody": 1}), "no component 'nobody', only __acker, count, lines, split"),
        (RebalanceOptions(None, {}, {"topology.wrokers": 1}), "did you mean"),
        (RebalanceOptions(None, {}, {"topology.acker.executors": 9}), "fixed for a topology's life"),
        (RebalanceOptions(None, {}, {"storm.local.dir": "/x"}), "belongs to the cluster"),
        (RebalanceOptions(None, {}, {}, {"nobody": {"cpu": 1.0}}), "no component 'nobody'"),
    ],
)
def test_an_impossible_rebalance_is_refused_and_changes_nothing(options: RebalanceOptions, words: str) -> None:
    bench = Bench()
    topology_id = bench.submit()
    before = bench.state.read_base(topology_id)
    for ask in (bench.service.rebalance, bench.service.plan_rebalance):
        with pytest.raises(SparkStormError, match=words):
            ask("wc", options)
    assert bench.state.read_base(topology_id) == before


def test_a_rebalance_of_resources_is_seen_by_schedulers() -> None:
    bench = Bench()
    topology_id = bench.submit()
    bench.service.rebalance("wc", RebalanceOptions(resources_by_component={"split": {"cpu": 55.0}}), wait_secs=0)
    bench.advance(2)
    outline = bench.state.read_outline(topology_id)
    assert outline and outline.components["split"].conf == {"topology.component.cpu.pcore.percent": 55.0}


class Heirs:
    """A keeper of what topologies leave: state by topology id."""

    def __init__(self) -> None:
        self.state_by_id: dict[str, str] = {}

    def retire(self, topology_id: str) -> None:
        self.state_by_id.pop(topology_id, None)

    def hand_over(self, old_id: str, new_id: str) -> None:
        if old_id in self.state_by_id:  # a hand-over may be repeated
            self.state_by_id[new_id] = self.state_by_id.pop(old_id)


def test_a_hot_deploy_runs_the_new_code_only_after_the_old_is_gone_and_hands_its_state_over() -> None:
    bench, heirs = Bench(), Heirs()
    bench.nimbus.undertaker.retirement = heirs
    old = bench.submit()
    heirs.state_by_id[old] = "counts"
    new = bench.submit(code=b"new code", topology__hot__deploy__enable=True)
    assert bench.state.topology_ids() == [new]
    base = bench.state.read_base(new)
    assert base and bench.blobs.get(base.code_key) == b"new code"
    assert heirs.state_by_id == {new: "counts"}
    assert len(bench.slots(new)) == 13


def test_a_hot_deploy_with_other_tasks_starts_afresh_and_leaves_nothing_of_the_old() -> None:
    bench, heirs = Bench(), Heirs()
    bench.nimbus.undertaker.retirement = heirs
    old = bench.submit()
    heirs.state_by_id[old] = "counts"
    new = bench.submit(topology=wordcount(5), topology__hot__deploy__enable=True)
    assert bench.state.topology_ids() == [new]
    assert heirs.state_by_id == {}


def test_a_gray_upgrade_is_refused_in_words() -> None:
    bench = Bench()
    old = bench.submit()
    with pytest.raises(InvalidConfigError, match=r"gray upgrades are not in this release"):
        bench.submit(topology__upgrade=True)
    assert bench.state.topology_ids() == [old]


def test_a_hot_deploy_of_nothing_is_refused() -> None:
    bench = Bench()
    with pytest.raises(NotAliveError):
        bench.submit(topology__hot__deploy__enable=True)
    assert_nothing_is_left(bench)


def test_a_hot_deploy_with_an_illegal_topology_leaves_the_old_one_running() -> None:
    bench = Bench()
    old = bench.submit()
    before = bench.state.read_assignment(old)
    with pytest.raises(InvalidTopologyError):
        bench.submit(topology=Topology({}), topology__hot__deploy__enable=True)
    bench.advance(20)
    assert bench.state.read_assignment(old) == before
    base = bench.state.read_base(old)
    assert base and base.status == TopologyStatus.ACTIVE


class Picky:
    """Refuses topologies with more than five executors of split."""

    def __init__(self) -> None:
        self._good = DefaultScheduler()

    def prepare(self, conf: object) -> None:
        pass

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        if any(len(each.component("split").executors) > 5 for each in topologies.values()):
            raise FailedAssignTopologyError("there's no enough worker")
        self._good.schedule(topologies, cluster)


def test_a_hot_deploy_that_cannot_be_assigned_brings_the_old_one_back_with_its_state() -> None:
    bench, heirs = Bench(scheduler=Picky()), Heirs()
    bench.nimbus.undertaker.retirement = heirs
    old = bench.submit()
    heirs.state_by_id[old] = "counts"
    with pytest.raises(FailedAssignTopologyError, match="no enough worker") as caught:
        bench.submit(topology=wordcount(6), code=b"new code", topology__hot__deploy__enable=True)
    (back,) = bench.state.topology_ids()
    assert back in str(caught.value)
    base = bench.state.read_base(back)
    assert base and bench.blobs.get(base.code_key) == CODE
    assert heirs.state_by_id == {back: "counts"}
    assert len(bench.slots(back)) == 13


def test_summaries_tell_sizes() -> None:
    bench = Bench()
    bench.submit("one", topology__workers=2)
    bench.service.deactivate("one")
    (one,) = bench.service.summaries()
    assert (one.name, one.status, one.num_workers, one.num_executors, one.num_tasks) == ("one", "INACTIVE", 2, 11, 11)


def test_a_submission_waits_for_copies_but_never_fails_for_them() -> None:
    bench = Bench()
    asked: list[tuple[int, int]] = []

    class Lonely(LocalBytesStore):
        def wait_copies(self, wanted: int, timeout_ms: int) -> int:
            asked.append((wanted, timeout_ms))
            return 1

    bench.bytes_store = Lonely()
    bench.start_nimbus()
    assert bench.submit(topology__min__replication__count=3, topology__max__replication__wait__time__sec=7)
    assert asked == [(3, 7000)]


def test_a_hot_deploy_whose_old_topology_does_not_end_deploys_nothing() -> None:
    bench, heirs = Bench(), Heirs()
    bench.nimbus.undertaker.retirement = heirs
    old = bench.submit()

    def never(condition: Callable[[], bool], timeout_ms: int) -> bool:
        return False

    bench.service = NimbusService(bench.state, bench.blobs, bench.nimbus, bench.conf, bench.clock, never)
    with pytest.raises(FailedAssignTopologyError, match=r"did not end within .* nothing was deployed"):
        bench.submit(code=b"new code", topology__hot__deploy__enable=True)
    assert bench.state.topology_ids() == [old]
    heirs.state_by_id[old] = "counts"
    bench.advance(20)
    assert bench.state.known_ids() == set()
    assert heirs.state_by_id == {}


def test_submissions_under_way_are_served_by_the_nimbus_that_follows() -> None:
    bench, heard = Bench(nodes=3), Ear()
    bench.nimbus.listeners.append(heard)
    before = bench.service.begin_submit("before", wordcount(), {"topology.workers": 1}, CODE)
    former, bench.nimbus = bench.nimbus, Nimbus(bench.state, bench.blobs, bench.scheduler, bench.conf)
    bench.service.attach(bench.nimbus)
    after = bench.service.begin_submit("after", wordcount(), {"topology.workers": 1}, CODE)
    late = AssignEvent(replace(before.base, topology_id="late-9-1", name="late", num_workers=1))
    bench.state.write_outline("late-9-1", before.prepared.outline)
    former.submit(late)  # by a thread that had asked for Nimbus a moment before
    bench.tick()
    assert before.poll_done() and after.poll_done() and late.is_settled and late.error is None
    assert ("late", "startTopology") in heard.told
    never = AssignEvent(before.base)
    assert bench.nimbus.withdraw(never)


class Ear:
    """Hears what was done."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def notify(self, topology_name: str, action: str) -> None:
        self.told.append((topology_name, action))
