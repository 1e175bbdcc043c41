"""Checks of this machine and its servers: Python, Java, the row path, Spark's settings, Redis,
ZooKeeper, clocks and ports.

The sentences are those of the code that would fail later: the search for Java and Redis, the check
of a configured Redis, the start of a ZooKeeper session, the settings of slots. Nothing is written.
"""

from __future__ import annotations

import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import redis

from sparkstorm.common.config import Conf
from sparkstorm.common.errors import SparkStormError, StoreUnavailableError
from sparkstorm.common.model import compiled
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.settings import StoreSettings
from sparkstorm.common.stores.addresses import check_addresses, redis_stores, tls_files
from sparkstorm.common.stores.connection import ReadOnlyConnection, load_any_connection
from sparkstorm.common.stores.passwords import ZOOKEEPER, password_of
from sparkstorm.common.stores.redis_client import check_redis_settings, client_of
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.data_plane.transport.servers.opening import servers_of
from sparkstorm.extensions.embedded.java import find_java, java_version
from sparkstorm.extensions.embedded.process import require_free
from sparkstorm.extensions.embedded.redis import find_redis_binary

# for a server's answer; half may be too short for one far away, with the double one waits without
# need
_WAIT_S = 5.0
# births and deaths are compared across hosts in seconds; with half of it a busy Redis would seem
# wrong
_CLOCK_MS = 1_000
_LINE = re.compile(r"\s*(spark\.[\w.]+)(?:\s*[=:]\s*|\s+)(\S+)")


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """One check: its subject, whether all is well, and a sentence."""

    subject: str
    is_well: bool
    text: str


def findings(
    conf: Conf, connection: str | None, environ: Mapping[str, str]
) -> list[MachineFinding]:
    """Return what the checks find: the servers are those of a connection file if one is given, else
    of the configuration.
    """
    checks = [
        _found("Python", lambda: f"{platform.python_version()} at {sys.executable}"),
        _found("Java", lambda: _java(environ)),
        _core(environ),
        *_spark(environ),
    ]
    if connection is None:
        return [*checks, *_configured(conf)]
    try:
        connected = load_any_connection(Path(connection).expanduser())
    except SparkStormError as error:
        return [*checks, MachineFinding("connection", False, str(error))]
    own = connected.zookeeper
    keeper = ZooKeeperAddress(own.hosts, own.root, own.user, own.password, tls=own.tls)
    stores = [
        check
        for store in connected.stores.all()
        for check in _redis(store, isinstance(connected, ReadOnlyConnection))
    ]
    return [*checks, *stores, _zookeeper(keeper)]


def _found(subject: str, check: Callable[[], str]) -> MachineFinding:
    try:
        return MachineFinding(subject, True, check())
    except SparkStormError as error:
        return MachineFinding(subject, False, str(error))


def _java(environ: Mapping[str, str]) -> str:
    program = find_java(environ)
    return f"{java_version(program)} at {program}"


def _core(environ: Mapping[str, str]) -> MachineFinding:
    """Plain Python is a fault unless the environment asks for it: rows are several times slower."""
    return MachineFinding(
        "row path", compiled.core is not None or "SPARKSTORM_PURE" in environ, compiled.description
    )


def _spark(environ: Mapping[str, str]) -> Iterator[MachineFinding]:
    if (spec := find_spec("pyspark")) is None or spec.origin is None:
        yield MachineFinding(
            "Spark",
            False,
            "pyspark is not installed here: a driver needs it (pip install pyspark), a client does not",
        )
        return
    from sparkstorm.common.spark_versions import unfit_here
    from sparkstorm.driver.hosting.spark import contradiction

    fault = unfit_here()
    yield MachineFinding("Spark", not fault, fault or version("pyspark"))
    home = Path(environ.get("SPARK_HOME") or Path(spec.origin).parent)
    file = Path(environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    for name, value, where in (
        *settings_of_file(file),
        *_of_words(environ.get("PYSPARK_SUBMIT_ARGS", "")),
    ):
        if fault := contradiction(name, value):
            yield MachineFinding("Spark settings", False, f"{where}: {fault}; take it out there")


def settings_of_file(file: Path) -> list[tuple[str, str, str]]:
    """Return the settings of a spark-defaults.conf: name, value and the line that sets it."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    matches = [
        (number, match) for number, line in enumerate(lines, 1) if (match := _LINE.match(line))
    ]
    return [(match[1], match[2], f"{file}, line {number}") for number, match in matches]


def _of_words(text: str) -> list[tuple[str, str, str]]:
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    given = [word.partition("=") for option, word in pairwise(words) if option in ("--conf", "-c")]
    return [(name, value, "PYSPARK_SUBMIT_ARGS") for name, _, value in given]


def _configured(conf: Conf) -> Iterator[MachineFinding]:
    settings = StoreSettings.of(conf)
    try:
        check_addresses(conf)
        files = tls_files(conf)
        stores = redis_stores(conf)
        keeper_password = password_of(conf, ZOOKEEPER)
    except SparkStormError as error:
        yield MachineFinding("configuration", False, str(error))
        return
    if stores is not None:
        for store in stores.all():
            yield from _redis(store)
    else:
        yield _found("Redis", lambda: f"embedded: {find_redis_binary()}")
        yield from _port(settings.redis_port, "Redis", "sparkstorm.embedded.redis.port")
    if settings.zookeeper_servers:
        port = settings.zookeeper_default_port
        hosts = ",".join(
            host if ":" in host else f"{host}:{port}" for host in settings.zookeeper_servers
        )
        root = settings.zookeeper_root
        user = settings.zookeeper_user
        tls = files if settings.zookeeper_tls else None
        yield _zookeeper(ZooKeeperAddress(hosts, root, user, keeper_password, tls=tls))
    else:
        yield MachineFinding(
            "ZooKeeper", True, "embedded: runs on this Java, from Spark's own jars"
        )
        yield from _port(settings.zookeeper_port, "ZooKeeper", "sparkstorm.embedded.zookeeper.port")


def _port(port: int | None, name: str, key: str) -> Iterator[MachineFinding]:
    if port:

        def free() -> str:
            require_free(port, name, key)
            return f"{port} is free for the embedded {name}"

        yield _found("port", free)


def _redis(address: RedisAddress, is_viewer: bool = False) -> Iterator[MachineFinding]:
    """Check version, policy and clock of a Redis, of each primary of a cluster; a viewer may ask it
    for none of them.
    """
    if is_viewer:
        with client_of(address, _WAIT_S) as client:
            yield _found("Redis", lambda: _answers(client, address.place))
        return
    try:
        servers = servers_of(address)
    except SparkStormError as error:
        yield MachineFinding("Redis", False, str(error))
        return
    for server in servers:
        yield from _server(server, is_node=bool(address.nodes))


def _server(address: RedisAddress, is_node: bool) -> Iterator[MachineFinding]:
    place = address.place
    with client_of(address, _WAIT_S) as client:
        try:
            check_redis_settings(client, is_node)
            server = client.info("server")
            memory = client.info("memory")
            began_ms = time.time() * 1000
            seconds, micros = client.time()
            ended_ms = time.time() * 1000
        except SparkStormError as error:
            yield MachineFinding("Redis", False, str(error))
            return
        except redis.RedisError as error:
            yield MachineFinding("Redis", False, f"Redis at {place} does not answer: {error}")
            return
    limit = f"{memory['maxmemory'] >> 20:,} MiB" if memory["maxmemory"] else "no limit"
    used = f"{memory['used_memory'] >> 20:,} MiB of {limit} used"
    yield MachineFinding(
        "Redis", True, f"{server['redis_version']} at {place}, {memory['maxmemory_policy']}, {used}"
    )
    yield _clock(1000 * seconds + micros / 1000, began_ms, ended_ms, place)


def _answers(client: redis.Redis, place: str) -> str:
    try:
        client.ping()
    except redis.RedisError as error:
        raise StoreUnavailableError(f"Redis at {place} does not answer: {error}") from error
    return f"{place} answers; a viewer cannot ask for its version, policy and clock"


def _clock(theirs_ms: float, began_ms: float, ended_ms: float, place: str) -> MachineFinding:
    """Compare Redis' clock with this host's; the time that the question took is no difference."""
    apart_ms = theirs_ms - ended_ms if theirs_ms > ended_ms else min(0.0, theirs_ms - began_ms)
    if abs(apart_ms) < _CLOCK_MS:
        return MachineFinding("clock", True, f"within {abs(apart_ms):.0f} ms of Redis'")
    which = "ahead of" if apart_ms > 0 else "behind"
    return MachineFinding(
        "clock",
        False,
        f"Redis at {place} is {abs(apart_ms) / 1000:.1f} s {which} this host: let both follow one NTP server",
    )


def _zookeeper(address: ZooKeeperAddress) -> MachineFinding:
    def open_and_close() -> str:
        wait_ms = int(1000 * _WAIT_S)
        probe_address = replace(
            address,
            is_read_only=True,
            session_timeout_ms=wait_ms,
            connection_timeout_ms=wait_ms,
            retries=0,
        )
        store = ZooKeeperStateStore(probe_address)
        store.close()
        return f"{store.address} answers"

    return _found("ZooKeeper", open_and_close)
