"""Collector of a spout task: its emissions, the trees that they begin, and the checks of ids and
positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkstorm.common.errors import CodecError, WorkerFailedError
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.values.codec import INT_MAX, INT_MIN, Codec
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.data_plane.acking.new_trees import NewTrees
from sparkstorm.data_plane.executor.column_runner import BatchEmitter
from sparkstorm.data_plane.executor.emitter import Emitter, fast_emit
from sparkstorm.data_plane.executor.runner import ReportError, report_of


class SpoutCollector:
    """SpoutOutputCollector: every tracked emission is a new root, that of the next member of a
    batch.
    """

    __slots__ = (
        "_batches",
        "_codec",
        "_emit",
        "_emitter",
        "_expect_batches",
        "_new_root",
        "_report",
        "_task",
        "born",
        "emit",
        "immediate",
        "trees",
    )

    def __init__(
        self,
        emitter: Emitter,
        task: int,
        draw_root: Callable[[], int] | None,
        report: ReportError,
        codec: Codec,
        expect_batches: Callable[[], None],
    ) -> None:
        self._emitter = emitter
        self._codec = codec
        self._task = task
        self._expect_batches = expect_batches
        self._batches: BatchEmitter | None = None
        self.trees = NewTrees(draw_root)
        # None: nothing is tracked
        self._new_root = None if draw_root is None else self.trees.next_root
        self._report = report
        self.born = self.trees.ids
        self._emit = fast_emit(emitter)
        # message ids of untracked emissions: acked at once, as Storm does without ackers
        self.immediate: list[Any] = []
        self.emit = self._emit_plainly
        if core is not None and draw_root is not None:
            self.emit = core.SpoutEmit(
                emitter, emitter.roots_slot, self.trees, self.born, self._emit, self._emit_plainly
            )

    def _emit_plainly(self, values: Any, message_id: Any = None, stream: str = "default") -> None:
        """Send values to every subscriber of a stream."""
        if message_id is None:
            self._emitter.roots = 0
            self._emit(values, stream)
            return
        # The usual id needs no look into the codec: this is called for every tuple.
        if type(message_id) is not int or not INT_MIN <= message_id <= INT_MAX:
            message_id = self._checked(message_id)
        if self._new_root is None:
            self._emitter.roots = 0
            self._emit(values, stream)
            # After the emit: one that raises leaves no message that would be acked.
            self.immediate.append(message_id)
        else:
            self._emitter.roots = self._new_root()
            self._emit(values, stream)
            self.born.append(message_id)

    def emit_direct(
        self, task: int, values: Any, message_id: Any = None, stream: str = "default"
    ) -> None:
        """Send values to one task of a direct stream's subscriber."""
        if message_id is not None:
            message_id = self._checked(message_id)
        self._emitter.roots = root = self._root(message_id)
        self._emitter.emit_direct(task, values, stream)
        self._note(root, message_id)

    def emit_batch(self, batch: Any, message_id: Any = None, stream: str = "default") -> None:
        """Send every row of an Arrow batch, all under one message id."""
        if self._batches is None:
            self._batches = BatchEmitter(self._emitter)
            self._expect_batches()
        if message_id is not None:
            message_id = self._checked(message_id)
        self._emitter.roots = root = self._root(message_id)
        try:
            self._batches.emit_batch(batch, stream)
        except BaseException:
            # some of its rows may stay, and must not be those of the next message too
            self.trees.end_batch()
            raise
        self._note(root, message_id)

    def keep_position(self, message_id: Any) -> None:
        """Begin a tree without tuples: it is done with the next commit, which has the source's
        position.
        """
        message_id = self._checked(message_id)
        if self._new_root is None:
            self.immediate.append(message_id)
        else:
            self.trees.begin_alone()
            self.born.append(message_id)

    def count(self, value: MetricValue, amount: float) -> None:
        """Change a metric of user code, as a blocking spout's thread has asked for it."""
        self._emitter.note(value, amount)

    def check(
        self, values: Any, message_id: Any, stream: str, task: int | None = None
    ) -> tuple[tuple[Any, ...], Any]:
        """Check values in the emitting thread, so that an error names its line; return them as the
        loop takes them.
        """
        return self._emitter.check(
            values, stream, task
        ), None if message_id is None else self._checked(message_id)

    def report_error(self, error: BaseException | str | Failure) -> None:
        """Record an error without failing anything."""
        self._report(report_of(error, self._emitter.component, self._task))

    def checked_position(self, position: Any, method: str = "snapshot") -> Any:
        """A position that can be written, or WorkerFailedError: the spout could not go on from it
        after a crash.
        """
        try:
            return self._codec.normalise(position)
        except CodecError as error:
            raise WorkerFailedError(
                f"spout '{self._emitter.component}': {method}() returned {error}"
            ) from error

    def _checked(self, message_id: Any) -> Any:
        """The id as `ack` and `fail` will be given it, also by a later owner: from the codec's
        closed set.
        """
        if type(message_id) is int and INT_MIN <= message_id <= INT_MAX:
            return message_id
        try:
            return as_message_id(self._codec.normalise(message_id))
        except CodecError as error:
            raise CodecError(
                f"component '{self._emitter.component}', message id: {error}"
            ) from error

    def _root(self, message_id: Any) -> int:
        return 0 if message_id is None or self._new_root is None else self._new_root()

    def _note(self, root: int, message_id: Any) -> None:
        if root:
            self.born.append(message_id)
        elif message_id is not None:
            self.immediate.append(message_id)


def as_message_id(value: Any) -> Any:
    """A message id as users hand it in: what the codec made a list is a tuple again, so that it can
    be a key.
    """
    return tuple(as_message_id(item) for item in value) if isinstance(value, list) else value
