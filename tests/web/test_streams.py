"""The two event streams at a port: shape of the first event, hostile parameters, slow readers."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator

from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.web.openapi import ERROR, openapi
from sparkstorm.web.rest import MOST_STREAMS
from tests.insight.watched import watched
from tests.web.listening import LargeSource, Listening, listening

PAGE = "/page/stream"
REST = "/api/sparkstorm/v1/stream"
LIMIT_S = 300.0
HOSTILE = [
    "none",
    "\x00",
    "</script><script>alert(1)</script>",
    "\x1b[2J\u202e",
    "../../etc/passwd",
    "words\r\nset-cookie: a=b",
    "event: delta\n\ndata: {}",
    "w" * 8_000,
    "\ud7ff\U0010ffff",
    "__acker",
    "-1",
    "{}",
]


class Events:
    """An event stream over a plain socket, which reads only when it is asked to."""

    def __init__(self, at: Listening, path: str, query: str = "", buffer: int | None = None):
        self._socket = at.socket()
        if buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        head = f"Host: 127.0.0.1:{at.port}\r\nAuthorization: Bearer {at.token}\r\n\r\n"
        # HTTP/1.0: the body is as it comes, without chunks
        self._socket.sendall(f"GET {path}{query} HTTP/1.0\r\n{head}".encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers = {}
        while line := self._file.readline().decode().strip():
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()

    def body(self) -> bytes:
        """Return the rest, of an answer that ends."""
        return self._file.read()

    def next(self) -> dict[str, Any]:
        """Return the fields of the next event, its data as an object."""
        found: dict[str, Any] = {}
        while line := self._file.readline():
            text = line.decode().rstrip("\n")
            if not text and "data" in found:
                return found
            name, _, value = text.partition(": ")
            if name:
                assert name in ("event", "id", "data") and name not in found, text
                found[name] = json.loads(value) if name == "data" else value
        raise AssertionError("the stream has ended")

    def close(self) -> None:
        """Leave."""
        self._file.close()
        self._socket.close()


@contextmanager
def streaming() -> Iterator[tuple[Listening, Sampler]]:
    with watched() as run:
        run.feed(5)
        with listening(run.sampler) as at:
            yield at, run.sampler


def validator(name: str) -> Draft202012Validator:
    """Return the validator of a record of the description."""
    document = openapi()
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return Draft202012Validator(schema)


def left(sampler: Sampler) -> bool:
    """Return whether no stream waits for samples any more; a sample finds those that were left."""
    until = time.monotonic() + LIMIT_S
    while sampler.has_subscribers and time.monotonic() < until:
        sampler.step()
        time.sleep(0.02)
    return not sampler.has_subscribers


def test_the_first_event_of_ours_is_the_records_as_they_are_described() -> None:
    with streaming() as (at, sampler), closing(Events(at, REST, "?topology=words")) as events:
        assert events.status == 200
        assert events.headers["content-type"].startswith("text/event-stream")
        first = events.next()
        assert first["event"] == "snapshot" and int(first["id"]) == first["data"]["number"]
        validator("ClusterReport").validate(first["data"]["cluster"])
        validator("TopologyReport").validate(first["data"]["topology"])
        sampler.step()
        second = events.next()
        assert second["event"] == "delta" and int(second["id"]) > int(first["id"])
        assert {*second["data"]} == {"set", "gone"}


def test_the_first_event_of_the_page_is_what_it_shows_of_a_moment() -> None:
    query = "?topology=words&window=10m&component=split"
    with streaming() as (at, sampler), closing(Events(at, PAGE, query)) as events:
        first = events.next()
        now = sampler.cluster().time_ms
        status, body = at.get(f"/page/at{query}&time_ms={now}")
        assert (status, first["event"], first["data"]) == (200, "snapshot", json.loads(body))
        # the page shows the last minute of the cluster, which is one window of the record
        validator("ClusterReport").validate(first["data"]["cluster"])
        sampler.step()
        second = events.next()
        assert second["event"] == "delta" and {*second["data"]} <= {"set", "sub", "del"}


def test_a_page_hears_that_the_server_waits_for_its_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkstorm.web.page._BEAT_S", 0.6)
    with streaming() as (at, sampler), closing(Events(at, PAGE)) as events:
        assert events.next()["event"] == "snapshot"
        assert events.next() == {"event": "beat", "data": {"seconds": 1}}
        sampler.step()
        found = events.next()
        while found["event"] == "beat":
            found = events.next()
        assert found["event"] == "delta"


@pytest.mark.parametrize("path", [PAGE, REST])
def test_hostile_parameters_are_answered_or_refused_and_leave_nothing_behind(path: str) -> None:
    with streaming() as (at, sampler):
        for name in ("topology", "component", "window"):
            for text in HOSTILE:
                with closing(Events(at, path, f"?{name}={quote(text, safe='')}")) as events:
                    assert events.status in (200, 400, 404), (name, text)
                    assert "set-cookie" not in events.headers
                    if events.status != 200:
                        Draft202012Validator(ERROR).validate(json.loads(events.body()))
                        continue
                    first = events.next()
                    assert first["event"] == "snapshot"
                    assert len(str(first["data"].get("gone", ""))) < 300
        assert left(sampler)
        for method in ("POST", "PUT", "DELETE"):
            head = f"Host: 127.0.0.1:{at.port}\r\nAuthorization: Bearer {at.token}\r\n"
            with closing(at.socket()) as asked:
                asked.sendall(
                    f"{method} {path} HTTP/1.0\r\n{head}Content-Length: 0\r\n\r\n".encode()
                )
                assert b" 405 " in asked.makefile("rb").readline(), method


def test_a_topology_that_ends_is_said_in_a_last_event_of_ours() -> None:
    with (
        watched() as run,
        listening(run.sampler) as at,
        closing(Events(at, REST, "?topology=words")) as events,
    ):
        assert events.next()["event"] == "snapshot"
        run.cluster.kill("words")
        run.pass_seconds(60)
        found = events.next()
        while found["event"] == "delta":
            found = events.next()
        assert found["event"] == "gone" and "words" in found["data"]["errorMessage"]


@pytest.mark.slow
@pytest.mark.parametrize("path", [PAGE, REST])
@pytest.mark.sampled(2)
def test_a_slow_reader_skips_samples_and_no_change_and_keeps_no_other_waiting(path: str) -> None:
    sampler = Sampler(LargeSource(40, 5))
    sampler.step()
    with listening(sampler, send_buffer=16_384) as at:
        with (
            closing(Events(at, path, "?topology=large", buffer=32_768)) as slow,
            closing(Events(at, path, "?topology=large")) as quick,
        ):
            shown = slow.next()["data"]
            quick.next()
            samples = 40
            for _ in range(samples):
                sampler.step()
                # comes while the other reads nothing
                while (event := quick.next()["event"]) == "beat":
                    pass
                assert event == "delta"
            newest = fresh(at, path)
            read = 0
            until = time.monotonic() + LIMIT_S
            while shown != newest:
                assert time.monotonic() < until
                shown = changed(shown, slow.next()["data"])
                read += 1
        assert read < samples
        assert left(sampler)


def fresh(at: Listening, path: str) -> Any:
    """Return what a stream that is opened now begins with."""
    with closing(Events(at, path, "?topology=large")) as events:
        return events.next()["data"]


def changed(old: Any, change: Any) -> Any:
    """Return a snapshot with a delta of either stream."""
    made = json.loads(json.dumps(old))
    if "gone" in change:
        for path, value in change["set"]:
            within = made
            for name in path[:-1]:
                within = within[name]
            within[path[-1]] = value
        assert change["gone"] == []
        return made
    made |= change.get("set", {})
    for name, inner in change.get("sub", {}).items():
        made[name] = changed(made[name], inner)
    for name in change.get("del", ()):
        del made[name]
    return made


@pytest.mark.slow
def test_streams_are_bounded_and_those_that_were_left_make_room() -> None:
    with streaming() as (at, sampler):
        opened = [Events(at, REST) for _ in range(MOST_STREAMS)]
        for each in opened:
            each.next()
        with closing(Events(at, REST)) as refused:
            assert refused.status == 503
            Draft202012Validator(ERROR).validate(json.loads(refused.body()))
        # the page goes on
        with closing(Events(at, PAGE, "?topology=words")) as page:
            assert page.next()["event"] == "snapshot"
        for each in opened:
            each.close()
        assert left(sampler)
        with closing(Events(at, REST)) as again:
            assert again.status == 200
