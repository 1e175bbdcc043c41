"""DRPC: a spout that takes requests by Storm's HTTP route, and a bolt that sends their results
back.
"""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
import threading
from collections import deque
from typing import Any
from urllib.parse import unquote

from sparkstorm.api.collector import BasicOutputCollector, SpoutOutputCollector
from sparkstorm.api.components import BasicBolt, Conf, Spout
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import CodecError, InvalidConfigError
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.connectors.http import SpoutHandler, SpoutServer
from sparkstorm.connectors.patience import Secret

_RESULT = "/drpc-result/"
_TIMEOUT_S = 10.0


class _Call:
    """A request that waits for its result."""

    def __init__(self, args: str) -> None:
        self.args = args
        self.answer: tuple[int, str] | None = None
        self.is_done = threading.Event()

    def finish(self, status: int, text: str) -> None:
        """Answer it; the first answer counts."""
        if self.answer is None:
            self.answer = status, text
            self.is_done.set()


class DrpcSpout(Spout):
    """Spout that emits (args, return-info) for each request to a function; `ReturnResults` answers
    it.

    The routes are Storm's: `GET /drpc/FUNCTION/ARGS`, and `POST /drpc/FUNCTION` with the arguments
    as body. An answer is 200 with the result as text; 500 when a tuple was parked, or the tree ends
    without a result; 503 after `patience_secs` or when `most_waiting` requests wait; 404 for
    another function. A request whose worker dies gets no answer: send it again.

    It listens on `host` and `port` + the task's index, where `ReturnResults` in other workers must
    reach it; tokens and TLS as of `sparkstorm.connectors.Webhook`.
    """

    outputs = ("args", "return-info")

    def __init__(
        self,
        function: str,
        port: int = 3774,
        *,
        host: str = "127.0.0.1",
        token_file: str | None = None,
        token_env: str | None = None,
        certificate: str = "",
        key: str = "",
        is_behind_proxy: bool = False,
        patience_secs: float = 30.0,
        most_waiting: int = 256,
        max_body_bytes: int = 1 << 20,
    ) -> None:
        if not function or "/" in function:
            raise InvalidConfigError(
                f"DrpcSpout: {function!r:.80} is no name of a function: it is a part of a path"
            )
        self.function = function
        self._server = SpoutServer(
            "DrpcSpout", host, port, token_file, token_env, (certificate, key), is_behind_proxy
        )
        self.patience_secs = patience_secs
        self._most_waiting = most_waiting
        self.max_body_bytes = max_body_bytes

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Listen."""
        self._collector = collector
        self._new: deque[str] = deque()
        # by an id that cannot be guessed: a bolt that has it may answer
        self._calls: dict[str, _Call] = {}
        self._server.open(context, _DrpcHandler, self, self._most_waiting)

    @property
    def port(self) -> int:
        """Port that it listens on, once it is open."""
        return self._server.port

    def next_tuple(self) -> None:
        """Emit one request."""
        if not self._new:
            return
        id = self._new.popleft()
        call = self._calls.get(id)
        if call is None:  # its caller has gone
            return
        return_info = json.dumps(
            {
                "id": id,
                "host": self._server.name,
                "port": self.port,
                "scheme": self._server.scheme,
            }
        )
        try:
            self._collector.emit([call.args, return_info], id)
        except CodecError as error:
            call.finish(400, str(error)[:300])

    def ack(self, message_id: Any) -> None:
        """Answer a request whose tree has ended without a result."""
        self._finish(message_id, 500, f"{self.function} gave no result")

    def fail(self, message_id: Any) -> None:
        """Answer a request that has failed."""
        self._finish(message_id, 500, f"{self.function} failed: see the topology's dead letters")

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def call(self, function: str, args: str) -> tuple[int, str]:
        """Take a request and wait for its result, in its own thread; return status and text of the
        answer.
        """
        if function != self.function:
            return 404, f"there is no function {function!r:.80} here, only {self.function}"
        if len(self._calls) >= self._most_waiting:
            return 503, "too many requests wait; send it again later"
        id = secrets.token_hex(16)
        call = _Call(args)
        self._calls[id] = call
        self._new.append(id)
        call.is_done.wait(self.patience_secs)
        self._calls.pop(id, None)
        return call.answer or (503, f"no result within {self.patience_secs:g} s")

    def result(self, id: str, text: str) -> tuple[int, str]:
        """Give a waiting request its result; return status and text for the bolt that sends it."""
        return (200, "") if self._finish(id, 200, text) else (404, "nobody waits for it")

    def _finish(self, id: str, status: int, text: str) -> bool:
        call = self._calls.get(id)
        if call is not None:
            call.finish(status, text)
        return call is not None


class _DrpcHandler(SpoutHandler):
    """One connection: of a caller, or of a bolt that brings a result."""

    def serve(self, body: bytes) -> None:
        """Answer a request whose arguments are in its path or its body, or take a result."""
        root, function, args = self._parts()
        if self.command == "POST":
            try:
                args = body.decode()
            except UnicodeDecodeError:
                return self.answer(400, "the body is no UTF-8")
            if self.path.startswith(_RESULT):
                return self.answer(*self.spout.result(self.path.removeprefix(_RESULT), args))
        if root != "drpc":
            return self.answer(404, "requests go to /drpc/FUNCTION/ARGS")
        return self.answer(*self.spout.call(function, args))

    def _parts(self) -> tuple[str, str, str]:
        """Return the parts of a path /drpc/FUNCTION/ARGS; arguments may have slashes of their
        own.
        """
        _, root, function, args = (*self.path.split("/", 3), "", "", "")[:4]
        return root, unquote(function), unquote(args)


class ReturnResults(BasicBolt):
    """Bolt that sends results back: a tuple's first value is the result, its last one the
    return-info.

    A result that is no text is sent as JSON, perhaps before the commit; of a tuple that is tried
    again the first one counts. A caller that has gone is no error. It needs the token of its
    `DrpcSpout`.
    """

    outputs = ()
    blocking = True

    def __init__(self, *, token_file: str | None = None, token_env: str | None = None) -> None:
        self._secret = Secret("ReturnResults", token_file, token_env)

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        """Read the token."""
        token = self._secret.read()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Send one result."""
        result = tup.values[0]
        info = tup.values[-1]
        try:
            return_info = json.loads(info)
            host = str(return_info["host"])
            port = int(return_info["port"])
            id = str(return_info["id"])
            is_tls = return_info.get("scheme") == "https"
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f"the last field of an input of ReturnResults must be a return-info, not {info!r:.80}"
            ) from None
        body = result if isinstance(result, str) else json.dumps(result)
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind(host, port, timeout=_TIMEOUT_S)
        try:
            connection.request(
                "POST", f"{_RESULT}{id}", body.encode("utf-8", "replace"), self._headers
            )
            answer = connection.getresponse()
            reason = answer.read(300).decode("utf-8", "replace")
        except ssl.SSLError as error:
            raise ValueError(
                f"the DrpcSpout at {host}:{port} is not to be trusted: {error}; give it a certificate "
                "of that name, and ReturnResults' hosts the authority that signed it (SSL_CERT_FILE)"
            ) from error
        except (OSError, http.client.HTTPException):
            return  # its worker is gone, and with it the caller's connection
        finally:
            connection.close()
        if answer.status not in (200, 404):  # 404: nobody waits any more
            raise ValueError(
                f"the DrpcSpout at {host}:{port} took no result ({answer.status}: {reason}); "
                "if its token is missing, give ReturnResults the same token_file or token_env"
            )
