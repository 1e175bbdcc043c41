"""The two stores that the transport's contract runs against, and how a test looks into each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import redis

from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.control_plane.nimbus.hooks import TopologyRetirement
from sparkstorm.control_plane.nimbus.redis_cleanup import RedisRetirement
from sparkstorm.data_plane.transport.base import Cursor, Entry, Reader, Transport
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.transport.local import LocalStore, LocalTransport
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.data_plane.transport.reader import RedisReader
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.extensions.cells.cells import CellsTransport, ForeignStore
from sparkstorm.extensions.cells.foreign import RedisForeign
from sparkstorm.extensions.cells.local_foreign import LocalForeign
from sparkstorm.extensions.embedded import RedisServer
from sparkstorm.testing.sim_data import DataPlane
from tests.system.proxy import TcpProxy, redis_request
from tests.transport.cluster_redis import ClusterRedis
from tests.waiting import wait_until

DEADLINE_S = 60.0
_numbers = count(1)


class LocalBench:
    """Owners that share one LocalStore, that of the first of so many cells."""

    def __init__(self, cells: int = 1) -> None:
        self.store = LocalStore(topology_id="contract")
        self.is_away = False  # for owners in other cells
        self._others = [LocalBench() for _ in range(cells - 1)]
        self._plane = DataPlane()

    def open(self) -> LocalTransport:
        return LocalTransport(self.store)

    def open_in_cell(self) -> Transport:
        """Return a new owner's transport over the stores of all cells; its own where there is
        one.
        """
        return in_cell(self.open(), dict(enumerate(self._others, 1)))

    def foreign(self, cell: int) -> ForeignStore:
        """Return what owners in other cells see of this store."""
        return LocalForeign(self.store, cell, lambda: self.is_away)

    def set_away(self, is_away: bool) -> None:
        """Take the store away from owners in other cells, or bring it back."""
        self.is_away = is_away

    def reader(self) -> Reader:
        return LocalReader(self.store)

    def dump(self) -> dict[str, Any]:
        """Return all stored data, for comparison."""
        found = self.store.checkpoint()
        return {key: value for key, value in found.items() if key != "task_keys"} | {
            f"{task}": keys
            for task, keys in found["task_keys"].items()  # type: ignore[attr-defined]
            if keys.last_number or keys.fence
        }

    def frames(self, task: int) -> list[bytes]:
        """Return what lies in a task's stream."""
        return [data for _, data in self.store.task(task).stream]

    def quarantine(self) -> list[bytes]:
        """Return what was put aside."""
        return list(self.store.quarantine)

    def checkpoint(self) -> Any:
        return self.store.checkpoint()

    def restore(self, checkpoint: Any) -> None:
        """The store comes back as it was."""
        self.store.restore(checkpoint)

    def put_garbage(self, task: int, cursor: str) -> None:
        """Nothing can be left behind a cursor here."""

    def retirement(self) -> TopologyRetirement:
        """Return the twin of Nimbus's clean-up, over stores of its own."""
        return self._plane

    def of(self, topology_id: str) -> tuple[Transport, Reader]:
        """Return the two ways to a topology's data by its id."""
        store = self._plane.of(topology_id).store
        return LocalTransport(store), LocalReader(store)

    def close(self) -> None:
        pass


class RedisBench:
    """Owners of one topology on a real Redis, each through a proxy; the stores of more cells have
    other ids on the same server.
    """

    def __init__(self, server: RedisServer, patience_s: float = 10.0, cells: int = 1) -> None:
        self._others = [RedisBench(server, patience_s) for _ in range(cells - 1)]
        self.server = server
        self.proxy = TcpProxy(server.host, server.port, redis_request)
        self.topology = f"contract-{next(_numbers)}"
        self.client: redis.Redis = server.client()
        self.patience_s = patience_s
        self._opened: list[Transport | RedisReader | ForeignStore] = []

    @property
    def address(self) -> RedisAddress:
        """Where owners connect: the proxy."""
        return RedisAddress(self.proxy.host, self.proxy.port, self.server.password)

    @property
    def _direct(self) -> RedisAddress:
        return RedisAddress(self.server.host, self.server.port, self.server.password)

    def open(self) -> RedisTransport:
        made = RedisTransport(self.address, self.topology, self.patience_s)
        self._opened.append(made)
        return made

    def open_in_cell(self) -> Transport:
        """Return a new owner's transport over the stores of all cells; its own where there is
        one.
        """
        return in_cell(self.open(), dict(enumerate(self._others, 1)))

    def foreign(self, cell: int) -> ForeignStore:
        """Return what owners in other cells see of this store."""
        made = RedisForeign(self.address, self.topology, cell)
        self._opened.append(made)
        return made

    def set_away(self, is_away: bool) -> None:
        """Take the store away from all who come through the proxy, or bring it back."""
        self.proxy.refuse(is_away)
        self.proxy.cut_all()

    def reader(self) -> RedisReader:
        made = RedisReader(self._direct, self.topology)
        self._opened.append(made)
        return made

    def key(self, *parts: object) -> str:
        """Full name of a key."""
        return Keys(self.topology)(*parts)

    def dump(self) -> dict[str, Any]:
        """Return all stored data, for comparison."""
        client: Any = self.client
        names = sorted(client.keys(self.key("*")))
        return {name.decode(): client.dump(name) for name in names}

    def frames(self, task: int) -> list[bytes]:
        """Return what lies in a task's stream."""
        client: Any = self.client
        return [fields[b"f"] for _, fields in client.xrange(self.key("task", task))]

    def quarantine(self) -> list[bytes]:
        """Return what was put aside."""
        client: Any = self.client
        return [fields[b"f"] for _, fields in client.xrange(self.key("quarantine"))]

    def checkpoint(self) -> Any:
        return self.dump()

    def restore(self, checkpoint: Any) -> None:
        """The store comes back as it was, as a restarted server does: every connection is gone."""
        self.proxy.cut_all()
        client: Any = self.client
        for name in self.dump():
            client.delete(name)
        for name, data in checkpoint.items():
            client.restore(name, 0, data)

    def put_garbage(self, task: int, cursor: str) -> None:
        """Write a cursor without trimming, as no commit does."""
        client: Any = self.client
        client.hset(self.key("cursor"), task, cursor)

    def retirement(self) -> TopologyRetirement:
        """Return Nimbus's clean-up."""
        return RedisRetirement(self._direct)

    def of(self, topology_id: str) -> tuple[Transport, Reader]:
        """Return the two ways to a topology's data by its id."""
        made = (
            RedisTransport(self._direct, topology_id, self.patience_s),
            RedisReader(self._direct, topology_id),
        )
        self._opened += made
        return made

    def close(self) -> None:
        for other in self._others:
            other.close()
        for made in self._opened:
            made.close()
        self.proxy.close()
        client: Any = self.client
        for name in client.keys(self.key("*")):
            client.delete(name)
        client.close()


class ClusterBench(RedisBench):
    """The same on a cluster of several nodes, which names its nodes' proxies; `server` and `proxy`
    are those of the node that has the topology's slot.
    """

    def __init__(self, cluster: ClusterRedis, patience_s: float = 10.0) -> None:
        self._others = []
        self.cluster = cluster
        self.topology = f"contract-{next(_numbers)}"
        self.node = cluster.node_of(self.topology)
        assert self.node.proxy is not None, "a cluster with proxies is needed"
        self.proxy = self.node.proxy
        self.client = self.node.client()
        self.patience_s = patience_s
        self._opened = []

    @property
    def address(self) -> RedisAddress:
        """Address that owners are given: any node, which sends them on."""
        return self.cluster.address

    @property
    def _direct(self) -> RedisAddress:
        return self.cluster.address

    def close(self) -> None:
        for made in self._opened:
            made.close()
        # the proxies serve the next test
        self.proxy.refuse(False)
        self.proxy.resume()
        client: Any = self.client
        for name in client.keys(self.key("*")):
            client.delete(name)
        client.close()


Bench = LocalBench | RedisBench


def in_cell(
    own: Transport, others: Mapping[int, Bench], now_ms: Callable[[], float] = lambda: 0.0
) -> Transport:
    """Return the transport of an owner with these other cells; its own where there are none."""
    if not others:
        return own
    foreign = {cell: bench.foreign(cell) for cell, bench in others.items()}
    return CellsTransport("contract", own, foreign, now_ms)


def read(
    transport: Transport, after: Mapping[int, str], entries: int, batch: int = 100
) -> list[Entry]:
    """Return a number of entries behind the given ids, polled for until they are there."""
    found: list[Entry] = []
    newest = dict(after)

    def enough() -> bool:
        for entry in transport.poll(newest, batch):
            found.append(entry)
            if entry.cell is None:
                newest[entry.task] = entry.id
        if len(found) < entries:
            transport.wait(50)
        return len(found) >= entries

    wait_until(enough, f"{entries} entries")
    return found


def consumed(entries: list[Entry]) -> dict[int, Cursor]:
    """Cursors behind everything read."""
    return {entry.task: Cursor(entry.id, 0) for entry in entries}
