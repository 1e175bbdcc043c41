"""Traces: what happens to a sample of messages while a client looks, hop by hop, with times of the
hosts' clocks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkstorm.client.looks.taps import Sample, TapStore, samples
from sparkstorm.data_plane.transport.keys import LOOKS, TRACE_BITS, trace_name

_WANTED_PER_S = 50.0  # messages: enough to find a slow one in a few seconds, few enough for a tap
_MOST_TRACES = 1_000
_LEAST_S = 2.0  # workers look for taps once a second, and publish once a second
# for the answer of a worker that is inside a call, or starts; half is a busy host's pause
_PATIENCE_S = 10.0
_ROOT = re.compile(r"[0-9a-f]{16}", re.ASCII)
_LAST_US = 2**53  # in nanoseconds it fits the 64 bits of OTLP, in JSON a number of a browser
ENDED = ("acked", "given up")


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Action of a task on rows of a message, committed at `committed_us` (microseconds since the
    epoch).
    """

    what: str  # "emitted", "executed", "held", "failed", "acked", "given up"
    component: str
    task: int
    worker: str
    source: str  # of an input: "component/stream"
    began_us: int  # of the call that had the row, with others
    ended_us: int
    committed_us: int
    text: str = ""  # of a failure


@dataclass(frozen=True, slots=True)
class Trace:
    """Events of one message, in the order of their ends."""

    root: str
    events: tuple[TraceEvent, ...]

    @property
    def began_us(self) -> int:
        """Return the first moment that is known."""
        return min(event.began_us for event in self.events)

    @property
    def took_us(self) -> int:
        """Return the time from the first to the last moment that is known."""
        return max(event.committed_us for event in self.events) - self.began_us

    @property
    def is_whole(self) -> bool:
        """Return whether its emit was seen: else it began before the look."""
        return any(event.what == "emitted" for event in self.events)

    @property
    def has_failed(self) -> bool:
        """Return whether a call failed, or the message was given up."""
        return any(event.what in ("failed", "given up") for event in self.events)


def bits_for(emitted_per_s: float | None) -> int:
    """Return the share of messages, one in 2**bits, that gives some 50 traces a second at this
    rate.
    """
    rate = emitted_per_s or 0.0
    return next((bits for bits in TRACE_BITS if rate / 2**bits <= _WANTED_PER_S), TRACE_BITS[-1])


def look(store: TapStore, seconds: float, bits: int, workers: Iterable[str] = ()) -> list[Trace]:
    """Trace one message in 2**bits for so many seconds; those that failed come first, then the
    slowest.

    The seconds begin when all workers ("node:port") have answered that they look, at most ten after
    the call: a worker asks for taps once a second, and later where its processor is busy. Where half
    of them show no message, as when the rate has fallen since it was read, all messages are traced.
    """
    events_by_root: dict[str, list[TraceEvent]] = {}
    half_s = max(seconds, _LEAST_S) / 2
    _gather(store, bits, half_s, half_s, {*workers}, events_by_root)
    if not events_by_root and bits != TRACE_BITS[0]:
        _gather(store, TRACE_BITS[0], half_s, 0.0, {*workers}, events_by_root)
    return traces_of(events_by_root)


def _gather(
    store: TapStore,
    bits: int,
    first_s: float,
    more_s: float,
    waiting: set[str],
    events_by_root: dict[str, list[TraceEvent]],
) -> None:
    """Add the events of a tap: of the first seconds, and of more where these had any."""
    began = time.monotonic()
    # None until the workers look
    answered: float | None = None
    for sample in samples(store, trace_name(bits)):
        if sample is not None:
            if sample.values.get("what") == LOOKS:
                waiting.discard(str(sample.values.get("worker")))
            else:
                _add(events_by_root, sample)
            continue
        now = time.monotonic()
        if answered is None and (not waiting or now - began >= _PATIENCE_S):
            answered = now
        lasts_s = first_s + more_s if events_by_root or bits == TRACE_BITS[0] else first_s
        if answered is not None and now - answered >= lasts_s:
            return


def traces_of(events: Mapping[str, Iterable[TraceEvent]]) -> list[Trace]:
    """Return traces from events by root: of those with an emit, the failed first, then the
    slowest.
    """
    made = [
        Trace(root, tuple(sorted(several, key=lambda event: event.ended_us)))
        for root, several in events.items()
    ]
    return sorted(
        (trace for trace in made if trace.is_whole),
        key=lambda trace: (not trace.has_failed, -trace.took_us, trace.root),
    )


def _add(events_by_root: dict[str, list[TraceEvent]], sample: Sample) -> None:
    """Add an event; values that no worker writes are passed over."""
    root = sample.values.get("root")
    event = _event(sample.task, sample.values)
    if event is None or type(root) is not str or not _ROOT.fullmatch(root):
        return
    if root in events_by_root or len(events_by_root) < _MOST_TRACES:
        events_by_root.setdefault(root, []).append(event)


def _event(task: int, values: Mapping[str, Any]) -> TraceEvent | None:
    texts = [values.get(name) for name in ("what", "component", "worker", "source", "text")]
    times = [values.get(name) for name in ("began_us", "ended_us", "committed_us")]
    if any(type(text) is not str for text in texts) or any(
        type(moment) is not int for moment in times
    ):
        return None
    what, component, worker, source, text = map(str, texts)
    began_us, ended_us, committed_us = (int(moment or 0) for moment in times)
    if not all(0 <= moment <= _LAST_US for moment in (began_us, ended_us, committed_us)):
        return None
    return TraceEvent(what, component, task, worker, source, began_us, ended_us, committed_us, text)


def spans(trace: Trace) -> list[dict[str, Any]]:
    """Return a trace's events as lines of a timeline: milliseconds since its begin."""
    zero = trace.began_us
    return [
        {
            "what": event.what,
            "where": f"{event.component}#{event.task}",
            "worker": event.worker,
            "source": event.source,
            "began_ms": (event.began_us - zero) / 1000,
            "took_ms": (event.ended_us - event.began_us) / 1000,
            "committed_ms": (event.committed_us - zero) / 1000,
            "text": event.text,
        }
        for event in trace.events
    ]
