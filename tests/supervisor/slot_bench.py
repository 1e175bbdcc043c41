"""A small cluster for tests of slots: a tree and blobs on real servers, and a hand that writes
assignments.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from sparkstorm.common.model.assignment import (
    Assignment,
    ExecutorId,
    TaskInfo,
    TaskTable,
    TopologyBase,
    WorkerSlot,
)
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.status import JsonValue, TopologyStatus
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.slot_spec import SlotSpec, StateAddress
from sparkstorm.control_plane.blobs.redis import RedisBytesStore
from sparkstorm.control_plane.blobs.store import BlobKind, BlobStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.extensions.embedded import RedisServer, ZooKeeperServer
from tests.waiting import wait_until

KEY = b"key of the tests" * 2
TOYS = "tests.supervisor.toy_workers"


class SlotBench:
    """Nimbus's work for slots, done by hand."""

    def __init__(
        self,
        redis_server: RedisServer,
        zookeeper: ZooKeeperServer,
        folder: Path,
        conf: Mapping[str, JsonValue],
    ) -> None:
        self.folder = folder
        root = f"/slots-{os.getpid()}-{folder.name}"
        user, password = zookeeper.identity
        self.spec = SlotSpec(
            zookeeper=StateAddress(zookeeper.hosts, root, user, password, 4_000),
            redis=RedisAddress(redis_server.host, redis_server.port, redis_server.password),
            local_dir=str(folder / "local"),
            log_dir=str(folder / "logs"),
            slots_per_node=2,
            nodes=("node-1",),
            host="test-host",
            hmac_key=KEY.hex(),
            conf=dict(conf),
            stop_path="/slots/stop",
            entry=f"{TOYS}:loop",
        )
        store = ZooKeeperStateStore(ZooKeeperAddress(zookeeper.hosts, root, user, password, 4_000))
        self.state = StormState(store, KEY)
        self._chunks = RedisBytesStore(Link(redis_server.address, 10))
        self.blobs = BlobStore(self.state, self._chunks, KEY)

    def submit(
        self,
        topology_id: str,
        slots: list[WorkerSlot],
        version: int = 1,
        code: bytes = b"code",
        conf: bytes = b"{}",
    ) -> Assignment:
        """Publish a topology of one executor per slot."""
        code_key, conf_key = self.blobs.put(code, 0), self.blobs.put(conf, 0, BlobKind.CONF)
        slot_by_executor = {ExecutorId(task, task): slot for task, slot in enumerate(slots, 1)}
        if self.state.read_base(topology_id) is None:
            table = TaskTable(
                {executor.first_task: TaskInfo("count", "bolt") for executor in slot_by_executor}
            )
            self.state.write_tasks(topology_id, table)
            status = TopologyStatus.ACTIVE
            base = TopologyBase(
                topology_id,
                topology_id,
                0,
                status,
                len(slots),
                {"count": len(slots)},
                code_key,
                conf_key,
            )
            self.state.create_base(base)
        assignment = Assignment(
            topology_id,
            version,
            code_key,
            conf_key,
            {slot.node: "test-host" for slot in slots},
            slot_by_executor,
            {},
            dict.fromkeys(slot_by_executor, version),
        )
        self.state.write_assignment(assignment)
        return assignment

    def beat(self, topology_id: str, slot: WorkerSlot) -> WorkerBeat | None:
        return self.state.read_worker_beat(topology_id, slot)

    def wait_beat(
        self,
        topology_id: str,
        slot: WorkerSlot,
        condition: Callable[[WorkerBeat], object],
        seconds: float = 180,
    ) -> WorkerBeat:
        """Wait for a beat of that kind and return it."""
        last: list[WorkerBeat | None] = [None]

        def fits() -> bool:
            last[0] = self.beat(topology_id, slot)
            return last[0] is not None and bool(condition(last[0]))

        try:
            wait_until(fits, f"beat of {topology_id} at {slot}", seconds)
        except AssertionError as fault:
            raise AssertionError(f"{fault}; last beat {last[0]}; logs:\n{self.logs()}") from None
        assert last[0] is not None
        return last[0]

    def wait_running(
        self, topology_id: str, slot: WorkerSlot, other_than: int = 0, seconds: float = 180
    ) -> WorkerBeat:
        """Wait for a running worker there, of another pid than the former one."""
        return self.wait_beat(
            topology_id,
            slot,
            lambda beat: beat.state == "RUNNING" and beat.pid not in (0, other_than),
            seconds,
        )

    def logs(self) -> str:
        """Return everything that slots and workers have written."""
        found = (
            sorted(Path(self.spec.log_dir).glob("*.log"))
            if Path(self.spec.log_dir).exists()
            else []
        )
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in found
        )

    def close(self) -> None:
        self.state.store.close()
        self._chunks.close()
