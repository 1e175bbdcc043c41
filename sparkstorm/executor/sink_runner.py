"""Runner of a TransactionalSink: its rows, and the phases of its epochs, each of which may be tried again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.errors import CodecError, WorkerFailedError
from sparkstorm.executor.runner import FailedInput
from sparkstorm.executor.user_traceback import describe_error, failure_of
from sparkstorm.model.codec import Codec
from sparkstorm.model.tuples import Tuple

_GENERATION_BITS = 32


class SinkRunner:
    """One task of a sink between two commits of its worker.

    `last` and `prepared` are as the store has them: number of the last committed epoch, and what its `commit` needs (None: done). A
    higher generation of the store (it has lost commits) begins a new range of numbers, so that none is used twice.
    """

    def __init__(self, sink: TransactionalSink, component: str, codec: Codec, last: int, prepared: Any, generation: int) -> None:
        self.bolt = sink
        self.late_acks: list[Tuple] = []
        self.late_failures: list[FailedInput] = []
        self._component = component
        self._codec = codec
        self._epoch, self._value = last, prepared
        self._next = max(last, generation << _GENERATION_BITS) + 1
        self._is_recovered = self._is_open = self._is_prepared = False
        self._is_committed = prepared is not None  # in the store, and not yet in the target
        self._news: list[Any] | None = None  # [epoch, prepared] for the next commit

    def run(self, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Write every tuple; a failed one leaves no trace but its entry in the result."""
        failures: list[FailedInput] = []
        if not self._is_open:
            self._begin()
        write = self.bolt.write
        for tup in tuples:
            if tup.is_tick:
                continue
            try:
                write(tup)
            except (Exception, SystemExit) as error:
                failures.append((tup, failure_of(error)))
        return failures

    def unfinished(self, tuples: Sequence[Tuple]) -> list[Tuple]:
        """Inputs of a run that wait for an ack: none."""
        return []

    def forget(self, tup: Tuple) -> None:
        """Expect no ack of this input: there is none to expect."""

    @property
    def is_waiting(self) -> bool:
        """Whether the target lacks anything that was written or committed, or the store does not know that it has it."""
        return self._is_open or self._is_prepared or self._is_committed or self._news is not None

    def prepare(self) -> None:
        """End the epoch at hand, if there is one; may be called again after an error."""
        if not self._is_open:
            return
        value = self.bolt.prepare(self._next)
        if value is None:
            raise WorkerFailedError(
                f"component '{self._component}': prepare returned None; return what commit needs to make the epoch visible"
            )
        try:
            self._value = self._codec.normalise(value)
        except CodecError as error:
            raise WorkerFailedError(f"component '{self._component}': prepare returned {error}") from error
        self._epoch, self._next = self._next, self._next + 1
        self._is_open, self._is_prepared = False, True
        self._news = [self._epoch, self._value]

    def take_news(self) -> dict[str, Any]:
        """Return what the journal must say of this sink, if anything has changed."""
        news, self._news = self._news, None
        return {} if news is None else {"e": news}

    def whole(self) -> dict[str, Any]:
        """Return what the journal must say of this sink, as of now."""
        return {"e": [self._epoch, self._value]} if self._epoch else {}

    def note_commit(self) -> None:
        """Take note that the store has the epoch that was prepared."""
        self._is_committed |= self._is_prepared
        self._is_prepared = False

    def finish(self) -> None:
        """Recover after a start, or commit what the store has committed; may be called again after an error."""
        if not self._is_recovered:
            self.bolt.recover(self._epoch, self._value)
            self._is_recovered = True
        elif self._is_committed:
            self.bolt.commit(self._epoch, self._value)
        if self._is_committed:
            self._is_committed, self._value = False, None
            self._news = [self._epoch, None]

    def _begin(self) -> None:
        try:
            self.bolt.begin(self._next)
        except (Exception, SystemExit) as error:
            raise WorkerFailedError(
                f"component '{self._component}': begin({self._next}) raised: {describe_error(error)}"
            ) from error
        self._is_open = True
