"""The routes over a simulated word count, asked through Starlette's client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.testclient import TestClient

from sparkstorm.web.app import make_app
from sparkstorm.web.commands import Commands
from sparkstorm.web.metrics import metrics_routes
from sparkstorm.web.rest import rest_routes
from sparkstorm.web.security import Access, local_hosts
from tests.insight.watched import Watched, watched

HOME = "http://127.0.0.1:8080"


@dataclass
class Served:
    """The parts of `served`."""

    run: Watched
    client: TestClient
    id: str


@contextmanager
def served(is_read_only: bool = False) -> Iterator[Served]:
    """Run a word count and serve it; commands are carried out while the client waits."""
    with watched() as run:
        commands = Commands(run.cluster.service, run.cluster.storm_state, is_read_only)
        routes = [*rest_routes(run.sampler, commands, {"ui.port": 8080}), *metrics_routes(run.sampler)]
        access = Access(local_hosts(8080), is_read_only=is_read_only)
        app, headers = make_app(routes, access), {"Authorization": f"Bearer {access.token}"}
        with TestClient(app, HOME, raise_server_exceptions=False, headers=headers) as client:
            yield Served(run, client, run.cluster.topology("words").id)
