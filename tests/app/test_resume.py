"""A run that is taken up again while a store goes away: it waits as long as its configuration says."""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.app.job_file import JobFile
from sparkstorm.app.run import Run
from sparkstorm.errors import StoreFullError, StoreUnavailableError
from sparkstorm.model.status import TopologyStatus
from sparkstorm.testing import FeederSpout

AWAY = StoreUnavailableError("Redis did not read blob chunk c0nf:0: Connection refused")
FULL = StoreFullError("Redis refuses writes: MISCONF Errors writing to the AOF file")


class Handle:
    """An unfinished topology whose activation needs a store."""

    topology_id = "words-1-1"

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.is_active = False

    def status(self) -> TopologyStatus:
        return TopologyStatus.INACTIVE

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


def run(patience_s: float = 120.0) -> Any:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout())
    job = JobFile("words.yaml", "words", "words:build", own_conf={"sparkstorm.stores.patience.secs": patience_s})
    return Run(job, builder.build())


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkstorm.app.run._RETRY_S", 0.0)


def test_a_store_that_goes_while_a_run_is_taken_up_again_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    handle, resumed = Handle(AWAY, FULL), run()
    cluster = Cluster(handle, AWAY)
    assert resumed.patiently(lambda: resumed._begin(cluster)) is handle
    assert handle.is_active
    said = capsys.readouterr().out
    assert said.count("waiting for the stores (at most 120 s): Redis did not read") == 1
    assert said.count("the stores answer again") == 1


def test_one_that_stays_away_ends_the_run_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkstorm.app.waits.time.monotonic", iter(range(0, 10_000, 2)).__next__)
    resumed = run(patience_s=5)
    with pytest.raises(StoreUnavailableError, match="Connection refused"):
        resumed.patiently(lambda: resumed._begin(Cluster(Handle(*[AWAY] * 1000))))
