"""Observers of a task: hooks of users, recordings, live shadows, capsules of failures, and taps.

Law: an observer is called in the worker's loop, between two calls of user code, and changes nothing
of the task: no row, no state, no count. It reports its own errors (a full disk, an error of a hook)
and never raises them.

Left out: a field and a loop in the task for each of them, as it was. Each new one then changed the
bolt, the spout, the timers and the commit. Storm has the same seam for users (ITaskHook,
`api/hooks.py`); its recordings (EventLogger) are bolts and cost a hop for each tuple.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.data_plane.acking.pending import MessageOutcome
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.runner import FailedInput

Values = tuple[Any, ...]


class TaskObserver:
    """Observer of one task or of several; every method may be left out."""

    sees_inputs = False
    """Whether `executed` is to be called with every input. A batch of columns is then executed row
    by row.
    """

    def executed(
        self,
        tuples: Sequence[Tuple],
        failures: Sequence[FailedInput],
        waiting: Sequence[Tuple],
        came: Sequence[Values],
    ) -> None:
        """Take note that these inputs of a bolt, or a tick, were executed together: some failed,
        some wait for their ack, the rest is done. User code may have changed lists among their
        values: `came` has the values before, where an observer sees each input.
        """

    def settled_late(self, acked: Sequence[Tuple], failures: Sequence[FailedInput]) -> None:
        """Take note that a bolt has acked or failed these inputs of earlier epochs."""

    def failed(self, tup: Tuple, failure: Failure) -> None:
        """Take note that the first execution of an input has failed, and is undone; `failure` has
        its place and time.
        """

    def fired(self, watermark_ms: int, count: int) -> None:
        """Take note that a bolt has received this watermark, which has made so many windows and
        timers due.
        """

    def emitted(self, emitter: Emitter) -> None:
        """Take note of rows emitted for good since the emitter's counts were taken: its log has
        them.
        """

    def settled(self, outcomes: Sequence[MessageOutcome]) -> None:
        """Take note that `ack` or `fail` of a spout is about to be called for these messages."""

    def committed(self) -> None:
        """Take note that all of the above is in a commit that the store has applied."""

    def close(self) -> None:
        """Release resources: the worker stops in an orderly way."""
