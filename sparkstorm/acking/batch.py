"""Owns the shape of what an acker task is handed per epoch and of what it answers: columns of checked integers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from sparkstorm.errors import MalformedFrameError

Roots: TypeAlias = NDArray[np.uint64]
Values: TypeAlias = NDArray[np.uint64]
Tasks: TypeAlias = NDArray[np.int32]
Column: TypeAlias = Sequence[int] | NDArray[Any]
"""A column as it arrives: a list from a row frame, an array from a column frame."""

ROOT_LIMIT = 1 << 63
"""Roots are non-zero and below this: 0 marks an empty place of the table, the top bit keeps them in a signed long."""

NO_ROOTS: Roots = np.empty(0, np.uint64)
NO_TASKS: Tasks = np.empty(0, np.int32)
NO_INITS: tuple[Column, Column, Column] = ((), (), ())
NO_ACKS: tuple[Column, Column] = ((), ())


class Settled(NamedTuple):
    """The trees that ended with a batch and the spout tasks to tell; the order of rows has no meaning."""

    acked_roots: Roots
    acked_tasks: Tasks
    failed_roots: Roots
    failed_tasks: Tasks

    def __bool__(self) -> bool:
        """Whether any tree ended."""
        return bool(len(self.acked_roots) or len(self.failed_roots))


NOTHING_SETTLED = Settled(NO_ROOTS, NO_TASKS, NO_ROOTS, NO_TASKS)


def settled_from_rows(acked: list[tuple[int, int]], failed: list[tuple[int, int]]) -> Settled:
    """Make columns of (root, spout task) rows."""
    if not acked and not failed:
        return NOTHING_SETTLED
    return Settled(*_columns(acked), *_columns(failed))


def _columns(rows: list[tuple[int, int]]) -> tuple[Roots, Tasks]:
    if not rows:
        return NO_ROOTS, NO_TASKS
    roots, tasks = zip(*rows, strict=True)
    return np.array(roots, np.uint64), np.array(tasks, np.int32)


def root_list(column: Column, stream: str) -> list[int]:
    """The column as plain integers, each a legal root; MalformedFrameError names the stream otherwise."""
    roots = value_list(column, stream)
    for root in roots:
        if not 0 < root < ROOT_LIMIT:
            raise MalformedFrameError(f"{stream}: root {root} is not between 1 and 2**63 - 1")
    return roots


def value_list(column: Column, stream: str) -> list[int]:
    """The column as plain integers that fit 64 unsigned bits."""
    if isinstance(column, np.ndarray):
        return cast("list[int]", value_array(column, stream).tolist())
    try:
        return array("Q", column).tolist()
    except (TypeError, OverflowError, ValueError) as error:
        raise MalformedFrameError(f"{stream}: a column holds something that is no unsigned 64-bit integer") from error


def task_list(column: Column, stream: str) -> list[int]:
    """The column as plain integers, each a legal task id."""
    if isinstance(column, np.ndarray):
        return cast("list[int]", task_array(column, stream).tolist())
    try:
        tasks = array("i", column).tolist()
    except (TypeError, OverflowError, ValueError) as error:
        raise MalformedFrameError(f"{stream}: a column holds something that is no task id") from error
    if tasks and min(tasks) < 0:
        raise MalformedFrameError(f"{stream}: task id {min(tasks)} is negative")
    return tasks


def root_array(column: Column, stream: str) -> Roots:
    """The column as a uint64 array of legal roots."""
    roots = value_array(column, stream)
    if len(roots) and (int(roots.min()) == 0 or int(roots.max()) >= ROOT_LIMIT):
        raise MalformedFrameError(f"{stream}: a root is not between 1 and 2**63 - 1")
    return roots


def value_array(column: Column, stream: str) -> Values:
    """The column as a contiguous uint64 array; signed columns are taken bit for bit."""
    if not isinstance(column, np.ndarray):
        return np.array(value_list(column, stream), np.uint64)
    if column.ndim != 1 or column.dtype.kind not in "iu" or column.dtype.itemsize != 8:
        raise MalformedFrameError(f"{stream}: {column.ndim}-dimensional {column.dtype} is no column of ids")
    return np.ascontiguousarray(column).astype(np.uint64, copy=False)


def task_array(column: Column, stream: str) -> Tasks:
    """The column as a contiguous int32 array of legal task ids."""
    if not isinstance(column, np.ndarray):
        return np.array(task_list(column, stream), np.int32)
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise MalformedFrameError(f"{stream}: {column.ndim}-dimensional {column.dtype} is no column of tasks")
    if len(column) and not 0 <= int(column.min()) <= int(column.max()) < 1 << 31:
        raise MalformedFrameError(f"{stream}: a task id is negative or above 2**31 - 1")
    return np.ascontiguousarray(column).astype(np.int32, copy=False)


def require_equal_lengths(stream: str, *columns: Column) -> int:
    """Rows of a message set, when its columns agree on how many there are."""
    rows = len(columns[0])
    if any(len(column) != rows for column in columns):
        raise MalformedFrameError(f"{stream}: columns of {', '.join(str(len(c)) for c in columns)} rows do not match")
    return rows
