"""The server at a port: many pages, slow clients, stores and leaders that are away, a large
topology, hostile data.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.notebook.graph_places import places_of
from sparkstorm.web.live import topology_record
from tests.insight.watched import watched
from tests.web.listening import LargeSource, Listening, listening
from tests.web.served import served

PAGES = 20
ROUTES = [
    "/",
    "/page/session",
    "/page/at?time_ms=1000&topology=words&window=1m&component=split",
    "/page/series/words",
    "/page/conf/words",
    "/api/v1/cluster/summary",
    "/api/v1/topology/summary",
    "/api/v1/topology/{id}",
    "/api/sparkstorm/v1/cluster",
    "/api/sparkstorm/v1/topology/words",
    "/metrics",
]
HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J\u202e"


class Cut:
    """A source that can be cut off from its stores or its leader, and counts its reads."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.reads = 0
        self.is_away = False
        self.is_redis_away = False
        self.is_leaderless = False

    def read(self) -> Any:
        self.reads += 1
        if self.is_away:
            raise StoreUnavailableError("ZooKeeper does not answer")
        found = self.source.read()
        if self.is_leaderless:
            found = replace(found, leader=None)
        if self.is_redis_away:
            away = {
                id: replace(each, look=None, problem="Redis does not answer")
                for id, each in found.topologies.items()
            }
            found = replace(found, topologies=away)
        return found


@contextmanager
def cut() -> Iterator[tuple[Listening, Sampler, Cut]]:
    with watched() as run:
        run.feed(5)
        source = Cut(run.cluster.source())
        sampler = Sampler(source)
        sampler.step()
        with listening(sampler) as at:
            yield at, sampler, source


def statuses(at: Listening, sampler: Sampler) -> set[int]:
    topology_id = next(iter(sampler.cluster().topologies))
    return {at.get(path.replace("{id}", topology_id))[0] for path in ROUTES}


def test_twenty_open_pages_get_what_changes_and_the_stores_are_read_once() -> None:
    with cut() as (at, sampler, source), ExitStack() as opened:
        pages = [at.open_page("words") for _ in range(PAGES)]
        for each in pages:
            opened.callback(each.close)
        assert {each.next()[0] for each in pages} == {"snapshot"}
        before = source.reads
        for _ in range(3):
            sampler.step()
            assert {each.next()[0] for each in pages} == {"delta"}
        assert source.reads == before + 3
        assert statuses(at, sampler) == {200}


def test_a_page_that_is_closed_does_not_keep_the_sampler_awake() -> None:
    with cut() as (at, sampler, _):
        page = at.open_page("words")
        page.next()
        assert sampler.has_subscribers
        page.close()
        until = time.monotonic() + 30
        while sampler.has_subscribers and time.monotonic() < until:
            sampler.step()  # what is sent to it finds it closed
            time.sleep(0.05)
        assert not sampler.has_subscribers


def test_slow_clients_and_those_that_read_nothing_keep_nobody_waiting() -> None:
    with cut() as (at, sampler, _), ExitStack() as opened:
        for n in range(30):
            slow = opened.enter_context(at.socket())
            slow.sendall(b"GET / HTTP/1.1\r\nHost: 127.0"[: 5 + n])
        head = f"HTTP/1.1\r\nHost: 127.0.0.1:{at.port}\r\nAuthorization: Bearer {at.token}\r\n"
        for _ in range(10):
            opened.enter_context(at.socket()).sendall(
                f"POST /page/plan/kill {head}Content-Length: 9\r\n\r\n{{".encode()
            )
        question = f"GET /page/stream?topology=words {head}\r\n"
        for _ in range(10):
            deaf = opened.enter_context(at.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            deaf.sendall(question.encode())
        for _ in range(30):
            sampler.step()
        page = at.open_page("words")
        opened.callback(page.close)
        assert page.next()[0] == "snapshot" and statuses(at, sampler) == {200}


def test_without_the_token_nobody_gets_anything_at_any_route() -> None:
    with cut() as (at, _, _):
        stranger = Listening(at.port, "x" * 43)
        found = {
            path: stranger.get(path)
            for path in [*ROUTES, "/page/stream", "/api/openapi.json", "/page/journey/words"]
        }
        assert {status for status, _ in found.values()} == {401}
        assert all(b"words" not in body and b"count" not in body for _, body in found.values())


@pytest.mark.parametrize("fault", ["is_away", "is_redis_away", "is_leaderless"])
def test_stores_and_leaders_that_are_away_leave_pages_answering(fault: str) -> None:
    with cut() as (at, sampler, source), closing(at.open_page("words")) as page:
        page.next()
        setattr(source, fault, True)
        sampler.step()
        assert page.next()[0] == "delta" and statuses(at, sampler) == {200}
        _, body = at.get("/api/sparkstorm/v1/cluster")
        cluster = json.loads(body)
        if fault == "is_away":
            assert cluster["stale_reason"] == "ZooKeeper does not answer" and cluster["topologies"]
        elif fault == "is_redis_away":
            assert not cluster["store"]["is_up"] and "Redis does not answer" in cluster["sentence"]
        else:
            assert cluster["leader"] is None and cluster["topologies"]
        assert at.get("/page/letters/words")[0] == 503  # what only the stores can say
        setattr(source, fault, False)
        sampler.step()
        assert page.next()[0] == "delta"


@pytest.mark.slow
def test_a_hundred_components_and_a_thousand_tasks_leave_the_page_answering() -> None:
    sampler = Sampler(LargeSource(100, 10))
    for _ in range(3):
        sampler.step()
    with listening(sampler) as at, closing(at.open_page("large&component=c7")) as page:
        kind, snapshot = page.next()
        assert kind == "snapshot" and len(snapshot["topology"]["components"]) >= 100
        assert [
            len(each.get("tasks", ())) for each in snapshot["topology"]["components"].values()
        ].count(10) == 1
        assert len(json.dumps(snapshot)) < 600_000
        sampler.step()
        kind, change = page.next()
        assert kind == "delta" and len(json.dumps(change)) < 400_000
        for path in [
            each.replace("words", "large").replace("split", "c7").replace("{id}", "large-1-1")
            for each in ROUTES
        ]:
            status, _ = at.get(path)
            assert status == 200, path


def test_hostile_data_reaches_no_browser_as_markup() -> None:
    with served() as at:
        at.run.spout.feed([f"bad {HOSTILE}"], HOSTILE)
        at.run.cluster.run_until_idle()
        at.run.pass_seconds(2)
        slot = next(iter(at.run.sampler.topology("words").workers))
        at.logs[slot] = f"{HOSTILE}\n".encode() * 3
        [letter] = at.client.get("/page/letters/words").json()["letters"]
        paths = [
            *ROUTES[1:],
            "/page/letters/words",
            f"/page/log/words/{slot}",
            "/page/journey/words",
            f"/page/capsule/words/{letter}",
        ]
        quoted = quote(HOSTILE, safe="")
        paths += [
            f"/api/sparkstorm/v1/topology/{quoted}",
            f"/page/series/{quoted}",
            f"/page/journey/words?message={quoted}",
        ]
        for path in paths:
            answer = at.client.get(path.replace("{id}", at.id))
            assert answer.headers["content-type"].partition(";")[0] in (
                "application/json",
                "application/zip",
                "application/openmetrics-text",
                "text/plain",
            ), path
            assert (
                answer.headers["x-content-type-options"] == "nosniff"
                and "script-src" not in answer.headers
            ), path
            assert answer.headers["content-security-policy"].startswith("default-src 'self'"), path
            assert b"\x1b" not in answer.content or path.startswith("/page/capsule"), path
        assert "img" in at.client.get(f"/page/log/words/{slot}").json()["lines"][0]


def test_a_graph_that_stays_is_laid_out_once() -> None:
    sampler = Sampler(LargeSource(5, 2))
    sampler.step()
    first = topology_record(sampler.topology("large"), "10m")
    made = places_of.cache_info().misses
    sampler.step()
    second = topology_record(sampler.topology("large"), "10m")
    assert second["graph"] == first["graph"] and second["counts"] != first["counts"]
    assert places_of.cache_info().misses == made
