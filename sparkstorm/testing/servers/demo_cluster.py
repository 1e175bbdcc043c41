"""Cluster on this machine for notebooks and talks: supervisors that are emulated, an inspector, and a
node that can be paused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkstorm.client.handle import TopologyHandle
from sparkstorm.common.config import merge
from sparkstorm.common.model.topology import Topology
from sparkstorm.driver.cluster import Cluster
from sparkstorm.notebook.live import Inspector

_PAUSED_SECS = 90


class DemoCluster:
    """A cluster of emulated supervisors, from `demo_cluster`."""

    def __init__(self, cluster: Cluster, inspector: Inspector) -> None:
        self.cluster = cluster
        self.service = cluster.service
        self.inspector = inspector

    def submit(
        self, name: str, topology: Topology, conf: Mapping[str, Any] | None = None
    ) -> TopologyHandle:
        """Submit a topology; its workers start meanwhile."""
        return self.cluster.submit(name, topology, dict(conf or {}))

    @contextlib.contextmanager
    def pause_node(self, node: str) -> Iterator[None]:
        """Stop all processes of a supervisor's slots (SIGSTOP) inside the block, once Nimbus has
        seen that its session has ended.

        A slot without a worker tells no process id and goes on: choose a supervisor whose slots
        are all in use.
        """
        look = self.inspector.look()
        pids = [
            pid
            for slot, beat in look.beat_by_slot().items()
            if slot.node == node and beat.pid
            # a slot forks its workers from a server of its own
            for pid in (_parent_of(_parent_of(beat.pid)), beat.pid)
        ]
        if not pids:
            nodes = ", ".join(sorted({slot.node for slot in look.beat_by_slot()}))
            raise ValueError(f"no worker runs on {node!r:.80}; workers run on {nodes or 'no node'}")
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            self.inspector.wait(
                lambda later: node not in later.reading.snapshot.supervisors, _PAUSED_SECS
            )
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def demo_cluster(supervisors: int = 4, slots: int = 2) -> Iterator[DemoCluster]:
    """Start Spark, Redis and ZooKeeper on this machine with so many supervisors of so many slots,
    and stop them after the block.
    """
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="sparkstorm-notebook-"))
        conf = merge(
            {
                "sparkstorm.supervisors": supervisors,
                "sparkstorm.slots.per.supervisor": slots,
                "storm.local.dir": folder,
                # so that a lost supervisor is seen within seconds
                "nimbus.monitor.freq.secs": 1,
                "storm.zookeeper.session.timeout": 4000,
            }
        )
        cluster = opened.enter_context(Cluster.open(conf))
        inspector = opened.enter_context(Inspector.connect(Path(folder, "connection.json")))
        yield DemoCluster(cluster, inspector)


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
