"""Access of a client to its cluster: the state tree, Nimbus, readers of Redis, and whether it may
change something.

The client makes handles, and a handle needs this much of the client. With both in one class,
client, handle and gray upgrades would import each other in a circle.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sparkstorm.client.readings import StoreSource
from sparkstorm.client.request_client import Progress
from sparkstorm.client.service import NimbusService
from sparkstorm.client.worker_problems import DeadWorkers
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.config import Conf
from sparkstorm.common.errors import ReadOnlyConnectionError
from sparkstorm.common.extension_points import extensions_at
from sparkstorm.common.model.assignment import TopologySummary
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.worker_spec import RedisAddress, RedisStores
from sparkstorm.common.settings import (
    FOLDER_KEY,
    SupervisorSettings,
)
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.insight.reading import JUDGED_MS
from sparkstorm.data_plane.transport.base import Reader
from sparkstorm.data_plane.transport.reader import RedisReader, is_kept_in


class TopologyReader(Reader, Protocol):
    """Reader of a topology's data in one Redis or in several, with the logs of its workers."""

    is_one_moment: bool

    def progress_and_backlog(self) -> tuple[dict[str, bytes], dict[int, int]]:
        """Return both; `is_one_moment` says whether they are of one moment."""

    def log_slots(self) -> list[str]:
        """Return the slots ("node:port") of the workers whose logs are kept."""

    def log(self, slot: str, after: str = "0") -> list[tuple[str, bytes]]:
        """Return the kept parts of one worker's log with ids greater than `after`."""

    def close(self) -> None:
        """Close the connections."""


class ClusterAccess:
    """State tree, Nimbus's service and Redis of one cluster, for its client and the handles on its
    topologies.
    """

    def __init__(
        self,
        state: StormState,
        stores: RedisStores,
        service: NimbusService,
        conf: Conf,
        is_read_only: bool = False,
    ) -> None:
        self.state = state
        self.service = service
        self.conf = conf
        self.is_read_only = is_read_only
        self.dead_workers = DeadWorkers(
            state.read_worker_beat, SupervisorSettings.of(conf).worker_heartbeat_ms
        )
        self._stores = stores
        self._readers: dict[str, TopologyReader] = {}

    def summaries(self) -> list[TopologySummary]:
        """Return status and size of every topology, by id."""
        return self.service.summaries()

    def reader(self, topology_id: str) -> TopologyReader:
        """Return the reader of a topology's data in Redis, one per topology; `close_readers` ends
        its connections.
        """
        if topology_id not in self._readers:
            self._readers[topology_id] = self._make_reader(topology_id)
        return self._readers[topology_id]

    def _make_reader(self, topology_id: str) -> TopologyReader:
        stores = self.stores_of(topology_id)
        readers = [
            RedisReader(store, topology_id, may_write=not self.is_read_only) for store in stores
        ]
        if len(readers) == 1:
            return readers[0]
        names = [store.name for store in stores]
        united: TopologyReader = extensions_at("reader")[0](
            readers, names, lambda: self._components(topology_id)
        )
        return united

    def _components(self, topology_id: str) -> Mapping[int, str]:
        table = self.state.read_tasks(topology_id)
        infos = table.info_by_task if table else {}
        return {task: info.component_id for task, info in infos.items()}

    def stores_of(self, topology_id: str) -> list[RedisAddress]:
        """Return the Redis that hold a topology's data, one for each cell: its base names them; for
        a topology that is gone, those with something left.

        StoreInconsistentError when this connection has no store of such a name.
        """
        home = self._stores.home
        if not self._stores.others:
            return [home]
        base = self.state.read_base(topology_id)
        if base is not None:
            return [self._stores.of(topology_id, store) for store in base.stores]
        return [address for address in self._stores.all() if is_kept_in(address, topology_id)] or [
            home
        ]

    def source(
        self,
        only: str | None = None,
        is_lasting: bool = True,
        seconds: float = JUDGED_MS / 1000,
    ) -> StoreSource:
        """Return what a sampler (`insight.sampler.Sampler`) reads this cluster from, or with `only`
        one topology, by its id; topologies are judged over the last `seconds`, 60 to 600.

        A source that does not last, because it is read once or twice, waits a moment to distinguish
        dead workers from slow clocks.
        """
        clock = SystemClock()
        dead_workers = None if is_lasting else self.dead_workers
        return StoreSource(
            self.state,
            self.service,
            self.reader,
            self.conf,
            clock,
            self.is_read_only,
            only,
            dead_workers,
            round(1000 * seconds),
        )

    def close_readers(self) -> None:
        """Close the readers' connections to Redis; the next look makes a new one."""
        for reader in self._readers.values():
            reader.close()

    @property
    def requests(self) -> NimbusService:
        """The way to Nimbus for requests that change something; ReadOnlyConnectionError when this
        connection may not.
        """
        self.require_writer()
        return self.service

    def require_writer(self) -> None:
        """Raise ReadOnlyConnectionError when this connection may only read."""
        if self.is_read_only:
            raise ReadOnlyConnectionError(
                "this connection may only read: use the cluster's connection.json to change something"
            )

    def packed(
        self,
        topology: Topology,
        by_value: Sequence[str] | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the bytes of a topology with the modules that workers do not have."""
        from sparkstorm.client.submission import packed  # needs the API and cloudpickle

        return packed(topology, by_value, conf or {})

    def replace_code(
        self,
        name: str,
        topology: Topology,
        conf: Mapping[str, Any] | None = None,
        by_value: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> str:
        """Replace the code of a running topology (hot deploy); return the id under which it goes
        on.
        """
        self.require_writer()
        code = self.packed(topology, by_value, conf)
        request = self.service.update_request(name, topology, here(conf), code)
        return self.service.carry_out(request, progress)


def here(conf: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a topology's configuration with the working folder of this process, the submitter's,
    unless it names a folder: `context.path` resolves paths below it.
    """
    return {FOLDER_KEY: os.getcwd(), **(conf or {})}
