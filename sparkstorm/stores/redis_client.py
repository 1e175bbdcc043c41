"""Client of a Redis, and the check whether a user's own Redis can be used safely.

Law: a client tries nothing twice by itself, since whoever asks knows whether a request may be
repeated. For requests to ZooKeeper's side of things and for people; the data plane has connections
of its own (`transport/connection.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sparkstorm.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.model.worker_spec import RedisAddress

OLDEST_VERSION = (6, 2)  # XTRIM MINID, which frees what a commit has consumed
# A person waits for the check; a Redis that takes longer to answer a PING would hold up every
# commit.
_CHECK_LIMIT_S = 5.0


def client_of(
    at: RedisAddress,
    timeout_s: float | None = None,
    on_connect: Callable[[Any], None] | None = None,
) -> redis.Redis:
    """A client for that Redis, which tries nothing twice by itself; `on_connect` greets in place of
    redis-py.
    """
    return redis.Redis(
        host=at.host,
        port=at.port,
        username=at.user or None,
        password=at.password or None,
        db=at.db,
        ssl=at.tls,
        **at.tls_options(),
        # redis-py repeats by default. A request that changes something may then be applied twice.
        retry=Retry(NoBackoff(), 0),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        redis_connect_func=on_connect,  # type: ignore[arg-type]  # it is given the connection
    )


def check_redis(endpoint: RedisAddress) -> None:
    """Raise InvalidConfigError as `check_redis_settings` does when the Redis there cannot be used
    safely.
    """
    with client_of(endpoint, _CHECK_LIMIT_S) as client:
        check_redis_settings(client)


def check_redis_settings(client: redis.Redis) -> None:
    """Refuse a user's Redis that may lose data by itself or is open to a network
    (InvalidConfigError).

    Raises StoreUnavailableError (unreachable, wrong password) or InvalidConfigError (open, too old,
    evicting).
    """
    settings = client.get_connection_kwargs()
    host = str(settings.get("host", "?"))
    password = settings.get("password")
    address = f"Redis at {host}:{settings.get('port', '?')}"
    # On loopback alone everybody on the host gets in, which is what its owner chose; on a network,
    # everybody who reaches it.
    if not password and host not in ("localhost", "::1") and not host.startswith("127."):
        raise InvalidConfigError(
            f"{address} is not on loopback and has no password: set requirepass there and sparkstorm.redis.password here"
        )
    policy, version = _read_settings(client, address)
    # Another policy drops keys when memory is full: cursors and journals among them, without a
    # word.
    if policy != "noeviction":
        raise InvalidConfigError(
            f"{address} may drop data: its maxmemory-policy is {policy}, it must be noeviction"
        )
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_VERSION:
        raise InvalidConfigError(f"{address} is version {version}; 6.2 or newer is needed")


def _read_settings(client: redis.Redis, address: str) -> tuple[str, str]:
    try:
        policy = str(client.info("memory")["maxmemory_policy"])
        return policy, str(client.info("server")["redis_version"])
    except redis.AuthenticationError as error:
        raise StoreUnavailableError(f"{address} refuses the password: {error}") from error
    except redis.RedisError as error:
        raise StoreUnavailableError(f"{address} cannot be used: {error}") from error
