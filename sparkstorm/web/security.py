"""Guard of the web server: access to its routes, and the headers of every answer.

Besides what every server asks for (`sparkstorm/common/http_guard.py`), a request needs the token of this
start or the cookie that the token was exchanged for, and a change by cookie a value that only our
page can read.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from sparkstorm.common.http_guard import has_token, is_same, joined, refused_length, refused_place

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

CSRF_HEADER: Final = "x-sparkstorm-csrf"
BODY_BYTES: Final = 65_536  # a thousand ids of dead letters have 20,000
BODY_SECS: Final = 10.0
_SAFE = ("GET", "HEAD")
_OPEN = "/static/"
HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
NO_TOKEN: Final = (
    "this page needs the token of the process that serves it: "
    "open the address that `sparkstorm web` printed when it started"
)


@dataclass(frozen=True, slots=True)
class Access:
    """Access to the server: its names, its token, and the session of that token; drawn at each
    start.
    """

    hosts: frozenset[str]
    scheme: str = "http"
    is_read_only: bool = False
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def cookie(self) -> str:
        """Return the cookie's name. Cookies are kept by host and not by port, so two servers need
        two names.
        """
        ports = sorted(host.rpartition(":")[2] for host in self.hosts)
        return f"sparkstorm-{ports[0]}" if ports else "sparkstorm"


class Guard:
    """ASGI application around another one that lets only the requests through which may pass."""

    def __init__(self, app: App, access: Access, body_secs: float = BODY_SECS) -> None:
        self._app = app
        self._access = access
        self._body_secs = body_secs

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = joined(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        )
        send = _with_headers(send, is_kept=scope["path"].startswith(_OPEN))
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        try:
            body = await asyncio.wait_for(_body(receive), self._body_secs)
        except TimeoutError:
            await _answer(
                send, 408, f"the body of the request did not arrive within {self._body_secs:g} s"
            )
            return
        if body is None:
            await _answer(send, 413, f"the body has more than {BODY_BYTES} bytes")
            return
        if self._is_exchange(scope):
            await self._exchange(scope, send)
            return
        await self._app(scope, _replayed(body, receive), send)

    def _refusal(self, scope: Message, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return status and reason of a request that may not pass."""
        access = self._access
        refusal = refused_place(headers, access.hosts, access.scheme)
        if refusal := refusal or refused_length(headers, BODY_BYTES):
            return refusal
        if scope["path"].startswith(_OPEN):
            return None
        is_program = has_token(headers, access.token)
        is_session = is_same(_cookie(headers.get("cookie", ""), access.cookie), access.session)
        if self._is_exchange(scope):
            return None
        if not is_program and not is_session:
            return 401, NO_TOKEN
        if scope["method"] in _SAFE:
            return None
        if access.is_read_only:
            return (
                403,
                "this server was started with a read-only connection file: it shows the cluster and changes nothing",
            )
        if not is_program and not is_same(headers.get(CSRF_HEADER, ""), access.csrf):
            return 403, f"a change needs the header {CSRF_HEADER} with the value of /page/session"
        if not is_program and "origin" not in headers:
            return 403, "a change by cookie needs an Origin header, which every browser sends"
        return None

    def _is_exchange(self, scope: Message) -> bool:
        """Return whether a request shows the token in its address, as a link from a terminal
        does.
        """
        if scope["method"] != "GET":
            return False
        return any(
            is_same(value, self._access.token) for name, value in _query(scope) if name == "token"
        )

    async def _exchange(self, scope: Message, send: Send) -> None:
        """Exchange the token for the cookie, and send the browser to the same address without
        it.
        """
        access = self._access
        rest = urlencode([pair for pair in _query(scope) if pair[0] != "token"])
        secure = "; Secure" if access.scheme == "https" else ""
        cookie = f"{access.cookie}={access.session}; Path=/; HttpOnly; SameSite=Strict{secure}"
        # a path of two slashes would be another host's address
        location = (
            "/"
            + scope["raw_path"].decode("latin-1").partition("?")[0].lstrip("/\\")
            + (f"?{rest}" if rest else "")
        )
        headers = [(b"location", location.encode("latin-1")), (b"set-cookie", cookie.encode())]
        await send(
            {
                "type": "http.response.start",
                "status": 303,
                "headers": [*headers, (b"content-length", b"0")],
            }
        )
        await send({"type": "http.response.body", "body": b""})


def _query(scope: Message) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _cookie(header: str, name: str) -> str:
    try:
        cookie = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return cookie.value if cookie is not None else ""


async def _body(receive: Receive) -> bytes | None:
    """Return the whole body; None when it is too large."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_BYTES:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body which was read already, and then what follows it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


def _with_headers(send: Send, is_kept: bool) -> Send:
    """Return a `send` that adds our headers; only static files are kept by browsers."""
    more = [*HEADERS, (b"cache-control", b"no-cache" if is_kept else b"no-store")]

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept_headers = [
                pair for pair in message.get("headers", ()) if pair[0].lower() not in dict(more)
            ]
            message = {**message, "headers": [*kept_headers, *more]}
        await send(message)

    return sent


def error_fields(status: int, sentence: str) -> dict[str, str]:
    """Return the body of an error: Storm's fields."""
    return {"error": f"{status} {HTTPStatus(status).phrase}", "errorMessage": sentence}


async def _answer(send: Send, status: int, reason: str) -> None:
    body = json.dumps(error_fields(status, reason)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # else the server would read the rest of a body to its end
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
