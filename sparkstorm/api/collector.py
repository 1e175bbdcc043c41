"""Protocols of the collectors through which user code emits, acks and fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sparkstorm.common.model.tuples import Tuple

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Values = Sequence[Any]


class BasicOutputCollector(Protocol):
    """Collector of a bolt that acks by itself: everything emitted is anchored to the input being
    executed.
    """

    def emit(self, values: Values, stream: str = "default") -> None:
        """Send values to every subscriber of a stream."""

    def emit_direct(self, task: int, values: Values, stream: str = "default") -> None:
        """Send values to one task of a direct stream's subscriber."""

    def report_error(self, error: BaseException | str) -> None:
        """Record an error of this component without failing anything."""


class OutputCollector(Protocol):
    """Collector of a Bolt: emits with given anchors, acks and fails by hand. It may be used from
    any thread.
    """

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
        """Let topology.message.timeout.secs of an input that is still worked on begin anew (Storm's
        resetTimeout).
        """

    def fail(self, tup: Tuple, reason: str | BaseException = "") -> None:
        """Mark an input as failed; what `execute` emitted for it is dropped if it was not committed
        yet. With an exception, its dead letter has the traceback.
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
        """Send every row of an Arrow batch; they are one message, acked when all of them are
        done.
        """

    def emit_direct(
        self, task: int, values: Values, message_id: Any = None, stream: str = "default"
    ) -> None:
        """Send values to one task of a direct stream's subscriber."""

    def keep_position(self, message_id: Any) -> None:
        """Have the source's position committed though nothing is emitted; `ack` gets the id once it
        is.
        """

    def report_error(self, error: BaseException | str) -> None:
        """Record an error of this component without failing anything."""
