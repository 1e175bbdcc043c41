"""A real Redis Cluster: primaries with their slots, replicas where asked for, slots that are moved
key by key, fail-overs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis

from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.keys import prefix_of
from sparkstorm.data_plane.transport.servers.slots import SLOTS, slot_of
from sparkstorm.extensions.embedded.process import free_ports
from sparkstorm.extensions.embedded.redis import find_redis_binary
from tests.sim.watched_redis import Guard, Server, until
from tests.system.proxy import TcpProxy, redis_request

PASSWORD = "of-the-cluster"
NODE_TIMEOUT_MS = 15_000
"""Silence after which nodes take another for dead: Redis' own value. With much less a machine without
time for a node takes the cluster down.
"""
HOST = "127.0.0.1"


class Node(Server):
    """A node; clients are sent to its proxy, where it has one."""

    def __init__(
        self,
        folder: Path,
        ports: Sequence[int],
        has_proxy: bool,
        guard: Guard,
        timeout_ms: int = NODE_TIMEOUT_MS,
    ) -> None:
        port, bus = ports
        self.proxy = TcpProxy(HOST, port, redis_request) if has_proxy else None
        self.announced = self.proxy.port if self.proxy else port
        super().__init__(
            folder,
            port,
            PASSWORD,
            "cluster-enabled yes",
            f"cluster-node-timeout {timeout_ms}",
            f"cluster-port {bus}",
            "cluster-allow-replica-migration no",
            f"cluster-announce-ip {HOST}",
            f"cluster-announce-port {self.announced}",
            f"cluster-announce-bus-port {bus}",
            guard=guard,
        )
        self.bus = bus

    def __call__(self, *words: object) -> Any:
        """Return the answer to one command."""
        with self.client() as client:
            return client.execute_command(*words)

    def info(self) -> str:
        """Return what it says about the cluster; nothing while it does not answer."""
        with contextlib.suppress(redis.RedisError):
            return str(self("CLUSTER", "INFO").decode())
        return ""

    @property
    def id(self) -> str:
        """Its name in the cluster."""
        return str(self("CLUSTER", "MYID").decode())


class ClusterRedis:
    """Primaries with equal shares of the slots, and replicas of the first ones."""

    def __init__(
        self,
        folder: Path,
        primaries: int = 2,
        replicas: int = 0,
        has_proxies: bool = False,
        guard: Guard | None = None,
        home: str = "",
        timeout_ms: int = NODE_TIMEOUT_MS,
    ) -> None:
        """`home`: a topology whose slot the first primary gets."""
        count = primaries + replicas
        ports = free_ports(2 * count)
        guard = guard or Guard(find_redis_binary())
        self.nodes = [
            Node(folder / f"node-{n}", ports[2 * n : 2 * n + 2], has_proxies, guard, timeout_ms)
            for n in range(count)
        ]
        self._shift = slot_of(prefix_of(home)) * primaries // SLOTS if home else 0
        self.primaries, self.replicas = self.nodes[:primaries], self.nodes[primaries:]
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        first, *others = self.nodes
        for node in self.nodes:
            node.start()
        count = len(self.primaries)
        for n, node in enumerate(self.primaries):
            share = (n + self._shift) % count
            # the first slot of a share: none before it is multiplied to it or above
            begin, end = (-(-each * SLOTS // count) for each in (share, share + 1))
            node("CLUSTER", "ADDSLOTSRANGE", begin, end - 1)
            node("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for node in others:
            node("CLUSTER", "MEET", HOST, first.port, first.bus)
        until(lambda: all(self._knows_all(each) for each in self.nodes), "the nodes do not meet")
        for n, replica in enumerate(self.replicas):
            replica("CLUSTER", "REPLICATE", self.primaries[n].id)
        self.until_working()
        until(lambda: all(each.is_linked() for each in self.replicas), "a replica has no copy")

    def _knows_all(self, node: Node) -> bool:
        said = node("CLUSTER", "NODES").decode().splitlines()
        return len(said) == len(self.nodes) and not any("handshake" in line for line in said)

    def until_working(self) -> None:
        """Wait until every node that answers takes the cluster for whole, and one does."""

        def is_working() -> bool:
            said = [each.info() for each in self.nodes]
            return any(said) and all("cluster_state:ok" in each for each in said if each)

        until(is_working, "the cluster is down")

    @property
    def address(self) -> RedisAddress:
        """Address that a worker is given: all nodes."""
        places = [f"{HOST}:{each.announced}" for each in self.nodes]
        return RedisAddress(HOST, self.nodes[0].announced, PASSWORD, nodes=tuple(places))

    @property
    def url(self) -> str:
        """The same as a configuration has it, without the password."""
        return f"redis+cluster://{','.join(self.address.nodes)}"

    def node_of(self, topology_id: str) -> Node:
        """Return the primary that has the slot of a topology, as a living node names it."""
        slot = slot_of(prefix_of(topology_id))
        for node in self.nodes:
            with contextlib.suppress(redis.RedisError):
                rows = node("CLUSTER", "SLOTS")
                port = next(row[2][1] for row in rows if row[0] <= slot <= row[1])
                return next(each for each in self.nodes if each.announced == port)
        raise AssertionError("no node answers")

    def begin_move(self, slot: int, source: Node, target: Node) -> None:
        """Let a slot be on its way: nothing has moved yet."""
        target("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(
        self, slot: int, source: Node, target: Node, each: Callable[[], None] = lambda: None
    ) -> int:
        """Move the keys one by one, as `redis-cli --cluster reshard` does; return how many."""
        moved = 0
        while names := source("CLUSTER", "GETKEYSINSLOT", slot, 1):
            source("MIGRATE", HOST, target.port, "", 0, 10_000, "AUTH", PASSWORD, "KEYS", *names)
            moved += len(names)
            each()
        return moved

    def end_move(self, slot: int, target: Node) -> None:
        """Give the slot to the target, for all nodes."""
        owner = target.id
        for node in [target, *(each for each in self.primaries if each is not target)]:
            node("CLUSTER", "SETSLOT", slot, "NODE", owner)

    def move(self, slot: int, source: Node, target: Node, pause_s: float = 0.0) -> int:
        """Move a slot; return the number of its keys."""
        self.begin_move(slot, source, target)
        moved = self.move_keys(slot, source, target, lambda: time.sleep(pause_s))
        self.end_move(slot, target)
        return moved

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.kill()
            if node.proxy is not None:
                node.proxy.close()
