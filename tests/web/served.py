"""The routes over a simulated word count, asked through Starlette's client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from starlette.routing import Route
from starlette.testclient import TestClient

from sparkstorm.client import ClusterClient
from sparkstorm.common.config import merge
from sparkstorm.common.http_guard import local_hosts
from sparkstorm.common.model.worker_spec import RedisAddress, RedisStores
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.data_plane.transport.reader import RedisReader
from sparkstorm.testing import LocalCluster
from sparkstorm.testing.local_topology import MomentReader
from sparkstorm.web.app import make_app
from sparkstorm.web.commands import Commands, Connections
from sparkstorm.web.metrics import metrics_routes
from sparkstorm.web.page import Page
from sparkstorm.web.rest import rest_routes
from sparkstorm.web.security import Access
from tests.insight.watched import Watched, watched

HOME = "http://127.0.0.1:8080"


class SimulatedReader(MomentReader):
    """A reader of a simulated store; simulated workers print nothing, so logs are given by slot."""

    def __init__(self, store: LocalStore, logs: dict[str, bytes]) -> None:
        super().__init__(store)
        self._logs = logs

    def log_slots(self) -> list[str]:
        return sorted(self._logs)

    def log(self, slot: str, after: str = "0") -> list[tuple[str, bytes]]:
        data = self._logs.get(slot, b"")
        parts = [(f"{at + 1}-0", data[at : at + 50]) for at in range(0, len(data), 50)]
        return [
            part for part in parts if int(part[0].partition("-")[0]) > int(after.partition("-")[0])
        ]

    def close(self) -> None:
        return


class SimulatedClient(ClusterClient):
    """A client of a simulated cluster."""

    def __init__(
        self, cluster: LocalCluster, logs: dict[str, bytes], is_read_only: bool = False
    ) -> None:
        super().__init__(
            cluster.storm_state,
            RedisStores(RedisAddress("127.0.0.1", 1)),
            cluster.service,
            merge(cluster.slot_conf),
            is_read_only=is_read_only,
        )
        self._data, self._logs = cluster.data_plane, logs

    def reader(self, topology_id: str) -> RedisReader:
        return cast(RedisReader, SimulatedReader(self._data.of(topology_id).store, self._logs))


@dataclass
class Served:
    """The parts of `served`."""

    run: Watched
    client: TestClient
    id: str
    opened: Callable[[], SimulatedClient]
    logs: dict[str, bytes] = field(default_factory=dict)
    routes: set[tuple[str, str]] = field(default_factory=set)  # method and path of each


@contextmanager
def served(is_read_only: bool = False, **conf: object) -> Iterator[Served]:
    """Run a word count and serve it; commands are carried out while the client waits."""
    with watched(**conf) as run:
        logs: dict[str, bytes] = {}
        opened = partial(SimulatedClient, run.cluster, logs, is_read_only)
        connections = Connections(opened)
        commands = Commands(connections, is_read_only)
        rest = rest_routes(run.sampler, commands, {"ui.port": 8080})
        access = Access(local_hosts(8080), is_read_only=is_read_only)
        of_page = Page(run.sampler, access, connections, "simulated").routes()
        routes = [*rest, *metrics_routes(run.sampler), *of_page]
        app, headers = make_app(routes, access), {"Authorization": f"Bearer {access.token}"}
        with TestClient(app, HOME, raise_server_exceptions=False, headers=headers) as client:
            known = {
                (method, each.path)
                for each in routes
                if isinstance(each, Route)
                for method in {"GET", "POST"} & (each.methods or set())
            }
            yield Served(run, client, run.cluster.topology("words").id, opened, logs, known)
