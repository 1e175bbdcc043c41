"""Webhook and HttpSink over loopback: answers after the commit, retries under one key, refusals."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from sparkstorm.api import TopologyBuilder, bolt
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.connectors import (
    Console,
    HttpLookup,
    HttpSink,
    Rate,
    RedisLookup,
    RedisSink,
    RedisSource,
    SqlSource,
    Webhook,
)
from sparkstorm.extensions.embedded.process import free_port
from sparkstorm.testing import CaptureBolt, LocalCluster, complete_topology
from tests.connectors.crashing_sink import CONF, die_everywhere, feed
from tests.connectors.test_forgotten_epochs import write_beyond_a_lost_store


class Target(ThreadingHTTPServer):
    """Keeps bodies by idempotency key; answers what `statuses` says first, then 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses: list[int] = []
        self.bodies: dict[str, Any] = {}
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/rows"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    timeout = 0.3  # workers that die in a simulation leave their connections open

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        server.requests.append(key)
        status = server.statuses.pop(0) if server.statuses else 200
        if body == {"n": 13}:
            status = 422
        if status == 200:
            server.bodies.setdefault(key, body)
        self.send_response(status)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"said")

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def target() -> Iterator[Target]:
    server = Target()
    thread = threading.Thread(target=server.serve_forever)
    server.daemon_threads = False
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_rows_are_posted_under_keys_that_stay_whatever_dies(target: Target) -> None:
    def make(number: int) -> Any:
        target.bodies.clear()

        def check() -> None:
            result = sorted(row["n"] for body in target.bodies.values() for row in body)
            assert result == list(range(8))

        return HttpSink(target.url, batch=3), check

    assert die_everywhere(make, rows=8) > 4
    assert len(target.requests) > len(set(target.requests))


def test_an_emptied_store_counts_epochs_anew_under_other_keys(target: Target) -> None:
    """With the keys of the former incarnation the server would take new rows for repeated ones."""
    sink = HttpSink(target.url, batch=2)
    write_beyond_a_lost_store(
        sink, lambda: [row["n"] for body in target.bodies.values() for row in body], True
    )
    epochs = {
        (incarnation, epoch)
        for _, _, _, incarnation, epoch, _ in (key.split("/") for key in target.bodies)
    }
    numbers = Counter(epoch for _, epoch in epochs)
    assert len({incarnation for incarnation, _ in epochs}) == 2 and 2 in numbers.values()


def test_busy_servers_are_asked_again_and_refused_rows_are_parked(target: Target) -> None:
    target.statuses = [503, 429, 500]
    letters = feed(HttpSink(target.url), ["n"], [[n] for n in range(11, 16)])
    assert sorted(body["n"] for body in target.bodies.values()) == [11, 12, 14, 15]
    assert [
        (letter.component, letter.source_component, letter.values, letter.reason)
        for letter in letters
    ] == [("sink", "feed", (13,), f"{target.url} answers 422: said")]
    with pytest.raises(
        WorkerFailedError,
        match=r"'sink' .* waits for its target: ConnectionError: http://127.0.0.1:9/a: "
        r"Connection refused .*; given up after 1 s",
    ):
        feed(HttpSink("http://127.0.0.1:9/a?key=secret"), ["n"], [[1]])
    for url in (
        "ftp://host/",
        "http://host:99999/",
        "http://host/a\r\nX: y",
        "http://host/a b",
        "http://host/\xe9",
        "http://h\udcff/",
    ):
        with pytest.raises(InvalidConfigError, match="is no URL of the form https://host/path"):
            HttpSink(url)


class Mistaken(HttpSink):
    """Sink whose code has a mistake where it makes a request."""

    def commit(self, epoch: int, prepared: Any) -> None:
        raise TypeError("'str' object cannot be interpreted as an integer")


def test_a_mistake_in_code_is_no_refusal_of_the_target(target: Target) -> None:
    with pytest.raises(WorkerFailedError, match=r"^component 'sink' \(task \d\): TypeError: 'str'"):
        feed(Mistaken(target.url), ["n"], [[1]])


WRONG: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "HttpSink: batch is '10'; write a whole number": (HttpSink, {"batch": "10"}),
    "HttpSink: timeout_secs is '5'; write a number": (HttpSink, {"timeout_secs": "5"}),
    "HttpSink: headers has 'X': 1; write one line": (HttpSink, {"headers": {"X": 1}}),
    "HttpSink: headers has 'X': 'a\\nb'; write one": (HttpSink, {"headers": {"X": "a\nb"}}),
    "HttpSink: headers is 'X'; write texts by name": (HttpSink, {"headers": "X"}),
    "HttpLookup: post is 0; write post=True or": (HttpLookup, {"post": 0}),
    "RedisLookup: text is 'no'; write text=True or": (
        RedisLookup,
        {"pattern": "{}", "text": "no"},
    ),
    "RedisSource: follow is 0; write follow=True": (
        RedisSource,
        {"streams": "s", "fields": ["n"], "follow": 0},
    ),
    "RedisSink: most is '9'; write a whole number": (RedisSink, {"stream": "s", "most": "9"}),
    "SqlSource: rows is 0; write a whole number of": (
        SqlSource,
        {"table": "t", "fields": ["n"], "key": "n", "rows": 0},
    ),
    "SqlSource: poll_secs is '1'; write a number": (
        SqlSource,
        {"table": "t", "fields": ["n"], "key": "n", "poll_secs": "1"},
    ),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_a_wrong_option_is_refused_in_a_sentence(sentence: str) -> None:
    kind, options = WRONG[sentence]
    with pytest.raises(InvalidConfigError) as error:
        kind("http://host/{}" if kind is HttpLookup else "http://host/a", **options)
    assert sentence in str(error.value)


def test_a_wrong_option_of_a_webhook_is_refused_in_a_sentence() -> None:
    for options in ({"patience_secs": "1"}, {"most_waiting": 0}, {"max_body_bytes": "1"}):
        with pytest.raises(InvalidConfigError, match=r"Webhook: .* is .*; write a"):
            Webhook(0, ["n"], **cast(Any, options))


@bolt("user")
def checked(tup: Any) -> Any:
    if tup["user"] == "poison":
        raise ValueError("no such user")
    yield tup["user"]


def post(port: int, body: bytes, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", "/in", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_webhook_answers_when_the_rows_are_committed(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "token").write_text("of-the-test")
    (tmp_path / "token").chmod(0o600)
    builder = TopologyBuilder()
    hook = Webhook(
        port,
        ["user"],
        path="/in",
        token_file=str(tmp_path / "token"),
        patience_secs=5,
        max_body_bytes=1000,
    )
    builder.set_spout("hook", hook)
    builder.set_bolt("checked", checked, inputs="hook")
    secret = {"Authorization": "Bearer of-the-test"}
    with LocalCluster() as cluster, ThreadPoolExecutor(8) as threads:
        cluster.submit(builder.build(), {**CONF, "topology.max.retries": 0})
        good = threads.submit(post, port, b'[{"user": "a"}, {"user": "b"}]', **secret)
        cluster.run_until(good.done)
        assert good.result() == (200, "")
        assert cluster.counts("checked").emitted == 2
        parked = threads.submit(post, port, b'{"user": "poison"}', **secret)
        cluster.run_until(parked.done)
        assert parked.result() == (422, "some rows were parked as dead letters")
        assert post(port, b"{", **secret)[0] == 400 and post(port, b"1", **secret)[0] == 400
        assert post(port, b"x" * 1001, **secret) == (413, "the body has more than 1000 bytes")
        assert post(port, b"{}")[0] == 401 and post(port, b"[" * 900, **secret)[0] == 400
        cluster.kill("test", 0)


def test_a_request_with_a_row_of_a_wrong_type_is_refused_as_a_whole() -> None:
    port = free_port()
    builder, rows = TopologyBuilder(), CaptureBolt()
    types = {"n": "bigint", "x": "double", "is_on": "boolean", "user": "string", "any": "any"}
    builder.set_spout("hook", Webhook(port, types, path="/in"))
    builder.set_bolt("rows", rows, inputs="hook")
    with LocalCluster() as cluster, ThreadPoolExecutor(1) as threads:
        cluster.submit(builder.build(), CONF)

        def answer_to(*found: Any) -> tuple[int, str]:
            asked = threads.submit(post, port, json.dumps(found).encode())
            cluster.run_until(asked.done)
            return asked.result()

        assert answer_to({"n": 1, "x": 2, "is_on": True, "user": "a", "any": [1]}, {}) == (200, "")
        good = {"n": 7}
        for bad, problem in (
            ({"n": "1"}, "field 'n' is '1', not a whole number"),
            ({"n": 1.0}, "field 'n' is 1.0, not a whole number"),
            ({"n": True}, "field 'n' is True, not a whole number"),
            ({"n": 2**63}, f"field 'n' is {2**63}, which bigint does not hold"),
            ({"x": "nan"}, "field 'x' is 'nan', not a number"),
            ({"is_on": 1}, "field 'is_on' is 1, not true or false"),
            ({"user": 5}, "field 'user' is 5, not text"),
            ({"any": 1 << 9000}, "field 'any': "),
        ):
            for row, found in ((1, (bad, good)), (2, (good, bad))):
                status, text = answer_to(*found)
                assert status == 422 and text.startswith(f"row {row}: {problem}")
        cluster.kill("test", 0)
    assert rows.values == [(1, 2, True, "a", [1], None), (None,) * 6]


def test_a_token_that_no_header_holds_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for token in ("of-the-test\r\nX-Other: y", "of-the-test\u20ac"):
        monkeypatch.setenv("BAD_TOKEN", token)
        sentence = "'sink': the token holds what no header may hold; name the token's place"
        with pytest.raises(InvalidConfigError, match=sentence) as failed:
            feed(HttpSink("http://127.0.0.1:9/", token_env="BAD_TOKEN"), ["n"], [[1]])
        assert "of-the-test" not in str(failed.value)


def test_an_open_webhook_needs_a_token() -> None:
    with pytest.raises(InvalidConfigError, match=r"listening on 0.0.0.0 needs a token"):
        Webhook(8080, ["a"], host="0.0.0.0")


def test_rate_emits_its_numbers_in_time_and_console_prints_them(
    capfd: pytest.CaptureFixture[str],
) -> None:
    builder = TopologyBuilder()
    builder.set_spout("rate", Rate(rows_per_second=100, rows=7), 2)
    builder.set_bolt("console", Console(), inputs="rate")
    done = complete_topology(builder.build())
    rows = sorted(done["rate"])
    assert [n for n, _ in rows] == list(range(7))
    printed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("console: ")]
    assert len(printed) == 7 and '{"n":0,"time_ms":' in sorted(printed)[0]
    with pytest.raises(InvalidConfigError, match="rows_per_second is 0; it must be more than 0"):
        Rate(0)
