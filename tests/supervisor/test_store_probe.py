"""Probes of a host's ways to Redis and to Spark's driver, and what a slot tells Nimbus of them,
with a proxy that stands in the way.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.stores.redis_client import client_of
from sparkstorm.control_plane.supervisor.store_probe import (
    ANSWER_S,
    AWAY_S,
    DriverProbe,
    RedisProbe,
)
from sparkstorm.extensions.embedded import RedisServer, ZooKeeperServer
from tests.supervisor.local_slots import LocalSlots
from tests.supervisor.slot_bench import SlotBench
from tests.system.proxy import TcpProxy
from tests.waiting import wait_until


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[TcpProxy]:
    made = TcpProxy(redis_server.host, redis_server.port)
    yield made
    made.close()


def through(proxy: TcpProxy, server: RedisServer) -> RedisAddress:
    return RedisAddress(proxy.host, proxy.port, server.password)


def test_silence_is_told_after_a_time_and_its_end_at_once(
    redis_server: RedisServer, proxy: TcpProxy
) -> None:
    probe = RedisProbe(lambda: client_of(through(proxy, redis_server), ANSWER_S))
    try:
        assert probe.away() == (0, "")
        proxy.pause()
        wait_until(lambda: probe.away()[0], "the silence is told")
        away_ms, problem = probe.away()
        assert away_ms >= 1000 * AWAY_S and problem == "no answer within 1 s"
        proxy.resume()
        wait_until(lambda: probe.away() == (0, ""), "Redis is back")
    finally:
        probe.close()


@pytest.mark.parametrize("refused", ["connection", "password"])
def test_a_refusal_is_told_with_its_reason(
    refused: str, redis_server: RedisServer, proxy: TcpProxy
) -> None:
    address = through(proxy, redis_server)
    if refused == "password":
        address = replace(address, password="not the password")
    else:
        proxy.refuse()
    probe = RedisProbe(lambda: client_of(address, ANSWER_S))
    try:
        wait_until(lambda: probe.away()[0], "the refusal is told")
        assert refused in probe.away()[1].lower()
    finally:
        probe.close()


def test_a_driver_that_cannot_be_connected_again_is_told_and_its_return_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        probe = DriverProbe(f"127.0.0.1:{port}")
        assert probe.away() == (0, "")
        server.accept()[0].close()
        second, _ = server.accept()
        assert probe.away() == (0, ""), "the driver ended a connection, and takes another"
    second.close()
    try:
        wait_until(lambda: probe.away()[0], "the refusal is told")
        assert "refused" in probe.away()[1]
        with socket.create_server(("127.0.0.1", port), reuse_port=False) as server:
            wait_until(lambda: probe.away() == (0, ""), "the driver is back")
    finally:
        probe.close()


@pytest.mark.parametrize(
    ("address", "words"), [("[::1]:9", "refused"), ("no-such-host.invalid:9", "known")]
)
def test_an_address_of_a_driver_that_leads_nowhere_is_told(address: str, words: str) -> None:
    probe = DriverProbe(address)
    try:
        wait_until(lambda: probe.away()[0], "it is told", 60)
        assert words in probe.away()[1] or "address" in probe.away()[1]
    finally:
        probe.close()


def test_a_slot_tells_that_its_host_is_cut_from_the_driver(
    redis_server: RedisServer, zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    bench = SlotBench(redis_server, zookeeper_server, tmp_path, {})
    driver = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{driver.getsockname()[1]}"
    slots = LocalSlots(replace(bench.spec, driver=address), 1)

    def told() -> tuple[str, str] | None:
        info = bench.state.read_supervisor("node-1")
        return None if info is None else (info.driver, info.driver_problem)

    slots.start()
    try:
        wait_until(lambda: told() == (address, ""), "the supervisor is registered")
        driver.close()
        wait_until(lambda: told() not in (None, (address, "")), "the slot says it")
    finally:
        slots.stop()
        bench.close()


def test_a_slot_tells_that_its_host_is_cut_from_redis_and_that_it_is_back(
    redis_server: RedisServer, zookeeper_server: ZooKeeperServer, proxy: TcpProxy, tmp_path: Path
) -> None:
    bench = SlotBench(redis_server, zookeeper_server, tmp_path, {})
    slots = LocalSlots(replace(bench.spec, redis=through(proxy, redis_server)), 1)

    def problem() -> str | None:
        info = bench.state.read_supervisor("node-1")
        return None if info is None else info.store_problem

    slots.start()
    try:
        wait_until(lambda: problem() == "", "the supervisor is registered")
        proxy.pause()
        wait_until(problem, "the slot says that Redis is away")
        info = bench.state.read_supervisor("node-1")
        assert info is not None
        assert info.store_problem == "no answer within 1 s"
        assert info.store_away_ms >= 1000 * AWAY_S
        proxy.resume()
        wait_until(lambda: problem() == "", "the slot says that Redis is back")
    finally:
        slots.stop()
        bench.close()
