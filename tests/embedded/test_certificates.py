"""The script that makes certificates for a trial."""

from __future__ import annotations

import shutil
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.tls import TlsFiles
from sparkstorm.extensions.embedded.certificates import Certificates, main, make_certificates

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made by the command openssl"
)


def greet(made: Certificates, name: str) -> None:
    """Shake hands as client and server, both of which want a certificate; ssl.SSLError when one
    does not fit.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.server)
    server.load_verify_locations(made.ca)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(made.ca))
    client.load_cert_chain(made.client, made.client_key)
    one, other = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(other, server_side=True) as connection:
                connection.sendall(b"x")
        except OSError:
            other.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(one, server_hostname=name) as connection:
            assert connection.recv(1) == b"x"
    finally:
        one.close()
        thread.join()


def test_servers_and_clients_trust_each_other_under_these_names_only(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "new", ["redis.example", "127.0.0.1"])
    for name in ("redis.example", "127.0.0.1"):
        greet(made, name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'zk\.example'"):
        greet(made, "zk.example")
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.folder.iterdir()} == {0o600}
    assert sorted(path.name for path in made.folder.iterdir()) == [
        *("ca.key", "ca.pem", "client.key", "client.pem", "server.key", "server.pem")
    ]


def test_what_is_printed_are_settings_that_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "localhost"]) == 0
    said = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    TlsFiles(
        *(said[f"sparkstorm.tls.{name}.file"] for name in ("ca", "certificate", "key"))
    ).check()
    assert said["storm.zookeeper.ssl.enable"] == "true"


@pytest.mark.parametrize("name", ["", "a b", "a,DNS:b", "a..b", "näme"])
def test_a_name_that_is_none_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidConfigError, match="is no host name and no address"):
        make_certificates(tmp_path, [name])
    assert main([str(tmp_path), name]) == 2
    assert "is no host name" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
