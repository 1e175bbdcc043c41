"""Checks the rewrite of the append-only file: once in a server's life, awaited by all, never for
ever.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.control_plane.blobs.redis import RedisBytesStore
from sparkstorm.data_plane.transport import log_rewrite
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.extensions.embedded import start_redis
from tests.transport.bare_redis import BareRedis, binaries
from tests.waiting import wait_until

pytestmark = pytest.mark.system
Start = Callable[..., BareRedis]


BINARIES = [pytest.param(binary, id=version) for version, binary in binaries().items()]


@pytest.fixture(params=BINARIES)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Starts servers in one folder, one after the other."""
    started: list[BareRedis] = []

    def make(**settings: Any) -> BareRedis:
        started.append(BareRedis(request.param, tmp_path, **settings))
        return started[-1]

    yield make
    for server in started:
        server.kill()


@pytest.fixture
def said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    """Warnings so far."""
    monkeypatch.setattr(log_rewrite, "_said", set())
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def ask(
    server: BareRedis, patience_s: float = 20.0, on_wait: Callable[[str], None] = lambda _: None
) -> None:
    """One harmless write on a new connection."""
    link = Link(server.address, patience_s, on_wait)
    link.ask(("SET", "key", "value"))
    link.close()


def persistence(server: BareRedis) -> dict[str, Any]:
    found: dict[str, Any] = server.client.info("persistence")
    return found


def rewrites(server: BareRedis) -> int:
    return server.log().count("Background append only file rewriting started by pid")


def test_a_server_is_asked_once_in_its_life(start: Start) -> None:
    server = start()
    assert persistence(server)["aof_last_rewrite_time_sec"] == -1
    for _ in range(3):
        ask(server)
    assert rewrites(server) == 1
    server.kill()
    server = start()
    ask(server)
    assert rewrites(server) == 2  # of two lives: the log goes on


def test_a_server_without_an_append_only_file_is_left_alone(start: Start) -> None:
    server = start(appendonly="no")
    ask(server)
    assert rewrites(server) == 0


def test_everybody_waits_for_one_rewrite_that_is_under_way(start: Start) -> None:
    server = start(rdb_key_save_delay=50_000)
    server.client.mset({f"k{n}": n for n in range(10)})
    threads = [threading.Thread(target=ask, args=(server,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: persistence(server)["aof_rewrite_in_progress"], "a rewrite")
    assert server.client.get("key") is None
    for thread in threads:
        thread.join(60)
    assert persistence(server)["aof_last_bgrewrite_status"] == "ok"
    assert rewrites(server) == 1


def test_a_rewrite_waits_for_a_snapshot_that_is_under_way(start: Start) -> None:
    server = start(rdb_key_save_delay=50_000)
    server.client.mset({f"k{n}": n for n in range(10)})
    server.client.bgsave()
    waits: list[str] = []
    ask(server, on_wait=waits.append)
    # a worker beats meanwhile
    assert f"Redis at 127.0.0.1:{server.port} rewrites its append-only file" in waits
    assert not persistence(server)["rdb_bgsave_in_progress"]
    assert rewrites(server) == 1


def test_a_server_that_loads_is_waited_for(start: Start) -> None:
    server = start()
    with server.client.pipeline(transaction=False) as pipeline:
        for n in range(10_000):
            pipeline.set(f"k{n}", n)
        pipeline.execute()
    server.kill()
    server = start(key_load_delay=50)
    assert persistence(server)["loading"] == 1
    ask(server)
    assert server.client.dbsize() == 10_001
    assert rewrites(server) == 1


@pytest.mark.parametrize(
    "option",
    ["rename_command BGREWRITEAOF NONE", "user default on nopass ~* &* +@all -bgrewriteaof"],
)
def test_a_server_that_forbids_it_is_used_and_said_once(
    start: Start, said: Callable[[], list[str]], option: str
) -> None:
    name, _, value = option.partition(" ")
    server = start(**{name: value})
    for _ in range(3):
        ask(server)
    assert server.client.get("key") == b"value"
    [warning] = said()
    assert (
        f"Redis at 127.0.0.1:{server.port} cannot rewrite its append-only file (BGREWRITEAOF: "
        in warning
    )


def test_a_rewrite_that_fails_is_tried_again_and_given_up(
    start: Start, said: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_rewrite, "_RETRY_EVERY_S", 0.05)
    server = start()
    shutil.rmtree(tmp_path)  # the server can create no file any more
    ask(server, patience_s=0.5)
    assert server.client.get("key") == b"value"
    assert server.client.info("commandstats")["cmdstat_bgrewriteaof"]["calls"] > 1
    [warning] = said()
    assert "cannot rewrite its append-only file" in warning


def test_chunks_are_written_behind_the_rewrite(start: Start) -> None:
    server = start(rdb_key_save_delay=30_000)
    server.client.mset({f"k{n}": n for n in range(10)})
    with contextlib.closing(RedisBytesStore(Link(server.address, 10))) as store:
        store.put("c", b"bytes")
    assert persistence(server)["aof_last_rewrite_time_sec"] >= 0
    assert rewrites(server) == 1


@pytest.mark.parametrize("binary", BINARIES)
def test_an_embedded_server_killed_while_it_rewrites_a_torn_log_comes_back(
    binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "redis-server").symlink_to(binary)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    server = start_redis(tmp_path / "data", password="secret")
    try:
        with server.client() as client:
            for n in range(50):
                client.set(f"k{n}", n)
            client.pipeline().incr("a").incr("b").execute()
        server.kill()
        path = max(
            (tmp_path / "data").rglob("*.aof"), key=lambda found: ("incr" in found.name, found.name)
        )
        path.write_bytes(path.read_bytes()[:-20])
        server.restart()
        with server.client() as client:
            client.config_set("rdb-key-save-delay", 50_000)
            client.bgrewriteaof()
            wait_until(lambda: client.info("persistence")["aof_rewrite_in_progress"], "a rewrite")
        server.kill()
        server.restart()
        with server.client() as client:
            assert client.dbsize() == 50
            client.config_set("rdb-key-save-delay", 0)
    finally:
        server.stop()
