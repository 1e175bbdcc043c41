"""Stores of a run: the user's own where addresses are configured, else embedded servers.

Law: a user's server is checked and left as it is; what was started here ends here. The rest of the
code has a connection that is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sparkstorm.common.config import Conf
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.worker_spec import RedisAddress, RedisStores
from sparkstorm.common.settings import StoreSettings
from sparkstorm.common.stores.addresses import (
    connection_path,
    redis_stores,
    tls_files,
    zookeeper_hosts,
)
from sparkstorm.common.stores.connection import (
    VIEWER,
    Connection,
    ReadOnlyConnection,
    ZooKeeperEndpoint,
    load_connection,
    new_secret,
    read_only_path,
    redis_password,
    save_connection,
    viewer_redis_password,
    viewer_zookeeper_password,
    zookeeper_password,
)
from sparkstorm.common.stores.folders import discard_folder, own_folder
from sparkstorm.common.stores.passwords import REDIS_VIEWER, ZOOKEEPER, password_of
from sparkstorm.common.stores.redis_client import check_redis
from sparkstorm.data_plane.transport.servers.opening import server_of, servers_of
from sparkstorm.extensions.embedded.process import EmbeddedServer
from sparkstorm.extensions.embedded.redis import start_redis
from sparkstorm.extensions.embedded.zookeeper import start_zookeeper

_ZOOKEEPER_USER = "sparkstorm"


class RunningStores:
    """The stores of one run; `close` ends what was embedded and leaves the user's own alone.

    `embedded` holds the servers that were started here, which only this machine reaches, by name.
    """

    def __init__(self, connection: Connection, embedded: Mapping[str, EmbeddedServer]) -> None:
        self.connection = connection
        self.embedded = embedded

    @property
    def data_by_embedded(self) -> dict[str, Path]:
        """The folder of every embedded server's data."""
        return {name: server.data_dir for name, server in self.embedded.items()}

    def close(self) -> None:
        """Stop the embedded servers; calling it twice is fine."""
        for server in self.embedded.values():
            server.stop()

    def discard(self) -> None:
        """Stop the embedded servers and delete their data: only folders that SparkStorm made, after
        a run that ended well.
        """
        self.close()
        for folder in self.data_by_embedded.values():
            discard_folder(folder)

    def __enter__(self) -> RunningStores:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_stores(conf: Conf) -> RunningStores:
    """Check the configured Redis, start what is not configured, and write the connection file.

    The secret of an earlier connection file is kept, so that data left by an earlier run can be
    opened again. Raises InvalidConfigError, StoreUnavailableError or EmbeddedServerError; nothing
    is left running then.
    """
    path = connection_path(conf)
    _make_local_dir(Path(StoreSettings.of(conf).local_dir))
    # Before any server: data of a server whose secret was lost could not be opened any more.
    secret = _kept_secret(path)
    embedded: dict[str, EmbeddedServer] = {}
    with ExitStack() as undo:
        # Servers that were started before a later step failed must not outlive the error.
        undo.callback(_stop_all, embedded)
        redis_at = _open_redis(conf, secret, embedded)
        zookeeper_at = _open_zookeeper(conf, secret, embedded)
        connection = Connection(redis_at.home, zookeeper_at, secret, redis_at.others)
        save_connection(path, connection)
        _save_read_only(conf, path, connection, "redis" in embedded)
        undo.pop_all()
        return RunningStores(connection, embedded)


def _stop_all(embedded: Mapping[str, EmbeddedServer]) -> None:
    for server in embedded.values():
        server.stop()


def _save_read_only(conf: Conf, path: Path, connection: Connection, is_embedded: bool) -> None:
    """Write the connection file of viewers; without a read-only user of the Redis, remove an old
    one.
    """
    keeper = connection.zookeeper
    secret = connection.secret
    user = VIEWER
    password = viewer_redis_password(secret)
    if not is_embedded:
        user = StoreSettings.of(conf).redis_viewer or ""
        password = password_of(conf, REDIS_VIEWER) or ""
    if not user or not password:
        # A file of an earlier run would name an identity that this one does not have.
        read_only_path(path).unlink(missing_ok=True)
        return
    viewer = ZooKeeperEndpoint(
        keeper.hosts, keeper.root, VIEWER, viewer_zookeeper_password(secret), keeper.tls
    )
    home, *others = (
        replace(address, user=user, password=password) for address in connection.stores.all()
    )
    save_connection(read_only_path(path), ReadOnlyConnection(home, viewer, tuple(others)))


def _make_local_dir(folder: Path) -> None:
    """Make storm.local.dir, for its owner alone, unless it is there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfigError(
            f"storm.local.dir: folder {folder} cannot be made: {error.strerror}"
        ) from error


def _kept_secret(path: Path) -> str:
    """The connection file's secret; a new one is in the file before a server makes data that only
    it opens.
    """
    if path.exists():
        return load_connection(path).secret
    secret = new_secret()
    save_connection(
        path, Connection(RedisAddress("127.0.0.1", 0), ZooKeeperEndpoint("", "/", ""), secret)
    )
    return secret


def _open_redis(conf: Conf, secret: str, embedded: dict[str, EmbeddedServer]) -> RedisStores:
    settings = StoreSettings.of(conf)
    if (own := redis_stores(conf)) is not None:
        store_by_server: dict[tuple[str, int, int], str] = {}
        for store in own.all():
            for address in servers_of(store):
                check_redis(address, is_node=bool(store.nodes))
                server_db = (*server_of(address, ""), address.db)
                # By other Sentinels, or other nodes of the same cluster.
                if (other := store_by_server.setdefault(server_db, store.name)) != store.name:
                    raise InvalidConfigError(
                        f"sparkstorm.redis.urls: {other} and {store.name} are the same store (both have the server "
                        f"{server_db[0]}:{server_db[1]}): name each store once"
                    )
        return own
    server = start_redis(
        own_folder(Path(settings.local_dir, "redis")),
        password=redis_password(secret),
        maxmemory_mb=settings.redis_memory_mb,
        port=settings.redis_port,
        appendfsync=settings.redis_appendfsync,
        viewer=(VIEWER, viewer_redis_password(secret)),
    )
    embedded["redis"] = server
    return RedisStores(RedisAddress(server.host, server.port, server.password))


def _open_zookeeper(
    conf: Conf, secret: str, embedded: dict[str, EmbeddedServer]
) -> ZooKeeperEndpoint:
    settings = StoreSettings.of(conf)
    root = settings.zookeeper_root
    user = settings.zookeeper_user or _ZOOKEEPER_USER
    password = password_of(conf, ZOOKEEPER) or zookeeper_password(secret)
    if settings.zookeeper_servers:
        hosts = zookeeper_hosts(settings.zookeeper_servers, settings.zookeeper_default_port)
        return ZooKeeperEndpoint(
            hosts, root, user, password, tls_files(conf) if settings.zookeeper_tls else None
        )
    folder = own_folder(Path(settings.local_dir, "zookeeper"))
    server = start_zookeeper(folder, password=password, user=user, port=settings.zookeeper_port)
    embedded["zookeeper"] = server
    return ZooKeeperEndpoint(server.hosts, root, user, password)
