"""Metrics pushed by OTLP, read by a collector of its own protobuf classes over a real port."""

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

from sparkstorm.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.insight.reading import Reading
from sparkstorm.insight.sampler import Sampler
from sparkstorm.web.metrics import samples_by_family
from sparkstorm.web.otlp import OtlpPush
from tests.insight.watched import watched


@dataclass
class Collector:
    """An HTTP server that decodes what is pushed; it refuses while `status` is another than 200."""

    address: str
    status: int = 200
    taken: queue.Queue[Any] = field(default_factory=queue.Queue)
    headers: dict[str, str] = field(default_factory=dict)

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
            if self.path == "/v1/metrics" and made.status == 200:
                made.taken.put(ExportMetricsServiceRequest.FromString(body))
            self.send_response(made.status if self.path == "/v1/metrics" else 404)
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
        assert (
            at.headers["x-api-key"] == "secret"
            and at.headers["content-type"] == "application/x-protobuf"
        )
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
        assert (
            said.get(timeout=30) == f"{at.address}/v1/metrics does not take metrics; trying again"
        )
        at.status = 200
        assert said.get(timeout=30) == f"{at.address}/v1/metrics takes metrics again"
        at.metrics()
        push.stop()
        assert said.empty()


def test_before_the_first_reading_nothing_is_pushed() -> None:
    class Nothing:
        def read(self) -> Reading:
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
