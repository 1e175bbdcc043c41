"""Opening of a cluster by its connection file: `connect("connection.json")`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkstorm.client.cluster import ClusterClient
from sparkstorm.client.service import NimbusService
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.config import Conf, merge
from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.common.stores.connection import (
    VIEWER,
    Connection,
    ReadOnlyConnection,
    decode_any_connection,
    load_any_connection,
    signing_key,
    viewer_zookeeper_password,
)
from sparkstorm.common.stores.contexts import VARIABLE, named
from sparkstorm.control_plane.blobs.redis import TAG, RedisBytesStore
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.zookeeper import (
    ZooKeeperAddress,
    ZooKeeperStateStore,
    viewer_identity,
)
from sparkstorm.data_plane.transport.connection import Link

_LOG = logging.getLogger(__name__)
_REDIS_ANSWER_S = 10.0
_SAY_AFTER_S = 1.0


def connect(
    connection: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    conf: Mapping[str, Any] | None = None,
) -> ClusterClient:
    """Connect to a cluster that runs: `with connect("connection.json") as cluster: ...`.

    `connection` is the path of a connection file or its content; without it the variable
    SPARKSTORM_CLUSTER names the file, else the current context does (`sparkstorm context`). `conf`
    overrides keys of the cluster's configuration for this client. InvalidConfigError (no such file)
    or StoreUnavailableError (a store does not answer).
    """
    loaded = _load(connection)
    with contextlib.ExitStack() as opened:
        place = "" if isinstance(connection, Mapping) else f" of {require_named(connection)}"
        store = _open_session(zookeeper_address(loaded, merge(conf or {})), place)
        opened.callback(store.close)
        is_read_only = isinstance(loaded, ReadOnlyConnection)
        key = signing_key(loaded.secret) if isinstance(loaded, Connection) else None
        chunks = RedisBytesStore(
            Link(loaded.redis, _REDIS_ANSWER_S, may_write=not is_read_only, tag=TAG)
        )
        opened.callback(chunks.close)
        state = StormState(store, key)
        total = merge(state.read_cluster_conf(), conf or {})
        blobs = BlobStore(state, chunks, key)
        service = NimbusService(state, blobs, total, SystemClock())
        return ClusterClient(state, loaded.stores, service, total, is_read_only, opened.pop_all())


def _open_session(address: ZooKeeperAddress, place: str) -> ZooKeeperStateStore:
    """Open the session of a client; when it takes more than a second, stderr says what is waited
    for.
    """
    limit_s = address.connection_timeout_ms / 1000
    waits = f"waiting up to {limit_s:g} s for ZooKeeper at {address.hosts} ..."
    notice = threading.Timer(_SAY_AFTER_S, _LOG.warning, [waits])
    notice.daemon = True
    if limit_s > _SAY_AFTER_S:
        notice.start()
    try:
        return ZooKeeperStateStore(address)
    except StoreUnavailableError as error:
        raise StoreUnavailableError(
            f"the cluster{place} is not running, or this machine cannot reach it: {error}; "
            "`sparkstorm cluster`, or `sparkstorm dev`, starts it"
        ) from error
    finally:
        notice.cancel()


def _load(
    connection: str | os.PathLike[str] | Mapping[str, Any] | None,
) -> Connection | ReadOnlyConnection:
    if isinstance(connection, Mapping):
        kind = Connection if "secret" in connection else ReadOnlyConnection
        content = {"format": 1, "kind_of_record": kind.__name__, **connection}
        try:
            return decode_any_connection(json.dumps(content).encode(), "connection")
        except TypeError as error:
            raise InvalidConfigError(f"connection: {error}") from error
    return load_any_connection(Path(require_named(connection)).expanduser())


def require_named(connection: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    """Return the path of the connection file; InvalidConfigError when nothing names one."""
    path = named(connection)
    if not path:
        raise InvalidConfigError(
            f"no cluster is named: give its connection file (--cluster FILE) or its context (--context NAME), or set {VARIABLE}"
        )
    return path


def zookeeper_address(connection: Connection | ReadOnlyConnection, conf: Conf) -> ZooKeeperAddress:
    """Return where a cluster's ZooKeeper is, with the rights of the connection and the patience of
    the configuration.
    """
    keeper = connection.zookeeper
    if not keeper.hosts:
        raise InvalidConfigError(
            "the connection file names no ZooKeeper: the cluster has not been up yet"
        )
    address = ZooKeeperAddress(
        keeper.hosts, keeper.root, keeper.user, keeper.password, tls=keeper.tls
    ).with_patience_of(conf)
    if isinstance(connection, ReadOnlyConnection):
        return replace(address, is_read_only=True)
    return replace(
        address, viewer=viewer_identity(VIEWER, viewer_zookeeper_password(connection.secret))
    )
