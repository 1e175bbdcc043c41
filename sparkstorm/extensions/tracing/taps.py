"""Taps of a worker: samples of the rows that its tasks emit, published after their commit while a
client looks at a stream.

A client opens a tap (a key in the store that expires); the worker asks once a second whether one is
open for a stream of its tasks. Without one, nothing else happens.

Law: a tap shows committed rows only, and changes nothing: samples may be lost, a row never is. Left
out: a request to Nimbus, by which each look of a client would change the assignment (decision 30),
and Storm's debug stream to an event logger, its own bolt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from sparkstorm.common.errors import CodecError, SparkStormError
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.tagged import to_json
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.pieces import is_piece, unfold
from sparkstorm.data_plane.executor.task_observer import TaskObserver
from sparkstorm.data_plane.transport.base import Transport
from sparkstorm.data_plane.transport.keys import tap_name

# Rows of one stream that a worker publishes at a time. More cannot be read in a tenth of a second;
# half shows less of a burst, double doubles what a full store must take.
MOST_ROWS = 50
_EVERY_MS = 100
# Of an emitter's log: of streams that share it the rarer one may lie further back. Half of it
# misses more of those, double costs a turn twice the walk while a tap is open.
_SCANNED = 200
# Of one row; a screen holds less.
_MOST_CHARACTERS = 16 * 1024


class Tapped(Protocol):
    """A task whose rows can be shown."""

    emitter: Emitter
    observers: list[TaskObserver]


class OtherTap(Protocol):
    """Tap that shows something else than the rows of a stream: traces, or stacks."""

    names: Collection[str]

    def follow(self, names: Collection[str]) -> None:
        """Begin or end to gather, as these of its names are open; called about once a second."""

    def take(self) -> Mapping[str, Sequence[bytes]]:
        """Return what was gathered since the last call, by name."""


class Taps(TaskObserver):
    """Open taps on the streams of some tasks; it observes the tasks whose streams are looked at."""

    def __init__(
        self,
        tasks: Iterable[Tapped],
        transport: Transport,
        now_ms: Callable[[], int],
        others: Sequence[OtherTap] = (),
    ) -> None:
        self._transport = transport
        self._now_ms = now_ms
        self._others = others
        self._tasks_by_name: dict[str, list[Tapped]] = {}
        for task in tasks:
            for stream in task.emitter.routes:
                if not stream.startswith("__"):
                    self._tasks_by_name.setdefault(
                        tap_name(task.emitter.component, stream), []
                    ).append(task)
        self._tapped: list[Tapped] = []
        self._fresh: dict[str, deque[str]] = {}  # of the epoch at hand
        self._committed: dict[str, deque[str]] = {}
        self._names = sorted(
            {*self._tasks_by_name, *(name for other in others for name in other.names)}
        )
        self._due_ms = 0

    def look(self, now_ms: int) -> None:
        """Ask the store which taps are open, and publish what is left."""
        self.publish(now_ms)
        try:
            open_taps = {*self._transport.open_taps(self._names)}
        except SparkStormError:  # a commit will find out what is wrong with the store
            return
        if (streams := open_taps & self._tasks_by_name.keys()) != self._fresh.keys():
            self._set(streams)
        for other in self._others:
            other.follow(open_taps.intersection(other.names))
        self.publish(now_ms)

    def emitted(self, emitter: Emitter) -> None:
        """Sample what a task has emitted since its counts were taken."""
        now_ms = self._now_ms()
        back: dict[int, int] = {}
        samples: dict[int, tuple[Any, Source]] = {}
        for rows in reversed(emitter.log[-_SCANNED:]):
            if rows is emitter.changes:
                continue
            back[id(rows)] = from_end = back.get(id(rows), 0) + 1
            if from_end <= len(rows):
                row = rows[-from_end]
                # A row that goes to several tasks is in several lists, and shown once.
                samples.setdefault(id(row), row)
        for row in reversed(samples.values()):
            self._keep(row, now_ms)

    def committed(self) -> None:
        """Take the samples of the epoch at hand for committed, and publish them if it is time."""
        for name, fresh in self._fresh.items():
            self._committed[name].extend(fresh)
            fresh.clear()
        self.publish(self._now_ms())

    def publish(self, now_ms: int) -> None:
        """Publish what was committed, ten times a second at the most."""
        if now_ms < self._due_ms:
            return
        samples: dict[str, Sequence[bytes]] = {
            name: [row.encode() for row in rows] for name, rows in self._committed.items() if rows
        }
        for other in self._others:
            samples |= other.take()
        if not samples:
            return
        # Before the call: a store that is slow is not asked more often for it.
        self._due_ms = now_ms + _EVERY_MS
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
        for task in self._tapped:
            task.observers.remove(self)
        self._tapped = list(
            {id(task): task for name in self._fresh for task in self._tasks_by_name[name]}.values()
        )
        for task in self._tapped:
            task.observers.append(self)

    def _keep(self, row: Any, now_ms: int) -> None:
        source: Source = row[2]
        fresh = self._fresh.get(tap_name(source.component, source.stream))
        if fresh is None:
            return
        if is_piece(row):
            # The newest of a batch: making tuples of all its rows would cost what the batch has
            # saved.
            row = (row[0].slice(max(0, row[0].num_rows - MOST_ROWS)), *row[1:])
        for values, _, _ in unfold([row]):
            fresh.append(_text(source, values, now_ms))


def _text(source: Source, values: Any, now_ms: int) -> str:
    try:
        text = to_json({"task": source.task, "time_ms": now_ms, "values": _named(source, values)})
    except CodecError as error:
        text = to_json({"task": source.task, "time_ms": now_ms, "problem": str(error)[:200]})
    if len(text) > _MOST_CHARACTERS:
        text = to_json(
            {
                "task": source.task,
                "time_ms": now_ms,
                "problem": f"a row of {len(text):,} characters is not shown",
            }
        )
    return text


def _named(source: Source, values: Any) -> Mapping[str, Any]:
    return dict(zip(source.fields, values, strict=True))
