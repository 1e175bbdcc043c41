"""MemoryError of user code ends the worker, wherever it is raised; it is never the failure of one
row.
"""

from __future__ import annotations

from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    BatchCollector,
    ColumnBolt,
    Source,
    Spout,
    StatefulBolt,
    Tuple,
)
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.api.windows import Count, Window, WindowedBolt
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.worker.building import Collecting, chain


class Basic(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        raise MemoryError


class Keyed(StatefulBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup[0], 1)
        raise MemoryError


class Manual(Collecting):
    outputs = ()

    def execute(self, tup: Tuple) -> None:
        raise MemoryError


class Blocking(Basic):
    blocking = True


class Columns(ColumnBolt):
    def execute_batch(self, batch: Any, source: Source, collector: BatchCollector) -> None:
        raise MemoryError


class Windowed(WindowedBolt):
    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        raise MemoryError


class Sink(TransactionalSink):
    def begin(self, epoch: int) -> None: ...

    def write(self, tup: Tuple) -> None:
        raise MemoryError

    def prepare(self, epoch: int) -> Any: ...

    def commit(self, epoch: int, prepared: Any) -> None: ...

    def recover(self, epoch: int, prepared: Any) -> None: ...


class Reporting(Collecting):
    """Survives a MemoryError by itself."""

    outputs = ()

    def execute(self, tup: Tuple) -> None:
        self.collector.report_error(MemoryError("borne"))
        self.collector.ack(tup)


def windowed() -> WindowedBolt:
    return Windowed().with_window(Count(1))


@pytest.mark.parametrize("make", [Basic, Keyed, Manual, Blocking, Columns, windowed, Sink])
def test_a_bolt_without_memory_ends_its_worker(make: Any) -> None:
    spout = FeederSpout(["value"])
    with LocalCluster() as cluster:
        cluster.submit(chain(spout, make()), {"topology.max.retries": 5})
        for number in range(20):
            spout.feed([number])
        with pytest.raises(MemoryError):
            cluster.run_until_idle()
        assert cluster.topology().dead_letters() == []


def test_a_spout_without_memory_ends_its_worker() -> None:
    class Full(Spout):
        outputs = ("value",)

        def next_tuple(self) -> None:
            raise MemoryError

    with LocalCluster() as cluster, pytest.raises(MemoryError):
        cluster.submit(chain(Full(), Basic()))


def test_a_bolt_may_report_one_that_it_has_borne() -> None:
    spout = FeederSpout(["value"])
    with LocalCluster() as cluster:
        cluster.submit(chain(spout, Reporting()))
        spout.feed([1])
        cluster.run_until_idle()
        assert [
            failure.text.startswith("MemoryError: borne") for failure in cluster.topology().errors
        ] == [True]
