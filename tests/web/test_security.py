"""Attacks on the web server: each gets a refusal and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sparkstorm.client import ClusterClient
from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.common.http_guard import local_hosts
from sparkstorm.web.app import make_app
from sparkstorm.web.commands import _MOST_ACTING, _MOST_READING, Connections
from sparkstorm.web.security import BODY_BYTES, CSRF_HEADER, Access, Guard
from sparkstorm.web.serve import ServePlace, options, serve

HOME = "http://127.0.0.1:8080"


async def echo(request: Request) -> JSONResponse:
    return JSONResponse({"method": request.method, "size": len(await request.body())})


def client(is_read_only: bool = False) -> tuple[TestClient, Access]:
    access = Access(local_hosts(8080), is_read_only=is_read_only)
    app = make_app([Route("/", echo), Route("/do", echo, methods=["GET", "POST"])], access)
    return TestClient(app, base_url=HOME, follow_redirects=False), access


def signed_in(is_read_only: bool = False) -> tuple[TestClient, Access]:
    made, access = client(is_read_only)
    assert made.get("/", params={"token": access.token}).status_code == 303
    return made, access


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get() -> None:
    made, access = client()
    answer = made.get("/", params={"topology": "words", "token": access.token})
    assert (answer.status_code, answer.headers["location"]) == (303, "/?topology=words")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=Strict" in answer.headers["set-cookie"]
    assert access.token not in str(answer.headers)
    assert made.get("/").json()["method"] == "GET"


@pytest.mark.parametrize("query", [{}, {"token": ""}, {"token": "x"}, {"Token": "x"}])
def test_without_the_token_nothing_is_shown(query: dict[str, str]) -> None:
    made, _ = client()
    answer = made.get("/", params=query)
    assert answer.status_code == 401 and "sparkstorm web" in answer.json()["errorMessage"]


def test_the_token_does_not_lead_to_another_site() -> None:
    made, access = client()
    for path in ("//evil.example/", "/\\evil.example", "///evil.example"):
        answer = made.request("GET", f"{HOME}{path}?token={access.token}")
        location = answer.headers["location"]
        assert location.startswith("/") and location[1:2] not in ("/", "\\")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1",
        "127.0.0.1:8081",
        "",
        "127.0.0.1:8080.evil.example",
    ],
)
def test_a_foreign_host_is_refused_also_with_the_cookie(host: str) -> None:
    made, access = signed_in()
    for headers in ({"host": host}, {"host": host, "authorization": f"Bearer {access.token}"}):
        assert made.get("/", headers=headers).status_code == 421


def test_the_static_files_are_not_served_to_foreign_hosts_either() -> None:
    made, _ = client()
    assert made.get("/static/page.js", headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "https://127.0.0.1:8080",
        "http://127.0.0.1:8081",
        "http://127.0.0.1:8080.evil",
    ],
)
def test_a_foreign_origin_is_refused(origin: str) -> None:
    made, access = signed_in()
    headers = {"origin": origin, CSRF_HEADER: access.csrf}
    assert made.post("/do", headers=headers).status_code == 403
    assert made.get("/", headers={"origin": origin}).status_code == 403


def test_a_change_by_cookie_needs_the_value_that_only_the_page_reads() -> None:
    made, access = signed_in()
    home = {"origin": HOME}
    assert made.post("/do", headers=home).status_code == 403
    assert made.post("/do", headers={**home, CSRF_HEADER: "x"}).status_code == 403
    assert made.post("/do", headers={CSRF_HEADER: access.csrf}).status_code == 403
    assert made.post("/do", headers={**home, CSRF_HEADER: access.csrf}).status_code == 200


def test_a_program_sends_the_token_as_bearer() -> None:
    made, access = client()
    assert made.post("/do", headers={"authorization": f"Bearer {access.token}"}).status_code == 200
    assert made.post("/do", headers={"authorization": f"Bearer {access.token}x"}).status_code == 401
    assert made.post("/do", headers={"authorization": f"Basic {access.token}"}).status_code == 401


def test_a_read_only_connection_changes_nothing() -> None:
    made, access = signed_in(is_read_only=True)
    for headers in (
        {"origin": HOME, CSRF_HEADER: access.csrf},
        {"authorization": f"Bearer {access.token}"},
    ):
        answer = made.post("/do", headers=headers)
        assert answer.status_code == 403 and "read-only" in answer.json()["errorMessage"]
    assert made.get("/").status_code == 200


@pytest.mark.parametrize("path", ["/", "/static/none.js", "/nowhere"])
def test_every_answer_has_the_headers(path: str) -> None:
    made, _ = signed_in()
    headers = made.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert not [name for name in headers if name.startswith("access-control")]


def test_a_giant_body_is_cut_off() -> None:
    made, access = client()
    bearer = {"authorization": f"Bearer {access.token}"}
    assert made.post("/do", content=b"x" * BODY_BYTES, headers=bearer).json()["size"] == BODY_BYTES
    assert made.post("/do", content=b"x" * (BODY_BYTES + 1), headers=bearer).status_code == 413


def test_a_body_that_never_ends_is_given_up() -> None:
    access = Access(local_hosts(8080))
    sent: list[Mapping[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it must not be asked")

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8080"), (b"authorization", f"Bearer {access.token}".encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/do",
        "raw_path": b"/do",
        "query_string": b"",
        "headers": headers,
    }
    asyncio.run(Guard(app, access, body_secs=0.01)(scope, receive, send))
    assert sent[0]["status"] == 408


def test_secrets_are_in_no_repr() -> None:
    access = Access(local_hosts(8080))
    assert not [
        value for value in (access.token, access.session, access.csrf) if value in repr(access)
    ]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (ServePlace("0.0.0.0", names=("x",)), "in the clear"),
        (ServePlace(certificate="x"), "both files"),
        (ServePlace("0.0.0.0", is_behind_proxy=True), "--name"),
    ],
)
def test_another_address_needs_tls_and_a_name(place: ServePlace, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        place.check()
    ServePlace().check()
    ServePlace(str(Path("::1"))).check()


def test_a_port_that_cannot_be_had_is_one_sentence_before_an_address() -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = f"^port {port} of 127.0.0.1 is in use: give another with --port PORT"
        with pytest.raises(InvalidConfigError, match=sentence):
            serve("no such connection file", ServePlace(port=port), said.append)
    elsewhere = ServePlace("192.0.2.1", names=("x",), is_behind_proxy=True)
    sentence = r"the web UI cannot listen on port 8080 \(--port\) of 192\.0"
    with pytest.raises(InvalidConfigError, match=sentence):
        serve("no such connection file", elsewhere, said.append)
    with pytest.raises(InvalidConfigError, match="--port 99999 is no port"):
        serve("no such connection file", ServePlace(port=99_999), said.append)
    assert not said


def test_a_body_of_a_get_is_bounded_as_well() -> None:
    made, access = client()
    bearer = {"authorization": f"Bearer {access.token}"}
    for content in (b"x" * (BODY_BYTES + 1), iter([b"x" * BODY_BYTES, b"x"])):
        answer = made.request("GET", "/do", headers=bearer, content=content)
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")
    assert made.request("GET", "/do", headers=bearer, content=b"x").json()["size"] == 1
    for length in ("\u00b2".encode("latin-1"), b"9" * 5_000, b"1, 1"):
        headers = {b"authorization": bearer["authorization"].encode(), b"content-length": length}
        assert made.get("/do", headers=headers).status_code in (400, 413)


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_server_closes_the_connection_instead_of_reading_a_refused_body(method: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        app = make_app([Route("/do", echo, methods=["GET", "POST"])], Access(local_hosts(port)))
        server = uvicorn.Server(uvicorn.Config(app, **{**options(), "log_level": "critical"}))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        sent = 0
        try:
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                connection.sendall(
                    method
                    + b" /do HTTP/1.1\r\nHost: localhost:%d\r\n" % port
                    + b"Transfer-Encoding: chunked\r\n\r\n"
                )
                with contextlib.suppress(ConnectionError):
                    for _ in range(1_000):
                        connection.sendall(chunk)
                        sent += len(chunk)
        finally:
            server.should_exit = True
            thread.join()
    assert sent < 60 * len(chunk), f"{sent} bytes of 65 MB were read"


# -- connections of the web server -----------------------------------------------------------------


class Opened:
    """A connection that is counted."""

    made: list[Opened]

    def __init__(self, made: list[Opened]) -> None:
        self.is_open = True
        made.append(self)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self.is_open = False


def connections() -> tuple[Connections, list[Opened]]:
    made: list[Opened] = []
    return Connections(lambda: cast(ClusterClient, Opened(made))), made


def test_reads_share_one_connection_and_actions_have_their_own() -> None:
    at, made = connections()
    assert at.read(id) == at.read(id) and len(made) == 1
    assert at.act(id) != at.read(id)
    assert [each.is_open for each in made] == [True, False]
    at.close()
    assert not made[0].is_open


def test_no_more_actions_are_under_way_than_there_may_be() -> None:
    at, made = connections()

    def deeper(left: int) -> None:
        at.act(lambda _: deeper(left - 1) if left else None)

    deeper(_MOST_ACTING - 1)
    with pytest.raises(StoreUnavailableError, match="4 actions are under way already"):
        deeper(_MOST_ACTING)
    assert len(made) == 2 * _MOST_ACTING and not any(each.is_open for each in made)


def test_a_store_that_hangs_takes_a_bounded_number_of_threads() -> None:
    at, made = connections()
    going_on, refused, done = threading.Event(), queue.Queue[str](), queue.Queue[str]()

    def ask() -> None:
        try:
            at.read(lambda _: going_on.wait())
        except StoreUnavailableError as error:
            refused.put(str(error))
        else:
            done.put("")

    threads = [threading.Thread(target=ask) for _ in range(_MOST_READING + 3)]
    for thread in threads:
        thread.start()
    sentences = {refused.get(timeout=10) for _ in range(3)}  # at once, while the others wait
    going_on.set()
    for thread in threads:
        thread.join()
    assert sentences == {"8 questions wait for the stores already: try again in a moment"}
    assert done.qsize() == _MOST_READING and len(made) == 1
