"""Fixtures that several test folders share: real servers, started once per run, and the check for
leaks.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from sparkstorm.extensions.embedded import (
    RedisServer,
    ZooKeeperServer,
    start_redis,
    start_zookeeper,
)
from tests.leaks import Held, keep_children, left_over
from tests.reaper import start_reaper
from tests.schedule import pytest_xdist_make_scheduler
from tests.spark_classes import QUICK, use_spark_classes

__all__ = ["pytest_xdist_make_scheduler"]

pytest_plugins = ("tests.tiers",)

start_reaper()

for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_name, QUICK)
use_spark_classes()

# Examples are judged by their results: on a loaded machine one of them may take longer than
# hypothesis' 200 ms
settings.register_profile(
    "loaded machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("loaded machine")

SERVERS = {"spark", "redis_server", "zookeeper_server", "own_redis", "own_zookeeper"}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without a look for garbage: tests and modules stay to the end, and later looks leave
    them out.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `system` what asks for a real server or for Spark by a fixture, so that
    `-m 'not system'` needs neither.
    """
    for item in items:
        if not SERVERS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.system)


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    """Fail a test that ends with a thread, a socket or a child process that it did not begin
    with.
    """
    before = Held.now()
    yield
    leftovers = left_over(before)
    assert not leftovers, f"left behind by this test: {', '.join(leftovers)}"


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A real Redis for the whole run (host, port, password, client()). Use keys of your own, never
    stop or flush it.
    """
    server = start_redis(tmp_path_factory.mktemp("redis"), password="of-the-tests")
    keep_children()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A real ZooKeeper for the whole run: host, port, hosts, auth. Shared: use a root of your own,
    never stop it.
    """
    server = start_zookeeper(tmp_path_factory.mktemp("zookeeper"), password="of-the-tests")
    keep_children()
    yield server
    server.stop()


@pytest.fixture
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis of this test alone (tens of ms): it may be filled, stopped, killed and restarted."""
    server = start_redis(
        tmp_path_factory.mktemp("own-redis"), password="of-this-test", maxmemory_mb=64
    )
    yield server
    server.stop()


@pytest.fixture
def own_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper of this test alone (about a second): it may be stopped, killed and restarted."""
    server = start_zookeeper(tmp_path_factory.mktemp("own-zookeeper"), password="of-this-test")
    yield server
    server.stop()
