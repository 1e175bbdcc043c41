"""Pending inputs of a bolt: executed and waiting for an ack, or failed and waiting for their next try.

They leave the stream (its cursor moves on) and live under {topology}:held:<task>, one field each, until acked or parked.
"""

from __future__ import annotations

from typing import Any

from sparkstorm.errors import MalformedFrameError, StoreInconsistentError
from sparkstorm.model.failure import Failure
from sparkstorm.model.tuples import Roots, Tuple
from sparkstorm.model.values.codec import Codec
from sparkstorm.transport.frames import ID_LIMIT
from sparkstorm.worker.epoch import as_roots
from sparkstorm.worker.tasks.inbox import FindSource


class PendingInput:
    """One input, its edge id (0: not drawn yet), tries so far, and when it is due again (None: user code has it)."""

    __slots__ = ("tuple", "edge", "attempts", "due_ms", "born_ms", "failure", "key", "is_stored", "since_us")

    def __init__(self, tup: Tuple, edge: int, born_ms: int, key: str) -> None:
        self.tuple = tup
        self.edge = edge
        self.attempts = 0
        self.due_ms: int | None = None
        self.born_ms = born_ms
        self.failure: Failure | None = None  # of its last try
        self.key = key
        self.is_stored = False
        self.since_us = 0  # when its first execute in this process began; 0 for one that was restored

    def encode(self, codec: Codec) -> bytes:
        """The record that brings this input back after a crash."""
        tup = self.tuple
        failure = None if self.failure is None else self.failure.to_row()
        roots = list(tup.roots) if type(tup.roots) is tuple else tup.roots
        return codec.pack(
            [tup.source.task, tup.source.channel, list(tup.values), roots, self.edge, self.attempts, self.born_ms, failure]
        )


def decode_held(codec: Codec, key: str, data: bytes, find_source: FindSource, now_ms: int) -> PendingInput:
    """A stored input; it is due at once, in the order of the keys."""
    fields: Any = codec.unpack(data)
    try:
        task, stream, values, roots, edge, attempts, born_ms, failure = fields
        source = find_source(task, stream)
        if type(values) is not list or len(values) != len(source.fields):
            raise ValueError(f"its values are not those of the fields {', '.join(source.fields)}")
        if any(type(number) is not int for number in (edge, attempts, born_ms)) or not 0 <= edge < ID_LIMIT:
            raise ValueError("its edge, tries or birth are no whole numbers")
        held = PendingInput(Tuple(tuple(values), _checked_roots(roots), source), edge, born_ms, key)
        held.attempts, held.failure = attempts, None if failure is None else Failure.from_row(failure)
    except (TypeError, ValueError, MalformedFrameError) as error:
        raise StoreInconsistentError(f"held input '{key}' is not a record of ours: {error}") from error
    held.due_ms, held.is_stored = now_ms, True
    return held


def _checked_roots(roots: Any) -> Roots:
    several = roots if type(roots) is list else [roots]
    if any(type(root) is not int or not 0 <= root < ID_LIMIT for root in several):
        raise ValueError("its roots are no ids")
    return as_roots(roots)
