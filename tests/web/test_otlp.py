"""Metrics pushed by OTLP, read by its own collector protobuf classes over a real port."""

from __future__ import annotations

import gzip
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sparkstorm.cli.__main__ import main
from sparkstorm.common.errors import (
    InvalidConfigError,
    ReadOnlyConnectionError,
    StoreUnavailableError,
)
from sparkstorm.control_plane.insight.reading import StoreReading
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.web.metrics import samples_by_family
from sparkstorm.web.otlp import OtlpPush
from sparkstorm.web.otlp_traces import TracePush
from tests.insight.watched import watched
from tests.web.served import served
from tests.web.test_look_inside import looking

REQUESTS: dict[str, Any] = {
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
}


@dataclass
class Collector:
    """An HTTP server that decodes what is pushed; it refuses while `status` is another than 200."""

    address: str
    status: int = 200
    taken: queue.Queue[Any] = field(default_factory=queue.Queue)
    headers: dict[str, str] = field(default_factory=dict)

    def spans(self) -> tuple[dict[str, str], list[Any]]:
        """Return the attributes of the resource and the spans of the next push."""
        [resource] = self.taken.get(timeout=30).resource_spans
        [scope] = resource.scope_spans
        return labels_of(resource.resource), list(scope.spans)

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the next push by name."""
        [resource] = self.taken.get(timeout=30).resource_metrics
        assert {each.key: each.value.string_value for each in resource.resource.attributes}[
            "service.name"
        ] == "sparkstorm"
        return {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}


@contextmanager
def collector() -> Iterator[Collector]:
    made = Collector("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            made.headers = {name.lower(): value for name, value in self.headers.items()}
            if self.path in REQUESTS and made.status == 200:
                made.taken.put(REQUESTS[self.path].FromString(body))
            self.send_response(made.status if self.path in REQUESTS else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def labels_of(point: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in point.attributes}


def test_a_collector_reads_the_figures_of_the_read_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=secret")
    with watched() as run, collector() as at:
        run.feed(50)
        run.feed(3, 'bad "quoted\\ word')
        push = OtlpPush(run.sampler, at.address)
        assert push.push()
        found, view = at.metrics(), run.sampler.topology("words")
        cluster = run.sampler.cluster()
        assert at.headers["x-api-key"] == "secret"
        assert at.headers["content-type"] == "application/x-protobuf"
        wanted = {
            f"sparkstorm.{family.name}": samples
            for family, samples in samples_by_family(cluster, [view])
        }
        assert found.keys() == wanted.keys()
        for name, samples in wanted.items():
            metric = found[name]
            kind = metric.WhichOneof("data")
            assert kind in ("sum", "gauge", "histogram") and metric.description
            if kind != "histogram":
                points = getattr(metric, kind).data_points
                read = [
                    (labels_of(p), p.as_double if p.HasField("as_double") else p.as_int)
                    for p in points
                ]
                assert read == [(dict(labels), value) for _, labels, value in samples], name
        trees = found["sparkstorm.trees_completed"].sum
        assert trees.is_monotonic and trees.aggregation_temporality == 2  # cumulative
        assert trees.data_points[0].start_time_unix_nano == view.launch_ms * 1_000_000
        [latency] = found["sparkstorm.complete_latency_seconds"].histogram.data_points
        assert sum(latency.bucket_counts) == latency.count == view.complete.count == 50
        assert len(latency.bucket_counts) == len(latency.explicit_bounds) + 1
        assert (
            found["sparkstorm.worker_memory_bytes"].unit == "By"
            if "sparkstorm.worker_memory_bytes" in found
            else True
        )


def test_a_collector_that_refuses_is_said_once_and_again_when_it_takes_them() -> None:
    with watched() as run, collector() as at:
        said: queue.Queue[str] = queue.Queue()
        at.status = 400
        push = OtlpPush(run.sampler, at.address, 0.02, said.put)
        push.start()
        result = said.get(timeout=30)
        assert result == f"{at.address}/v1/metrics does not take metrics; trying again"
        at.status = 200
        assert said.get(timeout=30) == f"{at.address}/v1/metrics takes metrics again"
        at.metrics()
        push.stop()
        assert said.empty()


def test_before_the_first_reading_nothing_is_pushed() -> None:
    class Nothing:
        def read(self) -> StoreReading:
            raise StoreUnavailableError("ZooKeeper does not answer")

    with collector() as at:
        sampler = Sampler(Nothing())
        sampler.step()
        assert OtlpPush(sampler, at.address).push() and at.taken.empty()


@pytest.mark.parametrize(
    "address", ["", "collector:4318", "grpc://collector:4317", "file:///etc/passwd"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with (
        watched() as run,
        pytest.raises(InvalidConfigError, match="--otlp: expected the address of a collector"),
    ):
        OtlpPush(run.sampler, address)


@pytest.mark.slow
def test_a_collector_reads_the_traces_of_messages_that_ended() -> None:
    conf: dict[str, Any] = {"topology.max.retries": 0}
    with served(**conf) as at, collector() as to:
        at.run.spout.feed(["bad"])  # before the look: it is in no trace
        push = TracePush(at.run.sampler, at.opened, to.address, 1.0)
        with looking(at, "a bad word here"):
            assert push.push()
        push.close()
        resource, spans = to.spans()
    assert (resource["service.name"], resource["service.instance.id"]) == ("words", at.id)
    by_trace: dict[bytes, list[Any]] = {}
    for span in spans:
        assert len(span.trace_id) == 16 and len(span.span_id) == 8
        by_trace.setdefault(span.trace_id, []).append(span)
    for message, *events in by_trace.values():
        assert message.name == "message of lines" and not message.parent_span_id
        assert len(labels_of(message)["sparkstorm.root"]) == 16
        assert {span.parent_span_id for span in events} == {message.span_id}
        assert min(span.start_time_unix_nano for span in events) == message.start_time_unix_nano
        assert {"lines emitted", "split executed", "count failed", "lines given up"} <= {
            span.name for span in events
        }
        assert message.status.code == 2  # an error
        [failed] = [span for span in events if span.name == "count failed"]
        assert "a bad word" in failed.status.message and failed.status.code == 2
        assert labels_of(failed)["sparkstorm.source"] == "split/default"
        [emitted] = [span for span in events if span.name == "lines emitted"]
        assert [each.name for each in emitted.events] == ["commit"]
    assert len({span.span_id for span in spans}) == len(spans)


def test_traces_need_an_address_and_the_right_to_write(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served(is_read_only=True) as at:
        push = TracePush(at.run.sampler, at.opened, "http://127.0.0.1:1", 1.0)
        with pytest.raises(ReadOnlyConnectionError):
            push.push()
    assert main(["web", "--cluster", "nowhere.json", "--traces"]) == 1
    assert "--traces needs --otlp URL" in capsys.readouterr().err
