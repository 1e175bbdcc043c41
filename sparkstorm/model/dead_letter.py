"""DeadLetter: record of an input that a component could not process, and the cause by which such records are grouped."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from sparkstorm.errors import CodecError, StoreInconsistentError
from sparkstorm.model.codec import Codec
from sparkstorm.model.tagged import from_json, to_json

_PLACE = re.compile(r" (\([^()/\n]*, line \d+\))$")
_ERROR = re.compile(r"[A-Za-z_]\w*(?=: |$)")
_KNOWN_ENDINGS = ("Error", "Exception", "Exit", "Interrupt", "Warning", "Iteration")
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


@dataclass(frozen=True, slots=True)
class Cause:
    """Key by which dead letters are grouped: component, type of error, and line of user code (empty if there is none)."""

    component: str
    error: str
    place: str

    def __str__(self) -> str:
        return f"{self.component}: {self.error}{' ' if self.place else ''}{self.place}"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An input that was parked: it failed `attempts` times, and the topology went on without it."""

    component: str  # who could not process it
    task: int
    source_component: str
    source_task: int
    stream: str
    fields: tuple[str, ...]
    values: tuple[Any, ...]
    attempts: int
    reason: str
    time_ms: int

    @property
    def cause(self) -> Cause:
        """The letter's group. The text of an error may contain the value; its type and line do not."""
        place = _PLACE.search(self.reason)
        error = _ERROR.match(self.reason)
        if error is not None and (place is not None or error[0].endswith(_KNOWN_ENDINGS)):
            return Cause(self.component, error[0], place[1] if place else "")
        return Cause(self.component, _VARYING.sub("*", self.reason)[:100], "")

    def to_line(self, id: str = "") -> str:
        """Return one line of JSON, with the letter's id in its stream if it has one; `from_line` reads it back exactly."""
        return to_json({**({"id": id} if id else {}), **{each.name: getattr(self, each.name) for each in fields(self)}})

    @classmethod
    def from_line(cls, line: str) -> tuple[str, DeadLetter]:
        """Return id (empty: none) and letter of a line; StoreInconsistentError when it is not one."""
        try:
            entry = from_json(line)
            return str(entry.pop("id", "")), cls(**{**entry, "fields": tuple(entry["fields"]), "values": tuple(entry["values"])})
        except (CodecError, AttributeError, KeyError, TypeError) as error:
            raise StoreInconsistentError(f"not a line of dead letters: {error}") from error

    def encode(self, codec: Codec) -> bytes:
        """Return the bytes that a commit stores."""
        return codec.pack(
            [
                self.component,
                self.task,
                self.source_component,
                self.source_task,
                self.stream,
                list(self.fields),
                list(self.values),
                self.attempts,
                self.reason,
                self.time_ms,
            ]
        )

    @classmethod
    def decode(cls, codec: Codec, data: bytes) -> DeadLetter:
        """Read a stored entry; StoreInconsistentError when it is not one."""
        entry: Any = codec.unpack(data)
        try:
            component, task, source, source_task, stream, fields, values, attempts, reason, time_ms = entry
            return cls(
                str(component),
                int(task),
                str(source),
                int(source_task),
                str(stream),
                tuple(fields),
                tuple(values),
                int(attempts),
                str(reason),
                int(time_ms),
            )
        except (TypeError, ValueError) as error:
            raise StoreInconsistentError(f"a dead letter is no record of ours: {error}") from error
