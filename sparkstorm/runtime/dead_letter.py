"""Owns the record of an input that was given up: where, whose, what, after how many tries and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkstorm.errors import StoreInconsistentError
from sparkstorm.model.codec import Codec


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One entry of a topology's dead-letter stream."""

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

    def encode(self, codec: Codec) -> bytes:
        """Bytes for the commit."""
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
