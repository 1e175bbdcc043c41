"""The page's routes over a simulated cluster."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from sparkstorm.client import ClusterClient
from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.common.http_guard import local_hosts
from sparkstorm.control_plane.insight.records import to_json
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.notebook.graph_places import TALL, WIDE, places_of
from sparkstorm.web import actions
from sparkstorm.web.app import make_app
from sparkstorm.web.commands import Connections
from sparkstorm.web.live import delta, graph, topology_record
from sparkstorm.web.page import STATIC, Page
from sparkstorm.web.security import CSRF_HEADER, Access
from tests.insight.watched import Watched, watched
from tests.web.listening import LargeSource

HOME = "http://127.0.0.1:8080"
VENDORED = {
    "preact-htm.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "uplot.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "htm.LICENSE": "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f",
    "preact.LICENSE": "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4",
    "uplot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""htm 3.1.1 (its `preact/standalone.module.js`), its Preact, and uPlot 1.6.32 (`uPlot.esm.js`), as
`npm pack` gives them.
"""
FIRST_LOAD_BYTES = 120_000


def nowhere() -> ClusterClient:
    raise StoreUnavailableError("ZooKeeper does not answer")


@contextmanager
def page(is_read_only: bool = False) -> Iterator[tuple[TestClient, Watched, Page]]:
    with watched() as run:
        run.feed(20)
        access = Access(local_hosts(8080), is_read_only=is_read_only)
        made = Page(run.sampler, access, Connections(nowhere), "test")
        client = TestClient(make_app(made.routes(), access), base_url=HOME)
        client.headers.update({"authorization": f"Bearer {access.token}"})
        yield client, run, made


def test_the_page_says_what_the_sampler_says() -> None:
    with page() as (client, run, _):
        now = run.sampler.cluster().time_ms
        found = client.get(
            "/page/at",
            params={"time_ms": now, "topology": "words", "window": "10m", "component": "split"},
        ).json()
        view = run.sampler.topology("words")
        assert found["topology"]["sentence"] == view.sentence
        assert found["topology"]["window"] == to_json(view.windows["10m"])
        assert found["topology"]["components"]["split"]["counts"]["executed"] == 20
        assert len(found["topology"]["components"]["split"]["tasks"]) == 2
        assert "tasks" not in found["topology"]["components"]["count"]
        series = client.get("/page/series/words").json()
        assert len(series["time_ms"]) == len(series["executed_per_s"]) > 0
        assert client.get("/page/session").json()["read_only"] is False


def test_the_stream_sends_a_snapshot_and_then_what_changes() -> None:
    with page() as (_, run, made):

        async def look() -> tuple[dict[str, Any], dict[str, Any]]:
            events = cast(
                "AsyncGenerator[str]", made._events(lambda: made._record("words", "1m", ""))
            )
            first = _data(await anext(events))
            run.pass_seconds(1)
            second = _data(await anext(events))
            await events.aclose()
            return first, second

        first, second = asyncio.run(look())
        assert not run.sampler.has_subscribers
        assert merged(first, second) == made._record("words", "1m", "")
        assert len(json.dumps(second)) < len(json.dumps(first)) / 2


def test_pages_that_show_the_same_share_one_record_of_each_sample() -> None:
    with page() as (_, run, made):
        first, other = made._record("words", "1m", ""), made._record("words", "10m", "")
        assert made._record("words", "1m", "") is first and other is not first
        run.pass_seconds(1)
        second = made._record("words", "1m", "")
        assert second is not first and second["cluster"]["number"] == first["cluster"]["number"] + 1
        assert made._change(first, second) is made._change(first, second)
        assert merged(first, json.loads(made._change(first, second))) == second
        for _ in range(100):
            run.sampler.step()
            made._record("words", "1m", "")
        assert len(made._records._made) <= 50


def _data(event: str) -> dict[str, Any]:
    found = re.search(r"^data: (.*)$", event, re.MULTILINE)
    assert found is not None
    return dict(json.loads(found[1]))


def merged(old: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    made = {**old, **change.get("set", {})}
    made.update({key: merged(old[key], inner) for key, inner in change.get("sub", {}).items()})
    return {key: value for key, value in made.items() if key not in change.get("del", [])}


def test_a_delta_has_new_changed_and_gone_values() -> None:
    old = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1]}
    new = {"a": 1, "b": {"c": 3}, "e": [1, 2], "f": {}}
    result = delta(old, new)
    assert result == {"set": {"e": [1, 2], "f": {}}, "sub": {"b": {"set": {"c": 3}, "del": ["d"]}}}
    assert merged(old, delta(old, new) or {}) == new
    assert delta(new, new) is None


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/page/at?time_ms=x", 400),
        ("/page/at?time_ms=%D9%A1", 400),
        ("/page/at?time_ms=1&window=2y", 400),
        ("/page/series/none", 404),
        ("/page/letters/words?after=", 400),
        ("/page/letters/words?after=last", 400),
        ("/page/series/words?component=none", 404),
        ("/static/../page.py", 404),
        ("/static/..%2fpage.py", 404),
        ("/static/%2e%2e/page.py", 404),
        ("/static//etc/passwd", 404),
    ],
)
def test_a_wrong_question_gets_a_sentence(path: str, status: int) -> None:
    with page() as (client, _, _):
        answer = client.get(path)
        assert answer.status_code == status and answer.json()["errorMessage"]


def test_a_read_only_connection_sees_no_tuples_and_no_logs() -> None:
    with page(is_read_only=True) as (client, _, _):
        for path in (
            "/page/letters/words",
            "/page/log/words/node1:6700",
            "/page/capsule/words/1-1",
        ):
            assert client.get(path).status_code == 403
        assert client.get("/page/session").json()["read_only"] is True
        assert (
            client.post("/page/do/kill", json={"topology": "words", "typed": "words"}).status_code
            == 403
        )


def test_stores_that_are_away_leave_the_page_answering() -> None:
    with page() as (client, _, _):
        answer = client.get("/page/letters/words")
        assert answer.status_code == 503
        assert answer.json()["errorMessage"] == "ZooKeeper does not answer"
        assert client.post("/page/do/activate", json={"topology": "words"}).status_code == 503
        result = client.post("/page/plan/activate", json={"topology": "words"}).json()
        assert result == {"command": "sparkstorm activate words"}
        assert client.get("/page/series/words").status_code == 200


def test_a_body_that_is_no_object_is_refused() -> None:
    with watched() as run:
        access = Access(local_hosts(8080))
        app = make_app(Page(run.sampler, access, Connections(nowhere), "test").routes(), access)
        client = TestClient(app, base_url=HOME, headers={"authorization": f"Bearer {access.token}"})
        for body in (b"", b"[]", b"{", b"[" * 50_000):
            assert client.post("/page/plan/kill", content=body).status_code == 400
        # checked also where the step does not use it
        step = {"topology": "words", "step": "rollback", "workers": 0}
        assert client.post("/page/plan/upgrade", json=step).status_code == 400
        assert (
            "there is no action" in client.post("/page/plan/none", json={}).json()["errorMessage"]
        )


@pytest.mark.parametrize(
    ("verb", "body", "words"),
    [
        ("kill", {"topology": "a b; rm", "wait": 5}, "sparkstorm kill 'a b; rm' --wait 5"),
        (
            "rebalance",
            {"topology": "w", "workers": 2, "executors": {"c": 3.0}},
            "sparkstorm rebalance w --workers 2 --executors c=3 --yes",
        ),
        (
            "log-level",
            {"topology": "w", "level": "DEBUG", "secs": 60},
            "sparkstorm log-level w root=DEBUG:60",
        ),
        ("restart", {"topology": "w", "worker": "n:1"}, "sparkstorm restart w --worker n:1"),
        ("upgrade", {"topology": "w", "step": "rollback"}, "sparkstorm upgrade rollback w"),
        ("replay", {"topology": "w", "ids": ["1-1"]}, "sparkstorm dead-letters replay w 1-1"),
    ],
)
def test_an_action_has_the_command_line_that_the_command_takes(
    verb: str, body: dict[str, Any], words: str
) -> None:
    import shlex

    from sparkstorm.cli.__main__ import parser

    assert actions.command(verb, body) == words
    parser().parse_args(shlex.split(words)[1:])


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("kill", {"topology": ""}),
        ("kill", {"topology": "w", "wait": "5"}),
        ("kill", {"topology": "w", "wait": 5.5}),
        ("kill", {"topology": "w", "typed": {}}),
        ("rebalance", {"topology": "w", "workers": True}),
        ("rebalance", {"topology": "w", "executors": {"c": 0}}),
        ("drop", {"topology": "w", "ids": []}),
        ("drop", {"topology": "w", "ids": "all"}),
        ("restart", {"topology": "w", "worker": 5}),
        ("rebalance", {"topology": "w", "reassign": "yes"}),
        ("rebalance", {"topology": "w", "executors": []}),
        ("log-level", {"topology": "w", "level": "LOUD"}),
        ("log-level", {"topology": "w", "level": "INFO", "logger": 1}),
        ("upgrade", {"topology": "w", "step": "forward"}),
    ],
)
def test_an_action_with_wrong_arguments_is_refused(verb: str, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError):
        actions.command(verb, body)


def test_the_graph_is_laid_out_without_overlaps_and_within_its_frame() -> None:
    with watched() as run:
        view = run.sampler.topology("words")
        found = graph(view)
        assert found["order"] == ["lines", "split", "count"] and found == graph(view)
        assert {*found["edges"]} == {"lines/split", "split/count"}
        assert found["edges"]["split/count"]["label"] == "by word"
        for box in found["boxes"].values():
            assert 0 <= box["x"] <= found["width"] - WIDE
            assert 0 <= box["y"] <= found["height"] - TALL
        assert json.loads(json.dumps(topology_record(view, "1m")["graph"])) == found


def test_a_graph_of_many_layers_is_wrapped_into_bands_that_do_not_overlap() -> None:
    sampler = Sampler(LargeSource(100, 1))
    sampler.step()
    found = graph(sampler.topology("large"))
    boxes = found["boxes"]
    assert len(boxes) == 100 and found["width"] < 1_500
    assert [boxes[f"c{n}"]["x"] for n in range(5)] == [boxes[f"c{n}"]["x"] for n in range(95, 100)]
    rows = sorted({box["y"] for box in boxes.values()})
    assert len(rows) == 20 and min(after - row for row, after in pairwise(rows)) >= TALL + 30
    for edge in found["edges"].values():
        numbers = [float(each) for each in re.findall(r"[0-9.-]+", edge["d"])]
        assert min(numbers) >= 0 and max(numbers) <= max(found["width"], found["height"])
    # from the end of a line of boxes to the begin of the next, between the two
    first, _, entry, _, end = re.findall(r"[HV]([0-9]+)", found["edges"]["c4/c5"]["d"])
    assert int(first) > boxes["c4"]["x"] + WIDE and int(end) == boxes["c5"]["x"] == boxes["c0"]["x"]
    assert 0 < int(entry) < boxes["c5"]["x"]


def test_edges_that_cross_bands_have_lanes_and_cycles_go_back_within_the_frame() -> None:
    pairs = [("s", "b0"), *((f"b{n}", f"b{n + 1}") for n in range(8)), ("s", "b8"), ("b8", "b1")]
    lines = tuple((f"{one}/{other}", one, other, "shuffle") for one, other in pairs)
    found = places_of(("s", *(f"b{n}" for n in range(9))), lines)
    gutters = [
        re.findall(r"V([0-9]+)", found["edges"][key]["d"])[0] for key in ("b3/b4", "s/b8", "b8/b1")
    ]
    assert len(set(gutters)) == 3 and found["edges"]["b8/b1"]["back"]
    for edge in found["edges"].values():
        ends = [tuple(map(int, each)) for each in re.findall(r"([0-9]+) ([0-9]+)", edge["d"])]
        assert all(0 < x < found["width"] and 0 < y < found["height"] for x, y in ends)
        levels = [int(each) for each in re.findall(r"H(-?[0-9]+)", edge["d"])]
        assert all(0 < x < found["width"] for x in levels)
        assert 40 < edge["x"] < found["width"] - 40 or not edge["back"]


def test_vendored_files_are_those_that_were_looked_at() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (STATIC / "vendor").iterdir()
    }
    assert found == VENDORED


def test_the_first_load_is_small() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file() and path.suffix != ".LICENSE"]
    assert sum(len(gzip.compress(path.read_bytes(), 6)) for path in files) < FIRST_LOAD_BYTES


def test_no_file_of_ours_writes_markup_from_data_or_calls_outside() -> None:
    ours = [path for path in STATIC.iterdir() if path.is_file()]
    for path in ours:
        text = path.read_text()
        assert not re.search(
            r"innerHTML|insertAdjacentHTML|document\.write|dangerously|eval\(|new Function", text
        ), path
        assert not re.search(r"(?<!xmlns=\")https?://", text), path
    index = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?! (type=\"module\" )?src=)|<style|style=|\son\w+=", index)


def test_the_page_is_served_and_says_who_it_is() -> None:
    with page() as (client, _, _):
        assert "<title>SparkStorm</title>" in client.get("/").text
        answer = client.get("/static/page.js", headers={"authorization": ""})
        assert answer.status_code == 200 and "javascript" in answer.headers["content-type"]
        assert client.get("/static/page.js").headers["content-encoding"] == "gzip"
        assert CSRF_HEADER in (STATIC / "lib.js").read_text()
