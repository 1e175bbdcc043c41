"""Runner of a TransactionalSink: its rows, and the phases of its epochs, each of which may be tried
again.

Law: numbers of epochs only grow, over restarts and lost stores, and one number belongs to the same
rows for ever: so a target can distinguish a repeated commit from a new one (decision 48). Left out:
random numbers, which have no order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sparkstorm.api.sinks import RefusedRows, TransactionalSink
from sparkstorm.common.errors import CodecError, WorkerFailedError
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.runner import FailedInput, Runner
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.executor.user_traceback import (
    USER_ERRORS,
    describe_error,
    failure_of,
    raise_out_of_memory,
)

# Epochs of a generation: four thousand million, a century at one a second. With fewer a long run
# would reach the next generation's numbers.
_GENERATION_BITS = 32


def generation_of(epoch: int) -> tuple[int, int]:
    """Return the generation of the store that a sink's epoch belongs to, and its number within
    that.
    """
    return divmod(epoch, 1 << _GENERATION_BITS)


class LastEpoch(NamedTuple):
    """Stored record of a sink: the last committed epoch and what its `commit` needs (None: it is in
    the target).
    """

    number: int
    prepared: Any


class SinkStore(NamedTuple):
    """Store of a sink's runner: `kept` has the rows of an epoch that outlasts commits of the
    worker.

    They are [task, stream, values] by number of the commit. A higher generation (the store has lost
    commits) begins a new range of epoch numbers, so that none is used twice.
    """

    codec: Codec
    kept: MemoryState
    find_source: Callable[[int, str], Source]
    generation: int


class SinkRunner(Runner):
    """One task of a sink between two commits of its worker."""

    def __init__(
        self,
        sink: TransactionalSink,
        component: str,
        last: LastEpoch,
        store: SinkStore,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(sink)
        self._component = component
        self._store = store
        self._kept = store.kept
        self._now_ms = now_ms
        self._epoch, self._value = last
        self._next = max(last.number, store.generation << _GENERATION_BITS) + 1
        self._is_recovered = self._is_open = self._is_prepared = False
        self._is_committed = last.prepared is not None  # in the store, and not yet in the target
        self._news: list[Any] | None = None  # [epoch, prepared] for the next commit
        # last epochs of store and target, where the target has the newer one
        self.forgotten: tuple[int, int] | None = None
        # the journal is marked as a sink's: a savepoint waits for its rows
        self._is_known = last.number > 0
        self._flush_ms = round(sink.flush_secs * 1000)
        self._takes_many = _takes_many(sink)
        self._fresh: list[list[Any]] = []  # rows since the last commit, while the epoch goes on
        self._rows = 0
        self._due_ms = 0

    def execute_tuples(self, tuples: Sequence[Tuple]) -> list[FailedInput]:
        """Write every tuple; a failed one leaves no trace but its entry in the result."""
        failures: list[FailedInput] = []
        if not self._is_open:
            self._begin()
        # Many at once first: when one of them fails, all are written one by one to find it.
        if self._takes_many and len(tuples) > 1 and self._write_all(tuples):
            return failures
        write = self.bolt.write
        keep = self._fresh.append if self._flush_ms else None
        for tup in tuples:
            if tup.is_tick:
                continue
            try:
                write(tup)
            except USER_ERRORS as error:
                failures.append((tup, failure_of(error)))
                continue
            self._rows += 1
            if keep is not None:
                keep([tup.task, tup.stream, list(tup.values)])
        return failures

    def _write_all(self, tuples: Sequence[Tuple]) -> bool:
        """Write tuples at once; False when some row fails, which has then to be found."""
        try:
            self.bolt.write_all(tuples)
        except USER_ERRORS as error:
            raise_out_of_memory(error)
            return False
        self._rows += len(tuples)
        if self._flush_ms:
            self._fresh += [
                [tup.source.task, tup.source.stream, list(tup.values)] for tup in tuples
            ]
        return True

    @property
    def is_waiting(self) -> bool:
        """Return whether the target lacks anything that was written or committed, or the store does
        not know that it has it.
        """
        is_open = self._is_open or self._is_prepared or self._is_committed
        return is_open or self._news is not None or not self._is_recovered

    def next_due_ms(self) -> int | None:
        """Return when the epoch at hand ends by itself; None without one."""
        return self._due_ms if self._is_open and self._flush_ms else None

    def prepare(self) -> None:
        """End the epoch at hand, if it is due, or keep its rows in the store; may be called again
        after an error.
        """
        if not self._is_open:
            return
        if self._flush_ms and self._now_ms() < self._due_ms and self._rows < self.bolt.flush_rows:
            if self._fresh:
                self._kept.put(1 + max(self._kept.keys(), default=0), self._fresh)
                self._fresh = []
            return
        value = self.bolt.prepare(self._next)
        if value is None:
            raise WorkerFailedError(
                f"component '{self._component}': prepare returned None; return what commit needs to make the epoch visible"
            )
        try:
            self._value = self._store.codec.normalise(value)
        except CodecError as error:
            raise WorkerFailedError(
                f"component '{self._component}': prepare returned {error}"
            ) from error
        self._epoch, self._next = self._next, self._next + 1
        self._is_open = False
        self._is_prepared = True
        self._news = [self._epoch, self._value]
        self._fresh = []
        self._rows = 0
        for key in self._kept:
            self._kept.delete(key)

    def take_news(self) -> dict[str, Any]:
        """Return this sink's record for the journal, if anything has changed."""
        news = self._news
        self._news = None
        if news is None and not self._is_known and len(self._kept):
            news = [self._epoch, None]
        self._is_known |= news is not None
        return {} if news is None else {"e": news}

    def whole(self) -> dict[str, Any]:
        """Return this sink's record for the journal, as of now."""
        return {"e": [self._epoch, self._value]} if self._epoch or len(self._kept) else {}

    def note_commit(self) -> None:
        """Take note that the store has the epoch that was prepared."""
        self._is_committed |= self._is_prepared
        self._is_prepared = False

    def finish(self) -> list[tuple[Tuple, str]]:
        """Recover after a start, or commit what the store has committed; may be called again after
        an error.

        Returns rows that the target has refused for good, each with its reason; they must be parked
        by the next commit.
        """
        refused: list[tuple[Tuple, str]] = []
        try:
            if not self._is_recovered:
                self.bolt.recover(self._epoch, self._value)
            elif self._is_committed:
                self.bolt.commit(self._epoch, self._value)
        except RefusedRows as refusal:
            refused = refusal.rows
        if not self._is_recovered:
            self._note_last(self.bolt.last_epoch())
            self._is_recovered = True
            self._write_again()
        if self._is_committed:
            self._is_committed = False
            self._value = None
            self._news = [self._epoch, None]
        return refused

    def take_forgotten(self) -> tuple[int, int] | None:
        """Return the last epochs of store and target once, where the target has the newer one."""
        taken = self.forgotten
        self.forgotten = None
        return taken

    def _note_last(self, last: int | None) -> None:
        """Begin a new range of numbers when the target has epochs that the store has lost."""
        if last is not None and last > self._epoch:
            self.forgotten = (self._epoch, last)
            self._next = max(self._next, (((last >> _GENERATION_BITS) + 1) << _GENERATION_BITS) + 1)

    def _write_again(self) -> None:
        """Write what an earlier owner has kept of an epoch that had not ended."""
        for _, rows in sorted(self._kept.items()):
            if not self._is_open:
                self._begin()
            for task, stream, values in rows:
                self.bolt.write(Tuple(tuple(values), 0, self._store.find_source(task, stream)))
                self._rows += 1

    def _begin(self) -> None:
        try:
            self.bolt.begin(self._next)
        except USER_ERRORS as error:
            where = f"component '{self._component}': begin({self._next})"
            raise WorkerFailedError(f"{where} raised: {describe_error(error)}") from error
        self._is_open, self._due_ms = True, self._now_ms() + self._flush_ms


def _takes_many(sink: TransactionalSink) -> bool:
    """Return whether a sink has a `write_all`; one that a subclass's own `write` belongs to is not
    used for it.
    """
    own = next(kind for kind in type(sink).__mro__ if {"write", "write_all"} & vars(kind).keys())
    return own is not TransactionalSink and "write_all" in vars(own)
