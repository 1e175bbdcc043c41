"""A run that is taken up again while a store goes away: it waits as long as its configuration
says.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.errors import InvalidConfigError, StoreFullError, StoreUnavailableError
from sparkstorm.common.model.assignment import TaskInfo
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.driver.job_file import JobFile
from sparkstorm.driver.run import Run
from sparkstorm.testing import FeederSpout

AWAY = StoreUnavailableError("Redis did not read blob chunk c0nf:0: Connection refused")
FULL = StoreFullError("Redis refuses writes: MISCONF Errors writing to the AOF file")


class Handle:
    """An unfinished topology whose activation needs a store."""

    topology_id = "words-1-1"

    def __init__(self, *faults: Exception, conf: Mapping[str, Any] | None = None) -> None:
        self.faults = list(faults)
        self.is_active = False
        self.is_at_work = False
        self._conf = conf or {}

    def tasks(self) -> Mapping[int, TaskInfo]:
        return {1: TaskInfo("__acker", "bolt"), 2: TaskInfo("spout", "spout")}

    def conf(self) -> Mapping[str, Any]:
        return self._conf

    def status(self) -> TopologyStatus:
        return TopologyStatus.ACTIVE if self.is_at_work else TopologyStatus.INACTIVE

    def activate(self) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.is_active = True


class Cluster:
    """Finds that topology, once its own store answers."""

    def __init__(self, handle: Handle, *faults: Exception) -> None:
        self._handle, self._faults = handle, list(faults)

    def find(self, name: str) -> Handle:
        if self._faults:
            raise self._faults.pop(0)
        return self._handle


def run(
    patience_s: float = 120.0,
    conf: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Any:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout())
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    own = {"sparkstorm.stores.patience.secs": patience_s, **(conf or {}), **given}
    job = JobFile("words.yaml", "words", "words:build", own_conf=own, overrides=given)
    return Run(job, builder.build(), **(options or {}))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkstorm.driver.run._RETRY_S", 0.0)


def test_a_store_that_goes_while_a_run_is_taken_up_again_is_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handle, resumed = Handle(AWAY, FULL), run()
    cluster = Cluster(handle, AWAY)
    assert resumed.patiently(lambda: resumed._begin(cluster)) is handle
    assert handle.is_active
    said = capsys.readouterr().out
    assert said.count("waiting for the stores (at most 120 s): Redis did not read") == 1
    assert said.count("the stores answer again") == 1


def test_one_that_stays_away_ends_the_run_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sparkstorm.driver.waits.time.monotonic", iter(range(0, 10_000, 2)).__next__
    )
    resumed = run(patience_s=5)
    with pytest.raises(StoreUnavailableError, match="Connection refused"):
        resumed.patiently(lambda: resumed._begin(Cluster(Handle(*[AWAY] * 1000))))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"topology__workers": 4}, "sparkstorm rebalance words --workers 4"),
        ({"topology__max__retries": 9}, "sparkstorm rebalance words -c topology.max.retries=9"),
        ({"app__city": "Ulm"}, "sparkstorm rebalance words -c app.city=Ulm"),
    ],
)
def test_a_setting_that_what_runs_does_not_have_is_refused_and_not_dropped(
    overrides: dict[str, Any], words: str
) -> None:
    handle = Handle(conf={"topology.workers": 2})
    with pytest.raises(InvalidConfigError, match=words) as caught:
        run(**overrides)._begin(Cluster(handle))
    assert not handle.is_active
    assert "words-1-1 runs with" in str(caught.value)
    assert "--fresh" in str(caught.value)


def test_settings_that_what_runs_has_or_that_are_its_defaults_are_no_change() -> None:
    handle = Handle(conf={"topology.workers": 2})
    run(
        topology__workers=2, topology__max__retries=3, sparkstorm__progress__interval__ms=7000
    )._begin(Cluster(handle))
    assert handle.is_active


def test_a_changed_job_file_is_said_to_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run(conf={"topology.workers": 4})._begin(Cluster(Handle(conf={"topology.workers": 2})))
    assert "words.yaml says topology.workers: 4, the run goes on with 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("conf", "components", "words"),
    [
        ({"topology.builder": "orders:build"}, ["spout"], "orders:build; components spout"),
        ({"topology.builder": "words:build"}, ["spout", "sum"], "components spout, sum"),
        ({}, ["other"], r"\(components other\)"),
    ],
)
def test_a_name_that_another_topology_has_is_refused_with_both(
    conf: dict[str, Any], components: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Handle(conf=conf)
    tasks = {number: TaskInfo(name, "bolt") for number, name in enumerate(components)}
    monkeypatch.setattr(handle, "tasks", lambda: tasks)
    with pytest.raises(InvalidConfigError, match=words) as caught:
        run()._begin(Cluster(handle))
    assert "'words' is taken by words-1-1" in str(caught.value)
    assert "(words:build; components spout)" in str(caught.value) and not handle.is_active


def test_a_topology_without_tasks_yet_is_taken_up() -> None:
    handle = Handle()
    handle.tasks = dict  # type: ignore[method-assign]
    run()._begin(Cluster(handle))
    assert handle.is_active


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("is_agreed", [True, False])
def test_dropping_a_topology_at_work_on_a_session_cluster_needs_consent(
    is_shared: bool, is_agreed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Handle] = []
    monkeypatch.setattr("sparkstorm.driver.run.end", ended.append)
    handle = Handle()
    handle.is_at_work = True
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return is_agreed

    begun = run(options={"is_fresh": True, "is_shared": is_shared, "confirm": confirm})
    monkeypatch.setattr(
        begun, "_dead_letters", lambda handle: SimpleNamespace(collect=lambda: None)
    )
    cluster = Cluster(handle)
    cluster.submit = lambda *arguments: handle  # type: ignore[attr-defined]
    if is_shared and not is_agreed:
        with pytest.raises(InvalidConfigError, match=r"words-1-1, which is ACTIVE, .* --yes"):
            begun._begin(cluster)
        assert ended == []
    else:
        assert begun._begin(cluster) is handle
        assert ended == [handle]
    assert len(asked) == is_shared
