"""A simulated cluster whose workers' transports are real ones: a running count over a real
Redis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkstorm.api import ReplayableSpout, TopologyBuilder, TransactionalSink
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.connectors import SqlSink
from sparkstorm.data_plane.transport.progress import Progress, merge
from sparkstorm.data_plane.transport.reader import RedisReader
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.testing import LocalCluster
from sparkstorm.testing.in_process_worker import InProcessWorker
from tests.topologies import Count
from tests.worker.building import Pass

KEYS = 1009
"""Number of keys that are counted; a prime, so that no period of batches hides a number that is
lost and one that is doubled.
"""


class Numbers(ReplayableSpout):
    """The numbers from 0 on, each once, behind their rest by `keys`; the class's `most` ends
    them.
    """

    outputs = ("value", "number")
    most, keys = 6_000, 6_000

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self.collector, self.next = collector, 0

    def next_tuple(self) -> None:
        if self.next < Numbers.most:
            self.next += 1
            number = self.next - 1
            self.collector.emit((number % Numbers.keys, number), message_id=self.next)

    def is_exhausted(self) -> bool:
        return self.next >= Numbers.most

    def snapshot(self) -> Any:
        return self.next

    def restore(self, position: Any) -> None:
        self.next = position


def counting(sink: TransactionalSink | None = None) -> Topology:
    """Build numbers -> pass -> count of their rests, and numbers -> sink where one is given."""
    builder = TopologyBuilder()
    builder.set_spout("spout", Numbers())
    builder.set_bolt("bolt", Pass(), 2).shuffle_grouping("spout")
    builder.set_bolt("capture", Count()).global_grouping("bolt")
    if sink is not None:
        builder.set_bolt("sink", sink).global_grouping("spout")
    return builder.build()


class OverRedis:
    """A simulated cluster of three workers that count numbers over one Redis, and write them to a
    sink where one is given.
    """

    def __init__(
        self,
        address: RedisAddress,
        conf: Mapping[str, Any] | None = None,
        sink: TransactionalSink | None = None,
    ) -> None:
        self.at = address
        self.opened: list[RedisTransport] = []
        self._processes: list[InProcessWorker] = []
        self.cluster = LocalCluster(supervisors=3, slots=1, make_transport=self._open)
        own = {
            "topology.workers": 3,
            "topology.epoch.rows": 20,
            "topology.max.spout.pending": 200,
            **(conf or {}),
        }
        self.topology_id = self.cluster.submit(counting(sink), own)
        self.reader = RedisReader(self.at, self.topology_id)

    def _open(self, worker: InProcessWorker) -> RedisTransport:
        self._end_of_the_dead()
        self._processes.append(worker)
        self.opened.append(RedisTransport(self.at, worker.host.id))
        return self.opened[-1]

    def _end_of_the_dead(self) -> None:
        """Close what the end of a process would: a database keeps an open transaction's locks
        otherwise. Kafka needs no such help: it fences a transaction's former producer.
        """
        for process in [process for process in self._processes if process.exit_code is not None]:
            self._processes.remove(process)
            worker = process.run.worker if process.run is not None else None
            for bolt in worker.task_set.bolts.values() if worker is not None else ():
                if isinstance(bolt.runner.bolt, SqlSink):
                    bolt.runner.bolt.cleanup()

    def rounds(self, count: int) -> None:
        """Let every worker run so many epochs, and simulated time pass; slots pause before they
        start a worker again.
        """
        for _ in range(count):
            while any(slot.worker is None for slot in self.cluster.topology().workers):
                self.cluster.simulation.advance(100)
            self.cluster.simulation.wake_all()
            self.cluster.simulation.advance(5)

    @property
    def counted(self) -> dict[Any, Any]:
        return self.cluster.state("capture")

    @property
    def emitted(self) -> int:
        """Number of the next number, as committed."""
        merged = merge(Progress.decode(data) for data in self.reader.progress().values())
        return sum(
            count.emitted for count in merged.counts_by_task.values() if count.component == "spout"
        )

    @property
    def deaths(self) -> list[str]:
        """Return why workers have ended so far."""
        return [why for slot in self.cluster.slots for why in slot.deaths]

    def close(self) -> None:
        self.cluster.close()
        self._end_of_the_dead()
        self.reader.close()
        for transport in self.opened:
            transport.close()
