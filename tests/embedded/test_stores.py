"""Opening the stores of a run: embedded by default, the user's own where configured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkstorm.common.config import Conf, Value, merge
from sparkstorm.common.errors import EmbeddedServerError, InvalidConfigError, StoreUnavailableError
from sparkstorm.common.stores.connection import load_connection
from sparkstorm.common.stores.folders import MARKER
from sparkstorm.common.stores.redis_client import client_of
from sparkstorm.extensions.embedded import RedisServer, open_stores
from sparkstorm.extensions.embedded.process import free_port, free_ports
from tests.embedded.waiting import is_running

pytestmark = pytest.mark.system


def a_conf(folder: Path, **own: Value) -> Conf:
    return merge(
        {
            "storm.local.dir": str(folder),
            **{key.replace("__", "."): value for key, value in own.items()},
        }
    )


def pid_of(folder: Path, name: str) -> int:
    return int((folder / name / f"{name}.pid").read_text().split()[0])


def test_with_nothing_configured_both_are_brought_along_and_gone_at_the_end(tmp_path: Path) -> None:
    with open_stores(a_conf(tmp_path)) as stores:
        assert set(stores.data_by_embedded) == {"redis", "zookeeper"}
        assert load_connection(tmp_path / "connection.json") == stores.connection
        pids = [pid_of(tmp_path, name) for name in stores.data_by_embedded]
        assert [is_running(pid) for pid in pids] == [True, True]
    assert [is_running(pid) for pid in pids] == [False, False]


def test_a_later_run_opens_what_an_earlier_one_left_unless_it_was_discarded(
    tmp_path: Path, zookeeper_server: object
) -> None:
    conf = merge(a_conf(tmp_path), {"storm.zookeeper.servers": ["127.0.0.1:1"]})
    with open_stores(conf) as first:
        secret = first.connection.secret
    with open_stores(conf) as second:
        assert second.connection.secret == secret
        assert second.connection.redis.password == first.connection.redis.password
    assert (tmp_path / "redis").exists()
    second.discard()
    assert not (tmp_path / "redis").exists()


def test_what_somebody_else_keeps_in_the_folder_is_neither_written_to_nor_deleted(
    tmp_path: Path,
) -> None:
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "app.py").write_text("mine")
    conf = a_conf(tmp_path, storm__zookeeper__servers=["127.0.0.1:1"])
    sentence = r"redis holds files that SparkStorm did not write"
    with pytest.raises(InvalidConfigError, match=sentence):
        open_stores(conf)
    assert [path.name for path in (tmp_path / "redis").iterdir()] == ["app.py"]


def test_a_good_end_deletes_no_folder_whose_marker_is_gone(tmp_path: Path) -> None:
    conf = a_conf(tmp_path, storm__zookeeper__servers=["127.0.0.1:1"])
    with open_stores(conf) as stores:
        (tmp_path / "redis" / MARKER).unlink()
        stores.discard()
    assert (tmp_path / "redis" / "redis.conf").exists()


def test_a_second_run_in_the_folder_is_refused_and_changes_nothing_of_the_first(
    tmp_path: Path,
) -> None:
    conf = a_conf(tmp_path, storm__zookeeper__servers=["127.0.0.1:1"])
    with open_stores(conf) as first:
        settings = (tmp_path / "redis" / "redis.conf").read_bytes()
        connection = (tmp_path / "connection.json").read_bytes()
        sentence = rf"redis is in use: .* process {os.getpid()}, which still runs; stop that"
        with pytest.raises(EmbeddedServerError, match=sentence):
            open_stores(conf)
        assert (tmp_path / "redis" / "redis.conf").read_bytes() == settings
        assert (tmp_path / "connection.json").read_bytes() == connection
        first.embedded["redis"].restart()  # on the port of its own settings


def test_a_start_that_failed_leaves_the_secret_that_its_data_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> object:
        raise EmbeddedServerError("no Java")

    monkeypatch.setattr("sparkstorm.extensions.embedded.stores.start_zookeeper", fails)
    with pytest.raises(EmbeddedServerError):
        open_stores(a_conf(tmp_path))
    monkeypatch.undo()
    secret = load_connection(tmp_path / "connection.json").secret
    assert (tmp_path / "connection.json").stat().st_mode & 0o777 == 0o600
    with open_stores(a_conf(tmp_path)) as stores:
        assert stores.connection.secret == secret


def test_configured_addresses_start_nothing(tmp_path: Path, redis_server: RedisServer) -> None:
    url = f"redis://:{redis_server.password}@127.0.0.1:{redis_server.port}"
    conf = a_conf(
        tmp_path, sparkstorm__redis__url=url, storm__zookeeper__servers=["zk1", "zk2:2182"]
    )
    with open_stores(conf) as stores:
        assert not stores.data_by_embedded
        assert stores.connection.redis.password == redis_server.password
        assert stores.connection.zookeeper.hosts == "zk1:2181,zk2:2182"
    assert redis_server.is_alive()
    assert not (tmp_path / "redis").exists()


def test_an_unreachable_configured_redis_leaves_nothing_running(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"Redis at 127\.0\.0\.1"):
        open_stores(a_conf(tmp_path, sparkstorm__redis__url=f"redis://127.0.0.1:{free_port()}"))
    assert not (tmp_path / "zookeeper").exists()


def test_when_the_second_store_cannot_start_the_first_is_ended(tmp_path: Path) -> None:
    conf = a_conf(tmp_path, storm__zookeeper__servers=["a/b"])
    with pytest.raises(InvalidConfigError, match=r"storm\.zookeeper\.servers: 'a/b'"):
        open_stores(conf)
    assert not (tmp_path / "redis" / "redis.pid").exists()


@pytest.mark.parametrize("wanted", ["everysec", "always"])
def test_when_the_log_is_brought_to_the_disk_can_be_chosen(tmp_path: Path, wanted: str) -> None:
    conf = a_conf(
        tmp_path, sparkstorm__embedded__redis__appendfsync=wanted, storm__zookeeper__servers=["zk1"]
    )
    with open_stores(conf) as stores, client_of(stores.connection.redis) as client:
        assert client.config_get("appendfsync") == {"appendfsync": wanted}


def test_free_ports_differ_and_none_is_one_that_the_kernel_gives_to_clients() -> None:
    ports = free_ports(200)
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 200 and (low < 32_000 or max(ports) < low)
