"""Owns the two stores of a run: the user's own where addresses are configured, embedded servers where not."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sparkstorm.config import Conf
from sparkstorm.embedded.connection import (
    Connection,
    RedisEndpoint,
    ZooKeeperEndpoint,
    load_connection,
    new_secret,
    parse_redis_url,
    redis_password,
    save_connection,
    zookeeper_password,
)
from sparkstorm.embedded.redis import check_redis_settings, start_redis
from sparkstorm.embedded.zookeeper import start_zookeeper
from sparkstorm.errors import InvalidConfigError

_ZOOKEEPER_USER = "sparkstorm"
_CHECK_LIMIT_S = 5.0


class Stores:
    """The stores of one run; `close` ends what was embedded and leaves the user's own alone.

    `data_by_embedded` names the embedded ones, which only this machine reaches, and the folders of their data.
    """

    def __init__(self, connection: Connection, data_by_embedded: Mapping[str, Path], servers: ExitStack) -> None:
        self.connection = connection
        self.data_by_embedded = data_by_embedded
        self._servers = servers

    def close(self) -> None:
        """Stops the embedded servers; calling it twice is fine."""
        self._servers.close()

    def discard(self) -> None:
        """Stops the embedded servers and deletes their data, for a run that ended well and needs no sequel."""
        self.close()
        for folder in self.data_by_embedded.values():
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Stores:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connection_path(conf: Conf) -> Path:
    """Where this configuration keeps its connection file."""
    named = conf["sparkstorm.connection.file"]
    return Path(named) if named else Path(conf.text("storm.local.dir"), "connection.json")


def open_stores(conf: Conf) -> Stores:
    """Checks the configured Redis, starts what is not configured, and writes the connection file.

    The secret of an earlier connection file is kept, so that data left by an earlier run can be opened again.
    Raises InvalidConfigError, StoreUnavailableError or EmbeddedServerError; nothing is left running then.
    """
    path = connection_path(conf)
    secret = load_connection(path).secret if path.exists() else new_secret()
    data = _embedded_data(conf)
    with ExitStack() as servers:
        redis_at = _open_redis(conf, data, secret, servers)
        zookeeper_at = _open_zookeeper(conf, data, secret, servers)
        connection = Connection(redis_at, zookeeper_at, secret)
        save_connection(path, connection)
        return Stores(connection, _embedded_data(conf), servers.pop_all())


def _embedded_data(conf: Conf) -> dict[str, Path]:
    folder = Path(conf.text("storm.local.dir"))
    configured = {"redis": conf["sparkstorm.redis.url"], "zookeeper": conf["storm.zookeeper.servers"]}
    return {name: folder / name for name, own in configured.items() if not own}


def _open_redis(conf: Conf, data: Mapping[str, Path], secret: str, servers: ExitStack) -> RedisEndpoint:
    if conf["sparkstorm.redis.url"]:
        endpoint = parse_redis_url(conf.text("sparkstorm.redis.url"), conf["sparkstorm.redis.password"])
        check_redis(endpoint)
        return endpoint
    server = start_redis(
        data["redis"],
        password=redis_password(secret),
        maxmemory_mb=conf.integer("sparkstorm.embedded.redis.maxmemory.mb"),
        port=conf["sparkstorm.embedded.redis.port"],
    )
    servers.callback(server.stop)
    return RedisEndpoint(server.host, server.port, server.password)


def check_redis(endpoint: RedisEndpoint) -> None:
    """Raises what `check_redis_settings` does when the Redis there cannot be used safely."""
    with redis.Redis(
        host=endpoint.host,
        port=endpoint.port,
        username=endpoint.user or None,
        password=endpoint.password or None,
        db=endpoint.db,
        ssl=endpoint.tls,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=_CHECK_LIMIT_S,
        socket_connect_timeout=_CHECK_LIMIT_S,
    ) as client:
        check_redis_settings(client)


def _open_zookeeper(conf: Conf, data: Mapping[str, Path], secret: str, servers: ExitStack) -> ZooKeeperEndpoint:
    root = conf.text("storm.zookeeper.root")
    user = conf["storm.zookeeper.auth.user"] or _ZOOKEEPER_USER
    password = conf["storm.zookeeper.auth.password"] or zookeeper_password(secret)
    if conf["storm.zookeeper.servers"]:
        return ZooKeeperEndpoint(_zookeeper_hosts(conf), root, user, password)
    server = start_zookeeper(
        data["zookeeper"], password=password, user=user, port=conf["sparkstorm.embedded.zookeeper.port"]
    )
    servers.callback(server.stop)
    return ZooKeeperEndpoint(server.hosts, root, user, password)


def _zookeeper_hosts(conf: Conf) -> str:
    port = conf.integer("storm.zookeeper.port")
    hosts = conf["storm.zookeeper.servers"]
    if odd := [host for host in hosts if not isinstance(host, str) or not host or "," in host or "/" in host]:
        raise InvalidConfigError(f"storm.zookeeper.servers: {odd[0]!r} is no host name or host:port")
    return ",".join(host if ":" in host else f"{host}:{port}" for host in hosts)
