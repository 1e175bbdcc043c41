"""Push of traces by OTLP over HTTP: a sample of the messages of each topology, taken by their
roots' hashes, as spans of OpenTelemetry.

A message is a trace: its root span lasts from the emit to the last commit that belongs to it, and
each action of a task is a span below it. Ids are made from the topology's and the root, so that a
message has the same trace in each push, and its root is found by `sparkstorm journey`.

A look lasts five seconds and then the next topology has its turn, so that workers of one topology
at a time pay for it. Messages that are open when a look ends are left out: their traces would be
cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SpanEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from sparkstorm import __version__
from sparkstorm.client import ClusterClient
from sparkstorm.client.looks.traces import ENDED, Trace, TraceEvent
from sparkstorm.common.errors import NotAliveError, StoreUnavailableError
from sparkstorm.control_plane.insight.records import TopologyReport
from sparkstorm.control_plane.insight.sampler import ReadModel
from sparkstorm.web.otlp import TIMEOUT_S, Push, address_of, warn

LOOK_S = 5.0  # as on the page; half would see few slow messages whole, double would push them late
_REST_S = 1.0  # between two looks, and while no topology runs
_MOST = 200  # traces of one look; at some 50 messages a second there are 250
_NS_PER_US = 1_000
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("sparkstorm", __version__)


class TracePush(Push):
    """Push of the traces of messages that ended during a look."""

    what = "traces"

    def __init__(
        self,
        model: ReadModel,
        opened: Callable[[], ClusterClient],
        endpoint: str,
        look_s: float = LOOK_S,
        say: Callable[[str], None] = warn,
    ) -> None:
        super().__init__(address_of(endpoint, self.what), _REST_S, say)
        self._model = model
        self._opened = opened
        self._client: ClusterClient | None = None
        self._look_s = look_s
        self._last = ""
        self._exporter = OTLPSpanExporter(
            endpoint=self.address, timeout=TIMEOUT_S, compression=Compression.Gzip
        )

    def push(self) -> bool:
        """Follow messages of the next topology, and push those that ended; True as well where
        there was nothing to push.
        """
        try:
            followed = self._followed()
        except (NotAliveError, StoreUnavailableError):
            return True  # the page says so already
        return not followed or self._exporter.export(followed) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """End the exporter and the connection; a look that is under way ends with an error."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        if self._client is not None:
            self._client.close()

    def _followed(self) -> list[ReadableSpan]:
        """Return the spans of a look at the topology whose turn it is, in the order of their
        ids.
        """
        ids = sorted(self._model.cluster().topologies)
        if not ids:
            return []
        self._last = next((topology_id for topology_id in ids if topology_id > self._last), ids[0])
        view = self._model.topology(self._last)
        if self._client is None:
            self._client = self._opened()
        traces = self._client.topology(view.id).traces(self._look_s, view.spouts_per_s)
        ended = [trace for trace in traces if any(event.what in ENDED for event in trace.events)]
        return list(spans_of(view, ended[:_MOST]))


def spans_of(view: TopologyReport, traces: Iterable[Trace]) -> Iterator[ReadableSpan]:
    """Yield the spans of traces: for each a root span, then one for each event."""
    resource = Resource.create(
        {
            "service.name": view.name,
            "service.namespace": "sparkstorm",
            "service.instance.id": view.id,
            "service.version": __version__,
        }
    )
    for trace in traces:
        trace_id = _id(16, view.id, trace.root)
        spout = next(event.component for event in trace.events if event.what == "emitted")
        top = SpanContext(trace_id, _id(8, view.id, trace.root), False, _SAMPLED)
        yield ReadableSpan(
            f"message of {spout}",
            top,
            resource=resource,
            attributes=_named(root=trace.root),
            kind=SpanKind.PRODUCER,
            status=Status(StatusCode.ERROR) if trace.has_failed else Status(StatusCode.OK),
            start_time=trace.began_us * _NS_PER_US,
            end_time=(trace.began_us + trace.took_us) * _NS_PER_US,
            instrumentation_scope=_SCOPE,
        )
        for number, event in enumerate(trace.events):
            context = SpanContext(
                trace_id, _id(8, view.id, trace.root, str(number)), False, _SAMPLED
            )
            yield _span(event, context, top, resource)


def _named(**attributes: str | int) -> dict[str, str | int]:
    """Return attributes under names of ours: OpenTelemetry asks for a prefix."""
    return {f"sparkstorm.{name}": value for name, value in attributes.items()}


def _span(
    event: TraceEvent, context: SpanContext, parent: SpanContext, resource: Resource
) -> ReadableSpan:
    has_failed = event.what in ("failed", "given up")
    attributes = _named(component=event.component, task=event.task, worker=event.worker)
    if event.source:
        attributes |= _named(source=event.source)
    return ReadableSpan(
        f"{event.component} {event.what}",
        context,
        parent,
        resource,
        attributes,
        [SpanEvent("commit", timestamp=event.committed_us * _NS_PER_US)],
        kind=SpanKind.PRODUCER if event.what == "emitted" else SpanKind.CONSUMER,
        status=Status(StatusCode.ERROR, event.text) if has_failed else Status(StatusCode.OK),
        start_time=event.began_us * _NS_PER_US,
        end_time=event.ended_us * _NS_PER_US,
        instrumentation_scope=_SCOPE,
    )


def _id(size: int, *parts: str) -> int:
    """Return an id of so many bytes, the same for the same parts."""
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=size).digest()
    return int.from_bytes(digest, "big")
