"""Tells what people may ask of Nimbus, what is refused with which words, and that a refusal leaves
nothing behind.
"""

from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.client.request_client import SubmitOptions
from sparkstorm.client.submission import prepare
from sparkstorm.common.config import default_conf
from sparkstorm.common.errors import (
    AlreadyAliveError,
    FailedAssignTopologyError,
    InvalidConfigError,
    InvalidTopologyError,
    NotAliveError,
    SparkStormError,
)
from sparkstorm.common.model.assignment import WorkerCode
from sparkstorm.common.model.heartbeats import TaskBeats
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.topology import Component, Grouping, Stream, Subscription, Topology
from sparkstorm.control_plane.blobs.store import BlobKind
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.control_plane.nimbus.hooks import NothingToRetire
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView
from tests.nimbus.nimbus_bench import CODE, Bench, submitted, wordcount


def test_a_submission_and_its_assignment_are_logged_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "sparkstorm.control_plane.nimbus")
    bench = Bench(nodes=2)
    own: dict[str, Any] = {
        "topology__environment": {"TOKEN": "secret"},
        "app__token": "secret",
        "topology__message__timeout__secs": 7,
    }
    topology_id = bench.submit(topology__workers=2, **own)
    (submitted,) = [
        line for line in caplog.messages if line.startswith(f"submission of {topology_id} by ")
    ]
    assert "'topology.message.timeout.secs': 7" in submitted
    assert "'topology.environment': ['TOKEN']" in submitted
    (assigned,) = [
        line
        for line in caplog.messages
        if line.startswith(f"assignment of {topology_id}, version ")
    ]
    slots = sorted(map(str, set(bench.slots(topology_id).values())))
    assert all(f"{slot}: " in assigned for slot in slots) and len(slots) == 2
    assert "secret" not in caplog.text


def assert_nothing_is_left(bench: Bench) -> None:
    assert bench.state.known_ids() == set()
    assert bench.state.blob_keys() == []
    assert bench.bytes_store.list_keys() == []
    assert (
        bench.state.protected_ids() == bench.state.request_ids() == bench.state.outcome_ids() == []
    )


STREAM = Stream(("word",))
SPOUT = Component("s", "spout", None, streams={"default": STREAM})
FROM_SPOUT = Subscription("s", "default", Grouping("shuffle"))


def of(*components: Component) -> Topology:
    return Topology({each.id: each for each in components})


def refuse(name: str, conf: Any, topology: Any) -> None:
    """A cluster's own validator."""
    raise ValueError(f"{name} is not welcome")


def require_refused(
    name: Any, topology: Topology, conf: Any, error: type[SparkStormError], words: str
) -> None:
    bench, heard = Bench(), Ear()
    bench.nimbus.hooks.listeners.append(heard)
    with pytest.raises(error, match=words):
        bench.service.submit(name, topology, conf, CODE)
    assert_nothing_is_left(bench)
    assert heard.told == []
    assert bench.submit()


@pytest.mark.parametrize("key", ["", "topology.upgrade", "topology.hot.deploy.enable"])
@pytest.mark.parametrize("name", ["a b", "", "123", "../x", "null", None])
def test_an_illegal_name_is_refused_and_leaves_nothing(name: Any, key: str) -> None:
    words = f"{str(name)!r} is not a valid topology name"
    require_refused(name, wordcount(), {key: True} if key else {}, InvalidTopologyError, words)


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        (Topology({}), "at least one spout"),
        (of(Component("__s", "spout", None)), "component id '__s' is reserved"),
        (of(Component("a b", "spout", None)), "component id 'a b' is not valid"),
        (of(replace(SPOUT, streams={"a b": STREAM})), "stream id .a b. is not"),
        (of(replace(SPOUT, streams={"__s": STREAM})), "stream id '__s' is reserved"),
        (of(SPOUT, replace(SPOUT, id="t", inputs=(FROM_SPOUT,))), "'t' may not declare inputs"),
    ],
)
def test_an_illegal_topology_is_refused_and_leaves_nothing(topology: Topology, words: str) -> None:
    require_refused("wc", topology, {}, InvalidTopologyError, words)


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"topology.wrokers": 2}, "did you mean topology.workers"),
        ({"topology.workers": 0}, "topology.workers"),
        ({"topology.workers": None}, "topology.workers"),
        ({"topology.workers": "two"}, "topology.workers"),
        ({"topology.acker.executors": -1}, "topology.acker.executors"),
        ({"topology.hot.deploy.enable": True, "topology.wrokers": 2}, "did you mean"),
        ({"topology.hot.deploy.enable": "yes"}, "topology.hot.deploy.enable"),
        ({"app.x": float("nan")}, "app.x: .*not JSON"),
        (None, "expected settings by key, got None"),
        ("conf", "expected settings by key, got 'conf'"),
        ({"storm.local.dir": "/elsewhere"}, "storm.local.dir belongs to the cluster"),
        ({"topology.bolt.parallelism": {"split": 0}}, "parallelism of 'split'"),
        ({"topology.upgrade.wrokers": []}, "did you mean topology.upgrade.workers"),
        (
            {"topology.autoscale.min.workers": 3, "topology.autoscale.max.workers": 2},
            "min.workers, 3, is more than topology.autoscale.max.workers, 2: lower",
        ),
        ({"topology.autoscale.utilization.min": 0.5}, "utilization.min, 0.5, is more than half"),
    ],
)
def test_an_illegal_setting_is_refused_and_leaves_nothing(conf: Any, words: str) -> None:
    require_refused("wc", wordcount(), conf, InvalidConfigError, words)


@pytest.mark.parametrize(
    ("name", "conf", "error", "words"),
    [
        ("x" * 151, {}, InvalidTopologyError, "it has 151 characters, at most 150 are allowed"),
        ("wc", {"topology.upgrade": True}, NotAliveError, "topology wc is not alive"),
        (
            "wc",
            {"topology.component.resources.map": {"gpu": "x"}},
            InvalidTopologyError,
            "'gpu': expected an amount",
        ),
    ],
)
def test_an_illegal_submission_is_refused_by_name_and_leaves_nothing(
    name: str, conf: Any, error: type[SparkStormError], words: str
) -> None:
    require_refused(name, wordcount(), conf, error, words)


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        (
            {"topology.wrokers": 1},
            "component 's' of wc: unknown key topology.wrokers; did you mean topology.workers",
        ),
        (
            {"storm.local.dir": "/elsewhere"},
            "component 's' of wc: storm.local.dir belongs to the cluster",
        ),
        (
            {"topology.tick.tuple.freq.secs": "often"},
            "component 's' of wc: topology.tick.tuple.freq.secs: expected a number",
        ),
        (
            {"topology.tasks": 0},
            "component 's' of wc: topology.tasks must be a whole number of at least 1, not 0",
        ),
        ({"topology.tasks": "many"}, "not 'many'"),
        (
            {"topology.component.resources.map": {"gpu": "one"}},
            "component 's' of wc: 'gpu': expected an amount of at least 0",
        ),
        ({"topology.component.resources.map": {"gpu": -1}}, "got -1"),
        ({"app.x": object()}, "app.x: object is no type of a configuration"),
        ({"app.x": float("inf")}, "app.x: .*not JSON"),
        ({5: 1}, "a key must be a string"),
        (None, "component 's' of wc: expected settings by key, got None"),
    ],
)
def test_what_a_component_brings_along_is_checked_like_the_topologys_own(
    conf: Any, words: str
) -> None:
    bench = Bench()
    with pytest.raises(SparkStormError, match=words):
        bench.submit(topology=of(replace(SPOUT, conf=conf)))
    assert_nothing_is_left(bench)


def test_the_clusters_own_validator_may_refuse() -> None:
    bench = Bench(nimbus__topology__validator="tests.nimbus.test_service:refuse")
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


def test_of_two_submissions_of_one_name_at_the_same_moment_the_first_wins() -> None:
    bench = Bench(nodes=3)
    other = bench.client(LocalStateStore(bench.tree))
    first = bench.service.begin(
        bench.service.submit_request("wc", wordcount(), {"topology.workers": 1}, CODE)
    )
    bench.clock.advance(1)
    second = other.begin(other.submit_request("wc", wordcount(), {"topology.workers": 1}, CODE))
    with pytest.raises(AlreadyAliveError, match="wc runs already"):
        second.wait()
    assert first.wait().topology_id == first.request.topology_id
    assert bench.state.known_ids() == {first.request.topology_id}
    base = bench.state.read_base(first.request.topology_id)
    assert base and bench.blobs.get(base.code_key) == CODE, (
        "the refused one had stored the same bytes"
    )


def test_a_topology_that_cannot_be_assigned_is_refused_with_the_numbers_and_leaves_nothing() -> (
    None
):
    bench = Bench(scheduler=RefusingScheduler())
    heard = Ear()
    bench.nimbus.hooks.listeners.append(heard)
    with pytest.raises(FailedAssignTopologyError, match="allocWorkerNum=4, availableWorkerNum=2"):
        bench.submit(topology=wordcount(6))
    assert_nothing_is_left(bench)
    assert heard.told == []


def test_a_submission_survives_a_store_that_is_away_while_it_waits() -> None:
    bench = Bench()
    pending = bench.service.begin(
        bench.service.submit_request("wc", wordcount(), {"topology.workers": 2}, CODE)
    )
    bench.tree.is_down = True
    bench.advance(5)
    assert not bench.wait_until(lambda: pending._look() is not None, 2000)
    bench.tree.is_down = False
    assert pending.wait().topology_id == pending.request.topology_id
    assert len(bench.slots(pending.request.topology_id)) == 11


def test_everything_a_submission_records_is_there() -> None:
    bench = Bench()
    began_ms = bench.clock.now_ms()
    topology_id = bench.submit(
        topology__workers=3, app__colour="red", topology__bolt__parallelism={"split": 6}
    )
    assert topology_id == f"wc-1-{began_ms // 1000}"
    assert bench.state.blob_keys() and len(bench.state.blob_keys()) == 2, (
        "the outline's blob is needed no more"
    )
    base, tasks = bench.state.read_base(topology_id), bench.state.read_tasks(topology_id)
    assert base and tasks
    assert base.name == "wc"
    assert base.launch_ms == began_ms
    assert base.status == TopologyStatus.ACTIVE
    assert base.num_workers == 3
    assert base.executors_by_component == {"__acker": 3, "count": 4, "lines": 1, "split": 6}
    by_component: dict[str, list[int]] = {}
    for task, info in sorted(tasks.info_by_task.items()):
        by_component.setdefault(info.component_id, []).append(task)
        assert info.kind == ("spout" if info.component_id == "lines" else "bolt")
    # numbered in the order of names, from 1
    assert list(by_component) == ["__acker", "count", "lines", "split"]
    assert sorted(tasks.info_by_task) == list(range(1, 3 + 4 + 1 + 6 + 1))
    assert all(found == list(range(found[0], found[-1] + 1)) for found in by_component.values())
    assert bench.state.read_task_beats(topology_id) == TaskBeats(topology_id, None)
    assert bench.store.get(f"/errors/{topology_id}") is not None
    result = bench.store.children(f"/gray_upgrade/{topology_id}")
    assert result == ["upgraded_workers", "upgrading_workers"]
    assert (bench.store.get(f"/workerbeats/{topology_id}") or (None,))[0] == b""
    conf = bench.blobs.get(base.conf_key, BlobKind.CONF)
    assert b'"app.colour":"red"' in conf and f'"topology.id":"{topology_id}"'.encode() in conf
    assert b"password" not in conf
    assert bench.blobs.get(base.code_key) == CODE
    assert (
        bench.state.protected_ids() == bench.state.request_ids() == bench.state.outcome_ids() == []
    )


def test_parallelism_is_capped_by_the_topology_and_by_the_component() -> None:
    bench = Bench()
    topology_id = bench.submit(topology__max__task__parallelism=2, topology__acker__executors=0)
    assert bench.base_of(topology_id).executors_by_component == {"count": 2, "lines": 1, "split": 2}


def test_a_topology_may_start_inactive_and_as_nothing_else() -> None:
    bench = Bench()
    topology_id = bench.service.submit(
        "wc", wordcount(), {}, CODE, SubmitOptions(TopologyStatus.INACTIVE, "ann")
    )
    base = bench.base_of(topology_id)
    assert (base.status, base.owner) == (TopologyStatus.INACTIVE, "ann")
    with pytest.raises(InvalidTopologyError, match="KILLED"):
        bench.service.submit("other", wordcount(), {}, CODE, SubmitOptions(TopologyStatus.KILLED))


@pytest.mark.parametrize("request_name", ["kill", "activate", "deactivate"])
def test_who_asks_about_a_topology_that_is_not_there_is_told(request_name: str) -> None:
    with pytest.raises(NotAliveError, match="nobody"):
        getattr(Bench().service, request_name)("nobody")


class Heirs(NothingToRetire):
    """A keeper of what topologies leave: state by topology id."""

    def __init__(self) -> None:
        self.state_by_id: dict[str, str] = {}

    def retire(self, topology_id: str) -> None:
        self.state_by_id.pop(topology_id, None)

    def hand_over(self, old_id: str, new_id: str) -> None:
        if old_id in self.state_by_id:  # a hand-over may be repeated
            self.state_by_id[new_id] = self.state_by_id.pop(old_id)


def test_a_hot_deploy_with_other_tasks_starts_afresh_and_leaves_nothing_of_the_old() -> None:
    bench, heirs = Bench(), Heirs()
    bench.nimbus.hooks.retirement = heirs
    old = bench.submit()
    heirs.state_by_id[old] = "counts"
    new = bench.submit(topology=wordcount(5), topology__hot__deploy__enable=True)
    assert bench.state.topology_ids() == [new]
    assert heirs.state_by_id == {}


def test_a_submission_under_a_running_name_is_a_gray_upgrade_when_its_conf_says_so() -> None:
    """S0.2, S0.8, S0.14-S0.16, S0.20: a third kind of submission; the topology keeps its id, and
    the record says all.
    """
    bench, old = submitted()
    options = {
        "topology.upgrade": True,
        "topology.upgrade.component": "count",
        "topology.upgrade.worker.num": 1,
    }
    result = bench.service.submit("wc", wordcount(), {"topology.workers": 4, **options}, b"new")
    assert result == old
    bench.advance(3)
    base, upgrade = bench.state.read_base(old), bench.state.read_upgrade(old)
    assert base and upgrade and bench.state.topology_ids() == [old]
    assert (base.status, bench.blobs.get(base.code_key)) == (TopologyStatus.UPGRADING, CODE)
    assert upgrade.code != upgrade.former == WorkerCode(base.code_key, base.conf_key)
    assert upgrade.options.component == "count"
    assert upgrade.options.worker_num == 1
    assert len(upgrade.batch) == 1


def test_a_gray_upgrade_of_a_topology_without_an_assignment_is_refused_in_the_seeds_words() -> None:
    """S0.5."""
    bench, topology_id = submitted()
    bench.state.remove_assignment(topology_id)
    bench.store.delete("/assignments_bak/wc")
    with pytest.raises(NotAliveError, match="Failed to get topology info"):
        bench.submit(topology__upgrade=True, topology__upgrade__worker__num=1)


def test_a_hot_deploy_of_nothing_is_refused() -> None:
    bench = Bench()
    with pytest.raises(NotAliveError):
        bench.submit(topology__hot__deploy__enable=True)
    assert_nothing_is_left(bench)


def test_a_hot_deploy_with_an_illegal_topology_leaves_the_old_one_running() -> None:
    bench, old = submitted()
    before = bench.state.read_assignment(old)
    with pytest.raises(InvalidTopologyError):
        bench.submit(topology=Topology({}), topology__hot__deploy__enable=True)
    bench.advance(20)
    assert bench.state.read_assignment(old) == before
    assert bench.base_of(old).status == TopologyStatus.ACTIVE


class RefusingScheduler:
    """Refuses topologies with more than five executors of split."""

    def __init__(self) -> None:
        self._good = DefaultScheduler()

    def prepare(self, conf: object) -> None:
        pass

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        if any(len(each.component("split").executors) > 5 for each in topologies.values()):
            raise FailedAssignTopologyError("allocWorkerNum=4, availableWorkerNum=2")
        self._good.schedule(topologies, cluster)


def test_what_is_brought_back_is_as_it_was_rebalanced_and_deactivated() -> None:
    bench = Bench(scheduler=RefusingScheduler())
    bench.submit()
    bench.service.rebalance(
        "wc", RebalanceOptions(3, {"split": 2}, {"app.colour": "red"}), wait_secs=0
    )
    bench.advance(2)
    bench.service.deactivate("wc")
    with pytest.raises(FailedAssignTopologyError):
        bench.submit(topology=wordcount(6), code=b"new code", topology__hot__deploy__enable=True)
    (back,) = bench.state.topology_ids()
    base = bench.base_of(back)
    result = (base.status, base.num_workers, base.executors_by_component["split"])
    assert result == (TopologyStatus.INACTIVE, 3, 2)
    assert (len(bench.slots(back)), len(set(bench.slots(back).values()))) == (11, 3)
    assert b'"app.colour":"red"' in bench.blobs.get(base.conf_key, BlobKind.CONF)
    assert f'"topology.id":"{back}"'.encode() in bench.blobs.get(base.conf_key, BlobKind.CONF)


def test_summaries_tell_sizes() -> None:
    bench = Bench()
    bench.submit("one", topology__workers=2)
    bench.service.deactivate("one")
    (one,) = bench.service.summaries()
    assert one.name == "one"
    assert one.status == "INACTIVE"
    assert one.num_workers == 2
    assert one.num_executors == 11
    assert one.num_tasks == 11


@pytest.mark.parametrize("key", ["topology.workers", "topology.acker.executors"])
def test_sizes_that_come_from_the_clusters_record_are_checked_at_a_submission(key: str) -> None:
    """S0.39: a topology's own settings are checked by type before; the cluster's come from a record
    in ZooKeeper.
    """
    cluster_conf = {**default_conf().as_dict(), key: -1}
    with pytest.raises(InvalidConfigError, match=rf"{key}.*-1"):
        prepare("wc-1-1", "wc", wordcount(), {}, cluster_conf)


def test_a_topologys_own_setting_goes_before_the_clusters() -> None:
    bench = Bench(topology__max__task__parallelism=1)
    topology_id = bench.submit(topology__max__task__parallelism=3)
    assert bench.base_of(topology_id).executors_by_component["split"] == 3


class Ear:
    """Hears what was done."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def notify(self, topology_name: str, action: str) -> None:
        self.told.append((topology_name, action))
