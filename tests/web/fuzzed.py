"""A real cluster to be fuzzed, whose topology comes back whenever a request has ended it."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparkstorm.api import BasicBolt, ReplayableSpout, StatefulBolt, TopologyBuilder
from sparkstorm.common.config import merge
from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model.requests import RequestKind
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.stores.addresses import connection_path
from sparkstorm.driver.cluster import Cluster
from tests.web.listening import running

NAME = "words"
_CONF = {"topology.workers": 1, "topology.acker.executors": 1, "topology.max.retries": 0}
_PAUSE_S = 0.02
_LIMIT_S = 300.0


class Numbers(ReplayableSpout):
    """Emits some fifty numbers a second, without an end."""

    outputs = ("n",)

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector, self.next = collector, 0

    def next_tuple(self) -> None:
        time.sleep(_PAUSE_S)
        print("number", self.next, flush=True)
        self.collector.emit((self.next,), message_id=self.next)
        self.next += 1

    def snapshot(self) -> int:
        return self.next

    def restore(self, position: int) -> None:
        self.next = position


class Check(BasicBolt):
    """Fails each 97th number, for dead letters."""

    outputs = ("n",)

    def execute(self, tup: Any, collector: Any) -> None:
        if tup["n"] % 97 == 13:
            raise ValueError(f"{tup['n']} is unlucky")
        collector.emit([tup["n"]])


class Count(StatefulBolt):
    """Counts by the last digit."""

    def execute(self, tup: Any, collector: Any) -> None:
        self.state.add(tup["n"] % 10)


def topology() -> Topology:
    """Return the topology."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers())
    builder.set_bolt("check", Check(), 2).shuffle_grouping("numbers")
    builder.set_bolt("count", Count(), 2).fields_grouping("check", "n")
    return builder.build()


@contextmanager
def fuzzed() -> Iterator[str]:
    """Run the cluster and `sparkstorm web`; yield the page's address with its token."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        conf = merge({"storm.local.dir": f"{folder}/storm", "sparkstorm.slots.per.supervisor": 2})
        with Cluster.open(conf) as cluster, running(connection_path(conf)) as at:
            undo = Undo(cluster)
            undo.step()
            until = time.monotonic() + _LIMIT_S
            while (found := cluster.find(NAME)) is None or not found.progress().parked:
                if time.monotonic() > until:
                    raise SystemExit(f"{NAME} has not run within {_LIMIT_S:.0f} s")
                time.sleep(0.5)
            undo.start()
            try:
                yield f"http://127.0.0.1:{at.port}/?token={at.token}"
            finally:
                undo.stop()


class Undo:
    """A thread that undoes what requests have done: it submits the topology again, activates it,
    and includes hosts.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.submitted = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which may be inside a request."""
        self._ended.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._ended.wait(1.0):
            try:
                self.step()
            # another request may be under way
            except SparkStormError as error:
                logging.getLogger(__name__).info("not undone: %s", error)

    def step(self) -> None:
        """Undo what is to be undone now."""
        service = self._cluster.client.service
        for host in self._cluster.client.state.read_host_marks():
            service.mark_host(RequestKind.INCLUDE_HOST, host)
        handle = self._cluster.find(NAME)
        if handle is None:
            self._cluster.submit(NAME, topology(), _CONF)
            self.submitted += 1
        # one that ends in a week keeps its name until then
        elif handle.status() is TopologyStatus.KILLED:
            handle.kill(0)
        elif handle.status() is TopologyStatus.INACTIVE:
            handle.activate()
