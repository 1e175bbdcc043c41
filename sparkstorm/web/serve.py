"""Process of the web server: one connection, one sampler on a thread, uvicorn until a signal stops
it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn

from sparkstorm.client import ClusterClient, connect
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.http_guard import LOOPBACK, local_hosts, require_private
from sparkstorm.common.ports import listen
from sparkstorm.control_plane.insight.sampler import IDLE_PERIOD_MS, PERIOD_MS, Sampler
from sparkstorm.web.app import make_app
from sparkstorm.web.commands import Commands, Connections
from sparkstorm.web.metrics import metrics_routes
from sparkstorm.web.page import Page
from sparkstorm.web.rest import rest_routes
from sparkstorm.web.security import Access

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkstorm.web.otlp import Push

_MOST_CONNECTIONS = 200
_KEEP_ALIVE_S = 15


@dataclass(frozen=True, slots=True)
class ServePlace:
    """Addresses of the server and the host names that it answers to; a certificate and its key, or
    a proxy that has them.
    """

    address: str = "127.0.0.1"
    port: int = 8080
    names: tuple[str, ...] = ()
    certificate: str = ""
    key: str = ""
    is_behind_proxy: bool = False

    def check(self) -> None:
        """Refuse a place where the token would cross a network in the clear."""
        words = "--certificate and --key, or --behind-proxy"
        require_private("", self.address, self.certificate, self.key, self.is_behind_proxy, words)
        if self.address not in LOOPBACK and not self.names:
            raise InvalidConfigError(
                "another address than loopback needs --name HOST[:PORT], as browsers will ask for it"
            )


@dataclass(frozen=True, slots=True)
class Pushed:
    """Address of a collector of OpenTelemetry to which metrics go, "" for none, and whether traces
    go there too.
    """

    endpoint: str = ""
    has_traces: bool = False


class SamplerThread:
    """A sampler's steps on a thread; a page that comes while it rests wakes it."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def _run(self) -> None:
        due_ms = 0
        while not self._stopping.wait(PERIOD_MS / 1000):
            due_ms -= PERIOD_MS
            if due_ms <= 0 or self._sampler.has_subscribers:
                due_ms = min(self._sampler.step(), IDLE_PERIOD_MS)

    def start(self) -> None:
        """Read once, then go on on the thread."""
        self._sampler.step()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(10)


def options() -> dict[str, Any]:
    """Return uvicorn's settings: its logs, and its limits for clients."""
    return {
        "access_log": False,  # it would hold the token
        "log_level": "warning",
        "proxy_headers": False,
        "server_header": False,
        "limit_concurrency": _MOST_CONNECTIONS,
        "timeout_keep_alive": _KEEP_ALIVE_S,
        "timeout_graceful_shutdown": 1,
        "lifespan": "off",
    }


def serve(
    cluster: str | None, place: ServePlace, say: Callable[[str], None], pushed: Pushed | None = None
) -> None:
    """Serve the page of a cluster until SIGINT or SIGTERM, and push to a collector meanwhile."""
    place.check()
    # Before anything is said or read: an address is printed where something listens.
    with listen(place.address, place.port, "--port") as listener, connect(cluster) as client:
        sampler = Sampler(client.source())
        hosts = local_hosts(place.port) | {name.lower() for name in place.names}
        is_tls = bool(place.certificate) or place.is_behind_proxy
        access = Access(hosts, "https" if is_tls else "http", client.is_read_only)
        name = os.path.basename(os.path.dirname(os.path.abspath(cluster))) if cluster else "cluster"
        connections = Connections(lambda: connect(cluster))
        page = Page(sampler, access, connections, name)
        commands = Commands(connections, client.is_read_only)
        rest = rest_routes(sampler, commands, client.conf.without_secrets())
        app = make_app([*rest, *metrics_routes(sampler), *page.routes()], access)
        tls: dict[str, Any] = (
            {"ssl_certfile": place.certificate, "ssl_keyfile": place.key}
            if place.certificate
            else {}
        )
        server = uvicorn.Server(uvicorn.Config(app, place.address, place.port, **options(), **tls))
        pushes = _pushes(sampler, client, lambda: connect(cluster), pushed or Pushed())
        thread = SamplerThread(sampler)
        thread.start()
        for push in pushes:
            push.start()
        say(
            f"{access.scheme}://{next(iter(place.names), f'{place.address}:{place.port}')}/?token={access.token}"
        )
        say(
            "anyone with this address controls the cluster"
            if not client.is_read_only
            else "read-only: pages without actions"
        )
        try:
            with _quiet_interrupt():
                server.run(sockets=[listener])
        finally:
            for push in pushes:
                push.stop()
            thread.stop()
            connections.close()


def _pushes(
    sampler: Sampler, client: ClusterClient, opened: Callable[[], ClusterClient], pushed: Pushed
) -> list[Push]:
    if not pushed.endpoint:
        return []
    try:
        from sparkstorm.web.otlp import OtlpPush
        from sparkstorm.web.otlp_traces import TracePush
    except ModuleNotFoundError as error:
        raise InvalidConfigError(
            f"--otlp needs two more packages ({error}): pip install 'sparkstorm[otel]'"
        ) from error
    pushes: list[Push] = [OtlpPush(sampler, pushed.endpoint)]
    if pushed.has_traces:
        client.require_writer()  # a look at messages is a key in the store
        pushes.append(TracePush(sampler, opened, pushed.endpoint))
    return pushes


@contextmanager
def _quiet_interrupt() -> Iterator[None]:
    """End quietly by Ctrl-C: uvicorn raises the signal again after its own end."""
    try:
        yield
    except KeyboardInterrupt:
        return
