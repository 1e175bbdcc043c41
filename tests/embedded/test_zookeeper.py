"""The embedded ZooKeeper: start, rights, restart."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from sparkstorm.common.errors import EmbeddedServerError
from sparkstorm.extensions.embedded import ZooKeeperServer, start_zookeeper
from sparkstorm.extensions.embedded.zookeeper import class_path
from tests.embedded.waiting import is_running

pytestmark = [pytest.mark.system, pytest.mark.sampled]


@contextmanager
def session(server: ZooKeeperServer, auth: tuple[str, str] | None) -> Iterator[KazooClient]:
    client = KazooClient(server.hosts, auth_data=[auth] if auth else None)
    client.start(10)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_zookeeper_serves_whoever_shows_its_auth_and_listens_on_loopback_alone(
    zookeeper_server: ZooKeeperServer,
) -> None:
    with session(zookeeper_server, zookeeper_server.auth) as client:
        client.create("/embedded-test", b"x")
        assert client.get("/embedded-test")[0] == b"x"
    listening = Path(f"/proc/{zookeeper_server.pid}/net/tcp").read_text()
    assert f"0100007F:{zookeeper_server.port:04X} 00000000:0000 0A" in listening
    assert f"00000000:{zookeeper_server.port:04X} " not in listening


def test_what_was_written_is_there_after_a_stop_and_after_a_kill_and_still_belongs_to_us(
    own_zookeeper: ZooKeeperServer,
) -> None:
    user, password = own_zookeeper.identity
    with session(own_zookeeper, own_zookeeper.auth) as client:
        client.create("/mine", b"1", acl=[make_digest_acl(user, password, all=True)])
    own_zookeeper.stop()
    own_zookeeper.restart()
    before = own_zookeeper.pid
    own_zookeeper.kill()
    assert not is_running(before)
    own_zookeeper.restart()
    with session(own_zookeeper, own_zookeeper.auth) as client:
        assert client.get("/mine")[0] == b"1"
    with session(own_zookeeper, None) as stranger, pytest.raises(NoAuthError):
        stranger.get("/mine")


@pytest.mark.parametrize(
    "auth", [None, ("digest", "somebody:else")], ids=["without a credential", "with another one"]
)
def test_a_stranger_can_neither_read_nor_write_in_the_root(
    own_zookeeper: ZooKeeperServer, auth: tuple[str, str] | None
) -> None:
    for _ in range(2):  # a new server, and one that has read its data again
        with session(own_zookeeper, auth) as stranger:
            attempts: list[Callable[[], object]] = [
                lambda: stranger.get_children("/"),
                lambda: stranger.set("/", b"x"),
                lambda: stranger.get_acls("/"),
                lambda: stranger.set_acls("/", [make_digest_acl("somebody", "else", all=True)]),
                *(
                    partial(stranger.create, path)
                    for path in ("/x", "/zookeeper/x", "/zookeeper/quota/x")
                ),
            ]
            for attempt in attempts:
                with pytest.raises(NoAuthError):
                    attempt()
        own_zookeeper.restart()


def test_the_root_of_data_that_was_open_is_closed_when_it_is_opened_again(tmp_path: Path) -> None:
    user, password = "sparkstorm", "of-this-test"
    server = start_zookeeper(tmp_path, password=password)
    with session(server, server.auth) as client:  # as earlier versions left it
        for path in ("/zookeeper", "/"):
            client.set_acls(path, OPEN_ACL_UNSAFE)
        client.create("/mine", b"1", acl=[make_digest_acl(user, password, all=True)])
    server.stop()
    server = start_zookeeper(tmp_path, password=password)
    try:
        with session(server, None) as stranger, pytest.raises(NoAuthError):
            stranger.create("/x")
        with session(server, server.auth) as client:
            assert client.get("/mine")[0] == b"1"
    finally:
        server.stop()


def test_a_folder_behind_a_symbolic_link_and_of_any_letters_will_do(tmp_path: Path) -> None:
    (tmp_path / "ein Ordner mit ä").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ein Ordner mit ä")
    server = start_zookeeper(tmp_path / "link" / "zookeeper", password="x")
    assert server.is_alive()
    server.stop()


def test_a_taken_port_is_named_with_the_key_that_chose_it(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        sentence = rf"port {port} .*sparkstorm\.embedded\.zookeeper\.port"
        with pytest.raises(EmbeddedServerError, match=sentence):
            start_zookeeper(tmp_path, password="x", port=port)


def test_a_zookeeper_that_cannot_read_its_data_shows_why(tmp_path: Path) -> None:
    data = tmp_path / "zookeeper-data"
    data.mkdir()
    (data / "version-2").write_text("this is no folder")
    sentence = r"(?s)embedded zookeeper ended while starting.*version-2"
    with pytest.raises(EmbeddedServerError, match=sentence):
        start_zookeeper(tmp_path, password="x")


def test_the_class_path_names_only_jars_that_are_there() -> None:
    assert [jar for jar in class_path().split(":") if not Path(jar).is_file()] == []
