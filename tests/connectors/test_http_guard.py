"""Attacks on the servers in workers (Webhook, DrpcSpout): each gets a refusal, and no row of it
arrives.
"""

from __future__ import annotations

import http.client
import importlib
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.compat import DrpcSpout
from sparkstorm.connectors import Webhook
from sparkstorm.extensions.embedded.certificates import make_certificates
from sparkstorm.extensions.embedded.process import free_port
from sparkstorm.testing import CaptureBolt, LocalCluster
from tests.connectors.crashing_sink import CONF

# what follows the body that one of two parsers reads
SMUGGLED = b'POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 14\r\n\r\n{"user": "in"}'


class Hook:
    """A webhook of a topology that runs, and what has come through it."""

    def __init__(self, cluster: LocalCluster, **options: Any) -> None:
        self.cluster = cluster
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}".encode()
        self.rows = CaptureBolt()
        builder = TopologyBuilder()
        builder.set_spout("hook", Webhook(self.port, ["user"], **options))
        builder.set_bolt("rows", self.rows, inputs="hook")
        cluster.submit(builder.build(), CONF)
        cluster.advance(1)

    def talk(self, data: bytes) -> bytes:
        """Send bytes; return all that the server sends until it closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
            connection.sendall(data)
            return b"".join(iter(lambda: connection.recv(65_536), b""))

    def users(self) -> list[Any]:
        """Return what came through, once all that was taken in is done."""
        self.cluster.run_until_idle()
        return [values[0] for values in self.rows.values]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        yield made
        made.kill("test", 0)


ATTACKS = [
    (b"Host: attacker.example:%PORT%\r\nContent-Length: 14", 421),
    (b"Host: attacker.example\r\nContent-Length: 14", 421),
    (b"Content-Length: 14", 421),
    (b"Host: %HOST%\r\nHost: attacker.example\r\nContent-Length: 14", 421),
    (b"Host: %HOST%\r\nOrigin: https://attacker.example\r\nContent-Length: 14", 403),
    (b"Host: %HOST%\r\nOrigin: null\r\nContent-Length: 14", 403),
    (b"Host: %HOST%\r\nContent-Length: 0\r\nContent-Length: 14", 400),
    (b"Host: %HOST%\r\nContent-Length: 0, 14", 400),
    (b"Host: %HOST%\r\nContent-Length: 14\r\nTransfer-Encoding: chunked", 400),
    (b"Host: %HOST%\r\nTransfer-Encoding: chunked", 411),
    (b"Host: %HOST%\r\nContent-Length: \xb2", 400),
    (b"Host: %HOST%\r\nContent-Length: +14", 400),
    (b"Host: %HOST%\r\nContent-Length: -1", 400),
    (b"Host: %HOST%\r\nContent-Length: 1_4", 400),
    (b"Host: %HOST%\r\nContent-Length: " + b"1" * 5_000, 413),
    (b"Host: %HOST%\r\nContent-Length : 14", 400),
    (b"Host: %HOST%\r\nno header\r\nContent-Length: 14", 400),
    (b"Host: %HOST%\r\nX-Y: Z", 411),
]


def test_a_request_of_another_site_or_of_an_unclear_length_is_one_refusal(
    cluster: LocalCluster,
) -> None:
    hook = Hook(cluster)
    for head, status in ATTACKS:
        head = head.replace(b"%HOST%", hook.host).replace(b"%PORT%", str(hook.port).encode())
        sent = b"POST / HTTP/1.1\r\n" + head + b'\r\n\r\n{"user": "in"}' + SMUGGLED % hook.host
        answer = hook.talk(sent)
        assert answer.count(b"HTTP/1.1 ") == 1, head
        assert answer.startswith(b"HTTP/1.1 %d " % status), head
    assert hook.users() == []


def test_a_body_of_a_get_is_no_second_request(cluster: LocalCluster) -> None:
    hook = Hook(cluster)
    body = SMUGGLED % hook.host
    head = b"GET / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n" % (hook.host, len(body))
    answer = hook.talk(head + body)
    assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 405 ")
    assert hook.users() == []


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOOK_TOKEN", "of-the-test")
    return "HOOK_TOKEN"


def test_the_token_is_asked_for_before_a_byte_of_the_body(
    cluster: LocalCluster, token: str
) -> None:
    hook = Hook(cluster, token_env=token)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 900000\r\n"
    assert hook.talk(head + b"\r\n").startswith(b"HTTP/1.1 401 ")
    page = b"Origin: https://attacker.example\r\nAuthorization: Bearer of-the-test\r\n"
    assert hook.talk(head + page + b"\r\n").startswith(b"HTTP/1.1 403 ")


def test_with_the_token_a_proxy_may_give_any_name(cluster: LocalCluster, token: str) -> None:
    hook = Hook(cluster, token_env=token)
    data = (
        b"POST / HTTP/1.1\r\nHost: hooks.example\r\nAuthorization: Bearer of-the-test\r\n"
        b'Expect: 100-continue\r\nConnection: close\r\nContent-Length: 14\r\n\r\n{"user": "in"}'
    )
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(hook.talk, data)
        cluster.run_until(answer.done)
    assert answer.result().startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert hook.users() == ["in"]


def test_more_connections_than_the_bound_are_refused_and_cost_no_thread(
    cluster: LocalCluster,
) -> None:
    hook = Hook(cluster, most_waiting=1)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", hook.port), 10))
            for _ in range(70)
        ]
        answers = [connection.recv(12) for connection in silent[65:]]
    assert answers == [b"HTTP/1.1 503"] * 5


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_sender_that_drips_bytes_is_given_up(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(importlib.import_module("sparkstorm.connectors.http"), "_PART_S", 0.2)
    hook = Hook(cluster)
    head = b"POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 900000\r\n\r\n" % hook.host
    began_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", hook.port), 10) as connection:
        connection.settimeout(0.02)
        if part == "body":
            connection.sendall(head)
        answer = None
        while answer is None and time.monotonic() - began_s < 20:
            try:
                connection.sendall(b"x")
                answer = connection.recv(12)
            except TimeoutError:
                continue
            except OSError:
                answer = b""
    assert answer == (b"HTTP/1.1 408" if part == "body" else b"")
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize(
    "make", [lambda **o: Webhook(0, ["a"], **o), lambda **o: DrpcSpout("f", **o)]
)
def test_a_token_never_crosses_a_network_in_the_clear(make: Any) -> None:
    away = {"host": "192.0.2.1", "token_env": "HOOK_TOKEN"}
    with pytest.raises(InvalidConfigError, match=r"in the clear: give certificate and key, or is_"):
        make(**away)
    with pytest.raises(InvalidConfigError, match="TLS needs both files: certificate and key"):
        make(**away, certificate="cert.pem")
    assert make(**away, certificate="cert.pem", key="key.pem")
    assert make(**away, is_behind_proxy=True)


def test_a_webhook_with_a_certificate_speaks_tls_alone(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("sparkstorm.connectors.http"), "_PART_S", 0.5)
    made = make_certificates(tmp_path / "tls", ["127.0.0.1"])
    hook = Hook(cluster, certificate=str(made.server), key=str(made.server_key))
    trusting = ssl.create_default_context(cafile=str(made.ca))

    def post(context: ssl.SSLContext) -> int:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", hook.port, timeout=10, context=context
        )
        with closing(connection):
            connection.request("POST", "/", b'{"user": "in"}')
            return connection.getresponse().status

    plain = b"POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 14\r\n\r\n" % hook.host
    with socket.create_connection(("127.0.0.1", hook.port), 10) as silent:
        assert b"HTTP" not in hook.talk(plain + b'{"user": "no"}')
        with pytest.raises(ssl.SSLCertVerificationError):
            post(ssl.create_default_context())
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(post, trusting)
            cluster.run_until(answer.done)
        assert answer.result() == 200
        assert silent.recv(1) == b""  # a handshake has the time of a head
    assert hook.users() == ["in"]


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    hook = Webhook(free_port(), ["user"], certificate="no.pem", key="no.key")
    sentence = r"'hook': the certificate no\.pem with the key no\.key cannot be"
    with pytest.raises(InvalidConfigError, match=sentence):
        hook.open({}, Place(), None)  # type: ignore[arg-type]


class Place:
    component_id, task_index = "hook", 0
