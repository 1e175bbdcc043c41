"""Checks that the proxy breaks exactly what it was told to break."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.system.proxy import Cut, TcpProxy, redis_request
from tests.waiting import wait_until


class Echo:
    """A server that answers each chunk with the same bytes and remembers them."""

    def __init__(self) -> None:
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(client,), daemon=True).start()

    def _echo(self, client: socket.socket) -> None:
        with client:
            while chunk := client.recv(1000):
                self.heard += chunk
                client.sendall(chunk)


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    made = TcpProxy("127.0.0.1", echo.port)
    yield made
    made.close()


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    with socket.create_connection((proxy.host, proxy.port), 5) as made:
        yield made


def ask(client: socket.socket, request: bytes) -> bytes:
    """The reply, or nothing when the connection is cut."""
    try:
        client.sendall(request)
        return client.recv(1000)
    except ConnectionError:
        return b""


def test_without_faults_everything_passes(client: socket.socket) -> None:
    assert ask(client, b"hello") == b"hello"
    assert ask(client, b"again") == b"again"


@pytest.mark.parametrize(
    ("cut", "heard", "reply"),
    [
        (Cut.BEFORE_REQUEST, b"one", b""),
        (Cut.WITHIN_REQUEST, b"onetw", b""),
        (Cut.BEFORE_REPLY, b"onetwo!", b""),
        (Cut.WITHIN_REPLY, b"onetwo!", b"tw"),
        (Cut.LATE_REQUEST, b"one", b""),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_nth_matching_request_is_broken_where_wanted(
    proxy: TcpProxy, echo: Echo, client: socket.socket, cut: Cut, heard: bytes, reply: bytes
) -> None:
    fault = proxy.add_fault(cut, 2)
    assert ask(client, b"one") == b"one"
    assert ask(client, b"two!") == reply
    assert client.recv(10) == b""
    wait_until(lambda: echo.heard == heard and proxy.connection_count() == 0)
    assert fault.is_done
    proxy.deliver_late()
    assert echo.heard == (b"onetwo!" if cut is Cut.LATE_REQUEST else heard)
    with socket.create_connection((proxy.host, proxy.port), 5) as another:
        assert ask(another, b"on") == b"on"


def test_faults_pick_requests_by_their_bytes(proxy: TcpProxy, client: socket.socket) -> None:
    fault = proxy.add_fault(Cut.BEFORE_REQUEST, 2, b"x")
    assert [ask(client, request) for request in (b"x1", b"y1", b"y2")] == [b"x1", b"y1", b"y2"]
    assert not fault.is_done
    assert ask(client, b"x2") == b""


def test_a_paused_proxy_holds_back_and_loses_nothing(
    proxy: TcpProxy, echo: Echo, client: socket.socket
) -> None:
    proxy.pause()
    client.sendall(b"held")
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.recv(10)
    assert echo.heard == b""
    proxy.resume()
    client.settimeout(5)
    assert client.recv(10) == b"held"


def test_a_delay_is_added_each_way(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.delay_s = 0.02
    started = time.monotonic()
    assert ask(client, b"slow") == b"slow"
    assert time.monotonic() - started >= 0.04


def test_refusing_and_cutting_all_end_connections(proxy: TcpProxy, client: socket.socket) -> None:
    assert ask(client, b"a") == b"a"
    proxy.cut_all()
    assert client.recv(10) == b""
    proxy.refuse()
    with socket.create_connection((proxy.host, proxy.port), 5) as refused:
        assert ask(refused, b"b") == b""
    proxy.refuse(False)
    with socket.create_connection((proxy.host, proxy.port), 5) as another:
        assert ask(another, b"c") == b"c"


def test_a_server_that_is_away_ends_connections() -> None:
    nowhere = TcpProxy("127.0.0.1", unused_port())
    with socket.create_connection((nowhere.host, nowhere.port), 5) as made:
        assert ask(made, b"x") == b""
    nowhere.close()


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (b"", 0),
        (b"*1\r\n", 0),
        (b"*1\r\n$4\r\nPIN", 0),
        (b"*1\r\n$4\r\nPING\r", 0),
        (b"*1\r\n$4\r\nPING\r\n", 14),
        (b"*1\r\n$4\r\nPING\r\n*1\r\n", 14),
        (b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n", 21),
        (b"PING\r\nPING\r\n", 6),
        (b"PING", 0),
    ],
)
def test_redis_requests_are_told_apart(data: bytes, length: int) -> None:
    assert redis_request(data) == length
