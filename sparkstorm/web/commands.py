"""Connections of the web server next to the sampler's, and the requests to Nimbus that are made by
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from sparkstorm.client import ClusterClient
from sparkstorm.client.service import NimbusService
from sparkstorm.common.errors import ReadOnlyConnectionError, StoreUnavailableError
from sparkstorm.common.model.requests import LogLevel

Answer = TypeVar("Answer")
_MOST_READING = 8
_MOST_ACTING = 4
_LONGEST_WAIT_S = 20.0


class Connections:
    """Connections to the cluster, opened when they are needed.

    A connection's replies come in the order of its questions, so no two threads may ask by one:
    what is read on demand shares one under a lock, and an action, which may wait for minutes, opens
    one for itself. Both are bounded, so that a store which hangs takes neither all threads of the
    server nor all connections of the store.
    """

    def __init__(self, opened: Callable[[], ClusterClient]) -> None:
        self._opened = opened
        self._client: ClusterClient | None = None
        self._lock = threading.Lock()
        self._readers = threading.BoundedSemaphore(_MOST_READING)
        self._actors = threading.BoundedSemaphore(_MOST_ACTING)

    def read(self, ask: Callable[[ClusterClient], Answer]) -> Answer:
        """Read on demand, one question after the other; StoreUnavailableError where too many wait
        already.
        """
        if not self._readers.acquire(blocking=False):
            raise StoreUnavailableError(
                f"{_MOST_READING} questions wait for the stores already: try again in a moment"
            )
        try:
            if not self._lock.acquire(timeout=_LONGEST_WAIT_S):
                raise StoreUnavailableError(
                    f"the stores have not answered another question for {_LONGEST_WAIT_S:g} s"
                )
            try:
                if self._client is None:
                    self._client = self._opened()
                return ask(self._client)
            finally:
                self._lock.release()
        finally:
            self._readers.release()

    def act(self, ask: Callable[[ClusterClient], Answer]) -> Answer:
        """Carry out a request by its own connection; StoreUnavailableError while too many are
        under way.
        """
        if not self._actors.acquire(blocking=False):
            raise StoreUnavailableError(
                f"{_MOST_ACTING} actions are under way already: wait for one of them"
            )
        try:
            with self._opened() as client:
                return ask(client)
        finally:
            self._actors.release()

    def close(self) -> None:
        """End the connection for what is read on demand."""
        if self._client is not None:
            self._client.close()


class Commands:
    """Commands of REST clients; each raises ReadOnlyConnectionError with a connection that may only
    read.

    They name topologies by name and id, so that none meets a later run of the same name.
    """

    def __init__(self, connections: Connections, is_read_only: bool = False) -> None:
        self._at = connections
        self.is_read_only = is_read_only

    def write(self, ask: Callable[[NimbusService], Answer]) -> Answer:
        """Return what Nimbus's service answers to a request."""
        if self.is_read_only:
            raise ReadOnlyConnectionError(
                "this server may only read: start it with the cluster's connection.json to change something"
            )
        return self._at.act(lambda client: ask(client.service))

    def log_levels(self, topology_id: str) -> Mapping[str, LogLevel]:
        """Return the levels that were set."""
        log_config = self._at.read(lambda client: client.state.read_log_config(topology_id))
        return {} if log_config is None else log_config.levels

    def log_slots(self, topology_id: str) -> list[str]:
        """Return the slots ("node:port") whose logs are kept, also of workers that are gone."""
        self._require_logs()
        return self._at.read(lambda client: client.topology(topology_id).log_slots())

    def log(self, topology_id: str, slot: str) -> bytes:
        """Return what is kept of a worker's log."""
        self._require_logs()
        return self._at.read(
            lambda client: b"".join(data for _, data in client.topology(topology_id).log(slot))
        )

    def _require_logs(self) -> None:
        if self.is_read_only:
            raise ReadOnlyConnectionError(
                "logs may hold secrets, and this server was started with a read-only connection file"
            )
