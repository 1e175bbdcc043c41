"""The page's look at one message, at traces, and at a worker's stacks, over a simulated cluster."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.web.served import Served, served


@contextmanager
def looking(at: Served, text: str = "two words") -> Iterator[None]:
    """Let the workers look for taps, and work, while the client waits."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.05):
            at.run.spout.feed([text])
            at.run.cluster.run_until_idle()
            at.run.cluster.advance(seconds=1)
            for slot in at.run.cluster.topology("words").workers:
                slot.look(at.run.cluster.now_ms)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_the_page_shows_open_messages_and_one_that_was_given_up() -> None:
    conf: dict[str, Any] = {"topology.max.retries": 1, "topology.retry.backoff.ms": 60_000}
    with served(**conf) as at:
        assert at.client.get("/page/journey/words").json() == {"open": []}
        at.run.spout.feed(["bad"], "<b>x")
        at.run.cluster.advance(seconds=1)
        [message] = at.client.get("/page/journey/words").json()["open"]
        assert message["message_id"] == "<b>x"
        found = at.client.get("/page/journey/words", params={"message": "<b>x"}).json()["journey"]
        assert found["root"] == message["root"] and found["sentence"].startswith(
            f"message {message['root']} of lines#"
        )
        at.run.cluster.advance(seconds=70)
        after = at.client.get("/page/journey/words", params={"message": message["root"]}).json()[
            "journey"
        ]
        assert after["message"] is None and after["parked"][0]["component"] == "count"
        assert at.client.get("/page/journey/words", params={"message": "none"}).status_code == 404
        assert at.client.get("/page/journey/none").status_code == 404


def test_a_dead_letter_without_a_builder_is_saved_with_how_to_make_its_test() -> None:
    conf: dict[str, Any] = {"topology.max.retries": 0}
    with served(**conf) as at:
        at.run.spout.feed(["bad"], "bad")
        at.run.pass_seconds(40)
        [letter] = at.client.get("/page/letters/words").json()["letters"]
        answer = at.client.get(f"/page/capsule/words/{letter}")
        assert answer.status_code == 200
        with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
            capsule, readme = archive.namelist()
            text = archive.read(readme).decode()
        assert capsule.endswith(".capsule.json") and readme == "README.txt"
        assert text.startswith(f"{capsule}: nothing that you or the cluster have signed says")
        assert f"sparkstorm capsule {capsule} --pytest --topology" in text


@pytest.mark.slow
def test_the_page_follows_messages_and_shows_a_workers_stacks() -> None:
    with served() as at:
        slot = next(iter(at.run.sampler.topology("words").workers))
        with looking(at):
            traces = at.client.post("/page/traces/words", json={"seconds": 1}).json()
            stacks = at.client.post(f"/page/stacks/words/{slot}", json={"seconds": 1}).json()
        whats = {event["what"] for trace in traces["traces"] for event in trace["events"]}
        assert traces["count"] >= 1 and {"emitted", "executed", "acked"} <= whats
        assert stacks["samples"] >= 1 and stacks["boxes"][0]["depth"] == 0


def test_a_look_inside_needs_the_right_to_write_and_a_time_that_is_one() -> None:
    with served(is_read_only=True) as at:
        assert at.client.get("/page/journey/words").status_code == 403
        for path in ("/page/traces/words", "/page/stacks/words/n:1"):
            assert at.client.post(path, json={}).status_code == 403
    with served() as at:
        for seconds in (0, 61, "5", True, 1.5, None):
            result = at.client.post("/page/traces/words", json={"seconds": seconds}).status_code
            assert result == 400
        answer = at.client.post("/page/stacks/words/nowhere:1", json={"seconds": 1})
        assert answer.status_code == 404
        assert "has no worker nowhere:1, only" in answer.json()["errorMessage"]
