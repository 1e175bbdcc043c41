"""Batches of an acker task: checked columns of inits, acks and fails per epoch, and the answer to
them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.roots import ID_LIMIT

Roots: TypeAlias = NDArray[np.uint64]
Tasks: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
Column: TypeAlias = Sequence[int]
Inits: TypeAlias = tuple[Column, Column, Column]
"""Roots, values, spout tasks."""
Acks: TypeAlias = tuple[Column, Column]
"""Roots, values."""

TASK_LIMIT = 1 << 31
STREAMS = ("__ack_init", "__ack_ack", "__ack_fail")

NO_ROOTS: Roots = np.empty(0, np.uint64)
NO_TASKS: Tasks = np.empty(0, np.int32)
_NO_LONGS: Longs = np.empty(0, np.int64)
NO_INITS: Inits = ((), (), ())
NO_ACKS: Acks = ((), ())


class Settled(NamedTuple):
    """The trees that ended with a batch of messages and their spout tasks; the order of rows has no
    meaning.

    `kept`: split roots of tree batches among the acked ones, whose members have not ended with the
    rest, or have failed.
    """

    acked_roots: Roots
    acked_tasks: Tasks
    failed_roots: Roots
    failed_tasks: Tasks
    kept_roots: Roots = NO_ROOTS
    kept_tasks: Tasks = NO_TASKS

    def __bool__(self) -> bool:
        """Return whether any tree ended."""
        return bool(len(self.acked_roots) or len(self.failed_roots))


NOTHING_SETTLED = Settled(NO_ROOTS, NO_TASKS, NO_ROOTS, NO_TASKS)


class Columns(NamedTuple):
    """A batch as signed 64-bit columns."""

    init_roots: Longs
    init_values: Longs
    init_tasks: Longs
    ack_roots: Longs
    ack_values: Longs
    fail_roots: Longs


def count_rows(inits: Inits, acks: Acks, fails: Column) -> int:
    """Return the number of messages in a batch; MalformedFrameError when columns of one stream
    differ in length.
    """
    for stream, columns in zip(STREAMS, (inits, acks, (fails,)), strict=True):
        rows = len(columns[0])
        for column in columns:
            if len(column) != rows:
                raise MalformedFrameError(
                    f"{stream}: columns of {rows} and {len(column)} rows do not match"
                )
    return len(inits[0]) + len(acks[0]) + len(fails)


def columns_of(inits: Inits, acks: Acks, fails: Column) -> Columns:
    """The batch as arrays whose numbers are yet to be checked; MalformedFrameError when one holds
    no integers.
    """
    init, ack, fail = STREAMS
    return Columns(
        _longs(inits[0], init), _longs(inits[1], init), _longs(inits[2], init),
        _longs(acks[0], ack), _longs(acks[1], ack), _longs(fails, fail),
    )  # fmt: skip


def require_legal(batch: Columns) -> None:
    """MalformedFrameError unless all numbers are in range; it names the stream."""
    init, ack, fail = STREAMS
    _require_range(batch.init_roots, init, 1)
    _require_range(batch.init_values, init, 0)
    _require_range(batch.init_tasks, init, 0, TASK_LIMIT)
    _require_range(batch.ack_roots, ack, 1)
    _require_range(batch.ack_values, ack, 0)
    _require_range(batch.fail_roots, fail, 1)


def roots_of(column: Column, stream: str) -> Longs:
    """A single column of roots, checked."""
    roots = _longs(column, stream)
    _require_range(roots, stream, 1)
    return roots


def _longs(column: Column, stream: str) -> Longs:
    try:
        return np.frombuffer(array("q", column), np.int64) if column else _NO_LONGS
    except (TypeError, OverflowError) as error:
        raise MalformedFrameError(
            f"{stream}: a column holds something that is no 63-bit integer"
        ) from error


def _require_range(numbers: Longs, stream: str, least: int, limit: int = ID_LIMIT) -> None:
    if len(numbers) and (int(numbers.min()) < least or int(numbers.max()) >= limit):
        low = int(numbers.min())
        high = int(numbers.max())
        raise MalformedFrameError(
            f"{stream}: numbers from {low} to {high} where {least} or more was due, or too large"
        )
