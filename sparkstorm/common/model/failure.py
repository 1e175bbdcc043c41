"""Failure: record of why an input or a piece of user code failed, the same in frames, journals,
dead letters and errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from sparkstorm.common.errors import show

MAX_TEXT = 500
MAX_TRACEBACK = 4_000
_PLACE = re.compile(r" (\([^()/\n]*, line \d+\))$")
_ERROR = re.compile(r"[A-Za-z_]\w*(?=: |$)")
_KNOWN_ENDINGS = ("Error", "Exception", "Exit", "Interrupt", "Warning", "Iteration")
_PREFIXED = re.compile(rf": ([A-Za-z_]\w*(?:{'|'.join(_KNOWN_ENDINGS)}))(?=: | \()")
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


class FailureKind(StrEnum):
    """Kind of a failure: the call, the bolt's verdict, time, or a process."""

    RAISED = "raised"
    """User code raised."""
    FAILED = "failed"
    """The bolt called `collector.fail`."""
    TIMED_OUT = "timed-out"
    """A tree was not done within topology.message.timeout.secs."""
    KILLED = "killed"
    """Worker processes died while they executed this input."""
    HUNG = "hung"
    """A worker made no progress within user code."""
    REPORTED = "reported"
    """User code called `collector.report_error`; nothing failed by it."""
    PARKED = "parked"
    """An input was given up after its tries: its dead letter has the details."""
    SYSTEM = "system"
    """A worker or Nimbus reports: a death, damaged bytes, a limit that was reached."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Key by which failures are grouped: component, type of error, and line of user code (empty if
    there is none).
    """

    component: str
    error: str
    place: str

    def __str__(self) -> str:
        return f"{self.component}: {self.error}{' ' if self.place else ''}{self.place}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason of a failure.

    `text` is one sentence that ends with the user's line; `traceback` has the frames of user code,
    outermost first. `worker` is "node:port", `code_version` the sha256 of the topology's code.
    `waited_ms`, in milliseconds: "tree" since the oldest root was emitted, "stream" in its task's
    stream, "retries" since its first failure here.
    """

    kind: FailureKind
    text: str
    component: str = ""
    task: int = -1
    host: str = ""
    worker: str = ""
    time_ms: int = 0
    traceback: str = ""
    code_version: str = ""
    waited_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def cause(self) -> Cause:
        """Group of the failure: its type and line without the text, which may contain the value."""
        match = _PLACE.search(self.text)
        error = _ERROR.match(self.text)
        if error is not None and (match is not None or error[0].endswith(_KNOWN_ENDINGS)):
            return Cause(self.component, error[0], match[1] if match else "")
        if (
            match is not None
            and self.kind is not FailureKind.SYSTEM
            and (named := _PREFIXED.search(self.text))
        ):
            # of a tick, or of a window with its key
            return Cause(self.component, named[1], match[1])
        return Cause(self.component, _VARYING.sub("*", self.text)[:100], "")

    @property
    def place(self) -> str:
        """Worker's "node:port", with its host where that has another name; empty when unknown.

        Storm shows host and port: here several nodes of a host have the same ports.
        """
        if not (self.worker and self.host):
            return self.worker or self.host
        return (
            self.worker
            if self.worker.rpartition(":")[0] == self.host
            else f"{self.worker} ({self.host})"
        )

    def to_row(self) -> list[Any]:
        """Return the record as values of the codec; `from_row` reads it back."""
        return [str(self.kind), *(getattr(self, name) for name in _PLAIN[1:]), dict(self.waited_ms)]

    @classmethod
    def from_row(cls, row: Any) -> Failure:
        """Read a row from outside; ValueError when it is none."""
        if (
            type(row) is not list
            or len(row) != len(_KINDS)
            or any(type(v) is not k for v, k in zip(row, _KINDS, strict=True))
        ):
            raise ValueError(f"{show(row)} is no failure")
        if any(type(name) is not str or type(ms) is not int for name, ms in row[-1].items()):
            raise ValueError(f"{show(row[-1])} are no times by place")
        return cls(FailureKind(row[0]), *row[1:])


_PLAIN = tuple(failure_field.name for failure_field in fields(Failure))[:-1]
_KINDS = (str, str, str, int, str, str, int, str, str, dict)


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one cause: how many since the topology began, and the newest that is kept (None:
    none is).
    """

    cause: Cause
    count: int
    newest: Failure | None


def group_failures(counts: Mapping[Cause, int], failures: Iterable[Failure]) -> list[FailureGroup]:
    """Return groups, the largest first; a cause that no worker counts (a death) counts its kept
    records.
    """
    newest: dict[Cause, Failure] = {}
    records: dict[Cause, int] = {}
    for failure in sorted(failures, key=lambda failure: failure.time_ms):
        if failure.kind is not FailureKind.PARKED:
            newest[failure.cause] = failure
            records[failure.cause] = records.get(failure.cause, 0) + 1
    groups = [
        FailureGroup(cause, count, newest.get(cause))
        for cause, count in {**records, **counts}.items()
    ]
    return sorted(groups, key=lambda group: (-group.count, str(group.cause)))


def killed(deaths: int, end: str = "") -> Failure:
    """Return the failure of an input that has killed its worker so often; `end`: how the last one
    ended.
    """
    return Failure(
        FailureKind.KILLED,
        f"killed its worker {deaths} times{'; the last: ' if end else ''}{end}"[:MAX_TEXT],
    )


def pack_failures(failures: Mapping[int, Failure]) -> list[Any]:
    """Return failures by root as values of the codec; equal tracebacks are kept once."""
    if not failures:
        return []
    tracebacks: dict[str, int] = {}
    place_by_id: dict[int, int] = {}
    rows: list[list[Any]] = []
    place_by_root: dict[int, int] = {}
    column = _PLAIN.index("traceback")
    for root, failure in failures.items():
        index = place_by_id.get(id(failure))
        if index is None:
            index = place_by_id[id(failure)] = len(rows)
            row = failure.to_row()
            row[column] = tracebacks.setdefault(failure.traceback, len(tracebacks))
            rows.append(row)
        place_by_root[root] = index
    return [list(tracebacks), rows, place_by_root]


def unpack_failures(value: Any, root_limit: int) -> dict[int, Failure]:
    """Read failures by root from outside; ValueError when they are none."""
    if value == []:
        return {}
    if type(value) is not list or [type(part) for part in value] != [list, list, dict]:
        raise ValueError("failures are not tracebacks, rows and places")
    tracebacks, rows, place_by_root = value
    if any(type(root) is not int or not 0 < root < root_limit for root in place_by_root):
        raise ValueError("failures are not kept by root")
    failures = list(_with_tracebacks(tracebacks, rows))
    if any(
        type(index) is not int or not 0 <= index < len(failures) for index in place_by_root.values()
    ):
        raise ValueError("a root has no failure")
    return {root: failures[index] for root, index in place_by_root.items()}


def _with_tracebacks(tracebacks: list[Any], rows: Iterable[Any]) -> Iterable[Failure]:
    column = _PLAIN.index("traceback")
    for row in rows:
        if (
            type(row) is not list
            or len(row) != len(_KINDS)
            or type(row[column]) is not int
            or not 0 <= row[column] < len(tracebacks)
        ):
            raise ValueError(f"{show(row)} is no failure")
        yield Failure.from_row([*row[:column], tracebacks[row[column]], *row[column + 1 :]])
