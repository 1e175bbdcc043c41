"""Owns what user code may ask of a collector; the concrete ones belong to the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sparkstorm.model.tuples import Tuple

Values = Sequence[Any]


class BasicOutputCollector(Protocol):
    """Emits anchored to the input being executed."""

    def emit(self, values: Values, stream: str = "default") -> None:
        """Send values to every subscriber of a stream."""

    def emit_direct(self, task: int, values: Values, stream: str = "default") -> None:
        """Send values to one task of a direct stream's subscriber."""

    def report_error(self, error: BaseException | str) -> None:
        """Record an error of this component without failing anything."""


class OutputCollector(Protocol):
    """Emits with anchors of the caller's choice; acks and fails by hand, from any thread."""

    def emit(self, values: Values, anchors: Tuple | Sequence[Tuple] | None = None, stream: str = "default") -> None:
        """Send values; the new tuple descends from every anchor's roots, from none it is untracked."""

    def emit_direct(
        self, task: int, values: Values, anchors: Tuple | Sequence[Tuple] | None = None, stream: str = "default"
    ) -> None:
        """Send values to one task of a direct stream's subscriber."""

    def ack(self, tup: Tuple) -> None:
        """This input is done."""

    def fail(self, tup: Tuple, reason: str = "") -> None:
        """This input failed; what `execute` emitted for it is thrown away if it has not been committed yet."""

    def report_error(self, error: BaseException | str) -> None:
        """Record an error of this component without failing anything."""


class SpoutOutputCollector(Protocol):
    """Emits new roots; a message id asks for tracking and names the tuple in ack and fail."""

    def emit(self, values: Values, message_id: Any = None, stream: str = "default") -> None:
        """Send values to every subscriber of a stream."""

    def emit_direct(self, task: int, values: Values, message_id: Any = None, stream: str = "default") -> None:
        """Send values to one task of a direct stream's subscriber."""

    def report_error(self, error: BaseException | str) -> None:
        """Record an error of this component without failing anything."""
