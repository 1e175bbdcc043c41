"""Protocols of the collectors through which user code emits, acks and fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sparkstorm.common.model.tuples import Tuple

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Values = Sequence[Any]


class BasicOutputCollector(Protocol):
    """Collector of a bolt that acks by itself: what is emitted is anchored to the input."""

    def emit(self, values: Values, stream: str = "default") -> None:
        """Send values to every subscriber of a stream."""

    def emit_direct(self, task: int, values: Values, stream: str = "default") -> None:
        """Send values to one task of a direct stream's subscriber."""

    def report_error(self, error: BaseException | str) -> None:
        """Record an error of this component without failing anything."""


class OutputCollector(Protocol):
    """Collector of a Bolt: anchors, acks and fails by hand, from any thread."""

    def emit(
        self,
        values: Values,
        anchors: Tuple | Sequence[Tuple] | None = None,
        stream: str = "default",
    ) -> None:
        """Send values as a tuple that descends from all roots of the anchors; without anchors it is
        untracked.
        """

    def emit_direct(
        self,
        task: int,
        values: Values,
        anchors: Tuple | Sequence[Tuple] | None = None,
        stream: str = "default",
    ) -> None:
        """Send values to one task of a direct stream's subscriber."""

    def ack(self, tup: Tuple) -> None:
        """Mark an input as done."""

    def reset_timeout(self, tup: Tuple) -> None:
        """Let an input's topology.message.timeout.secs begin anew (Storm's resetTimeout)."""

    def fail(self, tup: Tuple, reason: str | BaseException = "") -> None:
        """Mark an input as failed; what `execute` emitted for it is dropped if not committed yet.
        An exception's traceback is in the dead letter.
        """

    def report_error(self, error: BaseException | str) -> None:
        """Record an error of this component without failing anything."""


class SpoutOutputCollector(Protocol):
    """Collector of a spout: a tuple with a message id is tracked, and the id comes back in ack or
    fail.
    """

    def emit(self, values: Values, message_id: Any = None, stream: str = "default") -> None:
        """Send values to every subscriber of a stream."""

    def emit_batch(
        self, batch: RecordBatch, message_id: Any = None, stream: str = "default"
    ) -> None:
        """Send every row of an Arrow batch as one message, acked when all rows are done."""

    def emit_direct(
        self, task: int, values: Values, message_id: Any = None, stream: str = "default"
    ) -> None:
        """Send values to one task of a direct stream's subscriber."""

    def keep_position(self, message_id: Any) -> None:
        """Have the position committed though nothing is emitted; `ack` gets the id then."""

    def report_error(self, error: BaseException | str) -> None:
        """Record an error of this component without failing anything."""
