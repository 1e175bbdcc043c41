"""Taps of a worker: samples of the rows that its tasks emit, published after their commit while a client looks at a stream.

A client opens a tap (a key in the store that expires); the worker asks once a second whether one is open for a stream of
its tasks. Without one, nothing else happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sparkstorm.clock import Clock
from sparkstorm.errors import CodecError, SparkStormError
from sparkstorm.executor.emitter import Emitter
from sparkstorm.executor.pieces import is_piece, unfold
from sparkstorm.model.tuples import Source
from sparkstorm.model.values.tagged import to_json
from sparkstorm.transport.base import Transport
from sparkstorm.transport.keys import tap_name

MOST_ROWS = 50
"""Rows of one stream that a worker publishes at a time."""
_EVERY_MS = 100
_SCANNED = 200
_MOST_CHARACTERS = 16 * 1024


class Taps:
    """Open taps on the streams of some tasks."""

    def __init__(self, emitters: Iterable[Emitter], transport: Transport) -> None:
        self._transport = transport
        streams = {(emitter.component, name) for emitter in emitters for name in emitter.routes if not name.startswith("__")}
        self._names = sorted(tap_name(component, stream) for component, stream in streams)
        self._fresh: dict[str, deque[str]] = {}  # of the epoch at hand
        self._committed: dict[str, deque[str]] = {}
        self._due_ms = 0

    def look(self, now_ms: int) -> None:
        """Ask the store which taps are open, and publish what is left."""
        self.publish(now_ms)
        try:
            found = self._transport.open_taps(self._names)
        except SparkStormError:  # a commit will find out what is wrong with the store
            return
        if found != self._fresh.keys():
            self._set(found)

    def note(self, emitter: Emitter, clock: Clock) -> None:
        """Sample what a task has emitted since its counts were taken."""
        if not self._fresh:
            return
        now_ms = clock.now_ms()
        back: dict[int, int] = {}
        samples: dict[int, tuple[Any, Source]] = {}
        for rows in reversed(emitter.log[-_SCANNED:]):
            if rows is emitter.changes:
                continue
            back[id(rows)] = place = back.get(id(rows), 0) + 1
            if place <= len(rows):
                row = rows[-place]
                samples.setdefault(id(row), row)
        for row in reversed(samples.values()):
            self._keep(row, now_ms)

    def publish(self, now_ms: int, has_committed: bool = False) -> None:
        """Publish what was committed, by now also the epoch at hand; ten times a second at the most."""
        if not self._fresh:
            return
        if has_committed:
            for name, fresh in self._fresh.items():
                self._committed[name].extend(fresh)
                fresh.clear()
        if now_ms < self._due_ms or not any(self._committed.values()):
            return
        self._due_ms = now_ms + _EVERY_MS
        samples = {name: [row.encode() for row in rows] for name, rows in self._committed.items() if rows}
        for rows in self._committed.values():
            rows.clear()
        try:
            self._transport.show(samples)
        # Samples may be lost, and a full store needs its room for others.
        except SparkStormError:
            return

    def _set(self, names: Collection[str]) -> None:
        self._fresh = {name: deque(maxlen=MOST_ROWS) for name in sorted(names)}
        self._committed = {name: deque(maxlen=MOST_ROWS) for name in self._fresh}

    def _keep(self, row: Any, now_ms: int) -> None:
        source: Source = row[2]
        kept = self._fresh.get(tap_name(source.component, source.stream))
        if kept is None:
            return
        if is_piece(row):
            row = (row[0].slice(max(0, row[0].num_rows - MOST_ROWS)), *row[1:])
        for values, _, _ in unfold([row]):
            kept.append(_text(source, values, now_ms))


def _text(source: Source, values: Any, now_ms: int) -> str:
    try:
        text = to_json({"task": source.task, "time_ms": now_ms, "values": _named(source, values)})
    except CodecError as error:
        text = to_json({"task": source.task, "time_ms": now_ms, "problem": str(error)[:200]})
    if len(text) > _MOST_CHARACTERS:
        text = to_json({"task": source.task, "time_ms": now_ms, "problem": f"a row of {len(text):,} characters is not shown"})
    return text


def _named(source: Source, values: Any) -> Mapping[str, Any]:
    return dict(zip(source.fields, values, strict=True))
