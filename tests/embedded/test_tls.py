"""TLS to Redis and ZooKeeper: settings, and servers that want a certificate of ours."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkstorm.common.config import Conf, merge
from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.stores.addresses import check_addresses, tls_files
from sparkstorm.common.stores.connection import load_connection
from sparkstorm.common.stores.redis_client import client_of
from sparkstorm.common.tls import TlsFiles
from sparkstorm.control_plane.cluster.tickets import Ticket, TicketOffice, redeem
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.data_plane.transport.connection import Link, receive, send
from sparkstorm.data_plane.transport.servers.opening import open_connection
from sparkstorm.extensions.embedded import RedisServer
from sparkstorm.extensions.embedded.certificates import Certificates, make_certificates
from sparkstorm.extensions.embedded.stores import open_stores
from tests.tls_servers import TlsProxy, files_of, settings_of, tls_zookeeper

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made by the command openssl"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates for 127.0.0.1 alone."""
    return make_certificates(tmp_path_factory.mktemp("tls"), ["127.0.0.1"])


@pytest.fixture
def encrypted(made: Certificates, redis_server: RedisServer) -> Iterator[RedisAddress]:
    """A Redis behind TLS."""
    proxy = TlsProxy(made, redis_server.port)
    yield RedisAddress(
        "127.0.0.1", proxy.port, redis_server.password, tls=True, tls_files=files_of(made)
    )
    proxy.close()


def a_conf(made: Certificates, **more: object) -> Conf:
    own = {"sparkstorm.redis.url": "rediss://127.0.0.1:1", "storm.zookeeper.servers": ["127.0.0.1"]}
    return merge(
        {
            **own,
            **settings_of(made),
            **{name.replace("__", "."): value for name, value in more.items()},
        }
    )


def test_the_files_of_the_configuration_are_those_of_both_stores(made: Certificates) -> None:
    assert tls_files(a_conf(made)) == files_of(made)
    check_addresses(a_conf(made, storm__zookeeper__ssl__enable=True))
    assert (
        files_of(made).for_redis()["ssl_keyfile"]
        == files_of(made).for_kazoo()["keyfile"]
        == str(made.client_key)
    )


def test_files_that_nothing_would_use_are_refused(made: Certificates) -> None:
    sentence = r"sparkstorm\.tls\.\* is set and no connection is encrypted: write rediss://"
    with pytest.raises(InvalidConfigError, match=sentence):
        check_addresses(a_conf(made, sparkstorm__redis__url="redis://127.0.0.1:1"))
    sentence = r"storm\.zookeeper\.ssl\.enable is for your own ZooKeeper"
    with pytest.raises(InvalidConfigError, match=sentence):
        check_addresses(
            a_conf(made, storm__zookeeper__servers=[], storm__zookeeper__ssl__enable=True)
        )


def test_a_file_that_this_host_cannot_use_is_named_with_its_key(
    made: Certificates, tmp_path: Path
) -> None:
    whole = files_of(made)
    (tmp_path / "text.pem").write_text("no certificate")
    (tmp_path / "open.key").write_text(made.client_key.read_text())
    ca, key = r"sparkstorm\.tls\.ca\.file: ", r"sparkstorm\.tls\.key\.file"
    refused: list[tuple[dict[str, str], str]] = [
        ({"ca": f"{tmp_path}/none.pem"}, rf"{ca}.*none\.pem cannot be read on this host: No such"),
        ({"ca": str(tmp_path)}, "cannot be read on this host: Is a directory"),
        ({"ca": f"{tmp_path}/text.pem"}, rf"{ca}.*text\.pem holds no certificate in PEM form"),
        ({"ca": "tls/ca.pem"}, rf"{ca}tls/ca\.pem is neither absolute nor below ~"),
        ({"ca": "~nobody-of-that-name/ca.pem"}, rf"{ca}~nobody-of-that-name/ca\.pem"),
        ({"key": ""}, rf"certificate\.file and {key} are set together or not at all"),
        ({"key": f"{tmp_path}/open.key"}, r"open\.key can be read by others: chmod 600"),
        ({"key": str(made.server_key)}, rf"{key}: .*server\.key is not the key of .*client\.pem"),
    ]
    for files, words in refused:
        with pytest.raises(InvalidConfigError, match=words):
            replace(whole, **files).check()


def test_a_key_with_a_password_is_refused_and_asks_nobody(
    made: Certificates, tmp_path: Path
) -> None:
    key = tmp_path / "client.key"
    key.write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGH\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    key.chmod(0o600)
    sentence = r"client\.key is not the key of .*, or has a password"
    with pytest.raises(InvalidConfigError, match=sentence):
        replace(files_of(made), key=str(key)).check()


def test_redis_answers_over_tls_large_values_too(encrypted: RedisAddress) -> None:
    with client_of(encrypted, 10) as client:
        assert client.ping() is True
    link, large = Link(encrypted, 10), b"x" * 3_000_001
    try:
        result = link.ask(("SET", "tls:large", large), ("GET", "tls:large"), ("DEL", "tls:large"))
        assert result == [b"OK", large, 1]
    finally:
        link.close()


def test_a_blocked_read_over_tls_is_woken(encrypted: RedisAddress) -> None:
    link = Link(encrypted, 10)
    reading = open_connection(encrypted)
    try:
        send(
            reading,
            [
                b"*6\r\n$5\r\nXREAD\r\n$5\r\nBLOCK\r\n$5\r\n20000\r\n$7\r\nSTREAMS\r\n$10\r\ntls:stream\r\n$3\r\n0-0\r\n"
            ],
        )
        link.ask(("XADD", "tls:stream", "1-1", "a", "b"))
        assert receive(reading) == [[b"tls:stream", [[b"1-1", [b"a", b"b"]]]]]
        link.ask(("DEL", "tls:stream"))
    finally:
        reading.disconnect()  # type: ignore[no-untyped-call]
        link.close()


@pytest.mark.parametrize("lack", ["authority", "certificate", "name"])
def test_redis_is_refused_without_trust_a_certificate_or_its_name(
    encrypted: RedisAddress, lack: str
) -> None:
    given = {
        "authority": replace(
            encrypted,
            tls_files=TlsFiles("", encrypted.tls_files.certificate, encrypted.tls_files.key),
        ),
        "certificate": replace(encrypted, tls_files=TlsFiles(encrypted.tls_files.ca)),
        "name": replace(encrypted, host="localhost"),
    }[lack]
    with pytest.raises(StoreUnavailableError, match=r"Redis at .* cannot be reached"):
        open_connection(given, 10)


@pytest.mark.system
# kazoo closes none that was refused
@pytest.mark.filterwarnings("ignore:.*SSLSocket:pytest.PytestUnraisableExceptionWarning")
def test_zookeeper_over_tls_has_stores_and_tickets_and_refuses_strangers(
    made: Certificates, tmp_path: Path
) -> None:
    with tls_zookeeper(made, tmp_path / "zk") as port:
        address = ZooKeeperAddress(f"127.0.0.1:{port}", "/tls", "me", "of-me", tls=files_of(made))
        store = ZooKeeperStateStore(address)
        try:
            store.put("/a", b"b" * 200_000)
            found = store.get("/a")
            assert found is not None and found.data == b"b" * 200_000
            with TicketOffice(store, address).ticket(b"spec") as ticket:
                assert redeem(ticket) == b"spec"
        finally:
            store.close()
        for other in (
            None,
            TlsFiles(str(made.ca)),
            TlsFiles("", str(made.client), str(made.client_key)),
        ):
            with pytest.raises(StoreUnavailableError, match="does not answer"):
                ZooKeeperStateStore(replace(address, tls=other, connection_timeout_ms=700))
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            redeem(Ticket(f"localhost:{port}", "/tls", "00" * 32, files_of(made)), 1)


@pytest.mark.system
def test_a_connection_file_carries_the_paths_and_no_key(
    made: Certificates, encrypted: RedisAddress, tmp_path: Path
) -> None:
    url = f"rediss://:{encrypted.password}@127.0.0.1:{encrypted.port}"
    conf = merge(
        {
            **settings_of(made),
            "storm.local.dir": str(tmp_path),
            "sparkstorm.redis.url": url,
            "storm.zookeeper.servers": ["127.0.0.1"],
            "storm.zookeeper.ssl.enable": True,
        }
    )
    with open_stores(conf) as stores:
        assert stores.connection.redis == encrypted
        assert stores.connection.zookeeper.tls == files_of(made)
    path = tmp_path / "connection.json"
    assert load_connection(path) == stores.connection
    assert made.client_key.read_text().splitlines()[1] not in path.read_text()
