"""HttpSink: rows that leave by POST."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from datetime import UTC
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

from sparkstorm.api.components import Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.sinks import RefusedRows, TransactionalSink, find_refused
from sparkstorm.common.errors import InvalidConfigError, reason_of
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.tagged import row_writer
from sparkstorm.connectors.patience import (
    Secret,
    check_headers,
    check_number,
    without_password,
)

_AGAIN = frozenset({408, 425, 429})
_TOKEN = "name the token's place with token_file or token_env"
_LASTING = {
    401: _TOKEN,
    403: _TOKEN,
    404: "correct the URL",
    405: "correct the URL",
    407: "the proxy needs a password",
}
# a POST is not repeated at another place
_LASTING |= dict.fromkeys((301, 302, 303, 307, 308), "it points elsewhere: correct the URL")


class HttpSink(TransactionalSink):
    """Sink that posts rows as JSON after the commit, one a request or `batch` rows as a list;
    idempotent by `Idempotency-Key`, else at least once.

    The key is the same whenever the request is repeated. 5xx, 408, 425, 429, cut answers and lost
    connections are tried again (`topology.sink.patience.secs`), after a `Retry-After`; 401, 403,
    404, 405, 407 and redirects end the run. Rows answered otherwise than 2xx are parked; a refused
    list, of which the server must have taken nothing, is halved first.
    """

    def __init__(
        self,
        url: str,
        *,
        batch: int | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_secs: float = 10.0,
        token_file: str | None = None,
        token_env: str | None = None,
    ) -> None:
        parts = urlsplit(without_password(url, "HttpSink", "token"))
        is_plain = (parts.path + parts.query).isascii() and url.isprintable() and " " not in url
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or not is_plain
            or not _has_port(parts)
        ):
            raise InvalidConfigError(
                f"HttpSink: {url!r:.80} is no URL of the form https://host/path"
            )
        check_number("HttpSink", "timeout_secs", timeout_secs)
        if batch is not None:
            check_number("HttpSink", "batch", batch, 1, is_whole=True)
        check_headers("HttpSink", headers)
        self._url = url
        self._shown = url.partition("?")[0]  # a query may hold a token
        self._batch = batch
        self._headers = dict(headers or {})
        self._timeout = timeout_secs
        self._secret = Secret("HttpSink", token_file, token_env)

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Connect to nothing yet."""
        self._name = f"{context.topology_id}/{context.component_id}/{context.task_index}"
        self._incarnation = context.incarnation
        self._connection: http.client.HTTPConnection | None = None
        token = self._secret.read()
        if token and not (token.isascii() and token.isprintable()):
            raise InvalidConfigError(
                f"component '{context.component_id}': the token holds what no header may hold; {_TOKEN}"
            )
        self._now_ms = context.now_ms
        self._rest_ms = 0  # until when the server asks not to be asked
        self._all = {
            "Content-Type": "application/json",
            **self._headers,
            **({"Authorization": f"Bearer {token}"} if token else {}),
        }
        self._rows: list[list[Any]] = []
        self._source: Source | None = None  # of the row before
        self._fields: list[str] | None = None
        self._done: tuple[int, int] = (0, 0)  # epoch and requests of it that were answered
        self._refused: list[tuple[Tuple, str]] = []

    def begin(self, epoch: int) -> None:
        """Begin without rows."""
        self._rows = []

    def write(self, tup: Tuple) -> None:
        """Keep a row with its source, which a dead letter names."""
        if tup.source is not self._source:
            self._source = tup.source
            self._head = [tup.component, tup.task, tup.stream, list(tup.fields)]
        self._rows.append([*self._head, list(tup.values)])

    def prepare(self, epoch: int) -> Any:
        """Return the rows as outbox, behind the store's incarnation: epochs of another one may have
        the same number.
        """
        return [self._incarnation, self._rows]

    def commit(self, epoch: int, prepared: Any) -> None:
        """Post what was not answered yet."""
        # else an outbox of an earlier version
        is_named = bool(prepared) and type(prepared[0]) is str
        incarnation, rows_of_epoch = prepared if is_named else ("", prepared)
        name = f"{self._name}/{incarnation}/{epoch}" if incarnation else f"{self._name}/{epoch}"
        size = self._batch or 1
        num_done, self._refused = (
            (self._done[1], self._refused) if self._done[0] == epoch else (0, [])
        )
        for start in range(num_done * size, len(rows_of_epoch), size):
            places = range(start, min(start + size, len(rows_of_epoch)))

            def take(some: Sequence[int], places: range = places) -> str:
                part = "" if len(some) == len(places) else f"+{len(some)}"
                return self._send([rows_of_epoch[n] for n in some], f"{name}/{some[0]}{part}")

            for n, reason in find_refused(places, take).items():
                self._refused.append((_tuple(rows_of_epoch[places[n]]), reason))
            self._done = (epoch, start // size + 1)
        if self._refused:
            raise RefusedRows(self._refused)

    def cleanup(self) -> None:
        """Close the connection."""
        self._close()

    def _json(self, fields: list[str], values: list[Any]) -> str:
        if fields != self._fields:
            self._fields, self._write = fields, row_writer(fields)
        return self._write(values)

    def _send(self, rows: Sequence[Any], key: str) -> str:
        """Post rows in one request; return why the server refuses them, "" when it takes them."""
        objects = [self._json(fields, values) for _, _, _, fields, values in rows]
        body = f"[{','.join(objects)}]" if self._batch else objects[0]
        status, text = self._post(body.encode(), key)
        said = f"{self._shown} answers {status}: {text}"
        if status >= 500 or status in _AGAIN:
            raise ConnectionError(said)
        if status in _LASTING:
            raise InvalidConfigError(f"{said}; {_LASTING[status]}")
        return said if status >= 300 else ""

    def _post(self, body: bytes, key: str) -> tuple[int, str]:
        if (left_ms := self._rest_ms - self._now_ms()) > 0:
            raise ConnectionError(f"{self._shown} asks to wait for {left_ms / 1000:.0f} s more")
        parts = urlsplit(self._url)
        connection = self._connection = self._connection or self._connect()
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("POST", path, body, {**self._all, "Idempotency-Key": key})
            answer = connection.getresponse()
            text = answer.read(1 << 20)
            if answer.length and len(text) < 1 << 20:
                raise ConnectionError(f"its answer of {answer.status} was cut short")
            if (wait_ms := _wait_ms(answer.headers, self._now_ms())) is not None:
                self._rest_ms = self._now_ms() + wait_ms
            if location := answer.headers.get("Location"):
                text = f"{location} ".encode("utf-8", "replace") + text
            if answer.length:  # more than is worth reading: a new connection is cheaper
                self._close()
            return answer.status, text[:4096].decode("utf-8", "replace").strip()[:200]
        except (OSError, http.client.HTTPException) as error:
            self._close()
            raise ConnectionError(f"{self._shown}: {reason_of(error) or repr(error)}") from error

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._url)
        kind = (http.client.HTTPConnection, http.client.HTTPSConnection)[parts.scheme == "https"]
        return kind(parts.hostname or "", parts.port, timeout=self._timeout)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _tuple(row: Sequence[Any]) -> Tuple:
    component, task, stream, fields, values = row
    return Tuple(tuple(values), 0, Source(component, task, stream, tuple(fields)))


def _wait_ms(headers: Message, now_ms: int) -> int | None:
    """Return for how long the server asks not to be asked; None when it does not. A date is read by
    the server's own clock where it shows that.
    """
    wait = headers.get("Retry-After", "")
    if wait.isascii() and wait.isdigit() and len(wait) < 10:
        return 1000 * int(wait)
    until_ms = _date_ms(wait)
    if until_ms is None:
        return None
    asked_ms = _date_ms(headers.get("Date", ""))
    return max(0, until_ms - (now_ms if asked_ms is None else asked_ms))


def _date_ms(text: str) -> int | None:
    try:
        date = parsedate_to_datetime(text)
        return round((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _has_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0  # None: the scheme's own
    except ValueError:
        return False
