"""Addresses of the stores in a configuration: which servers are one's own, how they are reached,
and whether that can be.

Law: nothing here connects to anything. Servers that are not configured are started by
`sparkstorm.extensions.embedded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparkstorm.common.config import Conf
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.worker_spec import RedisAddress, RedisStores
from sparkstorm.common.settings import StoreSettings
from sparkstorm.common.stores.connection import parse_redis_url
from sparkstorm.common.stores.passwords import (
    REDIS,
    REDIS_SENTINEL,
    REDIS_VIEWER,
    ZOOKEEPER,
    password_of,
)
from sparkstorm.common.tls import NO_FILES, TlsFiles


def not_configured(conf: Conf) -> list[str]:
    """Names of the servers that will be embedded."""
    return StoreSettings.of(conf).embedded()


def connection_path(conf: Conf) -> Path:
    """Return the path of this configuration's connection file."""
    settings = StoreSettings.of(conf)
    return Path(settings.connection_file or Path(settings.local_dir, "connection.json"))


def check_addresses(conf: Conf) -> None:
    """Read the configured addresses and passwords, and connect to nothing; InvalidConfigError names
    what is unfit.
    """
    settings = StoreSettings.of(conf)
    if redis_stores(conf):
        password_of(conf, REDIS_VIEWER)
    tls_files(conf)
    password_of(conf, ZOOKEEPER)
    zookeeper_hosts(settings.zookeeper_servers or (), settings.zookeeper_default_port)


def redis_stores(conf: Conf) -> RedisStores | None:
    """Return the user's own stores, None when one is to be embedded; InvalidConfigError names an
    URL that is unfit.
    """
    settings = StoreSettings.of(conf)
    password = password_of(conf, REDIS)
    files = tls_files(conf)
    of_sentinels = password_of(conf, REDIS_SENTINEL) or ""
    if settings.redis_url and not settings.redis_urls:
        return RedisStores(
            replace(
                parse_redis_url(settings.redis_url, password, files), sentinel_password=of_sentinels
            )
        )
    stores: list[RedisAddress] = []
    for number, url in enumerate(settings.own_redis(), 1):
        where = f"sparkstorm.redis.urls, number {number}"
        if not isinstance(url, str):
            raise InvalidConfigError(f"{where}: expected the URL of a Redis as a text")
        address = replace(
            parse_redis_url(url, password, files, where), sentinel_password=of_sentinels
        )
        address = (
            address
            if address.name
            else replace(
                address,
                name=f"{address.master or f'{address.host}:{address.port}'}{f'/{address.db}' if address.db else ''}",
            )
        )
        for earlier, other in enumerate(stores, 1):
            # One server under two names would get two shares of the topologies, and Nimbus would
            # find the keys of each topology twice.
            if (
                address.name == other.name
                or not {*address.nodes}.isdisjoint(other.nodes)
                or (address.host, address.port, address.master, address.db)
                == (other.host, other.port, other.master, other.db)
            ):
                raise InvalidConfigError(
                    f"{where} is the same store as number {earlier} ({other.name}): name each store once"
                )
        stores.append(address)
    return RedisStores(stores[0], tuple(stores[1:])) if stores else None


def tls_files(conf: Conf) -> TlsFiles:
    """Return the configured files of TLS; InvalidConfigError names what this host cannot use, or
    that nothing would use them.
    """
    settings = StoreSettings.of(conf)
    files = TlsFiles(settings.tls_ca or "", settings.tls_certificate or "", settings.tls_key or "")
    # An error, and not passed over: a user with settings of encryption must not go on without it
    # unnoticed.
    if settings.zookeeper_tls and not settings.zookeeper_servers:
        raise InvalidConfigError(
            "storm.zookeeper.ssl.enable is for your own ZooKeeper: name its hosts in storm.zookeeper.servers"
        )
    is_used = settings.zookeeper_tls or any(
        str(url).startswith(("rediss:", "rediss+")) for url in settings.own_redis()
    )
    if files != NO_FILES and not is_used:
        raise InvalidConfigError(
            "sparkstorm.tls.* is set and no connection is encrypted: write rediss:// in the URL of your Redis, or set "
            "storm.zookeeper.ssl.enable"
        )
    files.check()
    return files


def zookeeper_hosts(hosts: Sequence[object], port: int) -> str:
    """Return ZooKeeper's address of these hosts, each with its port; InvalidConfigError names one
    that is no host.
    """
    # A comma or slash in a host would make another address, or another root, of the whole text.
    if odd := [
        host
        for host in hosts
        if not isinstance(host, str) or not host or "," in host or "/" in host
    ]:
        raise InvalidConfigError(
            f"storm.zookeeper.servers: {odd[0]!r} is no host name or host:port"
        )
    return ",".join(host if ":" in host else f"{host}:{port}" for host in map(str, hosts))
