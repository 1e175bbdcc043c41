"""TCP proxy that breaks connections: before a request, within it, or between it and its reply.

For tests and chaos runs; threads and sockets, nothing else. A `Framing` finds where a request ends,
so that faults hit requests and not packets; `redis_request` is the one of Redis, without any each
chunk received counts as a request.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

Framing = Callable[[bytes], int]
"""Length of the first whole request in the bytes, 0 while more is needed."""

_CHUNK = 1 << 16
_CONNECT_TIMEOUT_S = 5.0
_JOIN_TIMEOUT_S = 5.0
_LOOK_UP_S = 0.05


class Cut(Enum):
    """Point at which a connection breaks."""

    BEFORE_REQUEST = "the server never sees the request"
    WITHIN_REQUEST = "the server sees half of the request"
    BEFORE_REPLY = "the server has answered the request, the client never hears it"
    WITHIN_REPLY = "the client hears half of the reply"
    LATE_REQUEST = (
        "the client loses its connection, the server gets the request when `deliver_late` is called"
    )


@dataclass(slots=True)
class Fault:
    """A cut at the nth request (from 1, counted over all connections) that contains the given
    bytes.
    """

    cut: Cut
    nth: int = 1
    containing: bytes = b""
    seen: int = 0
    is_done: bool = False

    def strikes(self, request: bytes) -> bool:
        """Count a request; true for the one to break."""
        if self.is_done or self.containing not in request:
            return False
        self.seen += 1
        self.is_done = self.seen == self.nth
        return self.is_done


class TcpProxy:
    """Proxy that listens on loopback and forwards to one server; `host` and `port` are where
    clients should connect.
    """

    def __init__(self, target_host: str, target_port: int, framing: Framing | None = None) -> None:
        self._target = (target_host, target_port)
        self._framing = framing or len
        self._faults: list[Fault] = []
        self._pairs: list[_Pair] = []
        self._late: list[_Pair] = []
        self._lock = threading.Lock()
        self._is_open = threading.Event()
        self._is_open.set()
        self._is_refusing = False
        self.delay_s = 0.0  # added before each chunk, either way
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()[:2]
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def add_fault(self, cut: Cut, nth: int = 1, containing: bytes = b"") -> Fault:
        """Break the nth request from now on that contains these bytes."""
        fault = Fault(cut, nth, containing)
        with self._lock:
            self._faults.append(fault)
        return fault

    def pause(self) -> None:
        """Keep connections open and forward nothing."""
        self._is_open.clear()

    def resume(self) -> None:
        """Forward again, what was held back included."""
        self._is_open.set()

    def refuse(self, is_refusing: bool = True) -> None:
        """Close every new connection at once (or accept them again)."""
        self._is_refusing = is_refusing

    def cut_all(self) -> None:
        """Break every connection there is."""
        with self._lock:
            pairs = self._pairs
            self._pairs = []
        for pair in pairs:
            pair.close()

    def deliver_late(self) -> None:
        """Hand the requests of broken connections (Cut.LATE_REQUEST) to the server, each followed
        until its reply.
        """
        with self._lock:
            late = self._late
            self._late = []
        for pair in late:
            pair.deliver()

    def connection_count(self) -> int:
        """Return how many connections are open now."""
        with self._lock:
            return len(self._pairs)

    def close(self) -> None:
        """Break everything and stop listening."""
        self.resume()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(_JOIN_TIMEOUT_S)
        with self._lock:
            late = self._late
            self._late = []
        self.cut_all()
        for pair in late:
            pair.close()

    def strikes(self, request: bytes) -> Cut | None:
        """The cut that a request suffers, if any."""
        with self._lock:
            struck = [fault.cut for fault in self._faults if fault.strikes(request)]
        return struck[0] if struck else None

    def hold_up(self) -> None:
        """Wait while paused, then for the delay."""
        self._is_open.wait()
        if self.delay_s:
            threading.Event().wait(self.delay_s)

    def keep_late(self, pair: _Pair) -> None:
        """Remember a pair whose request is to reach the server later."""
        with self._lock:
            self._late.append(pair)

    def forget(self, pair: _Pair) -> None:
        """Drop a pair that has ended."""
        with self._lock:
            if pair in self._pairs:
                self._pairs.remove(pair)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = (
                    None
                    if self._is_refusing
                    else socket.create_connection(self._target, _CONNECT_TIMEOUT_S)
                )
            except OSError:
                server = None
            if server is None:
                client.close()
                continue
            server.settimeout(None)  # it was for connecting
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = _Pair(self, client, server, self._framing)
            with self._lock:
                self._pairs.append(pair)
                pair.start()


class _Pair:
    """One client connection and its counterpart at the server, with a thread for each direction."""

    def __init__(
        self, proxy: TcpProxy, client: socket.socket, server: socket.socket, framing: Framing
    ) -> None:
        self._proxy = proxy
        self.client = client
        self.server = server
        self._framing = framing
        self._reply_cut: Cut | None = None
        self.withheld = b""
        self._is_late = False
        self._ending = threading.Lock()
        self._ended = 0
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._to_server, self._to_client)
        ]

    def start(self) -> None:
        """Begin to forward."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End both connections and, unless called by one of them, both threads."""
        self._shut_both()
        self._join()
        self.client.close()
        self.server.close()

    def deliver(self) -> None:
        """Send the withheld request, wait for its reply, end."""
        self._join()
        self.server.settimeout(_CONNECT_TIMEOUT_S)
        with suppress(OSError):
            self.server.sendall(self.withheld)
            self.server.recv(_CHUNK)
        self.close()

    def _join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_TIMEOUT_S)

    def _shut_both(self) -> None:
        for end in (self.client, self.server):
            _shut(end)

    def _to_server(self) -> None:
        buffer = b""
        with suppress(OSError):
            while chunk := self.client.recv(_CHUNK):
                self._proxy.hold_up()
                buffer = self._forward_requests(buffer + chunk)
        self._end()

    def _forward_requests(self, buffer: bytes) -> bytes:
        while length := self._framing(buffer):
            request = buffer[:length]
            buffer = buffer[length:]
            cut = self._proxy.strikes(request)
            if cut in (Cut.BEFORE_REPLY, Cut.WITHIN_REPLY):
                self._reply_cut = cut
            elif cut is Cut.LATE_REQUEST:
                self._withhold(request)
                return b""
            elif cut is not None:
                if cut is Cut.WITHIN_REQUEST:
                    self._reply_cut = cut  # an answer of the server to half a request is dropped
                    self.server.sendall(request[: length // 2])
                raise ConnectionAbortedError(cut.value)
            self.server.sendall(request)
        return buffer

    def _withhold(self, request: bytes) -> None:
        self.withheld = request
        self._is_late = True
        self._proxy.forget(self)
        self._proxy.keep_late(self)
        _shut(self.client)  # ends the reading loop as well

    def _to_client(self) -> None:
        with suppress(OSError):
            while not self._is_late and (chunk := self._receive_reply()):
                self._proxy.hold_up()
                if self._reply_cut is Cut.WITHIN_REPLY:
                    self.client.sendall(chunk[: len(chunk) // 2])
                if self._reply_cut is not None:
                    break
                self.client.sendall(chunk)
        self._end()

    def _receive_reply(self) -> bytes:
        """A chunk from the server; looks up now and then whether the connection became one for a
        late request.
        """
        while not self._is_late:
            if select.select([self.server], [], [], _LOOK_UP_S)[0]:
                return self.server.recv(_CHUNK)
        return b""

    def _end(self) -> None:
        """End both directions; the second call closes the sockets."""
        if self._is_late:
            return
        self._shut_both()
        self._proxy.forget(self)
        with self._ending:
            self._ended += 1
            if self._ended == len(self._threads):
                self.client.close()
                self.server.close()


def redis_request(data: bytes) -> int:
    """Length of the first whole Redis command (an array of bulk strings) in the bytes."""
    end = data.find(b"\r\n")
    if end < 0 or data[:1] != b"*":
        return 0 if end < 0 else end + 2
    position = end + 2
    for _ in range(int(data[1:end])):
        end = data.find(b"\r\n", position)
        if end < 0:
            return 0
        position = end + 2 + int(data[position + 1 : end]) + 2
    return position if position <= len(data) else 0


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
