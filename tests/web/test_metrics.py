"""/metrics as Prometheus reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.model.values.metric_values import HIGHEST, LOWEST
from sparkstorm.control_plane.insight.reading import StoreReading
from sparkstorm.control_plane.insight.records import UserMetricView
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.web.metrics import FAMILIES, metrics_routes, metrics_text
from tests.insight.watched import watched
from tests.web.served import served

parse: Any = text_string_to_metric_families  # it has no types
_TEXT = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def samples_of(text: str) -> dict[tuple[str, tuple[str, str]], float]:
    """Return values by name and one label of theirs that tells them apart."""
    found = {}
    for family in parse(text):
        for sample in family.samples:
            for label in sample.labels.items():
                found[sample.name, label] = sample.value
    return found


def test_prometheus_reads_every_figure() -> None:
    with served() as at:
        at.run.feed(50)
        at.run.feed(3, 'bad "quoted\\ word')
        answer = at.client.get("/metrics")
        assert answer.headers["content-type"] == _TEXT
        families = {family.name: family for family in parse(answer.text)}
        assert {name.removeprefix("sparkstorm_") for name in families} <= {
            each.name for each in FAMILIES
        }
        assert all(family.documentation for family in families.values())
        latency = families["sparkstorm_complete_latency_seconds"]
        count = next(sample.value for sample in latency.samples if sample.name.endswith("_count"))
        bounds = [sample for sample in latency.samples if sample.name.endswith("_bucket")]
        assert count == bounds[-1].value == 50
        assert [each.value for each in bounds] == sorted(each.value for each in bounds)
        found = samples_of(answer.text)
        assert found["sparkstorm_trees_completed_total", ("component", "lines")] == 50
        assert found["sparkstorm_trees_failed_total", ("component", "lines")] == 3
        assert found["sparkstorm_tuples_parked_total", ("component", "count")] == 3
        assert found["sparkstorm_failures_total", ("error", "ValueError")] >= 3
        assert found["sparkstorm_topology_status", ("status", "ACTIVE")] == 1
        assert found["sparkstorm_worker_up", ("topology", "words")] == 1


def test_counters_never_fall_when_workers_die() -> None:
    with served() as at:
        at.run.feed(20)
        before = samples_of(at.client.get("/metrics").text)
        at.run.cluster.kill_worker("split")
        at.run.feed(20)
        after = samples_of(at.client.get("/metrics").text)
        counters = [key for key in before if key[0].endswith("_total") and "worker" not in key[0]]
        assert counters and all(after[key] >= before[key] for key in counters)
        assert after["sparkstorm_tuples_executed_total", ("component", "count")] == 80


class Silent:
    """A source whose ZooKeeper is away."""

    def read(self) -> StoreReading:
        raise StoreUnavailableError("ZooKeeper does not answer")


def test_a_cluster_that_never_answered_is_told() -> None:
    sampler = Sampler(Silent())
    sampler.step()
    with TestClient(Starlette(routes=metrics_routes(sampler))) as client:
        (family,) = parse(client.get("/metrics").text)
    assert (family.name, family.samples[0].value) == ("sparkstorm_zookeeper_up", 0.0)


def test_user_metrics_are_read_with_their_names() -> None:
    with watched() as run:
        view = run.sampler.topology("words")
        metrics = (
            UserMetricView("split", None, 'ro/ws"', "counter", 7),
            UserMetricView("split", 3, "depth", "gauge", 2.5),
            UserMetricView(
                "split", None, "size", "histogram", 11.0, 4, {LOWEST: 1, 0: 1, 25: 1, HIGHEST: 1}
            ),
        )
        text = metrics_text(run.sampler.cluster(), [replace(view, user_metrics=metrics)])
        families = {family.name: family for family in parse(text)}
        (counter,), (gauge,) = (
            families["sparkstorm_user_counter"].samples,
            families["sparkstorm_user_gauge"].samples,
        )
        assert counter.value == 7
        assert counter.labels == {"topology": "words", "component": "split", "name": 'ro/ws"'}
        assert (gauge.value, gauge.labels["task"]) == (2.5, "3")
        samples = families["sparkstorm_user_histogram"].samples
        bounds = {
            each.labels["le"]: each.value for each in samples if each.name.endswith("_bucket")
        }
        assert (bounds["1.0"], bounds["4.0"], bounds["16.0"], bounds["+Inf"]) == (2, 2, 3, 4)
        assert [each.value for each in samples if each.name.endswith("_sum")] == [11]


def test_names_are_each_there_once() -> None:
    assert len({each.name for each in FAMILIES}) == len(FAMILIES)
    with pytest.raises(ValueError, match="EOF"):
        list(parse("sparkstorm_slots 1\n"))  # no EOF: the parser is a strict one
