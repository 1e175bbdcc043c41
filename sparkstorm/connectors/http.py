"""Webhook: rows that come by POST and are answered once they are done; and the server of a spout's
task, which DrpcSpout has too.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.components import Conf, Spout
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import CodecError, InvalidConfigError
from sparkstorm.common.http_guard import (
    LOOPBACK,
    Refusal,
    has_token,
    joined,
    local_hosts,
    refused_length,
    refused_place,
    require_private,
)
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.connectors.file_records import object_reader
from sparkstorm.connectors.patience import Secret, check_flags, check_number

_PART_S = 10.0  # for a head, and as many for a body, as the page gives them
_SPARE_CONNECTIONS = 64  # beyond those whose rows are worked on
_ANY = "", "0.0.0.0", "::"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class _Server(ThreadingHTTPServer):
    """Threads for a bounded number of connections; one more is answered 503 at once."""

    daemon_threads = True
    request_queue_size = 128
    access: SpoutServer
    context: ssl.SSLContext | None
    slots: threading.BoundedSemaphore

    def __init__(self, address: tuple[str, int], handler: type[SpoutHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread, if there is one."""
        if not self.slots.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.setblocking(False)
                request.send(_FULL)
            self.shutdown_request(request)
            return
        try:
            if self.context is not None:
                request = self.context.wrap_socket(
                    request, server_side=True, do_handshake_on_connect=False
                )
            super().process_request(request, client_address)
        except BaseException:  # no thread can be had
            self.slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Give the thread back at the end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke: a worker's log is for the topology."""


class SpoutServer:
    """HTTP server of a spout's task, a thread for each of a bounded number of connections, with the
    guard of all servers (`sparkstorm/common/http_guard.py`); only one on loopback may go without a token.
    """

    def __init__(
        self,
        owner: str,
        host: str,
        port: int,
        token_file: str | None,
        token_env: str | None,
        files: tuple[str, str] = ("", ""),
        is_behind_proxy: bool = False,
    ) -> None:
        if host not in LOOPBACK and not (token_file or token_env):
            raise InvalidConfigError(
                f"{owner}: listening on {host} needs a token (token_file or token_env): anyone could send requests"
            )
        words = "certificate and key, or is_behind_proxy=True"
        require_private(f"{owner}: ", host, *files, is_behind_proxy, words)
        self.host = host
        self.port = port
        self._files = files
        self._secret = Secret(owner, token_file, token_env)

    @property
    def scheme(self) -> str:
        """Return "https" with a certificate."""
        return "https" if self._files[0] else "http"

    @property
    def name(self) -> str:
        """Return the host by which other workers reach it; this host's name where it listens on all
        addresses.
        """
        return socket.gethostname() if self.host in _ANY else self.host

    def open(
        self, context: TopologyContext, handler: type[SpoutHandler], spout: Spout, most_waiting: int
    ) -> None:
        """Listen on the port plus the task's index, which `port` is from then on; 0: on a free
        one.
        """
        self._token = self._secret.read()
        chosen = self.port + context.task_index if self.port else 0
        bound = type("Handler", (handler,), {"spout": spout})
        try:
            tls = self._tls()
        except OSError as error:
            certificate, key = self._files
            raise InvalidConfigError(
                f"component '{context.component_id}': the certificate {certificate} with the key {key} cannot be used: {error}"
            ) from error
        try:
            self._server = _Server((self.host, chosen), bound)
        except OSError as error:
            raise InvalidConfigError(
                f"component '{context.component_id}': {self.host}:{self.port} cannot be listened on: {error}"
            ) from error
        self._server.context = tls
        self._server.access = self
        self._server.slots = threading.BoundedSemaphore(most_waiting + _SPARE_CONNECTIONS)
        self.port = self._server.server_address[1]
        threading.Thread(
            target=self._server.serve_forever, name=context.component_id, daemon=True
        ).start()

    def _tls(self) -> ssl.SSLContext | None:
        if self.scheme == "http":
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._files)
        return context

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """Return the refusal of a request that may not go on, by its head. A server with a token
        may have any name, that of a proxy say; one without is asked by programs of this machine
        alone.
        """
        hosts = local_hosts(self.port) if self._token is None else None
        if refused := refused_place(headers, hosts, self.scheme):
            return refused
        if self._token is None or has_token(headers, self._token):
            return None
        return 401, "the Authorization header does not show the token"


class _Deadline(io.RawIOBase):
    """Bytes of a connection until a time: a sender that drips them gets no more than one that
    stops.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.renew()

    def renew(self) -> None:
        """Begin to count anew."""
        self._end_s = time.monotonic() + _PART_S

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there; TimeoutError at the end of the time."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class SpoutHandler(BaseHTTPRequestHandler):
    """One connection to a `SpoutServer`: each request is judged by its head, and its body is read
    in bounded time.
    """

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # the head of an answer and its body in one packet
    server: _Server
    spout: Any

    def serve(self, body: bytes) -> None:
        """Answer a request whose head and body are sound."""
        raise NotImplementedError

    def setup(self) -> None:
        """Read through a deadline."""
        super().setup()
        self.rfile.close()
        self._deadline = _Deadline(self.connection)
        self.rfile = io.BufferedReader(self._deadline)

    def handle_one_request(self) -> None:
        """Count the time of a head anew."""
        self._deadline.renew()
        self._is_promised = False
        super().handle_one_request()

    def handle_expect_100(self) -> bool:
        """Promise nothing before the head was judged."""
        self._is_promised = True
        return True

    def do_GET(self) -> None:
        """Judge a request, and serve it."""
        headers = joined(self.headers.items())
        if refused := self._refusal(headers):
            self.answer(*refused)
            return
        if self._is_promised:
            self.send_response_only(100)
            self.end_headers()
            self.wfile.flush()
        self._deadline.renew()
        length = int(headers.get("content-length", "0"))
        try:
            body = self.rfile.read(length)
        except TimeoutError:
            self.answer(408, f"the body did not arrive within {_PART_S:g} s")
            return
        if len(body) < length:
            self.answer(400, "the body was cut short")
            return
        self.connection.settimeout(_PART_S)  # of an answer that nobody reads
        self.serve(body)

    do_POST = do_GET

    def _refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        # a line that is no header ends the head for Python, and for no proxy
        if self.headers.defects or self.headers.get_payload():
            return 400, "a line of the head is no header"
        if refused := self.server.access.refusal(headers):
            return refused
        if "transfer-encoding" in headers and "content-length" not in headers:
            return 411, "a Content-Length is needed"
        return refused_length(headers, self.spout.max_body_bytes, self.command == "POST")

    def answer(self, status: int, text: str) -> None:
        """Answer with plain text; the connection stays open after a 200 alone."""
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(body)))
        if status != 200:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a worker's log is for the topology."""


class _Request:
    """A POST that waits for its rows; its answer is 200 when all are done."""

    def __init__(self, rows: list[dict[str, Any]], key: str | None) -> None:
        self.rows = rows
        self.key = key
        self.open = len(rows)
        self.is_failed = False
        self.refusal = ""
        self.is_done = threading.Event()

    def refuse(self, reason: str) -> None:
        self.refusal = reason
        self.is_done.set()

    def settle(self, is_failed: bool) -> None:
        self.open -= 1
        self.is_failed |= is_failed
        if self.open <= 0:
            self.is_done.set()


class Webhook(Spout):
    """Spout that emits the JSON objects that are posted to it: named `fields`, and the request's
    `Idempotency-Key` (`idempotency_key`). At least once.

    A request is one object or a list. It is answered with 200 once every tuple was processed and
    committed, 422 if one was parked or has a value of another type (then no row is emitted), 400 or
    413 for what is no such JSON, 503 after `patience_secs` or when `most_waiting` requests wait. A
    sender that gets no 200 must send again.

    It listens on `host` (this machine only by default) and `port` + the task's index. `token_file`
    or `token_env` name a secret that senders show as `Authorization: Bearer ...`; without one only
    loopback is allowed. Another address needs TLS (`certificate`, `key`: PEM files of each host),
    or a proxy that has it (`is_behind_proxy`).
    """

    def __init__(
        self,
        port: int,
        fields: Sequence[str] | Mapping[str, str],
        *,
        host: str = "127.0.0.1",
        path: str = "/",
        token_file: str | None = None,
        token_env: str | None = None,
        certificate: str = "",
        key: str = "",
        is_behind_proxy: bool = False,
        patience_secs: float = 30.0,
        most_waiting: int = 256,
        max_body_bytes: int = 1 << 20,
    ) -> None:
        check_flags("Webhook", is_behind_proxy=is_behind_proxy)
        check_number("Webhook", "port", port, is_whole=True)
        check_number("Webhook", "patience_secs", patience_secs)
        check_number("Webhook", "most_waiting", most_waiting, 1, is_whole=True)
        check_number("Webhook", "max_body_bytes", max_body_bytes, 1, is_whole=True)
        self._server = SpoutServer(
            "Webhook", host, port, token_file, token_env, (certificate, key), is_behind_proxy
        )
        self._path = path
        self.patience_secs = patience_secs
        self._most_waiting = most_waiting
        self.max_body_bytes = max_body_bytes
        self._types = dict(fields) if isinstance(fields, Mapping) else dict.fromkeys(fields, "any")
        self.outputs = {**self._types, "idempotency_key": "string"}

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Listen."""
        self._collector = collector
        self._read = object_reader(self._types)
        self._codec = Codec()
        self._new: deque[_Request] = deque()
        self._waiting: dict[int, _Request] = {}
        self._number = 0
        self._server.open(context, _Handler, self, self._most_waiting)

    @property
    def port(self) -> int:
        """Port that it listens on, once it is open."""
        return self._server.port

    def next_tuple(self) -> None:
        """Emit the rows of one request."""
        if not self._new:
            return
        request = self._new.popleft()
        try:
            # all before the first is emitted: a request is taken as a whole
            rows = [self._values(n, row) for n, row in enumerate(request.rows, 1)]
        except ValueError as error:
            self._collector.report_error(f"a request was refused: {error}")
            request.refuse(str(error)[:300])
            return
        self._number += 1
        self._waiting[self._number] = request
        for row in rows:
            self._collector.emit([*row, request.key], self._number)

    def ack(self, message_id: Any) -> None:
        """Count a row as done."""
        self._settle(message_id, False)

    def fail(self, message_id: Any) -> None:
        """Count a row as parked."""
        self._settle(message_id, True)

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def take(self, path: str, body: bytes, key: str | None) -> tuple[int, str]:
        """Take a request and wait for its end, in its own thread; return status and text of the
        answer.
        """
        if path.partition("?")[0] != self._path:
            return 404, f"rows are posted to {self._path}"
        try:
            decoded = json.loads(body)
        except (ValueError, RecursionError) as error:
            return 400, f"the body is no JSON: {error}"
        objects = decoded if isinstance(decoded, list) else [decoded]
        if not objects or not all(isinstance(row, dict) for row in objects):
            return 400, "the body must be a JSON object, or a list of them"
        if len(self._new) + len(self._waiting) >= self._most_waiting:
            return 503, "too many requests wait; send it again later"
        request = _Request(objects, key)
        self._new.append(request)
        if not request.is_done.wait(self.patience_secs):
            return 503, "not processed in time; send it again"
        if request.refusal:
            return 422, request.refusal
        return (422, "some rows were parked as dead letters") if request.is_failed else (200, "")

    def _values(self, number: int, row: dict[str, Any]) -> tuple[Any, ...]:
        """Return what is emitted for a row; ValueError for what no field or tuple may hold."""
        try:
            values = self._read(row)
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from error
        for name, value in zip(self._types, values, strict=True):
            try:
                self._codec.normalise(value)
            except CodecError as error:
                raise ValueError(f"row {number}: field '{name}': {error}") from error
        return values

    def _settle(self, message_id: Any, is_failed: bool) -> None:
        request = self._waiting.get(message_id)
        if request is not None:
            request.settle(is_failed)
            if request.is_done.is_set():
                del self._waiting[message_id]


class _Handler(SpoutHandler):
    """One connection of a sender."""

    def serve(self, body: bytes) -> None:
        """Hand over the rows of a request."""
        if self.command != "POST":
            self.answer(405, "rows are posted")
            return
        key = self.headers.get("Idempotency-Key")
        self.answer(*self.spout.take(self.path, body, key and key[:200]))
