"""DRPC over loopback: results by Storm's routes, failures, callers that are refused."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import Topology, TopologyBuilder, bolt
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.compat import DrpcSpout, ReturnResults
from sparkstorm.extensions.embedded.process import free_port
from sparkstorm.testing import LocalCluster
from tests import pages
from tests.connectors.crashing_sink import CONF

Answer = tuple[int, str]


@bolt("result", "return-info", key="args")
def count(tup: Any, state: Any) -> Any:
    """Answer how often the arguments came; nothing for "silence"."""
    if tup["args"] == "poison":
        raise ValueError("no such word")
    if tup["args"] != "silence":
        yield {"args": tup["args"], "times": state.add(tup["args"], 1)}, tup["return-info"]


def topology(spout: DrpcSpout, results: ReturnResults) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("requests", spout)
    builder.set_bolt("count", count, inputs="requests", parallelism=2)
    builder.set_bolt("results", results, inputs="count", parallelism=2)
    return builder.build()


def ask(
    port: int,
    path: str,
    body: bytes | None = None,
    token: str = "of-the-test",
    host: str = "127.0.0.1",
) -> Answer:
    connection = http.client.HTTPConnection(host, port, timeout=20)
    try:
        connection.request(
            "GET" if body is None else "POST", path, body, {"Authorization": f"Bearer {token}"}
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def spout(port: int, tmp_path: Path) -> DrpcSpout:
    (tmp_path / "token").write_text("of-the-test")
    (tmp_path / "token").chmod(0o600)
    return DrpcSpout(
        "count", port, token_file=str(tmp_path / "token"), patience_secs=10, max_body_bytes=100
    )


@pytest.fixture
def results(tmp_path: Path) -> ReturnResults:
    return ReturnResults(token_file=str(tmp_path / "token"))


def test_requests_get_the_results_that_the_topology_gives_them(
    spout: DrpcSpout, results: ReturnResults, port: int
) -> None:
    with LocalCluster() as cluster, ThreadPoolExecutor(12) as threads:
        cluster.submit(topology(spout, results), {**CONF, "topology.max.retries": 0})

        def answered(*asked: tuple[str, bytes | None]) -> list[Answer]:
            waiting = [threads.submit(ask, port, path, body) for path, body in asked]
            cluster.run_until(lambda: all(each.done() for each in waiting))
            return [each.result() for each in waiting]

        many = answered(*(("/drpc/count/a%20%C3%A9/b", None) for _ in range(6)))
        assert {status for status, _ in many} == {200}
        assert sorted(json.loads(text)["times"] for _, text in many) == [1, 2, 3, 4, 5, 6]
        assert {json.loads(text)["args"] for _, text in many} == {"a é/b"}
        result = answered(("/drpc/count", "a é/b".encode()))
        assert result == [(200, json.dumps({"args": "a é/b", "times": 7}))]
        poison, silence = answered(("/drpc/count/poison", None), ("/drpc/count/silence", None))
        assert poison == (500, "count failed: see the topology's dead letters")
        assert silence == (500, "count gave no result")
        assert [letter.values[0] for letter in cluster.dead_letters] == ["poison"]
        assert cluster.state("count") == {"a é/b": 7}
        cluster.kill("test", 0)


def test_the_example_of_the_page_answers(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    module, _ = pages.run(pages.ROOT / "docs" / "from-storm.md", monkeypatch)
    with LocalCluster() as cluster, ThreadPoolExecutor(1) as threads:
        cluster.submit(module.build_exclaim(port))
        waiting = threads.submit(ask, port, "/drpc/exclaim/hello")
        cluster.run_until(waiting.done)
        assert waiting.result() == (200, "hello!")
        cluster.kill("test", 0)


def test_what_is_no_request_is_refused_at_once(
    spout: DrpcSpout, results: ReturnResults, port: int
) -> None:
    with LocalCluster() as cluster:
        cluster.submit(topology(spout, results), CONF)
        cluster.advance(1)
        assert ask(port, "/drpc/other/x") == (404, "there is no function 'other' here, only count")
        assert ask(port, "/count/x")[0] == ask(port, "/", b"x")[0] == 404
        assert ask(port, "/drpc/count", b"x" * 101)[0] == 413
        assert ask(port, "/drpc/count", b"\xff") == (400, "the body is no UTF-8")
        result = ask(port, "/drpc/count/x", token="guessed")
        assert result == (401, "the Authorization header does not show the token")
        assert ask(port, "/drpc-result/guessed", b"wrong") == (404, "nobody waits for it")
        assert ask(port, "/drpc-result/read-by-a-viewer", b"forged", token="")[0] == 401
        cluster.kill("test", 0)


@pytest.mark.parametrize("host", ["::1", "0.0.0.0", "::"])
def test_results_reach_a_spout_by_the_address_on_which_it_listens(
    host: str, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all addresses the return-info has this host's name, not an address of any host."""
    here = "::1" if ":" in host else "127.0.0.1"
    monkeypatch.setattr("socket.gethostname", lambda: "localhost" if here != "::1" else "::1")
    monkeypatch.setenv("DRPC_TOKEN", "of-the-test")
    spout = DrpcSpout("count", port, host=host, token_env="DRPC_TOKEN", is_behind_proxy=True)
    with LocalCluster() as cluster, ThreadPoolExecutor(1) as threads:
        cluster.submit(topology(spout, ReturnResults(token_env="DRPC_TOKEN")), CONF)
        asked = threads.submit(ask, port, "/drpc/count/a", host=here)
        cluster.run_until(asked.done)
        assert asked.result() == (200, '{"args": "a", "times": 1}')
        cluster.kill("test", 0)


def test_a_bolt_without_the_token_brings_no_result_and_names_what_it_lacks(
    spout: DrpcSpout, port: int
) -> None:
    with LocalCluster() as cluster, ThreadPoolExecutor(1) as threads:
        cluster.submit(topology(spout, ReturnResults()), {**CONF, "topology.max.retries": 0})
        waiting = threads.submit(ask, port, "/drpc/count/a")
        cluster.run_until(waiting.done)
        assert waiting.result()[0] == 500
        (letter,) = cluster.dead_letters
        assert "give ReturnResults the same token_file or token_env" in letter.reason
        cluster.kill("test", 0)


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(InvalidConfigError, match=r"'a/b' is no name of a function"):
        DrpcSpout("a/b")
    with pytest.raises(InvalidConfigError, match=r"listening on 0.0.0.0 needs a token"):
        DrpcSpout("count", host="0.0.0.0")
