"""Our REST interface: answers against their description, the past, the stream of events, and equal
figures everywhere.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import pytest
from starlette.requests import Request

from sparkstorm.cli.topologies import counts_by_component, tasks_text
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.web.rest import _Streams, delta
from tests.web.served import served
from tests.web.test_metrics import samples_of


def test_every_answer_is_as_it_is_described() -> None:
    with served() as at:
        at.run.feed(10, "bad word")
        described = at.client.get("/api/openapi.json").json()
        assert described["openapi"] == "3.1.0"
        task = next(iter(at.run.sampler.topology("words").components["split"].tasks))
        slot = next(iter(at.run.sampler.topology("words").workers))
        known = {"name": "words", "component": "split", "task": task, "slot": slot}
        known |= {"id": at.id, "topology": at.id, "owner": "somebody"}
        asked: dict[str, str | int] = {"time_ms": 1000, "id": "none", "search-string": "a"}
        asked["file"] = f"{at.id}/{slot}/worker.log"
        seen = 0
        for path, operations in described["paths"].items():
            if "get" not in operations or path.endswith("/stream"):
                continue
            content = operations["get"]["responses"]["200"]["content"]
            answer = at.client.get(path.format(**known), params=asked)
            if "application/json" not in content:
                continue
            assert answer.status_code == 200, (path, answer.text)
            schema = content["application/json"]["schema"]
            jsonschema.validate(answer.json(), {**schema, "components": described["components"]})
            seen += 1
        assert seen > 30


def test_an_answer_that_differs_is_found() -> None:
    with served() as at:
        described = at.client.get("/api/openapi.json").json()
        view = at.client.get("/api/sparkstorm/v1/topology/words").json()
        schema = {
            "$ref": "#/components/schemas/TopologyReport",
            "components": described["components"],
        }
        jsonschema.validate(view, schema)
        for broken in ({**view, "pending": "many"}, {**view, "surprise": 1}, {"id": view["id"]}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(broken, schema)


def test_all_figures_agree_to_the_last_tuple() -> None:
    with served() as at:
        at.run.feed(123)
        at.run.cluster.kill_worker("count")
        at.run.feed(77)
        view = at.run.sampler.topology("words")
        told = counts_by_component(view)  # the command line
        stored = at.run.cluster.topology("words").progress().counts_by_task
        tasks = tasks_text(
            {
                task: each
                for name in view.components
                for task, each in view.components[name].tasks.items()
            }
        )
        rows = {row.split()[0]: row for row in tasks.splitlines()[1:]}
        ours = at.client.get("/api/sparkstorm/v1/topology/words").json()["components"]
        page = at.client.get(f"/api/v1/topology/{at.id}").json()
        storm = {each["spoutId"]: each for each in page["spouts"]} | {
            each["boltId"]: each for each in page["bolts"]
        }
        metrics = samples_of(at.client.get("/metrics").text)
        assert told["count"]["executed"] == 400 and told["lines"]["acked"] == 200
        for name, counts in told.items():
            own = [(task, each) for task, each in stored.items() if each.component == name]
            assert [
                sum(getattr(each, key) for _, each in own)
                for key in ("emitted", "executed", "acked", "failed", "parked")
            ] == [counts[key] for key in ("emitted", "executed", "acked", "failed", "parked")]
            for task, each in own:
                assert (
                    f"  {each.emitted:,}  " in rows[f"{name}#{task}"]
                    and f"  {each.executed:,}  " in rows[f"{name}#{task}"]
                )
            assert ours[name]["counts"]["emitted"] == storm[name]["emitted"] == counts["emitted"]
            assert ours[name]["counts"]["acked"] == storm[name]["acked"] == counts["acked"]
            assert (
                metrics["sparkstorm_tuples_emitted_total", ("component", name)] == counts["emitted"]
            )
            result = metrics["sparkstorm_tuples_executed_total", ("component", name)]
            assert result == counts["executed"]


def test_the_past_is_shown_as_it_was() -> None:
    with served() as at:
        at.run.feed(5)
        then = at.run.sampler.cluster().time_ms
        at.run.pass_seconds(3)
        at.run.feed(5)
        assert (
            at.client.get(f"/api/sparkstorm/v1/topology/words?at={then + 2000}").json()["counts"][
                "acked"
            ]
            == 5
        )
        assert at.client.get("/api/sparkstorm/v1/topology/words").json()["counts"]["acked"] == 10
        refused = at.client.get("/api/sparkstorm/v1/cluster?at=noon")
        assert refused.status_code == 400 and "milliseconds" in refused.json()["errorMessage"]


def test_a_delta_turns_one_snapshot_into_the_next() -> None:
    old = {"a": {"x": 1, "y": None, "z": [1]}, "b": {"gone": 1}, "c": 3}
    new = {"a": {"x": 2, "y": None, "z": [1, 2]}, "c": 3, "d": {}}
    result = delta(old, new)
    assert result == {"set": [[["a", "x"], 2], [["a", "z"], [1, 2]], [["d"], {}]], "gone": [["b"]]}
    assert delta(new, new) == {"set": [], "gone": []}


def _parsed(text: str) -> tuple[str, int, Any]:
    kind, number, data = (line.partition(": ")[2] for line in text.strip().split("\n"))
    return kind, int(number), json.loads(data)


def test_a_stream_sends_a_snapshot_and_then_what_has_changed() -> None:
    async def look(sampler: Sampler, feed: Any) -> list[tuple[str, int, Any]]:
        streams = _Streams(sampler)
        request = Request(
            {"type": "http", "method": "GET", "query_string": b"topology=words", "headers": []}
        )
        response: Any = await streams.answer(request)
        parts = response.body_iterator
        first = _parsed(await anext(parts))
        assert sampler.has_subscribers
        await asyncio.to_thread(feed, 9)
        second = _parsed(await anext(parts))
        await parts.aclose()
        assert not sampler.has_subscribers and streams._open == 0
        return [first, second]

    with served() as at:
        first, second = asyncio.run(look(at.run.sampler, at.run.feed))
        assert (first[0], second[0]) == ("snapshot", "delta") and second[1] > first[1]
        assert first[2]["topology"]["counts"]["acked"] == 0
        assert [["topology", "counts", "acked"], 9] in second[2]["set"]


@pytest.mark.parametrize(
    "path",
    [
        "topology/%F4%81%AD%A0",
        "topology/a%00b/series",
        f"topology/{'x' * 301}",
        "topology/words/task/x",
    ],
)
def test_a_name_that_nothing_can_have_is_not_there(path: str) -> None:
    with served() as at:
        answer = at.client.get(f"/api/sparkstorm/v1/{path}")
        assert answer.status_code == 404 and answer.json()["errorMessage"]


def test_components_and_hosts_that_are_not_there_are_named() -> None:
    with served() as at:
        host = next(iter(at.run.sampler.cluster().hosts))
        for path, body, status, words in (
            (f"topology/{at.id}/plan-rebalance", {"executors": {"cout": 2}}, 404, "cout"),
            (f"topology/{at.id}/plan-rebalance", {"executors": {"count": 1.5}}, 400, "whole"),
            ("host/nowhere/drain", {}, 404, f"no host nowhere, only {host}"),
            (f"host/{host}/include", {}, 409, "neither drained nor excluded"),
            (f"host/{host}/empty", {}, 400, "drain"),
        ):
            answer = at.client.post(f"/api/sparkstorm/v1/{path}", json=body)
            assert answer.status_code == status, answer.text
            assert words in answer.json()["errorMessage"]
        plan = at.client.post(
            f"/api/sparkstorm/v1/topology/{at.id}/plan-rebalance", json={"numWorkers": 1.0}
        )
        assert len(set(plan.json()["after"].values())) == 1
