"""Push of the metrics by OTLP over HTTP: the samples of `/metrics`, every ten seconds, to a
collector of OpenTelemetry.

The SDK's exporter sends and tries again; its instruments are left out. They count by themselves,
while our counts are exact already and go on across restarts of this process: a counter's time of
start is its topology's launch.

Law: a collector that is away, slow or wrong changes nothing of the page. Its headers, which may
hold a key, are read from the environment by the SDK (OTEL_EXPORTER_OTLP_HEADERS), so that no
command line has them.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import pairwise

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from sparkstorm import __version__
from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.control_plane.insight.records import ClusterReport, TopologyReport
from sparkstorm.control_plane.insight.sampler import ReadModel
from sparkstorm.web.metrics import Family, Labels, Sample, samples_by_family

PERIOD_S = 10.0  # the read model has new figures every ten seconds while no page is open
TIMEOUT_S = 8.0  # with its tries; less than the period, so that pushes do not queue
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}
_LOG = logging.getLogger("sparkstorm.web")
_NS_PER_MS = 1_000_000


def warn(sentence: str) -> None:
    """Say what changed to the log of the web process."""
    _LOG.warning("%s", sentence)


def address_of(endpoint: str, what: str) -> str:
    """Return the address to which a collector takes `what`; InvalidConfigError for another one."""
    if not endpoint.startswith(("http://", "https://")):
        raise InvalidConfigError(
            f"--otlp: expected the address of a collector, http://HOST:4318 as a rule, got {endpoint!r:.80}"
        )
    return f"{endpoint.rstrip('/')}/v1/{what}"


class Push(ABC):
    """Thread that pushes to one collector, and says once that it is away and once that it takes
    again.
    """

    what: str

    def __init__(self, address: str, period_s: float, say: Callable[[str], None]) -> None:
        self.address = address
        self._period_s = period_s
        self._say = say
        self._stopping = threading.Event()
        self._is_away = False
        self._thread = threading.Thread(target=self._run, name=f"otlp-{self.what}", daemon=True)

    @abstractmethod
    def push(self) -> bool:
        """Push once; return whether the collector has taken it."""

    @abstractmethod
    def close(self) -> None:
        """Give a push up that is under way, and all that was opened."""

    def start(self) -> None:
        """Push now, and then every period."""
        # The exporter logs each failed try in a line and a traceback; one sentence for a change is
        # enough.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a push that is under way is given up."""
        self._stopping.set()
        self.close()
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                is_taken = self.push()
            except Exception as error:  # of the SDK: after any error the page goes on
                is_taken = False
                _LOG.debug("push to %s failed", self.address, exc_info=error)
            if is_taken == self._is_away and not self._stopping.is_set():
                self._is_away = not is_taken
                self._say(
                    f"{self.address} {'takes' if is_taken else 'does not take'} {self.what}"
                    f"{' again' if is_taken else '; trying again'}"
                )
            self._stopping.wait(self._period_s)


class OtlpPush(Push):
    """Push of the metrics."""

    what = "metrics"

    def __init__(
        self,
        model: ReadModel,
        endpoint: str,
        period_s: float = PERIOD_S,
        say: Callable[[str], None] = warn,
    ) -> None:
        super().__init__(address_of(endpoint, self.what), period_s, say)
        self._model = model
        self._exporter = OTLPMetricExporter(
            endpoint=self.address, timeout=TIMEOUT_S, compression=Compression.Gzip
        )

    def push(self) -> bool:
        """Push all figures once; True as long as nothing is known yet."""
        try:
            cluster = self._model.cluster()
            views = [self._model.topology(topology_id) for topology_id in cluster.topologies]
        except StoreUnavailableError:
            return True
        return self._exporter.export(metrics_data(cluster, views)) is MetricExportResult.SUCCESS

    def close(self) -> None:
        """End the exporter."""
        self._exporter.shutdown()


def metrics_data(cluster: ClusterReport, views: list[TopologyReport]) -> MetricsData:
    """Return all figures as OTLP's records; the names are those of `/metrics`, without the suffixes
    that text needs.
    """
    now_ns = cluster.time_ms * _NS_PER_MS
    begin_by_name = {view.name: view.launch_ms * _NS_PER_MS for view in views}
    metrics = [
        _metric(family, samples, begin_by_name, now_ns)
        for family, samples in samples_by_family(cluster, views)
    ]
    scope = ScopeMetrics(InstrumentationScope("sparkstorm", __version__), metrics, "")
    resource = Resource.create({"service.name": "sparkstorm", "service.version": __version__})
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(
    family: Family, samples: Iterable[Sample], begin_by_name: dict[str, int], now_ns: int
) -> Metric:
    name = f"sparkstorm.{family.name}"
    unit = _UNITS.get(family.unit, "1")

    def began_ns(labels: Labels) -> int:
        return begin_by_name.get(labels.get("topology", ""), 0)

    if family.kind == "histogram":
        rows = [
            _histogram(labels, parts, began_ns(labels), now_ns)
            for labels, parts in _by_labels(samples)
        ]
        return Metric(name, family.help, unit, Histogram(rows, AggregationTemporality.CUMULATIVE))
    points = [
        NumberDataPoint(dict(labels), began_ns(labels), now_ns, value)
        for _, labels, value in samples
    ]
    if family.kind == "counter":
        return Metric(
            name,
            family.help,
            unit,
            Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True),
        )
    return Metric(name, family.help, unit, Gauge(points))


def _by_labels(samples: Iterable[Sample]) -> list[tuple[Labels, dict[str, float]]]:
    """Return histograms by their labels: the parts are "_count", "_sum" and the upper bounds of
    buckets.
    """
    rows: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for suffix, labels, value in samples:
        key = tuple((name, text) for name, text in labels.items() if name != "le")
        rows.setdefault(key, {})[labels["le"] if suffix == "_bucket" else suffix] = value
    return [(dict(key), parts) for key, parts in rows.items()]


def _histogram(
    labels: Labels, parts: dict[str, float], begin_ns: int, now_ns: int
) -> HistogramDataPoint:
    """Return a histogram; OTLP counts each bucket for itself, OpenMetrics all up to its bound."""
    bounds = [name for name in parts if not name.startswith("_") and name != "+Inf"]
    upto = [0, *(int(parts[name]) for name in bounds), int(parts["+Inf"])]
    counts = [after - before for before, after in pairwise(upto)]
    nan = float("nan")  # OTLP's word for "not known"; the encoder leaves it out
    return HistogramDataPoint(
        dict(labels),
        begin_ns,
        now_ns,
        int(parts["_count"]),
        parts["_sum"],
        counts,
        list(map(float, bounds)),
        nan,
        nan,
    )
