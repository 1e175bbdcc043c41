"""Client of a Redis, and the check whether a user's own Redis can be used safely.

Law: a client tries nothing twice by itself, since the caller decides whether a request may be
repeated. For requests of the control plane and of operators; the data plane has connections of its
own (`data_plane/transport/connection.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.common.model.worker_spec import RedisAddress

OLDEST_VERSION = (6, 2)  # XTRIM MINID, which frees what a commit has consumed
# An operator waits for the check; a Redis that takes longer to answer a PING would hold up every
# commit.
_CHECK_LIMIT_S = 5.0


class _Sentinels(Sentinel):
    """Sentinels whose error is the last one's alone: redis-py's shows every setting of each
    connection.
    """

    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            host, port = super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError as error:
            last = str(error).rpartition(" - ")[2]
            asked = [sentinel.connection_pool.connection_kwargs for sentinel in self.sentinels]
            places = ", ".join(f"{kwargs['host']}:{kwargs['port']}" for kwargs in asked)
            raise MasterNotFoundError(
                f"no Sentinel names a primary {service_name}: asked at {places}, the last error is {last}"
            ) from None
        return str(host), int(port)


class _WatchedRedis(redis.Redis):
    """Client of the primary that Sentinels name; `close` ends its connections to them too, which
    redis-py leaves open.
    """

    def close(self) -> None:
        super().close()
        manager: Any = self.connection_pool
        for sentinel in manager.sentinel_manager.sentinels:
            sentinel.close()


class _ToAnyNode:
    """Connection to the first node of a cluster that can be reached; mixed into one of redis-py's."""

    nodes: Sequence[tuple[str, int]] = ()

    def _connect(self) -> Any:
        last: OSError | None = None
        for host, port in self.nodes:
            self.host, self.port = host, port
            try:
                return super()._connect()  # type: ignore[misc]
            except OSError as error:
                last = error
        assert last is not None, "a cluster has a node"
        raise last


def client_of(address: RedisAddress, timeout_s: float | None = None) -> redis.Redis:
    """A client for that Redis, which tries nothing twice by itself; of a cluster for any node, which
    may answer what is asked of no key.
    """
    settings = _settings_of(address, timeout_s)
    if address.nodes:
        base: Any = redis.SSLConnection if settings.pop("ssl") else redis.Connection
        kind = type("AnyNode", (_ToAnyNode, base), {"nodes": address.node_hosts()})
        host, port = address.host, address.port
        pool = redis.ConnectionPool(connection_class=kind, host=host, port=port, **settings)
        return redis.Redis.from_pool(pool)
    if address.master:
        # Its pool asks the Sentinels with each new connection, and gives up one to a server that
        # has become a replica.
        options = {**address.sentinel_options(), "retry": Retry(NoBackoff(), 0)}
        watch = _Sentinels(address.sentinel_hosts(), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        watched: redis.Redis = watch.master_for(address.master, _WatchedRedis, **settings)  # type: ignore[no-untyped-call]
        return watched
    return redis.Redis(host=address.host, port=address.port, **settings)


def _settings_of(address: RedisAddress, timeout_s: float | None) -> dict[str, Any]:
    """Return redis-py's settings of connections to a Redis, but where it is."""
    return {
        "username": address.user or None,
        "password": address.password or None,
        "db": address.db,
        "ssl": address.tls,
        **address.tls_options(),
        # redis-py repeats by default. A request that changes something may then be applied twice.
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
    }


def check_redis(endpoint: RedisAddress, is_node: bool = False) -> None:
    """Raise InvalidConfigError as `check_redis_settings` does when the Redis there cannot be used
    safely.
    """
    with client_of(endpoint, _CHECK_LIMIT_S) as client:
        check_redis_settings(client, is_node)


def check_redis_settings(client: redis.Redis, is_node: bool = False) -> None:
    """Refuse a user's Redis that may lose data by itself or is open to a network
    (InvalidConfigError).

    `is_node`: it was configured as a node of a cluster. Raises StoreUnavailableError (unreachable,
    wrong password) or InvalidConfigError (open, too old, evicting, a node that was not configured as
    one).
    """
    password = client.get_connection_kwargs().get("password")
    host, port = _server_of(client)
    address = f"Redis at {host}:{port}"
    # On loopback alone every process on the host gets in, as its owner chose; on a network, every
    # host that reaches it.
    if not password and host not in ("localhost", "::1") and not host.startswith("127."):
        raise InvalidConfigError(
            f"{address} is not on loopback and has no password: set requirepass there and sparkstorm.redis.password here"
        )
    policy, version, mode = _read_settings(client, address)
    if mode == "cluster" and not is_node:
        raise InvalidConfigError(
            f"{address} is a node of a cluster: write redis+cluster:// in place of redis:// in sparkstorm.redis.url"
        )
    # Another policy drops keys when memory is full: cursors and journals among them, without an
    # error.
    if policy != "noeviction":
        raise InvalidConfigError(
            f"{address} may drop data: its maxmemory-policy is {policy}, it must be noeviction"
        )
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_VERSION:
        raise InvalidConfigError(f"{address} is version {version}; 6.2 or newer is needed")


def _server_of(client: redis.Redis) -> tuple[str, int]:
    """Return host and port of a client's server; with Sentinels those of the present primary."""
    pool = client.connection_pool
    settings = client.get_connection_kwargs()
    if not isinstance(pool, SentinelConnectionPool):
        return str(settings.get("host", "?")), int(settings.get("port", 0))
    try:
        host, port = pool.get_master_address()  # type: ignore[no-untyped-call]
        return str(host), int(port)
    except redis.RedisError as error:
        raise StoreUnavailableError(str(error)) from error


def _read_settings(client: redis.Redis, address: str) -> tuple[str, str, str]:
    """Return policy, version and mode."""
    try:
        policy = str(client.info("memory")["maxmemory_policy"])
        server = client.info("server")
        mode = server.get("redis_mode", server.get("server_mode", ""))
        return policy, str(server["redis_version"]), str(mode)
    except redis.AuthenticationError as error:
        raise StoreUnavailableError(f"{address} refuses the password: {error}") from error
    except redis.RedisError as error:
        raise StoreUnavailableError(f"{address} cannot be used: {error}") from error
