"""Journey of one message: where its tree is now, by what the store keeps of it.

A message is named by its root, in 16 hexadecimal digits, or by its message id while it is open. Its
spout's journal says when it was emitted, the tasks' streams and held inputs where its rows wait,
and the dead letters which of them were given up.

Law: a look changes nothing. Its reads follow each other, so that a row which moves meanwhile may be
seen twice, or nowhere. Left out: a history of every message, which would be a write for every hop.
What is over is shown by dead letters, and by traces of a sample (`client/looks/traces.py`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Any, Protocol

from sparkstorm.client.task_records import TaskReader, entries_of
from sparkstorm.common.errors import MalformedFrameError, NotAliveError, StoreInconsistentError
from sparkstorm.common.model.assignment import TaskInfo
from sparkstorm.common.model.dead_letter import REPLAYED_FIELDS, DeadLetter
from sparkstorm.common.model.names import counted, shown
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.roots import split
from sparkstorm.common.model.topology import stream_of
from sparkstorm.common.model.tuples import Roots, Source, each_root
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.acking.pending import MessageOutcome, Pending
from sparkstorm.data_plane.task_kit.held import unpack_held
from sparkstorm.data_plane.task_kit.journal import whole_and_deltas
from sparkstorm.data_plane.transport.base import TaskInputs, entry_order
from sparkstorm.data_plane.transport.frames import ROWS, RowFrame, decode, kind_of

MOST_ENTRIES = 500
"""Entries of one task's stream that are looked at: an entry holds 8,192 rows at most."""
MOST_LETTERS = 10_000
_MOST_VALUE = 200
_ROOT = re.compile(r"[0-9a-f]{16}", re.ASCII)
Letters = Callable[[], Iterator[tuple[str, DeadLetter | None, bytes]]]


class InputReader(TaskReader, Protocol):
    """Part of a transport's Reader."""

    def inputs(self, task: int, limit: int) -> TaskInputs:
        """Return what waits for a task."""


@dataclass(frozen=True, slots=True)
class Message:
    """An open message of a spout."""

    root: str
    message_id: str
    component: str
    task: int
    emit_ms: int


@dataclass(frozen=True, slots=True)
class Stay:
    """Rows of a message's tree at one task: they wait in its stream, or it holds them, or tries
    them again.
    """

    component: str
    task: int
    state: str  # "waits", "held" or "tried again"
    source: str  # "component/stream"
    rows: int
    since_ms: int | None  # when it was sent; of held rows None
    attempts: int = 0
    failure: str = ""
    values: Mapping[str, str] = field(default_factory=dict)  # of the first row


@dataclass(frozen=True, slots=True)
class Parked:
    """An input of the tree that was given up."""

    id: str
    component: str
    task: int
    time_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Journey:
    """All that the store keeps of one message."""

    topology_id: str
    root: str
    now_ms: int
    message: Message | None  # None: it is not open
    verdict: str = ""  # "acked" or "failed" while the callback of its spout is due
    failure: str = ""
    stays: tuple[Stay, ...] = ()
    parked: tuple[Parked, ...] = ()
    is_whole: bool = True  # False: a backlog or the dead letters were too many to look at all

    @property
    def sentence(self) -> str:
        """Return in one sentence where the message is."""
        more = "" if self.is_whole else "; not everything was looked at: too much waits"
        return f"message {self.root} {self._state()}{more}"

    def _state(self) -> str:
        if self.message is not None:
            began = f"of {self.message.component}#{self.message.task} is open for {self._age(self.message.emit_ms)}"
            if self.stays:
                return f"{began}: {'; '.join(map(_stay_text, self.stays))}"
            if not self.is_whole:
                return f"{began}; none of its rows is among those that were looked at"
            return f"{began}, and none of its rows waits in the store: a worker has them at hand, or its verdict is on its way"
        # of at-most-once delivery, or its spout was called back while other rows of it go on
        if self.stays:
            return f"is not open any more, and rows of it go on: {'; '.join(map(_stay_text, self.stays))}"
        if self.verdict:
            reason = f": {self.failure}" if self.failure else ""
            return f"has {self.verdict}{reason}; its spout is still to be told"
        if self.parked:
            last = self.parked[-1]
            return f"was given up by {last.component}#{last.task} {self._age(last.time_ms)} ago: {last.reason}"
        return "left nothing in the store: it was acked, or it failed without a dead letter, or it never was"

    def _age(self, since_ms: int) -> str:
        return f"{max(0, self.now_ms - since_ms) / 1000:,.1f} s"


def _stay_text(stay: Stay) -> str:
    rows = counted(stay.rows, "row")
    where = f"{stay.component}#{stay.task}"
    if stay.state == "waits":
        return f"{rows} from {stay.source} {'waits' if stay.rows == 1 else 'wait'} for {where}"
    if stay.state == "held":
        return f"{rows} from {stay.source} {'is' if stay.rows == 1 else 'are'} held by {where}"
    return f"{rows} from {stay.source} failed {counted(stay.attempts, 'time')} at {where} and is tried again: {stay.failure}"


class Journeys:
    """Messages of one topology."""

    def __init__(
        self,
        topology_id: str,
        reader: InputReader,
        tasks: Mapping[int, TaskInfo],
        outline: TopologyOutline,
        letters: Letters,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._id = topology_id
        self._reader = reader
        self._tasks = tasks
        self._outline = outline
        self._letters = letters
        self._now_ms = now_ms
        self._codec = Codec(is_lenient=True)

    def open(self, limit: int = 20) -> list[Message]:
        """Return the messages that are open, the oldest first."""
        return nsmallest(limit, self._open(), key=lambda message: message.emit_ms)

    def find(self, name: str) -> Journey:
        """Return the journey of the message with this root, or of the open one with this message
        id.

        NotAliveError when no open message has the id; a root that is not known gives an empty
        journey.
        """
        if _ROOT.fullmatch(name):
            return self._journey(split(int(name, 16) & (1 << 63) - 1))
        matching = [message for message in self._open() if message.message_id == name]
        if not matching:
            raise NotAliveError(
                f"no open message of {self._id} has the id {shown(name):.80}: `sparkstorm journey NAME` lists those that are open; "
                "one that is over is found by its root, which its dead letters and traces have"
            )
        return self._journey(int(min(matching, key=lambda message: message.emit_ms).root, 16))

    def _open(self) -> Iterator[Message]:
        for task, info in self._tasks.items():
            if info.kind == "spout":
                yield from self._of_spout(task, info)[0]

    def _of_spout(self, task: int, info: TaskInfo) -> tuple[list[Message], list[MessageOutcome]]:
        """Return a spout task's open messages, and those whose callbacks are due."""
        _, entries = entries_of(self._reader, task)
        pending = Pending()
        try:
            pending.load(*whole_and_deltas(entries, "p"))
        except MalformedFrameError as error:
            raise StoreInconsistentError(
                f"the open messages of task {task} cannot be read: {error}"
            ) from error
        opened = [
            Message(root_text(root), _text(message_id), info.component_id, task, emit_ms)
            for root, message_id, emit_ms in pending.messages()
        ]
        return opened, pending.take_callbacks()

    def _journey(self, root: int) -> Journey:
        message = None
        verdict = ""
        failure = ""
        is_whole = True
        stays: list[Stay] = []
        for task, info in self._tasks.items():
            if info.kind == "spout":
                opened, outcomes = self._of_spout(task, info)
                message = next(
                    (candidate for candidate in opened if candidate.root == root_text(root)),
                    message,
                )
                for outcome in outcomes:
                    if split(outcome.root) == root:
                        verdict = "acked" if outcome.acked else "failed"
                        failure = "" if outcome.failure is None else outcome.failure.text
            elif not info.component_id.startswith("__"):
                inputs = self._reader.inputs(task, MOST_ENTRIES)
                is_whole &= all(
                    len(part.entries) < MOST_ENTRIES for part in (inputs, *inputs.foreign)
                )
                stays += self._stays(root, task, info.component_id, inputs)
        parked, is_all = self._parked(root)
        now_ms = self._now_ms()
        return Journey(
            self._id,
            root_text(root),
            now_ms,
            message,
            verdict,
            failure,
            tuple(stays),
            parked,
            is_whole and is_all,
        )

    def _stays(self, root: int, task: int, component: str, inputs: TaskInputs) -> Iterator[Stay]:
        for key, data in inputs.held.items():
            held = unpack_held(self._codec, key, data)
            if _has(held.roots, root):
                source = self._source(held.sender, held.channel)
                state, text = (
                    ("held", "") if held.failure is None else ("tried again", held.failure.text)
                )
                values = _shown_values(source.fields, held.values)
                yield Stay(
                    component,
                    task,
                    state,
                    f"{source.component}/{source.stream}",
                    1,
                    None,
                    held.attempts,
                    text,
                    values,
                )
        yield from self._waiting(root, task, component, inputs)

    def _waiting(self, root: int, task: int, component: str, inputs: TaskInputs) -> Iterator[Stay]:
        for part in inputs.foreign:
            yield from self._waiting(root, task, component, part)
        passed = entry_order(inputs.cursor.entry)
        for index, (id, data) in enumerate(
            entry for entry in inputs.entries if entry_order(entry[0]) > passed
        ):
            try:
                frame = decode(self._codec, data) if kind_of(data) == ROWS else None
            except MalformedFrameError:  # its owner will put it into quarantine
                continue
            if not isinstance(frame, RowFrame) or frame.stream.startswith("__"):
                continue
            places = _places(frame, root, inputs.cursor.row if index == 0 else 0)
            if not places:
                continue
            sender = frame.senders[places[0] if len(frame.senders) > 1 else 0]
            source = self._source(sender, frame.stream)
            values = (
                {}
                if frame.batch is not None
                else _shown_values(source.fields, frame.values[places[0]])
            )
            yield Stay(
                component,
                task,
                "waits",
                f"{source.component}/{frame.stream}",
                len(places),
                entry_order(id)[0],
                values=values,
            )

    def _source(self, task: int, stream: str) -> Source:
        component = self._outline.component_by_task.get(task, "?")
        component_outline = self._outline.components.get(component)
        fields = REPLAYED_FIELDS.get(stream) or (
            component_outline.streams.get(stream_of(stream), ()) if component_outline else ()
        )
        return Source(component, task, stream, tuple(fields))

    def _parked(self, root: int) -> tuple[tuple[Parked, ...], bool]:
        looked = 0
        parked = list[Parked]()
        for id, letter, _ in islice(self._letters(), MOST_LETTERS):
            looked += 1
            if letter is not None and root in letter.roots:
                parked.append(
                    Parked(id, letter.component, letter.task, letter.time_ms, shown(letter.reason))
                )
        return tuple(parked), looked < MOST_LETTERS


def root_text(root: int) -> str:
    """Return a root as text; of a member of a batch the one by which a single message is named."""
    return f"{split(root):016x}"


def _text(message_id: Any) -> str:
    return shown(str(message_id))[:_MOST_VALUE]


def _has(roots: Roots, root: int) -> bool:
    return any(other and split(other) == root for other in each_root(roots))


def _places(frame: Any, root: int, passed: int) -> list[int]:
    """Return the places of a message's rows in a frame, of those behind `passed`."""
    if frame.batch is None:
        return [
            index
            for index, roots in enumerate(frame.roots)
            if index >= passed and _has(roots, root)
        ]
    rows = list[int]()
    row = 0
    for roots, length in zip(frame.roots, frame.lengths, strict=True):
        if _has(roots, root):
            rows += range(max(row, passed), row + length)
        row += length
    return rows


def _shown_values(fields: tuple[str, ...], values: Any) -> dict[str, str]:
    names = fields if len(fields) == len(values) else tuple(map(str, range(len(values))))
    return {
        shown(name): shown(repr(value)[:_MOST_VALUE])
        for name, value in zip(names, values, strict=True)
    }
